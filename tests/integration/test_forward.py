"""Forwarding over loopback, both ends in one process: what programs see, what is refused, and that nothing is left."""

from __future__ import annotations

import asyncio
import base64
import errno
import gc
import os
import socket
import struct
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

import multi
from multi.asyncio.streams import SessionReader, SessionWriter
from multi.config import load_config
from multi.errors import ConfigError, RemoteProtocolError
from multi.forward import client as near_end
from multi.forward import opening, proxy, stdio
from multi.forward import service as far_end
from multi.forward.client import ForwardClient, open_session
from multi.forward.dial import dial, dial_udp
from multi.forward.listeners import listen_as_proxy, listen_for, listen_for_datagrams, read_credentials
from multi.forward.opening import answer_of, open_stream
from multi.forward.protocol import HELLO, Code, Connect, Flow, ForwardRefused, HostPort, RemoteListen, read_head
from multi.forward.relay import StreamPair, relay
from multi.forward.rules import parse_rules
from multi.forward.service import ForwardService, with_room_for_streams
from multi.forward.specs import USUAL, Forward, ProxyListener, Treatment
from multi.forward.udp import ForwardPort
from multi.types import Family
from tests.integration.support import HOST, Way, run, until

WAY = Way(Path())
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def lookup(host: str, family: Family) -> list[str]:
    """A resolver of ours: no test asks a real one."""
    names = {
        "echo.test": {Family.IPV4: ["127.0.0.1"]},
        "rebound.test": {Family.IPV4: ["127.0.0.1"]},
        "both.test": {Family.IPV6: ["::1"], Family.IPV4: ["127.0.0.1"]},
    }
    if host not in names:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    return names[host].get(family, [])


