"""De Coninck and Bonaventure: uniflows, where the way back of a path is much worse than the way there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from random import Random
from typing import Any, ClassVar

from benchmarks.mpquic.cells import TESTBED, Cell, Results, Route, Setup, route
from benchmarks.mpquic.compared import Compared, Value
from benchmarks.mpquic.figures import Figure, Paper, Scale, Table, Target, median, number
from benchmarks.mpquic.plays import Download
from benchmarks.mpquic.testbed import KERNEL, Fetch, Party
from benchmarks.spread import spread

__all__ = ["paper"]

MEGABYTE = 1_000_000
FIRST = route(10, 0.020)
SECOND = route(50, 0.020, up=0.01, delay_up=1.0)
SAME = Setup(settings=(("ack_path", "same"),))
BEST = Setup()
UNIFLOWS = Setup(settings=(("private_modes", ("uniflows",)),))
SCENARIOS = 139
RATES = (0.1, 100.0)  # Mbit/s, and
DELAYS = (0.001, 0.300)  # seconds one way: of each direction of each path; the paper gives its ranges in a picture


def paper(scale: Scale) -> Paper:
    return Paper(
        "Multiflow QUIC: a generic multipath transport protocol",
        "Q. De Coninck, O. Bonaventure, IEEE Communications Magazine 59(5), 2021",
        (Asymmetric(scale), AsymmetricOnTestbed(scale), SpeedUps(scale), Ratios(scale)),
    )


def _row(what: str, setup: Setup) -> str:
    return f"{what}: {setup.name}"


class Asymmetric(Figure):
    key = "multiflow-4"
    title = "Figure 4: the second path comes back at 10 kbit/s"
    setting = (
        "10 MB; first path 10 Mbit/s and 20 ms, second 50 Mbit/s and 10 ms down, 0.01 Mbit/s and 1 s up. The paper's "
        "MPQUIC acknowledges on the path of the packets; the default here is the best one. Fifteen runs there, one "
        "here: nothing is random in virtual time."
    )
    why_short = (
        "the client repeats its challenge until it is answered, each time 1,200 bytes that take a second of the 10 "
        "kbit/s; the server may use the path no earlier than the answer to its own has come behind them."
    )
    SIZE = 10 * MEGABYTE
    ONE, ON_BEST, MULTIFLOW = "one path", "RFC 10069, acknowledged on the best path", "uniflows"
    NATIVE = Setup("noq")

    def _rows(self) -> dict[str, tuple[Cell, str, str]]:
        """Cells with the paper's seconds and megabytes on the second path."""
        both = Download(self.SIZE, (FIRST, SECOND))
        one = Download(self.SIZE, (FIRST,))
        shown = (
            (self.ONE, "one", one, BEST, "about 8.5", "-"),
            ("RFC 10069, acknowledged on the same path", "same", both, SAME, "about 8.5", "0.09"),
            (self.ON_BEST, "best", both, BEST, "-", "-"),
            (self.MULTIFLOW, "uniflows", both, UNIFLOWS, "about 1.55", "8.4"),
            (self.ONE, "one", one, self.NATIVE, "-", "-"),
            ("RFC 10069", "same", both, self.NATIVE, "-", "-"),
        )
        return {
            _row(what, setup): (Cell(self.key, row, play, setup), seconds, second)
            for what, row, play, setup, seconds, second in shown
        }

    def cells(self) -> Sequence[Cell]:
        return [cell for cell, *_ in self._rows().values()]

    def table(self, results: Results) -> Table:
        rows = []
        for name, (cell, seconds, second) in self._rows().items():
            carried = results.value(cell, "bytes 1")
            ours = number(carried / 1e6) if carried is not None else "-"
            rows.append([name, seconds, number(results.value(cell, "seconds")), second, ours])
        return Table(("", "paper, s", "here, s", "paper: MB on the second path", "here"), rows)

    def targets(self, results: Results) -> Sequence[Target]:
        rows = self._rows()
        one, best, uniflows = (
            results.value(rows[_row(what, BEST)][0], "seconds") for what in (self.ONE, self.ON_BEST, self.MULTIFLOW)
        )
        gain = one / uniflows if one and uniflows else None
        return [
            Target(f"Figure 4, uniflows against one path, {BEST.name}", gain, 5.5, at_least=True, unit=" times"),
            Target(f"Figure 4, RFC 10069 with the best path, {BEST.name}", best, 6.0, unit=" s"),
        ]

    def draw(self, results: Results, picture: Any) -> None:
        axes = picture.subplots()
        shown = [(name, results.value(cell, "seconds")) for name, (cell, *_) in self._rows().items()]
        known = [(name, seconds) for name, seconds in shown if seconds is not None]
        axes.barh([name for name, _ in known], [seconds for _, seconds in known], color="#2f6db5")
        axes.invert_yaxis()
        axes.set_xlabel("seconds for 10 MB")


