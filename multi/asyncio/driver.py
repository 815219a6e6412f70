"""The pump: performs a session core's effects on real channels and feeds it what they say.

One driver per session. It owns the channels, the dial tasks, the timer and the waiting futures, and decides nothing
about the session itself. Callbacks in, effects out; no task or queue per connection.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from math import inf
from time import monotonic
from typing import Any, TypeVar, assert_never
from weakref import WeakSet

from multi.asyncio.allocator import keep_freed_memory
from multi.asyncio.loop_shutdown import LoopShutdownHook, ignore
from multi.asyncio.record import SessionRecord
from multi.asyncio.stats import SessionStats
from multi.asyncio.subscription import Subscription
from multi.asyncio.watch import watch_of
from multi.errors import MultiError, SessionLost, SessionRefused, TransportError, fresh
from multi.events import (
    AllAttempted,
    CancelDial,
    CloseConnection,
    DatagramsReadable,
    Dial,
    Effect,
    Event,
    Notify,
    SendBytes,
    SessionClosed,
    SessionConfirmed,
    SessionOpened,
    StreamOpened,
    StreamReadable,
    StreamWritable,
    Warned,
)
from multi.paths.manager import NETWORK_GONE
from multi.protocol.connection import LITTLE, SAMPLE_INTERVAL, SAMPLE_REFRESH
from multi.protocol.send_stream import SendStream
from multi.protocol.session import ABORTED, NEWS, SessionCore
from multi.reasons import Cause, Reason
from multi.transports.base import (
    READ_TIME,
    Channel,
    ChannelInfo,
    QueueingChannel,
    SteeredChannel,
    TransportSettings,
    loaded_transport,
    transport_type,
)
from multi.transports.sockets import close_in_child
from multi.types import (
    STREAM_ZERO,
    Candidate,
    ConnectionFacts,
    ConnectionId,
    Side,
    StreamId,
    host_of,
    preferences_of,
)

logger = logging.getLogger("multi.session")

SAMPLE_SHARE = 0.0005  # seconds between samples for each session that takes them: hundreds look less often
ROUNDS_PER_PUMP = 32  # then other sessions of this loop get their turn
TURN_TIME = 0.020  # seconds of one turn of the event loop for taking in much, whatever number of connections has it
QUICK = 2048  # bytes; the segments in so few are taken within READ_TIME, so nobody looks at a clock
UNANSWERED = frozenset(
    (
        errno.ENETUNREACH,
        errno.EHOSTUNREACH,
        errno.ENETDOWN,
        errno.ETIMEDOUT,
        errno.EADDRNOTAVAIL,
        errno.ENODEV,
        errno.ENOBUFS,
    )
)  # a dial that failed so has met no server: what is tried next may work as soon as the network does
CLOSED_BY_PEER = frozenset((errno.ECONNRESET, errno.EPIPE))
UNPROVEN = frozenset((Cause.REFUSED, Cause.BAD_PROOF))  # of a handshake that failed where a key may be missing
REFUSALS = UNPROVEN | {
    *(Cause.REFUSED_VERSION, Cause.REFUSED_PROTECTION, Cause.REFUSED_BUSY),
    *(Cause.GOING_AWAY, Cause.BAD_CHOICE),
}
FORKED = Reason(Cause.ABORTED, "the session belongs to the process that this one was forked from")
LOOP_ENDED = Reason(Cause.ABORTED, "the application's event loop ended")
SESSION_MEMORY = 20 * 1024  # bytes that a session is counted for besides its window and its connections
STREAM_MEMORY = 3 * 1024  # each of its streams
CONTROL_MEMORY = 512  # each control segment that its peer has not acknowledged
UNMADE_MEMORY = 96  # each that the peer has opened by naming a later one, until it is taken
TLS_MEMORY = 48 * 1024  # each of its connections, besides what its transport says: three records stay with OpenSSL
EXIT_LINGER = 5.0  # seconds a program that returns right after `close` waits for the peer's acknowledgement
LOOK = 0.040  # seconds; so often a watched session sees to deadlines, which bytes bring no nearer than SUSPECT_SLACK
SAMPLE_ALONE = 5.0  # seconds between looks at the only connection of a session that is at rest after each message
WITH_BYTES = (SendBytes, *NEWS)
"""Effects that come with bytes: they bring no deadline nearer."""

T = TypeVar("T")
Waiters = dict[StreamId, list[asyncio.Future[None]]]

_living: WeakSet[SessionDriver] = WeakSet()


class LoopTurn:
    """Until when connections that have much to take in may do so in this turn of the event loop.

    Each has `READ_TIME`, and all together `TURN_TIME`; who comes after them takes in one segment.
    """

    __slots__ = ("_loop", "_until")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._until = 0.0

    def until(self) -> float:
        """As `monotonic` counts."""
        now = monotonic()
        if not self._until:
            self._until = now + TURN_TIME
            self._loop.call_soon(self._over)
        return min(now + READ_TIME, self._until)

    def _over(self) -> None:
        self._until = 0.0


class _Link:
    """A channel's sink: translates its callbacks into inputs of the core."""

    __slots__ = ("_driver", "_end", "_going_on", "behind", "candidate", "channel", "id")

    def __init__(self, driver: SessionDriver, connection: ConnectionId, channel: Channel) -> None:
        self._driver = driver
        self.id = connection
        self.channel = channel
        self.behind = False
        """As of the last time that bytes were taken: nothing else makes the session fall behind."""
        self.candidate: Candidate | None = None
        """What it was dialled for."""
        self._going_on = False
        self._end: tuple[TransportError | None] | None = None
        """Why the connection ended, until all that came on it has been taken."""

    @property
    def proved(self) -> bool:
        connection = self._driver.core.connections.get(self.id)
        return connection is not None and connection.authenticated

    @property
    def waiting(self) -> int:
        return self._driver.core.sender.waiting

    def data_received(self, data: memoryview, lane: int) -> None:
        driver = self._driver
        try:
            if len(data) <= QUICK and not self.behind:
                self.behind = driver.core.receive(self.id, data, lane, now=driver.loop.time())
            else:
                until, now = driver.turn.until(), driver.loop.time()
                self.behind = driver.core.receive(self.id, data, lane, now=now, enough=lambda: monotonic() >= until)
        except Exception as error:
            driver.fail(error)
            return
        if self.behind and not self._going_on:
            self._going_on = True
            driver.in_turn(self, host_of(self.channel.info.remote), self._go_on)

    def _go_on(self) -> None:
        """Another turn for what took too long for one, when those of other sources have had theirs."""
        self._going_on = False
        self.data_received(memoryview(b""), 0)
        if self._end is not None:
            self.connection_lost(*self._end)
        else:
            self.batch_finished()

    def batch_finished(self) -> None:
        driver, core = self._driver, self._driver.core
        if core.left:
            self.writable()
        elif driver.writers or core.sender.ranked is not driver.ranked:
            driver.pump()  # in the latter case what waits below the session is to become less, or may become more
        elif not core.pending and core.at_rest():
            driver.rest()
        else:
            driver.take_in()

    def writable(self) -> None:
        driver = self._driver
        try:
            driver.core.set_credit(self.id, self.channel.credit(), now=driver.loop.time())
        except Exception as error:
            driver.fail(error)
        else:
            driver.pump()

    def connection_lost(self, error: TransportError | None) -> None:
        driver = self._driver
        if self.behind:
            self._end = (error,)
            return
        driver.links.pop(self.id, None)
        driver.released(self)
        if self.proved:
            self._lost(error)
        else:
            driver.in_turn(self, host_of(self.channel.info.remote), partial(self._lost, error))

    def _lost(self, error: TransportError | None) -> None:
        driver = self._driver
        failure = _failure(error) if error else None
        driver.core.connection_lost(self.id, failure, now=driver.loop.time())
        driver.pump()


