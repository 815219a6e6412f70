"""A server that is drained: who is refused, who may finish, who is told, and when everything is over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

import multi
from multi.lab.files.client import Transfer, get_file, partial_of, put_file
from multi.lab.files.protocol import MAX_LINE
from multi.lab.files.service import FileService
from multi.lab.files.tree import FileTree
from multi.reasons import Cause
from tests.integration.support import HOST, WAYS, Way, event_of, run, until

SEALED = Way(Path())
OVER = 1.0  # seconds of a loaded machine beyond the time a server was given


def echo(reader: multi.SessionReader, writer: multi.SessionWriter) -> Any:
    async def lines() -> None:
        async for line in reader:
            writer.write(line)
            await writer.drain()
        writer.close()

    return lines()


async def ask(reader: multi.SessionReader, writer: multi.SessionWriter, line: bytes = b"hello\n") -> None:
    writer.write(line)
    assert await reader.readline() == line


def session_of(writer: multi.SessionWriter) -> multi.Session:
    session = writer.get_extra_info("session")
    assert isinstance(session, multi.Session)
    return session


async def going_away(session: multi.Session) -> float:
    event = await event_of(session, lambda event: isinstance(event, multi.GoingAway))
    assert isinstance(event, multi.GoingAway)
    return event.deadline


@pytest.mark.parametrize("name", WAYS)
def test_sessions_hear_the_deadline_and_end_within_it(name: str, development_certificates: Path) -> None:
    way = Way(development_certificates, name)
    allowed = 1.0

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        server = await multi.start_server(echo, way.server())
        reader, writer = await multi.open_connection(way.client(server.port))
        await ask(reader, writer)
        began = loop.time()
        draining = asyncio.create_task(server.drain(allowed))
        assert 0 < await going_away(session_of(writer)) <= allowed
        await ask(reader, writer)  # it goes on as ever
        with pytest.raises(multi.SessionLost) as lost:
            await reader.readline()
        assert lost.value.reason.cause is Cause.GOING_AWAY
        assert 0.8 * allowed <= loop.time() - began <= allowed + OVER
        await draining
        assert server.stats().sessions_ended == {"going_away": 1}
        with pytest.raises(multi.SessionLost):
            await writer.wait_closed()

    run(scenario())


def test_new_sessions_are_refused_in_words_and_living_ones_join_connections() -> None:
    config = {"connection_priority": [["tcp", "ipv4", "127.0.0.1"]]}

    async def scenario() -> None:
        server = await multi.start_server(echo, SEALED.server())
        reader, writer = await multi.open_connection(SEALED.client(server.port, **config))
        await ask(reader, writer)
        server.start_draining(30.0)
        assert not server.is_serving()
        impatient = {"multi_config": {"open_timeout": 2.0}}
        with pytest.raises(multi.SessionRefused) as refused:
            await multi.open_connection(SEALED.client(server.port, **config, **impatient))
        assert refused.value.reason.cause is Cause.GOING_AWAY
        session = session_of(writer)
        (added,) = await session.add_connection(["tcp", "ipv4", "127.0.0.2"])
        await until(lambda: any(c.id == added and c.state.value == "active" for c in session.connections))
        await ask(reader, writer)
        writer.close()
        await writer.wait_closed()
        await server.wait_closed()
        assert server.stats().sessions_ended == {"closed": 1}

    run(scenario())


def test_an_application_that_opens_another_session_on_the_word_is_served_elsewhere() -> None:
    async def scenario() -> None:
        old, new = [await multi.start_server(echo, SEALED.server()) for _ in range(2)]
        both = {
            "connection_priority": [
                {"transport": "tcp", "ip": "ipv4", "interface": "any", "remote_port": server.port, "group": "one"}
                for server in (old, new)
            ]
        }
        reader, writer = await multi.open_connection(SEALED.client(old.port, **both))
        await ask(reader, writer)
        old.start_draining(5.0)
        await going_away(session_of(writer))
        reader_2, writer_2 = await multi.open_connection(SEALED.client(old.port, **both))
        await ask(reader_2, writer_2)
        assert len(new.sessions) == 1
        for each in (writer, writer_2):
            each.close()
            await each.wait_closed()
        await old.wait_closed()
        assert old.stats().sessions_ended == {"closed": 1}
        new.close()
        await new.wait_closed()

    run(scenario())


def test_what_a_handler_has_written_arrives_and_it_hears_why_it_can_write_no_more() -> None:
    wrote = 0
    heard: asyncio.Future[BaseException]

    async def pour(_: multi.SessionReader, writer: multi.SessionWriter) -> None:
        nonlocal wrote
        try:
            while True:
                writer.write(bytes(10_000))
                await writer.drain()
                wrote += 10_000
                await asyncio.sleep(0.001)
        except multi.SessionLost as error:
            heard.set_result(error)
            raise

    async def scenario() -> None:
        nonlocal heard
        heard = asyncio.get_running_loop().create_future()
        server = await multi.start_server(pour, SEALED.server())
        reader, writer = await multi.open_connection(SEALED.client(server.port))
        await reader.readexactly(10_000)
        draining = asyncio.create_task(server.drain(3.0))
        got = 10_000
        try:
            while data := await reader.read(1 << 20):
                got += len(data)
        except multi.SessionLost as lost:
            ended = lost.reason.cause
        assert ended is Cause.GOING_AWAY
        error = await heard
        assert isinstance(error, multi.SessionLost)
        assert error.reason.cause is Cause.GOING_AWAY
        assert got >= wrote > 100_000
        await draining
        writer.transport.abort()

    run(scenario())


def test_sessions_end_one_after_the_other_in_the_last_fifth() -> None:
    count, allowed = 20, 5.0  # seconds: a machine that stands still for some tenths of one makes ends fall together

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        server = await multi.start_server(echo, SEALED.server())
        pairs = [await multi.open_connection(SEALED.client(server.port)) for _ in range(count)]
        for reader, writer in pairs:
            await ask(reader, writer)
        ends: list[float] = []

        async def until_end(reader: multi.SessionReader) -> None:
            with pytest.raises(multi.SessionLost):
                await reader.read()
            ends.append(loop.time() - began)

        began = loop.time()
        waiting = [asyncio.create_task(until_end(reader)) for reader, _ in pairs]
        await server.drain(allowed)
        await asyncio.gather(*waiting)
        assert min(ends) >= 0.8 * allowed
        assert max(ends) - min(ends) >= 0.07 * allowed
        assert server.stats().sessions_ended == {"going_away": count}
        for _, writer in pairs:
            writer.transport.abort()

    run(scenario())


def test_a_client_that_reads_nothing_is_cut_off_when_the_time_is_over() -> None:
    async def stuff(_: multi.SessionReader, writer: multi.SessionWriter) -> None:
        writer.write(bytes(50 << 20))
        await writer.drain()

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        server = await multi.start_server(stuff, SEALED.server())
        _, writer = await multi.open_connection(SEALED.client(server.port))
        await until(lambda: session_of(writer).stats().bytes_received > 100_000)
        began = loop.time()
        await server.drain(0.5)
        assert 0.45 <= loop.time() - began <= 0.5 + OVER
        assert server.stats().sessions_ended == {"going_away": 1}
        writer.transport.abort()

    run(scenario())


def test_a_second_drain_sets_the_time_anew() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        server = await multi.start_server(echo, SEALED.server())
        reader, writer = await multi.open_connection(SEALED.client(server.port))
        await ask(reader, writer)
        server.start_draining(60.0)
        assert await going_away(session_of(writer)) == 60.0
        began = loop.time()
        await server.drain(0.2)
        assert loop.time() - began <= 0.2 + OVER
        with pytest.raises(multi.SessionLost):
            await reader.read()
        writer.transport.abort()

    run(scenario())


def test_serve_forever_lasts_until_the_last_session_has_ended() -> None:
    async def scenario() -> None:
        server = await multi.start_server(echo, SEALED.server(drain_timeout=60.0))
        serving = asyncio.create_task(server.serve_forever())
        reader, writer = await multi.open_connection(SEALED.client(server.port))
        await ask(reader, writer)
        server.start_draining()
        assert await going_away(session_of(writer)) == 60.0
        await ask(reader, writer)
        assert not serving.done()
        writer.close()
        await writer.wait_closed()
        with pytest.raises(asyncio.CancelledError):
            await serving

    run(scenario())


def test_a_server_without_sessions_is_drained_at_once_and_what_is_no_time_is_refused() -> None:
    async def scenario() -> None:
        server = await multi.start_server(echo, SEALED.server())
        for wrong in (-1.0, float("nan"), float("inf")):
            with pytest.raises(ValueError, match="the time to drain"):
                await server.drain(wrong)
        assert server.is_serving()
        await asyncio.wait_for(server.drain(60.0), 1.0)
        await server.drain()

    run(scenario())


def test_who_subscribes_late_hears_how_much_is_left() -> None:
    async def scenario() -> None:
        server = await multi.start_server(echo, SEALED.server())
        reader, writer = await multi.open_connection(SEALED.client(server.port))
        await ask(reader, writer)
        server.start_draining(60.0)
        await going_away(session_of(writer))
        await asyncio.sleep(0.05)
        (theirs,) = server.sessions
        for session in (session_of(writer), theirs):
            assert 59.0 < await going_away(session) < 60.0
        server.abort()
        await server.wait_closed()
        writer.transport.abort()

    run(scenario())


def test_a_balancer_that_remembers_session_ids_leads_the_next_attempt_elsewhere() -> None:
    """It sends the first ID it sees to a server that is being stopped, and would do so for ever."""

    async def scenario() -> None:
        old, new = [await multi.start_server(echo, SEALED.server()) for _ in range(2)]
        _, busy = await multi.open_connection(SEALED.client(old.port))
        old.start_draining(30.0)
        table: dict[bytes, int] = {}

        async def balance(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            first = await reader.readexactly(24)
            port = table.setdefault(first[8:24], new.port if table else old.port)
            there_reader, there_writer = await asyncio.open_connection("127.0.0.1", port)
            there_writer.write(first)
            await asyncio.gather(pipe(reader, there_writer), pipe(there_reader, writer))

        async def pipe(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
            try:
                while data := await source.read(65536):
                    target.write(data)
            except ConnectionError:
                pass
            target.close()

        balancer = await asyncio.start_server(balance, "127.0.0.1", 0)
        reader, writer = await multi.open_connection(SEALED.client(balancer.sockets[0].getsockname()[1]))
        await ask(reader, writer)
        assert list(table.values()) == [old.port, new.port]
        for each in (writer, busy):
            each.close()
            await each.wait_closed()
        balancer.close()
        new.close()
        await asyncio.gather(old.wait_closed(), new.wait_closed())

    run(scenario())


def test_bytes_sent_before_the_refusal_wait_for_the_successor(development_certificates: Path) -> None:
    """Inside TLS data may follow HELLO at once: the session keeps its ID, and the same server is asked again."""
    way = Way(development_certificates, "tcp-tls")

    async def scenario() -> None:
        old = await multi.start_server(echo, way.server())
        port = old.port
        _, busy = await multi.open_connection(way.client(port))
        await session_of(busy).confirmed()
        draining = asyncio.create_task(old.drain(3.0))
        await going_away(session_of(busy))
        reader, writer = await multi.open_connection(way.client(port))
        writer.write(b"early\n")
        await draining
        listening = {"host": "127.0.0.1", "port": port, "transports": ["tcp"]}
        new = await multi.start_server(echo, way.server(listen=listening))
        assert await reader.readline() == b"early\n"
        writer.close()
        await writer.wait_closed()
        busy.transport.abort()
        new.close()
        await new.wait_closed()

    run(scenario())


# --- files  ---


def content(size: int) -> bytes:
    return Random(size).randbytes(size)


@asynccontextmanager
async def file_servers(directory: Path, log: list[str], count: int) -> AsyncIterator[list[multi.Server]]:
    directory.mkdir()  # noqa: ASYNC240 - of a test
    with FileTree(directory) as tree:
        servers = []
        for _ in range(count):
            service = FileService(tree, allow_put=True, log=log.append)
            servers.append(await multi.start_server(service.serve, SEALED.server(), limit=MAX_LINE))
        yield servers
        for server in servers:
            server.abort()
            await server.wait_closed()


def note(moved: asyncio.Event, transfer: Transfer) -> None:
    if transfer.done:
        moved.set()


def slowly(*ports: int) -> dict[str, Any]:
    """A client of servers at these ports, which are alternatives, with 2 MB/s."""
    entries = [
        {
            "transport": "tcp",
            "ip": "ipv4",
            "interface": "any",
            "group": "one",
            "remote_port": port,
            "max_rate_mbps": 16,
        }
        for port in ports
    ]
    return SEALED.client(ports[0], connection_priority=entries)


@pytest.mark.parametrize("direction", ["get", "put"])
def test_a_copy_goes_on_over_another_server_from_where_it_was(direction: str, tmp_path: Path) -> None:
    size = 3_000_000

    async def scenario() -> None:
        log: list[str] = []
        async with file_servers(tmp_path / "served", log, 2) as (old, new):
            source, target = tmp_path / "served" / "f", tmp_path / "f"
            if direction == "put":
                source, target = target, source
            source.write_bytes(content(size))
            config = slowly(old.port, new.port)
            moved = asyncio.Event()
            copy = (
                get_file(config, "f", target, progress=partial(note, moved))
                if direction == "get"
                else put_file(config, source, "f", progress=partial(note, moved))
            )
            copying = asyncio.create_task(copy)
            await moved.wait()
            await old.drain(0.5)
            copied = await copying
            assert target.read_bytes() == source.read_bytes()
            assert (copied.size, copied.bytes) == (size, size)
            await until(lambda: old.stats().sessions_ended == {"going_away": 1})
            await until(lambda: new.stats().sessions_ended == {"closed": 1})
            second = new.stats().transports["tcp"]
            carried = second.bytes_sent if direction == "get" else second.payload_received
            assert 0 < carried < size
            await until(lambda: any("stopped: the server is being stopped" in line for line in log))

    run(scenario())


def test_a_copy_waits_for_the_successor_of_its_server(tmp_path: Path) -> None:
    async def scenario() -> None:
        log: list[str] = []
        async with file_servers(tmp_path / "served", log, 1) as (old,):
            (tmp_path / "served" / "f").write_bytes(content(2_000_000))
            moved = asyncio.Event()
            copying = asyncio.create_task(
                get_file(slowly(old.port), "f", tmp_path / "f", progress=partial(note, moved))
            )
            await moved.wait()
            port = old.port
            await old.drain(0.3)
            await asyncio.sleep(0.5)  # nobody listens there meanwhile
            assert not copying.done()
            with FileTree(tmp_path / "served") as tree:
                listen = {"host": HOST, "port": port, "transports": ["tcp"]}
                service = FileService(tree, allow_put=False, log=log.append)
                async with await multi.start_server(service.serve, SEALED.server(listen=listen), limit=MAX_LINE):
                    await copying
            assert (tmp_path / "f").read_bytes() == content(2_000_000)

    run(scenario())


def test_who_lends_a_session_for_a_copy_hears_of_its_end(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with file_servers(tmp_path / "served", [], 1) as (old,):
            (tmp_path / "served" / "f").write_bytes(content(2_000_000))
            session = await multi.connect(slowly(old.port), limit=MAX_LINE)
            copying = asyncio.create_task(get_file(session, "f", tmp_path / "f"))
            await until(lambda: session.stats().payload_received > 10_000)
            await old.drain(0.2)
            with pytest.raises(multi.SessionLost) as lost:
                await copying
            assert lost.value.reason.cause is Cause.GOING_AWAY
            assert 0 < partial_of(tmp_path / "f").stat().st_size < 2_000_000

    run(scenario())
