"""Reader and writer of a stream, with the behaviour of asyncio's own: code written for those works unchanged.

They decide when an application waits. Bytes live in the session's buffers until they are read, so what is not read
closes the window and slows the peer down.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING, Any

from multi.aio.driver import SessionDriver
from multi.core.ids import StreamId
from multi.errors import LocalProtocolError, SessionLost

if TYPE_CHECKING:
    from multi.aio.session import Session

DEFAULT_LIMIT = 64 * 1024  # bytes, as asyncio's: the longest line `readuntil` returns
HIGH_WATER = 512 * 1024  # unsent bytes above which `drain` waits: keeps the fastest connection busy for a pump
LOW_WATER = 128 * 1024  # unsent bytes at which it stops waiting

Data = bytes | bytearray | memoryview


class SessionReader:
    """Reads one stream. See `asyncio.StreamReader` for each method."""

    def __init__(self, driver: SessionDriver, stream: StreamId, limit: int = DEFAULT_LIMIT) -> None:
        if limit <= 0:
            raise ValueError("Limit cannot be <= 0")
        self._driver = driver
        self._session = driver.engine.session
        self._stream = stream
        self._limit = limit

    def __repr__(self) -> str:
        return f"<SessionReader stream={self._stream} buffered={self._readable()}>"

    def _readable(self) -> int:
        return self._session.streams.readable(self._stream)

    def exception(self) -> SessionLost | None:
        """Why reading ended early, or None."""
        error = self._session.streams.receive_error(self._stream)
        if error is not None:
            return error
        failure = self._driver.closed_error
        if failure is None or self._readable() or self._finished():
            return None
        return failure if isinstance(failure, SessionLost) else SessionLost(str(failure))

    def _finished(self) -> bool:
        """The peer's end has come; nothing was cut off."""
        received = self._session.receiver.streams.get(self._stream)
        return received is None or received.at_end

    def at_eof(self) -> bool:
        """True when the stream has ended and everything was read."""
        return not self._readable() and self._session.streams.at_end(self._stream)

    def _take(self, limit: int) -> bytes:
        driver = self._driver
        data = driver.engine.read(self._stream, limit, now=driver.loop.time())
        if self._session.receiver.ack_now:
            driver.pump_soon()
        return data

    def _raise_error(self) -> None:
        """Raise what ended this session in the application's terms; a refusal stays a refusal."""
        failure = self._driver.closed_error
        if failure is not None and not isinstance(failure, SessionLost) and not self._finished():
            raise failure
        error = self.exception()
        if error is not None:
            raise error

    async def _wait(self, what: str) -> bool:
        """Wait until there is more to read; False at the end. Raises what ended the stream early."""
        self._raise_error()
        if self._session.streams.at_end(self._stream) or self._driver.closed.done():
            return False
        await self._driver.wait_readable(self._stream, what)
        return True

    async def read(self, n: int = -1) -> bytes:
        """Return up to `n` bytes, as soon as there are some; all until the end when `n` is negative."""
        if n == 0:
            return b""
        if n < 0:
            pieces = []
            while piece := await self.read(1 << 20):
                pieces.append(piece)
            return b"".join(pieces)
        while not self._readable():
            if not await self._wait("read"):
                return b""
        return self._take(n)

    async def readexactly(self, n: int) -> bytes:
        """Return exactly `n` bytes. Raises asyncio.IncompleteReadError when the stream ends before."""
        if n < 0:
            raise ValueError("readexactly size can not be less than zero")
        pieces: list[bytes] = []
        missing = n
        if n <= self._limit:
            # A cancelled call must lose nothing: bytes leave the session's buffer only when all are there.
            while self._readable() < n:
                if not await self._wait("readexactly"):
                    raise asyncio.IncompleteReadError(self._take(-1), n)
        try:
            while missing:
                while not self._readable():
                    if not await self._wait("readexactly"):
                        raise asyncio.IncompleteReadError(b"".join(pieces), n)
                piece = self._take(missing)
                pieces.append(piece)
                missing -= len(piece)
        except asyncio.CancelledError:
            self._unread(b"".join(pieces))
            raise
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _unread(self, data: bytes) -> None:
        """Put back what a cancelled call had taken."""
        self._session.streams.unread(self._stream, data)

    async def readline(self) -> bytes:
        """Return a line with its newline; what is left without one at the end. Raises ValueError when too long."""
        try:
            return await self.readuntil(b"\n")
        except asyncio.IncompleteReadError as error:
            return error.partial
        except asyncio.LimitOverrunError as error:
            view = self._session.streams.peek(self._stream)
            if bytes(view[error.consumed : error.consumed + 1]) == b"\n":
                self._take(error.consumed + 1)
            else:
                self._take(-1)
            raise ValueError(error.args[0]) from None

    async def readuntil(self, separator: bytes | tuple[bytes, ...] = b"\n") -> bytes:
        """Return everything up to and including `separator` (or the earliest of several).

        Raises asyncio.IncompleteReadError at the end of the stream, asyncio.LimitOverrunError when more than the
        reader's limit would be returned; the bytes stay readable then.
        """
        separators = separator if isinstance(separator, tuple) else (separator,)
        if not separators or any(len(s) == 0 for s in separators):
            raise ValueError("Separator should be at least one-byte string")
        longest = max(len(s) for s in separators)
        searched = 0
        while True:
            buffer = bytes(self._session.streams.peek(self._stream))
            ends = [
                (index + len(s), index)
                for s in separators
                if (index := buffer.find(s, max(0, searched - len(s) + 1))) >= 0
            ]
            if ends:
                end, index = min(ends)
                if index > self._limit:
                    raise asyncio.LimitOverrunError("Separator is found, but chunk is longer than limit", index)
                return self._take(end)
            searched = len(buffer)
            if searched + 1 - longest > self._limit:
                raise asyncio.LimitOverrunError(
                    "Separator is not found, and chunk exceed the limit", searched + 1 - longest
                )
            if not await self._wait("readuntil"):
                raise asyncio.IncompleteReadError(self._take(-1), None)

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        line = await self.readline()
        if not line:
            raise StopAsyncIteration
        return line


