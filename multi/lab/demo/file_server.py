"""What the demos need around them: a file to copy, and `multi serve` as a process."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from multi.errors import MultiError
from multi.lab.cert import write_development_certificates

PIECE = 16_000_000  # bytes of the installation that are repeated
START_TIMEOUT = 60.0  # seconds for the server to come up, on a machine that is busy
END_TIMEOUT = 0.5  # seconds it gets to end in order; there is nothing it could lose
POLL = 0.02  # seconds


class DemoFailed(MultiError):
    """Something the demo needs is missing, or a promise was not kept."""


async def make_file(path: Path, size: int) -> str:
    """Write the Python installation to `path`, as often as it takes; return its SHA-256.

    Each repetition starts with its number, so that none can stand for another. Raises OSError without disk space.
    """
    path.parent.mkdir(exist_ok=True)
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


def hash_of_beginning(path: Path, size: int) -> str:
    """SHA-256 of the first `size` bytes of a file, or of all of a shorter one."""
    sha256 = hashlib.sha256()
    with path.open("rb") as file:
        while size and (piece := file.read(min(PIECE, size))):
            sha256.update(piece)
            size -= len(piece)
    return sha256.hexdigest()


def _installation(size: int) -> bytes:
    content = bytearray()
    for path in sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py")):
        with contextlib.suppress(OSError):
            content += path.read_bytes()
        if len(content) >= size:
            break
    return bytes(content[:size])


@dataclass(frozen=True, slots=True)
class ServerProcess:
    """A `multi serve` that is ready."""

    process: subprocess.Popen[bytes]
    log: Path
    port: int = 0

    def explain_end(self) -> str:
        """Why it is gone, in words."""
        status = self.process.poll()
        how = f"by signal {-status}" if status is not None and status < 0 else f"with exit code {status}"
        last = self.log.read_text(errors="replace").strip().splitlines()[-1:]
        return f"the server has ended {how}" + (f"; its last words: {last[0]}" if last else "")

    def sent_again(self) -> int:
        """Bytes its sessions have sent again, by its log."""
        return sum(map(int, re.findall(r"(\d+) bytes sent again", self.log.read_text(errors="replace"))))


@asynccontextmanager
async def serving(
    popen: Callable[..., subprocess.Popen[bytes]], work: Path, listen: dict[str, Any], *arguments: str
) -> AsyncIterator[ServerProcess]:
    """A file service with TLS for `work/files`, with the certificates in `work/certs`.

    `popen` starts it, on whatever host it likes; `listen` is the section of the configuration.
    """
    await asyncio.to_thread(write_development_certificates, work / "certs", [])
    ssl_config = {"cert": "certs/server-cert.pem", "key": "certs/server-key.pem"}
    config, log = work / "server.json", work / "server.log"
    config.write_text(json.dumps({"listen": listen, "ssl_config": ssl_config}, indent=2))
    command = [sys.executable, "-m", "multi", "serve", str(config), "--dir", str(work / "files"), *arguments]
    with log.open("wb") as output:
        # An interruption at the terminal is for us alone: the server ends when we are done with it.
        process = popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True)
    try:
        yield await _ready(ServerProcess(process, log))
    finally:
        process.terminate()
        try:
            await asyncio.to_thread(process.wait, END_TIMEOUT)
        except BaseException as error:
            process.kill()
            process.wait()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise


async def _ready(server: ServerProcess) -> ServerProcess:
    try:
        async with asyncio.timeout(START_TIMEOUT):
            while not (ready := re.search(r"serving .* port (\d+) ", server.log.read_text(errors="replace"))):
                if server.process.poll() is not None:
                    raise DemoFailed(server.explain_end())
                await asyncio.sleep(POLL)
    except TimeoutError:
        raise DemoFailed(f"the server was not ready within {START_TIMEOUT:g} s") from None
    return replace(server, port=int(ready[1]))


async def wait_for_end(process: int, explain: Callable[[], str]) -> None:
    """Raise DemoFailed with the explanation when a child of ours ends."""
    ended = asyncio.Event()
    descriptor = os.pidfd_open(process)
    asyncio.get_running_loop().add_reader(descriptor, ended.set)
    try:
        await ended.wait()
    finally:
        asyncio.get_running_loop().remove_reader(descriptor)
        os.close(descriptor)
    raise DemoFailed(explain())
