"""A path in virtual time with packets: a drop-tail queue, random losses, and a reliable transport that lives with them.

Where `link` models only what an undisturbed transport looks like from above, this models a kernel's TCP over one
bottleneck: congestion control, pacing, selective acknowledgement, tail probes and timeouts, delivery in order, and the
bounded send buffer of `multi.transports.tcp.channel` on top. It is for questions about throughput: which scheduler
gets how much out of which paths.

Simplified: acknowledgements of packets are never lost and never delayed, the receiver's buffer is no limit, packets are
not reordered, and what arrives within `TICK` is handed over together.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from math import inf

from multi.lab.sim.congestion import CONGESTION, SEGMENT, Acknowledged
from multi.lab.sim.link import Medium
from multi.types import TransportSample

HEADER = 52  # bytes of IPv4 and TCP with timestamps
TICK = 0.001  # seconds between two wake-ups of a busy receiver
BURST = 0.001  # seconds of the pacing rate that leave together (TSO autosizing)
DUPLICATES = 3  # later packets that must have arrived before one counts as lost
MIN_RTO = 0.200  # seconds
MIN_PROBE = 0.008
SEND_BUFFER = 4 * 1024 * 1024  # bytes: tcp_wmem of Linux
RATE_AFTER = 64 * 1024  # bytes acknowledged before a rate is told (`multi.transports.tcp.info`)
# As in `multi.transports.tcp.channel`, which may not be imported here.
MIN_LOWAT, MAX_LOWAT, LOWAT_TIME = 16 * 1024, 2 * 1024 * 1024, 0.010
QUANTUM_START, MIN_QUANTUM, MAX_QUANTUM, QUANTUM_TIME = 64 * 1024, 32 * 1024, 2 * 1024 * 1024, 0.004
LOWAT_TIME_URGENT, QUANTUM_TIME_URGENT, MIN_QUANTUM_URGENT = 0.004, 0.001, 8 * 1024
PIECE = 64 * 1024  # bytes the kernel takes at least once it takes any


@dataclass(frozen=True, slots=True)
class PathSpec:
    """One direction of a path: bytes of packets per second, seconds one way, share lost, bytes that may wait."""

    rate: float
    delay: float
    loss: float = 0.0
    queue: float = 100_000.0
    congestion: str = "bbr"
    """`bbr` or `cubic`."""
    buffer: int = SEND_BUFFER
    """Bytes the sender's kernel keeps."""
    jitter: float = 0.0
    """Seconds a packet may be earlier or later than `delay` says, uniform and never overtaking."""


@dataclass(slots=True, eq=False)
class _Packet:
    """A piece of the byte stream, and what was true when it was sent last."""

    start: int
    size: int
    received: bool = False
    acked: bool = False
    lost: bool = False
    retransmitted: bool = False
    order: int = 0
    sent_at: float = 0.0
    first_sent_at: float = 0.0
    delivered_at: float = 0.0
    delivered: int = 0
    application_limited: bool = False


