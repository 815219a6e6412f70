"""From a listening socket to channels, with TLS where the configuration asks for it; for TCP and MPTCP.

Decides how many connections are taken per turn, and what happens when file descriptors run out: each newcomer is still
taken, and another connection goes for it, or it is turned away. A server with TLS looks at the first byte: a TLS
handshake starts with 0x16, MULTI never does. A plain connection is handed on as not secure, so that the session layer
can refuse it with a reason the peer understands.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from asyncio.trsock import TransportSocket
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from time import monotonic

from multi.discovery.resources import SpareDescriptor, is_exhaustion
from multi.errors import TransportError
from multi.transports.base import AcceptCallback, ChannelInfo, TransportSettings
from multi.transports.certificates import first_certificate
from multi.transports.sockets import (
    format_address,
    is_loopback,
    ours,
    ready,
    send_unpaced,
    transport_error,
    unmapped,
    words,
)
from multi.transports.tcp.channel import StreamChannel, channel_info
from multi.transports.tls import FIRST_BYTE, TlsStream, handshake, secured_info, server_context, wrap

logger = logging.getLogger("multi.transports")

ACCEPT_TIME = 0.010  # seconds; then established connections get their turn
EXHAUSTED_PAUSE = 0.1  # seconds; the listener stays readable, so without a pause it would spin
FREED_PAUSE = 0.001  # seconds until the descriptor of a TLS handshake that was given up is free

Greeting = asyncio.Task[StreamChannel | None]
"""A connection until TLS is done, or it is known that it does not speak TLS."""


class StreamListener:
    """A listening socket whose connections become channels."""

    def __init__(
        self,
        sock: socket.socket,
        settings: TransportSettings,
        accept: AcceptCallback,
        prepare: Callable[[socket.socket], tuple[str, type[StreamChannel]]],
    ) -> None:
        """Take over a bound socket and start to listen.

        `prepare(sock)` tunes an accepted socket and returns its transport's name and the channel class to use. Raises
        TransportError if the port is in use or a certificate cannot be used.
        """
        self._loop = asyncio.get_running_loop()
        self._sock, self._accept, self._prepare = sock, accept, prepare
        self._admission, self._tls = settings.admission, settings.tls
        self._address: tuple[str, int] = sock.getsockname()[:2]
        self._pause: asyncio.TimerHandle | None = None
        self._greetings: set[Greeting] = set()
        self._spare = SpareDescriptor()
        with ExitStack() as undo:
            undo.callback(sock.close)
            undo.callback(self._spare.give)
            self.renew()()
            if is_loopback(self._address[0]):
                send_unpaced(sock)  # accepted sockets inherit it; what has been paced once keeps its timer
            try:
                sock.listen(settings.backlog)
            except OSError as error:
                raise transport_error(error, f"cannot listen on {format_address(self._address)}") from error
            undo.pop_all()
        self._resume()

    def renew(self) -> Callable[[], None]:
        if self._tls is None:
            return lambda: None
        context = server_context(self._tls)
        assert self._tls.cert is not None
        certificate = first_certificate(self._tls.cert)

        def use() -> None:
            self._context, self._certificate = context, certificate

        return use

    @property
    def address(self) -> tuple[str, int]:
        return self._address

    @property
    def sock(self) -> TransportSocket:
        return TransportSocket(self._sock)

    @property
    def closed(self) -> bool:
        return self._sock.fileno() < 0

    def close(self) -> None:
        """Those whose handshake is not over are dropped."""
        if self.closed:
            return
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._sock.fileno())
        self._sock.close()
        self._spare.give()
        for greeting in self._greetings:
            greeting.cancel()

    def _resume(self) -> None:
        self._pause = None
        self._spare.take()
        self._loop.add_reader(self._sock.fileno(), self._on_readable)

    def _on_readable(self) -> None:
        until = monotonic() + ACCEPT_TIME
        while not self.closed and self._pause is None and monotonic() < until:
            try:
                sock, address = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if not is_exhaustion(error):
                    logger.warning("cannot accept a connection on %s: %s", format_address(self._address), words(error))
                    self._wait(EXHAUSTED_PAUSE)
                elif self._spare.give():
                    self._take_one_more()
                else:
                    self._admission.report("file_descriptors")
                    self._wait(EXHAUSTED_PAUSE)
            else:
                sock.setblocking(False)
                self._accepted(ours(sock), unmapped(address[0]))

    def _take_one_more(self) -> None:
        """No descriptor was left but the spare one, which has just become free."""
        pause = EXHAUSTED_PAUSE
        with suppress(OSError):
            sock, address = self._sock.accept()
            sock.setblocking(False)
            host = unmapped(address[0])
            if self._admission.free_descriptor(host) and not self.closed:
                pause = FREED_PAUSE
                self._accepted(ours(sock), host)
            else:
                sock.close()
        if not self.closed and not self._spare.take():  # a server that is closed stops with its last session
            self._wait(pause)

    def _wait(self, pause: float) -> None:
        self._loop.remove_reader(self._sock.fileno())
        self._pause = self._loop.call_later(pause, self._resume)

    def _accepted(self, sock: socket.socket, host: str) -> None:
        try:
            transport, make = self._prepare(sock)
            info = channel_info(sock, transport)
        except OSError:
            sock.close()  # the peer is already gone
            return
        if self._tls is None:
            self._accept(make(sock, info, None))
            return
        greeting = self._loop.create_task(self._greet(sock, info, host, make), name=f"greeting of {info.remote}")
        self._greetings.add(greeting)
        greeting.add_done_callback(partial(self._greeted, sock, info, host))
        self._admission.admit(greeting, host, partial(self._give_up, greeting, info))

    async def _greet(
        self, sock: socket.socket, info: ChannelInfo, host: str, make: type[StreamChannel]
    ) -> StreamChannel | None:
        """None: the peer left without a word."""
        assert self._tls is not None
        context, certificate = self._context, self._certificate  # they belong together, though others come meanwhile
        async with asyncio.timeout(self._admission.handshake_timeout):
            await ready(sock)
            first = sock.recv(1, socket.MSG_PEEK)
            if not first:
                return None
            if first[0] != FIRST_BYTE:
                return make(sock, info, None)
            with ExitStack() as undo:
                secure = undo.enter_context(wrap(sock, context, None))
                await handshake(secure, "the client", partial(self._in_turn, host))
                info = secured_info(info, secure, self._tls, "the client", certificate)
                undo.pop_all()
            return make(secure, info, TlsStream(secure))

    async def _in_turn(self, host: str, step: Callable[[], None]) -> None:
        done = self._loop.create_future()

        def take() -> None:
            if done.done():
                return  # cancelled meanwhile
            try:
                step()
            except OSError as error:
                done.set_exception(error)
            else:
                done.set_result(None)

        self._admission.in_turn(asyncio.current_task(), host, take)
        await done

    def _greeted(self, sock: socket.socket, info: ChannelInfo, host: str, greeting: Greeting) -> None:
        self._greetings.discard(greeting)
        self._admission.settled(greeting)
        channel = None
        if not greeting.cancelled():
            try:
                channel = greeting.result()
            except TimeoutError:
                self._admission.report("handshake_timeout", host)
                self._give_up(greeting, info, "timed out in the handshake")
            except TransportError as error:
                self._give_up(greeting, info, str(error))
            except OSError:
                pass  # reset before its first byte
        if channel is None:
            sock.close()
        elif self.closed:
            channel.abort()
        else:
            self._accept(channel)

    def _give_up(self, greeting: Greeting, info: ChannelInfo, reason: str) -> None:
        logger.info("%s connection from %s refused: %s", info.transport, info.remote, reason)
        greeting.cancel()
