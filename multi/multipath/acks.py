"""On which paths the packets of a path are acknowledged (RFC 10069 leaves it open)."""

from __future__ import annotations

from collections.abc import Sequence

from multi.multipath.facts import PathFacts, PathState
from multi.multipath.policy import AckPath
from multi.multipath.scheduling import usable

CLEARLY = 7 / 8  # of a round trip: a path that is hardly nearer would only make round trips of several kinds
LATELY = 0.02  # seconds; a path is heard more often than once a round trip while it carries something
PAUSES = 2  # of those that there were on a slow path, on which a datagram takes longer than a round trip of small ones
SELDOM = 0.1  # seconds between two signs of life; who shows them less often carries nothing for others
PING_INTERVAL = 0.1  # seconds at least between two probes of a path that carries nothing but acknowledgements


def carriers(policy: AckPath, of: PathFacts, paths: Sequence[PathFacts], now: float) -> list[int]:
    """Ids of the paths that carry acknowledgements of what came on the path `of`; empty if there is none at all.

    Whatever is asked for, a path that does not answer carries them only where no other does: both ends suspect a path
    after one overshoot, and would wait for each other's acknowledgements for ever. Nor does another path carry them
    from which nothing has come of late, or that the peer wants as a backup: the peer may know already that it is dead,
    which who only receives learns later. Nor one on which little comes in bursts: acknowledgements would change their
    way after each, and what is sent seem to be lost whenever they take the longer one.
    """
    healthy = [path for path in paths if path.state is PathState.ACTIVE]
    if not healthy:
        return [path.id for path in paths if path.id == of.id and of.state is not PathState.ABANDONED]
    if policy is AckPath.ALL:
        return [path.id for path in healthy]
    own = next((path for path in healthy if path.id == of.id), None)
    if policy is AckPath.SAME and own is not None:
        return [own.id]
    heard = [
        path
        for path in usable(healthy)
        if path.pause <= SELDOM and now <= path.heard_at + max(path.rtt, LATELY, PAUSES * path.pause)
    ]
    best = min(heard or ([own] if own is not None else healthy), key=lambda path: (not path.rtt, path.rtt, path.id))
    if own is not None and (not best.rtt or (own.rtt and best.rtt > own.rtt * CLEARLY)):
        best = own
    return [best.id]


def probe_due(last_probe: float, rtt: float, now: float) -> bool:
    """Whether acknowledgements on a path should ask for one themselves: else nobody learns that they are lost."""
    return now >= last_probe + max(rtt, PING_INTERVAL)
