"""aioquic behind typed methods: the only module that knows its private attributes.

aioquic's public interface says nothing of what is unsent, in flight or acknowledged, and reports the end of a
connection only after its draining period. Those facts are read here; `check_engine` says if they are there.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TextIO, TypeAlias, cast

import aioquic
from aioquic._buffer import Buffer as QuicBuffer
from aioquic.quic.configuration import SMALLEST_MAX_DATAGRAM_SIZE, QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.crypto import CryptoPair
from aioquic.quic.events import ConnectionTerminated, QuicEvent
from aioquic.quic.packet import (
    QuicErrorCode,
    QuicFrameType,
    QuicPacketType,
    encode_quic_retry,
    encode_quic_version_negotiation,
    pull_quic_header,
)
from aioquic.quic.packet_builder import QuicPacketBuilder
from aioquic.quic.recovery import QuicPacketPacer
from aioquic.tls import Alert, verify_certificate
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.serialization import Encoding

from multi.errors import TransportError
from multi.transports.base import Buffer
from multi.transports.certificates import aioquic_cause, refused

logger = logging.getLogger("multi.transports")

NetworkAddress: TypeAlias = Any
"""Whatever the driver uses to name a peer; the engine compares and returns it."""

CONNECTION_ID_LENGTH = 8
PACING_BUCKET = 0.002  # seconds of sending in one burst: the tick of a timer and as much again
TOKEN_LIFETIME = 30.0  # seconds; clients return a retry token at once (RFC 9000 section 8.1.4)

CONNECTION_ATTRIBUTES = ("_close_event", "_handshake_complete", "_initialize", "_loss", "_streams")
RECOVERY_ATTRIBUTES = (
    "_pacer",
    "_pto_count",
    "_rtt_initialized",
    "_rtt_min",
    "_rtt_smoothed",
    "_rtt_variance",
    "bytes_in_flight",
    "congestion_window",
)
PACER_ATTRIBUTES = ("bucket_max", "update_rate")
SENDER_ATTRIBUTES = ("_acked", "_buffer_fin", "_buffer_start", "_buffer_stop", "_pending", "is_finished")


class _Exporter:
    """Takes the secrets that only the two ends of a connection know, where aioquic would write them to a log."""

    LABELS = ("CLIENT_TRAFFIC_SECRET_0", "SERVER_TRAFFIC_SECRET_0")

    def __init__(self) -> None:
        self._secrets: dict[str, bytes] = {}

    def write(self, line: str) -> None:
        label, _client_random, secret = line.split()
        if label in self.LABELS:
            self._secrets[label] = bytes.fromhex(secret)

    def flush(self) -> None:
        """There is nothing to flush."""

    def export(self) -> bytes:
        """32 bytes both ends have and nobody else, once the handshake is done; the secrets are forgotten."""
        key = b"".join(self._secrets.pop(label) for label in self.LABELS)
        return hmac.digest(key, b"multi1 channel binding", "sha256")


class EngineError(TransportError):
    """aioquic raised where it should not have: that connection is lost, the others must not notice."""


class _Connection(QuicConnection):
    """QuicConnection that can ask the client for a certificate, which aioquic does only in its own tests."""

    request_client_certificate = False

    def _initialize(self, peer_cid: bytes) -> None:
        super()._initialize(peer_cid)
        if self.request_client_certificate:
            self.tls._request_client_certificate = True


class _Pacer(QuicPacketPacer):
    """A pacer for a driver whose timers have a resolution of a millisecond.

    aioquic allows bursts of 16 packets, then wants to be called again microseconds later: on a fast path, one
    burst per timer tick would be the speed limit.
    """

    def update_rate(self, congestion_window: int, smoothed_rtt: float) -> None:
        super().update_rate(congestion_window=congestion_window, smoothed_rtt=smoothed_rtt)
        self.bucket_max = max(self.bucket_max, PACING_BUCKET)


class QuicEngine:
    """One QUIC connection: bytes and time in, datagrams, events and facts out."""

    def __init__(self, connection: _Connection, exporter: _Exporter) -> None:
        self._connection = connection
        self._exporter = exporter
        self._loss = connection._loss
        size = connection.configuration.max_datagram_size
        self._loss._pacer = _Pacer(max_datagram_size=size)

    @classmethod
    def client(cls, configuration: QuicConfiguration, address: NetworkAddress, now: float) -> QuicEngine:
        exporter = _Exporter()
        connection = _Connection(configuration=replace(configuration, secrets_log_file=cast(TextIO, exporter)))
        connection.connect(address, now=now)
        return cls(connection, exporter)

    @classmethod
    def server(
        cls,
        configuration: QuicConfiguration,
        original_id: bytes,
        retry_id: bytes | None,
        request_client_certificate: bool,
    ) -> QuicEngine:
        """`original_id` is the destination id of the client's first packet, `retry_id` the one we gave it."""
        exporter = _Exporter()
        connection = _Connection(
            configuration=replace(configuration, secrets_log_file=cast(TextIO, exporter)),
            original_destination_connection_id=original_id,
            retry_source_connection_id=retry_id,
        )
        connection.request_client_certificate = request_client_certificate
        return cls(connection, exporter)

    def channel_binding(self, certificate: bytes) -> bytes:
        """What names this connection and the server's certificate (DER) for proofs; once, after the handshake."""
        return hashlib.sha256(hashlib.sha256(certificate).digest() + self._exporter.export()).digest()

    # What goes in

    def receive(self, data: bytes, address: NetworkAddress, now: float) -> None:
        """Raises EngineError, as everything here that makes aioquic work on a packet does."""
        with _third_party():
            self._connection.receive_datagram(data, address, now=now)

    def handle_timer(self, now: float) -> None:
        with _third_party():
            self._connection.handle_timer(now=now)

    def write(self, stream_id: int, data: Buffer) -> None:
        """Queue bytes; they are copied into the stream's retransmission buffer."""
        # aioquic only takes the length and appends; it does not need bytes whatever its annotation says.
        self._connection.send_stream_data(stream_id, data)  # type: ignore[arg-type]

    def finish(self, stream_id: int) -> None:
        self._connection.send_stream_data(stream_id, b"", end_stream=True)

    def close(self, error_code: int = 0, reason: str = "") -> None:
        """Queue an application close; bytes not yet acknowledged are lost."""
        self._connection.close(error_code=error_code, reason_phrase=reason)

    # What comes out

    def datagrams(self, now: float) -> list[tuple[bytes, NetworkAddress]]:
        with _third_party():
            return self._connection.datagrams_to_send(now=now)

    def next_timer(self) -> float | None:
        return self._connection.get_timer()

    def events(self) -> Iterator[QuicEvent]:
        while (event := self._connection.next_event()) is not None:
            yield event

    # What is known

    @property
    def connection_id(self) -> bytes:
        return self._connection.host_cid

    @property
    def handshake_complete(self) -> bool:
        return self._connection._handshake_complete

    @property
    def closing(self) -> ConnectionTerminated | None:
        """Why the connection is ending, at once; the event itself comes after the draining period."""
        return self._connection._close_event

    @property
    def peer_certificate(self) -> bytes:
        """DER, or empty."""
        certificate = self._connection.tls._peer_certificate
        return certificate.public_bytes(Encoding.DER) if certificate is not None else b""

    def verify_client_certificate(self, issuers: bytes) -> None:
        """Raise TransportError unless the client showed a certificate issued by one of `issuers` (PEM)."""
        tls = self._connection.tls
        if tls._peer_certificate is None:
            raise TransportError("the client showed no certificate")
        try:
            verify_certificate(tls._peer_certificate, tls._peer_certificate_chain, cadata=issuers)
        except (Alert, ValueError) as error:
            raise refused("the client", aioquic_cause(str(error))) from error

    def has_stream(self, stream_id: int) -> bool:
        return stream_id in self._connection._streams

    def unsent(self) -> int:
        """Bytes of all streams that wait to be sent for the first time or again."""
        return sum(
            part.stop - part.start for stream in self._connection._streams.values() for part in stream.sender._pending
        )

    def buffered(self) -> int:
        """Bytes of all streams not yet acknowledged, sent or not."""
        return sum(
            sender._buffer_stop - sender._buffer_start - sum(part.stop - part.start for part in sender._acked)
            for sender in (stream.sender for stream in self._connection._streams.values())
        )

    def acknowledged(self) -> int:
        """Bytes of all living streams acknowledged so far, in order or not."""
        return sum(
            sender._buffer_start + sum(part.stop - part.start for part in sender._acked)
            for sender in (stream.sender for stream in self._connection._streams.values())
        )

    def all_acknowledged(self) -> bool:
        """Everything written arrived, the ends of finished streams included."""
        return all(
            sender.is_finished or (sender._buffer_stop == 0 and sender._buffer_fin is None)
            for sender in (stream.sender for stream in self._connection._streams.values())
        )

    @property
    def congestion_window(self) -> int:
        return self._loss.congestion_window

    @property
    def bytes_in_flight(self) -> int:
        return self._loss.bytes_in_flight

    @property
    def rtt(self) -> float:
        return self._loss._rtt_smoothed if self._loss._rtt_initialized else 0.0

    @property
    def rtt_variation(self) -> float:
        return self._loss._rtt_variance if self._loss._rtt_initialized else 0.0

    @property
    def min_rtt(self) -> float:
        return self._loss._rtt_min if self._loss._rtt_initialized else 0.0

    @property
    def probe_timeout(self) -> float:
        return self._loss.get_probe_timeout()

    @property
    def probe_count(self) -> int:
        """Probe timeouts in a row without an acknowledgement."""
        return self._loss._pto_count


