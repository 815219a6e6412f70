"""The `quic` transport: one QUIC connection (RFC 9000) per channel, over our own datagram driver.

A client has a connected socket of its own, bound to its interface; a server has one socket for all its connections
and tells them apart by connection id.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from asyncio.trsock import TransportSocket
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any, ClassVar

from aioquic.quic.packet import QuicErrorCode, QuicHeader, QuicPacketType

from multi.errors import TransportError, fresh
from multi.transports.base import (
    AcceptCallback,
    AdmissionControl,
    Arrival,
    Channel,
    ChannelInfo,
    Listener,
    TlsSettings,
    Transport,
    TransportSettings,
)
from multi.transports.certificates import check_pin, first_certificate, read_certificates, system_authorities
from multi.transports.dials import SMALL_AFTER, first_to_answer
from multi.transports.quic.channel import REFUSED, QuicChannel
from multi.transports.quic.connection_ids import ConnectionIds
from multi.transports.quic.engine import LANE_STREAMS, EngineSettings, QuicEngine, implementation, loaded_implementation
from multi.transports.quic.packets import (
    RetryTokens,
    connection_of_all,
    header_of,
    may_begin_connection,
    refusal,
    stateless_reset,
    version_negotiation,
)
from multi.transports.quic.settings import QuicSettings
from multi.transports.quic.udp_port import (
    MIN_DATAGRAM,
    Burst,
    PeerAddress,
    UdpPort,
    largest_datagram,
    largest_datagram_to,
)
from multi.transports.sockets import (
    bound_socket,
    family_of,
    format_address,
    is_loopback,
    listening_socket,
    socket_address,
    transport_error,
)
from multi.transports.tls import client_context, server_context
from multi.types import Candidate, host_of

Identity = tuple[Any, bytes]
"""What an engine has been configured with, and the certificate (DER) that this shows."""

logger = logging.getLogger("multi.transports")

HANDSHAKE_TIMEOUT = 10.0  # seconds; enough for five lost flights, racing gives up earlier
SMALL_DATAGRAM = 1232  # bytes of UDP payload that fit into 1,280, which every network with IPv6 carries (RFC 8200)
RETRY_ABOVE = 64  # unfinished handshakes; from then on addresses are validated before any state is kept
GOODBYE_TIME = 2.0  # seconds a closed connection still answers: three probe timeouts of a slow network
INBOX_TIME = 0.002  # seconds of a turn for what a stranger has sent
INBOX_SIZE = 128 * 1024  # bytes that wait for it: early data, and half as much again
INBOX_OVERHEAD = 384  # counted for each datagram besides: what its objects take (measured: 380)
RESETS_PER_SECOND = 1000  # packets for connections that are gone which are answered: a millisecond's work for each 50
MAX_GOODBYES = 3  # answers to packets for a closed connection (RFC 9000 section 10.2.1 asks for a limit)


class Quic(Transport):
    """QUIC, whatever engine. Always encrypted: the server needs a certificate, the client an issuer it trusts."""

    name = "quic"
    CHANNEL: ClassVar[type[QuicChannel]] = QuicChannel

    async def dial(self, candidate: Candidate, settings: TransportSettings) -> Channel:
        """With small datagrams beside where the usual ones are not answered: some networks swallow large packets."""
        engine_type, wanted = await self._loaded_engine(settings), settings.section("quic", QuicSettings)
        sizes = [_datagram_size(engine_type, wanted, candidate.remote_address)]
        if sizes[0] > SMALL_DATAGRAM:
            sizes.append(SMALL_DATAGRAM)
        dials = [partial(self._dial, candidate, settings, size) for size in sizes]
        return await first_to_answer(dials, SMALL_AFTER, after_failure=False)

    async def _dial(self, candidate: Candidate, settings: TransportSettings, size: int) -> Channel:
        tls = settings.tls or TlsSettings()  # there is no QUIC without
        issuers = trusted_authorities(tls) if tls.verify else b""
        host = tls.server_name or candidate.remote_host or candidate.remote_address
        engine_type = await self._loaded_engine(settings)
        wanted = EngineSettings(settings.section("quic", QuicSettings), tls, issuers, host)
        configuration = engine_type.configure(self._refined(wanted, settings))
        first_id = ConnectionIds(settings.route).new() if settings.route else None
        with ExitStack() as undo:
            sock = connected_socket(candidate)
            undo.callback(sock.close)
            peer = self._peer(sock)
            engine = engine_type(configuration, largest_datagram(sock, size), first_id)
            engine.connect(peer, time.monotonic())
            undo.pop_all()
        port = UdpPort(sock, peer)
        info = ChannelInfo(
            transport=self.name,
            family=candidate.family,
            local=format_address(sock.getsockname()),
            remote=str(peer),
            interface=candidate.interface,
            lanes=len(LANE_STREAMS),
            secure=True,
        )
        client = _Client(port, tls, host)
        channel = self.CHANNEL(engine, port, client, info, {}, HANDSHAKE_TIMEOUT, host)
        port.start(channel)
        channel.start_handshake()
        try:
            if (error := await client.done) is not None:
                raise fresh(error)
        except BaseException:
            channel.abort()
            raise
        self._dialled(channel, candidate, settings)
        return channel

    async def listen(self, host: str, port: int, settings: TransportSettings, accept: AcceptCallback) -> Listener:
        if settings.tls is None or settings.tls.cert is None or settings.tls.key is None:
            raise TransportError("QUIC needs ssl_config.cert and ssl_config.key")
        engine_type = await self._loaded_engine(settings)
        tls, cert = settings.tls, settings.tls.cert
        with ExitStack() as undo:
            sock = settings.bound or undo.enter_context(listening_socket(host, port, self.open_socket))
            ids = ConnectionIds(settings.route, settings.reset_key, sock.getsockname()[1])

            def read() -> Identity:
                issuers = read_certificates(tls.client_ca) if tls.client_ca else b""
                wanted = EngineSettings(settings.section("quic", QuicSettings), tls, issuers, ids=ids)
                return engine_type.configure(self._refined(wanted, settings)), first_certificate(cert)

            listener = QuicListener(sock, engine_type, read, ids, settings, accept, self.CHANNEL)
            undo.pop_all()
        return listener

    def open_socket(self, family: int) -> socket.socket:
        return socket.socket(family, socket.SOCK_DGRAM)

    # What another transport over QUIC does otherwise

    def _engine(self, settings: TransportSettings) -> type[QuicEngine]:
        return implementation(settings.section("quic", QuicSettings).engine)

    async def _loaded_engine(self, settings: TransportSettings) -> type[QuicEngine]:
        return await loaded_implementation(settings.section("quic", QuicSettings).engine)

    def _refined(self, wanted: EngineSettings, settings: TransportSettings) -> EngineSettings:
        return wanted

    def _peer(self, sock: socket.socket) -> PeerAddress:
        return PeerAddress(sock.getpeername())

    def _dialled(self, channel: QuicChannel, candidate: Candidate, settings: TransportSettings) -> None:
        """The handshake is done."""

    def obstacle(self, settings: TransportSettings, *, listening: bool) -> str:
        tls = settings.tls or TlsSettings()
        try:
            self._engine(settings)
            if listening:
                server_context(tls)
            else:
                client_context(tls)
                if tls.verify:
                    trusted_authorities(tls)
        except TransportError as error:
            return str(error)
        return ""


def _datagram_size(engine_type: type[QuicEngine], quic: QuicSettings, host: str) -> int:
    """Bytes of the largest to be sent there. An engine that does not find out what a network carries sends the least
    that QUIC needs (RFC 9000 section 14.2), except inside this machine."""
    return quic.max_datagram_size if engine_type.FINDS_SIZE or is_loopback(host) else MIN_DATAGRAM


def connected_socket(candidate: Candidate) -> socket.socket:
    """A UDP socket from and to where the candidate says. Raises TransportError."""
    sock = bound_socket(candidate, socket.SOCK_DGRAM)
    try:
        sock.connect(socket_address(candidate.remote_address, candidate.remote_port, candidate.interface))
    except OSError as error:
        sock.close()
        raise transport_error(error) from error
    return sock


def trusted_authorities(tls: TlsSettings) -> bytes:
    """PEM of whom a client trusts, never empty: what the configuration names, else the system's authorities.

    Raises TransportError.
    """
    trusted = read_certificates(tls.ca) if tls.ca is not None else system_authorities()
    if not trusted:
        raise TransportError("this system trusts no authority: QUIC needs ssl_config.ca")
    return trusted


class _Client:
    """The owner of a dialled connection."""

    def __init__(self, port: UdpPort, tls: TlsSettings, host: str) -> None:
        self._port, self._tls, self._host = port, tls, host
        self.done: asyncio.Future[TransportError | None] = asyncio.get_running_loop().create_future()
        """With what has gone wrong."""

    def opened(self, channel: QuicChannel) -> None:
        certificate = channel.engine.peer_certificate
        try:
            pinned = check_pin(self._tls, certificate, self._host)
        except TransportError as error:
            self.failed(channel, error)
            return
        channel.secured(self._tls.verify or pinned, certificate)
        if not self.done.done():
            self.done.set_result(None)

    def failed(self, channel: QuicChannel, error: TransportError) -> None:
        if not self.done.done():
            self.done.set_result(error)

    def released(self, channel: QuicChannel, goodbye: list[Burst]) -> None:
        self._port.close()


class _Inbox:
    """What has come for a connection whose peer has proved nothing, until it is its turn."""

    def __init__(self, channel: QuicChannel, admission: AdmissionControl) -> None:
        self._channel, self._admission = channel, admission
        self._host = host_of(channel.info.remote)
        self._waiting: deque[tuple[bytes, PeerAddress, float]] = deque()
        self._size = 0

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, data: bytes, segment: int, address: PeerAddress, at: float) -> None:
        """One or more datagrams; beyond `INBOX_SIZE` they are lost, as if a router had no room for them."""
        size = len(data) + -(-len(data) // segment) * INBOX_OVERHEAD
        if self._size + size <= INBOX_SIZE:
            self._size += size
            for start in range(0, len(data), segment):
                self._waiting.append((data[start : start + segment], address, at))
            self._admission.in_turn(self, self._host, self._take)

    def close(self) -> None:
        self._admission.settled(self)

    def _take(self) -> None:
        until = time.monotonic() + INBOX_TIME
        while self._waiting:
            data, address, at = self._waiting.popleft()
            self._size -= len(data) + INBOX_OVERHEAD
            self._channel.datagrams_received(data, len(data), address, at)
            if time.monotonic() >= until:
                break
        self._channel.answer()
        if self._waiting:
            self._admission.in_turn(self, self._host, self._take)


class QuicListener:
    """One UDP socket and all the connections on it. It lives until it is closed and the last of them ended.

    What handshakes and other strangers send waits for its turn among them, which `AdmissionControl.in_turn` gives; what
    comes from peers that have proved themselves is taken as soon as it is read.
    """

    def __init__(
        self,
        sock: socket.socket,
        engine_type: type[QuicEngine],
        read: Callable[[], Identity],
        ids: ConnectionIds,
        settings: TransportSettings,
        accept: AcceptCallback,
        channel_type: type[QuicChannel],
    ) -> None:
        self._channel_type = channel_type
        self._loop = asyncio.get_running_loop()
        self._engine_type = engine_type
        self._configuration, self._certificate = read()
        self._read = read
        self._tls = settings.tls or TlsSettings()
        self._quic = settings.section("quic", QuicSettings)
        self._admission = settings.admission
        self._accept = accept
        self._tokens = RetryTokens(ids)
        self._ids, self._steering = ids, settings.steering
        self._id_length = ids.length
        self._resets, self._resets_since = 0, 0.0
        """How many were sent since when, within a second."""
        self._routes: dict[bytes, object] = {}
        """Where the packets for a connection id go: a channel, or the goodbyes that are left of one."""
        self._channels: set[QuicChannel] = set()
        self._handshakes: dict[QuicChannel, bytes] = {}
        """Those not finished, with the certificate that the client is shown."""
        self._inboxes: dict[QuicChannel, _Inbox] = {}
        """Of those whose peers have proved nothing."""
        self._touched: dict[QuicChannel, None] = {}
        self._closed = False
        self._port = UdpPort(sock)
        self._port.start(self)
        if self._steering is not None:
            self._steering.take_datagrams(self.address[1], self._passed_to_us)

    @property
    def address(self) -> tuple[str, int]:
        return self._port.address

    @property
    def sock(self) -> TransportSocket:
        return self._port.sock

    def renew(self) -> Callable[[], None]:
        identity = self._read()

        def use() -> None:
            self._configuration, self._certificate = identity

        return use

    def close(self) -> None:
        self._closed = True
        for channel in list(self._handshakes):
            channel.abort()
        self._close_port_if_unused()

    # DatagramUser

    def datagrams_received(self, data: bytes, segment: int, address: PeerAddress, at: float) -> None:
        # What the kernel hands over together came from one address, but that may be a proxy of many clients.
        together = connection_of_all(data, segment, self._id_length)
        route = self._routes.get(together) if together is not None else None
        if isinstance(route, QuicChannel):
            self._hand(route, data, segment, address, at)
            return
        for start in range(0, len(data), segment):
            self._datagram_received(data[start : start + segment], address, at)

    def _datagram_received(self, data: bytes, address: PeerAddress, at: float) -> None:
        header = header_of(data, self._id_length)
        if header is None:
            return
        route = self._routes.get(header.destination_cid)
        if route is None and len(data) >= MIN_DATAGRAM:  # an answer to fewer bytes could be larger than they are
            if (versions := version_negotiation(header, self._engine_type.VERSIONS)) is not None:
                self._reply(versions, address)
            elif may_begin_connection(header):
                route = self._new_connection(header, address)
        if isinstance(route, QuicChannel):
            self._hand(route, data, len(data), address, at)
        elif isinstance(route, list) and route and not self._port.blocked:
            self._port.send(route.pop())
        elif route is None and header.packet_type is QuicPacketType.ONE_RTT:
            self._say_gone(header.destination_cid, len(data), address)

    def _passed_to_us(self, data: bytes, arrival: Arrival) -> None:
        """It came for another process, which is not there: see `SocketSteering`."""
        if not self._port.closed:
            self._datagram_received(data, PeerAddress(*arrival), time.monotonic())
            self.burst_finished()

    def _hand(self, channel: QuicChannel, data: bytes, segment: int, address: PeerAddress, at: float) -> None:
        inbox = self._inboxes.get(channel)
        if inbox is not None and channel.proved and not inbox:
            del self._inboxes[channel]
            inbox = None
        if inbox is not None:
            inbox.add(data, segment, address, at)
        else:
            channel.datagrams_received(data, segment, address, at)
            self._touched[channel] = None

    def burst_finished(self) -> None:
        touched, self._touched = self._touched, {}
        for channel in touched:
            channel.burst_finished()

    def port_writable(self) -> None:
        for channel in list(self._channels):
            channel.port_writable()

    def port_failed(self, error: OSError) -> None:
        pass  # an unconnected socket does not learn of unreachable peers

    # Owner

    def opened(self, channel: QuicChannel) -> None:
        shown = self._handshakes[channel]
        self._handshake_over(channel)
        asked = self._tls.client_ca is not None
        if asked:
            try:
                channel.engine.verify_client_certificate()
                check_pin(self._tls, channel.engine.peer_certificate, "the client")
            except TransportError as error:
                logger.info("quic connection from %s refused: %s", channel.info.remote, error)
                channel.abort(REFUSED, "the server did not accept the client's certificate, or there was none")
                return
        channel.secured(asked, shown)
        self._accept(channel)

    def failed(self, channel: QuicChannel, error: TransportError) -> None:
        logger.info("quic connection from %s refused: %s", channel.info.remote, error)
        if channel.timed_out:
            self._admission.report("handshake_timeout", host_of(channel.info.remote))

    def released(self, channel: QuicChannel, goodbye: list[Burst]) -> None:
        self._channels.discard(channel)
        if (inbox := self._inboxes.pop(channel, None)) is not None:
            inbox.close()
        self._port.connections = len(self._channels)
        answers = [goodbye] * MAX_GOODBYES if goodbye else []
        for connection_id in channel.ids:
            self._routes[connection_id] = answers
        self._loop.call_later(GOODBYE_TIME, self._forget, channel.ids)
        self._handshake_over(channel)
        self._close_port_if_unused()

    # Inside

    def _new_connection(self, header: QuicHeader, address: PeerAddress) -> QuicChannel | None:
        if self._closed:
            self._reply(refusal(header, QuicErrorCode.CONNECTION_REFUSED), address)
            return None
        host = address.peer[0]
        original_id: bytes = header.destination_cid
        retry_id: bytes | None = None
        if self._quic.retry or header.token or self._under_load(host):
            now = time.monotonic()
            if not header.token:
                if not self._quic.retry:
                    self._admission.report("quic_retry", host)
                self._reply(self._tokens.retry(header, str(address), now), address)
                return None
            validated = self._tokens.original_id(header, str(address), now)
            if validated is None:
                self._reply(refusal(header, QuicErrorCode.INVALID_TOKEN), address)
                return None
            original_id, retry_id = validated, header.destination_cid
        size = largest_datagram_to(address.peer, _datagram_size(self._engine_type, self._quic, host))
        engine = self._engine_type(self._configuration, size, original_id, retry_id)
        info = ChannelInfo(
            transport="quic",
            family=family_of(address.peer),
            local=self._port.local_name(address),
            remote=str(address),
            lanes=len(LANE_STREAMS),
            secure=True,
        )
        channel = self._channel_type(engine, self._port, self, info, self._routes, self._admission.handshake_timeout)
        channel.add_id(header.destination_cid)
        self._channels.add(channel)
        self._handshakes[channel] = self._certificate
        self._inboxes[channel] = _Inbox(channel, self._admission)
        self._port.connections = len(self._channels)
        self._admission.admit(channel, host, lambda reason: self._evict(channel, reason), has_descriptor=False)
        return channel

    def _say_gone(self, connection_id: bytes, size: int, address: PeerAddress) -> None:
        """Whoever had this connection has it no more; the client need not find out by waiting."""
        steering = self._steering
        if not self._ids.are_of(connection_id) and not (
            steering is not None and steering.answers_for(self._ids.route_in(connection_id))
        ):
            return  # it may live elsewhere
        now = time.monotonic()
        if now >= self._resets_since + 1.0:
            self._resets, self._resets_since = 0, now
        if self._resets < RESETS_PER_SECOND and (answer := stateless_reset(size, self._ids.reset_token(connection_id))):
            self._resets += 1
            self._reply(answer, address)

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
            self._port.send([Burst(data, len(data), address)])

    def _forget(self, ids: set[bytes]) -> None:
        for connection_id in ids:
            self._routes.pop(connection_id, None)
        self._close_port_if_unused()

    def _close_port_if_unused(self) -> None:
        if self._closed and not self._channels:
            self._port.close()
