"""Notices that the machine was suspended: the clock that counts sleep has run ahead of the one that does not."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from multi.asyncio.loop_shutdown import ignore

INTERVAL = 1.0  # seconds between looks; timers stand still during the sleep, so the first comes soon after it
MIN_SLEEP = 1.0  # seconds; shorter sleeps look like a slow network, which is dealt with anyway

logger = logging.getLogger("multi.session")


def slept_until_now() -> float:
    """Seconds this machine has been suspended since it started; 0 where the system does not tell."""
    boot = getattr(time, "CLOCK_BOOTTIME", None)
    return time.clock_gettime(boot) - time.clock_gettime(time.CLOCK_MONOTONIC) if boot is not None else 0.0


class SleepWatch:
    """Calls `on_sleep` with the seconds slept after each sleep, until it is closed. `clock` tells the total so far."""

    def __init__(
        self,
        on_sleep: Callable[[float], None],
        *,
        clock: Callable[[], float] = slept_until_now,
        interval: float = INTERVAL,
    ) -> None:
        self._on_sleep = on_sleep
        self._clock = clock
        self._interval = interval
        self._before = clock()
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(interval, self._look)

    def close(self) -> None:
        self._timer.cancel()
        self._on_sleep = ignore

    def _look(self) -> None:
        self._timer = self._loop.call_later(self._interval, self._look)
        now = self._clock()
        slept, self._before = now - self._before, now
        if slept >= MIN_SLEEP:
            logger.info("the machine slept for %.0f s", slept)
            self._on_sleep(slept)
