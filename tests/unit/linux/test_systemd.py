"""What is said to systemd, and which of its sockets are taken."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from multi.linux.systemd import Service, inherited_sockets, logger


def manager(path: str) -> socket.socket:
    """Hears what services say, as systemd does."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    sock.settimeout(5)
    sock.bind(path)
    return sock


def heard(sock: socket.socket) -> list[str]:
    return sock.recv(4096).decode().split("\n")


@pytest.mark.parametrize("abstract", [False, True])
def test_a_service_says_that_it_is_ready_that_it_lives_and_that_it_ends(
    abstract: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"@multi test {os.getpid()}" if abstract else str(tmp_path / "notify")
    monkeypatch.setenv("NOTIFY_SOCKET", name)
    monkeypatch.setenv("WATCHDOG_USEC", "20000")
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))

    async def run() -> None:
        service.ready("serving")
        assert await asyncio.to_thread(heard, systemd) == ["READY=1", "STATUS=serving"]
        for _ in range(2):
            assert await asyncio.to_thread(heard, systemd) == ["WATCHDOG=1"]
        service.stopping("draining", 27.0)

    with manager("\0" + name[1:] if abstract else name) as systemd:
        service = Service()
        asyncio.run(run())
        said = [heard(systemd)]
        while said[-1] == ["WATCHDOG=1"]:
            said.append(heard(systemd))
        assert said[-1] == ["STOPPING=1", "STATUS=draining", "EXTEND_TIMEOUT_USEC=27000000"]
    assert not {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"} & set(os.environ), "children must not speak for us"


def test_who_is_no_service_says_nothing_and_who_is_not_heard_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    Service().stopping("draining", 1.0)
    assert not caplog.records
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "absent"))
    asyncio.run(_ready(Service()))
    assert "systemd does not hear READY=1" in caplog.text


def test_signs_of_life_that_nobody_takes_hold_nothing_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    monkeypatch.setenv("WATCHDOG_USEC", "200")

    async def run() -> None:
        refused = asyncio.Event()
        monkeypatch.setattr(logger, "warning", lambda *_: refused.set())
        Service().ready("serving")
        await refused.wait()

    with manager(str(tmp_path / "notify")) as systemd:
        asyncio.run(run())
        assert heard(systemd) == ["READY=1", "STATUS=serving"]


async def _ready(service: Service) -> None:
    service.ready("serving")


@pytest.mark.parametrize(
    "watchdog",
    [*({"WATCHDOG_USEC": waits} for waits in ("", "0", "soon")), {"WATCHDOG_USEC": "1000", "WATCHDOG_PID": "1"}],
)
def test_without_a_watchdog_of_this_process_there_are_no_signs_of_life(
    watchdog: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in ({"NOTIFY_SOCKET": str(tmp_path / "notify")} | watchdog).items():
        monkeypatch.setenv(name, value)
    with manager(str(tmp_path / "notify")) as systemd:
        asyncio.run(_ready(Service()))
        assert heard(systemd)[0] == "READY=1"
        systemd.setblocking(False)
        with pytest.raises(BlockingIOError):
            heard(systemd)


PROGRAM = """
import os, socket, sys
from multi.linux.systemd import inherited_sockets
os.environ["LISTEN_PID"] = str(os.getpid() + int(sys.argv[1]))
for sock in inherited_sockets():
    print(sock.type == socket.SOCK_STREAM, sock.getsockname()[1], sock.getblocking(), os.get_inheritable(sock.fileno()))
print(inherited_sockets(), sorted(name for name in os.environ if name.startswith("LISTEN_")))
"""


@pytest.mark.parametrize("ours", [True, False])
def test_sockets_are_taken_once_and_only_by_the_process_they_are_for(ours: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stream, socket.socket(type=socket.SOCK_DGRAM) as datagrams:
        datagrams.bind(("127.0.0.1", 0))
        # systemd passes them from descriptor 3 on.
        first, second = (os.dup(sock.fileno()) for sock in (stream, datagrams))
        script = f'exec 3<&{first} 4<&{second}; exec "$@"'
        done = subprocess.run(
            ["bash", "-c", script, "bash", sys.executable, "-c", PROGRAM, "0" if ours else "1"],
            env={**os.environ, "LISTEN_FDS": "2", "LISTEN_FDNAMES": "multi.socket:multi.socket"},
            pass_fds=(first, second),
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
        ports = [sock.getsockname()[1] for sock in (stream, datagrams)]
        os.close(first)
        os.close(second)
    *sockets, left = done.stdout.splitlines()
    assert sockets == ([f"True {ports[0]} False False", f"False {ports[1]} False False"] if ours else [])
    assert left == "[] []"


@pytest.mark.parametrize("count", ["", "-1", "two"])
def test_a_number_that_is_none_stands_for_no_sockets(count: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LISTEN_PID", str(os.getpid()))
    monkeypatch.setenv("LISTEN_FDS", count)
    assert inherited_sockets() == []
