"""The report of the paper's evaluation: Markdown, the paper's numbers beside ours, a line for every promise."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from benchmarks.paper.cells import CELLS, Cell, Lengths, Outcome
from benchmarks.paper.numbers import said
from benchmarks.paper.stage import CONGESTION, iperf3_is_installed

__all__ = ["LINK_NAMES", "Results", "combination", "promises", "report"]

LINK_NAMES = {"ethernet": "Ethernet", "wifi": "WiFi", "5g": "5G"}
KIND_NAMES = {"tcp": "TCP", "tls": "TCP with TLS", "sealed": "TCP, sealed", "quic": "QUIC", "udp": "UDP"}
ROUND_TRIP = 46.0  # milliseconds, of 5G: on the other links processors take longer than the network
ROUND_TRIPS = {"tcp": 1, "sealed": 2, "tls": 2, "quic": 1}
"""Until data may be sent: the transport's own, and exactly one more where the session seals plain TCP."""
COUNTED_AS = 0.5  # round trips beyond the promised ones that are still processors and not another round trip
SAME_SECURITY = (("tcp", "tcp"), ("sealed", "tls"), ("tls", "tls"), ("quic", "quic"))
"""(ours, base)."""
MARGIN, MARGIN_SHARE = 3.0, 0.05  # milliseconds and share of base, whichever is more
RR_SHARE = 0.5  # of one TCP connection over Ethernet

HEAD = """\
# The paper's evaluation, done again

Figures 4 to 11 of *Programmable Session Layer MULTI-Connectivity* on emulated links between two network namespaces of
one machine: Ethernet 940 Mbit/s and 0.25 ms, WiFi 200 Mbit/s and 1.8 ms, 5G 190 Mbit/s down, 35 up and 46 ms; queues of
20, 50 and 100 ms; TCP with {congestion}. The paper had real links, a laptop and a server. Figures 4 to 9 are over IPv6,
10 and 11 over IPv4. {mode}

Here: {machine}.
Both ends and the emulation share it, so Ethernet and QUIC are limited by processors.

Rx: the client receives. *Base* is asyncio's streams, or aioquic through its own asyncio interface with its defaults.
*Time to open*: from the call until data may be sent. *{small} kB*: from the call of open until the receiving
application has the last byte. *{large} MB*: over the time from the opening until that. Before the first small transfer
of a kind a process makes one that does not count; large ones have processes of their own. Small transfers are repeated
{repeats} times in each iteration. Every byte is compared with what was sent. Unless said otherwise TCP is plain
(`protect: never`), as in the paper; sessions that have TCP and QUIC have one `ssl_config` for both, so there TCP runs
inside TLS.

*RR* is as in the paper: `connect: seq`, `wait: all`, scheduler `RR`. *adaptive* is all defaults: `stag`, `first`,
`adaptive`. Values are mean and standard deviation, and the number of iterations; promises compare medians.

Revisions measured: {revisions}.
"""


class Results:
    """All outcomes of a store, by cell."""

    def __init__(self, outcomes: Iterable[Outcome]) -> None:
        self.outcomes: dict[str, list[Outcome]] = {}
        for outcome in outcomes:
            self.outcomes.setdefault(outcome.key, []).append(outcome)

    def of(self, cell: Cell) -> list[Outcome]:
        return self.outcomes.get(cell.key, [])

    def values(self, cell: Cell, name: str) -> list[float]:
        return [value for outcome in self.of(cell) for value in outcome.values.get(name, ())]

    def median(self, cell: Cell, name: str) -> float | None:
        values = self.values(cell, name)
        return statistics.median(values) if values else None

    def shown(self, cell: Cell, name: str) -> str:
        """`12.3 ± 0.4`, or why there is nothing."""
        values = self.values(cell, name)
        if values:
            spread = f" ± {_number(statistics.stdev(values))}" if len(values) > 1 else ""
            return f"{_number(statistics.fmean(values))}{spread}"
        if cell.party == "iperf" and not iperf3_is_installed():
            return "iperf3 is not installed"
        return "failed" if self.of(cell) else "not measured"

    def runs(self, *cells: Cell) -> str:
        counts = sorted({len(self.of(cell)) for cell in cells})
        return "-".join(map(str, dict.fromkeys((counts[0], counts[-1]))))


