"""Clients that end as programs do: killed, right after `close`, in a forked child. What their server gets and sees.

The clients run in processes of their own, by the functions at the beginning.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TypeVar

import pytest

import multi
from multi.lab.cert import write_development_certificates
from multi.protocol.segment import TAG_LENGTH
from multi.protocol.state import SessionState
from multi.reasons import Cause
from tests.findings.bounded import given, run, within
from tests.integration.support import HOST, WAYS, Inbox, Way
from tests.processes import MORTAL

T = TypeVar("T")
WAY = Way(Path())  # sealed TCP: no certificates
SIZE = 1_000_000  # bytes
SECRET = b"what the parent says after it has forked, some sixty bytes long"
SOON = 2.5  # seconds in which a server should have heard that its client is gone
RESUME_TIMEOUT = 0.5  # seconds
ROOT = Path(__file__).parents[2]


# --- in the client's process ---


async def opened(
    port: int, resume_timeout: float = 60.0, way: Way = WAY
) -> tuple[multi.SessionReader, multi.SessionWriter]:
    """A session whose server has answered."""
    config = way.client(port, multi_config={"resume_timeout": resume_timeout})
    reader, writer = await multi.open_connection(config)
    writer.write(b"hello")
    assert await reader.readexactly(5) == b"hello"
    return reader, writer


def is_killed(port: int, resume_timeout: float, way: Way = WAY) -> None:
    async def main() -> None:
        await opened(port, resume_timeout, way)
        os.kill(os.getpid(), signal.SIGKILL)

    asyncio.run(main())


def writes_and_closes(port: int, waits: bool) -> None:
    async def main() -> None:
        _, writer = await opened(port)
        writer.write(bytes(SIZE))
        writer.close()
        if waits:
            await writer.wait_closed()

    asyncio.run(main())


def forks(port: int, leave: Callable[[int], object], says: bytes, directory: str, way: str) -> None:
    """Fork; say something unless it is empty; then let the child end; print `left` and live on."""

    async def main() -> None:
        _, writer = await opened(port, way=Way(Path(directory), way))
        await asyncio.sleep(0.3)  # everything is acknowledged, so that neither process has something else to say
        heard, told = os.pipe()
        child = os.fork()
        if not child:
            os.close(told)  # so that a parent that was killed does not leave it behind
            os.read(heard, 1)
            sys.stderr = open(os.devnull, "w")  # noqa: ASYNC230, SIM115 - this process is about to end
            leave(0)
        writer.write(says)
        await asyncio.sleep(0.1)
        os.write(told, b"x")
        os.waitpid(child, 0)  # noqa: ASYNC222 - the loop need not turn meanwhile
        print("left", flush=True)
        await asyncio.sleep(20)

    with suppress(SystemExit):
        asyncio.run(main())
    os._exit(0)


def goes_on_in_a_child(port: int) -> None:
    """End with 0 when the child cannot use the session, and its parent can."""

    async def main() -> None:
        reader, writer = await opened(port)
        if not (child := os.fork()):
            with suppress(multi.SessionLost):
                writer.write(b"from the child")
                await writer.drain()
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(child, 0)  # noqa: ASYNC222 - the loop need not turn meanwhile
        writer.write_eof()
        os._exit(status or len(await reader.read()))

    asyncio.run(main())


# --- in the test's process ---


@asynccontextmanager
async def program(call: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process that does one of the calls above."""
    code = f"import os, sys; from tests.findings import test_ends_of_clients as of; of.{call}"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE)
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


class Seen:
    """What a server's handler has read of its client, and how that ended: EOF or an error."""

    def __init__(self) -> None:
        self.size = 0
        self.end: object = None

    async def on_client(self, reader: multi.SessionReader, writer: multi.SessionWriter) -> None:
        writer.write(await reader.readexactly(5))
        try:
            while data := await reader.read(65536):
                self.size += len(data)
            self.end = "EOF"
        except ConnectionError as error:
            self.end = error
        writer.close()


