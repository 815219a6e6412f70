"""Throughput of one TCP connection on loopback: `multi` against asyncio's own streams and iperf3, two processes each.

64 KiB writes with `drain` after each, reads as they come. The clock runs from the first write until the server has
confirmed the last byte; iperf3 (`-l 128K`) tells its receiver's rate itself. Every party is
measured in turn, so that what else the machine does meets all alike; a ratio is taken between runs of one round and
its median printed against what is promised.

Every end is a fresh interpreter that imports what its party needs and no more. That matters: how much memory a
process has freed before decides whether glibc gives a transfer's buffers back to the system each time, and asyncio's
streams can be twice as fast in a process that has imported `multi` (measured as a party of its own).
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import importlib.util
import json
import shutil
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import ROOT

WRITE = 64 * 1024
READ = 1 << 20
ROOMY = 1 << 20  # bytes; asyncio's reader pauses at twice its limit, 64 KiB unless told otherwise

Reader = Any
Writer = Any


@dataclass(frozen=True)
class Party:
    name: str
    asyncio: bool = False
    tls: bool = False
    protect: str = "never"
    limit: int = 2**16
    uvloop: bool = False
    iperf3: bool = False
    imports: bool = False
    """Imports `multi` without need."""
    promises: tuple[tuple[str, float], ...] = ()
    """(party, at least so many times its rate); 0 for a ratio that is only told."""


STREAMS = "asyncio streams"
PARTIES = (
    Party(STREAMS, asyncio=True),
    Party("asyncio, multi imported", asyncio=True, imports=True, promises=((STREAMS, 0),)),
    Party("asyncio, roomy", asyncio=True, limit=ROOMY, promises=((STREAMS, 0),)),
    Party("asyncio on uvloop", asyncio=True, uvloop=True, promises=((STREAMS, 0),)),
    Party("iperf3 -l 128K", iperf3=True, promises=((STREAMS, 0),)),
    Party("multi unprotected", promises=((STREAMS, 3.0), ("iperf3 -l 128K", 0.6))),
    Party("multi unprotected on uvloop", uvloop=True, promises=(("multi unprotected", 0), ("asyncio on uvloop", 0))),
    Party("multi sealed", protect="auto", promises=((STREAMS, 2.0),)),
    Party("asyncio TLS", asyncio=True, tls=True, promises=((STREAMS, 0),)),
    Party("multi TLS", tls=True, protect="auto", promises=(("asyncio TLS", 2.0),)),
)


@dataclass(frozen=True)
class Transfer:
    party: Party
    size: int
    certificates: Path


async def _serve(transfer: Transfer) -> None:
    party, files = transfer.party, transfer.certificates
    finished = asyncio.Event()

    async def on_client(reader: Reader, writer: Writer) -> None:
        received = 0
        while received < transfer.size and (data := await reader.read(READ)):
            received += len(data)
        writer.write(b"%d\n" % received)
        await writer.drain()
        await reader.read()
        writer.close()
        with contextlib.suppress(ConnectionError):  # the client has all it wants
            await writer.wait_closed()
        finished.set()

    cert, key = files / "server-cert.pem", files / "server-key.pem"
    if party.asyncio:
        context = None
        if party.tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(cert, key)
        server: Any = await asyncio.start_server(on_client, "127.0.0.1", 0, limit=party.limit, ssl=context)
        port = server.sockets[0].getsockname()[1]
    else:
        import multi

        config: dict[str, Any] = {"listen": {"host": "127.0.0.1", "port": 0, "transports": ["tcp"]}}
        config |= {"ssl_config": {"cert": str(cert), "key": str(key)}} if party.tls else {"protect": party.protect}
        server = await multi.start_server(on_client, config)
        port = server.port
    print(port, flush=True)
    await finished.wait()
    server.close()


def _run(party: Party, work: Coroutine[Any, Any, Any]) -> Any:
    """The result of `work` on the party's event loop."""
    if party.uvloop:
        import uvloop

        return uvloop.run(work)
    return asyncio.run(work)


async def _connect(transfer: Transfer, port: int) -> tuple[Reader, Writer]:
    party, ca = transfer.party, transfer.certificates / "ca.pem"
    if party.asyncio:
        context = ssl.create_default_context(cafile=ca) if party.tls else None
        name = "localhost" if party.tls else None
        return await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=name)
    import multi

    config: dict[str, Any] = {
        "connection_priority": [["tcp", "ipv4", "any"]],
        "remote_host": "127.0.0.1",
        "remote_port": port,
    }
    config |= {"ssl_config": {"ca": str(ca)}} if party.tls else {"protect": party.protect}
    return await multi.open_connection(config)