def check_engine() -> None:
    """Raise TransportError if the installed aioquic lacks an attribute this module reads."""
    connection = QuicConnection(configuration=QuicConfiguration(is_client=True))
    connection.send_stream_data(0, b"")
    holders = (
        (connection, CONNECTION_ATTRIBUTES),
        (connection._loss, RECOVERY_ATTRIBUTES),
        (connection._loss._pacer, PACER_ATTRIBUTES),
        (connection._streams[0].sender, SENDER_ATTRIBUTES),
    )
    for holder, names in holders:
        for name in names:
            if not hasattr(holder, name):
                raise TransportError(
                    f"aioquic {aioquic.__version__} is not supported: {type(holder).__name__} has no {name}"
                )


def congestion_controls() -> list[str]:
    from aioquic.quic.congestion import base

    return sorted(base._factories)


def no_verification() -> ssl.VerifyMode:
    return ssl.CERT_NONE


@contextmanager
def _third_party() -> Iterator[None]:
    # The one place where bare exceptions are caught: what a stranger's packet makes aioquic raise is not known.
    try:
        yield
    except Exception as error:
        logger.exception("aioquic failed")
        raise EngineError(f"QUIC engine failed: {error!r}") from error


class PacketHeader:
    """The fields of a datagram's first packet that routing needs."""

    __slots__ = ("destination_id", "is_initial", "source_id", "token", "version")

    def __init__(self, data: bytes) -> None:
        """Raises ValueError if this is no QUIC packet."""
        header = pull_quic_header(QuicBuffer(data=data), host_cid_length=CONNECTION_ID_LENGTH)
        self.destination_id = header.destination_cid
        self.source_id = header.source_cid
        self.token = header.token
        self.version = header.version
        self.is_initial = header.packet_type is QuicPacketType.INITIAL and len(data) >= SMALLEST_MAX_DATAGRAM_SIZE

    def needs_version_negotiation(self, configuration: QuicConfiguration) -> bool:
        # Version 0 is itself a Version Negotiation packet: answering one with another makes two servers loop.
        return bool(self.version) and self.version not in configuration.supported_versions


