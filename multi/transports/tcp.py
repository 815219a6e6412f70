"""The `tcp` transport: one plain TCP connection per channel."""

from __future__ import annotations

import socket
from contextlib import ExitStack

from multi.core.facts import Candidate
from multi.errors import TransportError
from multi.transports.base import (
    AcceptCallback,
    Channel,
    ChannelInfo,
    Listener,
    TransportSettings,
    register_transport,
)
from multi.transports.sockets import (
    bound_socket,
    connect,
    enable_fast_open,
    family_of,
    format_address,
    listening_socket,
    tune_stream,
)
from multi.transports.stream_channel import StreamChannel
from multi.transports.stream_listener import StreamListener


@register_transport("tcp")
class Tcp:
    """TCP (RFC 9293), bound to an interface without root."""

    name = "tcp"

    async def dial(self, candidate: Candidate, settings: TransportSettings) -> Channel:
        if settings.tls is not None:
            raise TransportError("TLS over TCP is not available yet")
        sock = bound_socket(candidate, socket.SOCK_STREAM)
        with ExitStack() as undo:
            undo.callback(sock.close)
            tune_stream(sock, settings.tcp)
            if settings.tcp.fast_open:
                enable_fast_open(sock)
            await connect(sock, candidate)
            channel = StreamChannel(sock, channel_info(sock, "tcp", candidate.interface))
            undo.pop_all()
        return channel

    async def listen(self, host: str, port: int, settings: TransportSettings, accept: AcceptCallback) -> Listener:
        if settings.tls is not None:
            raise TransportError("TLS over TCP is not available yet")

        def accepted(sock: socket.socket) -> None:
            if (channel := accepted_channel(sock, settings)) is not None:
                accept(channel)

        sock = listening_socket(host, port, lambda family: socket.socket(family, socket.SOCK_STREAM))
        return StreamListener(sock, accepted)


def accepted_channel(sock: socket.socket, settings: TransportSettings) -> StreamChannel | None:
    """A channel over an accepted socket, or None if the peer is already gone."""
    with ExitStack() as undo:
        undo.callback(sock.close)
        try:
            tune_stream(sock, settings.tcp)
            channel = StreamChannel(sock, channel_info(sock, "tcp"))
        except OSError:
            return None
        undo.pop_all()
    return channel


def channel_info(sock: socket.socket, transport: str, interface: str = "") -> ChannelInfo:
    """What a connected stream socket says about itself. Raises OSError if the peer is already gone."""
    remote = sock.getpeername()
    return ChannelInfo(
        transport=transport,
        family=family_of(remote),
        local=format_address(sock.getsockname()),
        remote=format_address(remote),
        interface=interface,
    )
