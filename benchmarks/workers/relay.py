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
        self._backs: dict[tuple[str, int], socket.socket] = {}
        """Towards the server, by the address of the client's socket."""
        self._copies: set[asyncio.Task[None]] = set()
        self.changes = 0

    async def __aenter__(self) -> Self:
        self._listener = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = int(self._listener.sockets[0].getsockname()[1])
        self._front = self._udp()
        self._front.bind(("127.0.0.1", self.port))
        self._loop.add_reader(self._front, self._up)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._listener.close()
        self._cut()
        self._loop.remove_reader(self._front)
        self._front.close()

    def change_ports(self) -> None:
        """From now on everything comes to the server from other ports."""
        self.changes += 1
        self._cut()

    @staticmethod
    def _udp() -> socket.socket:
        return socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)

    def _up(self) -> None:
        data, client = self._front.recvfrom(DATAGRAM)
        back = self._backs.get(client)
        if back is None:
            back = self._backs[client] = self._udp()
            back.connect(self._server)
            self._loop.add_reader(back, self._down, back, client)
        back.send(data)

    def _down(self, back: socket.socket, client: tuple[str, int]) -> None:
        self._front.sendto(back.recv(DATAGRAM), client)

    def _cut(self) -> None:
        for task in self._copies:
            task.cancel()
        for back in self._backs.values():
            self._loop.remove_reader(back)
            back.close()
        self._backs.clear()

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
