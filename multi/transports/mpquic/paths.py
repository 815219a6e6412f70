"""aioquic's connection with several paths (RFC 10069): which there are, and what comes in about them.

aioquic keeps what belongs to a path in attributes of the connection: ids, numbers, what is in flight, keys. Each path
has a set of these here, and the path in use has its own in their place. Handshake, streams, flow control and the way a
connection ends stay aioquic's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from typing import Any

from aioquic._buffer import BufferReadError
from aioquic.quic import events
from aioquic.quic.connection import EPOCHS, QuicConnectionError, QuicConnectionId, QuicNetworkPath
from aioquic.quic.packet import QuicErrorCode, QuicFrameType, QuicPacketType, pull_ack_frame
from aioquic.quic.packet_builder import QuicDeliveryState, QuicSentPacket
from aioquic.quic.rangeset import RangeSet
from aioquic.quic.recovery import QuicPacketSpace
from aioquic.quic.stream import QuicStreamSender
from aioquic.tls import Epoch, ExtensionType

from multi.multipath.coupling import CoupledPaths, Coupling
from multi.multipath.facts import VALIDATION_TIME, PathFacts, PathState
from multi.multipath.policy import PathPolicy
from multi.transports.mpquic.frames import Frame, PathFrame, Waiting, parameter, pull_frame, pull_parameter
from multi.transports.mpquic.names import PER_PATH
from multi.transports.mpquic.path import CoupledControl, NewId, Part, Path, PathFrames, PathKeys, PathRecovery
from multi.transports.quic.aioquic_cubic import AioquicCubic
from multi.transports.quic.aioquic_engine import BoundedConnection, Configuration
from multi.transports.quic.connection_ids import TOKEN_LENGTH
from multi.transports.quic.engine import PathClosed, PathOpened, PathStatusChanged
from multi.transports.quic.packets import LONG_HEADER

UNKNOWN_RTT = 0.5  # seconds; challenges come again after twice as long (RFC 9002 section 6.2.2): sooner fills slow ways
FEW = 64  # packets; to look through more of them takes longer than what they carry
LINGER_TIMEOUTS = 3  # probe timeouts for which late packets of an abandoned path are taken
AHEAD = 8  # bytes for each that has been taken: what is late on one path must not stop the others
IDS_OF_PATH = 2  # that a path has at a time: the one in use and a spare
UNKNOWN_SEQUENCE = 1 << 62  # of the peer's id for a path that it has not opened: never retired
COUPLED = frozenset(each.value for each in Coupling)


@dataclass
class MultipathConfiguration(Configuration):
    """aioquic's, and what is wanted of paths; None: there is one."""

    policy: PathPolicy | None = None


