"""What an implementation of QUIC has to offer so that a channel can run over it, and what the adapters share.

`quic_aioquic` and `quic_qh3` adapt one implementation each. Both ends of a connection may use different ones: what
they export for channel binding is defined here, by RFC 8446 and not by an implementation.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, NamedTuple, Protocol, TypeAlias, cast

from multi.errors import TransportError
from multi.transports.base import Buffer, TlsSettings
from multi.transports.certificates import check_own
from multi.transports.quic.settings import QuicSettings
from multi.transports.sockets import transport_error

NetworkAddress: TypeAlias = Any
"""Whatever the driver uses to name a peer; the engine compares and returns it."""

ALPN = "multi/1"
CONNECTION_ID_LENGTH = 8
MIN_DATAGRAM = 1200  # bytes (RFC 9000 section 14)

# Session credit is the flow control; these only have to stay out of its way. Engines raise them when half used.
RECEIVE_WINDOW = 4 * 1024 * 1024  # bytes; also what an unauthenticated peer can make one stream buffer

IDLE_TIMEOUT = "Idle timeout"  # reason of an ending that no peer has said


class EngineError(TransportError):
    """An engine raised where it should not have: that connection is lost, the others must not notice."""


class Ending(NamedTuple):
    """Why a connection ends."""

    error_code: int
    frame_type: int | None
    """None: the application's own code (RFC 9000 section 19.19)."""
    reason_phrase: str


class EngineUser(Protocol):
    """What an engine reports to."""

    def stream_data(self, stream_id: int, data: bytes, end: bool) -> None:
        """Bytes of a stream, in order."""

    def handshake_completed(self) -> None: ...

    def id_issued(self, connection_id: bytes) -> None: ...

    def id_retired(self, connection_id: bytes) -> None: ...

    def stream_given_up(self) -> None:
        """The peer reset a stream or does not want it."""


class QuicEngine(Protocol):
    """One QUIC connection: bytes and time in, datagrams, reports and facts out."""

    def channel_binding(self, certificate: bytes) -> bytes:
        """What names this connection and the server's certificate (DER) for proofs; once, after the handshake."""

    # What goes in

    def receive(self, data: bytes, segment: int, address: NetworkAddress, now: float) -> None:
        """Take one or more datagrams of `segment` bytes each, the last may be shorter.

        Raises EngineError, as everything here that makes an engine work on a packet does.
        """

    def handle_timer(self, now: float) -> None: ...

    def write(self, stream_id: int, data: Buffer) -> None:
        """Queue bytes; they are copied into the stream's retransmission buffer."""

    def finish(self, stream_id: int) -> None: ...

    def close(self, error_code: int = 0, reason: str = "") -> None:
        """Queue an application close; bytes not yet acknowledged are lost."""

    # What comes out

    def report(self, user: EngineUser) -> None:
        """Tell everything that happened since."""

    def datagrams(self, now: float) -> list[tuple[bytes, NetworkAddress]]:
        """What is to be sent now."""

    def next_timer(self) -> float | None: ...

    # What is known

    @property
    def connection_id(self) -> bytes: ...

    @property
    def handshake_complete(self) -> bool: ...

    @property
    def closing(self) -> Ending | None:
        """Why the connection is ending, at once and not only after the draining period."""

    @property
    def peer_certificate(self) -> bytes:
        """DER, or empty."""

    def verify_client_certificate(self, issuers: bytes) -> None:
        """Raise TransportError unless the client showed a certificate issued by one of `issuers` (PEM)."""

    def has_stream(self, stream_id: int) -> bool: ...

    def unsent(self) -> int:
        """Bytes of all streams that wait to be sent."""

    def buffered(self) -> int:
        """Bytes of all streams not yet acknowledged, sent or not."""

    def acknowledged(self) -> int:
        """Bytes of all streams acknowledged so far, in order or not."""

    def all_acknowledged(self) -> bool:
        """Everything written arrived, the ends of finished streams included."""

    @property
    def congestion_window(self) -> int: ...

    @property
    def bytes_in_flight(self) -> int: ...

    @property
    def rtt(self) -> float:
        """Seconds, smoothed; 0 = unknown, as for the other two."""

    @property
    def rtt_variation(self) -> float: ...

    @property
    def min_rtt(self) -> float: ...

    @property
    def probe_timeout(self) -> float: ...


Connect: TypeAlias = Callable[[int, NetworkAddress, float], QuicEngine]
"""Begin a connection: largest datagram, the server's address, now."""
Accept: TypeAlias = Callable[[int, bytes, bytes | None], QuicEngine]
"""Answer one: largest datagram, the destination id of the client's first packet, the one a Retry gave it."""


class Implementation(Protocol):
    """What a module that adapts an implementation of QUIC offers."""

    VERSIONS: Sequence[int]
    """The versions of QUIC it speaks."""

    def check(self) -> None:
        """Raise TransportError if the installed version lacks what the adapter reads."""

    def client(self, quic: QuicSettings, tls: TlsSettings, authorities: bytes, server_name: str) -> Connect:
        """How to dial. `authorities` (PEM) is empty when nobody is asked. Raises TransportError."""

    def server(self, quic: QuicSettings, tls: TlsSettings) -> Accept:
        """How to answer. Raises TransportError."""


MODULES = {"aioquic": "multi.transports.quic.aioquic_engine", "qh3": "multi.transports.quic.qh3_engine"}
_checked: set[str] = set()


def implementation(name: str) -> Implementation:
    """The engine called `name` in `quic_config`. Raises TransportError saying what is missing."""
    try:
        module = import_module(MODULES[name])
    except KeyError:
        raise TransportError(f"no QUIC engine named {name!r}; known: {', '.join(MODULES)}") from None
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != name:
            raise
        raise TransportError(
            f"the QUIC engine {name!r} is not installed: pip install 'multi-session[{name}]'"
        ) from None
    found = cast(Implementation, module)
    if name not in _checked:
        found.check()
        _checked.add(name)
    return found


class Certified(Protocol):
    """What the configurations of both implementations have in common."""

    def load_cert_chain(self, certfile: Any, keyfile: Any) -> None: ...


def load_certificate(configuration: Certified, tls: TlsSettings) -> None:
    """Give a configuration our own certificate and key. Raises TransportError."""
    assert tls.cert is not None
    assert tls.key is not None
    check_own(tls.cert, tls.key)
    try:
        configuration.load_cert_chain(tls.cert, tls.key)
    except OSError as error:
        raise transport_error(error, f"cannot read {tls.key}") from error
    except (ValueError, TypeError) as error:
        raise TransportError(f"cannot use {tls.key} as a private key: {error}") from error


class Exporter:
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
