"""Measure a server of several processes: `python -m benchmarks.workers [--quick]`, or `make bench ARGS=workers`.

One worker and four are measured in turn, in the same run, beside their clients: ratios and medians count.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import multi
from benchmarks.processes import Process, raise_descriptors
from benchmarks.workers.relay import ChangingRelay
from multi.lab.cert import write_development_certificates

MANY = 4
MIXES = (("tcp", "tcp"), ("quic", "quic"), ("tcp", "quic"))
WORK = 0.005  # seconds of processor time a request costs
FETCHING, SESSIONS = 4, 2  # clients that get bytes, each a process, and the sessions of each
CLIENTS = 16  # sessions that ask one request after the other
GAP = 0.1  # seconds between echoes of sessions that a death may concern


@dataclass
class Served:
    """A server in processes of its own."""

    process: Process
    port: int
    pid: int

    def processes(self) -> list[int]:
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return [self.pid, *map(int, children)]

    def processor_time(self) -> float:
        """Seconds, of all its processes."""
        return sum(_processor_time(pid) for pid in self.processes())


def _processor_time(pid: int) -> float:
    """Of all its threads; to the nanosecond, where `stat` counts hundredths of a second."""
    return sum(int(thread.read_text().split()[0]) for thread in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


class Bench:
    """What all measurements need."""

    def __init__(self, directory: Path) -> None:
        write_development_certificates(directory, [])
        self._certificates = directory

    @contextmanager
    def server(self, workers: int | None, *, tls: bool) -> Iterator[Served]:
        config: dict[str, Any] = {"listen": {"host": "127.0.0.1", "port": 0}, "workers": workers}
        if tls:
            files = {name: str(self._certificates / f"server-{name}.pem") for name in ("cert", "key")}
            config["ssl_config"] = files
        path = self._certificates / f"server-{workers}-{tls}.json"
        path.write_text(json.dumps(config))
        with Process("benchmarks.workers.server", str(path)) as process:
            said = process.line()
            yield Served(process, said["port"], said["pid"])

    def client(self, port: int, *transports: str, tls: bool = True) -> dict[str, Any]:
        config: dict[str, Any] = {
            "connection_priority": [[name, "ipv4", f"127.0.0.{at}"] for at, name in enumerate(transports, 2)],
            "multi_config": {"wait": "all"},
            "remote_host": "127.0.0.1",
            "remote_port": port,
        }
        if tls:
            config["ssl_config"] = {"ca": str(self._certificates / "ca.pem"), "server_name": "localhost"}
        return config

    def client_file(self, port: int, *transports: str) -> Path:
        """The same without TLS, as a file."""
        path = self._certificates / f"client-{port}.json"
        path.write_text(json.dumps(self.client(port, *transports, tls=False)))
        return path


async def asked(session: multi.Session, line: str) -> str:
    session.writer.write(line.encode() + b"\n")
    return (await session.reader.readline()).decode().strip()


# --- where connections go ---


async def strays(bench: Bench, served: Served, sessions: int, changes: int) -> dict[str, Any]:
    """Sessions of all mixes, through relays that change their ports under them."""
    unknown: Counter[str] = Counter()
    owners: Counter[str] = Counter()

    async def watch(session: multi.Session) -> None:
        async for event in session.events():
            reason = getattr(event, "reason", None)
            if isinstance(reason, multi.Reason) and reason.cause is multi.Cause.REFUSED_UNKNOWN:
                unknown[type(event).__name__] += 1

    async def one(number: int) -> int:
        moved = 0
        async with ChangingRelay(served.port) as relay:
            session = await multi.connect(bench.client(relay.port, *MIXES[number % len(MIXES)]))
            watching = asyncio.ensure_future(watch(session))
            owner = await asked(session, "who")
            owners[owner] += 1
            for _ in range(changes):
                payload = os.urandom(8_000).hex()
                assert await asked(session, payload) == payload
                moved += len(payload)
                relay.change_ports()
                assert await asked(session, "who") == owner
            await session.close()
            await watching
        return moved

    began = time.monotonic()
    moved = 0
    for start in range(0, sessions, 8):
        moved += sum(await asyncio.gather(*(one(number) for number in range(start, min(start + 8, sessions)))))
    return {
        "sessions": sessions,
        "changes of ports": sessions * changes,
        "bytes compared": moved,
        "refused as unknown": unknown.total(),
        "sessions of each worker": sorted(owners.values()),
        "seconds": round(time.monotonic() - began, 1),
    }


# --- how much it does ---


async def requests(bench: Bench, served: Served, seconds: float) -> tuple[float, float]:
    """(requests a second, processor time of the server for each, in milliseconds)."""
    sessions = [await multi.connect(bench.client(served.port, "tcp", tls=False)) for _ in range(CLIENTS)]
    before, began = served.processor_time(), time.monotonic()

    async def ask(session: multi.Session) -> int:
        count = 0
        while time.monotonic() < began + seconds:
            await asked(session, f"work {WORK}")
            count += 1
        return count

    done = sum(await asyncio.gather(*map(ask, sessions)))
    took, used = time.monotonic() - began, served.processor_time() - before
    for session in sessions:
        await session.close()
    return done / took, used / done * 1000


def transfer(bench: Bench, served: Served, size: int) -> float:
    """MB for each second of processor time of the server's processes, `size` bytes to every session."""
    config = bench.client_file(served.port, "tcp", "tcp")
    with ExitStack() as stack:
        clients = [
            stack.enter_context(Process("benchmarks.workers.client", str(config), str(SESSIONS)))
            for _ in range(FETCHING)
        ]
        for client in clients:
            client.line()
        before = served.processor_time()
        for client in clients:
            client.begin(str(size))
        for client in clients:
            client.line()
        used = served.processor_time() - before
    return size * FETCHING * SESSIONS / used / 1e6


