"""The report of the grid: Markdown with a line for every promise, and two pictures."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path as FilePath

from benchmarks.grid.points import Point, grid, testbed_points
from benchmarks.grid.virtual import Task, ideal_mbps
from multi.schedulers import scheduler_names

__all__ = ["Store", "efficiency", "write_report"]

NEVER_UNDER = 0.97  # of the best path alone, in virtual time
MEDIAN_EFFICIENCY = 0.9
TESTBED_UNDER = 0.95  # of the best path alone, median of the runs, at every point
KERNEL_UNDER, KERNEL_POINTS = 0.97, 10  # of kernel MPTCP, at so many of the points on the testbed
MODEL_WITHIN = 0.10
CHECKED = 10  # points
SEEDS = (1, 2, 3)
IDEAL = "*ideal*"  # in place of a scheduler

HEAD = """# A grid of unequal paths

{points} points, spread evenly (a WSP design) over rates between 1:1 and 1:20 that add up to 100 Mbit/s, round trips
between 1:1 and 1:50 of which the shortest is 10 ms, losses from 0 to 2 %, queues from 0.5 to 10 times the
bandwidth-delay product, two and three paths. {size:g} MB go from the server to the client over connections that are
open before the clock starts; throughput is counted from the request to the last byte read. φ is formula 1 of Morawski
and Ignaciuk: 1 = all paths are used to the full, 0 = no better than the best path alone, -1 = nothing moves.

