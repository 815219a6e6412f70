"""A thousand sessions in one server process: what opening them costs, what they take idle, and how they share.

The server is one process on one core; the clients, each with a part of the sessions, are processes of their own on the
same machine and take their share of it. Every session has two connections (127.0.0.1 and 127.0.0.2) and transfers
1 MiB each way before anything is measured of it at rest.

    python -m benchmarks.basics.scale [--quick] [--sessions N]
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import gc
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from statistics import median
from typing import Any
from urllib.request import urlopen

import multi
from benchmarks import ROOT
from multi.lab.cert import write_development_certificates

HOST = "127.0.0.1"
SESSIONS = 1000
CLIENTS = 4  # processes
PARALLEL = 8  # sessions a client process opens, or has transfer, at the same time
EXCHANGE = 1 << 20  # bytes each way before a session is idle
BLOCK = 64 * 1024
WARM_UP = 8  # sessions before the first look at the memory: what a process needs once is not theirs
REST = 16.0  # seconds: one whole round of keep-alives
PROMISE = 100.0  # KiB of memory for an idle session of two TCP connections without TLS
FDS_PER_SESSION = 2  # on the server
ENDED = ("closed", "lost")
SCRAPES = 11  # of which the median counts
SCRAPE_PROMISE = 50.0  # ms for a scrape of a thousand sessions
KINDS = {"sealed TCP": "tcp", "TLS": "tcp", "QUIC": "quic"}

Reader = Any
Writer = Any


def raise_limit() -> int:
    """Allow this process as many file descriptors as it may have; return how many."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def jain(values: list[int]) -> float:
    """Jain's fairness index: 1 = all the same, 1/n = one has everything."""
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 0.0


# --- the server ---


async def _serve(kind: str, certificates: str, most: int) -> None:
    """Answer each line of standard input with one of figures; `rest` first gives back what is not used."""
    received: dict[int, int] = {}
    number = 0

    async def on_client(reader: Reader, writer: Writer) -> None:
        nonlocal number
        number += 1
        mine = number
        received[mine] = 0
        with suppress(OSError, multi.MultiError):
            await reader.readexactly(EXCHANGE)
            writer.write(bytes(EXCHANGE))
            await writer.drain()
            while data := await reader.read(1 << 18):
                received[mine] += len(data)
                del data
            writer.close()
        del received[mine]

    config: dict[str, Any] = {
        "listen": {"host": HOST, "port": 0, "transports": [KINDS[kind]]},
        "control": {"metrics_port": 0},
        "limits": {"max_sessions_per_source": most, "max_unauthenticated_per_source": 1024},
    }
    if kind != "sealed TCP":
        config["ssl_config"] = {"cert": f"{certificates}/server-cert.pem", "key": f"{certificates}/server-key.pem"}
    server = await multi.start_server(on_client, config)
    print(json.dumps([server.port, server.control.metrics_port]), flush=True)
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        if line.strip() == "rest":
            _give_back()
        print(
            json.dumps(
                {
                    "rss": _resident(),
                    "cpu": time.process_time(),
                    "sessions": len(server.sessions),
                    "received": list(received.values()),
                }
            ),
            flush=True,
        )
    os._exit(0)


def _give_back() -> None:
    """What was freed goes back to the system, so that the resident memory is what is used."""
    gc.collect()
    with suppress(OSError, AttributeError):  # not glibc
        ctypes.CDLL(None).malloc_trim(0)


