"""The watch: one timer for all sessions of a loop that have bytes under way."""

from __future__ import annotations

import asyncio
import gc
import socket
import time
import weakref
from collections.abc import Callable
from typing import Any, cast

import pytest

from multi.asyncio.watch import LATE, TICK, TOGETHER, Watch, watch_of


class Watched:
    """Says for a while that something is under way."""

    soon = False
    later = 0

    def __init__(self, looks: int) -> None:
        self.look_at = time.monotonic()  # as asyncio's loops count time
        self.pumped = 0
        self.left = looks
        self.together: list[int] = []
        self.done = asyncio.Event()

    def pump(self) -> None:
        self.soon, self.later = False, 0
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
    watch.join(later)
    async with asyncio.timeout(5):
        await later.done.wait()


async def test_all_who_want_to_be_pumped_are_in_the_next_turn_and_nobody_twice() -> None:
    watch, one, two, done = Watch(asyncio.get_running_loop()), Watched(1), Watched(1), Watched(1)
    for session in (one, two, done, two):
        watch.pump_soon(session)
    done.pump()
    assert (one.pumped, two.pumped) == (0, 0)
    await asyncio.sleep(0)
    assert (one.pumped, two.pumped, done.pumped) == (1, 1, 1)
    watch.pump_soon(one)
    await asyncio.sleep(0)
    assert (one.pumped, two.pumped) == (2, 1)


async def test_who_waits_some_turns_is_pumped_after_them_or_as_soon_as_it_wants_to_be() -> None:
    watch, patient, answered = Watch(asyncio.get_running_loop()), Watched(1), Watched(1)
    for session in (patient, answered):
        watch.pump_later(session)
    await asyncio.sleep(0)
    assert (patient.pumped, answered.pumped) == (0, 0)
    watch.pump_soon(answered)
    await asyncio.sleep(0)
    assert (patient.pumped, answered.pumped) == (0, 1)
    for _ in range(3):
        await asyncio.sleep(0)
    assert (patient.pumped, answered.pumped) == (1, 1)


async def test_an_interrupted_pump_leaves_the_others_theirs() -> None:
    class Interrupted(BaseException):
        """As KeyboardInterrupt."""

    class Interrupts(Watched):
        def pump(self) -> None:
            self.soon = False
            raise Interrupted

    watch, first, second = Watch(asyncio.get_running_loop()), Interrupts(1), Watched(1)
    for session in (first, second):
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


class _Clock:
    """What a watch needs of an event loop, with a time that passes when a test says so."""

    def __init__(self) -> None:
        self.now, self.woken = 100.0, list[float]()
        self._timers: list[tuple[float, Callable[[], None], Any]] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[[], None]) -> Any:
        class Handle:
            cancelled = False

            def cancel(self) -> None:
                self.cancelled = True

        handle = Handle()
        self._timers.append((when, callback, handle))
        return handle

    def run(self, until: float) -> None:
        while due := sorted((t for t in self._timers if t[0] <= until and not t[2].cancelled), key=lambda t: t[0]):
            when, callback, handle = due[0]
            self._timers = [timer for timer in self._timers if timer[2] is not handle]
            self.now = max(self.now, when)
            self.woken.append(round(self.now - 100.0, 6))
            callback()
        self.now = until


class _Due(Watched):
    """Wants to be looked at once."""

    def __init__(self, at: float) -> None:
        super().__init__(1)
        self.look_at = at
        self.looked_at = 0.0

    def look(self, now: float, watched: int) -> bool:
        self.looked_at = now
        return False


def _watched(*ats: float) -> tuple[_Clock, Watch, list[_Due]]:
    clock = _Clock()
    watch, sessions = Watch(cast(asyncio.AbstractEventLoop, clock)), [_Due(clock.now + at) for at in ats]
    for session in sessions:
        watch.join(session)
    return clock, watch, sessions


def test_what_is_due_soon_after_another_is_looked_at_together_with_it() -> None:
    clock, _, sessions = _watched(0.040, 0.042, 0.040 + TOGETHER, 0.040 + TOGETHER + TICK / 2)
    clock.run(100.039)
    assert clock.woken == [], "while nothing is due the process sleeps"
    clock.run(101.0)
    assert clock.woken == [0.045, 0.055]
    assert all(s.look_at <= s.looked_at <= s.look_at + TICK + 1e-9 for s in sessions)


def test_who_becomes_due_sooner_than_it_was_is_looked_at_in_time() -> None:
    clock, watch, (first, second) = _watched(0.040, 0.040)
    clock.run(100.002)
    first.look_at = clock.now + 0.010
    watch.join(first)
    clock.run(101.0)
    assert [round(s.looked_at - 100.0, 6) for s in (first, second)] == [0.017, 0.045]


def test_who_wants_looks_all_the_time_gets_one_a_tick() -> None:
    class Busy(_Due):
        def look(self, now: float, watched: int) -> bool:
            self.looked_at, self.look_at = now, now + 0.001
            return True

    clock = _Clock()
    watch = Watch(cast(asyncio.AbstractEventLoop, clock))
    watch.join(Busy(clock.now))
    clock.run(100.1)
    assert len(clock.woken) == 10
    assert all(later - sooner >= TICK - 1e-9 for sooner, later in zip(clock.woken, clock.woken[1:], strict=False))


def test_a_process_whose_sessions_have_left_wakes_up_once_more_at_most() -> None:
    clock, watch, sessions = _watched(0.040, 0.040)
    for session in sessions:
        watch.leave(session)
    clock.run(102.0)
    assert clock.woken == [0.045]
    assert [s.looked_at for s in sessions] == [0.0, 0.0]
