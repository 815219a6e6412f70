"""A channel over one QUIC connection: three lanes, real back-pressure, words for what went wrong.

Lanes are the first streams the client opens; both directions use each. The client opens all but lane 0 with one byte
that is not delivered, because QUIC lets the server write only on streams it has seen.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import replace
from enum import Enum
from typing import Any, Protocol

from aioquic.quic.events import ConnectionTerminated
from aioquic.quic.packet import QuicErrorCode

from multi.errors import TransportError, printable
from multi.multipath.cap import QueueBound, RateMeter
from multi.transports.base import ChannelInfo, ChannelSink
from multi.transports.certificates import fault_of, refused
from multi.transports.quic.engine import LANE_STREAMS, RECEIVE_WINDOW, Ending, EngineError, QuicEngine
from multi.transports.quic.udp_port import SEGMENTS_PER_SEND, Burst, PeerAddress, UdpPort
from multi.transports.sockets import is_loopback, transport_error
from multi.transports.tls import ALPN
from multi.types import MESSAGES, Buffer, TransportSample, host_of

PREFACE = b"\x01"  # opens a lane so that the server may write on it; the first needs none

MIN_SLACK, MAX_SLACK = 8 * 1024, 32 * 1024  # bytes that may wait unsent beyond what may be in flight
BURST_TIME = 0.010  # seconds of sending that may wait for the pacer: more would only commit bytes to this path early
MIN_BURST = 16 * 1024  # bytes, the initial congestion window (RFC 9002 section 7.2)
MAX_BURST = 256 * 1024  # bytes; the congestion window of an idle or very fast path is no reason to commit more
BACK_TO_BACK = 0.0002  # seconds of sending that leave at the speed of the interface, as with a kernel's TCP
MAX_WORDS = 300  # characters of why a connection ends, which are kept and logged: with the longest name of a server
MAX_QUEUE = 0.030  # seconds of queueing; congestion control that waits for losses fills buffers of any size
WAITED_USUAL = 0.030  # seconds that datagrams wait for a process that is busy but keeps up
MIN_CREDIT = 4 * 1024  # bytes; waking the sender for less costs more than it sends
MIN_TIMER = 0.001  # seconds, the clock of event loops; the pacer asks for less and gets several packets at once
LINGER_TIME = 1.0  # seconds a closing channel waits for acknowledgements (contract of `Channel.close`)
MAX_LINGER = 5.0  # seconds in total, while acknowledgements still come in

ABORTED = 1  # our application error code: closed at once, bytes may be missing
VIOLATION = 2  # our application error code: the peer used QUIC in a way this protocol does not
REFUSED = 3  # our application error code: the peer's certificate was not accepted

NO_ANSWER = "timed out: no answer to the QUIC handshake"


class Owner(Protocol):
    """Who keeps the channel's socket: a client of its own or a listener."""

    def opened(self, channel: QuicChannel) -> None:
        """The handshake is complete: verify the peer, then call `secured`."""

    def failed(self, channel: QuicChannel, error: TransportError) -> None:
        """The handshake did not complete."""

    def released(self, channel: QuicChannel, goodbye: list[Burst]) -> None:
        """The channel is done with the socket. `goodbye` answers packets that still come in."""


class _State(Enum):
    HANDSHAKE = "handshake"
    OPEN = "open"
    FLUSHING = "flushing"
    """`close` was called; what was written is not acknowledged yet."""
    CLOSED = "closed"


