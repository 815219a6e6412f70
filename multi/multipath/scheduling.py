"""Which path gets the next bytes of a connection that has several: the session's schedulers, asked about paths.

To a scheduler a path looks like a connection (`PathView`). Which paths may be asked about at all is decided here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import inf
from typing import NamedTuple

from multi.multipath.cap import rise_of
from multi.multipath.facts import PathFacts, PathState
from multi.schedulers.base import ConnectionView, Scheduler, SendRequest
from multi.schedulers.estimates import STALL, TRICKLE, arrival
from multi.types import STREAM_ZERO, ConnectionId, Role

PRIORITY = 3  # the session's default: its own scheduler has decided about priorities already
CLEARLY_SOONER = 2  # times, or a copy is too close a call
RETRY = 0.005  # seconds after which a scheduler that wanted to wait is asked again, as a session does
QUEUED = 2  # times the least round trip of a path that is usual; with more it is a stall that is not over
LOOK = 0.020  # seconds between looks at what has come in order
FORGET = 1.002  # times as long each least round trip with every look: e times in ten seconds


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
    held_by_cap: bool = False
    asymmetry: float = 0.0

    def full(self, now: float) -> bool:
        """How much may queue is seen to below (`multi.multipath.cap`)."""
        return False


def usable(paths: Sequence[PathFacts]) -> list[PathFacts]:
    """Those that data may be sent on: who answers and is no backup, else who answers, else nobody."""
    answering = [path for path in paths if path.state is PathState.ACTIVE]
    return [path for path in answering if not path.backup] or answering


def view_of(path: PathFacts, rate: float, credit: int, asymmetry: float = 0.0) -> PathView:
    """`rate`: what it delivers, 0 = not known; `credit`: bytes it takes now; `asymmetry`: as in `ConnectionView`.

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
        asymmetry=asymmetry,
    )


def overtaken_at(slow: PathView, sent_at: float, other: PathView, size: int) -> float:
    """When `size` bytes that `slow` carries since `sent_at` are worth a copy on `other`; -inf = at once.

    Once they would arrive there in half the time that they seem to need still: what is late is expected to be later by
    as much again. Round trips tell that: half of one that comes back another way is only good to compare paths by.
    """
    takes, needs = arrival(other, size) - other.asymmetry, arrival(slow, 0) - slow.asymmetry
    lateness = takes * CLEARLY_SOONER - needs
    return sent_at + slow.rtt + lateness if lateness > 0.0 else -inf


def first_overtaking(slow: PathView, sent_at: float, others: Sequence[PathView], size: int) -> tuple[float, PathView]:
    """The first of these, one at least, on which a copy is worth it, and when."""
    times = {view: overtaken_at(slow, sent_at, view, size) for view in others}
    fast = min(times, key=times.__getitem__)
    return times[fast], fast


def runs_dry(other: PathView, room: int, slow: PathView, sent_at: float, now: float) -> bool:
    """Whether `other` will have nothing to send, once the peer has been sent the `room` bytes that it still takes,
    unless there is a copy of what `slow` carries since `sent_at`.

    It would be too late then: the peer takes more a round trip after the copy has left. What is late is expected to be
    later by as much again.
    """
    comes_in = abs(sent_at + slow.rtt - slow.min_rtt / 2 - now)
    return room <= min(other.congestion_window, other.rate * comes_in)


class Progress:
    """What of each stream has come in order: whether who reads it waits for a slow path, while much comes behind."""

    def __init__(self) -> None:
        self._moved: dict[int, tuple[float, int]] = {}
        """When so many bytes had come in order; a trickle more is none."""
        self._look_at = -inf
        self._stalled_at = -inf
        """When it was last seen that little comes for long: what was sent until then may hold up all the rest. -inf:
        nothing of that is left on its way."""
        self._least: dict[ConnectionId, float] = {}
        self._usual: dict[ConnectionId, float] = {}
        """Round trips of paths before a stall. In it they grow as fast as time passes, and nothing is ever late."""

    def due(self, now: float) -> bool:
        """Whether it is time to look."""
        return now >= self._look_at

    def look(self, streams: Iterable[tuple[int, int, int]], views: Sequence[PathView], now: float) -> None:
        """Of each stream: its id, the bytes acknowledged in order, and those that were sent."""
        self._look_at = now + LOOK
        before, self._moved = self._moved, {}
        for stream, acked, sent in streams:
            if acked < sent:
                at, moved = before.get(stream, (now, acked))
                self._moved[stream] = (at, moved) if acked - moved < (sent - acked) * TRICKLE else (now, acked)
        since = min((at for at, _ in self._moved.values()), default=now)
        if since == now and self._stalled_at == -inf:
            self._least = {view.id: min(self._least.get(view.id, inf) * FORGET, view.rtt) for view in views}
            self._usual = {view.id: min(view.rtt, QUEUED * self._least[view.id]) for view in views}
        elif now - since >= max(STALL, *(self._usual.get(view.id, 0.0) for view in views)):
            self._stalled_at = now

    def rescue(
        self, views: Sequence[PathView], oldest: Callable[[int], tuple[float, int] | None], now: float
    ) -> tuple[PathView, PathView] | None:
        """A path that holds up the reader, and one on which what it carries is to be sent again, before all new bytes.

        `oldest`: when the oldest packet with data on its way on a path was sent, and its size. A path has had it since
        before the reader began to wait, and longer than is usual there, or copies would take the place of new bytes.
        """
        if self._stalled_at == -inf:
            return None
        held_up = False
        for slow in views:
            carried = oldest(slow.id)
            if carried is None or carried[0] > self._stalled_at:
                continue
            held_up = True
            sent_at, size = carried
            late = now >= sent_at + self._usual.get(slow.id, slow.rtt)
            others = [view for view in views if view.rtt and view.id != slow.id and view.credit >= size]
            if late and others:
                at, fast = first_overtaking(slow, sent_at, others, size)
                if at <= now:
                    return slow, fast
        if not held_up:
            self._stalled_at = -inf
        return None

    def slowed(self, path: PathView) -> bool:
        """Whether it takes much longer than it did: more queues there than is usual, or it has become slow."""
        return path.rtt > QUEUED * self._least.get(path.id, inf)


def choose(scheduler: Scheduler, views: Sequence[PathView], size: int, backlog: int, now: float) -> list[int]:
    """Ids of the paths that may carry the next `size` bytes, the one that delivers them first before the others; empty:
    wait, and ask again after `RETRY`.

    `backlog`: bytes that wait, these included. How many the peer takes is no matter here: the window is the session's,
    and that of the connection grows out of its way. What a scheduler of the application raises is not caught.
    """
    able = [view for view in views if view.credit > 0]
    if not able or len(views) == 1:
        return [view.id for view in able]
    request = SendRequest(STREAM_ZERO, PRIORITY, size, backlog, backlog, reinjection=False, now=now)
    asked: Sequence[ConnectionView] = views
    return [chosen.id for chosen in reversed(scheduler.select(request, asked)) if chosen.credit > 0]
