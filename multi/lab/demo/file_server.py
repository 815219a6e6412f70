"""What the demos need around them: a file to copy, and `multi serve` as a process."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from multi.errors import MultiError
from multi.lab.cert import write_development_certificates

PIECE = 16_000_000  # bytes of the installation that are repeated
START_TIMEOUT = 20.0  # seconds for the server to come up, on a machine that is busy
END_TIMEOUT = 0.5  # seconds it gets to end in order; there is nothing it could lose
POLL = 0.02  # seconds


class DemoFailed(MultiError):
    """Something the demo needs is missing, or a promise was not kept."""


async def make_file(path: Path, size: int) -> str:
    """Write the Python installation to `path`, as often as it takes; return its SHA-256.

    Each repetition starts with its number, so that none can stand for another. Raises DemoFailed without disk space.
    """
    path.parent.mkdir(exist_ok=True)
    free = shutil.disk_usage(path.parent).free
    if free < size:
        raise DemoFailed(f"{path.parent} has {free / 1e6:.0f} MB left and the file needs {size / 1e6:.0f} (see TMPDIR)")
    sha256 = hashlib.sha256()
    installation = await asyncio.to_thread(_installation, min(PIECE, size))

    def append(piece: bytes) -> None:
        file.write(piece)
        sha256.update(piece)

    with path.open("wb") as file:
        repetition = 0
        while size:
            repetition += 1
            piece = (b"\nrepetition %d\n" % repetition + installation)[:size]
            size -= len(piece)
            await asyncio.to_thread(append, piece)  # a thread cannot be interrupted, so not all in one call
    return sha256.hexdigest()


def _installation(size: int) -> bytes:
    content = bytearray()
    for path in sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py")):
        with contextlib.suppress(OSError):
            content += path.read_bytes()
        if len(content) >= size:
            break
    return bytes(content[:size])


class ServerProcess:
    """`async with ServerProcess(...)`: a file service with TLS; serves `work/files` with `work/certs`.

    `popen` starts it, on whatever host it likes; `listen` is the section of the configuration.
    """

    def __init__(
        self, popen: Callable[..., subprocess.Popen[bytes]], work: Path, listen: dict[str, Any], *arguments: str
    ) -> None:
        self._popen = popen
        self._work = work
        self._listen = listen
        self._arguments = arguments
        self._log = work / "server.log"
        self.port = 0
        """Where it listens, once it is ready."""
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def process_id(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(write_development_certificates, self._work / "certs", [])
        config = {
            "listen": self._listen,
            "ssl_config": {"cert": "certs/server-cert.pem", "key": "certs/server-key.pem"},
        }
        path = self._work / "server.json"
        path.write_text(json.dumps(config, indent=2))
        command = [
            sys.executable,
            "-m",
            "multi",
            "serve",
            str(path),
            "--dir",
            str(self._work / "files"),
            *self._arguments,
        ]
        with self._log.open("wb") as log:
            # An interruption at the terminal is for us alone: the server ends when we are done with it.
            self._process = self._popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        try:
            await self._ready()
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._end()

    async def _ready(self) -> None:
        assert self._process is not None
        try:
            async with asyncio.timeout(START_TIMEOUT):
                while not (ready := re.search(r"serving .* port (\d+) ", self._log.read_text(errors="replace"))):
                    if self._process.poll() is not None:
                        raise DemoFailed(self.explain_end())
                    await asyncio.sleep(POLL)
            self.port = int(ready[1])
        except TimeoutError:
            raise DemoFailed(f"the server was not ready within {START_TIMEOUT:g} s") from None

    async def _end(self) -> None:
        process = self._process
        assert process is not None
        process.terminate()
        try:
            await asyncio.to_thread(process.wait, END_TIMEOUT)
        except BaseException as error:
            process.kill()
            process.wait()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise

    def explain_end(self) -> str:
        """Why it is gone, in words."""
        assert self._process is not None
        status = self._process.poll()
        how = f"by signal {-status}" if status is not None and status < 0 else f"with exit code {status}"
        last = self._log.read_text(errors="replace").strip().splitlines()[-1:]
        return f"the server has ended {how}" + (f"; its last words: {last[0]}" if last else "")

    def sent_again(self) -> int:
        """Bytes its sessions have sent again, by its log."""
        return sum(map(int, re.findall(r"(\d+) bytes sent again", self._log.read_text(errors="replace"))))


async def wait_for_end(process: int, explain: Callable[[], str]) -> None:
    """Raise DemoFailed with the explanation when a child of ours ends."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()

    def end() -> None:
        if not ended.done():
            ended.set_result(None)

    descriptor = os.pidfd_open(process)
    try:
        loop.add_reader(descriptor, end)
        await ended
        raise DemoFailed(explain())
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
