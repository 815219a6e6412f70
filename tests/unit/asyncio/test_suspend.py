"""A machine that slept is noticed by the clock that counts sleep."""

from __future__ import annotations

import asyncio

import pytest

from multi.asyncio.suspend import MIN_SLEEP, SleepWatch, slept_until_now

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


async def test_a_sleep_is_told_once_and_a_short_one_not_at_all() -> None:
    machine, told = Machine(), list[float]()
    watch = SleepWatch(told.append, clock=machine, interval=INTERVAL)
    machine.slept += MIN_SLEEP / 2
    await machine.looked_at()
    assert told == []
    machine.slept += 3600.0
    await machine.looked_at(3)
    assert told == [pytest.approx(3600.0)]
    watch.close()


async def test_nobody_looks_when_nobody_wants_to_know() -> None:
    machine = Machine()
    watch = SleepWatch(lambda _seconds: None, clock=machine, interval=INTERVAL)
    await machine.looked_at()
    watch.close()
    watch.close()
    looks = machine.looks
    await asyncio.sleep(20 * INTERVAL)
    assert machine.looks == looks


async def test_a_session_that_fails_to_hear_it_hears_the_next_one() -> None:
    def broken(seconds: float) -> None:
        told.append(seconds)
        raise RuntimeError("a bug")

    machine, told, failures = Machine(), list[float](), list[str]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(str(context["exception"])))
    watch = SleepWatch(broken, clock=machine, interval=INTERVAL)
    for _ in range(2):
        machine.slept += 60.0
        await machine.looked_at()
    watch.close()
    assert told == [pytest.approx(60.0), pytest.approx(60.0)]
    assert failures == ["a bug", "a bug"]


def test_the_clock_counts_from_the_start_of_the_machine() -> None:
    assert slept_until_now() > -0.001, "two clocks, read one after the other"
