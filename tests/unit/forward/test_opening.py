"""Whose turn it is to be opened, when nothing can be."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, cast

import pytest

from multi.config import load_config
from multi.errors import SessionLost
from multi.forward import client as near_end
from multi.forward import opening
from multi.forward.client import ForwardClient
from multi.forward.opening import Turns, open_stream
from multi.forward.protocol import Address, Code, Connect, ForwardRefused
from multi.forward.relay import StreamPair
from multi.forward.specs import USUAL

LONGEST = 0.5  # s that anybody waits in these tests
TARGET = Connect(Address("host", 1))


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
        turns = Turns(1)

        async def one() -> None:
            async with turns.turn(came_in()) as turn:
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
            async with client.turn(came_in()):
                raise AssertionError("there is no session")

        ends = await all_end_with_the_first([one() for _ in range(4)])
        assert all(isinstance(end, SessionLost) for end in ends)

    asyncio.run(scenario())
