"""A stream of a session as an `asyncio.Transport`, and TLS inside one.

It writes, ends, and hands what comes to a protocol. Reader and writer stand on it as asyncio's do; only the bytes do
not pass through their protocol: the reader takes them from the session, which saves copying them twice. What a library
puts between (`set_protocol`, TLS) gets them pushed, and the reader then reads what that feeds it.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import warnings
from asyncio import sslproto
from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeVar, cast
from weakref import ref

from multi.asyncio.driver import SessionDriver
from multi.errors import LocalProtocolError, SessionLost, StreamReset, fresh
from multi.types import STREAM_ZERO, Buffer, StreamId

logger = logging.getLogger("multi.session")

HIGH_WATER = 1024 * 1024  # unsent bytes above which writers wait: keeps the fastest connection busy for a pump
LOW_WATER = 256 * 1024  # unsent bytes at which they go on
DELIVERY = 256 * 1024  # bytes a protocol gets at once, then others have their turn; as asyncio's transports

P = TypeVar("P", bound=asyncio.BaseProtocol)
ExtraInfo = Callable[[str, StreamId, Any], Any]
"""What a session knows under a name, asked for a stream; else the default."""


class PullingReader(Protocol):
    """What takes a stream's bytes from the session itself. It keeps its transport, and not the other way round."""

    def attach(self) -> None:
        """Take them from now on, or again."""

    def hold(self) -> None:
        """Take nothing more for now."""

    def detach(self) -> None:
        """They go somewhere else from now on."""

    def keep_what_has_come(self) -> None:
        """The stream is about to end from this side: take what has come."""


