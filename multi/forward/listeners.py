"""Ports of this machine whose connections are forwarded: to one target (-L), or as a proxy (--socks)."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

from multi.config.checks import is_loopback
from multi.discovery.resources import read_bounded
from multi.errors import ConfigError, TransportError
from multi.forward.client import ForwardClient
from multi.forward.dial import said_by_system
from multi.forward.opening import answer_of, listen, open_stream
from multi.forward.protocol import Code, Connect, ForwardRefused, HostPort
from multi.forward.proxy import Credentials, ProxyRefusal, Wish, read_wish, unpack_datagram
from multi.forward.relay import BUFFERED, ENDS, StreamPair, relay
from multi.forward.rules import MAX_FILE
from multi.forward.specs import EVERYWHERE, Forward, ProxyListener, Treatment
from multi.forward.udp import Flows, ForwardPort

logger = logging.getLogger("multi.forward")

HEARD_OUT = 2.0  # seconds a program that is refused may go on sending before its connection is reset
OnClient = Callable[[asyncio.StreamReader, asyncio.StreamWriter], None]


async def listen_for(client: ForwardClient, forward: Forward) -> asyncio.Server:
    """Forward what connects here to the forward's target at the far end. Raises TransportError."""

    def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        near = StreamPair(reader, writer)
        client.start(near, client.forward(near, forward.target, forward.treatment))

    return await _listen(forward.listen, accepted)


def check_proxy(listener: ProxyListener, credentials: Credentials) -> None:
    """Raises ConfigError where anybody could use it.

    Whoever can connect gets where the far end allows, so on other addresses than loopback a password is needed.
    """
    if not credentials and not is_loopback(listener.listen.host):
        raise ConfigError(f"{listener.listen} is not loopback: that needs --socks-auth", "--socks")


async def listen_as_proxy(client: ForwardClient, listener: ProxyListener, credentials: Credentials) -> asyncio.Server:
    """Be a proxy, SOCKS5 and HTTP CONNECT. Raises ConfigError, TransportError."""
    check_proxy(listener, credentials)

    def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client.start(StreamPair(reader, writer), _serve_wish(client, listener.treatment, credentials, reader, writer))

    return await _listen(listener.listen, accepted)


