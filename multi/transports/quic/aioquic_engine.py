"""aioquic behind typed methods: the only module that knows its private attributes.

aioquic's public interface says nothing of what is unsent, in flight or acknowledged, and reports the end of a
connection only after its draining period. Those facts are read here; `check` says if they are there.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TextIO, cast

import aioquic
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.events import (
    ConnectionIdIssued,
    ConnectionIdRetired,
    HandshakeCompleted,
    StopSendingReceived,
    StreamDataReceived,
    StreamReset,
)
from aioquic.quic.packet import QuicProtocolVersion
from aioquic.quic.recovery import QuicPacketPacer
from aioquic.tls import Alert, Group, verify_certificate
from cryptography.hazmat.primitives.serialization import Encoding

from multi.errors import TransportError
from multi.transports.base import Buffer, TlsSettings
from multi.transports.certificates import fault_of, refused
from multi.transports.quic.engine import (
    ALPN,
    CONNECTION_ID_LENGTH,
    RECEIVE_WINDOW,
    Accept,
    Connect,
    Ending,
    EngineError,
    EngineUser,
    Exporter,
    NetworkAddress,
    load_certificate,
)
from multi.transports.quic.settings import QuicSettings

logger = logging.getLogger("multi.transports")

VERSIONS = (QuicProtocolVersion.VERSION_1, QuicProtocolVersion.VERSION_2)
MAX_DATAGRAM = 16_383  # bytes; aioquic writes the length of a frame in 14 bits and does not look whether it fits
OFFERED_GROUPS = (Group.X25519, Group.SECP256R1)  # what RFC 8446 section 9.1 has everybody or nearly so support
PACING_BUCKET = 0.002  # seconds of sending in one burst: the tick of a timer and as much again

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


def client(quic: QuicSettings, tls: TlsSettings, authorities: bytes, server_name: str) -> Connect:
    """See `Implementation`."""
    configuration = _configuration(quic, is_client=True)
    configuration.server_name = server_name
    if authorities:
        configuration.cadata = authorities
    else:
        configuration.verify_mode = ssl.CERT_NONE
    if tls.cert is not None and tls.key is not None:
        load_certificate(configuration, tls)
    return partial(AioquicEngine.client, configuration)


def server(quic: QuicSettings, tls: TlsSettings) -> Accept:
    """See `Implementation`."""
    configuration = _configuration(quic, is_client=False)
    load_certificate(configuration, tls)
    return partial(AioquicEngine.server, configuration, tls.client_ca is not None)


def _configuration(quic: QuicSettings, is_client: bool) -> QuicConfiguration:
    return QuicConfiguration(
        alpn_protocols=[ALPN],
        congestion_control_algorithm=quic.congestion,
        connection_id_length=CONNECTION_ID_LENGTH,
        idle_timeout=quic.idle_timeout,
        is_client=is_client,
        max_data=RECEIVE_WINDOW,
        max_stream_data=RECEIVE_WINDOW,
        supported_versions=list(VERSIONS),
    )


class _Connection(QuicConnection):
    """QuicConnection that can ask the client for a certificate, which aioquic does only in its own tests.

    A client makes a key for each group it offers, used or not: those of P-384 and X448 take a millisecond, longer than
    the rest of its first flight.
    """

    request_client_certificate = False

    def _initialize(self, peer_cid: bytes) -> None:
        super()._initialize(peer_cid)
        if self._is_client:
            known = self.tls._supported_groups
            self.tls._supported_groups = [group for group in OFFERED_GROUPS if group in known]
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


class AioquicEngine:
    """A QuicEngine (see `multi.transports.quic.engine`)."""

    def __init__(self, connection: _Connection, exporter: Exporter) -> None:
        self._connection = connection
        self._exporter = exporter
        self._loss = connection._loss
        size = connection.configuration.max_datagram_size
        self._loss._pacer = _Pacer(max_datagram_size=size)

    @classmethod
    def client(
        cls, configuration: QuicConfiguration, datagram_size: int, address: NetworkAddress, now: float
    ) -> AioquicEngine:
        exporter = Exporter()
        connection = _Connection(configuration=_of_one(configuration, datagram_size, exporter))
        connection.connect(address, now=now)
        return cls(connection, exporter)

    @classmethod
    def server(
        cls,
        configuration: QuicConfiguration,
        request_client_certificate: bool,
        datagram_size: int,
        original_id: bytes,
        retry_id: bytes | None,
    ) -> AioquicEngine:
        exporter = Exporter()
        connection = _Connection(
            configuration=_of_one(configuration, datagram_size, exporter),
            original_destination_connection_id=original_id,
            retry_source_connection_id=retry_id,
        )
        connection.request_client_certificate = request_client_certificate
        return cls(connection, exporter)

    def channel_binding(self, certificate: bytes) -> bytes:
        return self._exporter.channel_binding(certificate)

    # What goes in

    def receive(self, data: bytes, segment: int, address: NetworkAddress, now: float) -> None:
        take = self._connection.receive_datagram
        with _third_party():
            if len(data) <= segment:
                take(data, address, now)
                return
            for start in range(0, len(data), segment):
                take(data[start : start + segment], address, now)

    def handle_timer(self, now: float) -> None:
        with _third_party():
            self._connection.handle_timer(now=now)

    def write(self, stream_id: int, data: Buffer) -> None:
        # aioquic only takes the length and appends; it does not need bytes whatever its annotation says.
        self._connection.send_stream_data(stream_id, data)  # type: ignore[arg-type]

    def finish(self, stream_id: int) -> None:
        self._connection.send_stream_data(stream_id, b"", end_stream=True)

    def close(self, error_code: int = 0, reason: str = "") -> None:
        self._connection.close(error_code=error_code, reason_phrase=reason)

    # What comes out

    def report(self, user: EngineUser) -> None:
        next_event = self._connection.next_event
        while (event := next_event()) is not None:
            match event:
                case StreamDataReceived():
                    user.stream_data(event.stream_id, event.data, event.end_stream)
                case HandshakeCompleted():
                    user.handshake_completed()
                case ConnectionIdIssued():
                    user.id_issued(event.connection_id)
                case ConnectionIdRetired():
                    user.id_retired(event.connection_id)
                case StreamReset() | StopSendingReceived():
                    user.stream_given_up()

    def datagrams(self, now: float) -> list[tuple[bytes, NetworkAddress]]:
        with _third_party():
            return self._connection.datagrams_to_send(now=now)

    def next_timer(self) -> float | None:
        return self._connection.get_timer()

    # What is known

    @property
    def connection_id(self) -> bytes:
        return self._connection.host_cid

    @property
    def handshake_complete(self) -> bool:
        return self._connection._handshake_complete

    @property
    def closing(self) -> Ending | None:
        event = self._connection._close_event
        return None if event is None else Ending(event.error_code, event.frame_type, event.reason_phrase)

    @property
    def peer_certificate(self) -> bytes:
        certificate = self._connection.tls._peer_certificate
        return certificate.public_bytes(Encoding.DER) if certificate is not None else b""

    def verify_client_certificate(self, issuers: bytes) -> None:
        tls = self._connection.tls
        if tls._peer_certificate is None:
            raise TransportError("the client showed no certificate")
        try:
            verify_certificate(tls._peer_certificate, tls._peer_certificate_chain, cadata=issuers)
        except (Alert, ValueError) as error:
            raise refused("the client", fault_of(str(error))) from error

    def has_stream(self, stream_id: int) -> bool:
        return stream_id in self._connection._streams

    def unsent(self) -> int:
        return sum(
            part.stop - part.start for stream in self._connection._streams.values() for part in stream.sender._pending
        )

    def buffered(self) -> int:
        return sum(
            sender._buffer_stop - sender._buffer_start - sum(part.stop - part.start for part in sender._acked)
            for sender in (stream.sender for stream in self._connection._streams.values())
        )

    def acknowledged(self) -> int:
        return sum(
            sender._buffer_start + sum(part.stop - part.start for part in sender._acked)
            for sender in (stream.sender for stream in self._connection._streams.values())
        )

    def all_acknowledged(self) -> bool:
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


def _of_one(configuration: QuicConfiguration, datagram_size: int, exporter: Exporter) -> QuicConfiguration:
    size = min(datagram_size, MAX_DATAGRAM)
    return replace(configuration, max_datagram_size=size, secrets_log_file=cast(TextIO, exporter))


def check() -> None:
    """See `Implementation`."""
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


@contextmanager
def _third_party() -> Iterator[None]:
    # The one place where bare exceptions are caught: what a stranger's packet makes aioquic raise is not known.
    try:
        yield
    except Exception as error:
        logger.exception("aioquic failed")
        raise EngineError(f"QUIC engine failed: {error!r}") from error
