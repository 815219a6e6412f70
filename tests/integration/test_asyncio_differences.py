"""Streams behave as asyncio's own, except for what docs/asyncio-differences.md lists.

Random sequences of calls run on asyncio's streams and on a session's, and give the same; every heading of the page has
a scenario here whose results differ. So nothing differs that the page does not name, and it names nothing that is gone.
"""

from __future__ import annotations

import asyncio
import errno
import random
import re
import ssl
import sys
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import pytest

import multi
from tests.findings.bounded import given
from tests.integration.support import HOST, LOOPS, Pair, Relay, Way, asyncio_pair, multi_pair, run, until

WAY = Way(Path())  # sealed TCP: needs no certificates
LIMIT = 1000
PAGE = Path(__file__).parents[2] / "docs" / "asyncio-differences.md"
SEQUENCES = 40
CALLS = 14  # in a sequence

PEER_CLOSED = "The peer's `close()` ends both directions"
CLOSING = "A stream is closed when the peer has everything"
ABORTED = "The peer's `abort()` is an error"

Scenario = Callable[[Pair], Awaitable[object]]

ERRORS = (
    asyncio.IncompleteReadError,
    asyncio.LimitOverrunError,
    ConnectionResetError,
    ConnectionError,
    RuntimeError,
    AttributeError,
    ValueError,
    KeyError,
    TypeError,
)


def told(error: Exception) -> tuple[object, ...]:
    """What a program can tell of an error without knowing who raised it."""
    kind = next((kind for kind in ERRORS if isinstance(error, kind)), None)
    assert kind is not None, repr(error)
    details = (getattr(error, name, None) for name in ("partial", "expected", "consumed"))
    return kind.__name__, *(detail for detail in details if detail is not None)


def called(function: Callable[..., Any], *arguments: Any) -> object:
    try:
        return function(*arguments)
    except Exception as error:
        return told(error)


async def awaited(coroutine: Coroutine[Any, Any, object]) -> object:
    """The result, or that it waits: nothing is under way between the ends, so what waits now would go on waiting."""
    task = asyncio.ensure_future(coroutine)
    for _ in range(6):
        if task.done():
            break
        await asyncio.sleep(0)
    if not task.done():
        task.cancel()
        await asyncio.wait([task])
        return "waits"
    try:
        return task.result()
    except Exception as error:
        return told(error)


@dataclass
class End:
    """One end of a conversation, and what it did that the other end will see."""

    reader: Any
    writer: Any
    sent: int = 0
    got: int = 0
    fed: int = 0
    ended: bool = False
    aborted: bool = False
    closed: bool = False
    paused: bool = False


