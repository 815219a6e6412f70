"""What a server and a session have done and do: one snapshot, from which metrics and live views are made.

Taking a server's walks its connections once and makes no object for each. Counters only grow: what ended is counted on.
Snapshots of several servers add up with `+`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from enum import Enum
from math import isfinite
from typing import Any, TypeVar

from multi.asyncio.info import ConnectionInfo
from multi.protocol.connection import Connection
from multi.protocol.state import SessionState
from multi.types import Side

Numbers = Mapping[str, int]
S = TypeVar("S", "TransportStats", "ServerStats")


@dataclass(frozen=True, slots=True)
class TransportStats:
    """The connections of one transport. Bytes."""

    connections: Numbers = field(default_factory=dict)
    """Living ones, by state."""
    ended: Numbers = field(default_factory=dict)
    """Counter: how many have ended, by the cause (`multi.Cause`)."""
    bytes_sent: int = 0
    """Counter: payload sent, repeats included."""
    bytes_received: int = 0
    """Counter: bytes received, headers included."""
    payload_received: int = 0
    """Counter: payload received, duplicates included."""
    reinjected: int = 0
    """Counter: bytes this side sent again."""
    in_flight: int = 0
    """Sent and not acknowledged by the session."""

    def __add__(self, other: TransportStats) -> TransportStats:
        return _sum_of(self, other)


@dataclass(frozen=True, slots=True)
class ServerStats:
    """A server at the moment of asking. Seconds, bytes."""

    uptime: float = 0.0
    accepting: bool = False
    """New sessions are taken."""
    sessions: Numbers = field(default_factory=dict)
    """Living sessions, by state; those that nobody has confirmed too."""
    sessions_opened: int = 0
    """Counter: sessions that the application was given."""
    sessions_ended: Numbers = field(default_factory=dict)
    """Counter: how many of those have ended, by the cause (`multi.Cause`)."""
    arrivals: int = 0
    """Connections that have not said which session they want."""
    streams: int = 0
    """Streams that the peers may still send on."""
    memory: int = 0
    """What `limits.max_memory` bounds; as of the last tenth of a second."""
    limits_hit: Numbers = field(default_factory=dict)
    """Counter: how often each limit was hit, by its name in `limits`."""
    transports: Mapping[str, TransportStats] = field(default_factory=dict)
    """By the name of the transport."""

    def __add__(self, other: ServerStats) -> ServerStats:
        """Both together: of several workers of one server, or of several servers."""
        uptime, accepting = max(self.uptime, other.uptime), self.accepting or other.accepting
        return replace(_sum_of(self, other), uptime=uptime, accepting=accepting)

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return _of_dataclass(self)

    def counters(self) -> ServerStats:
        """What stays of it when its process has ended."""
        transports = {name: replace(stats, connections={}, in_flight=0) for name, stats in self.transports.items()}
        return ServerStats(
            sessions_opened=self.sessions_opened,
            sessions_ended=self.sessions_ended,
            limits_hit=self.limits_hit,
            transports=transports,
        )

    @staticmethod
    def from_dict(said: Mapping[str, Any]) -> ServerStats:
        """What `as_dict` has made, of the same version."""
        transports = {name: TransportStats(**stats) for name, stats in said["transports"].items()}
        return ServerStats(**{**said, "transports": transports})


@dataclass(frozen=True, slots=True)
class SessionStats:
    """A session at the moment of asking. Bytes."""

    id: str
    """The Session ID, in hexadecimal digits."""
    side: Side
    """Which end of the session this is."""
    state: SessionState
    scheduler: str
    """What this side sends with."""
    peer: str
    """The key of `auth` that the peer has proved itself with; empty without one."""
    idle: float
    """Seconds since bytes of its streams have moved."""
    streams: int
    """Streams that the peer may still send on."""
    memory: int
    """Kept to be sent and to be read, overhead included."""
    bytes_sent: int
    """Counter: payload sent on all connections it ever had, repeats included."""
    bytes_received: int
    """Counter: bytes received, headers included."""
    payload_received: int
    """Counter: payload received, duplicates included."""
    reinjected: int
    """Counter: bytes this side sent again."""
    in_flight: int
    """Sent and not acknowledged."""
    unsent: int
    """Written, and not sent for the first time yet."""
    window_blocked: bool
    """Only the peer's windows keep that from being sent."""
    connections: tuple[ConnectionInfo, ...]
    """Living ones, and the last that ended."""
    blocked: tuple[str, ...] = ()
    """Client: networks that nothing goes out over, as they were given to `block`."""

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return _of_dataclass(self)


