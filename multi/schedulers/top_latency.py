"""The n connections with the lowest latency (paper III-B4)."""

from __future__ import annotations

from collections.abc import Sequence

from multi.schedulers._ranking import Ranking
from multi.schedulers.base import ConnectionView, SendRequest
from multi.schedulers.estimates import latency, nearest
from multi.schedulers.registry import register_scheduler


@register_scheduler("top_latency")
class TopLatency(Ranking):
    """The lowest round-trip time with credit among the `n` best; waits for them while they make progress."""

    def cost(self, connection: ConnectionView) -> float:
        return latency(connection)

    def choose(self, request: SendRequest, connections: Sequence[ConnectionView]) -> Sequence[ConnectionView]:
        return nearest(connections)