class AsymmetricOnTestbed(Compared):
    key = "multiflow-4" + TESTBED
    title = "Figure 4 on the testbed"
    setting = (
        "The same paths between real kernels: sessions of `multi`, and the kernel's TCP and MPTCP with TLS 1.3. From "
        "the opening of a connection to the last byte. Megabytes are those of all packets."
    )
    why_short = (
        "the beginning. In two runs the second path carried its 50 Mbit/s from 0.28 and 0.38 s on, in virtual time "
        "from 0.18: opening takes 20 ms more, which are processor time of both ends, and slow start takes longer. "
        "From then on it carries 46 to 50 here as there, and less while an end has no processor."
    )
    runs = (1, 3)
    unit = "seconds, and MB over path 2"
    ONE, BEST, UNIFLOWS = "one path", "acknowledged on the best path", "uniflows"

    def _parties(self) -> dict[str, Party]:
        judged = {
            self.ONE: Party("mpquic", BEST, (0,)),
            self.BEST: Party("mpquic", BEST),
            self.UNIFLOWS: Party("mpquic", UNIFLOWS),
        }
        others = {
            "TCP": Party("tcp", paths=(0,)),
            "MPTCP": Party("mptcp"),
            "acknowledged on the same path": Party("mpquic", SAME),
        }
        return judged if self.quick else {**others, **judged}

    def _row(self, name: str) -> str:
        party = self._parties()[name]
        return str(party) if party.setup == KERNEL else f"{party}, {name}"

    def values(self) -> Mapping[str, Mapping[str, Value]]:
        play = Fetch(routes=(FIRST, SECOND), jobs=(("seconds", (10 * MEGABYTE,)),))
        cells = {self._row(name): party.cell(self.key, name, play) for name, party in self._parties().items()}
        return {name: {"seconds": Value(cell, "seconds"), "MB": Value(cell, "MB 1")} for name, cell in cells.items()}

    def targets(self, results: Results) -> Sequence[Target]:
        one, best, uniflows = (self._row(name) for name in (self.ONE, self.BEST, self.UNIFLOWS))
        gain = self.ratio(results, (one, "seconds"), (uniflows, "seconds"))
        seconds = self.middle(results, best, "seconds")
        return [
            Target(
                f"testbed: Figure 4, uniflows against one path, {BEST.name}", gain, 5.5, at_least=True, unit=" times"
            ),
            Target(f"testbed: Figure 4, RFC 10069 with the best path, {BEST.name}", seconds, 6.0, unit=" s"),
        ]


@cache
def _scenarios() -> tuple[tuple[str, tuple[Route, Route]], ...]:
    """All 278, in an order of which any beginning is a sample of the whole."""
    found = []
    for index, at in enumerate(spread(8, SCENARIOS, seed=3, candidates=600), 1):
        one, two = _path(at[:4]), _path(at[4:])
        found += [(f"{index:03}a", (one, two)), (f"{index:03}b", (two, one))]
    Random(1).shuffle(found)
    return tuple(found)


def _path(at: Sequence[float]) -> Route:
    """Both rates and both delays, each spread evenly in its logarithm."""
    (slow, fast), (near, far) = RATES, DELAYS
    down, up = (slow * (fast / slow) ** x for x in at[:2])
    delay_down, delay_up = (near * (far / near) ** x for x in at[2:])
    return route(down, 2 * delay_down, up=up, delay_up=delay_up)


