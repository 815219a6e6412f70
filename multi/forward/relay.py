"""Carrying bytes between two pairs of reader and writer: half close for half close, reset for reset.

Both pairs behave as asyncio's, one of a socket and one of a stream of the session. What is not taken on one side is not
read on the other, so no more than the buffers of both wait in between.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import struct
from asyncio.trsock import TransportSocket
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol, cast

from multi.errors import MultiError, counted

READ = 256 * 1024  # bytes asked for at a time
MIN_READ = 16 * 1024  # the same where there are so many connections that each may take only a few
CROWD = 32 * 1024 * 1024  # bytes that all connections may ask for at a time together, beyond that
BUFFERED = 16 * 1024  # limit of a socket's reader: it stops at twice as much and what came with one more `recv`
MAX_WAITING = 1024 * 1024  # bytes of a stream that may wait to be sent
MIN_WAITING = 768 * 1024  # bytes at which more is read: what is read takes turns of the event loop to come
NO_LINGER = struct.pack("ii", 1, 0)  # closing sends RST

ENDS = (OSError, MultiError)
"""What a connection, a stream or a session may end with."""


class Reader(Protocol):
    async def read(self, n: int = -1) -> bytes: ...


class Writer(Protocol):
    def write(self, data: bytes) -> None: ...

    async def drain(self) -> None: ...

    def write_eof(self) -> None: ...

    def close(self) -> None: ...

    @property
    def transport(self) -> asyncio.WriteTransport: ...

    def get_extra_info(self, name: str, default: Any = None) -> Any: ...


@dataclass(slots=True)
class StreamPair:
    """The two directions of a connection."""

    reader: Reader
    writer: Writer
    gone: asyncio.Event | None = None
    """Set when nobody reads any more what is written. None: the reader hears of it, as that of a socket."""

    def reset(self) -> None:
        """End both directions at once; the other side sees a reset, not an end."""
        sock = self.writer.get_extra_info("socket")
        if isinstance(sock, TransportSocket):
            with suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_LINGER)
        if not self.writer.transport.is_closing():  # asyncio's pipes cannot be aborted twice
            self.writer.transport.abort()


@dataclass(slots=True)
class Counters:
    """What was forwarded so far; bytes are those of the programs."""

    opened: int = 0
    failed: int = 0
    open: int = 0
    sent: int = 0
    """Bytes towards the other end of the session."""
    received: int = 0

    @contextmanager
    def another(self) -> Iterator[None]:
        """One is forwarded as long as this lasts."""
        self.opened += 1
        self.open += 1
        try:
            yield
        finally:
            self.open -= 1

    @property
    def share(self) -> int:
        """Bytes that each connection may ask for at a time: where nobody takes them they stay, of thousands alike."""
        return max(min(READ, CROWD // max(self.open, 1)), MIN_READ)

    def count_sent(self, size: int) -> None:
        self.sent += size

    def count_received(self, size: int) -> None:
        self.received += size

    def __str__(self) -> str:
        failed = f", {self.failed} failed" if self.failed else ""
        opened = counted(self.opened, "connection")
        return f"{opened} ({self.open} open{failed}), {self.sent} bytes out, {self.received} bytes in"


def read_at_most(transport: asyncio.BaseTransport, size: int) -> None:
    """Take no more from a socket with one `recv`, before it is known whether the other side takes it."""
    with suppress(AttributeError):  # uvloop's transports have a size of their own
        cast(Any, transport).max_size = size


class _Cautious(asyncio.StreamReaderProtocol):
    """Reads little from its first byte on."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        read_at_most(transport, MIN_READ)
        super().connection_made(transport)


async def pair_of(sock: socket.socket) -> StreamPair:
    """Reader and writer of a connected socket. Raises OSError."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(BUFFERED, loop)
    protocol = _Cautious(reader, loop=loop)
    transport, _ = await loop.create_connection(lambda: protocol, sock=sock)
    return StreamPair(reader, asyncio.StreamWriter(transport, protocol, reader, loop))


async def relay(
    near: StreamPair, far: StreamPair, counters: Counters, answer: Coroutine[Any, Any, object] | None = None
) -> None:
    """Carry bytes until both directions have ended; `far` is the stream, read when `answer` is there.

    What ends one of them early resets both, and is raised; so does being cancelled.
    """

    async def down() -> None:
        if answer is not None:
            await answer
        await _copy(far.reader, near.writer, counters, counters.count_received)

    async def watch(gone: asyncio.Event) -> None:
        await gone.wait()
        if not directions[1].done():
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

    far.writer.transport.set_write_buffer_limits(high=MAX_WAITING, low=MIN_WAITING)
    directions = [
        asyncio.ensure_future(_copy(near.reader, far.writer, counters, counters.count_sent)),
        asyncio.ensure_future(down()),
    ]
    if near.gone is not None:
        directions.append(asyncio.ensure_future(watch(near.gone)))
    with counters.another():
        read_at_most(near.writer.transport, counters.share)
        try:
            await asyncio.gather(*directions)
            near.writer.close()
            far.writer.close()
        except BaseException as error:
            counters.failed += isinstance(error, ENDS)
            for direction in directions:
                direction.cancel()
            near.reset()
            far.reset()
            await asyncio.gather(*directions, return_exceptions=True)
            raise


async def _copy(reader: Reader, writer: Writer, counters: Counters, count: Callable[[int], None]) -> None:
    while data := await reader.read(counters.share):
        writer.write(data)
        count(len(data))
        await writer.drain()
    writer.write_eof()
