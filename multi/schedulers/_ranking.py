"""Use of the n best connections by some cost; a rank changes for a clear advantage only, and not often."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from multi.schedulers._patience import Patience
from multi.schedulers.base import WAIT, ConnectionView, SendRequest
from multi.schedulers.registry import whole
from multi.types import ConnectionId

MARGIN = 0.15  # a newcomer must be better by this share: estimates jitter by about a tenth
DWELL = 1.0  # seconds between two exchanges: time for the estimates to follow the traffic


class Ranking:
    """Sends on the `n` connections with the lowest `cost`, and waits for them while they make progress."""

    def __init__(self, n: float = 2.0) -> None:
        self._n = whole("n", n, 1, 64)
        self._top: list[ConnectionId] = []
        self._changed = -inf
        self._patience = Patience()

    def cost(self, connection: ConnectionView) -> float:
        """What to rank by; inf = unknown."""
        raise NotImplementedError

    def choose(self, request: SendRequest, connections: Sequence[ConnectionView]) -> Sequence[ConnectionView]:
        """One of these connections with credit, or nobody."""
        raise NotImplementedError

    def probe(self, request: SendRequest, others: Sequence[ConnectionView]) -> Sequence[ConnectionView]:
        """One of those that are not among the best, if it is to be measured now."""
        return WAIT

    def select(self, request: SendRequest, connections: Sequence[ConnectionView]) -> Sequence[ConnectionView]:
        if request.reinjection:  # the best may be missing here because they carry these bytes already
            return self.choose(request, connections)
        top, others = self._split(connections, request.now)
        choice = self.probe(request, others) or self.choose(request, top)
        if not choice and not any(self._patience.allows_sparing(c, request.now) for c in top):
            choice = self.choose(request, others)
        if choice:
            self._patience.sent_on(choice[0])
        return choice

    def _split(
        self, connections: Sequence[ConnectionView], now: float
    ) -> tuple[list[ConnectionView], list[ConnectionView]]:
        """Return (the top n, the others), each with the lowest cost first."""
        ordered = sorted(connections, key=self.cost)
        inside = [c for c in ordered if c.id in self._top]
        outside = [c for c in ordered if c.id not in self._top]
        while outside and len(inside) < self._n:  # a place that fell free is filled at once
            inside.append(outside.pop(0))
            self._changed = now
        if outside and self._exchange(self.cost(inside[-1]), self.cost(outside[0]), now):
            inside[-1], outside[0] = outside[0], inside[-1]
            self._changed = now
        inside.sort(key=self.cost)
        self._top = [c.id for c in inside]
        return inside, outside

    def _exchange(self, worst: float, challenger: float, now: float) -> bool:
        if worst == inf:  # it was taken unmeasured; what is known is better
            return challenger < inf
        return now - self._changed >= DWELL and challenger * (1 + MARGIN) < worst