def combination(cell: Cell) -> str:
    """`T, Q, T`: the transports over Ethernet, WiFi and 5G, in the paper's short form."""
    return ", ".join(kind[0].upper() for kind in cell.kinds)


def report(outcomes: Sequence[Outcome], lengths: Lengths, pictures: Mapping[str, str], *, quick: bool) -> str:
    """The whole report. `pictures`: file names by the name of the figure they belong to."""
    results = Results(outcomes)
    head = HEAD.format(
        congestion=CONGESTION,
        mode="A quick look: few runs, less data, shorter." if quick else "Full lengths.",
        machine=f"{os.cpu_count()} processors, Python {platform.python_version()}, Linux {platform.release()}",
        small=f"{lengths.small / 1e3:g}",
        large=f"{lengths.large / 1e6:g}",
        repeats=lengths.small_runs,
        revisions=", ".join(sorted({o.revision for o in outcomes})) or "none",
    )
    parts = [head, "## Promises\n", *_table("| promise | measured | verdict |", promises(results)), ""]
    for title, picture, tables in (
        ("Figure 4: iperf3", "figure-4", [_iperf(results, 4)]),
        ("Figure 5: one connection", "figure-5", _single(results, 5, lengths)),
        ("Figure 6: three connections", "figure-6", _several(results, 6, lengths)),
        ("Figures 7 and 8: WiFi joins", "figures-7-8", [_join(results, lengths)]),
        ("Figure 9: switching between networks", "figure-9", [_switch(results, lengths)]),
        ("Figure 10: IPv4", "figure-10", [_iperf(results, 10), *_single(results, 10, lengths)]),
        ("Figure 11: IPv4, two connections", "figure-11", _several(results, 11, lengths)),
    ):
        parts.append(f"## {title}\n")
        if picture in pictures:
            parts.append(f"![{title}]({pictures[picture]})\n")
        for table in tables:
            parts += [*table, ""]
    faults = [f"- {o.key} run {o.number}: {fault}" for o in outcomes for fault in o.faults]
    return "\n".join([*parts, "## Runs that failed\n", *(faults or ["None."]), ""])


# --- promises ---


def promises(results: Results) -> Iterator[str]:
    """A row each: what is promised, what was measured, and `held` or `short by`."""
    for ours, _ in SAME_SECURITY:
        yield _round_trips(results, ours)
    for ours, base in SAME_SECURITY:
        for name, what in (("open, ms", "time to open"), ("small, ms", "25 kB")):
            yield _overhead(results, ours, base, name, what)
    for receives in (True, False):
        yield from _round_robin(results, receives=receives)


def _cells(**wanted: object) -> list[Cell]:
    return [cell for cell in CELLS if all(getattr(cell, key) == value for key, value in wanted.items())]


def _round_trips(results: Results, kind: str) -> str:
    promised = ROUND_TRIPS[kind]
    what = f"time to open over 5G, {KIND_NAMES[kind]}: {promised} round trip{'s' * (promised > 1)}"
    cells = _cells(figure=5, measure="small", party="multi", kinds=(kind,), links=("5g",))
    values = [value for cell in cells for value in results.values(cell, "open, ms")]
    if not values:
        return f"| {what} | | not measured |"
    trips = statistics.median(values) / ROUND_TRIP
    verdict = "held" if trips < promised + COUNTED_AS else f"**short by {trips - promised:.2f} round trips**"
    return f"| {what} | {trips:.2f} | {verdict} |"


