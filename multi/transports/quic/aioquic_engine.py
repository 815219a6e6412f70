"""aioquic behind a QuicEngine, with what is known of it only by private names.

aioquic's public interface says nothing of what is unsent, in flight or acknowledged, and reports the end of a
connection only after its draining period. Those facts are read here.
"""

from __future__ import annotations

import logging
import ssl
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from aioquic._buffer import Buffer
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import (
    CONNECTION_LIMIT_FRAME_CAPACITY,
    CRYPTO_BUFFER_SIZE,
    END_STATES,
    MAX_STREAM_DATA_FRAME_CAPACITY,
    QuicConnection,
    QuicConnectionError,
)
from aioquic.quic.events import ConnectionTerminated
from aioquic.quic.packet import (
    QuicErrorCode,
    QuicFrameType,
    QuicPacketType,
    QuicProtocolVersion,
    pull_quic_transport_parameters,
)
from aioquic.quic.packet_builder import QuicDeliveryState, QuicPacketBuilder, QuicSentPacket
from aioquic.quic.rangeset import RangeSet
from aioquic.quic.recovery import QuicPacketPacer, QuicPacketRecovery, QuicPacketSpace
from aioquic.quic.stream import QuicStream, QuicStreamSender
from aioquic.tls import Alert, Direction, Epoch, Group
from cryptography.hazmat.primitives.serialization import Encoding

from multi.errors import TransportError
from multi.transports.certificates import fault_of, refused
from multi.transports.quic.aioquic_cubic import AioquicCubic
from multi.transports.quic.connection_ids import PLAIN_IDS, ConnectionIds
from multi.transports.quic.datagram_size import DatagramSize
from multi.transports.quic.engine import FIRST_WINDOW, LANE_STREAMS, RECEIVE_WINDOW, RoundTrips
from multi.transports.quic.library_engine import LibraryEngine, largest_message
from multi.transports.quic.reordering import Reordering
from multi.transports.quic.settings import QuicSettings
from multi.transports.quic.udp_port import MIN_DATAGRAM, Burst, PeerAddress
from multi.transports.quic.verification import verify

MAX_UDP_PAYLOAD_SIZE = b"\x03\x02"  # transport parameter whose value has two bytes
QUIC_UINT14 = 0x4000  # marks them (RFC 9000 section 16)
MAX_DATAGRAM = 16_383  # bytes; aioquic writes the length of a frame in 14 bits and does not look whether it fits
OFFERED_GROUPS = (Group.X25519, Group.SECP256R1)  # what RFC 8446 section 9.1 has everybody or nearly so support
MIN_GAP = 512  # bytes on average of what is missing and what has come; datagrams have twice as many at least
MAX_CRYPTO = 64 * 1024  # bytes of TLS handshake in each of its phases; aioquic copies what it has with each more
MAX_RETIRING = 32  # ids of the peer that it has not heard to be retired; RFC 9000 section 5.1.2 wants 16 at least
MAX_FRAMES = 64  # in a packet; usual are two or three, and each costs some microseconds
USED = 1 / 2  # of a window is in flight, or it counts as unused: pacers and bursts of acknowledgements leave as much
PACKETS_AT_ONCE = 8  # that a pacer waits for rather than wake a process for each, while they come within its bucket
ACKS_A_ROUND_TRIP = 16  # are enough: with one each millisecond a slow way back is full, and both ends do little else
MIN_ACK_DELAY, MAX_ACK_DELAY = 0.001, 0.005  # seconds for which one waits for more to acknowledge
ACKS_QUEUED = 4  # of ours in what makes round trips longer: on a slow way back they wait for each other
QUEUED_ACK_DELAY = 0.020  # seconds at most, where they do; less than what peers allow for (RFC 9000 section 18.2)
MAX_UNDER_KEYS = 1 << 22  # packets; AES-GCM keys protect twice as many at most (RFC 9001 section 6.6)
FIRST_PACKETS = 250  # of a path are acknowledged soonest, since a window that doubles grows by them
PACING_BUCKET = 0.002  # seconds of sending in one burst: the tick of a timer and as much again


_SILENT = logging.Logger("aioquic", logging.CRITICAL + 1)
"""Takes what aioquic logs, with the words of strangers in it: why a connection ends is told to who holds it."""


