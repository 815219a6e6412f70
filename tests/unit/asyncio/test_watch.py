"""The watch: one timer for all sessions of a loop that have bytes under way."""

from __future__ import annotations

import asyncio
import gc
import weakref

from multi.asyncio.watch import Watch, watch_of


class Watched:
    """Says for a while that something is under way."""

    def __init__(self, looks: int) -> None:
        self.left = looks
        self.together: list[int] = []
        self.done = asyncio.Event()

    def look(self, now: float, watched: int) -> bool:
        self.left -= 1
        self.together.append(watched)
        if not self.left:
            self.done.set()
        return self.left > 0


async def test_sessions_are_looked_at_until_nothing_is_under_way() -> None:
    watch, short, long = watch_of(asyncio.get_running_loop()), Watched(1), Watched(3)
    watch.join(short)
    watch.join(long)
    async with asyncio.timeout(5):
        await long.done.wait()
    assert (short.together, long.together) == ([2], [2, 1, 1])
    late = Watched(2)
    watch.join(late)
    async with asyncio.timeout(5):
        await late.done.wait()
    assert long.left == 0, "it is not looked at any more"


async def test_who_leaves_is_not_looked_at() -> None:
    watch, gone, stays = Watch(asyncio.get_running_loop()), Watched(1), Watched(2)
    watch.join(gone)
    watch.join(stays)
    watch.leave(gone)
    async with asyncio.timeout(5):
        await stays.done.wait()
    assert gone.together == []


async def test_a_loop_has_one_watch() -> None:
    loop = asyncio.get_running_loop()
    watch = watch_of(loop)
    assert watch_of(loop) is watch


def test_a_watch_ends_with_its_loop() -> None:
    loop = asyncio.new_event_loop()
    watch = watch_of(loop)
    watch.join(_Idle())
    loop.close()
    known = weakref.ref(watch)
    del watch, loop
    gc.collect()
    assert known() is None


class _Idle:
    def look(self, now: float, watched: int) -> bool:
        return False
