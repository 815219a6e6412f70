"""What `deploy/` offers does what it says, as far as the machine has the programs for it."""

from __future__ import annotations

import asyncio
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

import multi
from multi.cli.parser import make_parser
from multi.reasons import Cause
from tests.integration.asyncio.test_draining import ask, echo, session_of
from tests.integration.cli_runner import Files, command, run_forked, started, wait_for_line
from tests.integration.support import HOST, Way, free_port, free_ports, run, until
from tests.processes import MORTAL

DEPLOY = Path(__file__).parents[2] / "deploy"
SEALED = Way(Path())
SERVERS = 3


def haproxy_environment(directory: Path, ports: list[int], balancer: int, peer: int) -> dict[str, str]:
    servers = {f"MULTI_S{number}": f"{HOST}:{port}" for number, port in enumerate(ports, 1)}
    there = {"MULTI_BIND": f"{HOST}:{balancer}", "MULTI_PEER": f"{HOST}:{peer}"}
    return {**os.environ, **servers, **there, "MULTI_ADMIN": str(directory / "admin.sock")}


@asynccontextmanager
async def haproxy(
    directory: Path, ports: list[int], configuration: Path = DEPLOY / "haproxy.cfg"
) -> AsyncIterator[int]:
    """The balancer as it is shipped, before servers at `ports`; its own port."""
    program = shutil.which("haproxy", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        pytest.skip("haproxy is not installed: deploy/haproxy.cfg was NOT tested")
    balancer, peer = free_ports(2)
    words = (*MORTAL, program, "-db", "-L", "lb1", "-f", str(configuration))
    environment = haproxy_environment(directory, ports, balancer, peer)
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


async def tell(directory: Path, text: str) -> None:
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
            await tell(tmp_path, f"set server sessions/s{servers.index(others[0]) + 1} state drain")
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


# --- what runs a server  ---


def notifications(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    sock.settimeout(20)
    sock.bind(str(path))
    return sock


def said(sock: socket.socket) -> dict[str, str]:
    return dict(line.split("=", 1) for line in sock.recv(4096).decode().splitlines())


def until_said(sock: socket.socket, name: str) -> dict[str, str]:
    while name not in (found := said(sock)):
        pass
    return found


def test_a_service_says_that_it_serves_lives_and_drains(tmp_path: Path) -> None:
    files = Files(tmp_path)
    config = files.server_config(drain_timeout=3.0)
    environment = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "400000"}
    with (
        notifications(tmp_path / "notify") as systemd,
        subprocess.Popen(
            command("serve", config, "--dir", files.served), env={**os.environ, **environment}, stdout=subprocess.PIPE
        ) as process,
    ):
        ready = until_said(systemd, "READY")
        assert ready["STATUS"].startswith("serving on ")
        until_said(systemd, "WATCHDOG")
        until_said(systemd, "WATCHDOG")
        process.send_signal(signal.SIGTERM)
        stopping = until_said(systemd, "STOPPING")
        assert stopping["STATUS"] == "draining: 0 sessions to end within 3 s"
        assert int(stopping["EXTEND_TIMEOUT_USEC"]) == 5_000_000
        assert process.wait(20) == 0


def test_a_service_whose_event_loop_stands_still_gives_no_signs_of_life(tmp_path: Path) -> None:
    program = """
import asyncio, time
from multi.linux.systemd import service
async def main():
    service.ready("standing still")
    await asyncio.sleep(0.25)
    service.ready("from now on")
    time.sleep(1.0)
asyncio.run(main())
"""
    environment = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "200000"}
    with notifications(tmp_path / "notify") as systemd:
        subprocess.run([sys.executable, "-c", program], env={**os.environ, **environment}, check=True, timeout=30)
        systemd.setblocking(False)
        heard = []
        with suppress(BlockingIOError):
            while True:
                heard.append(said(systemd))
    before = [message.get("STATUS") for message in heard].index("from now on")
    assert any("WATCHDOG" in message for message in heard[:before])
    assert sum("WATCHDOG" in message for message in heard[before:]) <= 1  # one is due when it ends, of ten