@dataclass
class Run:
    """One sequence of calls on one kind of streams."""

    ends: tuple[End, End]
    results: list[tuple[str, object]] = field(default_factory=list)

    async def settle(self) -> None:
        """Until each end has got what the other one did."""
        for end, other in (self.ends, self.ends[::-1]):
            if end.paused and not end.closed:
                continue
            if other.aborted or end.closed:
                await until(lambda end=end: end.reader._eof or end.reader.exception() is not None)  # type: ignore[misc]
                continue
            wanted = other.sent - end.got + end.fed
            await until(lambda end=end, wanted=wanted: len(end.reader._buffer) >= wanted)  # type: ignore[misc]
            if other.ended:
                await until(lambda end=end: end.reader._eof)  # type: ignore[misc]

    async def call(self, side: int, name: str, argument: Any) -> None:
        end, other = self.ends[side], self.ends[1 - side]
        reader, writer = end.reader, end.writer
        result: object
        match name:
            case "write" | "writelines":
                if len(other.reader._buffer) > LIMIT + LIMIT // 2 or other.paused:
                    return  # asyncio's reader would pause its transport
                result = called(getattr(writer, name), argument)
                if result is None and not end.ended:
                    end.sent += len(argument) if name == "write" else sum(map(len, argument))
            case "read" | "readexactly" | "readuntil" | "readline":
                if argument == (-1,) and name == "read" and not reader._eof:
                    return  # asyncio's loses what it has read when it is cancelled
                before = len(reader._buffer)
                result = await awaited(getattr(reader, name)(*argument))
                end.got += before - len(reader._buffer)
            case "two readers":
                if reader._buffer or reader._eof or reader._exception is not None:
                    return
                first = asyncio.ensure_future(reader.read(1))
                await asyncio.sleep(0)
                result = await awaited(reader.readline())
                first.cancel()
                await asyncio.wait([first])
            case "feed_data":
                if end.closed or end.aborted or reader._eof:
                    return
                reader.feed_data(argument)
                end.fed += len(argument)
                result = len(reader._buffer)
            case "drain":
                result = await awaited(writer.drain())
            case "write_eof":
                result = called(writer.write_eof) if not end.closed else None
                end.ended = True
            case "close":
                result = called(writer.close)
                end.closed = end.ended = True
            case "abort":
                result = called(writer.transport.abort)
                end.aborted = end.ended = end.closed = True
            case "pause_reading" | "resume_reading":
                if end.ended or other.ended:
                    return
                result = called(getattr(writer.transport, name))
                end.paused = name == "pause_reading"
            case "facts":
                result = [
                    reader.at_eof(),
                    bytes(reader._buffer),
                    reader.exception() is None,
                    writer.can_write_eof(),
                    writer.transport.get_write_buffer_size(),
                    isinstance(reader, asyncio.StreamReader),
                    isinstance(writer, asyncio.StreamWriter),
                    isinstance(writer.transport, asyncio.Transport),
                    end.closed or isinstance(writer.transport.get_protocol(), asyncio.StreamReaderProtocol),
                ]
            case "is_closing" | "is_reading":
                result = getattr(writer.transport, name)()
            case "limits":
                writer.transport.set_write_buffer_limits(*argument)
                result = writer.transport.get_write_buffer_limits()
            case _:
                raise AssertionError(name)
        self.results.append((f"{'client' if side == 0 else 'server'}.{name}", result))
        await self.settle()


CHOICES = (
    *("write",) * 8,
    *("read", "readexactly", "readuntil", "readline") * 3,
    *("writelines", "two readers", "feed_data", "drain", "drain", "write_eof", "pause_reading", "resume_reading"),
    *("facts", "facts", "is_closing", "is_reading", "limits", "close", "abort"),
)


def sequence(seed: int) -> list[tuple[int, str, Any]]:
    """Calls: whose, which, with what. Ends come late, so that there is something to end."""
    rng = random.Random(seed)

    def payload() -> bytes:
        size = rng.choice((0, 1, 5, 30, 300))
        return bytes(rng.choice(b"ab\n\r") if rng.random() < 0.1 else 120 for _ in range(size))

    calls: list[tuple[int, str, Any]] = []
    while len(calls) < CALLS:
        name = rng.choice(CHOICES)
        if name in ("close", "abort", "write_eof") and len(calls) < CALLS // 2:
            continue
        argument: Any = ()
        match name:
            case "write" | "feed_data":
                argument = payload()
            case "writelines":
                argument = [payload(), bytearray(payload()), memoryview(payload())]
            case "read":
                argument = (rng.choice((0, 1, 10, 100, 5000, -1)),)
            case "readexactly":
                argument = (rng.choice((-1, 0, 1, 40, 400)),)
            case "readuntil":
                argument = (rng.choice((b"\n", b"\r\n", b"a", b"")),)
            case "limits":
                argument = rng.choice(((1000,), (0,), (100, 7), (None, 5)))
        calls.append((rng.randrange(2), name, argument))
    return calls


async def results_of(pair: Pair, calls: list[tuple[int, str, Any]]) -> list[tuple[str, object]]:
    running = Run((End(pair.reader, pair.writer), End(pair.server_reader, pair.server_writer)))
    for side, name, argument in calls:
        await running.call(side, name, argument)
    return running.results