@dataclass
class World:
    """A target that echoes, a server that forwards to it, and a client."""

    echo: int
    server: multi.Server
    service: ForwardService
    client: ForwardClient
    stack: AsyncExitStack
    log: list[str] = field(default_factory=list)

    @property
    def session(self) -> multi.Session:
        served = self.client._served
        assert served is not None
        return served.session

    @property
    def targets(self) -> dict[HostPort, Forward]:
        """What the ports of the server lead to."""
        served = self.client._served
        assert served is not None
        return served.targets

    async def forward(self, target: HostPort, treatment: Treatment = USUAL) -> int:
        server = await listen_for(self.client, Forward(HostPort(HOST, 0), target, treatment))
        self.stack.callback(server.close)
        port: int = server.sockets[0].getsockname()[1]
        return port

    async def proxy(self, credentials: dict[str, str] | None = None) -> int:
        server = await listen_as_proxy(self.client, ProxyListener(HostPort(HOST, 0)), credentials or {})
        self.stack.callback(server.close)
        port: int = server.sockets[0].getsockname()[1]
        return port


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer everything, and end when the other side has ended."""
    with suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.write_eof()
    writer.close()


@asynccontextmanager
async def target(
    handler: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[int]:
    server = await asyncio.start_server(handler, HOST, 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


@asynccontextmanager
async def world(rules: str = "localhost:*,listen=*", remotes: tuple[Forward, ...] = ()) -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        port = await stack.enter_async_context(target(echo))
        log: list[str] = []
        service = ForwardService(parse_rules(rules), log=log.append, lookup=lookup)
        server = await multi.start_server(service.serve, with_room_for_streams(load_config(WAY.server())))
        stack.push_async_callback(server.wait_closed)
        stack.callback(server.abort)
        remotes = tuple(replace(r, target=HostPort(r.target.host, r.target.port or port)) for r in remotes)
        client = ForwardClient(load_config(WAY.client(server.port)), remotes, log=log.append)
        await stack.enter_async_context(client)
        yield World(port, server, service, client, stack, log)


async def ends_with_reset(reader: asyncio.StreamReader) -> bool:
    try:
        return await reader.read() == b"never"
    except ConnectionResetError:
        return True


async def stands_still(figure: Callable[[], int]) -> None:
    """Return when a figure has moved, and then has not for a while."""
    first = before = figure()
    while (now := figure()) != before or now == first:
        before = now
        await asyncio.sleep(0.2)


async def closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


# --- what programs see ---


def test_bytes_arrive_both_ways_and_a_half_closed_connection_stays_open_the_other_way() -> None:
    async def scenario() -> None:
        async with world() as w:
            port = await w.forward(HostPort("echo.test", w.echo))
            reader, writer = await asyncio.open_connection(HOST, port)
            data = bytes(range(256)) * 16384
            writer.write(data)
            writer.write_eof()
            assert await reader.read() == data
            await closed(writer)
            await asyncio.sleep(0)
            assert w.client.counters.sent == w.client.counters.received == len(data)

    run(scenario())


def test_the_target_may_end_first_and_still_be_sent_to() -> None:
    async def scenario() -> None:
        got: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        async def ends_first(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"all there is")
            writer.write_eof()
            got.set_result(await reader.read())
            writer.close()

        async with target(ends_first) as at, world() as w:
            reader, writer = await asyncio.open_connection(HOST, await w.forward(HostPort(HOST, at)))
            assert await reader.read() == b"all there is"
            writer.write(b"more")
            writer.write_eof()
            assert await got == b"more"
            await closed(writer)

    run(scenario())


def test_a_reset_is_carried_over_in_both_directions() -> None:
    async def scenario() -> None:
        came: asyncio.Queue[Streams] = asyncio.Queue()

        async def keep(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await came.put((reader, writer))

        def reset(writer: asyncio.StreamWriter) -> None:
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()

        async with target(keep) as at, world() as w:
            port = await w.forward(HostPort(HOST, at))
            for near_resets in (True, False):
                reader, writer = await asyncio.open_connection(HOST, port)
                writer.write(b"x")
                far_reader, far_writer = await came.get()
                assert await far_reader.readexactly(1) == b"x"
                reset(writer if near_resets else far_writer)
                assert await ends_with_reset(far_reader if near_resets else reader)
                await closed(far_writer if near_resets else writer)

    run(scenario())


def test_what_is_not_read_is_not_taken() -> None:
    """A target that does not read stops the program, after what the buffers in between hold."""

    async def scenario() -> None:
        reads = asyncio.Event()
        total = 64 << 20

        async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reads.wait()
            count = 0
            while data := await reader.read(1 << 20):
                count += len(data)
            writer.write(str(count).encode())
            writer.close()

        async with target(slow) as at, world() as w:
            reader, writer = await asyncio.open_connection(HOST, await w.forward(HostPort(HOST, at)))
            sending = asyncio.create_task(send(writer, total))
            await stands_still(lambda: w.client.counters.sent)
            assert 0 < w.client.counters.sent < total // 2
            assert not sending.done()
            reads.set()
            await sending
            assert int(await reader.read()) == total
            await closed(writer)

    async def send(writer: asyncio.StreamWriter, total: int) -> None:
        piece = bytes(1 << 20)
        for _ in range(total // len(piece)):
            writer.write(piece)
            await writer.drain()
        writer.write_eof()

    run(scenario())


def test_a_port_of_the_server_leads_here() -> None:
    async def scenario() -> None:
        remote = Forward(HostPort(HOST, 0), HostPort(HOST, 0))
        async with world(remotes=(remote,)) as w:
            told = next(line for line in w.log if line.startswith("the server listens on"))
            port = int(told.partition(", for")[0].rpartition(":")[2])
            reader, writer = await asyncio.open_connection(HOST, port)
            writer.write(b"hello")
            writer.write_eof()
            assert await reader.read() == b"hello"
            await closed(writer)

    run(scenario())


def test_the_streams_of_a_rule_are_steered_as_it_says_at_both_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    streams: list[StreamPair] = []

    async def noting(near: StreamPair, far: StreamPair, *rest: Any) -> None:
        streams.append(far)
        await relay(near, far, *rest)

    for module in (near_end, far_end, opening):
        monkeypatch.setattr(module, "relay", noting)

    async def modes(port: int) -> list[str | None]:
        """Of the two ends of a stream that carries a connection to this port."""
        streams.clear()
        reader, writer = await asyncio.open_connection(HOST, port)
        writer.write(b"x")
        assert await reader.readexactly(1) == b"x"
        found = [stream.writer.get_extra_info("steering") for stream in streams]
        await closed(writer)
        return found

    async def scenario() -> None:
        back = Forward(HostPort(HOST, 0), HostPort(HOST, 0), Treatment(3, {"mode": "latency"}))
        async with world(remotes=(back,)) as w:
            there, twice = HostPort(HOST, w.echo), Treatment(0, {"mode": "redundant", "max_loss": 0.1})
            assert await modes(await w.forward(there, twice)) == ["redundant"] * 2
            assert await modes(await w.forward(there)) == [None] * 2
            listening = w.log[0].removeprefix("forwarding (127.0.0.1): listening on 127.0.0.1:")
            assert await modes(int(listening)) == ["latency"] * 2

    run(scenario())


def test_what_was_sent_to_a_slow_target_arrives_though_both_sides_have_ended() -> None:
    """The last connection of a session: the target has said all it will, and takes its time to read."""

    async def scenario() -> None:
        data = bytes(range(256)) * (48 << 10)
        reads, got = asyncio.Event(), asyncio.get_running_loop().create_future()

        async def reads_late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write_eof()
            await reads.wait()
            try:
                got.set_result(await reader.read())
            except ConnectionError as error:
                got.set_result(repr(error).encode())
            writer.close()

        async with target(reads_late) as at, world() as w:
            session = await near_end.open_session(load_config(WAY.client(w.server.port)))
            stream = await open_stream(session, Connect(HostPort(HOST, at)))
            await answer_of(stream)
            stream.writer.write(data)
            stream.writer.write_eof()
            assert await stream.reader.read() == b""
            finishing = asyncio.create_task(near_end.finish_session(session))
            await asyncio.sleep(0.3)
            reads.set()
            assert await got == data
            await finishing

    run(scenario())


def test_what_is_written_to_a_pipe_has_left_before_the_end() -> None:
    async def scenario() -> None:
        (source, unused), (read, sink) = os.pipe(), os.pipe()
        pair = await stdio._pair(os.fdopen(source, "rb", 0), os.fdopen(sink, "wb", 0))
        pair.writer.write(bytes(100_000))  # more than a pipe holds
        drained = asyncio.create_task(pair.writer.drain())
        for _ in range(5):
            await asyncio.sleep(0)
        assert not drained.done()
        with os.fdopen(read, "rb", 0) as reader:
            got = len(await asyncio.to_thread(reader.read, 65536))
            await drained
            pair.writer.close()
            got += len(await asyncio.to_thread(reader.read))
        assert got == 100_000
        os.close(unused)
        await asyncio.sleep(0.01)

    run(scenario())


def test_those_who_ask_together_get_no_more_ports_and_flows_than_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(far_end, "MAX_LISTENERS", 2)
    monkeypatch.setattr(far_end, "MAX_FLOWS", 1)
    monkeypatch.setattr(far_end, "MAX_ENDING", 1)

    async def scenario() -> None:
        async with world() as w:
            session = w.session
            opened = []
            for head in (RemoteListen(HostPort(HOST, 0), 3), Flow(HostPort(HOST, w.echo))):
                streams = [await open_stream(session, head) for _ in range(5)]
                opened += streams
                answers = await asyncio.gather(*map(answer_of, streams), return_exceptions=True)
                assert sorted(str(getattr(a, "code", "OK")) for a in answers) == ["6", "6", "6", "OK", "OK"]
            assert len(opened) == 10, "held until here: a stream that nobody holds ends"

    run(scenario())


# --- proxies ---


async def socks(port: int, request: bytes, methods: bytes = b"\x05\x01\x00") -> tuple[bytes, Streams]:
    """The reply to a SOCKS5 request, after the method was agreed on."""
    reader, writer = await asyncio.open_connection(HOST, port)
    writer.write(methods + request)
    assert await reader.readexactly(2) == b"\x05\x00"
    reply = await reader.readexactly(4)
    await reader.readexactly(6 if reply[3] == 1 else 18)
    return reply, (reader, writer)


def named(host: bytes, port: int, command: int = 1) -> bytes:
    return bytes((5, command, 0, 3, len(host))) + host + struct.pack("!H", port)


def test_socks_connects_by_name_and_by_address() -> None:
    async def scenario() -> None:
        async with world() as w:
            port = await w.proxy()
            by_address = b"\x05\x01\x00\x01" + socket.inet_aton(HOST) + struct.pack("!H", w.echo)
            for request in (named(b"echo.test", w.echo), by_address, named(b"both.test", w.echo)):
                reply, (reader, writer) = await socks(port, request)
                assert reply[:2] == b"\x05\x00"
                writer.write(b"through")
                writer.write_eof()
                assert await reader.read() == b"through"
                await closed(writer)

    run(scenario())


@pytest.mark.parametrize(
    ("rules", "request_", "code"),
    [
        ("*:*", named(b"rebound.test", 80), 2),
        ("*:*", b"\x05\x01\x00\x01" + socket.inet_aton("169.254.169.254") + b"\x00\x50", 2),
        ("*:*", b"\x05\x01\x00\x04" + socket.inet_pton(socket.AF_INET6, "::ffff:127.0.0.1") + b"\x00\x50", 2),
        ("*:*", b"\x05\x01\x00\x01" + bytes(4) + b"\x00\x50", 2),
        ("localhost:1", named(b"echo.test", 80), 2),
        ("*:*", named(b"2130706433", 80), 1),
        ("*:*", named(b"0177.0.0.1", 80), 1),
        ("*:*", named(b"nowhere.test", 80), 4),
        ("*:*", named(b"a" * 255, 80), 4),
        ("*:*", named(b"a b", 80), 1),
        ("*:*", named(b"", 80), 1),
        ("localhost:*", b"\x05\x01\x00\x01" + socket.inet_aton(HOST) + b"\x00\x01", 5),
        ("*:*", named(b"echo.test", 80, command=2), 7),
        ("*:*", b"\x05\x01\x00\x09", 8),
    ],
)
def test_socks_says_why_not(rules: str, request_: bytes, code: int) -> None:
    async def scenario() -> None:
        async with world(rules) as w:
            reply, (reader, writer) = await socks(await w.proxy(), request_)
            assert reply[:2] == bytes((5, code))
            assert await reader.read() == b""
            await closed(writer)
            assert w.client.counters.failed

    run(scenario())


@pytest.mark.parametrize(
    "begin", [b"", b"\x05", b"\x05\x02\x00", b"\x05\x01\x00\x05\x01", b"CONN", b"\x04\x01", b"\x16\x03"]
)
def test_a_client_of_the_proxy_that_says_too_little_or_nonsense_is_let_go(
    begin: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxy, "HANDSHAKE_TIMEOUT", 0.1)

    async def scenario() -> None:
        async with world() as w:
            reader, writer = await asyncio.open_connection(HOST, await w.proxy())
            writer.write(begin)
            assert await reader.read() in (b"", b"\x05\x00")
            await closed(writer)
            assert w.client.counters.failed == 1

    run(scenario())


def test_socks_asks_for_a_password_where_there_is_one() -> None:
    async def scenario() -> None:
        async with world() as w:
            port = await w.proxy({"me": "secret"})
            for user, password, good in ((b"me", b"secret", 0), (b"me", b"wrong", 1), (b"you", b"secret", 1)):
                reader, writer = await asyncio.open_connection(HOST, port)
                writer.write(b"\x05\x02\x00\x02\x01" + bytes((len(user),)) + user + bytes((len(password),)) + password)
                writer.write(named(b"echo.test", w.echo))
                assert await reader.readexactly(4) == bytes((5, 2, 1, good))
                assert (await reader.read(2) == b"\x05\x00") is not bool(good)
                await closed(writer)
            reader, writer = await asyncio.open_connection(HOST, port)
            writer.write(b"\x05\x01\x00")
            assert await reader.read() == b"\x05\xff"
            await closed(writer)

    run(scenario())


async def http(port: int, head: str) -> bytes:
    reader, writer = await asyncio.open_connection(HOST, port)
    writer.write(head.encode() + b"\r\n\r\n")
    answer = await reader.readuntil(b"\r\n")
    if b" 200 " in answer:
        assert await reader.readexactly(2) == b"\r\n"
        writer.write(b"hello")
        writer.write_eof()
        answer += await reader.read()
    await closed(writer)
    return answer


def test_http_connect_connects_or_says_why_not() -> None:
    async def scenario() -> None:
        async with world("localhost:1024-65535,example.com:80") as w:
            port = await w.proxy()
            assert await http(port, f"CONNECT echo.test:{w.echo} HTTP/1.1\r\nHost: x") == (
                b"HTTP/1.1 200 Connection established\r\nhello"
            )
            for head, status in (
                ("CONNECT echo.test:22 HTTP/1.1", 403),
                (f"CONNECT echo.test:{w.echo} HTTP/1.1\r\nOrigin: https://evil.test", 403),
                (f"CONNECT echo.test:{w.echo} HTTP/1.1\r\nORIGIN: null", 403),
                ("CONNECT nowhere.test:80 HTTP/1.1", 502),
                ("CONNECT echo.test HTTP/1.1", 400),
                ("CONNECT echo.test:99999 HTTP/1.1", 400),
                ("CONNECT 2130706433:80 HTTP/1.1", 400),
                ("GET http://echo.test/ HTTP/1.1", 405),
                ("NONSENSE", 400),
                ("GET / HTTP/1.1\r\nX: " + "x" * 200_000, 431),
            ):
                assert f" {status} ".encode() in await http(port, head), head

    run(scenario())


@pytest.mark.parametrize(
    "request_",
    [
        b"POST http://host/ HTTP/1.1\r\n\r\n",
        b"CONNECT nope:80 HTTP/1.1\r\n\r\n",
        b"\x05\x01\x00\x05\x01\x00\x03\x04nope\0\x50",
    ],
)
def test_a_program_that_sends_much_before_it_is_refused_hears_why(request_: bytes) -> None:
    async def scenario() -> None:
        async with world() as w:
            reader, writer = await asyncio.open_connection(HOST, await w.proxy())
            writer.write(request_ + bytes(4_000_000))
            answer = await reader.read()
            assert answer.startswith((b"HTTP/1.1 405", b"HTTP/1.1 403", b"HTTP/1.1 502", b"\x05\x00\x05\x04"))
            await closed(writer)

    run(scenario())


def test_http_connect_asks_for_a_password_where_there_is_one() -> None:
    async def scenario() -> None:
        async with world() as w:
            port = await w.proxy({"me": "secret"})
            request = f"CONNECT echo.test:{w.echo} HTTP/1.1"
            for login, good in (("me:secret", True), ("me:wrong", False), ("secret", False)):
                encoded = base64.b64encode(login.encode()).decode()
                answer = await http(port, f"{request}\r\nProxy-Authorization: Basic {encoded}")
                assert f" {200 if good else 407} ".encode() in answer
            assert b" 407 " in await http(port, request)
            assert b" 407 " in await http(port, f"{request}\r\nProxy-Authorization: Basic {'=' * 9}")

    run(scenario())


def test_a_proxy_on_another_address_needs_a_password(tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.write_text("# who\n\nme:sec:ret\n")
    assert read_credentials(users) == {"me": "sec:ret"}
    for wrong in ("", "me", ":x", "me:", "me:" + "x" * 256):
        users.write_text(wrong)
        with pytest.raises(ConfigError):
            read_credentials(users)
    users.write_bytes(b"me:\xff")
    with pytest.raises(ConfigError, match="not UTF-8"):
        read_credentials(users)
    with pytest.raises(OSError, match="more than"):
        read_credentials(Path("/dev/zero"))

    async def scenario() -> None:
        async with world() as w:
            for host in ("0.0.0.0", "*", "::", "192.0.2.1", "127.example.org"):
                with pytest.raises(ConfigError, match="socks-auth"):
                    await listen_as_proxy(w.client, ProxyListener(HostPort(host, 0)), {})
            everywhere = await listen_as_proxy(w.client, ProxyListener(HostPort("0.0.0.0", 0)), {"me": "secret"})
            everywhere.close()

    run(scenario())


# --- datagrams ---


class Peer(asyncio.DatagramProtocol):
    """A UDP socket of a program or a target; one that `echoes` answers everything."""

    def __init__(self, *, echoes: bool = False) -> None:
        self.came: asyncio.Queue[bytes] = asyncio.Queue()
        self._echoes = echoes

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def datagram_received(self, data: bytes, addr: Any) -> None:
        if self._echoes:
            self.transport.sendto(data[::-1], addr)
        self.came.put_nowait(data)

    @property
    def port(self) -> int:
        number: int = self.transport.get_extra_info("sockname")[1]
        return number


@asynccontextmanager
async def peer(host: str = HOST, *, echoes: bool = False) -> AsyncIterator[Peer]:
    loop = asyncio.get_running_loop()
    transport, made = await loop.create_datagram_endpoint(lambda: Peer(echoes=echoes), local_addr=(host, 0))
    try:
        yield made
    finally:
        transport.close()


def test_datagrams_go_to_the_target_and_answers_to_whoever_asked() -> None:
    async def scenario() -> None:
        async with peer(echoes=True) as far, peer() as one, peer() as other, world() as w:
            listener = await listen_for_datagrams(w.client, Forward(HostPort(HOST, 0), HostPort("echo.test", far.port)))
            to = (HOST, listener.ports[0].address.port)
            for text in (b"first", b"second", b"x" * 1200):
                one.transport.sendto(text, to)
                assert await one.came.get() == text[::-1]
            other.transport.sendto(b"other", to)
            assert await other.came.get() == b"rehto"
            assert one.came.empty()
            assert w.client.counters.open == 2
            await listener.close()
            assert w.client.counters.open == 0

    run(scenario())


@pytest.mark.parametrize("everywhere", ["*", "localhost"])
def test_datagrams_are_taken_over_both_ip_versions(everywhere: str) -> None:
    async def scenario() -> None:
        async with peer(echoes=True) as far, world() as w:
            listener = await listen_for_datagrams(w.client, Forward(HostPort(everywhere, 0), HostPort(HOST, far.port)))
            (port,) = {port.address.port for port in listener.ports}
            hosts = {_loopback(port.address.host) for port in listener.ports}
            assert HOST in hosts
            for host in hosts:
                async with peer(host) as program:
                    program.transport.sendto(b"hi", (host, port))
                    assert await program.came.get() == b"ih"
            await listener.close()
            if "::1" not in hosts:
                pytest.skip("this machine has no IPv6, or does not call its loopback localhost")

    run(scenario())


def _loopback(host: str) -> str:
    """Where a port that listens on `host` is reached from here."""
    return {"0.0.0.0": HOST, "::": "::1"}.get(host, host)


def test_a_udp_port_here_that_is_in_use_is_told_and_none_stays_open() -> None:
    async def scenario() -> None:
        async with peer() as taken, world() as w:
            with pytest.raises(
                multi.TransportError, match=rf"cannot listen on \*:{taken.port}: address already in use"
            ):
                await listen_for_datagrams(w.client, Forward(HostPort("*", taken.port), HostPort(HOST, 1)))
            with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as again:
                again.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                again.bind(("::", taken.port))

    run(scenario())


def test_a_flow_that_nothing_comes_in_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("multi.forward.udp.IDLE_TIMEOUT", 0.3)

    async def scenario() -> None:
        async with AsyncExitStack() as stack:
            far = await stack.enter_async_context(peer(echoes=True))
            programs = [await stack.enter_async_context(peer()) for _ in range(3)]
            w = await stack.enter_async_context(world())
            listener = await listen_for_datagrams(w.client, Forward(HostPort(HOST, 0), HostPort(HOST, far.port)))
            stack.push_async_callback(listener.close)
            for program in programs:
                program.transport.sendto(b"hi", (HOST, listener.ports[0].address.port))
            assert [await program.came.get() for program in programs] == [b"ih"] * 3
            await stands_still(lambda: w.client.counters.open + w.service.counters.open)
            assert (w.client.counters.open, w.service.counters.open) == (0, 0)
            programs[0].transport.sendto(b"again", (HOST, listener.ports[0].address.port))
            assert await programs[0].came.get() == b"niaga"

    run(scenario())


def test_of_as_many_flows_as_there_may_be_one_that_was_never_answered_gives_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A program that sends from thousands of ports keeps nobody out, and ends nobody's flow that is in use."""
    monkeypatch.setattr("multi.forward.udp.MAX_FLOWS", 4)
    monkeypatch.setattr("multi.forward.udp.REPLACED_EVERY", 60.0)

    async def scenario() -> None:
        async with AsyncExitStack() as stack:
            far = await stack.enter_async_context(peer(echoes=True))
            silent = await stack.enter_async_context(peer())
            programs = [await stack.enter_async_context(peer()) for _ in range(7)]
            w = await stack.enter_async_context(world())
            ports = []
            for target_port in (far.port, silent.port):
                forwarded = Forward(HostPort(HOST, 0), HostPort(HOST, target_port))
                listener = await listen_for_datagrams(w.client, forwarded)
                stack.push_async_callback(listener.close)
                ports.append((HOST, listener.ports[0].address.port))
            answered, unanswered = ports

            async def asks(program: Peer) -> None:
                program.transport.sendto(b"hi", answered)
                assert await program.came.get() == b"ih"

            await asks(programs[0])
            for program in programs[1:4]:
                program.transport.sendto(b"hi", unanswered)
                assert await silent.came.get() == b"hi"
            await asks(programs[4])
            await until(lambda: (w.client.counters.open, w.service.counters.open) == (4, 4))
            await asks(programs[0])
            assert w.client.counters.opened == 5, "the first has the flow it had"
            programs[5].transport.sendto(b"too soon after the last that gave way", answered)
            await until(lambda: w.client.counters.failed == 1)
            assert (w.client.counters.opened, w.service.counters.failed) == (5, 0)

    run(scenario())