@contextmanager
def activated(sockets: list[socket.socket], *words: object) -> Iterator[subprocess.Popen[str]]:
    """A service as systemd starts it, with its sockets from descriptor 3 on."""
    numbers = [os.dup(sock.fileno()) for sock in sockets]
    places = " ".join(f"{place}<&{number}" for place, number in enumerate(numbers, 3))
    script = f'exec {places}; LISTEN_PID=$$ LISTEN_FDS={len(numbers)} exec "$@"'
    with subprocess.Popen(
        ["bash", "-c", script, "bash", *command(*words)], pass_fds=numbers, stdout=subprocess.PIPE, text=True
    ) as process:
        for number in numbers:
            os.close(number)
        try:
            wait_for_line(process, "^serving ")
            yield process
        finally:
            process.kill()


def test_sockets_of_systemd_outlive_the_service_and_whoever_connects_meanwhile_is_served_by_the_next(
    tmp_path: Path,
) -> None:
    files = Files(tmp_path)
    (files.served / "f").write_bytes(b"content" * 1000)
    with ExitStack() as stack:
        stream = stack.enter_context(socket.create_server((HOST, 0)))
        datagrams = stack.enter_context(socket.socket(type=socket.SOCK_DGRAM))
        datagrams.bind(stream.getsockname())
        port = stream.getsockname()[1]
        # The port of the configuration is another one: the sockets are those that count.
        serve = ("serve", files.server_config(listen={"host": HOST, "port": free_port()}), "--dir", files.served)
        sockets = [datagrams, stream]
        with activated(sockets, *serve) as service:
            for transport in ("tcp", "quic"):
                there = files.client_config(port, transport)
                assert run_forked("get", there, "f", "--force", cwd=files.here).returncode == 0
            service.send_signal(signal.SIGTERM)
            assert service.wait(20) == 0
        client = stack.enter_context(started("get", files.client_config(port), "f", "-o", "again", cwd=files.here))
        assert select.select([stream], [], [], 20)[0], "nobody has connected"
        with activated(sockets, *serve):
            _, errors = client.communicate(timeout=20)
    assert (client.returncode, errors) == (0, "")
    assert (files.here / "again").read_bytes() == b"content" * 1000