class SessionTransport(asyncio.Transport):
    """One stream. See `asyncio.Transport` for each method."""

    _start_tls_compatible = True
    """Asked for by `loop.start_tls` of asyncio's own loops."""

    def __init__(self, driver: SessionDriver, stream: StreamId, extra_info: ExtraInfo, *, closes_session: bool) -> None:
        self.driver = driver
        self.stream = stream
        self.aborted = False
        """This side has given it up, so its end is no failure."""
        self._reader: Callable[[], PullingReader | None] = _nobody
        self.extra_info = extra_info
        """What `get_extra_info` asks."""
        self._core = driver.core
        self._streams = driver.core.streams
        self.sending = driver.core.sender.streams.get(stream)
        self._received = driver.core.receiver.streams.get(stream)
        self._closes_session = closes_session
        self.closing = False
        """This side has closed or aborted it."""
        self._ended = False
        self._high, self._low = HIGH_WATER, LOW_WATER
        self._protocol: asyncio.BaseProtocol | None = None
        self.pushing = False
        """Bytes go to the protocol; else the reader takes them."""
        self._reading = True
        self._writing_paused = False
        self._end_seen = self._eof_told = self._lost_told = False
        self.unread = bytearray()
        """Taken from the session and not handed out: what a search has looked at, or a cancelled call gave back.

        Waiting inside the session's buffer for the end of a line would keep the window shut that has to bring it.
        """
        self._waiting: asyncio.Future[None] | None = None

    def __repr__(self) -> str:
        state = "closing" if self.is_closing() else "open"
        return f"<SessionTransport stream={self.stream} {state} unsent={self.get_write_buffer_size()}>"

    def __del__(self) -> None:
        # Whoever reads or writes the stream holds it. The session holds that of the first one, and sees to it itself.
        if self.stream == STREAM_ZERO or self.closing or self.driver.over or self._core.closing or self._core.reason:
            return
        writes = not self._ended and self._send_error() is None
        if writes or not (self._streams.at_end(self.stream) or self._streams.receive_error(self.stream)):
            self.driver.forgotten(self.stream)
            warnings.warn(f"unclosed {self!r}", ResourceWarning, stacklevel=2, source=self)

    def __getattr__(self, name: str) -> Any:
        hint = ": a session has many sockets, see get_extra_info()" if name[:1] == "_" else ""
        raise AttributeError(f"'SessionTransport' object has no attribute {name!r}{hint}", name=name, obj=self)

    @property
    def reader(self) -> PullingReader | None:
        """Takes the bytes from the session itself, as long as `set_protocol` names nobody else for them."""
        return self._reader()

    @reader.setter
    def reader(self, reader: PullingReader) -> None:
        self._reader = ref(reader)

    def _send_error(self) -> SessionLost | None:
        own = self.sending.error if self.sending is not None else None
        return own or self._streams.send_error(self.stream)

    # --- writing ---

    def write(self, data: Buffer) -> None:
        """Queue bytes. `bytes` and views of `bytes` are kept by reference, anything else is copied now.

        After `close` of the stream or the session, and once one of them is lost, bytes are dropped, as by asyncio's own
        transports: `drain` and `wait_closed`, or `connection_lost`, tell. After `write_eof` it raises.
        """
        if self._write(data) and self.pushing:
            self._look_at_writing()

    def _write(self, data: Buffer) -> bool:
        """Return False when the bytes were dropped."""
        if self._ended and not self.closing:
            raise LocalProtocolError("Cannot call write() after write_eof()")
        # Anything with a buffer, as array.array, whose length is not its size in bytes.
        kept = data if isinstance(data, (bytes, bytearray, memoryview)) else memoryview(data)
        error = self._send_error()
        if self.closing or self._core.closing or self.driver.closed.done() or error is not None:
            session_id = self._core.session_id.hex()
            text = "session %s: bytes written after the end are dropped"
            logger.debug(text, session_id[:8], extra={"session": session_id})
            if self.pushing and error is not None:
                self.driver.loop.call_soon(self._force_close, error)
            return False
        self._core.write(self.stream, kept, now=self.driver.loop.time())
        self.driver.pump_soon()
        return True

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        """Queue several pieces."""
        for piece in list_of_data:
            self.write(piece)

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        """End this direction after everything written; the other one stays open."""
        if not self._ended:
            self._ended = True
            self._core.finish(self.stream, now=self.driver.loop.time())
            self.driver.pump_soon()

    def get_write_buffer_size(self) -> int:
        """Bytes written and not yet handed to a connection."""
        return self._streams.unsent(self.stream)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Change the marks of `drain` and `pause_writing`, in bytes; see `asyncio.WriteTransport`."""
        if high is None:
            high = HIGH_WATER if low is None else 4 * low
        if low is None:
            low = high // 4
        if not high >= low >= 0:
            raise ValueError(f"high ({high!r}) must be >= low ({low!r}) must be >= 0")
        self._high, self._low = high, low
        if self.pushing:
            self._look_at_writing()

    async def drain(self) -> None:
        """Wait while the peer or the networks are slow.

        That is, above the high-water mark of unsent bytes; or above `limits.max_send_buffer` of bytes that the peer
        has not acknowledged, over all streams, while this one has more than an equal share of them. Raises what ended
        the stream or the session.
        """
        if self.flows:
            return
        self._raise_error()
        if not self._holds_more_than(self._high):
            return
        while self._holds_more_than(self._low):
            await self.driver.wait_writable(self.stream)
            self._raise_error()

    @property
    def flows(self) -> bool:
        """`drain` has nothing to wait for or to raise: a short answer for the common case."""
        sending, driver = self.sending, self.driver
        return (
            sending is not None
            and not sending.final
            and not driver.over
            and sending.end_offset - sending.next_offset <= self._high
            and sending.end_offset - sending.acked <= driver.share
        )

    def _holds_more_than(self, mark: int) -> bool:
        return self.get_write_buffer_size() > mark or self.driver.holds_too_much(self.sending)

    def _raise_error(self) -> None:
        if self.driver.closed.done():
            raise self.driver.failure()
        error = self._send_error()
        if error is not None and not (self.closing and self._streams.finished(self.stream)):
            raise fresh(error)

    # --- ending ---

    def close(self) -> None:
        """End the stream after flushing, read no more. Stream 0 of `open_connection` or `on_client`: the session."""
        if self.closing:
            return
        self._stop()
        if self._closes_session:
            self._core.close(now=self.driver.loop.time())
        else:
            self.driver.end_stream(self.stream)
        self.driver.pump_soon()
        if self.pushing:
            self._wait_for_writable()

    def is_closing(self) -> bool:
        return self.closing or self.driver.closed.done()

    async def wait_closed(self) -> None:
        """Return when the peer has acknowledged the end, or after `abort`; raise when it never will."""
        driver = self.driver
        if self._closes_session:
            await asyncio.shield(driver.closed)
            await driver.settle()
        else:
            while not self._streams.finished(self.stream) and not driver.closed.done():
                await driver.wait_writable(self.stream)
        error = self._failure()
        if error is not None:
            raise fresh(error)

    def _failure(self) -> Exception | None:
        """Why what was written may not have arrived, once the stream or the session has ended."""
        if self.aborted or (self._closes_session and self.driver.aborted):
            return None
        if self.driver.closed_error is not None and (self._closes_session or not self._streams.finished(self.stream)):
            return self.driver.closed_error
        error = self._send_error()
        return error if isinstance(error, StreamReset) and error.unacknowledged else None

    def reset(self, code: int = 0) -> None:
        """Give the stream up at once, in both directions: the peer's reader, and its writer where it has not ended,
        raises `StreamReset` with `code`, 0 to 2^32 - 1."""
        self._stop()
        self._give_up(code)
        self.driver.pump_soon()

    def abort(self) -> None:
        """End at once, in both directions: the session (stream 0) or this stream."""
        self._force_close(None)

    def _force_close(self, error: Exception | None) -> None:
        """As asyncio's transports: TLS calls it with what went wrong there."""
        self._stop()
        self.aborted = True
        if self.pushing:
            self.driver.loop.call_soon(self._lost, error)  # before the end of the session tells it without a reason
        if self._closes_session:
            self.driver.abort()
        else:
            self._give_up(0)
            self.driver.pump()

    def _stop(self) -> None:
        """Write and read no more; what has come may still be read."""
        if (reader := self.reader) is not None:
            reader.keep_what_has_come()
        self.closing = self._ended = True

    def _give_up(self, code: int) -> None:
        now = self.driver.loop.time()
        self._core.reset(self.stream, code, now=now)
        self._core.stop_sending(self.stream, code, now=now)

    # --- reading ---

    def get_protocol(self) -> asyncio.BaseProtocol:
        """As asyncio's transports: None once it was told of the end."""
        if self._protocol is None and not self.pushing and (reader := self._reader()) is not None:
            # Nobody but libraries that look for it needs it before something else takes its place.
            self._protocol = StreamProtocol(cast(asyncio.StreamReader, reader), self)
        return self._protocol  # type: ignore[return-value] # as in typeshed

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Give what comes to another protocol; what a reader had taken and nobody has read goes to it first."""
        self._protocol = protocol
        pushing = not isinstance(protocol, StreamProtocol)
        if pushing == self.pushing:
            return
        self.pushing = pushing
        if not pushing:
            self._turn_reader()
            return
        if (reader := self.reader) is not None:
            reader.detach()
        self.driver.closed.add_done_callback(self._session_over)
        self._expect()

    def run(self, protocol_factory: Callable[[], P]) -> P:
        """Give the stream to a new protocol, from its first byte on. It ends where there is none."""
        try:
            protocol = protocol_factory()
        except BaseException:
            self.abort()
            raise
        self.set_protocol(protocol)
        protocol.connection_made(self)
        return protocol

    def pause_reading(self) -> None:
        """Hand out nothing more: what comes stays in the session, and its window slows the peer down."""
        self._turn(reading=False)

    def resume_reading(self) -> None:
        self._turn(reading=True)

    def is_reading(self) -> bool:
        return self._reading and not self.is_closing()

    def _turn(self, *, reading: bool) -> None:
        if reading == self._reading or self.closing:
            return
        self._reading = reading
        if self.pushing:
            self._expect()
        else:
            self._turn_reader()

    def _turn_reader(self) -> None:
        if (reader := self.reader) is not None:
            if self._reading:
                reader.attach()
            else:
                reader.hold()

    def _expect(self) -> None:
        """Have the protocol get what comes from now on, and soon what has come already."""
        if self._reading and not self._lost_told:
            self.driver.on_readable[self.stream] = self._deliver
            self.driver.loop.call_soon(self._deliver)
        else:
            self.driver.on_readable.pop(self.stream, None)

    @property
    def _readable(self) -> int:
        received = self._received
        return len(self.unread) + (received.next_offset - received.consumed if received is not None else 0)

    def _deliver(self) -> None:
        """Hand the protocol what has come, then the end of it."""
        if not self._reading or not self.pushing or self.closing or self._lost_told:
            if self.pushing and self.driver.over:
                self._session_over()
            return
        if self._readable:
            self._guarded("data_received", self._hand_out)
            if self._readable or self._streams.complete(self.stream) or self.driver.over:
                self.driver.loop.call_soon(self._deliver)  # the protocol may have paused or closed
            return
        error = self._received.error if self._received is not None else None
        if error is not None:
            self._force_close(error)
        elif self._streams.at_end(self.stream) and not (self.driver.over and self.driver.closed_error is not None):
            if not self._end_seen:
                # One turn later, as with asyncio: what the protocol has scheduled for the last bytes runs before.
                self._end_seen = True
                self.driver.loop.call_soon(self._deliver)
                return
            self._end_of_reading()
        if self.driver.over:
            self._session_over()

    def _hand_out(self) -> None:
        protocol = self._protocol
        if isinstance(protocol, asyncio.BufferedProtocol):
            buffer = memoryview(protocol.get_buffer(-1)).cast("B")
            if not len(buffer):
                raise RuntimeError("get_buffer() returned an empty buffer")
            data = self._pull(len(buffer))
            buffer[: len(data)] = data
            protocol.buffer_updated(len(data))
        else:
            cast(asyncio.Protocol, protocol).data_received(self._pull(DELIVERY))  # of any class, as with asyncio

    def _pull(self, limit: int) -> bytes:
        if self.unread:
            data = bytes(memoryview(self.unread)[:limit])
            del self.unread[:limit]
            return data
        return self.driver.read(self.stream, limit)

    def _end_of_reading(self) -> None:
        if not self._eof_told:
            self._eof_told = True
            self.driver.on_readable.pop(self.stream, None)
            self._guarded("eof_received", self._tell_eof)

    def _tell_eof(self) -> None:
        if not cast(asyncio.Protocol, self._protocol).eof_received():
            self.close()

    def _guarded(self, what: str, call: Callable[[], None]) -> None:
        """A bug of the protocol ends its stream and is told once, as by asyncio's transports."""
        try:
            call()
        except Exception as error:
            self._report(f"Fatal error: protocol.{what}() call failed.", error)
            self._force_close(error)

    def _report(self, message: str, error: Exception) -> None:
        context = {"message": message, "exception": error, "transport": self, "protocol": self._protocol}
        self.driver.loop.call_exception_handler(context)

    def _session_over(self, _: object = None) -> None:
        """The session has ended: what has come is handed out first, unless the protocol wants nothing now."""
        if self.pushing and not self._lost_told and (self.closing or not self._readable):
            if not self.closing and self.driver.closed_error is None:
                self._end_of_reading()
            self.driver.loop.call_soon(self._lost, self._failure())
        elif self.pushing and self._reading and not self._lost_told:
            self.driver.loop.call_soon(self._deliver)

    def _lost(self, error: Exception | None) -> None:
        """Tell the protocol, once, that it is over."""
        if self._lost_told or not self.pushing:
            return
        self._lost_told = self.closing = True
        self.driver.on_readable.pop(self.stream, None)
        self.driver.closed.remove_done_callback(self._session_over)  # else it lived as long as the session
        protocol, self._protocol = self._protocol, None  # which may hold this transport
        self.unread.clear()
        if protocol is not None:
            try:
                protocol.connection_lost(error)
            except Exception as bug:
                self._report("protocol.connection_lost() call failed.", bug)

    # --- flow control of a protocol that writes ---

    def _look_at_writing(self) -> None:
        protocol = self._protocol
        if protocol is None or self._lost_told:
            return
        if not self._writing_paused and self._holds_more_than(self._high):
            self._writing_paused = True
            try:
                protocol.pause_writing()
            except Exception as error:
                self._report("protocol.pause_writing() failed", error)
            self._wait_for_writable()
        elif self._writing_paused and not self._holds_more_than(self._low):
            self._writing_paused = False
            try:
                protocol.resume_writing()
            except Exception as error:
                self._report("protocol.resume_writing() failed", error)

    def _wait_for_writable(self) -> None:
        if self._waiting is None and not self.driver.over:
            self._waiting = self.driver.until_writable(self.stream)
            self._waiting.add_done_callback(self._writable)

    def _writable(self, _: asyncio.Future[None]) -> None:
        self._waiting = None
        if self.closing and not self._closes_session and self._streams.finished(self.stream):
            self._lost(self._failure())
            return
        self._look_at_writing()
        if self._writing_paused or (self.closing and not self._lost_told):
            self._wait_for_writable()

    # --- facts ---

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """`session`, `peername`, `sockname`, `socket`, `peercert`, `psk_id`, `stream`, `connections`; or `default`."""
        return self.extra_info(name, self.stream, default)


