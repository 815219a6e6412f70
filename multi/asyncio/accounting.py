"""What strangers and clients can make a server do, bounded and counted.

The guard decides who has to go or to wait when a limit of `limits` is reached, and tells of it: a counter per limit
(`Server.statistics`) and, at most every ten seconds, a warning that names the limit and the source. What is kept per
connection in its transport's handshake is bounded by `multi.transports.half_open`, what one connection may send by the
core; both report here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from math import inf

from multi.asyncio.driver import SessionDriver
from multi.config.sections import Limits
from multi.events import ConnectionChanged, Event, SessionConfirmed, SessionDetached, SessionResumed
from multi.protocol.connection import Connection
from multi.protocol.receive_stream import Window
from multi.reasons import Cause, Reason
from multi.transports.base import ListenGuard
from multi.transports.half_open import HalfOpenConnections, SourceIndex, source_of
from multi.types import ConnectionId, ConnectionState

logger = logging.getLogger("multi.server")

LOG_INTERVAL = 10.0  # seconds between two warnings about the same limit
MEMORY_INTERVAL = 0.1  # seconds; adding up 10,000 sessions for every HELLO would help whoever floods us
MEMORY_PATIENCE = 10  # times as long as adding up took: it never costs more than a tenth of the time
GROWTH_SHARE = 0.75  # of the memory may go to windows that grow; the rest lets new sessions in
FREE_SHARE = 0.5  # of that goes to whoever is first; from then on no window grows beyond an equal share
KNOWN_SOURCES = 8  # per session, from which its client has proved itself: strangers cannot use up their JOINs
MIN_PROGRESS = 1024  # bytes per second within a segment
SWEEPS = 4  # looks at every connection per `limits.segment_timeout`

LIMITS = (
    "max_sessions",
    "max_sessions_per_source",
    "max_unauthenticated",
    "max_unauthenticated_per_source",
    "handshake_timeout",
    "segment_timeout",
    "max_connections_per_session",
    "max_joins_per_second",
    "max_pending_joins",
    "max_detached_sessions",
    "max_streams",
    "max_memory",
    "flow_control",
    "segment_size",
    "file_descriptors",
    "quic_retry",
)
"""Names in `Server.statistics`: keys of `limits`, and bounds that cannot be configured."""

LIMIT_OF = {
    Cause.HANDSHAKE_TIMEOUT: "handshake_timeout",
    Cause.CONNECTION_LIMIT: "max_connections_per_session",
    Cause.STREAM_LIMIT: "max_streams",
    Cause.FLOW_CONTROL: "flow_control",
    Cause.SEGMENT_SIZE: "segment_size",
}
"""For what the protocol closes a connection because of a bound, and the name of that bound."""


class TokenBucket:
    """`rate` per second in the long run, `burst` at once."""

    __slots__ = ("_at", "_burst", "_rate", "_tokens")

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self._rate = rate
        self._burst = self._tokens = float(burst)
        self._at = now

    def take(self, now: float) -> bool:
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate)
        self._at = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


class LimitLog:
    """Counts how often each limit was hit, and says so without flooding the log."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.counts = dict.fromkeys(LIMITS, 0)
        self._said: dict[str, tuple[float, int]] = {}

    def hit(self, limit: str, source: str) -> None:
        count = self.counts[limit] = self.counts.get(limit, 0) + 1
        at, before = self._said.get(limit, (-inf, 0))
        now = self._clock()
        if now >= at + LOG_INTERVAL:
            self._said[limit] = (now, count)
            logger.warning("limit %s reached by %s (%d more since the last warning)", limit, source, count - before - 1)


@dataclass(slots=True)
class _Stall:
    """A lane in the middle of a segment, as it was when it was last seen to make progress."""

    since: float
    buffered: int
    heard_at: float
    received: int
    seen: int
    """Bytes of the unfinished segment when it was looked at last."""


@dataclass(slots=True)
class _SessionAccount:
    """What the guard knows of one session."""

    source: str
    hosts: dict[ConnectionId, str] = field(default_factory=dict)
    pending: dict[ConnectionId, None] = field(default_factory=dict)
    """Connections that have not proved themselves, the oldest first."""
    joins: dict[str, TokenBucket] = field(default_factory=dict)
    known: dict[str, None] = field(default_factory=dict)
    stalls: dict[tuple[ConnectionId, int], _Stall] = field(default_factory=dict)


