"""Small receive windows over pairs of unequal paths in virtual time: `python -m benchmarks.grid --windows`.

A receiver that grants little makes the room of its window what a sender has to divide: bytes on a slow path hold it for
long. Two paths must never be slower for it than the better of them alone.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path as FilePath

from benchmarks.grid.points import MIN_QUEUE, Path, Point
from benchmarks.grid.report import NEVER_UNDER, Store
from benchmarks.grid.virtual import Task

__all__ = ["SIZE", "tasks", "write_report"]

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


def _points(*, quick: bool) -> Iterator[tuple[Point, str]]:
    """Each with its congestion control."""
    for name in QUICK_NEAR if quick else NEAR:
        mbps, rtt, loss, products, congestion = NEAR[name]
        for slower, farther in QUICK_FAR if quick else FAR:
            near = _path(mbps, rtt, loss, products)
            yield (
                Point(f"{name}-{slower:g}-{farther:g}", (near, _path(mbps / slower, rtt * farther, 0.0, products))),
                congestion,
            )


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
    outcomes = list(_outcomes(store, quick=quick))
    lines = [
        "# Small receive windows",
        "",
        f"{SIZE / 1e6:g} MB from the server to the client over two paths whose connections are open before the clock "
        "starts, in virtual time: throughput over both by that over the better one alone with the same window, where "
        "each path has the same luck as alone. "
        + ("Few points, once: a look, not a measurement." if quick else f"Medians of {len(SEEDS)} runs."),
        "",
        f"| window | points | lowest | median | highest | under {NEVER_UNDER:g} |",
        "|---|---|---|---|---|---|",
    ]
    for window in WINDOWS:
        if ratios := [o.ratio for o in outcomes if o.window == window]:
            under = sum(ratio < NEVER_UNDER for ratio in ratios)
            lines.append(
                f"| {window // KIB} KiB | {len(ratios)} | {min(ratios):.3f} | {statistics.median(ratios):.3f} "
                f"| {max(ratios):.3f} | {under} |"
            )
    lines += [
        "",
        "Where two paths do worst:",
        "",
        "| window | point | alone, Mbit/s | both | both / best |",
        "|---|---|---|---|---|",
    ]
    lines += [str(outcome) for outcome in sorted(outcomes, key=lambda o: o.ratio)[:10]]
    text = "\n".join([*lines, ""])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return text


def _outcomes(store: Store, *, quick: bool) -> Iterator[_Outcome]:
    for window in WINDOWS:
        for point, congestion in _points(quick=quick):
            runs = list(_runs(store, _at(point, window), congestion))
            if runs:
                first, second, both = (statistics.median(of) for of in zip(*runs, strict=True))
                better = 0 if first >= second else 1
                ratio = statistics.median(run[2] / run[better] for run in runs)
                yield _Outcome(window, point, congestion, (first, second), both, ratio)


def _runs(store: Store, point: Point, congestion: str) -> Iterator[tuple[float, float, float]]:
    """Mbit/s of each path alone and of both, of the runs that are complete."""
    for seed in SEEDS:
        first, second, both = (store.virtual_mbps(point, part, congestion, seed) for part in ("1", "2", "adaptive"))
        if first and second and both:
            yield first, second, both
