"""Weighted round robin: bytes in proportion to the `weight` of the configuration entries."""

from __future__ import annotations

from collections.abc import Sequence

from multi.schedulers.base import WAIT, ConnectionView, SendRequest
from multi.schedulers.estimates import earliest
from multi.schedulers.registry import register_scheduler
from multi.types import ConnectionId

MAX_DEBT = 256 * 1024  # bytes a blocked connection may catch up; more would starve the others when it comes back


@register_scheduler("WRR")
class WeightedRoundRobin:
    """Serves the connection with credit furthest behind its share (start-time fair queueing, Goyal 1996).

    Work-conserving: shares hold among the connections that can send.
    """

    def __init__(self) -> None:
        self._served: dict[ConnectionId, float] = {}  # bytes divided by weight
        self._clock = 0.0

    def select(self, request: SendRequest, connections: Sequence[ConnectionView]) -> Sequence[ConnectionView]:
        if request.reinjection:
            return earliest(connections, request.size)
        able = [connection for connection in connections if connection.credit > 0]
        if not able:
            return WAIT
        best = min(able, key=self._position)
        self._clock = self._position(best)
        if len(self._served) > 2 * len(connections):
            present = {c.id for c in connections}
            self._served = {k: v for k, v in self._served.items() if k in present}
        self._served[best.id] = self._clock + request.size / best.weight
        return (best,)

    def _position(self, connection: ConnectionView) -> float:
        return max(self._served.get(connection.id, self._clock), self._clock - MAX_DEBT / connection.weight)
