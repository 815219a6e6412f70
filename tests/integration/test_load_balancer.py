"""Sessions with servers behind one address: every connection finds the server that holds its session."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import multi
from multi import AttemptFailed, ConnectionChanged, ConnectionState
from multi.reasons import Cause
from tests.integration.support import HOST, Inbox, Way, free_ports, run, until

SERVERS = 3
TOKEN = re.compile(rb"multi/1;r=([0-9a-f]+)")
JOIN = 19
WITH_ROUTE = 42  # bytes of a JOIN's header with a route of 8 bytes
WAYS = ["tcp-sealed", "tcp-tls", "quic"]


@dataclass
class Balancer:
    """Gives connections to servers in turn, whatever they say; with `reads`, as the route says that they name."""

    ports: dict[bytes, int]
    """By route."""
    reads: bool = False
    turn: int = 0
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    by_client: dict[Any, asyncio.DatagramTransport] = field(default_factory=dict)
    asked: list[bytes] = field(default_factory=list)
    """The routes that were read."""

    def choose(self, route: bytes) -> int:
        if route in self.ports:
            self.asked.append(route)
            if self.reads:
                return self.ports[route]
        self.turn += 1
        return list(self.ports.values())[self.turn % len(self.ports)]

    @asynccontextmanager
    async def listening(self, port: int) -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()
        server = await asyncio.start_server(self._serve, HOST, port)
        front, _ = await loop.create_datagram_endpoint(lambda: _Front(self), local_addr=(HOST, port))
        try:
            yield
        finally:
            server.close()
            front.close()
            for back in self.by_client.values():
                back.close()
            for task in self.tasks:
                task.cancel()
            await asyncio.gather(*self.tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        with suppress(OSError, asyncio.CancelledError):
            if first := await reader.read(65536):  # a client may leave before it says anything
                far_reader, far_writer = await asyncio.open_connection(HOST, self.choose(named_in(first)))
                far_writer.write(first)
                await asyncio.gather(_pump(reader, far_writer), _pump(far_reader, writer))
        writer.transport.abort()
        self.tasks.discard(task)


class _Front(asyncio.DatagramProtocol):
    def __init__(self, balancer: Balancer) -> None:
        self.balancer = balancer
        self.waiting: dict[Any, list[bytes]] = {}

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def datagram_received(self, data: bytes, address: Any) -> None:
        back = self.balancer.by_client.get(address)
        if back is not None:
            back.sendto(data)
            return
        if address in self.waiting:
            self.waiting[address].append(data)
            return
        self.waiting[address] = [data]
        route = data[7:15] if data[0] & 0x80 and data[5:7] == b"\x11\x10" else b""
        task = asyncio.ensure_future(self._open(address, self.balancer.choose(route)))
        self.balancer.tasks.add(task)

    async def _open(self, address: Any, port: int) -> None:
        loop = asyncio.get_running_loop()
        back, _ = await loop.create_datagram_endpoint(lambda: _Back(self.transport, address), remote_addr=(HOST, port))
        self.balancer.by_client[address] = back
        for data in self.waiting.pop(address):
            back.sendto(data)


class _Back(asyncio.DatagramProtocol):
    def __init__(self, front: Any, client: Any) -> None:
        self.front, self.client = front, client

    def datagram_received(self, data: bytes, _: Any) -> None:
        self.front.sendto(data, self.client)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    finally:
        writer.transport.abort()


def named_in(first: bytes) -> bytes:
    """The route in a JOIN, or in the ALPN of a TLS ClientHello."""
    if first[0] == 0x16:
        found = TOKEN.search(first)
        return bytes.fromhex(found[1].decode()) if found else b""
    return first[34:42] if first[1] == JOIN and int.from_bytes(first[2:4], "big") == WITH_ROUTE else b""


@dataclass
class Farm:
    """Servers behind a balancer."""

    way: Way
    balancer: Balancer
    port: int
    servers: list[multi.Server]
    inboxes: list[Inbox]
    own: list[int]

    def client(self, **more: Any) -> dict[str, Any]:
        entries = [[self.way.transport, "ipv4", f"127.0.0.{number}"] for number in (1, 2)]
        return self.way.client(self.port, connection_priority=entries, **more)


@asynccontextmanager
async def farm(way: Way, *, reads: bool = False, engine: str = "aioquic", **listen: Any) -> AsyncIterator[Farm]:
    """`own` and `peers` in `listen` stand for each server's own port, and for those of the others."""
    routes = [bytes([number + 1]) * 8 for number in range(SERVERS)]
    port, *others = free_ports(1 + 2 * SERVERS)
    behind, own = others[:SERVERS], others[SERVERS:]
    servers, inboxes = [], []
    for number, route in enumerate(routes):
        inbox = Inbox()
        more: dict[str, Any] = {"quic_config": {"engine": engine}} if way.transport == "quic" else {}
        told = {"route": route.hex(), **listen}
        if "own" in listen:
            told["own"] = {"host": HOST, "port": own[number]}
        if "peers" in listen:
            told["peers"] = {r.hex(): f"{HOST}:{p}" for r, p in zip(routes, behind, strict=True) if r != route}
        at = {"host": HOST, "port": behind[number], "transports": [way.transport], **told}
        servers.append(await multi.start_server(inbox.on_client, way.server(listen=at, **more)))
        inboxes.append(inbox)
    balancer = Balancer(dict(zip(routes, behind, strict=True)), reads)
    try:
        async with balancer.listening(port):
            yield Farm(way, balancer, port, servers, inboxes, own)
            for server in servers:
                server.abort()
            for server in servers:
                await server.wait_closed()
    finally:
        for server in servers:
            server.abort()


