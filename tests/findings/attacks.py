"""What the tests of attacks share: an echo server, clients behind a relay, and those who listen and repeat."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import multi
from multi.protocol.segment import SegmentType
from tests.integration.support import HOST, Way

ANSWER_WITHIN = 1.0  # seconds a stranger waits for the server's first word


async def echo(reader: multi.SessionReader, writer: multi.SessionWriter) -> None:
    """Send back what comes, until the session ends."""
    with suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()


@asynccontextmanager
async def echoing(way: Way, **more: Any) -> AsyncIterator[multi.Server]:
    """A server that echoes; gone at the end, with all its sessions."""
    server = await multi.start_server(echo, way.server(**more))
    try:
        yield server
    finally:
        server.abort()
        await server.wait_closed()


@asynccontextmanager
async def aborted_at_end(session: multi.Session) -> AsyncIterator[multi.Session]:
    """A session that nobody closes in order: the server may have forgotten it."""
    try:
        yield session
    finally:
        session.abort()
        await session.settle()


async def exchanged(session: multi.Session, words: bytes = b"are you there?") -> None:
    """Say something and wait for its echo."""
    session.writer.write(words)
    assert await session.reader.readexactly(len(words)) == words


def unverified() -> ssl.SSLContext:
    """TLS of somebody who does not care whom he talks to."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["multi/1"])
    return context


class Strangers:
    """Connections of people without any key, which stay open until the end."""

    def __init__(self, port: int, tls: ssl.SSLContext | None = None) -> None:
        self._port = port
        self._tls = tls
        self._writers: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> Strangers:
        return self

    async def __aexit__(self, *_: object) -> None:
        for writer in self._writers:
            writer.transport.abort()
            with suppress(ConnectionError):
                await writer.wait_closed()

    async def say(self, words: bytes, source: str) -> bytes:
        """Say this on a new connection from `source`; return the first answer, empty when there is none in time."""
        reader, writer = await asyncio.open_connection(HOST, self._port, ssl=self._tls, local_addr=(source, 0))
        self._writers.append(writer)
        writer.write(words)
        with suppress(ConnectionError, TimeoutError):
            return await asyncio.wait_for(reader.read(65536), ANSWER_WITHIN)
        return b""


def type_of(segment: bytes) -> SegmentType | None:
    """What the first segment of these bytes is; None = there is none."""
    return SegmentType(segment[1]) if len(segment) > 1 else None


def first_segment(data: bytes) -> bytes:
    """The first segment of these bytes, which hold it whole."""
    return data[: int.from_bytes(data[4:8], "big")]
