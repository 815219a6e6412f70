"""A server of several processes from outside: whose sessions they are, what ends them, what all count together."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import pytest

import multi
from multi.linux.reuseport import PlaceInId, share_port, steer_by_connection_id
from multi.transports.base import Channel, TlsSettings, TransportSettings
from multi.transports.quic.connection_ids import ConnectionIds
from multi.transports.quic.transport import Quic
from multi.transports.sockets import listening_socket
from multi.types import ROUTE_LENGTH, Candidate, Family
from multi.workers.counts import SharedCounts, shared_memory
from multi.workers.run import run_server
from multi.workers.supervisor import Stranded
from multi.workers.worker import PassingOn
from tests.integration.asyncio.test_control import ask, samples
from tests.integration.cli_runner import Files, run_forked, started, wait_for_line
from tests.integration.cli_runner import run as run_command
from tests.integration.support import run, until
from tests.integration.test_proxy_protocol import Proxy
from tests.processes import MORTAL

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers are for Linux")

WORKERS = 2
MAX_SESSIONS = 24  # sessions of the server, all workers together
ASTRAY = (multi.Cause.REFUSED_UNKNOWN, multi.Cause.REFUSED_ELSEWHERE)
ENVIRONMENT = {**os.environ, "PYTHONUNBUFFERED": "1"}


class Program:
    """A server in processes of its own, and what it logs."""

    def __init__(self, config: Path) -> None:
        self.process = subprocess.Popen(
            [*MORTAL, sys.executable, "-m", "tests.integration.workers_program", str(config)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=ENVIRONMENT,
        )
        self.lines: list[str] = []
        self.port = int(self.wait_for(r"serving on \S+ port (\d+) \(.*, \d workers?")[1])

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Read on to a line that matches."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            if found := re.search(pattern, line):
                return found
        raise AssertionError(f"no line {pattern!r} in {self.lines}")

    def workers(self) -> set[int]:
        """Process ids."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return {int(pid) for pid in children if b"resource_tracker" not in Path(f"/proc/{pid}/cmdline").read_bytes()}


@contextmanager
def program(config: Path) -> Iterator[Program]:
    made = Program(config)
    try:
        yield made
    finally:
        made.process.kill()
        made.process.communicate()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("workers"))


@pytest.fixture(scope="module")
def server(files: Files) -> Iterator[Program]:
    """TLS and QUIC on one port."""
    config = files.server_config(
        listen={"host": "127.0.0.1", "port": 0, "proxy_protocol": ["127.0.0.1"]},
        workers=WORKERS,
        control={"socket": "control.sock", "metrics_port": 0},
        limits={"max_sessions": MAX_SESSIONS, "max_sessions_per_source": MAX_SESSIONS},
    )
    with program(config) as running:
        yield running


class Relay:
    """A UDP relay in front of a server, which can change the port that it sends from."""

    def __init__(self, server_port: int) -> None:
        self._server = ("127.0.0.1", server_port)
        self._client: tuple[str, int] | None = None

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._front = self._socket()
        self._front.bind(("127.0.0.1", 0))
        self._loop.add_reader(self._front, self._from_client)
        self._back = self._socket()
        self.change_port()
        return self

    async def __aexit__(self, *_: object) -> None:
        for sock in (self._front, self._back):
            self._loop.remove_reader(sock)
            sock.close()

    @property
    def port(self) -> int:
        return int(self._front.getsockname()[1])

    def change_port(self) -> None:
        """What comes for the old one is lost, as behind a NAT."""
        self._loop.remove_reader(self._back)
        self._back.close()
        self._back = self._socket()
        self._back.connect(self._server)
        self._loop.add_reader(self._back, self._from_server)

    @staticmethod
    def _socket() -> socket.socket:
        return socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)

    def _from_client(self) -> None:
        data, self._client = self._front.recvfrom(65_536)
        self._back.send(data)

    def _from_server(self) -> None:
        assert self._client is not None
        self._front.sendto(self._back.recv(65_536), self._client)


