"""What each path of an aioquic connection has for itself: keys, loss recovery, a congestion window, and what is known.

See `connection` for how they come into their places.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import exp, inf
from typing import Any, NamedTuple

from aioquic.quic.congestion.base import QuicCongestionControl
from aioquic.quic.connection import QuicConnectionId
from aioquic.quic.crypto import CryptoPair, KeyUnavailableError, next_key_phase
from aioquic.quic.packet import NON_ACK_ELICITING_FRAME_TYPES, decode_packet_number
from aioquic.quic.packet_builder import QuicSentPacket
from aioquic.quic.recovery import QuicPacketSpace
from aioquic.quic.stream import QuicStreamSender

from multi.multipath.cap import QueueBound, RateMeter
from multi.multipath.coupling import CoupledWindow
from multi.multipath.facts import PathFacts, PathState
from multi.transports.mpquic.frames import PathFrame, new_connection_id_body
from multi.transports.quic.aioquic_engine import Frames, Recovery
from multi.transports.quic.udp_port import PeerAddress

MAX_PAUSE = 0.2  # seconds between two signs of life that count: after longer ones nothing had to be said
PAUSE_FADES = 1.0  # seconds in which a pause comes to count as a third of what it was
_QUIET = {*NON_ACK_ELICITING_FRAME_TYPES, PathFrame.PATH_ACK, PathFrame.PATH_ACK_ECN}


class PathKeys:
    """The keys of 1-RTT packets as one path uses them: its id is part of the nonce.

    draft-ietf-quic-multipath-21 section 2.4.
    """

    aead_tag_size = 16

    def __init__(self, pair: CryptoPair, path: int) -> None:
        self._pair, self._nonce = pair, path << 64
        self.send, self.recv = pair.send, pair.recv

    @property
    def key_phase(self) -> int:
        return self._pair.key_phase

    def teardown(self) -> None:
        self._pair.teardown()

    def update_key(self) -> None:
        self._pair.update_key()

    def encrypt_packet(self, plain_header: bytes, plain_payload: bytes, packet_number: int) -> bytes:
        return self._pair.encrypt_packet(plain_header, plain_payload, self._nonce | packet_number)

    def decrypt_packet(self, packet: bytes, encrypted_offset: int, expected: int) -> tuple[bytes, bytes, int]:
        keys = self.recv
        if keys.aead is None or keys.hp is None:
            raise KeyUnavailableError("Decryption key is not available")
        header, truncated = keys.hp.remove(packet, encrypted_offset)
        number = decode_packet_number(truncated, ((header[0] & 3) + 1) * 8, expected)
        updated = (header[0] & 4) >> 2 != keys.key_phase
        used = next_key_phase(keys) if updated else keys
        assert used.aead is not None
        payload = used.aead.decrypt(packet[len(header) :], header, self._nonce | number)
        if updated:
            self._pair._update_key("remote_update")
        return header, payload, number


class PathFrames(Frames):
    """Notes whether any frame of a packet asks for an acknowledgement, of which aioquic thinks that PATH_ACK does."""

    eliciting = False

    def __getitem__(self, frame_type: int) -> Any:
        if frame_type not in _QUIET:
            self.eliciting = True
        return Frames.__getitem__(self, frame_type)


class PathRecovery(Recovery):
    """Which also counts."""

    acked = 0  # bytes
    lost = 0  # packets
    waits_since: float | None = None
    """When the first packet to be acknowledged has left since the last acknowledgement; None = nothing waits."""
    _gone = 0

    def on_packet_sent(self, *, packet: QuicSentPacket, space: QuicPacketSpace) -> None:
        super().on_packet_sent(packet=packet, space=space)
        if self.waits_since is None and packet.is_ack_eliciting:
            self.waits_since = packet.sent_time

    def on_ack_received(self, **known: Any) -> None:
        space: QuicPacketSpace = known["space"]
        before, self._gone = self._cc.bytes_in_flight, 0
        waiting = space.ack_eliciting_in_flight
        super().on_ack_received(**known)
        if space.ack_eliciting_in_flight < waiting:
            self.waits_since = known["now"] if space.ack_eliciting_in_flight else None
        self.acked += before - self._cc.bytes_in_flight - self._gone

    def ignore_until(self, now: float) -> None:
        """What was sent before, on another way, is not to change the window."""
        self._cc._congestion_recovery_start_time = now  # type: ignore[attr-defined]  # all kinds have it

    def _hold(self, window: int) -> None:
        super()._hold(window)
        if isinstance(self._cc, CoupledControl):
            self._cc.window.size = window

    def _on_packets_lost(self, *, packets: Iterable[QuicSentPacket], **known: Any) -> None:
        gone = list(packets)
        self.lost += len(gone)
        self._gone += sum(packet.sent_bytes for packet in gone if packet.in_flight)
        super()._on_packets_lost(packets=gone, **known)
        if not known["space"].ack_eliciting_in_flight:
            self.waits_since = None


class CoupledControl(QuicCongestionControl):
    """A window that grows together with those of the other paths, where aioquic expects its congestion control."""

    def __init__(self, window: CoupledWindow, datagram: int) -> None:
        super().__init__(max_datagram_size=datagram)
        self.window = window
        self._congestion_recovery_start_time = 0.0
        self._follow()

    def _follow(self) -> None:
        self.congestion_window = int(self.window.size)
        self.ssthresh = None if self.window.threshold == inf else int(self.window.threshold)

    def on_packet_acked(self, *, now: float, packet: QuicSentPacket) -> None:
        self.bytes_in_flight -= packet.sent_bytes
        if packet.sent_time is not None and packet.sent_time > self._congestion_recovery_start_time:
            self.window.acked(packet.sent_bytes)
            self._follow()

    def on_packet_sent(self, *, packet: QuicSentPacket) -> None:
        self.bytes_in_flight += packet.sent_bytes

    def on_packets_expired(self, *, packets: Iterable[QuicSentPacket]) -> None:
        self.bytes_in_flight -= sum(packet.sent_bytes for packet in packets)

    def on_packets_lost(self, *, now: float, packets: Iterable[QuicSentPacket]) -> None:
        latest = 0.0
        for packet in packets:
            self.bytes_in_flight -= packet.sent_bytes
            latest = packet.sent_time or 0.0
        if latest > self._congestion_recovery_start_time:
            self._congestion_recovery_start_time = now
            self.window.lost()
            self._follow()

    def on_persistent_congestion(self) -> None:
        self.window.collapse()
        self._follow()

    def on_rtt_measurement(self, *, now: float, rtt: float) -> None:
        self.window.rtt = rtt if not self.window.rtt else self.window.rtt + (rtt - self.window.rtt) / 8


class Part(NamedTuple):
    """A part of a stream that was sent. A packet would hold all that waits for it, and with that its connection."""

    sender: QuicStreamSender
    start: int
    stop: int


class Path:
    """What is known of one path besides what aioquic knows of it."""

    def __init__(self, path_id: int, loss: PathRecovery, space: QuicPacketSpace, max_queue: float) -> None:
        self.id = path_id
        self.loss = loss
        self.space = space
        self.kept: dict[str, Any] = {}
        """Its attributes of the connection, while another path is in use."""
        self.state = PathState.VALIDATING
        self.open = False
        """Something may be sent on it."""
        self.backup = self.peer_backup = False
        self.status_sequence = 0
        self.peer_status_sequence = -1
        self.sent = self.received = 0
        self.heard_at = -inf
        self.pause = 0.0
        """Seconds between two signs of life, the longest of late: one burst has many short ones."""
        self.told_ids = -1
        """The highest sequence number of an id of ours that has left; of path 0 aioquic keeps it."""
        self.acks_due: dict[int, Path] = {}
        """Paths whose packets are to be acknowledged here."""
        self.told_on = path_id
        """The path on which the latest of what came here was acknowledged."""
        self.given_up: dict[int, tuple[Part, ...]] = {}
        """Packets by their numbers, which rise, that are sent on others although nobody knows that they are lost."""
        self.given_up_at = 0.0
        self.suspect_from = 0
        """The first packet since it has been suspect."""
        self.late = False
        """Some of what was given up has arrived: it was delayed, not lost."""
        self.rate = RateMeter()
        self.unused_at = -1
        """Bytes that had been sent when it was noted last that it would take more."""
        self._max_queue = max_queue
        self.queue = QueueBound(max_queue)
        self.min_rtts: dict[int, float] = {}
        """By the path that brought the acknowledgements."""
        self.answered_at: PeerAddress | None = None
        """The address at which the peer has answered."""
        self.carrier = path_id
        """The path that has brought the latest."""
        self.challenged_at: float | None = None
        self.answer_due: float | None = None
        """When a challenge that has arrived is made again: its answer was lost, which nobody repeats."""
        self.unanswered = 0
        """How often that was, one after the other: answers may come back on a slower way than acknowledgements."""
        self.first_rtt = 0.0
        """Of the challenge that validated it."""
        self.pinged_at = -inf
        self.pacing_at: float | None = None
        self.forget_at: float | None = None

    def begin_anew(self) -> None:
        """It goes another way: forget what was measured."""
        self.rate, self.queue = RateMeter(), QueueBound(self._max_queue)
        self.min_rtts.clear()

    def heard(self, now: float) -> None:
        """A sign of life: something came there, or what was sent there was acknowledged."""
        if self.heard_at > -inf:
            pause = now - self.heard_at
            self.pause = max(min(pause, MAX_PAUSE), self.pause * exp(-pause / PAUSE_FADES))
        self.heard_at = now

    @property
    def most(self) -> int:
        """Bytes that may be in flight there."""
        return self.queue.most(self.loss.congestion_window)

    def facts(self) -> PathFacts:
        loss = self.loss
        window, threshold = loss.congestion_window, loss._cc.ssthresh
        known = loss._rtt_initialized
        min_rtt = self.min_rtts.get(self.carrier, inf)
        return PathFacts(
            self.id,
            self.state,
            self.backup or self.peer_backup,
            loss._rtt_smoothed if known else self.first_rtt,
            loss._rtt_variance if known else self.first_rtt / 2,
            (min_rtt if min_rtt < inf else loss._rtt_min) if known else self.first_rtt,
            self.most,
            loss.bytes_in_flight,
            loss.acked,
            self.sent,
            self.received,
            loss.lost,
            threshold is None or window < threshold,
            self.heard_at,
            self.pause,
        )


@dataclass(frozen=True)
class NewId:
    """PATH_NEW_CONNECTION_ID."""

    path: int
    connection_id: QuicConnectionId
    kind = PathFrame.PATH_NEW_CONNECTION_ID

    def body(self) -> bytes:
        own = self.connection_id
        return new_connection_id_body(self.path, own.sequence_number, own.cid, own.stateless_reset_token)