def _overhead(results: Results, ours: str, base: str, name: str, what: str) -> str:
    """Over all links and directions, the one that is worst."""
    worst: tuple[float, str] | None = None
    count = held = 0
    for cell in _cells(measure="small", party="multi", kinds=(ours,)):
        if len(cell.links) > 1:
            continue
        mine, theirs = results.median(cell, name), results.median(replace(cell, party="base", kinds=(base,)), name)
        if mine is None or theirs is None:
            continue
        excess = mine - theirs - max(MARGIN, MARGIN_SHARE * theirs)
        count, held = count + 1, held + (excess <= 0)
        where = f"{LINK_NAMES[cell.links[0]]}, IPv{cell.version}, {'Rx' if cell.receives else 'Tx'}"
        worst = max(worst or (float("-inf"), ""), (excess, f"{mine:.2f} ms, base {theirs:.2f} ms ({where}: the worst)"))
    promise = f"{what}, {KIND_NAMES[ours]}, against {_base_name(base)}: at most base + max(5 %, 3 ms)"
    if worst is None:
        return f"| {promise} | | not measured |"
    verdict = "held" if worst[0] <= 0 else f"**short by {worst[0]:.2f} ms**, held in {held} of {count}"
    return f"| {promise} | {worst[1]} | {verdict} |"


def _base_name(kind: str) -> str:
    return {"tcp": "asyncio", "tls": "asyncio with TLS", "quic": "aioquic"}[kind]


def _round_robin(results: Results, *, receives: bool) -> Iterator[str]:
    way = "Rx" if receives else "Tx"
    three = _cells(figure=6, measure="large", kinds=("tcp", "tcp", "tcp"), receives=receives, style="RR")[0]
    singles = _cells(figure=5, measure="large", kinds=("tcp",), links=("ethernet",), receives=receives)
    mbps, one = results.median(three, "mbps"), [results.median(cell, "mbps") for cell in singles]
    promise = f"`RR` over the three links, {way}: at least {RR_SHARE:g} x one TCP connection over Ethernet"
    known = [value for value in one if value is not None]
    if mbps is None or not known:
        yield f"| {promise} | | not measured |"
    else:
        ratio = mbps / max(known)
        verdict = "held" if ratio >= RR_SHARE else f"**short by {RR_SHARE - ratio:.2f}**"
        measured = f"{ratio:.2f}: {mbps:.0f} of {max(known):.0f} Mbit/s, the faster of base and ours"
        yield f"| {promise} | {measured} | {verdict} |"
    # Strict alternation would carry a third over each link, at three times the pace of the slowest.
    promise = f"`RR` over the three links, {way}: work-conserving, so Ethernet carries more than its turn, a third"
    shares = [
        carried.get("ethernet", 0) / total
        for outcome in results.of(three)
        if (carried := outcome.facts.get("carried")) and (total := sum(carried.values()))
    ]
    if not shares:
        yield f"| {promise} | | not measured |"
        return
    share = statistics.median(shares)
    verdict = "held" if share > 1 / 3 else f"**short by {1 / 3 - share:.2f}**"
    yield f"| {promise} | {share:.2f} | {verdict} |"


# --- tables ---


def _table(head: str, rows: Iterable[str]) -> list[str]:
    return [head, "|" + "---|" * (head.count("|") - 1), *rows]


def _ways(cell: Cell) -> str:
    return "Rx" if cell.receives else "Tx"


def _iperf(results: Results, figure: int) -> list[str]:
    rows = [
        f"| {LINK_NAMES[cell.links[0]]} | {KIND_NAMES[cell.kinds[0]]} | {_ways(cell)} | {said(cell, 'mbps')} | "
        f"{results.shown(cell, 'mbps')} | {results.runs(cell)} |"
        for cell in _cells(figure=figure, measure="iperf")
    ]
    return _table("| iperf3, Mbit/s | | | paper | here | runs |", rows)


def _quantities(lengths: Lengths) -> tuple[tuple[str, str, str], ...]:
    """(measure, name of the value, heading)."""
    return (
        ("small", "open, ms", "time to open, ms"),
        ("small", "small, ms", f"{lengths.small / 1e3:g} kB, ms"),
        ("large", "mbps", f"{lengths.large / 1e6:g} MB, Mbit/s"),
    )


