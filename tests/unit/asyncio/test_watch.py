"""The watch: one timer for all sessions of a loop that have bytes under way."""

from __future__ import annotations

import asyncio
import gc
import socket
import time
import weakref

import pytest

from multi.asyncio.watch import LATE, TICK, Watch, watch_of


class Watched:
    """Says for a while that something is under way."""

    soon = False
    look_at = 0.0

    def __init__(self, looks: int) -> None:
        self.pumped = 0
        self.left = looks
        self.together: list[int] = []
        self.done = asyncio.Event()

    def pump(self) -> None:
        self.soon = False
        self.pumped += 1

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


async def test_a_loop_that_was_busy_takes_in_what_has_come_before_it_looks() -> None:
    loop, order = asyncio.get_running_loop(), list[str]()
    here, there = socket.socketpair()

    class Looks(Watched):
        def look(self, now: float, watched: int) -> bool:
            order.append("look")
            return super().look(now, watched)

    def read() -> None:
        loop.remove_reader(here)
        loop.call_soon(order.append, "told")

    with here, there:
        loop.add_reader(here, read)
        watch, looks = Watch(loop), Looks(1)
        watch.join(looks)
        there.send(b"x")
        time.sleep(TICK + 2 * LATE)  # noqa: ASYNC251 - that is the point
        async with asyncio.timeout(5):
            await looks.done.wait()
    assert order == ["told", "look"]


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


async def test_a_session_is_looked_at_when_it_wants_to_be() -> None:
    loop = asyncio.get_running_loop()
    watch, later, soon = Watch(loop), Watched(1), Watched(2)
    later.look_at = loop.time() + 3600
    watch.join(later)
    watch.join(soon)
    async with asyncio.timeout(5):
        await soon.done.wait()
    assert later.together == []
    later.look_at = loop.time()
    async with asyncio.timeout(5):
        await later.done.wait()


async def test_all_who_want_to_be_pumped_are_in_the_next_turn_and_nobody_twice() -> None:
    watch, one, two, done = Watch(asyncio.get_running_loop()), Watched(1), Watched(1), Watched(1)
    for session in (one, two, done, two):
        session.soon = True
        watch.pump_soon(session)
    done.pump()
    assert (one.pumped, two.pumped) == (0, 0)
    await asyncio.sleep(0)
    assert (one.pumped, two.pumped, done.pumped) == (1, 1, 1)
    one.soon = True
    watch.pump_soon(one)
    await asyncio.sleep(0)
    assert (one.pumped, two.pumped) == (2, 1)


async def test_an_interrupted_pump_leaves_the_others_theirs() -> None:
    class Interrupted(BaseException):
        """As KeyboardInterrupt."""

    class Interrupts(Watched):
        def pump(self) -> None:
            self.soon = False
            raise Interrupted

    watch, first, second = Watch(asyncio.get_running_loop()), Interrupts(1), Watched(1)
    for session in (first, second):
        session.soon = True
        watch.pump_soon(session)
    with pytest.raises(Interrupted):
        watch._pump()
    assert second.pumped == 0
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert second.pumped == 1


class _Idle(Watched):
    def __init__(self) -> None:
        super().__init__(1)

    def look(self, now: float, watched: int) -> bool:
        return False