def _resident() -> int:
    """Bytes of memory this process has now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


# --- the clients ---


async def _clients(kind: str, port: int, ca: str) -> None:
    """Do what standard input says: `open N`, `exchange`, `send SECONDS COUNT`, `close`; answer each with a line.

    `count` is answered with what the sessions have sent and read, their connections and their Session IDs.
    """
    entry = {"transport": KINDS[kind], "ip": "ipv4"}
    config: dict[str, Any] = {
        "connection_priority": [entry | {"interface": source} for source in ("127.0.0.1", "127.0.0.2")],
        "remote_host": HOST,
        "remote_port": port,
        "multi_config": {"wait": "all"},
    }
    if kind != "sealed TCP":
        config["ssl_config"] = {"ca": ca}
    loaded = multi.load_config(config)
    sessions: list[Any] = []
    turn = asyncio.Semaphore(PARALLEL)

    async def open_one() -> None:
        async with turn:
            session = await multi.connect(loaded)
            await session.confirmed()
            sessions.append(session)

    async def exchange(session: Any) -> None:
        async with turn:
            session.writer.write(bytes(EXCHANGE))
            await session.reader.readexactly(EXCHANGE)

    async def send(session: Any, seconds: float) -> None:
        block, until = bytes(BLOCK), time.perf_counter() + seconds
        while time.perf_counter() < until:
            session.writer.write(block)
            await session.writer.drain()

    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        started, cpu = time.perf_counter(), time.process_time()
        counted: dict[str, Any] = {}
        match line.split():
            case ["count"]:
                stats = [session.stats() for session in sessions]
                counted = {
                    "sent": sum(each.bytes_sent for each in stats),
                    "read": EXCHANGE * len(stats),
                    "connections": sum(c.state.value not in ENDED for each in stats for c in each.connections),
                    "ids": [each.id for each in stats],
                }
            case ["open", count]:
                await asyncio.gather(*(open_one() for _ in range(int(count))))
            case ["exchange"]:
                await asyncio.gather(*(exchange(session) for session in sessions))
            case ["send", seconds, count]:
                await asyncio.gather(*(send(session, float(seconds)) for session in sessions[: int(count)]))
            case ["close"]:
                await asyncio.gather(*(session.close() for session in sessions))
                sessions.clear()
        spent = {"seconds": time.perf_counter() - started, "cpu": time.process_time() - cpu}
        print(json.dumps(spent | counted), flush=True)
    os._exit(0)


class _Process:
    """Another process of this program, told and asked line by line."""

    def __init__(self, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.basics.scale", *arguments],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def ask(self, line: str) -> Any:
        self.tell(line)
        return self.answer()

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


class _World:
    """One server and its clients."""

    def __init__(self, kind: str, sessions: int, certificates: str, undo: ExitStack) -> None:
        self.server = _Process("--serve", kind, certificates, str(2 * sessions + WARM_UP))
        undo.callback(self.server.end)
        port, self.metrics_port = self.server.answer()
        self.clients: list[_Process] = []
        for _ in range(CLIENTS):
            client = _Process("--clients", kind, str(port), f"{certificates}/ca.pem")
            undo.callback(client.end)
            self.clients.append(client)

    def all(self, line: str) -> list[dict[str, Any]]:
        """Tell all clients the same, and wait for all."""
        for client in self.clients:
            client.tell(line)
        return [client.answer() for client in self.clients]


@contextmanager
def _world(kind: str, sessions: int, certificates: str) -> Iterator[_World]:
    with ExitStack() as undo:
        yield _World(kind, sessions, certificates, undo)


# --- what is measured ---


def _memory(world: _World, sessions: int) -> dict[str, float]:
    """Open sessions and let them rest. Seconds and CPU of opening, KiB for each, share of a core while they rest."""
    for task in (f"open {WARM_UP // CLIENTS}", "exchange", "close"):
        world.all(task)
    time.sleep(1.0)
    before = world.server.ask("rest")
    counted = _scraped(world.metrics_port)[1]
    started = time.perf_counter()
    opened = world.all(f"open {sessions // CLIENTS}")
    seconds = time.perf_counter() - started
    after = world.server.ask("figures")
    world.all("exchange")
    time.sleep(3.0)
    idle = world.server.ask("rest")
    time.sleep(REST)
    rested = world.server.ask("figures")
    count = sessions // CLIENTS * CLIENTS
    if rested["sessions"] != count:
        raise SystemExit(f"{rested['sessions']} of {count} sessions are left")
    return {
        "rate": count / seconds,
        "server ms": (after["cpu"] - before["cpu"]) / count * 1e3,
        "client ms": sum(client["cpu"] for client in opened) / count * 1e3,
        "KiB": (idle["rss"] - before["rss"]) / count / 1024,
        "idle": (rested["cpu"] - idle["cpu"]) / REST,
        "scrape ms": _scrape(world, count, counted) * 1e3,
    }


def _scraped(port: int) -> tuple[str, dict[str, float]]:
    """What the metrics are, as text and by sample."""
    with urlopen(f"http://{HOST}:{port}/metrics") as answer:
        text = answer.read().decode()
    lines = (line.rsplit(" ", 1) for line in text.splitlines() if line[0] != "#")
    return text, {name: float(value) for name, value in lines}


def _scrape(world: _World, sessions: int, before: dict[str, float]) -> float:
    """Seconds, the median of several scrapes of a server with so many sessions at rest.

    What they say has to be what the clients have counted since `before`, and must name no session. What a client has
    sent may have been lost with a connection; what it has read was sent for the first time once.
    """
    took = []
    for _ in range(SCRAPES):
        started = time.perf_counter()
        text, told = _scraped(world.metrics_port)
        took.append(time.perf_counter() - started)
    clients = world.all("count")
    named = [name for client in clients for name in client["ids"] if name[:8] in text]
    if named:
        raise SystemExit(f"metrics name {len(named)} sessions")
    received = _grown(told, before, "multi_received_payload_bytes_total")
    if not EXCHANGE * sessions <= received <= _sum(clients, "sent"):
        raise SystemExit(f"metrics tell of {received:.0f} bytes received, the clients of {_sum(clients, 'sent')} sent")
    sent, again = (_grown(told, before, f"multi_{name}_bytes_total") for name in ("sent_payload", "reinjected"))
    for what, found, counted in (
        ("open sessions", told['multi_sessions{state="open"}'], sessions),
        ("living connections", _grown(told, {}, "multi_connections{"), _sum(clients, "connections")),
        ("bytes sent for the first time", sent - again, _sum(clients, "read")),
    ):
        if found != counted:
            raise SystemExit(f"metrics tell of {found:.0f} {what}, the clients of {counted}")
    return median(took)


def _grown(now: dict[str, float], before: dict[str, float], name: str) -> float:
    """How much a counter has grown, over all transports."""
    return sum(value - before.get(key, 0) for key, value in now.items() if key.startswith(name))


def _sum(clients: list[dict[str, Any]], key: str) -> int:
    return sum(client[key] for client in clients)


def _shared(world: _World, seconds: float, per_client: int, clients: int) -> tuple[float, list[int], float]:
    """(Gbit/s in all, bytes of each session, share of a core the server had) while so many sessions send at once."""
    sending = world.clients[:clients]
    for client in sending:
        client.tell(f"send {seconds} {per_client}")
    time.sleep(seconds * 0.2)  # until all are at it
    first, started = world.server.ask("figures"), time.perf_counter()
    time.sleep(seconds * 0.6)
    last, ended = world.server.ask("figures"), time.perf_counter()
    for client in sending:
        client.answer()
    grown = [b - a for a, b in zip(first["received"], last["received"], strict=True)]
    took = ended - started
    return sum(grown) * 8 / took / 1e9, grown, (last["cpu"] - first["cpu"]) / took


def _print_rest(kind: str, sessions: int, found: dict[str, float]) -> None:
    verdict = ""
    if kind == "sealed TCP":
        short = found["KiB"] - PROMISE
        verdict = f" (promised {PROMISE:g}: {'held' if short <= 0 else f'short by {short:.0f}'})"
    scrape = found["scrape ms"]
    promised = f" (promised {SCRAPE_PROMISE:g}: {'held' if scrape < SCRAPE_PROMISE else 'not held'})"
    print(
        f"{kind:10} {sessions:5} sessions: opened at {found['rate']:.0f} a second, CPU for each with both connections: "
        f"server {found['server ms']:.2f} ms, client {found['client ms']:.2f} ms"
    )
    print(
        f"{'':10} idle after {EXCHANGE >> 20} MiB each way: {found['KiB']:.1f} KiB a session{verdict}, "
        f"all of them {found['idle'] * 100:.1f} % of a core; a scrape of the metrics takes {scrape:.1f} ms"
        f"{promised if sessions >= SESSIONS else ''}, says what the clients counted and names no session",
        flush=True,
    )


def run(*, quick: bool, sessions: int = 0) -> None:
    """Print what one server process stands."""
    allowed = raise_limit()
    sessions = sessions or (SESSIONS // 10 if quick else SESSIONS)
    if allowed < sessions * FDS_PER_SESSION + 100:
        fewer = (allowed - 100) // FDS_PER_SESSION
        print(f"{sessions} sessions need {sessions * FDS_PER_SESSION} file descriptors: only {fewer} are measured")
        sessions = fewer
    print(
        f"one server process, {CLIENTS} client processes, {os.cpu_count()} cores for all; {allowed} file descriptors a "
        f"process; limits as by default but for max_sessions_per_source {2 * sessions + WARM_UP} and "
        "max_unauthenticated_per_source 1024, since all come from one network"
    )
    seconds = 5.0 if quick else 10.0
    with tempfile.TemporaryDirectory(prefix="multi-scale-") as directory:
        write_development_certificates(Path(directory), [])
        with _world("sealed TCP", sessions, directory) as world:
            _print_rest("sealed TCP", sessions, _memory(world, sessions))
            total, grown, share = _shared(world, seconds, sessions, CLIENTS)
            mean = max(1, sum(grown)) / len(grown)
            one, single, _ = _shared(world, seconds, 1, 1)
            print(
                f"{'':10} all send for {seconds:g} s: {total:.2f} Gbit/s in all, {total / one:.2f} x one session alone "
                f"({one:.2f}); Jain's index {jain(grown):.3f}, least {min(grown) / mean:.2f} and most "
                f"{max(grown) / mean:.2f} x the mean; server {share * 100:.0f} % of a core"
            )
            assert sum(1 for size in single if size) == 1, "one session was to send alone"
            started = time.perf_counter()
            world.all("close")
            print(f"{'':10} closed in {time.perf_counter() - started:.1f} s", flush=True)
            left = world.server.ask("rest")["sessions"]
            if left:
                raise SystemExit(f"{left} sessions are left after the end")
        for kind, share_of in (("TLS", 5), ("QUIC", 10)):
            fewer = max(CLIENTS, sessions // share_of)
            with _world(kind, fewer, directory) as world:
                _print_rest(kind, fewer, _memory(world, fewer))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=f"{SESSIONS // 10} sessions instead of {SESSIONS}")
    parser.add_argument("--sessions", type=int, default=0, help="so many")
    parser.add_argument("--serve", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--clients", nargs=3, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.serve:
        raise_limit()
        kind, certificates, most = chosen.serve
        asyncio.run(_serve(kind, certificates, int(most)))
    elif chosen.clients:
        raise_limit()
        kind, port, ca = chosen.clients
        asyncio.run(_clients(kind, int(port), ca))
    else:
        run(quick=chosen.quick, sessions=chosen.sessions)
    return 0


if __name__ == "__main__":
    sys.exit(main())