def test_what_waits_for_the_answer_to_flows_is_bounded_for_all_of_them_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("multi.forward.udp.MAX_PENDING_BYTES", 2500)

    async def scenario() -> None:
        answers = asyncio.Event()

        async def slow(*about: Any, **lookup: Any) -> socket.socket:
            await answers.wait()
            return await dial_udp(*about, **lookup)

        monkeypatch.setattr("multi.forward.service.dial_udp", slow)
        async with peer() as far, peer() as one, peer() as other, peer() as last, world() as w:
            listener = await listen_for_datagrams(w.client, Forward(HostPort(HOST, 0), HostPort(HOST, far.port)))
            to = (HOST, listener.ports[0].address.port)
            for program in (one, other):
                for _ in range(2):
                    program.transport.sendto(bytes(1000), to)
            other.transport.sendto(b"small", to)
            await until(lambda: w.client.counters.open == 2)
            answers.set()
            assert sorted([len(await far.came.get()) for _ in range(3)]) == [5, 1000, 1000]
            for _ in range(2):
                last.transport.sendto(bytes(1000), to)
                assert len(await far.came.get()) == 1000, "there is room again"
            assert far.came.empty()
            await listener.close()

    run(scenario())


@pytest.mark.parametrize("wanted", [HostPort("rebound.test", 53), HostPort("10.0.0.1", 53), HostPort("2130706433", 53)])
def test_datagrams_go_only_where_a_rule_allows(wanted: HostPort) -> None:
    async def scenario() -> None:
        async with peer() as program, world("*:*") as w:
            listener = await listen_for_datagrams(w.client, Forward(HostPort(HOST, 0), wanted))
            program.transport.sendto(b"hi", (HOST, listener.ports[0].address.port))
            await stands_still(lambda: w.client.counters.failed)
            assert w.client.counters.failed == 1
            assert w.service.counters.failed == 1
            await listener.close()

    run(scenario())


