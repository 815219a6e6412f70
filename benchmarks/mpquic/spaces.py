"""De Coninck: one packet number space for all paths, or one for each."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import pairwise
from random import Random
from statistics import fmean
from typing import Any, ClassVar

from benchmarks.mpquic.cells import TESTBED, Cell, Results, Route, Setup, route
from benchmarks.mpquic.figures import Figure, Paper, Scale, Table, Target, median, number
from benchmarks.mpquic.plays import Counted, Download
from benchmarks.mpquic.testbed import Fetch, Party
from benchmarks.spread import spread
from multi.lab.engines.links import MBIT

__all__ = ["paper"]

MEGABYTE = 1_000_000
POINTS = 95
QUICK_POINTS = 2
NATIVE_POINTS = 24
UNBOUND = ("queue_most_ms", 0)  # what the paper's implementations send is bounded by congestion control alone
MANY = Setup(settings=(UNBOUND,), ack_blocks=0)
ONE = Setup(settings=(UNBOUND, ("private_modes", ("one_number_space",))), ack_blocks=32)
COPIES = ("ack_path", "all")
SETTING = (
    "One stream, queues of 1.5 bandwidth-delay products, nothing is lost but in them, and only congestion control "
    "bounds them; paths are opened when the handshake is done. Windows grow to 4 MiB (the paper: 2 MB at first), and "
    "aioquic acknowledges after one to five milliseconds, where the paper's implementations do so each two packets or "
    "after up to ten milliseconds."
)
BY_TIME = (
    "With one space only time tells what is lost, as the fixed picoquic has it; with many also three packets that came "
    "later. "
)


def paper(scale: Scale) -> Paper:
    return Paper(
        "The Packet Number Space Debate in Multipath QUIC",
        "Q. De Coninck, UCLouvain, technical report, 2021",
        (
            Homogeneous(scale),
            Original(scale),
            OriginalOnTestbed(scale),
            Fixed(scale),
            AckBytes(scale),
            ThreePaths(scale),
        ),
    )


@cache
def _points(dimensions: int) -> tuple[tuple[str, tuple[float, ...]], ...]:
    """Names and points, in an order of which any beginning is a sample of the whole."""
    found = [(f"{n:02}", at) for n, at in enumerate(spread(dimensions, POINTS, seed=dimensions, candidates=600), 1)]
    Random(1).shuffle(found)
    return tuple(found)


def _between(at: float, least: float, most: float) -> float:
    return least + (most - least) * at


def homogeneous(at: tuple[float, ...]) -> tuple[Route, ...]:
    """Table 1: two equal paths of 2.5 to 100 Mbit/s and 5 to 100 ms."""
    return (route(_between(at[0], 2.5, 100), _between(at[1], 0.005, 0.100)),) * 2


def heterogeneous(at: tuple[float, ...]) -> tuple[Route, ...]:
    """Table 2: 100 Mbit/s and 200 ms in all, of which the first path has 0.1 to 0.9."""
    rate, round_trip = (_between(x, 0.1, 0.9) for x in at)
    return route(100 * rate, 0.2 * round_trip), route(100 * (1 - rate), 0.2 * (1 - round_trip))


def three_paths(at: tuple[float, ...]) -> tuple[Route, ...]:
    """Table 3: 100 Mbit/s and 300 ms in all, weights of 0.1 to 0.9 for each path."""
    rates, round_trips = ([_between(x, 0.1, 0.9) for x in part] for part in (at[:3], at[3:]))
    return tuple(
        route(100 * rate / sum(rates), 0.3 * round_trip / sum(round_trips))
        for rate, round_trip in zip(rates, round_trips, strict=True)
    )


@dataclass(frozen=True, slots=True)
class _Variant:
    name: str
    setup: Setup

    @property
    def row(self) -> str:
        return f"{self.name}: {self.setup.name}"


class _Table(Figure):
    """All points of a table with some ways to acknowledge."""

    VARIANTS: ClassVar[dict[str, _Variant]]
    dimensions = 2

    @property
    def size(self) -> int:
        return (4 if self.quick else 50) * MEGABYTE

    @property
    def points(self) -> Sequence[tuple[str, tuple[float, ...]]]:
        return _points(self.dimensions)[: QUICK_POINTS if self.quick else None]

    def routes(self, at: tuple[float, ...]) -> tuple[Route, ...]:
        raise NotImplementedError

    def cell(self, name: str, at: tuple[float, ...], variant: str) -> Cell:
        row = f"{name} {variant}, {self.size // MEGABYTE} MB, no bound"
        return Cell(self.key, row, Counted(self.size, self.routes(at)), self.VARIANTS[variant].setup)

    def cells(self) -> Sequence[Cell]:
        return [self.cell(name, at, variant) for name, at in self.points for variant in self.VARIANTS]

    def by_point(self, results: Results, variant: str, what: str) -> dict[str, float]:
        """A value of each point that was run."""
        found = {name: results.value(self.cell(name, at, variant), what) for name, at in self.points}
        return {name: value for name, value in found.items() if value is not None}

    def ratios(self, results: Results, variant: str, to: str, what: str = "seconds") -> list[float]:
        """Where both were run."""
        ours, theirs = self.by_point(results, variant, what), self.by_point(results, to, what)
        return [ours[name] / theirs[name] for name in ours.keys() & theirs.keys() if theirs[name]]

    def mean(self, results: Results, variant: str, what: str) -> float | None:
        found = list(self.by_point(results, variant, what).values())
        return fmean(found) if found else None

    def share(self, results: Results, variant: str, what: str, least: float) -> float | None:
        """Of the points with at least so much."""
        found = list(self.by_point(results, variant, what).values())
        return sum(value >= least for value in found) / len(found) if found else None

    def part(self, results: Results, *variants: str) -> str:
        """How many of the points have been run with all of these, if not all."""
        names = [set(self.by_point(results, variant, "seconds")) for variant in variants]
        count = len(set.intersection(*names))
        return f"{count} of {len(self.points)} points" if count < len(self.points) else ""

    def table(self, results: Results) -> Table:
        rows = []
        for key, variant in self.VARIANTS.items():
            ratio = median(self.ratios(results, key, "many"))
            values = [self.mean(results, key, what) for what in ("ranges", "full", "repeated", "ack kB")]
            ranges, cut, repeated, ack = values
            worst = max(self.by_point(results, key, "repeated").values(), default=None)
            rows.append(
                [
                    variant.row,
                    number(median(list(self.by_point(results, key, "seconds").values())), " s"),
                    number(ratio),
                    number(ranges),
                    number(cut and cut * 100, " %"),
                    number(repeated and repeated * 100, " %"),
                    number(100 * worst if worst is not None else None, " %"),
                    number(ack),
                    f"{len(self.by_point(results, key, 'seconds'))} of {len(self.points)}",
                ]
            )
        header = (
            "",
            "median time",
            "/ many",
            "ranges / ACK",
            "ACKs at the limit",
            "data sent again",
            "at worst",
            "ACKs, kB",
            "points",
        )
        return Table(header, rows)

    def draw(self, results: Results, picture: Any) -> None:
        self.draw_values(results, picture.subplots(1, 3))

    def draw_values(self, results: Results, panels: Sequence[Any]) -> None:
        shown = (("seconds", "seconds"), ("ranges", "ranges / ACK"), ("repeated", "data sent again / file"))
        for axes, (what, label) in zip(panels, shown, strict=True):
            found = {key: self.by_point(results, key, what).values() for key in self.VARIANTS}
            _draw_shares(axes, {self.VARIANTS[key].name: values for key, values in found.items()}, label)


def _draw_shares(axes: Any, lines: Mapping[str, Collection[float]], label: str) -> None:
    """The share of the points with at most so much."""
    for name, found in lines.items():
        if found:
            shares = [(at + 1) / len(found) for at in range(len(found))]
            axes.step(sorted(found), shares, "o-", where="post", markersize=3, label=name)
    axes.set_xlabel(label)
    axes.set_ylim(0, 1.05)


class Homogeneous(_Table):
    key = "spaces-2"
    title = "Figure 2 and Table 1: two equal paths"
    setting = "50 MB over two paths of 2.5 to 100 Mbit/s and 5 to 100 ms each, 95 points. " + SETTING
    why_short = (
        "that mean is ours. The paper (3.1, Figure 2b) says that acknowledgements often show a single range, and that "
        "losses make more of it in a few runs; here they do in nearly all. Slow start ends after eight longer round "
        "trips in turn, which are half of one where sixteen acknowledgements are sent in each, and the window has "
        "grown beyond what the queue holds: 278 datagrams of 8 MB are lost over two paths of 97 Mbit/s and 47 ms. "
        "Each is a gap in all acknowledgements until one of them was acknowledged, after one round trip or two."
    )
    VARIANTS: ClassVar = {
        "many": _Variant("many spaces", MANY),
        "one32": _Variant("one space, 32 blocks", ONE),
        "one4": _Variant("one space, 4 blocks", replace(ONE, ack_blocks=4)),
    }

    def routes(self, at: tuple[float, ...]) -> tuple[Route, ...]:
        return homogeneous(at)

    def targets(self, results: Results) -> Sequence[Target]:
        ratio = median(self.ratios(results, "one32", "many"))
        return [
            Target(
                f"equal paths, time with one space and 32 blocks / many spaces, median, apart from 1, {MANY.name}",
                abs(ratio - 1) if ratio is not None else None,
                0.05,
                part=self.part(results, "one32", "many"),
            ),
            Target(
                f"equal paths, ranges / ACK with many spaces, mean, {MANY.name}",
                self.mean(results, "many", "ranges"),
                1.2,
                part=self.part(results, "many"),
            ),
        ]


class _Heterogeneous(_Table):
    def routes(self, at: tuple[float, ...]) -> tuple[Route, ...]:
        return heterogeneous(at)


class Original(_Heterogeneous):
    key = "spaces-3"
    title = "Figure 3 and Table 2: two unequal paths, newest ranges first"
    setting = (
        "50 MB, 100 Mbit/s and 200 ms in all; 95 points. The paper: the limit is hit often, up to 70 % of the data are "
        "sent again, BBR does worse than Cubic. BBR is the native engine's, which has many spaces only, at 24 points. "
        + SETTING
    )
    VARIANTS: ClassVar = {
        "many": _Variant("many spaces", MANY),
        "one32": _Variant("one space, 32 blocks", ONE),
        "one4": _Variant("one space, 4 blocks", replace(ONE, ack_blocks=4)),
        "many4": _Variant("many spaces, 4 blocks", replace(MANY, ack_blocks=4)),
        "one16": _Variant("one space, 16 blocks", replace(ONE, ack_blocks=16)),
        "one8": _Variant("one space, 8 blocks", replace(ONE, ack_blocks=8)),
    }
    NATIVE: ClassVar = {c: Setup("noq", c, settings=(UNBOUND,)) for c in ("cubic", "bbr")}

    def native(self, name: str, at: tuple[float, ...], congestion: str) -> Cell:
        row = f"{name} native, {self.size // MEGABYTE} MB, no bound"
        return Cell(self.key, row, Download(self.size, self.routes(at)), self.NATIVE[congestion])

    def cells(self) -> Sequence[Cell]:
        found: list[Cell] = []
        for index, (name, at) in enumerate(self.points):
            if index < NATIVE_POINTS:
                found += [self.native(name, at, control) for control in self.NATIVE]
            found += [self.cell(name, at, variant) for variant in self.VARIANTS]
        return found

    def table(self, results: Results) -> Table:
        header, rows = super().table(results)
        own = []
        for control, setup in self.NATIVE.items():
            points = self.points[:NATIVE_POINTS]
            found = results.values([self.native(*point, control) for point in points], "seconds")
            time = number(median(found), " s")
            own.append([f"many spaces: {setup.name}", time, *["-"] * 6, f"{len(found)} of {len(points)}"])
        return Table(header, [*rows, *own])

    def targets(self, results: Results) -> Sequence[Target]:
        limits = ("one32", "one16", "one8", "one4")
        ratios = [median(self.ratios(results, limit, "many")) for limit in limits]
        known = [ratio for ratio in ratios if ratio is not None]
        steps = [later / before for before, later in pairwise(known)]
        four = median(self.ratios(results, "many4", "many"))
        return [
            Target(
                f"unequal paths, one space: time with half the blocks / with all, median, least of 32 to 4, {ONE.name}",
                min(steps) if len(known) == len(limits) else None,
                1.0,
                at_least=True,
                part=self.part(results, "many", *limits),
            ),
            Target(
                f"unequal paths, many spaces: time with 4 blocks / with all, median, apart from 1, {MANY.name}",
                abs(four - 1) if four is not None else None,
                0.02,
                part=self.part(results, "many", "many4"),
            ),
        ]


class OriginalOnTestbed(Figure):
    key = "spaces-3" + TESTBED
    title = "Table 2 on the testbed"
    setting = (
        "Twelve of the 95 points between real kernels, with many spaces, as the native engine has: a session of "
        "`multi`, from the opening of a connection to the last byte, three runs. Beside it what the engine takes in "
        "virtual time."
    )
    PARTY = Party("mpquic", Original.NATIVE["cubic"])
    POINTS, RUNS = 12, 3

    @cached_property
    def _virtual(self) -> Original:
        return Original(self.scale)

    @property
    def _points(self) -> Sequence[tuple[str, tuple[float, ...]]]:
        return self._virtual.points[: 1 if self.quick else self.POINTS]

    def _cells(self, name: str, at: tuple[float, ...]) -> list[Cell]:
        play = Fetch(routes=heterogeneous(at), jobs=(("seconds", (self._virtual.size,)),))
        cell = self.PARTY.cell(self.key, f"{name}, {self._virtual.size // MEGABYTE} MB, no bound", play)
        return [replace(cell, seed=seed) for seed in range(1, (1 if self.quick else self.RUNS) + 1)]

    def _beside(self, name: str, at: tuple[float, ...]) -> Cell:
        return self._virtual.native(name, at, "cubic")

    def cells(self) -> Sequence[Cell]:
        """Run by run; and what stands beside them, which is Figure 3's."""
        turns = zip(*(self._cells(*point) for point in self._points), strict=True)
        return [*(cell for turn in turns for cell in turn), *(self._beside(*point) for point in self._points)]

    def table(self, results: Results) -> Table:
        rows, ratios = [], []
        for name, at in self._points:
            times = results.values(self._cells(name, at), "seconds")
            virtual = results.value(self._beside(name, at), "seconds")
            middle, ratio = median(times), None
            if middle is not None and virtual is not None:
                ratios.append(ratio := middle / virtual)
            around = f" ({number(min(times))} to {number(max(times))})" if len(times) > 1 else ""
            row = [_described(heterogeneous(at)), number(middle, " s") + around, number(virtual, " s"), number(ratio)]
            rows.append(row)
        header = (str(self.PARTY), "testbed: median (least to most)", "virtual time", "testbed / virtual")
        return Table(header, [*rows, ["median", "-", "-", number(median(ratios))]])


