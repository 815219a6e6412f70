"""What a server stands: thousands of half-open connections while somebody honest comes, and what a set-up costs.

Server, attacker and client are processes of their own. Every cell of the first table is one server with its default
limits; the attacker keeps its connections at their number, whatever the server drops, and the visits begin as soon as
they have all come once, while the server still works on them. The second table compares a session with a bare TLS or
TCP connection of asyncio in the same run; the third shows what the first session of a process costs.

    python -m benchmarks.basics.hardening [--quick]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import multi
from benchmarks import ROOT
from benchmarks.verdicts import verdict, verdict_at_most
from multi.lab.cert import write_development_certificates

HOST = "127.0.0.1"
HOSTILE = 2000  # connections at a time
RECONNECT = 5.0  # seconds until the attacker replaces a connection that was dropped: what a handshake may take
ADDRESSES_PER_NETWORK = 8  # of an attacker with many addresses; 2,000 are in 250 /24
STAGES = ("connected, silent", "half a HELLO", "HELLO never confirmed")
SPREADS: dict[str, Callable[[int], str]] = {
    "one address": lambda number: "127.77.77.77",
    "the client's own /24": lambda number: "127.0.0.77",
    "all of that /24": lambda number: f"127.0.0.{2 + number % 250}",
    "2,000 addresses": lambda number: (
        f"127.{1 + number // (100 * ADDRESSES_PER_NETWORK)}.{number // ADDRESSES_PER_NETWORK % 100 + 1}."
        f"{number % ADDRESSES_PER_NETWORK + 1}"
    ),
}
VISIT_PROMISE = 1.0  # seconds until an honest client's session is confirmed, the longest of all visits
PARALLEL = 16  # sessions a client opens at the same time
CPU_PROMISE = 1.0  # milliseconds a side that a session may take beyond the connection below it
RATE_PROMISE = 500.0  # set-ups a second and core
COLD_PROMISE = 2.0  # milliseconds of CPU for the first session of a process

Reader = Any
Writer = Any


# --- the server ---


async def _serve(kind: str, certificates: str) -> None:
    """Serve until standard input ends; every line read is answered with one of figures."""

    async def on_client(reader: Reader, writer: Writer) -> None:
        try:
            await reader.read()
            writer.close()
        except OSError:
            pass

    files = {"cert": f"{certificates}/server-cert.pem", "key": f"{certificates}/server-key.pem"}
    server: Any
    if kind.startswith("asyncio"):
        context = None
        if kind == "asyncio tls":
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            context.load_cert_chain(files["cert"], files["key"])
        server = await asyncio.start_server(on_client, HOST, 0, ssl=context)
        port = server.sockets[0].getsockname()[1]
    else:
        config: dict[str, Any] = {"listen": {"host": HOST, "port": 0, "transports": ["tcp"]}}
        if kind == "multi tls":
            config["ssl_config"] = files
        server = await multi.start_server(on_client, config)
        port = server.port
    print(port, flush=True)
    loop = asyncio.get_running_loop()
    while await loop.run_in_executor(None, sys.stdin.readline):
        hits = {name: count for name, count in getattr(server, "statistics", {}).items() if count}
        print(json.dumps({"rss": _resident(), "cpu": time.process_time(), "hits": hits}), flush=True)
    os._exit(0)


def _resident() -> int:
    """Bytes of memory this process has now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


class _Process:
    """Another process of this program, asked line by line."""

    def __init__(self, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.basics.hardening", *arguments],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def figures(self) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write("figures\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.line())
        return answer

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


@contextmanager
def _process(*arguments: str) -> Iterator[_Process]:
    process = _Process(*arguments)
    try:
        yield process
    finally:
        process.end()


# --- the attacker ---