def test_a_datagram_that_is_too_large_is_dropped_and_the_flow_lives_on() -> None:
    async def scenario() -> None:
        async with peer(echoes=True) as far, peer() as program, world() as w:
            listener = await listen_for_datagrams(w.client, Forward(HostPort(HOST, 0), HostPort(HOST, far.port)))
            to = (HOST, listener.ports[0].address.port)
            program.transport.sendto(b"before", to)
            assert await program.came.get() == b"erofeb"
            session, _ = await w.client.datagrams()
            program.transport.sendto(bytes(session.datagrams().max_size + 1), to)
            program.transport.sendto(b"after", to)
            assert await program.came.get() == b"retfa"
            await listener.close()

    run(scenario())


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_datagrams_that_the_kernel_does_not_take_are_not_heaped_up(loop: str) -> None:
    async def scenario() -> None:
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)  # one whose buffer fills up
        with there:
            there.setblocking(False)
            port = ForwardPort(lambda data, sender: None)
            transport: Any
            transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(lambda: port, sock=here)
            for _ in range(3):
                for number in range(1000):
                    port.send(number.to_bytes(2, "big") + bytes(1000))
                assert transport.get_write_buffer_size() == 0
                came = []
                with suppress(BlockingIOError):
                    while True:
                        came.append(int.from_bytes(there.recv(2000)[:2], "big"))
                assert 0 < len(came) < 1000
                assert came == list(range(len(came)))
            port.close()
            port.send(b"too late")
            await asyncio.sleep(0)

    run(scenario(), loop)