def client(files: Files, port: int, *transports: str, **more: Any) -> dict[str, Any]:
    """A connection by each transport, all of them at once."""
    entries = [[transport, "ipv4", f"127.0.0.{number}"] for number, transport in enumerate(transports, 2)]
    return {
        "connection_priority": entries,
        "multi_config": {"wait": "all"},
        "remote_host": "127.0.0.1",
        "remote_port": port,
        "ssl_config": {"ca": str(files.root / "certs/ca.pem"), "server_name": "localhost"},
        **more,
    }


def active(session: multi.Session) -> list[str]:
    """The transports of its connections."""
    return sorted(info.transport for info in session.connections if info.state.value == "active")


async def asked(stream: tuple[multi.SessionReader, multi.SessionWriter], line: bytes) -> bytes:
    stream[1].write(line + b"\n")
    return (await asyncio.wait_for(stream[0].readline(), 15))[:-1]


def test_every_connection_reaches_the_process_that_has_its_session(files: Files, server: Program) -> None:
    async def scenario() -> None:
        sessions = []
        for transports in (("tcp", "tcp"), ("quic", "quic"), ("tcp", "quic"), ("quic", "tcp")) * 4:
            # One after the other: what is dialled before the server has answered cannot say which process is meant.
            one_by_one = {"connect": "seq", "wait": "all"}
            async with multi.connect(client(files, server.port, *transports, multi_config=one_by_one)) as session:
                # On a busy machine a dial may take too long, and is done again: what counts is who refuses one.
                await until(lambda: active(session) == sorted(transports))  # noqa: B023 - awaited here
                assert not [c for c in session.connections if getattr(c.reason, "cause", None) in ASTRAY]
                stream = session.reader, session.writer
                sessions.append(int(await asked(stream, b"who")))
                payload = os.urandom(20_000).hex().encode()
                assert await asked(stream, payload) == payload
        assert set(sessions) <= server.workers()
        assert len(set(sessions)) == WORKERS  # 16 sessions on one of two: once in 30,000

    run(scenario())


def test_a_client_whose_port_changes_stays_with_its_process(files: Files, server: Program) -> None:
    """As behind a NAT that forgets: packets of a QUIC connection come from elsewhere, with the same ids."""

    async def scenario() -> None:
        for _ in range(4):
            async with Relay(server.port) as relay:
                config = client(files, relay.port, "quic", multi_config={"wait": "first"})
                async with multi.connect(config) as session:
                    stream = session.reader, session.writer
                    process = await asked(stream, b"who")
                    for _ in range(4):
                        relay.change_port()
                        assert await asked(stream, b"who") == process
                    assert [c.state.value for c in session.connections] == ["active"]

    run(scenario())


def test_who_comes_through_a_proxy_stays_known_when_another_process_has_his_session(
    files: Files, server: Program
) -> None:
    """The header is read by whoever accepts the connection."""

    async def scenario() -> None:
        async with Proxy(server.port) as proxy:
            for _ in range(6):
                async with multi.connect(client(files, proxy.port, "tcp", "tcp")) as session:
                    remotes = await asked((session.reader, session.writer), b"from where")
                    assert remotes == b"192.0.2.7:50000 192.0.2.7:50000"

    run(scenario())