class _Scratch(threading.local):
    """What a TLS handshake writes before it is queued, used by all connections of a thread one after the other.

    aioquic would keep 48 KiB for it in each of them.
    """

    def __init__(self) -> None:
        self._buffers = {
            epoch: Buffer(capacity=CRYPTO_BUFFER_SIZE) for epoch in (Epoch.INITIAL, Epoch.HANDSHAKE, Epoch.ONE_RTT)
        }

    def clean(self) -> dict[Epoch, Buffer]:
        """Without what a handshake that failed has left."""
        for buffer in self._buffers.values():
            buffer.seek(0)
        return self._buffers


_scratch = _Scratch()


class Frames(dict[int, Any]):
    """aioquic's table of frames, which it asks for each one, refuses those of a packet that consists of them alone."""

    def __init__(self, frames: dict[int, Any]) -> None:
        super().__init__(frames)
        self.left = MAX_FRAMES

    def __getitem__(self, frame_type: int) -> Any:
        self.left -= 1
        if self.left < 0:
            raise QuicConnectionError(QuicErrorCode.PROTOCOL_VIOLATION, frame_type, "too many frames in a packet")
        return dict.__getitem__(self, frame_type)


class Ranges(RangeSet):
    """What has come of a stream with gaps. RangeSet walks all of its ranges for each frame."""

    def __init__(self, most: Callable[[], int]) -> None:
        super().__init__()
        self._most = most

    def add(self, start: int, stop: int | None = None) -> None:
        stop = start + 1 if stop is None else stop
        ranges: list[range] = vars(self)["_RangeSet__ranges"]
        # Over two paths nearly all comes at one of the ends: looking there takes a third of the time.
        if ranges and ranges[-1].start <= start:
            end = len(ranges)
            first = end - (start <= ranges[-1].stop)
        elif ranges and stop <= ranges[0].stop:
            first, end = 0, int(ranges[0].start <= stop)
        else:
            first = bisect_left(ranges, start, key=lambda found: found.stop)
            end = bisect_right(ranges, stop, lo=first, key=lambda found: found.start)
        if first < end:
            start, stop = min(start, ranges[first].start), max(stop, ranges[end - 1].stop)
        ranges[first:end] = [range(start, stop)]
        if len(ranges) > self._most():
            raise QuicConnectionError(QuicErrorCode.PROTOCOL_VIOLATION, QuicFrameType.STREAM_BASE, "too many gaps")


@dataclass
class Configuration(QuicConfiguration):
    """aioquic's, and what makes the ids of its connections."""

    ids: ConnectionIds = PLAIN_IDS


class Pacer(QuicPacketPacer):
    """A pacer for a driver whose timers have a resolution of a millisecond.

    aioquic allows bursts of 16 packets, then wants to be called again microseconds later: on a fast path, one
    burst per timer tick would be the speed limit. On a slower one each call would make a packet or two, and cost as
    much as several.
    """

    def next_send_time(self, now: float) -> float | None:  # type: ignore[override]  # aioquic's returns None as well
        at: float | None = super().next_send_time(now=now)
        if at is None or self.packet_time is None:
            return at
        return now + max(self.packet_time, min(PACING_BUCKET, PACKETS_AT_ONCE * self.packet_time))

    def update_rate(self, congestion_window: int, smoothed_rtt: float) -> None:
        super().update_rate(congestion_window=congestion_window, smoothed_rtt=smoothed_rtt)
        self.bucket_max = max(self.bucket_max, PACING_BUCKET)