@dataclass
class Client:
    """A session, and what it met."""

    session: multi.Session
    refused: list[Cause] = field(default_factory=list)
    remotes: dict[multi.ConnectionId, str] = field(default_factory=dict)
    """Of each connection that was proved, in order."""

    async def watch(self) -> None:
        async for event in self.session.events():
            if isinstance(event, AttemptFailed):
                self.refused.append(event.reason.cause)
            elif isinstance(event, ConnectionChanged) and event.state is ConnectionState.ACTIVE:
                self.remotes[event.connection] = event.facts.remote


@asynccontextmanager
async def client(config: dict[str, Any]) -> AsyncIterator[Client]:
    async with multi.connect(config) as session:
        made = Client(session)
        watching = asyncio.ensure_future(made.watch())
        try:
            yield made
        finally:
            session.abort()
            await watching


async def has_two(made: Client) -> None:
    await until(lambda: len(made.remotes) == 2, "the second connection")


@pytest.mark.parametrize("name", WAYS)
def test_the_first_join_goes_where_the_server_says_that_it_is(name: str, development_certificates: Path) -> None:
    async def scenario() -> None:
        async with farm(Way(development_certificates, name), own=True, join="own") as servers:
            for _ in range(2 * SERVERS):
                async with client(servers.client()) as made:
                    await has_two(made)
                    assert not made.refused
                    first, second = made.remotes.values()
                    assert first == f"{HOST}:{servers.port}"
                    assert second in {f"{HOST}:{port}" for port in servers.own}
            assert all(inbox.waiting.qsize() == 2 for inbox in servers.inboxes)
            assert not servers.balancer.asked, "nobody joins through the balancer"

    run(scenario())


@pytest.mark.parametrize(
    ("name", "engine"), [("tcp-sealed", "aioquic"), ("tcp-tls", "aioquic"), ("quic", "aioquic"), ("quic", "qh3")]
)
def test_a_balancer_that_reads_the_route_finds_the_server(
    name: str, engine: str, development_certificates: Path
) -> None:
    if engine == "qh3":
        pytest.importorskip("qh3")

    async def scenario() -> None:
        quic = {"quic_config": {"engine": engine}} if name == "quic" else {}
        async with farm(Way(development_certificates, name), reads=True, engine=engine) as servers:
            for _ in range(SERVERS):
                config = servers.client(multi_config={"connect": "seq"}, **quic)
                async with client(config) as made:
                    await has_two(made)
                    assert not made.refused
            assert len(servers.balancer.asked) == SERVERS

    run(scenario())


@pytest.mark.parametrize("name", WAYS)
def test_a_stray_is_sent_to_its_server(name: str, development_certificates: Path) -> None:
    async def scenario() -> None:
        async with farm(Way(development_certificates, name), peers=True) as servers:
            for _ in range(SERVERS):
                async with client(servers.client(multi_config={"connect": "seq"})) as made:
                    await has_two(made)
                    assert set(made.refused) <= {Cause.REFUSED_ELSEWHERE}
                    assert len(made.refused) <= 1, "one dial to the wrong server, and one to the right one"
                    first, second = made.remotes.values()
                    assert (second == first) == (not made.refused)

    run(scenario())


@pytest.mark.parametrize("address", ["10.99.0.1", HOST])
def test_nobody_is_sent_to_services_of_his_own_machine(address: str) -> None:
    """In a network namespace: from a server on loopback it may be meant, so there the same words lead there."""
    words = (sys.executable, "-m", "benchmarks.balancer.astray", address)
    done = subprocess.run(words, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=60, check=True)
    found = json.loads(done.stdout)
    if "skipped" in found:
        pytest.skip(f"no network namespace here, so this was NOT tested: {found['skipped']}")
    assert found["lives"]
    assert (found["told"] > 0, found["redirected"] > 0) == (address == HOST, address == HOST), found