async def _serve_wish(
    client: ForwardClient,
    treatment: Treatment,
    credentials: Credentials,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> None:
    """One connection to the proxy."""
    try:
        wish = await read_wish(reader, writer, credentials)
    except (ProxyRefusal, EOFError) as error:
        client.counters.failed += 1
        logger.info("a connection to the proxy ended: %s", error)
        await _end(reader, writer)
        return
    if wish.associate:
        await _associate(client, treatment, wish, reader, writer)
        return
    stream = None
    try:
        async with client.turn(StreamPair(reader, writer), wish.target) as (session, turn):
            stream = await open_stream(session, Connect(wish.target), treatment, turn)
            bound = await answer_of(stream)
    except ENDS as error:
        client.counters.failed += 1
        logger.info("%s: %s", wish.target, error)
        if stream is not None:
            stream.reset()
        code = error.code if isinstance(error, ForwardRefused) else Code.FAILED
        writer.write(wish.answer(code, str(error)))
        await _end(reader, writer)
        return
    except BaseException:
        if stream is not None:
            stream.reset()
        raise
    writer.write(wish.answer(Code.OK, bound))
    await relay(StreamPair(reader, writer), stream, client.counters)


async def _associate(
    client: ForwardClient, treatment: Treatment, wish: Wish, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """UDP ASSOCIATE: datagrams of this program, from the address it is connected from, as long as it is connected."""
    program = HostPort(*writer.get_extra_info("peername")[:2])
    source: HostPort | None = None

    def received(data: bytes, sender: HostPort) -> None:
        nonlocal source
        if sender.host != program.host or sender != (source or sender):
            return  # somebody else's: answers would go to him
        if (unpacked := unpack_datagram(data)) is not None:
            source = sender
            target, header, content = unpacked

            def reply(answer: bytes) -> None:
                port.send(header + answer, sender)

            client.flows.datagram(port, target, target, content, reply, treatment)

    local = writer.get_extra_info("sockname")[0]
    loop = asyncio.get_running_loop()
    _, port = await loop.create_datagram_endpoint(lambda: ForwardPort(received), local_addr=(local, 0))
    try:
        writer.write(wish.answer(Code.OK, str(port.address)))
        while await reader.read(BUFFERED):
            pass
    finally:
        await client.flows.close(port)
        writer.close()


class UdpListener:
    """A UDP port of this machine whose datagrams go to one target at the far end; each sender has a flow of its own."""

    def __init__(self, flows: Flows) -> None:
        self._flows = flows
        self.ports: list[ForwardPort] = []
        """One for each address listened on."""

    async def open(self, sock: socket.socket, forward: Forward) -> None:
        """Take what comes to a bound socket, too, for the target of `forward`."""
        port: ForwardPort

        def received(data: bytes, sender: HostPort) -> None:
            def reply(answer: bytes) -> None:
                port.send(answer, sender)

            self._flows.datagram(port, sender, forward.target, data, reply, forward.treatment)

        port = ForwardPort(received)
        await asyncio.get_running_loop().create_datagram_endpoint(lambda: port, sock=sock)
        self.ports.append(port)

    async def close(self) -> None:
        for port in self.ports:
            await self._flows.close(port)


async def listen_for_datagrams(client: ForwardClient, forward: Forward) -> UdpListener:
    """Forward datagrams that come here to the forward's target, and back what it answers. Raises TransportError.

    As for connections, it listens on all addresses of a name, and everywhere means IPv4 and IPv6.
    """
    listener = UdpListener(client.flows)
    try:
        for sock in await _datagram_sockets(forward.listen):
            await listener.open(sock, forward)
    except (OSError, UnicodeError) as error:
        raise _cannot_listen(forward.listen, error) from None
    return listener


async def _datagram_sockets(listen: HostPort) -> list[socket.socket]:
    """One bound to each of its addresses, all to the same port. Raises OSError, UnicodeError."""
    host = None if listen.host == EVERYWHERE else listen.host
    found = await asyncio.get_running_loop().getaddrinfo(
        host, listen.port, type=socket.SOCK_DGRAM, flags=socket.AI_PASSIVE
    )
    port, opened, missing = listen.port, list[socket.socket](), OSError(errno.EADDRNOTAVAIL, "no address")
    with ExitStack() as undo:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            try:
                sock = undo.enter_context(socket.socket(family, kind, protocol))
                if family == socket.AF_INET6:
                    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                sock.bind((address[0], port, *address[2:]))
            except OSError as error:
                if error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
                    raise
                missing = error  # this machine has no IPv6, say
                continue
            port = sock.getsockname()[1]
            opened.append(sock)
        if not opened:
            raise missing
        undo.pop_all()
    return opened


async def _end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Close once the program has heard why.

    What it still sends is thrown away for a while: to close a connection with unread bytes resets it, and the answer is
    lost (RFC 9112 section 9.6).
    """
    with suppress(OSError, TimeoutError):
        writer.write_eof()
        async with asyncio.timeout(HEARD_OUT):
            while await reader.read(BUFFERED):
                pass
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


async def _listen(address: HostPort, accepted: OnClient) -> asyncio.Server:
    host = None if address.host == EVERYWHERE else address.host
    try:
        return await listen(accepted, host, address.port)
    except (OSError, UnicodeError) as error:
        raise _cannot_listen(address, error) from None


def _cannot_listen(address: HostPort, error: OSError | UnicodeError) -> TransportError:
    if isinstance(error, UnicodeError):  # a name with empty labels, or too long ones
        return TransportError(f"cannot listen on {address}: no host name")
    return TransportError(error.errno, f"cannot listen on {address}: {said_by_system(error)}")


def read_credentials(path: Path) -> Credentials:
    """A file of `user:password` lines, with empty ones and comments (`#`). Raises ConfigError, OSError."""
    content = read_bounded(path, MAX_FILE)
    try:
        lines = content.decode("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise ConfigError(f"not UTF-8 ({error.reason} at byte {error.start})", str(path)) from None
    found = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        user, colon, password = line.partition(":")
        if not (colon and user and password) or max(len(user.encode()), len(password.encode())) > 255:
            raise ConfigError(f"line {number} is not USER:PASSWORD (1 to 255 bytes each)", str(path))
        found[user] = password
    if not found:
        raise ConfigError("no user in it", str(path))
    return found
