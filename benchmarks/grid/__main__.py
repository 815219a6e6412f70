"""Measure schedulers over a grid of unequal paths: `make bench-grid`.

Every scheduler in virtual time at every point (`benchmarks.grid.points`), and at some points `adaptive`, `RR`,
kernel MPTCP and one connection of multipath QUIC over emulated links with real kernels; the same transfers tell how far
the models of virtual time are off. Each run is stored as JSON under `benchmarks/results/grid`, and what is there is not
measured again. The report is `benchmarks/results/grid.md`, with pictures. `--windows` measures another grid instead:
small receive windows (`benchmarks.grid.windows`).
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict

from benchmarks import RESULTS
from benchmarks.grid import windows
from benchmarks.grid.points import grid, testbed_points
from benchmarks.grid.report import Store, write_report
from benchmarks.grid.stage import TOGETHER, Cell, play
from benchmarks.grid.virtual import Task, transfers
from multi.lab.testbed import TestbedNotAllowed
from multi.schedulers import scheduler_names

CONGESTION = ("bbr", "cubic")
SEEDS = (1, 2, 3)  # of each path alone and of `adaptive`, for which promises are made; the others run once
ROUNDS = 5
CHECK_ROUNDS = 1  # with cubic, for the models only
CHECK_POINTS = 10
QUICK_POINTS = 12
QUICK_SIZE = 5_000_000  # bytes
SIZE = 20_000_000


def main() -> int:
    parser = argparse.ArgumentParser(prog="make bench-grid", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="few points, once, less data: a look, not a measurement")
    parser.add_argument("--windows", action="store_true", help="small receive windows")
    parser.add_argument("--only", choices=["virtual", "testbed"], help="default: both")
    parser.add_argument("--congestion", choices=CONGESTION, help="in virtual time; default: both")
    parser.add_argument("--scheduler", action="append", help="in virtual time; repeatable; default: all")
    parser.add_argument("--rounds", type=int, help=f"on the testbed; default {ROUNDS}")
    parser.add_argument(
        "--processes", type=int, default=os.cpu_count() or 1, help="in virtual time; default: all cores"
    )
    parser.add_argument("--report", action="store_true", help="measure nothing, write the report of what is there")
    parser.add_argument("--fresh", action="store_true", help="throw away what is there")
    chosen = parser.parse_args()
    return benchmark(chosen)


def run(*, quick: bool) -> None:
    """As a part of `make bench`."""
    arguments = argparse.Namespace(
        quick=quick, windows=False, only=None, congestion=None, scheduler=None, rounds=None, report=False, fresh=False
    )
    arguments.processes = os.cpu_count() or 1
    benchmark(arguments)


def benchmark(chosen: argparse.Namespace) -> int:
    """Measure what is missing, and report."""
    # A shell that starts this in the background has it ignore interruptions, and SIGTERM is made one of them.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    name = "grid-windows" if chosen.windows else "grid"
    directory = RESULTS / (f"{name}-quick" if chosen.quick else name)
    if chosen.fresh:
        shutil.rmtree(directory, ignore_errors=True)
    store = Store(directory, QUICK_SIZE if chosen.quick else SIZE)
    if chosen.windows:
        tasks, cells = windows.tasks(quick=chosen.quick), windows.cells(chosen.rounds, quick=chosen.quick)
        write = windows.write_report
    else:
        tasks, cells, write = _tasks(chosen), _cells(chosen), write_report
    status = 0
    try:
        if not chosen.report and chosen.only in (None, "virtual"):
            _virtual(tasks, chosen.processes, store)
        if not chosen.report and chosen.only in (None, "testbed"):
            asyncio.run(_on_testbed(cells, store))
    except KeyboardInterrupt:
        status = 130
    except TestbedNotAllowed as error:
        print(f"no testbed here: {error}", file=sys.stderr)
    path = RESULTS / f"{directory.name}.md"
    print(f"\n{write(store, path, quick=chosen.quick)}\nThis report: {path}")
    return status


def _virtual(wanted: Iterable[Task], processes: int, store: Store) -> None:
    tasks = [task for task in wanted if not store.virtual(task).exists()]
    print(f"virtual time: {len(tasks)} transfers to go", flush=True)
    began = time.monotonic()
    for number, (task, outcome) in enumerate(transfers(tasks, processes), 1):
        store.put(store.virtual(task), asdict(outcome))
        if number % 50 == 0 or number == len(tasks):
            print(f"  {number} of {len(tasks)} after {time.monotonic() - began:.0f} s", flush=True)


def _tasks(chosen: argparse.Namespace) -> Iterator[Task]:
    """What matters most comes first."""
    points, size = list(grid()), SIZE
    if chosen.quick:
        points, size = [p for p in points if p in testbed_points()], QUICK_SIZE
    seeds = SEEDS[:1] if chosen.quick else SEEDS
    names = chosen.scheduler or (["adaptive", "RR"] if chosen.quick else scheduler_names())
    controls = [chosen.congestion] if chosen.congestion else list(CONGESTION)
    for seed in seeds:
        for congestion in controls:
            for point in points:
                parts = [str(n) for n in range(1, len(point.paths) + 1)]
                yield from (Task(point, part, congestion, seed, size) for part in parts)
                if "adaptive" in names:
                    yield Task(point, "adaptive", congestion, seed, size)
        if seed == seeds[0]:
            others = [(name, congestion) for name in names if name != "adaptive" for congestion in controls]
            yield from (Task(p, name, congestion, seed, size) for name, congestion in others for p in points)


def _cells(chosen: argparse.Namespace) -> list[Cell]:
    """Round by round, so that an early end leaves something of everything."""
    points = testbed_points()[:3] if chosen.quick else testbed_points()
    rounds = chosen.rounds or (1 if chosen.quick else ROUNDS)
    size = QUICK_SIZE if chosen.quick else SIZE
    cells = [Cell(point, "bbr", number, TOGETHER, size) for number in range(1, rounds + 1) for point in points]
    if not chosen.quick:
        checked = [(number, point) for number in range(1, CHECK_ROUNDS + 1) for point in points[:CHECK_POINTS]]
        cells[len(points) : len(points)] = [Cell(p, "cubic", n, ("adaptive",), size) for n, p in checked]
    return cells


async def _on_testbed(cells: Sequence[Cell], store: Store) -> None:
    for index, cell in enumerate(cells, 1):
        path = store.testbed(cell.point, cell.congestion, cell.number)
        what = f"[{index}/{len(cells)}] {cell.point} {cell.congestion} run {cell.number}"
        if path.exists():
            print(f"{what}: there", flush=True)
            continue
        found = await play(cell)
        store.put(path, {part: {"mbps": f.mbps, "size": f.size, "seconds": f.seconds} for part, f in found.items()})
        print(f"{what}: " + ", ".join(f"{part} {f.mbps:.1f}" for part, f in found.items()), flush=True)


if __name__ == "__main__":
    sys.exit(main())
