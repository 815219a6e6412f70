"""Libraries over sessions: the modules of `multi.integrations`, and recipes that need nothing but its loop."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

import multi
from tests.integration.support import HOST, LOOPS, run, silent_server, until
from tests.processes import MORTAL

aiohttp = pytest.importorskip("aiohttp", reason="aiohttp is not installed: its connector was NOT tested")
anyio = pytest.importorskip("anyio", reason="anyio is not installed: its stream was NOT tested")
httpx = pytest.importorskip("httpx", reason="httpx is not installed: its transport was NOT tested")
redis = pytest.importorskip("redis.asyncio", reason="redis is not installed: its connection class was NOT tested")
asyncpg = pytest.importorskip("asyncpg", reason="asyncpg is not installed: it was NOT tested")
asyncssh = pytest.importorskip("asyncssh", reason="asyncssh is not installed: it was NOT tested")
hypercorn = pytest.importorskip("hypercorn", reason="hypercorn is not installed: it was NOT tested")
uvicorn = pytest.importorskip("uvicorn", reason="uvicorn is not installed: it was NOT tested")
websockets = pytest.importorskip("websockets", reason="websockets is not installed: it was NOT tested")

BODY = b"0123456789" * 30_000


@pytest.fixture
def contexts(development_certificates: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Of the server, of the client."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(development_certificates / "server-cert.pem", development_certificates / "server-key.pem")
    return server, ssl.create_default_context(cafile=str(development_certificates / "ca.pem"))


async def app(scope: Any, receive: Any, send: Any) -> None:
    """An ASGI application that returns what it is sent."""
    if scope["type"] == "lifespan":
        while (await receive())["type"] != "lifespan.shutdown":
            await send({"type": "lifespan.startup.complete"})
        await send({"type": "lifespan.shutdown.complete"})
        return
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message["body"], message.get("more_body", False)
    headers = [(b"content-length", b"%d" % len(body)), (b"client", scope["client"][0].encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@asynccontextmanager
async def under_uvicorn(context: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """uvicorn, unchanged, on the running loop."""
    from multi.integrations.loop import sessions

    config = uvicorn.Config(app, host=HOST, port=0, log_config=None, lifespan="on")
    config.load()
    config.ssl = context
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    with sessions():
        await server.startup()
    try:
        yield server.servers[0].port
    finally:
        await server.shutdown()
        server.servers[0].abort()
        await server.servers[0].wait_closed()


@asynccontextmanager
async def under_hypercorn() -> AsyncIterator[int]:
    """hypercorn takes streams for each client."""
    from hypercorn.app_wrappers import ASGIWrapper
    from hypercorn.asyncio.tcp_server import TCPServer
    from hypercorn.asyncio.worker_context import WorkerContext

    config, loop = hypercorn.Config(), asyncio.get_running_loop()

    async def on_client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await TCPServer(ASGIWrapper(app), loop, config, WorkerContext(None), {}, reader, writer)

    server = await multi.start_server(on_client, HOST, 0)
    try:
        yield server.port
    finally:
        server.abort()
        await server.wait_closed()


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("served", [under_uvicorn, under_hypercorn])
def test_httpx_over_sessions(served: Any, loop: str) -> None:
    from multi.integrations.httpcore import transport

    async def scenario() -> None:
        async with served() as port, httpx.AsyncClient(transport=transport()) as client:
            for _ in range(2):  # the second request finds the session in the pool
                answer = await client.post(f"http://{HOST}:{port}/", content=BODY)
                assert (answer.status_code, answer.content, answer.headers["client"]) == (200, BODY, HOST)
            with pytest.raises(httpx.ConnectError):
                await client.get(f"http://{HOST}:1/")

    run(scenario(), loop)


@pytest.mark.parametrize("loop", LOOPS)
def test_https_inside_sessions(loop: str, contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    from multi.integrations.aiohttp import SessionConnector
    from multi.integrations.httpcore import transport

    async def scenario() -> None:
        async with under_uvicorn(contexts[0]) as port:
            async with httpx.AsyncClient(transport=transport(verify=contexts[1])) as client:
                answer = await client.post(f"https://localhost:{port}/", content=BODY)
                assert answer.content == BODY
            async with aiohttp.ClientSession(connector=SessionConnector()) as session:
                url = f"https://localhost:{port}/"
                async with session.post(url, data=BODY, ssl=contexts[1]) as response:
                    assert await response.read() == BODY

    run(scenario(), loop)


@pytest.mark.parametrize("loop", LOOPS)
def test_aiohttp_over_sessions(loop: str) -> None:
    from multi.integrations.aiohttp import SessionConnector

    async def scenario() -> None:
        async with under_uvicorn() as port, aiohttp.ClientSession(connector=SessionConnector()) as session:
            for _ in range(2):
                async with session.post(f"http://{HOST}:{port}/", data=BODY) as response:
                    assert await response.read() == BODY
            with pytest.raises(aiohttp.ClientConnectorError):
                await session.get(f"http://{HOST}:1/")

    run(scenario(), loop)


@pytest.mark.parametrize("loop", LOOPS)
def test_what_a_request_of_aiohttp_asks_for_holds_over_sessions(
    loop: str, contexts: tuple[ssl.SSLContext, ssl.SSLContext]
) -> None:
    """A pin, a name and a proxy were taken for nothing, and the request was sent."""
    from multi.integrations.aiohttp import SessionConnector

    async def scenario() -> None:
        async with under_uvicorn(contexts[0]) as port, aiohttp.ClientSession(connector=SessionConnector()) as session:
            url = f"https://localhost:{port}/"
            with pytest.raises(aiohttp.ServerFingerprintMismatch) as caught:
                await session.post(url, data=BODY, ssl=aiohttp.Fingerprint(bytes(32)))
            known, any_time = aiohttp.Fingerprint(caught.value.got), aiohttp.ClientTimeout(sock_connect=0)
            async with session.post(url, data=BODY, ssl=known, timeout=any_time) as response:
                assert await response.read() == BODY
            with pytest.raises(aiohttp.ClientConnectorCertificateError):
                await session.post(url, data=BODY, ssl=contexts[1], server_hostname="wrong.example")
            with pytest.raises(ValueError, match="no proxy"):
                await session.post(url, data=BODY, ssl=contexts[1], proxy="http://127.0.0.1:1")
            with pytest.raises(aiohttp.ClientConnectorError, match="refused"):
                await session.get(f"http://{HOST}:1/")

    run(scenario(), loop)


def test_aiohttp_gives_up_a_session_after_the_time_for_connecting() -> None:
    from multi.integrations.aiohttp import SessionConnector

    async def scenario() -> None:
        async with silent_server() as port:
            times = aiohttp.ClientTimeout(sock_connect=0.2)
            async with aiohttp.ClientSession(connector=SessionConnector(), timeout=times) as session:
                with pytest.raises(aiohttp.ConnectionTimeoutError):
                    await session.get(f"http://{HOST}:{port}/")

    run(scenario())


@pytest.mark.parametrize("loop", LOOPS)
def test_a_session_as_a_stream_of_anyio(loop: str, contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    from anyio.streams.tls import TLSStream

    from multi.integrations.anyio import SessionStream

    async def on_client(reader: multi.SessionReader, writer: multi.SessionWriter) -> None:
        stream: Any = SessionStream(reader, writer)
        if await stream.receive(1) == b"T":
            stream = await TLSStream.wrap(stream, server_side=True, ssl_context=contexts[0])
        async for data in stream:
            await stream.send(data.upper())
        await stream.aclose()

    async def scenario() -> None:
        async with await multi.start_server(on_client, HOST, 0) as server:
            stream = SessionStream(*await multi.open_connection(HOST, server.port))
            await stream.send(b"-hello")
            assert await stream.receive(100) == b"HELLO"
            assert stream.extra(anyio.abc.SocketAttribute.remote_address) == (HOST, server.port)
            await stream.send_eof()
            with pytest.raises(anyio.EndOfStream):
                await stream.receive()
            await stream.aclose()
            with pytest.raises(anyio.ClosedResourceError):
                await stream.send(b"late")
            plain = SessionStream(*await multi.open_connection(HOST, server.port))
            await plain.send(b"T")
            secret = await TLSStream.wrap(plain, hostname="localhost", ssl_context=contexts[1])
            await secret.send(b"secret")
            assert await secret.receive() == b"SECRET"
            await secret.aclose()

    run(scenario(), loop)


async def like_redis(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """As much of a Redis server as ECHO and PING need (RESP2)."""
    while line := await reader.readline():
        words = []
        for _ in range(int(line[1:])):
            size = int((await reader.readline())[1:])
            words.append((await reader.readexactly(size + 2))[:-2])
        match words[0].upper():
            case b"ECHO":
                writer.write(b"$%d\r\n%b\r\n" % (len(words[1]), words[1]))
            case b"PING":
                writer.write(b"+PONG\r\n")
            case _:
                writer.write(b"+OK\r\n")
    writer.close()


def test_redis_over_sessions_finds_no_answers_that_belong_to_others() -> None:
    from multi.integrations.redis import SessionConnection

    async def scenario() -> None:
        async with await multi.start_server(like_redis, HOST, 0) as server:
            pool = redis.ConnectionPool(
                connection_class=SessionConnection, host=HOST, port=server.port, protocol=2, max_connections=1
            )
            client = redis.Redis(connection_pool=pool)
            assert await client.echo("hello") == b"hello"
            connection = await pool.get_connection()
            await connection.send_command("PING")
            await asyncio.sleep(0.05)
            await pool.release(connection)  # with an answer that nobody has read
            assert await client.echo("x") == b"x"
            await client.aclose()
            await pool.disconnect()

    run(scenario())


# --- recipes: libraries that call the event loop ---


@pytest.mark.parametrize("loop", LOOPS)
def test_websockets_on_the_loop_of_sessions(loop: str) -> None:
    from websockets.asyncio.client import connect
    from websockets.asyncio.server import serve

    from multi.integrations.loop import sessions

    async def echo(connection: Any) -> None:
        async for message in connection:
            await connection.send(message)

    async def scenario() -> None:
        with sessions():
            async with serve(echo, HOST, 0) as server:
                port = server.sockets[0].getsockname()[1]
                async with connect(f"ws://{HOST}:{port}", max_size=None) as client:
                    await client.send(BODY)
                    assert await client.recv() == BODY
                    assert client.transport.get_extra_info("session") is not None

    run(scenario(), loop)


@pytest.mark.parametrize("loop", LOOPS)
def test_asyncssh_on_the_loop_of_sessions(loop: str) -> None:
    from multi.integrations.loop import sessions

    class Anybody(asyncssh.SSHServer):  # type: ignore[misc, name-defined] # it may be missing
        def begin_auth(self, username: str) -> bool:
            return False

    async def shout(process: Any) -> None:
        process.stdout.write((await process.stdin.read()).upper())
        process.exit(0)

    async def scenario() -> None:
        key = asyncssh.generate_private_key("ssh-ed25519")
        with sessions():
            server = await asyncssh.create_server(Anybody, HOST, 0, server_host_keys=[key], process_factory=shout)
            port = server.sockets[0].getsockname()[1]
            known = asyncssh.import_known_hosts(f"[{HOST}]:{port} {key.export_public_key().decode()}")
            client = await asyncssh.connect(HOST, port, known_hosts=known, username="me", client_keys=None, config=None)
            async with client:
                done = await client.run("shout", input="hello")
                assert (done.stdout, done.exit_status) == ("HELLO", 0)
                assert client.get_extra_info("session") is not None
            server.close()
            await server.wait_closed()

    run(scenario(), loop)


def test_a_loop_of_sessions_leaves_to_others_what_is_not_theirs() -> None:
    from multi.integrations.loop import SessionLoop, sessions

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        before = loop.create_connection
        with sessions(lambda host, port: None) as adapter:
            async with await asyncio.start_server(lambda reader, writer: writer.close(), HOST, 0) as server:
                assert not isinstance(server, multi.Server)
                reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
                assert await reader.read() == b""
                assert not isinstance(writer.transport, multi.SessionTransport)
                writer.close()
            assert adapter.time() > 0
        assert loop.create_connection == before
        with sessions() as outer:
            with sessions(lambda host, port: None):
                pass
            assert vars(loop)["create_connection"] == outer.create_connection
        assert loop.create_connection == before
        config = {"listen": {"host": HOST, "port": 0, "transports": ["tcp"]}}
        served = await SessionLoop(lambda host, port: config).create_server(asyncio.Protocol, "anything", 1)
        assert served.addresses[0][0] == HOST
        served.close()

    run(scenario())


@pytest.mark.parametrize("loop", LOOPS)
def test_contexts_of_sessions_may_end_in_any_order(loop: str) -> None:
    """Who was begun second got an ordinary connection once the first had ended, and an error at its own end."""
    from multi.integrations.adapter import CALLS
    from multi.integrations.loop import sessions

    async def scenario() -> None:
        running = asyncio.get_running_loop()
        before = dict(vars(running))
        async with await multi.start_server(lambda reader, writer: writer.close(), HOST, 0) as server:
            contexts = [sessions(), sessions(lambda host, port: None), sessions()]
            first, second, third = contexts
            for context in contexts:
                context.__enter__()
            for ended, is_ours in ((first, True), (third, False)):
                ended.__exit__(None, None, None)
                if is_ours:
                    _, writer = await asyncio.open_connection(HOST, server.port)
                    assert isinstance(writer.transport, multi.SessionTransport)
                    writer.close()
            async with await asyncio.start_server(lambda reader, writer: writer.close(), HOST, 0) as plain:
                _, writer = await asyncio.open_connection(*plain.sockets[0].getsockname())
                assert not isinstance(writer.transport, multi.SessionTransport)
                writer.close()
            second.__exit__(None, None, None)
        assert {name: vars(running).get(name) for name in CALLS} == {name: before.get(name) for name in CALLS}

    run(scenario(), loop)


def test_sessions_begin_and_listen_at_the_addresses_that_are_given() -> None:
    """Of several hosts the first was listened on, and where a connection shall begin was not looked at."""
    from multi.integrations.loop import sessions

    async def scenario() -> None:
        with sessions():
            for hosts in ([HOST, "127.0.0.2"], []):
                with pytest.raises(ValueError, match="one host"):
                    await asyncio.start_server(lambda reader, writer: None, hosts, 0)
            async with await asyncio.start_server(lambda reader, writer: writer.close(), (HOST,), 0) as server:
                port = server.sockets[0].getsockname()[1]
                reader, writer = await asyncio.open_connection(HOST, port, local_addr=("127.0.0.3", 0))
                assert writer.get_extra_info("sockname")[0] == "127.0.0.3"
                assert await reader.read() == b""
                writer.close()

    run(scenario())


@pytest.mark.parametrize("form", ["dict", "file", "config"])
def test_sessions_take_a_configuration_in_any_form(form: str, tmp_path: Path) -> None:
    from multi.integrations.loop import sessions

    async def scenario() -> None:
        async with await multi.start_server(lambda reader, writer: writer.close(), HOST, 0) as server:
            entries = [["tcp", "ipv4", HOST]]
            config: Any = {"connection_priority": entries, "remote_host": HOST, "remote_port": server.port}
            if form == "file":
                (tmp_path / "client.json").write_text(json.dumps(config))
                config = str(tmp_path / "client.json")
            elif form == "config":
                config = multi.load_config(config)
            with sessions(lambda host, port: config):
                reader, writer = await asyncio.open_connection("wherever", 1)
            assert isinstance(writer.transport, multi.SessionTransport)
            assert await reader.read() == b""
            writer.close()

    run(scenario())


@pytest.mark.parametrize("loop", LOOPS)
def test_a_loop_of_sessions_begins_tls_inside_them(loop: str, contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    from multi.integrations.loop import sessions

    async def scenario() -> None:
        async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write((await reader.readexactly(5)).upper())
            await writer.start_tls(contexts[0])
            writer.write((await reader.readline()).upper())
            writer.close()

        with sessions():
            server = await asyncio.start_server(answers, HOST, 0)
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            writer.write(b"plain")
            assert await reader.readexactly(5) == b"PLAIN"
            assert isinstance(writer.transport, multi.SessionTransport)
            await writer.start_tls(contexts[1], server_hostname=HOST)  # it calls the loop's
            writer.write(b"a secret\n")
            assert await reader.readline() == b"A SECRET\n"
            writer.close()
            server.close()

    run(scenario(), loop)


@pytest.mark.parametrize("bounded", ["by its caller", "by its own time"])
def test_a_tls_handshake_that_is_given_up_leaves_no_session(bounded: str, contexts: tuple[Any, ssl.SSLContext]) -> None:
    from multi.integrations.loop import SessionLoop

    async def scenario() -> None:
        async def says_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            writer.close()

        server = await multi.start_server(says_nothing, HOST, 0, transports=["tcp"])
        own = {} if bounded == "by its caller" else {"ssl_handshake_timeout": 0.2}
        opening = SessionLoop().create_connection(asyncio.Protocol, HOST, server.port, ssl=contexts[1], **own)
        with pytest.raises((TimeoutError, ConnectionError)):
            await asyncio.wait_for(opening, 10 if own else 0.5)
        await until(lambda: not server.sessions)
        server.close()
        await server.wait_closed()

    run(scenario())


def postgres_programs() -> Path | None:
    """Where initdb and postgres are; Debian keeps them apart for each version."""
    found = [*map(str, Path("/usr/lib/postgresql").glob("*/bin/initdb")), shutil.which("initdb") or ""]
    return next((Path(program).parent for program in found if program), None)


@contextmanager
def postgres(directory: Path) -> Iterator[Path]:
    """A database server on a UNIX socket in that directory; it refuses to run as root."""
    programs = postgres_programs()
    if programs is None:
        pytest.skip("PostgreSQL is not installed: asyncpg was NOT tested")
    user = "nobody" if os.getuid() == 0 else None
    directory.chmod(0o777)
    settings = ["-c", "listen_addresses=", "-c", f"unix_socket_directories={directory}", "-c", "fsync=off"]
    made = [str(programs / "initdb"), "-N", "-A", "trust", "-U", "me", "-D", str(directory / "db"), "--locale=C"]
    subprocess.run(made, user=user, check=True, capture_output=True, cwd="/", timeout=60)
    running = subprocess.Popen(
        [*MORTAL, programs / "postgres", "-D", directory / "db", *settings],
        user=user,
        cwd="/",
        stderr=subprocess.DEVNULL,
    )
    try:
        yield directory / ".s.PGSQL.5432"
    finally:
        running.send_signal(signal.SIGQUIT)
        running.wait(10)


def test_asyncpg_on_the_loop_of_sessions() -> None:
    """A database behind a server of `multi`, which hands everything on."""
    from multi.integrations.loop import sessions

    async def copied(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def scenario(socket: Path) -> None:
        await until(socket.exists, "the database is up")

        async def on_client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            database = await asyncio.open_unix_connection(socket)
            await asyncio.gather(copied(reader, database[1]), copied(database[0], writer))

        async with await multi.start_server(on_client, HOST, 0) as server:
            with sessions():
                client = None
                while client is None:
                    with suppress(asyncpg.CannotConnectNowError):  # it is starting
                        client = await asyncpg.connect(f"postgres://me@{HOST}:{server.port}/postgres", ssl=False)
                assert await client.fetchval("select sum(n) from generate_series(1, $1::int) n", 1000) == 500500
                assert len(await client.fetch("select n, repeat('x', 100) from generate_series(1, 5000) n")) == 5000
                assert isinstance(client._transport, multi.SessionTransport)
                await client.close()

    with TemporaryDirectory(prefix="multi-test-") as directory, postgres(Path(directory)) as socket:
        run(scenario(socket))


def test_integrations_stay_short_and_out_of_the_way() -> None:
    for module in (Path(multi.__file__).parent / "integrations").glob("*.py"):
        assert len([line for line in module.read_text().splitlines() if line.strip()]) <= 60
    program = "import sys, multi; multi.open_connection; print([m for m in sys.modules if 'integrations' in m])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout == "[]\n"
