"""The report of the roaming benchmark: Markdown, a line for every promise, measured or not."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from benchmarks.roaming.figures import Figure
from benchmarks.roaming.rows import ROWS, Outcome, Row
from benchmarks.roaming.stage import Variant

__all__ = ["figure_in_words", "report"]

HEAD = """\
# Roaming

WiFi 200 Mbit/s both ways, RTT 1.8 ms, queue 50 ms; 5G 190 Mbit/s down and 35 up, RTT 46 ms, queue 100 ms; both drop
from the tail. {mode}

Gap: longest time between two reads that returned data, at a reader that always reads. Loaded RTT of 5G: median of
`ConnectionInfo.rtt` at the sender in the undisturbed time before the event. WiFi carries data when the receiver's
`ConnectionInfo.payload_received` over it has grown by 64 KiB. A network is usable when a datagram from its address has
reached the server. "5G alone" is the same configuration without the WiFi entry, in the same run. Every byte is compared
with what was sent; a run with a byte missing, doubled or changed holds nothing. "held" means in every run.

Revisions measured: {revisions}.
"""
COLUMNS = "| event | promise | measured | median | worst | from - to | bound | runs | verdict | others |"
RULE = "|---|---|---|---|---|---|---|---|---|---|"


def report(outcomes: Sequence[Outcome], variants: Sequence[Variant], *, quick: bool) -> str:
    """The whole report. `variants` are shown even if nothing of them was measured."""
    mode = "A quick look: everything is shorter than promised." if quick else "Full lengths."
    revisions = ", ".join(sorted({o.revision for o in outcomes})) or "none"
    parts = [HEAD.format(mode=mode, revisions=revisions)]
    names = [str(v) for v in variants]
    names += sorted({o.variant for o in outcomes} - set(names))
    by_name = {str(v): v for v in variants}
    for name in names:
        mine = [o for o in outcomes if o.variant == name]
        lines = [line for row in ROWS if name not in by_name or row.takes(by_name[name]) for line in _lines(row, mine)]
        parts.append("\n".join([f"## {name}\n", COLUMNS, RULE, *lines, ""]))
        if mine:
            parts.append(_besides(mine))
    parts.append(_faults(outcomes))
    return "\n".join(parts)


def figure_in_words(figure: Figure) -> str:
    """`gap 54.7 ms (at most 150 ms)`."""
    if figure.bound is None:
        return f"{figure.name} {_amount(figure.value, figure.unit)} (reported only)"
    side = "at most" if figure.at_most else "at least"
    return f"{figure.name} {_amount(figure.value, figure.unit)} ({side} {_amount(figure.bound, figure.unit)})"


def _lines(row: Row, outcomes: Iterable[Outcome]) -> list[str]:
    mine = [o for o in outcomes if o.row == row.key]
    names = list(dict.fromkeys(f.name for o in mine for f in o.figures))
    head = f"| {row.event} | {row.promise} |"
    if not mine:
        return [f"{head} | | | | | 0 | not measured | {row.known} |"]
    if not names:
        return [f"{head} | | | | | {len(mine)} | failed in all | {row.known} |"]
    return [f"{head} {_measured(name, mine)} | {row.known} |" for name in names]


def _measured(name: str, outcomes: Sequence[Outcome]) -> str:
    """The columns of one figure over all runs of a row."""
    pairs = [(o, next((f for f in o.figures if f.name == name), None)) for o in outcomes]
    figures = [f for _, f in pairs if f is not None]
    unit, at_most = figures[0].unit, figures[0].at_most
    values = [f.value for f in figures if f.value is not None]
    bounds = [f.bound for f in figures if f.bound is not None]
    held = sum(1 for o, f in pairs if f is not None and f.held and not o.faults)
    columns = [name]
    if values:
        worst = max(values) if at_most else min(values)
        columns += [_amount(statistics.median(values), unit), _amount(worst, unit)]
        columns += [f"{_amount(min(values), '')} - {_amount(max(values), unit)}"]
    else:
        columns += ["none", "none", ""]
    columns.append(_amount(statistics.median(bounds), unit) if bounds else "")
    columns += [str(len(outcomes)), _verdict(figures, held, len(outcomes)) if bounds else "reported only"]
    return " | ".join(columns)


def _verdict(figures: Sequence[Figure], held: int, runs: int) -> str:
    if held == runs:
        return "held"
    shorts = [short for f in figures if (short := f.short_by) is not None]
    worst = max(shorts, default=0.0)
    by = f"short by {_amount(worst, figures[0].unit)}" if worst else "failed"
    return f"**{by}**, held in {held} of {runs}"


def _besides(outcomes: Sequence[Outcome]) -> str:
    """What else was seen, row by row: how undisturbed things were before the event, and what the machine did."""
    names = list(dict.fromkeys(name for o in outcomes for name in o.facts))
    lines = ["<details><summary>What else was seen: median, and worst in brackets</summary>\n"]
    lines += ["| seen | " + " | ".join(keys := list(dict.fromkeys(o.row for o in outcomes))) + " |"]
    lines += ["|---|" + "---|" * len(keys)]
    for name in names:
        cells = []
        for key in keys:
            values = [o.facts[name] for o in outcomes if o.row == key and name in o.facts]
            cells.append(f"{statistics.median(values):.4g} ({max(values):.4g})" if values else "")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, "\n</details>\n"])


def _faults(outcomes: Sequence[Outcome]) -> str:
    found = [f"- {o.row} {o.variant} run {o.number}: {fault}" for o in outcomes for fault in o.faults]
    return "\n".join(["## Runs that failed\n", *(found or ["None."]), ""])


def _amount(value: float | None, unit: str) -> str:
    if value is None:
        return "none"
    text = f"{value:.0f}" if unit in ("bytes", "times") else f"{value:.1f}" if unit == "ms" else f"{value:.2f}"
    return f"{text} {unit}".rstrip()