class Guard:
    """Owned by a server. Its methods are called by the server, in the order of a session's life."""

    def __init__(self, limits: Limits) -> None:
        self._loop = asyncio.get_running_loop()
        self._limits = limits
        self.log = LimitLog(self._loop.time)
        self.strangers = HalfOpenConnections(
            limits.max_unauthenticated, limits.max_unauthenticated_per_source, self.log.hit
        )
        self._guests: dict[SessionDriver, _SessionAccount] = {}
        self._unconfirmed: SourceIndex[SessionDriver] = SourceIndex()
        self._detached: dict[SessionDriver, None] = {}
        self._windows = 0
        """What all living sessions' windows allow their peers to send."""
        self._kept = 0
        """Bytes kept for peers, as of the last time they were added up."""
        self._kept_until = -inf
        self._sweeper: asyncio.TimerHandle | None = None

    def for_listeners(self) -> ListenGuard:
        return ListenGuard(self._limits.handshake_timeout, self.strangers, self.log.hit)

    def stop(self) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None

    # --- sessions come  ---

    def make_room(self, limit: str, source: str) -> bool:
        """A new session meets `limit`: let the oldest unconfirmed one go that counts for it, if there is one."""
        self.log.hit(limit, source)
        driver = self._unconfirmed.oldest(source if limit == "max_sessions_per_source" else "")
        if driver is None:
            return False
        self._end_unconfirmed(driver, f"never confirmed, and others wait ({limit})")
        return driver not in self._guests

    def full(self) -> str:
        """Why no more sessions are taken: `limits.max_memory` is taken."""
        most = self._limits.max_memory
        taken = self._windows + self._kept_to_send()
        return f"sessions may take {taken} of {most} bytes" if taken >= most else ""

    def opened(self, driver: SessionDriver, source: str) -> None:
        """A session was made for a first HELLO."""
        self._guests[driver] = _SessionAccount(source)
        receiver = driver.core.receiver
        self._windows += receiver.window.size
        receiver.ask_to_grow(partial(self._may_grow, receiver.window, source))
        driver.on_event = partial(self._event, driver)
        if self._sweeper is None:
            self._sweeper = self._loop.call_later(self._limits.segment_timeout / SWEEPS, self._sweep)

    def closed(self, driver: SessionDriver) -> None:
        guest = self._guests.pop(driver, None)
        if guest is None:
            return
        receiver = driver.core.receiver
        self._windows -= receiver.window.size
        receiver.ask_to_grow(lambda _size: False)
        self._unconfirmed.discard(driver)
        self._detached.pop(driver, None)
        for connection in list(guest.pending):
            self._settled(driver, guest, connection)

    # --- connections come  ---

    def may_join(self, driver: SessionDriver, source: str) -> bool:
        """Whether the session's share of JOINs allows one more; sources it is known from have a share of their own."""
        guest = self._guests.get(driver)
        if guest is None:
            return True
        key = source if source in guest.known else ""
        now = self._loop.time()
        bucket = guest.joins.get(key)
        if bucket is None:
            limits = self._limits
            bucket = guest.joins[key] = TokenBucket(limits.max_joins_per_second, limits.max_join_burst, now)
        if bucket.take(now):
            return True
        self.log.hit("max_joins_per_second", source)
        return False

    def arrived(self, driver: SessionDriver, connection: ConnectionId, host: str) -> None:
        """A session has got a connection that has not proved itself; others may have to go for it."""
        guest = self._guests.get(driver)
        if guest is None:
            return
        if not guest.hosts and not driver.core.confirmed and driver not in self._unconfirmed:
            self._unconfirmed.add(driver, host)
        guest.hosts[connection] = host
        if len(guest.pending) >= self._limits.max_pending_joins:
            self.log.hit("max_pending_joins", source_of(host))
            text = "too many connections of this session have not proved themselves"
            self._drop(driver, next(iter(guest.pending)), text)
        guest.pending[connection] = None
        self.strangers.add((driver, connection), host, partial(self._drop, driver, connection))

    def _drop(self, driver: SessionDriver, connection: ConnectionId, text: str) -> None:
        session, now, reason = driver.core, driver.now(), Reason(Cause.RESOURCE_LIMIT, text)
        found = session.connections.get(connection)
        if found is not None and found.alive:
            session.give_up(connection, reason, now=now)
        if not session.confirmed and not any(c.alive for c in session.connections.values()):
            session.fail(reason, now=now)
        driver.pump()
        if (guest := self._guests.get(driver)) is not None:
            self._settled(driver, guest, connection)

    def _end_unconfirmed(self, driver: SessionDriver, text: str) -> None:
        session, now, reason = driver.core, driver.now(), Reason(Cause.RESOURCE_LIMIT, text)
        for connection in list(session.connections.values()):
            if connection.alive:
                session.give_up(connection.id, reason, now=now)
        session.fail(reason, now=now)
        driver.pump()

    def _settled(self, driver: SessionDriver, guest: _SessionAccount, connection: ConnectionId) -> None:
        """It has proved itself, or is gone."""
        guest.pending.pop(connection, None)
        self.strangers.discard((driver, connection))

    # --- what becomes of them  ---

    def _event(self, driver: SessionDriver, event: Event) -> None:
        guest = self._guests.get(driver)
        if guest is None:
            return
        match event:
            case ConnectionChanged():
                self._connection_changed(driver, guest, event)
            case SessionConfirmed():
                self._unconfirmed.discard(driver)
            case SessionDetached():
                self._detached[driver] = None
                if len(self._detached) > self._limits.max_detached_sessions:
                    self.log.hit("max_detached_sessions", guest.source)
                    oldest = next(iter(self._detached))
                    del self._detached[oldest]
                    reason = Reason(Cause.RESOURCE_LIMIT, "too many sessions wait for their clients")
                    oldest.core.fail(reason, now=oldest.now())
                    oldest.pump_soon()
            case SessionResumed():
                self._detached.pop(driver, None)
            case _:
                pass

    def _connection_changed(self, driver: SessionDriver, guest: _SessionAccount, event: ConnectionChanged) -> None:
        host = guest.hosts.get(event.connection)
        if host is None or event.state is ConnectionState.AUTHENTICATING:
            return
        self._settled(driver, guest, event.connection)
        if event.state in (ConnectionState.LOST, ConnectionState.CLOSED):
            del guest.hosts[event.connection]
            if limit := LIMIT_OF.get(event.reason.cause):
                self.log.hit(limit, source_of(host))
        elif event.state is ConnectionState.ACTIVE:
            guest.known.pop(source_of(host), None)
            guest.known[source_of(host)] = None
            while len(guest.known) > KNOWN_SOURCES:
                oldest = next(iter(guest.known))
                del guest.known[oldest]
                guest.joins.pop(oldest, None)

    # --- memory  ---

    def _kept_to_send(self) -> int:
        now = self._loop.time()
        if now >= self._kept_until:
            self._kept = sum(driver.kept_to_send for driver in self._guests)
            took = self._loop.time() - now
            self._kept_until = now + max(MEMORY_INTERVAL, MEMORY_PATIENCE * took)
        return self._kept

    def _may_grow(self, window: Window, source: str, size: int) -> bool:
        """A session window wants to grow by `size`."""
        most = GROWTH_SHARE * self._limits.max_memory
        taken = self._windows + size + self._kept_to_send()
        # Who came first could take all, and what is advertised cannot be taken back.
        unequal = taken > most * FREE_SHARE and window.size + size > most / len(self._guests)
        if taken > most or unequal:
            self.log.hit("max_memory", source)
            return False
        self._windows += size
        return True

    # --- progress  ---

    def _sweep(self) -> None:
        """Give up connections that have begun a segment and do not go on with it."""
        self._sweeper = self._loop.call_later(self._limits.segment_timeout / SWEEPS, self._sweep)
        now = self._loop.time()
        for driver, guest in list(self._guests.items()):
            for connection in list(driver.core.connections.values()):
                if connection.alive and connection.authenticated and self._stalls(guest, connection, now):
                    host = guest.hosts.get(connection.id, "")
                    self.log.hit("segment_timeout", source_of(host) if host else "")
                    text = f"no progress within a segment for {self._limits.segment_timeout:g} s"
                    reason = Reason(Cause.SEGMENT_TIMEOUT, text)
                    driver.core.give_up(connection.id, reason, now=now)
                    driver.pump_soon()
            alive = driver.core.connections
            for key in [key for key in guest.stalls if key[0] not in alive]:
                del guest.stalls[key]

    def _stalls(self, guest: _SessionAccount, connection: Connection, now: float) -> bool:
        """Whether a lane of this connection waits for the rest of a segment that comes too slowly."""
        for lane in range(connection.lanes):
            key, buffered = (connection.id, lane), connection.decoder(lane).buffered
            last = guest.stalls.get(key)
            if not buffered:
                guest.stalls.pop(key, None)
                continue
            # Where other lanes bring whole segments, having heard the peer says nothing about this one.
            another = connection.lanes == 1 and last is not None and connection.heard_at != last.heard_at
            if last is None or another or buffered < last.seen:
                received = connection.bytes_received
                guest.stalls[key] = _Stall(now, buffered, connection.heard_at, received, buffered)
                continue
            last.seen = buffered
            elapsed = now - last.since
            if elapsed < self._limits.segment_timeout:
                continue
            if min(buffered - last.buffered, connection.bytes_received - last.received) < MIN_PROGRESS * elapsed:
                return True
            guest.stalls[key] = _Stall(now, buffered, connection.heard_at, connection.bytes_received, buffered)
        return False