def test_a_program_sends_datagrams_through_the_proxy_as_long_as_it_is_connected() -> None:
    async def scenario() -> None:
        async with peer(echoes=True) as far, peer() as program, peer() as stranger, world() as w:
            reader, writer = await asyncio.open_connection(HOST, await w.proxy())
            writer.write(b"\x05\x01\x00" + b"\x05\x03\x00\x01" + bytes(6))
            assert await reader.readexactly(6) == b"\x05\x00\x05\x00\x00\x01"
            assert await reader.readexactly(4) == socket.inet_aton(HOST)
            to = (HOST, struct.unpack("!H", await reader.readexactly(2))[0])
            header = b"\0\0\0\x03\x09echo.test" + struct.pack("!H", far.port)
            program.transport.sendto(b"nonsense", to)
            program.transport.sendto(header + b"hello", to)
            assert await program.came.get() == header + b"olleh"
            stranger.transport.sendto(header + b"mine", to)
            program.transport.sendto(header + b"again", to)
            assert await program.came.get() == header + b"niaga"
            assert stranger.came.empty()
            assert far.came.qsize() == 2
            await closed(writer)
            await stands_still(lambda: w.client.counters.open)
            assert w.client.counters.open == 0

    run(scenario())


# --- what goes wrong ---


def test_a_target_that_refuses_hangs_or_resets_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    everything = parse_rules("localhost:*").everybody

    async def scenario() -> None:
        with socket.socket() as full, monkeypatch.context() as soon:
            soon.setattr("multi.forward.dial.DIAL_TIMEOUT", 0.2)
            full.bind((HOST, 0))
            full.listen(0)
            port = full.getsockname()[1]
            waiting = [socket.socket() for _ in range(3)]
            for sock in waiting:
                sock.setblocking(False)
                assert sock.connect_ex((HOST, port)) in (0, errno.EINPROGRESS)
            with pytest.raises(ForwardRefused) as hangs:
                await dial(HostPort("echo.test", port), everything, lookup=lookup)
            for sock in waiting:
                sock.close()
        with pytest.raises(ForwardRefused) as refuses:
            await dial(HostPort("echo.test", port), everything, lookup=lookup)
        with pytest.raises(ForwardRefused) as unknown:
            await dial(HostPort("nowhere.test", port), everything, lookup=lookup)
        found = [error.value.code for error in (hangs, refuses, unknown)]
        assert found == [Code.TIMED_OUT, Code.REFUSED, Code.NOT_FOUND]

    run(scenario())


def test_another_address_is_tried_when_the_first_does_not_answer() -> None:
    """`both.test` has ::1 where nobody listens; only 127.0.0.1 does."""

    ended: asyncio.Queue[None] = asyncio.Queue()

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await echo(reader, writer)
        await writer.wait_closed()
        ended.put_nowait(None)

    async def scenario() -> None:
        async with target(take) as port:
            for rules in ("localhost:*", "127.0.0.1:*"):
                sock = await dial(HostPort("both.test", port), parse_rules(rules).everybody, lookup=lookup)
                assert sock.getpeername() == (HOST, port)
                sock.close()
                await ended.get()

    run(scenario())


def test_names_that_get_no_answer_hold_up_no_other_client() -> None:
    """Nor do those that were asked for by sessions that have ended, of which a client may have one after the other."""
    asked: list[str] = []
    over = threading.Event()

    def some_hang(host: str, family: Family) -> list[str]:
        if host != "echo.test":
            asked.append(host)
            over.wait(60)
        return lookup(host, family)

    async def connects(session: multi.Session, port: int) -> None:
        stream = await open_stream(session, Connect(HostPort("echo.test", port)))
        async with asyncio.timeout(5):
            await answer_of(stream)
        stream.reset()

    async def scenario() -> None:
        async with world() as w:
            w.service.lookup = some_hang
            elsewhere = [["tcp", "ipv4", "127.7.7.7"]]
            other = await open_session(load_config(WAY.client(w.server.port, connection_priority=elsewhere)))
            w.stack.callback(other.abort)
            for number in range(1, 7):
                session = await open_session(load_config(WAY.client(w.server.port)))
                streams = [await open_stream(session, Connect(HostPort(f"{n}.test", w.echo))) for n in range(40)]
                expected = min(number * far_end.LOOKUPS, far_end.LOOKUPS_OF_SOURCE)
                await until(lambda expected=expected: len(asked) == expected, "its share is used")  # type: ignore[misc]
                if number == 1:
                    await connects(w.session, w.echo)
                await connects(other, w.echo)
                for stream in streams:
                    stream.reset()
                session.abort()
            assert len(asked) == far_end.LOOKUPS_OF_SOURCE

    try:
        run(scenario())
    finally:
        over.set()


def test_a_program_whose_target_cannot_be_reached_sees_a_reset() -> None:
    async def scenario() -> None:
        async with world() as w:
            reader, writer = await asyncio.open_connection(HOST, await w.forward(HostPort(HOST, 1)))
            writer.write(b"early")
            assert await ends_with_reset(reader)
            await closed(writer)
            assert w.client.counters.failed == 1
            assert not w.client.counters.open

    run(scenario())


@pytest.mark.parametrize(
    ("rules", "listen", "says"),
    [
        ("localhost:*", HostPort(HOST, 8080), "not granted"),
        ("listen=*", HostPort("0.0.0.0", 8080), "only on loopback"),
        ("listen=*", HostPort("192.0.2.1", 8080), "only on loopback"),
        ("listen=*", HostPort(HOST, 80), "below 1024 is not granted"),
        ("listen=8000-8010", HostPort(HOST, 0), "not granted"),
    ],
)
def test_a_port_of_the_server_needs_its_grant(rules: str, listen: HostPort, says: str) -> None:
    async def scenario() -> None:
        with pytest.raises(ForwardRefused, match=says):
            async with world(rules, remotes=(Forward(listen, HostPort(HOST, 0)),)):
                raise AssertionError

    run(scenario())


def test_a_port_of_the_server_that_is_in_use_is_told_and_asked_for_again_and_holds_up_nothing_else() -> None:
    async def scenario() -> None:
        other = await asyncio.start_server(echo, HOST, 0)
        taken = HostPort(HOST, other.sockets[0].getsockname()[1])
        here = HostPort(HOST, 0)
        async with world(remotes=(Forward(taken, here), Forward(here, here))) as w:
            assert any(line.startswith(f"the server refuses -R {taken}") and "in use" in line for line in w.log)
            reader, writer = await asyncio.open_connection(HOST, await w.forward(HostPort(HOST, w.echo)))
            writer.write(b"meanwhile")
            assert await reader.readexactly(9) == b"meanwhile"
            await closed(writer)
            (found,) = w.targets
            other.close()
            await until(lambda: set(w.targets) == {found, taken}, "the port that is free now")

    run(scenario())


