"""Throughput of one TCP connection on loopback: `multi` against asyncio's own streams, two processes.

64 KiB writes with `drain` after each, reads as they come. The clock runs from the first write until the server has
confirmed the last byte.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import statistics
import time
from multiprocessing.connection import Connection
from typing import Any

WRITE = 64 * 1024
READ = 1 << 20
ROOMY = 1 << 20  # bytes; asyncio's reader pauses at twice its limit, 64 KiB unless told otherwise

Reader = Any
Writer = Any


def _config(party: str, port: int) -> dict[str, object]:
    return {
        "connection_priority": [["tcp", "ipv4", "any"]],
        "remote_host": "127.0.0.1",
        "remote_port": port,
        "protect": "auto" if party == "multi sealed" else "never",
    }


async def _serve(party: str, pipe: Connection) -> None:
    import multi

    finished = asyncio.Event()

    async def on_client(reader: Reader, writer: Writer) -> None:
        received = 0
        while data := await reader.read(READ):
            received += len(data)
        writer.write(b"%d" % received)
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        finished.set()

    if party.startswith("asyncio"):
        limit = ROOMY if party.endswith("roomy") else 2**16
        server: Any = await asyncio.start_server(on_client, "127.0.0.1", 0, limit=limit)
        port = server.sockets[0].getsockname()[1]
    else:
        listen = {"host": "127.0.0.1", "port": 0, "transports": ["tcp"]}
        protect = "auto" if party == "multi sealed" else "never"
        server = await multi.start_server(on_client, {"listen": listen, "protect": protect})
        port = server.port
    pipe.send(port)
    await finished.wait()
    server.close()


def _serve_process(party: str, pipe: Connection) -> None:
    asyncio.run(_serve(party, pipe))


async def _send(party: str, port: int, size: int) -> float:
    import multi

    if party.startswith("asyncio"):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    else:
        reader, writer = await multi.open_connection(_config(party, port))
    block = bytes(WRITE)
    started = time.perf_counter()
    for _ in range(size // WRITE):
        writer.write(block)
        await writer.drain()
    writer.write_eof()
    confirmed = int(await reader.read())
    seconds = time.perf_counter() - started
    if confirmed != size // WRITE * WRITE:
        raise SystemExit(f"{party}: {confirmed} bytes confirmed, not {size}")
    writer.close()
    await writer.wait_closed()
    return size * 8 / seconds / 1e9


def _measure(party: str, size: int, results: Connection) -> None:
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    server = multiprocessing.get_context("spawn").Process(target=_serve_process, args=(party, theirs))
    server.start()
    try:
        results.send(asyncio.run(_send(party, ours.recv(), size)))
    finally:
        server.join()


def measure(party: str, size: int) -> float:
    """Gbit/s of one transfer, in fresh processes."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    client = context.Process(target=_measure, args=(party, size, theirs))
    client.start()
    rate: float = ours.recv()
    client.join()
    return rate


PARTIES = ("asyncio streams", "asyncio, roomy", "multi unprotected", "multi sealed")


def run(*, quick: bool) -> None:
    """Print medians and ratios."""
    size, rounds = (1 << 28, 3) if quick else (2 << 30, 5)
    rates: dict[str, list[float]] = {party: [] for party in PARTIES}
    for _ in range(rounds):
        for party in PARTIES:
            rates[party].append(measure(party, size))
    print(f"{size / (1 << 20):.0f} MiB over one TCP connection, {rounds} runs of each in turn, Gbit/s")
    for party in PARTIES:
        values = rates[party]
        ratios = [own / base for own, base in zip(values, rates[PARTIES[0]], strict=True)]
        print(
            f"  {party:18} median {statistics.median(values):6.2f}  (min {min(values):.2f}, max {max(values):.2f})"
            f"  {statistics.median(ratios):5.2f} x asyncio streams"
        )


if __name__ == "__main__":
    run(quick=False)
