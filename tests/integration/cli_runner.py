"""Runs `multi` as a person would: in a process of its own, with files, signals and exit codes.

`run` and `started` start an interpreter; `run_forked` does without, for tests of what commands do and not of how they
start.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from multi.lab.cert import write_development_certificates
from tests.processes import MORTAL

TIMEOUT = 60.0  # seconds any command may take; those that hang are the bug

_ENVIRONMENT = {**os.environ, "PYTHONUNBUFFERED": "1", "NO_COLOR": "1"}


def command(*arguments: object) -> list[str]:
    return [*MORTAL, sys.executable, "-m", "multi", *map(str, arguments)]


def run(*arguments: object, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, with more in its environment if need be."""
    env = _ENVIRONMENT | environment
    return subprocess.run(command(*arguments), capture_output=True, text=True, timeout=TIMEOUT, cwd=cwd, env=env)


@cache
def _fork_server() -> subprocess.Popen[str]:
    """Ends with its standard input, and so with us."""
    command = [sys.executable, "-m", "tests.integration.fork_server"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=_ENVIRONMENT)


def run_forked(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """The same in a process that begins with everything imported."""
    server = _fork_server()
    assert server.stdin is not None
    assert server.stdout is not None
    with tempfile.NamedTemporaryFile() as output, tempfile.NamedTemporaryFile() as errors:
        order = [*map(str, arguments)], str(cwd or Path.cwd()), _ENVIRONMENT, output.name, errors.name
        try:
            print(json.dumps(order), file=server.stdin, flush=True)
            code = int(server.stdout.readline())
        except BaseException:  # it hangs, and the test has run out of time
            server.kill()
            _fork_server.cache_clear()
            raise
        return subprocess.CompletedProcess(order[0], code, output.read().decode(), errors.read().decode())


@contextmanager
def started(*arguments: object, cwd: Path | None = None) -> Iterator[subprocess.Popen[str]]:
    """A command that runs meanwhile."""
    process = subprocess.Popen(
        command(*arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        env=_ENVIRONMENT,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_for_line(process: subprocess.Popen[str], pattern: str) -> re.Match[str]:
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
    def serving(self, *options: str, **changes: Any) -> Iterator[tuple[subprocess.Popen[str], int]]:
        """A running `multi serve` and its port."""
        with started("serve", self.server_config(**changes), "--dir", self.served, *options) as process:
            yield process, int(wait_for_line(process, r"^serving .* port (\d+) \(").group(1))


def interrupt(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Ctrl-C; return exit code and stderr."""
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=TIMEOUT)
    return process.returncode, errors
