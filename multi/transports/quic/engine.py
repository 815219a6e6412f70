"""One QUIC connection as a channel uses it: bytes and time in; datagrams, events and facts out.

`QuicEngine` is what every implementation gives; one with several paths (RFC 10069) is a `PathEngine`. Each is adapted
by a module of its own, which alone knows its names: `aioquic_engine`, `qh3_engine`, `noq_engine`, and `mpquic` for
aioquic with paths. The events are aioquic's. Both ends of a connection may use different ones: what they export for
channel binding is defined here, by RFC 8446 and not by an implementation.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib import import_module
from typing import Any, ClassVar, NamedTuple, cast

from aioquic.quic.events import ConnectionTerminated

from multi.errors import DependencyError, TransportError
from multi.multipath.facts import PathFacts, PathState
from multi.multipath.policy import PathPolicy
from multi.transports.base import TlsSettings
from multi.transports.quic.connection_ids import PLAIN_IDS, ConnectionIds
from multi.transports.quic.settings import QuicSettings
from multi.transports.quic.udp_port import Burst, PeerAddress
from multi.types import Buffer

logger = logging.getLogger("multi.transports")

LANE_STREAMS = (0, 4, 8)  # ids of the first bidirectional streams a client opens (RFC 9000 section 2.1)


class Ending(StrEnum):
    """How a connection has ended."""

    CLOSED = ""
    """One of the two has closed it, or broke the rules."""
    SILENT = "silent"
    """Nothing came for as long as an idle timeout."""
    GONE = "gone"
    """The server has said that it has it no more: a stateless reset (RFC 9000 section 10.3)."""


FIRST_WINDOW = 64 * 1024
"""Bytes a peer may send before any have been taken. The window grows with what has: a session takes less than
`multi.protocol.dispatch.MAX_HELD` of a peer that has not proved itself."""

# Session credit is the flow control: this only has to stay out of its way.
RECEIVE_WINDOW = 4 * 1024 * 1024  # bytes that a peer may send ahead of what is missing


class EngineError(TransportError):
    """An engine raised where it should not have: that connection is lost, the others must not notice."""


class _ThirdParty:
    """The one place where bare exceptions are caught: what a stranger's packet makes an engine raise is not known.

    Raises EngineError instead, also for a panic in Rust, which is no Exception. One object serves all calls: a context
    manager made of a generator costs as much as some of them.
    """

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if error is None or isinstance(error, (KeyboardInterrupt, SystemExit, GeneratorExit)):
            return
        logger.error("a QUIC engine failed", exc_info=error)
        raise EngineError(f"QUIC engine failed: {error!r}") from error


third_party = _ThirdParty()


class RoundTrips(NamedTuple):
    """Seconds; 0 = unknown."""

    smoothed: float = 0.0
    variation: float = 0.0
    smallest: float = 0.0


def answering(paths: Sequence[PathFacts]) -> Sequence[PathFacts]:
    """Those whose sums and round trips stand for the connection: who answers, or all where nobody does."""
    return [path for path in paths if path.state is PathState.ACTIVE] or paths


def round_trips_of(paths: Sequence[PathFacts]) -> RoundTrips:
    """Of the slowest path that carries something, for that is when the last of it arrives; else of the fastest."""
    known = [path for path in paths if path.rtt]
    if not known:
        return RoundTrips()
    busy = [path for path in known if path.bytes_in_flight]
    chosen = max(busy, key=_rtt) if busy else min(known, key=_rtt)
    return RoundTrips(chosen.rtt, chosen.rtt_variation, min(path.min_rtt for path in known))


def _rtt(path: PathFacts) -> float:
    return path.rtt


class PathOpened(NamedTuple):
    """An event: the peer has answered on it, so data may be sent there."""

    path: int
    address: PeerAddress


class PathClosed(NamedTuple):
    """An event: it was abandoned by one of both ends."""

    path: int
    code: int
    """RFC 10069's, or one of the application."""
    by_peer: bool


class PathStatusChanged(NamedTuple):
    """An event: the peer asks not to use it while others work, or to use it again."""

    path: int
    backup: bool


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """What the connections of a listener, or of a client to one server, have in common."""

    quic: QuicSettings
    tls: TlsSettings
    issuers: bytes = b""
    """PEM of those who may have issued the peer's certificate; empty = a client accepts any, a server asks for none."""
    server_name: str | None = None
    """Of the server that a client connects to; None = these are a server's."""
    policy: PathPolicy | None = None
    """Of a `PathEngine`; None = the peer is not told that there might be paths."""
    ids: ConnectionIds = PLAIN_IDS