class StreamProtocol(asyncio.StreamReaderProtocol):
    """The protocol of a stream that has reader and writer.

    The session itself gives the reader its bytes. Once TLS or a library stands between, that feeds the reader through
    this protocol, as with asyncio's own.
    """

    _over_ssl: bool
    """A transport that encrypts stands on the stream's."""

    def __init__(self, reader: asyncio.StreamReader, transport: SessionTransport) -> None:
        super().__init__(reader, loop=transport.driver.loop)
        self._bare = ref(transport)  # which keeps its protocol

    async def _drain_helper(self) -> None:
        """For a plain `asyncio.StreamWriter` that somebody makes of transport and protocol."""
        if (bare := self._uncovered()) is not None:
            await bare.drain()
        else:
            await super()._drain_helper()  # type: ignore[misc] # not in typeshed

    def _get_close_waiter(self, stream: asyncio.StreamWriter) -> Any:
        if (bare := self._uncovered()) is not None:
            return bare.wait_closed()
        return super()._get_close_waiter(stream)  # type: ignore[misc] # not in typeshed

    def _uncovered(self) -> SessionTransport | None:
        """What is written goes to the stream itself."""
        return None if self._over_ssl else self._bare()

    def covered(self) -> None:
        """What is written goes through a transport that stands on the stream's."""
        self._over_ssl = True


