"""Points spread evenly over the unit cube, always the same.

A WSP design (Santiago, Claeys-Bruno, Sergent, Chemometrics 2012; used for MPTCP by Paasch et al. and for multipath QUIC
by De Coninck and Bonaventure): from a dense set of candidates, go from one to its nearest neighbour and drop whatever
lies nearer than a distance d; d is the one that leaves as many points as are wanted.
"""

from __future__ import annotations

from functools import cache
from math import dist
from random import Random

__all__ = ["spread"]


@cache
def spread(dimensions: int, count: int, *, seed: int, candidates: int = 2000) -> tuple[tuple[float, ...], ...]:
    """`count` points; the distance that leaves so many is found by halving. The first are near the centre."""
    random = Random(seed)
    dense = [tuple(random.random() for _ in range(dimensions)) for _ in range(candidates)]
    low, high = 0.0, dimensions**0.5
    best: list[tuple[float, ...]] = []
    for _ in range(24):
        middle = (low + high) / 2
        found = _apart(dense, middle)
        if len(found) >= count:
            low, best = middle, found
            if len(found) == count:
                break
        else:
            high = middle
    return tuple(best[:count])


def _apart(candidates: list[tuple[float, ...]], distance: float) -> list[tuple[float, ...]]:
    """Candidates no two of which are nearer than `distance`."""
    centre = (0.5,) * len(candidates[0])
    left = sorted(candidates, key=lambda c: dist(c, centre))
    chosen: list[tuple[float, ...]] = []
    while left:
        here = left[0]
        chosen.append(here)
        near = [(dist(c, here), c) for c in left[1:]]
        left = [c for d, c in sorted(near) if d >= distance]
    return chosen