class QuicEngine(ABC):
    """One connection. What makes the implementation work raises EngineError where that fails."""

    VERSIONS: ClassVar[tuple[int, ...]]
    """Of QUIC, those it speaks."""
    FINDS_SIZE: ClassVar[bool] = True
    """It notices that large datagrams vanish, and sends smaller ones from then on."""

    @abstractmethod
    def __init__(
        self, configuration: Any, datagram_size: int, original_id: bytes | None = None, retry_id: bytes | None = None
    ) -> None:
        """A connection that `connect` begins, or the answer to a client's first packet.

        `configuration` is from `configure`, `datagram_size` the largest in bytes that is sent and asked of the peer
        (RFC 9000 section 18.2), `original_id` the destination id of the client's first packet (a client without one
        makes it up; noq always does), `retry_id` the one a Retry gave it. Every id that it issues is made by the `ids`
        of its configuration, but for the spare ones of qh3, whose core makes them.
        """

    @classmethod
    @abstractmethod
    def configure(cls, settings: EngineSettings) -> Any:
        """What the implementation makes of the settings, for all connections that have them.

        Raises TransportError if a file cannot be read, or the engine cannot do what is asked.
        """

    @abstractmethod
    def channel_binding(self, certificate: bytes) -> bytes:
        """What names this connection and the server's certificate (DER) for proofs; once, after the handshake."""

    # What goes in

    @abstractmethod
    def connect(self, address: PeerAddress, now: float) -> None:
        """Begin the handshake with a server."""

    @abstractmethod
    def receive(self, data: bytes, segment: int, address: PeerAddress, now: float) -> None:
        """Take one or more datagrams of `segment` bytes each, the last may be shorter."""

    @abstractmethod
    def handle_timer(self, now: float) -> None:
        """`next_timer` is over."""

    @abstractmethod
    def write(self, stream_id: int, data: Buffer, end: bool = False) -> None:
        """Queue bytes; they are copied into the stream's retransmission buffer. Nothing once the connection ends."""

    @property
    def message_size(self) -> int:
        """Bytes of the largest message for `send_message`, with HandshakeCompleted; 0 = one of both ends takes none."""
        return 0

    def send_message(self, data: bytes) -> bool:
        """Queue a DATAGRAM frame (RFC 9221): it may be lost. Nothing once the connection ends.

        False: no datagram that the network carries has room for it now, and it was not queued.
        """
        raise NotImplementedError("this engine has a `message_size` of 0")

    @abstractmethod
    def close(self, error_code: int, reason: str = "") -> None:
        """Queue an application close; bytes not yet acknowledged are lost. Nothing once the connection ends."""

    # What comes out

    @abstractmethod
    def next_event(self) -> Any:
        """What happened since, one after the other, then None.

        Events are those of `aioquic.quic.events` or have their names and fields: HandshakeCompleted,
        StreamDataReceived, ConnectionIdIssued and ConnectionIdRetired (of every id by which the peer may address it),
        StreamReset, StopSendingReceived, DatagramFrameReceived; of a `PathEngine` also those defined above.
        """

    @abstractmethod
    def bursts(self, now: float) -> list[Burst]:
        """What is to be sent now, in this order."""

    @abstractmethod
    def next_timer(self) -> float | None:
        """When `handle_timer` is due."""

    # What is known

    @property
    @abstractmethod
    def connection_id(self) -> bytes:
        """The one the peer uses first; further ones are told as events."""

    @property
    @abstractmethod
    def closing(self) -> ConnectionTerminated | None:
        """Why the connection is ending, at once and not only after the draining period."""

    ending = Ending.CLOSED
    """How, once there is a `closing`."""

    @property
    @abstractmethod
    def peer_certificate(self) -> bytes:
        """DER, or empty."""

    @abstractmethod
    def verify_client_certificate(self) -> None:
        """Raise TransportError unless the client showed a certificate that one of the `issuers` has issued."""

    @abstractmethod
    def has_stream(self, stream_id: int) -> bool:
        """Whether it can be written."""

    @abstractmethod
    def unsent(self) -> int:
        """Bytes of all streams that wait to be sent."""

    @abstractmethod
    def unacknowledged(self) -> int:
        """Bytes of all streams not yet acknowledged, sent or not."""

    @abstractmethod
    def acknowledged(self) -> int:
        """Bytes of all streams acknowledged so far, in order or not."""

    @abstractmethod
    def all_acknowledged(self) -> bool:
        """Everything written arrived, the ends of finished streams included."""

    @property
    @abstractmethod
    def congestion_window(self) -> int:
        """Bytes, of all paths that are not suspect together."""

    @property
    @abstractmethod
    def bytes_in_flight(self) -> int:
        """Of all paths that are not suspect together."""

    @property
    @abstractmethod
    def round_trips(self) -> RoundTrips:
        """Where there are several paths, as `round_trips_of` has it."""


