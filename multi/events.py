"""Effects: what the core wants done, in order. Events: what an application may want to know.

The driver and the simulator perform effects; both dispatch over the `Effect` union. Events travel inside the
`Notify` effect and reach `session.events()`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from multi.reasons import Reason
from multi.types import Candidate, ConnectionFacts, ConnectionId, ConnectionState, Role, StreamId

Buffer = bytes | bytearray | memoryview


# --- events  ---


@dataclass(frozen=True, slots=True)
class ConnectionChanged:
    """A connection entered `state`, for `reason`. A subscription starts with one per connection."""

    connection: ConnectionId
    state: ConnectionState
    reason: Reason
    facts: ConnectionFacts


@dataclass(frozen=True, slots=True)
class RoleChanged:
    connection: ConnectionId
    role: Role
    by_peer: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class SchedulerChanged:
    """This side now schedules with `scheduler`; `reason` is empty, or says why it is not the one asked for."""

    scheduler: str
    by_peer: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class AttemptFailed:
    """A candidate could not be opened."""

    candidate: Candidate
    reason: Reason


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


@dataclass(frozen=True, slots=True)
class NetworkChanged:
    """An interface became usable for the session, or stopped being so for `reason`; empty `interface` = all."""

    interface: str
    usable: bool
    reason: str


@dataclass(frozen=True, slots=True)
class SignalChanged:
    """The radio signal of an interface is fading, or good again; `dbm` as measured last."""

    interface: str
    fading: bool
    dbm: float


@dataclass(frozen=True, slots=True)
class AddressesAnnounced:
    """The server has said at which further addresses it can be reached: (literal address, port)."""

    addresses: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class SessionConfirmed:
    """Both sides have proved to hold the session's keys."""


@dataclass(frozen=True, slots=True)
class SessionDetached:
    """No connection is left; the session waits `resume_timeout` seconds for a new one."""

    resume_timeout: float


@dataclass(frozen=True, slots=True)
class SessionResumed:
    """A connection is there again after SessionDetached."""

    after: float
    """Seconds without a connection."""


@dataclass(frozen=True, slots=True)
class SessionEnded:
    """The session is over; `reason.orderly` when it ended in order."""

    reason: Reason


@dataclass(frozen=True, slots=True)
class Warned:
    """Something works differently from what was asked for."""

    message: str


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
    | SessionEnded
    | Warned
)


@dataclass(frozen=True, slots=True)
class EventsDropped:
    """A subscriber was too slow; `count` events were dropped here."""

    count: int


# --- effects  ---


@dataclass(frozen=True, slots=True)
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
    """A stream's unsent or unacknowledged bytes shrank, or its writing side ended."""

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
    refused: bool = False


@dataclass(frozen=True, slots=True)
class Notify:
    event: Event


@dataclass(frozen=True, slots=True)
class Dial:
    """Open a candidate; answer with `attempt_succeeded` or `attempt_failed` and the same connection id."""

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
    | SessionOpened
    | SessionClosed
    | Notify
    | Dial
    | CancelDial
    | AllAttempted
)
