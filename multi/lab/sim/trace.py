"""What a simulated run writes down, in words of its own.

    0.012345 client send 1 0 1432
    0.020000 server state 1 active # authenticated

A line is a time, who, what, and numbers: connections, lanes, lengths, streams, routes. What stands behind ` # ` is for
people. The words before it are fixed here and belong to no class, field or message, so a run whose behaviour has not
changed keeps its digest whatever is renamed or reworded.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256

from multi.events import (
    AddressesAnnounced,
    AttemptFailed,
    ConnectionChanged,
    Event,
    HandoverChanged,
    HandoverState,
    NetworkChanged,
    RoleChanged,
    SchedulerChanged,
    SessionConfirmed,
    SessionDetached,
    SessionEnded,
    SessionResumed,
    SignalChanged,
    Warned,
)
from multi.types import ConnectionState, Role

COMMENT = " # "
DIGEST_LENGTH = 16  # hexadecimal digits

STATE_WORDS = {
    ConnectionState.AUTHENTICATING: "authenticating",
    ConnectionState.ACTIVE: "active",
    ConnectionState.SUSPECT: "suspect",
    ConnectionState.DRAINING: "draining",
    ConnectionState.CLOSED: "closed",
    ConnectionState.LOST: "lost",
}
ROLE_WORDS = {Role.ACTIVE: "active", Role.BACKUP: "backup"}
HANDOVER_WORDS = {HandoverState.STARTED: "started", HandoverState.DONE: "done", HandoverState.FAILED: "failed"}


def line(now: float, words: Iterable[object], comment: str = "") -> str:
    text = f"{now:.6f} {' '.join(map(str, words))}"
    return f"{text}{COMMENT}{comment}" if comment else text


def event_words(event: Event) -> tuple[object, ...]:
    """The fixed words and numbers of an event; texts and facts are left out."""
    match event:
        case ConnectionChanged():
            return ("state", event.connection, STATE_WORDS[event.state])
        case RoleChanged():
            return ("role", event.connection, ROLE_WORDS[event.role], int(event.by_peer))
        case SchedulerChanged():
            return ("scheduler", event.scheduler, int(event.by_peer))
        case AttemptFailed():
            return ("attempt-failed", event.candidate.entry)
        case HandoverChanged():
            return ("handover", HANDOVER_WORDS[event.state])
        case NetworkChanged():
            return ("network", event.interface or "-", int(event.usable))
        case SignalChanged():
            return ("signal", event.interface, int(event.fading))
        case AddressesAnnounced():
            return ("addresses", len(event.addresses))
        case SessionConfirmed():
            return ("confirmed",)
        case SessionDetached():
            return ("detached",)
        case SessionResumed():
            return ("resumed", f"{event.after:.6f}")
        case SessionEnded():
            return ("ended", int(not event.reason.orderly))
        case Warned():
            return ("warned",)


def event_comment(event: Event) -> str:
    match event:
        case ConnectionChanged() | AttemptFailed() | NetworkChanged() | SchedulerChanged() | SessionEnded():
            return event.reason
        case HandoverChanged():
            return event.reason or ""
        case Warned():
            return event.message
        case _:
            return ""


def digest(trace: str) -> str:
    """Identifies what happened in a run, without the comments."""
    stable = "\n".join(item.partition(COMMENT)[0] for item in trace.split("\n"))
    return sha256(stable.encode()).hexdigest()[:DIGEST_LENGTH]
