"""qh3 behind typed methods: packets, recovery and streams in Rust, TLS in Python (optional, `multi-session[qh3]`).

The only module that imports qh3, and the only one that knows its private attributes. What qh3 does not tell is worked
out here: the smallest round trip and its variation from the samples, acknowledged bytes from what is unsent and in
flight. Certificates are judged by the same code as with aioquic, so that both engines accept the same ones.
"""

from __future__ import annotations

import logging
import ssl
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, TextIO, cast

import qh3
from aioquic.tls import Alert as AioquicAlert
from aioquic.tls import verify_certificate
from cryptography import x509
from qh3 import tls as qh3_tls
from qh3._hazmat import QuicConnectionCore, pull_quic_header
from qh3.quic.configuration import QuicConfiguration
from qh3.quic.connection import QuicConnection
from qh3.quic.events import ConnectionTerminated, HandshakeCompleted
from qh3.quic.tls_bridge import QuicTlsBridgeError

from multi.errors import TransportError
from multi.transports.base import Buffer, TlsSettings
from multi.transports.quic.engine import (
    ALPN,
    CONNECTION_ID_LENGTH,
    IDLE_TIMEOUT,
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

VERSIONS = (1,)
CIPHER_SUITES = (
    qh3_tls.CipherSuite.AES_256_GCM_SHA384,
    qh3_tls.CipherSuite.AES_128_GCM_SHA256,
    qh3_tls.CipherSuite.CHACHA20_POLY1305_SHA256,
)  # aioquic's order of preference
MAX_ACK_DELAY = 0.025  # seconds (RFC 9000 section 18.2)
INITIAL_RTT = 0.1  # seconds; what aioquic assumes, a lost first flight is repeated after three times as much
TOO_LITTLE_ROOM = "packet builder capacity exhausted"
"""What `poll_transmit` raises where it may not send more to an address yet; it goes on when more came from there."""
ADDRESSES_KEPT = 8  # addresses of a peer that moves; more are those of somebody who forges them

CONNECTION_ATTRIBUTES = (
    "_call_core",
    "_close_event",
    "_core",
    "_create_tls",
    "_drain_core",
    "_drain_tls",
    "_handshake_complete",
    "_require_core",
    "_tls",
)
CORE_ATTRIBUTES = (
    "bytes_in_flight",
    "can_send_stream",
    "congestion_window",
    "get_send_buffer_size",
    "get_timer",
    "handshake_confirmed",
    "latest_rtt",
    "loss_total",
    "next_event",
    "poll_transmit",
    "pto_count",
    "receive_gro_buffer",
    "send_stream",
    "smoothed_rtt",
)


def client(quic: QuicSettings, tls: TlsSettings, authorities: bytes, server_name: str) -> Connect:
    """See `Implementation`."""
    configuration = _configuration(quic, is_client=True)
    configuration.server_name = server_name
    if tls.cert is not None and tls.key is not None:
        load_certificate(configuration, tls)
    return partial(Qh3Engine.client, configuration, authorities)


def server(quic: QuicSettings, tls: TlsSettings) -> Accept:
    """See `Implementation`."""
    if tls.client_ca is not None:
        raise TransportError(NO_CLIENT_CERTIFICATES)
    configuration = _configuration(quic, is_client=False)
    load_certificate(configuration, tls)
    return partial(Qh3Engine.server, configuration)


NO_CLIENT_CERTIFICATES = (
    "the QUIC engine 'qh3' cannot ask clients for certificates (ssl_config.client_ca); use 'aioquic' on this server"
)


def _configuration(quic: QuicSettings, is_client: bool) -> QuicConfiguration:
    return QuicConfiguration(
        alpn_protocols=[ALPN],
        cipher_suites=list(CIPHER_SUITES),
        connection_id_length=CONNECTION_ID_LENGTH,
        idle_timeout=quic.idle_timeout,
        initial_rtt=INITIAL_RTT,
        is_client=is_client,
        max_data=RECEIVE_WINDOW,
        max_stream_data=RECEIVE_WINDOW,
        probe_datagram_size=False,
        supported_versions=list(VERSIONS),
        verify_mode=ssl.CERT_NONE,  # `_Connection` does it
    )


class _CertificateRefused(qh3_tls.Alert):
    """Ends the handshake from within, as qh3's own verification would."""

    def __init__(self, description: int, text: str) -> None:
        super().__init__(text)
        self.description = qh3_tls.AlertDescription(description)


class _Connection(QuicConnection):
    """QuicConnection that judges certificates as aioquic does and keeps what happens as plain tuples."""

    authorities = b""
    """PEM; empty = anybody will do."""

    def __init__(self, **parameters: Any) -> None:
        super().__init__(**parameters)
        self.happened: deque[tuple[Any, ...]] = deque()

    def _create_tls(self, remote_source_cid: bytes | None) -> Any:
        bridge = super()._create_tls(remote_source_cid)
        if self.authorities:
            install = bridge.tls.update_traffic_key_cb

            def verified(direction: Any, epoch: Any, cipher_suite: Any, secret: bytes) -> None:
                # The first secret of the application's keys: the server has proved that it holds the key of its
                # certificate, and our Finished is not made yet.
                if epoch is qh3_tls.Epoch.ONE_RTT and direction is qh3_tls.Direction.DECRYPT:
                    self._verify_server(bridge.tls)
                install(direction, epoch, cipher_suite, secret)

            bridge.tls.update_traffic_key_cb = verified
        return bridge

    def _verify_server(self, tls: Any) -> None:
        shown = tls.peer_certificate
        if shown is None:
            raise _CertificateRefused(qh3_tls.AlertDescription.bad_certificate, "the server showed no certificate")
        try:
            certificate, *chain = (
                x509.load_der_x509_certificate(one.public_bytes()) for one in (shown, *tls.peer_certificate_chain)
            )
            verify_certificate(certificate, chain, server_name=self.configuration.server_name, cadata=self.authorities)
        except AioquicAlert as error:
            raise _CertificateRefused(int(error.description), str(error)) from error
        except ValueError as error:
            raise _CertificateRefused(qh3_tls.AlertDescription.bad_certificate, str(error)) from error

    def receive_datagram(self, data: bytes, addr: NetworkAddress, now: float) -> None:
        """In place of qh3's on a server, which does not count what pads a client's first datagram behind its packet.

        Three times what has come may be sent to an address that is not validated (RFC 9000 section 8.1): too little
        for a certificate if most of it is not counted.
        """
        if self._is_client:
            super().receive_datagram(data, addr, now)
            return
        if self._core is None:
            header = pull_quic_header(data, 0, CONNECTION_ID_LENGTH)
            self._remote_addr, self._version = addr, header[0]
            self._create_core(addr, header[3], now)
            self._create_tls(remote_source_cid=None)
        for packet in _packets(data):
            core = self._require_core()
            report = self._call_core(core.receive_datagram, packet, addr, now, len(data))
            if report[2]:
                self._learn_remote_source_cid(packet)
            self._drain_core()  # before the next packet: its keys may have come with this one

    def _drain_core(self) -> None:
        """In place of qh3's: it would log every ending as a warning, and make an object of every frame."""
        core, happened = self._require_core(), self.happened
        next_event = core.next_event
        while (event := next_event()) is not None:
            match event[0]:
                case "stream_data" | "connection_id_issued" | "connection_id_retired" | "stream_reset" | "stop_sending":
                    happened.append(event)
                case "crypto_data":
                    self._take_crypto(event)
                case "handshake_done":
                    self._handshake_confirmed = True
                    core.handshake_confirmed()
                case "peer_closed":
                    self._close_event = ConnectionTerminated(event[2], event[3], event[4].decode(errors="replace"))
                case "protocol_error":
                    self._close_event = ConnectionTerminated(event[1], event[2] or 0, event[3])
                case "connection_terminated" if self._close_event is None:
                    self._close_event = ConnectionTerminated(event[1], event[2], event[3].decode(errors="replace"))
                case _:
                    pass
        while (told := super().next_event()) is not None:
            if isinstance(told, HandshakeCompleted):
                happened.append(("handshake_completed",))

    def _take_crypto(self, event: tuple[Any, ...]) -> None:
        core, bridge = self._require_core(), self._tls
        assert bridge is not None
        try:
            bridge.receive_crypto(qh3_tls.Epoch(event[1]), event[3], event[2], version=core.version)
            self._drain_tls()
        except QuicTlsBridgeError as error:
            reason = error.reason_phrase
            self._call_core(core.close, error.error_code, int(error.frame_type), reason.encode())
            self._close_event = ConnectionTerminated(error.error_code, int(error.frame_type), reason)


def _packets(data: bytes) -> Iterator[bytes]:
    """The QUIC packets of a datagram; what follows the last one and is none stays with it."""
    start = 0
    while start < len(data):
        end = _end_of_packet(data, start)
        if end < len(data) and not data[end]:  # padding: no packet begins with a zero
            end = len(data)
        yield data[start:end]
        start = end


def _end_of_packet(data: bytes, start: int) -> int:
    try:
        end = pull_quic_header(data, start, CONNECTION_ID_LENGTH)[9]
    except ValueError:
        return len(data)
    return end if start < end <= len(data) else len(data)


class Qh3Engine:
    """A QuicEngine (see `multi.transports.quic.engine`)."""

    def __init__(self, connection: _Connection, exporter: Exporter) -> None:
        self._connection = connection
        self._exporter = exporter
        self._addresses: dict[Any, NetworkAddress] = {}
        self._failure: EngineError | None = None
        """Of a call that must not raise; told with the next one that may."""
        self._now = 0.0
        self._written = 0
        self._lost = 0
        """Packets whose loss was known when something was sent last: they have been sent again."""
        self._latest_rtt = 0.0
        self._min_rtt = 0.0
        self._rtt_variation = 0.0

    @classmethod
    def client(
        cls,
        configuration: QuicConfiguration,
        authorities: bytes,
        datagram_size: int,
        address: NetworkAddress,
        now: float,
    ) -> Qh3Engine:
        exporter = Exporter()
        connection = _Connection(configuration=_of_one(configuration, datagram_size, exporter))
        connection.authorities = authorities
        engine = cls(connection, exporter)
        with _third_party():
            connection.connect(engine._plain(address), now=engine._onward(now))
        return engine

    @classmethod
    def server(
        cls, configuration: QuicConfiguration, datagram_size: int, original_id: bytes, retry_id: bytes | None
    ) -> Qh3Engine:
        exporter = Exporter()
        connection = _Connection(
            configuration=_of_one(configuration, datagram_size, exporter),
            original_destination_connection_id=original_id,
            retry_source_connection_id=retry_id,
        )
        return cls(connection, exporter)

    def channel_binding(self, certificate: bytes) -> bytes:
        return self._exporter.channel_binding(certificate)

    # What goes in

    def receive(self, data: bytes, segment: int, address: NetworkAddress, now: float) -> None:
        connection, plain, now = self._connection, self._plain(address), self._onward(now)
        with _third_party():
            if connection._handshake_complete:
                self._core.receive_gro_buffer(data, segment, plain, now)
                connection._drain_core()
            else:
                for start in range(0, len(data), segment):
                    connection.receive_datagram(data[start : start + segment], plain, now=now)
        self._measure()

    def handle_timer(self, now: float) -> None:
        with _third_party():
            self._connection.handle_timer(now=self._onward(now))

    def write(self, stream_id: int, data: Buffer) -> None:
        self._written += len(data)
        self._quietly(partial(self._connection.send_stream_data, stream_id, data))

    def finish(self, stream_id: int) -> None:
        self._quietly(partial(self._connection.send_stream_data, stream_id, b"", end_stream=True))

    def close(self, error_code: int = 0, reason: str = "") -> None:
        self._quietly(partial(self._connection.close, error_code=error_code, reason_phrase=reason))

    def _quietly(self, call: Callable[[], None]) -> None:
        if self.closing is not None:
            return  # qh3 refuses what comes later than the end
        try:
            with _third_party():
                call()
        except EngineError as error:
            self._failure = error

    # What comes out

    def report(self, user: EngineUser) -> None:
        happened = self._connection.happened
        while happened:
            event = happened.popleft()
            match event[0]:
                case "stream_data":
                    user.stream_data(event[1], event[2], event[3])
                case "handshake_completed":
                    user.handshake_completed()
                case "connection_id_issued":
                    user.id_issued(event[1])
                case "connection_id_retired":
                    user.id_retired(event[1])
                case _:
                    user.stream_given_up()

    def datagrams(self, now: float) -> list[tuple[bytes, NetworkAddress]]:
        if self._failure is not None:
            raise self._failure
        if self._connection._core is None:
            return []
        poll, addresses, now = self._core.poll_transmit, self._addresses, self._onward(now)
        made: list[tuple[bytes, NetworkAddress]] = []
        with _third_party():
            try:
                while (transmit := poll(now)) is not None:
                    address = addresses.get(transmit[1])
                    if address is not None:
                        made.append((transmit[0], address))
            except RuntimeError as error:
                if str(error) != TOO_LITTLE_ROOM:
                    raise
            self._lost = self._core.loss_total
        return made

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
        certificate = self._connection.get_peercert()
        return certificate.public_bytes() if certificate is not None else b""

    def verify_client_certificate(self, issuers: bytes) -> None:
        raise TransportError(NO_CLIENT_CERTIFICATES)  # `server` does not let it come to this

    def has_stream(self, stream_id: int) -> bool:
        # Unlike aioquic, qh3 lets a server write only on streams of which it has seen something itself.
        core = self._connection._core
        return core is not None and core.can_send_stream(stream_id)

    def unsent(self) -> int:
        return self._core.get_send_buffer_size()

    def buffered(self) -> int:
        # What is in flight counts with its headers; what is known to be lost is not in flight, and not yet queued.
        core = self._core
        again = (core.loss_total - self._lost) * self._connection.configuration.max_datagram_size
        return min(self._written, core.get_send_buffer_size() + core.bytes_in_flight + again)

    def acknowledged(self) -> int:
        return self._written - self.buffered()

    def all_acknowledged(self) -> bool:
        core = self._core
        timer = core.get_timer()
        waiting = timer is not None and timer[0] == "pacing"  # lost bytes wait for the pacer, if for anything
        return not (core.bytes_in_flight or core.get_send_buffer_size() or waiting)

    @property
    def congestion_window(self) -> int:
        return self._core.congestion_window

    @property
    def bytes_in_flight(self) -> int:
        return self._core.bytes_in_flight

    @property
    def rtt(self) -> float:
        core = self._connection._core
        return 0.0 if core is None else core.smoothed_rtt or 0.0

    @property
    def rtt_variation(self) -> float:
        return self._rtt_variation

    @property
    def min_rtt(self) -> float:
        return self._min_rtt

    @property
    def probe_timeout(self) -> float:
        # RFC 9002 section 6.2.1
        return (self.rtt or INITIAL_RTT) + max(4 * self._rtt_variation, 0.001) + MAX_ACK_DELAY

    # Inside

    @property
    def _core(self) -> QuicConnectionCore:
        """There is none before a server's first datagram, and another after a Retry."""
        return self._connection._require_core()

    def _onward(self, now: float) -> float:
        """Never back: an acknowledgement that came before its packet was sent, by a hair, ends a connection of qh3."""
        self._now = max(self._now, now)
        return self._now

    def _plain(self, address: NetworkAddress) -> tuple[Any, ...]:
        """The address as qh3 takes it: no more than a number and a port; remembered for the way back."""
        host, port = address.host.partition("%")[0], address.port
        plain = (host, port, address.flow, address.scope) if ":" in host else (host, port)
        if self._addresses.get(plain) is not address:
            self._addresses.pop(plain, None)
            self._addresses[plain] = address
            if len(self._addresses) > ADDRESSES_KEPT:
                del self._addresses[next(iter(self._addresses))]
        return plain

    def _measure(self) -> None:
        """What RFC 9002 section 5 keeps of round trips, from the samples that qh3 shows."""
        core = self._connection._core
        latest = None if core is None else core.latest_rtt
        if not latest or latest == self._latest_rtt:
            return
        self._latest_rtt = latest
        if self._min_rtt:
            self._min_rtt = min(self._min_rtt, latest)
            self._rtt_variation += (abs(self.rtt - latest) - self._rtt_variation) / 4
        else:
            self._min_rtt, self._rtt_variation = latest, latest / 2


def _of_one(configuration: QuicConfiguration, datagram_size: int, exporter: Exporter) -> QuicConfiguration:
    return replace(configuration, max_datagram_size=datagram_size, secrets_log_file=cast(TextIO, exporter))


def check() -> None:
    """See `Implementation`."""
    connection = QuicConnection(configuration=QuicConfiguration(is_client=True, alpn_protocols=[ALPN]))
    connection.connect(("127.0.0.1", 1), now=0.0)
    for holder, names in ((connection, CONNECTION_ATTRIBUTES), (connection._core, CORE_ATTRIBUTES)):
        for name in names:
            if not hasattr(holder, name):
                raise TransportError(f"qh3 {qh3.__version__} is not supported: {type(holder).__name__} has no {name}")


@contextmanager
def _third_party() -> Iterator[None]:
    # As in `quic_aioquic`; a panic in Rust is a BaseException.
    try:
        yield
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        logger.exception("qh3 failed")
        raise EngineError(f"QUIC engine failed: {error!r}") from error


assert IDLE_TIMEOUT
