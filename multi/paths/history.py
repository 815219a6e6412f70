"""What failed lately: it is tried last (RFC 9623, "performance cache").

A network is named by what `multi.discovery.networks` finds out, so that what was learnt at home does not count in a
hotel. A memory is never a verdict: what failed comes last, it does not disappear.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from multi.types import Candidate, Family

DEMOTION = 600.0  # seconds after a failure; RFC 6555 section 4.2 remembers for as long
MEMORIES = 1024  # a laptop sees a few networks a day and a few servers on each

_Key = tuple[str, str, Family, str, int]
"""Network, transport, IP version, remote host, remote port."""


class ConnectionHistory:
    """Failures by network, transport, IP version and server. Times are of one clock, in seconds."""

    def __init__(self) -> None:
        self._failed: dict[_Key, float] = {}  # when, the longest ago first

    def succeeded(self, candidate: Candidate) -> None:
        self._failed.pop(_key(candidate), None)

    def failed(self, candidate: Candidate, now: float) -> None:
        key = _key(candidate)
        self._failed.pop(key, None)
        self._failed[key] = now
        if len(self._failed) > MEMORIES:
            del self._failed[next(iter(self._failed))]

    def order(self, candidates: Sequence[Candidate], now: float) -> list[Candidate]:
        """The candidates in their own order, but those that have failed lately last."""
        return sorted(candidates, key=lambda candidate: now < self._failed.get(_key(candidate), -inf) + DEMOTION)


def _key(candidate: Candidate) -> _Key:
    return (candidate.network, candidate.transport, candidate.family, candidate.remote_host, candidate.remote_port)