class ConnectionPaths(BoundedConnection):
    """The paths of a connection, and what its packets say of them; `MultipathConnection` sends on them."""

    RECOVERY: type[PathRecovery] = PathRecovery
    _loss: PathRecovery
    _events: deque[Any]
    """aioquic's, and those of paths."""

    def __init__(self, **settings: Any) -> None:
        configuration = settings["configuration"]
        assert isinstance(configuration, MultipathConfiguration)
        policy = configuration.policy
        self._policy = policy or PathPolicy(paths=1)
        self._coupled = (
            CoupledPaths(Coupling(self._policy.congestion), configuration.max_datagram_size)
            if self._policy.congestion in COUPLED
            else None
        )
        super().__init__(**settings)
        self._offered = policy is not None
        self._scheduler = self._policy.scheduler()
        self._max_path_id = self._policy.paths - 1
        self._peer_max_path_id: int | None = None
        first = Path(0, self._loss, QuicPacketSpace(is_application_data=True), self._policy.max_queue)
        first.state = PathState.ACTIVE
        self._paths = {0: first}
        self._set_open(first, True)
        self._next_path_id = 1
        self._highest_path_id = 0
        """Of all that there have been."""
        self._current = first
        self._path_of_id: dict[bytes, Path] = {}
        self._early: dict[int, tuple[bytes, Any]] = {}
        """The first datagram of each path that has come before the end of the handshake, and from where."""
        self._due: deque[Waiting] = deque()
        self._retry_at: float | None = None
        self._asked_for_paths = False
        self._add_frames()

    def _add_frames(self) -> None:
        one = EPOCHS("1")
        handlers = {
            PathFrame.PATH_ACK: self._handle_path_ack,
            PathFrame.PATH_ACK_ECN: self._handle_path_ack,
            PathFrame.PATH_ABANDON: self._handle_path_abandon,
            PathFrame.PATH_STATUS_BACKUP: self._handle_path_status,
            PathFrame.PATH_STATUS_AVAILABLE: self._handle_path_status,
            PathFrame.PATH_NEW_CONNECTION_ID: self._handle_path_new_connection_id,
            PathFrame.PATH_RETIRE_CONNECTION_ID: self._handle_path_retire_connection_id,
            PathFrame.MAX_PATH_ID: self._handle_max_path_id,
            PathFrame.PATHS_BLOCKED: self._handle_blocked,
            PathFrame.PATH_CIDS_BLOCKED: self._handle_blocked,
        }
        table: dict[int, Any] = {**self._frames, **{int(kind): (handler, one) for kind, handler in handlers.items()}}
        self._frames = vars(self)["_QuicConnection__frame_handlers"] = self._path_frames = PathFrames(table)

    # --- what the engine asks for  ---

    @property
    def multipath(self) -> bool:
        """Both ends can do it, and the handshake is done."""
        return self._handshake_complete and self._agreed

    @property
    def takes_paths(self) -> bool:
        """See `PathEngine`."""
        return self.multipath and not self._peer_stays

    @property
    def _agreed(self) -> bool:
        return self._offered and self._peer_max_path_id is not None

    def facts(self) -> list[PathFacts]:
        """Of the paths that are not abandoned."""
        return [path.facts() for path in self._open_paths]

    def open_path(self, address: Any, now: float, backup: bool) -> int | None:
        """See `PathEngine`."""
        if not (self.takes_paths and self._is_client) or len(self._open_paths) >= self._policy.paths:
            return None
        path = self._paths.get(self._next_path_id)
        if path is None or not path.kept["_peer_cid_available"]:
            self._ask_for_paths(path)
            return None
        self._asked_for_paths = False
        self._next_path_id += 1
        with self._on(path):
            network_path = QuicNetworkPath(address)
            network_path.validation_deadline = now + VALIDATION_TIME
            self._network_paths = [network_path]
            self._start(path)
        if backup:
            self.set_backup(path.id, True)
        return path.id

    def abandon_path(self, path_id: int, code: int, now: float) -> None:
        """See `PathEngine`."""
        path = self._paths.get(path_id)
        if path is not None and path.state is not PathState.ABANDONED and len(self._open_paths) > 1:
            self._abandon(path, code, now, by_peer=False)

    def suspect_path(self, path_id: int, now: float) -> None:
        """See `PathEngine`."""
        path = self._paths.get(path_id)
        if path is not None and path.open and path.state is PathState.ACTIVE and len(self._open_paths) > 1:
            with self._on(path):
                self._give_up(path, now)

    def set_backup(self, path_id: int, backup: bool) -> None:
        """See `PathEngine`."""
        path = self._paths.get(path_id)
        if path is None or path.backup == backup or path.state is PathState.ABANDONED:
            return
        path.backup = backup
        path.status_sequence += 1
        kind = PathFrame.PATH_STATUS_BACKUP if backup else PathFrame.PATH_STATUS_AVAILABLE
        self._due.append(Frame(kind, (path.id, path.status_sequence)))

    # --- paths  ---

    def _set_open(self, path: Path, is_open: bool) -> None:
        path.open = is_open
        self._open_paths = [each for each in self._paths.values() if each.open]

    def _enter(self, path: Path) -> None:
        """Put the attributes of `path` into their places."""
        current = self._current
        if path is not current:
            attributes = vars(self)
            current.kept = {name: attributes[name] for name in PER_PATH}
            attributes.update(path.kept)
            self._current = path

    def _of(self, path: Path, name: str) -> Any:
        """An attribute of `path`, wherever it is kept now."""
        return vars(self)[name] if path is self._current else path.kept[name]

    @contextmanager
    def _on(self, path: Path) -> Iterator[None]:
        before = self._current
        self._enter(path)
        try:
            yield
        finally:
            self._enter(before)

    def _congestion(self) -> str:
        return "reno" if self._coupled is not None else self._policy.congestion

    def _new_recovery(self, *, peer_completed_address_validation: bool) -> PathRecovery:
        loss = super()._new_recovery(peer_completed_address_validation=peer_completed_address_validation)
        assert isinstance(loss, PathRecovery)
        if self._coupled is not None:
            loss._cc = CoupledControl(self._coupled.add(), self._largest_datagram)
        return loss

    def _add_paths(self) -> None:
        """Make the paths that the peer may use now, and tell it their ids."""
        assert self._peer_max_path_id is not None
        for path_id in range(self._highest_path_id + 1, min(self._max_path_id, self._peer_max_path_id) + 1):
            self._highest_path_id = path_id
            loss = self._new_recovery(peer_completed_address_validation=True)
            loss._rtt_initial = max(loss._rtt_initial, UNKNOWN_RTT)
            loss.handshake_confirmed = True
            loss.max_ack_delay = self._paths[0].loss.max_ack_delay if 0 in self._paths else 0.025
            space = QuicPacketSpace(is_application_data=True)
            loss.spaces = [space]
            path = self._paths[path_id] = Path(path_id, loss, space, self._policy.max_queue)
            path.kept = self._attributes_of(path)
            with self._on(path):
                self._replenish_connection_ids()

    def _attributes_of(self, path: Path) -> dict[str, Any]:
        nothing = QuicPacketSpace()
        nothing.discarded = True
        cryptos: dict[Epoch, Any] = dict(self._cryptos)
        keys = cryptos[Epoch.ONE_RTT]
        cryptos[Epoch.ONE_RTT] = PathKeys(keys._pair if isinstance(keys, PathKeys) else keys, path.id)
        return {
            "host_cid": b"",
            "_cryptos": cryptos,
            "_host_cid_seq": 0,
            "_host_cids": [],
            "_loss": path.loss,
            "_loss_at": None,
            "_network_paths": [],
            "_pacing_at": None,
            "_packet_number": 0,
            "_peer_cid": QuicConnectionId(cid=b"", sequence_number=UNKNOWN_SEQUENCE),
            "_peer_cid_available": [],
            "_peer_cid_sequence_numbers": set(),
            "_peer_retire_prior_to": 0,
            "_probe_pending": False,
            "_retire_connection_ids": [],
            "_spaces": {Epoch.INITIAL: nothing, Epoch.HANDSHAKE: nothing, Epoch.ONE_RTT: path.space},
            "_spin_bit": False,
            "_spin_highest_pn": 0,
        }

    def _start(self, path: Path) -> None:
        """It has an address and an id of the peer: from now on something may be sent there."""
        self._consume_peer_cid()
        self._set_open(path, True)
        self._ahead = AHEAD
        self._replenish_connection_ids()

    def _ask_for_paths(self, path: Path | None) -> None:
        """Tell the peer, once, that it has given too few ids."""
        if self._asked_for_paths:
            return
        self._asked_for_paths = True
        if path is None:
            assert self._peer_max_path_id is not None
            self._due.append(Frame(PathFrame.PATHS_BLOCKED, (self._peer_max_path_id,)))
        else:
            self._due.append(Frame(PathFrame.PATH_CIDS_BLOCKED, (path.id, 0)))

    def _abandon(self, path: Path, code: int, now: float, *, by_peer: bool) -> None:
        was_open = path.open
        path.state = PathState.ABANDONED
        self._set_open(path, False)
        self._due.append(Frame(PathFrame.PATH_ABANDON, (path.id, code)))
        with self._on(path):
            self._send_elsewhere(path, now)
        for other in self._paths.values():
            other.acks_due.pop(path.id, None)
        if by_peer:
            path.forget_at = now + LINGER_TIMEOUTS * path.loss.get_probe_timeout()
        else:  # the peer answers; it may never do
            path.forget_at = now + 2 * LINGER_TIMEOUTS * path.loss.get_probe_timeout() + VALIDATION_TIME
        if self._coupled is not None and isinstance(path.loss._cc, CoupledControl):
            self._coupled.remove(path.loss._cc.window)
        if was_open:
            self._events.append(PathClosed(path.id, code, by_peer))
        if not self._open_paths and (self._is_client or not by_peer):
            self._close_without_path()

    def _close_without_path(self) -> None:
        self.close(error_code=QuicErrorCode.NO_VIABLE_PATH, frame_type=QuicFrameType.PADDING, reason_phrase="")

    def _forget(self, path: Path) -> None:
        """Late packets come no more: its ids lead nowhere, and the peer may open another.

        A client that has left its last path had until now to come over another one.
        """
        if not self._open_paths:
            self._close_without_path()
            return
        if path is self._current:
            self._enter(next(other for other in self._paths.values() if other is not path))
        for connection_id in path.kept["_host_cids"]:
            self._path_of_id.pop(connection_id.cid, None)
            self._events.append(events.ConnectionIdRetired(connection_id=connection_id.cid))
        del self._paths[path.id]
        for other in self._paths.values():
            known = {*self._paths, other.carrier}
            other.min_rtts = {carrier: rtt for carrier, rtt in other.min_rtts.items() if carrier in known}
        self._max_path_id += 1
        self._due.append(Frame(PathFrame.MAX_PATH_ID, (self._max_path_id,)))
        self._add_paths()

    def _give_up(self, path: Path, now: float) -> None:
        """What is in flight on the path in use may be lost: send it on others now, and ask the path for an answer."""
        if path.state is not PathState.SUSPECT:
            path.state, path.suspect_from = PathState.SUSPECT, self._packet_number
        sent = self._send_elsewhere(path, now)
        if sent:
            path.given_up.update((packet.packet_number, _parts(packet) + _repeated(packet)) for packet in sent)
            path.given_up_at = max(packet.sent_time or 0.0 for packet in sent)
        self._probe_pending = True

    def _send_elsewhere(self, path: Path, now: float) -> list[QuicSentPacket]:
        sent = list(path.space.sent_packets.values())
        path.loss._on_packets_lost(congestion_event=False, now=now, packets=sent, space=path.space)
        return sent

    def _answers(self, path: Path, acknowledged: RangeSet, now: float) -> None:
        """A probe has arrived: it is no longer suspect. What arrived before says nothing of now."""
        if path.state is not PathState.SUSPECT:
            return
        for parts in _taken(path.given_up, acknowledged):
            path.late = True
            for part in parts:
                self._on_repeated_delivery(QuicDeliveryState.ACKED, part)
        if acknowledged.bounds().stop <= path.suspect_from:
            return
        path.state = PathState.ACTIVE
        late, path.late = path.late, False
        path.given_up.clear()
        if path.given_up_at and not late:  # it was no delay: the path has lost what was in flight
            marker = QuicSentPacket(Epoch.ONE_RTT, True, True, False, 0, QuicPacketType.ONE_RTT, path.given_up_at)
            path.loss._cc.on_packets_lost(now=now, packets=[marker])
        path.given_up_at = 0.0
        for other in self._open_paths:  # it was the only one that was left to send on, and has not answered either
            if other is not path and other.state is PathState.ACTIVE and other.loss._pto_count:
                with self._on(other):
                    self._give_up(other, now)

    def _on_repeated_delivery(self, delivery: QuicDeliveryState, part: Part) -> None:
        """What was sent again meanwhile has arrived, or not: where little is on its way, its copies tell no more of it.

        They may never come, and where packets come now and then nothing else would tell that any do.
        """
        if delivery is not QuicDeliveryState.ACKED:
            return
        _spare(part)
        spaces = [path.space for path in self._paths.values()]
        if sum(len(space.sent_packets) for space in spaces) <= FEW:
            for space in spaces:
                for packet in space.sent_packets.values():
                    _cut_out(part, packet)

    def _replenish_connection_ids(self) -> None:
        path = self._current
        if path.id == 0:
            super()._replenish_connection_ids()
            return
        wanted = IDS_OF_PATH if path.open else 1
        while len(self._host_cids) < wanted:
            connection_id = self._ids.new()
            made = QuicConnectionId(
                cid=connection_id,
                sequence_number=self._host_cid_seq,
                stateless_reset_token=self._ids.reset_token(connection_id),
                was_sent=True,
            )
            self._host_cids.append(made)
            self._host_cid_seq += 1
            self.host_cid = self.host_cid or made.cid
            self._path_of_id[made.cid] = path
            self._events.append(events.ConnectionIdIssued(connection_id=made.cid))
            self._due.append(NewId(path.id, made))

    def reset_tokens(self) -> set[bytes]:
        used = (path.kept["_peer_cid"] for path in self._paths.values() if path is not self._current)
        return super().reset_tokens() | {one.stateless_reset_token for one in used}

    def is_ours(self, connection_id: bytes) -> bool:
        first = self._paths.get(0)
        of_first = self._of(first, "_host_cids") if first is not None else ()
        return connection_id in self._path_of_id or any(connection_id == one.cid for one in of_first)

    # --- negotiation  ---

    def _serialize_transport_parameters(self) -> bytes:
        own = parameter(self._max_path_id) if self._offered else b""
        return super()._serialize_transport_parameters() + own

    def _parse_transport_parameters(self, data: bytes, from_session_ticket: bool = False) -> None:
        super()._parse_transport_parameters(data, from_session_ticket=from_session_ticket)
        if from_session_ticket or not self._offered:
            return
        try:
            self._peer_max_path_id = pull_parameter(data)
        except (ValueError, BufferReadError) as error:
            raise QuicConnectionError(
                QuicErrorCode.TRANSPORT_PARAMETER_ERROR, QuicFrameType.CRYPTO, f"cannot read {error}"
            ) from error
        if self._peer_cid.cid:
            return
        if self._peer_max_path_id is not None:
            raise QuicConnectionError(
                QuicErrorCode.PROTOCOL_VIOLATION, QuicFrameType.CRYPTO, "paths without connection ids"
            )
        if not self._is_client:  # it would have to take the offer for an error if it knows of paths at all
            self._offered = False
            offer = (ExtensionType.QUIC_TRANSPORT_PARAMETERS, self._serialize_transport_parameters())
            self.tls.handshake_extensions = [offer]

    def _initialize(self, peer_cid: bytes) -> None:
        super()._initialize(peer_cid)
        self._paths[0].space = self._spaces[Epoch.ONE_RTT]

    def _confirm_handshake(self) -> None:
        if 0 in self._paths:
            with self._on(self._paths[0]):
                super()._confirm_handshake()
        else:
            self._handshake_confirmed = True

    # --- what comes in  ---

    def receive_datagram(self, data: bytes, addr: Any, now: float) -> None:
        if not self._agreed:
            super().receive_datagram(data, addr, now)
            self._current.received += len(data)
            return
        path = self._path_of_id.get(bytes(data[1 : 1 + self._ids.length])) if data and data[0] < LONG_HEADER else None
        path = path or self._paths.get(0)
        if path is None or (self._is_client and not path.open and path.state is not PathState.ABANDONED):
            return
        if path.id and not self._handshake_complete:
            # It has overtaken the end of the handshake: nobody can read it yet.
            self._early.setdefault(path.id, (data, addr))
            return
        self._enter(path)
        path.received += len(data)
        super().receive_datagram(data, addr, now)
        if path.state is PathState.VALIDATING:
            self._note_validation(path, now)
        if self._network_paths and self._network_paths[0].addr is not path.answered_at:
            self._note_address(path, now)
        if self._early and self._handshake_complete:
            early, self._early = self._early, {}
            for overtaking, source in early.values():
                self.receive_datagram(overtaking, source, now)

    def _note_validation(self, path: Path, now: float) -> None:
        if path.state is not PathState.VALIDATING or self._current is not path or not self._network_paths:
            return
        network_path = self._network_paths[0]
        if not path.open:
            if network_path.validation_deadline is None:
                network_path.validation_deadline = now + VALIDATION_TIME
            if self._peer_cid_available:
                self._start(path)
        if network_path.is_validated:
            path.state = PathState.ACTIVE
            path.first_rtt = now - path.challenged_at if path.challenged_at is not None else 0.0
            path.loss._rtt_initial = path.first_rtt or path.loss._rtt_initial  # as RFC 9002 section 6.2.2 suggests
            self._events.append(PathOpened(path.id, network_path.addr))

    def _note_address(self, path: Path, now: float) -> None:
        """Begin with it anew when the peer answers at another address: it is another way, of which nothing is known.

        Behind another port it is the same one, with a NAT that has forgotten it (RFC 9000 section 9.4).
        """
        if path.state is PathState.ABANDONED:  # its window counts no more
            return
        if self._current is not path or not self._network_paths[0].is_validated:
            return
        before, path.answered_at = path.answered_at, self._network_paths[0].addr
        if before is None or before.peer[0] == path.answered_at.peer[0]:
            return
        loss, fresh = path.loss, self._new_recovery(peer_completed_address_validation=True)
        if self._coupled is not None and isinstance(loss._cc, CoupledControl):
            self._coupled.remove(loss._cc.window)
        fresh._cc.bytes_in_flight = loss._cc.bytes_in_flight
        fresh.ignore_until(now)
        fresh._rtt_initial = max(fresh._rtt_initial, UNKNOWN_RTT)
        for name in ("_cc", "_pacer", *(name for name in vars(fresh) if name.startswith("_rtt_"))):
            setattr(loss, name, vars(fresh)[name])
        path.begin_anew()

    def _payload_received(self, context: Any, plain: bytes, crypto_frame_required: bool = False) -> tuple[bool, bool]:
        self._path_frames.eliciting = False
        if context.time > self._current.heard_at:
            self._current.heard(context.time)
        eliciting, probing = super()._payload_received(context, plain, crypto_frame_required)
        return eliciting and self._path_frames.eliciting, probing

    def _path_named(self, path_id: int, frame_type: int) -> Path | None:
        """None: it was abandoned, and what is said of it means nothing any more."""
        if not self._agreed or path_id > self._max_path_id:
            raise QuicConnectionError(QuicErrorCode.PROTOCOL_VIOLATION, frame_type, f"there is no path {path_id}")
        self._add_paths()
        return self._paths.get(path_id)

    def _handle_path_ack(self, context: Any, frame_type: int, buf: Any) -> None:
        path = self._path_named(buf.pull_uint_var(), frame_type)
        self._take_ack(path, context, frame_type, buf, frame_type == PathFrame.PATH_ACK_ECN)

    def _handle_ack_frame(self, context: Any, frame_type: int, buf: Any) -> None:
        if context.epoch is Epoch.ONE_RTT and self._agreed:
            self._take_ack(self._paths.get(0), context, frame_type, buf, frame_type == QuicFrameType.ACK_ECN)
        else:
            super()._handle_ack_frame(context, frame_type, buf)

    def _take_ack(self, path: Path | None, context: Any, frame_type: int, buf: Any, ecn: bool) -> None:
        acknowledged, delay = self._pull_ack(frame_type, buf, ecn)
        if path is not None and path.state is not PathState.ABANDONED:
            self._acknowledged(path, acknowledged, delay, context, frame_type)

    @staticmethod
    def _pull_ack(frame_type: int, buf: Any, ecn: bool) -> tuple[RangeSet, int]:
        try:
            acknowledged, delay = pull_ack_frame(buf)
        except BufferReadError:
            raise
        except ValueError as error:
            raise QuicConnectionError(QuicErrorCode.FRAME_ENCODING_ERROR, frame_type, str(error)) from error
        if ecn:
            for _ in range(3):
                buf.pull_uint_var()
        return acknowledged, delay

    def _acknowledged(self, path: Path, acknowledged: RangeSet, delay: int, context: Any, frame_type: int) -> None:
        """`delay` as it is in the frame."""
        carrier, loss = self._current.id, path.loss
        with self._on(path):
            self._check_sent(acknowledged.bounds().stop - 1, frame_type)
            loss.peer_completed_address_validation = True
            if loss._rtt_initialized and not path.min_rtts:
                path.min_rtts[path.id] = loss._rtt_min  # of the handshake
            if carrier != path.carrier and isinstance(loss._cc, AioquicCubic):
                loss._cc.slow_start.comes_back_otherwise(path.min_rtts.get(carrier, inf), context.time)
            # A round trip that comes back over another path has another smallest one (draft-ietf-quic-multipath-21
            # section 5.4).
            loss._rtt_min = path.min_rtts.get(carrier, inf)
            sampled, in_flight, acked = loss._rtt_latest, loss.bytes_in_flight, loss.acked
            loss.on_ack_received(
                ack_rangeset=acknowledged,
                ack_delay=(delay << self._remote_ack_delay_exponent) / 1e6,
                now=context.time,
                space=path.space,
            )
            if loss._rtt_min < inf:
                path.min_rtts[carrier], path.carrier = loss._rtt_min, carrier
            else:  # it told of no round trip: what is known of the other way holds on
                loss._rtt_min = path.min_rtts.get(path.carrier, inf)
            if loss.acked != acked:
                path.heard(context.time)
                if self._network_paths[0].is_validated:
                    path.unanswered = 0
                elif path.answer_due is None:
                    path.answer_due = context.time + loss.get_probe_timeout() * 2**path.unanswered
            latest = loss._rtt_latest if loss._rtt_latest != sampled else inf
            path.queue.update(context.time, loss.acked, in_flight, latest, path.min_rtts.get(carrier, inf))
            self._answers(path, acknowledged, context.time)
            path.rate.update(context.time, loss.acked, loss._rtt_smoothed)

    def _handle_path_abandon(self, context: Any, frame_type: int, buf: Any) -> None:
        path_id, code = pull_frame(PathFrame.PATH_ABANDON, buf).numbers
        path = self._path_named(path_id, frame_type)
        if path is None:
            return
        if path.state is PathState.ABANDONED:
            path.forget_at = context.time + LINGER_TIMEOUTS * path.loss.get_probe_timeout()
        else:
            self._abandon(path, code, context.time, by_peer=True)
            self._next_path_id = max(self._next_path_id, path_id + 1)

    def _handle_path_status(self, context: Any, frame_type: int, buf: Any) -> None:
        path_id, sequence = pull_frame(PathFrame(frame_type), buf).numbers
        path = self._path_named(path_id, frame_type)
        if path is None or sequence <= path.peer_status_sequence or path.state is PathState.ABANDONED:
            return
        path.peer_status_sequence = sequence
        backup = frame_type == PathFrame.PATH_STATUS_BACKUP
        if path.peer_backup != backup:
            path.peer_backup = backup
            self._events.append(PathStatusChanged(path_id, backup))

    def _handle_path_new_connection_id(self, context: Any, frame_type: int, buf: Any) -> None:
        path = self._path_named(buf.pull_uint_var(), frame_type)
        current = self._current
        if path is None or path.state is PathState.ABANDONED:
            for _ in range(2):
                buf.pull_uint_var()
            buf.pull_bytes(buf.pull_uint8() + TOKEN_LENGTH)
            return
        with self._on(path):
            # aioquic counts the id in use besides those that wait; a path that is not open has none in use.
            spare = 0 if self._peer_cid.cid else 1
            self._local_active_connection_id_limit += spare
            try:
                super()._handle_new_connection_id_frame(context, frame_type, buf)
            finally:
                self._local_active_connection_id_limit -= spare
            if path is not current:
                self._note_validation(path, context.time)

    def _handle_path_retire_connection_id(self, context: Any, frame_type: int, buf: Any) -> None:
        path = self._path_named(buf.pull_uint_var(), frame_type)
        if path is None or path.state is PathState.ABANDONED:
            buf.pull_uint_var()
            return
        at = buf.tell()
        if path.id and buf.pull_uint_var() > path.told_ids:
            raise QuicConnectionError(QuicErrorCode.PROTOCOL_VIOLATION, frame_type, "an id that was never told")
        buf.seek(at)
        with self._on(path):
            before = {each.cid for each in self._host_cids}
            super()._handle_retire_connection_id_frame(context, frame_type, buf)
            for retired in before - {each.cid for each in self._host_cids}:
                self._path_of_id.pop(retired, None)

    def _handle_max_path_id(self, context: Any, frame_type: int, buf: Any) -> None:
        (maximum,) = pull_frame(PathFrame.MAX_PATH_ID, buf).numbers
        if not self._agreed or maximum >= 1 << 32:
            raise QuicConnectionError(QuicErrorCode.PROTOCOL_VIOLATION, frame_type, "no maximum of paths")
        assert self._peer_max_path_id is not None
        if maximum > self._peer_max_path_id:
            self._peer_max_path_id = maximum
            self._asked_for_paths = False
            self._add_paths()

    def _handle_blocked(self, context: Any, frame_type: int, buf: Any) -> None:
        """The peer has too few ids: it gets more when a path has ended, and no others."""
        first, *_ = pull_frame(PathFrame(frame_type), buf).numbers
        self._path_named(first if frame_type == PathFrame.PATH_CIDS_BLOCKED else 0, frame_type)


