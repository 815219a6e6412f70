"""What `deploy/` offers does what it says, as far as the machine has the programs for it."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

import multi
from multi.reasons import Cause
from tests.integration.support import HOST, Way, run, until
from tests.integration.test_drain import ask, echo, session_of

DEPLOY = Path(__file__).parents[2] / "deploy"
SEALED = Way(Path())
SERVERS = 3


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind((HOST, 0))
        port: int = sock.getsockname()[1]
        return port


def haproxy_environment(directory: Path, ports: list[int], balancer: int) -> dict[str, str]:
    servers = {f"MULTI_S{number}": f"{HOST}:{port}" for number, port in enumerate(ports, 1)}
    there = {"MULTI_BIND": f"{HOST}:{balancer}", "MULTI_PEER": f"{HOST}:{free_port()}"}
    return {**os.environ, **servers, **there, "MULTI_ADMIN": str(directory / "admin.sock")}


@asynccontextmanager
async def haproxy(
    directory: Path, ports: list[int], configuration: Path = DEPLOY / "haproxy.cfg"
) -> AsyncIterator[int]:
    """The balancer as it is shipped, before servers at `ports`; its own port."""
    program = shutil.which("haproxy", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        pytest.skip("haproxy is not installed: deploy/haproxy.cfg was NOT tested")
    balancer = free_port()
    words = (program, "-db", "-L", "lb1", "-f", str(configuration))
    environment = haproxy_environment(directory, ports, balancer)
    check = await asyncio.create_subprocess_exec(*words, "-c", env=environment, stderr=asyncio.subprocess.PIPE)
    _, said = await check.communicate()
    assert check.returncode == 0, said
    assert b"WARNING" not in said, said
    process = await asyncio.create_subprocess_exec(*words, env=environment, stderr=asyncio.subprocess.DEVNULL)
    try:
        await until(lambda: (directory / "admin.sock").exists())
        yield balancer
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGINT)
        await process.wait()


def has_two(session: multi.Session) -> bool:
    return sum(c.state.value == "active" for c in session.connections) == 2


async def command(directory: Path, text: str) -> None:
    reader, writer = await asyncio.open_unix_connection(directory / "admin.sock")
    writer.write(text.encode() + b"\n")
    assert not (await reader.read()).strip()
    writer.close()


def test_behind_haproxy_both_connections_of_a_session_reach_its_server_and_a_drained_one_gets_no_more(
    tmp_path: Path,
) -> None:
    two = {
        "connection_priority": [["tcp", "ipv4", "127.0.0.1"], ["tcp", "ipv4", "127.0.0.2"]],
        "multi_config": {"wait": "all"},
    }

    async def opened(port: int, count: int) -> list[tuple[multi.SessionReader, multi.SessionWriter]]:
        pairs = await asyncio.gather(*(multi.open_connection(SEALED.client(port, **two)) for _ in range(count)))
        for reader, writer in pairs:
            await until(partial(has_two, session_of(writer)))  # it takes a second until a stopped server is seen
            await ask(reader, writer)
        return list(pairs)

    async def scenario() -> None:
        config = SEALED.server(listen={"host": HOST, "port": 0, "transports": ["tcp"], "proxies": [HOST]})
        servers = [await multi.start_server(echo, config) for _ in range(SERVERS)]
        async with haproxy(tmp_path, [server.port for server in servers]) as port:
            first = await opened(port, 12)
            assert sum(len(server.sessions) for server in servers) == 12
            old, *others = sorted(servers, key=lambda server: -len(server.sessions))
            draining = asyncio.create_task(old.drain(1.0))  # the balancer is not told: clients find their way
            second = await opened(port, 6)
            await draining
            assert old.stats().sessions_ended == {"going_away": old.stats().sessions_opened}
            ended = 0
            for reader, writer in first + second:
                try:
                    await ask(reader, writer)
                except multi.SessionLost as error:
                    ended += error.reason.cause is Cause.GOING_AWAY
            assert ended == old.stats().sessions_opened
            await command(tmp_path, f"set server sessions/s{servers.index(others[0]) + 1} state drain")
            before = len(others[0].sessions)
            third = await opened(port, 6)
            assert len(others[0].sessions) == before
            for _, writer in first + second + third:
                writer.transport.abort()
        for server in servers:
            server.abort()
            await server.wait_closed()

    run(scenario())


@pytest.mark.parametrize("proxy_protocol", [False, True])
def test_behind_haproxy_further_tls_connections_find_their_server_by_its_route(
    proxy_protocol: bool, tmp_path: Path, development_certificates: Path
) -> None:
    way = Way(development_certificates, "tcp-tls")
    two = {
        "connection_priority": [["tcp", "ipv4", "127.0.0.1"], ["tcp", "ipv4", "127.0.0.2"]],
        "multi_config": {"wait": "all"},
    }
    text = (DEPLOY / "haproxy.cfg").read_text()
    if proxy_protocol:
        text = text.replace("default-server check", "default-server send-proxy-v2 check-send-proxy check")
    (tmp_path / "haproxy.cfg").write_text(text)
    trusted = {"proxy_protocol" if proxy_protocol else "proxies": [HOST]}

    async def scenario() -> None:
        servers = []
        for number in range(1, SERVERS + 1):
            listen = {"host": HOST, "port": 0, "transports": ["tcp"], "route": f"0{number}", **trusted}
            servers.append(await multi.start_server(echo, way.server(listen=listen)))
        async with haproxy(tmp_path, [server.port for server in servers], tmp_path / "haproxy.cfg") as port:
            for _ in range(6):
                reader, writer = await multi.open_connection(way.client(port, **two))
                session = session_of(writer)
                await until(partial(has_two, session))  # one dialled before the server has said its route may go astray
                await ask(reader, writer)
                writer.close()
                await writer.wait_closed()
            seen = {c.remote.rpartition(":")[0] for server in servers for s in server.sessions for c in s.connections}
            assert seen <= {"127.0.0.1", "127.0.0.2"}
            assert all(server.stats().sessions_opened for server in servers)
        for server in servers:
            server.abort()
            await server.wait_closed()

    run(scenario())
