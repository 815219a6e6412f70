"""The `quic` transport: one QUIC connection (RFC 9000) per channel, over our own datagram driver.

A client has a connected socket of its own, bound to its interface; a server has one socket for all its connections
and tells them apart by connection id.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

from aioquic.quic.packet import QuicErrorCode

from multi.errors import TransportError
from multi.transports.base import (
    AcceptCallback,
    AdmissionControl,
    Channel,
    ChannelInfo,
    Listener,
    TlsSettings,
    Transport,
    TransportSettings,
)
from multi.transports.certificates import check_pin, first_certificate, read_certificates, system_authorities
from multi.transports.quic import aioquic_engine as aioquic_engine  # now: the first dial must not wait for its import
from multi.transports.quic.channel import LANE_STREAMS, QuicChannel
from multi.transports.quic.engine import Accept, Connect, QuicEngine, implementation
from multi.transports.quic.packets import (
    PacketHeader,
    RetryTokens,
    connection_of_all,
    refusal,
    version_negotiation,
)
from multi.transports.quic.settings import QuicSettings
from multi.transports.quic.udp_port import PeerAddress, UdpPort, largest_datagram, largest_datagram_to
from multi.transports.sockets import (
    bound_socket,
    family_of,
    format_address,
    listening_socket,
    socket_address,
    transport_error,
)
from multi.transports.tls import client_context, server_context
from multi.types import Candidate

logger = logging.getLogger("multi.transports")

RETRY_ABOVE = 64  # unfinished handshakes; from then on addresses are validated before any state is kept
GOODBYE_TIME = 1.0  # seconds a closed connection still answers, at least
GOODBYES_MAX = 3  # answers to packets for a closed connection (RFC 9000 section 10.2.1 asks for a limit)


class Quic(Transport):
    """QUIC through aioquic or qh3. Always encrypted: the server needs a certificate, the client an issuer it trusts."""

    name = "quic"

    async def dial(self, candidate: Candidate, settings: TransportSettings) -> Channel:
        sock = bound_socket(candidate, socket.SOCK_DGRAM)
        address = socket_address(candidate.remote_address, candidate.remote_port, candidate.interface)
        with ExitStack() as undo:
            undo.callback(sock.close)
            connect = client_side(settings, candidate)
            try:
                sock.connect(address)
            except OSError as error:
                raise transport_error(error) from error
            undo.pop_all()
        client = _Client(sock, candidate, connect, settings)
        return await client.open()

    async def listen(self, host: str, port: int, settings: TransportSettings, accept: AcceptCallback) -> Listener:
        if settings.tls is None or settings.tls.cert is None or settings.tls.key is None:
            raise TransportError("QUIC needs ssl_config.cert and ssl_config.key")
        quic = settings.section("quic", QuicSettings)
        found = implementation(quic.engine)
        answer = found.server(quic, settings.tls)
        certificate = first_certificate(settings.tls.cert)
        issuers = read_certificates(settings.tls.client_ca) if settings.tls.client_ca else b""
        sock = listening_socket(host, port, lambda family: socket.socket(family, socket.SOCK_DGRAM))
        return QuicListener(sock, answer, found.VERSIONS, certificate, issuers, settings, accept)

    def obstacle(self, settings: TransportSettings, *, listening: bool) -> str:
        quic, tls = settings.section("quic", QuicSettings), settings.tls or TlsSettings()
        try:
            implementation(quic.engine)
            if listening:
                server_context(tls)
            else:
                client_context(tls)
                if tls.verify:
                    trusted_authorities(tls)
        except TransportError as error:
            return str(error)
        return ""


def client_side(settings: TransportSettings, candidate: Candidate) -> Connect:
    """Raises TransportError if a file cannot be read, or the engine is not installed or cannot do what is asked."""
    tls = settings.tls or TlsSettings()  # there is no QUIC without
    quic = settings.section("quic", QuicSettings)
    found = implementation(quic.engine)
    authorities = trusted_authorities(tls) if tls.verify else b""
    return found.client(quic, tls, authorities, _server_name(tls, candidate))


def trusted_authorities(tls: TlsSettings) -> bytes:
    """PEM of whom a client trusts, never empty: what the configuration names, else the system's authorities.

    Raises TransportError.
    """
    # A client's certificate without a key is one it trusts.
    named = tls.ca or (tls.cert if tls.key is None else None)
    trusted = read_certificates(named) if named is not None else system_authorities()
    if not trusted:
        raise TransportError("this system trusts no authority: QUIC needs ssl_config.ca")
    return trusted


def _server_name(tls: TlsSettings, candidate: Candidate) -> str:
    return tls.server_name or candidate.remote_host or candidate.remote_address


class _Client:
    """A dialled connection and its socket."""

    def __init__(
        self, sock: socket.socket, candidate: Candidate, connect: Connect, settings: TransportSettings
    ) -> None:
        peer = PeerAddress(*sock.getpeername())
        info = ChannelInfo(
            transport="quic",
            family=candidate.family,
            local=format_address(sock.getsockname()),
            remote=format_address(peer),
            interface=candidate.interface,
            lanes=len(LANE_STREAMS),
            secure=True,
        )
        self._tls = settings.tls or TlsSettings()
        self._host = _server_name(self._tls, candidate)
        self._opened: asyncio.Future[QuicChannel] = asyncio.get_running_loop().create_future()
        size = largest_datagram(sock, settings.section("quic", QuicSettings).max_datagram_size)
        self._port = UdpPort(sock, self, peer)
        engine = connect(size, peer, time.monotonic())
        self._channel = QuicChannel(engine, self._port, self, info, is_client=True, peer=self._host)
        self._engine = engine

    async def open(self) -> QuicChannel:
        self._channel.start_handshake()
        try:
            return await self._opened
        except BaseException:
            self._channel.abort()
            self._port.close()
            raise

    # DatagramUser

    def datagrams_received(self, data: bytes, segment: int, address: PeerAddress, at: float) -> None:
        self._channel.datagrams_received(data, segment, address, at)

    def burst_finished(self) -> None:
        self._channel.burst_finished()

    def port_writable(self) -> None:
        self._channel.port_writable()

    def port_failed(self, error: OSError) -> None:
        self._channel.port_failed(error)

    # Owner

    def opened(self, channel: QuicChannel) -> None:
        certificate = self._engine.peer_certificate
        try:
            pinned = check_pin(self._tls, certificate, self._host)
        except TransportError as error:
            self.failed(channel, error)
            return
        channel.secured(
            replace(
                channel.info,
                peer_verified=self._tls.verify or pinned,
                peer_certificate=certificate,
                channel_binding=self._engine.channel_binding(certificate),
            )
        )
        if not self._opened.done():
            self._opened.set_result(channel)

    def failed(self, channel: QuicChannel, error: TransportError) -> None:
        if not self._opened.done():
            self._opened.set_exception(error)

    def id_issued(self, channel: QuicChannel, connection_id: bytes) -> None:
        pass

    def id_retired(self, channel: QuicChannel, connection_id: bytes) -> None:
        pass

    def released(self, channel: QuicChannel, goodbye: Sequence[tuple[bytes, PeerAddress]]) -> None:
        self._port.close()


class _Goodbye:
    """What is left of a closed connection: the answer to packets that still come in."""

    __slots__ = ("datagrams", "left")

    def __init__(self, datagrams: Sequence[tuple[bytes, PeerAddress]]) -> None:
        self.datagrams = list(datagrams)
        self.left = GOODBYES_MAX


class QuicListener:
    """One UDP socket and all the connections on it. It lives until it is closed and the last of them ended."""

    def __init__(
        self,
        sock: socket.socket,
        answer: Accept,
        versions: Sequence[int],
        certificate: bytes,
        issuers: bytes,
        settings: TransportSettings,
        accept: AcceptCallback,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._answer_with = answer
        self._versions = versions
        self._certificate = certificate
        self._issuers = issuers
        assert settings.tls is not None
        self._tls = settings.tls
        quic = settings.section("quic", QuicSettings)
        self._retry = quic.retry
        self._largest = quic.max_datagram_size
        self._admission: AdmissionControl = settings.admission
        self._accept = accept
        self._tokens = RetryTokens()
        self._routes: dict[bytes, QuicChannel | _Goodbye] = {}
        self._ids: dict[QuicChannel, set[bytes]] = {}
        self._engines: dict[QuicChannel, QuicEngine] = {}
        self._handshakes: dict[QuicChannel, str] = {}
        """Those not finished, and the host each comes from."""
        self._touched: dict[QuicChannel, None] = {}
        self._closed = False
        self._port = UdpPort(sock, self)

    @property
    def address(self) -> tuple[str, int]:
        return self._port.address

    def close(self) -> None:
        self._closed = True
        for channel in list(self._handshakes):
            channel.abort()
        self._close_port_if_unused()

    # DatagramUser

    def datagrams_received(self, data: bytes, segment: int, address: PeerAddress, at: float) -> None:
        # What the kernel hands over together came from one address, but that may be a proxy of many clients.
        together = connection_of_all(data, segment)
        route = self._routes.get(together) if together is not None else None
        if isinstance(route, QuicChannel):
            route.datagrams_received(data, segment, address, at)
            self._touched[route] = None
            return
        for start in range(0, len(data), segment):
            self._datagram_received(data[start : start + segment], address, at)

    def _datagram_received(self, data: bytes, address: PeerAddress, at: float) -> None:
        try:
            header = PacketHeader(data)
        except ValueError:
            return
        route = self._routes.get(header.destination_id)
        if isinstance(route, _Goodbye):
            self._answer(route)
            return
        if route is None:
            if header.needs_version_negotiation(self._versions):
                self._reply(version_negotiation(header, self._versions), address)
                return
            if not header.is_first:
                return
            route = self._new_connection(header, address)
            if route is None:
                return
        route.datagrams_received(data, len(data), address, at)
        self._touched[route] = None

    def burst_finished(self) -> None:
        touched, self._touched = self._touched, {}
        for channel in touched:
            channel.burst_finished()

    def port_writable(self) -> None:
        for channel in list(self._ids):
            channel.port_writable()

    def port_failed(self, error: OSError) -> None:
        pass  # an unconnected socket does not learn of unreachable peers

    # Owner

    def opened(self, channel: QuicChannel) -> None:
        self._handshake_over(channel)
        engine = self._engines[channel]
        if self._issuers:
            try:
                engine.verify_client_certificate(self._issuers)
                check_pin(self._tls, engine.peer_certificate, "the client")
            except TransportError as error:
                logger.info("quic connection from %s refused: %s", channel.info.remote, error)
                channel.refuse("the server did not accept the client's certificate, or there was none")
                return
        channel.secured(
            replace(
                channel.info,
                peer_verified=bool(self._issuers),
                peer_certificate=engine.peer_certificate,
                channel_binding=engine.channel_binding(self._certificate),
            )
        )
        self._accept(channel)

    def failed(self, channel: QuicChannel, error: TransportError) -> None:
        logger.info("quic connection from %s refused: %s", channel.info.remote, error)
        if channel.timed_out:
            self._admission.report("handshake_timeout", self._handshakes[channel])
            self._handshake_over(channel)

    def id_issued(self, channel: QuicChannel, connection_id: bytes) -> None:
        self._routes[connection_id] = channel
        self._ids[channel].add(connection_id)

    def id_retired(self, channel: QuicChannel, connection_id: bytes) -> None:
        self._routes.pop(connection_id, None)
        self._ids[channel].discard(connection_id)

    def released(self, channel: QuicChannel, goodbye: Sequence[tuple[bytes, PeerAddress]]) -> None:
        ids = self._ids.pop(channel, set())
        self._port.connections = len(self._ids)
        engine = self._engines.pop(channel)
        rest = _Goodbye(goodbye)
        for connection_id in ids:
            self._routes[connection_id] = rest
        self._loop.call_later(max(GOODBYE_TIME, 3 * engine.probe_timeout), self._forget, ids)
        if not channel.timed_out:  # `failed` still asks where that one came from
            self._handshake_over(channel)
        self._close_port_if_unused()

    # Inside

    def _new_connection(self, header: PacketHeader, address: PeerAddress) -> QuicChannel | None:
        if self._closed:
            self._reply(refusal(header, QuicErrorCode.CONNECTION_REFUSED), address)
            return None
        original_id: bytes = header.destination_id
        retry_id: bytes | None = None
        if self._retry or header.token or self._under_load(address.host):
            now = time.monotonic()
            if not header.token:
                if not self._retry:
                    self._admission.report("quic_retry", address.host)
                self._reply(self._tokens.retry(header, str(address), now), address)
                return None
            validated = self._tokens.original_id(header, str(address), now)
            if validated is None:
                self._reply(refusal(header, QuicErrorCode.INVALID_TOKEN), address)
                return None
            original_id, retry_id = validated, header.destination_id
        peer = address.socket_address
        engine = self._answer_with(largest_datagram_to(peer, self._largest), original_id, retry_id)
        info = ChannelInfo(
            transport="quic",
            family=family_of(peer),
            local=self._port.local_name(address),
            remote=format_address(peer),
            lanes=len(LANE_STREAMS),
            secure=True,
        )
        timeout = self._admission.handshake_timeout
        channel = QuicChannel(engine, self._port, self, info, is_client=False, handshake_timeout=timeout)
        self._engines[channel] = engine
        self._handshakes[channel] = address.host
        self._admission.admit(channel, address.host, lambda reason: self._evict(channel, reason))
        self._ids[channel] = set()
        self._port.connections = len(self._ids)
        self.id_issued(channel, header.destination_id)
        self.id_issued(channel, engine.connection_id)
        return channel

    def _under_load(self, host: str) -> bool:
        """Too many handshakes are unfinished, in all or from there: whoever wants one more shows that he is there."""
        return len(self._handshakes) >= RETRY_ABOVE or self._admission.crowded(host)

    def _evict(self, channel: QuicChannel, reason: str) -> None:
        logger.info("quic connection from %s refused: %s", channel.info.remote, reason)
        channel.abort()

    def _handshake_over(self, channel: QuicChannel) -> None:
        self._handshakes.pop(channel, None)
        self._admission.settled(channel)

    def _reply(self, data: bytes, address: PeerAddress) -> None:
        if not self._port.blocked:  # whoever is no connection yet does not wait for a full socket
            self._port.send([(data, address)])

    def _answer(self, goodbye: _Goodbye) -> None:
        if goodbye.left and not self._port.blocked:
            goodbye.left -= 1
            self._port.send(goodbye.datagrams)

    def _forget(self, ids: set[bytes]) -> None:
        for connection_id in ids:
            self._routes.pop(connection_id, None)
        self._close_port_if_unused()

    def _close_port_if_unused(self) -> None:
        if self._closed and not self._ids:
            self._port.close()
