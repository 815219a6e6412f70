"""One run of a point on the testbed: each path alone, and schedulers or kernel MPTCP over all of them, in turn."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from dataclasses import dataclass

from benchmarks.grid import ends
from benchmarks.grid.ends import Fetched, fetch_kernel, fetch_multi
from benchmarks.grid.points import Point
from benchmarks.links.stage import serving
from benchmarks.mpquic.stage import certificates
from multi.lab.testbed import Direction, LinkSpec, Testbed

__all__ = ["TOGETHER", "Cell", "play"]

LIMIT = 45.0  # seconds; the throughput of a path that needs longer is known by then
MULTI_PORT, KERNEL_PORT, MPQUIC_PORT = 7788, 7799, 7800
MPQUIC = "mpquic"
TOGETHER = ("adaptive", "RR", "mptcp", MPQUIC)
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
        """`1`, `2`, ... for a path alone, and `together`; the order changes with the run. `mpquic 1` and so on: a path
        alone with that transport, which is what its connection over all of them is judged by."""
        numbers = [str(n) for n in range(1, len(self.point.paths) + 1)]
        parts = [*numbers, *self.together, *(f"{MPQUIC} {n}" for n in numbers if MPQUIC in self.together)]
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
        made = str(certificates())
        ports = {"tcp": MULTI_PORT}
        if "mptcp" in cell.together:
            ports["kernel"] = KERNEL_PORT
        if MPQUIC in cell.together:
            ports[MPQUIC] = MPQUIC_PORT
        with ExitStack() as servers:
            for kind, port in ports.items():
                program = ["-m", ends.__name__, kind, "0.0.0.0", str(port), made]
                servers.enter_context(serving(testbed.server, program))
            for part in cell.parts:
                if part == "mptcp":
                    found[part] = await testbed.client.run_python(
                        fetch_kernel, address, KERNEL_PORT, interfaces[0], cell.size, settle, LIMIT
                    )
                    continue
                quic, number = part.startswith(MPQUIC), part.removeprefix(MPQUIC).strip()
                chosen = [interfaces[int(number) - 1]] if number.isdigit() else interfaces
                scheduler = "adaptive" if quic or number.isdigit() else part
                way = (MPQUIC, address, MPQUIC_PORT, made) if quic else ("tcp", address, MULTI_PORT, made)
                found[part] = await testbed.client.run_python(
                    fetch_multi, *way, chosen, scheduler, cell.size, cell.window, settle, LIMIT
                )
                await asyncio.sleep(0)
    return found
