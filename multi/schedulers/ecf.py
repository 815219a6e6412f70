"""ECF: earliest completion first (Lim, Nahum, Towsley, Gibbens, CoNEXT 2017; the kernel's mptcp_ecf.c)."""

from __future__ import annotations

from collections.abc import Sequence

from multi.schedulers._patience import Patience
from multi.schedulers.base import WAIT, ConnectionView, SendRequest
from multi.schedulers.estimates import latency, nearest, window_of
from multi.schedulers.registry import register_scheduler

BETA = 0.25  # hysteresis: once waiting, the faster connection may be this much worse (r_beta of mptcp_ecf.c)


@register_scheduler("ECF")
class EarliestCompletionFirst:
    """Lowest round-trip time first, but waits for it if everything left would be complete sooner."""

    def __init__(self) -> None:
        self._patience = Patience()
        self._waiting = False

    def select(self, request: SendRequest, connections: Sequence[ConnectionView]) -> Sequence[ConnectionView]:
        choice = nearest(connections)
        if not choice:
            return WAIT
        slower = choice[0]
        if not request.reinjection:
            faster = min(connections, key=latency)
            if (
                faster.credit <= 0
                and self._completes_sooner(request.backlog, faster, slower)
                and self._patience.allows(faster, request.now)
            ):
                return WAIT
        self._patience.sent_on(slower)
        return choice

    def _completes_sooner(self, backlog: int, faster: ConnectionView, slower: ConnectionView) -> bool:
        """The two inequalities of the paper, section 4, multiplied out as in the kernel."""
        faster_window, slower_window = window_of(faster), window_of(slower)
        if min(faster_window, slower_window, faster.rtt, slower.rtt) <= 0:
            return False
        delta = max(faster.rtt_variation, slower.rtt_variation)
        on_faster = faster.rtt * (max(backlog, faster_window) + faster_window)
        limit = faster_window * (slower.rtt + delta)
        if on_faster >= limit * (1 + BETA * self._waiting):
            self._waiting = False
            return False
        on_slower = slower.rtt * max(backlog, slower_window)
        if on_slower >= slower_window * (2 * faster.rtt + delta):
            self._waiting = True
            return True
        return False
