"""One run of a point on the testbed: each path alone, and schedulers or kernel MPTCP over all of them, in turn."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from benchmarks import environment
from benchmarks.grid.ends import Fetched, fetch_kernel, fetch_multi
from benchmarks.grid.points import Point
from multi.lab.testbed import Direction, Host, LinkSpec, Testbed

__all__ = ["TOGETHER", "Cell", "play"]

LIMIT = 45.0  # seconds; the throughput of a path that needs longer is known by then
MULTI_PORT, KERNEL_PORT = 7788, 7799
TOGETHER = ("adaptive", "RR", "mptcp")
SETTLE = 0.3  # seconds, and two of the longest round trips: subflows join after the first


@dataclass(frozen=True, slots=True)
class Cell:
    """One run of a point: everything that is compared in it is measured in turn."""

    point: Point
    congestion: str
    number: int
    """Of the run, from 1."""
    together: tuple[str, ...]
    """Of TOGETHER."""
    size: int
    """Bytes of each transfer."""
    window: int = 0
    """Bytes that the receiver allows at most; 0 = as usual."""

    @property
    def parts(self) -> list[str]:
        """`1`, `2`, ... for a path alone, and `together`; the order changes with the run."""
        parts = [*(str(n) for n in range(1, len(self.point.paths) + 1)), *self.together]
        shift = self.number % len(parts)
        return parts[shift:] + parts[:shift]


async def play(cell: Cell) -> dict[str, Fetched]:
    """Throughput by part."""
    point = cell.point
    interfaces = [f"path{n}" for n in range(1, len(point.paths) + 1)]
    links = [
        LinkSpec.symmetric(
            name, name, Direction(path.mbps, path.rtt / 2 * 1e3, loss=path.loss, queue_bytes=round(path.queue))
        )
        for name, path in zip(interfaces, point.paths, strict=True)
    ]
    settle = SETTLE + 2 * max(path.rtt for path in point.paths)
    found: dict[str, Fetched] = {}
    async with Testbed(links, congestion=cell.congestion, mptcp=True, seed=cell.number) as testbed:
        address = testbed.server.address()
        with serving(testbed.server, "multi", MULTI_PORT), serving(testbed.server, "kernel", KERNEL_PORT):
            for part in cell.parts:
                if part == "mptcp":
                    found[part] = await testbed.client.run_python(
                        fetch_kernel, address, KERNEL_PORT, interfaces[0], cell.size, settle, LIMIT
                    )
                    continue
                alone = part.isdigit()
                chosen = [interfaces[int(part) - 1]] if alone else interfaces
                scheduler = "adaptive" if alone else part
                found[part] = await testbed.client.run_python(
                    fetch_multi, address, MULTI_PORT, chosen, scheduler, cell.size, cell.window, settle, LIMIT
                )
                await asyncio.sleep(0)
    return found


@contextmanager
def serving(host: Host, kind: str, port: int) -> Iterator[None]:
    """A server of `kind` on `host`."""
    server = host.popen(
        [sys.executable, "-m", "benchmarks.grid.ends", kind, "0.0.0.0", str(port)],
        stdout=subprocess.PIPE,
        env=environment(),
    )
    assert server.stdout is not None
    try:
        if not server.stdout.readline():
            raise RuntimeError(f"the {kind} server did not start")
        yield
    finally:
        server.kill()
        server.wait(10)
        server.stdout.close()
