"""Datagrams of a session: messages that may be lost, and are never delivered twice or late for their sender's taste.

It decides which connection carries one, when a second one carries a copy, which are given up, and which of those that
come are new. Nothing is acknowledged and nothing repeated. On a connection that carries messages of its own (DATAGRAM
frames of QUIC) a datagram is one of them, else a segment among the others; there it waits here until the connection has
credit, so that it can still be given up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite

from multi.errors import DatagramTooLarge, LocalProtocolError, RemoteProtocolError
from multi.events import DatagramDropped, Event
from multi.protocol.connection import MAX_DATAGRAM, Connection, Connections
from multi.protocol.liveness import Liveness
from multi.protocol.payloads import MAX_OFFSET
from multi.schedulers.estimates import arrival, soonest
from multi.types import ConnectionId

MAX_UNSENT = 256 * 1024  # bytes that wait for a connection; then the oldest goes: it would be the latest to arrive
MAX_RECEIVED = 256 * 1024  # bytes that wait for the application; then the oldest goes
OVERHEAD = 256  # bytes of objects kept for each datagram, counted against both
SEEN = 4096  # numbers below the highest one that are told from repeats; what is older counts as one
PATIENCE = 0.5  # share of the time to live during which the best connection is waited for while another has credit
ASK_INTERVAL = 0.1  # seconds between signs of life wanted of a connection whose transport says nothing of datagrams


@dataclass(slots=True)
class DatagramCounts:
    """What became of a session's datagrams."""

    sent: int = 0
    """Given to a connection, copies not included."""
    copied: int = 0
    """Given to a second one besides."""
    expired: int = 0
    """Given up unsent because their time to live was over."""
    crowded_out: int = 0
    """Given up unsent because newer ones had no room."""
    too_large: int = 0
    """Given up because they fit no connection."""
    received: int = 0
    """Delivered, or waiting to be read."""
    duplicates: int = 0
    """Copies of what had come already, and what came later than thousands of others."""
    unread: int = 0
    """Dropped because newer ones had no room and nobody had read them."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    number: int
    data: bytes
    queued_at: float
    expires_at: float
    copies: int
    """0 = a second one only where the first is in doubt."""


class Datagrams:
    """Those of one session, both ways."""

    def __init__(
        self,
        connections: Connections,
        liveness: Liveness,
        notify: Callable[[Event], None],
        say_readable: Callable[[], None],
    ) -> None:
        self._connections = connections
        self._liveness = liveness
        self._notify = notify
        self._say_readable = say_readable
        self.peer_takes: bool | None = None
        """Whether the peer has announced that it takes datagrams; None while it is not known."""
        self.counts = DatagramCounts()
        self._next = 0
        self.waiting: deque[_Waiting] = deque()
        """Those that are to be sent, in the order in which they were given."""
        self._queued = 0
        """Bytes in it, with what keeping them costs."""
        self._arrived: deque[bytes] = deque()
        self._kept = 0
        self._highest = -1
        self._seen = 0
        """Which of the SEEN numbers up to the highest have come: a bit for each, the lowest bit for the highest."""

    @property
    def memory(self) -> int:
        """Bytes kept, to send and to be read."""
        return self._queued + self._kept

    # --- sending  ---

    def check_peer(self) -> None:
        """Raise LocalProtocolError where the peer takes none."""
        if self.peer_takes is False:
            raise LocalProtocolError("the peer takes no datagrams: its version of multi has not announced that it does")

    @property
    def max_size(self) -> int:
        """The largest that fits one of the connections that carry data now; without one, the largest there can be."""
        return max([c.largest_datagram for c in self._connections.for_data()], default=MAX_DATAGRAM)

    def send(self, data: bytes, ttl: float, copies: int, now: float) -> None:
        """Queue one for `ttl` seconds; `copies` 0 = a second one only where the first is in doubt.

        Raises DatagramTooLarge, and LocalProtocolError where the peer takes none.
        """
        self.check_peer()
        if not (isfinite(ttl) and ttl > 0):
            raise LocalProtocolError(f"a time to live of {ttl} seconds")
        if len(data) > self.max_size:
            self.counts.too_large += 1
            raise DatagramTooLarge(len(data), self.max_size)
        self.waiting.append(_Waiting(self._next, data, now, now + ttl, copies))
        self._next += 1
        self._queued += len(data) + OVERHEAD
        while self._queued > MAX_UNSENT:
            self._drop(0)
            self.counts.crowded_out += 1

    def _drop(self, index: int) -> None:
        self._queued -= len(self.waiting[index].data) + OVERHEAD
        del self.waiting[index]

    def next_timer(self, now: float) -> float | None:
        """When one is given up, or sent over another connection than the best."""
        due = [at for w in self.waiting for at in (w.expires_at, _patient_until(w)) if at > now]
        return min(due, default=None)

    def fill(self, usable: Sequence[Connection], now: float, *, share: bool) -> None:
        """Send what waits. With `share` streams wait too, and keep half of what each connection takes now."""
        ready = [c for c in usable if c.authenticated] if self.peer_takes else []
        reserved = {c.id: c.credit // 2 if share else 0 for c in ready}
        index = 0
        while index < len(self.waiting):
            item = self.waiting[index]
            if now >= item.expires_at:
                self._drop(index)
                self.counts.expired += 1
                continue
            fitting = [c for c in ready if len(item.data) <= c.largest_datagram]
            if ready and not fitting:
                self._drop(index)
                self.counts.too_large += 1
                largest = max(c.largest_datagram for c in ready)
                self._notify(DatagramDropped(len(item.data), largest))
                continue
            chosen = self._choose(item, fitting, reserved, now)
            if chosen is None:
                index += 1
                continue
            self._drop(index)
            self._send_on(chosen, item, now)
            self.counts.sent += 1
            if item.copies > 1 or (not item.copies and self._in_doubt(chosen, item, now)):
                self._copy(chosen, item, now)

    def _choose(
        self, item: _Waiting, fitting: Sequence[Connection], reserved: dict[ConnectionId, int], now: float
    ) -> Connection | None:
        """Where it arrives first; while it is young, a better connection without credit is waited for."""
        able = [c for c in fitting if c.credit > reserved[c.id]]
        if not able:
            return None
        best = soonest(able)
        ahead = soonest(fitting)
        if ahead is not best and now < _patient_until(item):
            size = len(item.data)
            if arrival(ahead, size) < arrival(best, size):
                return None
        return best

    def _in_doubt(self, chosen: Connection, item: _Waiting, now: float) -> bool:
        """It may not arrive in time: a better path is suspect, this one has fallen silent, or is too slow."""
        if arrival(chosen, len(item.data)) > item.expires_at - now:
            return True
        if chosen.unacked and now > chosen.progress_at + chosen.suspect_after / 2:
            return True
        suspects = [c for c in self._connections.values() if c.suspect]
        return chosen in suspects or any(c.min_rtt < chosen.min_rtt for c in suspects)

    def _copy(self, first: Connection, item: _Waiting, now: float) -> None:
        """Over the next best connection that takes it now, a suspect or stuck one if there is no other."""
        others = [
            c
            for c in self._connections.values()
            if c is not first and c.authenticated and c.sends and len(item.data) <= c.largest_datagram
        ]
        healthy = [c for c in others if c.delivers and c.credit > 0]
        doubtful = [c for c in others if not c.delivers and c.channel_credit > 0]
        if healthy or doubtful:
            self._send_on(soonest(healthy or doubtful), item, now)
            self.counts.copied += 1

    def _send_on(self, connection: Connection, item: _Waiting, now: float) -> None:
        connection.send_datagram(item.number, item.data, now)
        if connection.carries_datagrams and now >= connection.asked_at + ASK_INTERVAL:
            # They are not acknowledged to us: without a question nobody would notice that the path has died.
            connection.asked_at = now
            self._liveness.ping(connection, now)

    # --- receiving  ---

    def take(self, number: int, data: bytes) -> None:
        """One has come. Raises RemoteProtocolError for a number that no honest peer uses."""
        if number > MAX_OFFSET:
            raise RemoteProtocolError(f"datagram number {number}")
        if not self._is_new(number):
            self.counts.duplicates += 1
            return
        self._arrived.append(data)
        self._kept += len(data) + OVERHEAD
        self.counts.received += 1
        while self._kept > MAX_RECEIVED:
            self.read()
            self.counts.unread += 1
        self._say_readable()

    def _is_new(self, number: int) -> bool:
        """Note it as seen, as in the anti-replay window of RFC 4303 section 3.4.3."""
        ahead = number - self._highest
        if ahead > 0:
            self._seen = (self._seen << ahead | 1) & ((1 << SEEN) - 1) if ahead < SEEN else 1
            self._highest = number
            return True
        if -ahead >= SEEN or self._seen >> -ahead & 1:
            return False
        self._seen |= 1 << -ahead
        return True

    def read(self) -> bytes | None:
        """The oldest that waits, or None."""
        if not self._arrived:
            return None
        data = self._arrived.popleft()
        self._kept -= len(data) + OVERHEAD
        return data

    # --- end  ---

    def session_ended(self) -> None:
        """What waits to be sent is given up; what has come can be read."""
        self.waiting.clear()
        self._queued = 0
        self._say_readable()


def _patient_until(item: _Waiting) -> float:
    return item.queued_at + PATIENCE * (item.expires_at - item.queued_at)
