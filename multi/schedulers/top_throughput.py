"""The n connections with the best throughput (paper III-B4)."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from multi.schedulers._ranking import Ranking
from multi.schedulers.base import WAIT, ConnectionView, SendRequest
from multi.schedulers.estimates import earliest
from multi.schedulers.registry import register_scheduler
from multi.types import ConnectionId

PROBE = 64 * 1024  # bytes: a few round trips of slow start, so that the rate sample means something
PROBE_INTERVAL = 5.0  # seconds: a rate measured longer ago may be wrong by now


@register_scheduler("top_throughput")
class TopThroughput(Ranking):
    """Earliest arrival among the `n` connections with the highest rate, awaited while they move.

    A connection outside learns its rate from `PROBE` bytes: at once when its rate is unknown, else every
    `PROBE_INTERVAL` while more than that is waiting to be sent.
    """

    def __init__(self, n: float = 2.0) -> None:
        super().__init__(n)
        self._probes: dict[ConnectionId, tuple[float, int]] = {}  # when the probe began, bytes left of it

    def cost(self, connection: ConnectionView) -> float:
        return 1 / connection.rate if connection.rate > 0.0 else inf

    def choose(self, request: SendRequest, connections: Sequence[ConnectionView]) -> Sequence[ConnectionView]:
        return earliest(connections, request.size)

    def probe(self, request: SendRequest, others: Sequence[ConnectionView]) -> Sequence[ConnectionView]:
        if len(self._probes) > 2 * len(others):
            present = {c.id for c in others}
            self._probes = {k: v for k, v in self._probes.items() if k in present}
        for connection in others:
            began, left = self._probes.get(connection.id, (-inf, 0))
            if request.now - began >= PROBE_INTERVAL:
                if began == -inf and connection.rate > 0.0:  # just fell out of the top: its rate is fresh
                    self._probes[connection.id] = (request.now, 0)
                    continue
                if connection.rate > 0.0 and request.backlog <= PROBE:
                    continue
                began, left = request.now, PROBE
            if left > 0 and connection.credit > 0:
                self._probes[connection.id] = (began, left - request.size)
                return (connection,)
        return WAIT
