"""A relay in front of a server, on one port for TCP and UDP, that can change the ports it sends from.

So do address translators that restart or forget: QUIC goes on with the same ids from elsewhere, TCP connections break.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Self

DATAGRAM = 65_536


class ChangingRelay:
    """For one client."""

    def __init__(self, server_port: int) -> None:
        self._server = ("127.0.0.1", server_port)
        self._loop = asyncio.get_running_loop()
        self._client: tuple[str, int] | None = None
        self._copies: set[asyncio.Task[None]] = set()
        self.changes = 0

    async def __aenter__(self) -> Self:
        self._listener = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = int(self._listener.sockets[0].getsockname()[1])
        self._front, self._back = self._udp(), self._udp()
        self._front.bind(("127.0.0.1", self.port))
        self._loop.add_reader(self._front, self._up)
        self._connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._listener.close()
        self._cut()
        for sock in (self._front, self._back):
            self._loop.remove_reader(sock)
            sock.close()

    def change_ports(self) -> None:
        """From now on everything comes to the server from other ports."""
        self.changes += 1
        self._cut()
        self._loop.remove_reader(self._back)
        self._back.close()
        self._back = self._udp()
        self._connect()

    def _connect(self) -> None:
        self._back.connect(self._server)
        self._loop.add_reader(self._back, self._down)

    @staticmethod
    def _udp() -> socket.socket:
        return socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)

    def _up(self) -> None:
        data, self._client = self._front.recvfrom(DATAGRAM)
        self._back.send(data)

    def _down(self) -> None:
        data = self._back.recv(DATAGRAM)
        if self._client is not None:
            self._front.sendto(data, self._client)

    def _cut(self) -> None:
        for task in self._copies:
            task.cancel()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(*self._server)
        for source, sink in ((reader, back), (there, writer)):
            task = self._loop.create_task(self._copy(source, sink))
            self._copies.add(task)
            task.add_done_callback(self._copies.discard)

    @staticmethod
    async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(DATAGRAM):
                sink.write(data)
                await sink.drain()
        except OSError:
            pass
        finally:
            sink.transport.abort()
