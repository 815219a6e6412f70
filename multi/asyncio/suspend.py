"""Notices that the machine was suspended: the clock that counts sleep has run ahead of the one that does not.

Shared by all sessions of an event loop; one look a second while somebody wants to know.
"""

from __future__ import annotations

import asyncio
import logging
import time
import weakref
from collections.abc import Callable

INTERVAL = 1.0  # seconds between looks; timers stand still during the sleep, so the first comes soon after it
MIN_SLEEP = 1.0  # seconds; shorter sleeps look like a slow network, which is dealt with anyway

logger = logging.getLogger("multi.session")

Clock = Callable[[], float]


def slept_until_now() -> float:
    """Seconds this machine has been suspended since it started; 0 where the system does not tell."""
    boot = getattr(time, "CLOCK_BOOTTIME", None)
    return time.clock_gettime(boot) - time.clock_gettime(time.CLOCK_MONOTONIC) if boot is not None else 0.0


class SleepWatch:
    """Calls its subscribers with the seconds slept. `clock` tells the total so far."""

    def __init__(self, clock: Clock = slept_until_now, interval: float = INTERVAL) -> None:
        self._clock = clock
        self._interval = interval
        self._subscribers: dict[object, Callable[[float], None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._before = 0.0

    def subscribe(self, callback: Callable[[float], None]) -> Callable[[], None]:
        """Call `callback(seconds)` on the running loop after each sleep; the returned function ends that."""
        token = object()
        if not self._subscribers:
            self._before = self._clock()
            self._arm()
        self._subscribers[token] = callback

        def unsubscribe() -> None:
            self._subscribers.pop(token, None)
            if not self._subscribers and self._timer is not None:
                self._timer.cancel()
                self._timer = None

        return unsubscribe

    def _arm(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._interval, self._look)

    def _look(self) -> None:
        self._arm()
        now = self._clock()
        slept, self._before = now - self._before, now
        if slept < MIN_SLEEP:
            return
        logger.info("the machine slept for %.0f s", slept)
        for callback in list(self._subscribers.values()):
            try:
                callback(slept)
            except Exception:
                logger.exception("a session could not be told that the machine slept")


_watches: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, SleepWatch] = weakref.WeakKeyDictionary()


def sleep_watch() -> SleepWatch:
    """The one of the running loop."""
    loop = asyncio.get_running_loop()
    return _watches.setdefault(loop, SleepWatch())
