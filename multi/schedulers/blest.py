"""BLEST: blocking estimation (Ferlin et al., IFIP Networking 2016; the kernel's mptcp_blest.c)."""

from __future__ import annotations

from collections.abc import Sequence

from multi.schedulers._patience import Patience
from multi.schedulers.base import WAIT, ConnectionView, SendRequest
from multi.schedulers.estimates import PACKET, latency, nearest, window_of
from multi.schedulers.registry import register_scheduler
from multi.types import ConnectionId

LAMBDA = 1.2  # correction of the estimate, with the bounds and steps of mptcp_blest.c
MIN_LAMBDA, MAX_LAMBDA = 1.0, 1.3
LAMBDA_UP, LAMBDA_DOWN = 0.04, 0.01


@register_scheduler("BLEST")
class Blest:
    """Lowest round-trip time first, but waits if a slower connection would block the window.

    While the slower one delivers, the faster one could send `fast` bytes. If these and what the slower one
    holds do not fit into the peer's window, the window would fill up behind the slow segment: wait.
    Congestion avoidance is assumed; slow start cannot be seen from here.
    """

    def __init__(self) -> None:
        self._patience = Patience()
        self._lambda = LAMBDA
        self._adjusted = 0.0
        self._reinjected = False
        self._highest_rtt: dict[ConnectionId, float] = {}

    def select(self, request: SendRequest, connections: Sequence[ConnectionView]) -> Sequence[ConnectionView]:
        choice = nearest(connections)
        if not choice:
            return WAIT
        slower = choice[0]
        if request.reinjection:
            self._reinjected = True
        else:
            faster = min(connections, key=latency)
            self._adjust(slower, request.now)
            if (
                faster.credit <= 0
                and self._would_block(request, connections, faster, slower)
                and self._patience.allows(faster, request.now)
            ):
                return WAIT
        self._patience.sent_on(slower)
        return choice

    def _would_block(
        self,
        request: SendRequest,
        connections: Sequence[ConnectionView],
        faster: ConnectionView,
        slower: ConnectionView,
    ) -> bool:
        faster_window = window_of(faster)
        if faster_window <= 0 or faster.rtt <= 0.0 or slower.rtt <= 0.0:
            return False
        round_trips = self._linger(slower) / faster.rtt + 1
        fast = (faster_window + PACKET * (round_trips - 1) / 2) * round_trips * self._lambda
        whole_window = request.window + sum(c.in_flight for c in connections)
        return fast > whole_window - (request.size + slower.in_flight)

    def _linger(self, slower: ConnectionView) -> float:
        """Round-trip time the slower one will have with what is on it: between its lowest and its highest."""
        if len(self._highest_rtt) > 64:  # ids are never reused
            self._highest_rtt.clear()
        lowest = slower.min_rtt or slower.rtt
        highest = max(slower.rtt, self._highest_rtt.get(slower.id, 0.0))
        self._highest_rtt[slower.id] = highest
        window = window_of(slower)
        load = min(1.0, slower.in_flight / window) if window > 0 else 0.0
        return max(slower.rtt, lowest + (highest - lowest) * load)

    def _adjust(self, slower: ConnectionView, now: float) -> None:
        """Once per round trip: be more careful after a reinjection, else a little less."""
        if now - self._adjusted >= slower.rtt:
            step = LAMBDA_UP if self._reinjected else -LAMBDA_DOWN
            self._lambda = min(MAX_LAMBDA, max(MIN_LAMBDA, self._lambda + step))
            self._adjusted = now
            self._reinjected = False
