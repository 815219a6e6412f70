"""Draws what happened over time: rates stacked by network, what happened when, and in which state each network was.

Like the paper's Figures 7 to 9. Needs matplotlib, which only this module imports; ImportError says that it is missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

WIDTH, DPI = 12.0, 110  # inches
HEAD = 0.75  # inches for the title and the axis of time
LINE = 0.19  # of a line of text
ROW = 0.3  # of a bar
ROWS = 4  # of texts, at most: what finds no place in them is a line only
WIDE = 30  # times the median; where the highest lies further above it than that, the scale is logarithmic
STEPS = (1, 2, 5, 10)  # between numbers on an axis
APART = 10  # pixels between two texts of a row
STATES = {"active": "#4caf50", "suspect": "#ffb300", "draining": "#26a0b8"}
COLOURS = (
    *("#3b82c4", "#f0a03c", "#3f9b6c", "#9467bd", "#c9504b", "#7f6a5c", "#d77fb3", "#8c9a2b", "#22aebf", "#5566aa"),
    "#888888",
)
WHITE = {"facecolor": "white", "edgecolor": "none", "pad": 1.5, "alpha": 0.9}
DASHED: dict[str, Any] = {"linewidth": 0.9, "linestyle": (0, (4, 3)), "zorder": 1.5}
UNITS = (
    (180.0, 1.0, "seconds"),
    (3 * 3600.0, 60.0, "minutes"),
    (48 * 3600.0, 3600.0, "hours"),
    (float("inf"), 86400.0, "days"),
)
"""Up to so many seconds time is shown in units of so many."""

as_it_stands = rc_context({"text.parse_math": False})
"""Names are no formulas, where a dollar sign stands in them either."""


@dataclass(frozen=True)
class Panel:
    """Figures over time: stacked, with their sum, or a line each."""

    label: str
    times: Sequence[float]
    lanes: Mapping[str, Sequence[float]]
    """By the name of a lane; nan = not known."""
    stacked: bool = True
    height: float = 2.6
    """Inches."""


@dataclass(frozen=True)
class Mark:
    """Something that happened; without a text only a line is drawn."""

    t: float
    text: str = ""


@dataclass(frozen=True)
class Timeline:
    """What is drawn. Seconds."""

    title: str
    seconds: float
    panels: Sequence[Panel]
    spans: Mapping[str, Sequence[tuple[float, float, str]]]
    """For each lane (from, to, state): when it was up."""
    marks: Sequence[Mark]
    colours: Mapping[str, str]
    """Of lanes; others get those that are left."""


@as_it_stands
def draw(timeline: Timeline, path: Path) -> None:
    """Write the picture: PNG, or what the suffix says. Raises ValueError for a suffix that is no picture's."""
    figure_of(timeline).savefig(path)


@as_it_stands
def figure_of(timeline: Timeline) -> Figure:
    """The picture; its first axes hold the texts of the marks."""
    lines = max((mark.text.count("\n") + 1 for mark in timeline.marks), default=1)
    heights = [LINE * lines, *(panel.height for panel in timeline.panels), ROW * max(2, len(timeline.spans))]
    figure = Figure(figsize=(WIDTH, HEAD + sum(heights)), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    story, *panels, bars = figure.subplots(len(heights), 1, sharex=True, height_ratios=heights)
    unit, unit_name = next((size, name) for most, size, name in UNITS if timeline.seconds <= most)
    colours = _colours(timeline)
    explained: set[str] = set()
    for axes, panel in zip(panels, timeline.panels, strict=True):
        _draw_panel(axes, panel, colours, unit)
        _explain(axes, explained)
    _draw_states(bars, timeline, unit)
    bars.set_xlim(0, max(timeline.seconds, 1e-3) / unit)
    bars.xaxis.set_major_locator(MaxNLocator(nbins=12, steps=STEPS))
    bars.set_xlabel(unit_name)
    figure.suptitle(timeline.title, x=0.01, horizontalalignment="left", fontsize=13, fontweight="bold")
    story.axis("off")

    figure.draw_without_rendering()  # from here on it is known how wide everything is
    placed = _places(figure, story, timeline, unit)
    rows = 1 + max((row for row, _, _ in placed), default=0)
    heights[0] = LINE * lines * rows
    figure.set_size_inches(WIDTH, HEAD + sum(heights))
    story.get_gridspec().set_height_ratios(heights)
    story.set_ylim(rows, 0)
    for row, left, mark in placed:
        story.text(left, row, mark.text, fontsize=9, verticalalignment="top", linespacing=1.3, bbox=WHITE, zorder=3)
    worded = {id(mark) for _, _, mark in placed}
    for mark in timeline.marks:
        strong = id(mark) in worded
        for axes in (story, *panels, bars) if strong else (*panels, bars):
            axes.axvline(mark.t / unit, color="#444444", alpha=1.0 if strong else 0.25, **DASHED)
    return figure


def _places(figure: Figure, axes: Any, timeline: Timeline, unit: float) -> list[tuple[int, float, Mark]]:
    """(row, left edge, mark) for texts that find a place: beside their line, in the first row where they meet none."""
    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]
    whole = max(timeline.seconds, 1e-3) / unit
    a_pixel = whole / axes.get_window_extent(renderer).width
    taken: list[list[tuple[float, float]]] = [[] for _ in range(ROWS)]
    placed = []
    for mark in timeline.marks:
        if not mark.text:
            continue
        text = axes.text(0, 0, mark.text, fontsize=9)
        width = text.get_window_extent(renderer).width * a_pixel
        text.remove()
        left = min(mark.t / unit + 4 * a_pixel, whole - width)
        right = left + width + APART * a_pixel
        row = next((n for n, row in enumerate(taken) if all(right <= a or b <= left for a, b in row)), None)
        if row is not None and left >= 0:
            taken[row].append((left, right))
            placed.append((row, left, mark))
    return placed