class Tally:
    """Adds up connections of one transport."""

    __slots__ = ("_ended", "_states", "bytes_received", "bytes_sent", "in_flight", "payload_received", "reinjected")

    def __init__(self) -> None:
        self._states: Counter[str] = Counter()
        self._ended: Counter[str] = Counter()
        self.bytes_sent = self.bytes_received = self.payload_received = self.reinjected = self.in_flight = 0

    def count(self, connection: Connection) -> None:
        if connection.alive:
            self._states[connection.state.value] += 1
            self.in_flight += connection.in_flight
        else:
            self._ended[connection.reason.cause.value] += 1
        self.bytes_sent += connection.bytes_sent
        self.bytes_received += connection.bytes_received
        self.payload_received += connection.payload_received
        self.reinjected += connection.reinjected

    def merge(self, other: Tally) -> None:
        """Count what another has counted too."""
        self._states.update(other._states)
        self._ended.update(other._ended)
        self.bytes_sent += other.bytes_sent
        self.bytes_received += other.bytes_received
        self.payload_received += other.payload_received
        self.reinjected += other.reinjected
        self.in_flight += other.in_flight

    def stats(self) -> TransportStats:
        return TransportStats(
            connections=dict(sorted(self._states.items())),
            ended=dict(sorted(self._ended.items())),
            bytes_sent=self.bytes_sent,
            bytes_received=self.bytes_received,
            payload_received=self.payload_received,
            reinjected=self.reinjected,
            in_flight=self.in_flight,
        )


class Tallies(dict[str, Tally]):
    """A tally for each transport that occurs."""

    def __missing__(self, transport: str) -> Tally:
        tally = self[transport] = Tally()
        return tally

    def count(self, connections: Iterable[Connection]) -> None:
        for connection in connections:
            self[connection.transport].count(connection)

    def merge(self, other: Tallies) -> None:
        for transport, tally in other.items():
            self[transport].merge(tally)

    def stats(self) -> dict[str, TransportStats]:
        return {transport: self[transport].stats() for transport in sorted(self)}


def _sum_of(one: S, other: S) -> S:
    """Of two snapshots: each field with that of the other."""
    return type(one)(**{each.name: _sum(getattr(one, each.name), getattr(other, each.name)) for each in fields(one)})


def _sum(one: Any, other: Any) -> Any:
    """Of two numbers or snapshots, or of what is under the same names."""
    if not isinstance(one, Mapping):
        return one + other
    both = {name: _sum(one[name], other[name]) for name in one.keys() & other.keys()}
    return dict(sorted({**one, **other, **both}.items()))


def _of_dataclass(value: object) -> dict[str, object]:
    assert is_dataclass(value)
    return {each.name: plain(getattr(value, each.name)) for each in fields(value)}


def plain(value: object) -> object:
    """The same in JSON's terms: a number that is not known yet is null."""
    match value:
        case Enum():
            return value.value if isinstance(value.value, str) else value.name.lower()
        case Mapping():
            return {str(key): plain(item) for key, item in value.items()}
        case tuple():
            return [plain(item) for item in value]
        case float():
            return value if isfinite(value) else None
        case str():
            return str(value)
    return _of_dataclass(value) if is_dataclass(value) else value
