"""Sessions whose networks, names and servers misbehave, as far as loopback can play it."""

from __future__ import annotations

import asyncio
import errno
import gc
import random
import signal
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import multi
from multi import ConnectionState
from multi.asyncio import resolution as resolve_module
from multi.asyncio import roaming as networks_module
from multi.asyncio.driver import SessionDriver
from multi.asyncio.suspend import SleepWatch
from multi.discovery import interfaces_async
from multi.discovery.monitor import Loss
from multi.linux import policy_routes
from multi.protocol.payloads import decode_addresses
from multi.protocol.session import UNKNOWN_SAID
from multi.types import Family, Interface
from tests.integration.support import (
    HOST,
    LOOPS,
    Inbox,
    Relay,
    Way,
    collect,
    pattern,
    run,
    sockets_open,
    until,
)
from tests.processes import MORTAL
from tests.resolver import AGAIN, NO_NAME, Resolver
from tests.unit.discovery.test_monitor import netlink_sockets

MIB = 1024 * 1024
ACTIVE = ConnectionState.ACTIVE
LITERAL = {"transport": "tcp", "ip": "ipv4", "interface": "any", "remote_host": HOST}


class Dns(Resolver):
    """The system's resolver."""

    def gives(
        self, host: str, four: list[str] | Exception | None = None, six: list[str] | Exception | None = NO_NAME
    ) -> None:
        """None: silence, or what was answered before."""
        for family, answer in ((Family.IPV4, four), (Family.IPV6, six)):
            if answer is not None:
                self.answer(host, family, answer)


@pytest.fixture
def dns(monkeypatch: pytest.MonkeyPatch) -> Iterator[Dns]:
    made = Dns()
    monkeypatch.setattr("multi.asyncio.dns.system_lookup", made)
    yield made
    made.end()


class Bell:
    """A network monitor that says what a test wants it to say."""

    def __init__(self) -> None:
        self.subscribers: list[Callable[[tuple[Loss, ...]], None]] = []

    def subscribe(self, callback: Callable[[tuple[Loss, ...]], None]) -> Callable[[], None]:
        self.subscribers.append(callback)
        return lambda: self.subscribers.remove(callback)

    def ring(self, *losses: Loss) -> None:
        for callback in list(self.subscribers):
            callback(losses)


@pytest.fixture
def bell(monkeypatch: pytest.MonkeyPatch) -> Bell:
    made = Bell()
    monkeypatch.setattr(networks_module, "monitor", lambda: made)
    return made


@asynccontextmanager
async def serving(way: Way, **more: Any) -> AsyncIterator[tuple[multi.Server, Inbox]]:
    inbox = Inbox()
    listen = {"host": "0.0.0.0", "port": 0, "transports": [way.transport]}
    server = await multi.start_server(inbox.on_client, way.server(**{"listen": listen} | more))
    try:
        yield server, inbox
    finally:
        server.abort()
        await server.wait_closed()


async def opened(config: dict[str, Any]) -> multi.Session:
    return await multi.connect(config)


def named(host: str, **more: Any) -> dict[str, Any]:
    return {"transport": "tcp", "ip": "any", "interface": "any", "remote_host": host} | more


def active(session: multi.Session) -> list[multi.ConnectionInfo]:
    return [info for info in session.connections if info.state is ACTIVE]


def locals_of(session: multi.Session) -> list[str]:
    return sorted(info.local.split(":")[0] for info in active(session))


def session_of(writer: Any) -> multi.Session:
    found = writer.get_extra_info("session")
    assert isinstance(found, multi.Session)
    return found


async def echo(reader: Any, writer: Any) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()


async def round_trip(session: multi.Session, data: bytes) -> None:
    """All of it comes back from a server that echoes."""
    session.writer.write(data)
    assert await session.reader.readexactly(len(data)) == data


# --- names ---


@pytest.mark.parametrize("loop", LOOPS)
def test_a_name_that_answers_late_is_dialled_and_counts_for_all(
    loop: str, dns: Dns, development_certificates: Path
) -> None:
    async def scenario() -> None:
        way = Way(development_certificates)
        async with serving(way) as (server, _):
            entries = [LITERAL, named("late.test")]
            config = way.client(server.port, connection_priority=entries, multi_config={"wait": "all"})
            opening = asyncio.ensure_future(opened(config))
            await until(lambda: bool(server.sessions), "the literal entry opens")
            await asyncio.sleep(0.05)
            assert not opening.done(), "the name may still give a connection"
            dns.gives("late.test", ["127.0.0.2"])
            session = await opening
            assert sorted(info.remote for info in active(session)) == [
                f"127.0.0.1:{server.port}",
                f"127.0.0.2:{server.port}",
            ]
            await session.close()

    run(scenario(), loop)


