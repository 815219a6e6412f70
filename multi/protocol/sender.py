"""The sending half of a session: which bytes go next, and again where.

Order of work: rescue, new data by stream priority, opportunistic reinjection. The scheduler chooses the
connection; this module decides what it is asked about, and enforces credit, windows and "never again on the connection
that lost it while another is usable".
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, repeat
from math import inf

from multi.protocol.connection import ACK_WAITS, DOUBTED, SHORT_SEGMENT, SLOW_SEGMENT, UNKNOWN_RTT, Connection
from multi.protocol.payloads import StreamAck
from multi.protocol.send_stream import Outstanding, SendStream
from multi.schedulers.base import Scheduler, SendRequest
from multi.schedulers.estimates import STALL, TRICKLE, arrival, flights, soonest
from multi.types import ConnectionId, StreamId

REINJECT_CHECK = 0.020  # seconds between looks at late bytes while nothing else happens
HOLD_CHECK = 0.005  # seconds; a scheduler that waits causes no event, so it is asked again at the latest then
OVERDUE = 0.5  # seconds after which a range is copied whatever was copied before
STALL_TRIPS = 2  # round trips that a stall takes, where those are longer: a repetition takes one
CERTAIN_STALL = 2  # times as long: what a path that has become slower carries will stop the reader
OVERDUE_TIMES = 10  # as long, at least, as another path would take now
REINJECT_SCAN = 64  # outstanding ranges looked at, from the oldest, for opportunistic reinjection
YOUNG_SCAN = 4  # of them; when these have just been sent, so have those behind them
MANY_STREAMS = 256  # with bytes not acknowledged: for each so many, late ones are looked for REINJECT_CHECK apart
MIN_REINJECT_AGE = 0.020  # seconds (as the deadline rule of xquic's reinjection)
MAX_REINJECT_AGE = 0.500
REINJECT_BUDGET = 0.15  # share of the bytes sent that may be opportunistic copies, plus one window to start with
EARLIER = 0.8  # share of the time a range still takes in which a copy of it has to arrive
MUCH_EARLIER = 0.5  # the same while there is new data to send instead
USUAL_WINDOW = 1024 * 1024  # bytes that who grants more than everybody must grants at once, unless configured for less
WINDOW_SMALL = 2 * 1024 * 1024  # bytes
DOUBLING = 7  # times what is in flight that leaves in three round trips of a path which doubles it with each
REINJECT_ALLOWANCE = 256 * 1024
LATE = 0.030  # seconds an acknowledgement may take besides a round trip: waiting in kernels, and at the peer
DEADLINE_SLACK = 2 * REINJECT_CHECK  # seconds a copy leaves before the last moment: nobody looks more often
MAX_COPIES = 3  # connections that may carry the same range
SPREAD = 1.1  # windows sent within a round trip, or times a rate: headers count for a kernel, and a mean is no peak
PACED = 2  # windows sent since one was shut, with AMPLE four round trips: BBR leaves its startup after three that count
AMPLE = 2  # times what is under way at the rates of all paths, from which a window does not bound them
SPREAD_FROM = 0.001  # seconds of round trip; inside a machine or a rack queues hold any burst, and pacing takes timers
RUN_GAP = 0.050  # seconds without anything new to send that end a run of writing
GROWING = 1  # windows sent since it has grown, or writing has begun, within which it can be expected to grow further
GROWTH = 1.5  # times the largest size so far


@dataclass(slots=True, eq=False)
class Sender:
    """All send streams of one session.

    Bytes stay with their stream until the *session* acknowledges them. In between they are ranges, each with the
    connections that carry it:

        written          sent                                  acknowledged
        ───────> unsent ──────> outstanding on connection 1 ────────────────> gone
                                    │              ▲
               connection 1 is lost │              │ on connection 2, which has credit
               or suspect           └──> lost ─────┘  (loss reinjection: before anything new)
                                    │
               too slow to wait for └──> also on connection 2 (opportunistic reinjection: budgeted, `_reinject`)

    Sending is pull: `fill` asks for each segment who may carry it, and nothing is given to a connection beyond its
    credit, because bytes given to a slow one cannot be taken back. The scheduler may answer "nobody yet"; it is asked
    again after `HOLD_CHECK`. What it is never asked about: a range on a connection that carries it already, and bytes
    beyond the windows of stream and session.
    """

    _connections: Mapping[ConnectionId, Connection]
    scheduler: Scheduler
    reinject: str
    window: int
    """Absolute: bytes over all streams the peer allows."""
    _scheduler_failed: Callable[[Exception, SendStream], None]
    """Puts another scheduler in the place of the stream's, which raised, or raises itself."""
    _window_known: bool = False
    """It is the peer's own word: HELLO or ACCEPT has come."""
    streams: dict[StreamId, SendStream] = field(default_factory=dict)
    active: dict[StreamId, SendStream] = field(default_factory=dict)
    """Those with bytes that are not acknowledged: nothing is ever sent, lost or waited for on another one."""
    used: int = 0
    """Sum of what was sent for the first time."""
    reinjected_bytes: int = 0
    """Bytes sent again, for whatever reason, or on several connections at once."""
    _opportunistic_bytes: int = 0
    _backlog: int = 0
    held_back: bool = False
    """A writer waits until there is room: more bytes are to come than can be seen."""
    moved_at: float = 0.0
    """When the peer last acknowledged bytes of a stream."""
    _run: int = 0
    """Bytes sent for the first time since writing last paused."""
    _run_at: float = 0.0
    """When the last of them was sent; inf = the window keeps more of them waiting, which is no pause."""
    _window_size: int = field(init=False)
    _window_grown_at: int = 0
    """What had been sent then."""
    _window_bounded: bool = False
    """The peer is configured to grant less than others begin with: it will not grow."""
    _shut_at: int | None = None
    """What had been sent when the window stopped it last; None = never."""
    _turn: dict[int, StreamId] = field(default_factory=dict)
    _ranks: Counter[int] = field(default_factory=Counter)
    """How many streams are open of each priority."""
    ranked: bool = False
    """Streams of different priorities are open: what waits below the session holds up the more urgent ones."""
    _patient: int = 0
    """The priority of the least urgent ones."""
    hold_until: float | None = None
    """When a waiting scheduler is asked again."""
    _looked_at: float = -inf
    """When late bytes were last looked for."""
    _stalled_until: float = -inf
    """Until then a reader counts as stalled by a connection that has become slower, though copies make it move."""
    reinject_at: float | None = None
    """When late bytes are looked at again; None = nothing could be done about them."""

    def __post_init__(self) -> None:
        self._window_size = self.window

    # --- streams  ---

    def add(self, stream: SendStream) -> None:
        self.streams[stream.id] = stream
        self._rank(stream.priority, 1)

    def set_priority(self, stream: SendStream, priority: int) -> None:
        if priority != stream.priority:
            self._rank(stream.priority, -1)
            stream.priority = priority
            self._rank(priority, 1)

    def remove(self, stream: StreamId) -> None:
        self._rank(self.streams.pop(stream).priority, -1)

    def _rank(self, priority: int, more: int) -> None:
        self._ranks[priority] += more
        if not self._ranks[priority]:
            del self._ranks[priority]
        self.ranked = len(self._ranks) > 1
        self._patient = max(self._ranks, default=0)

    # --- state  ---

    @property
    def unacked(self) -> int:
        return sum(stream.unacked for stream in self.active.values())

    @property
    def has_unsent(self) -> bool:
        """Bytes wait to be sent for the first time."""
        for stream in self.active.values():  # noqa: SIM110 - asked with every flush
            if stream.next_offset != stream.end_offset:
                return True
        return False

    def waits(self) -> bool:
        """Bytes wait for a connection, new ones or such that are to be rescued."""
        for stream in self.active.values():
            if stream.next_offset < stream.end_offset or (stream.lost and stream.next_rescue() is not None):
                return True
        return False

    @property
    def waiting(self) -> int:
        """Bytes never sent that the window allows, or will while it grows, as a connection has room for them."""
        unsent = sum([stream.end_offset - stream.next_offset for stream in self.active.values()])
        return unsent if not unsent or self._window_grows else min(unsent, max(0, self.window - self.used))

    @property
    def expects_progress(self) -> bool:
        """A peer that is reached acknowledges something: bytes are on their way, or could be."""
        if any(s.acked < s.next_offset for s in self.active.values()):
            return True
        return self.has_unsent and not self.blocked_by_window

    @property
    def blocked_by_window(self) -> bool:
        """Bytes wait, and only the peer's windows keep them from being sent."""
        waiting = [s for s in self.active.values() if s.unsent]
        return bool(waiting) and (self.window <= self.used or all(s.sendable <= 0 for s in waiting))

    # --- acknowledgements  ---

    def peer_grants(self, window: int) -> None:
        """HELLO or ACCEPT has said what the peer allows to begin with."""
        self._window_known = True
        if window > self.window:
            self._window_bounded = window < USUAL_WINDOW
            self._window_size = self.window = window

    def widen(self, window: int) -> None:
        """The peer allows `window` bytes in all: as much as before from what it has read on, or more."""
        self.window = window
        size = window - self.used
        for stream in self.active.values():
            size += stream.next_offset - stream.acked
        if size > GROWTH * self._window_size:
            self._window_size, self._window_grown_at, self._window_bounded = size, self.used, False

    def acknowledge(self, ack: StreamAck, now: float) -> bool:
        """Take one stream's acknowledgement; return True where that may end it: all of it is acknowledged."""
        stream = self.streams.get(ack.stream)
        if stream is None:
            return False
        newly = stream.acknowledge(ack.cumulative, ack.ranges)
        if stream.acked - stream.moved_to >= (stream.next_offset - stream.acked) * TRICKLE:
            stream.moved_at, stream.moved_to = now, stream.acked
        for item in newly:
            if item.lost:
                stream.rescued(item)
            self._release(item, now)
        if newly:
            self.moved_at = now
        if ack.window > stream.window:
            stream.window = ack.window
        return stream.finish_acked and bool(newly)

    def _release(self, item: Outstanding, now: float) -> None:
        size = item.end - item.start
        for carrier in item.carriers:
            connection = self._connections.get(carrier)
            if connection is not None:
                connection.in_flight -= size
                if len(item.carriers) == 1:
                    connection.delivered(size, now)
                elif carrier != item.carriers[-1] and connection.has_samples:
                    connection.overtaken += size

    def forget(self, stream: SendStream, now: float) -> None:
        """The stream was reset: nothing of it is outstanding any more."""
        for item in stream.discard():
            self._release(item, now)

    # --- loss  ---

    def lose(self, connection: Connection, *, certain: bool = False) -> None:
        """`connection` is suspect or gone: rescue what only it, or others like it, carry. `certain`: it is lost."""
        if self.reinject == "off" and connection.alive and not certain:
            return
        connections = self._connections
        for stream in self.active.values():
            for item in stream.outstanding():
                if connection.id in item.carriers and not any(
                    c != connection.id and c in connections and connections[c].delivers for c in item.carriers
                ):
                    stream.lose(item)

    def detach(self, connection: Connection) -> None:
        """`connection` no longer exists: take it off every range it carried."""
        for stream in self.active.values():
            for item in stream.outstanding():
                if connection.id in item.carriers:
                    item.carriers = tuple(c for c in item.carriers if c != connection.id)
        connection.in_flight = 0

    def recover(self, connection: Connection) -> None:
        """`connection` made progress again: what it carries need not be rescued any more."""
        for stream in self.active.values():
            for item in [i for i in stream.lost if connection.id in i.carriers]:
                stream.rescued(item)

    # --- sending  ---

    def fill(self, usable: Sequence[Connection], now: float) -> bool:
        """Give the usable connections what they have credit for. `usable` is in order of id.

        Return True where nothing waits any more, as far as that is known without a look: see `waits`.
        """
        self.hold_until = self.reinject_at = None
        several = len(usable) > 1
        if not self.active or not usable or (several and not self._has_credit(usable)):
            return False
        lost, deadlines = [], False
        for stream in self.active.values():
            deadlines = deadlines or stream.deadline > 0.0
            if stream.lost:
                lost.append(stream)
        if not several and not lost:
            return self._send_alone(usable[0], now)
        for connection in usable:
            if connection.not_sent:
                connection.estimate_not_sent(now)
        reinjects = several and self.reinject == "full"
        copies = reinjects and self._anything_in_flight  # else there is nothing to copy
        if not lost or self._rescue(lost, usable, now):
            if deadlines and several and self.reinject != "off":
                self._meet_deadlines(usable, now)
            stalled = copies and self._reader_waits(usable, now) and self._looks_again(now)
            if stalled or (copies and self._window_runs_out(usable)):
                while self._reinject(usable, now, only_head=True, stalled=stalled):
                    pass
            settled = self._send_new(usable, now) and reinjects and self._looks_again(now)
            if settled and ((copies and self._any_late(now)) or self._any_doubtful(usable)):
                self._reinject(usable, now)
        if deadlines and several and self.reinject != "off":
            self.reinject_at = now + REINJECT_CHECK
        if reinjects and self._anything_in_flight and self._has_credit(usable):
            self.reinject_at = now + REINJECT_CHECK
        return False

    @property
    def _anything_in_flight(self) -> bool:
        for connection in self._connections.values():  # noqa: SIM110 - asked with every flush
            if connection.in_flight:
                return True
        return False

    @property
    def _window_grows(self) -> bool:
        """It has grown lately, or was not in use before."""
        since_grown = min(self._run, self.used - self._window_grown_at)
        return not self._window_bounded and since_grown < GROWING * self._window_size

    def pace(self, connection: Connection) -> float:
        """Bytes per second that are enough on `connection`; 0.0 = any.

        They bound one that is kept in its startup (see `multi.protocol.startup`), and where a small window is what
        bounds the speed.

        More than a window per round trip cannot pass, nor more than the network carries, but all of it leaves at once
        when it opens after a loss: a congestion control that is never given enough does not learn what the network
        carries (BBR stays in its startup and sends at 2.9 times the rate), a short queue loses some of it again, and so
        on. A window that is larger than what is under way at the largest rates of late is shut only by losses: sent as
        fast as it arrives, it stays open, and BBR goes on. With a smaller one these rates show what the window allows:
        bounded by the part of it that a path had, that path would never be given more.
        """
        if connection.min_rtt < SPREAD_FROM:
            return 0.0
        if connection.may_be_kept_in_startup:
            more = self.has_unsent or self.held_back
            if connection.kept_in_startup(waits=more and not (connection.held_by_cap or self.blocked_by_window)):
                return SPREAD * connection.peak_rate
        shut, size = self._shut_at, self._window_size
        if shut is None or size > WINDOW_SMALL or self.used - shut > PACED * size or self._window_grows:
            return 0.0
        under_way = sum([c.peak_rate * c.min_rtt for c in self._connections.values()])
        ample = AMPLE * under_way < size and connection.peak_rate and not connection.accelerates
        return SPREAD * (connection.peak_rate if ample else size / connection.min_rtt)

    def _looks_again(self, now: float) -> bool:
        """With thousands of streams looks for late bytes would take more time than all the rest."""
        if now < self._looked_at + REINJECT_CHECK * (len(self.active) // MANY_STREAMS):
            return False
        self._looked_at = now
        return True

    @staticmethod
    def _any_doubtful(usable: Sequence[Connection]) -> bool:
        for connection in usable:  # noqa: SIM110 - asked with every flush
            if connection.in_flight > DOUBTED and connection.doubtful:
                return True
        return False

    def _any_late(self, now: float) -> bool:
        """Whether a range may be old enough to be copied: small messages are acknowledged before theirs is."""
        for stream in self.active.values():
            for item in islice(stream.outstanding(), YOUNG_SCAN):
                if now - item.sent_at >= MIN_REINJECT_AGE:
                    return True
        return False

    def _reader_waits(self, usable: Sequence[Connection], now: float) -> bool:
        """Little of a stream comes in order for long, and there is so much new that nobody would look for why."""
        if now < self._stalled_until:
            return True
        for connection in usable:
            if connection.slowed and connection.holds_up(CERTAIN_STALL * self._stall_over(usable)):
                return self.has_unsent
        for stream in self.active.values():
            since = now - stream.moved_at
            if stream.acked != stream.next_offset and since >= STALL and since >= self._stall_over(usable):
                return self.has_unsent
        return False

    @staticmethod
    def _stall_over(usable: Sequence[Connection]) -> float:
        """Seconds without anything new in order that are one."""
        return max(STALL, STALL_TRIPS * max([connection.least_rtt for connection in usable]))

    def _window_runs_out(self, usable: Sequence[Connection]) -> bool:
        """A copy sent when the window is full comes too late: it arrives after what is on its way already.

        On a path that has just begun that is soon as much again, and more.
        Windows that have grown hold more than a slow path is late, and copies cost fast ones processor time.
        """
        if not self._window_known or self._window_size > WINDOW_SMALL:
            return False
        left = self.window - self.used
        for stream in self.active.values():
            if stream.next_offset != stream.end_offset and stream.window - stream.next_offset < left:
                left = stream.window - stream.next_offset
        for connection in usable:
            windows = DOUBLING if connection.accelerates else 1
            if left < windows * connection.in_flight + connection.rate * connection.min_rtt:
                return True
        return False

    @staticmethod
    def _has_credit(connections: Sequence[Connection]) -> bool:
        for connection in connections:  # noqa: SIM110 - asked for every segment
            if connection.credit > 0:
                return True
        return False

    def _scheduler_of(self, stream: SendStream) -> Scheduler:
        return self.scheduler if stream.steering is None else stream.steering.scheduler

    def _select(
        self, stream: SendStream, size: int, usable: Sequence[Connection], again: bool, now: float
    ) -> Sequence[Connection]:
        """Ask the scheduler, if there is a choice; empty = it waits."""
        if len(usable) == 1:
            return usable
        window, grows = max(0, self.window - self.used), self._window_grows
        may_copy = not again and self.reinject == "full"
        request = SendRequest(stream.id, stream.priority, size, self._backlog, window, again, now, grows, may_copy)
        chosen: object = ()
        try:
            chosen = self._scheduler_of(stream).select(request, usable)
            picked = [c for c in usable if c.credit > 0 and c in chosen]
            if len(picked) > 1:
                picked.sort(key=chosen.index)
        except Exception as raised:
            error = raised
            if not isinstance(chosen, Sequence):
                error = TypeError(f"it chose {chosen!r}, no sequence of connections")
            self._scheduler_failed(error, stream)
            return self._select(stream, size, usable, again, now)
        if not picked:
            self.hold_until = now + HOLD_CHECK
        return picked

    def _rescue(self, streams: list[SendStream], usable: Sequence[Connection], now: float) -> bool:
        """Send lost ranges again; return False when some still wait for a connection."""
        for stream in sorted(streams, key=_priority):
            self._backlog = stream.unacked
            while (item := stream.next_rescue()) is not None:
                others = [c for c in usable if c.id not in item.carriers]
                if not others:
                    break
                if not self._has_credit(others):
                    return False
                picked = self._select(stream, item.end - item.start, others, True, now)
                if not picked:
                    # A rescue never waits for a better connection: the reader is stalled by exactly these bytes.
                    picked = [soonest([c for c in others if c.credit > 0])]
                    self.hold_until = None
                self._copy(stream, item, picked[-1], now)
        return True

    def _copy(self, stream: SendStream, item: Outstanding, connection: Connection, now: float) -> int:
        item = stream.split(item, connection.segment_size)
        stream.rescued(item)
        item.carriers = (*item.carriers, connection.id)
        item.sent_at = now
        size = item.end - item.start
        connection.reinjected += size
        self.reinjected_bytes += size
        urgent = stream.priority < self._patient
        connection.send_data(stream.slice(item.start, item.end), size, item.start, stream.id, now, urgent=urgent)
        return size

    def _send_alone(self, connection: Connection, now: float) -> bool:
        """Send unsent bytes on the only connection there is: no scheduler need be asked. Return as `fill` does."""
        if now > self._run_at + RUN_GAP:
            self._run = 0
        turns: Iterable[SendStream] = self._turns() if len(self.active) > 1 else repeat(*self.active.values())
        for stream in turns:
            size = stream.end_offset - stream.next_offset
            if connection.credit <= 0 or not size:
                return not size and len(self.active) == 1
            room = min(self.window - self.used, stream.window - stream.next_offset)
            if size > room and (size := stream.worth_sending(room)) <= 0:
                self._shut_at, self._run_at = self.used, inf
                return False
            if size > SLOW_SEGMENT:
                size = min(size, max(SLOW_SEGMENT, connection.segment_size))
            if self.ranked:
                self._leave_room(stream, (connection,), now)
                if connection.credit <= 0:
                    return False
            self._send_first(stream, size, (connection,), now)
        return False

    def _leave_room(self, stream: SendStream, connections: Sequence[Connection], now: float) -> None:
        """Take credit away where bytes more urgent than the stream's, which may come any time, would wait too long."""
        if stream.priority == min(self._ranks):
            return
        for connection in connections:
            if connection.credit <= 0 or connection.accelerates or not connection.peak_rate:
                continue
            if connection.in_network >= connection.most_before_urgent(now):
                connection.credit = 0
                self.hold_until = now + HOLD_CHECK

    def _send_first(self, stream: SendStream, size: int, picked: Sequence[Connection], now: float) -> None:
        """Send the next `size` unsent bytes of `stream`."""
        carriers = (picked[0].id,) if len(picked) == 1 else tuple([c.id for c in picked])
        start, buffers = stream.take(size, carriers, now)
        self.used += size
        self._run += size
        self._run_at = now
        self._turn[stream.priority] = stream.id
        urgent = stream.priority < self._patient
        for connection in picked:
            connection.send_data(buffers, size, start, stream.id, now, urgent=urgent)
        for connection in picked[:-1]:
            connection.reinjected += size
            self.reinjected_bytes += size

    def _send_new(self, usable: Sequence[Connection], now: float) -> bool:
        """Send unsent bytes; return True when there is nothing new that may be sent (credit may be left)."""
        if now > self._run_at + RUN_GAP:
            self._run = 0
        backlog = 0
        for unsent in self.active.values():
            backlog += unsent.end_offset - unsent.next_offset
        if not backlog:
            return True
        priority = -1
        waiting: list[Scheduler] = []
        """Those that keep new bytes for a better connection; what others decide about goes on."""
        for stream in self._turns(waiting):
            room = self.window - self.used
            if room <= 0:
                self._shut_at, self._run_at = self.used, inf
                break
            if stream.priority != priority:
                priority = stream.priority
                self._backlog = self._ahead_of(priority, backlog)
            available = stream.worth_sending(min(stream.window - stream.next_offset, room))
            if available <= 0:
                self._shut_at, self._run_at = self.used, inf
                return True
            if self.ranked:
                self._leave_room(stream, usable, now)
            if not self._has_credit(usable):
                return False
            size = available
            if size > SHORT_SEGMENT:
                size = min(available, max([c.segment_size for c in usable if c.credit > 0]))
            picked = self._select(stream, size, usable, False, now)
            if not picked:
                waiting.append(self._scheduler_of(stream))
                continue
            if size > SHORT_SEGMENT:
                size = min(available, min([c.segment_size for c in picked]))
            self._send_first(stream, size, picked, now)
            self._backlog -= size
            backlog -= size
            if not backlog:
                return True
        # A connection that was not wanted for new bytes may still help with old ones.
        return not waiting or self.reinject == "full"

    def _ahead_of(self, priority: int, backlog: int) -> int:
        """Of the `backlog` of all streams, the bytes that less urgent streams than those of `priority` wait for."""
        ahead = 0
        for stream in self.active.values():
            if stream.priority <= priority:
                ahead += stream.end_offset - stream.next_offset
        if ahead == backlog and self.held_back:
            # What a writer still has, nobody knows; the best guess is as much as it has written so far.
            return max(backlog, self._run)
        return ahead

    def _turns(self, waiting: Sequence[Scheduler] = ()) -> Iterator[SendStream]:
        """The streams that may send, strict between priorities and round robin within, each until it has sent all.

        Looked for once for all that is sent together: there may be thousands. What a scheduler of `waiting` decides
        about is left out; it may grow meanwhile.
        """
        if len(self.active) == 1:
            (only,) = self.active.values()
            while only.next_offset != only.end_offset and not waiting:
                yield only
            return
        ready: dict[int, list[SendStream]] = {}
        for stream in self.active.values():
            if stream.next_offset != stream.end_offset:
                ready.setdefault(stream.priority, []).append(stream)
        for priority in sorted(ready):
            last = self._turn.get(priority, -1)
            turns = deque(sorted(ready[priority], key=lambda s: (s.id <= last, s.id)))
            while turns:
                stream = turns.popleft()
                if stream.sendable > 0 and self._scheduler_of(stream) not in waiting:
                    yield stream
                    turns.append(stream)

    # --- opportunistic reinjection  ---

    def _meet_deadlines(self, usable: Sequence[Connection], now: float) -> None:
        """Copy what has a deadline and is still not acknowledged when a copy has to leave to be in time.

        Before anything new: bulk would take all the credit. Whether the first connection is slow or dead need not be
        known for it. What can no longer be in time is as any other late bytes.
        """
        for stream in [stream for stream in self.active.values() if stream.deadline]:
            for item in stream.outstanding():  # where a copy takes only the beginning of one, its rest comes next
                left = stream.deadline - (now - item.first_sent_at)
                if left < 0:
                    continue
                others = [c for c in usable if c.credit > 0 and c.authenticated and c.id not in item.carriers]
                size = item.end - item.start
                if item.lost or not others or len(item.carriers) >= MAX_COPIES:
                    continue
                if self._opportunistic_bytes + size > REINJECT_ALLOWANCE + REINJECT_BUDGET * self.used:
                    return
                best = soonest(others)
                if 0 <= left - arrival(best, size + best.not_sent) <= DEADLINE_SLACK:
                    self._opportunistic_bytes += self._copy(stream, item, best, now)

    def _in_doubt(self, usable: Sequence[Connection]) -> set[ConnectionId]:
        """Connections whose bytes are copied however young they are: little else is left to send.

        While nothing is known of rates, bytes at the end of a transfer may be on a path that needs ten times as long
        as another. That shows after several round trips of the other one, when all could have been there.
        """
        doubtful = [connection for connection in usable if connection.doubtful]
        left = sum([stream.end_offset - stream.next_offset for stream in self.active.values()]) if doubtful else 0
        return {c.id for c in doubtful} if left < sum([c.in_flight for c in doubtful]) else set()

    def _reinject(
        self, usable: Sequence[Connection], now: float, *, only_head: bool = False, stalled: bool = False
    ) -> bool:
        """Copy old outstanding ranges to idle connections that would deliver them clearly earlier.

        Return whether the last of them was split, which ends the look: there may be more.

        `only_head`: none behind one that need not be copied, for that is what keeps the window from moving, or, if it
        has `stalled`, the reader. Who is stalled by a connection that has become slower is by all that it carries.
        """
        by_id = {c.id: c for c in usable}
        min_rtt = min((c.min_rtt for c in usable if c.min_rtt), default=0.0)
        min_age = max(min(1.1 * min_rtt, MAX_REINJECT_AGE), MIN_REINJECT_AGE)
        doubted = set() if only_head else self._in_doubt(usable)
        shut = only_head and self._run_at == inf
        slowed = {c.id for c in usable if c.slowed} if stalled else set()
        queues: dict[ConnectionId, _Queue] = {}
        for stream in sorted(self.active.values(), key=_priority):
            scanned = 0
            for item in stream.outstanding():
                scanned += 1
                if scanned > REINJECT_SCAN or not self._has_credit(usable):
                    break
                for carrier in item.carriers:
                    queues.setdefault(carrier, _Queue(now - item.sent_at)).size += item.end - item.start
                size = item.end - item.start
                age = now - item.sent_at
                if item.lost or len(item.carriers) >= MAX_COPIES:
                    continue
                if age < min_age and not doubted.issuperset(item.carriers):
                    continue
                over = self._opportunistic_bytes + size > REINJECT_ALLOWANCE + REINJECT_BUDGET * self.used
                if over and age < OVERDUE:
                    return False
                # Where the peer has not proved itself nothing is clearly earlier, and one such would excuse another.
                candidates = [c for c in usable if c.credit > 0 and c.authenticated and c.id not in item.carriers]
                if not candidates:
                    continue
                best = soonest(candidates)
                remaining = min(
                    (
                        _remaining(by_id[c], queues[c], age, now, shut=shut, stalled=stalled) if c in by_id else inf
                        for c in item.carriers
                    ),
                    default=inf,
                )
                # A path that was good when it was given all this and is next to dead now must not hold it back for as
                # long as it lives: neither the bound counts then, nor what is expected of a path that gets ever slower.
                if age >= OVERDUE and age >= OVERDUE_TIMES * arrival(best, size + best.not_sent):
                    _tell_late(item, by_id, now)
                    self._copy(stream, item, best, now)
                    if size > best.segment_size:
                        return True
                    continue
                if over:
                    continue
                # A copy must be no close call: what has not left there yet counts once more.
                if arrival(best, size + best.not_sent) < (MUCH_EARLIER if only_head else EARLIER) * remaining:
                    _tell_late(item, by_id, now)
                    if not slowed.isdisjoint(item.carriers):
                        self._stalled_until = now + STALL
                    self._opportunistic_bytes += self._copy(stream, item, best, now)
                    if size > best.segment_size:
                        return True
                elif only_head and not slowed:
                    break
        return False


def _tell_late(item: Outstanding, connections: Mapping[ConnectionId, Connection], now: float) -> None:
    if len(item.carriers) == 1 and (carrier := connections.get(item.carriers[0])) is not None:
        carrier.late(now)


def _priority(stream: SendStream) -> tuple[int, StreamId]:
    return stream.priority, stream.id


@dataclass(slots=True)
class _Queue:
    """What a connection carries, from the oldest range on."""

    age: float
    """Seconds since the oldest range was given to it."""
    size: int = 0


def _remaining(connection: Connection, queue: _Queue, age: float, now: float, *, shut: bool, stalled: bool) -> float:
    """Estimated time until the last range of `queue`, given to the connection `age` ago, has been acknowledged.

    A connection delivers in order, so what counts is what it carries before the range and not all it holds. What should
    have been acknowledged by now waits for a repetition: one more round trip, and as much again as it is late. A path
    of which nothing is known may need as long again for each window as its round trip. While the window is `shut`, a
    copy takes no room from new bytes, and to wait for what may still come stops whoever could send them: it is late
    sooner. Where the reader has `stalled` round trips vary because of that, and it is late as soon as it is not there;
    on a path that has become slower they tell so too late, and it counts how fast that empties.
    """
    rtt = connection.rtt or UNKNOWN_RTT
    rate = connection.rate or connection.congestion_window / rtt or 1e6
    usual = max(queue.size / rate, rtt)
    variation = connection.rtt_variation
    late = age - usual - (LATE if stalled else variation + ACK_WAITS if shut else 4 * variation + LATE)
    remaining = max(0.0, usual - age) if late < 0 else rtt + late
    if stalled and connection.slowed:
        remaining = max(remaining, connection.comes_in(queue.size))
    since = now - connection.repeated_at
    if since < age:
        remaining = max(remaining, rtt - since)
    unsent = queue.size - (connection.in_flight - connection.not_sent)
    if unsent > 0 and not connection.rate:
        # It is not even on its way, and a path that has just begun sends no more before it has heard of what is.
        remaining = max(remaining, rtt + unsent / rate)
    if connection.rate and not connection.rate_told:
        remaining = max(remaining, queue.size / connection.rate)
    if connection.doubtful:
        window = connection.congestion_window
        doubt = rtt * (flights(window, queue.size) - 0.5 + queue.size / window)
        remaining = max(remaining, doubt - queue.age)
    return remaining
