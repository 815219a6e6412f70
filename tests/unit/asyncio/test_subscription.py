"""What a subscriber hears: each event once, in order, a bounded number of them, and the end."""

from __future__ import annotations

import asyncio

from multi.asyncio.subscription import EVENTS_KEPT, Subscription
from multi.events import EventsDropped, Warned


async def test_events_are_kept_until_they_are_taken_and_the_end_comes_last() -> None:
    subscription = Subscription([Warned("first")])
    subscription.put(Warned("second"))
    subscription.end()
    async with asyncio.timeout(5):
        assert [event async for event in subscription] == [Warned("first"), Warned("second")]


async def test_who_is_too_slow_hears_how_many_events_were_dropped() -> None:
    subscription = Subscription([])
    for number in range(EVENTS_KEPT + 3):
        subscription.put(Warned(str(number)))
    assert await subscription.next() == EventsDropped(3)
    assert await subscription.next() == Warned("3")


async def test_all_who_wait_on_one_subscription_hear_of_its_end() -> None:
    subscription = Subscription([])
    waiting = [asyncio.create_task(subscription.next()) for _ in range(3)]
    await asyncio.sleep(0)
    subscription.put(Warned("one"))
    await asyncio.sleep(0)
    subscription.end()
    async with asyncio.timeout(5):
        assert sorted(map(str, await asyncio.gather(*waiting))) == sorted(map(str, (Warned("one"), None, None)))
