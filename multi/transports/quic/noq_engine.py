"""noq-proto behind a PathEngine: all of QUIC in Rust, several paths included (built by `make native`).

The only module that imports `multi_noq`, which is described in `native/multi_noq.pyi`. Certificates are judged by the
same code as with the other engines, signatures by rustls.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from random import Random
from typing import Any, NamedTuple, cast

import multi_noq
from aioquic.quic.events import (
    ConnectionIdIssued,
    ConnectionIdRetired,
    ConnectionTerminated,
    DatagramFrameReceived,
    HandshakeCompleted,
    StopSendingReceived,
    StreamDataReceived,
    StreamReset,
)
from aioquic.quic.packet import QuicProtocolVersion
from aioquic.tls import Alert, AlertDescription
from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from multi.errors import TransportError
from multi.multipath.cap import QueueBound, RateMeter
from multi.multipath.facts import VALIDATION_TIME, PathError, PathFacts, PathState
from multi.multipath.policy import AckPath, PathPolicy
from multi.multipath.scheduling import RETRY, PathView, Progress, choose, first_overtaking, runs_dry, usable, view_of
from multi.multipath.silence import ProbeWatch, SilenceWatch
from multi.transports.base import TlsSettings
from multi.transports.certificates import check_own, fault_of, refused
from multi.transports.quic.engine import (
    FIRST_WINDOW,
    LANE_STREAMS,
    RECEIVE_WINDOW,
    Ending,
    EngineSettings,
    PathClosed,
    PathEngine,
    PathOpened,
    PathStatusChanged,
    RoundTrips,
    Secrets,
    answering,
    round_trips_of,
    third_party,
)
from multi.transports.quic.library_engine import promised_message
from multi.transports.quic.packets import LONG_HEADER
from multi.transports.quic.udp_port import Burst, PeerAddress
from multi.transports.quic.verification import UNREADABLE, verify
from multi.transports.sockets import transport_error
from multi.transports.tls import ALPN
from multi.types import Buffer

VERSION = "0.17.0"
"""Of `multi_noq`. Another is one that was built before, and not since."""
INITIAL_RTT = 0.1  # seconds; what aioquic assumes, a lost first flight is repeated after three times as much

MAX_EARLY = 8  # addresses of which something is kept that comes before the end of the handshake

MAX_AT_ONCE = 8 * 1350  # bytes that a scheduler is asked about; a burst has more where the path takes it

if multi_noq.VERSION != VERSION:
    raise TransportError(f"the QUIC engine 'noq' is of version {multi_noq.VERSION}, not {VERSION}: make native")


@dataclass(frozen=True)
class _Configuration:
    native: multi_noq.Config
    issuers: bytes
    server_name: str | None
    policy: PathPolicy | None


class _Known(NamedTuple):
    """What was read last, until something happens."""

    unacknowledged: int
    unsent: int
    window: int
    in_flight: int
    round_trips: RoundTrips


class NoqEngine(PathEngine):
    """See `QuicEngine` and `PathEngine`."""

    VERSIONS = (QuicProtocolVersion.VERSION_1,)

    def __init__(
        self, configuration: Any, datagram_size: int, original_id: bytes | None = None, retry_id: bytes | None = None
    ) -> None:
        self._configuration = cast(_Configuration, configuration)
        native = self._configuration.native
        self._connection = (
            multi_noq.Connection.client(native, datagram_size)
            if self._configuration.server_name is not None
            else multi_noq.Connection.server(native, datagram_size, original_id if retry_id is not None else None)
        )
        self._events: deque[Any] = deque()
        self._heard = False
        """There may be events that were not fetched."""
        self._closing: ConnectionTerminated | None = None
        self._known: _Known | None = None
        self._written = 0
        self._sharing: _Sharing | None = None
        self._early: dict[PeerAddress, bytes] | None = {} if self._configuration.server_name is None else None
        """A server's until the handshake ends: the first datagram from each address that has overtaken the end of it.
        Nobody can read it yet, and the engine would drop it. A path would be asked for again only after 0.3 s."""

    @classmethod
    def configure(cls, settings: EngineSettings, seed: int | None = None) -> Any:
        """As the others; `seed` decides whatever is drawn at random and would make runs differ, connection ids too."""
        tls, issuers, policy, ids = settings.tls, settings.issuers, settings.policy, settings.ids
        if policy is not None and policy.ack_path is AckPath.ALL:
            raise TransportError("the QUIC engine 'noq' sends no copies of acknowledgements (ack_path)")
        own: dict[str, Any] = {}
        if tls.cert is not None and tls.key is not None:
            check_own(tls.cert, tls.key)
            own = {"chain": _chain_of(tls), "key": _key_of(tls)}
        is_client = settings.server_name is not None
        try:
            native = multi_noq.Config(
                alpn=ALPN.encode(),
                new_id=ids.new if seed is None else partial(Random(seed).randbytes, ids.length),
                streams=0 if is_client else len(LANE_STREAMS),
                first_window=FIRST_WINDOW,
                window=RECEIVE_WINDOW,
                congestion=settings.quic.congestion if policy is None else policy.congestion,
                idle_timeout=settings.quic.idle_timeout,
                initial_rtt=INITIAL_RTT,
                paths=1 if policy is None else policy.paths,
                ask=bool(issuers) and not is_client,
                reset_token=ids.reset_token if ids.reset_key else None,
                judge=partial(_judged, issuers, settings.server_name) if issuers and is_client else None,
                seed=seed.to_bytes(32, "big") if seed is not None else None,
                **own,
            )
        except ValueError as error:
            if own:
                raise TransportError(f"cannot use {tls.key} as a private key: {error}") from error
            raise TransportError(f"the QUIC engine 'noq': {error}") from error
        return _Configuration(native, issuers, settings.server_name, policy)

    def channel_binding(self, certificate: bytes) -> bytes:
        secrets = Secrets()
        for label, secret in self._connection.secrets():
            secrets.write(f"{label} - {secret.hex()}")
        return secrets.channel_binding(certificate)

    # What goes in

    def connect(self, address: PeerAddress, now: float) -> None:
        configuration = self._configuration
        self._happened()
        try:
            self._connection.connect(configuration.native, address, configuration.server_name or "", now)
        except ValueError as error:  # a name that is none
            raise TransportError(str(error)) from error

    def receive(self, data: bytes, segment: int, address: PeerAddress, now: float) -> None:
        self._happened()
        early = self._early
        if early is not None and data and not data[0] & LONG_HEADER:
            if len(early) < MAX_EARLY:
                early.setdefault(address, bytes(data[:segment]))
            return
        with third_party:
            self._connection.receive(data, segment, address, now)
        if early is not None:
            self._fetch()
            if self._early is None:
                for source, overtaking in early.items():
                    self.receive(overtaking, len(overtaking), source, now)

    def handle_timer(self, now: float) -> None:
        self._happened()
        if self._sharing is not None:
            self._sharing.retry_at = None
        with third_party:
            self._connection.handle_timer(now)

    def write(self, stream_id: int, data: Buffer, end: bool = False) -> None:
        if self.closing is None:
            self._known = None
            self._written += len(data)
            with third_party:
                self._connection.write(stream_id, data, end)

    @property
    def message_size(self) -> int:
        fitting = self._connection.message_size()
        return max(fitting, promised_message(0)) if fitting else 0

    def send_message(self, data: bytes) -> bool:
        if len(data) > self._connection.message_size():
            return False
        if self.closing is None:
            self._known = None
            with third_party:
                self._connection.send_message(data)
        return True

    def close(self, error_code: int, reason: str = "") -> None:
        if self.closing is None:
            with third_party:
                self._connection.close(error_code, reason)
            self._sharing = None  # nothing is to be decided any more
            self._closing = ConnectionTerminated(error_code, None, reason)

    # What comes out

    def next_event(self) -> Any:
        if not self._events and self._heard:
            self._fetch()
        return self._events.popleft() if self._events else None

    def bursts(self, now: float) -> list[Burst]:
        self._happened()
        with third_party:
            if self._sharing is None:
                return [Burst(*made) for made in cast(Sequence[Any], self._connection.bursts(now))]
            return self._sharing.bursts(now, self.waiting)

    def next_timer(self) -> float | None:
        sharing = self._sharing
        of_paths = sharing.times() if sharing is not None else []
        times = [self._connection.next_timer(), *of_paths]
        return min((at for at in times if at is not None), default=None)

    # What is known

    @property
    def connection_id(self) -> bytes:
        return self._connection.connection_id

    @property
    def closing(self) -> ConnectionTerminated | None:
        if self._heard:
            self._fetch()
        return self._closing

    @property
    def peer_certificate(self) -> bytes:
        shown = self._connection.peer_certificates()
        return shown[0] if shown else b""

    def verify_client_certificate(self) -> None:
        shown = self._connection.peer_certificates()
        if not shown:
            raise TransportError("the client showed no certificate")
        refusal = _judged(self._configuration.issuers, None, shown)
        if refusal is not None:
            raise refused("the client", fault_of(refusal[1]))

    def has_stream(self, stream_id: int) -> bool:
        # A client opens those it writes to.
        return self._configuration.server_name is not None or self._connection.has_stream(stream_id)

    def unsent(self) -> int:
        return self._now_known().unsent

    def unacknowledged(self) -> int:
        return self._now_known().unacknowledged

    def acknowledged(self) -> int:
        return self._written - self._now_known().unacknowledged

    def all_acknowledged(self) -> bool:
        return self._connection.all_acknowledged()

    @property
    def congestion_window(self) -> int:
        return self._now_known().window

    @property
    def bytes_in_flight(self) -> int:
        return self._now_known().in_flight

    @property
    def round_trips(self) -> RoundTrips:
        return self._now_known().round_trips

    # Paths

    @property
    def multipath(self) -> bool:
        return self._connection.multipath

    @property
    def takes_paths(self) -> bool:
        return self._connection.takes_paths

    def open_path(self, address: PeerAddress, now: float, backup: bool = False) -> int | None:
        if self._configuration.server_name is None or not self._connection.takes_paths:
            return None
        self._happened()
        with third_party:
            return self._connection.open_path(address, backup, now)

    def abandon_path(self, path: int, code: int, now: float) -> None:
        self._happened()
        with third_party:
            self._connection.abandon_path(path, code, now)

    def suspect_path(self, path: int, now: float) -> None:
        self._happened()
        with third_party:
            self._connection.suspect_path(path, now)

    def set_backup(self, path: int, backup: bool) -> None:
        self._happened()
        with third_party:
            self._connection.set_backup(path, backup)

    def paths(self) -> Sequence[PathFacts]:
        return [_facts(path) for path in self._connection.paths()]

    # Inside

    def _happened(self) -> None:
        self._heard = True
        self._known = None

    def _fetch(self) -> None:
        self._heard = False
        for name, *values in self._connection.events():
            event = self._event(name, values)
            if event is not None:
                self._events.append(event)

    def _event(self, name: str, values: list[Any]) -> Any:
        match name:
            case "data":
                return StreamDataReceived(stream_id=values[0], data=values[1], end_stream=values[2])
            case "message":
                return DatagramFrameReceived(data=values[0])
            case "connected":
                self._early = None
                self._begin_paths()
                return HandshakeCompleted(alpn_protocol=ALPN, early_data_accepted=False, session_resumed=False)
            case "issued":
                return ConnectionIdIssued(connection_id=values[0])
            case "retired":
                return ConnectionIdRetired(connection_id=values[0])
            case "reset":
                return StreamReset(stream_id=values[0], error_code=values[1])
            case "stopped":
                return StopSendingReceived(stream_id=values[0], error_code=values[1])
            case "path_opened":
                return PathOpened(*values)
            case "path_closed":
                return PathClosed(*values)
            case "path_status":
                return PathStatusChanged(*values)
        assert name == "lost", name
        if self._closing is None:
            code, frame, reason, ending = values
            self._sharing, self.ending = None, Ending(ending)
            self._closing = ConnectionTerminated(error_code=code, frame_type=frame, reason_phrase=reason)
        return None

    def _begin_paths(self) -> None:
        policy = self._configuration.policy
        if policy is not None and self._connection.multipath:
            self._sharing = _Sharing(self._connection, policy)
            # Also for `best`: where one path carries all acknowledgements, all fall silent for the peer when it dies.
            self._connection.set_ack_path("same")

    def _now_known(self) -> _Known:
        if self._known is None:
            unacknowledged, unsent, _ = self._connection.outstanding()
            unsent += self._connection.queued_messages()
            paths = answering(self.paths())
            window = sum(path.congestion_window for path in paths)
            in_flight = sum(path.bytes_in_flight for path in paths)
            self._known = _Known(unacknowledged, unsent, window, in_flight, round_trips_of(paths))
        return self._known


class _Sharing:
    """Which path gets what: asks the policy's scheduler for each burst, and bounds what queues on a path."""

    def __init__(self, connection: multi_noq.Connection, policy: PathPolicy) -> None:
        self._connection = connection
        self._scheduler = policy.scheduler()
        self._max_queue = policy.max_queue
        self._meters: dict[int, RateMeter] = {}
        self._queues: dict[int, QueueBound] = {}
        self._seen_at: dict[int, float] = {}
        self._first_rtt: dict[int, float] = {}
        """What the peer's first answer on a path took: the engine tells nothing before there are acknowledgements."""
        self._unanswered: dict[int, float] = {}
        """When each path is given up if nobody answers on it first; inf = somebody has."""
        self.give_up_at: float | None = None
        """When the next one is."""
        self.silence = SilenceWatch()
        self.probes = ProbeWatch()
        self._progress = Progress()
        self.retry_at: float | None = None
        """When a scheduler that wanted to wait is asked again."""

    def bursts(self, now: float, waiting: int) -> list[Burst]:
        """`waiting`: see `PathEngine.waiting`."""
        facts = self._facts()
        for path_id in self._never_answered(facts, now):
            self._connection.abandon_path(path_id, PathError.PATH_UNSTABLE_OR_POOR, now)
            facts = self._facts()
        silent = self.silence.update(facts, now)
        for path_id in silent + self.probes.update(facts, now):
            self._connection.suspect_path(path_id, now)
            facts = self._facts()
        for path in facts:
            if path.state is PathState.SUSPECT:  # while it was silent it delivered nothing: that is not what it carries
                self._meters.pop(path.id, None)
        paths = usable([self._known(path, now) for path in facts])
        views = [self._view(path, now) for path in paths]
        self._connection.set_path_order([view.id for view in sorted(views, key=lambda view: (not view.rtt, view.rtt))])
        made, paced = self._shared(views, waiting, now)
        for path, view in zip(paths, views, strict=True):
            sent = sum(len(one.data) for one in made if one.path == path.id)
            in_flight = path.bytes_in_flight + sent
            if path.id not in paced:
                self._meters[path.id].sent(path.acked, in_flight, view.congestion_window)
            if path.rtt:
                self._queues[path.id].update(now, path.acked, in_flight, path.rtt, path.min_rtt)
        return made

    def times(self) -> list[float | None]:
        """When `bursts` is to be called, whatever the engine waits for."""
        return [self.retry_at, self.silence.due_at, self.probes.due_at, self.give_up_at]

    def _facts(self) -> list[PathFacts]:
        return [_facts(path) for path in self._connection.paths()]

    def _never_answered(self, facts: list[PathFacts], now: float) -> list[int]:
        """Paths to be given up; each is told once. The engine would challenge them while the connection lives."""
        known, self._unanswered = self._unanswered, {}
        due = []
        for path in facts:
            at = known.get(path.id, now + VALIDATION_TIME) if path.state is PathState.VALIDATING else inf
            if path.state is PathState.VALIDATING and at == inf:  # its peer has another address: it is another way
                self._meters.pop(path.id, None)
                self._queues.pop(path.id, None)
            if at <= now:
                due.append(path.id)
                at = inf
            self._unanswered[path.id] = at
        self.give_up_at = min((at for at in self._unanswered.values() if at < inf), default=None)
        for path_id in known.keys() - self._unanswered.keys():
            self._forget(path_id)
        return due

    def _forget(self, path_id: int) -> None:
        """It is gone. No id is used twice, and a connection may have any number of paths one after the other."""
        self._meters.pop(path_id, None)
        self._queues.pop(path_id, None)
        self._seen_at.pop(path_id, None)
        self._first_rtt.pop(path_id, None)

    def _known(self, path: PathFacts, now: float) -> PathFacts:
        if path.rtt:
            return path
        seen_at = self._seen_at.setdefault(path.id, now)
        if path.state is PathState.VALIDATING:
            return path
        first = self._first_rtt.setdefault(path.id, now - seen_at)
        return path._replace(rtt=first, rtt_variation=first / 2, min_rtt=first)

    def _shared(self, views: list[PathView], waiting: int, now: float) -> tuple[list[Burst], set[int]]:
        """What is sent, and the paths that took nothing although their windows would have: their pacers wait.

        Each stream is asked about by itself: what is little may be better off waiting for a near path, while what is
        much leaves on a far one.
        """
        made: list[Burst] = []
        paced: set[int] = set()
        while len(views) > 1 and any(view.credit > 0 for view in views):
            chosen = self._next(views, waiting, now)
            if chosen is None:
                break
            sent = 0
            while not sent and (burst := self._made(now, 1)):  # what is no data of streams goes before, on any path
                sent = sum(len(one.data) for one in burst if one.path == chosen)
                made += burst
            if not sent:
                paced.add(chosen)
            views = [_after(view, sent) if view.id == chosen else view for view in views]
        self._connection.hide_streams([])
        # Whatever is no data of streams may leave anywhere. What has nothing more to say is not held up by a window.
        waits = bool(self._connection.unsent_in_turn())
        self._connection.set_carriers([] if len(views) > 1 and waits else [view.id for view in views] or None)
        made += self._made(now)
        if len(views) == 1 and waits and not made:
            paced.add(views[0].id)
        return made, paced

    def _next(self, views: list[PathView], waiting: int, now: float) -> int | None:
        """The path of what leaves next: the first stream that has one now, and no other, is let out there."""
        unsent = self._connection.unsent_in_turn()
        if self._progress.due(now):
            self._progress.look(self._connection.in_order(), views, now)
        if rescued := self._progress.rescue(views, self._connection.oldest_data, now):
            slow, fast = rescued
            if self._progress.slowed(slow):
                self._meters[slow.id].late(slow.in_flight)
            return self._repeated(slow, fast)
        if self._connection.outstanding()[2] or not (unsent or waiting):
            # The peer takes no more than what has its turn now, or all has been sent: nothing else will follow.
            overtaking = self._overtaking(views, sum(room for _, room, _ in unsent), now)
            if overtaking is not None:
                return overtaking
        for stream, room, shut_out in unsent:
            backlog = room + shut_out + (waiting if stream == LANE_STREAMS[-1] else 0)
            chosen = choose(self._scheduler, views, min(room, MAX_AT_ONCE), backlog, now)
            if chosen:
                self._connection.hide_streams([other for other, _, _ in unsent if other != stream])
                self._connection.set_carriers(chosen[:1])
                return chosen[0]
            self.retry_at = now + RETRY
        return None

    def _overtaking(self, views: list[PathView], room: int, now: float) -> int | None:
        """A path that delivers clearly sooner what a slow one carries, and has, but for `room` bytes, nothing else to
        send: it is to be sent again there. The reader waits for nothing but that."""
        able = [view for view in views if view.rtt and view.credit > 0 and room <= view.congestion_window]
        for slow in views if able else ():
            carried = self._connection.oldest_data(slow.id)
            if carried is None:
                continue
            sent_at, size = carried
            others = [view for view in able if view.id != slow.id and view.credit >= size]
            others = [view for view in others if runs_dry(view, room, slow, sent_at, now)]
            if not others:
                continue
            at, fast = first_overtaking(slow, sent_at, others, size)
            if at <= now:
                return self._repeated(slow, fast)
            self.retry_at = at if self.retry_at is None else min(at, self.retry_at)
        return None

    def _repeated(self, slow: PathView, fast: PathView) -> int:
        self._connection.repeat_data(slow.id, fast.credit)
        self._connection.hide_streams([])
        self._connection.set_carriers([fast.id])
        return fast.id

    def _made(self, now: float, most: int = 0) -> list[Burst]:
        return [Burst(*made) for made in cast(Sequence[Any], self._connection.bursts(now, most))]

    def _view(self, path: PathFacts, now: float) -> PathView:
        meter = self._meters.setdefault(path.id, RateMeter())
        meter.update(now, path.acked, path.rtt)
        queue = self._queues.setdefault(path.id, QueueBound(self._max_queue))
        enough = queue.most(path.congestion_window)
        self._connection.set_enough_in_flight(path.id, enough if enough < path.congestion_window else 0)
        bounded = path._replace(congestion_window=enough)
        return view_of(bounded, meter.known, max(0, enough - path.bytes_in_flight))


