"""Figures that compare parties on the testbed: several runs of each in turn, of which medians are shown."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

from benchmarks.mpquic.cells import Cell, Results
from benchmarks.mpquic.figures import NOT_RUN, Figure, Table, median, number

__all__ = ["Compared", "Value"]


class Value(NamedTuple):
    """One number of a cell."""

    cell: Cell
    name: str
    times: float = 1.0
    """To have it in the unit of the figure."""


class Compared(Figure):
    """Rows of parties, columns of what they do. The cells are those of the first run; further runs are other seeds."""

    runs: tuple[int, int]
    """Of a quick look, and in full."""
    unit: str
    logarithmic = False

    @abstractmethod
    def values(self) -> Mapping[str, Mapping[str, Value]]:
        """By row and column, all rows with the same columns."""

    @cached_property
    def shown(self) -> Mapping[str, Mapping[str, Value]]:
        return self.values()

    @property
    def seeds(self) -> range:
        return range(1, self.runs[0 if self.quick else 1] + 1)

    def cells(self) -> Sequence[Cell]:
        """Run by run, so that parties take turns."""
        first = dict.fromkeys(value.cell for row in self.shown.values() for value in row.values())
        return [replace(cell, seed=seed) for seed in self.seeds for cell in first]

    def found(self, results: Results, row: str, column: str) -> list[float]:
        """Of the runs there are."""
        cell, name, times = self.shown[row][column]
        return [times * each for each in results.values((replace(cell, seed=s) for s in self.seeds), name)]

    def middle(self, results: Results, row: str, column: str) -> float | None:
        return median(self.found(results, row, column))

    def ratio(self, results: Results, one: tuple[str, str], other: tuple[str, str]) -> float | None:
        """Of two medians, each of a row and a column."""
        above, below = self.middle(results, *one), self.middle(results, *other)
        return above / below if above is not None and below else None

    @property
    def columns(self) -> Sequence[str]:
        return list(next(iter(self.shown.values())))

    def table(self, results: Results) -> Table:
        rows = [[row, *(_spread(self.found(results, row, each)) for each in self.columns)] for row in self.shown]
        return Table((f"{self.unit}: median (least to most)", *self.columns), rows)

    def draw(self, results: Results, picture: Any) -> None:
        axes = picture.subplots()
        width = 0.8 / len(self.shown)
        for index, row in enumerate(self.shown):
            known = {at: each for at, column in enumerate(self.columns) if (each := self.found(results, row, column))}
            middles = [median(each) or 0.0 for each in known.values()]
            around = [
                [middle - min(each) for middle, each in zip(middles, known.values(), strict=True)],
                [max(each) - middle for middle, each in zip(middles, known.values(), strict=True)],
            ]
            places = [at + width * (index + 0.5) - 0.4 for at in known]
            if known:
                errors: dict[str, Any] = {"yerr": around, "error_kw": {"linewidth": 0.8}}
                axes.bar(places, middles, 0.9 * width, color=f"C{index}", label=row, **errors)
        axes.set_xticks(range(len(self.columns)), [each.replace(", ", ",\n") for each in self.columns], fontsize=7)
        axes.set_ylabel(self.unit)
        if self.logarithmic:
            axes.set_yscale("log")
        axes.margins(y=0.08 * len(self.shown))  # for the legend


def _spread(found: Sequence[float]) -> str:
    middle = median(found)
    if middle is None:
        return NOT_RUN
    return f"{number(middle)} ({number(min(found))} to {number(max(found))})" if len(found) > 1 else number(middle)
