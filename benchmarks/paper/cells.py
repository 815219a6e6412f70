"""The cells of the paper's evaluation: what is measured for Figures 4 to 11, and how one cell is measured once.

A cell is one bar or one curve of a figure. Its outcome is numbers without judgement; what they are compared with is in
`benchmarks.paper.numbers` and `benchmarks.paper.report`.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from itertools import product
from typing import Any, Literal, Self

from benchmarks.paper.end import PORTS, Order
from benchmarks.paper.stage import PaperStage, Transfer
from multi.lab.testbed import TestbedError

__all__ = ["CELLS", "FULL", "QUICK", "Cell", "Lengths", "Outcome", "cell", "measure"]

Measure = Literal["iperf", "small", "large", "join", "switch"]
LINKS = ("ethernet", "wifi", "5g")
COMBINATIONS = {3: tuple(product(("tcp", "quic"), repeat=3)), 2: tuple(product(("tcp", "quic"), repeat=2))}
BASE_KINDS = ("tcp", "tls", "quic")
SESSION_KINDS = ("tcp", "sealed", "tls", "quic")
STYLES = ("RR", "adaptive")
"""As in the paper: `RR`, one connection after the other, all of them before data flows. Or all defaults."""

CARRIES = 64 * 1024  # bytes of payload; a handshake alone is not "carries data"
SETTLING = 2.0  # seconds after WiFi has joined that do not count for the rate afterwards
BEFORE = 5.0  # seconds before WiFi joins that count for the rate before


@dataclass(frozen=True, slots=True)
class Lengths:
    """How much and how long. Bytes and seconds."""

    small: int
    small_runs: int
    """Transfers of the small amount in one iteration; they take milliseconds."""
    large: int
    iperf: float
    join: float
    """When WiFi joins, and how long both are watched after that."""
    switch: float
    switches: int


FULL = Lengths(small=25_000, small_runs=3, large=256_000_000, iperf=5.0, join=15.0, switch=15.0, switches=3)
QUICK = Lengths(small=25_000, small_runs=3, large=16_000_000, iperf=2.0, join=4.0, switch=3.0, switches=2)


@dataclass(frozen=True, slots=True)
class Cell:
    """A bar or a curve. `kinds` and `links` belong together, one for each connection."""

    figure: int
    measure: Measure
    party: Literal["iperf", "base", "multi"]
    kinds: tuple[str, ...]
    links: tuple[str, ...]
    receives: bool
    """Rx of the paper: the client receives."""
    style: str = ""
    """RR or adaptive; empty where there is one connection."""

    @property
    def version(self) -> int:
        """IPv4 is what Figures 10 and 11 are about."""
        return 4 if self.figure >= 10 else 6

    @property
    def key(self) -> str:
        parts = [self.party, "+".join(self.kinds), "+".join(self.links), "rx" if self.receives else "tx", self.style]
        return f"{self.figure:02}-{self.measure}/{'-'.join(filter(None, parts))}"

    @property
    def most_rounds(self) -> int | None:
        """256 MB take a minute over the uplink of 5G."""
        return 3 if self.measure == "large" and self.links == ("5g",) and not self.receives else None


@dataclass(slots=True)
class Outcome:
    """What one run of a cell came to."""

    key: str
    number: int
    revision: str = ""
    values: dict[str, list[float]] = field(default_factory=dict)
    series: list[tuple[float, int, dict[str, int]]] = field(default_factory=list)
    """Every tenth of a second: seconds since the opening, bytes read, payload by link."""
    facts: dict[str, Any] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def encoded(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def decoded(cls, text: str) -> Self:
        return cls(**json.loads(text))


def _cells() -> Iterator[Cell]:
    """In the order of measuring: what takes little time first; what is compared next to each other."""
    directions = (True, False)
    singles = ((5, LINKS), (10, LINKS[:2]))
    several = ((6, LINKS), (11, LINKS[:2]))
    for figure, links in ((4, LINKS), (10, LINKS[:2])):
        for link, kind, receives in product(links, ("tcp", "udp"), directions):
            yield Cell(figure, "iperf", "iperf", (kind,), (link,), receives)
    for figure, links in singles:
        for link, receives in product(links, directions):
            for kind in SESSION_KINDS:
                if kind in BASE_KINDS:
                    yield Cell(figure, "small", "base", (kind,), (link,), receives)
                yield Cell(figure, "small", "multi", (kind,), (link,), receives)
    for figure, links in several:
        for kinds, receives, style in product(COMBINATIONS[len(links)], directions, STYLES):
            yield Cell(figure, "small", "multi", kinds, links, receives, style)
    for figure, links in several:
        for kinds, receives, style in product(COMBINATIONS[len(links)], directions, STYLES):
            yield Cell(figure, "large", "multi", kinds, links, receives, style)
    for figure, links in singles:
        for link, receives, kind in product(links, directions, ("tcp", "quic")):
            yield Cell(figure, "large", "base", (kind,), (link,), receives)
            yield Cell(figure, "large", "multi", (kind,), (link,), receives)
    for figure, kinds in ((7, ("tcp", "tcp")), (7, ("quic", "quic")), (8, ("tcp", "quic")), (8, ("quic", "tcp"))):
        for style in STYLES:
            yield Cell(figure, "join", "multi", kinds, ("5g", "wifi"), True, style)
    for kind, style in product(("tcp", "quic"), STYLES):
        yield Cell(9, "switch", "multi", (kind, kind), ("5g", "wifi"), True, style)


CELLS = tuple(_cells())


def cell(key: str) -> Cell:
    return next(cell for cell in CELLS if cell.key == key)


# --- measuring ---


async def measure(cell: Cell, stage: PaperStage, lengths: Lengths, number: int) -> Outcome:
    """Measure a cell once. What goes wrong on the way is a fault of the outcome, not an exception."""
    outcome = Outcome(cell.key, number)
    try:
        match cell.measure:
            case "iperf":
                await _iperf(cell, stage, lengths, outcome)
            case "small":
                await _small(cell, stage, lengths, outcome)
            case "large":
                await _large(cell, stage, lengths, outcome)
            case "join":
                await _join(cell, stage, lengths, outcome)
            case "switch":
                await _switch(cell, stage, lengths, outcome)
    except (TestbedError, OSError) as error:
        outcome.faults.append(f"{type(error).__name__}: {error}")
        stage.renew()
    return outcome


async def _iperf(cell: Cell, stage: PaperStage, lengths: Lengths, outcome: Outcome) -> None:
    seen = await stage.iperf(cell.links[0], cell.version, cell.kinds[0], lengths.iperf, receives=cell.receives)
    outcome.values["mbps"] = [seen.mbps]
    if cell.kinds[0] == "udp":
        outcome.values["lost, percent"] = [seen.lost_percent]


def _order(cell: Cell, stage: PaperStage, **more: Any) -> Order:
    """What the client has to do for a cell; the rest is for the order."""
    more.setdefault("receives", cell.receives)
    if cell.party == "base":
        kind = f"base-{cell.kinds[0]}"
        # aioquic's client cannot be bound to an address, so each link is named by the server's address on it.
        host = stage.testbed.links[cell.links[0]].server_address(cell.version)
        return Order(kind, host, PORTS[kind], **more)
    secured = "tls" in cell.kinds or "quic" in cell.kinds
    port = PORTS["multi-secured" if secured else "multi-sealed" if "sealed" in cell.kinds else "multi-plain"]
    config = stage.config(
        [("quic" if kind == "quic" else "tcp", link) for kind, link in zip(cell.kinds, cell.links, strict=True)],
        cell.version,
        port,
        secured=secured,
        sealed="sealed" in cell.kinds,
    )
    if cell.style == "RR":
        config["multi_config"] = {"connect": "seq", "wait": "all", "scheduler": "RR"}
    return Order("multi", config=config, **more)


def _check(seen: Transfer, size: int, outcome: Outcome) -> bool:
    """Whether a transfer may count; notes why not."""
    outcome.faults += seen.faults
    if not seen.faults and size and seen.received != size:
        outcome.faults.append(f"{seen.received} bytes arrived of {size}")
    return not outcome.faults


async def _small(cell: Cell, stage: PaperStage, lengths: Lengths, outcome: Outcome) -> None:
    order = _order(cell, stage, size=lengths.small, timeout=30.0)
    if stage.new_to(cell.key):
        # The first of its kind in a process reads modules and certificates; that is none of opening's business.
        _check(await stage.transfer(order), lengths.small, outcome)
    for _ in range(lengths.small_runs):
        seen = await stage.transfer(order)
        if not _check(seen, lengths.small, outcome):
            return
        outcome.values.setdefault("open, ms", []).append((seen.opened - seen.opening) * 1e3)
        outcome.values.setdefault("small, ms", []).append((seen.last - seen.opening) * 1e3)


async def _large(cell: Cell, stage: PaperStage, lengths: Lengths, outcome: Outcome) -> None:
    stage.renew()
    # Nothing here is slower than 20 Mbit/s unless it is broken.
    order = _order(cell, stage, size=lengths.large, timeout=60.0 + lengths.large * 8 / 20e6)
    seen = await stage.transfer(order)
    stage.renew()
    if _check(seen, lengths.large, outcome):
        outcome.values["mbps"] = [lengths.large * 8 / (seen.last - seen.opened) / 1e6]
        outcome.facts["carried"] = stage.by_link(seen.carried)


async def _join(cell: Cell, stage: PaperStage, lengths: Lengths, outcome: Outcome) -> None:
    """WiFi is out of range at first: its interface has no carrier."""
    stage.renew()
    wifi = stage.testbed.links["wifi"]
    order = _order(cell, stage, seconds=2 * lengths.join, timeout=2 * lengths.join + 60.0, watch=True)
    if cell.style == "RR":
        # With `all` the opening would wait for a network that is not there.
        order.config["multi_config"] |= {"wait": "first"}
    joined = 0.0

    async def bring_back(opened: float) -> None:
        nonlocal joined
        await asyncio.sleep(opened + lengths.join - time.monotonic())
        joined = time.monotonic() - opened
        wifi.carrier(True)

    wifi.carrier(False)
    try:
        await asyncio.sleep(0.3)  # the client has to have heard of it before it opens
        seen = await stage.transfer(order, bring_back)
    finally:
        wifi.carrier(True)
    stage.renew()
    if not _check(seen, 0, outcome):
        return
    outcome.series = stage.series(seen)
    end = outcome.series[-1][0]
    values: dict[str, float | None] = {
        "before, mbps": rate(outcome, joined - min(BEFORE, lengths.join / 2), joined),
        "peak, mbps": max(rate(outcome, at, at + 1.0) for at in range(int(joined), int(end))),
        "after, mbps": rate(outcome, joined + SETTLING, end),
        "5g after, mbps": rate(outcome, joined + SETTLING, end, "5g"),
        "wifi after, mbps": rate(outcome, joined + SETTLING, end, "wifi"),
        "wifi carries after, s": next(
            (at - joined for at, _, carried in outcome.series if carried.get("wifi", 0) >= CARRIES), None
        ),
    }
    outcome.values = {name: [value] for name, value in values.items() if value is not None}
    outcome.facts["joined"] = joined


async def _switch(cell: Cell, stage: PaperStage, lengths: Lengths, outcome: Outcome) -> None:
    """From 5G to WiFi and back: the session goes to the other network at every turn."""
    stage.renew()
    turns = [(lengths.switch * n, "wifi" if n % 2 else "cellular") for n in range(1, lengths.switches + 1)]
    seconds = lengths.switch * (lengths.switches + 1)
    order = _order(cell, stage, seconds=seconds, handovers=turns, timeout=seconds + 60.0, watch=True)
    config = order.config.setdefault("multi_config", {})
    config["mode"] = "switch"
    seen = await stage.transfer(order)
    stage.renew()
    outcome.faults += [f"handover to {turn['to']}: {turn['error']}" for turn in seen.handovers if turn["error"]]
    if not _check(seen, 0, outcome):
        return
    outcome.series = stage.series(seen)
    starts = [0.0] + [at for at, _ in turns]
    for start in starts:
        link = "wifi" if starts.index(start) % 2 else "5g"
        settled = rate(outcome, start + lengths.switch / 3, start + lengths.switch)
        outcome.values.setdefault(f"{link}, mbps", []).append(settled)
    outcome.values["handover, ms"] = [turn["took"] * 1e3 for turn in seen.handovers]
    outcome.facts["turns"] = [turn["at"] - seen.opened for turn in seen.handovers]


def rate(outcome: Outcome, start: float, end: float, link: str = "") -> float:
    """Mbit/s in [start, end] of the series: of what the application read, or of the payload over a link."""

    def until(at: float) -> float:
        before = (0.0, 0.0)
        for when, read, carried in outcome.series:
            count = float(carried.get(link, 0) if link else read)
            if when >= at:
                share = (at - before[0]) / (when - before[0]) if when > before[0] else 1.0
                return before[1] + (count - before[1]) * max(0.0, share)
            before = (when, count)
        return before[1]

    return (until(end) - until(start)) * 8 / (end - start) / 1e6
