"""The pictures of the paper's evaluation: one PNG for each of its figures, in the order of its panels."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

from benchmarks.paper.cells import CELLS, Cell, Lengths, Outcome, rate
from benchmarks.paper.numbers import said
from benchmarks.paper.report import LINK_NAMES, Results, combination

__all__ = ["draw"]

BASE, OURS, SEALED, RR, ADAPTIVE = "#8c8c8c", "#2f6db5", "#7fb0df", "#d98032", "#2f6db5"
LINK_COLOURS = {"ethernet": "#5a9e6f", "wifi": "#d98032", "5g": "#2f6db5"}
PAPER: dict[str, Any] = {"color": "black", "marker": "_", "markersize": 15, "markeredgewidth": 2.2, "linestyle": ""}
STEP = 0.5  # seconds of a curve
QUANTITIES = (
    ("small", "open, ms", "time to open, ms"),
    ("small", "small, ms", "25 kB, ms"),
    ("large", "mbps", "throughput, Mbit/s"),
)
DPI = 90


@dataclass(frozen=True, slots=True)
class _Bar:
    cell: Cell
    colour: str
    name: str


def draw(results: Results, lengths: Lengths, directory: Path) -> list[Path]:
    """Draw what has been measured; the files are named after the figures."""
    drawn = []
    for name, figure in _figures(results, lengths):
        path = directory / f"{name}.png"
        figure.savefig(path, dpi=DPI)
        pyplot.close(figure)
        drawn.append(path)
    return drawn


def _figures(results: Results, lengths: Lengths) -> Iterator[tuple[str, Any]]:
    measured = {cell.figure for cell in CELLS if results.of(cell)}
    if 4 in measured:
        yield "figure-4", _iperf(results, 4)
    if 5 in measured:
        yield "figure-5", _single(results, 5, lengths)
    if 6 in measured:
        yield "figure-6", _several(results, 6, lengths)
    if measured & {7, 8}:
        yield "figures-7-8", _curves(results, "join", lengths)
    if 9 in measured:
        yield "figure-9", _curves(results, "switch", lengths)
    if 10 in measured:
        yield "figure-10", _single(results, 10, lengths)
    if 11 in measured:
        yield "figure-11", _several(results, 11, lengths)


def _cells(**wanted: object) -> list[Cell]:
    return [cell for cell in CELLS if all(getattr(cell, key) == value for key, value in wanted.items())]


def _title(lengths: Lengths, text: str) -> str:
    return text.replace("throughput", f"{lengths.large / 1e6:g} MB")


# --- bars ---


def _bars(axes: Any, results: Results, groups: Sequence[tuple[str, Sequence[_Bar]]], name: str) -> None:
    """Mean and standard deviation; the paper's number, where its text has one, as a black dash over its bar."""
    axes.set_xticks(range(len(groups)), [label for label, _ in groups], fontsize=8)
    labelled: set[str] = set()
    for position, (_, bars) in enumerate(groups):
        width = 0.8 / max(1, len(bars))
        for index, bar in enumerate(bars):
            x = position + (index - (len(bars) - 1) / 2) * width
            values = results.values(bar.cell, name)
            if values:
                error = statistics.stdev(values) if len(values) > 1 else None
                axes.bar(
                    x,
                    statistics.fmean(values),
                    width * 0.92,
                    yerr=error,
                    capsize=2,
                    color=bar.colour,
                    label=None if bar.name in labelled else bar.name,
                    error_kw={"elinewidth": 0.8},
                )
                labelled.add(bar.name)
            number = said(bar.cell, name).value
            if number is not None:
                axes.plot([x], [number], **PAPER, label=None if "paper" in labelled else "paper's text")
                labelled.add("paper")
    if not labelled - {"paper"}:
        axes.set_xlim(-0.5, len(groups) - 0.5)
        axes.text(0.5, 0.5, "not measured", transform=axes.transAxes, ha="center", color="grey")
    axes.set_ylim(bottom=0)
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _legend(figure: Any, all_axes: Sequence[Any]) -> None:
    handles = {label: h for axes in all_axes for h, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles.keys(), loc="outside upper right", ncols=len(handles), fontsize=8)


def _iperf(results: Results, figure: int) -> Any:
    picture, all_axes = pyplot.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
    for axes, receives in zip(all_axes, (True, False), strict=True):
        groups = []
        for link in LINK_NAMES:
            tcp, udp = _cells(figure=figure, measure="iperf", links=(link,), receives=receives)
            groups.append((LINK_NAMES[link], [_Bar(tcp, BASE, "iperf3 TCP"), _Bar(udp, SEALED, "iperf3 UDP")]))
        _bars(axes, results, groups, "mbps")
        axes.set_title(f"{'Rx' if receives else 'Tx'}, Mbit/s", fontsize=9)
    picture.suptitle(f"Figure {figure}: iperf3", x=0.01, ha="left", fontsize=10)
    _legend(picture, all_axes)
    return picture


