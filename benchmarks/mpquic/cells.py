"""What is measured: cells, each one run of one row of one figure, and what comes out of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from multi.lab.engines.links import DatagramLinkSpec, link_of

__all__ = ["ENGINES", "NAMES", "TESTBED", "Cell", "Outcome", "Results", "Route", "Setup", "route"]

Route = tuple[DatagramLinkSpec, DatagramLinkSpec]
"""A path: what the client sends over, and what the server sends over."""


def route(
    down: float, round_trip: float, *, up: float | None = None, delay_up: float | None = None, queue: float = 1.5
) -> Route:
    """A path of so many Mbit/s and seconds there and back; `up` and `delay_up` (seconds, one way) where it differs.

    Queues hold 1.5 bandwidth-delay products unless said otherwise, and two packets.
    """
    backward = link_of(down, round_trip, queue)
    if up is None and delay_up is None:
        return backward, backward
    forward = link_of(up or down, 2 * (delay_up if delay_up is not None else round_trip / 2), queue)
    return forward, backward


@dataclass(frozen=True, slots=True)
class Setup:
    """The two ends."""

    engine: str = "aioquic"
    congestion: str = "cubic"
    settings: tuple[tuple[str, Any], ...] = ()
    """Of `mpquic_config`, besides; empty: the defaults."""
    ack_blocks: int | None = None
    """Additional ACK Blocks in an acknowledgement at most, 0 = as many as fit; with an engine that counts them."""
    ack_order: str = "newest"
    """Which of them are told: `newest` first or `lowest` first."""
    lost_by_time: bool = False
    """Only time tells that a packet is lost, not how many later ones have arrived; with an engine that counts."""
    urgent_first: bool = False
    """The stream of what is urgent is served before all others, not in its turn; with aioquic."""

    def __str__(self) -> str:
        return f"{self.engine}-{self.congestion}"

    @property
    def name(self) -> str:
        """As it is shown, such as `native, Cubic`; keys of cells have `str`."""
        engine, congestion = NAMES.get(self.engine, self.engine), self.congestion
        return f"{engine}, {CONTROLS.get(congestion, congestion.upper())}"


ENGINES = (Setup("aioquic"), Setup("noq"))
NAMES = {"aioquic": "aioquic", "noq": "native"}
CONTROLS = {"cubic": "Cubic", "reno": "Reno"}
TESTBED = "-testbed"
"""Ends the names of figures whose cells are run between real kernels; all others are in virtual time."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Numbers without judgement."""

    values: dict[str, float] = field(default_factory=dict)
    series: dict[str, list[float]] = field(default_factory=dict)


class Play(Protocol):
    """What happens in a run."""

    def run(self, setup: Setup, seed: int) -> Outcome: ...


@dataclass(frozen=True, slots=True)
class Cell:
    """One run."""

    figure: str
    """Such as `viernickel-8`, or `viernickel-8-testbed`."""
    row: str
    play: Play
    setup: Setup = Setup()
    seed: int = 1

    @property
    def key(self) -> str:
        """Names the cell for ever: what is stored under it is not measured again."""
        return f"{self.figure}/{self.row}/{self.setup}/{self.seed}"

    @property
    def on_testbed(self) -> bool:
        return self.figure.endswith(TESTBED)


class Results:
    """What has been measured, by the keys of cells."""

    def __init__(self, outcomes: Mapping[str, Outcome]) -> None:
        self._outcomes = outcomes

    def of(self, cell: Cell) -> Outcome | None:
        return self._outcomes.get(cell.key)

    def value(self, cell: Cell, name: str) -> float | None:
        """None: it was not run."""
        outcome = self.of(cell)
        return None if outcome is None else outcome.values.get(name)

    def values(self, cells: Iterable[Cell], name: str) -> list[float]:
        """Of those that were run."""
        return [value for cell in cells if (value := self.value(cell, name)) is not None]
