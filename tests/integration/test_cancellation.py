"""A cancelled call loses nothing, a cancelled open leaves nothing, and an event loop that ends takes all with it."""

from __future__ import annotations

import asyncio
import logging
import random
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import multi
from multi.asyncio import dns as names
from multi.asyncio.resolution import Found, Resolver
from multi.types import Family
from tests.integration.support import (
    HOST,
    LOOPS,
    WAYS,
    Inbox,
    Way,
    multi_pair,
    pattern,
    run,
    silent_server,
    sockets_open,
    until,
)

KIB = 1024


def nothing_but_us() -> bool:
    # The server's greeting of a client lasts until it hears that the client has left.
    tasks = [task for task in asyncio.all_tasks() if not task.get_name().startswith("greeting of ")]
    return tasks == [asyncio.current_task()] or len(tasks) == 2  # and wait_for's own


async def cancelled(task: asyncio.Future[Any]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    assert task.cancelled() or task.exception() is None


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("way", ["tcp-sealed", "tcp-plain", "quic"])
@pytest.mark.parametrize("seed", range(3))
def test_cancelled_reads_and_drains_lose_nothing(
    seed: int, way: str, loop: str, development_certificates: Path
) -> None:
    data = pattern(2048 * KIB, seed)

    async def send(writer: multi.SessionWriter, rng: random.Random) -> None:
        position = 0
        while position < len(data):
            size = rng.choice((1, 100, 5000, 70_000, 300_000))
            writer.write(data[position : position + size])
            position += size
            draining = asyncio.ensure_future(writer.drain())
            await turns(rng, draining)
            if not draining.done() and rng.random() < 0.5:
                await cancelled(draining)
            else:
                await draining
        writer.write_eof()

    async def receive(reader: multi.SessionReader, rng: random.Random) -> bytes:
        pieces: list[bytes] = []
        while not reader.at_eof():
            calls: list[Callable[[], Awaitable[bytes]]] = [
                lambda: reader.read(rng.choice((1, 1000, 100_000))),
                lambda: reader.readexactly(rng.choice((1, 1000, 200_000))),
                lambda: reader.readuntil(rng.choice((b"\x00", b"\x01\x02", b"\n"))),
                reader.readline,
            ]
            if rng.random() < 0.02:
                calls = [reader.read]
            reading = asyncio.ensure_future(rng.choice(calls)())
            await turns(rng, reading)
            if not reading.done() and (rng.random() < 0.7 or calls == [reader.read]):
                reading.cancel()
            try:
                pieces.append(await reading)
            except asyncio.IncompleteReadError as error:
                pieces.append(error.partial)
            except (asyncio.CancelledError, asyncio.LimitOverrunError):
                pass
        return b"".join(pieces)

    async def turns(rng: random.Random, task: asyncio.Future[Any]) -> None:
        for _ in range(rng.choice((0, 1, 2, 5, 20))):
            if not task.done():
                await asyncio.sleep(0)

    async def scenario() -> None:
        async with multi_pair(Way(development_certificates, way)) as pair:
            ends = (pair.server_reader, random.Random(seed)), (pair.writer, random.Random(seed + 100))
            received, _ = await asyncio.gather(receive(*ends[0]), send(*ends[1]))
            assert received == data

    run(scenario(), loop)


@asynccontextmanager
async def full_backlog() -> AsyncIterator[int]:
    """A connect to it waits."""
    with socket.create_server((HOST, 0), backlog=0) as server:
        port = server.getsockname()[1]
        fillers = []
        for _ in range(4):
            filler = socket.socket()
            filler.setblocking(False)
            with suppress(BlockingIOError):
                filler.connect((HOST, port))
            fillers.append(filler)
        try:
            yield port
        finally:
            for filler in fillers:
                filler.close()


@asynccontextmanager
async def silent_udp() -> AsyncIterator[int]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind((HOST, 0))
        yield sock.getsockname()[1]


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize(
    ("way", "place"),
    [
        ("tcp-sealed", full_backlog),
        ("tcp-sealed", silent_server),
        ("tcp-tls", silent_server),
        ("mptcp-sealed", silent_server),
        ("quic", silent_udp),
    ],
)
def test_cancelled_open_of_a_silent_server_leaves_nothing(
    way: str, place: Callable[[], Any], loop: str, development_certificates: Path
) -> None:
    async def scenario() -> None:
        async with place() as port:
            before = set(sockets_open())
            opening = asyncio.ensure_future(multi.open_connection(Way(development_certificates, way).client(port)))
            await until(lambda: bool(set(sockets_open()) - before), "the client's socket")
            for _ in range(5):
                await asyncio.sleep(0.01)
            tasks = asyncio.all_tasks()
            await cancelled(opening)
            assert opening.cancelled()
            assert asyncio.all_tasks() < tasks
            assert nothing_but_us()
            if place is not silent_server:  # whose own side of the connection stays open
                assert set(sockets_open()) <= before

    run(scenario(), loop)


@pytest.fixture
def dead_resolver(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Names get no answer as long as a test runs; the event says that somebody has asked."""
    asked, over = threading.Event(), threading.Event()

    def lookup(host: str, family: Family) -> list[str]:
        asked.set()
        over.wait(10.0)
        raise OSError("no answer")

    monkeypatch.setattr(names, "system_lookup", lookup)
    yield asked
    over.set()


def test_open_cancelled_while_a_name_is_resolved_leaves_nothing(
    development_certificates: Path, dead_resolver: threading.Event
) -> None:
    async def scenario() -> None:
        config = Way(development_certificates).client(1, remote_host="nowhere.example")
        before = set(sockets_open())
        opening = asyncio.ensure_future(multi.open_connection(config))
        await until(dead_resolver.is_set)
        await cancelled(opening)
        assert set(sockets_open()) <= before
        assert nothing_but_us()

    run(scenario())


def test_names_that_resolve_too_slowly_end_with_the_open_timeout(
    development_certificates: Path, dead_resolver: threading.Event
) -> None:
    async def scenario() -> None:
        config = Way(development_certificates).client(
            1, remote_host="nowhere.example", multi_config={"open_timeout": 0.2}
        )
        with pytest.raises(multi.NoUsableConnection, match="not resolved"):
            await multi.open_connection(config)

    run(scenario())


@pytest.mark.parametrize("way", WAYS)
def test_open_cancelled_at_any_moment_leaves_nothing(way: str, development_certificates: Path) -> None:
    async def scenario() -> None:
        inbox = Inbox()
        described = Way(development_certificates, way)
        async with await multi.start_server(inbox.on_client, described.server()) as server:
            done = 0
            for moment in range(60):
                opening = asyncio.ensure_future(multi.open_connection(described.client(server.port)))
                for _ in range(moment):
                    await asyncio.sleep(0)
                if moment % 4 == 3:
                    await asyncio.sleep(moment * 0.0005)
                opening.cancel()
                try:
                    _, writer = await opening
                except asyncio.CancelledError:
                    continue
                finally:
                    assert nothing_but_us()
                done += 1
                writer.close()
                await writer.wait_closed()
            server.abort()
        assert done < 60

    run(scenario())


def test_open_cancelled_as_its_look_at_the_networks_ends_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The session took itself for open, and reported a bug."""
    opening: asyncio.Future[Any]
    find = Resolver.find

    async def cancelling(self: Resolver, **more: Any) -> Found:
        found = await find(self, **more)
        opening.cancel()
        return found

    monkeypatch.setattr(Resolver, "find", cancelling)

    async def scenario() -> None:
        nonlocal opening
        async with silent_server() as port:
            client = {"connection_priority": [["tcp", "any", HOST]], "remote_host": HOST, "remote_port": port}
            opening = asyncio.ensure_future(multi.open_connection(client))
            with pytest.raises(asyncio.CancelledError):
                await opening
            assert nothing_but_us()

    run(scenario())
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_cancelled_waits_for_the_end_leave_the_session_alone(development_certificates: Path) -> None:
    async def scenario() -> None:
        async with multi_pair(Way(development_certificates)) as pair:
            for call in (pair.writer.wait_closed, pair.session.wait_closed, pair.session.settle):
                waiting = asyncio.ensure_future(call())
                await asyncio.sleep(0)
                await cancelled(waiting)
            pair.writer.write(b"alive")
            assert await pair.server_reader.readexactly(5) == b"alive"
            confirming = asyncio.ensure_future(pair.session.confirmed())
            await asyncio.sleep(0)
            await cancelled(confirming)
            await pair.session.confirmed()

    run(scenario())


@pytest.mark.parametrize("loop", LOOPS)
def test_task_cancelled_inside_connect_aborts_the_session(loop: str, development_certificates: Path) -> None:
    async def scenario() -> None:
        inbox, way = Inbox(), Way(development_certificates)
        async with await multi.start_server(inbox.on_client, way.server()) as server:
            inside = asyncio.Event()

            async def application() -> None:
                async with multi.connect(way.client(server.port)) as session:
                    session.writer.write(b"never finished")
                    inside.set()
                    await session.reader.read()

            running = asyncio.ensure_future(application())
            await inside.wait()
            reader, _ = await inbox.next()
            await cancelled(running)
            assert running.cancelled()
            with pytest.raises(multi.SessionLost, match="the application failed"):
                await reader.read()

    run(scenario(), loop)


def test_error_inside_connect_aborts_the_session_and_comes_out(development_certificates: Path) -> None:
    async def scenario() -> None:
        inbox, way = Inbox(), Way(development_certificates)
        async with await multi.start_server(inbox.on_client, way.server()) as server:
            with pytest.raises(KeyError):
                async with multi.connect(way.client(server.port)):
                    raise KeyError("mine")
            reader, _ = await inbox.next()
            with pytest.raises(multi.SessionLost, match="the application failed"):
                await reader.read()

    run(scenario())


def test_leaving_connect_flushes_everything(development_certificates: Path) -> None:
    async def scenario() -> None:
        inbox, way = Inbox(), Way(development_certificates)
        data = pattern(3_000_000)
        async with await multi.start_server(inbox.on_client, way.server()) as server:
            received: list[bytes] = []

            async def read_all() -> None:
                reader, writer = await inbox.next()
                received.append(await reader.read())
                writer.close()

            reading = asyncio.ensure_future(read_all())
            async with multi.connect(way.client(server.port)) as session:
                session.writer.write(data)
            await reading
            assert received == [data]

    run(scenario())


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("busy", [False, True])
def test_event_loop_may_end_while_a_session_is_open(
    busy: bool, way: str, loop: str, development_certificates: Path
) -> None:
    async def scenario() -> multi.SessionWriter:
        inbox, described = Inbox(), Way(development_certificates, way)
        server = await multi.start_server(inbox.on_client, described.server())
        _, writer = await multi.open_connection(described.client(server.port))
        _, server_writer = await inbox.next()
        if busy:
            writer.write(bytes(50_000_000))
            server_writer.write(bytes(50_000_000))
            await asyncio.sleep(0)
        return writer  # held until the loop has ended

    run(scenario(), loop)  # which fails for warnings, sockets and reports


def test_process_that_just_ends_says_nothing(development_certificates: Path) -> None:
    program = f"""
import asyncio, multi, gc
async def main():
    global server, writer  # held until the loop has ended, whenever garbage is collected
    server = await multi.start_server(lambda r, w: None, {Way(development_certificates).server()!r})
    config = {Way(development_certificates).client(0)!r} | {{"remote_port": server.port}}
    reader, writer = await multi.open_connection(config)
    opening = asyncio.ensure_future(multi.open_connection(config))
    await asyncio.sleep(0)
asyncio.run(main())
"""
    command = [sys.executable, "-W", "error", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "")
