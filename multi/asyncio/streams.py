"""Reader and writer of a stream: asyncio's own, so that code written for those works unchanged.

They decide when an application waits. Bytes live in the session's buffers until they are read, so what is not read
closes the window and slows the peer down.
"""

from __future__ import annotations

import asyncio
import ssl
import warnings
from typing import TYPE_CHECKING, Any

from multi.asyncio.transport import SessionTransport, StreamProtocol, start_tls
from multi.errors import fresh
from multi.types import Buffer, Side

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class SessionReader(asyncio.StreamReader):
    """Reads one stream. See `asyncio.StreamReader` for each method.

    Libraries look at private names of asyncio's reader: `_buffer`, `_eof`, `_exception`, `_limit`, `_transport` and
    `_waiter` tell the truth.
    """

    if TYPE_CHECKING:  # what typeshed does not list
        _limit: int
        _paused: bool
        _waiter: asyncio.Future[None] | None

        def _wakeup_waiter(self) -> None: ...
        def _maybe_resume_transport(self) -> None: ...

    def __init__(self, transport: SessionTransport, limit: int) -> None:
        self._driver = transport.driver
        self._stream_transport = transport
        self._stream = transport.stream
        self._streams = self._driver.core.streams
        self._of_stream = self._driver.core.receiver.streams.get(self._stream)
        self._source = self._of_stream
        """Where bytes are taken from: the session; nowhere while reading is paused, or once others feed the reader."""
        self._detached = self._held = False
        self._taken = bytearray()
        """Taken from the session and not returned, which stays with the transport; once detached, what it was fed."""
        self._eof_fed = False
        self._error: BaseException | None = None
        """From `set_exception`."""
        super().__init__(limit, self._driver.loop)
        self._taken = transport.unread
        self._transport: asyncio.Transport = transport
        transport.reader = self

    def __repr__(self) -> str:
        return f"<SessionReader stream={self._stream} buffered={self._readable()}>"

    # --- what its transport tells it; see PullingReader ---

    def keep_what_has_come(self) -> None:
        if self._more():
            _ = self._buffer

    def hold(self) -> None:
        self._held = True
        self._source = None

    def attach(self) -> None:
        self._detached = self._held = False
        self._source = self._of_stream
        unread = self._stream_transport.unread
        if self._taken is not unread:
            unread[:0] = self._taken
            self._taken = unread
        self._wakeup_waiter()

    def detach(self) -> None:
        self._detached = True
        self._source = None
        self._taken = bytearray()

    # --- private names of asyncio's reader ---

    @property
    def _buffer(self) -> bytearray:
        """What can be read now, as much of it as asyncio's reader would hold before it pauses its transport."""
        return self._fill(2 * self._limit + 1)

    @_buffer.setter
    def _buffer(self, value: bytearray) -> None:
        self._taken[:] = value

    @property
    def _eof(self) -> bool:
        return self._eof_fed or (not self._apart and self._at_end() and self._session_error() is None)

    @_eof.setter
    def _eof(self, value: bool) -> None:
        self._eof_fed = value

    @property
    def _exception(self) -> BaseException | None:
        return None if self._taken and self._error is None else self.exception()

    @_exception.setter
    def _exception(self, value: BaseException | None) -> None:
        self._error = value

    # --- state ---

    @property
    def _apart(self) -> bool:
        """What becomes of the session is none of the reader's concern."""
        return self._detached or (self._held and not self._stream_transport.closing)

    def _fill(self, size: int) -> bytearray:
        """What was taken, with as much of what can be read now as makes it `size` bytes."""
        missing = size - len(self._taken)
        if missing > 0 and self._more():
            self._taken += self._pull(missing)
        return self._taken

    def _more(self) -> int:
        """Bytes the session has for this reader."""
        source = self._source
        return source.next_offset - source.consumed if source is not None else 0

    def _readable(self) -> int:
        return len(self._taken) + self._more()

    def _at_end(self) -> bool:
        over = self._streams.at_end(self._stream) or self._driver.over
        return over and not self._streams.readable(self._stream)

    def _session_error(self) -> Exception | None:
        if self._stream_transport.aborted:
            return None
        error = self._of_stream.error if self._of_stream is not None else None
        if error is not None:
            return error
        return self._driver.closed_error if self._streams.lacks(self._stream) else None

    def exception(self) -> Any:
        """Why reading ends early, or None. Bytes that arrived before can still be read."""
        return self._error or (None if self._apart else self._session_error())

    # --- reading ---

    def _take(self, limit: int) -> bytes:
        """Up to `limit` bytes of what is there; negative = all of it."""
        if not self._taken:
            return self._pull(limit)
        end = limit if limit >= 0 else len(self._taken)
        data = bytes(memoryview(self._taken)[:end])
        del self._taken[:end]
        if self._paused:
            self._maybe_resume_transport()
        return data

    def _pull(self, limit: int) -> bytes:
        return self._driver.read(self._stream, limit)

    async def _wait_for_data(self, func_name: str) -> bool:
        """Wait, where there is nothing to read, until there is; False at the end. Raises what ended it early."""
        source = self._source
        open_ = source is not None and source.final is None and source.error is None and not source.discarding
        if not open_ or self._error is not None or self._eof_fed or self._driver.over:
            if source is not None and source.at_end and source.error is None and self._error is None:
                return False  # the usual end, written out
            if (error := self.exception()) is not None:
                raise fresh(error)
            if self._eof:
                return False
        if self._waiter is not None:
            raise RuntimeError(f"{func_name}() called while another coroutine is already waiting for incoming data")
        if self._paused:  # what was fed was too much at once
            self._paused = False
            self._transport.resume_reading()
        self._waiter = waiter = self._driver.loop.create_future()
        if not self._detached:
            self._driver.on_readable[self._stream] = self._wakeup_waiter
        try:
            if self._driver.soon:
                self._driver.pump()  # who has asked and waits for the answer need not wait for the event loop besides
            await waiter  # the pump itself may have woken it, and `_waiter` is None by then
        finally:
            self._waiter = None
            if not self._detached:
                self._driver.on_readable.pop(self._stream, None)
        return True

    async def read(self, n: int = -1) -> bytes:
        """Return up to `n` bytes, as soon as there are some; all until the end when `n` is negative."""
        if self._error is not None:
            raise self._error
        if n == 0:
            return b""
        if n < 0:
            return await self._gather(-1, "read")
        while True:
            source = self._source
            if source is not None and source.next_offset > source.consumed and not self._taken:
                return self._driver.read(self._stream, n)  # the common case, written out
            if self._taken:
                return self._take(n)
            if not await self._wait_for_data("read"):
                return b""

    async def readexactly(self, n: int) -> bytes:
        """Return exactly `n` bytes. Raises asyncio.IncompleteReadError when the stream ends before."""
        if n < 0:
            raise ValueError("readexactly size can not be less than zero")
        if self._error is not None:
            raise self._error
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
                source = self._source
                if self._taken:
                    piece = self._take(missing)
                elif source is not None and source.next_offset > source.consumed:
                    piece = self._pull(missing)
                elif await self._wait_for_data(what):
                    continue
                else:
                    break
                pieces.append(piece)
                if wanted > 0:
                    missing -= len(piece)
        except BaseException:
            self._taken[:0] = b"".join(pieces)
            raise
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def readline(self) -> bytes:
        """Return a line with its newline; what is left without one at the end. Raises ValueError when too long."""
        while (source := self._source) is not None and not self._taken and self._error is None:
            # The common case, written out: a line comes alone, or has yet to come.
            if 0 < (size := source.lone_line) <= self._limit:
                return self._pull(size)
            if not source.waits or not await self._wait_for_data("readuntil"):
                break
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

    async def readuntil(self, separator: ReadableBuffer | tuple[ReadableBuffer, ...] = b"\n") -> bytes:
        """Return everything up to and including `separator` (of several, the one that ends first).

        Raises asyncio.IncompleteReadError at the end of the stream, asyncio.LimitOverrunError when more than the
        reader's limit would be returned; the bytes stay readable then.
        """
        separators = [memoryview(s).tobytes() for s in (separator if isinstance(separator, tuple) else (separator,))]
        if not separators or not all(separators):
            raise ValueError("Separator should be at least one-byte string")
        if self._error is not None:
            raise self._error
        longest = max(map(len, separators))
        searched = 0
        while True:
            buffer = self._fill(2 * self._limit + longest)  # enough to say that there is none within the limit
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
            if not self._more() and not await self._wait_for_data("readuntil"):
                raise asyncio.IncompleteReadError(self._take(-1), None)


