"""A channel over one QUIC connection: two lanes, real back-pressure, words for what went wrong.

Lane 0 is the first stream the client opens, lane 1 the second; both directions use both. The client opens lane 1
with one byte that is not delivered, because QUIC lets the server write only on streams it has seen.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import Enum
from typing import Protocol

from aioquic.quic.packet import QuicErrorCode

from multi.errors import TransportError
from multi.transports.base import Buffer, ChannelInfo, ChannelSink
from multi.transports.certificates import fault_of, refused
from multi.transports.quic.engine import ALPN, IDLE_TIMEOUT, Ending, EngineError, QuicEngine
from multi.transports.quic.udp_port import SEGMENTS_PER_SEND, PeerAddress, UdpPort
from multi.transports.sockets import is_loopback, transport_error
from multi.types import TransportSample, host_of

LANE_STREAMS = (0, 4)  # ids of the first two bidirectional streams a client opens (RFC 9000 section 2.1)
LANE_1_PREFACE = b"\x01"  # opens lane 1 so that the server may write on it

HANDSHAKE_TIMEOUT = 10.0  # seconds; enough for five lost flights, racing gives up earlier
SLACK = 32 * 1024  # bytes that may wait unsent beyond what congestion control allows now
BURST_TIME = 0.010  # seconds of sending that may wait for the pacer: more would only commit bytes to this path early
BURST_MIN = 16 * 1024  # bytes, the initial congestion window (RFC 9002 section 7.2)
BURST_MAX = 256 * 1024  # bytes; the congestion window of an idle or very fast path is no reason to commit more
BACK_TO_BACK = 0.0002  # seconds of sending that leave at the speed of the interface, as with a kernel's TCP
MAX_QUEUE = 0.015  # seconds of queueing; congestion control that waits for losses fills buffers of any size
WAITED_USUAL = 0.030  # seconds that datagrams wait for a process that is busy but keeps up
CREDIT_MIN = 4 * 1024  # bytes; waking the sender for less costs more than it sends
RATE_WINDOW = 0.010  # seconds, the shortest time a rate is measured over
RATE_GAIN = 0.3  # weight of a new rate sample
TIMER_MIN = 0.001  # seconds, the clock of event loops; the pacer asks for less and gets several packets at once
LINGER_TIME = 1.0  # seconds a closing channel waits for acknowledgements (contract of `Channel.close`)
LINGER_MAX = 5.0  # seconds in total, while acknowledgements still come in

ABORTED = 1  # our application error code: closed at once, bytes may be missing
VIOLATION = 2  # our application error code: the peer used QUIC in a way this protocol does not
REFUSED = 3  # our application error code: the peer's certificate was not accepted


class Owner(Protocol):
    """Who keeps the channel's socket: a client of its own or a listener."""

    def opened(self, channel: QuicChannel) -> None:
        """The handshake is complete."""

    def failed(self, channel: QuicChannel, error: TransportError) -> None:
        """The handshake did not complete."""

    def id_issued(self, channel: QuicChannel, connection_id: bytes) -> None: ...

    def id_retired(self, channel: QuicChannel, connection_id: bytes) -> None: ...

    def released(self, channel: QuicChannel, goodbye: Sequence[tuple[bytes, PeerAddress]]) -> None:
        """The channel is done with the socket. `goodbye` answers packets that still come in."""


class _State(Enum):
    HANDSHAKE = "handshake"
    OPEN = "open"
    FLUSHING = "flushing"
    """`close` was called; what was written is not acknowledged yet."""
    CLOSED = "closed"


