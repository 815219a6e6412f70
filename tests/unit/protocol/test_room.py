"""What is on its way where others would have to wait for it, on a path that changes meanwhile."""

from __future__ import annotations

from collections import deque

import pytest

from multi.protocol.connection import FULL_WAIT, URGENT_WAIT
from multi.protocol.room import Room

STEP = 0.001  # seconds
RATE = 1e6  # bytes per second
PIECE = 8_000  # bytes


class Path:
    """Takes what it is given at once, and carries it at its rate; the mean round trip follows as a kernel's does."""

    def __init__(self, round_trip: float, wait: float = URGENT_WAIT) -> None:
        self.room = Room(wait)
        self.rate = self.peak = RATE
        self.round_trip = self.shortest = self.mean = round_trip
        self.variation = 0.001
        self._now = 1.0
        self._on_the_way = self._queue = 0.0
        self._arrives: deque[tuple[float, float, float]] = deque()
        """When it is acknowledged, how much, and its round trip."""

    def run(self, seconds: float) -> tuple[float, float]:
        """Bytes per second that were carried, and the mean queue in seconds."""
        carried = queued = 0.0
        steps = round(seconds / STEP)
        for _ in range(steps):
            self._now += STEP
            while self._arrives and self._arrives[0][0] <= self._now:
                _, size, rtt = self._arrives.popleft()
                self._on_the_way -= size
                carried += size
                self.shortest = min(self.shortest, rtt)
                self.mean += (rtt - self.mean) / 8
            self._queue = max(0.0, self._queue - self.rate * STEP)
            in_network = int(self._on_the_way)
            most = self.room.most(self.peak, self.shortest, self.mean, self.variation, in_network, self._now)
            while self._on_the_way < most:
                self._on_the_way += PIECE
                self._queue += PIECE
                rtt = self.round_trip + self._queue / self.rate
                self._arrives.append((self._now + rtt, PIECE, rtt))
            queued += self._queue / self.rate
        return carried / seconds, queued / steps


@pytest.mark.parametrize("wait", [URGENT_WAIT, FULL_WAIT])
@pytest.mark.parametrize("round_trip", [0.005, 0.020, 0.100])
def test_a_path_is_full_and_little_queues(round_trip: float, wait: float) -> None:
    path = Path(round_trip, wait)
    path.run(2.0)
    carried, queued = path.run(20.0)
    assert carried > 0.98 * RATE
    assert queued < wait + 2 * PIECE / RATE


@pytest.mark.parametrize("wait", [URGENT_WAIT, FULL_WAIT])
@pytest.mark.parametrize(("before", "after"), [(0.005, 0.060), (0.020, 0.100), (0.050, 0.300)])
def test_a_path_whose_way_has_become_longer_is_full_again(before: float, after: float, wait: float) -> None:
    path = Path(before, wait)
    path.run(2.0)
    path.round_trip = after
    path.run(10 * after)
    carried, queued = path.run(30.0)
    assert carried > 0.95 * RATE
    assert queued < 2 * wait


@pytest.mark.parametrize("wait", [URGENT_WAIT, FULL_WAIT])
def test_the_queue_of_a_path_that_has_become_slower_is_no_longer_way(wait: float) -> None:
    """Nobody has told yet that it carries less."""
    path = Path(0.020, wait)
    path.run(2.0)
    path.rate = RATE / 4
    carried, _ = path.run(20.0)
    assert carried > 0.98 * path.rate
    most = path.room.most(RATE, path.shortest, path.mean, path.variation, 0, 100.0)
    assert most == RATE * (path.shortest + wait)


def test_where_round_trips_vary_more_may_be_on_the_way() -> None:
    assert Room(URGENT_WAIT).most(RATE, 0.020, 0.040, 0.020, 0, 1.0) == RATE * (0.020 + 0.040)
