"""Private modes of connections with several paths: what papers try and RFC 10069 does not have.

Both ends have to ask for a mode, in a transport parameter of our own: a foreign peer ignores it and gets RFC 10069. The
ordinary engine knows nothing of them.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntFlag
from functools import partial
from ipaddress import IPv6Address, ip_address
from typing import Any

from aioquic._buffer import BufferReadError
from aioquic.buffer import encode_uint_var, size_uint_var
from aioquic.quic.connection import EPOCHS, QuicConnectionError, QuicNetworkPath
from aioquic.quic.packet import QuicErrorCode, QuicFrameType
from aioquic.quic.packet_builder import QuicDeliveryState
from aioquic.quic.rangeset import RangeSet
from aioquic.quic.recovery import QuicPacketNumberWindow, QuicPacketSpace
from aioquic.tls import Epoch

from multi.multipath.facts import VALIDATION_TIME, PathState
from multi.transports.mpquic.aioquic_engine import AioquicPathEngine
from multi.transports.mpquic.connection import MultipathConnection
from multi.transports.mpquic.frames import pull_parameter
from multi.transports.mpquic.path import Path
from multi.transports.quic.aioquic_engine import Ranges
from multi.transports.quic.engine import PathOpened, third_party
from multi.transports.quic.udp_port import PeerAddress

logger = logging.getLogger("multi.transports")

PARAMETER = 0x2D6D756C74693031  # "-multi01": nobody has registered it
ANNOUNCE_ADDRESS = 0x2D6D756C74693032  # a frame: Path ID, length of the address, address, port
ANNOUNCED_DATAGRAMS = 1  # as many may have come from an announced address: three go there before it answers
ACK_RANGES = 1024  # of one number space: paths differ by as many packets
UNBOUNDED = 1 << 62


class PrivateMode(IntFlag):
    """As they are negotiated. Names in lower case are those of `mpquic_config.private_modes`."""

    UNIFLOWS = 1
    """A server sends to an address that its client has announced, whether or not anything comes from there;
    PATH_RESPONSE takes any path (De Coninck and Bonaventure)."""
    ONE_NUMBER_SPACE = 2
    """Packets of all paths are numbered and acknowledged together."""
    TRUST_ANNOUNCED_PATHS = 4
    """A server sends data to an address from which a path is opened, up to three times what came from there, before it
    has answered (Viernickel et al.)."""


def modes_named(names: Sequence[str]) -> PrivateMode:
    """Raises KeyError for a name that is none."""
    modes = PrivateMode(0)
    for name in names:
        modes |= PrivateMode[name.upper()]
    return modes


@dataclass(frozen=True)
class Due:
    """A frame that waits to be sent, and is sent again until it arrives."""

    kind: int
    content: bytes

    def body(self) -> bytes:
        return self.content


def _of_first(name: str) -> Any:
    return property(lambda self: getattr(self.first, name), lambda self, value: setattr(self.first, name, value))


class _Shared(QuicPacketSpace):
    """The space of a further path when all have one: what was sent is its own, what has come is that of the first."""

    ack_at = _of_first("ack_at")
    ack_queue = _of_first("ack_queue")
    expected_packet_number = _of_first("expected_packet_number")
    largest_received_packet = _of_first("largest_received_packet")
    largest_received_time = _of_first("largest_received_time")
    received_packets = _of_first("received_packets")

    def __init__(self, first: QuicPacketSpace) -> None:
        self.first = QuicPacketSpace()  # takes what a new space begins with
        super().__init__(is_application_data=True)
        self.first = first


class _Received(Ranges):
    """Ranges of numbers; aioquic drops the oldest where there are more than it keeps of one path."""

    def __init__(self) -> None:
        super().__init__(lambda: UNBOUNDED)

    def shift(self) -> range:
        return super().shift() if len(self) > ACK_RANGES else self[0]


class _Numbers(QuicPacketNumberWindow):
    """Those that were received lately, of more paths than one."""

    def __init__(self) -> None:
        super().__init__()
        self._size = 2 * ACK_RANGES


class PrivateConnection(MultipathConnection):
    """See the module."""

    def __init__(self, **settings: Any) -> None:
        self._modes = PrivateMode(0)
        super().__init__(**settings)
        self._latest = self._current
        """Where something came last."""
        self._path_frames[ANNOUNCE_ADDRESS] = (self._handle_announcement, EPOCHS("1"))

    # --- negotiation  ---

    def _serialize_transport_parameters(self) -> bytes:
        wanted = modes_named(self._policy.private_modes)
        own = encode_uint_var(PARAMETER) + encode_uint_var(size_uint_var(wanted)) + encode_uint_var(wanted)
        return super()._serialize_transport_parameters() + own

    def _parse_transport_parameters(self, data: bytes, from_session_ticket: bool = False) -> None:
        super()._parse_transport_parameters(data, from_session_ticket=from_session_ticket)
        if from_session_ticket or not self._agreed:
            return
        try:
            offered = pull_parameter(data, PARAMETER) or 0
        except (ValueError, BufferReadError) as error:
            raise QuicConnectionError(
                QuicErrorCode.TRANSPORT_PARAMETER_ERROR, QuicFrameType.CRYPTO, "cannot read private modes"
            ) from error
        self._modes = modes_named(self._policy.private_modes) & offered
        if self._modes:
            logger.info("private modes of multipath QUIC: %s", self._modes.name)
        if PrivateMode.ONE_NUMBER_SPACE in self._modes:
            first = self._paths[0].space
            first.ack_queue, first.received_packets = _Received(), _Numbers()

    # --- one number space  ---

    def _enter(self, path: Path) -> None:
        number = self._packet_number
        super()._enter(path)
        if PrivateMode.ONE_NUMBER_SPACE in self._modes:
            self._packet_number = number

    def _attributes_of(self, path: Path) -> dict[str, Any]:
        if PrivateMode.ONE_NUMBER_SPACE in self._modes:
            first = self._latest.space
            path.space = _Shared(first.first if isinstance(first, _Shared) else first)
            path.loss.spaces = [path.space]
        made = super()._attributes_of(path)
        if PrivateMode.ONE_NUMBER_SPACE in self._modes:  # no number is used twice, so no nonce is
            made["_cryptos"][Epoch.ONE_RTT] = made["_cryptos"][Epoch.ONE_RTT]._pair
        return made

    def _acknowledged_together(self) -> list[Path]:
        return [self._latest] if PrivateMode.ONE_NUMBER_SPACE in self._modes else super()._acknowledged_together()

    def _forgetting(self, space: QuicPacketSpace) -> Callable[[QuicDeliveryState], None]:
        if PrivateMode.ONE_NUMBER_SPACE not in self._modes:
            return super()._forgetting(space)
        # What comes on a slower path has smaller numbers than what is told already: it has to be told too.
        return partial(self._on_told, space=space, told=list(space.ack_queue))

    @staticmethod
    def _on_told(delivery: QuicDeliveryState, space: QuicPacketSpace, told: Sequence[range]) -> None:
        if delivery is QuicDeliveryState.ACKED:
            for numbers in told:
                space.ack_queue.subtract(numbers.start, numbers.stop)

    def _begin_path_ack(self, buf: Any, path: Path) -> None:
        if PrivateMode.ONE_NUMBER_SPACE not in self._modes:
            super()._begin_path_ack(buf, path)

    def _take_ack(self, path: Path | None, context: Any, frame_type: int, buf: Any, ecn: bool) -> None:
        if PrivateMode.ONE_NUMBER_SPACE not in self._modes:
            super()._take_ack(path, context, frame_type, buf, ecn)
            return
        acknowledged, delay = self._pull_ack(frame_type, buf, ecn)
        largest = acknowledged.bounds().stop - 1
        self._check_sent(largest, frame_type)
        for each in list(self._paths.values()):
            sent = list(each.space.sent_packets)
            mine = _within(acknowledged, sorted({*sent, *each.given_up}) if each.given_up else sent)
            if len(mine) and each.state is not PathState.ABANDONED:
                # How long the peer has waited is said of the largest number alone.
                self._acknowledged(each, mine, delay if largest in mine else 0, context, frame_type)

    # --- uniflows  ---

    def announce_path(self, path_id: int, host: bytes, port: int) -> None:
        """Tell the server where it can send on a path, without waiting for what is sent there."""
        if PrivateMode.UNIFLOWS in self._modes and self._is_client:
            numbers = encode_uint_var(path_id) + bytes([len(host)]) + host + encode_uint_var(port)
            self._due.append(Due(ANNOUNCE_ADDRESS, numbers))

    def _handle_announcement(self, context: Any, frame_type: int, buf: Any) -> None:
        path_id, host, port = buf.pull_uint_var(), buf.pull_bytes(buf.pull_uint8()), buf.pull_uint_var()
        if PrivateMode.UNIFLOWS not in self._modes or self._is_client or len(host) not in (4, 16) or port > 65535:
            raise QuicConnectionError(QuicErrorCode.PROTOCOL_VIOLATION, frame_type, "not an address for a uniflow")
        path = self._path_named(path_id, frame_type)
        if path is None or path.open or path.state is PathState.ABANDONED or not path.kept["_peer_cid_available"]:
            return
        address = _beside(context.network_path.addr, host, port)
        if address is None:
            return
        with self._on(path):
            network_path = QuicNetworkPath(address)
            network_path.bytes_received = ANNOUNCED_DATAGRAMS * self._max_datagram_size
            network_path.validation_deadline = context.time + VALIDATION_TIME
            self._network_paths = [network_path]
            self._start(path)

    def _handle_path_response_frame(self, context: Any, frame_type: int, buf: Any) -> None:
        data = buf.data_slice(buf.tell(), buf.tell() + 8) if PrivateMode.UNIFLOWS in self._modes else b""
        for path in self._open_paths:
            known = self._of(path, "_network_paths")
            if path is not self._current and any(data in each.local_challenges for each in known):
                with self._on(path):
                    super()._handle_path_response_frame(context, frame_type, buf)
                    self._note_validation(path, context.time)
                return
        super()._handle_path_response_frame(context, frame_type, buf)

    def _write_due(self, builder: Any) -> None:
        # On a path that is being opened nobody may listen: what it asks for is answered on another.
        if PrivateMode.UNIFLOWS not in self._modes or self._current.state is PathState.ACTIVE:
            super()._write_due(builder)

    def _validation_failed(self, path: Path, now: float) -> None:
        network_path = self._network_paths[0]
        if PrivateMode.UNIFLOWS in self._modes and self._is_client and path.received and not network_path.is_validated:
            network_path.validation_deadline = None  # nothing arrives there, but something comes from there
        else:
            super()._validation_failed(path, now)

    # --- trust in announced paths  ---

    def _note_validation(self, path: Path, now: float) -> None:
        super()._note_validation(path, now)
        trusted = PrivateMode.TRUST_ANNOUNCED_PATHS in self._modes and not self._is_client
        if trusted and path.open and path.state is PathState.VALIDATING:
            path.state = PathState.ACTIVE
            self._events.append(PathOpened(path.id, self._network_paths[0].addr))

    def _credit(self, path_id: int, now: float) -> int:
        return 0 if self._limited(self._paths[path_id]) else super()._credit(path_id, now)

    def _loss_time(self, path: Path) -> float | None:
        if PrivateMode.TRUST_ANNOUNCED_PATHS in self._modes and path.state is PathState.ACTIVE and self._limited(path):
            # No probe may be sent there, but what is in flight is not to wait for the address to answer.
            at: float | None = path.loss.get_loss_detection_time(amplification_limited=False)
            return at
        return super()._loss_time(path)

    # --- both  ---

    def receive_datagram(self, data: bytes, addr: Any, now: float) -> None:
        super().receive_datagram(data, addr, now)
        self._latest = path = self._current
        if PrivateMode.UNIFLOWS in self._modes and self._handshake_complete and path.id:
            for network_path in self._network_paths:
                while network_path.remote_challenges:
                    response = network_path.remote_challenges.popleft()
                    self._due.append(Due(QuicFrameType.PATH_RESPONSE, response))


def _beside(known: PeerAddress, host: bytes, port: int) -> PeerAddress | None:
    """An announced address as the socket has it that reaches the client at another; None where nothing may be sent."""
    given, own = ip_address(host), ip_address(str(known.peer[0]).partition("%")[0])
    mapped = own.ipv4_mapped if isinstance(own, IPv6Address) else None
    client = mapped or own
    if given.version != client.version or given.is_loopback != client.is_loopback:
        return None
    if given.is_multicast or given.is_unspecified or given.is_link_local:
        return None
    name = f"::ffff:{given}" if mapped else str(given)
    return known._replace(peer=(name, port, *known.peer[2:]))


def _within(acknowledged: RangeSet, numbers: Sequence[int]) -> RangeSet:
    """Those of some sorted numbers that are acknowledged."""
    found = RangeSet()
    for block in acknowledged:
        for number in numbers[bisect_left(numbers, block.start) : bisect_left(numbers, block.stop)]:
            found.add(number)
    return found


class PrivateEngine(AioquicPathEngine):
    """An engine for `mpquic_config.private_modes`."""

    CONNECTION = PrivateConnection
    _connection: PrivateConnection

    @property
    def private_modes(self) -> PrivateMode:
        """In force: those that both ends have asked for, known with HandshakeCompleted."""
        return self._connection._modes

    def announce_path(self, path: int, host: bytes, port: int) -> None:
        with third_party:
            self._connection.announce_path(path, host, port)