class _Scenarios(Figure):
    """Both figures that look at all scenarios."""

    VARIANTS: ClassVar = {"same": SAME, "best": BEST, "uniflows": UNIFLOWS}
    NAMES: ClassVar = {"same": "RFC 10069, same path", "best": "RFC 10069, best path", "uniflows": "uniflows"}

    @property
    def size(self) -> int:
        return (1 if self.quick else 10) * MEGABYTE

    @property
    def scenarios(self) -> Sequence[tuple[str, tuple[Route, Route]]]:
        return _scenarios()[: 12 if self.quick else None]

    def one(self, name: str, routes: tuple[Route, Route]) -> Cell:
        return Cell("multiflow-5", f"{name} one, {self.size // MEGABYTE} MB", Download(self.size, routes[:1]))

    def both(self, name: str, routes: tuple[Route, Route], variant: str) -> Cell:
        row = f"{name} {variant}, {self.size // MEGABYTE} MB"
        return Cell("multiflow-5", row, Download(self.size, routes), self.VARIANTS[variant])

    def cells(self) -> Sequence[Cell]:
        return [
            cell
            for name, routes in self.scenarios
            for cell in (self.one(name, routes), *(self.both(name, routes, variant) for variant in self.VARIANTS))
        ]

    def cell(self, name: str, routes: tuple[Route, Route], variant: str) -> Cell:
        """`one` is a variant too."""
        return self.one(name, routes) if variant == "one" else self.both(name, routes, variant)

    def part(self, count: int, most: int | None = None) -> str:
        """Says so where that are not all scenarios, or not the first `most` of them."""
        wanted = len(self.scenarios[:most])
        return f"{count} of {wanted} scenarios" if count < wanted else ""

    def times(self, results: Results, variant: str) -> dict[str, float]:
        """Seconds of each scenario that was run."""
        found = {}
        for name, routes in self.scenarios:
            seconds = results.value(self.cell(name, routes, variant), "seconds")
            if seconds is not None:
                found[name] = seconds
        return found


class SpeedUps(_Scenarios):
    key = "multiflow-5"
    title = "Figure 5: what a second path brings in 278 scenarios"
    setting = (
        "Rates from 0.1 to 100 Mbit/s and delays from 1 to 300 ms in each direction of each path, 139 points of a WSP "
        "design, each path once as the first one. The paper gives its ranges in a picture: these are ours. Speed-up: "
        "time over the first path alone / time over both - 1."
    )
    why_short = (
        "that share is ours. The paper (IV-B, Figure 6) says that uniflows are in general slightly faster, and gives "
        "no share: of that speaks the median of the ratios, which is 1.00, and our ranges are not its own. In three of "
        "eight scenarios both take the same time within 1 %. In a tenth uniflows are slower by more than 5 %, at the "
        "worst 5.3 s instead of 2.4 (113b). What is told of a way is its whole round trip, and by that the path of "
        "acknowledgements is chosen."
    )
    SAID: ClassVar = {"same": "73 % (MPQUIC), 75 % (MPTCP)", "best": "-", "uniflows": "83.5 %"}
    BOUNDS: ClassVar = {"same": 73.0, "uniflows": 83.5}
    AHEAD = 0.9

    def _speed_ups(self, results: Results, variant: str) -> dict[str, float]:
        one, both = self.times(results, "one"), self.times(results, variant)
        return {name: 100 * (one[name] / both[name] - 1) for name in one.keys() & both.keys()}

    def table(self, results: Results) -> Table:
        rows = []
        for variant, name in self.NAMES.items():
            row = _row(name, self.VARIANTS[variant])
            found = list(self._speed_ups(results, variant).values())
            slower = sum(each < 0 for each in found)
            counted = f"{len(found)} of {len(self.scenarios)}"
            rows.append([row, self.SAID[variant], number(median(found), " %"), counted, str(slower) if found else "-"])
        return Table(("", "paper: median", "here: median", "scenarios", "slower than one path"), rows)

    def targets(self, results: Results) -> Sequence[Target]:
        found = []
        for variant, bound in self.BOUNDS.items():
            speed_ups = list(self._speed_ups(results, variant).values())
            what = f"Figure 5, median speed-up, {_row(self.NAMES[variant], self.VARIANTS[variant])}"
            part = self.part(len(speed_ups))
            found.append(Target(what, median(speed_ups), bound, at_least=True, unit=" %", part=part))
        same, uniflows = (self.times(results, variant) for variant in ("same", "uniflows"))
        ratios = [same[name] / uniflows[name] for name in same.keys() & uniflows.keys()]
        ahead = sum(ratio >= 1 for ratio in ratios) / len(ratios) if ratios else None
        part = self.part(len(ratios))
        what = f"Figure 6, time on the same path / with uniflows, median, {SAME.name}"
        found.append(Target(what, median(ratios), 1.0, at_least=True, unit=" times", part=part))
        what = f"Figure 5, share of the scenarios with uniflows at least as fast as the same path, {SAME.name}"
        found.append(Target(what, ahead, self.AHEAD, at_least=True, part=part))
        return found

    def draw(self, results: Results, picture: Any) -> None:
        axes = picture.subplots()
        for variant, name in self.NAMES.items():
            found = sorted(self._speed_ups(results, variant).values())
            if found:
                axes.step(found, [(at + 1) / len(found) for at in range(len(found))], where="post", label=name)
        axes.set_xscale("symlog", linthresh=100)
        axes.set_xlabel("speed-up, %")
        axes.set_ylabel("share of the scenarios")
        axes.set_ylim(0, 1)


