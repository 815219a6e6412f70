"""A machine that slept is noticed by the clock that counts sleep."""

from __future__ import annotations

import asyncio

import pytest

from multi.asyncio.suspend import MIN_SLEEP, SleepWatch, sleep_watch, slept_until_now

INTERVAL = 0.001  # seconds


class Machine:
    """Sleeps when a test says so."""

    def __init__(self) -> None:
        self.slept = 1000.0
        self.looks = 0

    def __call__(self) -> float:
        self.looks += 1
        return self.slept

    async def looked_at(self, times: int = 2) -> None:
        before = self.looks
        async with asyncio.timeout(5):
            while self.looks < before + times:  # noqa: ASYNC110 - what is waited for is that nothing else happens
                await asyncio.sleep(INTERVAL)


async def test_a_sleep_is_told_once_to_everybody_and_a_short_one_to_nobody() -> None:
    machine, told, also = Machine(), list[float](), list[float]()
    watch = SleepWatch(machine, INTERVAL)
    unsubscribe, other = watch.subscribe(told.append), watch.subscribe(also.append)
    machine.slept += MIN_SLEEP / 2
    await machine.looked_at()
    assert told == []
    machine.slept += 3600.0
    await machine.looked_at(3)
    assert told == also == [pytest.approx(3600.0)]
    unsubscribe()
    other()


async def test_nobody_looks_when_nobody_wants_to_know() -> None:
    machine = Machine()
    watch = SleepWatch(machine, INTERVAL)
    unsubscribe = watch.subscribe(lambda _seconds: None)
    await machine.looked_at()
    unsubscribe()
    unsubscribe()
    looks = machine.looks
    await asyncio.sleep(20 * INTERVAL)
    assert machine.looks == looks


async def test_a_session_that_fails_to_hear_it_keeps_it_from_no_other(caplog: pytest.LogCaptureFixture) -> None:
    def broken(_seconds: float) -> None:
        raise RuntimeError("a bug")

    machine, told = Machine(), list[float]()
    watch = SleepWatch(machine, INTERVAL)
    ends = [watch.subscribe(broken), watch.subscribe(told.append)]
    machine.slept += 60.0
    await machine.looked_at()
    assert told == [pytest.approx(60.0)]
    assert "could not be told" in caplog.text
    for unsubscribe in ends:
        unsubscribe()


async def test_all_sessions_of_an_event_loop_share_one_watch() -> None:
    assert sleep_watch() is sleep_watch()
    assert slept_until_now() > -0.001, "two clocks, read one after the other"