def test_a_name_that_fails_late_lets_all_be_over(dns: Dns, development_certificates: Path) -> None:
    async def scenario() -> None:
        way = Way(development_certificates)
        async with serving(way) as (server, _):
            entries = [LITERAL, named("never.test")]
            config = way.client(server.port, connection_priority=entries, multi_config={"wait": "all"})
            opening = asyncio.ensure_future(opened(config))
            await until(lambda: bool(server.sessions), "the literal entry opens")
            dns.gives("never.test", NO_NAME)
            session = await asyncio.wait_for(opening, 5.0)
            assert len(active(session)) == 1
            await session.close()

    run(scenario())


def test_the_only_name_may_take_its_time(dns: Dns, development_certificates: Path) -> None:
    async def scenario() -> None:
        way = Way(development_certificates)
        async with serving(way) as (server, _):
            config = way.client(server.port, connection_priority=[named("slow.test")])
            opening = asyncio.ensure_future(opened(config))
            await until(lambda: len(dns.asked) == 2, "both families are asked")
            await asyncio.sleep(0.3)
            assert not opening.done()
            dns.gives("slow.test", [HOST])
            await (await opening).close()

    run(scenario())


def test_a_family_that_never_answers_is_not_waited_for(dns: Dns, development_certificates: Path) -> None:
    async def scenario() -> None:
        way = Way(development_certificates)
        async with serving(way) as (server, _):
            dns.gives("half.test", [HOST], six=None)
            config = way.client(server.port, connection_priority=[named("half.test")])
            session = await asyncio.wait_for(opened(config), 5.0)
            await session.close()

    run(scenario())


def test_ipv6_that_answers_after_ipv4_becomes_an_alternative_and_no_second_connection(
    dns: Dns, development_certificates: Path
) -> None:
    async def scenario() -> None:
        way = Way(development_certificates)
        listen = {"host": "::", "port": 0, "transports": ["tcp"]}
        async with serving(way, listen=listen) as (server, _):
            dns.gives("both.test", [HOST], six=None)
            config = way.client(server.port, connection_priority=[named("both.test")])
            session = await opened(config)
            await asyncio.sleep(0.1)
            dns.gives("both.test", six=["::1"])
            await asyncio.sleep(0.3)
            assert [info.remote for info in active(session)] == [f"{HOST}:{server.port}"]
            await session.close()

    run(scenario())


def test_a_resolver_that_fails_is_named_in_the_error(dns: Dns, development_certificates: Path) -> None:
    async def scenario() -> None:
        dns.gives("broken.test", AGAIN, AGAIN)
        config = Way(development_certificates).client(1, connection_priority=[named("broken.test")])
        with pytest.raises(multi.NoUsableConnection, match="Temporary failure in name resolution"):
            await multi.open_connection(config)

    run(scenario())


def test_an_unusable_entry_does_not_end_the_opening_while_a_name_is_asked(
    dns: Dns, development_certificates: Path
) -> None:
    async def scenario() -> None:
        way = Way(development_certificates)
        async with serving(way) as (server, _):
            unusable = LITERAL | {"interface": "nosuch0"}
            config = way.client(server.port, connection_priority=[unusable, named("slow.test")])
            opening = asyncio.ensure_future(opened(config))
            await until(lambda: len(dns.asked) == 2, "both families are asked")
            await asyncio.sleep(0.1)
            assert not opening.done()
            dns.gives("slow.test", [HOST])
            await (await opening).close()

    run(scenario())


def test_an_unusable_entry_and_a_name_without_an_answer_end_with_the_open_timeout(
    dns: Dns, development_certificates: Path
) -> None:
    async def scenario() -> None:
        unusable = LITERAL | {"interface": "nosuch0"}
        config = Way(development_certificates).client(
            1, connection_priority=[unusable, named("slow.test")], multi_config={"open_timeout": 0.3}
        )
        with pytest.raises(multi.NoUsableConnection, match=r"not resolved within 0\.3 s") as caught:
            await multi.open_connection(config)
        assert "nosuch0" in str(caught.value)

    run(scenario())


def test_a_name_that_leads_elsewhere_by_now_is_asked_again_when_nothing_is_left(
    dns: Dns, monkeypatch: pytest.MonkeyPatch, development_certificates: Path
) -> None:
    monkeypatch.setattr("multi.asyncio.dns.ASK_AGAIN", 0.05)
    monkeypatch.setattr(networks_module, "LOOK_DETACHED", 0.1)

    async def scenario() -> None:
        way = Way(development_certificates)
        async with serving(way) as (server, inbox), Relay(server.port) as relay:
            dns.gives("moves.test", [HOST])
            config = way.client(relay.port, connection_priority=[named("moves.test")])
            async with multi.connect(config) as session:
                await session.confirmed()
                reader, writer = await inbox.next()
                await asyncio.sleep(0.1)
                elsewhere = await asyncio.start_server(relay.serve, "127.0.0.2", relay.port)
                dns.gives("moves.test", ["127.0.0.2"])
                await relay.close()
                session.writer.write(b"still here")
                assert await asyncio.wait_for(reader.readexactly(10), 5.0) == b"still here"
                await until(lambda: bool(active(session)), "the server is heard")
                await until(lambda: bool(active(session)), "the client knows too")
                assert active(session)[0].remote == f"127.0.0.2:{relay.port}"
                writer.close()
                elsewhere.close()

    run(scenario())


