"""What two paths through one bottleneck leave to others: no figure of the four papers, but a promise beside them."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.mpquic.cells import Cell, Results, Setup, route
from benchmarks.mpquic.figures import Figure, Paper, Scale, Table, Target, median, number
from benchmarks.mpquic.plays import Beside

__all__ = ["paper"]

UNBOUND = (("queue_most_ms", 0),)
NAMES = {"aioquic": "aioquic", "noq": "native"}
COUPLED = ("lia", "olia")


def paper(scale: Scale) -> Paper:
    return Paper(
        "Beside the papers: fairness",
        "C. Raiciu, M. Handley, D. Wischik, RFC 6356, 2011; R. Khalili et al., draft-khalili-mptcp-congestion-control",
        (Share(scale),),
    )


class Share(Figure):
    key = "fairness"
    title = "Two paths through one bottleneck, beside a flow with Reno"
    setting = (
        "10 Mbit/s and 44 ms, a queue of 1.5 bandwidth-delay products for all; congestion control alone, without a "
        "bound of queues. One would be fair at 0.5, two that know nothing of each other take 0.67."
    )

    def _cells(self, engine: str, control: str) -> list[Cell]:
        play = Beside(route(10, 0.044), 5.0 if self.quick else 20.0)
        seeds = range(1, 2 if self.quick else 4)
        setup = Setup(engine, control, UNBOUND)
        return [Cell(self.key, f"{play.seconds:g} s", play, setup, seed) for seed in seeds]

    def cells(self) -> Sequence[Cell]:
        return [cell for engine in NAMES for control in (*COUPLED, "reno") for cell in self._cells(engine, control)]

    def _share(self, results: Results, engine: str, control: str) -> float | None:
        return median(results.values(self._cells(engine, control), "share"))

    def table(self, results: Results) -> Table:
        rows = [
            [control, *(number(self._share(results, engine, control)) for engine in NAMES)]
            for control in (*COUPLED, "reno")
        ]
        return Table(("congestion control", *NAMES.values()), rows)

    def targets(self, results: Results) -> Sequence[Target]:
        return [
            Target(f"share of two paths beside a flow, {control}, {name}", self._share(results, engine, control), 0.55)
            for engine, name in NAMES.items()
            for control in COUPLED
        ]