async def sequences_over_asyncio() -> list[list[tuple[str, object]]]:
    found = []
    for seed in range(SEQUENCES):
        async with asyncio_pair(limit=LIMIT) as pair:
            found.append(await results_of(pair, sequence(seed)))
    return found


@cache
def given_by_asyncio() -> list[list[tuple[str, object]]]:
    return run(sequences_over_asyncio())


async def sequences_over_multi() -> list[list[tuple[str, object]]]:
    found = []
    for seed in range(SEQUENCES):
        async with multi_pair(WAY, limit=LIMIT) as pair:
            found.append(await results_of(pair, sequence(seed)))
    return found


def allowed(index: int, ours: list[tuple[str, object]], theirs: list[tuple[str, object]]) -> str | None:
    """The heading of the page that a difference falls under."""
    call, result = theirs[index]
    side, _, what = call.partition(".")
    peer = "server" if side == "client" else "client"
    before = [name for name, _ in ours[:index]]
    if f"{side}.close" in before and (what == "drain" or (what == "writelines" and result == ("TypeError",))):
        return CLOSING
    if any(name.startswith(f"{peer}.abort") for name in before) and what.startswith(("read", "two", "facts")):
        return ABORTED
    if any(name.startswith((f"{peer}.close", f"{peer}.abort")) for name in before) and what.startswith(
        ("is_closing", "is_reading", "drain", "write")
    ):
        return PEER_CLOSED
    return None


@pytest.mark.parametrize("loop", LOOPS)
def test_random_calls_give_what_they_give_on_asyncios_streams(loop: str) -> None:
    found = run(sequences_over_multi(), loop)
    for seed, (theirs, ours) in enumerate(zip(given_by_asyncio(), found, strict=True)):
        assert len(ours) > 2
        for index, (call, result) in enumerate(theirs):
            if index < len(ours) and ours[index] == (call, result):
                continue
            # What comes after an allowed difference follows from it.
            why = f"sequence {seed} {sequence(seed)}: {call} gave {ours[index : index + 1]}, not {result!r}"
            assert allowed(index, ours, theirs), why
            break


@pytest.mark.parametrize("loop", LOOPS)
def test_a_handler_annotated_with_asyncios_types_is_taken(loop: str) -> None:
    """By mypy too, which checks this file."""

    async def on_client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readline())
        writer.close()

    async def scenario() -> None:
        server = await multi.start_server(on_client, WAY.server(), backlog=5)
        reader: asyncio.StreamReader
        writer: asyncio.StreamWriter
        reader, writer = await multi.open_connection(WAY.client(server.port))
        writer.write(b"line\n")
        assert await reader.readline() == b"line\n"
        writer.close()
        await writer.wait_closed()
        server.close()
        await server.wait_closed()

    run(scenario(), loop)


def test_errors_carry_the_number_that_asyncios_carry() -> None:
    assert multi.SessionLost().errno == errno.ECONNRESET
    assert multi.SessionRefused().errno == errno.ECONNREFUSED
    assert isinstance(multi.SessionRefused(), ConnectionRefusedError)

    async def scenario() -> None:
        with pytest.raises(ConnectionRefusedError) as caught:
            await multi.open_connection(WAY.client(1))  # nobody listens on port 1
        assert caught.value.errno == errno.ECONNREFUSED

    run(scenario())


# --- every heading of the page ---


class Asyncio:
    """Servers and clients of asyncio, by the calls that they share with those of `multi`."""

    async def serve(self, on_client: Callable[..., Any], **options: Any) -> Any:
        return await asyncio.start_server(on_client, HOST, 0, **options)

    async def connect(self, port: int) -> tuple[Any, Any]:
        return await asyncio.open_connection(HOST, port)

    async def pair(self, scenario: Scenario) -> object:
        async with asyncio_pair(limit=LIMIT) as pair:
            return await scenario(pair)