# --- what a death costs ---


async def death(bench: Bench, served: Served, sessions: int) -> dict[str, Any]:
    """One worker is killed while all sessions echo."""
    opened = [await multi.connect(bench.client(served.port, "tcp", "tcp")) for _ in range(sessions)]
    owners = [int(await asked(session, "who")) for session in opened]
    dead, stop = owners[0], asyncio.Event()
    told: list[float] = []
    waits: list[float] = []
    wrong = 0

    async def echo(session: multi.Session, owner: int) -> None:
        nonlocal wrong
        while not stop.is_set():
            payload = os.urandom(500).hex()
            began = time.monotonic()
            try:
                answer = await asked(session, payload)
            except multi.SessionLost:
                told.append(time.monotonic() - killed)
                wrong += owner != dead
                return
            wrong += answer != payload
            if owner != dead:
                waits.append(time.monotonic() - began)
            await asyncio.sleep(GAP)

    killed = float("inf")
    echoing = [asyncio.ensure_future(echo(*pair)) for pair in zip(opened, owners, strict=True)]
    await asyncio.sleep(5 * GAP)
    killed = time.monotonic()
    os.kill(dead, signal.SIGKILL)
    await asyncio.sleep(6.0)
    stop.set()
    await asyncio.gather(*echoing)
    fresh = await multi.connect(bench.client(served.port, "tcp", "quic"))
    working = await asked(fresh, "still there") == "still there"
    await fresh.close()
    for session in opened:
        session.abort()
        await session.settle()
    return {
        "sessions": sessions,
        "of the worker that was killed": owners.count(dead),
        "told": len(told),
        "told after at most, s": round(max(told), 2) if told else None,
        "others lost, or bytes wrong": wrong,
        "longest wait of the others, s": round(max(waits), 3),
        "workers again": len(served.processes()) - 2 if working else 0,  # without the parent and its resource tracker
    }


def run(*, quick: bool) -> None:
    """Measure, and print what was found."""
    raise_descriptors()
    runs, seconds, size = (3, 2.0, 96 << 20) if quick else (9, 6.0, 96 << 20)
    with tempfile.TemporaryDirectory() as directory:
        bench = Bench(Path(directory))
        with bench.server(MANY, tls=True) as served:
            _show("TLS and QUIC on 4 workers", asyncio.run(strays(bench, served, 24 if quick else 120, 4)))
            _show("kill -9 of a worker", asyncio.run(death(bench, served, 16 if quick else 80)))
        with bench.server(MANY, tls=False) as many, bench.server(1, tls=False) as one:
            handled = [[asyncio.run(requests(bench, served, seconds)) for served in (one, many)] for _ in range(runs)]
            for served in (one, many):
                transfer(bench, served, size)  # what each process needs once is not the transfer's
            moved = [[transfer(bench, served, size) for served in (one, many)] for _ in range(runs)]
    _show(
        f"requests of {WORK * 1000:g} ms, 1 worker and {MANY}, {len(os.sched_getaffinity(0))} cores",
        {
            "requests a second": [round(median(h[side][0] for h in handled), 1) for side in (0, 1)],
            "ratio": round(median(h[1][0] / h[0][0] for h in handled), 2),
            "ms of the server's processor time each": [
                round(median(h[side][1] for h in handled), 2) for side in (0, 1)
            ],
        },
    )
    _show(
        f"bytes to {FETCHING * SESSIONS} sessions of two sealed TCP connections, 1 worker and {MANY}",
        {
            "MB for a second of processor time": [round(median(rates)) for rates in zip(*moved, strict=True)],
            "ratio": round(median(m[1] / m[0] for m in moved), 3),
        },
    )


def _show(title: str, figures: dict[str, Any]) -> None:
    print(title)
    for name, value in figures.items():
        print(f"  {name:40} {value}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a look, not a measurement")
    run(quick=parser.parse_args().quick)
    sys.exit(0)