def test_a_place_to_listen_and_an_interface_that_do_not_exist_are_told_in_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    async def scenario() -> None:
        async with world() as w:
            monkeypatch.setattr(socket, "getaddrinfo", unknown)
            for host, said in (("nowhere.test", "name or service not known"), ("a..b", "no host name")):
                for listen in (listen_for, listen_for_datagrams):
                    with pytest.raises(multi.TransportError, match=said):
                        await listen(w.client, Forward(HostPort(host, 0), HostPort("echo.test", w.echo)))
                monkeypatch.undo()
        with pytest.raises(ForwardRefused, match="no interface"):
            await dial(HostPort("fe80::1%nowhere", 22), None)

    run(scenario())


def test_a_port_here_that_is_in_use_is_told() -> None:
    async def scenario() -> None:
        async with world() as w:
            with pytest.raises(
                multi.TransportError, match=f"cannot listen on 127.0.0.1:{w.echo}: address already in use"
            ):
                await listen_for(w.client, Forward(HostPort(HOST, w.echo), HostPort(HOST, 1)))

    run(scenario())


def test_a_server_that_does_something_else_is_told_at_once() -> None:
    async def scenario() -> None:
        async def other(reader: multi.SessionReader, writer: multi.SessionWriter) -> None:
            writer.write(b"hello, I am something else\n" if await reader.readline() else b"")
            writer.close()

        async with await multi.start_server(other, WAY.server()) as server:
            with pytest.raises(RemoteProtocolError, match="does not forward"):
                await near_end.open_session(load_config(WAY.client(server.port)))
            server.abort()

    run(scenario())


def test_a_client_that_says_nonsense_ends_its_session_or_stream_only() -> None:
    async def scenario() -> None:
        async with world() as w:
            async with multi.connect(WAY.client(w.server.port)) as stranger:
                stranger.writer.write(b"GET / HTTP/1.1\r\n")
                assert await stranger.reader.read() == b""
            session = await near_end.open_session(load_config(WAY.client(w.server.port)))
            for head in (b"\x09\x09\x00\x00", b"\x01\x03\x00\x00", b"\x01\x01\xff\xff"):
                reader, writer = await session.open_stream()
                writer.write(head)
                assert (await reader.readexactly(1))[0] == Code.BAD_REQUEST
                writer.close()
            reader, writer = await session.open_stream()
            writer.write(b"\x01")
            writer.write_eof()
            with pytest.raises((multi.StreamReset, asyncio.IncompleteReadError)):
                await reader.readexactly(3)
            await near_end.finish_session(session)
            port = await w.forward(HostPort(HOST, w.echo))
            reader_, writer_ = await asyncio.open_connection(HOST, port)
            writer_.write(b"alive")
            assert await reader_.readexactly(5) == b"alive"
            await closed(writer_)

    run(scenario())


def test_forwarding_survives_the_servers_restart() -> None:
    async def scenario() -> None:
        remote = Forward(HostPort(HOST, 0), HostPort(HOST, 0))
        async with world(remotes=(remote,)) as w:
            port = await w.forward(HostPort(HOST, w.echo))
            reader, writer = await asyncio.open_connection(HOST, port)
            writer.write(b"before")
            assert await reader.readexactly(6) == b"before"
            address = w.server.port
            w.server.abort()
            await w.server.wait_closed()
            assert await ends_with_reset(reader)
            await closed(writer)
            waiting = await asyncio.open_connection(HOST, port)
            config = WAY.server(listen={"host": HOST, "port": address, "transports": ["tcp"]})
            async with await multi.start_server(w.service.serve, config) as again:
                waiting[1].write(b"after")
                assert await waiting[0].readexactly(5) == b"after"
                await closed(waiting[1])
                assert sum(line.startswith("the server listens on") for line in w.log) == 2
                await w.client.__aexit__(None, None, None)
                again.abort()

    run(scenario())


def test_connections_move_to_another_server_when_theirs_is_being_stopped() -> None:
    """New ones at once, those there are when they end; the session ends in order, long before it has to."""

    async def scenario() -> None:
        async with AsyncExitStack() as stack:
            echo_port = await stack.enter_async_context(target(echo))
            log: list[str] = []
            service = ForwardService(parse_rules("localhost:*,listen=*"), log=log.append)
            old, new = [await multi.start_server(service.serve, WAY.server()) for _ in range(2)]
            for server in (old, new):
                stack.push_async_callback(server.wait_closed)
                stack.callback(server.abort)
            both = [
                {"transport": "tcp", "ip": "ipv4", "interface": "any", "remote_port": server.port, "group": "one"}
                for server in (old, new)
            ]
            remote = Forward(HostPort(HOST, 0), HostPort(HOST, echo_port))
            config = load_config(WAY.client(old.port, connection_priority=both))
            client = await stack.enter_async_context(ForwardClient(config, (remote,), log=log.append))
            w = World(echo_port, old, service, client, stack, log)
            port = await w.forward(HostPort(HOST, echo_port))
            (remote_port,) = (listener.port for listener in w.targets)
            stays, at_server = [await asyncio.open_connection(HOST, p) for p in (port, remote_port)]
            for reader, writer in (stays, at_server):
                writer.write(b"before")
                assert await reader.readexactly(6) == b"before"
            draining = asyncio.create_task(old.drain(20.0))
            await until(lambda: "new connections take another session" in log)
            assert len(new.sessions) == len(old.sessions) == 1
            moved = await asyncio.open_connection(HOST, port)
            for reader, writer in (stays, at_server, moved):
                writer.write(b"meanwhile")
                assert await reader.readexactly(9) == b"meanwhile"
            assert new.stats().streams == 3  # stream 0, the port, the connection
            for _, writer in (stays, at_server):
                await closed(writer)
            await asyncio.wait_for(draining, 10.0)
            assert old.stats().sessions_ended == {"closed": 1}
            moved[1].write(b"after")
            assert await moved[0].readexactly(5) == b"after"
            await closed(moved[1])

    run(scenario())


def test_a_server_that_is_always_being_stopped_is_dialled_ever_more_rarely() -> None:
    """It was a hundred times a second."""

    async def scenario() -> None:
        opened: list[float] = []

        async def stopped(reader: SessionReader, writer: SessionWriter) -> None:
            opened.append(monotonic())
            assert await reader.readline()
            writer.write(HELLO)
            driver = writer.get_extra_info("session")._driver
            driver.core.go_away(60.0, now=driver.now())
            driver.pump()
            await reader.read()
            writer.close()

        server = await multi.start_server(stopped, WAY.server())
        config = load_config(WAY.client(server.port))
        async with ForwardClient(config, log=lambda _: None):
            await until(lambda: len(opened) > 2)
        assert opened[2] - opened[1] > 0.2
        server.abort()
        await server.wait_closed()

    run(scenario())


