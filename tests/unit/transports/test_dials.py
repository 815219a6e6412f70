"""Dials beside each other: the first to answer is taken, and nothing is left of the others."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, cast

import pytest

from multi.errors import TransportError
from multi.transports.base import Channel
from multi.transports.dials import first_to_answer


class Dialled:
    """A channel, as far as those who dial look at it."""

    open = False

    def abort(self) -> None:
        self.open = False


class Dial:
    """Succeeds or fails when told; cancelled, it takes a turn of the loop to end, or ends well all the same."""

    def __init__(self, *, stubborn: bool = False) -> None:
        self.answer = asyncio.get_running_loop().create_future()
        self.channel = Dialled()
        self._stubborn = stubborn

    async def __call__(self) -> Channel:
        try:
            await self.answer
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            if not self._stubborn:
                raise
        self.channel.open = True
        return cast("Channel", self.channel)


async def _turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_the_first_to_answer_is_taken_and_the_others_are_given_up() -> None:
    slow, fast = Dial(stubborn=True), Dial()
    fast.answer.set_result(None)
    assert cast("Any", await first_to_answer([slow, fast], 0, after_failure=False)) is fast.channel
    assert not slow.channel.open
    assert fast.channel.open


@pytest.mark.parametrize("turns", range(8))
async def test_who_gives_up_while_the_winner_is_on_its_way_leaves_no_channel(turns: int) -> None:
    slow, fast = Dial(stubborn=True), Dial()
    dialling = asyncio.create_task(first_to_answer([slow, fast], 0, after_failure=False))
    await asyncio.sleep(0.001)
    fast.answer.set_result(None)
    await _turns(turns)
    dialling.cancel()
    taken = None
    with suppress(asyncio.CancelledError):
        taken = await dialling
    assert not slow.channel.open
    assert fast.channel.open is (taken is not None)


async def test_what_the_first_has_failed_with_is_said() -> None:
    first, second = Dial(), Dial()
    first.answer.set_exception(TransportError("refused"))
    second.answer.set_exception(TransportError("refused later"))
    with pytest.raises(TransportError, match=r"refused$"):
        await first_to_answer([first, second], 0, after_failure=True)