# --- changes at awkward moments ---


def test_a_network_that_changes_before_the_first_look_is_over_does_not_end_the_opening(
    bell: Bell, monkeypatch: pytest.MonkeyPatch, development_certificates: Path
) -> None:
    looks = 0
    first_may_end = asyncio.Event()

    async def slow_first(*arguments: Any, **keywords: Any) -> tuple[Interface, ...]:
        nonlocal looks
        looks += 1
        if looks == 1:
            await first_may_end.wait()
        return await interfaces_async(*arguments, **keywords)

    monkeypatch.setattr(resolve_module, "interfaces_known", lambda *_arguments, **_keywords: None)
    monkeypatch.setattr(resolve_module, "interfaces_async", slow_first)

    async def scenario() -> None:
        way = Way(development_certificates)
        async with serving(way) as (server, _):
            opening = asyncio.ensure_future(opened(way.client(server.port)))
            await until(lambda: looks == 1, "the first look")
            bell.ring(Loss("wlan0", "", "no carrier"))
            await asyncio.sleep(0.1)
            first_may_end.set()
            session = await opening
            await until(lambda: looks >= 2, "what changed meanwhile is looked at")
            await session.confirmed()
            await session.close()

    run(scenario())


def test_what_the_application_says_of_networks_is_harmless_at_any_time(development_certificates: Path) -> None:
    async def scenario() -> None:
        way = Way(development_certificates)
        async with serving(way) as (server, inbox):
            session = await opened(way.client(server.port))
            for usable in (True, False):
                session.network_changed("no-such-interface", usable=usable)
            await session.confirmed()
            assert len(active(session)) == 1
            _, writer = await inbox.next()
            writer.close()
            await session.close()
            for usable in (True, False):
                session.network_changed(usable=usable)
                session.network_changed("eth0", usable=usable)
            with pytest.raises(multi.MultiError):
                await session.handover("wifi")
            with pytest.raises(multi.MultiError):
                await session.add_connection(LITERAL)
            with pytest.raises(multi.MultiError):
                await session.remove_connection(0)
            session.set_scheduler("RR")

    run(scenario())


def test_a_session_that_closes_hands_over_no_more(development_certificates: Path) -> None:
    async def scenario() -> None:
        way = Way(development_certificates)
        async with serving(way) as (server, inbox):
            session = await opened(way.client(server.port))
            await session.confirmed()
            _, writer = await inbox.next()
            closing = asyncio.ensure_future(session.close())
            await asyncio.sleep(0)
            with pytest.raises(multi.LocalProtocolError, match="being closed"):
                await session.handover(0)
            with pytest.raises(multi.LocalProtocolError, match="being closed"):
                await session.add_connection(LITERAL)
            writer.close()
            await closing

    run(scenario())


def test_unknown_connections_are_refused_in_words(development_certificates: Path) -> None:
    async def scenario() -> None:
        way = Way(development_certificates)
        async with serving(way) as (server, inbox):
            two = [LITERAL, LITERAL | {"remote_host": "127.0.0.2"}]
            config = way.client(server.port, connection_priority=two, multi_config={"wait": "all"})
            async with multi.connect(config) as session:
                with pytest.raises(multi.LocalProtocolError, match="77"):
                    await session.remove_connection(77)
                with pytest.raises(multi.LocalProtocolError, match="77"):
                    session.set_role(77, "backup")
                with pytest.raises(multi.LocalProtocolError):
                    await session.handover(77)
                assert len(active(session)) == 2
                (await inbox.next())[1].close()

    run(scenario())


# --- handovers that meet ---


def test_a_second_handover_is_refused_and_leaves_the_first_alone(development_certificates: Path) -> None:
    async def scenario() -> None:
        way = Way(development_certificates)
        async with serving(way) as (server, inbox), Relay(server.port) as relay:
            relay.flowing.clear()
            silent = LITERAL | {"remote_port": relay.port, "interface": "127.0.0.1"}
            first = LITERAL | {"interface": "127.0.0.2"}
            async with multi.connect(way.client(server.port, connection_priority=[first, silent])) as session:
                await inbox.next()
                moving = asyncio.ensure_future(session.handover("127.0.0.1"))
                await asyncio.sleep(0.05)
                with pytest.raises(multi.TransportError, match="another handover is under way"):
                    await session.handover("127.0.0.1")
                relay.flowing.set()
                await asyncio.wait_for(moving, 5.0)
                await until(lambda: locals_of(session) == ["127.0.0.1"], "moved")

    run(scenario())


