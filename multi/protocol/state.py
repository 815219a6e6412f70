"""Lifecycle of a connection and of a session: states and every legal transition, as data.

Every assignment of a state goes through one of the two `check_` functions. An illegal transition is a bug
here, not a fault of the peer, and raises LocalProtocolError.
"""

from __future__ import annotations

from enum import Enum

from multi.errors import LocalProtocolError
from multi.types import ConnectionState


class SessionState(Enum):
    """OPENING until the peer has proved itself; DETACHED while no connection is left (resume_timeout runs)."""

    OPENING = "opening"
    OPEN = "open"
    DETACHED = "detached"
    CLOSING = "closing"
    CLOSED = "closed"


class Lifecycle:
    """How far a session is; every part may look."""

    __slots__ = ("confirmed", "lingering_since", "state")

    def __init__(self) -> None:
        self.state = SessionState.OPENING
        self.confirmed = False
        """The peer has proved itself."""
        self.lingering_since: float | None = None
        """When CLOSE was said, or data or control came after it; None = not yet. The session lingers from then on."""

    def move(self, state: SessionState) -> None:
        self.state = check_session(self.state, state)


_C = ConnectionState
CONNECTION_TRANSITIONS: dict[ConnectionState, frozenset[ConnectionState]] = {
    _C.CONNECTING: frozenset({_C.AUTHENTICATING, _C.LOST, _C.CLOSED}),
    _C.AUTHENTICATING: frozenset({_C.ACTIVE, _C.LOST, _C.CLOSED}),
    _C.ACTIVE: frozenset({_C.SUSPECT, _C.DRAINING, _C.LOST, _C.CLOSED}),
    _C.SUSPECT: frozenset({_C.ACTIVE, _C.DRAINING, _C.LOST, _C.CLOSED}),
    _C.DRAINING: frozenset({_C.LOST, _C.CLOSED}),
    _C.LOST: frozenset(),
    _C.CLOSED: frozenset(),
}

_S = SessionState
SESSION_TRANSITIONS: dict[SessionState, frozenset[SessionState]] = {
    _S.OPENING: frozenset({_S.OPEN, _S.DETACHED, _S.CLOSING, _S.CLOSED}),
    _S.OPEN: frozenset({_S.DETACHED, _S.CLOSING, _S.CLOSED}),
    _S.DETACHED: frozenset({_S.OPEN, _S.OPENING, _S.CLOSING, _S.CLOSED}),
    _S.CLOSING: frozenset({_S.CLOSED}),
    _S.CLOSED: frozenset(),
}


def check_connection(old: ConnectionState, new: ConnectionState) -> ConnectionState:
    """Return `new`, or raise when no transition leads there."""
    if new not in CONNECTION_TRANSITIONS[old]:
        raise LocalProtocolError(f"a connection cannot go from {old.value} to {new.value}")
    return new


def check_session(old: SessionState, new: SessionState) -> SessionState:
    """Return `new`, or raise when no transition leads there."""
    if new not in SESSION_TRANSITIONS[old]:
        raise LocalProtocolError(f"a session cannot go from {old.value} to {new.value}")
    return new
