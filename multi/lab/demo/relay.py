"""The relay of the loopback demo: breaks connections from outside, without the network's help.

A route relays TCP to TCP, MPTCP to MPTCP, or UDP datagrams one by one (QUIC), in the event loop of the demo. It can be
stalled, resumed and killed, and never looks into the bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import cast

from multi.linux.mptcp_pm import IPPROTO_MPTCP
from multi.types import Address

CHUNK = 64 * 1024  # bytes moved at a time; little is kept, so that a stall is felt at once


class StreamRoute:
    """Relays connections of one stream protocol."""

    def __init__(self, mptcp: bool, target: Address) -> None:
        self._mptcp = mptcp
        self._target = target
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    async def start(self, host: str) -> int:
        """Listen there; return the port."""
        sock = self._socket()
        sock.bind((host, 0))
        self._server = await asyncio.start_server(self._accepted, sock=sock, limit=CHUNK)
        port: int = sock.getsockname()[1]
        return port

    def _socket(self) -> socket.socket:
        made = socket.socket(socket.AF_INET, socket.SOCK_STREAM, IPPROTO_MPTCP if self._mptcp else 0)
        # Wrapped again, because asyncio refuses protocol numbers it does not know.
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, fileno=made.detach())
        sock.setblocking(False)
        return sock

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sock = self._socket()
        try:
            await asyncio.get_running_loop().sock_connect(sock, self._target)
        except OSError:
            sock.close()
            writer.transport.abort()
            return
        onward_reader, onward_writer = await asyncio.open_connection(sock=sock, limit=CHUNK)
        self._writers |= {writer, onward_writer}
        await asyncio.gather(self._pump(reader, onward_writer), self._pump(onward_reader, writer))
        for ended in (writer, onward_writer):
            self._writers.discard(ended)
            ended.close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.set_write_buffer_limits(high=CHUNK)
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK):
                await self._flowing.wait()
                writer.write(data)
                await writer.drain()
            writer.write_eof()

    def stall(self) -> None:
        self._flowing.clear()

    def resume(self) -> None:
        self._flowing.set()

    def kill(self) -> None:
        """Reset every connection and take no new ones."""
        self._flowing.set()  # whoever waits sees that its connection has gone
        if self._server is not None:
            self._server.close()
        for writer in self._writers:
            writer.transport.abort()


class DatagramRoute(asyncio.DatagramProtocol):
    """Relays UDP; a stalled or killed route drops every datagram, as a network would."""

    def __init__(self, target: Address) -> None:
        self._target = target
        self._flowing = True
        self._transport: asyncio.DatagramTransport | None = None
        self._onward: dict[Address, socket.socket] = {}
        """A socket towards the target for each client."""

    async def start(self, host: str) -> int:
        """Listen there; return the port."""
        transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(lambda: self, local_addr=(host, 0))
        port: int = transport.get_extra_info("sockname")[1]
        return port

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Python 3.11's own datagram transport is no subclass of DatagramTransport.
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: Address) -> None:
        onward = self._onward.get(addr)
        if onward is None:
            onward = self._onward[addr] = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            onward.setblocking(False)
            onward.connect(self._target)
            asyncio.get_running_loop().add_reader(onward, self._answered, onward, addr)
        if self._flowing:
            with contextlib.suppress(OSError):
                onward.send(data)

    def _answered(self, onward: socket.socket, client: Address) -> None:
        with contextlib.suppress(OSError):
            while data := onward.recv(CHUNK):
                if self._flowing and self._transport is not None:
                    self._transport.sendto(data, client)

    def stall(self) -> None:
        self._flowing = False

    def resume(self) -> None:
        self._flowing = True

    def kill(self) -> None:
        if self._transport is not None:
            self._transport.close()
        for onward in self._onward.values():
            asyncio.get_running_loop().remove_reader(onward)
            onward.close()
        self._flowing, self._onward = False, {}
