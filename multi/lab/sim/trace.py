"""What a simulated run writes down, in words of its own.

    0.012345 client send 1 0 1432
    0.020000 server state 1 active # authenticated

A line is a time, who, what, and numbers: connections, lanes, lengths, streams, routes. What stands behind ` # ` is for
people. The words before it are fixed here or are what applications see of a state, so a run whose behaviour has not
changed keeps its digest whatever class, field or message is renamed or reworded.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256

from multi.events import (
    AddressesAnnounced,
    AttemptFailed,
    BudgetChanged,
    ConnectionChanged,
    DatagramDropped,
    Event,
    GoingAway,
    HandoverChanged,
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

COMMENT = " # "
DIGEST_LENGTH = 16  # hexadecimal digits


def line(now: float, words: Iterable[object], comment: str = "") -> str:
    text = f"{now:.6f} {' '.join(map(str, words))}"
    return f"{text}{COMMENT}{comment}" if comment else text


def described(event: Event) -> tuple[tuple[object, ...], str]:
    """The fixed words and numbers of an event, and its text as a comment; facts are left out."""
    match event:
        case ConnectionChanged():
            return ("state", event.connection, event.state.value), event.reason
        case RoleChanged():
            return ("role", event.connection, event.role.name.lower(), int(event.by_peer)), ""
        case SchedulerChanged():
            return ("scheduler", event.scheduler, int(event.by_peer)), event.reason
        case AttemptFailed():
            return ("attempt-failed", event.candidate.entry), event.reason
        case HandoverChanged():
            return ("handover", event.state.value), event.reason or ""
        case NetworkChanged():
            return ("network", event.interface or "-", int(event.usable)), event.reason
        case SignalChanged():
            return ("signal", event.interface, int(event.fading)), ""
        case AddressesAnnounced():
            return ("addresses", len(event.addresses)), ""
        case SessionConfirmed():
            return ("confirmed",), ""
        case SessionDetached():
            return ("detached",), ""
        case SessionResumed():
            return ("resumed", f"{event.after:.6f}"), ""
        case GoingAway():
            return ("going-away", f"{event.deadline:.3f}"), ""
        case SessionEnded():
            return ("ended", int(not event.reason.orderly)), event.reason
        case DatagramDropped():
            return ("datagram-dropped", event.size, event.max_size), ""
        case BudgetChanged():
            return ("budget", event.name, event.level), ""
        case Warned():
            return ("warned",), event.message


def digest(trace: str) -> str:
    """Identifies what happened in a run, without the comments."""
    stable = "\n".join(item.partition(COMMENT)[0] for item in trace.split("\n"))
    return sha256(stable.encode()).hexdigest()[:DIGEST_LENGTH]
