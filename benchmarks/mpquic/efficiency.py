"""How well paths are used together: phi of Kaspar, as Morawski and Karbowanczyk measure it (their formulas 1 and 2)."""

from __future__ import annotations

from collections.abc import Sequence


def efficiency(together: float, alone: Sequence[float]) -> float:
    """phi: 1 = the sum of what the paths carry alone, 0 = as the best of them, below 0 = less than it; -1 = nothing.

    `together` and `alone` are rates of the same unit. Raises ValueError for fewer than two paths.
    """
    if len(alone) < 2 or min(alone) <= 0:
        raise ValueError("the efficiency of several paths needs what at least two of them carry alone")
    best = max(alone)
    return (together - best) / (sum(alone) - best if together > best else best)


def running(together: Sequence[float], alone: Sequence[Sequence[float]]) -> list[float]:
    """phi(k) for series of rates at the same moments; moments when a path carried nothing alone are left out."""
    return [
        efficiency(rate, at)
        for rate, at in zip(together, zip(*alone, strict=True), strict=True)
        if min(at, default=0.0) > 0
    ]
