"""A client that comes back from another network is let in, whatever its own dead connections and strangers do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest

import multi
from multi.types import ConnectionState, SessionId
from tests.findings.delays import MORE, delay
from tests.integration.hostile import Stranger, join_segment, origin_of_session
from tests.integration.support import HOST, Relay, Way, run, serving, until

pytestmark = pytest.mark.usefixtures("bounded_callbacks")

WAY = Way(Path())  # sealed TCP: needs no certificates
ANOTHER_NETWORK = "127.5.0.1"
STRANGE_NETWORK = "127.9.9.1"
RETURN = 20.0  # seconds; far above what a dial takes


class Access(Relay):
    """The client's access to the Internet. After `move` the server hears nothing of its earlier connections."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self.source = HOST
        self.before: Callable[[], Awaitable[None]] | None = None
        """What is done on the server before each connection that comes now."""
        self._ends: list[asyncio.StreamWriter] = []
        """The client's ends of what is open now."""
        self._silent: set[asyncio.StreamWriter] = set()

    def move(self, source: str) -> None:
        """Another address. The client's ends of all connections are reset, those at the server just fall silent."""
        self.source = source
        self._silent.update(self._ends)
        for end in self._ends:
            end.transport.abort()
        self._ends.clear()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self._writers.append(writer)
        self._ends.append(writer)
        if self.before is not None:
            await self.before()
        far_reader, far_writer = await asyncio.open_connection(HOST, self.target, local_addr=(self.source, 0))
        self._writers.append(far_writer)
        await asyncio.gather(self._forward(reader, far_writer, writer), self._forward(far_reader, writer, writer))

    async def _forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, end: asyncio.StreamWriter
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                if end in self._silent:
                    continue
                writer.write(data)
                await writer.drain()
        if end not in self._silent:
            writer.close()


async def arrival(reader: multi.SessionReader, session: multi.Session, size: int) -> bytes:
    """What comes within `RETURN` seconds, unless the session is lost before."""
    reading = asyncio.create_task(reader.readexactly(size))
    ended = asyncio.create_task(session.wait_closed())
    await asyncio.wait([reading, ended], timeout=RETURN, return_when=asyncio.FIRST_COMPLETED)
    result = reading.result() if reading.done() else b""
    for task in (reading, ended):
        task.cancel()
    await asyncio.gather(reading, ended, return_exceptions=True)
    return result


# --- connections that died without a word  ---


async def resumes_with(count: int) -> bytes:
    """A client with `count` connections loses them all; the server hears of none. What it hears of the client then."""
    entries = [["tcp", "ipv4", f"127.0.0.{index + 1}"] for index in range(count)]
    async with serving(WAY) as (server, inbox), Access(server.port) as access:
        config = WAY.client(access.port, connection_priority=entries, multi_config={"wait": "all", "connect": "par"})
        session = await multi.connect(config)
        try:
            reader, _ = await inbox.next()
            await until(
                lambda: sum(c.state is ConnectionState.ACTIVE for c in server.sessions[0].connections) == count,
                "all connections are up",
            )
            access.move(HOST)
            session.writer.write(b"I am back")
            return await arrival(reader, session, 9)
        finally:
            session.abort()
            await session.settle()


@pytest.mark.parametrize(
    "count",
    [
        7,
        8,
    ],
)
def test_a_client_comes_back_after_all_its_connections_died_silently(count: int) -> None:
    assert run(resumes_with(count)) == b"I am back"


# --- strangers who know the session's id  ---


async def resumes_beside(flooded: bool) -> float:
    """Seconds until a client that has moved is heard again, beside a flood of JOINs before each of its connections."""
    loop = asyncio.get_running_loop()
    strangers: list[Stranger] = []
    async with serving(WAY) as (server, inbox), Access(server.port) as access:
        session = await multi.connect(WAY.client(access.port))

        async def use_up_joins() -> None:
            """As many JOINs of strangers as it takes until one is refused."""
            join = join_segment(SessionId(session.id), origin=origin_of_session(session))
            come = [await Stranger.at(server.port, join, STRANGE_NETWORK) for _ in range(4)]
            strangers.extend(come)
            await asyncio.wait([stranger.gone for stranger in come], return_when=asyncio.FIRST_COMPLETED)

        try:
            await session.confirmed()
            reader, _ = await inbox.next()
            if flooded:
                access.before = use_up_joins
            began = loop.time()
            access.move(ANOTHER_NETWORK)
            session.writer.write(b"I am back")
            assert await arrival(reader, session, 9) == b"I am back", session.error
            return loop.time() - began
        finally:
            session.abort()
            await session.settle()
            for stranger in strangers:
                await stranger.leave()


def test_strangers_who_know_its_id_neither_end_the_session_of_a_client_that_moves_nor_keep_it_waiting() -> None:
    assert run(delay(lambda: resumes_beside(flooded=False), lambda: resumes_beside(flooded=True))) < MORE
