"""A subscriber's events: all of them in order, or how many it has missed."""

from __future__ import annotations

import asyncio

from multi.asyncio.subscription import EVENTS_KEPT, Subscription
from multi.events import Event, EventsDropped, Warned


def numbered(count: int, start: int = 0) -> list[Event]:
    return [Warned(str(number)) for number in range(start, start + count)]


async def test_events_come_in_order_and_end_with_the_session() -> None:
    subscription = Subscription(numbered(2))
    for event in numbered(2, start=2):
        subscription.put(event)
    subscription.end()
    assert [event async for event in subscription] == numbered(4)
    assert await anext(subscription, None) is None


async def test_who_waits_is_woken_by_the_next_event_and_by_the_end() -> None:
    subscription = Subscription([])
    waiting = asyncio.ensure_future(anext(subscription, None))
    await asyncio.sleep(0)
    subscription.put(Warned("now"))
    assert await waiting == Warned("now")
    waiting = asyncio.ensure_future(anext(subscription, None))
    await asyncio.sleep(0)
    subscription.end()
    assert await waiting is None


async def test_who_is_too_slow_hears_how_much_was_missed_and_goes_on_with_the_rest() -> None:
    subscription = Subscription([])
    for event in numbered(EVENTS_KEPT + 7):
        subscription.put(event)
    subscription.end()
    events = [event async for event in subscription]
    assert events[0] == EventsDropped(7)
    assert events[1:] == numbered(EVENTS_KEPT, start=7)


async def test_a_cancelled_wait_loses_no_event() -> None:
    subscription = Subscription([])
    waiting = asyncio.ensure_future(anext(subscription, None))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    subscription.put(Warned("kept"))
    assert await anext(subscription, None) == Warned("kept")


async def test_all_who_wait_on_one_subscription_hear_of_its_end() -> None:
    subscription = Subscription([])
    waiting = [asyncio.create_task(anext(subscription, None)) for _ in range(3)]
    await asyncio.sleep(0)
    subscription.put(Warned("one"))
    await asyncio.sleep(0)
    subscription.end()
    async with asyncio.timeout(5):
        assert sorted(map(str, await asyncio.gather(*waiting))) == sorted(map(str, (Warned("one"), None, None)))
