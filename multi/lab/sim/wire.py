"""What lies between the two ends: routes that candidates lead to, and the connections opened over them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from multi.events import SessionClosed
from multi.lab.sim.clock import Clock
from multi.lab.sim.link import StreamLink, StreamLinkSpec
from multi.lab.sim.path_model import PathDirection, PathSpec
from multi.protocol.session import SessionCore
from multi.types import Candidate, ConnectionFacts, ConnectionId, StreamId

STALL_CHECK = 0.1  # seconds between looks whether a stalled link lets a reset through


@dataclass(frozen=True, slots=True)
class Route:
    """What a candidate leads to: the link up and down, how long connecting takes, or why it fails."""

    up: StreamLinkSpec | PathSpec = field(default_factory=StreamLinkSpec)
    down: StreamLinkSpec | PathSpec = field(default_factory=StreamLinkSpec)
    secure: bool = False
    peer_verified: bool = False
    lanes: int = 1
    message_size: int = 0
    """Bytes of the largest message that may be lost; not over a PathSpec."""
    connect_round_trips: int = 1
    error: str = ""
    """Every dial fails with this, after the round trips of connecting."""
    black_hole: bool = False
    """Dials never return."""
    mute: bool = False
    """It connects, but nothing that is sent is ever read or answered."""
    stranger: bool = False
    """It leads to a server that knows nothing of the session and refuses everything."""
    chance: int | None = None
    """What happens by chance on a path (PathSpec) is the same in runs of the same seed where this is; None = its place.

    So a path is as lucky alone as beside others."""

    @property
    def round_trip(self) -> float:
        return self.up.delay + self.down.delay


def route(rate: float = 1e6, delay: float = 0.010, **options: Any) -> Route:
    """A route with the same link in both directions: bytes per second, seconds one way; the options are of `Route`."""
    both = StreamLinkSpec(rate, delay)
    return Route(both, both, **options)


class World(Protocol):
    """What an end and its wires need of everything around them."""

    clock: Clock
    cancelled: set[ConnectionId]
    transparent: bool

    def dial(self, end: Terminal, connection: ConnectionId, candidate: Candidate) -> None: ...
    def hang_up(self, wire: Wire, by: Terminal, reason: str = "") -> None: ...
    def ended(self, end: Terminal) -> None: ...


class Terminal(Protocol):
    """An end, as its wires, the world and the oracles see it."""

    name: str
    session: SessionCore
    sent: dict[StreamId, bytearray]
    closed: SessionClosed | None

    @property
    def world(self) -> World: ...
    @property
    def other(self) -> Terminal | None: ...
    @property
    def now(self) -> float: ...
    def got(self, stream: StreamId) -> int: ...
    def attempt_failed(self, connection: ConnectionId, reason: str) -> None: ...
    def connected(self, wire: Wire, facts: ConnectionFacts) -> None: ...
    def take(self, wire: Wire, data: bytes, lane: int) -> None: ...
    def lose(self, wire: Wire, reason: str) -> None: ...


@dataclass(slots=True, eq=False)
class Wire:
    """One transport connection between the two ends."""

    id: ConnectionId
    candidate: Candidate
    route: Route
    client: Terminal
    server: Terminal | None = None
    up: StreamLink | PathDirection = field(init=False)
    down: StreamLink | PathDirection = field(init=False)
    waiting: bytearray = field(default_factory=bytearray)
    early: list[tuple[bytes, int]] = field(default_factory=list)
    """Bytes of other lanes that overtook the first segment."""
    refused: bool = False
    released: set[int] = field(default_factory=set)
    """Ends (by `id()`) that have closed their side, or were told that it broke."""

    def outgoing(self, end: Terminal) -> StreamLink | PathDirection:
        return self.up if end is self.client else self.down

    def release(self, end: Terminal, abort: bool) -> None:
        """One side closes; the other hears after what is in flight has arrived. With `abort` that is lost."""
        if id(end) in self.released:
            return
        self.released.add(id(end))
        direction = self.outgoing(end)
        if not abort:
            direction.end()
            return
        world, delay = end.world, direction.spec.delay
        if direction.cut:
            return
        direction.sever()

        def tell() -> None:
            if direction.stalled:
                world.clock.at(world.clock.now + STALL_CHECK, tell)
            else:
                world.hang_up(self, end, "reset by the peer")

        world.clock.at(world.clock.now + delay, tell)
