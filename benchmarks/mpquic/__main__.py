"""Do experiments of four papers on multipath QUIC again, and put their numbers next to ours: `make bench-mpquic`.

Real engines in virtual time, and sessions beside the kernel's TCP and MPTCP on the testbed (best on an idle machine).
Every cell is kept in `benchmarks/results/mpquic.jsonl` as soon as it is there, and what is there, or in the packed
results that come with the project, is not run again. The report is `benchmarks/results/mpquic.md`; `--pack` makes
docs/evaluation-mpquic.md of all results there are.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks import RESULTS, ROOT
from benchmarks.mpquic import fairness, morawski, multiflow, spaces, viernickel
from benchmarks.mpquic.cells import Cell, Outcome, Results
from benchmarks.mpquic.figures import Paper, Scale
from benchmarks.mpquic.report import lines_of_targets, page, write
from benchmarks.mpquic.stage import Unfinished
from benchmarks.mpquic.store import PACKED, Entry, Store, machine
from benchmarks.mpquic.testbed import why_not
from benchmarks.revision import described
from multi.errors import TransportError
from multi.transports.quic.engine import implementation

PAGE = ROOT / "docs" / "evaluation-mpquic.md"


def main() -> int:
    parser = argparse.ArgumentParser(prog="make bench-mpquic", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="less of everything: a look, in under five minutes")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="TEXT",
        help="cells whose name contains this, such as multiflow-5, noq or testbed, or `virtual`: all but those on the "
        "testbed; more than one: all of them",
    )
    parser.add_argument("--seconds", type=float, help="begin no further cell after so many seconds; default: run all")
    parser.add_argument("--report", action="store_true", help="run nothing, write the report of what is there")
    parser.add_argument(
        "--pack", action="store_true", help="run nothing, put what is there into the project: packed results and page"
    )
    parser.add_argument("--fresh", action="store_true", help="run again what is there")
    parser.add_argument("--cells", action="store_true", help="list the cells")
    return _benchmark(parser, parser.parse_args())


def papers(scale: Scale) -> list[Paper]:
    """In the order of the page."""
    modules = (viernickel, multiflow, spaces, morawski, fairness)
    return [module.paper(scale) for module in modules]


def _benchmark(parser: argparse.ArgumentParser, chosen: argparse.Namespace) -> int:
    # A shell that starts this in the background has it ignore interruptions, and SIGTERM is made one of them.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    quick: bool = chosen.quick
    shown = papers(Scale.QUICK if quick else Scale.FULL)
    cells = [cell for cell in _cells(shown) if all(_is_meant(cell, text) for text in chosen.only)]
    if not cells:
        parser.error(f"no cell has all of {', '.join(chosen.only)} in its name; --cells lists them")
    if chosen.cells:
        print("\n".join(cell.key for cell in cells))
        return 0
    store = Store(RESULTS / "mpquic-quick.jsonl") if quick else Store(RESULTS / "mpquic.jsonl", PACKED)
    if chosen.pack:
        if quick:
            parser.error("--pack is for full results")
        print(f"{store.pack({cell.key for cell in _cells(shown)})} cells are in {PACKED.relative_to(ROOT)}")
        print(f"The page: {_write(shown, store, PAGE, quick=False)}")
        return 0
    status = 0
    if not chosen.report:
        try:
            status = _run(cells, store, fresh=chosen.fresh, seconds=chosen.seconds)
        except KeyboardInterrupt:
            status = 130
    path = _write(shown, store, RESULTS / ("mpquic-quick.md" if quick else "mpquic.md"), quick=quick)
    results = Results({key: entry.outcome for key, entry in store.entries().items()})
    print("\n".join(["", *lines_of_targets(shown, results), "", f"The report: {path}"]))
    return status


def _is_meant(cell: Cell, text: str) -> bool:
    return not cell.on_testbed if text == "virtual" else text in cell.key


def _cells(shown: Sequence[Paper]) -> Sequence[Cell]:
    """Each once, since figures share some; in an order in which all figures get on equally far."""
    found: dict[str, Cell] = {}
    share: dict[str, float] = {}
    for figure in (figure for paper in shown for figure in paper.figures):
        cells = figure.cells()
        for index, cell in enumerate(cells):
            found.setdefault(cell.key, cell)
            share.setdefault(cell.key, index / len(cells))
    return sorted(found.values(), key=lambda cell: share[cell.key])


def _run(cells: Sequence[Cell], store: Store, *, fresh: bool, seconds: float | None) -> int:
    there = set() if fresh else set(store.entries())
    missing = [cell for cell in cells if cell.key not in there]
    for reason, left_out in _without(missing):
        print(f"{len(left_out)} cells are left out: {reason}", file=sys.stderr)
        missing = [cell for cell in missing if cell not in left_out]
    revision, where, begin, failed = described(), machine(), time.monotonic(), 0
    for index, cell in enumerate(missing, 1):
        if seconds is not None and time.monotonic() - begin > seconds:
            print(f"{len(missing) - index + 1} cells are left for another time", flush=True)
            break
        started = sum(os.times()[:4])
        try:
            outcome = cell.play.run(cell.setup, cell.seed)
        except Unfinished as error:
            print(f"[{index}/{len(missing)}] {cell.key}: FAILED, {error}", flush=True)
            failed += 1
            continue
        taken = sum(os.times()[:4]) - started  # children, which have ended, too
        store.put(Entry(cell.key, outcome, revision, where, round(taken, 2)))
        print(f"[{index}/{len(missing)}] {cell.key}: {_in_words(outcome)}; {taken:.1f} s", flush=True)
    return 1 if failed else 0


def _without(cells: Sequence[Cell]) -> Iterator[tuple[str, Sequence[Cell]]]:
    """What cannot be run here, and why."""
    if native := [cell for cell in cells if cell.setup.engine == "noq"]:
        try:
            implementation("noq")
        except TransportError as error:
            yield f"no native engine: {error}", native
    on_testbed = [cell for cell in cells if cell.on_testbed]
    if on_testbed and (reason := why_not()):
        yield f"no testbed here: {reason}", on_testbed


def _in_words(outcome: Outcome) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in outcome.values.items())


def _write(shown: Sequence[Paper], store: Store, path: Path, *, quick: bool) -> Path:
    entries = store.entries()
    results = Results({key: entry.outcome for key, entry in entries.items()})
    pictures = dict(_pictures(shown, results, path))
    write(path, page(shown, entries, pictures, quick=quick))
    return path


def _pictures(shown: Sequence[Paper], results: Results, page: Path) -> Iterator[tuple[str, str]]:
    """Names relative to the page, by figure; none without matplotlib."""
    try:
        from benchmarks.mpquic.pictures import draw
    except ImportError as error:
        print(f"no pictures: {error}", file=sys.stderr)
        return
    for key, path in draw(shown, results, page.parent, f"{page.stem}-").items():
        yield key, path.name


if __name__ == "__main__":
    sys.exit(main())