class Recovery(QuicPacketRecovery):
    """aioquic's, which also finds out which datagrams the path carries, and whose window grows no more where it is not
    used (RFC 9002 section 7.8).

    Behind a bound of what queues, or of an application that writes little, it would grow without end, and no number of
    losses would bring it back. What was overtaken is no loss where packets overtake each other (`Reordering`).
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.size = DatagramSize(settings["max_datagram_size"])
        self._pacer: Pacer = Pacer(max_datagram_size=self.size.most)
        self._last_large = -1
        self.reordering = Reordering()

    def on_packet_sent(self, *, packet: QuicSentPacket, space: QuicPacketSpace) -> None:
        if packet.sent_bytes > MIN_DATAGRAM:
            self._last_large = packet.packet_number
        super().on_packet_sent(packet=packet, space=space)

    def on_ack_received(self, *, ack_rangeset: RangeSet, space: QuicPacketSpace, **known: Any) -> None:
        for number in (ack_rangeset.bounds().stop - 1, self._last_large):
            packet = space.sent_packets.get(number)
            if packet is not None and packet.sent_bytes > MIN_DATAGRAM and number in ack_rangeset:
                self.size.arrived(number)
                self.resized()
        came = space.is_application_data and self.reordering.arrived(ack_rangeset, known["now"])
        if came and isinstance(self._cc, AioquicCubic):
            self._cc.nothing_was_lost()
        window, unused = self._cc.congestion_window, self._cc.bytes_in_flight < self._cc.congestion_window * USED
        super().on_ack_received(ack_rangeset=ack_rangeset, space=space, **known)
        if unused and self._cc.congestion_window > window:
            self._hold(window)

    def _hold(self, window: int) -> None:
        self._cc.congestion_window = window

    def on_loss_detection_timeout(self, *, now: float) -> None:
        if self._get_loss_space() is None:
            self.timed_out(now)
        super().on_loss_detection_timeout(now=now)

    def timed_out(self, now: float) -> None:
        """A probe timeout has passed. What pads a datagram of the handshake is not counted with its packets."""
        sent = (packet for space in self.spaces for packet in space.sent_packets.values())
        if not self.handshake_confirmed or any(packet.sent_bytes > MIN_DATAGRAM for packet in sent):
            self.size.timed_out(now)
            self.resized()

    def _on_packets_lost(
        self, *, packets: Iterable[QuicSentPacket], now: float, congestion_event: bool = True, **known: Any
    ) -> None:
        gone = list(packets)
        if large := [packet.packet_number for packet in gone if packet.sent_bytes > MIN_DATAGRAM]:
            vanished = self.size.lost(large, now, last=large[-1] == self._last_large)
            congestion_event = congestion_event and not (vanished and len(large) == len(gone))
            self.resized()
        super()._on_packets_lost(packets=gone, now=now, congestion_event=congestion_event, **known)

    def _detect_loss(self, *, now: float, space: QuicPacketSpace) -> None:
        """RFC 9002 appendix A.10, with thresholds of the path."""
        trip = max(self._rtt_latest, self._rtt_smoothed) if self._rtt_initialized else self._rtt_initial
        delay = self.reordering.time * trip
        overtaken = space.largest_acked_packet - self.reordering.packets
        lost: list[QuicSentPacket] = []
        space.loss_time = None
        for number, packet in space.sent_packets.items():
            if number > space.largest_acked_packet:
                break
            sent_at = packet.sent_time or 0.0
            if number <= overtaken or sent_at + delay <= now:
                lost.append(packet)
            elif space.loss_time is None:
                space.loss_time = sent_at + delay
        if lost and space.is_application_data:
            gone = ((packet.packet_number, packet.sent_time or 0.0) for packet in lost)
            anew = self.reordering.lost(gone, now, 2 * self.get_probe_timeout())
            if anew and isinstance(self._cc, AioquicCubic):
                self._cc.forget_before()
        persistent = self._in_persistent_congestion(packets=lost)
        self._on_packets_lost(now=now, packets=lost, persistent_congestion=persistent, space=space)

    def resized(self) -> None:
        """`size` may be another."""
        self._pacer._max_datagram_size = self.size.now


class BoundedConnection(QuicConnection):
    """QuicConnection that bounds what a peer can make it do and keep, and knows of the streams of the lanes only.

    It judges certificates as TLS does, and can ask a client for one, which aioquic does only in its tests. A client
    makes a key for each group it offers, used or not: those of P-384 and X448 take a millisecond, longer than the rest
    of its first flight.
    """

    RECOVERY: type[Recovery] = Recovery
    _loss: Recovery

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._ids: ConnectionIds = settings["configuration"].ids
        first = self._host_cids[0]
        first.cid = self.host_cid = self._local_initial_source_connection_id = self._ids.new()
        if not self._is_client:
            first.stateless_reset_token = self._ids.reset_token(first.cid)
        self._local_max_streams_bidi.value = 0 if self._is_client else len(LANE_STREAMS)
        self._local_max_streams_uni.value = 0
        self._largest_datagram = self._max_datagram_size
        """Bytes that both ends take; `_max_datagram_size` is what is sent now."""
        self._peer_stays = False
        """It takes packets from no other address than that of the handshake."""
        self._loss = self._new_recovery(peer_completed_address_validation=not self._is_client)
        self._window = FIRST_WINDOW
        self._ahead = 1
        """Bytes that a peer may send for each that has been taken."""
        self._limits_said = self._says_limits = False
        """A packet has said what the peer may send, and whether the one that is made now does: only the first of those
        that leave together, as nothing is received between them."""
        self._retiring = 0
        """Frames that retire an id of the peer, and are under way."""
        frames = vars(self)["_QuicConnection__frame_handlers"]
        self._frames = vars(self)["_QuicConnection__frame_handlers"] = Frames(frames)

    def _congestion(self) -> str:
        """Name of aioquic's congestion control."""
        name: str = self._configuration.congestion_control_algorithm
        return name

    def _new_recovery(self, *, peer_completed_address_validation: bool) -> Recovery:
        congestion = self._congestion()
        return self.RECOVERY(
            congestion_control_algorithm=AioquicCubic.NAME if congestion == "cubic" else congestion,
            initial_rtt=self._configuration.initial_rtt,
            max_datagram_size=self._largest_datagram,
            peer_completed_address_validation=peer_completed_address_validation,
            send_probe=self._send_probe,
            logger=self._logger,
        )

    def begin_with(self, first_id: bytes) -> None:
        """The destination id of a client's first packet."""
        self._peer_cid.cid = self._original_destination_connection_id = first_id

    # aioquic neither says nor heeds which datagrams an end takes, nor heeds that one stays (RFC 9000 section 18.2).

    def _serialize_transport_parameters(self) -> bytes:
        size = QUIC_UINT14 | self._largest_datagram
        return super()._serialize_transport_parameters() + MAX_UDP_PAYLOAD_SIZE + size.to_bytes(2, "big")

    def _parse_transport_parameters(self, data: bytes, from_session_ticket: bool = False) -> None:
        super()._parse_transport_parameters(data, from_session_ticket)
        said = pull_quic_transport_parameters(Buffer(data=data))
        self._peer_stays = bool(said.disable_active_migration)
        if (taken := said.max_udp_payload_size) is not None:
            self._largest_datagram = min(self._largest_datagram, taken)
            self._loss.size.limit(self._largest_datagram)

    @property
    def datagram_size(self) -> int:
        """Bytes of the largest that both ends take: known with the peer's first flight."""
        return self._largest_datagram

    @property
    def present_datagram_size(self) -> int:
        """Bytes of the largest that is sent now."""
        return self._loss.size.now

    def _replenish_connection_ids(self) -> None:
        known = len(self._host_cids)
        super()._replenish_connection_ids()
        for made in self._host_cids[known:]:
            made.cid = self._ids.new()
            made.stateless_reset_token = self._ids.reset_token(made.cid)

    def reset_tokens(self) -> set[bytes]:
        """Of the ids by which the peer is addressed."""
        used = (self._peer_cid, *(path.peer_cid for path in self._network_paths))
        return {one.stateless_reset_token for one in used if one is not None}

    def is_ours(self, connection_id: bytes) -> bool:
        """Whether the peer addresses us by it."""
        return any(connection_id == one.cid for one in self._host_cids)

    def datagrams_to_send(self, now: float) -> list[tuple[bytes, Any]]:
        if not self._network_paths:  # aioquic raises IndexError where no packet has told yet where to send
            return []
        self._max_datagram_size = self._present_size()
        self._drop_large_messages()
        made: list[tuple[bytes, Any]] = super().datagrams_to_send(now)
        return made + self._probe_size(now)

    def _present_size(self) -> int:
        """Of datagrams on the path in use. What answers a challenge is no larger than what that came in."""
        address, size = self._network_paths[0], self._loss.size
        validates = self._handshake_complete and (address.remote_challenges or not address.is_validated)
        return min(size.now, max(size.came, MIN_DATAGRAM)) if validates and size.came else size.now

    def _drop_large_messages(self) -> None:
        """Those that were queued before datagrams became smaller: they are lost, and no others wait behind them."""
        if self._datagrams_pending:
            most = largest_message(self.present_datagram_size)
            while self._datagrams_pending and len(self._datagrams_pending[0]) > most:
                self._datagrams_pending.popleft()

    def _packet_builder(self, datagram_size: int) -> QuicPacketBuilder:
        """To make some on the path in use."""
        return QuicPacketBuilder(
            host_cid=self.host_cid,
            is_client=self._is_client,
            max_datagram_size=datagram_size,
            packet_number=self._packet_number,
            peer_cid=self._peer_cid.cid,
            peer_token=self._peer_token,
            spin_bit=self._spin_bit,
            version=self._version or 1,
        )

    def _probe_size(self, now: float) -> list[tuple[bytes, Any]]:
        """Ask on the path in use whether it carries large datagrams again, where that is due."""
        loss, network_path = self._loss, self._network_paths[0]
        if not loss.size.probe_due(now) or loss._time_of_last_sent_ack_eliciting_packet != now:
            return []
        if not (self._handshake_confirmed and network_path.is_validated) or self._state in END_STATES:
            return []
        builder = self._packet_builder(loss.size.most)
        builder.start_packet(QuicPacketType.ONE_RTT, self._cryptos[Epoch.ONE_RTT])
        self._write_ping_frame(builder)
        builder._datagram_needs_padding = True
        loss.size.probed(now)
        made: list[tuple[bytes, Any]] = self._flush_builder(
            builder=builder, network_path=network_path, peer_cid=self._peer_cid.cid, now=now
        )
        return made

    def receive_datagram(self, data: bytes, addr: Any, now: float) -> None:
        self._loss.size.came = len(data)
        super().receive_datagram(data, addr, now)

    @property
    def _ack_delay(self) -> float:
        """Seconds for which a packet waits for more to be acknowledged with it."""
        begun = self._spaces[Epoch.ONE_RTT].expected_packet_number > FIRST_PACKETS
        delay = min(self._loss._rtt_smoothed / ACKS_A_ROUND_TRIP, MAX_ACK_DELAY) if begun else 0.0
        queued = min(self._queues_back() / ACKS_QUEUED, QUEUED_ACK_DELAY if begun else MAX_ACK_DELAY)
        return max(MIN_ACK_DELAY, delay, queued)

    @_ack_delay.setter
    def _ack_delay(self, usual: float) -> None:
        """aioquic always waits for a millisecond."""

    def _queues_back(self) -> float:
        """Seconds for which acknowledgements seem to wait for each other on their way; 0 = nobody can tell."""
        return 0.0

    def three_probe_timeouts(self) -> float:
        """Seconds for which the peer may still say what was true before."""
        return 3.0 * self._loss.get_probe_timeout()

    def end(self, now: float) -> None:
        """The peer has nothing any more: nothing is sent there."""
        self._close_event = ConnectionTerminated(QuicErrorCode.NO_ERROR, QuicFrameType.PADDING, "")
        self._close_begin(is_initiator=False, now=now)

    def _payload_received(self, context: Any, plain: bytes, crypto_frame_required: bool = False) -> tuple[bool, bool]:
        self._frames.left = MAX_FRAMES
        return super()._payload_received(context, plain, crypto_frame_required)

    def _get_or_create_stream(self, frame_type: int, stream_id: int) -> QuicStream:
        stream = super()._get_or_create_stream(frame_type, stream_id)
        self._bound_gaps(stream)
        return stream

    def _bound_gaps(self, stream: QuicStream) -> None:
        if not isinstance(stream.receiver._ranges, Ranges):
            stream.receiver._ranges = Ranges(lambda: self._window // MIN_GAP)

    def _handle_ack_frame(self, context: Any, frame_type: int, buf: Any) -> None:
        super()._handle_ack_frame(context, frame_type, buf)
        self._check_sent(self._spaces[context.epoch].largest_acked_packet, frame_type)

    def _check_sent(self, number: int, frame_type: int) -> None:
        """What a peer acknowledges: aioquic believes it, and takes all that is on its way for lost (RFC 9000 13.1)."""
        if number >= self._packet_number:
            raise QuicConnectionError(QuicErrorCode.PROTOCOL_VIOLATION, frame_type, "acknowledges what was never sent")

    # aioquic counts those that have not left. Of a peer that acknowledges nothing all would be kept.

    def _handle_new_connection_id_frame(self, context: Any, frame_type: int, buf: Any) -> None:
        super()._handle_new_connection_id_frame(context, frame_type, buf)
        if self._retiring > MAX_RETIRING:
            raise QuicConnectionError(
                QuicErrorCode.CONNECTION_ID_LIMIT_ERROR, frame_type, "more ids retired than acknowledged"
            )

    def _write_retire_connection_id_frame(self, builder: QuicPacketBuilder, sequence_number: int) -> None:
        super()._write_retire_connection_id_frame(builder=builder, sequence_number=sequence_number)
        self._retiring += 1

    def _on_retire_connection_id_delivery(self, delivery: QuicDeliveryState, sequence_number: int) -> None:
        self._retiring -= 1
        super()._on_retire_connection_id_delivery(delivery, sequence_number)

    def _handle_crypto_frame(self, context: Any, frame_type: int, buf: Any) -> None:
        _scratch.clean()
        super()._handle_crypto_frame(context, frame_type, buf)
        if self._crypto_streams[context.epoch].receiver.highest_offset > MAX_CRYPTO:
            raise QuicConnectionError(QuicErrorCode.CRYPTO_BUFFER_EXCEEDED, frame_type, "a TLS handshake without end")

    # aioquic doubles what it grants, so that it would keep as much as the peer has sent so far.

    def _grant(self, granted: int, taken: int) -> int:
        """How far the peer may send; a little more is not worth a frame."""
        more = taken + self._window
        return more if more >= granted + self._window // 8 else granted

    def _write_application(self, builder: QuicPacketBuilder, network_path: Any, now: float) -> None:
        self._limits_said, self._says_limits = False, True
        super()._write_application(builder, network_path, now)

    def _write_connection_limits(self, builder: QuicPacketBuilder, space: Any) -> None:
        self._says_limits, self._limits_said = not self._limits_said, True
        if self._says_limits:
            self._write_max_data(builder, space)

    def _write_max_data(self, builder: QuicPacketBuilder, space: Any) -> None:
        limit, taken = self._local_max_data, 0
        for stream in self._streams.values():
            taken += stream.receiver.starting_offset()
        self._window = min(max(FIRST_WINDOW, self._ahead * taken), RECEIVE_WINDOW)
        limit.value = self._grant(limit.value, taken)
        if limit.value != limit.sent:
            capacity = CONNECTION_LIMIT_FRAME_CAPACITY
            frame = builder.start_frame(limit.frame_type, capacity, self._on_connection_limit_delivery, (limit,))
            frame.push_uint_var(limit.value)
            limit.sent = limit.value

    def _write_stream_limits(self, builder: QuicPacketBuilder, space: Any, stream: QuicStream) -> None:
        if self._says_limits:
            self._write_max_stream_data(builder, space, stream)

    def _write_max_stream_data(self, builder: QuicPacketBuilder, space: Any, stream: QuicStream) -> None:
        limit = self._grant(stream.max_stream_data_local, stream.receiver.starting_offset())
        stream.max_stream_data_local = limit
        if limit != stream.max_stream_data_local_sent:
            capacity = MAX_STREAM_DATA_FRAME_CAPACITY
            handler = self._on_max_stream_data_delivery
            frame = builder.start_frame(QuicFrameType.MAX_STREAM_DATA, capacity, handler, (stream,))
            frame.push_uint_var(stream.stream_id or 0)
            frame.push_uint_var(limit)
            stream.max_stream_data_local_sent = limit

    def _initialize(self, peer_cid: bytes) -> None:
        super()._initialize(peer_cid)
        self._crypto_buffers = _scratch.clean()
        for stream in self._crypto_streams.values():
            self._bound_gaps(stream)
        if self._is_client:
            self.tls.update_traffic_key_cb = self._install
            known = self.tls._supported_groups
            self.tls._supported_groups = [group for group in OFFERED_GROUPS if group in known]
        elif self._configuration.cadata:
            self.tls._request_client_certificate = True

    def _install(self, direction: Direction, epoch: Epoch, cipher_suite: Any, secret: bytes) -> None:
        # The first secret of the application's keys: the server has proved that it holds the key of its certificate,
        # and our Finished is not made yet.
        issuers, tls = self._configuration.cadata, self.tls
        if epoch is Epoch.ONE_RTT and direction is Direction.DECRYPT and issuers:
            assert tls._peer_certificate is not None  # a server without one does not come so far
            verify(tls._peer_certificate, tls._peer_certificate_chain, issuers, self._configuration.server_name)
        self._update_traffic_key(direction, epoch, cipher_suite, secret)


class AioquicEngine(LibraryEngine):
    """See `QuicEngine`."""

    VERSIONS = (QuicProtocolVersion.VERSION_1, QuicProtocolVersion.VERSION_2)
    CONNECTION = BoundedConnection

    def __init__(
        self, configuration: Any, datagram_size: int, original_id: bytes | None = None, retry_id: bytes | None = None
    ) -> None:
        size = min(datagram_size, MAX_DATAGRAM)
        super().__init__(configuration, size, original_id, retry_id)
        self._connection._logger = _SILENT
        self._loss: Recovery = self._connection._loss
        self._key_phase = self._under_keys = 0
        """Of the keys there are, or are wanted; packets sent since then."""
        self._keep_keys_until = 0.0
        """The peer may still send with those before (RFC 9001 section 6.5)."""

    @staticmethod
    def _configuration(quic: QuicSettings, **common: Any) -> Configuration:
        return Configuration(
            congestion_control_algorithm=quic.congestion,
            max_data=FIRST_WINDOW,
            max_stream_data=FIRST_WINDOW,
            verify_mode=ssl.CERT_NONE,  # `BoundedConnection` verifies
            **common,
        )

    def _take(self, data: bytes, segment: int, address: PeerAddress, now: float) -> None:
        take = self._connection.receive_datagram
        for start in range(0, len(data), segment):
            take(data[start : start + segment], address, now)

    def bursts(self, now: float) -> list[Burst]:
        made = super().bursts(now)
        self._count(len(made), now)
        return made

    def _count(self, packets: int, now: float) -> None:
        """aioquic by itself keeps its keys for ever."""
        if not packets:
            return
        self._under_keys += packets
        phase = self._connection._cryptos[Epoch.ONE_RTT].key_phase
        if phase != self._key_phase:  # whoever wanted it
            self._key_phase, self._under_keys = phase, 0
            self._keep_keys_until = now + self._connection.three_probe_timeouts()
        elif self._under_keys >= MAX_UNDER_KEYS and now >= self._keep_keys_until:
            self._connection.request_key_update()

    def __del__(self) -> None:
        for space in self._loss.spaces:
            space.sent_packets.clear()  # they hold where they are kept
        super().__del__()

    @property
    def peer_certificate(self) -> bytes:
        certificate = self._connection.tls._peer_certificate
        return certificate.public_bytes(Encoding.DER) if certificate is not None else b""

    def verify_client_certificate(self) -> None:
        tls = self._connection.tls
        if tls._peer_certificate is None:
            raise TransportError("the client showed no certificate")
        try:
            verify(tls._peer_certificate, tls._peer_certificate_chain, tls._cadata)
        except Alert as error:
            raise refused("the client", fault_of(str(error))) from error

    def has_stream(self, stream_id: int) -> bool:
        return stream_id in self._connection._streams

    def _senders(self) -> Iterator[QuicStreamSender]:
        return (stream.sender for stream in self._connection._streams.values())

    def unsent(self) -> int:
        streams = sum(part.stop - part.start for sender in self._senders() for part in sender._pending)
        return streams + sum(map(len, self._connection._datagrams_pending))

    def unacknowledged(self) -> int:
        return sum(
            sender._buffer_stop - sender._buffer_start - sum(part.stop - part.start for part in sender._acked)
            for sender in self._senders()
        )

    def all_acknowledged(self) -> bool:
        return all(
            sender.is_finished or (sender._buffer_stop == 0 and sender._buffer_fin is None)
            for sender in self._senders()
        )

    @property
    def congestion_window(self) -> int:
        return self._loss.congestion_window

    @property
    def bytes_in_flight(self) -> int:
        return self._loss.bytes_in_flight

    @property
    def round_trips(self) -> RoundTrips:
        loss = self._loss
        if not loss._rtt_initialized:
            return RoundTrips()
        return RoundTrips(loss._rtt_smoothed, loss._rtt_variance, loss._rtt_min)
