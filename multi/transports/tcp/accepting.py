"""From an accepted socket to a channel, with TLS where the configuration asks for it.

A server with TLS looks at the first byte: a TLS handshake starts with 0x16, MULTI never does. A plain connection is
handed on as not secure, so that the session layer can refuse it with a reason the peer understands.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from contextlib import ExitStack

from multi.errors import TransportError
from multi.transports.base import AcceptCallback, AdmissionControl, ChannelInfo, TlsSettings
from multi.transports.certificates import check_pin, first_certificate
from multi.transports.sockets import family_of, format_address, unmapped
from multi.transports.tcp.channel import StreamChannel, StreamIo
from multi.transports.tls import (
    FIRST_BYTE,
    TlsHandshake,
    TlsStream,
    secured_info,
    server_context,
    wrap,
)

logger = logging.getLogger("multi.transports")

MakeChannel = Callable[[socket.socket, ChannelInfo, StreamIo | None], StreamChannel]


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


class StreamReception:
    """Turns accepted sockets into channels; holds those that are still in their TLS handshake."""

    def __init__(
        self,
        tls: TlsSettings | None,
        admission: AdmissionControl,
        accept: AcceptCallback,
        prepare: Callable[[socket.socket], tuple[str, MakeChannel]],
    ) -> None:
        """`prepare(sock)` tunes a socket and returns its transport's name and the channel class to use."""
        self.admission = admission
        self._accept = accept
        self._prepare = prepare
        self._tls = tls
        self._context: ssl.SSLContext | None = None
        self._certificate = b""
        self._verifies = False
        if tls is not None:
            self._context = server_context(tls)
            assert tls.cert is not None
            self._certificate = first_certificate(tls.cert)
            self._verifies = tls.client_ca is not None
        self._pending: dict[_PendingHandshake, None] = {}

    def close(self) -> None:
        """Drop the connections that are still in their handshake."""
        for handshake in list(self._pending):
            handshake.abort()

    def accepted(self, sock: socket.socket) -> None:
        with ExitStack() as undo:
            undo.callback(sock.close)
            try:
                transport, make = self._prepare(sock)
                info = channel_info(sock, transport)
                host = unmapped(sock.getpeername()[0])
            except OSError:
                return  # the peer is already gone
            undo.pop_all()
        if self._context is None:
            self.deliver(make(sock, info, None))
            return
        handshake = _PendingHandshake(self, sock, info, host, make, self._context)
        self._pending[handshake] = None
        self.admission.admit(handshake, host, handshake.give_up)

    def deliver(self, channel: StreamChannel) -> None:
        self._accept(channel)

    def finished(self, handshake: _PendingHandshake) -> None:
        self._pending.pop(handshake, None)
        self.admission.settled(handshake)

    def secured(self, info: ChannelInfo, sock: ssl.SSLSocket) -> ChannelInfo:
        """Raises TransportError when the client's certificate is not pinned."""
        assert self._tls is not None
        found = secured_info(info, sock, self._verifies, self._certificate)
        check_pin(self._tls, found.peer_certificate, "the client")
        return found


class _PendingHandshake:
    """One accepted connection until we know whether it speaks TLS, and until TLS is done."""

    def __init__(
        self,
        reception: StreamReception,
        sock: socket.socket,
        info: ChannelInfo,
        host: str,
        make: MakeChannel,
        context: ssl.SSLContext,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._reception = reception
        self._sock = sock
        self._info = info
        self._host = host
        self._make = make
        self._context = context
        self._handshake: TlsHandshake | None = None
        self._timer = self._loop.call_later(reception.admission.handshake_timeout, self._too_slow)
        self._loop.add_reader(sock.fileno(), self._peek)

    def abort(self) -> None:
        self._timer.cancel()
        self._reception.finished(self)
        if self._handshake is not None:
            self._handshake.cancel()
        else:
            self._loop.remove_reader(self._sock.fileno())
        self._sock.close()

    def _too_slow(self) -> None:
        self._reception.admission.report("handshake_timeout", self._host)
        self.give_up("timed out in the handshake")

    def give_up(self, reason: str) -> None:
        logger.info("%s connection from %s refused: %s", self._info.transport, self._info.remote, reason)
        self.abort()

    def _peek(self) -> None:
        try:
            first = self._sock.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            first = b""
        if not first:
            self.abort()
            return
        self._loop.remove_reader(self._sock.fileno())
        if first[0] != FIRST_BYTE:
            self._timer.cancel()
            self._reception.finished(self)
            self._reception.deliver(self._make(self._sock, self._info, None))
            return
        self._in_turn(self._begin)

    def _in_turn(self, work: Callable[[], None]) -> None:
        self._reception.admission.in_turn(self, self._host, work)

    def _begin(self) -> None:
        try:
            secure = wrap(self._sock, self._context, None)
        except TransportError:
            self.abort()
            return
        self._sock = secure
        self._handshake = TlsHandshake(secure, "the client", lambda error: self._done(secure, error), self._in_turn)
        self._handshake.start()

    def _done(self, sock: ssl.SSLSocket, error: TransportError | None) -> None:
        if error is not None:
            self.give_up(str(error))
            return
        try:
            info = self._reception.secured(self._info, sock)
        except TransportError as refused:
            self.give_up(str(refused))
            return
        self._timer.cancel()
        self._reception.finished(self)
        self._reception.deliver(self._make(sock, info, TlsStream(sock)))