def carrying(space: QuicPacketSpace) -> Iterator[QuicSentPacket]:
    """Packets on their way that carry bytes of streams, oldest first."""
    return (packet for packet in space.sent_packets.values() if _parts(packet))


def take_over(space: QuicPacketSpace, most: int, delivery: Callable[[QuicDeliveryState, Part], None]) -> None:
    """Have up to `most` bytes of streams that are on their way wait to be sent again: who sends them next answers for
    them. `delivery`: what is called when one of these packets arrives all the same, or does not."""
    for packet in list(carrying(space)):
        most -= packet.sent_bytes
        if most < 0:
            return
        handlers = []
        for handler, arguments in packet.delivery_handlers:
            if (part := _part(handler, arguments)) is None:
                handlers.append((handler, arguments))
                continue
            handlers.append((delivery, (part,)))
            if arguments[2]:
                handlers.append((handler, (part.stop, part.stop, True)))  # the end of the stream, if it comes first
            part.sender.on_data_delivery(QuicDeliveryState.LOST, part.start, part.stop, fin=False)
        packet.delivery_handlers[:] = handlers


def _part(handler: Any, arguments: Any) -> Part | None:
    """The bytes of a stream that a handler answers for: not where it is about its end alone, or about a reset."""
    sender = getattr(handler, "__self__", None)
    if not isinstance(sender, QuicStreamSender) or handler != sender.on_data_delivery:
        return None
    start, stop, _ = arguments
    return Part(sender, start, stop) if stop > start else None


