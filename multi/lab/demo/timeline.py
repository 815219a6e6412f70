"""The timeline of a roaming demo as a picture. ImportError says that matplotlib is missing."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from multi.lab.demo.recording import Recorded
from multi.lab.timeline import Mark, Panel, Timeline, draw

SMOOTHING = 3  # samples a point is the average of: 0.3 s
COLOURS = {"WiFi": "#3b82c4", "5G": "#f0a03c"}


def draw_timeline(trace: Recorded, path: Path) -> None:
    """Write the picture as PNG."""
    rates = {network: _rates(trace, network) for network in trace["networks"]}
    verified = "verified by SHA-256" if trace["verified"] else "NOT VERIFIED"
    draw(
        Timeline(
            title=f"One download of {trace['size'] / 1e6:.0f} MB while networks come and go ({verified})",
            seconds=trace["seconds"],
            panels=[Panel("Mbit/s", [sample["t"] for sample in trace["samples"]], rates, height=4.2)],
            spans={network: _spans(trace, network) for network in trace["networks"]},
            marks=[Mark(mark["t"], _words(mark)) for mark in trace["story"]],
            colours=COLOURS,
        ),
        path,
    )


def _words(mark: Recorded) -> str:
    gap = mark["longest_gap"]
    pause = f"{gap:.1f} s" if gap >= 1 else f"{gap * 1000:.0f} ms"
    return f"{mark['title']}\n{'first byte after' if mark['key'] == 'start' else 'longest gap'} {pause}"


def _spans(trace: Recorded, network: str) -> list[tuple[float, float, str]]:
    """(from, to, state) of the connections over a network."""
    found = []
    for connection in trace["connections"]:
        if connection["network"] == network:
            states = [*connection["states"], (trace["seconds"], "closed", "")]
            found += [(start, end, state) for (start, state, _), (end, _, _) in pairwise(states)]
    return found


def _rates(trace: Recorded, network: str) -> list[float]:
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
