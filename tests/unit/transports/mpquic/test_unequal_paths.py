"""Two paths are not worse than the better one alone, whichever comes first: downloads of 1 MB in virtual time."""

from __future__ import annotations

import pytest

from multi.lab.engines.links import link_of
from tests.unit.transports.mpquic.ends import connected_engines

MEGABYTE = 1_000_000
LEAST = 0.97  # of the better path's rate
Link = tuple[float, float]
"""Mbit/s and seconds of round trip."""

GRID: list[tuple[str, Link, Link]] = [
    ("noq", (10, 0.044), (10, 0.352)),
    ("noq", (10, 0.020), (10, 0.160)),
    ("noq", (10, 0.160), (10, 0.020)),
    ("noq", (50, 0.020), (10, 0.160)),
    ("noq", (10, 0.160), (50, 0.020)),
    ("noq", (50, 0.010), (5, 0.300)),
    ("noq", (5, 0.300), (50, 0.010)),
    ("noq", (10, 0.044), (1, 0.044)),
    ("aioquic", (10, 0.160), (10, 0.020)),
    ("aioquic", (10, 0.080), (50, 0.020)),
]


@pytest.mark.parametrize(("engine", "first", "second"), GRID)
def test_two_unequal_paths_are_as_fast_as_the_better_one(engine: str, first: Link, second: Link) -> None:
    specs = [(link_of(*link),) * 2 for link in (first, second)]
    alone = min(connected_engines(engine, engine, spec).download(MEGABYTE) for spec in specs)
    assert connected_engines(engine, engine, *specs).download(MEGABYTE) <= alone / LEAST