class SessionDriver:
    """Owned by a client `Session` or by a `Server`."""

    # As in `SessionCore`.
    __slots__ = (
        *("__weakref__", "_broken", "_datagram_readers", "_datagrams", "_dials", "_leaving", "_left", "_shutdown_hook"),
        *("_moved", "_peer_streams", "_progress", "_pumping", "_sampled_at", "_settings"),
        *("_stream_takers", "_timer", "_timer_at", "_touched", "_unfinished", "_watched", "aborted"),
        *("attempted_all", "attempts", "closed", "closed_error", "confirmed", "core", "dial_errors", "in_turn"),
        *("later", "links", "look_at"),
        *("loop", "on_closed", "on_dialled", "on_event", "on_opened", "on_readable", "on_released", "opened"),
        *("over", "ranked", "record", "rejected", "send_buffer", "soon", "turn", "watch", "writers"),
    )

    def __init__(self, core: SessionCore, settings: TransportSettings, *, send_buffer: int) -> None:
        keep_freed_memory()
        self.core = core
        self.loop = asyncio.get_running_loop()
        self.links: dict[ConnectionId, _Link] = {}
        self.record = SessionRecord(core, self.links)
        self.closed_error: MultiError | None = None
        """What ended the session other than in order; see `failure`."""
        self.aborted = False
        """This side has ended it at once."""
        self.attempts: list[tuple[str, str]] = []
        """(candidate, reason) known before anything was dialled; failed dials are added by the path manager."""
        self.rejected: Sequence[tuple[str, str]] = ()
        """(entry, reason) of a client: what could not be dialled when its networks were looked at last."""
        self.dial_errors: set[int | None] = set()
        """`errno` of every dial that failed."""
        self._settings = settings
        self.send_buffer = send_buffer
        self.on_opened: Callable[[SessionDriver], None] = ignore
        self.on_closed: Callable[[SessionDriver], None] = ignore
        self.on_event: Callable[[Event], None] = ignore
        self.on_released: Callable[[ConnectionId], None] = ignore
        """A connection's socket is closed, which may be some time after the connection has ended."""
        self.on_dialled: Callable[[Candidate, ChannelInfo], None] = ignore
        loop = self.loop
        self.in_turn: Callable[[Hashable, str, Callable[[], None]], object] = lambda _, __, work: loop.call_soon(work)
        """Sees to what hundreds of connections may want done in one turn of the loop."""
        self.turn = LoopTurn(self.loop)
        """A server's sessions have one together."""
        self._dials: dict[ConnectionId, asyncio.Task[None]] = {}
        self._unfinished: set[asyncio.Future[Any]] = set()
        """Dials, the cancelled ones included, and what is done in threads at the end."""
        self._leaving: dict[ConnectionId, _Link] = {}
        """Channels that say goodbye; their sockets are still open."""
        self._left = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self.watch = watch_of(self.loop)
        self._watched = False
        self.look_at = 0.0
        """When the watch looks at it next."""
        self._datagrams = 0
        """Sent as of the last pump."""
        self._sampled_at = 0.0
        self._moved = 0
        """Bytes of streams in both directions as of the last look."""
        self.soon = False
        """A pump is due in the event loop."""
        self.later = 0
        """Turns of the event loop in which the application may still answer, until a pump is due without that."""
        self._pumping = False
        self.over = False
        """The session has ended; `closed` is done."""
        self._broken = False
        self._progress = (0, 0)
        self.ranked = False
        """As of the last pump."""
        self._touched: dict[ConnectionId, _Link] = {}
        self.on_readable: dict[StreamId, Callable[[], None]] = {}
        """Called when a stream has more to read, or the session is over."""
        self.writers: Waiters = {}
        """Those that wait until there is room, as acknowledgements make it."""
        self._datagram_readers: list[asyncio.Future[None]] = []
        self._peer_streams: deque[StreamId] = deque()
        self._stream_takers: list[asyncio.Future[None]] = []
        self.opened: asyncio.Future[bool] = self.loop.create_future()
        """Whether it has; as the next."""
        self.confirmed: asyncio.Future[bool] = self.loop.create_future()
        self.attempted_all: asyncio.Future[None] = self.loop.create_future()
        self.closed: asyncio.Future[None] = self.loop.create_future()
        self._shutdown_hook = LoopShutdownHook(self._cut)
        _living.add(self)
        for text in core.settings.warnings:
            core.notify(Warned(text))

    def __del__(self) -> None:
        if self.over:  # else the garbage collector has found it, with all that refers to it
            self.core.dismantle()

    # --- pump ---

    def now(self) -> float:
        return self.loop.time()

    def pump(self) -> None:
        """Perform effects until there are none, or long enough; then see to the timers."""
        if self._pumping:
            self.pump_soon()  # an effect led to another input, as when `on_client` aborts
            return
        self.soon, self.later = False, 0
        if self._broken:
            return
        core, sender, touched = self.core, self.core.sender, self._touched
        exact, waits = False, True
        self._pumping = True
        try:
            sender.held_back = bool(self.writers)
            for _ in range(ROUNDS_PER_PUMP):
                now = self.loop.time()
                for effect in core.effects(now=now):
                    if type(effect) is SendBytes:  # the common cases, written out
                        if (link := self.links.get(effect.connection)) is not None:
                            link.channel.write(effect.buffers, effect.lane)
                            touched[link.id] = link
                    elif type(effect) is StreamReadable:
                        if (wake := self.on_readable.get(effect.stream)) is not None:
                            wake()
                    elif type(effect) is StreamWritable:
                        _wake_all(self.writers, effect.stream)
                    else:
                        exact = exact or not isinstance(effect, WITH_BYTES)
                        self._perform(effect)
                if not touched:
                    break
                for link in touched.values():
                    link.channel.flush()
                    core.set_credit(link.id, link.channel.credit(), now=now)
                touched.clear()
                waits = core.left or bool(core.datagrams.waiting)
                if not waits:
                    break
            else:
                self.pump_soon()
            if sender.ranked is not self.ranked:
                self._rank()
            if self.writers:
                self._wake_writers()
            if exact or self._timer is None or (waits and core.waits_for_time):
                self._look_at_deadlines(now)
            if sender.active or not core.at_rest():
                self._be_watched(now)
            else:
                self.rest()
        except Exception as error:
            self.fail(error)
        finally:
            self._pumping = False

    def _rank(self) -> None:
        """Streams of different priorities are open, or are no more: channels queue less, or as usual."""
        self.ranked = self.core.sender.ranked
        for link in self.links.values():
            if isinstance(link.channel, QueueingChannel):
                link.channel.queue_less(self.ranked)

    def _wake_writers(self) -> None:
        """If bytes left the stream buffers or were acknowledged, writers below their low-water mark go on."""
        sender = self.core.sender
        if (progress := (sender.used, sender.unacked)) != self._progress:
            self._progress = progress
            for stream in list(self.writers):
                _wake_all(self.writers, stream)

    def _be_watched(self, now: float) -> None:
        """Bytes move: be looked at from now on, as soon as something is due, and soon where they are many."""
        core = self.core
        sender, receiver, datagrams = core.sender, core.receiver, core.datagrams.counts.sent
        at = self.look_at if self._watched else now + LOOK
        due = receiver.ack_due
        if due is not None and due < at:
            at = due
        due = sender.reinject_at
        if due is not None and due < at:
            at = due
        if datagrams != self._datagrams:
            self._datagrams = datagrams
            at = min(at, now + SAMPLE_INTERVAL)
        if at > now and sender.used + receiver.charged - self._moved > LITTLE:
            at = now
        if not self._watched:
            if not self.over:
                self._watched, self.look_at = True, at
                self.watch.join(self)
        elif at < self.look_at:
            self.look_at = at
            self.watch.join(self)

    def take_in(self) -> None:
        """Bytes have come: wake who waits for them. What there is to say leaves with the answer, if one comes soon."""
        core = self.core
        if not core.pending and core.quiet():
            if not self._watched and core.under_way():
                self._be_watched(core.now)  # a part of a segment, whose rest may never come
            return
        if self._pumping or (news := core.news()) is None:
            self.pump()
            return
        self._pumping = True  # what its callbacks do is for the next pump
        try:
            for effect in news:
                if type(effect) is StreamReadable:
                    if (wake := self.on_readable.get(effect.stream)) is not None:
                        wake()
                elif type(effect) is StreamWritable:
                    if self.writers:
                        _wake_all(self.writers, effect.stream)
                else:
                    self._perform(effect)
        except Exception as error:
            self.fail(error)
        finally:
            self._pumping = False
        if core.quiet() and not core.pending:
            if core.receiver.ack_due is not None:
                self._be_watched(core.now)
        elif news:
            self.watch.pump_later(self)
        else:
            self.pump()

    def rest(self) -> None:
        """Everything is acknowledged: there is nothing to watch over until there is more.

        So a message that is acknowledged soon costs no look. The transports are asked now and then nevertheless: their
        round trips count where there is a choice, and what they have really sent counts for budgets.
        """
        if not self._watched:
            return
        self._watched, self._moved = False, self.core.sender.used + self.core.receiver.charged
        self.watch.leave(self)
        if self.core.now >= self._sampled_at + (SAMPLE_REFRESH if len(self.links) > 1 else SAMPLE_ALONE):
            try:
                self._take_samples()
            except Exception as error:
                self.fail(error)
                return
            if self.core.pending or not self.core.quiet():
                self.pump()

    def _perform(self, effect: Effect) -> None:
        match effect:
            case SendBytes() | StreamReadable() | StreamWritable():
                raise AssertionError("done by the pump itself")
            case DatagramsReadable():
                _wake_each(self._datagram_readers)
            case StreamOpened():
                self._peer_streams.append(effect.stream)
                _wake_each(self._stream_takers)
            case Notify():
                self._notify(effect.event)
            case Dial():
                task = self.loop.create_task(self._open(effect.connection, effect.candidate))
                if not task.done():  # an eager task may be
                    self._dials[effect.connection] = task
                    self.settle_after(task)
            case CancelDial():
                if (dial := self._dials.pop(effect.connection, None)) is not None:
                    dial.cancel()
            case CloseConnection():
                self._close_connection(effect)
            case AllAttempted():
                _wake(self.attempted_all)
            case SessionOpened():
                _say(self.opened, True)
                self.on_opened(self)
            case SessionClosed():
                reason = self.core.reason = self._explained(effect.reason)
                self._finish(None if reason.orderly else self._error_of(reason))
            case _:
                assert_never(effect)

    def pump_due(self) -> None:
        """Pump after an input that makes something due, as a dial: it is done now, not by a timer."""
        self.core.handle_timer(now=self.loop.time())
        self.pump()

    def pump_soon(self) -> None:
        """See `Watch.pump_soon`."""
        self.watch.pump_soon(self)

    def _look_at_deadlines(self, now: float) -> None:
        """Re-arm the one timer, only when it has to move.

        Bytes that come and go move deadlines all the time, so nobody asks for them then: the session joins the watch of
        its event loop. What moves later is found out when the timer fires.

        One that is due is left alone: it fires in this turn of the event loop or in the next. On a loop that is busy
        all the time something is received and pumped before timers are looked at, and a timer that is moved whenever
        that happens never fires.
        """
        if self._timer is not None and self._timer_at <= now:
            return
        if self.core.unsettled or self._timer is None:
            self._arm_far_deadline()
        near = self.core.near_timer()
        if near is not None and (self._timer is None or near < self._timer_at):
            self._set_timer(near)

    def _arm_far_deadline(self) -> None:
        """Arm the timer for what bytes do not bring nearer; asked for only when that may have changed otherwise."""
        far = self.core.far_timer()
        if far is None or self._timer is None or far < self._timer_at:
            self._set_timer(far)

    def look(self, now: float, watched: int) -> bool:
        """See to what is due, as one of `watched` sessions; False when nothing is under way any more.

        While it is watched these looks are its timer: deadlines that bytes have brought are not armed besides.
        """
        core = self.core
        self._moved = core.sender.used + core.receiver.charged
        try:
            self._watched = core.under_way()
            if self._watched:
                self._see_to(now, watched)
                self._watched = self._watched and not core.at_rest()
            elif not self.over:
                self._look_at_deadlines(now)
        except Exception as error:
            self.fail(error)
        return self._watched  # not if it has ended meanwhile

    def _see_to(self, now: float, watched: int) -> None:
        core = self.core
        if core.unsettled or self._timer is None:
            self._arm_far_deadline()
        silent, due = core.silence_timer(), core.flush_timer()
        self.look_at = min(now + LOOK, silent if silent > now else inf, due if due > now else inf)
        if silent <= now or core.sample_due(now, max(SAMPLE_INTERVAL / 2, watched * SAMPLE_SHARE)):
            # What the transports know comes first, so that a late look does not make a healthy path suspect.
            self._take_samples()
            if silent <= now:
                core.handle_timer(now=self.loop.time())
            if due <= now or self.writers or core.left or core.pending or not core.quiet():
                self.pump()
        elif due <= now:
            self.pump()

    def _set_timer(self, deadline: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if deadline is not None:
            self._timer_at = deadline  # uvloop's handle of a timer that is due cannot tell
            self._timer = self.loop.call_at(deadline, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        try:
            deadline = self.core.next_timer()
            if deadline is None or deadline > self.loop.time():
                # What it was set for has moved on meanwhile.
                self._set_timer(deadline)
                return
            # What the transports know comes first, so that a late timer does not make a healthy path suspect.
            self._take_samples()
            self.core.handle_timer(now=self.loop.time())
        except Exception as error:
            self.fail(error)
        self.pump()

    def _take_samples(self) -> None:
        now = self._sampled_at = self.loop.time()
        for link in list(self.links.values()):
            channel = link.channel
            self.core.sample(link.id, channel.sample(), now=now)
            self.core.set_credit(link.id, channel.credit(), now=now)
            if isinstance(channel, QueueingChannel):
                channel.pace(self.core.pace(link.id))

    def fail(self, error: Exception) -> None:
        """The driver's edge: a bug, ours or a scheduler's, ends the session and is logged once; it never hangs it."""
        session_id = self.core.session_id.hex()
        logger.error("internal error in session %s", session_id, exc_info=error, extra={"session": session_id})
        self._break(Reason(Cause.INTERNAL, f"internal error: {error!r}"))

    def forked(self) -> None:
        """In a child of this process: only one of the two may use the keys, and take back what was changed here."""
        self.on_closed = self.on_event = self.on_released = ignore
        self._break(FORKED)

    def _break(self, reason: Reason) -> None:
        """End at once, without a word to the peer: nothing is asked of the core any more."""
        self._broken = True
        self.abort_channels()
        if not self.closed.done():
            self.core.reason = reason
            self._finish(SessionLost(reason))

    def abort_channels(self) -> None:
        """Close all sockets at once, also those that say goodbye."""
        links = {**self.links, **self._leaving}
        self.links.clear()
        self._touched.clear()
        for link in links.values():
            link.channel.abort()
            self.released(link)

    def cut_short(self, connection: ConnectionId) -> None:
        """Close the socket of a connection that says goodbye, at once."""
        if (link := self._leaving.get(connection)) is not None:
            link.channel.abort()
            self.released(link)

    async def _cut(self) -> None:
        """The event loop shuts down: what was closed may end in order; else the peer is told if a socket takes it."""
        if (self.core.closing or self.core.leaving) and not self.closed.done():
            with suppress(TimeoutError):
                async with asyncio.timeout(EXIT_LINGER):
                    await asyncio.shield(self.closed)
                    await self.settle()
        if not self.closed.done():
            self.core.abort(LOOP_ENDED, now=self.loop.time())
            self.pump()
        self.abort_channels()
        self.soon, self.later = False, 0

    # --- channels ---

    def adopt(self, connection: ConnectionId, channel: Channel, facts: ConnectionFacts) -> _Link:
        """Take over an open channel. What it has received before is for the sink returned."""
        link = _Link(self, connection, channel)
        self.links[connection] = link
        now = self.loop.time()
        if self.ranked and isinstance(channel, QueueingChannel):
            channel.queue_less(True)
        try:
            self.core.connection_opened(connection, facts, now=now)
            self.core.set_credit(connection, channel.credit(), now=now)
            channel.start(link)
        except Exception as error:
            self.fail(error)
        return link

    async def _open(self, connection: ConnectionId, candidate: Candidate) -> None:
        """Dial one candidate and report the outcome to the core. Owned by `_dials`."""
        try:
            settings = replace(self._settings, route=self.core.route)
            channel = await (await loaded_transport(candidate.transport)).dial(candidate, settings)
        except Exception as error:  # the driver's edge: a transport with a bug is one failed attempt
            if not isinstance(error, (MultiError, OSError)):
                about = {"session": self.core.session_id.hex()}
                logger.exception("transport %s failed", candidate.transport, extra=about)
            code = error.errno if isinstance(error, OSError) else None
            self.dial_errors.add(code)
            answered = code not in UNANSWERED
            self.core.attempt_failed(connection, _failure(error), answered=answered, now=self.loop.time())
            self.pump()
            return
        finally:
            self._dials.pop(connection, None)
        if self.closed.done():
            channel.abort()
            return
        info = channel.info
        if (begun := next((one for one in candidate.sources if one.interface == info.interface), None)) is not None:
            candidate = candidate.begun_from(begun)
        facts = replace(
            info,
            interface=info.interface or candidate.interface,
            kind=candidate.kind,
            more_interfaces=() if info.fell_back else candidate.more_interfaces,
            told=candidate.told,
            proved=candidate.proved,
            **preferences_of(candidate),
        )
        self.adopt(connection, channel, facts).candidate = candidate
        self.on_dialled(candidate, info)
        self.pump()

    def network_changed(self, interface: str, usable: bool, *, address: str = "", reason: str = NETWORK_GONE) -> None:
        """As for the core, and for connections that have to hear themselves of what is lost."""
        if not usable:
            for _, channel in self.steered_channels():
                channel.network_lost(interface, address)
        self.core.network_changed(interface, usable, address=address, reason=reason, now=self.now())

    def steered_channels(self) -> list[tuple[Candidate, SteeredChannel]]:
        """Those that decide which of their networks carry what, and what each was dialled for."""
        return [
            (link.candidate, link.channel)
            for link in self.links.values()
            if link.candidate is not None and isinstance(link.channel, SteeredChannel)
        ]

    def _close_connection(self, effect: CloseConnection) -> None:
        link = self.links.pop(effect.connection, None)
        self._touched.pop(effect.connection, None)
        if link is not None:
            if effect.abort:
                link.channel.abort()
                self.released(link)
            else:
                self._leaving[link.id] = link
                link.channel.flush()
                link.channel.close()

    def released(self, link: _Link) -> None:
        """The socket of a channel is closed."""
        self.on_released(link.id)
        if self._leaving.pop(link.id, None) is not None and not self._leaving:
            self._left.set()
            self._let_go()

    def _let_go(self) -> None:
        if self.closed.done() and not self._leaving:
            self._shutdown_hook.release()

    # --- streams ---

    def read(self, stream: StreamId, limit: int) -> bytes:
        """Take up to `limit` bytes of what a stream has; negative = all of it."""
        core = self.core
        data = core.read(stream, limit, now=self.loop.time())
        if core.receiver.ack_now or core.outbox.queue or core.sender.ranked is not self.ranked:
            self.watch.pump_soon(self)  # a window has moved by that, or a stream has ended
        return data

    def taken(self, stream: StreamId) -> None:
        """The application has a stream that the peer has opened: what there is to say of it leaves with the answer."""
        core = self.core
        core.accept_stream(stream, now=self.loop.time())
        more = core.receiver.ack_now or core.outbox.queue or core.sender.ranked is not self.ranked
        if more and not self.later:
            self.pump_soon()

    def until_writable(self, stream: StreamId) -> asyncio.Future[None]:
        """Done with the next StreamWritable, or when the session is over."""
        waiter = self.loop.create_future()
        self.writers.setdefault(stream, []).append(waiter)
        return waiter

    async def wait_datagrams(self) -> None:
        """Wait for a DatagramsReadable."""
        await self._wait_among(self._datagram_readers)

    async def _wait_among(self, waiters: list[asyncio.Future[None]]) -> None:
        waiter = self.loop.create_future()
        waiters.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter in waiters:
                waiters.remove(waiter)
            raise

    async def wait_writable(self, stream: StreamId) -> None:
        """Wait for a StreamWritable."""
        waiter = self.until_writable(stream)
        try:
            await waiter
        except asyncio.CancelledError:
            others = self.writers.get(stream, [])
            if waiter in others:
                others.remove(waiter)
                if not others:
                    del self.writers[stream]
            raise

    def holds_too_much(self, stream: SendStream | None) -> bool:
        """More waits for the peer than `limits.max_send_buffer` allows, and of this stream more than an equal share.

        So all streams together keep no more than twice the limit, and none waits for what others keep. A large buffer
        counts as what is left of it: who writes such would otherwise wait for the end of each before the next one.
        """
        if stream is None or stream.backlog <= self.share:
            return False
        return sum([each.backlog for each in self.core.sender.active.values()]) > self.send_buffer

    @property
    def share(self) -> int:
        """Bytes of `limits.max_send_buffer` for each stream."""
        return self.send_buffer // (len(self.core.sender.streams) or 1)

    @property
    def kept_to_send(self) -> int:
        """Bytes kept until the peer acknowledges them, with what keeping them costs."""
        return sum([stream.memory for stream in self.core.sender.active.values()])

    @property
    def kept_besides(self) -> int:
        """Bytes of memory to count for the session besides what its window allows the peer to send."""
        held = self.record.memory
        for connection in self.core.connections.values():
            known = transport_type(connection.transport)
            held += known.connection_memory + (TLS_MEMORY if connection.facts.secure and not known.over_udp else 0)
            held += connection.control_backlog + sum([decoder.buffered for decoder in connection.decoders])
        held += CONTROL_MEMORY * len(self.core.outbox)
        streams = STREAM_MEMORY * len(self.core.receiver.streams) + UNMADE_MEMORY * self.core.streams.unmade
        return self.kept_to_send + self.core.datagrams.memory + held + SESSION_MEMORY + streams

    @property
    def memory(self) -> int:
        """Bytes kept for the peer and bytes of the peer that wait to be read, with what keeping them costs."""
        receiver = self.core.receiver
        return self.kept_to_send + self.core.datagrams.memory + receiver.charged - receiver.consumed

    async def next_peer_stream(self) -> StreamId | None:
        """Wait for the peer to open a stream; None when the session is over."""
        while not self._peer_streams:
            if self.closed.done():
                return None
            await self._wait_among(self._stream_takers)
        stream = self._peer_streams.popleft()
        self.core.make_stream(stream, now=self.loop.time())
        return stream

    # --- session ---

    def _explained(self, reason: Reason) -> Reason:
        """What a client knows besides about a handshake that failed: the answer is the same for every cause."""
        session = self.core
        if session.side is not Side.CLIENT or session.confirmed or reason.cause not in UNPROVEN:
            return reason
        if session.settings.psk:
            name = session.settings.psk_id.decode(errors="replace")
            return reason.reworded(f"{reason}: it has no pre-shared key {name!r}, or another one than this side")
        return reason.reworded(f"{reason}: perhaps it wants a pre-shared key (see `auth`), or the session id is in use")

    def _error_of(self, reason: Reason) -> MultiError:
        """What ended the session, in the application's terms."""
        if self.core.confirmed:
            if reason.cause is Cause.RESUME_TIMEOUT:
                if unreached := self.record.unreached:
                    reason = reason.reworded(f"{reason}; the last attempt: {unreached}")
                reason = _with_lines(reason, self.rejected)
            return SessionLost(reason)
        tried = self.core.paths.failures if self.core.paths is not None else []
        refused = next((refusal for _, refusal in tried if refusal.cause in REFUSALS), None)
        if refused is not None:
            return SessionRefused(self._explained(refused))
        return SessionLost(_with_lines(reason, self.failures))

    @property
    def failures(self) -> list[tuple[str, str]]:
        """(candidate, reason) of everything that did not lead to a connection while the session opened."""
        tried = self.core.paths.failures if self.core.paths is not None else []
        return [*self.attempts, *((what, self._explained(reason)) for what, reason in tried)]

    def abort(self, reason: Reason = ABORTED) -> None:
        """End the session at once: what is not delivered may never be."""
        self.aborted = self.aborted or not self.over
        self.core.abort(reason, now=self.loop.time())
        self.pump()

    def failure(self) -> MultiError:
        """What has ended the session, to be raised."""
        return fresh(self.closed_error or SessionLost())

    def _finish(self, error: MultiError | None) -> None:
        if self.closed.done():
            return
        self.closed_error = error
        self.over = True
        for task in list(self._dials.values()):
            task.cancel()
        self._dials.clear()
        self._set_timer(None)
        self._watched = False
        self.watch.leave(self)
        _say(self.opened, False)
        _say(self.confirmed, False)
        _wake(self.attempted_all)
        self.closed.set_result(None)
        for wake in list(self.on_readable.values()):
            wake()
        for stream in list(self.writers):
            _wake_all(self.writers, stream)
        _wake_each(self._stream_takers)
        _wake_each(self._datagram_readers)
        self.record.end()
        self.on_closed(self)
        self.on_opened = self.on_closed = self.on_event = self.on_dialled = ignore  # who hears of it may keep it
        self._let_go()

    def settle_after(self, work: asyncio.Future[Any]) -> None:
        """Let `settle` wait for this."""
        self._unfinished.add(work)
        work.add_done_callback(self._unfinished.discard)

    def forgotten(self, stream: StreamId = STREAM_ZERO) -> None:
        """Nobody holds the session any more, or a further stream, which may be found out in any thread: end it."""
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self._end_forgotten, stream)

    def _end_forgotten(self, stream: StreamId) -> None:
        if stream == STREAM_ZERO:
            self.core.close(now=self.loop.time())
        else:
            self.end_stream(stream)
        self.pump()

    def end_stream(self, stream: StreamId) -> None:
        """What was written still goes out, what comes is dropped."""
        now = self.loop.time()
        self.core.finish(stream, now=now)
        self.core.stop_sending(stream, 0, now=now)

    async def settle(self) -> None:
        """Wait until a closed session has no dial task and no socket left: as long as `Channel.close` may take."""
        while self._unfinished:
            await asyncio.wait(self._unfinished)
        while self._leaving:
            self._left.clear()
            await self._left.wait()

    # --- events ---

    def _notify(self, event: Event) -> None:
        self.record.put(event)
        if isinstance(event, SessionConfirmed):
            _say(self.confirmed, True)
        self.on_event(event)

    def warn(self, text: str) -> None:
        """Tell the application of what it would not notice; once the session is over, only the log."""
        if self.over:
            logger.warning("%s", text, extra={"session": self.core.session_id.hex()})
        else:
            self.core.notify(Warned(text))
            self.pump_soon()

    def stats(self) -> SessionStats:
        """What the session has done and does now."""
        return self.record.stats(self.now(), self.memory)

    def subscribe(self) -> Subscription:
        """A new subscription: what is known, then what comes."""
        subscription = Subscription(self.record.known())
        if self.closed.done():
            subscription.end()
        else:
            self.record.listen(subscription)
        return subscription

    def __repr__(self) -> str:
        return f"<SessionDriver {self.core.session_id.hex()[:8]} {self.core.state.value}>"


def _failure(error: Exception) -> Reason:
    """What ended a connection or a dial."""
    closed = isinstance(error, OSError) and error.errno in CLOSED_BY_PEER
    return Reason(Cause.PEER_CLOSED if closed else Cause.TRANSPORT, str(error) or repr(error))


def _with_lines(reason: Reason, details: Iterable[tuple[str, object]]) -> Reason:
    return reason.reworded("\n".join([str(reason), *(f"  {what}: {why}" for what, why in details)]))


def _wake(future: asyncio.Future[None]) -> None:
    _say(future, None)


def _say(future: asyncio.Future[T], answer: T) -> None:
    if not future.done():
        future.set_result(answer)


def _wake_each(waiters: list[asyncio.Future[None]]) -> None:
    for waiter in waiters:
        _wake(waiter)
    waiters.clear()


def _wake_all(waiting: Waiters, stream: StreamId) -> None:
    for waiter in waiting.pop(stream, ()):
        _wake(waiter)


def _forked() -> None:
    close_in_child()
    for driver in list(_living):
        driver.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