class Multi(Asyncio):
    async def serve(self, on_client: Callable[..., Any], **options: Any) -> Any:
        return await multi.start_server(on_client, WAY.server(), **options)

    async def connect(self, port: int) -> tuple[Any, Any]:
        return await multi.open_connection(WAY.client(port))

    async def pair(self, scenario: Scenario) -> object:
        async with multi_pair(WAY, limit=LIMIT) as pair:
            return await scenario(pair)


async def broken_connection(streams: Asyncio) -> object:
    clients: asyncio.Queue[tuple[Any, Any]] = asyncio.Queue()
    server = await streams.serve(lambda *client: clients.put_nowait(client))
    async with Relay(server.sockets[0].getsockname()[1]) as relay:
        reader, writer = await streams.connect(relay.port)
        server_reader, server_writer = await clients.get()
        writer.write(b"before")
        await server_reader.readexactly(6)
        relay.cut()
        result = "it went on"
        try:
            if not isinstance(reader, multi.SessionReader):
                given(await server_reader.read() == b"")
            writer.write(b"after")
            given(await server_reader.readexactly(5) == b"after")
        except (ConnectionError, asyncio.IncompleteReadError):
            result = "it ended"
        for end in (writer, server_writer):
            end.transport.abort()
    server.close()
    await server.wait_closed()
    return result


async def writer_after_the_close_of_the_peer(pair: Pair) -> object:
    pair.server_writer.write(b"bye")
    pair.server_writer.close()
    given(await pair.reader.read() == b"bye")
    if isinstance(pair.reader, multi.SessionReader):
        await until(pair.writer.is_closing)
    return [await awaited(pair.writer.drain()), pair.writer.is_closing()]


async def drain_after_close(pair: Pair) -> object:
    pair.writer.write(b"last words")
    pair.writer.close()
    return await awaited(pair.writer.drain())


async def reads_after_the_peer_aborted(pair: Pair) -> object:
    pair.server_writer.transport.abort()
    try:
        return await pair.reader.read(100)
    except ConnectionResetError as error:
        return told(error)


async def unread_bytes_before_an_error(pair: Pair) -> object:
    pair.server_writer.write(b"> unread")
    given(await pair.reader.readexactly(1) == b">")
    await until(lambda: len(pair.reader._buffer) == 7)
    pair.server_writer.transport.pause_reading()
    pair.writer.write(b"unread there, so that TCP resets")
    await pair.writer.drain()
    pair.server_writer.transport.abort()
    await until(lambda: pair.reader.exception() is not None)
    return await awaited(pair.reader.read(100))


async def read_that_is_cancelled(pair: Pair) -> object:
    pair.server_writer.write(b"collected")
    await until(lambda: len(pair.reader._buffer) == 9)
    given(await awaited(pair.reader.read()) == "waits")
    pair.server_writer.write(b", and the rest")
    pair.server_writer.write_eof()
    return await pair.reader.read()


async def consumed_when_no_separator_is_found(pair: Pair) -> object:
    pair.server_writer.write(b">" + b"x" * 5 * LIMIT)
    await pair.reader.readexactly(1)
    return await awaited(pair.reader.readuntil(b"\n"))


async def limits_of_the_write_buffer(pair: Pair) -> object:
    return pair.writer.transport.get_write_buffer_limits()


async def a_socket_of_its_own(pair: Pair) -> object:
    return [pair.writer.get_extra_info("socket").fileno() >= 0, hasattr(pair.writer.transport, "_sock")]


async def sendfile_of_the_loop(pair: Pair) -> object:
    with TemporaryFile() as file:
        file.write(b"a file")
        try:
            return await asyncio.get_running_loop().sendfile(pair.writer.transport, file)
        except RuntimeError as error:
            return str(error).partition(" <")[0]


