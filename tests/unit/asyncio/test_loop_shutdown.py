"""What is still open when its event loop shuts down ends then."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable

import pytest
import uvloop

from multi.asyncio.loop_shutdown import LoopShutdownHook

NEW_LOOP = pytest.mark.parametrize(
    "new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"]
)


@NEW_LOOP
def test_the_end_of_the_loop_is_told_once_and_before_it_is_closed(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    closed_when_told: list[bool] = []

    async def main() -> LoopShutdownHook:
        loop = asyncio.get_running_loop()

        async def cut() -> None:
            await asyncio.sleep(0)  # the loop still turns
            closed_when_told.append(loop.is_closed())

        return LoopShutdownHook(cut)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        hook = runner.run(main())
        assert closed_when_told == []
    assert closed_when_told == [False]
    hook.release()
    assert closed_when_told == [False]


@NEW_LOOP
def test_what_was_released_is_not_told_and_not_kept(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    class Open:
        told = 0

        async def cut(self) -> None:
            Open.told += 1

    async def main() -> weakref.ref[Open]:
        thing = Open()
        hook = LoopShutdownHook(thing.cut)
        hook.release()
        hook.release()
        return weakref.ref(thing)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        gone = runner.run(main())
        gc.collect()
        assert gone() is None
    assert Open.told == 0
