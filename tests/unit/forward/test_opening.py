"""Whose turn it is to be opened, when nothing can be."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from typing import Any, cast

import pytest

from multi.config import load_config
from multi.errors import SessionLost
from multi.forward import client as near_end
from multi.forward import opening
from multi.forward.client import ForwardClient
from multi.forward.opening import OpeningTurns, open_stream
from multi.forward.protocol import Code, Connect, ForwardRefused, HostPort
from multi.forward.relay import StreamPair
from multi.forward.specs import USUAL

LONGEST = 0.5  # s that anybody waits in these tests
TARGET = Connect(HostPort("host", 1))


def came_in() -> StreamPair:
    return StreamPair(asyncio.StreamReader(), cast(Any, None))


async def all_end_with_the_first(work: list[Coroutine[Any, Any, None]]) -> list[BaseException | None]:
    tasks = [asyncio.ensure_future(each) for each in work]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    # Each has a timer of its own, and a busy machine calls them in different turns of the loop: less than another of
    # them is the difference between together and one after the other.
    _, waiting = await asyncio.wait(tasks, timeout=LONGEST / 2)
    assert not waiting
    return [task.exception() for task in tasks]


def test_without_a_stream_for_anybody_all_are_refused_together_and_not_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(opening, "ANSWER_TIMEOUT", LONGEST)

    class Full:
        async def open_stream(self, *_: object, **__: object) -> None:
            await asyncio.Event().wait()

    async def scenario() -> None:
        turns = OpeningTurns(1)

        async def one() -> None:
            async with turns.turn(came_in(), TARGET.target) as turn:
                await open_stream(cast(Any, Full()), TARGET, USUAL, turn)

        ends = await all_end_with_the_first([one() for _ in range(4)])
        assert [cast(ForwardRefused, end).code for end in ends] == [Code.BUSY] * 4

    asyncio.run(scenario())


def test_without_a_session_nobody_has_a_turn_and_all_are_told_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(near_end, "SESSION_TIMEOUT", LONGEST)
    monkeypatch.setattr(near_end, "MAX_OPENING", 1)

    async def scenario() -> None:
        client = ForwardClient(load_config({"listen": {}}), log=print)

        async def one() -> None:
            async with client.turn(came_in(), TARGET.target):
                raise AssertionError("there is no session")

        ends = await all_end_with_the_first([one() for _ in range(4)])
        assert all(isinstance(end, SessionLost) for end in ends)

    asyncio.run(scenario())


def test_a_target_that_does_not_answer_leaves_turns_to_others() -> None:
    async def scenario() -> None:
        turns, dead, hold = OpeningTurns(8), HostPort("dead", 1), asyncio.Event()
        opening_there = 0

        async def waits() -> None:
            nonlocal opening_there
            async with turns.turn(came_in(), dead):
                opening_there += 1
                await hold.wait()

        waiting = [asyncio.ensure_future(waits()) for _ in range(20)]
        await asyncio.sleep(0)
        async with turns.turn(came_in(), TARGET.target):
            assert opening_there == 6
        hold.set()
        await asyncio.gather(*waiting)

    asyncio.run(scenario())


def test_a_turn_that_takes_too_long_is_the_next_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "MAX_TURN", 0.01)

    async def scenario() -> None:
        turns = OpeningTurns(2)
        async with AsyncExitStack() as stack:
            for number in range(6):  # each while all before it are still being opened
                await stack.enter_async_context(turns.turn(came_in(), HostPort("dead", number)))
        monkeypatch.setattr(opening, "MAX_TURN", 60.0)
        a, b, c = (turns.turn(came_in(), HostPort("alive", number)) for number in range(3))
        async with a, b:  # none of the two turns was given back twice
            third = asyncio.ensure_future(c.__aenter__())
            await asyncio.sleep(0)
            assert not third.done()
        async with asyncio.timeout(5):
            await third

    asyncio.run(scenario())


def test_who_gives_up_waiting_leaves_the_turn_to_others() -> None:
    async def scenario() -> None:
        turns = OpeningTurns(2)
        async with turns.turn(came_in(), HostPort("a", 1)), turns.turn(came_in(), HostPort("b", 1)):
            given_up = asyncio.ensure_future(turns.turn(came_in(), TARGET.target).__aenter__())
            await asyncio.sleep(0)
            given_up.cancel()
            await asyncio.wait({given_up})
        async with asyncio.timeout(5), turns.turn(came_in(), TARGET.target):
            pass

    asyncio.run(scenario())
