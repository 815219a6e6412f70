"""The pictures of the figures, one PNG each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib.figure import Figure as Picture

from benchmarks.mpquic.cells import Results
from benchmarks.mpquic.figures import Paper

__all__ = ["draw"]

SIZE, DPI = (6.5, 3.6), 100


def draw(papers: Sequence[Paper], results: Results, directory: Path, prefix: str) -> dict[str, Path]:
    """Of all figures that have one and of which something was run, by their keys."""
    directory.mkdir(parents=True, exist_ok=True)
    drawn = {}
    for figure in (figure for paper in papers for figure in paper.figures):
        if not any(results.of(cell) is not None for cell in figure.cells()):
            continue
        picture = Picture(figsize=SIZE, layout="constrained")
        figure.draw(results, picture)
        if not picture.axes:
            continue
        for axes in picture.axes:
            axes.grid(alpha=0.3)
            for side in ("top", "right"):
                axes.spines[side].set_visible(False)
            if axes.get_legend_handles_labels()[1]:
                axes.legend(fontsize=7)
        path = directory / f"{prefix}{figure.key}.png"
        # Without the version of matplotlib in it, the same picture is the same file.
        picture.savefig(path, dpi=DPI, metadata={"Software": None})
        drawn[figure.key] = path
    return drawn