# --- servers and middleboxes that misbehave ---


class Mute(asyncio.DatagramProtocol):
    """Takes datagrams and says nothing."""


@asynccontextmanager
async def mute(transport: str) -> AsyncIterator[int]:
    """A server that accepts and never answers: the system takes the connections, and nobody picks them up."""
    if transport == "quic":
        loop = asyncio.get_running_loop()
        endpoint, _ = await loop.create_datagram_endpoint(Mute, local_addr=(HOST, 0))
        yield endpoint.get_extra_info("sockname")[1]
        endpoint.close()
        return
    with socket.create_server((HOST, 0), backlog=64) as listener:
        yield listener.getsockname()[1]


@pytest.mark.parametrize("name", ["tcp-sealed", "tcp-tls", "mptcp-sealed", "quic"])
def test_a_server_that_accepts_and_never_answers_ends_with_the_open_timeout(
    name: str, development_certificates: Path
) -> None:
    async def scenario() -> None:
        way = Way(development_certificates, name)
        async with mute(way.transport) as port:
            started = time.monotonic()
            with pytest.raises(multi.NoUsableConnection, match=r"no answer within 0.5 s|did not open within 0.5 s"):
                await multi.open_connection(way.client(port, multi_config={"open_timeout": 0.5}))
            assert 0.4 < time.monotonic() - started < 5.0

    run(scenario())


@pytest.mark.parametrize(
    ("name", "connect"), [("tcp-sealed", "seq"), ("tcp-sealed", "stag"), ("mptcp-sealed", "stag"), ("quic", "par")]
)
def test_a_server_that_never_answers_does_not_keep_the_other_from_opening(
    name: str, connect: str, development_certificates: Path
) -> None:
    async def scenario() -> None:
        way = Way(development_certificates, name)
        async with serving(way) as (server, _), mute(way.transport) as port:
            entry = {"transport": way.transport, "ip": "ipv4", "interface": "any", "remote_host": HOST}
            config = way.client(
                server.port,
                connection_priority=[entry | {"remote_port": port}, entry],
                multi_config={"connect": connect},
            )
            started = time.monotonic()
            async with multi.connect(config) as session:
                await session.confirmed()
                assert [info.remote for info in active(session)] == [f"{HOST}:{server.port}"]
                assert time.monotonic() - started < 9.0, "before the open timeout"
                for live in server.sessions:
                    live.writer.close()

    run(scenario())


class Nat(asyncio.DatagramProtocol):
    """A NAT in front of a server: one socket towards it for each client, which `forget` replaces by another."""

    def __init__(self, port: int) -> None:
        self._server = (HOST, port)
        self._near: asyncio.DatagramTransport | None = None
        self._far: dict[Any, socket.socket] = {}
        self.forgotten = 0
        self.port = 0

    def connection_made(self, transport: Any) -> None:
        self._near = transport
        self.port = transport.get_extra_info("sockname")[1]

    def datagram_received(self, data: bytes, addr: Any) -> None:
        far = self._far.get(addr)
        if far is None:
            sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
            sock.connect(self._server)
            loop = asyncio.get_running_loop()
            loop.add_reader(sock, self._answer, sock, addr)
            self._far[addr] = far = sock
        with suppress(BlockingIOError, ConnectionRefusedError):
            far.send(data)

    def _answer(self, sock: socket.socket, addr: Any) -> None:
        with suppress(BlockingIOError, ConnectionRefusedError):
            for _ in range(64):
                data = sock.recv(65536)
                if self._near is not None:
                    self._near.sendto(data, addr)

    def forget(self) -> None:
        """What the server sends to the old mapping is lost."""
        for sock in self._far.values():
            asyncio.get_running_loop().remove_reader(sock)
            sock.close()
        self.forgotten += len(self._far)
        self._far.clear()

    def close(self) -> None:
        self.forget()
        if self._near is not None:
            self._near.close()