async def end_of_a_handler(streams: Asyncio, error: Exception) -> list[object]:
    """What the loop's exception handler hears, then what the client does."""
    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(type(context["exception"])))

    async def fails(reader: Any, writer: Any) -> None:
        await reader.readexactly(1)
        raise error

    server = await streams.serve(fails)
    reader, writer = await streams.connect(server.sockets[0].getsockname()[1])
    writer.write(b"x")
    try:
        end: object = await reader.read()
    except ConnectionResetError:
        end = "reset"
    writer.transport.abort()
    server.close()
    await server.wait_closed()
    return [reported, end]


async def client_of_a_handler_that_fails(streams: Asyncio) -> object:
    reported, end = await end_of_a_handler(streams, KeyError("a bug"))
    given(reported == [KeyError])
    return end


async def handler_that_lost_its_peer(streams: Asyncio) -> object:
    return (await end_of_a_handler(streams, multi.SessionLost()))[0]


async def server_that_does_not_serve_yet(streams: Asyncio) -> object:
    server = await streams.serve(print, start_serving=False)
    given(not server.is_serving())
    bound = len(server.sockets)
    await server.start_serving()
    given(server.is_serving())
    given(len(server.sockets) == 1)
    server.close()
    await server.wait_closed()
    return bound


async def start_tls_of_the_loop(streams: Asyncio) -> object:
    """A context that can do nothing is enough to see who is refused."""

    async def scenario(pair: Pair) -> object:
        transport, loop = pair.writer.transport, asyncio.get_running_loop()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        starting = loop.start_tls(transport, transport.get_protocol(), context, server_hostname="localhost")
        try:
            await asyncio.wait_for(starting, 0.05)
        except TimeoutError:
            return "greets"
        except TypeError:
            return "refused"
        raise AssertionError("nobody answered")

    return await streams.pair(scenario)


def of_a_pair(scenario: Scenario) -> Callable[[Asyncio], Awaitable[object]]:
    return lambda streams: streams.pair(scenario)


DIFFERENCES: dict[str, Callable[[Asyncio], Awaitable[object]]] = {
    "A connection that breaks does not end the stream": broken_connection,
    PEER_CLOSED: of_a_pair(writer_after_the_close_of_the_peer),
    CLOSING: of_a_pair(drain_after_close),
    ABORTED: of_a_pair(reads_after_the_peer_aborted),
    "What came before an error can still be read": of_a_pair(unread_bytes_before_an_error),
    "A cancelled `read()` loses nothing": of_a_pair(read_that_is_cancelled),
    "`LimitOverrunError.consumed` may be smaller": of_a_pair(consumed_when_no_separator_is_found),
    "More is buffered before a writer waits": of_a_pair(limits_of_the_write_buffer),
    "A stream has no socket of its own": of_a_pair(a_socket_of_its_own),
    "A handler that fails resets its client": client_of_a_handler_that_fails,
    "A handler that lost its peer is not reported": handler_that_lost_its_peer,
    "`start_serving=False` binds later": server_that_does_not_serve_yet,
    "`loop.sendfile()` refuses these transports": of_a_pair(sendfile_of_the_loop),
    "uvloop's `start_tls` refuses these transports": start_tls_of_the_loop,
}


@pytest.mark.parametrize("heading", DIFFERENCES)
def test_what_the_page_names_differs(heading: str) -> None:
    if heading.startswith("A handler that ") and sys.version_info < (3, 11, 7):
        pytest.skip("asyncio of Python 3.11.2 tells nobody that a handler has failed")

    async def scenario(streams: Asyncio) -> object:
        return await DIFFERENCES[heading](streams)

    loop = "uvloop" if heading.startswith("uvloop") else "asyncio"
    assert run(scenario(Multi()), loop) != run(scenario(Asyncio()), loop)


def test_the_page_names_what_differs() -> None:
    assert re.findall(r"^## (.+)$", PAGE.read_text(), re.MULTILINE) == list(DIFFERENCES)
