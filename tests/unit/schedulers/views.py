"""A connection as schedulers see it, for tests that ask them one question at a time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from multi.types import ConnectionId, Role


@dataclass(slots=True)
class FakeView:
    """50 ms, 1 MB/s, 50 kB window, nothing on it."""

    id: ConnectionId
    credit: int = 65_536
    rtt: float = 0.050
    min_rtt: float = 0.050
    rate: float = 1_000_000.0
    in_flight: int = 0
    overtaken: int = 0
    not_sent: int = 0
    congestion_window: int = 50_000
    rtt_variation: float = 0.0
    transport: str = "tcp"
    interface: str = ""
    role: Role = Role.ACTIVE
    weight: float = 1.0
    cost: float = 0.0
    loss: float = 0.0
    accelerates: bool = False
    asymmetry: float = 0.0
    held_by_cap: bool = False
    is_full: bool = False

    def full(self, now: float) -> bool:
        return self.is_full

    def but(self, **facts: Any) -> FakeView:
        """The same with other facts; another round trip is also the smallest that was seen."""
        if "rtt" in facts:
            facts.setdefault("min_rtt", facts["rtt"])
        return replace(self, **facts)


def view(number: int, **facts: Any) -> FakeView:
    return FakeView(ConnectionId(number)).but(**facts)
