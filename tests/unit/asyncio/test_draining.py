"""When a server that is being stopped ends its sessions, on a clock of the test's own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast
from unittest.mock import Mock

import pytest

from multi.asyncio.draining import Draining
from multi.asyncio.driver import SessionDriver


@dataclass
class Clock:
    """As much of an event loop as a drain uses."""

    now: float = 0.0
    timers: list[tuple[float, Callable[[], None]]] = field(default_factory=list)

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[[], None]) -> Mock:
        self.timers.append((when, callback))
        return Mock()

    def next(self, *, late: float = 0.0) -> float:
        """Call what is due next, so many seconds late; when it was due."""
        when, callback = self.timers.pop(0)
        self.now = when + late
        callback()
        return when


@pytest.mark.parametrize(("late", "cut"), [(0.0, 10.0), (0.5, 10.0), (1.0, 10.0), (1.5, 10.5), (4.0, 13.0)])
def test_a_server_that_is_late_does_not_cut_off_the_goodbye(late: float, cut: float) -> None:
    clock, driver = Clock(), Mock()
    driver.core.moved_at = 0.0
    draining = Draining(cast(asyncio.AbstractEventLoop, clock), lambda: [cast(SessionDriver, driver)])
    draining.begin(10.0)
    assert clock.next(late=late) == pytest.approx(8.0)
    driver.core.leave.assert_called_once_with(now=clock.now)
    driver.core.abort.assert_not_called()
    assert clock.next() == pytest.approx(cut)
    driver.core.abort.assert_called_once()
