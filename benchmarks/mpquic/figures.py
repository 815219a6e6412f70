"""Figures and tables of the papers: their cells, what is shown of them, and what they have to come to."""

from __future__ import annotations

import statistics
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from benchmarks.mpquic.cells import Cell, Results

__all__ = ["NOT_RUN", "Figure", "Paper", "Scale", "Table", "Target", "median", "number"]

NOT_RUN = "not run"


class Scale(Enum):
    """How much of it."""

    QUICK = "quick"
    """A look, in some minutes."""
    FULL = "full"


class Table(NamedTuple):
    """Of Markdown; values that are None were not run."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class Target:
    """What a figure has to come to."""

    what: str
    measured: float | None
    """None: it was not run, or not all of it that this needs."""
    bound: float
    at_least: bool = False
    """Else at most."""
    unit: str = ""
    part: str = ""
    """Of what was run, where that is not all of it."""

    @property
    def verdict(self) -> str:
        if self.measured is None:
            return NOT_RUN
        verdict = f"**short by {number(self.short)}{self.unit}**" if self.short > 0 else "held"
        return f"{verdict}, {self.part} so far" if self.part else verdict

    @property
    def short(self) -> float:
        """By how much it is missed, 0 where it is held or was not run."""
        if self.measured is None:
            return 0.0
        return max(0.0, self.bound - self.measured if self.at_least else self.measured - self.bound)

    @property
    def promise(self) -> str:
        return f"at {'least' if self.at_least else 'most'} {self.bound:g}{self.unit}"


class Figure(ABC):
    """One figure or table."""

    key: str
    """Such as `viernickel-8`; the beginning of its cells' keys and the name of its picture."""
    title: str
    setting: str
    """What is done, in Markdown, and how it differs from the paper."""
    why_short = ""
    """Why targets are missed where they are, as far as it was looked into."""

    def __init__(self, scale: Scale) -> None:
        self.scale = scale

    @property
    def quick(self) -> bool:
        return self.scale is Scale.QUICK

    @abstractmethod
    def cells(self) -> Sequence[Cell]:
        """In the order in which they are run."""

    @abstractmethod
    def table(self, results: Results) -> Table:
        """Our numbers beside the paper's."""

    def targets(self, results: Results) -> Sequence[Target]:
        return ()

    def draw(self, results: Results, picture: Any) -> None:  # noqa: B027 - not every table has a picture
        """On matplotlib's figure; nothing where there is no picture."""


class Paper(NamedTuple):
    """Its figures in its order."""

    title: str
    source: str
    figures: Sequence[Figure]


def number(value: float | None, unit: str = "") -> str:
    """With three digits that count."""
    if value is None:
        return NOT_RUN
    if not value:
        return f"0{unit}"
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2 if abs(value) >= 1 else 3
    return f"{value:.{digits}f}{unit}"


def median(values: Sequence[float]) -> float | None:
    """None of nothing."""
    return statistics.median(values) if values else None