def version_negotiation(header: PacketHeader, configuration: QuicConfiguration) -> bytes:
    return encode_quic_version_negotiation(
        source_cid=header.destination_id,
        destination_cid=header.source_id,
        supported_versions=configuration.supported_versions,
    )


def refusal(header: PacketHeader, error_code: QuicErrorCode) -> bytes:
    """An Initial packet that closes a connection before it exists (RFC 9000 section 5.2.2)."""
    version = header.version or 1
    crypto = CryptoPair()
    crypto.setup_initial(cid=header.destination_id, is_client=False, version=version)
    builder = QuicPacketBuilder(
        host_cid=header.destination_id,
        is_client=False,
        max_datagram_size=SMALLEST_MAX_DATAGRAM_SIZE,
        peer_cid=header.source_id,
        version=version,
    )
    builder.start_packet(QuicPacketType.INITIAL, crypto)
    buffer = builder.start_frame(QuicFrameType.TRANSPORT_CLOSE, capacity=32)
    buffer.push_uint_var(error_code)
    buffer.push_uint_var(QuicFrameType.PADDING)
    buffer.push_uint_var(0)
    datagrams, _ = builder.flush()
    return datagrams[0]


class RetryTokens:
    """Address validation before any state is kept (RFC 9000 section 8.1.2)."""

    def __init__(self) -> None:
        self._cipher = AESGCM(AESGCM.generate_key(bit_length=128))

    def retry(self, header: PacketHeader, address: str, now: float) -> bytes:
        """The Retry packet that makes the client come back with a token."""
        source_id = os.urandom(CONNECTION_ID_LENGTH)
        issued = int(now * 1000).to_bytes(8, "big")
        plain = issued + source_id + header.destination_id
        nonce = os.urandom(12)
        token = nonce + self._cipher.encrypt(nonce, plain, address.encode())
        return encode_quic_retry(
            version=header.version or 1,
            source_cid=source_id,
            destination_cid=header.source_id,
            original_destination_cid=header.destination_id,
            retry_token=token,
        )

    def original_id(self, header: PacketHeader, address: str, now: float) -> bytes | None:
        """The destination id of the client's first packet, or None if the token is not ours or too old."""
        token = header.token or b""
        try:
            plain = self._cipher.decrypt(token[:12], token[12:], address.encode())
        except (InvalidTag, ValueError):
            return None
        issued = int.from_bytes(plain[:8], "big") / 1000
        source_id = plain[8 : 8 + CONNECTION_ID_LENGTH]
        if now - issued > TOKEN_LIFETIME or source_id != header.destination_id:
            return None
        return plain[8 + CONNECTION_ID_LENGTH :]