@asynccontextmanager
async def serving(
    seen: Seen, resume_timeout: float = 60.0, abandon_timeout: float = 0.0, way: Way = WAY
) -> AsyncIterator[multi.Server]:
    timeouts = {"resume_timeout": resume_timeout, "abandon_timeout": abandon_timeout}
    server = await multi.start_server(seen.on_client, way.server(multi_config=timeouts))
    try:
        yield server
    finally:
        server.abort()
        await server.wait_closed()


async def end_of_a_killed_client(server_resumes: float, client_resumes: float) -> object:
    """How the handler's session ended, soon after its client was killed."""
    seen = Seen()
    async with (
        serving(seen, server_resumes) as server,
        program(f"is_killed({server.port}, {client_resumes})") as client,
    ):
        given(await client.wait() == -signal.SIGKILL)
        await within(SOON, lambda: seen.end)
        return seen.end


def test_a_server_that_does_not_wait_long_hears_soon_that_its_client_was_killed() -> None:
    assert run(end_of_a_killed_client(RESUME_TIMEOUT, 60.0)) is not None


def test_a_server_hears_soon_that_a_client_was_killed_that_would_not_have_come_back_later() -> None:
    assert run(end_of_a_killed_client(60.0, RESUME_TIMEOUT)) is not None


async def end_of_a_killed_client_by_default(way: Way) -> tuple[Cause | None, float, float]:
    """Why the session of a client ended that was killed, and seconds from before that and from after; the server has
    its defaults."""
    seen, started = Seen(), time.monotonic()
    server = await multi.start_server(seen.on_client, way.server())
    try:
        call = f"is_killed({server.port}, 60.0, of.Way(of.Path({str(way.certificates)!r}), {way.name!r}))"
        async with program(call) as client:
            given(await client.wait() == -signal.SIGKILL)
            killed = time.monotonic()
            await within(20.0, lambda: seen.end)
            assert isinstance(seen.end, multi.SessionLost)
            ended = time.monotonic()
            return seen.end.reason.cause, ended - started, ended - killed
    finally:
        server.abort()
        await server.wait_closed()


@pytest.mark.parametrize("name", ["tcp-sealed", "tcp-tls"])
def test_a_killed_client_is_told_apart_from_a_lost_network(name: str, development_certificates: Path) -> None:
    cause, at_most, at_least = run(end_of_a_killed_client_by_default(Way(development_certificates, name)))
    assert cause is Cause.PEER_CLOSED
    assert at_most >= 2.0, "by default, from some moment in between"
    assert at_least < 10.0, "not the minute for networks"


