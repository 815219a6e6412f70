"""The n connections with the lowest latency (paper III-B4)."""

from __future__ import annotations

from collections.abc import Sequence

from multi.schedulers._parameters import whole
from multi.schedulers._patience import Patience
from multi.schedulers._ranking import Ranking
from multi.schedulers.base import WAIT, ConnectionView, SendRequest
from multi.schedulers.estimates import latency, nearest
from multi.schedulers.registry import register_scheduler


@register_scheduler("top_latency")
class TopLatency:
    """The lowest round-trip time with credit among the `n` best; waits for them while they make progress."""

    def __init__(self, n: float = 2.0) -> None:
        self._ranking = Ranking(whole("n", n, 1, 64), latency)
        self._patience = Patience()

    def select(self, request: SendRequest, connections: Sequence[ConnectionView]) -> Sequence[ConnectionView]:
        if len(connections) == 1:
            return connections
        if request.reinjection:  # the best may be missing here because they carry these bytes already
            return nearest(connections)
        top, others = self._ranking.split(connections, request.now)
        choice = nearest(top)
        if not choice and not any(self._patience.allows(c, request.now) for c in top):
            choice = nearest(others)
        if not choice:
            return WAIT
        self._patience.sent_on(choice[0])
        return choice
