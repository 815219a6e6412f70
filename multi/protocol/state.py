"""Lifecycle of a connection and of a session, as data: every phase, what it means, and every legal step.

A connection, once its transport is up:

    HANDSHAKE ──────────┬─> EARLY_SENDING ─┐   the peer has proved itself
      │  │              ├─> EARLY ─────────┤        │
      │  │              ├─> ADMITTED ──────┤        │
      │  └─> DISCARDING ┴──────────────────┴──> ACTIVE <──> SUSPECT
      │                                            │            │
      │                                            └─> DRAINING <┘
      │                                                 │    │
      │                                     DRAINED_HERE    DRAINED_THERE
      │                                                 └─> DRAINED
      └──────────── from everywhere ───────────────> CLOSED or LOST

A session: OPENING until the peer has proved itself, then OPEN; DETACHED while no connection is left; CLOSING once CLOSE
was said; CLOSED.

What a connection may do in a phase is a row of `TRAITS`. One thing is beside them: where its transport is stuck a
connection delivers nothing, in any phase, until the transport gets on or the next step is taken (`liveness`). An
illegal step is a bug here, not a fault of the peer, and raises LocalProtocolError.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from multi.errors import LocalProtocolError
from multi.types import ConnectionState


class Phase(Enum):
    """How far a connection is."""

    HANDSHAKE = "handshake"
    """Only handshake segments may be sent; what else comes is held."""
    EARLY_SENDING = "early sending"
    """Data may be sent before the peer has proved itself; what comes is held."""
    EARLY = "early"
    """Data may be sent and is taken before the peer has proved itself: an open HELLO on a server."""
    ADMITTED = "admitted"
    """What comes is taken, and nothing is sent: it was said with a ticket, perhaps not for the first time."""
    DISCARDING = "discarding"
    """What comes before the proof is sealed with keys this side does not have: it is not even held."""
    ACTIVE = "active"
    SUSPECT = "suspect"
    """It may be dead: what it carries is sent again elsewhere, and a sign of life brings it back."""
    DRAINING = "draining"
    """Nothing new is sent on it."""
    DRAINED_HERE = "drained here"
    """Nothing of this side is outstanding on it any more, and the peer was told."""
    DRAINED_THERE = "drained there"
    """The peer has said that nothing of its own is outstanding."""
    DRAINED = "drained"
    """Neither side needs it."""
    CLOSED = "closed"
    LOST = "lost"


class Step(Enum):
    """What moves a connection from one phase to the next."""

    MAY_SEND = "data may be sent"
    MAY_EXCHANGE = "data may be sent and taken"
    MAY_RECEIVE = "data may be taken"
    IGNORE_EARLY = "what comes before the proof cannot be read"
    PROVED = "the peer has proved itself"
    SILENT = "it may be dead"
    HEARD = "a sign of life"
    DRAIN = "one side wants it no more"
    DRAINED_HERE = "this side is done with it"
    DRAINED_THERE = "the peer is done with it"
    CLOSE = "it ends in order"
    LOSE = "it is over"


class Traits(NamedTuple):
    """What a phase means for what a connection may do."""

    state: ConnectionState
    """What the application sees."""
    sends: bool
    """Data and acknowledgements may be written."""
    receives: bool
    """Segments other than the handshake are taken."""
    authenticated: bool
    """The peer has proved itself on it."""
    delivers: bool
    """Bytes sent on it can be expected to arrive."""
    alive: bool = True


_S = ConnectionState
TRAITS: dict[Phase, Traits] = {
    Phase.HANDSHAKE: Traits(_S.AUTHENTICATING, sends=False, receives=False, authenticated=False, delivers=True),
    Phase.EARLY_SENDING: Traits(_S.AUTHENTICATING, sends=True, receives=False, authenticated=False, delivers=True),
    Phase.EARLY: Traits(_S.AUTHENTICATING, sends=True, receives=True, authenticated=False, delivers=True),
    Phase.ADMITTED: Traits(_S.AUTHENTICATING, sends=False, receives=True, authenticated=False, delivers=True),
    Phase.DISCARDING: Traits(_S.AUTHENTICATING, sends=False, receives=False, authenticated=False, delivers=True),
    Phase.ACTIVE: Traits(_S.ACTIVE, sends=True, receives=True, authenticated=True, delivers=True),
    Phase.SUSPECT: Traits(_S.SUSPECT, sends=True, receives=True, authenticated=True, delivers=False),
    Phase.DRAINING: Traits(_S.DRAINING, sends=True, receives=True, authenticated=True, delivers=True),
    Phase.DRAINED_HERE: Traits(_S.DRAINING, sends=True, receives=True, authenticated=True, delivers=True),
    Phase.DRAINED_THERE: Traits(_S.DRAINING, sends=True, receives=True, authenticated=True, delivers=True),
    Phase.DRAINED: Traits(_S.DRAINING, sends=True, receives=True, authenticated=True, delivers=True),
    Phase.CLOSED: Traits(_S.CLOSED, sends=False, receives=False, authenticated=False, delivers=False, alive=False),
    Phase.LOST: Traits(_S.LOST, sends=False, receives=False, authenticated=False, delivers=False, alive=False),
}

_END = {Step.CLOSE: Phase.CLOSED, Step.LOSE: Phase.LOST}
CONNECTION_STEPS: dict[Phase, dict[Step, Phase]] = {
    Phase.HANDSHAKE: {
        Step.MAY_SEND: Phase.EARLY_SENDING,
        Step.MAY_EXCHANGE: Phase.EARLY,
        Step.MAY_RECEIVE: Phase.ADMITTED,
        Step.IGNORE_EARLY: Phase.DISCARDING,
        Step.PROVED: Phase.ACTIVE,
        **_END,
    },
    Phase.EARLY_SENDING: {Step.PROVED: Phase.ACTIVE, **_END},
    Phase.EARLY: {Step.PROVED: Phase.ACTIVE, **_END},
    Phase.ADMITTED: {Step.PROVED: Phase.ACTIVE, **_END},
    Phase.DISCARDING: {Step.PROVED: Phase.ACTIVE, **_END},
    Phase.ACTIVE: {Step.SILENT: Phase.SUSPECT, Step.DRAIN: Phase.DRAINING, **_END},
    Phase.SUSPECT: {Step.HEARD: Phase.ACTIVE, Step.DRAIN: Phase.DRAINING, **_END},
    Phase.DRAINING: {Step.DRAINED_HERE: Phase.DRAINED_HERE, Step.DRAINED_THERE: Phase.DRAINED_THERE, **_END},
    Phase.DRAINED_HERE: {Step.DRAINED_THERE: Phase.DRAINED, **_END},
    Phase.DRAINED_THERE: {Step.DRAINED_HERE: Phase.DRAINED, **_END},
    Phase.DRAINED: dict(_END),
    Phase.CLOSED: {},
    Phase.LOST: {},
}


def next_phase(phase: Phase, step: Step) -> Phase:
    """Where `step` leads; raises LocalProtocolError when it leads nowhere."""
    found = CONNECTION_STEPS[phase].get(step)
    if found is None:
        raise LocalProtocolError(f"a connection that is in {phase.value} takes no step like: {step.value}")
    return found


class SessionState(Enum):
    """OPENING until the peer has proved itself; DETACHED while no connection is left (resume_timeout runs)."""

    OPENING = "opening"
    OPEN = "open"
    DETACHED = "detached"
    CLOSING = "closing"
    CLOSED = "closed"


SESSION_TRANSITIONS: dict[SessionState, frozenset[SessionState]] = {
    SessionState.OPENING: frozenset({SessionState.OPEN, SessionState.CLOSED}),
    SessionState.OPEN: frozenset({SessionState.DETACHED, SessionState.CLOSING, SessionState.CLOSED}),
    SessionState.DETACHED: frozenset({SessionState.OPEN, SessionState.CLOSED}),
    SessionState.CLOSING: frozenset({SessionState.CLOSED}),
    SessionState.CLOSED: frozenset(),
}