def test_what_does_not_end_in_time_is_reset_and_the_rest_goes_on() -> None:
    async def scenario() -> None:
        async with world() as w:
            port = await w.forward(HostPort(HOST, w.echo))
            reader, writer = await asyncio.open_connection(HOST, port)
            writer.write(b"before")
            assert await reader.readexactly(6) == b"before"
            address = w.server.port
            await w.server.drain(0.5)
            assert await ends_with_reset(reader)
            await closed(writer)
            config = WAY.server(listen={"host": HOST, "port": address, "transports": ["tcp"]})
            async with await multi.start_server(w.service.serve, config) as again:
                reader, writer = await asyncio.open_connection(HOST, port)
                writer.write(b"after")
                assert await reader.readexactly(5) == b"after"
                await closed(writer)
                await w.client.__aexit__(None, None, None)
                again.abort()

    run(scenario())


def test_a_session_that_does_not_come_back_refuses_new_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(near_end, "SESSION_TIMEOUT", 0.2)

    async def scenario() -> None:
        async with world() as w:
            port, proxied = await w.forward(HostPort(HOST, w.echo)), await w.proxy()
            w.server.abort()
            await w.server.wait_closed()
            reader, writer = await asyncio.open_connection(HOST, port)
            assert await ends_with_reset(reader)
            await closed(writer)
            reply, (reader, writer) = await socks(proxied, named(b"echo.test", w.echo))
            assert reply[:2] == b"\x05\x01"
            await closed(writer)

    run(scenario())


def test_more_connections_than_streams_wait_or_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flood leaves the session as it was: what finds no place is reset, and there is room again afterwards."""
    monkeypatch.setattr("multi.forward.opening.ANSWER_TIMEOUT", 0.5)
    monkeypatch.setattr(near_end, "MAX_CONNECTIONS", 150)

    async def scenario() -> None:
        async with AsyncExitStack() as stack:
            port = await stack.enter_async_context(target(echo))
            service = ForwardService(parse_rules("localhost:*"), log=lambda _: None, lookup=lookup)
            server = await multi.start_server(service.serve, WAY.server(limits={"max_streams": 100}))
            stack.push_async_callback(server.wait_closed)
            stack.callback(server.abort)
            client = ForwardClient(load_config(WAY.client(server.port)), log=lambda _: None)
            await stack.enter_async_context(client)
            listener = await listen_for(client, Forward(HostPort(HOST, 0), HostPort(HOST, port)))
            stack.callback(listener.close)
            at = listener.sockets[0].getsockname()[1]
            flood = [await asyncio.open_connection(HOST, at) for _ in range(200)]

            async def served(streams: Streams) -> bool:
                reader, writer = streams
                writer.write(b"x")
                try:
                    return await reader.read(1) == b"x"
                except ConnectionResetError:
                    return False

            outcomes = await asyncio.gather(*map(served, flood))
            assert sum(outcomes) == 100
            for _, writer in flood:
                await closed(writer)
            await stands_still(lambda: client.counters.open)
            reader, writer = await asyncio.open_connection(HOST, at)
            assert await served((reader, writer))
            await closed(writer)

    run(scenario())


@pytest.mark.parametrize("way", ["to the far end", "from the far end"])
def test_a_target_that_resets_at_once_resets_the_connection(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anybody could ask the socket whom it is connected to."""

    async def reset(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        StreamPair(_reader, writer).reset()

    async def scenario() -> None:
        unseen = list[object]()
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unseen.append(context))

        async def late(*about: Any, **lookup: Any) -> socket.socket:
            sock = await dial(*about, **lookup)
            await asyncio.sleep(0.005)
            return sock

        monkeypatch.setattr("multi.forward.dial.dial", late)
        async with AsyncExitStack() as stack:
            rude = HostPort(HOST, await stack.enter_async_context(target(reset)))
            w = await stack.enter_async_context(world(remotes=(Forward(HostPort(HOST, 0), rude),)))
            (port,) = (listener.port for listener in w.targets)
            if way == "to the far end":
                listener = await listen_for(w.client, Forward(HostPort(HOST, 0), rude))
                stack.callback(listener.close)
                port = listener.sockets[0].getsockname()[1]
            for _ in range(20):
                reader, writer = await asyncio.open_connection(HOST, port)
                assert await ends_with_reset(reader)
                await closed(writer)
            await until(lambda: not w.client.counters.open + w.service.counters.open)
            assert (w.service if way == "to the far end" else w.client).counters.failed == 20
        gc.collect()
        await asyncio.sleep(0)
        assert not unseen

    run(scenario())


async def turns_of_the_loop(counted: list[int]) -> None:
    while True:
        counted[0] += 1
        await asyncio.sleep(0)