def test_limits_counters_and_commands_are_of_the_whole_server(files: Files, server: Program) -> None:
    control = files.root / "control.sock"

    async def get(target: str) -> Any:
        return json.loads((await ask(control, f"GET {target}"))[1])

    async def command(**wanted: Any) -> tuple[int, Any]:
        status, text = await ask(control, "POST /command", wanted)
        return status, json.loads(text)

    async def scenario() -> None:
        before = await get("/stats")
        config = client(files, server.port, "tcp")
        sessions = [await multi.connect(config) for _ in range(MAX_SESSIONS)]
        workers = Counter([await asked((s.reader, s.writer), b"who") for s in sessions])
        assert len(workers) == WORKERS
        with pytest.raises(multi.SessionRefused, match=r"max_sessions\b"):
            await (await multi.connect({**config, "multi_config": {"open_timeout": 3.0}})).confirmed()

        stats = await get("/stats")
        assert stats["sessions"] == {"open": MAX_SESSIONS}
        assert stats["sessions_opened"] == before["sessions_opened"] + MAX_SESSIONS
        assert stats["limits_hit"]["max_sessions"] >= 1
        for path in (control, int(server_metrics(server))):
            found = samples((await ask(path, "GET /metrics"))[1])
            assert found['multi_sessions{state="open"}'] == MAX_SESSIONS
            assert found["multi_sessions_opened_total"] == stats["sessions_opened"]

        await asked((sessions[7].reader, sessions[7].writer), b"moved last")
        shown = await get("/sessions?limit=5")
        assert [len(shown), shown[0]["id"]] == [5, sessions[7].id.hex()]
        assert {s["id"] for s in await get("/sessions?limit=100")} == {s.id.hex() for s in sessions}

        name = sessions[3].id.hex()
        assert await command(command="scheduler", session=name[:12], scheduler="RR") == (
            200,
            {"done": "scheduler for 1 session", "sessions": 1},
        )
        assert (await get(f"/sessions?begins={name}"))[0]["scheduler"] == "RR"
        assert await command(command="scheduler", session=name, scheduler="nosuch") != (200, None)
        for wrong, text in (
            ({"command": "abort", "session": "xyz"}, "no sessions begin with 'xyz'"),
            ({"command": "scheduler", "session": name, "scheduler": "nosuch"}, "nosuch"),
            ({"command": "nosuch", "session": "all"}, "command: found 'nosuch'"),
        ):
            status, said = await command(**wrong)
            assert status == 400
            assert text in said["error"]
        assert await command(command="abort", session="all") == (
            200,
            {"done": f"abort for {MAX_SESSIONS} sessions", "sessions": MAX_SESSIONS},
        )
        for session in sessions:
            with pytest.raises(multi.SessionLost, match="ended by who runs the server"):
                await session.wait_closed()
        assert (await get("/stats"))["sessions"] == {}

    run(scenario())


def server_metrics(server: Program) -> str:
    return next(found[1] for line in server.lines if (found := re.search(r"metrics on http://\S+:(\d+)/", line)))


def test_what_a_worker_logs_comes_out_of_its_parent_once(files: Files, server: Program) -> None:
    async def scenario() -> int:
        async with multi.connect(client(files, server.port, "tcp")) as session:
            stream = session.reader, session.writer
            assert await asked(stream, b"log") == b"logged"
            return int(await asked(stream, b"who"))

    worker = run(scenario())
    server.wait_for(f"^program: logged by {worker}$")


def test_a_worker_that_is_killed_takes_its_own_sessions_alone_and_is_replaced(files: Files, server: Program) -> None:
    async def scenario() -> None:
        mixes = (("tcp", "tcp"), ("quic", "quic"))
        sessions = [await multi.connect(client(files, server.port, *mixes[number % 2])) for number in range(12)]
        streams = [(session.reader, session.writer) for session in sessions]
        owners = [await asked(stream, b"who") for stream in streams]
        dead = owners[0]
        opened = json.loads((await ask(files.root / "control.sock", "GET /stats"))[1])["sessions_opened"]
        streams[0][1].write(b"die\n")
        for stream, owner in zip(streams, owners, strict=True):
            if owner == dead:
                with pytest.raises(multi.SessionLost, match="no longer knows this session"):
                    await asked(stream, b"who")
            else:
                assert await asked(stream, b"who") == owner
        async with multi.connect(client(files, server.port, "tcp", "quic")) as session:
            assert await asked((session.reader, session.writer), b"who") != dead
        await until(lambda: len(server.workers()) == WORKERS)
        after = Counter[bytes]()
        while len(after) < WORKERS:  # the new one has the port too
            async with multi.connect(client(files, server.port, "quic")) as session:
                after[await asked((session.reader, session.writer), b"who")] += 1
        assert dead not in after
        stats = json.loads((await ask(files.root / "control.sock", "GET /stats"))[1])
        assert stats["sessions_opened"] == opened + 1 + after.total()  # what the dead one has counted stays counted
        for session in sessions:
            session.abort()
            await session.settle()

    run(scenario())
    server.wait_for("worker . was ended by SIGKILL, its sessions with it; it is started again")


