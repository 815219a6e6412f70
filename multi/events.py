"""Effects: what the core wants done, in order. Events: what an application may want to know.

The driver and the simulator perform effects; both dispatch over the `Effect` union. Events travel inside the
`Notify` effect and reach `session.events()`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from multi.reasons import Cause, Reason
from multi.types import Buffer, Candidate, ConnectionFacts, ConnectionId, ConnectionState, Role, StreamId, host_and_port

# --- events: `str(event)` is a sentence for people, which may hold words of the peer  ---


@dataclass(frozen=True, slots=True)
class ConnectionChanged:
    """A connection entered `state`, for `reason`. A subscription starts with one per connection."""

    connection: ConnectionId
    state: ConnectionState
    reason: Reason
    facts: ConnectionFacts

    def __str__(self) -> str:
        facts = self.facts
        name = f"connection {self.connection} ({facts.transport} over {facts.interface or facts.local or 'any'})"
        if self.state is ConnectionState.ACTIVE:
            return f"{name} is back" if self.reason.cause is Cause.RECOVERED else f"{name} is open"
        return f"{name} {_STATES.get(self.state, f'is {self.state.value}')}{_because(self.reason)}"


@dataclass(frozen=True, slots=True)
class RoleChanged:
    connection: ConnectionId
    role: Role
    by_peer: bool
    reason: str = ""

    def __str__(self) -> str:
        return f"connection {self.connection} is {_ROLES[self.role]} now"


@dataclass(frozen=True, slots=True)
class SchedulerChanged:
    """This side now schedules with `scheduler`; `reason` is empty, or says why it is not the one asked for."""

    scheduler: str
    by_peer: bool
    reason: str = ""

    def __str__(self) -> str:
        return f"the scheduler is {self.scheduler}{_because(self.reason)}"


@dataclass(frozen=True, slots=True)
class AttemptFailed:
    """A candidate could not be opened."""

    candidate: Candidate
    reason: Reason

    def __str__(self) -> str:
        return f"{self.candidate} failed: {self.reason}"


class HandoverState(Enum):
    STARTED = "started"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class HandoverChanged:
    """A handover to `to` (interfaces or addresses) began or ended; `reason` says why it failed."""

    state: HandoverState
    to: str
    reason: Reason | None = None

    def __str__(self) -> str:
        return f"handover to {self.to} {_HANDOVERS[self.state]}{_because(self.reason)}"


@dataclass(frozen=True, slots=True)
class NetworkChanged:
    """An interface became usable for the session, or stopped being so for `reason`; empty `interface` = all."""

    interface: str
    usable: bool
    reason: str

    def __str__(self) -> str:
        name = self.interface or "every network"
        return f"{name} is usable" if self.usable else f"{name}: {self.reason}"


@dataclass(frozen=True, slots=True)
class SignalChanged:
    """The radio signal of an interface is fading, or good again; `dbm` as measured last."""

    interface: str
    fading: bool
    dbm: float

    def __str__(self) -> str:
        return f"the signal of {self.interface} is {'fading' if self.fading else 'good again'} ({self.dbm:.0f} dBm)"


@dataclass(frozen=True, slots=True)
class AddressesAnnounced:
    """The server has said at which further addresses it can be reached: (literal address, port)."""

    addresses: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        places = ", ".join(host_and_port(*address) for address in self.addresses)
        return f"the server can also be reached at {places or 'nowhere else'}"


@dataclass(frozen=True, slots=True)
class SessionConfirmed:
    """Both sides have proved to hold the session's keys."""

    def __str__(self) -> str:
        return "the session is confirmed"


@dataclass(frozen=True, slots=True)
class SessionDetached:
    """No connection is left; the session waits `resume_timeout` seconds for a new one."""

    resume_timeout: float

    def __str__(self) -> str:
        return f"no connection is left; waiting up to {self.resume_timeout:g} s for a network"


@dataclass(frozen=True, slots=True)
class SessionResumed:
    """A connection is there again after SessionDetached."""

    after: float
    """Seconds without a connection."""

    def __str__(self) -> str:
        return f"back after {self.after:.1f} s without a connection"


@dataclass(frozen=True, slots=True)
class GoingAway:
    """The server is being stopped, and ends the session within `deadline` seconds of this event. Both sides hear it.

    For at least four fifths of that time everything works as ever, new connections of the session included. A client
    may open a new session at once, which leads to another server or to the successor of this one, move its work there
    and close this session; or finish what it does. A server's handler may finish what it does, and close. In the end
    what the server has written is delivered, and then reading and writing raise SessionLost with the cause GOING_AWAY.
    Whether the server's application has read what a client has written is known by its answer only, as ever. Said
    again with another deadline, the last one holds.
    """

    deadline: float

    def __str__(self) -> str:
        return f"the server is being stopped: the session ends within {self.deadline:g} s"


