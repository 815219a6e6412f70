"""Reader and writer of a stream, with the behaviour of asyncio's own: code written for those works unchanged.

They decide when an application waits. Bytes live in the session's buffers until they are read, so what is not read
closes the window and slows the peer down.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

from multi.asyncio.driver import SessionDriver
from multi.errors import LocalProtocolError, MultiError, SessionLost, StreamReset
from multi.types import StreamId

logger = logging.getLogger("multi.session")

DEFAULT_LIMIT = 64 * 1024  # bytes, as asyncio's: the longest line `readuntil` returns
HIGH_WATER = 1024 * 1024  # unsent bytes above which `drain` waits: keeps the fastest connection busy for a pump
LOW_WATER = 256 * 1024  # unsent bytes at which it stops waiting

Data = bytes | bytearray | memoryview
ExtraInfo = Callable[[str, StreamId, Any], Any]
"""What a session knows under a name, asked for a stream; else the default."""
Separator = bytes | bytearray | memoryview | tuple[bytes, ...]


class SessionReader:
    """Reads one stream. See `asyncio.StreamReader` for each method."""

    def __init__(self, driver: SessionDriver, stream: StreamId, limit: int, session: object) -> None:
        if limit <= 0:
            raise ValueError("Limit cannot be <= 0")
        self._session = session
        """Ends when nobody holds it, so whoever reads does."""
        self._driver = driver
        self._streams = driver.core.streams
        self._stream = stream
        self._received = driver.core.receiver.streams.get(stream)
        self._limit = limit
        self._taken = bytearray()
        """Taken from the session and not returned: what a search has looked at, or a cancelled call gave back.

        Not `_buffer`: redis-py looks at that of asyncio's reader for unread bytes, and would find none in this one.
        Waiting inside the session's buffer for the end of a line would keep the window shut that has to bring it.
        """

    def __repr__(self) -> str:
        return f"<SessionReader stream={self._stream} buffered={self._readable()}>"

    def _readable(self) -> int:
        return len(self._taken) + self._streams.readable(self._stream)

    def exception(self) -> MultiError | None:
        """Why reading ends early, or None. Bytes that arrived before can still be read."""
        error = self._received.error if self._received is not None else None
        if error is not None:
            return error
        if self._streams.readable(self._stream) or self._streams.complete(self._stream):
            return None
        return self._driver.closed_error

    def at_eof(self) -> bool:
        """True when the stream has ended in order and everything was read."""
        return not self._readable() and self._streams.at_end(self._stream) and self.exception() is None

    def _take(self, limit: int) -> bytes:
        """Up to `limit` bytes of what is there; negative = all of it."""
        if not self._taken:
            return self._pull(limit)
        end = limit if limit >= 0 else len(self._taken)
        data = bytes(memoryview(self._taken)[:end])
        del self._taken[:end]
        return data

    def _pull(self, limit: int) -> bytes:
        driver = self._driver
        data = driver.core.read(self._stream, limit, now=driver.loop.time())
        if driver.core.receiver.ack_now or driver.core.outbox.queue:
            driver.pump_soon()  # the window has moved, or a stream is over and makes room for another
        return data

    async def _wait(self, what: str) -> bool:
        """Wait until the session has more; False at the end. Raises what ended the stream early."""
        error = self.exception()
        if error is not None:
            raise error
        if self._streams.at_end(self._stream) or self._driver.closed.done():
            return False
        await self._driver.wait_readable(self._stream, what)
        return True

    async def read(self, n: int = -1) -> bytes:
        """Return up to `n` bytes, as soon as there are some; all until the end when `n` is negative."""
        if n == 0:
            return b""
        if n < 0:
            return await self._gather(-1, "read")
        received = self._received
        while True:
            if received is not None and received.next_offset > received.consumed and not self._taken:
                return self._pull(n)  # the common case, written out
            if self._readable():
                return self._take(n)
            if not await self._wait("read"):
                return b""

    async def readexactly(self, n: int) -> bytes:
        """Return exactly `n` bytes. Raises asyncio.IncompleteReadError when the stream ends before."""
        if n < 0:
            raise ValueError("readexactly size can not be less than zero")
        data = await self._gather(n, "readexactly")
        if len(data) < n:
            raise asyncio.IncompleteReadError(data, n)
        return data

    async def _gather(self, wanted: int, what: str) -> bytes:
        """Return `wanted` bytes (negative = all), fewer at the end only. What interrupts it loses nothing."""
        pieces: list[bytes] = []
        missing = wanted
        try:
            while missing:
                if not self._readable():
                    if not await self._wait(what):
                        break
                    continue
                piece = self._take(missing)
                pieces.append(piece)
                if wanted > 0:
                    missing -= len(piece)
        except BaseException:
            self._taken[:0] = b"".join(pieces)
            raise
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def readline(self) -> bytes:
        """Return a line with its newline; what is left without one at the end. Raises ValueError when too long."""
        try:
            return await self.readuntil(b"\n")
        except asyncio.IncompleteReadError as error:
            return error.partial
        except asyncio.LimitOverrunError as error:
            if self._taken.startswith(b"\n", error.consumed):
                del self._taken[: error.consumed + 1]
            else:
                self._taken.clear()
            raise ValueError(error.args[0]) from None

    async def readuntil(self, separator: Separator = b"\n") -> bytes:
        """Return everything up to and including `separator` (of several, the one that ends first).

        Raises asyncio.IncompleteReadError at the end of the stream, asyncio.LimitOverrunError when more than the
        reader's limit would be returned; the bytes stay readable then.
        """
        separators = separator if isinstance(separator, tuple) else (separator,)
        if not separators or not all(separators):
            raise ValueError("Separator should be at least one-byte string")
        longest = max(map(len, separators))
        buffer, searched = self._taken, 0
        while True:
            found = [(buffer.find(s, max(0, searched + 1 - len(s))), len(s)) for s in separators]
            ends = [(index + size, index) for index, size in found if index >= 0]
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
            if self._streams.readable(self._stream):
                # As much as asyncio buffers: `readline` skips a line that is too long where its end is in sight.
                buffer += self._pull(2 * self._limit + longest - searched)
            elif not await self._wait("readuntil"):
                raise asyncio.IncompleteReadError(self._take(-1), None)

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        line = await self.readline()
        if not line:
            raise StopAsyncIteration
        return line


class SessionWriter(asyncio.WriteTransport):
    """Writes one stream, and is its own `transport`. See `asyncio.StreamWriter` and `asyncio.WriteTransport`."""

    def __init__(self, driver: SessionDriver, stream: StreamId, extra_info: ExtraInfo, *, closes_session: bool) -> None:
        super().__init__()
        self._extra_info = extra_info
        self._driver = driver
        self._core = driver.core
        self._streams = driver.core.streams
        self._buffer = driver.core.sender.streams.get(stream)
        self._stream = stream
        self._closes_session = closes_session
        self._closing = False
        self._ended = False
        self._aborted = False
        self._high, self._low = HIGH_WATER, LOW_WATER

    def __repr__(self) -> str:
        return f"<SessionWriter stream={self._stream} unsent={self.get_write_buffer_size()}>"

    @property
    def transport(self) -> asyncio.WriteTransport:
        """For abort, buffer size and limits."""
        return self

    def _send_error(self) -> SessionLost | None:
        own = self._buffer.error if self._buffer is not None else None
        return own or self._streams.send_error(self._stream)

    # --- writing ---

    def write(self, data: Data) -> None:
        """Queue bytes. `bytes` and views of `bytes` are kept by reference, anything else is copied now.

        After `close` of the stream or the session, and once one of them is lost, bytes are dropped, as by asyncio's own
        transports: `drain` and `wait_closed` tell. After `write_eof` it raises.
        """
        buffer = self._buffer
        if type(data) is bytes and buffer is not None and not buffer.final and not self._driver.over:
            # The common case, written out: it runs for every write of an application.
            buffer.write(data)
            if self._driver.soon is None:
                self._driver.pump_soon()
            return
        if self._ended and not self._closing:
            raise LocalProtocolError("Cannot call write() after write_eof()")
        # Anything with a buffer, as array.array, whose length is not its size in bytes.
        kept = data if isinstance(data, (bytes, bytearray, memoryview)) else memoryview(data)
        closing = self._closing or self._core.closing
        if closing or self._driver.closed.done() or self._send_error() is not None:
            logger.debug("session %s: bytes written after the end are dropped", self._core.session_id.hex()[:8])
            return
        self._core.write(self._stream, kept, now=self._driver.loop.time())
        self._driver.pump_soon()

    def writelines(self, data: Iterable[Data]) -> None:
        """Queue several pieces."""
        for piece in data:
            self.write(piece)

    async def drain(self) -> None:
        """Wait while the peer or the networks are slow.

        That is, above the high-water mark of unsent bytes; or above `limits.max_send_buffer` of bytes that the peer
        has not acknowledged, over all streams, while this one has more than an equal share of them. Raises what ended
        the stream or the session.
        """
        buffer, driver = self._buffer, self._driver
        if buffer is not None and not buffer.final and not driver.over:
            unacked = buffer.end_offset - buffer.acked
            if buffer.end_offset - buffer.next_offset <= self._high and unacked <= driver.share:
                return
        else:
            self._raise_error()
        if self.get_write_buffer_size() <= self._high and not driver.holds_too_much(buffer):
            return
        while self.get_write_buffer_size() > self._low or driver.holds_too_much(buffer):
            await driver.wait_writable(self._stream)
            self._raise_error()

    def _raise_error(self) -> None:
        if self._driver.closed.done():
            raise self._driver.closed_error or SessionLost()
        error = self._send_error()
        if error is not None and not (self._closing and self._streams.finished(self._stream)):
            raise error

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        """End this direction after everything written; the other one stays open."""
        if not self._ended:
            self._ended = True
            self._core.finish(self._stream, now=self._driver.loop.time())
            self._driver.pump_soon()

    # --- ending ---

    def close(self) -> None:
        """End the stream after flushing, read no more. Stream 0 of `open_connection` or `on_client`: the session."""
        if self._closing:
            return
        self._closing = self._ended = True
        now = self._driver.loop.time()
        if self._closes_session:
            self._core.close(now=now)
        else:
            self._core.finish(self._stream, now=now)
            self._core.stop_sending(self._stream, 0, now=now)
        self._driver.pump_soon()

    def is_closing(self) -> bool:
        return self._closing or self._driver.closed.done()

    async def wait_closed(self) -> None:
        """Return when the peer has acknowledged the end, or after `transport.abort`; raise when it never will."""
        driver, finished = self._driver, False
        if self._closes_session:
            await asyncio.shield(driver.closed)
            await driver.settle()
        else:
            while not (finished := self._streams.finished(self._stream)) and not driver.closed.done():
                await driver.wait_writable(self._stream)
        if self._aborted:
            return
        if not finished and driver.closed_error is not None:
            raise driver.closed_error
        error = self._send_error()
        if isinstance(error, StreamReset) and error.unacknowledged:
            raise error

    def reset(self, code: int = 0) -> None:
        """Give the stream up at once: the peer's reader raises `StreamReset` with `code`, 0 to 2^32 - 1."""
        self._core.reset(self._stream, code, now=self._driver.loop.time())
        self._closing = self._ended = True
        self._driver.pump_soon()

    def abort(self) -> None:
        """End at once, in both directions: the session (stream 0) or this stream."""
        self._aborted = self._closing = self._ended = True
        now = self._driver.loop.time()
        if self._closes_session:
            self._core.abort(now=now)
        else:
            self._core.reset(self._stream, 0, now=now)
            self._core.stop_sending(self._stream, 0, now=now)
        self._driver.pump()

    # --- facts ---

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """`session`, `peername`, `sockname`, `socket`, `peercert`, `psk_id`, `stream`, `connections`; or `default`."""
        return self._extra_info(name, self._stream, default)

    def get_write_buffer_size(self) -> int:
        """Bytes written and not yet handed to a connection."""
        return self._streams.unsent(self._stream)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Change the marks of `drain`, in bytes; see `asyncio.WriteTransport`."""
        if high is None:
            high = HIGH_WATER if low is None else 4 * low
        if low is None:
            low = high // 4
        if not high >= low >= 0:
            raise ValueError(f"high ({high!r}) must be >= low ({low!r}) must be >= 0")
        self._high, self._low = high, low

    async def start_tls(self, *args: object, **kwargs: object) -> None:
        """Not available: protection belongs to the session's connections (`ssl_config`, `protect`)."""
        raise LocalProtocolError("start_tls() is not available: use ssl_config")
