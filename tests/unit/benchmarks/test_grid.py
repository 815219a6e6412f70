"""What a run of a point measures on the testbed, and what the report makes of it."""

from __future__ import annotations

from benchmarks.grid.points import testbed_points as points_with_kernels
from benchmarks.grid.report import _mpquic_part
from benchmarks.grid.stage import TOGETHER, Cell

POINT = points_with_kernels()[0]


def test_one_connection_of_multipath_quic_is_judged_by_the_paths_alone_with_it() -> None:
    parts = [Cell(POINT, "bbr", number, TOGETHER, 1).parts for number in (1, 2, 3)]
    numbers = [str(n) for n in range(1, len(POINT.paths) + 1)]
    expected = {*numbers, *TOGETHER, *(f"mpquic {n}" for n in numbers)}
    assert all(set(each) == expected and len(each) == len(expected) for each in parts)
    assert len({tuple(each) for each in parts}) == 3, "the order changes with the run"
    assert set(Cell(POINT, "cubic", 1, ("adaptive",), 1).parts) == {*numbers, "adaptive"}


def test_the_lowest_share_of_the_best_path_is_what_the_promise_is_about() -> None:
    alone = {f"mpquic {n}": 10.0 * n for n in range(1, len(POINT.paths) + 1)}
    best = max(alone.values())
    held = _mpquic_part([(POINT, [alone | {"mpquic": best}, {"adaptive": 1.0}])])
    assert "1.000" in held[-1]
    assert "held" in held[-1]
    short = _mpquic_part([(POINT, [alone | {"mpquic": 0.5 * best}])])
    assert "0.500" in short[-1]
    assert "short" in short[-1]
    assert _mpquic_part([(POINT, [{"adaptive": 1.0}])]) == []