def _nobody() -> None:
    """There is no reader."""


async def start_tls(
    transport: asyncio.Transport,
    protocol: asyncio.BaseProtocol,
    sslcontext: ssl.SSLContext,
    *,
    server_side: bool = False,
    server_hostname: str | None = None,
    ssl_handshake_timeout: float | None = None,
    ssl_shutdown_timeout: float | None = None,
) -> asyncio.Transport:
    """Begin TLS inside a stream and return the transport to write to from now on, as `loop.start_tls` does.

    It works on every event loop; that of asyncio's own loops takes a session's transports too, uvloop's refuses them.
    `protocol` gets what is decrypted. Raises ssl.SSLError, ConnectionError (also after `ssl_handshake_timeout`, 60 s).
    """
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    tls = sslproto.SSLProtocol(
        loop,
        protocol,
        sslcontext,
        ready,
        server_side,
        server_hostname,
        call_connection_made=False,
        ssl_handshake_timeout=ssl_handshake_timeout,  # type: ignore[arg-type] # typeshed: int
        ssl_shutdown_timeout=ssl_shutdown_timeout,
    )
    transport.pause_reading()  # nothing may reach it before `connection_made`
    transport.set_protocol(tls)
    tls.connection_made(transport)
    transport.resume_reading()
    try:
        await ready
    except BaseException:
        transport.close()
        raise
    finally:
        del ready  # it holds what it raises, and that this frame
    encrypted = tls._app_transport
    assert encrypted is not None
    return encrypted