class Ratios(_Scenarios):
    key = "multiflow-6"
    title = "Figure 6: ratios of times, scenario by scenario"
    setting = (
        "Over both paths, of the cells of Figure 5. The paper's other party is MPTCP; its single paths are equal, "
        "MFQUIC slightly ahead. Over the first path alone, in 60 scenarios chosen at random, there are the same engine "
        "with uniflows and the native one."
    )
    SINGLE: ClassVar = {"one uniflows": ("with uniflows", UNIFLOWS), "one native": (Setup("noq").name, Setup("noq"))}
    ALIKE = 0.03

    @property
    def alone(self) -> int:
        """Scenarios that are run over the first path alone."""
        return 6 if self.quick else 60

    def cell(self, name: str, routes: tuple[Route, Route], variant: str) -> Cell:
        if variant not in self.SINGLE:
            return super().cell(name, routes, variant)
        row = f"{name} {variant}, {self.size // MEGABYTE} MB"
        return Cell(self.key, row, Download(self.size, routes[:1]), self.SINGLE[variant][1])

    def cells(self) -> Sequence[Cell]:
        alone = self.scenarios[: self.alone]
        single = [self.cell(*scenario, variant) for scenario in alone for variant in self.SINGLE]
        return [*super().cells(), *single]

    def _ratios(self, results: Results, ours: str, other: str) -> list[float]:
        one, two = self.times(results, ours), self.times(results, other)
        return sorted(one[name] / two[name] for name in one.keys() & two.keys())

    def _rows(self, results: Results) -> dict[str, list[float]]:
        both = {
            _row(f"same path / {self.NAMES[to]}", SAME): self._ratios(results, "same", to)
            for to in ("best", "uniflows")
        }
        return both | {
            f"one path: {BEST.name} / {name}": self._ratios(results, "one", variant)
            for variant, (name, _) in self.SINGLE.items()
        }

    def table(self, results: Results) -> Table:
        rows = []
        for name, found in self._rows(results).items():
            ahead = sum(each >= 1 for each in found)
            middle = found[len(found) // 10 : -(len(found) // 10) or None]
            spread = f"{number(middle[0])} to {number(middle[-1])}" if middle else number(None)
            rows.append([name, number(median(found)), spread, f"{ahead} of {len(found)}"])
        return Table(("times", "median", "eight of ten", "at least 1"), rows)

    def targets(self, results: Results) -> Sequence[Target]:
        found = []
        for variant, (name, _) in self.SINGLE.items():
            ratios = self._ratios(results, "one", variant)
            apart = median([abs(ratio - 1) for ratio in ratios])
            what = f"Figure 6, one path: time with {BEST.name} / {name}, apart from 1, median"
            found.append(Target(what, apart, self.ALIKE, part=self.part(len(ratios), self.alone)))
        return found

    def draw(self, results: Results, picture: Any) -> None:
        axes = picture.subplots()
        for name, found in self._rows(results).items():
            if found:
                shares = [(at + 1) / len(found) for at in range(len(found))]
                axes.step(found, shares, "--" if name.startswith("one") else "-", where="post", label=name)
        axes.set_xscale("log")
        axes.set_xlabel("ratio of times")
        axes.set_ylabel("share of the scenarios")
        axes.set_ylim(0, 1)