def _after(view: PathView, sent: int) -> PathView:
    """What is left of a path's credit; nothing if it took nothing, for then its pacer waits."""
    return view._replace(credit=max(0, view.credit - sent) if sent else 0, in_flight=view.in_flight + sent)


def _facts(path: multi_noq.Path) -> PathFacts:
    (
        (number, validated, suspect, backup, slow_start),
        times,
        (window, in_flight, sent, received),
        (lost_bytes, lost, _),
    ) = path
    state = PathState.SUSPECT if suspect else PathState.ACTIVE
    return PathFacts(
        number,
        state if validated else PathState.VALIDATING,
        backup,
        *times,
        congestion_window=window,
        bytes_in_flight=in_flight,
        acked=max(0, sent - in_flight - lost_bytes),
        sent=sent,
        received=received,
        lost=lost,
        slow_start=slow_start,
    )


def _judged(issuers: bytes, server_name: str | None, shown: Sequence[bytes]) -> tuple[int, str] | None:
    """What is wrong with certificates (DER): a TLS alert and words. Of a server with this name, or of a client."""
    try:
        certificate, *chain = (x509.load_der_x509_certificate(one) for one in shown)
        verify(certificate, chain, issuers, server_name)
    except Alert as error:
        return int(error.description), str(error)
    except UNREADABLE as error:
        return int(AlertDescription.bad_certificate), str(error)
    return None


def _chain_of(tls: TlsSettings) -> list[bytes]:
    assert tls.cert is not None
    return [one.public_bytes(Encoding.DER) for one in x509.load_pem_x509_certificates(tls.cert.read_bytes())]


def _key_of(tls: TlsSettings) -> bytes:
    assert tls.key is not None
    try:
        content = tls.key.read_bytes()
    except OSError as error:
        raise transport_error(error, f"cannot read {tls.key}") from error
    key = load_pem_private_key(content, None)  # `check_own` has looked at it
    return key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
