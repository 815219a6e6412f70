"""The `tcp` transport: one TCP connection per channel, under TLS 1.3 where `ssl_config` is given."""

from __future__ import annotations

import socket
import ssl
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import TypeVar

from multi.errors import TransportError
from multi.transports.base import (
    AcceptCallback,
    Channel,
    ChannelInfo,
    Listener,
    TlsSettings,
    Transport,
    TransportSettings,
)
from multi.transports.dials import SMALL_AFTER, first_to_answer
from multi.transports.sockets import (
    bound_socket,
    connect,
    listening_socket,
    try_option,
)
from multi.transports.tcp.channel import StreamChannel, channel_info
from multi.transports.tcp.listener import StreamListener
from multi.transports.tcp.settings import TcpSettings
from multi.transports.tcp.tuning import check_congestion, congestion_state, tune_stream
from multi.transports.tls import TlsStream, client_context, handshake, secured_info, server_context
from multi.types import Candidate

SMALL_SEGMENT = 1160  # bytes, for both ends; with the headers of TCP and IPv6 they fit wherever QUIC does

C = TypeVar("C", bound=StreamChannel)


class Tcp(Transport):
    """TCP (RFC 9293), bound to an interface without root."""

    name = "tcp"

    async def dial(self, candidate: Candidate, settings: TransportSettings) -> Channel:
        return await dial_stream(candidate, settings.section("tcp", TcpSettings), settings, 0, StreamChannel)

    async def listen(self, host: str, port: int, settings: TransportSettings, accept: AcceptCallback) -> Listener:
        tcp = settings.section("tcp", TcpSettings)

        def prepare(sock: socket.socket) -> tuple[str, type[StreamChannel]]:
            tune_stream(sock, tcp, sock.getpeername()[0])
            return "tcp", StreamChannel

        check_congestion(tcp, "tcp_config.congestion: ")
        sock = settings.bound or listening_socket(host, port, self.open_socket)
        return StreamListener(sock, settings, accept, prepare)

    def open_socket(self, family: int) -> socket.socket:
        return socket.socket(family, socket.SOCK_STREAM)

    def obstacle(self, settings: TransportSettings, *, listening: bool) -> str:
        return stream_obstacle(settings.section("tcp", TcpSettings), settings.tls, listening=listening)

    def host(self, settings: TransportSettings) -> list[str]:
        return congestion_state("tcp_config", settings.section("tcp", TcpSettings))


def stream_obstacle(tcp: TcpSettings, tls: TlsSettings | None, *, listening: bool) -> str:
    """Why TLS or TCP cannot be set up as the settings want it; empty when they can."""
    try:
        if tls is not None:
            (server_context if listening else client_context)(tls)
        check_congestion(tcp)
    except TransportError as error:
        return str(error)
    return ""


async def dial_stream(
    candidate: Candidate, tcp: TcpSettings, settings: TransportSettings, protocol: int, make: type[C]
) -> C:
    """Connect a stream socket of `protocol`, put TLS on it if asked to, and make a channel of it.

    A server's certificates may need large packets, which some networks swallow: where TLS is not answered another is
    dialled beside, with small ones.
    """
    check_congestion(tcp)
    tls = settings.tls
    context = client_context(tls, settings.route) if tls is not None else None
    with ExitStack() as undo:
        sock = undo.enter_context(bound_socket(candidate, socket.SOCK_STREAM, protocol))
        tune_stream(sock, tcp, candidate.remote_address)
        if candidate.small:
            try_option(sock, "TCP_MAXSEG", SMALL_SEGMENT)
        await connect(sock, candidate)
        info = channel_info(sock, candidate.transport, candidate.interface)
        if context is None or tls is None:
            undo.pop_all()
            return make(sock, info, None)
        dials = [partial(_secure_stream, sock, undo, info, candidate, tls, context, make)]
        if not candidate.small:
            dials.append(partial(dial_stream, replace(candidate, small=True), tcp, settings, protocol, make))
        return await first_to_answer(dials, SMALL_AFTER, after_failure=False)


async def _secure_stream(
    sock: socket.socket,
    undo: ExitStack,
    info: ChannelInfo,
    candidate: Candidate,
    tls: TlsSettings,
    context: ssl.SSLContext,
    make: type[C],
) -> C:
    """`undo` closes the socket, unless this gives a channel."""
    host = tls.server_name or candidate.remote_host or candidate.remote_address
    secured = TlsStream(sock, context, host)
    await handshake(secured, host)
    channel = make(sock, secured_info(info, secured, tls, host), secured)
    undo.pop_all()
    return channel
