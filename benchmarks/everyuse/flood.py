"""10,000 connections at once to `multi forward`: who is served, who is refused, and what others notice of it.

Everything is on this machine: the target, `multi serve`, `multi forward`, and a process that connects as fast as it can
and writes a byte on every connection: to a port that leads to the target, and to a proxy, which is asked for it. One is
opened before and echoes all the time. Then 2,000 that are idle say what each costs.
"""

from __future__ import annotations

import asyncio
import json
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

from benchmarks import ROOT, environment
from benchmarks.everyuse.virtual import Figure

COUNT = 10_000
IDLE = 2_000  # connections that say nothing once they are there
IDLE_COST = 40  # KiB at either end
SETTLED = 2.0  # seconds after which what a flood has needed is free again
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


async def _ask_proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: int) -> None:
    """SOCKS5 (RFC 1928). Raises IncompleteReadError where the proxy ends it."""
    writer.write(b"\5\1\0")
    await reader.readexactly(2)
    writer.write(b"\5\1\0\1" + socket.inet_aton(HOST) + target.to_bytes(2, "big"))
    _, code, _, kind = await reader.readexactly(4)
    await reader.readexactly({1: 6, 4: 18}[kind])
    if code:
        raise ConnectionRefusedError


async def _one(port: int, target: int) -> str:
    """What becomes of one; `target` is asked for at a proxy, and 0 where the port leads there."""
    try:
        reader, writer = await asyncio.open_connection(HOST, port)
    except OSError as error:
        return f"not connected: {error.strerror}"
    try:
        async with asyncio.timeout(PATIENCE):
            if target:
                await _ask_proxy(reader, writer, target)
            writer.write(b"x")
            return "served" if await reader.read(1) == b"x" else "ended"
    except asyncio.IncompleteReadError:
        return "ended"
    except TimeoutError:
        return "hangs"
    except OSError:
        return "reset"
    finally:
        writer.transport.abort()


async def _flood(port: int, target: int, count: int) -> Outcome:
    """(seconds until the last was begun, what became of how many, seconds until the last had an answer)."""
    start, tasks = time.monotonic(), list[asyncio.Task[str]]()
    for _ in range(count // BATCH):
        tasks += [asyncio.create_task(_one(port, target)) for _ in range(BATCH)]
        await asyncio.sleep(0)
    begun = time.monotonic() - start
    outcomes = Counter(await asyncio.gather(*tasks))
    return begun, dict(outcomes), time.monotonic() - start


@contextmanager
def _running(*command: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A program, and the first line it says."""
    process = subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, text=True, env=environment())
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


def _port_said(line: str) -> int:
    """Of `127.0.0.1:1080 is a proxy`."""
    return int(line.split(" ")[0].rpartition(":")[2])


def _flooded(what: str, port: int, target: int, count: int, before: socket.socket) -> Iterator[Figure]:
    """`before` is echoed over all the time."""
    code = (
        "import asyncio, json; from benchmarks.everyuse import flood; "
        f"print(json.dumps(asyncio.run(flood._flood({port}, {target}, {count}))))"
    )
    flooding = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    worst = 0.0
    while flooding.poll() is None:
        worst = max(worst, _echo_time(before))
        time.sleep(0.010)
    output, _ = flooding.communicate()
    begun, outcomes, ended = json.loads(output)
    yield Figure(f"{count} connections to {what} begun within", begun, "s")
    yield Figure(f"the last answered ({outcomes}) after", ended, "s")
    yield Figure("connections that hang", outcomes.get("hangs", 0), "", 0)
    yield Figure("echo of another connection at worst", 1e3 * worst, "ms")
    yield Figure("the same afterwards", 1e3 * _echo_time(before), "ms")


def _idle(port: int, processes: dict[str, subprocess.Popen[str]]) -> Iterator[Figure]:
    """What connections that are only there cost either end."""
    time.sleep(SETTLED)
    memory = {name: _memory(process) for name, process in processes.items()}
    with ExitStack() as stack:
        for _ in range(IDLE):
            _echo_time(stack.enter_context(socket.create_connection((HOST, port), timeout=PATIENCE)))
        for name, process in processes.items():
            grown = (_memory(process) - memory[name]) * 1e6 / IDLE / 1024
            yield Figure(f"one of {IDLE} idle connections costs the {name}", grown, "KiB", IDLE_COST)


def measure(count: int = COUNT) -> Iterator[Figure]:
    """The figures."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="multi-flood-")))
        part = "import asyncio; from benchmarks.everyuse import flood; asyncio.run(flood._serve_echo())"
        _, target = stack.enter_context(_running("-c", part))
        with socket.create_server((HOST, 0)) as free:
            port = free.getsockname()[1]
        (work / "server.json").write_text(json.dumps({"listen": {"host": HOST, "port": port, "transports": ["tcp"]}}))
        (work / "client.json").write_text(json.dumps({
            "connection_priority": [["tcp", "ipv4", HOST], ["tcp", "ipv4", "127.0.0.2"]],
            "remote_host": HOST, "remote_port": port,
        }))  # fmt: skip
        serve = ("-m", "multi", "serve", str(work / "server.json"), "--forward-to", "localhost:*")
        server, _ = stack.enter_context(_running(*serve))
        forward = ("-m", "multi", "forward", str(work / "client.json"), "-L", f"0:{HOST}:{target}", "--socks", "0")
        client, said = stack.enter_context(_running(*forward))
        assert client.stdout is not None
        near, proxy = _port_said(said), _port_said(client.stdout.readline())
        before = stack.enter_context(socket.create_connection((HOST, near), timeout=PATIENCE))
        yield Figure("echo over a forwarded connection", 1e3 * sorted(_echo_time(before) for _ in range(50))[25], "ms")
        processes = {"server": server, "client": client}
        yield from _idle(near, processes)
        memory = {name: _memory(process) for name, process in processes.items()}
        yield from _flooded("a port", near, 0, count, before)
        yield from _flooded("the proxy", proxy, int(target), count, before)
        time.sleep(SETTLED)
        for name, process in processes.items():
            yield Figure(f"memory grown by both floods, {name}", _memory(process) - memory[name], "MB")