def test_workers_open_their_ports_themselves(tmp_path: Path) -> None:
    files = Files(tmp_path)
    with socket.create_server((HOST, 0)) as stream:
        number = os.dup(stream.fileno())
        words = command("serve", files.server_config(workers=2), "--dir", files.served)
        done = subprocess.run(
            ["bash", "-c", f'exec 3<&{number}; LISTEN_PID=$$ LISTEN_FDS=1 exec "$@"', "bash", *words],
            pass_fds=[number],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        os.close(number)
    assert done.returncode == 2
    assert "systemd has to open none" in done.stderr


@pytest.mark.parametrize("name", ["multi.service", "multi.socket"])
def test_systemd_takes_the_units(name: str, tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is not installed: the units were NOT tested")
    for unit in (DEPLOY / "systemd").iterdir():
        installed = unit.read_text().replace("/opt/multi/bin/multi", sys.executable)
        (tmp_path / unit.name).write_text(installed)
    done = subprocess.run(
        [program, "verify", "--man=no", tmp_path / name], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_page_about_systemd_says_where_the_units_are() -> None:
    page = (DEPLOY.parent / "docs" / "how-to" / "systemd.md").read_text()
    for unit in (DEPLOY / "systemd").iterdir():
        assert f"deploy/systemd/{unit.name}" in page


def container_file() -> dict[str, list[str]]:
    """The words of each instruction of the last stage."""
    text = (DEPLOY / "Containerfile").read_text().replace("\\\n", " ")
    lines = [line.split(None, 1) for line in text.splitlines() if line.strip() and not line.startswith("#")]
    found: dict[str, list[str]] = {}
    for instruction, words in lines:
        if instruction == "FROM":
            found = {}
        found.setdefault(instruction, []).append(words)
    return found


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root: the container's command was NOT run")
def test_the_command_of_the_container_runs_without_any_rights() -> None:
    last = container_file()
    user, group = (int(part) for part in last["USER"][-1].split(":"))
    assert user
    assert group
    words = [*json.loads(last["ENTRYPOINT"][-1]), *json.loads(last["CMD"][-1])]
    assert words[0] == "multi"
    with tempfile.TemporaryDirectory() as name:  # pytest's own are closed to other users
        directory = Path(name)
        directory.chmod(0o755)
        (directory / "files").mkdir()
        (directory / "server.json").write_text(json.dumps({"listen": {"port": 0, "host": HOST}}))
        there = {"/etc/multi/server.json": str(directory / "server.json"), "/srv/files": str(directory / "files")}
        _run_without_rights([there.get(word, word) for word in words[1:]], user, group, last["STOPSIGNAL"][-1])


def _run_without_rights(words: list[str], user: int, group: int, stop: str) -> None:
    # The modules of a checkout may be where nobody else may look: they are imported before.
    script = f"""
import os
import encodings.idna, encodings.utf_8_sig, resource
import multi.cli.parser, multi.cli.logs, multi.cli.serve
import multi.asyncio.server, multi.transports.tcp.transport, multi.transports.mptcp.transport
from multi.cli.main import main
os.setgroups([]); os.setgid({group}); os.setuid({user})
raise SystemExit(main({words!r}))
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("serving ")
        process.send_signal(getattr(signal, stop))
        assert process.wait(20) == 0


def manifests() -> dict[str, dict[str, Any]]:
    found = yaml.safe_load_all((DEPLOY / "kubernetes" / "multi.yaml").read_text())
    return {item["kind"] + " " + item["metadata"]["name"]: item for item in found}


def test_the_pods_of_kubernetes_run_a_configuration_that_is_one_and_have_time_to_drain(tmp_path: Path) -> None:
    items = manifests()
    pod = items["StatefulSet multi"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    (tmp_path / "server.json").write_text(items["ConfigMap multi"]["data"]["server.json"])
    (tmp_path / "run").mkdir()
    # The same script as in the pod, with `multi check` in the place of what it starts.
    script = container["args"][0].replace("/etc/multi/", f"{tmp_path}/").replace("/run/multi/", f"{tmp_path}/run/")
    written = script.partition("exec ")[0]
    subprocess.run(
        [*container["command"], written], env={**os.environ, "HOST_IP": "203.0.113.7"}, check=True, timeout=20
    )
    config = multi.load_config(tmp_path / "run" / "server.json")
    assert config.listen is not None
    assert config.listen.told(7788) == (("203.0.113.7", 7788),)
    assert config.drain_timeout + 5 <= pod["terminationGracePeriodSeconds"]
    ports = {port["protocol"]: port["hostPort"] for port in container["ports"]}
    assert ports == {"TCP": config.listen.port, "UDP": config.listen.port}
    assert pod["securityContext"]["runAsNonRoot"]
    assert config.control is not None
    for words in (container["lifecycle"]["preStop"]["exec"], container["livenessProbe"]["exec"]):
        assert words["command"][:3] == ["multi", "top", config.control.socket]
        make_parser().parse_args(words["command"][1:])
    labels = items["StatefulSet multi"]["spec"]["template"]["metadata"]["labels"]
    for name in ("Service multi", "Service multi-pods"):
        assert items[name]["spec"]["selector"] == labels
    assert items["PodDisruptionBudget multi"]["spec"]["selector"]["matchLabels"] == labels
    mounted = {volume["name"] for volume in pod["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == mounted