def test_datagrams_for_a_worker_that_is_not_there_reach_one_that_is(files: Files) -> None:
    """A client that comes to it is served, and whoever has a connection with it hears that this is gone."""
    base, key, memory = b"1234567", os.urandom(32), shared_memory(2)
    certificates = files.root / "certs"
    tls = TlsSettings(cert=certificates / "server-cert.pem", key=certificates / "server-key.pem")
    trusted = TlsSettings(ca=certificates / "ca.pem", server_name="localhost")

    async def scenario() -> None:
        inbox, outbox = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        steering = PassingOn(base, 0, inbox, [outbox, outbox], SharedCounts(memory, 2, 0, b""))
        port, group = 0, []
        for _ in range(2):
            group.append(listening_socket("127.0.0.1", port, lambda family: share_port(Quic().open_socket(family))))
            port = group[0].getsockname()[1]
        of_dead = ConnectionIds(base + b"\x01", key, port)
        steer_by_connection_id(group[0], PlaceInId(of_dead.new()[0], of_dead.length, ROUTE_LENGTH), 2)
        settings = TransportSettings(tls=tls, route=base + b"\0", bound=group[0], steering=steering, reset_key=key)
        accepted: list[Channel] = []
        listener = await Quic().listen("127.0.0.1", port, settings, accepted.append)
        stranded = Stranded(group[1], [outbox])
        candidate = Candidate("quic", Family.IPV4, "localhost", "127.0.0.1", port)
        channel = await Quic().dial(candidate, TransportSettings(tls=trusted, route=base + b"\x01"))
        await until(lambda: len(accepted) == 1)

        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
            peer.setblocking(False)
            peer.connect(("127.0.0.1", port))
            connection_id, loop = of_dead.new(), asyncio.get_running_loop()
            packet = b"\x40" + connection_id + os.urandom(60)
            peer.send(packet)
            said = await asyncio.wait_for(loop.sock_recv(peer, 2000), 10)
            assert said.endswith(of_dead.reset_token(connection_id))
            SharedCounts(memory, 2, 1, b"").live()  # it lives: what goes astray is not answered for it
            peer.send(packet)
            ours = b"\x40" + ConnectionIds(base + b"\0", key).new() + os.urandom(60)
            peer.send(ours)  # comes after it, and is answered
            said = await asyncio.wait_for(loop.sock_recv(peer, 2000), 10)
            assert said.endswith(of_dead.reset_token(ours[1 : 1 + of_dead.length]))

        channel.abort()
        accepted[0].abort()
        listener.close()
        steering.stop()
        stranded.close()
        for sock in (*group, inbox, outbox):
            sock.close()

    run(scenario())
    os.close(memory)


def test_a_program_drains_on_sigterm_and_ends_though_a_worker_hangs(files: Files) -> None:
    async def drained(running: Program) -> None:
        async with multi.connect(client(files, running.port, "tcp", "quic")) as session:
            stream = session.reader, session.writer
            owner = await asked(stream, b"who")
            for other in running.workers() - {int(owner)}:
                os.kill(other, signal.SIGSTOP)
            running.process.send_signal(signal.SIGTERM)
            event = await anext(event async for event in session.events() if isinstance(event, multi.GoingAway))
            assert event.deadline == pytest.approx(3.0, abs=2.0)
            assert await asked(stream, b"who") == owner  # it goes on until it ends, or its time is over

    with program(files.server_config(workers=WORKERS, drain_timeout=3.0)) as running:
        run(drained(running))
        running.wait_for("worker . has not ended in time, and is killed")
        running.wait_for("^ended by SIGTERM$")
        assert running.process.wait(10) == 0