@asynccontextmanager
async def balancer(port: int, target: int) -> AsyncIterator[int]:
    """A process that carries TCP to `target`; its port, which `port` wants, 0 = any. Killed at the end."""
    words = (*MORTAL, sys.executable, "-m", "tests.findings.balancer", str(port), str(target))
    process = await asyncio.create_subprocess_exec(*words, cwd=ROOT, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        yield int(await process.stdout.readline())
    finally:
        process.kill()
        assert await process.wait() == -signal.SIGKILL, "it has ended by itself"


async def resumed(sessions: int, **listen: object) -> bool:
    """Whether sessions go on whose balancer is killed, and back later than a server waits for killed clients."""
    inbox = Inbox()
    config = WAY.server(multi_config={"abandon_timeout": 0.3})
    config["listen"] |= listen
    server = await multi.start_server(inbox.on_client, config)
    clients = []
    async with balancer(0, server.port) as port:
        for _ in range(sessions):
            clients.append((await multi.open_connection(WAY.client(port)))[1])
            await (await inbox.session()).confirmed()
    await within(20.0, lambda: all(s.state is SessionState.DETACHED for s in server.sessions))
    await asyncio.sleep(1.0)
    async with balancer(port, server.port):
        await within(20.0, lambda: all(s.state is not SessionState.DETACHED for s in server.sessions))
        found = len(server.sessions)
        for writer in clients:
            writer.transport.abort()
        server.abort()
        await server.wait_closed()
    assert found in (0, sessions)
    return found > 0


@pytest.mark.parametrize("sessions", [1, 3])
def test_a_few_clients_that_fall_together_count_as_killed(sessions: int) -> None:
    assert not run(resumed(sessions))


def test_a_balancer_that_was_killed_and_starts_again_costs_no_session() -> None:
    assert run(resumed(6))


@pytest.mark.parametrize("proxy", ["127.0.0.0/8", "127.0.0.1"])
def test_a_listed_proxy_that_was_killed_and_starts_again_costs_no_session(proxy: str) -> None:
    assert run(resumed(1, proxies=["192.0.2.7", proxy]))


async def delivered(waits: bool) -> int:
    """Bytes a server gets of a client that writes, closes, and waits until that is done or returns at once."""
    seen = Seen()
    async with serving(seen) as server, program(f"writes_and_closes({server.port}, {waits})") as client:
        given(await client.wait() == 0)
        await within(SOON, lambda: seen.end)
        return seen.size


def test_everything_written_arrives_when_the_client_waits_for_the_end() -> None:
    assert run(delivered(waits=True)) == SIZE


def test_everything_written_arrives_when_the_program_ends_right_after_close() -> None:
    assert run(delivered(waits=False)) == SIZE


@asynccontextmanager
async def tapped(port: int, heard: bytearray) -> AsyncIterator[int]:
    """The port of a TCP relay to a server; what goes towards that is written down."""

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, tap: bytearray | None) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65536):
                if tap is not None:
                    tap += data
                writer.write(data)
        writer.close()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(HOST, port)
        await asyncio.gather(pump(reader, far_writer, heard), pump(far_reader, writer, None))

    server = await asyncio.start_server(relay, HOST, 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def forked(leave: str, says: bytes, look: Callable[[multi.Server, bytes], Awaitable[T]], way: Way = WAY) -> T:
    """What can be seen when a child of the client's process, forked in the middle of a session, has ended."""
    heard = bytearray()
    async with (
        serving(Seen(), way=way) as server,
        tapped(server.port, heard) as tap,
        program(
            f"forks({tap if way is WAY else server.port}, {leave}, {says!r}, {str(way.certificates)!r}, {way.name!r})"
        ) as client,
    ):
        assert client.stdout is not None
        given(await client.stdout.readline() == b"left\n")
        return await look(server, bytes(heard))


async def lives_on(server: multi.Server, heard: bytes) -> bool:
    return not await within(0.5, lambda: not server.sessions)


async def opened_by_a_listener(server: multi.Server, heard: bytes) -> list[bytes]:
    """Texts in records that decrypt to text with what was used to encrypt `SECRET`, which a listener can do."""
    records = []
    while heard:
        header, length = int.from_bytes(heard[2:4], "big"), int.from_bytes(heard[4:8], "big")
        records.append(heard[header:length])
        heard = heard[length:]
    (secret,) = [record for record in records if len(record) == len(SECRET) + TAG_LENGTH]
    stream = bytes(a ^ b for a, b in zip(secret, SECRET, strict=False))
    others = [bytes(a ^ b for a, b in zip(r[:-TAG_LENGTH], stream, strict=False)) for r in records if r is not secret]
    return [text for other in others for text in re.findall(rb"[ -~]{16,}", other)]


def test_a_forked_child_that_leaves_without_cleaning_up_does_no_harm() -> None:
    assert run(forked("os._exit", b"", lives_on))


@pytest.mark.parametrize("way", WAYS)
def test_a_forked_child_that_ends_leaves_the_session_of_its_parent_alone(way: str, tmp_path: Path) -> None:
    write_development_certificates(tmp_path, [])
    assert run(forked("sys.exit", b"more", lives_on, Way(tmp_path, way)))


def test_a_forked_child_cannot_go_on_with_the_session_of_its_parent() -> None:
    async def scenario() -> int | None:
        seen = Seen()
        async with serving(seen) as server, program(f"goes_on_in_a_child({server.port})") as client:
            status = await client.wait()
            given(seen.size == 0, seen.size)
            return status

    assert run(scenario()) == 0


def test_no_record_is_read_with_the_key_of_another_when_a_child_leaves_without_cleaning_up() -> None:
    assert run(forked("os._exit", SECRET, opened_by_a_listener)) == []


def test_no_record_is_read_with_the_key_of_another_when_a_forked_child_ends() -> None:
    assert run(forked("sys.exit", SECRET, opened_by_a_listener)) == []
