"""Runs `multi` as a person would: in a process of its own, with files, signals and exit codes.

`run` starts an interpreter; `run_forked` and `started` do without, for tests of what commands do and not of how they
start.
"""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from multi.lab.cert import write_development_certificates
from tests.integration.callbacks import FILE
from tests.processes import MORTAL

TIMEOUT = 150.0  # seconds any command may take; those that hang are the bug

_ENVIRONMENT = {**os.environ, "PYTHONUNBUFFERED": "1", "NO_COLOR": "1"}


def command(*arguments: object) -> list[str]:
    return [*MORTAL, sys.executable, "-m", "multi", *map(str, arguments)]


def run(*arguments: object, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, with more in its environment if need be."""
    env = _ENVIRONMENT | environment
    return subprocess.run(command(*arguments), capture_output=True, text=True, timeout=TIMEOUT, cwd=cwd, env=env)


class Forked:
    """A command that begins with everything imported; as far as tests use it, like `subprocess.Popen`."""

    def __init__(self, *arguments: object, cwd: Path | None = None, callbacks: Path | None = None) -> None:
        """`callbacks`: where it tells what its callbacks cost."""
        told = {} if callbacks is None else {FILE: str(callbacks)}
        order = [*map(str, arguments)], str(cwd or Path.cwd()), _ENVIRONMENT | told
        pipes = [os.pipe() for _ in range(3)]
        socket.send_fds(_fork_server()[0], [json.dumps(order).encode()], [write for _, write in pipes])
        for _, write in pipes:
            os.close(write)
        self.stdout, self.stderr, self._told = (open(read, encoding="utf-8") for read, _ in pipes)  # noqa: SIM115
        self.pid = int(self._told.readline())
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None and select.select([self._told], [], [], 0)[0]:
            self.returncode = int(self._told.readline())
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None and not select.select([self._told], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired("multi", timeout or 0.0)
        code = self.poll()
        assert code is not None
        return code

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """The rest of what it prints, and of its errors."""
        with ThreadPoolExecutor(2) as threads:
            rest = [threads.submit(pipe.read) for pipe in (self.stdout, self.stderr)]
            try:
                output, errors = (part.result(timeout) for part in rest)
            except TimeoutError:
                self.kill()
                raise
        self.wait(timeout)
        return output, errors

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has ended, and that is not told yet
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def close(self) -> None:
        """End it, and let go of it."""
        self.kill()
        self.wait()
        for pipe in (self.stdout, self.stderr, self._told):
            pipe.close()


@cache
def _fork_server() -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """Where it takes orders; it ends with this socket, and so with us."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with its:
        command = [sys.executable, "-m", "tests.integration.fork_server"]
        return ours, subprocess.Popen(command, stdin=its.fileno(), env=_ENVIRONMENT)


def prepare_to_fork() -> None:
    """From now on forked commands start at once, and leave no socket of ours that was not there before."""
    _fork_server()


def run_forked(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """The same in a process that begins with everything imported."""
    with started(*arguments, cwd=cwd) as process:
        output, errors = process.communicate(TIMEOUT)
        return subprocess.CompletedProcess([*map(str, arguments)], process.wait(), output, errors)


@contextmanager
def started(*arguments: object, cwd: Path | None = None, callbacks: Path | None = None) -> Iterator[Forked]:
    """A command that runs meanwhile."""
    process = Forked(*arguments, cwd=cwd, callbacks=callbacks)
    try:
        yield process
    finally:
        process.close()


def wait_for_line(process: Forked | subprocess.Popen[str], pattern: str) -> re.Match[str]:
    """Read its output up to a line that matches."""
    assert process.stdout is not None
    read = []
    for line in process.stdout:
        read.append(line)
        if found := re.search(pattern, line):
            return found
    assert process.stderr is not None
    raise AssertionError(f"no line {pattern!r} in {read}, stderr: {process.stderr.read()}")


@cache
def _certificates() -> tempfile.TemporaryDirectory[str]:
    """What `multi cert` writes, once for all tests of a process; it goes when the process ends."""
    directory = tempfile.TemporaryDirectory(prefix="multi-certs-")
    write_development_certificates(Path(directory.name), [])
    return directory


class Files:
    """A directory with certificates, configurations, a directory to serve and one to work in."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.served = root / "served"
        self.here = root / "here"
        self.served.mkdir()
        self.here.mkdir()
        shutil.copytree(_certificates().name, root / "certs")

    def server_config(self, **changes: Any) -> Path:
        config = {
            "listen": {"host": "127.0.0.1", "port": 0},
            "ssl_config": {"cert": "certs/server-cert.pem", "key": "certs/server-key.pem"},
        }
        return self._write("server.json", {**config, **changes})

    def client_config(self, port: int, *transports: str, name: str = "client.json", **changes: Any) -> Path:
        """Each transport from an address of its own; `max_rate_mbps` goes into every entry."""
        rate = changes.pop("max_rate_mbps", 0)
        entries = [
            {"transport": t, "ip": "ipv4", "interface": f"127.0.0.{n}", "max_rate_mbps": rate}
            for n, t in enumerate(transports or ("tcp",), 2)
        ]
        config = {
            "connection_priority": entries,
            "multi_config": {"wait": "all", "resume_timeout": 1},
            "remote_host": "127.0.0.1",
            "remote_port": port,
            "ssl_config": {"ca": "certs/ca.pem", "server_name": "localhost"},
        }
        return self._write(name, {**config, **changes})

    def _write(self, name: str, config: dict[str, Any]) -> Path:
        path = self.root / name
        path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
        return path

    @contextmanager
    def serving(self, *options: str, **changes: Any) -> Iterator[tuple[Forked, int]]:
        """A running `multi serve` and its port."""
        with started("serve", self.server_config(**changes), "--dir", self.served, *options) as process:
            yield process, int(wait_for_line(process, r"^serving .* port (\d+) \(").group(1))


def interrupt(process: Forked | subprocess.Popen[str]) -> tuple[int, str]:
    """Ctrl-C; return exit code and stderr."""
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=TIMEOUT)
    return process.wait(), errors
