"""Do the paper's evaluation again, Figures 4 to 11, and put its numbers next to ours: `make bench-paper`.

Every run of every cell is stored as JSON under `benchmarks/results/paper`, and what is there is not measured again, so
an interrupted evaluation goes on where it was. The report is `benchmarks/results/paper.md`, with a picture of each
figure beside it. The cells are in `benchmarks.paper.cells`.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks import RESULTS
from benchmarks.paper.cells import CELLS, FULL, QUICK, Cell, Lengths, Outcome, measure
from benchmarks.paper.report import Results, promises, report
from benchmarks.paper.stage import iperf3_is_installed, paper_stage
from benchmarks.revision import described
from multi.lab.testbed import TestbedNotAllowed

ROUNDS = 10  # iterations, as in the paper


def main() -> int:
    parser = argparse.ArgumentParser(prog="make bench-paper", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="once, less and shorter: a look, not a measurement")
    parser.add_argument("--rounds", type=int, default=None, help=f"iterations; default {ROUNDS}, quick: 1")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="TEXT",
        help="cells whose name contains this, such as 05-small, multi-quic or 5g-rx; more than one: all of them",
    )
    parser.add_argument("--report", action="store_true", help="measure nothing, write the report of what is there")
    parser.add_argument("--fresh", action="store_true", help="throw away what is there")
    parser.add_argument("--cells", action="store_true", help="list the cells")
    chosen = parser.parse_args()
    cells = [cell for cell in CELLS if all(text in cell.key for text in chosen.only)]
    if chosen.cells:
        print("\n".join(cell.key for cell in cells))
        return 0
    if not cells:
        parser.error(f"no cell has all of {', '.join(chosen.only)} in its name; --cells lists them")
    return _benchmark(chosen, cells)


def _benchmark(chosen: argparse.Namespace, cells: Sequence[Cell]) -> int:
    # A shell that starts this in the background has it ignore interruptions, and SIGTERM is made one of them.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    quick: bool = chosen.quick
    name, lengths = ("paper-quick", QUICK) if quick else ("paper", FULL)
    store = RESULTS / name
    if chosen.fresh:
        shutil.rmtree(store, ignore_errors=True)
    status = 0
    if not chosen.report:
        try:
            asyncio.run(_measure_all(cells, store, lengths, chosen.rounds or (1 if quick else ROUNDS)))
        except KeyboardInterrupt:
            status = 130
        except TestbedNotAllowed as error:
            print(f"no testbed here: {error}", file=sys.stderr)
            return 1
    outcomes = [Outcome.decoded(path.read_text()) for path in sorted(store.glob("*/*/*.json"))]
    path = RESULTS / f"{name}.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    pictures = _pictures(outcomes, lengths, RESULTS / f"{name}-pictures")
    path.write_text(report(outcomes, lengths, pictures, quick=quick))
    print("\n".join(["", "| promise | measured | verdict |", *promises(Results(outcomes)), f"The report: {path}"]))
    return status


def _pictures(outcomes: Sequence[Outcome], lengths: Lengths, directory: Path) -> dict[str, str]:
    """File names, relative to the report, by figure; none without matplotlib."""
    try:
        from benchmarks.paper.pictures import draw
    except ImportError as error:
        print(f"no pictures: {error}", file=sys.stderr)
        return {}
    directory.mkdir(exist_ok=True)
    return {path.stem: f"{directory.name}/{path.name}" for path in draw(Results(outcomes), lengths, directory)}


def _rounds(cells: Sequence[Cell], store: Path, rounds: int) -> Iterator[tuple[int, list[tuple[Cell, Path]]]]:
    """Round by round, what is not there yet: an early end leaves something of everything."""
    for number in range(1, rounds + 1):
        missing = [(cell, store / cell.key / f"{number:02}.json") for cell in cells]
        yield (
            number,
            [(c, path) for c, path in missing if not path.exists() and number <= (c.most_rounds or number)],
        )


async def _measure_all(cells: Sequence[Cell], store: Path, lengths: Lengths, rounds: int) -> None:
    # SIGTERM is an interruption too: what is under way is taken down in order.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, signal.raise_signal, signal.SIGINT)
    if not iperf3_is_installed():
        print("iperf3 is not installed: its cells are left out", flush=True)
        cells = [cell for cell in cells if cell.party != "iperf"]
    revision = described()
    for number, missing in _rounds(cells, store, rounds):
        if not missing:
            continue
        async with paper_stage(number) as stage:
            for index, (cell, path) in enumerate(missing, 1):
                print(f"[round {number} of {rounds}, {index}/{len(missing)}] {cell.key}: ", end="", flush=True)
                started = time.monotonic()
                outcome = await measure(cell, stage, lengths, number)
                outcome.revision = revision
                path.parent.mkdir(parents=True, exist_ok=True)
                unfinished = path.with_suffix(".unfinished")
                unfinished.write_text(outcome.encoded())
                unfinished.rename(path)
                print(f"{_in_words(outcome)}; {time.monotonic() - started:.1f} s", flush=True)


def _in_words(outcome: Outcome) -> str:
    words = [f"{name} {', '.join(f'{v:.1f}' for v in values)}" for name, values in outcome.values.items()]
    return "; ".join([*words, *(f"FAILED: {fault}" for fault in outcome.faults)])


if __name__ == "__main__":
    sys.exit(main())
