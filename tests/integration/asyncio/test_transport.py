"""Protocols and transports: a session's stream under an asyncio protocol behaves as a socket's does."""

from __future__ import annotations

import asyncio
import gc
import ssl
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import multi
from tests.integration.support import HOST, LOOPS, Way, multi_pair, run, until

WAY = Way(Path())  # sealed TCP: needs no certificates
MUCH = 12_000_000  # bytes; more than kernels and windows hold before somebody reads


@dataclass
class Recorded:
    """What a protocol was told, bytes that followed each other as one."""

    calls: list[object] = field(default_factory=list)
    received: bytearray = field(default_factory=bytearray)
    transport: Any = None
    stays_open: bool = False
    """After the end of what the peer sends."""
    fails_at: str = ""
    stops_at: str = ""
    stop: Callable[[], None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self._note("made")

    def _note(self, what: str) -> None:
        if not self.calls or self.calls[-1] != what:
            self.calls.append(what)
        if what == self.stops_at and self.stop is not None:
            self.stop()
        if what == self.fails_at:
            raise KeyError("a bug of the protocol")

    def eof_received(self) -> bool:
        self._note("eof")
        return self.stays_open

    def connection_lost(self, error: Exception | None) -> None:
        kinds: tuple[type[Exception], ...] = (ConnectionError, KeyError, ssl.SSLError)
        self.calls.append(("lost", next((kind for kind in kinds if isinstance(error, kind)), None)))

    def pause_writing(self) -> None:
        self._note("pause")

    def resume_writing(self) -> None:
        self._note("resume")

    @property
    def lost(self) -> bool:
        return any(isinstance(call, tuple) for call in self.calls)


class Plain(Recorded, asyncio.Protocol):
    def data_received(self, data: bytes) -> None:
        assert type(data) is bytes
        self.received += data
        self._note("data")


class Unrelated(Recorded, asyncio.BaseProtocol):
    """Some libraries derive theirs from nothing better."""

    data_received = Plain.data_received


class Buffered(Recorded, asyncio.BufferedProtocol):
    memory = bytearray(50_000)

    def get_buffer(self, sizehint: int) -> bytearray:
        return self.memory

    def buffer_updated(self, nbytes: int) -> None:
        self.received += self.memory[:nbytes]
        self._note("data")


Ends = tuple[Any, Any]
Scenario = Callable[[Any, Any], Awaitable[object]]


@asynccontextmanager
async def ended(client: Any, inbox: list[Any]) -> AsyncIterator[Ends]:
    """Both ends once both are there, and no longer than the block."""
    await until(lambda: bool(inbox) and inbox[0].transport is not None)
    try:
        yield client, inbox[0]
    finally:
        for end in (client, inbox[0]):
            end.transport.abort()
        await until(lambda: client.lost and inbox[0].lost)


@asynccontextmanager
async def asyncio_ends(kind: Any) -> AsyncIterator[Ends]:
    loop = asyncio.get_running_loop()
    inbox: list[Any] = []

    def made() -> Any:
        inbox.append(kind())
        return inbox[-1]

    server = await loop.create_server(made, HOST, 0)
    _, client = await loop.create_connection(kind, *server.sockets[0].getsockname())
    try:
        async with ended(client, inbox) as ends:
            yield ends
    finally:
        server.close()
        await server.wait_closed()


@asynccontextmanager
async def multi_ends(kind: Any) -> AsyncIterator[Ends]:
    inbox: list[Any] = []

    def made() -> Any:
        inbox.append(kind())
        return inbox[-1]

    server = await multi.create_server(made, WAY.server())
    transport, client = await multi.create_connection(kind, WAY.client(server.port))
    assert isinstance(transport, asyncio.Transport)
    assert transport.get_protocol() is client
    try:
        async with ended(client, inbox) as ends:
            yield ends
    finally:
        server.abort()
        await server.wait_closed()


async def there_and_back(client: Any, server: Any) -> object:
    client.transport.write(b"question")
    await until(lambda: len(server.received) == 8)
    server.transport.writelines([b"ans", bytearray(b"wer")])
    await until(lambda: len(client.received) == 6)
    client.transport.close()
    results = [client.transport.is_closing(), client.transport.is_reading()]
    await until(lambda: client.lost and server.lost)
    return [results, client.calls, server.calls, bytes(client.received), bytes(server.received)]


async def half_close(client: Any, server: Any) -> object:
    server.stays_open = True
    client.transport.write(b"all of it")
    client.transport.write_eof()
    await until(lambda: "eof" in server.calls)
    server.transport.write(b"thanks")
    server.transport.close()
    await until(lambda: client.lost and server.lost)
    return [client.calls, server.calls, bytes(client.received), bytes(server.received)]


async def reading_paused(client: Any, server: Any) -> object:
    server.transport.pause_reading()
    server.transport.pause_reading()
    results = [server.transport.is_reading()]
    client.transport.write(b"x" * MUCH)
    await until(lambda: "pause" in client.calls)
    await asyncio.sleep(0.05)
    results += [len(server.received), client.transport.get_write_buffer_size() > 0]
    server.transport.resume_reading()
    results.append(server.transport.is_reading())
    await until(lambda: len(server.received) == MUCH and "resume" in client.calls)
    return [results, client.calls, server.calls]


async def write_buffer_limits(client: Any, server: Any) -> object:
    transport = client.transport
    results: list[object] = []
    for arguments in ({"high": 1000}, {"low": 10}, {"high": 100, "low": 7}, {"high": 0}):
        transport.set_write_buffer_limits(**arguments)
        results.append(transport.get_write_buffer_limits())
    with pytest.raises(ValueError, match="high"):
        transport.set_write_buffer_limits(1, 2)
    return results


async def aborted(client: Any, server: Any) -> object:
    client.transport.write(b"something")
    await until(lambda: len(server.received) == 9)
    client.transport.abort()
    client.transport.abort()
    await until(lambda: client.lost and server.lost)
    client.transport.write(b"late")
    return [client.calls, client.transport.is_closing()]


async def bug_in_the_protocol(client: Any, server: Any) -> object:
    loop, reported = asyncio.get_running_loop(), []
    loop.set_exception_handler(lambda _, context: reported.append((type(context["exception"]), context["protocol"])))
    server.fails_at = "data"
    client.transport.write(b"x")
    await until(lambda: server.lost)
    return [[(kind, protocol is server) for kind, protocol in reported], server.calls]


async def wants_no_more(client: Any, server: Any) -> object:
    """The end has come with the bytes that make a protocol pause."""
    server.stops_at, server.stop = "data", server.transport.pause_reading
    client.transport.write(b"all")
    client.transport.write_eof()
    await until(lambda: len(server.received) == 3)
    await asyncio.sleep(0.05)
    results = [list(server.calls)]
    server.transport.resume_reading()
    await until(lambda: "eof" in server.calls)
    return results


async def closes_at_the_last_bytes(client: Any, server: Any) -> object:
    server.stops_at, server.stop = "data", server.transport.close
    client.transport.write(b"all")
    client.transport.write_eof()
    await until(lambda: server.lost)
    return server.calls


async def uses_the_last_bytes_a_turn_later(client: Any, server: Any) -> object:
    loop = asyncio.get_running_loop()
    server.stops_at, server.stop = "data", lambda: loop.call_soon(server.calls.append, "used")
    client.transport.write(b"all")
    client.transport.write_eof()
    await until(lambda: server.lost)
    return server.calls


async def another_protocol(client: Any, server: Any) -> object:
    client.transport.write(b"first")
    await until(lambda: len(server.received) == 5)
    later = type(server)()
    server.transport.set_protocol(later)
    later.transport = server.transport
    results = [server.transport.get_protocol() is later]
    client.transport.write(b"second")
    await until(lambda: len(later.received) == 6)
    client.transport.close()
    await until(lambda: later.lost and client.lost)
    server.calls.append(("lost", None))  # it hears nothing more
    return [results, bytes(server.received), later.calls]


SCENARIOS: list[Scenario] = [
    there_and_back,
    half_close,
    reading_paused,
    write_buffer_limits,
    aborted,
    bug_in_the_protocol,
    wants_no_more,
    closes_at_the_last_bytes,
    uses_the_last_bytes_a_turn_later,
    another_protocol,
]


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("kind", [Plain, Buffered])
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_protocols_are_told_what_asyncio_tells_them(scenario: Scenario, kind: Any, loop: str) -> None:
    async def over_asyncio() -> object:
        async with asyncio_ends(kind) as ends:
            return await scenario(*ends)

    async def over_multi() -> object:
        async with multi_ends(kind) as ends:
            return await scenario(*ends)

    assert run(over_multi(), loop) == run(over_asyncio())


def test_a_protocol_may_be_of_any_class() -> None:
    async def both() -> list[object]:
        async with asyncio_ends(Unrelated) as ends, multi_ends(Unrelated) as ours:
            return [await half_close(*ends), await half_close(*ours)]

    theirs, ours = run(both())
    assert ours == theirs


@pytest.mark.parametrize("loop", LOOPS)
def test_further_streams_have_protocols_too(loop: str) -> None:
    async def scenario() -> None:
        async with multi_ends(Plain) as (client, server):
            session: multi.Session = client.transport.get_extra_info("session")
            transport, protocol = await session.create_stream(Plain, priority=1)
            assert transport.get_extra_info("stream") == 2
            transport.write(b"over a stream")
            streams = server.transport.get_extra_info("session").streams()
            reader, writer = await anext(streams)
            assert await reader.readexactly(4) == b"over"
            rest = Plain(stays_open=True)
            writer.transport.set_protocol(rest)
            await until(lambda: rest.received == b" a stream")
            transport.write_eof()
            await until(lambda: "eof" in rest.calls)
            writer.transport.write(b"answer")
            writer.transport.close()
            await until(lambda: protocol.lost and rest.lost)
            assert protocol.received == b"answer"
            assert protocol.calls == ["made", "data", "eof", ("lost", None)]
            assert rest.calls == ["data", "eof", ("lost", None)]
            assert not client.lost
            await streams.aclose()

    run(scenario(), loop)


def test_a_factory_that_fails_leaves_no_stream() -> None:
    async def scenario() -> None:
        def fails() -> Plain:
            raise ValueError("no protocol")

        async with multi_ends(Plain) as (client, _):
            session: multi.Session = client.transport.get_extra_info("session")
            for _ in range(3):
                with pytest.raises(ValueError, match="no protocol"):
                    await session.create_stream(fails)
            await until(lambda: session.stats().streams == 1)

    run(scenario())


def test_a_stream_that_has_ended_is_not_kept_as_long_as_its_session() -> None:
    async def a_stream(session: multi.Session) -> weakref.ref[multi.SessionTransport]:
        transport, protocol = await session.create_stream(Plain)
        transport.abort()
        await until(lambda: bool(protocol.lost))
        return weakref.ref(transport)

    async def scenario() -> None:
        async with multi_ends(Plain) as (client, _):
            ended = await a_stream(client.transport.get_extra_info("session"))
            await asyncio.sleep(0)
            gc.collect()
            assert ended() is None

    run(scenario())


def test_what_has_come_is_handed_out_though_the_session_is_lost_meanwhile() -> None:
    async def scenario() -> None:
        async with multi_ends(Plain) as (client, server):
            server.transport.pause_reading()
            client.transport.write(b"last words")
            session: multi.Session = server.transport.get_extra_info("session")
            await until(lambda: "received" in repr(session.connections) and session.memory >= 10)
            client.transport.abort()
            await until(lambda: session.error is not None)
            await asyncio.sleep(0)
            assert server.calls == ["made"]
            server.transport.resume_reading()
            await until(lambda: server.lost)
            assert server.received == b"last words"
            assert server.calls == ["made", "data", ("lost", ConnectionError)]

    run(scenario())


# --- TLS inside a session ---


@pytest.fixture
def contexts(development_certificates: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Of the server, of the client."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(development_certificates / "server-cert.pem", development_certificates / "server-key.pem")
    client = ssl.create_default_context(cafile=str(development_certificates / "ca.pem"))
    return server, client


async def encrypts(transport: Any, protocol: Any, context: ssl.SSLContext, way: str, server_side: bool) -> Any:
    start = multi.start_tls if way == "multi" else asyncio.get_running_loop().start_tls
    hostname = None if server_side else "localhost"
    return await start(transport, protocol, context, server_side=server_side, server_hostname=hostname)


@pytest.mark.parametrize(("way", "loop"), [("multi", "asyncio"), ("multi", "uvloop"), ("loop", "asyncio")])
def test_tls_inside_a_session_for_protocols(
    way: str, loop: str, contexts: tuple[ssl.SSLContext, ssl.SSLContext]
) -> None:
    async def scenario() -> None:
        async with multi_ends(Plain) as (client, server):
            plain = client.transport
            server.transport, client.transport = await asyncio.gather(
                encrypts(server.transport, server, contexts[0], way, True),
                encrypts(client.transport, client, contexts[1], way, False),
            )
            assert client.transport.get_extra_info("cipher")
            assert client.transport.get_extra_info("session") is plain.get_extra_info("session")
            client.transport.write(b"x" * 1_000_000)
            await until(lambda: len(server.received) == 1_000_000)
            server.transport.write(b"thanks")
            await until(lambda: client.received == b"thanks")
            client.transport.close()
            await until(lambda: server.lost and client.lost)
            assert server.calls[-2:] == ["eof", ("lost", None)]
            assert client.calls[-1] == ("lost", None)

    run(scenario(), loop)


def test_a_stream_with_tls_inside_ends_when_nobody_holds_its_writer(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext],
) -> None:
    async def scenario() -> bytes:
        async with multi_pair(WAY) as pair:
            coming = pair.server_session.streams()
            _, writer = await pair.session.open_stream()
            writer.write(b"x")
            reader, other = await anext(coming)
            assert await reader.readexactly(1) == b"x"
            await asyncio.gather(
                writer.start_tls(contexts[1], server_hostname="localhost"), other.start_tls(contexts[0])
            )
            del _, writer
            gc.collect()
            rest = await reader.read()
            other.close()
            await other.wait_closed()
            return rest

    with pytest.warns(ResourceWarning, match="unclosed <SessionWriter"):
        assert asyncio.run(asyncio.wait_for(scenario(), 10)) == b""


@pytest.mark.parametrize("loop", LOOPS)
def test_tls_inside_a_session_for_reader_and_writer(loop: str, contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    """The client's greeting may come in one piece with what was said before, and be in the reader already."""

    async def on_client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.readline() == b"STARTTLS\n"
        # The greeting, as libraries may see it.
        await until(lambda: reader._buffer[:1] == b"\x16", "it is in the reader")  # type: ignore[attr-defined]
        await writer.start_tls(contexts[0])
        async for line in reader:
            writer.write(line.upper())
            await writer.drain()
        writer.close()
        await writer.wait_closed()

    async def scenario() -> None:
        server = await multi.start_server(on_client, WAY.server())
        reader, writer = await multi.open_connection(WAY.client(server.port))
        writer.write(b"STARTTLS\n")
        await writer.start_tls(contexts[1], server_hostname="localhost")
        lines = [b"%d and so on\n" % number for number in range(2000)]
        for line in lines:
            writer.write(line)
            await writer.drain()
        assert [await reader.readline() for _ in lines] == [line.upper() for line in lines]
        assert isinstance(writer.transport, asyncio.Transport)
        assert writer.get_extra_info("cipher")
        writer.close()
        await writer.wait_closed()
        assert await reader.read() == b""
        server.close()
        await server.wait_closed()

    run(scenario(), loop)


def test_tls_that_fails_ends_the_stream_with_its_reason(contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    async def scenario() -> None:
        async with multi_ends(Plain) as (client, server):
            attempts = await asyncio.gather(
                multi.start_tls(server.transport, server, contexts[0], server_side=True),
                multi.start_tls(client.transport, client, ssl.create_default_context(), server_hostname="localhost"),
                return_exceptions=True,
            )
            assert isinstance(attempts[1], ssl.SSLCertVerificationError)
            assert isinstance(attempts[0], (ssl.SSLError, ConnectionError))
            await until(lambda: client.transport.is_closing() and server.transport.is_closing())
            client.calls.append(("lost", None))
            server.calls.append(("lost", None))

    run(scenario())
