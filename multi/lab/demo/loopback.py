"""`multi demo --loopback`: a real file over TCP, QUIC and MPTCP at once, while connections are stalled and killed.

Server, relay and client run on loopback. The file, an archive of this Python installation, is first put and then got
back. In each copy one connection is stalled for a while and another one is killed for good, half-way, by a relay
process that sits between client and server. At the end SHA-256 of what went out and what came back are compared.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import shutil
import socket
import sys
import sysconfig
import tarfile
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from multi.errors import MultiError
from multi.lab.cert import write_development_certificates
from multi.lab.demo.relay import RelayRoute
from multi.lab.files.client import Copied, Transfer, get_file, put_file
from multi.lab.files.progress import Progress

ARCHIVE_SIZE = 230_000_000  # bytes at least: 15 to 25 s at the rates below
STALL_AT, KILL_AT = 0.20, 0.55  # share of the file copied
STALL_FOR = 3.0  # seconds
SAMPLE = 0.25  # seconds between points of the trace
START_TIMEOUT = 20.0  # seconds for the server and the relay to come up
SHARE_PROMISED = 0.15  # each connection carries at least this

RATES_MBPS = {"tcp": 56, "quic": 42, "mptcp": 42}
LISTEN = {"tcp": "127.0.0.11", "quic": "127.0.0.12", "mptcp": "127.0.0.13"}
SOURCES = {"tcp": "127.0.0.21", "quic": "127.0.0.22", "mptcp": "127.0.0.23"}


@dataclass(frozen=True, slots=True)
class Plan:
    """What happens to which connection during one copy."""

    stall: str
    kill: str


PLANS = {"put": Plan(stall="quic", kill="tcp"), "get": Plan(stall="tcp", kill="mptcp")}


@dataclass(slots=True)
class Trace:
    """What happened in one copy, for the summary and the JSON file."""

    copy: str
    events: list[dict[str, Any]] = field(default_factory=list)
    samples: list[dict[str, Any]] = field(default_factory=list)
    longest_gap: float = 0.0
    """Longest time without a byte more copied, in seconds."""


class DemoFailed(MultiError):
    """Something the demo needs is missing, or a promise was not kept."""


def run_loopback_demo(out: Path, *, speed: float = 1.0) -> int:
    """Run the demo; write its trace to `out`. `speed` 10 makes it a tenth as long. Returns the exit code."""
    work = Path(tempfile.mkdtemp(prefix="multi-demo-"))
    try:
        return asyncio.run(_demo(work, out, speed))
    finally:
        shutil.rmtree(work, ignore_errors=True)


async def _demo(work: Path, out: Path, speed: float) -> int:
    print("Packing an archive of this Python installation ...", flush=True)
    archive = await asyncio.to_thread(_archive, work, int(ARCHIVE_SIZE / speed))
    digest = await asyncio.to_thread(_sha256, archive)
    size = archive.stat().st_size
    print(f"  {archive.name}: {size / 1e6:.0f} MB, SHA-256 {digest[:16]}...")
    if not _has_mptcp():
        raise DemoFailed("this kernel has no MPTCP (net.mptcp.enabled): the demo needs it")
    write_development_certificates(work / "certs", [])
    (work / "files").mkdir()
    results: list[tuple[Copied, Trace]] = []
    async with _server(work) as port:
        for copy in ("put", "get"):
            results.append(await _copy(copy, work, archive, port, STALL_FOR / speed))
    back = work / "back" / archive.name
    returned = await asyncio.to_thread(_sha256, back)
    _write_trace(out, results)
    return _summary(archive, digest, returned, results, out)


# --- the file ---


def _archive(work: Path, enough: int) -> Path:
    """Pack files of the Python installation until there is enough; uncompressed, so that its size is what travels."""
    target = work / "python-installation.tar"
    total = 0
    with tarfile.open(target, "w") as archive:
        for path in installation_files():
            with contextlib.suppress(OSError):
                size = path.stat().st_size
                if size > enough:
                    continue  # it would make a short demo long
                archive.add(path, arcname=str(path).lstrip("/"), recursive=False)
                total += size
            if total >= enough:
                break
    if total < enough:
        raise DemoFailed(f"this installation has only {total / 1e6:.0f} MB of files")
    return target


def installation_files() -> Iterator[Path]:
    """Files of the standard library, of installed packages, then of the system's programs."""
    roots = [sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), sys.base_prefix, "/usr/lib", "/usr/bin"]
    seen: set[Path] = set()
    for root in dict.fromkeys(roots):
        for directory, subdirectories, names in os.walk(root):
            subdirectories.sort()
            for name in sorted(names):
                path = Path(directory, name)
                if path not in seen and path.is_file() and not path.is_symlink():
                    seen.add(path)
                    yield path


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# --- server and relay ---


