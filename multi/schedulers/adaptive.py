"""Adaptive, the default: every segment where it arrives first, or nowhere yet if waiting delivers it sooner.

An earliest-arrival scheduler in the line of OTIAS (Yang, Wang, Amer, ICCCN 2014), STTF (Hurtig et al., ToN
2019) and ECF, from facts every transport can give, so one formula serves TCP, QUIC and MPTCP. Bytes given
to a slow connection cannot be taken back; that is why it would rather wait than give them away, and why all
its waiting is bounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from multi.schedulers._patience import Patience
from multi.schedulers.base import WAIT, ConnectionView, SendRequest
from multi.schedulers.estimates import PACKET, arrival, doubt, rate_of, stalls, tells
from multi.schedulers.registry import register_scheduler
from multi.types import ConnectionId, Role

WINDOWS_AHEAD = 3  # windows that count while they grow: one doubles within a round trip, and follows what is read
QUEUES = 2  # times the smallest round trip, from which a queue counts that is a path's own
ALIKE = 0.05  # share by which the times of two paths may differ that are equally near: round trips vary
TOLD = 15 / 16  # of a window that is used up may be used again at once: its reader tells of each sixteenth
FAR = 0.060  # seconds of round trip by which a path is so much farther that a reader would notice waiting for it
WORTH = 1 / 8  # of a near path's rate, from which a far one is worth that its bytes come late
BEGINNING = 8  # round trips within which a far path has become fast enough, or never will
HARDLY = 1 / 20  # of a faster path's rate: with less a path adds next to nothing to it
LATE = 0.1  # seconds later than by a faster path, for which a reader need not wait for that
FEW = 10  # packets in a window, of which too few follow a lost one to tell of it before a timeout does
PROBE_INTERVAL = 5.0  # seconds a connection may be left out before its estimate is put to the test again
MAX_REMEMBERED = 64  # connections; ids are never reused, so old ones must go
PROBE_BACKLOG = 256 * 1024  # bytes: with less to send a late segment would be noticed


@register_scheduler("adaptive")
class Adaptive:
    """Gives a segment to S, the earliest arrival among the connections with credit.

    Not if a blocked connection F would have delivered everything waiting, as far as the window may soon
    allow, before S delivers this one segment: then nobody gets it. A window taken for smaller than it will
    be would keep S waiting, and a round trip of its slow start is worth more than a segment sent again.
    Reinjected bytes are a gap at the head of the stream, so for them F needs to be earlier with this segment
    only. F is awaited while it moves (`Patience`), and never if nothing is known of its speed.

    However much waits, S gets no more than keeps it busy while a faster F would bring it sooner: the reader has to wait
    for what queues on S, and where a queue is filled until it loses something, for a repetition besides.

    Where the window is shut, that is, grows no more and holds less than waits, its room is what is divided:
    S would keep its part for longer, and a nearer F stand still for the round trip in which it opens again.
    So F gets the segment, or is awaited, if it has sent all of the window that S does not hold before it can be
    heard that the segment has come. Of which rate S is may not be known yet; then it is expected later.

    What is lost holds up all that is behind for a round trip: where losses are usual and the window grows no more, a
    segment may be as late as that. The part of a window that waits for it cannot be used, so losses also decide which
    is nearer of paths that are alike.

    A path that adds next to nothing to a faster one gets none of what is much, where its window is so small that a loss
    is noticed by a timeout alone, or where it would bring a segment much later: the reader would wait for all of that.
    Now and then it gets one segment all the same (`_probe_due`), and it is as welcome as any once it has become fast.

    A far path that joins sends a window, and stands still for a round trip: a reader that had not to wait before would
    wait for each. So it gets copies of what a near path sends, as much as it can send at once, until it is fast enough;
    so does one that a near path joins which is much faster.
    """

    __slots__ = ("_begun", "_patience", "_peaks", "_probe_at", "_slow")

    def __init__(self) -> None:
        self._patience = Patience()
        self._begun: dict[ConnectionId, float] = {}
        self._probe_at: dict[ConnectionId, float] = {}
        self._peaks: dict[ConnectionId, float] = {}
        """The best rate at which each was given some of much, bytes per second."""
        self._slow: dict[ConnectionId, float] = {}
        """When each that is far held up the reader first."""

    def select(self, request: SendRequest, connections: Sequence[ConnectionView]) -> Sequence[ConnectionView]:
        if request.may_copy and request.backlog >= PROBE_BACKLOG and (far := self._begin_far(request, connections)):
            others = [connection for connection in connections if connection not in far]
            if chosen := self._among(request, others):
                return (*filter(_has_room, far), *chosen)
            if any(self._patience.allows(connection, request.now) for connection in others):
                return WAIT
        return self._among(request, connections)

    def _begin_far(self, request: SendRequest, connections: Sequence[ConnectionView]) -> list[ConnectionView]:
        """Those that are far beside the nearest of known rate and not fast enough, while that is new."""
        near: ConnectionView | None = None
        farthest = 0.0
        for connection in connections:
            if connection.rate > 0.0 and (near is None or connection.rtt < near.rtt):
                near = connection
            if connection.min_rtt > farthest:
                farthest = connection.min_rtt
        if near is None or farthest <= near.rtt + FAR:
            return []
        if len(self._begun) > MAX_REMEMBERED + len(connections):
            self._begun.clear()
        # Where the near one begins as well, nothing stands still that moved before, and the far one is needed soon.
        now = -inf if near.accelerates else request.now
        enough = WORTH * near.rate
        # A secondary one is there because the others do not cope: it is asked when they have no room to be copied from.
        far = [
            c
            for c in connections
            if c.min_rtt > near.rtt + FAR and rate_of(c) < enough and c.role is not Role.SECONDARY
        ]
        return [c for c in far if request.now < self._begun.setdefault(c.id, now) + BEGINNING * c.min_rtt]

    def _among(self, request: SendRequest, connections: Sequence[ConnectionView]) -> Sequence[ConnectionView]:
        size = request.size
        best: ConnectionView | None = None
        best_arrival = inf
        blocked = False
        for connection in connections:
            if connection.credit <= 0:
                blocked = True
                continue
            at = arrival(connection, size)
            if best is None or at < best_arrival:
                best, best_arrival = connection, at
        if best is None:
            return WAIT
        if blocked and not request.reinjection and self._is_overtaken(request, connections, best, best_arrival):
            return self._among(request, [connection for connection in connections if connection is not best])
        if (faster := self._only_held_up(request, connections, best, best_arrival)) is not None:
            if self._probe_due(request, best, faster, arrival(faster, size)):
                return (best,)
            return self._among(request, [connection for connection in connections if connection is not best])
        shut = not request.reinjection and not request.window_grows and request.window < request.backlog
        if shut:
            best_arrival += doubt(best, size)
            if (nearer := self._keeps_moving(request, connections, best, best_arrival)) is not None:
                best, best_arrival = nearer, arrival(nearer, size)
        if blocked and self._better_to_wait(request, connections, best, best_arrival, shut=shut):
            return WAIT
        self._patience.sent_on(best)
        return (best,)

    def _is_overtaken(
        self, request: SendRequest, connections: Sequence[ConnectionView], best: ConnectionView, best_arrival: float
    ) -> bool:
        """Enough queues on `best`, and a faster one that has no credit now would bring this sooner nevertheless."""
        if not best.full(request.now):
            return False
        for connection in connections:
            if connection.credit > 0 or connection.rate <= best.rate:
                continue
            if arrival(connection, request.size) < best_arrival and self._patience.allows(connection, request.now):
                return True
        return False

    def _only_held_up(
        self, request: SendRequest, connections: Sequence[ConnectionView], best: ConnectionView, best_arrival: float
    ) -> ConnectionView | None:
        """A faster one to which `best` adds next to nothing, while the reader of much would often wait for `best`."""
        if request.reinjection or request.backlog < PROBE_BACKLOG or best.rate <= 0.0:
            return None
        if len(self._peaks) > MAX_REMEMBERED:
            self._peaks.clear()
        peak = self._peaks[best.id] = max(self._peaks.get(best.id, 0.0), best.rate)
        for connection in connections:
            if connection.rate * HARDLY <= peak:  # it has been faster, and may be again
                continue
            few = not best.accelerates and 0 < best.congestion_window < FEW * PACKET
            # Also where it would double what it sends: it may as well be as slow as it has been.
            takes = max(
                best_arrival,
                (best.in_flight + best.overtaken + request.size) / best.rate - best.min_rtt / 2 + best.asymmetry,
            )
            late = arrival(connection, request.size) + LATE < takes
            if (few or late) and self._patience.allows(connection, request.now):
                far = best.min_rtt > connection.rtt + FAR
                return None if far and self._begins(best, request.now) else connection
        return None

    def _begins(self, far: ConnectionView, now: float) -> bool:
        """It has not been slow for long: one that is far takes its time to become fast."""
        if len(self._slow) > MAX_REMEMBERED:
            self._slow.clear()
        return now < self._slow.setdefault(far.id, now) + BEGINNING * far.min_rtt

    @staticmethod
    def _keeps_moving(
        request: SendRequest, connections: Sequence[ConnectionView], best: ConnectionView, best_arrival: float
    ) -> ConnectionView | None:
        """A nearer connection with credit that would stand still if `best` got the room of a shut window."""
        if not tells(best):
            return None
        best_arrival += _held_up(best, request)
        for connection in connections:
            if connection.credit <= 0 or not tells(connection) or not _nearer(connection, best, request.size):
                continue
            if _stands_still(connection, best, request, connections) < best_arrival:
                return connection
        return None

    def _better_to_wait(
        self,
        request: SendRequest,
        connections: Sequence[ConnectionView],
        best: ConnectionView,
        best_arrival: float,
        *,
        shut: bool,
    ) -> bool:
        if not tells(best):
            return False
        best_arrival += _held_up(best, request)
        ahead = request.size
        if not request.reinjection:
            window = WINDOWS_AHEAD * request.window if request.window_grows else request.window
            ahead = max(ahead, min(request.backlog, window))
        for connection in connections:
            if connection.credit > 0 or not tells(connection):
                continue
            if shut and _nearer(connection, best, request.size):
                at = _stands_still(connection, best, request, connections)
            else:
                at = arrival(connection, ahead) + _held_up(connection, request)
            if at < best_arrival and self._patience.allows(connection, request.now):
                return not self._probe_due(request, best, connection, at)
        return False

    def _probe_due(
        self, request: SendRequest, best: ConnectionView, awaited: ConnectionView, awaited_arrival: float
    ) -> bool:
        """Whether `best` gets a segment to renew its rate, which would else stay as bad as it once was.

        Only an idle one, only amid bulk data, and only if it would be of use with as good a rate as the
        awaited one.
        """
        if best.in_flight + best.overtaken > 0 or request.reinjection or request.backlog < PROBE_BACKLOG:
            return False
        rate = rate_of(awaited)
        if rate <= 0.0:
            return False
        shortest = request.size / rate + (best.min_rtt or best.rtt) / 2 + best.asymmetry
        if shortest >= awaited_arrival:
            return False
        if len(self._probe_at) > MAX_REMEMBERED:
            self._probe_at.clear()
        due = self._probe_at.setdefault(best.id, request.now + PROBE_INTERVAL)
        if request.now < due:
            return False
        self._probe_at[best.id] = request.now + PROBE_INTERVAL
        return True


def _has_room(connection: ConnectionView) -> bool:
    """It has not got yet what it sends before it hears of the first of it: a window, which doubles meanwhile."""
    on_the_way = connection.in_flight + connection.overtaken
    return connection.credit > 0 and on_the_way < 2 * connection.congestion_window


def _nearer(connection: ConnectionView, other: ConnectionView, size: int) -> bool:
    """Whether `size` bytes of a window are given back sooner by `connection`; of alike ones by what loses less."""
    own, others = _gives_back(connection, size), _gives_back(other, size)
    if abs(own - others) < ALIKE * others:
        own = others
    return own + _repeats(connection) < others + _repeats(other)


def _gives_back(connection: ConnectionView, size: int) -> float:
    """Seconds for which `size` bytes of a window are taken by the connection, if nothing is lost.

    Without its own queue, which is what the window makes of it, unless that is longer than the path.
    """
    sending = size / connection.rate if connection.rate > 0.0 else 0.0
    least = connection.min_rtt or connection.rtt
    queues = connection.rtt > QUEUES * least
    return sending + (connection.rtt if queues else least)


def _repeats(connection: ConnectionView) -> float:
    """Seconds that losses are expected to add to that."""
    return (connection.min_rtt or connection.rtt) * stalls(connection) / 2


def _stands_still(
    nearer: ConnectionView, other: ConnectionView, request: SendRequest, connections: Sequence[ConnectionView]
) -> float:
    """Seconds within which a segment given to `other` has to arrive, or `nearer` has nothing more to send meanwhile.

    However little room there is now, what is in flight makes more, but for what `other` holds already. Only while its
    rate is not known it gets no more than what is there now. The room that the segment itself makes is heard of half a
    round trip after it has come.
    """
    whole = request.window
    if other.rate > 0.0:
        whole += sum([connection.in_flight for connection in connections if connection is not other])
    return arrival(nearer, int(TOLD * whole)) - nearer.rtt


def _held_up(connection: ConnectionView, request: SendRequest) -> float:
    """Seconds by which losses are expected to delay what is given to the connection: repetitions take a round trip.

    While the window grows, what waits behind a loss takes no room that others could use.
    """
    return 0.0 if request.window_grows else connection.rtt * stalls(connection)