class QuicChannel:
    """One QUIC connection as a channel (see `multi.transports.base.Channel`). Lanes: 2."""

    def __init__(
        self,
        engine: QuicEngine,
        port: UdpPort,
        owner: Owner,
        info: ChannelInfo,
        is_client: bool,
        peer: str = "",
        handshake_timeout: float | None = None,
    ) -> None:
        """`peer` names the server in a client's errors."""
        self._loop = asyncio.get_running_loop()
        self._engine = engine
        self._port = port
        self._owner = owner
        self._info = info
        self._is_client = is_client
        self._state = _State.HANDSHAKE
        self._sink: ChannelSink | None = None
        self._arrived: list[bytes] = []
        """Bytes of one lane that the burst has brought so far: many packets make one delivery."""
        self._arrived_lane = 0
        self._early: deque[tuple[bytes, int]] = deque()
        self._waiting: dict[int, list[Buffer]] = {}
        self._waiting_bytes = 0
        self._preface_missing = not is_client
        self._ended_lanes: set[int] = set()
        self._end: tuple[TransportError | None] | None = None
        self._delivered = False
        self._in_callback = False
        self._flush_wanted = False
        self._failing = False
        self._starved = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._peer = peer
        self.timed_out = False
        """The handshake took too long."""
        patience = HANDSHAKE_TIMEOUT if handshake_timeout is None else handshake_timeout
        self._deadline: asyncio.TimerHandle | None = self._loop.call_later(patience, self._handshake_timed_out)
        self._linger_until = 0.0
        self._acked = 0
        self._in_one_machine = is_loopback(host_of(info.remote))
        self._rate = _RateMeter()
        self._held_back = False
        """Since the rate was measured last, fewer bytes were taken than congestion control allows."""

    # Channel

    @property
    def info(self) -> ChannelInfo:
        return self._info

    def start(self, sink: ChannelSink) -> None:
        self._sink = sink
        if self._early or self._end is not None:
            self._loop.call_soon(self._deliver_early)

    def write(self, buffers: Sequence[Buffer], lane: int) -> None:
        if self._state is not _State.OPEN or self._failing:
            return
        stream_id = LANE_STREAMS[lane]
        if self._is_client or self._engine.has_stream(stream_id):
            for buffer in buffers:
                self._engine.write(stream_id, buffer)
        else:
            self._waiting.setdefault(stream_id, []).extend(buffers)
            self._waiting_bytes += sum(map(len, buffers))

    def flush(self) -> None:
        if self._in_callback:
            self._flush_wanted = True  # the burst of datagrams being read is answered once, at its end
        elif self._state is _State.OPEN:
            self._transmit()
            self.credit()  # remembers that it is used up, so that `writable` follows

    def credit(self) -> int:
        credit = self._credit()
        self._starved = self._starved or (not credit and self._state is _State.OPEN)
        return credit

    def _credit(self) -> int:
        """`credit` when nobody asks: the sender is told of credit only if it was told that there is none."""
        if self._state is not _State.OPEN or self._failing:
            return 0
        engine = self._engine
        room = max(0, engine.congestion_window - engine.bytes_in_flight)
        if engine.rtt:
            paced = int(engine.congestion_window / engine.rtt * BURST_TIME)
            room = min(room, max(BURST_MIN, min(paced, BURST_MAX)))
            if engine.rtt > engine.min_rtt + MAX_QUEUE and self._rate.rate:
                # What waits in the network, or in the socket of a peer that is too busy to read it, cannot be taken
                # back when the path dies, and holds up what is rescued from another.
                enough = int(self._rate.rate * (engine.min_rtt + MAX_QUEUE))
                self._held_back = True
                room = min(room, max(0, enough - engine.bytes_in_flight))
        credit = room + SLACK - engine.unsent() - self._waiting_bytes
        return credit if credit >= CREDIT_MIN else 0

    def sample(self) -> TransportSample:
        if self._state is _State.CLOSED:
            return TransportSample(bytes_acked=self._acked)
        engine = self._engine
        self._measure()
        return TransportSample(
            rtt=engine.rtt + self._read_late() if engine.rtt else 0.0,
            rtt_variation=engine.rtt_variation,
            min_rtt=engine.min_rtt,
            rate=self._rate.rate,
            app_limited=self._rate.is_lower_bound,
            congestion_window=engine.congestion_window,
            bytes_acked=self._acked,
            unacked=engine.buffered() + self._waiting_bytes,
            not_sent=engine.unsent() + self._waiting_bytes,
        )

    def _read_late(self) -> float:
        """Seconds by which an overloaded process reads what it expects later than it comes."""
        waited = self._port.waited(time.monotonic())
        return waited if waited > WAITED_USUAL else 0.0

    def close(self) -> None:
        if self._state is not _State.OPEN or self._failing:
            return
        # A QUIC close drops what is not acknowledged, so the streams are ended first and acknowledged by the peer.
        for stream_id in LANE_STREAMS:
            if self._engine.has_stream(stream_id):
                self._engine.finish(stream_id)
        self._state = _State.FLUSHING
        self._early.clear()
        self._linger_until = self._loop.time() + LINGER_MAX
        self._arm_linger()
        if not self._in_callback:
            self._transmit()

    def abort(self) -> None:
        self._sink = None
        self._early.clear()
        if self._state is not _State.CLOSED:
            self._release(ABORTED)

    def refuse(self, reason: str) -> None:
        """Release the socket at once as `abort` does, and tell the peer why."""
        self._engine.close(REFUSED, reason)
        self.abort()

    # Network side, called by the port's user

    def start_handshake(self) -> None:
        self._transmit()

    def datagrams_received(self, data: bytes, segment: int, address: PeerAddress, at: float) -> None:
        """See `multi.transports.quic.udp_port.DatagramUser`."""
        if self._state is _State.CLOSED:
            return
        try:
            self._engine.receive(data, segment, address, at)
        except EngineError as error:
            self._lose(error, None)
            return
        self._engine.report(self)

    def burst_finished(self) -> None:
        if self._state is _State.CLOSED:
            return
        self._deliver_arrived()
        if self._delivered and self._sink is not None:
            self._delivered = False
            self._call(self._sink.batch_finished)
        self._progress()

    def port_writable(self) -> None:
        if self._state is not _State.CLOSED:
            self._progress()

    def port_failed(self, error: OSError) -> None:
        self._lose(transport_error(error), None)

    # EngineUser

    def stream_data(self, stream_id: int, data: bytes, end: bool) -> None:
        if self._is_closed():
            return
        if stream_id not in LANE_STREAMS:
            self._lose(TransportError("the peer opened a QUIC stream that is no lane"), VIOLATION)
            return
        lane = LANE_STREAMS.index(stream_id)
        if lane == 1 and self._preface_missing and data:
            if not data.startswith(LANE_1_PREFACE):
                self._lose(TransportError("the peer did not open its second lane properly"), VIOLATION)
                return
            self._preface_missing = False
            data = data[len(LANE_1_PREFACE) :]
        if self._waiting_bytes:
            self._open_waiting_lanes()
        if end:
            self._ended_lanes.add(lane)
        if not data or self._state is not _State.OPEN:
            return  # after `close` what the peer still sends is discarded
        if lane != self._arrived_lane:
            self._deliver_arrived()
            self._arrived_lane = lane
        self._arrived.append(data)

    def handshake_completed(self) -> None:
        if self._is_closed():
            return
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        self._state = _State.OPEN
        if self._is_client:
            for stream_id in LANE_STREAMS:
                self._engine.write(stream_id, b"")
            self._engine.write(LANE_STREAMS[1], LANE_1_PREFACE)
        self._info = replace(self._info, rtt=self._engine.rtt)
        self._owner.opened(self)

    def id_issued(self, connection_id: bytes) -> None:
        if not self._is_closed():
            self._owner.id_issued(self, connection_id)

    def id_retired(self, connection_id: bytes) -> None:
        if not self._is_closed():
            self._owner.id_retired(self, connection_id)

    def stream_given_up(self) -> None:
        self._lose(TransportError("the peer gave up a QUIC stream"), VIOLATION)

    # Inside

    def _call(self, callback: Callable[[], None]) -> None:
        """Call the sink so that its flushes are gathered into one."""
        self._in_callback = True
        try:
            callback()
        finally:
            self._in_callback = False

    def _deliver(self, sink: ChannelSink, data: bytes, lane: int) -> None:
        self._in_callback = True
        try:
            sink.data_received(memoryview(data), lane)
        finally:
            self._in_callback = False

    def _deliver_arrived(self) -> None:
        if not self._arrived:
            return
        data = self._arrived[0] if len(self._arrived) == 1 else b"".join(self._arrived)
        self._arrived.clear()
        if self._sink is None or self._early:
            self._early.append((data, self._arrived_lane))
            return
        self._delivered = True
        self._deliver(self._sink, data, self._arrived_lane)

    def _deliver_early(self) -> None:
        sink = self._sink
        if sink is None:
            return
        delivered = bool(self._early)
        while self._early:
            self._deliver(sink, *self._early.popleft())
        if delivered and self._sink is not None:
            self._call(sink.batch_finished)
        if self._sink is not None and self._end is not None:
            self._sink = None
            sink.connection_lost(self._end[0])
        elif self._state is not _State.CLOSED:
            self._progress()

    def _open_waiting_lanes(self) -> None:
        for stream_id in list(self._waiting):
            if self._engine.has_stream(stream_id):
                for buffer in self._waiting.pop(stream_id):
                    self._engine.write(stream_id, buffer)
                    self._waiting_bytes -= len(buffer)

    def secured(self, info: ChannelInfo) -> None:
        """The owner adds what it verified, before anyone else sees the channel."""
        self._info = info

    def _handshake_timed_out(self) -> None:
        self._deadline = None
        self.timed_out = True
        self._lose(TransportError("timed out: no answer to the QUIC handshake"), ABORTED)

    def _progress(self) -> None:
        """Send, wake the sender, notice the end: after every burst and every timer."""
        self._flush_wanted = False
        if self._waiting_bytes:
            self._open_waiting_lanes()
        self._wake_sender()
        self._transmit()
        if self._is_closed():
            return
        closing = self._engine.closing
        if closing is not None:
            self._lose(_reason(closing, self._engine.handshake_complete, self._peer), None)
        elif len(self._ended_lanes) == len(LANE_STREAMS):
            self._lose(None, 0)
        elif self._state is _State.FLUSHING:
            self._flushed()
        else:
            self._measure()
            self._wake_sender()
            if self._flush_wanted:
                self._flush_wanted = False
                self._transmit()
                self.credit()

    def _wake_sender(self) -> None:
        if self._starved and self._sink is not None and self._credit() > 0:
            self._starved = False
            self._call(self._sink.writable)

    def _transmit(self) -> None:
        if self._port.blocked or self._failing or self._is_closed():
            return  # `port_writable` resumes; a timer would only fire in vain
        try:
            datagrams = self._engine.datagrams(time.monotonic())
            if datagrams:
                self._port.send(datagrams, self._burst(len(datagrams[0][0])))
        except OSError as error:
            self._failing = True
            self._loop.call_soon(self._lose, transport_error(error), None)
            return
        self._arm_timer()

    def _burst(self, size: int) -> int:
        """Datagrams that may leave back to back: short queues on the way lose long bursts."""
        if self._in_one_machine or not self._rate.rate:
            return SEGMENTS_PER_SEND
        return max(1, min(int(self._rate.rate * BACK_TO_BACK / size), SEGMENTS_PER_SEND))

    def _arm_timer(self) -> None:
        at = self._engine.next_timer()
        if self._timer is not None:
            # A timer that moved later is left to fire and look again: acknowledgements move it all the time.
            if at is not None and at >= self._timer_at:
                return
            self._timer.cancel()
            self._timer = None
        if at is not None:
            self._timer_at = at
            delay = max(TIMER_MIN, at - time.monotonic())
            self._timer = self._loop.call_later(delay, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        at = self._engine.next_timer()
        if at is None or self._is_closed():
            return
        now = time.monotonic()
        if at > now + TIMER_MIN:
            self._arm_timer()
            return
        try:
            self._engine.handle_timer(max(now, at))
        except EngineError as error:
            self._lose(error, None)
            return
        self._engine.report(self)
        self.burst_finished()

    def _measure(self) -> None:
        engine = self._engine
        self._acked = max(self._acked, engine.acknowledged())
        idle = engine.bytes_in_flight * 2 < engine.congestion_window and not engine.unsent() and not self._held_back
        self._held_back = False
        self._rate.update(time.monotonic(), self._acked, engine.rtt, idle)

    # The end

    def _arm_linger(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        at = min(self._loop.time() + LINGER_TIME, self._linger_until)
        self._deadline = self._loop.call_at(at, self._lose, None, 0)

    def _flushed(self) -> None:
        before = self._acked
        self._acked = max(before, self._engine.acknowledged())
        if self._engine.all_acknowledged() and not self._waiting_bytes:
            self._lose(None, 0)
        elif self._acked > before:
            self._arm_linger()

    def _is_closed(self) -> bool:
        return self._state is _State.CLOSED

    def _lose(self, error: TransportError | None, code: int | None) -> None:
        """End the connection and say so; `code` None = the engine has closed already or the peer is out of reach."""
        if self._is_closed():
            return
        in_handshake = self._state is _State.HANDSHAKE
        self._deliver_arrived()
        if self._is_closed():
            return  # the sink has aborted
        sink = self._sink
        delivered, self._delivered = self._delivered, False
        self._end = (error,)
        self._release(code)
        if in_handshake:
            self._owner.failed(self, error or TransportError("closed during the QUIC handshake"))
            return
        if sink is None or self._early:
            return  # `start` or the delivery of early bytes reports it
        if delivered:
            self._call(sink.batch_finished)
        if self._sink is not None:
            self._sink = None
            sink.connection_lost(error)

    def _release(self, code: int | None) -> None:
        self._state = _State.CLOSED
        goodbye: Sequence[tuple[bytes, PeerAddress]] = ()
        if code is not None and self._engine.closing is None:
            reason = "aborted" if code == ABORTED else ""
            self._engine.close(code, reason)
        if code is not None:
            try:
                goodbye = self._engine.datagrams(time.monotonic())
                self._port.send(list(goodbye))
            except OSError:
                goodbye = ()
        for handle in (self._timer, self._deadline):
            if handle is not None:
                handle.cancel()
        self._timer = self._deadline = None
        self._owner.released(self, goodbye)


class _RateMeter:
    """Acknowledged bytes per second over windows of at least one round trip."""

    def __init__(self) -> None:
        self.rate = 0.0
        self.is_lower_bound = True
        self._since = 0.0
        self._acked = 0
        self._idled = True

    def update(self, now: float, acked: int, rtt: float, idle: bool) -> None:
        self._idled = self._idled or idle
        elapsed = now - self._since
        if elapsed < max(RATE_WINDOW, rtt):
            return
        if acked > self._acked and self._since:
            measured = (acked - self._acked) / elapsed
            if self._idled:
                # The application paused: this shows what the path can do at least, not at most.
                self.rate, self.is_lower_bound = max(self.rate, measured), True
            else:
                self.rate = self.rate + RATE_GAIN * (measured - self.rate) if self.rate else measured
                self.is_lower_bound = False
        self._since, self._acked, self._idled = now, acked, idle


_CERTIFICATE_ALERTS = frozenset({42, 43, 44, 45, 46, 48})  # RFC 8446 section 6.2

_TLS_ALERTS = {
    40: "handshake failure",
    51: "decryption failed",
    116: "a certificate is required",
    120: f"the peer does not speak {ALPN}",
}


def _reason(closing: Ending, handshake_complete: bool, server: str) -> TransportError | None:
    """The end of a connection in words, None if it was orderly; `server` is its name on a client, empty on itself."""
    code, said = closing.error_code, closing.reason_phrase
    if code == QuicErrorCode.NO_ERROR:
        return None
    if closing.frame_type is None:
        if code == ABORTED:
            return TransportError("connection aborted by peer")
        return TransportError(f"connection closed by peer: {said or f'error {code}'}")
    if said == IDLE_TIMEOUT:
        if handshake_complete:
            return TransportError("idle timeout: nothing received")
        return TransportError("timed out: no answer to the QUIC handshake")
    if code == QuicErrorCode.CONNECTION_REFUSED:
        return TransportError("connection refused by the server")
    if code >= QuicErrorCode.CRYPTO_ERROR:
        number = code - QuicErrorCode.CRYPTO_ERROR
        if number in _CERTIFICATE_ALERTS:
            # Only a client judges certificates within the handshake: a server does it when the handshake is complete.
            if server:
                return refused(server, fault_of(said))
            return TransportError(f"the peer did not accept our certificate: it {fault_of(said)}")
        alert = _TLS_ALERTS.get(number, "TLS handshake failed")
        return TransportError(f"{alert}: {said}" if said and said not in alert else alert)
    if code == QuicErrorCode.APPLICATION_ERROR:
        return TransportError("connection aborted by peer")
    name = QuicErrorCode(code).name.lower().replace("_", " ") if code in set(QuicErrorCode) else f"error {code}"
    return TransportError(f"QUIC {name}{': ' + said if said else ''}")
