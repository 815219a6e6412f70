"""The scheduler interface: who gets the next segment.

A scheduler sees every usable connection and one request, and answers with one connection, several (the same bytes
on each), or nobody: "wait for a better one". It decides nothing else: which connections are usable (role, state) is
filtered before it is asked, and what to reinject is the session's business.

The shape follows the kernel's `mptcp_sched_ops`: one `select` with a reinjection hint.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from multi.types import ConnectionId, Role, StreamId

DEFAULT_SCHEDULER = "adaptive"
MAX_NAME = 255  # bytes of a scheduler's name
MAX_PARAMETERS = 16  # of a scheduler; with these names a POLICY stays far below the largest control payload
MAX_PARAMETER_NAME = 64  # bytes

WAIT: tuple[ConnectionView, ...] = ()
"""The answer "nobody now": the session asks again on the next acknowledgement, credit or within 5 ms."""


class ConnectionView(Protocol):
    """What a scheduler may know about a connection. All times in seconds, all sizes in bytes, rates in bytes/s."""

    @property
    def id(self) -> ConnectionId: ...
    @property
    def transport(self) -> str:
        """`tcp`, `mptcp`, `quic` or a registered name."""

    @property
    def interface(self) -> str:
        """Name of the interface it is bound to, or empty."""

    @property
    def role(self) -> Role: ...
    @property
    def weight(self) -> float:
        """The entry's `weight`, 1.0 unless configured."""

    @property
    def cost(self) -> float:
        """The entry's `cost`, 0.0 = free."""

    @property
    def credit(self) -> int:
        """Bytes its transport will take now. 0 = blocked: choosing it means waiting for it."""

    @property
    def in_flight(self) -> int:
        """Session bytes sent on it and not yet acknowledged by the session."""

    @property
    def overtaken(self) -> int:
        """Bytes that have come on another connection and are still under way on this one, before what it is given."""

    @property
    def not_sent(self) -> int:
        """Bytes its transport has accepted but not put on the wire."""

    @property
    def congestion_window(self) -> int:
        """Bytes, or 0 when the transport does not tell."""

    @property
    def rtt(self) -> float:
        """Smoothed round-trip time, or 0.0 when unknown."""

    @property
    def rtt_variation(self) -> float: ...
    @property
    def min_rtt(self) -> float:
        """Smallest round-trip time seen, or 0.0 when unknown."""

    @property
    def asymmetry(self) -> float:
        """Seconds by which the way there takes longer than half of `min_rtt`: acknowledgements come back on another
        path. 0.0 also when unknown."""

    @property
    def rate(self) -> float:
        """Estimated delivery rate, or 0.0 when unknown."""

    @property
    def loss(self) -> float:
        """Share of what its transport has sent lately that it had to send again; 0.0 also when unknown."""

    @property
    def accelerates(self) -> bool:
        """Its congestion control has begun lately and still doubles what it sends with every round trip."""

    @property
    def held_by_cap(self) -> bool:
        """Its transport would take more, but its `max_rate` lets nothing go before some milliseconds have passed."""

    def full(self, now: float) -> bool:
        """What is on its way fills the path and a tenth of a second of its queue: more would only wait there."""


class SendRequest(NamedTuple):
    """What is to be sent: `size` bytes of `stream` now, `backlog` bytes of all streams wait behind and including it."""

    stream: StreamId
    priority: int
    size: int
    backlog: int
    window: int
    """Bytes the peer's session window still allows."""
    reinjection: bool
    """True when these bytes were sent before; connections that already carry them have been removed."""
    now: float
    window_grows: bool = False
    """The window has grown lately, or was not in use before: it can be expected to be larger soon."""
    may_copy: bool = False
    """Of several connections that are chosen each gets these bytes, and not only the first."""


class Scheduler(Protocol):
    """A policy object, one per session and direction; it may keep state between calls."""

    def select(self, request: SendRequest, connections: Sequence[ConnectionView]) -> Sequence[ConnectionView]:
        """Return the connections that carry the next segment, the one that delivers it first last; empty means wait.

        There are two connections at least, for one alone is used without asking. They are in order of connection id,
        and include those without credit. Chosen connections without credit are skipped; if none of the chosen has
        credit, the answer counts as "wait".
        """


SchedulerFactory = Callable[..., Scheduler]
"""Called with the policy's parameters as keyword arguments, all floats."""