async def _attack(port: int, stage: str, spread: str, count: int) -> None:
    """Keep `count` connections half open; says so when they have all been there once."""
    from tests.integration.hostile import greeting, said

    came = 0

    async def one(number: int) -> None:
        nonlocal came
        first = b"" if stage == STAGES[0] else said(greeting())
        if stage == STAGES[1]:
            first = first[: len(first) // 2]
        while True:
            try:
                reader, writer = await asyncio.open_connection(HOST, port, local_addr=(SPREADS[spread](number), 0))
            except OSError:
                await asyncio.sleep(RECONNECT)
                continue
            came += 1
            if came == count:
                print("all came", flush=True)
            writer.write(first)
            try:
                while await reader.read(65536):
                    pass
            except OSError:
                pass
            writer.transport.abort()
            await asyncio.sleep(RECONNECT)

    await asyncio.gather(*(one(number) for number in range(count)))


async def _visits(port: int, rounds: int) -> tuple[list[float], int]:
    """Seconds until an honest client's session was confirmed, each time, and how often it failed."""
    config = multi.load_config(_client_config(port))
    times, failed = [], 0
    for _ in range(rounds):
        started = time.perf_counter()
        try:
            async with asyncio.timeout(10), multi.connect(config) as session:
                await session.confirmed()
                times.append(time.perf_counter() - started)
        except (OSError, multi.MultiError):
            failed += 1
        await asyncio.sleep(0.1)
    return times, failed


def _client_config(port: int, ca: str = "") -> dict[str, Any]:
    config: dict[str, Any] = {
        "connection_priority": [["tcp", "ipv4", "any"]],
        "remote_host": HOST,
        "remote_port": port,
    }
    return config | ({"ssl_config": {"ca": ca}} if ca else {})


def _under_attack(stage: str, spread: str, count: int, rounds: int, certificates: str) -> None:
    with _process("--serve", "multi sealed", certificates) as server:
        port = int(server.line())
        asyncio.run(_visits(port, 3))
        before = server.figures()["rss"]
        with _process("--attack", str(port), stage, spread, str(count)) as attacker:
            assert attacker.line() == "all came"
            times, failed = asyncio.run(_visits(port, rounds))
            after = server.figures()
        median, most = (statistics.median(times), max(times)) if times else (float("nan"), float("nan"))
        hits = ", ".join(f"{name} {number}" for name, number in after["hits"].items())
        judged = f"{failed} failed" if failed else verdict_at_most(most, VISIT_PROMISE, unit=" s")
        print(
            f"{stage:22} {spread:21} {median * 1e3:7.1f} {most * 1e3:8.1f} {judged:16}"
            f" {(after['rss'] - before) / (1 << 20):9.1f}   {hits}",
            flush=True,
        )


# --- set-ups ---


async def _set_up(kind: str, port: int, count: int, parallel: int, ca: str) -> None:
    """Open and close `count` connections or sessions; prints seconds and CPU seconds of this process."""
    context = None
    if kind == "asyncio tls":
        context = ssl.create_default_context(cafile=ca)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
    config = multi.load_config(_client_config(port, ca if kind == "multi tls" else ""))

    async def once() -> None:
        if kind.startswith("multi"):
            async with multi.connect(config) as session:
                await session.confirmed()
        else:
            _, writer = await asyncio.open_connection(HOST, port, ssl=context)
            writer.close()
            await writer.wait_closed()

    async def some(number: int) -> None:
        for _ in range(number):
            await once()

    await some(10)
    started, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(some(count // parallel) for _ in range(parallel)))
    done = count // parallel * parallel
    spent = {"count": done, "seconds": time.perf_counter() - started, "cpu": time.process_time() - cpu}
    print(json.dumps(spent), flush=True)


def _cost(kind: str, count: int, certificates: str, parallel: int) -> tuple[float, float, float]:
    """(set-ups per second, CPU milliseconds of the client for each, of the server for each)."""
    with _process("--serve", kind, certificates) as server:
        port = server.line()
        before = server.figures()["cpu"]
        with _process("--set-up", kind, port, str(count), str(parallel), f"{certificates}/ca.pem") as client:
            spent = json.loads(client.line())
            served = server.figures()["cpu"] - before
    # The server's share of the ten for warming up is counted with the others.
    return (
        spent["count"] / spent["seconds"],
        spent["cpu"] / spent["count"] * 1e3,
        served / (spent["count"] + 10) * 1e3,
    )


def _set_ups(count: int, rounds: int, certificates: str) -> None:
    kinds = ("asyncio tcp", "multi sealed", "asyncio tls", "multi tls")
    found: dict[str, list[tuple[float, float, float]]] = {kind: [] for kind in kinds}
    for _ in range(rounds):
        for kind in kinds:
            found[kind].append(_cost(kind, count, certificates, PARALLEL))
    print(f"\nset-ups, {PARALLEL} at a time, medians of {rounds} rounds of {count}:")
    print(f"{'':14} {'per s':>8} {'client ms':>10} {'server ms':>10} {'per core and s: client':>23} {'server':>8}")
    median = {
        kind: tuple(statistics.median(column) for column in zip(*rows, strict=True)) for kind, rows in found.items()
    }
    for kind, (rate, client, server) in median.items():
        print(f"{kind:14} {rate:8.0f} {client:10.2f} {server:10.2f} {1e3 / client:23.0f} {1e3 / server:8.0f}")
    for ours, theirs in (("multi sealed", "asyncio tcp"), ("multi tls", "asyncio tls")):
        for side, column in (("client", 1), ("server", 2)):
            beyond = statistics.median(
                own[column] - base[column] for own, base in zip(found[ours], found[theirs], strict=True)
            )
            print(
                f"{ours} beyond {theirs}, {side}: {beyond:.2f} ms of CPU "
                f"(promised {CPU_PROMISE:g}: {verdict_at_most(beyond, CPU_PROMISE, unit=' ms')})"
            )
    for side, column in (("client", 1), ("server", 2)):
        rate = 1e3 / median["multi sealed"][column]
        judged = verdict(rate, RATE_PROMISE, 0)
        print(f"multi sealed, {side}: {rate:.0f} set-ups a second and core (promised {RATE_PROMISE:g}: {judged})")


async def _first(port: int, ca: str) -> None:
    """Open the first sessions of a process; prints CPU milliseconds of importing, the first and the second."""
    config = multi.load_config(_client_config(port, ca))
    times = [time.process_time()]
    connect = multi.connect  # what opens sessions is imported now
    times.append(time.process_time())
    for _ in range(2):
        async with connect(config) as session:
            await session.confirmed()
            times.append(time.process_time())
        await asyncio.sleep(1.0)  # what was read for the first is too old for the second
        times.append(time.process_time())
    imported, first, second = times[1] - times[0], times[2] - times[1], times[4] - times[3]
    print(json.dumps([imported * 1e3, first * 1e3, second * 1e3]), flush=True)


def _first_opens(rounds: int, certificates: str) -> None:
    print(f"\nthe first session of a process until it is confirmed, CPU of the client, medians of {rounds} processes:")
    for kind, ca in (("multi sealed", "-"), ("multi tls", f"{certificates}/ca.pem")):
        found = []
        with _process("--serve", kind, certificates) as server:
            port = server.line()
            for _ in range(rounds):
                with _process("--first", port, ca) as client:
                    found.append(json.loads(client.line()))
        imported, first, second = (statistics.median(column) for column in zip(*found, strict=True))
        print(
            f"{kind:14} first {first:.2f} ms (promised {COLD_PROMISE:g}: "
            f"{verdict_at_most(first, COLD_PROMISE, unit=' ms')}), "
            f"a second later {second:.2f} ms; importing what opens sessions takes {imported:.0f} ms before"
        )


def run(*, quick: bool) -> None:
    """Print both tables."""
    with tempfile.TemporaryDirectory() as directory:
        write_development_certificates(Path(directory), [])
        count, rounds = HOSTILE, 5 if quick else 20
        print(f"{count} hostile connections, {rounds} honest visits each; ms until the session is confirmed:")
        promise = f"promised {VISIT_PROMISE:g} s"
        print(f"{'stage':22} {'from':21} {'median':>7} {'longest':>8} {promise:16} {'RSS +MiB':>9}   limits hit")
        for stage in STAGES:
            for spread in SPREADS:
                _under_attack(stage, spread, count, rounds, directory)
        _set_ups(*((160, 3) if quick else (800, 5)), directory)
        _first_opens(3 if quick else 9, directory)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer visits and rounds: a look, not a measurement")
    parser.add_argument("--serve", nargs=2, metavar=("KIND", "DIR"), help=argparse.SUPPRESS)
    parser.add_argument("--attack", nargs=4, help=argparse.SUPPRESS)
    parser.add_argument("--set-up", nargs=5, dest="set_up", help=argparse.SUPPRESS)
    parser.add_argument("--first", nargs=2, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.serve:
        asyncio.run(_serve(*chosen.serve))
    elif chosen.attack:
        port, stage, spread, count = chosen.attack
        asyncio.run(_attack(int(port), stage, spread, int(count)))
    elif chosen.set_up:
        kind, port, count, parallel, ca = chosen.set_up
        asyncio.run(_set_up(kind, int(port), int(count), int(parallel), ca))
    elif chosen.first:
        port, ca = chosen.first
        asyncio.run(_first(int(port), "" if ca == "-" else ca))
    else:
        run(quick=chosen.quick)
    return 0


if __name__ == "__main__":
    sys.exit(main())
