"""How sessions open over real sockets, what refuses them, and what the error says."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import multi
from tests.integration.support import HOST, WAYS, Inbox, Way, free_port, free_ports, run, silent_server, until

QUICK = 1.0  # seconds; "at once", on a busy machine

SOON = {"multi_config": {"open_timeout": 3.0}}
"""For what is refused until then: a busy server is asked again."""


@asynccontextmanager
async def serving(way: Way, **more: Any) -> AsyncIterator[tuple[multi.Server, Inbox]]:
    inbox = Inbox()
    server = await multi.start_server(inbox.on_client, way.server(**more))
    try:
        yield server, inbox
    finally:
        server.abort()
        await server.wait_closed()


@pytest.mark.parametrize("connect", ["seq", "par", "stag"])
def test_every_way_of_racing_opens_all_connections_past_dead_ones(connect: str, development_certificates: Path) -> None:
    async def scenario() -> None:
        way = Way(development_certificates, "tcp-tls")
        listen = {"host": HOST, "port": 0}
        async with serving(way, listen=listen) as (server, inbox):
            dead = {"transport": "tcp", "ip": "ipv4", "interface": "any", "remote_port": free_port()}
            good = [[name, "ipv4", "any"] for name in ("tcp", "mptcp", "quic")]
            config = way.client(server.port, connection_priority=[dead, *good])
            started = asyncio.get_running_loop().time()
            async with multi.connect(config | {"multi_config": {"connect": connect, "wait": "all"}}) as session:
                assert [info.state for info in session.connections] == [multi.ConnectionState.ACTIVE] * 3
                assert asyncio.get_running_loop().time() - started < QUICK
                await session.confirmed()
                await inbox.next()

    run(scenario())


def test_opening_waits_for_the_first_or_for_all(development_certificates: Path) -> None:
    async def scenario() -> None:
        way = Way(development_certificates)
        async with serving(way) as (server, _), silent_server() as silent:
            mute = {"transport": "tcp", "ip": "ipv4", "interface": "any", "remote_port": silent}
            config = way.client(server.port, connection_priority=[["tcp", "ipv4", "any"], mute])
            loop = asyncio.get_running_loop()
            started = loop.time()
            async with multi.connect(config):
                assert loop.time() - started < QUICK
            started = loop.time()
            async with multi.connect(config | {"multi_config": {"wait": "all", "open_timeout": 0.5}}) as session:
                assert 0.4 < loop.time() - started < 0.5 + QUICK
                assert session.connections[0].state is multi.ConnectionState.ACTIVE

    run(scenario())


def test_nothing_listening_lists_every_attempt(development_certificates: Path) -> None:
    async def scenario() -> None:
        ports = free_ports(2)
        entries = [
            {"transport": name, "ip": "ipv4", "interface": "any", "remote_port": port}
            for name, port in zip(("tcp", "mptcp"), ports, strict=True)
        ]
        config = Way(development_certificates).client(1, connection_priority=[*entries, ["tcp", "ipv4", "wifi"]])
        with pytest.raises(multi.NoUsableConnection) as caught:
            await multi.open_connection(config)
        assert len(caught.value.attempts) == 3
        for port in ports:
            assert f"{HOST}:{port}" in str(caught.value) or f"{port}" in str(caught.value)
        assert str(caught.value).count("refused") == 2
        assert "wifi" in str(caught.value)
        assert isinstance(caught.value, OSError)

    run(scenario())


def test_unknown_name_is_reported_as_such(development_certificates: Path) -> None:
    async def scenario() -> None:
        config = Way(development_certificates).client(1, remote_host="no-such-host.invalid")
        with pytest.raises(multi.NoUsableConnection, match="cannot resolve no-such-host"):
            await multi.open_connection(config)

    run(scenario())


def test_silent_server_ends_with_the_open_timeout(development_certificates: Path) -> None:
    async def scenario() -> None:
        async with silent_server() as port:
            config = Way(development_certificates).client(port, multi_config={"open_timeout": 1.5})
            loop = asyncio.get_running_loop()
            started = loop.time()
            with pytest.raises(multi.NoUsableConnection) as caught:
                await multi.open_connection(config)
            assert 1.4 < loop.time() - started < 1.5 + QUICK
            assert len(caught.value.attempts) == 1

    run(scenario())


@pytest.mark.parametrize("way", WAYS)
def test_session_id_in_use_is_refused(way: str, development_certificates: Path) -> None:
    async def scenario() -> None:
        described = Way(development_certificates, way)
        async with serving(described) as (server, inbox):
            config = described.client(server.port, session_id="mine")
            _, writer = await multi.open_connection(config)
            await writer.get_extra_info("session").confirmed()
            with pytest.raises(multi.SessionRefused):
                async with multi.connect(config) as second:
                    await second.confirmed()
            writer.write(b"unharmed")
            reader, _ = await inbox.next()
            assert await reader.readexactly(8) == b"unharmed"
            writer.close()
            await writer.wait_closed()
            async with multi.connect(config) as again:
                await again.confirmed()

    run(scenario())


@pytest.mark.parametrize(
    ("client", "server"), [("auto", "never"), ("never", "auto"), ("never", "always"), ("always", "never")]
)
def test_different_protection_is_refused_in_words(client: str, server: str, development_certificates: Path) -> None:
    async def scenario() -> None:
        way = Way(development_certificates)
        async with serving(way, protect=server) as (running, _):
            with pytest.raises(multi.SessionRefused, match="protect"):
                async with multi.connect(way.client(running.port, protect=client)) as session:
                    await session.confirmed()

    run(scenario())


def test_plain_client_of_a_server_with_certificates_is_told_so(development_certificates: Path) -> None:
    async def scenario() -> None:
        tls, plain = Way(development_certificates, "tcp-tls"), Way(development_certificates)
        async with serving(tls) as (server, _):
            started = asyncio.get_running_loop().time()
            with pytest.raises((multi.SessionRefused, multi.NoUsableConnection), match=r"protect|TLS"):
                await multi.open_connection(plain.client(server.port))
            assert asyncio.get_running_loop().time() - started < QUICK

    run(scenario())


def http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
    writer.close()


async def greeting(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"SSH-2.0-OpenSSH_9.6\r\n")
    with suppress(ConnectionError):
        await reader.read()
    writer.close()


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(1000):
            writer.write(data)
    writer.close()


@pytest.mark.parametrize("stranger", [http, greeting, echo])
@pytest.mark.parametrize("way", ["tcp-sealed", "tcp-plain"])
def test_server_of_another_protocol_is_recognised(
    way: str, stranger: Callable[..., Any], development_certificates: Path
) -> None:
    async def scenario() -> None:
        server = await asyncio.start_server(stranger, HOST, 0)
        started = asyncio.get_running_loop().time()
        config = Way(development_certificates, way).client(server.sockets[0].getsockname()[1])
        with pytest.raises((multi.NoUsableConnection, multi.SessionLost), match="does not speak MULTI"):
            async with multi.connect(config) as session:
                await session.confirmed()
        assert asyncio.get_running_loop().time() - started < QUICK
        server.close()

    run(scenario())


def test_tls_server_of_another_protocol_is_recognised(development_certificates: Path) -> None:
    async def scenario() -> None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(
            development_certificates / "server-cert.pem", development_certificates / "server-key.pem"
        )
        context.set_alpn_protocols(["h2"])
        server = await asyncio.start_server(http, HOST, 0, ssl=context)
        config = Way(development_certificates, "tcp-tls").client(server.sockets[0].getsockname()[1])
        with pytest.raises((multi.NoUsableConnection, multi.SessionLost), match=r"MULTI|multi/1"):
            async with multi.connect(config) as session:
                await session.confirmed()
        server.close()

    run(scenario())


def test_busy_server_says_so(development_certificates: Path) -> None:
    async def scenario() -> None:
        way = Way(development_certificates)
        async with serving(way, limits={"max_sessions": 2}) as (server, _):
            config = way.client(server.port)
            async with multi.connect(config), multi.connect(config):
                with pytest.raises(multi.SessionRefused, match="reached a limit"):
                    await multi.open_connection(config | SOON)
            async with multi.connect(config):
                assert len(server.sessions) >= 1

    run(scenario())


# --- the server as asyncio's ---


def test_server_is_used_as_asyncios(development_certificates: Path) -> None:
    async def scenario() -> None:
        inbox, way = Inbox(), Way(development_certificates)
        server = await multi.start_server(inbox.on_client, way.server(listen={"host": HOST, "port": 0}))
        assert server.is_serving()
        assert server.get_loop() is asyncio.get_running_loop()
        await server.start_serving()
        assert server.addresses == ((HOST, server.port),)
        assert server.port > 0
        assert {sock.getsockname() for sock in server.sockets} == set(server.addresses)
        serving_forever = asyncio.ensure_future(server.serve_forever())
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="already"):
            await server.serve_forever()
        async with multi.connect(way.client(server.port)) as session:
            reader, _ = await inbox.next()
            assert [s.id for s in server.sessions] == [session.id]
            server.close()
            assert not server.is_serving()
            waiting = asyncio.ensure_future(server.wait_closed())
            with pytest.raises((multi.SessionRefused, multi.NoUsableConnection)):
                await multi.open_connection(way.client(server.port) | SOON)
            session.writer.write(b"goes on")
            assert await reader.readexactly(7) == b"goes on"
            await session.add_connection(["tcp", "ipv4", "any"])  # a JOIN is still taken
            assert not waiting.done()
        await waiting
        assert server.sessions == ()
        with pytest.raises(asyncio.CancelledError):
            await serving_forever
        for late in (server.serve_forever, server.start_serving):
            with pytest.raises(RuntimeError, match="closed"):
                await late()
        with pytest.raises(multi.NoUsableConnection, match="refused"):
            await multi.open_connection(way.client(server.port))

    run(scenario())


def test_server_ends_its_clients_and_goes_on(development_certificates: Path) -> None:
    async def scenario() -> None:
        inbox, way = Inbox(), Way(development_certificates)
        with pytest.raises(ValueError, match="allowed: more than 0"):
            await multi.start_server(inbox.on_client, way.server(), limit=0)
        with pytest.raises(ValueError, match="allowed: more than 0"):
            await multi.open_connection(way.client(9), limit=0)
        async with await multi.start_server(inbox.on_client, way.server()) as server:
            for end in (server.close_clients, server.abort_clients):
                reader, writer = await multi.open_connection(way.client(server.port))
                _, their_writer = await inbox.next()
                their_writer.write(b"the last word")
                if end == server.close_clients:
                    end()
                    their_writer.write(b" of a handler that has not noticed is dropped")
                    assert await reader.read() == b"the last word"
                    writer.close()
                    await writer.wait_closed()
                else:
                    assert await reader.readexactly(8) == b"the last"
                    end()
                    with pytest.raises(multi.SessionLost, match="the server stops"):
                        await writer.wait_closed()
                await until(lambda: not server.sessions, "it is gone")
                assert server.is_serving()

    run(scenario())


def test_ending_the_clients_delivers_what_is_on_its_way_whatever_a_handler_writes_on(
    development_certificates: Path,
) -> None:
    size = 8_000_000
    late: list[BaseException | None] = []

    async def scenario() -> None:
        ended = asyncio.Event()

        async def on_client(reader: multi.SessionReader, writer: multi.SessionWriter) -> None:
            _, second = await writer.get_extra_info("session").open_stream()
            writer.write(bytes(size))
            second.write(b"first")
            await ended.wait()
            second.write(b"later")
            late.append(None)

        way = Way(development_certificates)
        async with await multi.start_server(on_client, way.server()) as server:
            reader, writer = await multi.open_connection(way.client(server.port))
            assert len(await reader.readexactly(1)) == 1
            server.close_clients()
            ended.set()
            assert len(await reader.read()) == size - 1
            writer.close()
            await writer.wait_closed()
        assert late == [None]

    run(scenario())


def test_leaving_the_servers_block_with_an_error_aborts_its_sessions(development_certificates: Path) -> None:
    async def scenario() -> None:
        inbox, way = Inbox(), Way(development_certificates)

        async def main() -> None:
            async with await multi.start_server(inbox.on_client, way.server()) as server:
                ports.set_result(server.port)
                await server.serve_forever()

        ports: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        serving_forever = asyncio.ensure_future(main())
        reader, _ = await multi.open_connection(way.client(await ports))
        serving_forever.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving_forever
        with pytest.raises(multi.SessionLost, match="the server stops"):
            await reader.read()

    run(scenario())


@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize("error", [KeyError("a bug of the application"), ConnectionRefusedError("a database is down")])
def test_error_in_on_client_reaches_the_exception_handler_of_the_loop_and_the_peer_is_told_no_more(
    plain: bool, error: Exception, development_certificates: Path
) -> None:
    reported = []

    def fails(reader: multi.SessionReader, writer: multi.SessionWriter) -> None:
        raise error

    async def fails_later(reader: multi.SessionReader, writer: multi.SessionWriter) -> None:
        await reader.readexactly(1)
        raise error

    async def scenario() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["exception"]))
        way = Way(development_certificates)
        async with await multi.start_server(fails if plain else fails_later, way.server()) as server:
            reader, writer = await multi.open_connection(way.client(server.port))
            writer.write(b"x")
            with pytest.raises(multi.SessionLost, match=r"application failed$"):
                await reader.read()
            assert server.sessions == ()

    run(scenario())
    assert reported == [error]


def test_on_client_may_be_plain_or_async(development_certificates: Path) -> None:
    async def answer(reader: multi.SessionReader, writer: multi.SessionWriter) -> None:
        writer.write((await reader.readline()).upper())
        writer.close()

    async def scenario() -> None:
        way = Way(development_certificates)
        async with await multi.start_server(answer, way.server()) as server:
            reader, writer = await multi.open_connection(way.client(server.port))
            writer.write(b"hello\n")
            assert await reader.read() == b"HELLO\n"
            writer.close()
            await writer.wait_closed()
            await until(lambda: not server.sessions, "the session has ended")

    run(scenario())


def test_configurations_of_the_wrong_side_are_refused(development_certificates: Path) -> None:
    async def scenario() -> None:
        way = Way(development_certificates)
        with pytest.raises(multi.ConfigError, match="connection_priority"):
            await multi.open_connection(way.server())
        with pytest.raises(multi.ConfigError, match="listen"):
            await multi.start_server(lambda r, w: None, way.client(1))
        async with await multi.start_server(lambda r, w: None, way.server()) as server:
            taken = way.server(listen={"host": HOST, "port": server.port})
            with pytest.raises(multi.TransportError, match="in use"):
                await multi.start_server(lambda r, w: None, taken)

    run(scenario())


@pytest.mark.parametrize("way", WAYS)
def test_extra_info_tells_of_the_session(way: str, development_certificates: Path, tmp_path: Path) -> None:
    key_file = tmp_path / "keys"
    key_file.write_text("alice:" + "ab" * 32)
    key_file.chmod(0o600)

    async def scenario() -> None:
        described = Way(development_certificates, way)
        auth = {"auth": {"psk_file": str(key_file)}}
        async with serving(described, **auth) as (server, inbox):
            async with multi.connect(described.client(server.port, **auth)) as session:
                _, writer = await inbox.next()
                if described.has_tls:  # the first flight proves it already
                    assert writer.get_extra_info("psk_id") == "alice"
                await session.confirmed()
                await writer.get_extra_info("session").confirmed()
                assert writer.get_extra_info("psk_id") == "alice"
                assert session.writer.get_extra_info("psk_id") == "alice"
                assert session.writer.get_extra_info("session") is session
                assert session.writer.get_extra_info("stream") == 0
                assert session.writer.get_extra_info("peername") == (HOST, server.port)
                certificate = session.writer.get_extra_info("peercert", b"")
                assert bool(certificate) is described.has_tls
                (info,) = session.writer.get_extra_info("connections")
                assert (info.secure, info.sealed) == (described.has_tls, way.endswith("sealed"))
            with pytest.raises(multi.SessionRefused):
                async with multi.connect(described.client(server.port)) as without:
                    await without.confirmed()

    run(scenario())