@dataclass(frozen=True, slots=True)
class SessionEnded:
    """The session is over; `reason.orderly` when it ended in order."""

    reason: Reason

    def __str__(self) -> str:
        return "the session is closed" if self.reason.orderly else f"the session has ended: {self.reason}"


@dataclass(frozen=True, slots=True)
class Warned:
    """Something works differently from what was asked for."""

    message: str

    def __str__(self) -> str:
        return f"warning: {self.message}"


@dataclass(frozen=True, slots=True)
class BudgetChanged:
    """`level` percent (75, 90, 100) of the data budget `name` is used, `used` of `limit` bytes.

    `until` (ISO 8601) is the day on which a new period begins. `level` 0, or one below 100 after that: it has begun.
    """

    name: str
    used: int
    limit: int
    level: int
    until: str

    def __str__(self) -> str:
        figures = f"{self.used / 1e6:.1f} of {self.limit / 1e6:g} MB until {self.until}"
        if self.level >= 100:
            return f"the data budget of {self.name} is used up: {figures}"
        if self.level:
            return f"{self.level} % of the data budget of {self.name} is used: {figures}"
        return f"the data budget of {self.name} begins anew: {figures}"


@dataclass(frozen=True, slots=True)
class DatagramDropped:
    """A datagram of `size` bytes fitted no connection when its turn came; one of `max_size` bytes would have."""

    size: int
    max_size: int

    def __str__(self) -> str:
        return f"a datagram of {self.size} bytes was dropped: {self.max_size} are the most that fit now"


Event = (
    ConnectionChanged
    | RoleChanged
    | SchedulerChanged
    | AttemptFailed
    | HandoverChanged
    | NetworkChanged
    | SignalChanged
    | AddressesAnnounced
    | SessionConfirmed
    | SessionDetached
    | SessionResumed
    | GoingAway
    | SessionEnded
    | DatagramDropped
    | BudgetChanged
    | Warned
)


@dataclass(frozen=True, slots=True)
class EventsDropped:
    """A subscriber was too slow; `count` events were dropped here."""

    count: int

    def __str__(self) -> str:
        return f"({self.count} events were not shown)"


_STATES = {
    ConnectionState.SUSPECT: "is suspect",
    ConnectionState.DRAINING: "is handed over",
    ConnectionState.LOST: "was lost",
}
_ROLES = {
    Role.ACTIVE: "active",
    Role.BACKUP: "a backup",
    Role.SECONDARY: "secondary",
    Role.NEVER: "unwanted",
}
_HANDOVERS = {HandoverState.STARTED: "begins", HandoverState.DONE: "is done", HandoverState.FAILED: "failed"}


def _because(reason: str | None) -> str:
    return f": {reason}" if reason else ""


# --- effects  ---


@dataclass(frozen=True, slots=True)
class DatagramsReadable:
    """Datagrams can be read, or there will be no more."""


@dataclass(slots=True)  # the most frequent one: to make it frozen takes as long again, and more
class SendBytes:
    """Write `buffers` on a lane of a connection; they must not be changed afterwards."""

    connection: ConnectionId
    lane: int
    buffers: Sequence[Buffer]


@dataclass(frozen=True, slots=True)
class CloseConnection:
    """Release a connection: after a flush, or at once when `abort`."""

    connection: ConnectionId
    abort: bool
    reason: Reason


@dataclass(frozen=True, slots=True)
class StreamReadable:
    """A stream has bytes, its end, or an error for the reader."""

    stream: StreamId


@dataclass(frozen=True, slots=True)
class StreamWritable:
    """Its writing side ended, or more streams may be opened (stream 0). Acknowledged bytes make no effect."""

    stream: StreamId


@dataclass(frozen=True, slots=True)
class StreamOpened:
    """The peer opened a stream."""

    stream: StreamId


@dataclass(frozen=True, slots=True)
class SessionOpened:
    """Data may be sent now (client), or the application may see the client (server)."""


@dataclass(frozen=True, slots=True)
class SessionClosed:
    """The very last effect of a session; `reason.orderly` when it ended in order."""

    reason: Reason


@dataclass(frozen=True, slots=True)
class Notify:
    event: Event


@dataclass(frozen=True, slots=True)
class Dial:
    """Open a candidate; answer with `connection_opened` or `attempt_failed` and the same connection id."""

    connection: ConnectionId
    candidate: Candidate


@dataclass(frozen=True, slots=True)
class CancelDial:
    connection: ConnectionId


@dataclass(frozen=True, slots=True)
class AllAttempted:
    """Every configured connection has been opened or has failed once (`wait: all`)."""


Effect = (
    SendBytes
    | CloseConnection
    | StreamReadable
    | StreamWritable
    | StreamOpened
    | DatagramsReadable
    | SessionOpened
    | SessionClosed
    | Notify
    | Dial
    | CancelDial
    | AllAttempted
)
