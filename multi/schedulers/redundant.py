"""Redundant: every segment on several connections (ReMP; Frommgen et al., ICC 2016)."""

from __future__ import annotations

from collections.abc import Sequence

from multi.schedulers._patience import Patience
from multi.schedulers.base import WAIT, ConnectionView, SendRequest
from multi.schedulers.estimates import arrival, latency, tells
from multi.schedulers.registry import register_scheduler, whole


@register_scheduler("redundant")
class Redundant:
    """Every segment on the `n` connections with the lowest round-trip time; `n` = 0 means all.

    A blocked connection misses the segment instead of holding it up. But one that would deliver it first is awaited
    while it moves: bulk leaves it no credit most of the time, and what left on a slow one alone would stop the reader.
    """

    def __init__(self, n: float = 0.0) -> None:
        self._n = whole("n", n, 0, 64)
        self._patience = Patience()

    def select(self, request: SendRequest, connections: Sequence[ConnectionView]) -> Sequence[ConnectionView]:
        able = sorted((c for c in connections if c.credit > 0), key=latency)
        chosen = able[: self._n or None][::-1]
        if chosen and not request.reinjection:
            soonest = min(arrival(c, request.size) for c in chosen)
            sooner = (c for c in connections if c.credit <= 0 and tells(c) and arrival(c, request.size) < soonest)
            if any(self._patience.allows(c, request.now) for c in sooner):
                return WAIT
        for c in chosen:
            self._patience.sent_on(c)
        return chosen
