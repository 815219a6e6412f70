"""From a listening socket to channels, with TLS where the configuration asks for it; for TCP and MPTCP.

Decides how many connections are taken per turn, and what happens when file descriptors run out: each newcomer is still
taken, and another connection goes for it, or it is turned away. A proxy that is believed says first for whom it
speaks. A server with TLS looks at the first byte: a TLS
handshake starts with 0x16, MULTI never does. A plain connection is handed on as not secure, so that the session layer
can refuse it with a reason the peer understands.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from asyncio.trsock import TransportSocket
from collections.abc import Callable, Coroutine
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from ipaddress import ip_address, ip_network
from time import monotonic
from typing import Any, TypeVar

from multi.discovery.resources import SpareDescriptor, is_exhaustion
from multi.errors import TransportError
from multi.transports.base import AcceptCallback, ChannelInfo, SocketSteering, TransportSettings
from multi.transports.certificates import first_certificate
from multi.transports.sockets import (
    family_of,
    format_address,
    is_loopback,
    ours,
    ready,
    transport_error,
    unmapped,
    words,
)
from multi.transports.tcp.channel import StreamChannel, channel_info
from multi.transports.tcp.proxy_header import read_header
from multi.transports.tcp.tuning import send_unpaced
from multi.transports.tls import FIRST_BYTE, TlsStream, handshake, secured_info, server_context
from multi.types import host_of

logger = logging.getLogger("multi.transports")

ACCEPT_TIME = 0.005  # seconds; then established connections get their turn
EXHAUSTED_PAUSE = 0.1  # seconds; the listener stays readable, so without a pause it would spin
PEEK_SIZE = 16 * 1024  # bytes: a TLS greeting, or more than a JOIN
PEEK_PAUSE = 0.005  # seconds until more of the first bytes have come, then twice as long each time
FREED_PAUSE = 0.001  # seconds until the descriptor of a TLS handshake that was given up is free

Greeting = asyncio.Task[Any]
"""A connection until it is known for whom a proxy speaks, or until TLS is done, or that it does not speak TLS."""
T = TypeVar("T")


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
        self._admission, self._tls, self._steering = settings.admission, settings.tls, settings.steering
        self._proxies = [ip_network(network) for network in settings.proxies]
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
        if self._steering is not None:
            self._steering.start(self._passed_to_us)

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
        if self._steering is not None:
            self._steering.stop()
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
                sock, _ = self._sock.accept()
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
                self._accepted(ours(sock))

    def _take_one_more(self) -> None:
        """No descriptor was left but the spare one, which has just become free."""
        pause = EXHAUSTED_PAUSE
        with suppress(OSError):
            sock, address = self._sock.accept()
            sock.setblocking(False)
            host = unmapped(address[0])
            if self._admission.free_descriptor(host) and not self.closed:
                pause = FREED_PAUSE
                self._accepted(ours(sock))
            else:
                sock.close()
        if not self.closed and not self._spare.take():  # a server that is closed stops with its last session
            self._wait(pause)

    def _wait(self, pause: float) -> None:
        self._loop.remove_reader(self._sock.fileno())
        self._pause = self._loop.call_later(pause, self._resume)

    def _accepted(self, sock: socket.socket) -> None:
        if (prepared := self._prepared(sock)) is not None:
            self._introduce(sock, *prepared)

    def _passed_to_us(self, sock: socket.socket, client: str | None) -> None:
        """Another process has accepted it, and has perhaps looked whose it is: see `SocketSteering`."""
        sock.setblocking(False)
        if (prepared := self._prepared(ours(sock))) is not None:
            make, info = prepared
            if client is None:
                self._introduce(sock, make, info)
            else:
                self._secure(sock, make, _introduced(info, client))

    def _prepared(self, sock: socket.socket) -> tuple[type[StreamChannel], ChannelInfo] | None:
        try:
            transport, make = self._prepare(sock)
            return make, channel_info(sock, transport)
        except OSError:
            sock.close()  # the peer is already gone
            return None

    # Parts of the handshake, one after the other

    def _introduce(self, sock: socket.socket, make: type[StreamChannel], info: ChannelInfo) -> None:
        host = host_of(info.remote)
        if any(ip_address(host.partition("%")[0]) in network for network in self._proxies):
            self._wait_for(self._introduction(sock, info), sock, info, partial(self._steer, sock, make))
        else:
            self._steer(sock, make, info)

    def _steer(self, sock: socket.socket, make: type[StreamChannel], info: ChannelInfo) -> None:
        """It is known who comes."""
        if self._steering is None:
            self._secure(sock, make, info)
        else:
            kept = self._kept(sock, info, self._steering)
            self._wait_for(kept, sock, info, partial(self._secure, sock, make))

    def _secure(self, sock: socket.socket, make: type[StreamChannel], info: ChannelInfo) -> None:
        """It is for this process."""
        if self._tls is None:
            self._accept(make(sock, info, None))
        else:
            self._wait_for(self._greet(sock, info, make), sock, info, self._accept)

    def _wait_for(
        self,
        greeting: Coroutine[Any, Any, T | None],
        sock: socket.socket,
        info: ChannelInfo,
        then: Callable[[T], None],
    ) -> None:
        """Go on when a part of the handshake is over; whoever does not finish it counts among the half-open ones."""
        host = host_of(info.remote)
        task = self._loop.create_task(greeting, name=f"greeting of {info.remote}")
        self._greetings.add(task)
        task.add_done_callback(partial(self._greeted, sock, info, host, then))
        self._admission.admit(task, host, partial(self._give_up, task, info))

    async def _introduction(self, sock: socket.socket, info: ChannelInfo) -> ChannelInfo | None:
        """A proxy says for whom it speaks; None: it left without a word."""
        async with asyncio.timeout(self._admission.handshake_timeout):
            client = await read_header(sock, ready)
        if not client:
            return None if client is None else info
        return _introduced(info, client)

    async def _kept(self, sock: socket.socket, info: ChannelInfo, steering: SocketSteering) -> ChannelInfo | None:
        """Look whose it is; None: another process has it now, or the peer left without a word."""
        pause, client = PEEK_PAUSE, info.remote if info.proxy else ""
        async with asyncio.timeout(self._admission.handshake_timeout):
            await ready(sock)
            while first := sock.recv(PEEK_SIZE, socket.MSG_PEEK):
                passed = steering.passed_on(sock, first, client)
                if passed is not None:
                    return None if passed else info
                await asyncio.sleep(pause)  # it stays readable, so there is nothing to wait for
                pause *= 2
        return None

    async def _greet(self, sock: socket.socket, info: ChannelInfo, make: type[StreamChannel]) -> StreamChannel | None:
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
            secured = TlsStream(sock, context, None)
            await handshake(secured, "the client", partial(self._in_turn, host_of(info.remote)))
            return make(sock, secured_info(info, secured, self._tls, "the client", certificate), secured)

    async def _in_turn(self, host: str, step: Callable[[], None]) -> None:
        done = self._loop.create_future()
        self._admission.in_turn(asyncio.current_task(), host, partial(_take, step, done))
        try:
            await done
        finally:
            del done  # it holds what it raises, and that this frame

    def _greeted(
        self, sock: socket.socket, info: ChannelInfo, host: str, then: Callable[[T], None], greeting: Greeting
    ) -> None:
        self._greetings.discard(greeting)
        self._admission.settled(greeting)
        found: T | None = None
        if not greeting.cancelled():
            match greeting.exception():  # raised here it would hold this frame, and that the task which holds it
                case None:
                    found = greeting.result()
                case TimeoutError():
                    self._admission.report("handshake_timeout", host)
                    self._give_up(greeting, info, "timed out in the handshake")
                case TransportError() as error:
                    self._give_up(greeting, info, str(error))
                case OSError():
                    pass  # reset before its first byte
                case bug:
                    raise bug
        if isinstance(found, StreamChannel) and self.closed:
            found.abort()
        elif found is None or self.closed:
            sock.close()
        else:
            then(found)

    def _give_up(self, greeting: Greeting, info: ChannelInfo, reason: str) -> None:
        logger.info("%s connection from %s refused: %s", info.transport, info.remote, reason)
        greeting.cancel()


def _take(step: Callable[[], None], done: asyncio.Future[None]) -> None:
    if done.done():
        return  # cancelled meanwhile
    try:
        step()
    except OSError as error:
        done.set_exception(error.with_traceback(None))  # else it would hold this frame, and that `done`
    else:
        done.set_result(None)


def _introduced(info: ChannelInfo, client: str) -> ChannelInfo:
    """The facts where a proxy speaks for `client`; if that is empty, it speaks for itself."""
    if not client:
        return info
    return replace(info, remote=client, family=family_of((host_of(client), 0)), proxy=host_of(info.remote))
