"""10,000 connections at once to a port that is forwarded: who is served, who is refused, and what others notice of it.

Everything is on this machine: the target, `multi serve`, `multi forward`, and a process that connects as fast as it can
and writes a byte on every connection. One is opened before and echoes all the time.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks import ROOT
from benchmarks.everyuse.virtual import Figure

COUNT = 10_000
PATIENCE = 120.0  # seconds after which a connection that has heard nothing hangs
HOST = "127.0.0.1"
BATCH = 100  # connections begun in one turn of the loop

Outcome = tuple[float, dict[str, int], float]


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(4096):
            writer.write(data)
    except OSError:
        pass
    writer.close()


async def _serve_echo() -> None:
    server = await asyncio.start_server(_echo, HOST, 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


async def _one(port: int) -> str:
    try:
        reader, writer = await asyncio.open_connection(HOST, port)
    except OSError as error:
        return f"not connected: {error.strerror}"
    try:
        writer.write(b"x")
        async with asyncio.timeout(PATIENCE):
            return "served" if await reader.read(1) == b"x" else "ended"
    except TimeoutError:
        return "hangs"
    except OSError:
        return "reset"
    finally:
        writer.transport.abort()


async def _flood(port: int, count: int) -> Outcome:
    """(seconds until the last was begun, what became of how many, seconds until the last had an answer)."""
    start, tasks = time.monotonic(), list[asyncio.Task[str]]()
    for _ in range(count // BATCH):
        tasks += [asyncio.create_task(_one(port)) for _ in range(BATCH)]
        await asyncio.sleep(0)
    begun = time.monotonic() - start
    outcomes = Counter(await asyncio.gather(*tasks))
    return begun, dict(outcomes), time.monotonic() - start


@contextmanager
def _running(*command: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A program, and the first line it says."""
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    process = subprocess.Popen(
        [sys.executable, *command], stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": paths}
    )
    assert process.stdout is not None
    try:
        yield process, process.stdout.readline().strip()
    finally:
        process.kill()  # told to stop, a server waits for its sessions
        process.communicate(timeout=30)


def _memory(process: subprocess.Popen[str]) -> float:
    """Resident MB."""
    pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def _echo_time(sock: socket.socket) -> float:
    start = time.monotonic()
    sock.sendall(b"?")
    assert sock.recv(1) == b"?"
    return time.monotonic() - start


def measure(count: int = COUNT) -> Iterator[Figure]:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="multi-flood-")))
        part = "import asyncio; from benchmarks.everyuse import flood; "
        _, target = stack.enter_context(_running("-c", part + "asyncio.run(flood._serve_echo())"))
        with socket.create_server((HOST, 0)) as free:
            port = free.getsockname()[1]
        (work / "server.json").write_text(json.dumps({"listen": {"host": HOST, "port": port, "transports": ["tcp"]}}))
        (work / "client.json").write_text(json.dumps({
            "connection_priority": [["tcp", "ipv4", HOST], ["tcp", "ipv4", "127.0.0.2"]],
            "remote_host": HOST, "remote_port": port,
        }))  # fmt: skip
        serve = ("-m", "multi", "serve", str(work / "server.json"), "--forward-to", "localhost:*")
        server, _ = stack.enter_context(_running(*serve))
        forward = ("-m", "multi", "forward", str(work / "client.json"), "-L", f"0:{HOST}:{target}")
        client, said = stack.enter_context(_running(*forward))
        near = int(said.split(" ")[0].rpartition(":")[2])
        before = stack.enter_context(socket.create_connection((HOST, near), timeout=PATIENCE))
        idle = sorted(_echo_time(before) for _ in range(50))[25]
        memory = [_memory(server), _memory(client)]
        code = part + f"import json; print(json.dumps(asyncio.run(flood._flood({near}, {count}))))"
        flooding = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=ROOT)
        worst = 0.0
        while flooding.poll() is None:
            worst = max(worst, _echo_time(before))
            time.sleep(0.010)
        output, _ = flooding.communicate()
        begun, outcomes, ended = json.loads(output)
        yield Figure(f"{count} connections begun within", begun, "s")
        yield Figure(f"the last answered ({outcomes}) after", ended, "s")
        yield Figure("connections that hang", outcomes.get("hangs", 0), "", 0)
        yield Figure("echo of another connection: idle", 1e3 * idle, "ms")
        yield Figure("at worst during the flood", 1e3 * worst, "ms")
        yield Figure("the same afterwards", 1e3 * _echo_time(before), "ms")
        grown = [_memory(process) - was for process, was in zip((server, client), memory, strict=True)]
        yield Figure("memory grown by, server", grown[0], "MB")
        yield Figure("memory grown by, client", grown[1], "MB")
