"""Strangers and clients that do not keep to the rules: they say what they want, byte by byte."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Self

from multi.asyncio.session import Session
from multi.asyncio.settings import peer_scheduler
from multi.events import SendBytes
from multi.protocol.authenticator import ClientAuthenticator
from multi.protocol.handshake import ConnectionTerms, Join
from multi.protocol.segment import SegmentType, encode
from multi.protocol.session import SessionCore
from multi.protocol.settings import Protect, SessionSettings
from multi.types import ConnectionFacts, ConnectionId, SessionId, Side

FIRST = ConnectionId(0)


class HandMade:
    """A client's core on a socket of its own, without the driver: what it sends can be changed or held back."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, protect: Protect) -> None:
        self.reader = reader
        self.writer = writer
        self.core = greeting(protect)

    @classmethod
    async def at(cls, port: int, source: str = "127.0.0.1", protect: Protect = Protect.AUTO) -> Self:
        opened = await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0))
        return cls(*opened, protect)

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    def flush(self) -> None:
        self.send(said(self.core))

    async def confirm(self) -> None:
        """Do the handshake as one should."""
        self.flush()
        while not self.core.confirmed:
            data = await self.reader.read(65536)
            assert data, "the server hung up"
            self.core.receive(FIRST, memoryview(data), now=0.0)
            self.flush()

    async def gone(self) -> bytes:
        """Wait until the server has ended the connection; return what it said until then."""
        heard = bytearray()
        with suppress(ConnectionError):
            while data := await self.reader.read(65536):
                heard += data
        self.writer.transport.abort()
        return bytes(heard)

    @property
    def session_id(self) -> SessionId:
        return self.core.session_id


def greeting(protect: Protect = Protect.AUTO) -> SessionCore:
    """A client's core that has just connected."""
    core = SessionCore(
        Side.CLIENT,
        SessionId(os.urandom(16)),
        SessionSettings(protect=protect),
        entropy=os.urandom,
        make_scheduler=peer_scheduler,
        now=0.0,
    )
    facts = ConnectionFacts("tcp")
    core.connection_opened(FIRST, facts, now=0.0)
    core.set_credit(FIRST, 1 << 20, now=0.0)
    return core


def said(core: SessionCore) -> bytes:
    """What it wants to send now."""
    buffers = [buffer for effect in core.effects() if isinstance(effect, SendBytes) for buffer in effect.buffers]
    return b"".join(bytes(buffer) for buffer in buffers)


def origin_of_session(session: Session) -> bytes:
    """What somebody knows who has heard its HELLO."""
    authenticator = session._driver.core._auth
    assert isinstance(authenticator, ClientAuthenticator)
    return authenticator._origin


def join_segment(session_id: SessionId, sealed: bool = True, origin: bytes = b"") -> bytes:
    """JOIN from somebody who knows the Session ID, perhaps with its origin, and nothing else."""
    join = Join(origin or os.urandom(16), os.urandom(32), ConnectionTerms(sealed=sealed))
    return encode(SegmentType.JOIN, session_id, join.encode())


class Stranger:
    """A TCP connection from any address of this machine that says `first` and then listens."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        self.gone = asyncio.ensure_future(self._read(reader))

    @classmethod
    async def at(cls, port: int, first: bytes = b"", source: str = "127.0.0.1") -> Self:
        stranger = cls(*await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0)))
        stranger.writer.write(first)
        return stranger

    @staticmethod
    async def _read(reader: asyncio.StreamReader) -> bytes:
        heard = bytearray()
        with suppress(ConnectionError):
            while data := await reader.read(65536):
                heard += data
        return bytes(heard)

    async def leave(self) -> bytes:
        self.writer.transport.abort()
        return await self.gone


class UdpStranger(asyncio.DatagramProtocol):
    """A UDP socket from any address of this machine."""

    def __init__(self, on_datagram: Callable[[bytes], None] = lambda data: None) -> None:
        self._on_datagram = on_datagram

    @classmethod
    async def at(cls, port: int, source: str, on_datagram: Callable[[bytes], None]) -> asyncio.DatagramTransport:
        transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
            lambda: cls(on_datagram), local_addr=(source, 0), remote_addr=("127.0.0.1", port), family=socket.AF_INET
        )
        return transport

    def datagram_received(self, data: bytes, addr: object) -> None:
        self._on_datagram(data)
