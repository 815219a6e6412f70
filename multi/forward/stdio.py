"""Standard input and output as reader and writer, whatever they are: pipes, a socket, a terminal, files."""

from __future__ import annotations

import asyncio
import os
import select
import socket
import stat
import sys
from asyncio.streams import FlowControlMixin
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import IO, Any

from multi.forward.relay import BUFFERED, Reader, StreamPair


@asynccontextmanager
async def standard_streams() -> AsyncIterator[StreamPair]:
    """Both as a pair. Standard output is nothing else's any more: whoever reads it sees when this end has ended."""
    standard_input, standard_output = sys.stdin.fileno(), sys.stdout.fileno()
    was_blocking = os.get_blocking(standard_input)
    source = os.fdopen(os.dup(standard_input), "rb", buffering=0)
    sink = os.fdopen(os.dup(standard_output), "wb", buffering=0)
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, standard_output)
    os.close(nothing)
    pair = await _pair(source, sink)
    try:
        yield pair
    finally:
        pair.writer.close()
        os.set_blocking(standard_input, was_blocking)  # a terminal's shell shall find it as it was


async def _pair(source: IO[bytes], sink: IO[bytes]) -> StreamPair:
    if _same_socket(source, sink):
        sock = socket.socket(fileno=os.dup(source.fileno()))
        sock.setblocking(False)
        pair = StreamPair(*await asyncio.open_connection(sock=sock, limit=BUFFERED))
        pair.writer.transport.set_write_buffer_limits(high=0)
        return pair
    loop = asyncio.get_running_loop()
    reader: Reader
    if _is_pollable(source) or source.isatty():
        reader = stream = asyncio.StreamReader(BUFFERED)
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stream), source)
    else:
        reader = _FileReader(source)
    if (terminal := _opened_again(sink)) is not None:
        sink.close()
        sink = terminal
    if terminal is not None or _is_pollable(sink):
        transport, protocol = await loop.connect_write_pipe(_Output, sink)
        # The process may end right after the last `drain`: by then all has to have left it.
        transport.set_write_buffer_limits(high=0)
        return StreamPair(reader, asyncio.StreamWriter(transport, protocol, None, loop), protocol.gone)
    return StreamPair(reader, _FileWriter(sink))


def _same_socket(source: IO[bytes], sink: IO[bytes]) -> bool:
    one, other = os.fstat(source.fileno()), os.fstat(sink.fileno())
    return stat.S_ISSOCK(one.st_mode) and (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)


def _is_pollable(file: IO[bytes]) -> bool:
    mode = os.fstat(file.fileno()).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


def _opened_again(file: IO[bytes]) -> IO[bytes] | None:
    """A terminal, so that one can wait for it: Ctrl-S may have stopped it, or who shows it is slow.

    Nobody else finds it non-blocking then. None where it is no terminal, or cannot be opened.
    """
    try:
        number = os.open(os.ttyname(file.fileno()), os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK)
    except OSError:
        return None
    return os.fdopen(number, "wb", buffering=0)


class _Output(FlowControlMixin):
    """What asyncio's writer asks of a protocol, and word of the end."""

    def __init__(self) -> None:
        super().__init__()
        self.gone = asyncio.Event()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.gone.set()


class _FileReader:
    """A file, or a device as /dev/null: no event loop can wait for it, and nobody has to."""

    def __init__(self, file: IO[bytes]) -> None:
        self._number = file.fileno()

    async def read(self, n: int = -1) -> bytes:
        return await asyncio.to_thread(os.read, self._number, n)


class _FileWriter(asyncio.WriteTransport):
    """A file, a device, or a terminal that cannot be opened once more: others would find it non-blocking."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__()
        self._file = file

    @property
    def transport(self) -> asyncio.WriteTransport:
        return self

    def write(self, data: bytes | bytearray | memoryview) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self._file.fileno(), view) :]
            except BlockingIOError:  # it is standard input too, which is read without blocking
                select.select([], [self._file], [])

    async def drain(self) -> None:
        """Everything was written already."""

    def write_eof(self) -> None:
        self._file.close()

    def close(self) -> None:
        self._file.close()

    abort = close

    def is_closing(self) -> bool:
        return self._file.closed

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default