@asynccontextmanager
async def _process(*arguments: str, stdin: int | None = None) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a Python module and end it afterwards, whatever happens."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", *arguments, stdout=asyncio.subprocess.PIPE, stdin=stdin
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
            try:
                await asyncio.wait_for(process.wait(), 5)
            except TimeoutError:
                process.kill()
                await process.wait()


async def _line(process: asyncio.subprocess.Process, start: str) -> str:
    """Wait for the line a process says it is ready with."""
    assert process.stdout is not None
    async with asyncio.timeout(START_TIMEOUT):
        while line := (await process.stdout.readline()).decode():
            if line.startswith(start):
                return line
    raise DemoFailed(f"a helper process ended before it was ready (exit code {await process.wait()})")


@asynccontextmanager
async def _server(work: Path) -> AsyncIterator[int]:
    config = {
        "listen": {"host": "127.0.0.1", "port": 0, "transports": ["tcp", "mptcp", "quic"]},
        "ssl_config": {"cert": "certs/server-cert.pem", "key": "certs/server-key.pem"},
    }
    path = work / "server.json"
    path.write_text(json.dumps(config, indent=2))
    async with _process("multi", "serve", str(path), "--dir", str(work / "files"), "--allow-put") as process:
        line = await _line(process, "serving")
        yield int(line.split(" port ")[1].split()[0])


@asynccontextmanager
async def _relay(port: int) -> AsyncIterator[tuple[dict[str, int], asyncio.StreamWriter]]:
    """A relay with one route per transport; yields its ports and its standard input."""
    ports = {name: _free_port(host, udp=name == "quic") for name, host in LISTEN.items()}
    routes = [
        RelayRoute(name, "udp" if name == "quic" else name, (LISTEN[name], ports[name]), ("127.0.0.1", port))
        for name in LISTEN
    ]
    arguments = [argument for route in routes for argument in route.arguments()]
    async with _process("multi.lab.demo.relay", *arguments, stdin=asyncio.subprocess.PIPE) as process:
        await _line(process, "relaying")
        assert process.stdin is not None
        yield ports, process.stdin


def _free_port(host: str, *, udp: bool) -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM if udp else socket.SOCK_STREAM) as sock:
        sock.bind((host, 0))
        port: int = sock.getsockname()[1]
        return port


def _has_mptcp() -> bool:
    try:
        return Path("/proc/sys/net/mptcp/enabled").read_text().strip() == "1"
    except OSError:
        return False


# --- one copy ---


def _client_config(work: Path, ports: dict[str, int]) -> dict[str, Any]:
    return {
        "connection_priority": [
            {
                "transport": name,
                "ip": "ipv4",
                "interface": SOURCES[name],
                "remote_host": LISTEN[name],
                "remote_port": ports[name],
                "max_rate_mbps": RATES_MBPS[name],
            }
            for name in LISTEN
        ],
        "remote_host": "127.0.0.1",
        "ssl_config": {"ca": str(work / "certs" / "ca.pem"), "server_name": "localhost"},
    }


async def _copy(copy: str, work: Path, archive: Path, port: int, stall_for: float) -> tuple[Copied, Trace]:
    plan = PLANS[copy]
    trace = Trace(copy)
    verb = "Sending" if copy == "put" else "Getting back"
    print(
        f"\n{verb} {archive.name} over tcp, quic and mptcp; {plan.stall} will be stalled for {stall_for:g} s, "
        f"{plan.kill} killed half-way.",
        flush=True,
    )
    async with _relay(port) as (ports, commands):
        config = _client_config(work, ports)
        async with Progress(Console()) as progress:
            watcher = _Watcher(plan, stall_for, trace, commands, progress)
            try:
                if copy == "put":
                    result = await put_file(config, archive, archive.name, progress=watcher.moved)
                else:
                    (work / "back").mkdir()
                    result = await get_file(config, archive.name, work / "back" / archive.name, progress=watcher.moved)
            finally:
                await watcher.stop()
    return result, trace


