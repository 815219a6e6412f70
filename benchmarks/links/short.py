"""Short transfers over two equal paths of 10 Mbit/s and 44 ms against one, as in Viernickel et al., Figures 8-9.

Every transfer has a session of its own. The client asks for so many bytes with one line and reads them; sent the other
way, the server confirms the last byte with one. The clock starts when the session is open on all its paths (`wait:
all`), or before it is opened with `connect: par`. Parties alternate; a ratio is taken between neighbours.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import multi
from benchmarks.links.stage import Stage, serving, spread
from benchmarks.verdicts import verdict_at_most
from multi.lab.testbed import Direction, LinkSpec

PATHS = ("wlan0", "wwan0")
FIGURES = Direction(10.0, 22.0, queue_ms=100.0)
LINKS = (LinkSpec("a", PATHS[0], FIGURES, FIGURES, "wifi"), LinkSpec("b", PATHS[1], FIGURES, FIGURES, "cellular"))
PORT = 7791
SERVE = "import asyncio; from benchmarks.links import short; asyncio.run(short.serve({port}))"
READ = 1 << 20
SETTLE = 0.05  # seconds from the opening of a session to its transfer: what opening it left behind has arrived


@dataclass(frozen=True, slots=True)
class Size:
    bytes: int
    most: float
    """Promised: at most so many times the time of a single path."""
    rounds: int

    def __str__(self) -> str:
        return f"{self.bytes / 1e6:g} MB" if self.bytes >= 1e6 else f"{self.bytes / 1e3:g} kB"


SIZES = (Size(10_000_000, 0.55, 5), Size(1_000_000, 0.65, 15), Size(100_000, 1.0, 31))


# --- the two ends; they run on the hosts ---


async def serve(port: int) -> None:
    """Answer requests until the process is ended."""

    async def on_client(reader: Any, writer: Any) -> None:
        way, count = (await reader.readline()).split()
        if way == b"get":
            writer.write(bytes(int(count)))
        else:
            await reader.readexactly(int(count))
            writer.write(b"all\n")
        await reader.read()
        writer.close()

    await multi.start_server(on_client, {"listen": {"host": "::", "port": port, "transports": ["tcp"]}})
    print("ready", flush=True)
    await asyncio.Event().wait()


async def transfers(config: dict[str, Any], jobs: Sequence[tuple[Sequence[str], int, bool, bool]]) -> list[float]:
    """Seconds of each job: (interfaces, bytes, whether it is a download, whether opening counts)."""
    seconds = []
    for interfaces, size, down, opening in jobs:
        entries = [["tcp", "ipv4", interface] for interface in interfaces]
        wait = "first" if opening else "all"
        job = config | {"connection_priority": entries, "multi_config": {"connect": "par", "wait": wait}}
        async with asyncio.timeout(120):
            seconds.append(await _transfer(multi.Config.model_validate(job), size, down=down, opening=opening))
    return seconds


async def _transfer(config: multi.Config, size: int, *, down: bool, opening: bool) -> float:
    started = time.perf_counter()
    async with multi.connect(config) as session:
        if not opening:
            await session.confirmed()
            await asyncio.sleep(SETTLE)
            started = time.perf_counter()
        if down:
            session.writer.write(b"get %d\n" % size)
            left = size
            while left:
                left -= len(await session.reader.read(READ))
        else:
            session.writer.write(b"put %d\n" % size)
            session.writer.write(bytes(size))
            await session.reader.readline()
        return time.perf_counter() - started


# --- the measurement ---


def run(rounds: float = 1.0, congestion: str = "bbr") -> None:
    """Print times over one path and over two, both ways. `rounds` times the usual number of repetitions."""
    asyncio.run(_run(rounds, congestion))


async def _run(share: float, congestion: str) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="multi-links-") as work,
        Stage.open(LINKS, congestion, Path(work), protections=()) as stage,
        serving(stage.testbed.server, ["-c", SERVE.format(port=PORT)]),
    ):
        for down in (True, False):
            print(f"  {congestion}, {'down' if down else 'up'}, ms: median (lowest to highest)")
            for size in SIZES:
                await _one_size(stage, size, max(1, round(size.rounds * share)), down=down)


async def _one_size(stage: Stage, size: Size, rounds: int, *, down: bool) -> None:
    config = stage.config([], "sealed") | {"remote_port": PORT}
    kinds = [([PATHS[0]], False), (list(PATHS), False), ([PATHS[0]], True), (list(PATHS), True)]
    jobs = [(paths, size.bytes, down, opening) for _ in range(rounds) for paths, opening in kinds]
    seconds: list[float] = await stage.testbed.client.run_python(transfers, config, jobs)
    one, two, one_opening, two_opening = (seconds[start::4] for start in range(4))
    ratio = statistics.median(two_time / one_time for two_time, one_time in zip(two, one, strict=True))
    opened = statistics.median(two_time / one_time for two_time, one_time in zip(two_opening, one_opening, strict=True))
    print(
        f"  {size!s:>7}, {rounds} times  one path {_ms(one)}  two {_ms(two)}  "
        f"ratio {ratio:.3f}, at most {size.most:g}: {verdict_at_most(ratio, size.most, 3)}\n"
        f"  {'with the open':>16}  one path {_ms(one_opening)}  two {_ms(two_opening)}  ratio {opened:.3f}",
        flush=True,
    )


def _ms(seconds: Sequence[float]) -> str:
    return spread([second * 1e3 for second in seconds])