def _single(results: Results, figure: int, lengths: Lengths) -> Any:
    """A row for each quantity, a column for each link."""
    links = [link for link in LINK_NAMES if _cells(figure=figure, measure="small", links=(link,))]
    picture, grid = pyplot.subplots(3, len(links), figsize=(4 * len(links), 8), layout="constrained", squeeze=False)
    for row, (measure, name, title) in zip(grid, QUANTITIES, strict=True):
        for axes, link in zip(row, links, strict=True):
            groups = []
            for kind, receives in ((k, r) for k in ("tcp", "tls", "quic") for r in (True, False)):
                found = _cells(figure=figure, measure=measure, party="multi", kinds=(kind,), links=(link,))
                ours = [cell for cell in found if cell.receives is receives]
                if not ours:
                    continue
                bars = [_Bar(replace(ours[0], party="base"), BASE, "asyncio, aioquic"), _Bar(ours[0], OURS, "multi")]
                if kind == "tls":
                    bars.append(_Bar(replace(ours[0], kinds=("sealed",)), SEALED, "multi, sealed"))
                groups.append((f"{kind.upper()}\n{'Rx' if receives else 'Tx'}", bars))
            _bars(axes, results, groups, name)
            axes.set_title(f"{LINK_NAMES[link]}: {_title(lengths, title)}", fontsize=9)
    version = "" if figure == 5 else ", IPv4"
    picture.suptitle(f"Figure {figure}: one connection{version}", x=0.01, ha="left", fontsize=10)
    _legend(picture, list(grid.flatten()))
    return picture


def _several(results: Results, figure: int, lengths: Lengths) -> Any:
    """A row for each quantity, a column for each direction."""
    picture, grid = pyplot.subplots(3, 2, figsize=(11, 8), layout="constrained")
    for row, (measure, name, title) in zip(grid, QUANTITIES, strict=True):
        for axes, receives in zip(row, (True, False), strict=True):
            groups = []
            for cell in _cells(figure=figure, measure=measure, style="RR", receives=receives):
                other = replace(cell, style="adaptive")
                groups.append(
                    (combination(cell), [_Bar(cell, RR, "RR, as in the paper"), _Bar(other, ADAPTIVE, "adaptive")])
                )
            _bars(axes, results, groups, name)
            if measure == "large":
                _single_lines(axes, results, 5 if figure == 6 else 10, groups[0][1][0].cell.links, receives)
            axes.set_title(f"{'Rx' if receives else 'Tx'}: {_title(lengths, title)}", fontsize=9)
    words = "three connections over Ethernet, WiFi, 5G" if figure == 6 else "two over Ethernet, WiFi; IPv4"
    picture.suptitle(f"Figure {figure}: {words}", x=0.01, ha="left", fontsize=10)
    _legend(picture, list(grid.flatten()))
    return picture


def _single_lines(axes: Any, results: Results, figure: int, links: Sequence[str], receives: bool) -> None:
    """What one TCP connection of ours reaches over each link."""
    for link in links:
        found = _cells(figure=figure, measure="large", party="multi", kinds=("tcp",), links=(link,), receives=receives)
        value = results.median(found[0], "mbps")
        if value is not None:
            axes.axhline(value, color=LINK_COLOURS[link], linewidth=1, linestyle="--", label=f"TCP, {LINK_NAMES[link]}")


# --- curves ---


def _curves(results: Results, measure: str, lengths: Lengths) -> Any:
    """A row for each pair of transports, a column for each style; of several runs the middle one."""
    rows = _cells(measure=measure, style="RR")
    picture, grid = pyplot.subplots(
        len(rows), 2, figsize=(11, 2.3 * len(rows) + 0.6), layout="constrained", sharex=True, sharey="row"
    )
    for row, cell in zip(grid, rows, strict=True):
        for axes, style in zip(row, ("RR", "adaptive"), strict=True):
            shown = replace(cell, style=style)
            outcomes = sorted((o for o in results.of(shown) if o.series), key=lambda o: o.series[-1][1])
            if outcomes:
                _curve(axes, outcomes[len(outcomes) // 2])
            else:
                axes.text(0.5, 0.5, "not measured", transform=axes.transAxes, ha="center", color="grey")
            kinds = f"{cell.kinds[0].upper()} over 5G, {cell.kinds[1].upper()} over WiFi"
            axes.set_title(f"Figure {cell.figure}: {kinds}; {style}", fontsize=9)
            axes.set_ylabel("Mbit/s", fontsize=8)
            axes.grid(alpha=0.3)
            for side in ("top", "right"):
                axes.spines[side].set_visible(False)
        row[0].set_ylim(bottom=0)  # of both, once both are there
    for axes in grid[-1]:
        axes.set_xlabel("seconds", fontsize=8)
    words = f"WiFi joins after {lengths.join:g} s" if measure == "join" else f"a switch every {lengths.switch:g} s"
    picture.suptitle(f"Download, {words}", x=0.01, ha="left", fontsize=10)
    _legend(picture, list(grid.flatten()))
    return picture


def _curve(axes: Any, outcome: Outcome) -> None:
    """What arrived over each link, stacked, and what the application read."""
    end = outcome.series[-1][0]
    times = [STEP * n for n in range(int(end / STEP))]
    stacked = {link: [rate(outcome, at, at + STEP, link) for at in times] for link in ("5g", "wifi")}
    middles = [at + STEP / 2 for at in times]
    axes.stackplot(
        middles,
        *stacked.values(),
        colors=[LINK_COLOURS[link] for link in stacked],
        alpha=0.65,
        labels=[f"over {LINK_NAMES[link]}" for link in stacked],
    )
    read = [rate(outcome, at, at + STEP) for at in times]
    axes.plot(middles, read, color="black", linewidth=0.9, label="read by the application")
    for at in (outcome.facts.get("joined"), *outcome.facts.get("turns", ())):
        if at is not None:
            axes.axvline(at, color="black", linestyle=":", linewidth=1)
