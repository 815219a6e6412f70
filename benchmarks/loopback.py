"""Throughput of one TCP connection on loopback: `multi` against asyncio's own streams, two processes.

64 KiB writes with `drain` after each, reads as they come. The clock runs from the first write until the server has
confirmed the last byte. Every party is measured in turn, so that what else the machine does meets all alike; a ratio
is taken between neighbours and its median printed against what is promised.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import ssl
import statistics
import tempfile
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

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
    against: str = ""
    promise: float = 0.0
    """At least so many times the rate of `against`."""


PARTIES = (
    Party("asyncio streams", asyncio=True),
    Party("asyncio, roomy", asyncio=True, limit=ROOMY, against="asyncio streams"),
    Party("multi unprotected", against="asyncio streams", promise=3.0),
    Party("multi sealed", protect="auto", against="asyncio streams", promise=2.0),
    Party("asyncio TLS", asyncio=True, tls=True, against="asyncio streams"),
    Party("multi TLS", tls=True, protect="auto", against="asyncio TLS", promise=2.0),
)


@dataclass(frozen=True)
class Transfer:
    party: Party
    size: int
    certificates: Path


async def _serve(transfer: Transfer, pipe: Connection) -> None:
    import multi

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
        config: dict[str, Any] = {"listen": {"host": "127.0.0.1", "port": 0, "transports": ["tcp"]}}
        config |= {"ssl_config": {"cert": str(cert), "key": str(key)}} if party.tls else {"protect": party.protect}
        server = await multi.start_server(on_client, config)
        port = server.port
    pipe.send(port)
    await finished.wait()
    server.close()


def _serve_process(transfer: Transfer, pipe: Connection) -> None:
    asyncio.run(_serve(transfer, pipe))


async def _connect(transfer: Transfer, port: int) -> tuple[Reader, Writer]:
    import multi

    party, ca = transfer.party, transfer.certificates / "ca.pem"
    if party.asyncio:
        context = ssl.create_default_context(cafile=ca) if party.tls else None
        name = "localhost" if party.tls else None
        return await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=name)
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


def _measure(transfer: Transfer, results: Connection) -> None:
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    server = multiprocessing.get_context("spawn").Process(target=_serve_process, args=(transfer, theirs))
    server.start()
    try:
        results.send(asyncio.run(_send(transfer, ours.recv())))
    finally:
        server.join(10.0)
        server.terminate()


def measure(transfer: Transfer) -> float:
    """Gbit/s of one transfer, in fresh processes."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    client = context.Process(target=_measure, args=(transfer, theirs))
    client.start()
    rate: float = ours.recv()
    client.join()
    return rate


def run(*, quick: bool) -> None:
    """Print medians, ratios and what is promised of them."""
    from multi.cli.cert import write_development_certificates

    size, rounds = (1 << 28, 3) if quick else (2 << 30, 5)
    rates: dict[str, list[float]] = {party.name: [] for party in PARTIES}
    with tempfile.TemporaryDirectory(prefix="multi-loopback-") as directory:
        write_development_certificates(Path(directory), ["localhost"])
        for _ in range(rounds):
            for party in PARTIES:
                rates[party.name].append(measure(Transfer(party, size, Path(directory))))
    print(f"{size / (1 << 20):.0f} MiB over one TCP connection, {rounds} runs of each in turn, Gbit/s")
    for party in PARTIES:
        values = rates[party.name]
        line = (
            f"  {party.name:18} median {statistics.median(values):6.2f}  (min {min(values):.2f}, max {max(values):.2f})"
        )
        if party.against:
            pairs = zip(values, rates[party.against], strict=True)
            ratio = statistics.median(own / base for own, base in pairs)
            line += f"  {ratio:5.2f} x {party.against}"
            if party.promise:
                held = "held" if ratio >= party.promise else f"short by {party.promise - ratio:.2f}"
                line += f"  (promised {party.promise:g}: {held})"
        print(line)


if __name__ == "__main__":
    run(quick=False)