@pytest.mark.parametrize("loop", ["uvloop"])
def test_a_nat_that_forgets_the_mapping_of_a_quic_connection_loses_nothing(
    loop: str, development_certificates: Path
) -> None:
    data = pattern(3 * MIB)

    async def scenario() -> None:
        way = Way(development_certificates, "quic")
        async with serving(way) as (server, inbox):
            _, nat = await asyncio.get_running_loop().create_datagram_endpoint(
                lambda: Nat(server.port), local_addr=(HOST, 0)
            )
            async with multi.connect(way.client(nat.port)) as session:
                await session.confirmed()
                reader, writer = await inbox.next()
                echoing = asyncio.ensure_future(echo(reader, writer))
                await round_trip(session, b"before")
                nat.forget()
                await asyncio.wait_for(round_trip(session, b"after an idle time"), 5.0)

                async def send() -> None:
                    for start in range(0, len(data), 65536):
                        session.writer.write(data[start : start + 65536])
                        await session.writer.drain()
                        if start in (MIB // 2, MIB, 2 * MIB):
                            nat.forget()

                sending = asyncio.ensure_future(send())
                assert await asyncio.wait_for(session.reader.readexactly(len(data)), 25.0) == data
                await sending
                assert nat.forgotten >= 4
                session.writer.write_eof()
                await echoing
            nat.close()

    run(scenario(), loop)


def test_a_server_that_only_sends_finds_the_way_after_the_nat_has_forgotten(development_certificates: Path) -> None:
    data = pattern(4 * MIB)

    async def scenario() -> None:
        way = Way(development_certificates, "quic")
        async with serving(way) as (server, inbox):
            _, nat = await asyncio.get_running_loop().create_datagram_endpoint(
                lambda: Nat(server.port), local_addr=(HOST, 0)
            )
            async with multi.connect(way.client(nat.port)) as session:
                await session.confirmed()
                _, writer = await inbox.next()
                writer.write(data)
                received = await session.reader.readexactly(MIB)
                nat.forget()
                rest = await asyncio.wait_for(session.reader.readexactly(len(data) - MIB), 25.0)
                assert received + rest == data
                writer.close()
            nat.close()

    run(scenario())


class Balancer:
    """Takes connections to one server or another, and counts them."""

    def __init__(self, port: int) -> None:
        self.relay = Relay(port)
        self.dials = 0

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[int]:
        server = await asyncio.start_server(self._serve, HOST, 0)
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            server.close()
            await self.relay.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.dials += 1
        await self.relay.serve(reader, writer)


def test_a_join_that_reached_another_server_is_tried_again_but_not_hammered(development_certificates: Path) -> None:
    async def scenario() -> None:
        way = Way(development_certificates)
        async with serving(way) as (server, inbox), serving(way) as (stranger, _):
            balancer = Balancer(stranger.port)
            async with balancer.listening() as port:
                config = way.client(server.port, connection_priority=[LITERAL, LITERAL | {"remote_port": port}])
                async with multi.connect(config) as session:
                    await session.confirmed()
                    reader, writer = await inbox.next()
                    echoing = asyncio.ensure_future(echo(reader, writer))
                    await until(lambda: balancer.dials >= 2, "it is tried again")
                    await asyncio.sleep(1.5)
                    # Waits of 0.2, 0.4, 0.8 and 1.6 s, each up to a fifth shorter.
                    assert 3 <= balancer.dials <= 5
                    await round_trip(session, pattern(MIB))
                    assert len(active(session)) == 1
                    balancer.relay.target = server.port
                    session.network_changed(usable=True)
                    await until(lambda: len(active(session)) == 2, "the balancer sends it to the right one")
                    session.writer.write_eof()
                    await echoing

    run(scenario())


@pytest.mark.parametrize("name", ["tcp-tls", "tcp-sealed"])
@pytest.mark.parametrize(("shared", "dials"), [(True, 1), (False, UNKNOWN_SAID)], ids=["same key", "another key"])
def test_a_server_that_forgot_the_session_ends_it_at_once_only_if_it_has_proved_itself(
    name: str, shared: bool, dials: int, development_certificates: Path, tmp_path: Path
) -> None:
    key = tmp_path / "reset.key"
    key.write_text("5a" * 32)

    async def scenario() -> None:
        way = Way(development_certificates, name)
        listen = {"host": "0.0.0.0", "port": 0, "transports": ["tcp"]}
        keyed = listen | {"reset_key_file": str(key)}
        other = keyed if shared else listen
        async with serving(way, listen=keyed) as (server, inbox), serving(way, listen=other) as (stranger, _):
            balancer = Balancer(server.port)
            async with balancer.listening() as port:
                session = await opened(way.client(port))
                await session.confirmed()
                await inbox.next()
                balancer.relay.target, balancer.dials = stranger.port, 0
                balancer.relay.cut()
                with pytest.raises(multi.SessionLost, match="session gone"):
                    await asyncio.wait_for(session.wait_closed(), 6.0)
                assert balancer.dials == dials

    run(scenario())


# --- churn ---


def test_connections_come_and_go_in_any_order_while_data_moves(development_certificates: Path) -> None:
    data = pattern(4 * MIB)

    async def scenario() -> None:
        rng = random.Random(7)
        way = Way(development_certificates)
        async with serving(way) as (server, inbox), mute("tcp") as nowhere:
            stable = LITERAL | {"interface": "127.0.0.2"}
            async with multi.connect(way.client(server.port, connection_priority=[stable])) as session:
                await session.confirmed()
                reader, writer = await inbox.next()
                echoing = asyncio.ensure_future(echo(reader, writer))
                moving = asyncio.ensure_future(repeatedly(session, data, 4))
                before = len(asyncio.all_tasks())
                step = 0
                while not moving.done() or step < 150:
                    await churn(session, rng, nowhere)
                    step += 1
                await moving
                await until(lambda: all(info.state is ACTIVE or info.state.over for info in session.connections))
                for info in active(session)[1:]:  # all but one: none was only suspect, and comes back later
                    await session.remove_connection(info.id)
                await until(lambda: len(asyncio.all_tasks()) <= before, "no dial goes on")
                assert len(active(session)) == 1
                assert len(session.connections) <= 70, "ended connections are forgotten"
                session.writer.write_eof()
                await echoing

    async def repeatedly(session: multi.Session, data: bytes, times: int) -> None:
        for _ in range(times):
            sending = asyncio.ensure_future(send_all(session, data))
            assert await session.reader.readexactly(len(data)) == data
            await sending

    async def send_all(session: multi.Session, data: bytes) -> None:
        for start in range(0, len(data), 65536):
            session.writer.write(data[start : start + 65536])
            await session.writer.drain()

    async def churn(session: multi.Session, rng: random.Random, nowhere: int) -> None:
        living = active(session)
        some = rng.choice(living).id if living else 0
        match rng.randrange(7):
            case 0 if len(living) < 5:
                await collect(session.add_connection(LITERAL | {"interface": f"127.0.0.{rng.randrange(3, 9)}"}))
            case 1:
                adding = asyncio.ensure_future(session.add_connection(LITERAL | {"remote_port": nowhere}))
                for _ in range(rng.randrange(30)):
                    await asyncio.sleep(0)
                adding.cancel()
                await asyncio.gather(adding, return_exceptions=True)
            case 2 if len(living) > 1:
                await collect(asyncio.wait_for(session.remove_connection(some), 5.0))
            case 3:
                with suppress(multi.LocalProtocolError):
                    session.set_role(some, rng.choice(["active", "backup"]))
            case 4:
                session.set_scheduler(rng.choice(["adaptive", "RR", "LL", "redundant", "ECF", "BLEST"]))
            case 5:
                session.network_changed(rng.choice(["", "lo", "eth0", "nosuch0"]), usable=rng.random() < 0.7)
            case _:
                await asyncio.sleep(0.002)

    run(scenario(), timeout=50.0)


def test_a_cancelled_addition_that_a_look_has_found_first_leaves_nothing(
    bell: Bell, monkeypatch: pytest.MonkeyPatch, development_certificates: Path
) -> None:
    looks, held = 0, asyncio.Event()

    async def slow(*arguments: Any, **keywords: Any) -> tuple[Interface, ...]:
        nonlocal looks
        looks += 1
        if looks == 2:  # that of the addition
            await held.wait()
        return await interfaces_async(*arguments, **keywords)

    monkeypatch.setattr(resolve_module, "interfaces_known", lambda *_arguments, **_keywords: None)
    monkeypatch.setattr(resolve_module, "interfaces_async", slow)

    async def scenario() -> None:
        way = Way(development_certificates)
        async with serving(way) as (server, inbox), multi.connect(way.client(server.port)) as session:
            await session.confirmed()
            adding = asyncio.ensure_future(session.add_connection(LITERAL | {"interface": "127.0.0.9"}))
            await until(lambda: looks == 2, "the addition looks")
            bell.ring()
            await until(lambda: len(active(session)) == 2, "a look has found it first")
            adding.cancel()
            await asyncio.gather(adding, return_exceptions=True)
            await until(lambda: len(active(session)) == 1, "it goes")
            (await inbox.next())[1].close()

    run(scenario())


GROUPED = LITERAL | {"group": "g"}


@asynccontextmanager
async def with_a_group(certificates: Path) -> AsyncIterator[tuple[multi.Session, Relay]]:
    """A session with two connections, that of a group over the relay."""
    way = Way(certificates)
    async with serving(way) as (server, inbox), Relay(server.port) as relay:
        entries = [LITERAL | {"interface": "127.0.0.2"}, GROUPED | {"remote_port": relay.port}]
        config = way.client(server.port, connection_priority=entries, multi_config={"wait": "all"})
        async with multi.connect(config) as session:
            _, writer = await inbox.next()
            yield session, relay
            writer.close()


def test_an_addition_to_a_group_that_fails_leaves_the_group_alone(development_certificates: Path) -> None:
    async def scenario() -> None:
        async with with_a_group(development_certificates) as (session, relay):
            await relay.close()
            await until(lambda: len(active(session)) == 1, "the group has lost its connection")
            with pytest.raises(multi.NoUsableConnection):
                await session.add_connection(GROUPED | {"remote_port": 1})
            await relay.open()
            await until(lambda: len(active(session)) == 2, "the group is dialled again")

    run(scenario())


def test_an_addition_to_a_group_takes_over_what_the_group_has_lost(development_certificates: Path) -> None:
    async def scenario() -> None:
        async with with_a_group(development_certificates) as (session, relay):
            (up,) = (i.id for i in active(session) if i.remote.endswith(f":{relay.port}"))
            assert await session.add_connection(GROUPED | {"interface": "127.0.0.3"}) == [up]
            await relay.close()
            await until(lambda: locals_of(session) == ["127.0.0.2", "127.0.0.3"], "the alternative takes over")

    run(scenario())


# --- nothing is left ---


def test_an_opening_that_is_cancelled_anywhere_leaves_no_subscription_and_no_timer(
    bell: Bell, dns: Dns, development_certificates: Path
) -> None:
    async def scenario() -> None:
        way = Way(development_certificates)
        dns.gives("here.test", [HOST])
        async with serving(way) as (server, _):
            config = way.client(server.port, connection_priority=[named("here.test"), LITERAL], manage_routes=True)
            tasks = len(asyncio.all_tasks())
            for moment in range(40):
                opening = asyncio.ensure_future(opened(config))
                for _ in range(moment):
                    await asyncio.sleep(0)
                    if moment % 3 == 2:
                        bell.ring()
                if moment % 4 == 3:
                    await asyncio.sleep(moment * 0.0005)
                opening.cancel()
                outcome = (await asyncio.gather(opening, return_exceptions=True))[0]
                if isinstance(outcome, multi.Session):
                    outcome.abort()
                    await outcome.settle()
                assert not bell.subscribers
                assert len(asyncio.all_tasks()) <= tasks

    run(scenario())


class SlowSpace:
    """The policy routes of a network namespace that take their time."""

    def __init__(self) -> None:
        self.asked, self.go = threading.Event(), threading.Event()
        self.plans: dict[object, str] = {}

    def install(self, holder: object, *_: Any) -> list[str]:
        self.asked.set()
        self.go.wait(10.0)
        self.plans[holder] = "there"
        return []

    def leave(self, holder: object) -> None:
        self.plans.pop(holder, None)

    def close(self) -> None:
        assert not self.plans


def test_policy_routes_made_while_the_opening_is_given_up_are_taken_away(
    monkeypatch: pytest.MonkeyPatch, development_certificates: Path
) -> None:
    routes = SlowSpace()
    monkeypatch.setattr(policy_routes, "_Space", lambda: routes)

    async def scenario() -> None:
        config = Way(development_certificates).client(1, remote_host="192.0.2.1", manage_routes=True)
        opening = asyncio.ensure_future(opened(config))
        await until(routes.asked.is_set, "the routes are made")
        opening.cancel()
        await asyncio.sleep(0.05)
        routes.go.set()
        await asyncio.gather(opening, return_exceptions=True)
        assert opening.cancelled()
        assert not routes.plans

    run(scenario())
    assert routes.asked.is_set()
    assert not routes.plans


def test_two_hundred_sessions_share_a_monitor_and_leave_nothing(
    monkeypatch: pytest.MonkeyPatch, development_certificates: Path
) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        way = Way(development_certificates)
        async with serving(way, limits={"max_sessions_per_source": 1000}) as (server, inbox):
            before, tasks, listening = len(sockets_open()), len(asyncio.all_tasks()), netlink_sockets()
            sessions = [await opened(way.client(server.port)) for _ in range(200)]
            for session in sessions:
                await session.confirmed()
            assert netlink_sockets() == listening + 3
            assert len(asyncio.all_tasks()) == tasks, "no task for each session"
            await asyncio.sleep(0.2)
            scheduled = 0
            real = loop.call_at

            def counted(*arguments: Any, **keywords: Any) -> asyncio.TimerHandle:
                nonlocal scheduled
                scheduled += 1
                return real(*arguments, **keywords)

            monkeypatch.setattr(loop, "call_at", counted)
            await asyncio.sleep(1.0)
            monkeypatch.undo()
            # Keep-alives go every five seconds at most; 400 ends that looked once a second would set 400 timers.
            assert scheduled < 300
            for session in sessions:
                session.abort()
            await asyncio.gather(*(session.settle() for session in sessions))
            await until(lambda: not server.sessions, "the server has heard it")
            assert netlink_sockets() == listening
            await until(lambda: len(sockets_open()) <= before, "all sockets are closed")
            assert len(asyncio.all_tasks()) == tasks
            while not inbox.waiting.empty():
                inbox.waiting.get_nowait()
            sessions.clear()
            del session
            gc.collect()
            assert len([thing for thing in gc.get_objects() if isinstance(thing, SessionDriver)]) < 10

    run(scenario(), timeout=50.0)


@pytest.mark.parametrize("loop", LOOPS)
def test_where_netlink_is_refused_a_session_opens_and_the_interfaces_are_read_again_and_again(
    loop: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    development_certificates: Path,
) -> None:
    real = socket.socket

    class Refusing(socket.socket):
        def __init__(self, family: int = -1, *arguments: Any, **keywords: Any) -> None:
            if family == socket.AF_NETLINK:
                raise PermissionError(errno.EPERM, "Operation not permitted")
            super().__init__(family, *arguments, **keywords)

    async def scenario() -> None:
        way = Way(development_certificates)
        async with serving(way) as (server, inbox):
            monkeypatch.setattr(socket, "socket", Refusing)
            async with multi.connect(way.client(server.port)) as session:
                await session.confirmed()
                reader, writer = await inbox.next()
                echoing = asyncio.ensure_future(echo(reader, writer))
                await round_trip(session, pattern(MIB))
                await session.add_connection(LITERAL | {"interface": "127.0.0.3"})
                session.writer.write_eof()
                await echoing
            monkeypatch.setattr(socket, "socket", real)
        assert "cannot hear of network changes" in caplog.text

    run(scenario(), loop)


# --- sleep ---


@pytest.mark.parametrize("loop", LOOPS)
def test_a_machine_that_slept_suspects_everything_and_loses_nothing(
    loop: str, monkeypatch: pytest.MonkeyPatch, development_certificates: Path
) -> None:
    slept = 0.0
    data = pattern(3 * MIB)

    async def scenario() -> None:
        nonlocal slept
        quick = partial(SleepWatch, clock=lambda: slept, interval=0.05)
        monkeypatch.setattr(networks_module, "SleepWatch", quick)
        way = Way(development_certificates)
        async with serving(way) as (server, inbox), multi.connect(way.client(server.port)) as session:
            await session.confirmed()
            reader, writer = await inbox.next()
            echoing = asyncio.ensure_future(echo(reader, writer))
            events = session.events()
            for jump in (3600.0, -7200.0, 0.5, 1e9):  # clocks that jump back or a little say nothing
                slept += jump
                await asyncio.wait_for(echoed(session, data), 20.0)
                await asyncio.sleep(0.1)
            session.writer.write_eof()
            await echoing
            await session.close()
            reasons = [
                event.reason
                async for event in events
                if isinstance(event, multi.ConnectionChanged) and event.state is ConnectionState.SUSPECT
            ]
            told = [reason for reason in reasons if "slept" in reason]
            assert told == ["the machine slept for 3600 s", "the machine slept for 1000000000 s"]

    async def echoed(session: multi.Session, data: bytes) -> None:
        session.writer.write(data)
        assert await session.reader.readexactly(len(data)) == data

    run(scenario(), loop)


SERVER = """
import asyncio, sys, multi
async def echo(reader, writer):
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()
async def main():
    config = {"listen": {"host": "127.0.0.1", "port": 0, "transports": [sys.argv[1]]}}
    if sys.argv[1] == "quic":
        config["ssl_config"] = {"cert": sys.argv[2] + "/server-cert.pem", "key": sys.argv[2] + "/server-key.pem"}
    server = await multi.start_server(echo, config)
    print(server.port, flush=True)
    await server.serve_forever()
asyncio.run(main())
"""


def test_an_end_that_is_stopped_for_three_seconds_loses_nothing(development_certificates: Path) -> None:
    data = pattern(4 * MIB)

    async def scenario() -> None:
        await asyncio.gather(*(stopped(Way(development_certificates, name)) for name in ("tcp-sealed", "quic")))

    async def stopped(way: Way) -> None:
        command = [*MORTAL, sys.executable, "-c", SERVER, way.transport, str(development_certificates)]
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        try:
            assert process.stdout is not None
            port = int(await process.stdout.readline())
            async with multi.connect(way.client(port)) as session:
                await session.confirmed()
                sending = asyncio.ensure_future(send(session))
                first = await session.reader.readexactly(MIB)
                process.send_signal(signal.SIGSTOP)
                await asyncio.sleep(3.0)
                process.send_signal(signal.SIGCONT)
                rest = await asyncio.wait_for(session.reader.readexactly(len(data) - MIB), 20.0)
                assert first + rest == data
                await sending
                session.writer.write_eof()
                assert await session.reader.read() == b""
        finally:
            process.kill()
            await process.wait()

    async def send(session: multi.Session) -> None:
        for start in range(0, len(data), 65536):
            session.writer.write(data[start : start + 65536])
            await session.writer.drain()

    run(scenario(), timeout=50.0)


# --- addresses a server announces ---


@pytest.mark.parametrize(
    "payload",
    [
        bytes([9]) + 9 * (b"\x04\x1e\x6c" + bytes([198, 51, 100, 7])),
        b"\x01\x04\x00\x00" + bytes([198, 51, 100, 7]),
        b"\x01\x05\x1e\x6c" + bytes([198, 51, 100, 7]),
        b"\x01\x06\x1e\x6c" + bytes([198, 51, 100, 7]),
        b"",
    ],
    ids=["nine addresses", "port 0", "version 5", "too short", "empty"],
)
def test_a_malformed_announcement_is_refused(payload: bytes) -> None:
    with pytest.raises(multi.RemoteProtocolError):
        decode_addresses(payload)
