"""Why something changed or ended: a cause for programs, and a text for people.

Whatever moves a connection to another state or ends an attempt, a handshake or a session gives a `Reason`. Decisions
look at its cause only; texts may be reworded at any time.
"""

from __future__ import annotations

from enum import Enum
from typing import Self


class Cause(Enum):
    """What kind of thing happened to a connection, an attempt, a handshake or a session."""

    CONNECTED = "connected"
    """The transport connection is there."""
    AUTHENTICATED = "authenticated"
    """The peer has proved itself."""
    RECOVERED = "recovered"
    """A suspect connection gave a sign of life."""

    CLOSED = "closed"
    """In order."""
    DRAINED = "drained"
    """Nothing was outstanding on it any more, as one side had asked."""
    REMOVED = "removed"
    """The application wanted it no more."""
    REPLACED = "replaced"
    """It was silent, and another connection has taken its place."""
    ABORTED = "aborted"
    """This side ended the session at once: the application, the end of its event loop, or the server stopping."""

    PEER_CLOSED = "peer_closed"
    """The peer closed the connection, or the session before everything was acknowledged."""
    PEER_LOST = "peer_lost"
    """The peer said that the connection is over on its side."""
    PEER_ABORTED = "peer_aborted"
    """The peer ended the session at once."""

    TRANSPORT = "transport"
    """The transport could not connect, or reported a failure."""
    NETWORK_GONE = "network_gone"
    """The interface, its carrier or its network went away."""
    ADDRESS_GONE = "address_gone"
    """The local address was removed."""
    SUSPENDED = "suspended"
    """The machine slept: nothing is known of any connection."""
    NO_PROGRESS = "no_progress"
    """What was sent was not acknowledged in time."""
    IDLE_TIMEOUT = "idle_timeout"
    """Nothing was received for the idle timeout."""
    ATTEMPT_TIMEOUT = "attempt_timeout"
    """An attempt, or a handover, took too long."""

    HANDSHAKE_TIMEOUT = "handshake_timeout"
    """The peer did not finish the handshake in time."""
    NOT_MULTI = "not_multi"
    """What the peer says is not MULTI."""
    REFUSED = "refused"
    """The server refused the session or the proof."""
    REFUSED_VERSION = "refused_version"
    REFUSED_PROTECTION = "refused_protection"
    REFUSED_BUSY = "refused_busy"
    """A limit of the server is reached; later it may be different."""
    REFUSED_UNKNOWN = "refused_unknown"
    """The server says that it does not know the session; see `docs/security.md` for who else could say so."""
    REFUSED_ELSEWHERE = "refused_elsewhere"
    """Another server holds the session."""
    GOING_AWAY = "going_away"
    """The server is being stopped: it takes no new session, or has ended this one as it had announced. Another server,
    or this one a little later, takes one."""
    BAD_PROOF = "bad_proof"
    """The server did not prove to hold the session's keys."""
    BAD_CHOICE = "bad_choice"
    """The server answered a handshake with what was not offered."""

    PROTOCOL = "protocol"
    """The peer broke the protocol."""
    FLOW_CONTROL = "flow_control"
    """The peer sent more than it was allowed to, or did not read what it asked for."""
    STREAM_LIMIT = "stream_limit"
    """The peer opened more streams than it was allowed to."""
    SEGMENT_SIZE = "segment_size"
    """The peer announced a segment larger than segments may be."""
    SEGMENT_TIMEOUT = "segment_timeout"
    """The peer did not finish a segment in time."""
    CONNECTION_LIMIT = "connection_limit"
    """The session had too many connections."""
    RESOURCE_LIMIT = "resource_limit"
    """The server needed the room for others."""

    NO_CONNECTION = "no_connection"
    """No connection could be opened, in time or at all."""
    RESUME_TIMEOUT = "resume_timeout"
    """No connection came back within the resume timeout."""
    NEVER_CONFIRMED = "never_confirmed"
    """The client never proved to hold the session's keys."""
    SESSION_GONE = "session_gone"
    """The server no longer knows the session."""
    APPLICATION = "application"
    """The server's application failed."""
    INTERNAL = "internal"
    """An error in this library, or in a transport or scheduler of the application."""


class Reason(str):
    """Text for people that carries its `cause`."""

    cause: Cause

    def __new__(cls, cause: Cause, text: str) -> Self:
        self = super().__new__(cls, text)
        self.cause = cause
        return self

    @property
    def orderly(self) -> bool:
        """Nothing went wrong."""
        return self.cause in (Cause.CLOSED, Cause.DRAINED)

    def reworded(self, text: str) -> Reason:
        """The same cause in other words."""
        return Reason(self.cause, text)

    def __reduce__(self) -> tuple[type[Reason], tuple[Cause, str]]:
        return Reason, (self.cause, str(self))


IN_ORDER = Reason(Cause.CLOSED, "the session is closed")
