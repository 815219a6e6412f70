"""Viernickel et al.: what further paths bring, equal and unequal ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from benchmarks.mpquic.cells import ENGINES, Cell, Results, Route, Setup, route
from benchmarks.mpquic.figures import Figure, Paper, Scale, Table, Target, number
from benchmarks.mpquic.plays import Download, Joining, Urgent
from benchmarks.mpquic.viernickel_testbed import Networks, PageLoad, Parties, SizesOnTestbed, UrgentBeside

__all__ = ["paper"]

MBPS, ROUND_TRIP = 10.0, 0.044
MEGABYTE = 1_000_000
SIZES = {"10 kB": 10_000, "100 kB": 100_000, "1 MB": MEGABYTE, "10 MB": 10 * MEGABYTE}
PATH = route(MBPS, ROUND_TRIP)
NEVER_SLOWER = 1.02  # times the time of the single path
COLOURS = {"aioquic": "#2f6db5", "noq": "#d98032"}


def paper(scale: Scale) -> Paper:
    return Paper(
        "Multipath QUIC: a deployable multipath transport protocol",
        "T. Viernickel, A. Froemmgen, A. Rizk, B. Koldehofe, R. Steinmetz, IEEE ICC 2018",
        (
            HalfRoundTrip(scale),
            Networks(scale),
            Sizes(scale),
            SizesOnTestbed(scale),
            Paths(scale),
            Rates(scale),
            RoundTrips(scale),
            Parties(scale),
            PageLoad(scale),
            UrgentKilobyte(scale),
            UrgentBeside(scale),
        ),
    )


def _alone(setup: Setup, size: int = MEGABYTE) -> Cell:
    """The single path that Figures 8 and 9 compare with."""
    return Cell("viernickel-8", f"{size // 1000} kB, 1 path", Download(size, (PATH,)), setup)


class HalfRoundTrip(Figure):
    key = "viernickel-3"
    title = "Figures 3 and 4: when a server may use a further path"
    setting = (
        "10 Mbit/s; round trips of 44 and of 600 ms; a path is opened during a download, until the server sends data "
        "over it. RFC 10069 has it validate the address first."
    )
    ROUND_TRIPS = (0.044, 0.600)
    TRUST = Setup(settings=(("private_modes", ("trust_announced_paths",)),))

    def _rows(self) -> dict[str, tuple[str, Setup]]:
        return {
            **{f"RFC 10069: {setup.name}": ("rfc", setup) for setup in ENGINES},
            f"trust_announced_paths: {self.TRUST.name}": ("trust", self.TRUST),
        }

    def _cell(self, round_trip: float, row: str, setup: Setup) -> Cell:
        each = route(MBPS, round_trip)
        return Cell(self.key, f"{row}, {1000 * round_trip:g} ms", Joining((each, each)), setup)

    def cells(self) -> Sequence[Cell]:
        return [self._cell(round_trip, *row) for row in self._rows().values() for round_trip in self.ROUND_TRIPS]

    def _round_trips(self, results: Results, round_trip: float, row: str, setup: Setup) -> float | None:
        seconds = results.value(self._cell(round_trip, row, setup), "seconds")
        return seconds / round_trip if seconds is not None else None

    def table(self, results: Results) -> Table:
        rows = []
        for name, row in self._rows().items():
            said = "0.5" if row[0] == "trust" else "-"
            rows.append([name, said, *(number(self._round_trips(results, each, *row)) for each in self.ROUND_TRIPS)])
        return Table(("round trips", "paper", "44 ms", "600 ms"), rows)

    def targets(self, results: Results) -> Sequence[Target]:
        found = []
        for name, row in self._rows().items():
            bound = 0.6 if row[0] == "trust" else 1.6
            for each in self.ROUND_TRIPS:
                what = f"the server uses a path of {1000 * each:g} ms, {name}"
                found.append(Target(what, self._round_trips(results, each, *row), bound, unit=" round trips"))
        return found


class Sizes(Figure):
    key = "viernickel-8"
    title = "Figure 8: files of several sizes over two equal paths"
    setting = "10 Mbit/s and 44 ms each; from the client's first packet to the last byte."

    def _two(self, setup: Setup, size: int) -> Cell:
        return Cell(self.key, f"{size // 1000} kB, 2 paths", Download(size, (PATH, PATH)), setup)

    def cells(self) -> Sequence[Cell]:
        return [c for s in ENGINES for size in SIZES.values() for c in (_alone(s, size), self._two(s, size))]

    def table(self, results: Results) -> Table:
        said = {"1 MB": "1.06 s; -", "10 MB": '"nearly" twice as fast', "10 kB": "no gain", "100 kB": '"significant"'}
        rows = []
        for name, size in SIZES.items():
            row = [name, said[name]]
            for setup in ENGINES:
                one, two = self._times(results, setup, size)
                gain = f" ({one / two:.2f} times)" if one and two else ""
                row.append(f"{number(one, ' s')}; {number(two, ' s')}{gain}")
            rows.append(row)
        ours = (f"{setup.name}: one; two paths" for setup in ENGINES)
        return Table(("file", "paper: one; two paths", *ours), rows)

    def _times(self, results: Results, setup: Setup, size: int) -> tuple[float | None, float | None]:
        return results.value(_alone(setup, size), "seconds"), results.value(self._two(setup, size), "seconds")

    def targets(self, results: Results) -> Sequence[Target]:
        found = []
        for setup, bound in zip(ENGINES, (0.62, 0.66), strict=True):
            name = setup.name
            two = self._times(results, setup, MEGABYTE)[1]
            found.append(Target(f"1 MB over two equal paths, {name}", two, bound, unit=" s"))
            one, two = self._times(results, setup, 10 * MEGABYTE)
            ratio = one / two if one and two else None
            found.append(Target(f"10 MB over two equal paths, {name}", ratio, 1.94, at_least=True, unit=" times"))
        return found

    def draw(self, results: Results, picture: Any) -> None:
        axes = picture.subplots()
        for index, setup in enumerate(ENGINES):
            for count in (0, 1):
                times = [self._times(results, setup, size)[count] for size in SIZES.values()]
                axes.bar(
                    [at + 0.2 * (2 * index + count) - 0.3 for at in range(len(SIZES))],
                    [time or 0.0 for time in times],
                    0.18,
                    color=COLOURS[setup.engine],
                    alpha=0.5 + 0.5 * count,
                    label=f"{setup.name}, {count + 1} path{'s' * count}",
                )
        axes.set_xticks(range(len(SIZES)), SIZES)
        axes.set_yscale("log")
        axes.set_ylabel("seconds")


class _Varied(Figure):
    """1 MB; one thing of the further paths varies."""

    xlabel: str
    points: Sequence[float]
    paper_says: ClassVar[dict[float, str]] = {}

    def routes(self, x: float) -> tuple[Route, ...]:
        raise NotImplementedError

    def cell(self, setup: Setup, x: float) -> Cell:
        return Cell(self.key, f"{x:g}", Download(MEGABYTE, self.routes(x)), setup)

    def cells(self) -> Sequence[Cell]:
        return [*(_alone(setup) for setup in ENGINES), *(self.cell(s, x) for s in ENGINES for x in self.points)]

    def table(self, results: Results) -> Table:
        rows = [
            ["the first path alone", "1.06 s", *(number(results.value(_alone(s), "seconds"), " s") for s in ENGINES)]
        ]
        for x in self.points:
            times = (number(results.value(self.cell(s, x), "seconds"), " s") for s in ENGINES)
            rows.append([f"{x:g}", self.paper_says.get(x, "-"), *times])
        return Table((self.xlabel, "paper", *(setup.name for setup in ENGINES)), rows)

    def shares(self, results: Results, setup: Setup) -> dict[float, float]:
        """Of the time over the first path alone, where both were run."""
        alone = results.value(_alone(setup), "seconds")
        times = {x: results.value(self.cell(setup, x), "seconds") for x in self.points}
        return {x: time / alone for x, time in times.items() if time is not None and alone is not None}

    def worst(self, results: Results, setup: Setup) -> float | None:
        shares = self.shares(results, setup)
        return max(shares.values()) if len(shares) == len(self.points) else None

    def draw(self, results: Results, picture: Any) -> None:
        axes = picture.subplots()
        for setup in ENGINES:
            times = {x: results.value(self.cell(setup, x), "seconds") for x in self.points}
            known = {x: time for x, time in times.items() if time is not None}
            axes.plot(list(known), list(known.values()), "o-", color=COLOURS[setup.engine], label=setup.name)
            alone = results.value(_alone(setup), "seconds")
            if alone is not None:
                label = f"{setup.name}, first path alone"
                axes.axhline(alone, color=COLOURS[setup.engine], linestyle="--", linewidth=0.8, label=label)
        axes.set_xlabel(self.xlabel)
        axes.set_ylabel("seconds")
        axes.set_ylim(bottom=0)


class Paths(_Varied):
    key = "viernickel-9a"
    title = "Figure 9a: 1 MB over several equal paths"
    setting = "10 Mbit/s and 44 ms each."
    xlabel = "paths"
    points = (2, 3, 4)

    def routes(self, x: float) -> tuple[Route, ...]:
        return (PATH,) * int(x)

    def targets(self, results: Results) -> Sequence[Target]:
        return [
            Target(
                f"1 MB over three equal paths, {s.name}",
                results.value(self.cell(s, 3), "seconds"),
                bound,
                unit=" s",
            )
            for s, bound in zip(ENGINES, (0.50, 0.60), strict=True)
        ]


class Rates(_Varied):
    key = "viernickel-9b"
    title = "Figure 9b: 1 MB, the second path slower"
    setting = "44 ms each; the first path has 10 Mbit/s."
    xlabel = "rate of the second path / of the first"
    points = (0.1, 0.25, 0.5, 0.75, 1)
    paper_says: ClassVar = {0.5: "0.86 s"}

    def routes(self, x: float) -> tuple[Route, ...]:
        return PATH, route(MBPS * x, ROUND_TRIP)

    def targets(self, results: Results) -> Sequence[Target]:
        found = []
        for setup in ENGINES:
            name = setup.name
            half = results.value(self.cell(setup, 0.5), "seconds")
            found.append(Target(f"1 MB, the second path half as fast, {name}", half, 0.78, unit=" s"))
            slowest = self.shares(results, setup).get(0.1)
            what = f"1 MB, the second path a tenth as fast / the first alone, {name}"
            found.append(Target(what, slowest, NEVER_SLOWER, unit=" times"))
        return found


class RoundTrips(_Varied):
    key = "viernickel-9c"
    title = "Figure 9c: 1 MB, the second path farther away"
    setting = "10 Mbit/s each; the first path has 44 ms, of which 4 ms are not at the bottleneck."
    xlabel = "round trip of the second path / of the first, at the bottleneck"
    points = (0.5, 1, 2, 4, 8)
    paper_says: ClassVar = {8: "nears the single path"}

    def routes(self, x: float) -> tuple[Route, ...]:
        return PATH, route(MBPS, 0.004 + x * (ROUND_TRIP - 0.004))

    def targets(self, results: Results) -> Sequence[Target]:
        return [
            Target(
                f"1 MB at any ratio of round trips / the first path alone, worst, {s.name}",
                self.worst(results, s),
                NEVER_SLOWER,
                unit=" times",
            )
            for s in ENGINES
        ]


class UrgentKilobyte(Figure):
    key = "viernickel-12"
    title = "Figure 12: an urgent kilobyte during 10 MB"
    setting = (
        "10 Mbit/s each, 22 and 62 ms; the kilobyte is asked for five times a second. Beside it the same on one "
        "ordered stream, whose sender holds no more than two congestion windows, in place of the paper's MPTCP."
    )
    why_short = (
        "of 35 ms (aioquic) and 37 (native) the request takes 11 and the answer's way 12. It stands 11 and 12 ms in "
        "the queue of the near path, where 15 may: with `queue_most_ms: 10` it takes 30 and 32 ms in all. Before that "
        "it waits 1 and 2 ms for an acknowledgement that makes room, for which bulk has its turn as well."
    )
    ROUTES = (route(MBPS, 0.022), route(MBPS, 0.062))

    def _cell(self, setup: Setup, in_order: bool) -> Cell:
        size = (3 if self.quick else 10) * MEGABYTE
        row = f"{'in order' if in_order else 'a stream of its own'}, {size // 1000} kB"
        return Cell(self.key, row, Urgent(size, self.ROUTES, in_order), setup)

    def cells(self) -> Sequence[Cell]:
        return [self._cell(setup, in_order) for setup in ENGINES for in_order in (False, True)]

    def table(self, results: Results) -> Table:
        rows = []
        for name, said, in_order in (
            ("a stream of its own", "MPQUIC: least", False),
            ("in order", "MPTCP: most", True),
        ):
            row = [name, said]
            for setup in ENGINES:
                middle, worst = (results.value(self._cell(setup, in_order), each) for each in ("median", "worst"))
                row.append(f"{number(middle and middle * 1000)}; {number(worst and worst * 1000)}")
            rows.append(row)
        ours = (f"{setup.name}: median; worst, ms" for setup in ENGINES)
        return Table(("kilobyte", "paper", *ours), rows)

    def targets(self, results: Results) -> Sequence[Target]:
        found = []
        for setup in ENGINES:
            own, ordered = (results.value(self._cell(setup, in_order), "median") for in_order in (False, True))
            found.append(
                Target(
                    f"urgent kilobyte, median, {setup.name}: 1.5 round trips of 22 ms and 1 ms",
                    own and own * 1000,
                    34.0,
                    unit=" ms",
                )
            )
            share = own / ordered if own and ordered else None
            found.append(Target(f"urgent kilobyte / the same in order, {setup.name}", share, 0.5, unit=" times"))
        return found

    def draw(self, results: Results, picture: Any) -> None:
        axes = picture.subplots()
        shown = [(setup, in_order) for in_order in (False, True) for setup in ENGINES]
        known = [(s, o, out.series["delays"]) for s, o in shown if (out := results.of(self._cell(s, o))) is not None]
        labels = [f"{s.name},\n{'in order' if o else 'own stream'}" for s, o, _ in known]
        if known:
            axes.boxplot([[1000 * each for each in delays] for *_, delays in known], tick_labels=labels)
        axes.set_ylabel("ms")
        axes.set_ylim(bottom=0)
