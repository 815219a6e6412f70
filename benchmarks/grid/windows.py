"""Small receive windows over pairs of unequal paths: `python -m benchmarks.grid --windows`.

A receiver that grants little makes the room of its window what a sender has to divide: bytes on a slow path hold it for
long. Two paths must never be slower for it than the better of them alone.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path as FilePath

from benchmarks.grid.points import MIN_QUEUE, Path, Point
from benchmarks.grid.report import NEVER_UNDER, Store
from benchmarks.grid.stage import Cell
from benchmarks.grid.virtual import Task

__all__ = ["SIZE", "cells", "tasks", "write_report"]

KIB = 1024
WINDOWS = (128 * KIB, 256 * KIB, 512 * KIB, 1024 * KIB, 2048 * KIB)
SIZE = 8_000_000  # bytes
SEEDS = (1, 2, 3, 4, 5)
JITTER = 20e-6  # seconds: which packet a full queue drops is as chance will have it, so each transfer runs five times

# The nearer path: Mbit/s, seconds there and back, loss, queue in bandwidth-delay products, congestion control.
NEAR = {
    "short": (80.0, 0.020, 0.0, 0.5, "bbr"),
    "shorter": (80.0, 0.040, 0.0, 0.25, "bbr"),
    "tight": (80.0, 0.040, 0.0, 0.25, "cubic"),
    "fitting": (80.0, 0.040, 0.0, 1.0, "cubic"),
    "quick": (200.0, 0.010, 0.0, 1.0, "bbr"),
    "deep": (80.0, 0.020, 0.0, 2.0, "bbr"),
    "deeper": (40.0, 0.010, 0.0, 2.0, "cubic"),
    "lossy": (80.0, 0.020, 0.005, 1.0, "bbr"),
    "losing": (80.0, 0.020, 0.001, 1.0, "cubic"),
}
FAR = ((1.0, 1.0), (1.0, 2.0), (2.0, 3.0), (1.0, 10.0), (5.0, 5.0), (10.0, 2.0), (0.5, 2.0))
"""The other one: how many times slower, and how many times farther."""
QUICK_NEAR, QUICK_FAR = ("shorter", "fitting", "deep"), ((1.0, 2.0), (5.0, 5.0))

# With real kernels at half the rates, which two processors carry whatever else they do.
TESTBED_NEAR, TESTBED_FAR = ("short", "shorter", "fitting", "lossy"), ((1.0, 1.0), (2.0, 3.0), (10.0, 2.0))
TESTBED_RATE = 0.5
TESTBED_SIZE = 5_000_000  # bytes
ROUNDS = 3

Far = tuple[float, float]


def _points(*, quick: bool) -> Iterator[tuple[Point, str]]:
    """Each with its congestion control."""
    yield from _pairs(QUICK_NEAR if quick else tuple(NEAR), QUICK_FAR if quick else FAR)


def _testbed_points(*, quick: bool) -> Iterator[tuple[Point, str]]:
    yield from _pairs(TESTBED_NEAR[:1] if quick else TESTBED_NEAR, TESTBED_FAR, TESTBED_RATE)


def _pairs(near: Sequence[str], far: Sequence[Far], of_rate: float = 1.0) -> Iterator[tuple[Point, str]]:
    for name in near:
        mbps, rtt, loss, products, congestion = NEAR[name]
        mbps *= of_rate
        nearer = _path(mbps, rtt, loss, products)
        for slower, farther in far:
            other = _path(mbps / slower, rtt * farther, 0.0, products)
            yield Point(f"{name}-{slower:g}-{farther:g}", (nearer, other)), congestion


def _path(mbps: float, rtt: float, loss: float, products: float) -> Path:
    return Path(mbps, rtt, loss, max(MIN_QUEUE, products * mbps * 1e6 / 8 * rtt), JITTER)


def _at(point: Point, window: int) -> Point:
    return replace(point, name=f"{window // KIB}K/{point.name}")


def tasks(*, quick: bool) -> Iterator[Task]:
    """Each path alone and both together, at every point with every window."""
    for seed in SEEDS[:1] if quick else SEEDS:
        for window in WINDOWS:
            for point, congestion in _points(quick=quick):
                for part in ("1", "2", "adaptive"):
                    yield Task(_at(point, window), part, congestion, seed, SIZE, window)


def cells(rounds: int | None, *, quick: bool) -> list[Cell]:
    """The same with real kernels, at fewer points; round by round, so that an early end leaves something of each."""
    return [
        Cell(_at(point, window), congestion, number, ("adaptive",), TESTBED_SIZE, window)
        for number in range(1, (rounds or (1 if quick else ROUNDS)) + 1)
        for window in (WINDOWS[:1] if quick else WINDOWS)
        for point, congestion in _testbed_points(quick=quick)
    ]


@dataclass(frozen=True, slots=True)
class _Outcome:
    """Medians of Mbit/s, and of the ratios to the better path alone in each run.

    Losses by chance are the same ones in all transfers of a run, so a ratio tells of the session and not of its luck.
    """

    window: int
    point: Point
    congestion: str
    alone: tuple[float, float]
    both: float
    ratio: float

    def __str__(self) -> str:
        alone = " + ".join(f"{mbps:.1f}" for mbps in self.alone)
        name = f"{self.window // KIB} KiB | {self.congestion} {self.point}"
        return f"| {name} | {alone} | {self.both:.1f} | {self.ratio:.3f} |"


def write_report(store: Store, path: FilePath, *, quick: bool) -> str:
    """Write what came out at the points that are measured; return the text."""
    few = "Few points, once: a look, not a measurement."
    lines = [
        "# Small receive windows",
        "",
        "Throughput from the server to the client over two paths whose connections are open before the clock starts, "
        "by that over the better one alone with the same window.",
    ]
    if simulated := list(_outcomes(_points(quick=quick), _virtual_runs(store))):
        lines += [
            "",
            f"{SIZE / 1e6:g} MB in virtual time, where each path has the same luck as alone. "
            + (few if quick else f"Medians of {len(SEEDS)} runs."),
            "",
            *_tables(simulated),
        ]
    if measured := list(_outcomes(_testbed_points(quick=quick), _testbed_runs(store))):
        lines += [
            "",
            "## With real kernels",
            "",
            f"{TESTBED_SIZE / 1e6:g} MB over emulated links, both and each path alone in turn. "
            + (few if quick else f"Medians of up to {ROUNDS} runs."),
            "",
            *_tables(measured),
        ]
    text = "\n".join([*lines, ""])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return text


def _tables(outcomes: Sequence[_Outcome]) -> Iterator[str]:
    """A line for each window, and one for each of the points where two paths do worst."""
    yield f"| window | points | lowest | median | highest | under {NEVER_UNDER:g} |"
    yield "|---|---|---|---|---|---|"
    for window in WINDOWS:
        if ratios := [o.ratio for o in outcomes if o.window == window]:
            under = sum(ratio < NEVER_UNDER for ratio in ratios)
            yield (
                f"| {window // KIB} KiB | {len(ratios)} | {min(ratios):.3f} | {statistics.median(ratios):.3f} "
                f"| {max(ratios):.3f} | {under} |"
            )
    yield from ("", "Where two paths do worst:", "")
    yield from ("| window | point | alone, Mbit/s | both | both / best |", "|---|---|---|---|---|")
    yield from (str(outcome) for outcome in sorted(outcomes, key=lambda o: o.ratio)[:10])


Mbps = tuple[float, float, float]
"""Of each path alone, and of both, in one run."""


def _outcomes(points: Iterator[tuple[Point, str]], runs_of: Callable[[Point, str], list[Mbps]]) -> Iterator[_Outcome]:
    for point, congestion in points:
        for window in WINDOWS:
            if runs := runs_of(_at(point, window), congestion):
                first, second, both = (statistics.median(of) for of in zip(*runs, strict=True))
                better = 0 if first >= second else 1
                ratio = statistics.median(run[2] / run[better] for run in runs)
                yield _Outcome(window, point, congestion, (first, second), both, ratio)


def _virtual_runs(store: Store) -> Callable[[Point, str], list[Mbps]]:
    """Those that are complete."""

    def runs(point: Point, congestion: str) -> list[Mbps]:
        found = []
        for seed in SEEDS:
            first, second, both = (store.virtual_mbps(point, part, congestion, seed) for part in ("1", "2", "adaptive"))
            if first and second and both:
                found.append((first, second, both))
        return found

    return runs


def _testbed_runs(store: Store) -> Callable[[Point, str], list[Mbps]]:
    return lambda point, congestion: [
        (run["1"], run["2"], run["adaptive"]) for run in store.testbed_runs(point, congestion)
    ]