def test_those_who_come_together_are_taken_a_few_with_each_turn_of_the_loop() -> None:
    async def scenario() -> None:
        turn, taken = [0], list[int]()

        def accepted(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            taken.append(turn[0])
            writer.transport.abort()

        server = await opening.listen(accepted, HOST, 0)
        counting = asyncio.create_task(turns_of_the_loop(turn))
        await asyncio.sleep(0)
        with ExitStack() as stack:
            for _ in range(100):  # all of them, before anything else is done in this turn
                stack.enter_context(socket.create_connection(server.sockets[0].getsockname()))
            await until(lambda: len(taken) == 100)
        counting.cancel()
        server.close()
        assert max(Counter(taken).values()) <= opening.ACCEPTED_AT_ONCE
        assert max(taken) < 200, "and no more turns than that takes"

    run(scenario())


@pytest.mark.parametrize("kind", ["port", "proxy"])
def test_of_those_who_come_together_only_some_are_opened_at_once_and_all_are_served(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(near_end, "MAX_OPENING", 4)
    monkeypatch.setattr(opening, "MAX_OPENING_OF_ONE", 1.0)
    monkeypatch.setattr(opening, "MAX_TURN", 60.0)

    async def scenario() -> None:
        answers = asyncio.Event()

        async def slow(to: HostPort, *about: Any, **lookup: Any) -> socket.socket:
            await answers.wait()
            return await dial(to, *about, **lookup)

        async with world() as w:
            echo_port = HostPort("echo.test", w.echo)
            port = await (w.forward(echo_port) if kind == "port" else w.proxy())
            request = b"" if kind == "port" else b"CONNECT echo.test:%d HTTP/1.1\r\n\r\n" % w.echo

            async def connected() -> Streams:
                reader, writer = await asyncio.open_connection(HOST, port)
                writer.write(request)
                return reader, writer

            async def echoes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                writer.write(b"?")
                assert await reader.readexactly(1) == b"?"

            before = await connected()
            if request:
                await before[0].readuntil(b"\r\n\r\n")
            await echoes(*before)
            monkeypatch.setattr("multi.forward.dial.dial", slow)
            others = [await connected() for _ in range(12)]
            session = w.session
            await until(lambda: session.stats().streams == 2 + 4)
            StreamPair(*others.pop()).reset()
            await echoes(*before)
            assert session.stats().streams == 2 + 4
            answers.set()
            for reader, writer in others:
                if request:
                    await reader.readuntil(b"\r\n\r\n")
                await echoes(reader, writer)
            for _, writer in [before, *others]:
                await closed(writer)
            await until(lambda: session.stats().streams == 1)
            assert w.service.counters.opened == 12, "the one that has gone meanwhile was not connected"

    run(scenario())


def test_what_nobody_waits_for_any_more_is_not_opened_before_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands that wait for a target which does not answer would keep all other targets from being reached."""
    monkeypatch.setattr(far_end, "MAX_OPENING", 1)
    waiting, dialled = list[Any](), list[HostPort]()

    async def seen(reader: Any) -> object:
        waiting.append(reader)
        return await read_head(reader)

    async def scenario() -> None:
        answers = asyncio.Event()

        async def slow(to: HostPort, *about: Any, **lookup: Any) -> socket.socket:
            dialled.append(to)
            await answers.wait()
            return await dial(to, *about, **lookup)

        monkeypatch.setattr(far_end, "read_head", seen)
        monkeypatch.setattr("multi.forward.dial.dial", slow)
        async with world() as w:
            session, echo_port = w.session, HostPort("echo.test", w.echo)
            first = await open_stream(session, Connect(echo_port), USUAL)
            given_up = [await open_stream(session, Connect(HostPort(HOST, 9)), USUAL) for _ in range(20)]
            last = await open_stream(session, Connect(echo_port), USUAL)
            await until(lambda: len(waiting) == 22)
            for stream in given_up:
                stream.reset()
            await until(lambda: sum(reader.exception() is not None for reader in waiting) == 20)
            answers.set()
            for stream in (first, last):
                await answer_of(stream)
                stream.reset()
            assert dialled == [echo_port, echo_port]

    run(scenario())


@pytest.mark.parametrize("way", ["to the far end", "from the far end"])
def test_connections_leave_descriptors_to_all_else(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any left asyncio stops accepting: whoever comes then would hang until somebody else goes."""
    monkeypatch.setattr("multi.forward.opening.allowed_descriptors", lambda: 40)

    async def scenario() -> None:
        async with world(remotes=(Forward(HostPort(HOST, 0), HostPort(HOST, 0)),)) as w:
            if way == "to the far end":
                listener = await listen_for(w.client, Forward(HostPort(HOST, 0), HostPort(HOST, w.echo)))
                w.stack.callback(listener.close)
                port = listener.sockets[0].getsockname()[1]
            else:
                (port,) = (listener.port for listener in w.targets)
            served, refused = list[Streams](), 0
            for _ in range(60):
                reader, writer = await asyncio.open_connection(HOST, port)
                writer.write(b"x")
                try:
                    assert await reader.read(1) == b"x"
                    served.append((reader, writer))
                except ConnectionResetError:
                    refused += 1
            assert (len(served), refused) == (30, 30)
            assert w.client.counters.failed + w.service.counters.failed == 30
            for reader, writer in served:
                writer.write(b"y")
                assert await reader.read(1) == b"y", "those that were there go on"
                await closed(writer)
            await stands_still(lambda: w.service.counters.open)
            reader, writer = await asyncio.open_connection(HOST, port)
            writer.write(b"x")
            assert await reader.read(1) == b"x", "there is room again"
            await closed(writer)

    run(scenario())


def test_all_sessions_together_leave_descriptors_to_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(near_end, "room_for", lambda taken: True)
    monkeypatch.setattr("multi.forward.opening.allowed_descriptors", lambda: 40)

    async def scenario() -> None:
        async with world() as w:
            clients = [w.client]
            config = load_config(WAY.client(w.server.port))
            clients.append(await w.stack.enter_async_context(ForwardClient(config, log=lambda _: None)))
            outcomes = list[int]()
            for number in range(40):
                listener = await listen_as_proxy(clients[number % 2], ProxyListener(HostPort(HOST, 0)), {})
                w.stack.callback(listener.close)
                reply, (_, writer) = await socks(listener.sockets[0].getsockname()[1], named(b"echo.test", w.echo))
                w.stack.push_async_callback(closed, writer)
                outcomes.append(reply[1])
            assert outcomes == [0] * 30 + [1] * 10

    run(scenario())


def test_clients_with_a_key_get_what_their_key_may_do(tmp_path: Path) -> None:
    rules = tmp_path / "rules.json"
    rules.write_text('{"allow": [], "keys": {"psk:laptop": {"allow": ["localhost:*"]}}}')
    keys = {}
    for name in ("laptop", "other"):
        keys[name] = tmp_path / f"{name}.psk"
        keys[name].write_text(f"{name}:{'ab' if name == 'laptop' else 'cd'}" + "cd" * 31 + "\n")
        keys[name].chmod(0o600)
    both = tmp_path / "both.psk"
    both.write_text(keys["laptop"].read_text() + keys["other"].read_text())
    both.chmod(0o600)

    async def scenario() -> None:
        async with AsyncExitStack() as stack:
            port = await stack.enter_async_context(target(echo))
            service = ForwardService(parse_rules(str(rules)), log=lambda _: None, lookup=lookup)
            server = await multi.start_server(service.serve, WAY.server(auth={"psk_file": str(both)}))
            stack.push_async_callback(server.wait_closed)
            stack.callback(server.abort)
            for name, code in (("laptop", 0), ("other", 2)):
                config = load_config(WAY.client(server.port, auth={"psk_file": str(keys[name])}))
                async with ForwardClient(config, log=lambda _: None) as client:
                    listener = await listen_as_proxy(client, ProxyListener(HostPort(HOST, 0)), {})
                    reply, (_, writer) = await socks(listener.sockets[0].getsockname()[1], named(b"echo.test", port))
                    assert reply[1] == code
                    await closed(writer)
                    listener.close()

    run(scenario())


def test_a_port_of_the_server_takes_only_so_many_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everybody on the server's machine may connect to it."""
    monkeypatch.setattr(far_end, "MAX_CONNECTIONS", 10)

    async def scenario() -> None:
        async with world(remotes=(Forward(HostPort(HOST, 0), HostPort(HOST, 0)),)) as w:
            (port,) = (listener.port for listener in w.targets)
            flood = [await asyncio.open_connection(HOST, port) for _ in range(30)]
            refused = 0
            for reader, writer in flood:
                writer.write(b"x")
                try:
                    assert await reader.read(1) == b"x"
                except ConnectionResetError:
                    refused += 1
            assert 20 <= refused < 30
            assert w.service.counters.failed == refused
            for _, writer in flood:
                await closed(writer)
            await stands_still(lambda: w.client.counters.open)
            reader, writer = await asyncio.open_connection(HOST, port)
            writer.write(b"x")
            assert await reader.read(1) == b"x", "there is room again"
            await closed(writer)

    run(scenario())


def test_what_keeps_a_client_from_going_on_is_told_and_not_waited_for() -> None:
    async def scenario() -> None:
        async with world() as w:

            def full(line: str) -> None:
                raise OSError(errno.ENOSPC, line)

            waiting = asyncio.create_task(w.client.wait())
            w.client._log = full
            w.server.abort()
            with pytest.raises(OSError, match="the session has ended"):
                await asyncio.wait_for(waiting, 5)

    run(scenario())


def test_a_client_that_cannot_take_the_servers_connections_any_more_does_not_go_on_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        async with world(remotes=(Forward(HostPort(HOST, 0), HostPort(HOST, 0)),)) as w:

            def bug(*_: object) -> None:
                raise ZeroDivisionError("a bug")

            monkeypatch.setattr(w.client, "_start_stream", bug)
            (port,) = (listener.port for listener in w.targets)
            _, writer = await asyncio.open_connection(HOST, port)
            with pytest.raises(ZeroDivisionError):
                await asyncio.wait_for(w.client.wait(), 5)
            await closed(writer)

    run(scenario())
