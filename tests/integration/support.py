"""What the tests of the asyncio layer share: running on either loop without leaks, configurations, pairs, relays."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import resource
import socket
import warnings
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TypeVar

import pytest

import multi
from multi.discovery import interfaces

T = TypeVar("T")
TIMEOUT = 150.0  # seconds; far above what any of these needs, on a busy machine too
LOOPS = ["asyncio", "uvloop"]
WAYS = ["tcp-sealed", "tcp-plain", "tcp-tls", "mptcp-sealed", "quic"]
HOST = "127.0.0.1"


def sockets_open() -> list[str]:
    """What every open socket and pipe of this process is."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{number}")
            if target.startswith("socket:"):
                found.append(target)
    return found


@asynccontextmanager
async def silent_server() -> AsyncIterator[int]:
    """Accepts TCP connections and says nothing; its port."""
    writers: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda _, writer: writers.append(writer), HOST, 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for writer in writers:
            writer.transport.abort()
        await asyncio.sleep(0)


def run(scenario: Coroutine[Any, Any, T], loop: str = "asyncio", timeout: float = TIMEOUT) -> T:
    """Run on a loop of its own as `asyncio.run` does; nothing may be left over and nothing reported to the loop."""
    reported: list[dict[str, Any]] = []

    async def bounded() -> T:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
        return await asyncio.wait_for(scenario, timeout)

    factory = asyncio.new_event_loop if loop == "asyncio" else pytest.importorskip("uvloop").new_event_loop
    gc.collect()  # what an earlier test has left is not this one's
    interfaces()  # leaves a socket that hears of changes, one for all sessions of the process
    before = set(sockets_open())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ResourceWarning)
        with asyncio.Runner(loop_factory=factory) as runner:
            result = runner.run(bounded())
        gc.collect()
    assert not reported, reported
    leaks = [str(w.message) for w in caught if issubclass(w.category, ResourceWarning)]
    assert not leaks, leaks
    assert not set(sockets_open()) - before, "a socket was left open"
    return result


@dataclass(frozen=True)
class Way:
    """A transport with its protection, and the configurations that lead to it."""

    certificates: Path
    name: str = "tcp-sealed"

    @property
    def transport(self) -> str:
        return self.name.partition("-")[0]

    @property
    def protect(self) -> str:
        return "never" if self.name.endswith("plain") else "auto"

    @property
    def has_tls(self) -> bool:
        return self.transport in ("quic", "mpquic") or self.name.endswith("tls")

    def server(self, **more: Any) -> dict[str, Any]:
        config: dict[str, Any] = {
            "listen": {"host": HOST, "port": 0, "transports": [self.transport]},
            "protect": self.protect,
        }
        if self.has_tls:
            config["ssl_config"] = {
                "cert": str(self.certificates / "server-cert.pem"),
                "key": str(self.certificates / "server-key.pem"),
            }
        return config | more

    def client(self, port: int, **more: Any) -> dict[str, Any]:
        config: dict[str, Any] = {
            "connection_priority": [[self.transport, "ipv4", "any"]],
            "remote_host": HOST,
            "remote_port": port,
            "protect": self.protect,
        }
        if self.has_tls:
            config["ssl_config"] = {"ca": str(self.certificates / "ca.pem")}
        return config | more


@dataclass
class Inbox:
    """Server side: the clients that came, to be awaited one by one."""

    waiting: asyncio.Queue[tuple[Any, Any]] = field(default_factory=asyncio.Queue)

    def on_client(self, reader: Any, writer: Any) -> None:
        self.waiting.put_nowait((reader, writer))

    async def next(self) -> tuple[Any, Any]:
        return await self.waiting.get()

    async def session(self) -> multi.Session:
        _, writer = await self.next()
        session = writer.get_extra_info("session")
        assert isinstance(session, multi.Session)
        return session


@asynccontextmanager
async def serving(way: Way, **limits: Any) -> AsyncIterator[tuple[multi.Server, Inbox]]:
    """A server with these limits, and what its clients bring."""
    inbox = Inbox()
    server = await multi.start_server(inbox.on_client, way.server(limits=limits))
    try:
        yield server, inbox
    finally:
        server.abort()
        await server.wait_closed()


@dataclass
class Pair:
    """Both ends of one conversation."""

    reader: Any
    writer: Any
    server_reader: Any
    server_writer: Any

    @property
    def session(self) -> multi.Session:
        session = self.writer.get_extra_info("session")
        assert isinstance(session, multi.Session)
        return session

    @property
    def server_session(self) -> multi.Session:
        session = self.server_writer.get_extra_info("session")
        assert isinstance(session, multi.Session)
        return session