class SessionWriter(asyncio.StreamWriter):
    """Writes one stream. See `asyncio.StreamWriter` for each method, and `transport` for abort and limits."""

    def __init__(self, transport: SessionTransport, reader: SessionReader) -> None:
        self._bare = transport
        self._transport: asyncio.Transport
        self._reader = reader
        self._made: StreamProtocol | None = None
        super().__init__(transport, None, reader, transport.driver.loop)  # type: ignore[arg-type] # see `_protocol`

    def __repr__(self) -> str:
        return f"<SessionWriter transport={self._transport!r}>"

    @property
    def _protocol(self) -> StreamProtocol:
        """Libraries ask for it by asyncio's name. Few do, and nobody else needs it before `start_tls`."""
        if self._made is None:
            own = self._bare.get_protocol()
            self._made = own if isinstance(own, StreamProtocol) else StreamProtocol(self._reader, self._bare)
        return self._made

    @_protocol.setter
    def _protocol(self, value: None) -> None:
        """As asyncio's `__init__` does."""

    def write(self, data: Buffer) -> None:
        """Queue bytes. `bytes` and views of `bytes` are kept by reference, anything else is copied now."""
        bare = self._bare
        sending, driver = bare.sending, bare.driver
        plain = type(data) is bytes and self._transport is bare and not bare.pushing
        if plain and sending is not None and not sending.final and not driver.over:
            # The common case, written out: it runs for every write of an application.
            sending.write(data)
            if not driver.soon:
                driver.watch.pump_soon(driver)
        else:
            self._transport.write(data)

    @property
    def transport(self) -> asyncio.Transport:
        """The stream's `SessionTransport`; what encrypts on top of it after `start_tls`."""
        return self._transport

    async def drain(self) -> None:
        """Wait while the peer or the networks are slow; see `SessionTransport.drain`."""
        if self._transport is not self._bare:
            await super().drain()
        elif not self._bare.flows:
            await self._bare.drain()

    def reset(self, code: int = 0) -> None:
        """Give the stream up at once, in both directions: the peer's reader, and its writer where it has not ended,
        raises `StreamReset` with `code`, 0 to 2^32 - 1."""
        self._bare.reset(code)

    async def start_tls(
        self,
        sslcontext: ssl.SSLContext,
        *,
        server_hostname: str | None = None,
        ssl_handshake_timeout: float | None = None,
        ssl_shutdown_timeout: float | None = None,
    ) -> None:
        """Begin TLS inside the stream; the server of the session is the server of TLS. See `multi.start_tls`.

        It comes on top of what protects the session's connections.
        """
        await self.drain()
        self._transport = await start_tls(
            self._transport,
            self._protocol,
            sslcontext,
            server_side=self._bare.driver.core.side is Side.SERVER,
            server_hostname=server_hostname,
            ssl_handshake_timeout=ssl_handshake_timeout,
            ssl_shutdown_timeout=ssl_shutdown_timeout,
        )
        self._protocol.covered()
        self._reader._transport = self._transport

    def __del__(self) -> None:
        """Asyncio's closes its transport. Here a stream ends when nobody holds its reader or its writer.

        Only TLS inside holds the stream as well, so with it the writer counts, as asyncio's.
        """
        covering, loop = self._transport, self._bare.driver.loop
        if covering is not self._bare and not covering.is_closing() and not loop.is_closed():
            loop.call_soon_threadsafe(covering.close)
            warnings.warn(f"unclosed {self!r}", ResourceWarning, stacklevel=2, source=self)