def _parts(packet: QuicSentPacket) -> tuple[Part, ...]:
    """What it carries of streams."""
    return tuple(part for each in packet.delivery_handlers if (part := _part(*each)))


def _repeated(packet: QuicSentPacket) -> tuple[Part, ...]:
    """What of it has been sent again since."""
    return tuple(part for _, arguments in packet.delivery_handlers for part in arguments if isinstance(part, Part))


def _overlap(one: Part | range, other: Part | range) -> range:
    """The bytes that are in both."""
    return range(max(one.start, other.start), min(one.stop, other.stop))


def _taken(given_up: dict[int, tuple[Part, ...]], acknowledged: RangeSet) -> Iterator[tuple[Part, ...]]:
    """Of those that are acknowledged, which are not given up any more."""
    for block in acknowledged:
        if not given_up:
            return
        first, last = next(iter(given_up)), next(reversed(given_up))
        for number in range(max(first, block.start), min(last + 1, block.stop)):
            if number in given_up:
                yield given_up.pop(number)


def _cut_out(part: Part, packet: QuicSentPacket) -> None:
    """What the packet has of it is acknowledged now, and the packet answers for the rest alone."""
    handlers = []
    for handler, arguments in packet.delivery_handlers:
        has = _part(handler, arguments)
        if has is None or has.sender is not part.sender or not (both := _overlap(part, has)):
            handlers.append((handler, arguments))
            continue
        part.sender.on_data_delivery(QuicDeliveryState.ACKED, both.start, both.stop, fin=False)
        fin = arguments[2]
        if has.start < both.start:
            handlers.append((handler, (has.start, both.start, False)))
        if both.stop < has.stop or fin:
            handlers.append((handler, (both.stop, has.stop, fin)))
    packet.delivery_handlers[:] = handlers


def _spare(part: Part) -> None:
    """It has arrived after all: what waits of it to be sent again need not be."""
    for each in list(part.sender._pending):
        if both := _overlap(part, each):
            part.sender._pending.subtract(both.start, both.stop)
            part.sender.on_data_delivery(QuicDeliveryState.ACKED, both.start, both.stop, fin=False)
