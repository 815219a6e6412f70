"""Redundant: every segment on several connections (ReMP; Frommgen et al., ICC 2016)."""

from __future__ import annotations

from collections.abc import Sequence

from multi.schedulers.base import ConnectionView, SendRequest
from multi.schedulers.estimates import latency
from multi.schedulers.registry import register_scheduler, whole


@register_scheduler("redundant")
class Redundant:
    """Every segment on the `n` connections with the lowest round-trip time; `n` = 0 means all.

    A blocked connection misses the segment instead of holding it up.
    """

    def __init__(self, n: float = 0.0) -> None:
        self._n = whole("n", n, 0, 64)

    def select(self, request: SendRequest, connections: Sequence[ConnectionView]) -> Sequence[ConnectionView]:
        able = sorted((c for c in connections if c.credit > 0), key=latency)
        return able[: self._n or None][::-1]
