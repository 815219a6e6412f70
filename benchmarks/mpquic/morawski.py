"""Morawski and Karbowanczyk: queues that fill, efficiency as it goes on, and bursts beside bulk."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any, ClassVar

from benchmarks.mpquic.cells import ENGINES, NAMES, TESTBED, Cell, Results, Setup
from benchmarks.mpquic.compared import Compared, Value
from benchmarks.mpquic.efficiency import running
from benchmarks.mpquic.figures import Figure, Paper, Scale, Table, Target, number
from benchmarks.mpquic.plays import BURST_INTERVAL, SAMPLE, Sending
from benchmarks.mpquic.testbed import Party, Rate
from multi.lab.engines.links import MBIT, DatagramLinkSpec

__all__ = ["paper"]

DSL = DatagramLinkSpec(7.5 * MBIT, 0.0185, 220_000)
LTE = DatagramLinkSpec(10 * MBIT, 0.043, 400_000)
PRIMARY, SECONDARY = (DSL, DSL), (LTE, LTE)
LOSS = 0.0002  # of datagrams, where runs are to differ
UNBOUND = (("queue_most_ms", 0),)
SETTING = "The client sends; DSL 7.5 Mbit/s, 37 ms, 220 kB of queue; LTE 10 Mbit/s, 86 ms, 400 kB."
SETTLED = 2.0  # seconds that do not count


def paper(scale: Scale) -> Paper:
    return Paper(
        "Multipath QUIC - Directions of the Improvements",
        "M. Morawski, M. Karbowanczyk, Lodz University of Technology; on public DSL and LTE networks, 30 runs",
        (
            Queues(scale),
            QueuesOnTestbed(scale),
            Efficiency(scale),
            EfficiencyOnTestbed(scale),
            Bursts(scale),
            OnePath(scale),
        ),
    )


class _Rows(Figure):
    """Each row of its table is a cell."""

    @abstractmethod
    def _rows(self) -> dict[str, Cell]:
        """By their names."""

    def cells(self) -> Sequence[Cell]:
        return list(self._rows().values())

    def _times(self, results: Results, cell: Cell, *which: str) -> list[str]:
        """These values, in milliseconds."""
        values = (results.value(cell, each) for each in which)
        return [number(value and value * 1000) for value in values]


class Queues(_Rows):
    key = "morawski-4"
    title = "Figure 4: one path, and what stands in its queue"
    setting = (
        SETTING + " Over DSL alone, Cubic against OLIA, and both with the bound of 15 ms that is the default here. The "
        "paper: Cubic's delay is five to six times OLIA's; 35 to 220 ms at a constant 7.5 Mbit/s with OLIA."
    )

    why_short = (
        "OLIA is Reno on a single path, by its definition, and fills a queue of 220 kB as Cubic does: without a "
        "bound the ratio cannot be another, and with it neither fills the queue."
    )

    def _rows(self) -> dict[str, Cell]:
        play = Sending((PRIMARY,), 8.0 if self.quick else 20.0)
        rows = {}
        for engine in ("aioquic", "noq"):
            for control in ("cubic", "olia"):
                for bound, settings in (("no bound", UNBOUND), ("15 ms", ())):
                    setup = Setup(engine, control, settings)
                    rows[f"{setup.name}, {bound}"] = Cell(self.key, f"{bound}, {play.seconds:g} s", play, setup)
        return rows

    def table(self, results: Results) -> Table:
        rows = []
        for name, cell in self._rows().items():
            times = self._times(results, cell, "least rtt", "middle rtt", "largest rtt")
            rows.append([name, number(results.value(cell, "mbps")), *times])
        return Table(("", "Mbit/s", "least round trip, ms", "median", "largest"), rows)

    def targets(self, results: Results) -> Sequence[Target]:
        rows, found = self._rows(), []
        for engine in NAMES:
            cubic, olia = (Setup(engine, control).name for control in ("cubic", "olia"))
            free, bound, coupled = (rows[f"{cubic}, no bound"], rows[f"{cubic}, 15 ms"], rows[f"{olia}, no bound"])
            cubic_rtt, olia_rtt = (results.value(cell, "largest rtt") for cell in (free, coupled))
            ratio = cubic_rtt / olia_rtt if cubic_rtt and olia_rtt else None
            what = f"Cubic's largest round trip / OLIA's, {NAMES[engine]}"
            found.append(Target(what, ratio, 3.0, at_least=True, unit=" times"))
            middle, least = (results.value(bound, f"{which} rtt") for which in ("middle", "least"))
            more = 1000 * (middle - least) if middle and least else None
            found.append(Target(f"what stands in the queue with the bound, median, {cubic}", more, 20.0, unit=" ms"))
            with_bound, without = (results.value(cell, "mbps") for cell in (bound, free))
            share = with_bound / without if with_bound and without else None
            found.append(Target(f"rate with the bound / without, {cubic}", share, 0.97, at_least=True, unit=" times"))
        return found

    def draw(self, results: Results, picture: Any) -> None:
        axes = picture.subplots()
        for name, cell in self._rows().items():
            outcome = results.of(cell)
            if outcome is not None and cell.setup.engine == "aioquic":
                rtts = outcome.series["rtt 0"]
                times = [SAMPLE * (at + 1) for at in range(len(rtts))]
                axes.plot(times, [1000 * rtt for rtt in rtts], label=name)
        axes.set_xlabel("seconds")
        axes.set_ylabel("smoothed round trip, ms")
        axes.set_ylim(bottom=0)


class QueuesOnTestbed(Compared):
    key = "morawski-4" + TESTBED
    title = "Figure 4 on the testbed"
    setting = (
        "A session of `multi` sends over DSL alone for 10 s; what the link itself says of its queue, twice a second "
        "from 2 s on. A round trip is 37 ms longer."
    )
    why_short = Queues.why_short
    runs = (1, 3)
    unit = "Mbit/s, and ms of queue"

    def _row(self, control: str, bound: str) -> str:
        return f"{Party('mpquic', Setup('aioquic', control), (0,))}, {bound}"

    def values(self) -> Mapping[str, Mapping[str, Value]]:
        found, seconds = {}, 4.0 if self.quick else 10.0
        for control in ("cubic", "olia"):
            for bound, settings in (("no bound", UNBOUND), ("15 ms", ())):
                party = Party("mpquic", Setup("aioquic", control, settings), (0,))
                cell = party.cell(self.key, f"{bound}, {seconds:g} s", Rate(routes=(PRIMARY,), seconds=seconds))
                found[self._row(control, bound)] = {
                    "Mbit/s": Value(cell, "mbps 0"),
                    "median queue": Value(cell, "queue", 1000.0),
                    "longest queue": Value(cell, "longest queue", 1000.0),
                }
        return found

    def targets(self, results: Results) -> Sequence[Target]:
        cubic, olia, bound = (
            self._row(*each) for each in (("cubic", "no bound"), ("olia", "no bound"), ("cubic", "15 ms"))
        )
        share = self.ratio(results, (bound, "Mbit/s"), (cubic, "Mbit/s"))
        queue = self.middle(results, bound, "median queue")
        longest = [self.middle(results, row, "longest queue") for row in (cubic, olia)]
        trips = [1000 * (PRIMARY[0].delay + PRIMARY[1].delay) + each for each in longest if each is not None]
        ratio = trips[0] / trips[1] if len(trips) == 2 else None
        name, engine = ENGINES[0].name, NAMES["aioquic"]
        return [
            Target(f"testbed: Cubic's longest round trip / OLIA's, {engine}", ratio, 3.0, at_least=True, unit=" times"),
            Target(f"testbed: what stands in the queue with the bound, median, {name}", queue, 20.0, unit=" ms"),
            Target(f"testbed: rate with the bound / without, {name}", share, 0.97, at_least=True, unit=" times"),
        ]


def _phi(together: Sequence[float], alone: Sequence[Sequence[float]]) -> list[float]:
    """Of rates each `SAMPLE` seconds, but for those that do not count."""
    length = min(len(together), *map(len, alone))
    first = int(SETTLED / SAMPLE)
    return running(together[first:length], [rates[first:length] for rates in alone]) if length > first else []


class Efficiency(Figure):
    key = "morawski-5"
    title = "Figures 5 and 7: efficiency φ(k) of one stream over both paths"
    setting = (
        SETTING + " Defaults, with 0.02 % of all datagrams lost; rates are means of ten runs, as in the paper's "
        "formula 2. The paper: near +1, after drops about +0.5, at times below 0. Beside it the first path loses "
        "everything for a second (Figure 7)."
    )

    @property
    def seconds(self) -> float:
        return 8.0 if self.quick else 20.0

    def _cells(self, setup: Setup, what: str) -> list[Cell]:
        one, two = ((replace(link, loss=LOSS),) * 2 for link in (DSL, LTE))
        silence = self.seconds / 2 if what == "loss burst" else None
        routes = {"DSL": (one,), "LTE": (two,)}.get(what, (one, two))
        play = Sending(routes, self.seconds, silence=silence)
        seeds = 1 if self.quick else 10
        row = f"{what}, {self.seconds:g} s"
        return [Cell(self.key, row, play, setup, seed) for seed in range(1, seeds + 1)]

    def cells(self) -> Sequence[Cell]:
        kinds = ("DSL", "LTE", "both", "loss burst")
        return [cell for setup in ENGINES for what in kinds for cell in self._cells(setup, what)]

    def _rates(self, results: Results, setup: Setup, what: str) -> list[float]:
        """Mbit/s of each sample, means of the runs there are."""
        found = [
            outcome.series["mbps"] for cell in self._cells(setup, what) if (outcome := results.of(cell)) is not None
        ]
        return [fmean(each) for each in zip(*found, strict=False)]

    def _phi(self, results: Results, setup: Setup, what: str) -> list[float]:
        alone = [self._rates(results, setup, path) for path in ("DSL", "LTE")]
        return _phi(self._rates(results, setup, what), alone)

    def table(self, results: Results) -> Table:
        rows = []
        for setup in ENGINES:
            for what in ("both", "loss burst"):
                phi = self._phi(results, setup, what)
                middle, least = (number(fmean(phi)), number(min(phi))) if phi else (number(None), number(None))
                rates = self._rates(results, setup, what)[int(SETTLED / SAMPLE) :]
                rows.append([f"{setup.name}, {what}", number(fmean(rates) if rates else None), middle, least])
        return Table(("", "Mbit/s", "φ, mean", "φ, least"), rows)

    def targets(self, results: Results) -> Sequence[Target]:
        found = []
        for setup in ENGINES:
            name, phi = setup.name, self._phi(results, setup, "both")
            found += [
                Target(f"φ over DSL and LTE, mean, {name}", fmean(phi) if phi else None, 0.9, at_least=True),
                Target(f"φ over DSL and LTE, least, {name}", min(phi) if phi else None, 0.9, at_least=True),
            ]
            after = self._phi(results, setup, "loss burst")
            back = after[int((self.seconds / 2 + 1 + 2 - SETTLED) / SAMPLE) :]
            what = f"φ two seconds after the first path was silent for one, mean, {name}"
            found.append(Target(what, fmean(back) if back else None, 0.95, at_least=True))
        return found

    def draw(self, results: Results, picture: Any) -> None:
        shown = [(setup, what) for setup in ENGINES for what in ("both", "loss burst")]
        lines = {f"{setup.name}, {what}": self._phi(results, setup, what) for setup, what in shown}
        _draw_phi(picture, lines)


class EfficiencyOnTestbed(Figure):
    key = "morawski-5" + TESTBED
    title = "Figure 5 on the testbed"
    setting = (
        "DSL alone, LTE alone and both, as many links of each as that takes, at the same time in the same two "
        "processes; 0.02 % of all packets lost at random, up to 4 ms of jitter. Means of 30 runs, as in the paper."
    )
    JITTER = 0.004  # seconds

    def _cells(self, setup: Setup) -> list[Cell]:
        dsl, lte = ((replace(link, loss=LOSS, jitter=self.JITTER),) * 2 for link in (DSL, LTE))
        play = Rate(routes=(dsl, lte, dsl, lte), seconds=5.0 if self.quick else 7.0, groups=((0,), (1,), (2, 3)))
        cell = Party("mpquic", setup).cell(self.key, f"{play.seconds:g} s", play)
        return [replace(cell, seed=seed) for seed in range(1, (1 if self.quick else 30) + 1)]

    def cells(self) -> Sequence[Cell]:
        return [cell for turn in zip(*map(self._cells, ENGINES), strict=True) for cell in turn]

    def _rates(self, results: Results, setup: Setup) -> list[list[float]]:
        """Mbit/s of each sample, means of the runs there are: over DSL, LTE and both."""
        found = [outcome.series for cell in self._cells(setup) if (outcome := results.of(cell)) is not None]
        return [
            [fmean(each) for each in zip(*(series[f"mbps {group}"] for series in found), strict=True)]
            for group in range(3)
        ]

    def _phi(self, results: Results, setup: Setup) -> list[float]:
        *alone, together = self._rates(results, setup)
        return _phi(together, alone)

    def table(self, results: Results) -> Table:
        rows = []
        for setup in ENGINES:
            first = int(SETTLED / SAMPLE)
            rates = [number(fmean(each[first:]) if each else None) for each in self._rates(results, setup)]
            phi = self._phi(results, setup)
            runs = sum(results.of(cell) is not None for cell in self._cells(setup))
            shown = [number(fmean(phi)), number(min(phi))] if phi else [number(None)] * 2
            rows.append([str(Party("mpquic", setup)), *rates, *shown, str(runs)])
        return Table(("", "DSL, Mbit/s", "LTE", "both", "φ, mean", "φ, least", "runs"), rows)

    def targets(self, results: Results) -> Sequence[Target]:
        found = []
        for setup in ENGINES:
            phi, name = self._phi(results, setup), setup.name
            found += [
                Target(f"testbed: φ over DSL and LTE, mean, {name}", fmean(phi) if phi else None, 0.9, at_least=True),
                Target(f"testbed: φ over DSL and LTE, least, {name}", min(phi) if phi else None, 0.9, at_least=True),
            ]
        return found

    def draw(self, results: Results, picture: Any) -> None:
        _draw_phi(picture, {setup.name: self._phi(results, setup) for setup in ENGINES})


def _draw_phi(picture: Any, lines: Mapping[str, Sequence[float]]) -> None:
    axes = picture.subplots()
    for label, phi in lines.items():
        if phi:
            axes.plot([SETTLED + SAMPLE * (at + 1) for at in range(len(phi))], phi, label=label)
    axes.axhline(0, color="grey", linewidth=0.8)
    axes.set_xlabel("seconds")
    axes.set_ylabel("φ(k)")
    axes.set_ylim(-1.05, 1.4)


class Bursts(_Rows):
    key = "morawski-6"
    title = "Figure 6: bursts of 10 kB each tenth of a second beside bulk"
    setting = (
        SETTING
        + " One bulk stream stands for the paper's three, for QUIC has three here (docs/wire-format.md). The paper's "
        "rows are bulk alone (i), bursts in turn with it (ii) and bursts first (iii), with a path scheduler that takes "
        "the lowest round trip with room for any stream; bursts are served first by an aioquic that is changed for it. "
        "By default streams take turns here, and each is asked about by itself: what is little waits for a near path. "
        "The paper: with full buffers the priority of the bursts changes nothing."
    )
    ALONE, TURN, FIRST = "bulk alone", "in turn, lowest round trip", "first, lowest round trip"
    DEFAULT, BOTH = "in turn, path by stream", "first, path by stream"
    LOWEST = ("scheduler", "lowest_latency")
    BOUNDS: ClassVar = {"no bound": UNBOUND, "15 ms": ()}

    def _variants(self) -> list[tuple[str, Setup]]:
        found = []
        for own in ENGINES:
            lowest = replace(own, settings=(self.LOWEST,))
            found += [(self.ALONE, own), (self.TURN, lowest), (self.DEFAULT, own)]
            if own.engine == "aioquic":
                found += [
                    (self.FIRST, replace(lowest, urgent_first=True)),
                    (self.BOTH, replace(own, urgent_first=True)),
                ]
        if self.quick:
            wanted = {(engine, self.DEFAULT) for engine in NAMES} | {("aioquic", self.TURN), ("aioquic", self.FIRST)}
            return [each for each in found if (each[1].engine, each[0]) in wanted]
        return [*found, (self.DEFAULT, Setup("noq", "bbr"))]

    def _row(self, setup: Setup, what: str, bound: str) -> str:
        return f"{setup.name}: {what}, {bound}"

    def _rows(self) -> dict[str, Cell]:
        seconds = 4.0 if self.quick else 15.0
        rows = {}
        for bound, unbound in self.BOUNDS.items():
            for what, variant in self._variants():
                setup = replace(variant, settings=(*unbound, *variant.settings))
                play = Sending((PRIMARY, SECONDARY), seconds, bursts=what != self.ALONE)
                named = "" if what == self.DEFAULT else f"{what}, "
                cell = Cell(self.key, f"{named}{bound}, {seconds:g} s", play, setup)
                rows[self._row(setup, what, bound)] = cell
        return rows

    def table(self, results: Results) -> Table:
        rows = []
        for name, cell in self._rows().items():
            assert isinstance(cell.play, Sending)
            told = self._times(results, cell, "median", "worst") if cell.play.bursts else "--"
            rows.append([name, number(self._rate(results, cell)), *told])
        return Table(("", "Mbit/s in all", "burst: median, ms", "worst"), rows)

    @staticmethod
    def _rate(results: Results, cell: Cell) -> float | None:
        """Mbit/s from the first byte on: after losses at the start what had come before is handed on later."""
        outcome = results.of(cell)
        return fmean(outcome.series["mbps"]) if outcome is not None else None

    def targets(self, results: Results) -> Sequence[Target]:
        rows, found = self._rows(), []
        for setup in ENGINES:
            name = setup.name
            bound, free = (rows[self._row(setup, self.DEFAULT, each)] for each in ("15 ms", "no bound"))
            delay = results.value(bound, "median")
            found.append(Target(f"bursts, median, {name}", delay and delay * 1000, 60.0, unit=" ms"))
            ours, without = (self._rate(results, cell) for cell in (bound, free))
            share = ours / without if ours and without else None
            found.append(
                Target(f"rate beside bursts / without the bound, {name}", share, 0.97, at_least=True, unit=" times")
            )
        return found

    def draw(self, results: Results, picture: Any) -> None:
        rows = self._rows()
        for axes, bound in zip(picture.subplots(1, 2, sharey=True), self.BOUNDS, strict=True):
            for what, setup in self._variants():
                outcome = results.of(rows[self._row(setup, what, bound)])
                if outcome is not None and what != self.ALONE:
                    delays = sorted(1000 * delay for delay in outcome.series["delays"])
                    shares = [(at + 1) / len(delays) for at in range(len(delays))]
                    label = f"{setup.name}: {what}" if bound == "no bound" else None
                    axes.step(delays, shares, where="post", label=label)
            axes.set_xlabel(f"delay of a burst, ms, {bound}")
            axes.set_ylim(0, 1.05)


class OnePath(_Rows):
    key = "morawski-7"
    title = "Figure 7, below: over which path bursts go"
    setting = (
        "Bulk and bursts as in Figure 6, with what is the default here, and with the paper's schedulers. The server is "
        "aioquic's in all rows: the native engine does not tell which path a stream has taken. Shares are of packets "
        "with anything of a burst, on the path that has most of them. The paper: bursts go now over one path and now "
        "over the other, and their delay with them."
    )
    LEAST = 0.95

    def _rows(self) -> dict[str, Cell]:
        play = Sending((PRIMARY, SECONDARY), 4.0 if self.quick else 15.0, bursts=True, heard=True)
        variants = (("default", ()), ("lowest round trip, no bound", (*UNBOUND, Bursts.LOWEST)))
        rows = {}
        for setup in ENGINES:
            for what, settings in variants[: 1 if self.quick else None]:
                cell = Cell(self.key, f"{what}, {play.seconds:g} s", play, replace(setup, settings=settings))
                rows[f"{setup.name}: {what}"] = cell
        return rows

    def table(self, results: Results) -> Table:
        rows = []
        for name, cell in self._rows().items():
            share = results.value(cell, "one path")
            rows.append([name, number(share and 100 * share, " %"), *self._times(results, cell, "median", "worst")])
        return Table(("", "on one path", "burst: median, ms", "worst"), rows)

    def targets(self, results: Results) -> Sequence[Target]:
        rows = self._rows()
        return [
            Target(
                f"share of the bursts' packets on one path, {setup.name}",
                results.value(rows[f"{setup.name}: default"], "one path"),
                self.LEAST,
                at_least=True,
            )
            for setup in ENGINES
        ]

    def draw(self, results: Results, picture: Any) -> None:
        axes = picture.subplots()
        for name, cell in self._rows().items():
            outcome = results.of(cell)
            if outcome is not None:
                delays = outcome.series["delays"]
                begun = [SETTLED + BURST_INTERVAL * at for at in range(len(delays))]
                axes.plot(begun, [1000 * delay for delay in delays], label=name)
        axes.set_xlabel("seconds")
        axes.set_ylabel("delay of a burst, ms")
        axes.set_ylim(bottom=0)
