"""What opening a session costs: CPU per side and time, sealed and unprotected, against a bare asyncio connection."""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import Any

import multi

Reader = Any
Writer = Any


async def _session(protect: str, rounds: int) -> tuple[float, float]:
    """(seconds of CPU for both sides together, seconds until data may be sent), medians."""

    async def on_client(reader: Reader, writer: Writer) -> None:
        await reader.read()
        writer.close()

    listen = {"host": "127.0.0.1", "port": 0, "transports": ["tcp"]}
    limits = {"max_sessions_per_source": 10_000}
    server = await multi.start_server(on_client, {"listen": listen, "protect": protect, "limits": limits})
    config = multi.load_config(
        {
            "connection_priority": [["tcp", "ipv4", "any"]],
            "remote_host": "127.0.0.1",
            "remote_port": server.port,
            "protect": protect,
        }
    )
    cpu, opened = [], []
    for _ in range(rounds):
        cpu_before, before = time.process_time(), time.perf_counter()
        async with multi.connect(config) as session:
            opened.append(time.perf_counter() - before)
            await session.confirmed()
            cpu.append(time.process_time() - cpu_before)
    server.close()
    await server.wait_closed()
    return statistics.median(cpu), statistics.median(opened)


async def _bare(rounds: int) -> tuple[float, float]:
    async def on_client(reader: Reader, writer: Writer) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(on_client, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    cpu, opened = [], []
    for _ in range(rounds):
        cpu_before, before = time.process_time(), time.perf_counter()
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        opened.append(time.perf_counter() - before)
        cpu.append(time.process_time() - cpu_before)
        writer.close()
        await writer.wait_closed()
    server.close()
    return statistics.median(cpu), statistics.median(opened)


def run(*, quick: bool) -> None:
    """Print medians."""
    rounds = 20 if quick else 200
    print(f"opening on loopback, {rounds} times, medians; CPU of both sides together until the session is confirmed")
    for name, measured in (
        ("asyncio TCP", _bare(rounds)),
        ("multi unprotected", _session("never", rounds)),
        ("multi sealed", _session("auto", rounds)),
    ):
        cpu, opened = asyncio.run(measured)
        print(f"  {name:18} {cpu * 1e3:6.2f} ms CPU (both sides)   {opened * 1e3:6.2f} ms until data may be sent")


if __name__ == "__main__":
    run(quick=False)