class PathEngine(QuicEngine):
    """One connection with several paths. It decides how `PathPolicy` says; when paths come and go is told from outside.

    A path is known by the addresses of its ends: a client with a socket on each interface gives each a `PeerAddress`
    of its own, with which datagrams come in and by which bursts are led to their socket.

    What every engine keeps, since without it transfers stood still: when a path's probe timeout passes, what is in
    flight there is sent on others at once and the path gets no more data, but a PING, until that is answered; what
    comes on a suspect path is acknowledged on another; pure acknowledgements carry a PING now and then, else nobody
    learns that they are lost; a server issues the ids of all paths as soon as it can send under its 1-RTT keys;
    `RECEIVE_WINDOW` bounds gaps in what has come, by no fewer of them than it has datagrams.
    """

    waiting = 0
    """Bytes of the last lane that will be written as soon as there is room: to schedulers they wait here."""

    @property
    @abstractmethod
    def multipath(self) -> bool:
        """Both ends can do it; known with HandshakeCompleted."""

    @property
    @abstractmethod
    def takes_paths(self) -> bool:
        """And the peer has not said `disable_active_migration`: then its first path stays the only one."""

    @abstractmethod
    def open_path(self, address: PeerAddress, now: float, backup: bool = False) -> int | None:
        """Open a path from and to there, a client only.

        Returns its id, and PathOpened or PathClosed follows. None: the peer takes none, or has given no id for it yet;
        then ask again, it was told.
        """

    def announce_path(self, path: int, host: bytes, port: int) -> None:
        """Tell the server that a path it was opened on has this address, packed, and port at the client's end.

        Only where both ends have uniflows, a private mode of the engine aioquic.
        """

    @abstractmethod
    def abandon_path(self, path: int, code: int, now: float) -> None:
        """Give it up: what is in flight there is sent on others, which tell the peer. Not the last one."""

    @abstractmethod
    def suspect_path(self, path: int, now: float) -> None:
        """Its network went away: as if its probe timeout had passed."""

    @abstractmethod
    def set_backup(self, path: int, backup: bool) -> None:
        """Tell the peer to use it only where no other works, or as any other; this end does the same."""

    @abstractmethod
    def paths(self) -> Sequence[PathFacts]:
        """Those that are not abandoned, in order of their ids."""


_CLASSES = {"aioquic": "AioquicEngine", "noq": "NoqEngine", "qh3": "Qh3Engine"}
"""By the name in `quic_config`; each in the module of that name."""

_REMEDIES = {
    "qh3": "pip install 'multi-session[qh3]'",
    "multi_noq": "`make native` builds it (native/README.md)",
}
"""By what an engine is made of, and may be missing."""


def implementation(name: str) -> type[QuicEngine]:
    """The engine called `name` in `quic_config`. Raises TransportError saying what is missing."""
    try:
        module = import_module(_module_of(name))
    except ImportError as error:
        remedy = _REMEDIES.get((error.name or "").partition(".")[0])
        if isinstance(error, ModuleNotFoundError) and remedy is not None:
            raise TransportError(f"the QUIC engine {name!r} is not installed: {remedy}") from None
        raise TransportError(str(DependencyError.of(f"the QUIC engine {name!r}", error))) from error
    return cast(type[QuicEngine], getattr(module, _CLASSES[name]))


async def loaded_implementation(name: str) -> type[QuicEngine]:
    """The same; it is imported in a thread, for the sessions of the event loop have other work meanwhile."""
    if _module_of(name) in sys.modules:
        return implementation(name)
    return await asyncio.to_thread(implementation, name)


def _module_of(name: str) -> str:
    return f"multi.transports.quic.{name}_engine"


class Secrets:
    """Takes the secrets that only the two ends of a connection know, where an engine would write them to a log."""

    LABELS = ("CLIENT_TRAFFIC_SECRET_0", "SERVER_TRAFFIC_SECRET_0")

    def __init__(self) -> None:
        self._secrets: dict[str, bytes] = {}

    def write(self, line: str) -> None:
        label, _client_random, secret = line.split()
        if label in self.LABELS:
            self._secrets[label] = bytes.fromhex(secret)

    def flush(self) -> None:
        """There is nothing to flush."""

    def channel_binding(self, certificate: bytes) -> bytes:
        """From 32 bytes both ends have and nobody else, once the handshake is done; the secrets are forgotten."""
        key = b"".join(self._secrets.pop(label) for label in self.LABELS)
        exported = hmac.digest(key, b"multi1 channel binding", "sha256")
        return hashlib.sha256(hashlib.sha256(certificate).digest() + exported).digest()