def _described(routes: Sequence[Route]) -> str:
    parts = (f"{number(down.rate / MBIT)} Mbit/s {number(2000 * down.delay)} ms" for _, down in routes)
    return " and ".join(parts)


class Fixed(_Heterogeneous):
    key = "spaces-4"
    title = "Figures 4 and 5: the same with lowest ranges first and acknowledgements on both paths"
    setting = (
        "The paper: in nearly all runs with one space at least a quarter of the ACKs hit the limit. Figure 5 is the "
        "ratio of the times before and after. " + BY_TIME + SETTING
    )
    why_short = (
        "the target is what the paper says (3.2, Figure 4b). How many ranges there are depends on how often one "
        "acknowledges; of picoquic the paper says only that it may wait for a few milliseconds. With one each "
        "millisecond 13 to 65 % were at the limit at four of the points."
    )
    VARIANTS: ClassVar = {
        "many": _Variant("many spaces", replace(MANY, settings=(*MANY.settings, COPIES))),
        "one32": _Variant(
            "one space, 32 blocks",
            replace(ONE, settings=(*ONE.settings, COPIES), ack_order="lowest", lost_by_time=True),
        ),
    }

    def targets(self, results: Results) -> Sequence[Target]:
        often = self.share(results, "one32", "full", 0.25)
        what = f"lowest first: share of the points where a quarter of the ACKs hit 32 blocks, {ONE.name}"
        return [Target(what, often, 0.9, at_least=True, part=self.part(results, "one32"))]

    def table(self, results: Results) -> Table:
        header, rows = super().table(results)
        ratios = [number(median(self._before(results, variant))) for variant in self.VARIANTS]
        return Table([*header, "before / after"], [[*row, each] for row, each in zip(rows, ratios, strict=True)])

    def _before(self, results: Results, variant: str) -> list[float]:
        """Figure 5: times of Figure 3 over those here, at each point."""
        old = Original(self.scale).by_point(results, variant, "seconds")
        new = self.by_point(results, variant, "seconds")
        return [old[name] / new[name] for name in old.keys() & new.keys()]

    def draw(self, results: Results, picture: Any) -> None:
        picture.set_figheight(1.6 * picture.get_figheight())
        *values, last = picture.subplots(2, 2).flat
        self.draw_values(results, values)
        ratios = {variant.name: self._before(results, key) for key, variant in self.VARIANTS.items()}
        _draw_shares(last, ratios, "time before / after (Figure 5)")
        last.axvline(1, color="grey", linewidth=0.8)
        last.set_xscale("log")
        last.minorticks_off()
        last.set_xticks(ticks := (0.2, 0.5, 1, 2), ticks)