*Ideal* is a transfer that is over as soon as the paths, each as it was alone, have brought all the bytes. It stays
below φ = 1 because a path of a long round trip brings little of {size:g} MB before its congestion window has grown.
"""


class Store:
    """One JSON file for each run."""

    def __init__(self, directory: FilePath, size: int) -> None:
        self.directory = directory
        self.size = size  # bytes of each transfer

    def virtual(self, task: Task) -> FilePath:
        return self.directory / "virtual" / task.congestion / task.point.name / f"{task.part}-{task.seed}.json"

    def testbed(self, point: Point, congestion: str, number: int) -> FilePath:
        return self.directory / "testbed" / congestion / point.name / f"{number}.json"

    def put(self, path: FilePath, what: dict[str, object]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".unfinished")
        unfinished.write_text(json.dumps(what))
        unfinished.rename(path)

    def virtual_mbps(self, point: Point, part: str, congestion: str, seed: int) -> float | None:
        path = self.virtual(Task(point, part, congestion, seed))
        return float(json.loads(path.read_text())["mbps"]) if path.exists() else None

    def ideal_mbps(self, point: Point, congestion: str, seed: int) -> float | None:
        """Of the paths alone, when all of them were measured."""
        curves = []
        for number in range(1, len(point.paths) + 1):
            path = self.virtual(Task(point, str(number), congestion, seed))
            arrivals = json.loads(path.read_text()).get("arrivals") if path.exists() else None
            if not arrivals:
                return None
            curves.append([(float(moment), int(got)) for moment, got in arrivals])
        return ideal_mbps(curves, self.size)

    def testbed_runs(self, point: Point, congestion: str) -> list[dict[str, float]]:
        paths = sorted((self.directory / "testbed" / congestion / point.name).glob("*.json"))
        return [{part: float(f["mbps"]) for part, f in json.loads(p.read_text()).items()} for p in paths]


def efficiency(together: float, alone: Sequence[float]) -> float:
    """φ of Morawski and Ignaciuk, formula 1; `alone` are the throughputs of the paths."""
    best, rest = max(alone), sum(alone) - max(alone)
    if together < best:
        return (together - best) / best
    return (together - best) / rest if rest else 1.0


@dataclass(frozen=True, slots=True)
class _Outcome:
    """One way to send at one point: medians of the runs there are."""

    point: Point
    efficiency: float
    ratio: float
    """To the best path alone, in the same run."""


def _virtual_outcomes(store: Store, congestion: str, scheduler: str) -> list[_Outcome]:
    found = []
    for point in grid():
        efficiencies, ratios = [], []
        for seed in SEEDS:
            if scheduler == IDEAL:
                together = store.ideal_mbps(point, congestion, seed)
            else:
                together = store.virtual_mbps(point, scheduler, congestion, seed)
            alone = [store.virtual_mbps(point, str(n), congestion, seed) for n in range(1, len(point.paths) + 1)]
            known = [a for a in alone if a is not None]
            if together is not None and len(known) == len(alone):
                efficiencies.append(efficiency(together, known))
                ratios.append(together / max(known))
        if ratios:
            found.append(_Outcome(point, statistics.median(efficiencies), statistics.median(ratios)))
    return found


def _promise(name: str, value: float, least: float) -> str:
    verdict = "held" if value >= least else f"**short by {least - value:.3f}**"
    return f"- {name}: {value:.3f}, promised at least {least:g}: {verdict}"


def write_report(store: Store, path: FilePath, *, quick: bool) -> str:
    """Write the report beside its pictures; return its text."""
    parts = [HEAD.format(points=len(grid()), size=store.size / 1e6)]
    if quick:
        parts.append("Few points, once, and less data: a look, not a measurement.\n")
    virtual = _virtual_part(store)
    testbed = _testbed_part(store)
    parts += [*virtual, *testbed, *_model_part(store)]
    pictures = _pictures(store, path)
    parts += [f"![{title}]({file.name})\n" for title, file in pictures]
    text = "\n".join(parts)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return text


# --- virtual time ---


def _virtual_part(store: Store) -> list[str]:
    lines = ["## Virtual time: every scheduler\n"]
    worst: list[str] = []
    for congestion in ("bbr", "cubic"):
        rows = {name: _virtual_outcomes(store, congestion, name) for name in (IDEAL, *scheduler_names())}
        rows = {name: outcomes for name, outcomes in rows.items() if outcomes}
        if not rows:
            continue
        lines += [f"### {congestion}\n", "| scheduler | points | median φ | quartiles | lowest φ | under 0.97 x |"]
        lines += ["|---|---|---|---|---|---|"]
        for name, outcomes in sorted(rows.items(), key=lambda r: -statistics.median(o.efficiency for o in r[1])):
            values = [o.efficiency for o in outcomes]
            low, middle, high = statistics.quantiles(values, n=4) if len(values) > 1 else [values[0]] * 3
            under = sum(o.ratio < NEVER_UNDER for o in outcomes)
            lines.append(
                f"| {name} | {len(values)} | {middle:.3f} | {low:.3f} to {high:.3f} | {min(values):.3f} | {under} |"
            )
        lines.append("")
        if outcomes := rows.get("adaptive", []):
            slowest = min(outcomes, key=lambda o: o.ratio)
            under = sum(o.ratio < NEVER_UNDER for o in outcomes)
            lines += [
                _promise(f"`adaptive` / best path alone, lowest of {len(outcomes)} points", slowest.ratio, NEVER_UNDER),
                f"  ({under} of {len(outcomes)} points under it)",
                _promise("`adaptive`, median φ", statistics.median(o.efficiency for o in outcomes), MEDIAN_EFFICIENCY),
                *_beside_ideal(outcomes, rows.get(IDEAL, [])),
                "",
            ]
            for o in sorted(outcomes, key=lambda o: o.ratio)[:5]:
                worst.append(f"| {congestion} | {o.point} | {o.ratio:.3f} | {o.efficiency:.3f} |")
    if worst:
        lines += ["Where `adaptive` does worst:\n", "| | point | / best path | φ |", "|---|---|---|---|", *worst, ""]
    return lines if len(lines) > 1 else []


def _beside_ideal(outcomes: Sequence[_Outcome], ideal: Sequence[_Outcome]) -> list[str]:
    ratios = {outcome.point: outcome.ratio for outcome in ideal}
    shares = [o.ratio / ratios[o.point] for o in outcomes if o.point in ratios]
    if not shares:
        return []
    lowest = min(shares)
    return [
        f"  (the ideal has {statistics.median(o.efficiency for o in ideal):.3f}; `adaptive` has "
        f"{statistics.median(shares):.3f} x the throughput of the ideal, median of {len(shares)} points, "
        f"lowest {lowest:.3f})"
    ]


# --- testbed ---


def _testbed_part(store: Store) -> list[str]:
    measured = [(p, runs) for p in testbed_points() if (runs := store.testbed_runs(p, "bbr"))]
    if not measured:
        return []
    lines = ["## Testbed: real kernels, bbr, medians\n"]
    lines += ["| point | runs | alone, Mbit/s | adaptive (spread) | RR | kernel MPTCP | / best path | / MPTCP | φ |"]
    lines += ["|---|---|---|---|---|---|---|---|---|"]
    to_best, to_kernel, efficiencies = [], [], []
    for point, runs in measured:
        count = len(point.paths)
        alone = [_median(runs, lambda r, n=n: r[str(n)]) for n in range(1, count + 1)]  # type: ignore[misc]
        best = _median(runs, lambda r, c=count: r["adaptive"] / _best(r, c))  # type: ignore[misc]
        kernel = _median(runs, lambda r: r["adaptive"] / r["mptcp"])
        phi = _median(runs, lambda r, c=count: efficiency(r["adaptive"], _alone(r, c)))  # type: ignore[misc]
        to_best.append(best)
        to_kernel.append(kernel)
        efficiencies.append(phi)
        adaptive = [r["adaptive"] for r in runs]
        lines.append(
            f"| {point} | {len(runs)} | {' + '.join(f'{a:.1f}' for a in alone)} "
            f"| {statistics.median(adaptive):.1f} ({min(adaptive):.1f} to {max(adaptive):.1f}) "
            f"| {_median(runs, lambda r: r['RR']):.1f} | {_median(runs, lambda r: r['mptcp']):.1f} "
            f"| {best:.3f} | {kernel:.3f} | {phi:.3f} |"
        )
    lines += _mpquic_part(measured)
    near = sum(ratio >= KERNEL_UNDER for ratio in to_kernel)
    left = len(testbed_points()) - len(measured)
    if near < KERNEL_POINTS <= near + left:
        verdict = f"open, {left} points are not measured"
    else:
        verdict = "held" if near >= KERNEL_POINTS else f"**short by {KERNEL_POINTS - near}**"
    lines += [
        "",
        _promise(f"`adaptive` / best path alone, lowest of {len(measured)} points", min(to_best), TESTBED_UNDER),
        f"- `adaptive` at least {KERNEL_UNDER:g} x kernel MPTCP: at {near} of {len(measured)} points, "
        f"promised {KERNEL_POINTS} of 12: {verdict}",
        f"- `adaptive`, median φ: {statistics.median(efficiencies):.3f}",
        "",
    ]
    return lines


def _mpquic_part(measured: Sequence[tuple[Point, Sequence[dict[str, float]]]]) -> list[str]:
    """One connection of multipath QUIC over all paths, and over each alone, where it was measured."""
    rows, to_best = [], []
    for point, runs in measured:
        numbers = [f"mpquic {n}" for n in range(1, len(point.paths) + 1)]
        known = [run for run in runs if "mpquic" in run]
        if known:
            to_best.append(_median(known, lambda r, n=numbers: r["mpquic"] / max(r[one] for one in n)))  # type: ignore[misc]
            alone = " + ".join(f"{_median(known, lambda r, one=one: r[one]):.1f}" for one in numbers)  # type: ignore[misc]
            together = statistics.median(run["mpquic"] for run in known)
            rows.append(f"| {point} | {len(known)} | {alone} | {together:.1f} | {to_best[-1]:.3f} |")
    if not rows:
        return []
    return [
        "",
        "| point | runs | mpquic alone, Mbit/s | mpquic, one connection | / best path |",
        "|---|---|---|---|---|",
        *rows,
        "",
        _promise(f"mpquic / its best path alone, lowest of {len(rows)} points", min(to_best), TESTBED_UNDER),
    ]


def _alone(run: dict[str, float], count: int) -> list[float]:
    return [run[str(n)] for n in range(1, count + 1)]


def _best(run: dict[str, float], count: int) -> float:
    return max(_alone(run, count))


def _median(runs: Sequence[dict[str, float]], value: Callable[[dict[str, float]], float]) -> float:
    return statistics.median(value(run) for run in runs)


# --- how far the models are off ---


def _model_part(store: Store) -> list[str]:
    rows, deviations = [], []
    for congestion in ("bbr", "cubic"):
        for point in testbed_points()[:CHECKED]:
            runs = store.testbed_runs(point, congestion)
            if not runs:
                continue
            cells = []
            for part in [*(str(n) for n in range(1, len(point.paths) + 1)), "adaptive"]:
                models = [m for s in SEEDS if (m := store.virtual_mbps(point, part, congestion, s)) is not None]
                if not models:
                    continue
                real, model = statistics.median(r[part] for r in runs), statistics.median(models)
                deviation = model / real - 1 if real else 0.0
                deviations.append((abs(deviation), congestion, point.name, part))
                cells.append(f"{part}: {model:.1f} for {real:.1f} ({deviation:+.1%})")
            rows.append(f"| {congestion} | {point.name} | {len(runs)} | {'; '.join(cells)} |")
    if not deviations:
        return []
    within = sum(d[0] <= MODEL_WITHIN for d in deviations)
    together = [d for d in deviations if d[3] == "adaptive"]
    near = sum(d[0] <= MODEL_WITHIN for d in together)
    furthest = max(deviations)
    verdict = "held" if within == len(deviations) else f"**short at {len(deviations) - within}**"
    return [
        "## How far the models of virtual time are from the testbed\n",
        "Mbit/s in virtual time for those on the testbed, medians; numbers are paths alone.\n",
        "| | point | runs | model for testbed |",
        "|---|---|---|---|",
        *rows,
        "",
        f"- within {MODEL_WITHIN:.0%}: {within} of {len(deviations)} figures: {verdict} "
        f"(of `adaptive` over all paths {near} of {len(together)})",
        f"- median deviation {statistics.median(d[0] for d in deviations):.1%}; the furthest is {furthest[0]:.1%}, "
        f"{furthest[1]} {furthest[2]} {furthest[3]}",
        "",
    ]


# --- pictures ---


def _pictures(store: Store, path: FilePath) -> list[tuple[str, FilePath]]:
    try:
        import matplotlib
    except ImportError:
        return []
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    made = []
    for congestion in ("bbr", "cubic"):
        rows = {name: _virtual_outcomes(store, congestion, name) for name in scheduler_names()}
        rows = {name: outcomes for name, outcomes in rows.items() if outcomes}
        if not rows:
            continue
        names = sorted(rows, key=lambda n: statistics.median(o.efficiency for o in rows[n]))
        figure, axes = plt.subplots(figsize=(8, 0.5 * len(names) + 1.5))
        axes.boxplot([[o.efficiency for o in rows[n]] for n in names], orientation="horizontal", whis=(0, 100))
        axes.set_yticks(range(1, len(names) + 1), names)
        axes.axvline(0, color="grey", linewidth=0.8)
        axes.set_xlabel("φ (0 = the best path alone, 1 = the sum of all)")
        axes.set_title(f"Efficiency over the grid, virtual time, {congestion}")
        figure.tight_layout()
        file = path.with_name(f"{path.stem}-{congestion}.png")
        figure.savefig(file, dpi=120)
        plt.close(figure)
        made.append((f"efficiency by scheduler, {congestion}", file))
    return made
