"""Lowest latency first (paper III-B4); the old default of MPTCP, there called minRTT."""

from __future__ import annotations

from collections.abc import Sequence

from multi.schedulers.base import ConnectionView, SendRequest
from multi.schedulers.estimates import nearest
from multi.schedulers.registry import register_scheduler


@register_scheduler("lowest_latency", aliases=("LL",))
class LowestLatency:
    """The lowest round-trip time with credit; what it cannot take spills to the next."""

    def select(self, request: SendRequest, connections: Sequence[ConnectionView]) -> Sequence[ConnectionView]:
        return nearest(connections)
