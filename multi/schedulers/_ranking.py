"""The n best connections by some cost, steady: a rank changes for a clear advantage only, and not often."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

from multi.schedulers.base import ConnectionView
from multi.types import ConnectionId

MARGIN = 0.15  # a newcomer must be better by this share: estimates jitter by about a tenth
DWELL = 1.0  # seconds between two exchanges: time for the estimates to follow the traffic


class Ranking:
    """Keeps the ids of the `n` connections with the lowest `cost` (inf = unknown)."""

    def __init__(self, n: int, cost: Callable[[ConnectionView], float]) -> None:
        self._n = n
        self._cost = cost
        self._top: list[ConnectionId] = []
        self._changed = -inf

    def split(
        self, connections: Sequence[ConnectionView], now: float
    ) -> tuple[list[ConnectionView], list[ConnectionView]]:
        """Return (the top n, the others), each with the lowest cost first."""
        ordered = sorted(connections, key=self._cost)
        inside = [c for c in ordered if c.id in self._top]
        outside = [c for c in ordered if c.id not in self._top]
        while outside and len(inside) < self._n:  # a place that fell free is filled at once
            inside.append(outside.pop(0))
            self._changed = now
        if outside and self._exchange(self._cost(inside[-1]), self._cost(outside[0]), now):
            inside[-1], outside[0] = outside[0], inside[-1]
            self._changed = now
        inside.sort(key=self._cost)
        self._top = [c.id for c in inside]
        return inside, outside

    def _exchange(self, worst: float, challenger: float, now: float) -> bool:
        if worst == inf:  # it was taken unmeasured; what is known is better
            return challenger < inf
        return now - self._changed >= DWELL and challenger * (1 + MARGIN) < worst