class SessionWriter:
    """Writes one stream. See `asyncio.StreamWriter` for each method."""

    def __init__(self, owner: Session, driver: SessionDriver, stream: StreamId, *, closes_session: bool) -> None:
        self._owner = owner
        self._driver = driver
        self._engine = driver.engine
        self._session = driver.engine.session
        self._stream = stream
        self._closes_session = closes_session
        self._closing = False
        self._ended = False
        self._high, self._low = HIGH_WATER, LOW_WATER
        self._paused = False
        self.transport = SessionTransport(self)

    def __repr__(self) -> str:
        return f"<SessionWriter stream={self._stream} unsent={self._unsent()}>"

    def _unsent(self) -> int:
        return self._session.streams.unsent(self._stream)

    # --- writing ---

    def write(self, data: Data) -> None:
        """Queue bytes. `bytes` and views of `bytes` are kept by reference, anything else is copied now."""
        if self._ended:
            raise LocalProtocolError("Cannot call write() after write_eof() or close()")
        if self._session.streams.send_error(self._stream) is not None or self._driver.closed.done():
            return  # as asyncio: drain() and wait_closed() tell
        self._engine.write(self._stream, data, now=self._driver.loop.time())
        self._driver.pump_soon()

    def writelines(self, data: Iterable[Data]) -> None:
        """Queue several pieces."""
        for piece in data:
            self.write(piece)

    async def drain(self) -> None:
        """Wait while more than the high-water mark is unsent: the peer or the networks are slow."""
        self._raise_error()
        if self._unsent() <= self._high:
            return
        while self._unsent() > self._low:
            await self._driver.wait_writable(self._stream)
            self._raise_error()

    def _raise_error(self) -> None:
        failure = self._driver.closed_error
        if failure is not None:
            raise failure
        error = self._session.streams.send_error(self._stream)
        if error is not None and not (self._closing and self._session.streams.finished(self._stream)):
            raise error

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        """End this direction after everything written; the other one stays open."""
        if not self._ended:
            self._ended = True
            self._engine.finish(self._stream, now=self._driver.loop.time())
            self._driver.pump_soon()

    # --- ending ---

    def close(self) -> None:
        """End the stream after flushing, read no more. Stream 0 of `open_connection` or `on_client`: the session."""
        if self._closing:
            return
        self._closing = self._ended = True
        now = self._driver.loop.time()
        if self._closes_session:
            self._engine.close(now=now)
        else:
            self._engine.finish(self._stream, now=now)
            self._engine.stop_sending(self._stream, 0, now=now)
        self._driver.pump_soon()

    def is_closing(self) -> bool:
        return self._closing or self._driver.closed.done()

    async def wait_closed(self) -> None:
        """Return when the peer has acknowledged the end; raise when it never will."""
        if self._closes_session:
            await asyncio.shield(self._driver.closed)
        else:
            while not self._session.streams.finished(self._stream) and not self._driver.closed.done():
                await self._driver.wait_writable(self._stream)
        if self._driver.closed_error is not None and not self._session.streams.finished(self._stream):
            raise self._driver.closed_error
        if self._driver.closed_error is not None and self._closes_session:
            raise self._driver.closed_error

    def reset(self, code: int = 0) -> None:
        """Give the stream up at once: the peer's reader raises `StreamReset`."""
        self._closing = self._ended = True
        self._engine.reset(self._stream, code, now=self._driver.loop.time())
        self._driver.pump_soon()

    # --- facts ---

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """`session`, `peername`, `sockname`, `peercert`, `psk_id`, `stream`, `connections`; else `default`."""
        return self._owner.extra_info(name, self._stream, default)

    async def start_tls(self, *args: object, **kwargs: object) -> None:
        """Not available: protection belongs to the session's connections (`ssl_config`, `protect`)."""
        raise LocalProtocolError("start_tls() is not available: use ssl_config")


class SessionTransport(asyncio.WriteTransport):
    """What `writer.transport` offers: abort, buffer size and limits."""

    def __init__(self, writer: SessionWriter) -> None:
        super().__init__()
        self._writer = writer

    def abort(self) -> None:
        """End at once: the session (stream 0) or this stream."""
        writer = self._writer
        if writer._closes_session:
            writer._driver.engine.abort(now=writer._driver.loop.time())
            writer._driver.pump()
        else:
            writer.reset()

    def close(self) -> None:
        self._writer.close()

    def is_closing(self) -> bool:
        return self._writer.is_closing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._writer.get_extra_info(name, default)

    def get_write_buffer_size(self) -> int:
        """Bytes written and not yet handed to a connection."""
        return self._writer._unsent()

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._writer._low, self._writer._high

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Change the marks of `drain`, in bytes; see `asyncio.WriteTransport`."""
        if high is None:
            high = HIGH_WATER if low is None else 4 * low
        if low is None:
            low = high // 4
        if not high >= low >= 0:
            raise ValueError(f"high ({high!r}) must be >= low ({low!r}) must be >= 0")
        self._writer._high, self._writer._low = high, low

    def write(self, data: Data) -> None:
        self._writer.write(data)

    def writelines(self, list_of_data: Iterable[Data]) -> None:
        self._writer.writelines(list_of_data)

    def write_eof(self) -> None:
        self._writer.write_eof()

    def can_write_eof(self) -> bool:
        return True
