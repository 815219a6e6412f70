"""A small relay that keeps the protocol, to break connections from outside without the network's help.

One process relays any number of routes: TCP to TCP, MPTCP to MPTCP, UDP datagrams one by one (QUIC). It is told what
to do on standard input, a line each: `stall NAME`, `resume NAME`, `kill NAME`, `quit`. It never looks into the bytes.

    python -m multi.lab.demo.relay NAME PROTOCOL LISTEN_HOST:PORT TARGET_HOST:PORT [...]
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

CHUNK = 64 * 1024  # bytes moved at a time; little is kept, so that a stall is felt at once
IPPROTO_MPTCP = 262
_PROTOCOLS = ("tcp", "mptcp", "udp")

Address = tuple[str, int]


@dataclass(frozen=True, slots=True)
class RelayRoute:
    """One thing to relay."""

    name: str
    protocol: str
    listen: Address
    target: Address

    def arguments(self) -> list[str]:
        return [self.name, self.protocol, _text(self.listen), _text(self.target)]


def _text(address: Address) -> str:
    return f"{address[0]}:{address[1]}"


def _address(text: str) -> Address:
    host, _, port = text.rpartition(":")
    return host, int(port)


def _stream_socket(protocol: str) -> socket.socket:
    """A socket of the wanted protocol; MPTCP is wrapped, because asyncio refuses protocol numbers it does not know."""
    if protocol == "mptcp":
        made = socket.socket(socket.AF_INET, socket.SOCK_STREAM, IPPROTO_MPTCP)
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, fileno=made.detach())
    else:
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.setblocking(False)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return sock


@dataclass
class StreamRelay:
    """Relays connections of one stream protocol."""

    route: RelayRoute
    _flowing: asyncio.Event = field(default_factory=asyncio.Event)
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)
    _server: asyncio.Server | None = None

    async def start(self) -> None:
        self._flowing.set()
        sock = _stream_socket(self.route.protocol)
        sock.bind(self.route.listen)
        self._server = await asyncio.start_server(self._accepted, sock=sock, limit=CHUNK)

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        sock = _stream_socket(self.route.protocol)
        try:
            await loop.sock_connect(sock, self.route.target)
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
        if self._server is not None:
            self._server.close()
        for writer in self._writers:
            writer.transport.abort()


class _Onward(asyncio.DatagramProtocol):
    """The side of a datagram route that faces the target, one per client."""

    def __init__(self, relay: DatagramRelay, client: Address) -> None:
        self._relay = relay
        self._client = client

    def datagram_received(self, data: bytes, addr: Address) -> None:
        self._relay.back(data, self._client)


class DatagramRelay(asyncio.DatagramProtocol):
    """Relays UDP; a stalled or killed route drops every datagram, as a network would."""

    def __init__(self, route: RelayRoute) -> None:
        self.route = route
        self._transport: asyncio.DatagramTransport | None = None
        self._onward: dict[Address, asyncio.DatagramTransport] = {}
        self._pending: dict[Address, list[bytes]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._flowing = True

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        await loop.create_datagram_endpoint(lambda: self, local_addr=self.route.listen)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Python 3.11's own datagram transport is no subclass of DatagramTransport.
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: Address) -> None:
        if not self._flowing:
            return
        onward = self._onward.get(addr)
        if onward is not None:
            onward.sendto(data)
        elif addr in self._pending:
            self._pending[addr].append(data)
        else:
            self._pending[addr] = [data]
            task = asyncio.get_running_loop().create_task(self._connect(addr))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _connect(self, client: Address) -> None:
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_datagram_endpoint(lambda: _Onward(self, client), remote_addr=self.route.target)
        self._onward[client] = transport
        for data in self._pending.pop(client, []):
            transport.sendto(data)

    def back(self, data: bytes, client: Address) -> None:
        if self._flowing and self._transport is not None:
            self._transport.sendto(data, client)

    def stall(self) -> None:
        self._flowing = False

    def resume(self) -> None:
        self._flowing = True

    def kill(self) -> None:
        self._flowing = False


async def run_relay(routes: Sequence[RelayRoute]) -> None:
    """Relay until `quit` or the end of standard input."""
    relays: dict[str, StreamRelay | DatagramRelay] = {}
    for route in routes:
        relay = DatagramRelay(route) if route.protocol == "udp" else StreamRelay(route)
        await relay.start()
        relays[route.name] = relay
    print("relaying", flush=True)
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        verb, _, name = line.strip().partition(" ")
        if verb == "quit":
            break
        if name in relays and verb in ("stall", "resume", "kill"):
            getattr(relays[name], verb)()


def main(arguments: Sequence[str]) -> int:
    routes = [
        RelayRoute(name, protocol, _address(listen), _address(target))
        for name, protocol, listen, target in zip(*[iter(arguments)] * 4, strict=True)
    ]
    if not routes or any(route.protocol not in _PROTOCOLS for route in routes):
        print(__doc__, file=sys.stderr)
        return 2
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(run_relay(routes))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