async def _send(transfer: Transfer, port: int) -> float:
    reader, writer = await _connect(transfer, port)
    block = bytes(WRITE)
    started = time.perf_counter()
    for _ in range(transfer.size // WRITE):
        writer.write(block)
        await writer.drain()
    confirmed = int(await reader.readline())
    seconds = time.perf_counter() - started
    if confirmed != transfer.size:
        raise SystemExit(f"{transfer.party.name}: {confirmed} bytes confirmed, not {transfer.size}")
    writer.close()
    await writer.wait_closed()
    return transfer.size * 8 / seconds / 1e9


def await_iperf3(server: subprocess.Popen[bytes]) -> None:
    """Wait until a server of iperf3 takes connections; its output is a pipe."""
    assert server.stdout is not None
    while b"listening" not in server.stdout.readline():  # it opens its port before it says so
        if server.poll() is not None:
            raise SystemExit("iperf3: the server has ended")


def _iperf3(size: int) -> float:
    """Gbit/s that iperf3's receiver saw."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    server = subprocess.Popen(
        ["iperf3", "-s", "-1", "-p", port, "--forceflush"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        await_iperf3(server)
        client = ["iperf3", "-c", "127.0.0.1", "-p", port, "-l", "128K", "-n", str(size), "--json"]
        report = json.loads(subprocess.run(client, stdout=subprocess.PIPE, check=True).stdout)
    finally:
        server.kill()
        server.communicate()
    rate: float = report["end"]["sum_received"]["bits_per_second"]
    return rate / 1e9


def _missing(party: Party) -> str:
    """What this machine lacks to measure a party."""
    if party.iperf3 and shutil.which("iperf3") is None:
        return "iperf3 is not installed"
    if party.uvloop and importlib.util.find_spec("uvloop") is None:
        return "uvloop is not installed"
    return ""


def measure(transfer: Transfer) -> float:
    """Gbit/s of one transfer, in fresh processes."""
    if transfer.party.iperf3:
        return _iperf3(transfer.size)
    words = [PARTIES.index(transfer.party), transfer.size, transfer.certificates]
    command = [sys.executable, "-m", "benchmarks.basics.loopback", *map(str, words)]
    with subprocess.Popen([*command, "serve"], stdout=subprocess.PIPE, cwd=ROOT) as server:
        assert server.stdout is not None
        try:
            port = server.stdout.readline().decode().strip()
            sent = subprocess.run([*command, "send", port], stdout=subprocess.PIPE, cwd=ROOT, check=True, timeout=600)
            server.wait(10.0)
        finally:
            server.kill()
    return float(sent.stdout)


def _end(arguments: list[str]) -> None:
    """One end of a transfer, in a process of its own."""
    number, size, certificates, side, *port = arguments
    transfer = Transfer(PARTIES[int(number)], int(size), Path(certificates))
    if transfer.party.imports:
        importlib.import_module("multi")
    if side == "serve":
        _run(transfer.party, _serve(transfer))
    else:
        print(_run(transfer.party, _send(transfer, int(port[0]))))


def run(*, quick: bool) -> None:
    """Print medians, ratios and what is promised of them."""
    from multi.lab.cert import write_development_certificates

    size, rounds = (1 << 28, 3) if quick else (2 << 30, 5)
    rates: dict[str, list[float]] = {party.name: [] for party in PARTIES if not _missing(party)}
    with tempfile.TemporaryDirectory(prefix="multi-loopback-") as directory:
        write_development_certificates(Path(directory), ["localhost"])
        for _ in range(rounds):
            for party in PARTIES:
                if party.name in rates:
                    rates[party.name].append(measure(Transfer(party, size, Path(directory))))
    print(f"{size / (1 << 20):.0f} MiB over one TCP connection, {rounds} runs of each in turn, Gbit/s")
    for party in PARTIES:
        if party.name not in rates:
            print(f"  {party.name:27} not measured: {_missing(party)}")
            continue
        values = rates[party.name]
        print(
            f"  {party.name:27} median {statistics.median(values):6.2f}  (min {min(values):.2f}, max {max(values):.2f})"
            + "".join(_ratio(values, other, promise, rates.get(other, [])) for other, promise in party.promises)
        )


def _ratio(values: list[float], other: str, promise: float, others: list[float]) -> str:
    """What a line says of one ratio."""
    if not others:
        return f"  no ratio to {other}" + (f" (promised {promise:g}: not measured)" if promise else "")
    ratio = statistics.median(own / base for own, base in zip(values, others, strict=True))
    line = f"  {ratio:5.2f} x {other}"
    if promise:
        held = "held" if ratio >= promise else f"short by {promise - ratio:.2f}"
        line += f" (promised {promise:g}: {held})"
    return line


if __name__ == "__main__":
    if sys.argv[1:]:
        _end(sys.argv[1:])
    else:
        run(quick=False)