class QuicChannel:
    """One QUIC connection as a channel (see `multi.transports.base.Channel`). Lanes: 3."""

    def __init__(
        self,
        engine: QuicEngine,
        port: UdpPort,
        owner: Owner,
        info: ChannelInfo,
        routes: MutableMapping[bytes, object],
        handshake_timeout: float,
        server: str = "",
    ) -> None:
        """`routes` gets the ids of the connection. `server` is its name on a client, empty on itself."""
        self._loop = asyncio.get_running_loop()
        self.engine = engine
        self._port = port
        self._owner = owner
        self._info = info
        self._server = server
        self._routes = routes
        self.ids: set[bytes] = set()
        """Those in `routes`."""
        self._state = _State.HANDSHAKE
        self._sink: ChannelSink | None = None
        self._arrived: list[tuple[int, list[bytes]]] = []
        """What is not delivered yet, the bytes of a lane in a row as one: many packets make one delivery."""
        self._undelivered = 0
        """Bytes in it."""
        self._burst_end: asyncio.Handle | None = None
        self._queue: list[tuple[int, Buffer, bool]] = []
        """What the engine has not been given: stream, bytes, whether the stream ends."""
        self._queued = 0
        self._messages: list[bytes] = []
        """What the engine has not been given of those that may be lost."""
        self._unopened = set[int]() if server else set(LANE_STREAMS[1:])
        """The streams of the lanes that the client has not opened yet. On a server."""
        self._ended_lanes: set[int] = set()
        self._end: tuple[TransportError | None] | None = None
        """Why the connection ended, until the sink has been told."""
        self._in_callback = False
        self._flush_wanted = False
        self._starved = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self.timed_out = False
        """The handshake took too long."""
        self._deadline: asyncio.TimerHandle | None = self._loop.call_later(handshake_timeout, self._handshake_timed_out)
        self._linger_until = 0.0
        self._acked = 0
        self._in_one_machine = is_loopback(host_of(info.remote))
        self._rate = RateMeter()
        # What waits in the network, or in the socket of a peer that is too busy to read it, cannot be taken back when
        # the path dies, and holds up what is rescued from another.
        self._bound = QueueBound(MAX_QUEUE)
        self._bounded_at = 0.0
        """The round trip that it was shown last."""
        self.add_id(engine.connection_id)

    # Channel

    @property
    def info(self) -> ChannelInfo:
        return self._info

    def start(self, sink: ChannelSink) -> None:
        self._sink = sink
        if self._arrived or self._end is not None:
            self.burst_finished()

    def write(self, buffers: Sequence[Buffer], lane: int) -> None:
        if self._state is _State.OPEN and lane == MESSAGES:
            self._messages.extend(map(bytes, buffers))
        elif self._state is _State.OPEN:
            self._queue.extend((LANE_STREAMS[lane], buffer, False) for buffer in buffers)
            self._queued += sum(map(len, buffers))

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
        if self._state is not _State.OPEN:
            return 0
        credit = self._room() - self.engine.unsent() - self._queued
        return credit if credit >= MIN_CREDIT else 0

    def _room(self) -> int:
        """Bytes that may wait in the engine: what leaves soon, and some to go on with. Negative where too many left."""
        engine, trips = self.engine, self.engine.round_trips
        room = self._most() - engine.bytes_in_flight
        if trips.smoothed:
            paced = int(engine.congestion_window / trips.smoothed * BURST_TIME)
            room = min(room, max(MIN_BURST, min(paced, MAX_BURST)))
        return room + max(MIN_SLACK, min(int(self._rate.known * BURST_TIME), MAX_SLACK))

    def _most(self) -> int:
        """Bytes that may be in flight."""
        return self._bound.most(self.engine.congestion_window)

    def sample(self) -> TransportSample:
        if self._state is _State.CLOSED:
            return TransportSample(bytes_acked=self._acked)
        engine, trips = self.engine, self.engine.round_trips
        self._measure()
        late = self._waited(time.monotonic())
        if late < WAITED_USUAL:
            late = 0.0  # only an overloaded process reads later than it comes what it expects
        return TransportSample(
            rtt=trips.smoothed + late if trips.smoothed else 0.0,
            rtt_variation=trips.variation,
            min_rtt=trips.smallest,
            rate=self._rate.rate,
            app_limited=self._rate.is_lower_bound,
            congestion_window=engine.congestion_window,
            bytes_acked=self._acked,
            unacked=engine.unacknowledged() + self._queued,
            not_sent=engine.unsent() + self._queued,
        )

    def close(self) -> None:
        if self._state is not _State.OPEN:
            return
        # A QUIC close drops what is not acknowledged, so the streams are ended first and acknowledged by the peer.
        self._queue.extend((stream_id, b"", True) for stream_id in LANE_STREAMS)
        self._state = _State.FLUSHING
        self._forget_arrived()
        self._linger_until = self._loop.time() + MAX_LINGER
        self._arm_linger()
        if not self._in_callback:
            self._transmit()

    def abort(self, code: int = ABORTED, reason: str = "") -> None:
        self._sink = None
        self._forget_arrived()
        if self._state is not _State.CLOSED:
            self._release(code, reason)

    # For the owner

    def secured(self, verified: bool, server_certificate: bytes) -> None:
        """What was verified becomes known, before anyone else sees the channel."""
        self._info = replace(
            self._info,
            rtt=self.engine.round_trips.smoothed,
            message_size=self.engine.message_size,
            peer_verified=verified,
            peer_certificate=self.engine.peer_certificate,
            channel_binding=self.engine.channel_binding(server_certificate),
        )

    def add_id(self, connection_id: bytes) -> None:
        self.ids.add(connection_id)
        self._routes[connection_id] = self

    # Network side, called by the port or by the listener that shares it

    def start_handshake(self) -> None:
        self._transmit()

    def datagrams_received(self, data: bytes, segment: int, address: PeerAddress, at: float) -> None:
        if self._state is _State.CLOSED:
            return
        if self._undelivered > RECEIVE_WINDOW and self._sink is not None and self._sink.behind:
            return  # lost, as if a router had no room for it: the peer slows down and says it again
        try:
            self.engine.receive(data, segment, address, at)
            self._take_events()
        except EngineError as error:
            self._lose(error)

    def burst_finished(self) -> None:
        if self._burst_end is None:
            self._burst_end = self._loop.call_soon(self.answer)  # each connection has a callback of its own

    def answer(self) -> None:
        """Deliver and answer what has come, now."""
        if self._burst_end is not None:
            self._burst_end.cancel()
            self._burst_end = None
        self._deliver()
        if self._arrived and self._sink is not None:
            self.burst_finished()
        if self._state is _State.CLOSED:
            self._tell_end()
        else:
            self._progress()

    @property
    def proved(self) -> bool:
        """See `ChannelSink.proved`."""
        return self._sink is not None and self._sink.proved

    def port_writable(self) -> None:
        if self._state is not _State.CLOSED:
            self._progress()

    def port_failed(self, error: OSError) -> None:
        self._lose(transport_error(error))

    # What the engine tells

    def _take_events(self) -> None:
        while self._state is not _State.CLOSED and (event := self.engine.next_event()) is not None:
            match type(event).__name__:
                case "StreamDataReceived":
                    self._stream_data(event.stream_id, event.data, event.end_stream)
                case "DatagramFrameReceived":
                    self._arrive(MESSAGES, event.data)
                case "HandshakeCompleted":
                    self._handshake_completed()
                case "ConnectionIdIssued":
                    self.add_id(event.connection_id)
                case "ConnectionIdRetired":
                    self.ids.discard(event.connection_id)
                    self._routes.pop(event.connection_id, None)
                case "StreamReset" | "StopSendingReceived":
                    self._lose(TransportError("the peer gave up a QUIC stream"), VIOLATION)
                case "PathOpened" | "PathClosed" | "PathStatusChanged":
                    self._path_event(event)

    def _path_event(self, event: Any) -> None:
        """Of a connection with several."""

    def _stream_data(self, stream_id: int, data: bytes, end: bool) -> None:
        if stream_id not in LANE_STREAMS:
            self._lose(TransportError("the peer opened a QUIC stream that is no lane"), VIOLATION)
            return
        lane = LANE_STREAMS.index(stream_id)
        if stream_id in self._unopened and data:
            if not data.startswith(PREFACE):
                self._lose(TransportError("the peer did not open its lanes properly"), VIOLATION)
                return
            self._unopened.remove(stream_id)
            data = data[len(PREFACE) :]
        if end:
            self._ended_lanes.add(lane)
        self._arrive(lane, data)

    def _arrive(self, lane: int, data: bytes) -> None:
        if not data or self._state is not _State.OPEN:
            return  # after `close` what the peer still sends is discarded
        self._undelivered += len(data)
        if self._arrived and self._arrived[-1][0] == lane:
            self._arrived[-1][1].append(data)
        else:
            self._arrived.append((lane, [data]))

    def _handshake_completed(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        self._state = _State.OPEN
        if self._server:
            for stream_id in LANE_STREAMS:
                self.engine.write(stream_id, PREFACE if stream_id in LANE_STREAMS[1:] else b"")
        self._owner.opened(self)

    # Inside

    def _call(self, callback: Callable[..., None], *arguments: object) -> None:
        """Call the sink so that its flushes are gathered into one."""
        self._in_callback = True
        try:
            callback(*arguments)
        finally:
            self._in_callback = False

    def _forget_arrived(self) -> None:
        self._arrived.clear()
        self._undelivered = 0

    def _deliver(self) -> None:
        if self._sink is None or not self._arrived:
            return
        while self._arrived and self._sink is not None and not self._sink.behind:
            lane, pieces = self._arrived.pop(0)
            data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            self._undelivered -= len(data)
            self._call(self._sink.data_received, memoryview(data), lane)
        if self._sink is not None:
            self._call(self._sink.batch_finished)

    def _handshake_timed_out(self) -> None:
        self._deadline = None
        self.timed_out = True
        self._lose(TransportError(NO_ANSWER), ABORTED)

    def _progress(self) -> None:
        """Send, wake the sender, notice the end: after every burst and every timer."""
        self._flush_wanted = False
        self._wake_sender()
        self._transmit()
        if self._is_closed():
            return
        closing = self.engine.closing
        if closing is not None:
            self._lose(_reason(closing, self.engine.ending, self._state is not _State.HANDSHAKE, self._server))
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
        if self._blocked() or self._is_closed():
            return  # `port_writable` resumes; a timer would only fire in vain
        try:
            for message in self._messages:
                if not self.engine.send_message(message):  # the network carries smaller datagrams than it did
                    self._queue.append((LANE_STREAMS[-2], message, False))
            self._messages.clear()
            if self._queue:
                self._write_queued()
            bursts = self.engine.bursts(time.monotonic())
            if bursts:
                self._send(bursts)
            if not self._server:
                self._take_events()  # it may have told ids, which the peer may use before it says anything else
        except OSError as error:
            self._loop.call_soon(self._lose, transport_error(error))
            return
        if not self._is_closed():
            self._arm_timer()

    def _blocked(self) -> bool:
        return self._port.blocked

    def _waited(self, now: float) -> float:
        return self._port.waited(now)

    def _send(self, bursts: Sequence[Burst]) -> None:
        self._port.send(bursts, self._at_once(bursts[0].segment))

    def _write_queued(self) -> None:
        writable = [stream_id for stream_id in LANE_STREAMS if self.engine.has_stream(stream_id)]
        kept = []
        for queued in self._queue:
            if queued[0] in writable:
                self.engine.write(*queued)
            else:
                kept.append(queued)
        self._queue, self._queued = kept, sum(len(data) for _, data, _ in kept)

    def _at_once(self, size: int) -> int:
        """Datagrams that may leave back to back: short queues on the way lose long bursts. As many as a connection
        may begin with are none: a call for each datagram would cost as much as making it."""
        if self._in_one_machine or not self._rate.rate:
            return SEGMENTS_PER_SEND
        enough = max(MIN_BURST, self._rate.rate * BACK_TO_BACK)
        return max(1, min(int(enough / size), SEGMENTS_PER_SEND))

    def _arm_timer(self) -> None:
        at = self.engine.next_timer()
        if self._timer is not None:
            # A timer that moved later is left to fire and look again: acknowledgements move it all the time.
            if at is not None and at >= self._timer_at:
                return
            self._timer.cancel()
            self._timer = None
        if at is not None:
            self._timer_at = at
            delay = max(MIN_TIMER, at - time.monotonic())
            self._timer = self._loop.call_later(delay, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        at = self.engine.next_timer()
        if at is None or self._is_closed():
            return
        now = time.monotonic()
        if at > now + MIN_TIMER:
            self._arm_timer()
            return
        try:
            self.engine.handle_timer(max(now, at))
            self._take_events()
        except EngineError as error:
            self._lose(error)
        else:
            self.answer()

    def _measure(self) -> None:
        engine = self.engine
        self._acked = max(self._acked, engine.acknowledged())
        now, in_flight, trips = time.monotonic(), engine.bytes_in_flight, engine.round_trips
        if not engine.unsent():
            self._rate.sent(self._acked, in_flight, self._most())
        self._rate.update(now, self._acked, trips.smoothed)
        if trips.smoothed != self._bounded_at:
            self._bounded_at = trips.smoothed
            self._bound.update(now, self._acked, in_flight, trips.smoothed, trips.smallest)

    # The end

    def _arm_linger(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        at = min(self._loop.time() + LINGER_TIME, self._linger_until)
        self._deadline = self._loop.call_at(at, self._lose, None, ABORTED)  # what is missing shall not seem to be all

    def _flushed(self) -> None:
        before = self._acked
        self._acked = max(before, self.engine.acknowledged())
        if self.engine.all_acknowledged() and not self._queued:
            self._lose(None, 0)
        elif self._acked > before:
            self._arm_linger()

    def _is_closed(self) -> bool:
        return self._state is _State.CLOSED

    def _lose(self, error: TransportError | None, code: int | None = None) -> None:
        """End the connection and say so; `code` None = the engine has closed already or the peer is out of reach."""
        if self._is_closed():
            return
        in_handshake = self._state is _State.HANDSHAKE
        self._deliver()
        if self._is_closed():
            return  # the sink has aborted
        self._end = (error,)
        if self._arrived:
            self.burst_finished()
        self._release(code)
        if in_handshake:
            self._owner.failed(self, error or TransportError("closed during the QUIC handshake"))
        else:
            self._tell_end()

    def _tell_end(self) -> None:
        """Once there is a sink that has been given everything."""
        if self._end is not None and self._sink is not None and not self._arrived:
            (error,), sink = self._end, self._sink
            self._end = self._sink = None
            sink.connection_lost(error)

    def _release(self, code: int | None, reason: str = "") -> None:
        self._state = _State.CLOSED
        goodbye: list[Burst] = []
        if code is not None:
            try:
                self.engine.close(code, reason)
                goodbye = self.engine.bursts(time.monotonic())
                if goodbye:
                    self._send(goodbye)
            except OSError:
                pass  # the peer will notice without
        for handle in (self._timer, self._deadline):
            if handle is not None:
                handle.cancel()
        self._timer = self._deadline = None
        self._owner.released(self, goodbye)
        for connection_id in self.ids:
            if self._routes.get(connection_id) is self:  # the owner has put nothing else there
                del self._routes[connection_id]


_CERTIFICATE_ALERTS = frozenset({42, 43, 44, 45, 46, 48})  # RFC 8446 section 6.2

_TLS_ALERTS = {
    40: "handshake failure",
    51: "decryption failed",
    116: "a certificate is required",
    120: f"the peer does not speak {ALPN}",
}


def _reason(closing: ConnectionTerminated, ending: Ending, opened: bool, server: str) -> TransportError | None:
    """The end of a connection in words, None if it was orderly; `server` is its name on a client, empty on itself."""
    code, said = closing.error_code, printable(closing.reason_phrase[:MAX_WORDS])[:MAX_WORDS]
    if ending is Ending.GONE:
        return TransportError("the server does not know this connection any more")
    if code == QuicErrorCode.NO_ERROR:
        return None
    if closing.frame_type is None:
        if code == ABORTED:
            return TransportError("connection aborted by peer")
        return TransportError(f"connection closed by peer: {said or f'error {code}'}")
    if ending is Ending.SILENT:
        return TransportError("idle timeout: nothing received" if opened else NO_ANSWER)
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
