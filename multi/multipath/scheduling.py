"""Which path gets the next bytes of a connection that has several: the session's schedulers, asked about paths.

To a scheduler a path looks like a connection (`PathView`). Which paths may be asked about at all is decided here.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

from multi.multipath.cap import rise_of
from multi.multipath.facts import PathFacts, PathState
from multi.schedulers.base import ConnectionView, Scheduler, SendRequest
from multi.schedulers.estimates import arrival
from multi.types import STREAM_ZERO, ConnectionId, Role

PRIORITY = 3  # the session's default: its own scheduler has decided about priorities already
CLEARLY_SOONER = 2  # times, or a copy is too close a call
RETRY = 0.005  # seconds after which a scheduler that wanted to wait is asked again, as a session does


class PathView(NamedTuple):
    """A `ConnectionView` of a path. Times in seconds, sizes in bytes, rates in bytes per second, 0 = unknown."""

    id: ConnectionId
    role: Role = Role.ACTIVE
    credit: int = 0
    in_flight: int = 0
    overtaken: int = 0
    not_sent: int = 0
    congestion_window: int = 0
    rtt: float = 0.0
    rtt_variation: float = 0.0
    min_rtt: float = 0.0
    rate: float = 0.0
    transport: str = "mpquic"
    interface: str = ""
    weight: float = 1.0
    cost: float = 0.0
    loss: float = 0.0
    accelerates: bool = False

    def full(self, now: float) -> bool:
        """How much may queue is seen to below (`multi.multipath.cap`)."""
        return False


def usable(paths: Sequence[PathFacts]) -> list[PathFacts]:
    """Those that data may be sent on: who answers and is no backup, else who answers, else nobody."""
    answering = [path for path in paths if path.state is PathState.ACTIVE]
    return [path for path in answering if not path.backup] or answering


def view_of(path: PathFacts, rate: float, credit: int) -> PathView:
    """`rate`: what it delivers, 0 = not known; `credit`: bytes that it takes now.

    While its congestion window doubles with every round trip what was measured is of the past, and a window in each is
    what it sends; so is it where nothing was measured. It no longer counts as doubling when a queue stands: more is
    sent than the path carries, though nothing is lost yet.
    """
    queues = path.rtt > path.min_rtt + rise_of(path.min_rtt)
    doubles = path.slow_start and not queues
    if path.rtt and (doubles or not rate):
        rate = max(rate, path.congestion_window / path.rtt)
    return PathView(
        id=ConnectionId(path.id),
        role=Role.BACKUP if path.backup else Role.ACTIVE,
        credit=credit,
        in_flight=path.bytes_in_flight,
        congestion_window=path.congestion_window,
        rtt=path.rtt,
        rtt_variation=path.rtt_variation,
        min_rtt=path.min_rtt,
        rate=rate,
        accelerates=doubles,
    )


def overtaken_at(slow: PathView, sent_at: float, other: PathView, size: int) -> float:
    """When `size` bytes that `slow` carries since `sent_at` are worth a copy on `other`; -inf = at once.

    Once they would arrive there in half the time that they seem to need still: what is late is expected to be later by
    as much again.
    """
    lateness = arrival(other, size) * CLEARLY_SOONER - arrival(slow, 0)
    return sent_at + slow.rtt + lateness if lateness > 0.0 else -inf


def runs_dry(other: PathView, room: int, slow: PathView, sent_at: float, now: float) -> bool:
    """Whether `other` will have nothing to send, once the peer has been sent the `room` bytes that it still takes,
    unless there is a copy of what `slow` carries since `sent_at`.

    It would be too late then: the peer takes more a round trip after the copy has left. What is late is expected to be
    later by as much again.
    """
    comes_in = abs(sent_at + slow.rtt - slow.min_rtt / 2 - now)
    return room <= min(other.congestion_window, other.rate * comes_in)


def choose(scheduler: Scheduler, views: Sequence[PathView], size: int, backlog: int, now: float) -> list[int]:
    """Ids of the paths that carry the next `size` bytes, each a copy; empty: wait, and ask again after `RETRY`.

    `backlog`: bytes that wait, these included. How many the peer takes is no matter here: the window is the session's,
    and that of the connection grows out of its way. What a scheduler of the application raises is not caught.
    """
    able = [view for view in views if view.credit > 0]
    if not able or len(views) == 1:
        return [view.id for view in able]
    request = SendRequest(STREAM_ZERO, PRIORITY, size, backlog, backlog, reinjection=False, now=now)
    asked: Sequence[ConnectionView] = views
    return [chosen.id for chosen in scheduler.select(request, asked) if chosen.credit > 0]
