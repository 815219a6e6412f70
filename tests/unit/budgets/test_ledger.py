"""The file in which programs count together what they have used."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from multi.budgets import ledger as ledgers
from multi.budgets.ledger import KEPT, Ledger, default_path

NOVEMBER, DECEMBER = "2026-11-01", "2026-12-01"
COUNTING = """
import sys
from pathlib import Path
from multi.budgets.ledger import Ledger
ledger = Ledger(Path(sys.argv[1]))
for _ in range(40):
    ledger.add("cellular", "2026-11-01", 1)
    ledger.sync()
assert not ledger.problem, ledger.problem
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "multi" / "budgets.json"


def test_what_was_counted_is_there_in_the_next_run_and_only_for_its_owner(path: Path) -> None:
    first = Ledger(path)
    first.add("cellular", NOVEMBER, 700)
    assert first.used("cellular", NOVEMBER) == 700
    first.sync()
    first.sync()
    again = Ledger(path)
    again.sync()
    assert first.used("cellular", NOVEMBER) == again.used("cellular", NOVEMBER) == 700
    assert path.stat().st_mode & 0o077 == path.parent.stat().st_mode & 0o077 == 0
    assert sorted(p.name for p in path.parent.iterdir()) == ["budgets.json", "budgets.lock"]


def test_two_processes_that_write_at_the_same_time_lose_nothing(path: Path) -> None:
    running = [subprocess.Popen([sys.executable, "-c", COUNTING, str(path)]) for _ in range(2)]
    assert [process.wait(60) for process in running] == [0, 0]
    assert json.loads(path.read_text()) == {"cellular": {NOVEMBER: 80}}


def test_threads_that_count_while_the_file_is_written_lose_nothing(path: Path) -> None:
    ledger = Ledger(path)

    def count() -> None:
        for number in range(50):
            ledger.add("cellular", NOVEMBER, 1)
            if number % 10 == 0:
                ledger.sync()

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ledger.sync()
    assert ledger.used("cellular", NOVEMBER) == json.loads(path.read_text())["cellular"][NOVEMBER] == 200


def test_looking_makes_no_file(path: Path) -> None:
    ledger = Ledger(path)
    ledger.sync()
    assert not ledger.problem
    assert not path.parent.exists()


def test_a_clock_that_was_wrong_for_a_while_costs_no_figures(path: Path) -> None:
    ledger = Ledger(path)
    for period, count in (
        (DECEMBER, 5),
        (NOVEMBER, 3),
        ("1970-01-01", 1),
        ("2099-01-01", 1),
        (NOVEMBER, 3),
        (DECEMBER, 1),
    ):
        ledger.add("cellular", period, count)
        ledger.sync()
    again = Ledger(path)
    again.sync()
    assert (again.used("cellular", NOVEMBER), again.used("cellular", DECEMBER)) == (6, 6)


def test_old_periods_are_forgotten(path: Path) -> None:
    ledger = Ledger(path)
    for year in range(2000, 2000 + 3 * KEPT):
        ledger.add("cellular", f"{year}-01-01", 1)
        ledger.sync()
    assert list(json.loads(path.read_text())["cellular"]) == [f"{2000 + n}-01-01" for n in range(2 * KEPT, 3 * KEPT)]


@pytest.mark.parametrize(
    "found", [b"", b"{", b"[]", b'{"cellular": 3}', b'{"cellular": {"2026-11-01": -1}}', b"\xff" * 9]
)
def test_a_damaged_file_is_left_alone_and_counting_goes_on(path: Path, found: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(found)
    ledger = Ledger(path)
    ledger.add("cellular", NOVEMBER, 7)
    ledger.sync()
    assert ledger.problem.startswith(f"{path}: damaged")
    ledger.add("cellular", NOVEMBER, 7)
    assert ledger.used("cellular", NOVEMBER) == 14
    assert path.read_bytes() == found
    path.write_text(json.dumps({"cellular": {NOVEMBER: 100}}))
    ledger.sync()
    assert not ledger.problem
    assert json.loads(path.read_text())["cellular"][NOVEMBER] == ledger.used("cellular", NOVEMBER) == 114


def test_a_full_disk_leaves_the_file_whole_and_loses_no_count(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger(path)
    ledger.add("cellular", NOVEMBER, 7)
    ledger.sync()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        ledger.add("cellular", NOVEMBER, 3)
        ledger.sync()
        assert ledger.problem == f"{path}: No space left on device"
        assert ledger.used("cellular", NOVEMBER) == 10
        assert json.loads(path.read_text()) == {"cellular": {NOVEMBER: 7}}
        assert sorted(p.name for p in path.parent.iterdir()) == ["budgets.json", "budgets.lock"]
    ledger.sync()
    assert not ledger.problem
    assert json.loads(path.read_text()) == {"cellular": {NOVEMBER: 10}}


def test_a_program_that_holds_the_lock_stops_nobody_from_counting(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledgers, "LOCK_TIMEOUT", 0.0)
    fcntl = pytest.importorskip("fcntl")
    path.parent.mkdir()
    with path.with_suffix(".lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        ledger = Ledger(path)
        ledger.add("cellular", NOVEMBER, 7)
        ledger.sync()
        assert "another program holds its lock" in ledger.problem
    ledger.sync()
    assert not ledger.problem
    assert ledger.used("cellular", NOVEMBER) == 7


def test_without_a_place_for_the_file_there_is_a_reason(path: Path) -> None:
    ledger = Ledger(None)
    ledger.add("cellular", NOVEMBER, 7)
    ledger.sync()
    assert "home directory" in ledger.problem
    assert ledger.used("cellular", NOVEMBER) == 7


def test_a_forked_process_does_not_write_what_its_parent_has_counted(path: Path) -> None:
    ledger = Ledger(path)
    ledger.add("cellular", NOVEMBER, 7)
    ledger.forget_fresh()
    ledger.sync()
    assert not path.exists()


def test_the_file_is_where_the_desktop_keeps_state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert default_path() == tmp_path / "multi" / "budgets.json"
    monkeypatch.setenv("HOME", str(tmp_path))
    for unusable in ("", "relative"):  # "All paths set in these environment variables must be absolute"
        monkeypatch.setenv("XDG_STATE_HOME", unusable)
        assert default_path() == tmp_path / ".local" / "state" / "multi" / "budgets.json"
