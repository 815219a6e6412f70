"""The grid of small receive windows: what its report counts, and that windows are as small as a point says."""

from __future__ import annotations

from pathlib import Path as FilePath

from benchmarks.grid.points import Path, Point
from benchmarks.grid.report import Store
from benchmarks.grid.virtual import Task, transfer
from benchmarks.grid.windows import SIZE, cells, tasks, write_report


def test_the_report_counts_pairs_that_are_slower_than_the_better_path_alone(tmp_path: FilePath) -> None:
    store = Store(tmp_path, SIZE)
    wanted = list(tasks(quick=True))
    slow = next(task.point for task in wanted if task.window == 512 * 1024)
    for task in wanted:
        together = 8.0 if task.point == slow else 12.0
        store.put(store.virtual(task), {"mbps": {"1": 10.0, "2": 5.0}.get(task.part, together)})
    text = write_report(store, tmp_path / "report.md", quick=True)
    assert "| 512 KiB | 6 | 0.800 | 1.200 | 1.200 | 1 |" in text
    assert "| 1024 KiB | 6 | 1.200 | 1.200 | 1.200 | 0 |" in text
    assert text.count("| 0.800 |") == 2, "in the sum, and as the first of the worst"


def test_the_report_tells_of_real_kernels_apart(tmp_path: FilePath) -> None:
    store = Store(tmp_path, SIZE)
    for cell in cells(None, quick=True):
        runs = {part: {"mbps": {"1": 10.0, "2": 5.0, "adaptive": 9.0}[part]} for part in cell.parts}
        store.put(store.testbed(cell.point, cell.congestion, cell.number), dict(runs))
    text = write_report(store, tmp_path / "report.md", quick=True)
    assert "in virtual time" not in text
    assert "## With real kernels" in text
    assert "| 128 KiB | 3 | 0.900 | 0.900 | 0.900 | 3 |" in text


def test_each_part_of_a_run_on_the_testbed_comes_first_in_some_run() -> None:
    first = {cell.parts[0] for cell in cells(None, quick=False)}
    assert first == {"1", "2", "adaptive"}


def test_a_transfer_carries_no_more_than_its_window_in_a_round_trip() -> None:
    point = Point("near", (Path(80.0, 0.040, 0.0, 800e3),))
    window = 64 * 1024
    bound = window * 8 / 1e6 / 0.040
    assert transfer(Task(point, "1", "bbr", size=1_000_000, window=window)).mbps < bound
    assert transfer(Task(point, "1", "bbr", size=1_000_000)).mbps > 1.5 * bound