class _Watcher:
    """Follows a copy: shows it, breaks connections when their time has come, and records what it sees."""

    def __init__(
        self, plan: Plan, stall_for: float, trace: Trace, commands: asyncio.StreamWriter, progress: Progress
    ) -> None:
        self._plan = plan
        self._stall_for = stall_for
        self._trace = trace
        self._commands = commands
        self._progress = progress
        self._started = time.monotonic()
        self._moved_at = self._started
        self._sampled_at = 0.0
        self._done = 0
        self._stalled = self._killed = False
        self._tasks: list[asyncio.Task[None]] = []

    def moved(self, transfer: Transfer) -> None:
        """A block was copied, or some time has passed."""
        self._progress.update(transfer)
        now = time.monotonic()
        if transfer.done > self._done:
            if self._done:
                self._trace.longest_gap = max(self._trace.longest_gap, now - self._moved_at)
            self._done, self._moved_at = transfer.done, now
        if now - self._sampled_at >= SAMPLE:
            self._sampled_at = now
            shares = {f"{s.transport} {s.id}": s.bytes for s in transfer.shares()}
            self._trace.samples.append({"t": round(now - self._started, 3), "done": transfer.done, "bytes": shares})
        share = transfer.done / transfer.size if transfer.size else 0.0
        if not self._stalled and share >= STALL_AT:
            self._stalled = True
            self._say("stall", self._plan.stall, f"{self._plan.stall} is stalled: nothing passes, nobody is told")
            self._tasks.append(asyncio.get_running_loop().create_task(self._resume_later()))
        if not self._killed and share >= KILL_AT:
            self._killed = True
            self._say("kill", self._plan.kill, f"{self._plan.kill} is killed for good")

    async def _resume_later(self) -> None:
        await asyncio.sleep(self._stall_for)
        self._say("resume", self._plan.stall, f"{self._plan.stall} flows again")

    def _say(self, verb: str, name: str, words: str) -> None:
        self._commands.write(f"{verb} {name}\n".encode())
        self._trace.events.append({"t": round(time.monotonic() - self._started, 3), "what": words})
        self._progress.say(words, "bold magenta")

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


# --- what came out ---


def _write_trace(out: Path, results: list[tuple[Copied, Trace]]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    content = [{"result": asdict(copied), "trace": asdict(trace)} for copied, trace in results]
    (out / "demo.json").write_text(json.dumps(content, indent=1, default=str))


def _summary(archive: Path, sent: str, returned: str, results: list[tuple[Copied, Trace]], out: Path) -> int:
    print("\nSummary")
    poorest = 1.0
    for copied, trace in results:
        total = sum(c.bytes for c in copied.connections)
        print(
            f"  {trace.copy}: {copied.size / 1e6:.0f} MB in {copied.seconds:.1f} s, "
            f"{copied.size * 8 / copied.seconds / 1e6:.0f} Mbit/s, longest gap {trace.longest_gap * 1000:.0f} ms"
        )
        carried: dict[str, int] = {}
        for connection in copied.connections:
            carried[connection.transport] = carried.get(connection.transport, 0) + connection.bytes
        for name in LISTEN:
            share = carried.get(name, 0) / total if total else 0.0
            poorest = min(poorest, share)
            plan = PLANS[trace.copy]
            fate = " (killed half-way)" if name == plan.kill else " (stalled for a while)" if name == plan.stall else ""
            print(f"    {name:5} carried {carried.get(name, 0) / 1e6:6.1f} MB, {share:4.0%}{fate}")
    same = sent == returned
    print(f"  SHA-256 sent     {sent}")
    print(f"  SHA-256 returned {returned}")
    print(f"  trace: {out / 'demo.json'}")
    if not same:
        print(f"  {archive.name} did NOT come back as it went out.")
    elif poorest < SHARE_PROMISED:
        print(f"  The file came back whole, but one connection carried only {poorest:.0%}.")
    else:
        print(
            f"  {archive.name} went out and came back whole: nothing lost, nothing doubled, although each time one "
            "connection stood still and one died."
        )
    return 0 if same and poorest >= SHARE_PROMISED else 1