@asynccontextmanager
async def multi_pair(
    way: Way, *, limit: int = 2**16, server: dict[str, Any] | None = None, **client: Any
) -> AsyncIterator[Pair]:
    """A session; whatever is still open at the end is aborted."""
    inbox = Inbox()
    running = await multi.start_server(inbox.on_client, way.server(**(server or {})), limit=limit)
    try:
        reader, writer = await multi.open_connection(way.client(running.port, **client), limit=limit)
        try:
            if not way.has_tls and way.name.endswith("plain"):
                await writer.get_extra_info("session").confirmed()
            yield Pair(reader, writer, *await inbox.next())
        finally:
            writer.transport.abort()
            with suppress(ConnectionError):
                await writer.wait_closed()
    finally:
        running.abort()
        await running.wait_closed()


@asynccontextmanager
async def asyncio_pair(*, limit: int = 2**16) -> AsyncIterator[Pair]:
    """The same over asyncio's own streams."""
    inbox = Inbox()
    server = await asyncio.start_server(inbox.on_client, HOST, 0, limit=limit)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname(), limit=limit)
    other_reader, other_writer = await inbox.next()
    try:
        yield Pair(reader, writer, other_reader, other_writer)
    finally:
        for end in (writer, other_writer):
            end.transport.abort()
            with suppress(ConnectionError):
                await end.wait_closed()
        server.close()
        await server.wait_closed()


async def until(condition: Callable[[], object], what: str = "", timeout: float = 30.0) -> None:
    """Turn the loop until `condition` holds, where no event can be awaited."""
    deadline = asyncio.get_running_loop().time() + timeout
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, f"never happened: {what}"
        await asyncio.sleep(0.001)


async def standstill(value: Callable[[], object], quiet: float = 0.25) -> None:
    """Return once `value` has not changed for `quiet` seconds: whoever changes it waits for something."""
    loop = asyncio.get_running_loop()
    last, since = value(), loop.time()
    while loop.time() - since < quiet:
        await asyncio.sleep(0.005)
        if (now := value()) != last:
            last, since = now, loop.time()


async def event_of(session: multi.Session, wanted: Callable[[object], bool]) -> object:
    """The first event that fits."""
    async for event in session.events():
        if wanted(event):
            return event
    raise AssertionError("the session ended before")


class Relay:
    """A TCP relay to a server, which can be cut, silenced, closed and opened again at the same port."""

    def __init__(self, port: int) -> None:
        self.target = port
        self._server: asyncio.Server | None = None
        self._writers: list[asyncio.StreamWriter] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self.forwarded = 0
        self.budget: float = float("inf")
        """Bytes towards the server after which `exhausted` is set and the relay cuts everything."""
        self.exhausted = asyncio.Event()
        self.flowing = asyncio.Event()
        """While clear, nothing is read."""
        self.flowing.set()
        self.port = 0
        self.source = ""
        """The address the server sees; empty = the system's choice."""

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self) -> None:
        self._server = await asyncio.start_server(self.serve, HOST, self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Stop listening, reset what is open, and wait for those who served it: cancelled ones would be reported."""
        self.flowing.set()
        if self._server is not None:
            self._server.close()
            self._server = None
        self.cut()
        while self._tasks:
            await asyncio.wait(self._tasks)

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self._writers.append(writer)
        try:
            local = (self.source, 0) if self.source else None
            far_reader, far_writer = await asyncio.open_connection(HOST, self.target, local_addr=local)
        except OSError:
            writer.transport.abort()
            return
        self._writers.append(far_writer)
        await asyncio.gather(self._pump(reader, far_writer, True), self._pump(far_reader, writer, False))
        for end in (writer, far_writer):
            end.close()
            with suppress(OSError):
                await end.wait_closed()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, counted: bool) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                await self.flowing.wait()
                writer.write(data)
                await writer.drain()
                if counted:
                    self.forwarded += len(data)
                    if self.forwarded > self.budget:
                        self.budget = float("inf")
                        self.exhausted.set()
                        self.cut()
            if writer.can_write_eof() and not writer.is_closing():
                writer.write_eof()


async def collect(awaitable: Awaitable[T]) -> T | BaseException:
    """What it returned or raised."""
    try:
        return await awaitable
    except Exception as error:
        return error


def pattern(size: int, seed: int = 1) -> bytes:
    """Bytes that show when a piece is missing, doubled or elsewhere."""
    first = seed * 1_000_003
    return array("Q", range(first, first + size // 8 + 1)).tobytes()[:size]


@contextmanager
def no_descriptors() -> Iterator[None]:
    """None can be opened, whatever else closes meanwhile: only the numbers of the three standard files are allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def free_ports(count: int) -> list[int]:
    """So many that TCP and UDP can be bound to, now; below those that the system gives to whoever dials meanwhile."""
    found: list[int] = []
    for port in random.sample(range(10_000, 30_000), 100 + count):
        with socket.socket() as tcp, socket.socket(type=socket.SOCK_DGRAM) as udp, suppress(OSError):
            tcp.bind((HOST, port))
            udp.bind((HOST, port))
            found.append(port)
        if len(found) == count:
            return found
    raise AssertionError(f"no {count} ports are free")


def free_port() -> int:
    """One of them."""
    return free_ports(1)[0]
