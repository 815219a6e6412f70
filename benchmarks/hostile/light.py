"""A client of the real protocol on a bare socket: keys, proofs, sealing and answers, without driver, timers or streams.

Thousands of them fit into a process that has other things to do. They answer what they are asked and end when they are
ended; nothing is dialled again.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Self

from multi.protocol.segment import SegmentType, encode
from multi.protocol.settings import Protect
from tests.integration.hostile import FIRST, greeting, said

CREDIT = 1 << 20  # bytes; what a client says fits into the socket
IP_BIND_ADDRESS_NO_PORT = 24  # linux/in.h; `socket` has it from Python 3.12 on


class LightClient:
    """One session over one TCP connection."""

    def __init__(self, sock: socket.socket, loop: asyncio.AbstractEventLoop, on_end: Callable[[], None]) -> None:
        self._sock, self._loop, self._on_end = sock, loop, on_end
        self._core = greeting(Protect.AUTO)
        self._proved: asyncio.Future[bool] = loop.create_future()
        self.living = True
        loop.add_reader(sock, self._on_readable)
        self._flush()

    @classmethod
    async def at(cls, port: int, source: str, on_end: Callable[[], None] = lambda: None) -> Self:
        """Connect to the server at `port` of this machine from `source`, and say HELLO. Raises OSError."""
        loop = asyncio.get_running_loop()
        sock = socket.socket()
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1)
            sock.bind((source, 0))
            await loop.sock_connect(sock, ("127.0.0.1", port))
        except BaseException:
            sock.close()
            raise
        return cls(sock, loop, on_end)

    async def confirmed(self) -> bool:
        """Whether the server has accepted the session; False = it hung up or refused."""
        return await self._proved

    def send(self, data: bytes) -> None:
        """Say something that the core knows nothing of."""
        self._sock.send(data)

    def data(self, offset: int, payload: bytes) -> bytes:
        """A DATA segment in clear."""
        return encode(SegmentType.DATA, self._core.session_id, payload, sequence=offset)

    def drop(self) -> None:
        """Leave without a word."""
        if self.living:
            self.living = False
            self._loop.remove_reader(self._sock)
            self._sock.close()
            if not self._proved.done():
                self._proved.set_result(False)

    def _flush(self) -> None:
        self._core.set_credit(FIRST, CREDIT, now=self._loop.time())
        if data := said(self._core):
            self._sock.send(data)

    def _on_readable(self) -> None:
        try:
            data = self._sock.recv(65536)
            if data:
                self._core.receive(FIRST, memoryview(data), now=self._loop.time())
                self._flush()
        except OSError:
            data = b""
        if self._core.confirmed and not self._proved.done():
            self._proved.set_result(True)
        if not data or not self._core.connections.alive():
            self.drop()
            self._on_end()
