"""200 bytes every 20 ms over emulated WiFi and 5G, one way, with real kernels: each network alone, and both, steered.

Both hosts are on this machine and have one clock, so a message carries the time at which it was written. The parties
take turns in one testbed for each pair of links. A jitter of 30 ms is one of 15 ms earlier or later.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import multi
from benchmarks.everyuse.virtual import Figure, both_unsteady, steady_and_unsteady
from benchmarks.links.stage import Stage
from multi.lab.testbed import Direction, LinkSpec

PORT = 7880
SIZE, APART = 200, 0.020
SETTLED = 1.0  # seconds from which messages count
_HEAD = struct.Struct("!d")

Taken = tuple[list[float], float]
"""Seconds of each message from writing to reading, and bytes given to connections for each byte of a message."""


async def receive(config: dict[str, Any]) -> list[float]:
    done: asyncio.Future[list[float]] = asyncio.get_running_loop().create_future()

    async def on_client(reader: multi.SessionReader, writer: multi.SessionWriter) -> None:
        took: list[float] = []
        with contextlib.suppress(asyncio.IncompleteReadError):
            while message := await reader.readexactly(SIZE):
                took.append(time.monotonic() - _HEAD.unpack_from(message)[0])
        writer.close()
        with contextlib.suppress(multi.MultiError):
            await writer.wait_closed()
        done.set_result(took)

    server = await multi.start_server(on_client, config)
    took = await done
    server.close()
    return took


async def send(config: dict[str, Any], seconds: float) -> float:
    """Bytes given to connections for each byte of a message."""
    async with multi.connect(config) as session:
        await session.confirmed()
        start, count = time.monotonic(), 0
        while (now := time.monotonic()) < start + seconds:
            session.writer.write(_HEAD.pack(now).ljust(SIZE, b"\0"))
            count += 1
            await asyncio.sleep(max(0.0, start + count * APART - time.monotonic()))
        spent = sum(info.bytes_sent for info in session.connections) / (count * SIZE)
        session.writer.write_eof()
        await session.reader.read()
    return spent


async def _once(stage: Stage, interfaces: Sequence[str], mode: str, seconds: float) -> Taken:
    listening = {"listen": {"host": "::", "port": PORT, "transports": ["tcp"]}}
    config = stage.config([("tcp", interface) for interface in interfaces], "sealed", wait="all")
    config |= {"remote_port": PORT, "steering": mode}
    receiving: asyncio.Task[list[float]] = asyncio.create_task(stage.testbed.server.run_python(receive, listening))
    await asyncio.sleep(1.5)
    spent: float = await stage.testbed.client.run_python(send, config, seconds)
    return (await receiving)[round(SETTLED / APART) :], spent


async def _measure(wifi: Direction, cellular: Direction, parties: dict[str, tuple[list[str], str]], rounds: int,
                   seconds: float) -> dict[str, Taken]:  # fmt: skip
    links = [LinkSpec("wifi", "wlan0", wifi, wifi, "wifi"), LinkSpec("5g", "wwan0", cellular, cellular, "cellular")]
    found: dict[str, Taken] = {name: ([], 0.0) for name in parties}
    with (
        tempfile.TemporaryDirectory(prefix="multi-everyuse-") as work,
        Stage.open(links, "bbr", Path(work), protections=()) as stage,
    ):
        for _ in range(rounds):
            for name, (interfaces, mode) in parties.items():
                took, spent = await _once(stage, interfaces, mode, seconds)
                found[name] = (found[name][0] + took, spent)
    return found


BOTH = ["wlan0", "wwan0"]


async def small(rounds: int, seconds: float) -> None:
    for figure in await figures(rounds, seconds):
        print(f"  {figure}", flush=True)


async def figures(rounds: int, seconds: float) -> list[Figure]:
    """One network that loses and varies, then both."""
    alone = {"WiFi": (["wlan0"], "adaptive"), "5G": (["wwan0"], "adaptive")}
    both = {mode: (BOTH, mode) for mode in ("latency", "redundant")}
    unsteady, steady = Direction(200, 15.9, jitter_ms=15, loss=0.05, queue_ms=50), Direction(35, 23, queue_ms=100)
    found = await _measure(unsteady, steady, alone | both, rounds, 2 * seconds)
    shown = list(steady_and_unsteady(found))
    lossy = Direction(200, 15.9, jitter_ms=15, loss=0.03, queue_ms=50)
    far = Direction(35, 23, jitter_ms=15, loss=0.03, queue_ms=100)
    found = await _measure(lossy, far, alone | {"redundant": (BOTH, "redundant")}, rounds, 2 * seconds)
    return shown + list(both_unsteady(found))