def test_a_worker_that_leaves_or_hangs_is_started_again_unless_the_server_is_drained(files: Files) -> None:
    """The new one would go on alone."""
    control = files.root / "drained.sock"
    config = files.server_config(
        workers=WORKERS, control={"socket": "drained.sock"}, drain_timeout=5.0, worker_timeout=3.0
    )

    async def left(running: Program) -> None:
        session = await multi.connect(client(files, running.port, "tcp"))
        session.writer.write(b"leave\n")
        with pytest.raises(multi.SessionLost):
            await session.wait_closed()

    async def all_serving(running: Program) -> int:
        """One of the processes, once all of them have served."""
        found: set[int] = set()
        while len(found) < WORKERS:
            async with multi.connect(client(files, running.port, "tcp")) as session:
                found.add(int(await asked((session.reader, session.writer), b"who")))
        return found.pop()

    async def drain() -> None:
        status, said = await ask(control, "POST /command", {"command": "drain"})
        assert status == 200, said

    with program(config) as running:
        run(left(running))
        running.wait_for("worker . ended with exit code 0, its sessions with it; it is started again")
        os.kill(run(all_serving(running)), signal.SIGSTOP)
        running.wait_for("worker . has given no sign of life for 3 s, and is killed")
        running.wait_for("worker . was ended by SIGKILL, its sessions with it; it is started again")
        run(drain())
        running.wait_for("^ended by SIGTERM$")
        assert running.process.wait(10) == 0


def test_the_commands_serve_with_workers_and_stop_on_ctrl_c(files: Files) -> None:
    (files.served / "file").write_bytes(os.urandom(300_000))
    with started("serve", files.server_config(), "--dir", files.served, "--workers", "2") as process:
        port = int(wait_for_line(process, r"^serving .* port (\d+) \(.*\), 2 workers$")[1])
        config = files.client_config(port, "tcp", "quic")
        assert run_forked("get", config, "file", "-o", files.here / "file").returncode == 0
        assert (files.here / "file").read_bytes() == (files.served / "file").read_bytes()
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        assert process.stdout is not None
        assert process.stdout.read().splitlines()[-1] == "stopped"
        assert process.stderr is not None
        assert process.stderr.read() == ""


def test_what_keeps_workers_from_serving_is_told_once(files: Files) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        config = files.server_config(listen={"host": "127.0.0.1", "port": port}, workers=2)
        found = run_forked("serve", config, "--dir", files.served)
        assert found.returncode == 1
        assert found.stderr == f"multi: cannot listen on 127.0.0.1:{port}: address already in use\n"
    config = files.server_config(multi_config={"scheduler": "tests.nowhere:Scheduler"}, workers=1)
    found = run_command("serve", config, "--dir", files.served)
    assert found.returncode == 2
    assert found.stderr.count("cannot import scheduler 'tests.nowhere:Scheduler'") == 1
    found = run_forked("serve", config, "--dir", files.served / "nowhere", "--workers", "auto")
    assert (found.returncode, "no such file" in found.stderr) == (1, True)


def test_two_servers_do_not_share_a_port_by_accident(files: Files, server: Program) -> None:
    """The port would let any process of this user in, and the group would send it a part of the connections."""
    config = files.server_config(listen={"host": "127.0.0.1", "port": server.port}, workers=1)
    found = run_forked("serve", config, "--dir", files.served)
    assert found.returncode == 1
    assert "address already in use" in found.stderr


def test_a_handler_that_cannot_be_imported_is_refused(files: Files) -> None:
    async def on_client(_reader: object, _writer: object) -> None: ...

    config = {"listen": {"host": "127.0.0.1", "port": 0}, "workers": 1}
    with pytest.raises(multi.ConfigError, match="has to be importable"):
        run_server(on_client, config)
    with pytest.raises(multi.ConfigError, match="run_server"):
        run(multi.start_server(on_client, config))


def test_only_the_main_thread_can_take_signals() -> None:
    with ThreadPoolExecutor() as pool, pytest.raises(RuntimeError, match=r"multi\.start_server"):
        pool.submit(run_server, print, {"listen": {"host": "127.0.0.1", "port": 0}}).result()


def test_elsewhere_than_on_linux_workers_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(multi.ConfigError, match="need Linux"):
        run_server(print, {"listen": {"host": "127.0.0.1", "port": 0}, "workers": 1})


def gone(processes: set[int]) -> bool:
    """None of them runs any more."""
    running = [pid for pid in processes if Path(f"/proc/{pid}/stat").exists()]
    return not [pid for pid in running if Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"]


def test_no_worker_outlives_a_parent_that_is_killed(server: Program) -> None:
    """The last of these tests: it ends the server of the others."""
    workers = server.workers()
    assert len(workers) == WORKERS
    server.process.kill()
    run(until(lambda: gone(workers)))