@dataclass(eq=False)
class PathDirection(Medium[PathSpec]):
    """One direction of one connection over a path; stalled, it loses everything that is sent."""

    def __post_init__(self) -> None:
        self.lost_packets = self.sent_packets = self._repeated_packets = 0
        self._congestion = CONGESTION[self.spec.congestion]()
        self._chunks: deque[tuple[bytes, int]] = deque()
        """What was written and not delivered, with its lane."""
        self._taken = 0
        """Bytes of the first chunk that were delivered."""
        self._queued = 0
        self._blocked = False
        self._written = self._next = self._received = 0
        self._ended = self._end_told = False
        self._quantum, self._lowat = QUANTUM_START, MIN_LOWAT
        # the wire
        self._free_at = 0.0
        self._arrivals: deque[tuple[float, _Packet]] = deque()
        self._early: dict[int, _Packet] = {}
        self._tick_pending = False
        self._last_tick = -1.0
        # the sender
        self._flight: deque[tuple[int, _Packet]] = deque()
        self._lost: deque[_Packet] = deque()
        self._in_flight = 0
        self._order = 0
        self._highest = 0
        self._delivered = 0
        self._delivered_at = self._first_sent_at = 0.0
        self._limited_until = 0
        self._pace_at = 0.0
        self._pace_pending = False
        self._recovery_until = 0
        self._recovering = False
        self._rtt = self._variation = 0.0
        self._min_rtt = 0.0
        self._rate = 0.0
        self._rate_limited = False
        self._deadline: float | None = None
        self._timer_pending: float | None = None
        self._probed = False
        self._backoff = 1.0

    # --- as the session's driver sees it  ---

    @property
    def backlog(self) -> int:
        """Bytes written and not yet on the wire."""
        return self._written - self._next + self._queued

    def credit(self) -> int:
        """Bytes the channel takes now."""
        return 0 if self._queued or self.cut else self._quantum

    def writable_at(self) -> float | None:
        """Nobody knows; `on_writable` tells."""
        return None

    def write(self, data: bytes, lane: int) -> None:
        if self.cut or not data:
            return
        if self._written - self._next < SEGMENT and not self._lost and self._in_flight < self._congestion.window:
            self._limited_until = self._delivered + self._in_flight or 1  # `tcp_rate_check_app_limited`
        self._chunks.append((data, lane))
        self._queued += len(data)
        if not self._blocked:
            self._take()
        self._transmit()

    def end(self) -> None:
        """The sender closes: the receiver gets an empty delivery after everything written."""
        self._ended = True
        if not self.cut and self._received == self._written + self._queued:
            self._schedule(self._clock() + self.spec.delay, self._tell_end)

    def _tell_end(self) -> None:
        if not self._end_told and not self.cut:
            self._end_told = True
            self._deliver(b"", 0)

    def resume(self) -> None:
        self.stalled = False
        if not self.cut:
            self._transmit()

    def fade(self, share: float) -> None:
        """The path has so much of its rate from now on, as where a wall comes between, and what queues with it."""
        now = self._clock()
        self.spec = replace(self.spec, rate=self.spec.rate * share)

        def later(at: float) -> float:
            return now + (at - now) / share if at > now else at

        self._free_at = later(self._free_at)
        delay = self.spec.delay
        self._arrivals = deque((later(at - delay) + delay, packet) for at, packet in self._arrivals)

    def sever(self) -> None:
        """Everything in flight is lost."""
        self.cut = True
        self._arrivals.clear()
        self._chunks.clear()
        self._deadline = None

    def sample(self) -> TransportSample:
        """What the sender's kernel would say."""
        rate = self._rate if self._delivered > RATE_AFTER else 0.0
        if rate:
            if self.queues_less:
                lasts, least, waits = QUANTUM_TIME_URGENT, MIN_QUANTUM_URGENT, LOWAT_TIME_URGENT
            else:
                lasts, least, waits = QUANTUM_TIME, MIN_QUANTUM, LOWAT_TIME
            self._quantum = int(min(max(rate * lasts, least), MAX_QUANTUM))
            lowat = int(min(max(rate * waits, MIN_LOWAT), MAX_LOWAT))
            if lowat > 2 * self._lowat or 2 * lowat < self._lowat:
                self._lowat = lowat
        unacked = self._written - self._delivered
        return TransportSample(
            rtt=self._rtt,
            rtt_variation=self._variation,
            min_rtt=self._min_rtt,
            rate=rate,
            app_limited=self._rate_limited,
            congestion_window=self._congestion.window,
            bytes_acked=self._delivered,
            unacked=unacked + self._queued,
            not_sent=self.backlog,
            bytes_sent=self.sent_packets * SEGMENT,
            bytes_lost=self._repeated_packets * SEGMENT,
        )

    # --- the send buffer  ---

    def _take(self) -> None:
        """The kernel takes what it has room for; the rest waits in the channel."""
        while self._queued:
            if self._written - self._next >= self._lowat or self._written - self._delivered >= self.spec.buffer:
                self._blocked = True
                return
            size = min(self._queued, PIECE)
            self._queued -= size
            self._written += size

    def _wake_writer(self) -> None:
        if not self._blocked or 2 * (self._written - self._next) >= self._lowat:
            return
        if self._written - self._delivered > self.spec.buffer * 2 // 3:
            return
        self._blocked = False
        self._take()
        if not self._blocked and self.on_writable is not None:
            self._schedule(self._clock(), self.on_writable)

    # --- sending  ---

    def _transmit(self) -> None:
        now = self._clock()
        control = self._congestion
        while not self.cut:
            if self._in_flight + SEGMENT > control.window and self._in_flight:
                break
            pacing = min(control.pacing or inf, self.pace or inf)
            if now < self._pace_at - BURST:
                self._pace_later()
                break
            if self._lost:
                packet = self._lost.popleft()
                if packet.acked:
                    continue
                packet.lost, packet.retransmitted = False, True
                self._repeated_packets += 1
            elif self._next < self._written:
                packet = _Packet(self._next, min(SEGMENT, self._written - self._next))
                self._next += packet.size
                self._wake_writer()
            else:
                break
            self._send(packet, now)
            self._pace_at = max(self._pace_at, now) + packet.size / pacing

    def _pace_later(self) -> None:
        if not self._pace_pending:
            self._pace_pending = True
            self._schedule(self._pace_at, self._paced)

    def _paced(self) -> None:
        self._pace_pending = False
        self._transmit()

    def _send(self, packet: _Packet, now: float) -> None:
        if not self._in_flight:
            self._first_sent_at = self._delivered_at = now
        self._order += 1
        packet.order = self._order
        packet.sent_at = now
        packet.first_sent_at, packet.delivered_at = self._first_sent_at, self._delivered_at
        packet.delivered = self._delivered
        packet.application_limited = self._limited_until > 0
        self._in_flight += packet.size
        self._flight.append((packet.order, packet))
        self._put_on_wire(packet, now)
        if self._deadline is None:
            self._arm(now)

    def _put_on_wire(self, packet: _Packet, now: float) -> None:
        self.sent_packets += 1
        spec = self.spec
        # Thrown for every packet, whatever becomes of it: the n-th is lost by chance in every run of the same seed.
        unlucky = bool(spec.loss) and self._random.random() < spec.loss
        late = self._random.uniform(-spec.jitter, spec.jitter) if spec.jitter else 0.0
        size = packet.size + HEADER
        waiting = max(0.0, self._free_at - now)
        if self.stalled or unlucky or (waiting and waiting * spec.rate + size > spec.queue):
            self.lost_packets += 1
            return
        self._free_at = now + waiting + size / spec.rate
        arrival = self._free_at + spec.delay
        if spec.jitter:
            last = self._arrivals[-1][0] if self._arrivals else now
            arrival = max(arrival + late, self._free_at, last)
        self._arrivals.append((arrival, packet))
        self._plan_tick()

    # --- receiving  ---

    def _plan_tick(self) -> None:
        if not self._tick_pending and self._arrivals:
            self._tick_pending = True
            self._schedule(max(self._arrivals[0][0], self._last_tick + TICK), self._tick)

    def _tick(self) -> None:
        self._tick_pending = False
        now = self._last_tick = self._clock()
        came: list[_Packet] = []
        while self._arrivals and self._arrivals[0][0] <= now:
            packet = self._arrivals.popleft()[1]
            came.append(packet)
            if not packet.received:
                packet.received = True
                self._early[packet.start] = packet
        self._plan_tick()
        if came and not self.cut:
            self._schedule(now + self.spec.delay, lambda: self._acknowledged(came))
            self._hand_over()

    def _hand_over(self) -> None:
        """Deliver what is in order now."""
        before = self._received
        while (packet := self._early.pop(self._received, None)) is not None:
            self._received += packet.size
        left = self._received - before
        while left > 0 and not self.cut:
            data, lane = self._chunks[0]
            piece = data[self._taken : self._taken + left]
            self._taken += len(piece)
            if self._taken == len(data):
                self._chunks.popleft()
                self._taken = 0
            left -= len(piece)
            self._deliver(piece, lane)
        if self._ended and self._received == self._written + self._queued:
            self._tell_end()

    # --- acknowledgements  ---

    def _acknowledged(self, packets: list[_Packet]) -> None:
        if self.cut or self.stalled:
            return
        now = self._clock()
        prior_in_flight, size = self._in_flight, 0
        newest = packets[-1]
        for packet in packets:
            self._highest = max(self._highest, packet.order)
            if packet.acked:
                continue
            packet.acked = True
            size += packet.size
            if not packet.lost:
                self._in_flight -= packet.size
            if packet.order > newest.order:
                newest = packet
        if not size:
            return
        self._delivered += size
        self._delivered_at = now
        if self._limited_until and self._delivered > self._limited_until:
            self._limited_until = 0
        rtt = 0.0
        if not newest.retransmitted:
            rtt = now - newest.sent_at
            self._take_rtt(rtt)
        rate = self._take_rate(newest, now)
        lost = self._find_lost(self._recovering)
        if lost and not self._recovering:
            self._begin_recovery()
        elif self._recovering and self._highest > self._recovery_until and not self._lost and not lost:
            self._recovering = False
            self._congestion.recovery_ends()
        self._congestion.acknowledged(
            Acknowledged(
                now=now,
                size=size,
                lost=lost,
                rtt=rtt,
                rate=rate,
                application_limited=newest.application_limited,
                in_flight=self._in_flight,
                prior_in_flight=prior_in_flight,
                delivered=self._delivered,
                prior_delivered=newest.delivered,
                sent=self.sent_packets * SEGMENT,
                recovering=self._recovering,
            )
        )
        if self._congestion.looks_for_min_rtt:
            self._limited_until = self._delivered + self._in_flight or 1  # `bbr_update_min_rtt`
        self._probed, self._backoff = False, 1.0
        self._arm(now)
        self._wake_writer()
        self._transmit()

    def _take_rtt(self, rtt: float) -> None:
        """RFC 6298 section 2."""
        if self._rtt:
            self._variation += (abs(self._rtt - rtt) - self._variation) / 4
            self._rtt += (rtt - self._rtt) / 8
        else:
            self._rtt, self._variation = rtt, rtt / 2
        if not self._min_rtt or rtt < self._min_rtt:
            self._min_rtt = rtt

    def _take_rate(self, newest: _Packet, now: float) -> float:
        """The rate sample of `tcp_rate.c`."""
        self._first_sent_at = newest.sent_at
        interval = max(newest.sent_at - newest.first_sent_at, now - newest.delivered_at)
        delivered = self._delivered - newest.delivered
        if interval <= 0 or interval < self._min_rtt:
            return 0.0
        rate = delivered / interval
        if not newest.application_limited or rate >= self._rate:
            self._rate, self._rate_limited = rate, newest.application_limited
        return rate

    def _find_lost(self, at_once: bool, *, everything: bool = False) -> int:
        """Packets sent clearly before one that has arrived are lost; the path keeps their order."""
        limit = self._order if everything else self._highest - (1 if at_once else DUPLICATES)
        found = 0
        flight = self._flight
        while flight:
            order, packet = flight[0]
            if packet.acked or packet.order != order:
                flight.popleft()
                continue
            if order > limit:
                break
            flight.popleft()
            packet.lost = True
            self._in_flight -= packet.size
            self._lost.append(packet)
            found += packet.size
        if flight and flight[0][0] < self._highest and not everything:
            # Too few came after it to be sure: wait a moment (RACK, RFC 8985).
            self._schedule(self._clock() + max(self._min_rtt / 4, 0.001), self._reordering_over)
        return found

    def _reordering_over(self) -> None:
        if self.cut or not self._flight:
            return
        if self._find_lost(True):
            if not self._recovering:
                self._begin_recovery()
            self._transmit()

    def _begin_recovery(self) -> None:
        self._recovering, self._recovery_until = True, self._order
        self._congestion.recovery_begins(self._in_flight)

    # --- timeouts  ---

    def _arm(self, now: float) -> None:
        if not self._in_flight and not self._lost:
            self._deadline = None
            return
        timeout = (self._rtt + max(MIN_RTO, 4 * self._variation) if self._rtt else 1.0) * self._backoff
        if not self._probed and not self._recovering and self._rtt:
            probe = 2 * self._rtt + (MIN_RTO if self._in_flight <= SEGMENT else MIN_PROBE)
            timeout = min(timeout, probe)
        self._deadline = now + timeout
        if self._timer_pending is None or self._timer_pending > self._deadline:
            self._timer_pending = self._deadline
            self._schedule(self._deadline, self._timer)

    def _timer(self) -> None:
        now = self._clock()
        if self._timer_pending is None or self._timer_pending > now:
            return
        self._timer_pending = None
        if self._deadline is None or self.cut:
            return
        if self._deadline > now:
            self._timer_pending = self._deadline
            self._schedule(self._deadline, self._timer)
            return
        if not self._probed and not self._recovering:
            self._probe_tail(now)
        else:
            self._time_out(now)

    def _probe_tail(self, now: float) -> None:
        """RFC 8985 section 7: one packet more, so that an acknowledgement tells what was lost."""
        self._probed = True
        if self._next < self._written:
            packet = _Packet(self._next, min(SEGMENT, self._written - self._next))
            self._next += packet.size
        else:
            last = next((p for order, p in reversed(self._flight) if not p.acked and p.order == order), None)
            if last is None:
                return
            packet = last
            self._in_flight -= packet.size
            packet.retransmitted = True
            self._repeated_packets += 1
        self._send(packet, now)
        self._arm(now)

    def _time_out(self, now: float) -> None:
        self._find_lost(True, everything=True)
        self._recovering, self._recovery_until = True, self._order
        self._congestion.timed_out()
        self._backoff = min(self._backoff * 2, 64.0)
        self._probed = True
        self._arm(now)
        self._transmit()
