"""`multi demo --loopback`: a real file over TCP, QUIC and MPTCP at once, while connections are stalled and killed.

Server, relay and client run on loopback. The file, made from this Python installation, is first put and then got back.
In each copy one connection is stalled for a while and another one is killed for good, half-way, by a relay that sits
between client and server. At the end SHA-256 of what went out and what came back are compared.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from multi.asyncio.interruption import run_interruptible
from multi.lab.demo.file_server import DemoFailed, make_file, serving
from multi.lab.demo.recording import Recorder
from multi.lab.demo.relay import DatagramRoute, StreamRoute
from multi.lab.files.client import Copied, Transfer, get_file, put_file
from multi.lab.files.progress import Progress
from multi.linux.mptcp_pm import NO_MPTCP, mptcp_available

FILE_SIZE = 230_000_000  # bytes: 15 to 25 s at the rates below
FILE_NAME = "python-installation.bin"
STALL_AT, KILL_AT = 0.20, 0.55  # share of the file copied
STALL_FOR = 3.0  # seconds
SAMPLE = 0.25  # seconds between points of the trace
SHARE_PROMISED = 0.15  # each connection carries at least this

RATES_MBPS = {"tcp": 56, "quic": 42, "mptcp": 42}
LISTEN = {"tcp": "127.0.0.11", "quic": "127.0.0.12", "mptcp": "127.0.0.13"}
SOURCES = {"tcp": "127.0.0.21", "quic": "127.0.0.22", "mptcp": "127.0.0.23"}
STALLED = {"put": "quic", "get": "tcp"}
KILLED = {"put": "tcp", "get": "mptcp"}

Routes = dict[str, StreamRoute | DatagramRoute]
Results = dict[str, tuple[Copied, Recorder]]


def run_loopback_demo(out: Path, *, speed: float) -> int:
    """Run the demo; write its trace to `out`. `speed` 10 makes it a tenth as long. Returns the exit code."""
    if not mptcp_available():
        raise DemoFailed(f"{NO_MPTCP}: the demo needs it")
    with tempfile.TemporaryDirectory(prefix="multi-demo-", ignore_cleanup_errors=True) as work:
        return run_interruptible(_demo(Path(work), out, speed))


async def _demo(work: Path, out: Path, speed: float) -> int:
    print("Making a file from this Python installation ...", flush=True)
    file, back = work / FILE_NAME, work / "back" / FILE_NAME
    size = int(FILE_SIZE / speed)
    digest = await make_file(file, size)
    print(f"  {file.name}: {size / 1e6:.0f} MB, SHA-256 {digest[:16]}...")
    for directory in (back.parent, work / "files"):
        directory.mkdir()
    listen = {"host": "127.0.0.1", "port": 0, "transports": ["tcp", "mptcp", "quic"]}
    async with serving(subprocess.Popen, work, listen, "--allow-put") as server:
        results = {copy: await _copy(copy, work, file, back, server.port, STALL_FOR / speed) for copy in KILLED}
    _write_trace(results, out)
    return _summary(digest, results, out)


@asynccontextmanager
async def _relay(port: int) -> AsyncIterator[tuple[dict[str, int], Routes]]:
    """A route to the server for each transport, with the port it listens on."""
    target = ("127.0.0.1", port)
    routes: Routes = {n: DatagramRoute(target) if n == "quic" else StreamRoute(n == "mptcp", target) for n in LISTEN}
    try:
        yield {name: await route.start(LISTEN[name]) for name, route in routes.items()}, routes
    finally:
        for route in routes.values():
            route.kill()


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


async def _copy(copy: str, work: Path, file: Path, back: Path, port: int, stall_for: float) -> tuple[Copied, Recorder]:
    verb = "Sending" if copy == "put" else "Getting back"
    print(
        f"\n{verb} {file.name} over tcp, quic and mptcp; {STALLED[copy]} will be stalled for {stall_for:g} s, "
        f"{KILLED[copy]} killed half-way.",
        flush=True,
    )
    async with _relay(port) as (ports, routes), Progress(Console()) as progress:
        config = _client_config(work, ports)
        saboteur = _Saboteur(copy, stall_for, routes, progress)
        try:
            if copy == "put":
                return await put_file(config, file, file.name, progress=saboteur.moved), saboteur.recorder
            return await get_file(config, file.name, back, force=True, progress=saboteur.moved), saboteur.recorder
        finally:
            saboteur.stop()


class _Saboteur:
    """Follows a copy: shows it, breaks connections when their time has come, and records what it sees."""

    def __init__(self, copy: str, stall_for: float, routes: Routes, progress: Progress) -> None:
        self._stalled, self._killed = STALLED[copy], KILLED[copy]
        self._stall_for = stall_for
        self._routes = routes
        self._progress = progress
        self._sampled_at = 0.0
        self._has_killed = False
        self._resuming: asyncio.TimerHandle | None = None
        self.recorder = Recorder(time.monotonic, {})

    def moved(self, transfer: Transfer) -> None:
        """A block was copied, or some time has passed."""
        self._progress.update(transfer)
        recorder = self.recorder
        if transfer.done > recorder.delivered:
            recorder.read(transfer.done - recorder.delivered)
        if recorder.now() - self._sampled_at >= SAMPLE:
            self._sampled_at = recorder.now()
            recorder.sample(transfer.session.connections, transfer.bytes_of)
        share = transfer.done / transfer.size if transfer.size else 0.0
        if not self._resuming and share >= STALL_AT:
            stalled = self._routes[self._stalled]
            self._do(stalled.stall, f"{self._stalled} is stalled: nothing passes, nobody is told")
            resume = (stalled.resume, f"{self._stalled} flows again")
            self._resuming = asyncio.get_running_loop().call_later(self._stall_for, self._do, *resume)
        if not self._has_killed and share >= KILL_AT:
            self._has_killed = True
            self._do(self._routes[self._killed].kill, f"{self._killed} is killed for good")

    def _do(self, act: Callable[[], None], words: str) -> None:
        act()
        self.recorder.event(words)
        self._progress.say(words, "bold magenta")

    def stop(self) -> None:
        if self._resuming is not None:
            self._resuming.cancel()


# --- what came out ---


def _write_trace(results: Results, out: Path) -> None:
    content = []
    for copy, (copied, recorder) in results.items():
        trace = {
            "copy": copy,
            "events": [{"t": round(t, 3), "what": words} for t, words in recorder.events],
            "samples": recorder.samples,
            "longest_gap": recorder.longest_pause(),
        }
        content.append({"result": asdict(copied), "trace": trace})
    (out / "demo.json").write_text(json.dumps(content, indent=1, default=str))


def _summary(sent: str, results: Results, out: Path) -> int:
    print("\nSummary")
    poorest = 1.0
    for copy, (copied, recorder) in results.items():
        total = sum(c.bytes for c in copied.connections)
        print(
            f"  {copy}: {copied.size / 1e6:.0f} MB in {copied.seconds:.1f} s, "
            f"{copied.size * 8 / copied.seconds / 1e6:.0f} Mbit/s, longest gap {recorder.longest_pause() * 1000:.0f} ms"
        )
        for name in LISTEN:
            carried = sum(c.bytes for c in copied.connections if c.transport == name)
            share = carried / total if total else 0.0
            poorest = min(poorest, share)
            fate = {KILLED[copy]: " (killed half-way)", STALLED[copy]: " (stalled for a while)"}.get(name, "")
            print(f"    {name:5} carried {carried / 1e6:6.1f} MB, {share:4.0%}{fate}")
    returned = results["get"][0].sha256
    print(f"  SHA-256 sent     {sent}")
    print(f"  SHA-256 returned {returned}")
    print(f"  trace: {out / 'demo.json'}")
    if sent != returned:
        print(f"  {FILE_NAME} did NOT come back as it went out.")
    elif poorest < SHARE_PROMISED:
        print(f"  The file came back whole, but one connection carried only {poorest:.0%}.")
    else:
        print(
            f"  {FILE_NAME} went out and came back whole: nothing lost, nothing doubled, although each time one "
            "connection stood still and one died."
        )
    return 0 if sent == returned and poorest >= SHARE_PROMISED else 1
