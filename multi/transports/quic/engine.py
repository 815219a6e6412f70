"""One QUIC connection as a channel uses it: bytes and time in; datagrams, events and facts out.

`aioquic_engine` and `qh3_engine` adapt one implementation each, and alone know the names in which these differ. Both
ends of a connection may use different ones: what they export for channel binding is defined here, by RFC 8446 and not
by an implementation.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from typing import Any, ClassVar, NamedTuple, cast

from aioquic.quic.events import ConnectionTerminated

from multi.errors import TransportError
from multi.transports.base import Buffer, TlsSettings
from multi.transports.certificates import check_own
from multi.transports.quic.settings import QuicSettings
from multi.transports.quic.udp_port import PeerAddress
from multi.transports.sockets import transport_error
from multi.transports.tls import ALPN

logger = logging.getLogger("multi.transports")

CONNECTION_ID_LENGTH = 8

LANE_STREAMS = (0, 4)  # ids of the first two bidirectional streams a client opens (RFC 9000 section 2.1)

# Session credit is the flow control: this only has to stay out of its way.
RECEIVE_WINDOW = 4 * 1024 * 1024  # bytes that a peer may send ahead of what is missing


class EngineError(TransportError):
    """An engine raised where it should not have: that connection is lost, the others must not notice."""


@contextmanager
def third_party() -> Iterator[None]:
    """The one place where bare exceptions are caught: what a stranger's packet makes an engine raise is not known.

    Raises EngineError instead.
    """
    try:
        yield
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # a panic in Rust is no Exception
        logger.exception("a QUIC engine failed")
        raise EngineError(f"QUIC engine failed: {error!r}") from error


class RoundTrips(NamedTuple):
    """Seconds; 0 = unknown."""

    smoothed: float = 0.0
    variation: float = 0.0
    smallest: float = 0.0


class QuicEngine(ABC):
    """One connection. What makes the implementation work raises EngineError where that fails."""

    VERSIONS: ClassVar[tuple[int, ...]]
    """Of QUIC, those it speaks."""
    CONNECTION: ClassVar[Any]
    """The class of the implementation. Both have the methods that are used here, and `_close_event`."""

    def __init__(
        self, configuration: Any, datagram_size: int, original_id: bytes | None = None, retry_id: bytes | None = None
    ) -> None:
        """A connection that `connect` begins, or the answer to a client's first packet.

        `configuration` is from `configure`, `datagram_size` the largest in bytes, `original_id` the destination id of
        the client's first packet, `retry_id` the one a Retry gave it.
        """
        self._written = 0
        self._secrets = _Secrets()
        self._connection = self.CONNECTION(
            configuration=replace(configuration, max_datagram_size=datagram_size, secrets_log_file=self._secrets),
            original_destination_connection_id=original_id,
            retry_source_connection_id=retry_id,
        )

    @classmethod
    def configure(cls, quic: QuicSettings, tls: TlsSettings, issuers: bytes, server_name: str | None = None) -> Any:
        """What the connections of a listener, or of a client to `server_name`, have in common.

        `issuers` (PEM) may have issued the peer's certificate; empty = a client accepts any, a server asks for none.
        Raises TransportError if a file cannot be read, or the engine cannot do what is asked.
        """
        configuration = cls._configuration(
            quic,
            alpn_protocols=[ALPN],
            cadata=issuers,
            connection_id_length=CONNECTION_ID_LENGTH,
            idle_timeout=quic.idle_timeout,
            is_client=server_name is not None,
            server_name=server_name,
            supported_versions=list(cls.VERSIONS),
        )
        if tls.cert is not None and tls.key is not None:
            check_own(tls.cert, tls.key)
            try:
                configuration.load_cert_chain(tls.cert, tls.key)
            except OSError as error:
                raise transport_error(error, f"cannot read {tls.key}") from error
            except (ValueError, TypeError) as error:
                raise TransportError(f"cannot use {tls.key} as a private key: {error}") from error
        return configuration

    @staticmethod
    @abstractmethod
    def _configuration(quic: QuicSettings, **common: Any) -> Any:
        """The implementation's own, with `common` and what only it has."""

    def channel_binding(self, certificate: bytes) -> bytes:
        """What names this connection and the server's certificate (DER) for proofs; once, after the handshake."""
        return self._secrets.channel_binding(certificate)

    # What goes in

    def connect(self, address: PeerAddress, now: float) -> None:
        with third_party():
            self._connection.connect(address, now=now)

    @abstractmethod
    def receive(self, data: bytes, segment: int, address: PeerAddress, now: float) -> None:
        """Take one or more datagrams of `segment` bytes each, the last may be shorter."""

    def handle_timer(self, now: float) -> None:
        with third_party():
            self._connection.handle_timer(now=now)

    def write(self, stream_id: int, data: Buffer, end: bool = False) -> None:
        """Queue bytes; they are copied into the stream's retransmission buffer. Nothing once the connection ends."""
        if self.closing is None:
            self._written += len(data)
            with third_party():
                self._connection.send_stream_data(stream_id, data, end)

    def close(self, error_code: int, reason: str = "") -> None:
        """Queue an application close; bytes not yet acknowledged are lost."""
        if self.closing is None:
            with third_party():
                self._connection.close(error_code=error_code, reason_phrase=reason)

    # What comes out

    def next_event(self) -> Any:
        """What happened since, one after the other, then None; all implementations name their events alike."""
        return self._connection.next_event()

    def datagrams(self, now: float) -> list[tuple[bytes, PeerAddress]]:
        """What is to be sent now."""
        with third_party():
            return cast(list[tuple[bytes, PeerAddress]], self._connection.datagrams_to_send(now=now))

    def next_timer(self) -> float | None:
        return cast(float | None, self._connection.get_timer())

    # What is known

    @property
    def connection_id(self) -> bytes:
        return cast(bytes, self._connection.host_cid)

    @property
    def closing(self) -> ConnectionTerminated | None:
        """Why the connection is ending, at once and not only after the draining period."""
        return cast(ConnectionTerminated | None, self._connection._close_event)

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

    def acknowledged(self) -> int:
        """Bytes of all streams acknowledged so far, in order or not."""
        return self._written - self.unacknowledged()

    @abstractmethod
    def all_acknowledged(self) -> bool:
        """Everything written arrived, the ends of finished streams included."""

    @property
    @abstractmethod
    def congestion_window(self) -> int: ...

    @property
    @abstractmethod
    def bytes_in_flight(self) -> int: ...

    @property
    @abstractmethod
    def round_trips(self) -> RoundTrips: ...


def implementation(name: str) -> type[QuicEngine]:
    """The engine called `name` in `quic_config`. Raises TransportError saying what is missing."""
    try:
        module = import_module(f"multi.transports.quic.{name}_engine")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != name:
            raise
        raise TransportError(
            f"the QUIC engine {name!r} is not installed: pip install 'multi-session[{name}]'"
        ) from None
    return cast(type[QuicEngine], module.Engine)


class _Secrets:
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
