"""Where a program written for asyncio's streams meets something else than on asyncio's own streams."""

from __future__ import annotations

import asyncio
import gc
import socket
import sys
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import multi
from tests.findings.bounded import given, reached, run
from tests.integration.support import HOST, Pair, Way, asyncio_pair, free_port, multi_pair

WAY = Way(Path())  # sealed TCP: no certificates
DROPPED = 10  # sessions


@asynccontextmanager
async def serving(on_client: Callable[..., Awaitable[None] | None]) -> AsyncIterator[multi.Server]:
    server = await multi.start_server(on_client, WAY.server())
    try:
        yield server
    finally:
        server.abort()
        await server.wait_closed()


async def bytes_pending(pair: Pair) -> bool:
    """Whether bytes that have come and were not read show in the attribute that connection pools look at."""
    pair.server_writer.write(b"dirty")
    await pair.server_writer.drain()
    if isinstance(pair.reader, multi.SessionReader):
        await reached(lambda: "buffered=5" in repr(pair.reader), "five bytes wait to be read")
    else:
        await reached(lambda: "5 bytes" in repr(pair.reader), "five bytes wait to be read")
    # Without the attribute a library fails in the open; that is as good as a right answer.
    return not hasattr(pair.reader, "_buffer") or bool(pair.reader._buffer)


def test_unread_bytes_show_in_the_buffer_of_asyncios_reader() -> None:
    async def scenario() -> None:
        async with asyncio_pair() as pair:
            assert await bytes_pending(pair)

    run(scenario())


def test_a_connection_pool_that_looks_into_the_readers_buffer_is_not_misled() -> None:
    async def scenario() -> None:
        async with multi_pair(WAY) as pair:
            assert await bytes_pending(pair)

    run(scenario())


def test_the_sockets_of_a_server_tell_what_asyncios_tell() -> None:
    async def scenario() -> None:
        async with serving(lambda reader, writer: None) as server:
            listening = server.sockets[0]
            assert listening.getsockname() == (HOST, server.port)
            found: Any = listening
            assert found.family == socket.AF_INET
            assert found.type == socket.SOCK_STREAM
            assert found.proto in (0, socket.IPPROTO_TCP)
            assert found.fileno() >= 0

    run(scenario())


async def addressed_by(pair: Pair) -> list[object]:
    found = []
    for writer in (pair.writer, pair.server_writer):
        sock = writer.get_extra_info("socket")
        found += [sock.family, sock.type, writer.get_extra_info("peername")]
    return [kind for kind in found if not isinstance(kind, tuple)]


def test_asyncios_writers_name_their_socket() -> None:
    async def scenario() -> None:
        async with asyncio_pair() as pair:
            assert await addressed_by(pair) == [socket.AF_INET, socket.SOCK_STREAM] * 2

    run(scenario())


def test_writers_name_a_socket() -> None:
    async def scenario() -> None:
        async with multi_pair(WAY) as pair:
            assert await addressed_by(pair) == [socket.AF_INET, socket.SOCK_STREAM] * 2
            sock = pair.writer.get_extra_info("socket")
            assert sock.getpeername() == pair.writer.get_extra_info("peername")
            assert sock.getsockname() == pair.writer.get_extra_info("sockname")
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # libraries do, and not all could do without

    run(scenario())


def test_a_refused_connection_is_caught_as_with_asyncio() -> None:
    async def scenario() -> None:
        with pytest.raises(OSError, match="refused") as caught:
            await multi.open_connection(WAY.client(free_port()))
        assert isinstance(caught.value, ConnectionRefusedError)

    run(scenario())


def test_an_unknown_name_is_caught_as_with_asyncio() -> None:
    async def scenario() -> None:
        with pytest.raises(OSError, match="no-such-host") as caught:
            await multi.open_connection(WAY.client(1, remote_host="no-such-host.invalid"))
        assert isinstance(caught.value, socket.gaierror)

    run(scenario())


async def error_of_writing_on(pair: Pair) -> Exception:
    """What `drain` raises to whoever writes on after the other side has aborted."""
    pair.server_writer.transport.abort()
    for _ in range(2000):
        try:
            pair.writer.write(b"x")
            await pair.writer.drain()
        except OSError as error:
            return error
        await asyncio.sleep(0.002)
    raise TimeoutError("nobody said that the other side has gone")


def test_writing_on_to_a_peer_that_has_gone_resets_asyncios_connection() -> None:
    async def scenario() -> None:
        async with asyncio_pair() as pair:
            assert isinstance(await error_of_writing_on(pair), (ConnectionResetError, BrokenPipeError))

    run(scenario())


def test_writing_on_to_a_peer_that_has_gone_is_caught_as_with_asyncio() -> None:
    async def scenario() -> None:
        async with multi_pair(WAY) as pair:
            assert isinstance(await error_of_writing_on(pair), (ConnectionResetError, BrokenPipeError))

    run(scenario())


async def one_answer(reader: Any, writer: Any) -> None:
    """Hear that the server has the connection, and forget reader and writer."""
    writer.write(b"x")
    given(await reader.readexactly(1) == b"x")


@pytest.mark.skipif(sys.version_info < (3, 11, 7), reason="asyncio of Python 3.11.2 holds them for ever")
def test_asyncios_connections_end_when_nobody_holds_them_any_more() -> None:
    alive = 0

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal alive
        alive += 1
        while data := await reader.read(100):
            writer.write(data)
        alive -= 1
        writer.close()

    async def scenario() -> None:
        server = await asyncio.start_server(echo, HOST, 0)
        address = server.sockets[0].getsockname()
        for _ in range(DROPPED):
            await one_answer(*await asyncio.open_connection(*address))
        assert await gone_within_a_second(lambda: alive)
        server.close()
        await server.wait_closed()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        run(scenario())


async def gone_within_a_second(count: Callable[[], int]) -> bool:
    for _ in range(5):
        gc.collect()
        for _ in range(20):
            if not count():
                return True
            await asyncio.sleep(0.01)
    return False


def test_sessions_end_when_nobody_holds_them_any_more() -> None:
    async def echo(reader: multi.SessionReader, writer: multi.SessionWriter) -> None:
        try:
            while data := await reader.read(100):
                writer.write(data)
        finally:
            writer.close()

    async def scenario() -> None:
        async with serving(echo) as server:
            for _ in range(DROPPED):
                await one_answer(*await multi.open_connection(WAY.client(server.port)))
            assert await gone_within_a_second(lambda: len(server.sessions))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        run(scenario())


async def fails(reader: Any, writer: Any) -> None:
    await reader.readexactly(1)
    raise KeyError("a bug of the application")


def test_an_exception_of_a_handler_reaches_the_exception_handler_of_the_loop() -> None:
    async def scenario() -> list[object]:
        reported: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context.get("exception")))
        async with serving(fails) as server:
            reader, writer = await multi.open_connection(WAY.client(server.port))
            writer.write(b"x")
            with suppress(multi.SessionLost):
                await reader.read()
            writer.transport.abort()
        return reported

    assert [str(error) for error in run(scenario())] == ["'a bug of the application'"]
