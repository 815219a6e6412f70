"""The parts of `make bench`: all of them are named where people look for them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks import __main__ as bench

ROOT = Path(__file__).parents[3]


def test_the_makefile_names_every_part() -> None:
    found = re.search(r"Parts: ([\w, \n#]+)\.", (ROOT / "Makefile").read_text("utf-8"))
    assert found is not None
    assert re.findall(r"\w+", found[1]) == list(bench.PARTS)


@pytest.mark.parametrize(("kept", "status"), [(None, 0), (True, 0), (False, 1)])
def test_a_part_that_fell_short_is_seen_in_the_exit_code(
    kept: bool | None, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(bench.PARTS, "herd", lambda quick: kept)
    monkeypatch.setattr("sys.argv", ["benchmarks", "herd"])
    assert bench.main() == status
