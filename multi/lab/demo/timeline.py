"""The timeline of a roaming demo as a picture: throughput per network, stacked, with what happened when.

Like the paper's Figures 7 to 9. Needs matplotlib, which only this module imports; ImportError says that it is missing.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from multi.lab.demo.recording import Trace

SMOOTHING = 3  # samples a point is the average of: 0.3 s
COLOURS = {"WiFi": "#3b82c4", "5G": "#f0a03c"}
OTHER = "#888888"
STATES = {"active": "#4caf50", "suspect": "#ffb300", "draining": "#26a0b8"}
LABEL_ROWS = 2
LABEL_WIDTH = 0.135  # of the whole width; the longest title at this size


def draw_timeline(trace: Trace, path: Path) -> None:
    """Write the picture as PNG."""
    figure = Figure(figsize=(12, 6.2), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[6, 1])
    rates = {network: _rates(trace, network) for network in trace["networks"]}
    times = [sample["t"] for sample in trace["samples"]]
    above.stackplot(
        times,
        list(rates.values()),
        labels=[f"over {network}" for network in rates],
        colors=[COLOURS.get(network, OTHER) for network in rates],
        linewidth=0,
        alpha=0.9,
    )
    total = [sum(column) for column in zip(*rates.values(), strict=True)]
    above.plot(times, total, color="#222222", linewidth=0.9, label="together")
    top = max(total, default=0.0) * 1.05 or 1.0
    above.set_ylim(0, top * (1.05 + 0.15 * LABEL_ROWS))
    above.set_yticks([tick for tick in range(0, 1000, 50) if tick <= top])
    above.set_ylabel("Mbit/s")
    above.grid(axis="y", alpha=0.25)
    for side in ("top", "right"):
        above.spines[side].set_visible(False)
    _draw_story(above, below, trace, top)
    _draw_states(below, trace)
    above.legend(loc="lower right", ncols=3, frameon=False, fontsize=9.5, borderaxespad=0.2, bbox_to_anchor=(1, 1.0))
    verified = "verified by SHA-256" if trace["verified"] else "NOT VERIFIED"
    figure.suptitle(
        f"One download of {trace['size'] / 1e6:.0f} MB while networks come and go ({verified})",
        x=0.01,
        horizontalalignment="left",
        fontsize=13,
        fontweight="bold",
    )
    below.set_xlim(0, trace["seconds"])
    below.xaxis.set_major_locator(MaxNLocator(nbins=12, integer=True))
    below.set_xlabel("seconds")
    figure.savefig(path)


def _draw_story(above: Any, below: Any, trace: Trace, top: float) -> None:
    """A line and words for each step, in the lowest row where they do not meet others."""
    free_from = [0.0] * LABEL_ROWS
    for mark in trace["story"]:
        for axes in (above, below):
            axes.axvline(mark["t"], color="#444444", linewidth=0.9, linestyle=(0, (4, 3)))
        row = next((row for row, free in enumerate(free_from) if mark["t"] >= free), LABEL_ROWS - 1)
        free_from[row] = mark["t"] + trace["seconds"] * LABEL_WIDTH
        gap = mark["longest_gap"]
        pause = f"{gap:.1f} s" if gap >= 1 else f"{gap * 1000:.0f} ms"
        above.text(
            mark["t"] + trace["seconds"] * 0.004,
            top * (1.03 + 0.15 * row),
            f"{mark['title']}\n{'first byte after' if mark['key'] == 'start' else 'longest gap'} {pause}",
            fontsize=9,
            verticalalignment="bottom",
            linespacing=1.3,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.5, "alpha": 0.9},
        )


def _draw_states(axes: Any, trace: Trace) -> None:
    """A bar per network: when it had a connection, and in which state."""
    networks = trace["networks"]
    for connection in trace["connections"]:
        row = networks.index(connection["network"]) if connection["network"] in networks else len(networks)
        states = [*connection["states"], (trace["seconds"], "closed", "")]
        for (start, state, _), (end, _, _) in pairwise(states):
            if state in STATES and end > start:
                axes.barh(row, end - start, left=start, height=0.6, color=STATES[state], linewidth=0)
    axes.set_yticks(range(len(networks)), networks)
    axes.set_ylim(-0.6, len(networks) - 0.4)
    axes.legend(
        handles=[axes.barh(-5, 0, color=colour, label=state) for state, colour in STATES.items()],
        loc="upper left",
        bbox_to_anchor=(1.0, 1.0),
        fontsize=8,
        frameon=False,
    )
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(left=False)


def _rates(trace: Trace, network: str) -> list[float]:
    """Mbit/s over a network at each sample, averaged over the samples around it."""
    ids = [str(c["id"]) for c in trace["connections"] if c["network"] == network]
    times = [sample["t"] for sample in trace["samples"]]
    moved = [sum(sample["bytes"].get(c, 0) for c in ids) for sample in trace["samples"]]
    rates = []
    for n in range(len(times)):
        first, last = max(0, n - SMOOTHING // 2 - 1), min(len(times) - 1, n + SMOOTHING // 2)
        elapsed = times[last] - times[first]
        rates.append((moved[last] - moved[first]) * 8e-6 / elapsed if elapsed > 0 else 0.0)
    return rates