def _single(results: Results, figure: int, lengths: Lengths) -> list[list[str]]:
    """Time to open, small, large: base and ours beside each other."""
    tables = []
    for measure, name, title in _quantities(lengths):
        rows = []
        for ours in _cells(figure=figure, measure=measure, party="multi"):
            if len(ours.links) > 1:
                continue
            base = replace(ours, party="base", kinds=("tls",) if ours.kinds == ("sealed",) else ours.kinds)
            theirs, mine = results.median(base, name), results.median(ours, name)
            ratio = f"{mine / theirs:.2f}" if mine and theirs else ""
            rows.append(
                f"| {LINK_NAMES[ours.links[0]]} | {KIND_NAMES[ours.kinds[0]]} | {_ways(ours)} | {said(base, name)} | "
                f"{said(ours, name)} | {results.shown(base, name)} | {results.shown(ours, name)} | {ratio} | "
                f"{results.runs(base, ours)} |"
            )
        tables.append(_table(f"| {title} | | | paper: base | paper: MULTI | base | multi | ratio | runs |", rows))
    return tables


def _several(results: Results, figure: int, lengths: Lengths) -> list[list[str]]:
    """All combinations: as in the paper, and with the defaults."""
    tables = []
    links = "Ethernet, WiFi, 5G" if figure == 6 else "Ethernet, WiFi"
    for measure, name, title in _quantities(lengths):
        rows = []
        for cell in _cells(figure=figure, measure=measure, style="RR"):
            other = replace(cell, style="adaptive")
            shares = f" {_shares(results, cell)} | {_shares(results, other)} |" if measure == "large" else ""
            rows.append(
                f"| {combination(cell)} | {_ways(cell)} | {said(cell, name)} | {results.shown(cell, name)} | "
                f"{results.shown(other, name)} |{shares} {results.runs(cell, other)} |"
            )
        shares = " shares with RR, % | shares with adaptive, % |" if measure == "large" else ""
        tables.append(_table(f"| {title} ({links}) | | paper | RR | adaptive |{shares} runs |", rows))
    return tables


def _shares(results: Results, cell: Cell) -> str:
    """Of the payload, by link."""
    all_carried = [o.facts["carried"] for o in results.of(cell) if o.facts.get("carried")]
    totals = [sum(carried.get(link, 0) for carried in all_carried) for link in cell.links]
    return " / ".join(f"{total / sum(totals):.0%}".rstrip("%") for total in totals) if sum(totals) else ""


def _join(results: Results, lengths: Lengths) -> list[str]:
    rows = []
    for cell in _cells(measure="join", style="RR"):
        part = f"{cell.figure} ({'a' if cell.kinds[0] == 'tcp' else 'b'})"
        kinds = f"{KIND_NAMES[cell.kinds[0]]} over 5G, {KIND_NAMES[cell.kinds[1]]} over WiFi"
        other = replace(cell, style="adaptive")
        for name, what in (
            ("before, mbps", "before WiFi joins, Mbit/s"),
            ("peak, mbps", "peak afterwards (1 s), Mbit/s"),
            ("after, mbps", "mean from 2 s afterwards on, Mbit/s"),
            ("5g after, mbps", "of it over 5G, Mbit/s"),
            ("wifi after, mbps", "of it over WiFi, Mbit/s"),
            ("wifi carries after, s", "until WiFi carries data, s"),
        ):
            rows.append(
                f"| {part}: {kinds} | {what} | {said(cell, name)} | {results.shown(cell, name)} | "
                f"{results.shown(other, name)} | {results.runs(cell, other)} |"
            )
    return _table(f"| download, WiFi joins after {lengths.join:g} s | | paper | RR | adaptive | runs |", rows)


def _switch(results: Results, lengths: Lengths) -> list[str]:
    rows = []
    for name, what in (
        ("5g, mbps", "over 5G once settled, Mbit/s"),
        ("wifi, mbps", "over WiFi once settled, Mbit/s"),
        ("handover, ms", "handover takes, ms"),
    ):
        for cell in _cells(measure="switch", style="RR"):
            other = replace(cell, style="adaptive")
            rows.append(
                f"| {KIND_NAMES[cell.kinds[0]]} | {what} | {said(cell, name)} | {results.shown(cell, name)} | "
                f"{results.shown(other, name)} | {results.runs(cell, other)} |"
            )
    return _table(f"| download, a switch every {lengths.switch:g} s | | paper | RR | adaptive | runs |", rows)


def _number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