def _colours(timeline: Timeline) -> dict[str, str]:
    names = dict.fromkeys([*timeline.spans, *(name for panel in timeline.panels for name in panel.lanes)])
    left = [colour for colour in COLOURS if colour not in timeline.colours.values()]
    free = iter([*left, *[COLOURS[-1]] * len(names)])
    return {name: timeline.colours.get(name) or next(free) for name in names}


def _draw_panel(axes: Any, panel: Panel, colours: Mapping[str, str], unit: float) -> None:
    times = [t / unit for t in panel.times]
    if panel.stacked:
        own = [colours[name] for name in panel.lanes]
        axes.stackplot(times, list(panel.lanes.values()), labels=list(panel.lanes), colors=own, linewidth=0, alpha=0.9)
        if len(panel.lanes) > 1:
            total = [sum(column) for column in zip(*panel.lanes.values(), strict=True)]
            axes.plot(times, total, color="#222222", linewidth=0.9, label="together")
    else:
        for name, values in panel.lanes.items():
            axes.plot(times, values, color=colours[name], linewidth=1.1, label=name)
    seen = sorted(value for values in panel.lanes.values() for value in values if value > 0)
    if not panel.stacked and seen and seen[-1] > WIDE * seen[len(seen) // 2]:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
    else:
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_locator(MaxNLocator(nbins=6, steps=STEPS))
    axes.set_ylabel(panel.label)
    axes.grid(axis="y", alpha=0.25)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _explain(axes: Any, explained: set[str]) -> None:
    """A legend of what no panel above has explained."""
    handles, labels = axes.get_legend_handles_labels()
    new = {label: handle for handle, label in zip(handles, labels, strict=True) if label not in explained}
    explained.update(new)
    if new:
        _legend(axes, list(new.values()), list(new))


def _legend(axes: Any, handles: Sequence[Any], labels: Sequence[str]) -> None:
    axes.legend(handles, labels, loc="upper left", bbox_to_anchor=(1.015, 1.0), fontsize=8, frameon=False)


def _draw_states(axes: Any, timeline: Timeline, unit: float) -> None:
    """A bar for each lane: when it had a connection, and in which state."""
    for row, spans in enumerate(timeline.spans.values()):
        for start, end, state in spans:
            if state in STATES and end > start:
                axes.barh(row, (end - start) / unit, left=start / unit, height=0.6, color=STATES[state], linewidth=0)
    axes.set_yticks(range(len(timeline.spans)), list(timeline.spans))
    axes.set_ylim(max(1, len(timeline.spans)) - 0.4, -0.6)
    occurring = [state for state in STATES if any(s == state for spans in timeline.spans.values() for _, _, s in spans)]
    if occurring:
        _legend(axes, [axes.barh(-5, 0, color=STATES[state]) for state in occurring], occurring)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(left=False)