class AckBytes(_Heterogeneous):
    key = "spaces-6"
    title = "Figure 6: bytes of acknowledgements"
    setting = "Of the cells of Figure 3. The paper: fewer with many spaces."
    VARIANTS = Original.VARIANTS

    def cell(self, name: str, at: tuple[float, ...], variant: str) -> Cell:
        return Original(self.scale).cell(name, at, variant)

    def cells(self) -> Sequence[Cell]:
        return [self.cell(name, at, variant) for name, at in self.points for variant in ("many", "one32")]

    def table(self, results: Results) -> Table:
        rows = []
        for key in ("many", "one32"):
            found = list(self.by_point(results, key, "ack kB").values())
            low, high = (min(found), max(found)) if found else (None, None)
            row = self.VARIANTS[key].row
            rows.append([row, number(median(found), " kB"), f"{number(low)} to {number(high)}"])
        return Table(("", "median", "least to most, kB"), rows)

    def targets(self, results: Results) -> Sequence[Target]:
        ratios = self.ratios(results, "many", "one32", "ack kB")
        fewer = sum(ratio < 1 for ratio in ratios) / len(ratios) if ratios else None
        what = f"share of the points where many spaces need fewer bytes of ACKs than one, {MANY.name}"
        return [Target(what, fewer, 0.9, at_least=True, part=self.part(results, "many", "one32"))]

    def draw(self, results: Results, picture: Any) -> None:
        axes = picture.subplots()
        found = {key: self.by_point(results, key, "ack kB").values() for key in ("many", "one32")}
        lines = {self.VARIANTS[key].name: values for key, values in found.items()}
        _draw_shares(axes, lines, "kB of acknowledgements")


class ThreePaths(_Table):
    key = "spaces-7"
    title = "Figure 7 and Table 3: three unequal paths"
    setting = (
        "50 MB, 100 Mbit/s and 300 ms in all, weights of 0.1 to 0.9; lowest ranges first, acknowledgements on all "
        "paths. The paper: nearly all runs with one space hit the limit in 30 % of the ACKs, many spaces are clearly "
        "faster. " + BY_TIME + SETTING
    )
    why_short = (
        "the target is what the paper says (3.3, Figure 7b), and as in Figure 4 the number of ranges depends on how "
        "often one acknowledges."
    )
    dimensions = 6
    VARIANTS = Fixed.VARIANTS

    def routes(self, at: tuple[float, ...]) -> tuple[Route, ...]:
        return three_paths(at)

    def targets(self, results: Results) -> Sequence[Target]:
        ratios = self.ratios(results, "one32", "many")
        faster = sum(ratio > 1 for ratio in ratios) / len(ratios) if ratios else None
        often = self.share(results, "one32", "full", 0.30)
        both, one = self.part(results, "many", "one32"), self.part(results, "one32")
        what = "three paths: share of the points where"
        return [
            Target(f"{what} many spaces are faster than one, {MANY.name}", faster, 0.9, at_least=True, part=both),
            Target(f"{what} 30 % of the ACKs hit 32 blocks, {ONE.name}", often, 0.9, at_least=True, part=one),
        ]
