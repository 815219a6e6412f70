"""Everyday use beside asyncio's own streams: `make bench ARGS=everyday`, `python -m benchmarks.everyday [--quick]`.

Every figure is measured in processes of its own, party after party, several rounds; a ratio is taken within a round,
and its median is held against what is promised. Processor time counts, because machines are shared.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from dataclasses import dataclass

from benchmarks import ROOT
from benchmarks.everyday.measure import CLIENTS, imported
from benchmarks.verdicts import verdict_at_most

IMPORT = "import multi"
NAMES = "from multi import open_connection, start_server"
FIRST_SESSION = "import asyncio; from benchmarks.everyday.measure import first_session; asyncio.run(first_session())"


@dataclass(frozen=True)
class Row:
    figure: str
    title: str
    unit: str
    parties: tuple[str, ...]
    promises: tuple[float, ...]
    """One for each party: at most so many times asyncio's figure, or at most so much (`absolute`)."""
    count: int
    quick: int
    absolute: bool = False


ROWS = (
    Row("ping_pong", "100-byte ping-pong, both ends", "us", ("sealed", "unprotected"), (3.0, 2.5), 10_000, 2_000),
    Row("one_way", "100-byte write + drain, both ends", "us", ("sealed", "unprotected"), (3.0, 3.0), 40_000, 8_000),
    Row(
        "broadcast",
        f"120-byte line to {CLIENTS} clients, server, a line",
        "us",
        ("sealed", "sealed two"),
        (60.0, 80.0),
        100,
        30,
        absolute=True,
    ),
    Row("chat", f"chat of {CLIENTS}, one process, median latency", "ms", ("sealed",), (6.0,), 200, 40, absolute=True),
    Row("streams", "stream opened, 100 bytes each way, closed", "ms", ("sealed",), (0.3,), 2_000, 400, absolute=True),
    Row("first_quic", "a session waits while QUIC is loaded, longest", "ms", ("sealed",), (20.0,), 1, 1, absolute=True),
)
WITHOUT_ASYNCIO = ("streams", "first_quic")  # it has no such thing
LIGHT = {"s": 0.15, "MB": 30.0}
ASYNCIO = "asyncio"


def measure(figure: str, party: str, count: int) -> float:
    command = [sys.executable, "-m", "benchmarks.everyday.measure", figure, party, str(count)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True, timeout=300)
    (value,) = json.loads(done.stdout).values()
    return float(value)


def _row(row: Row, rounds: int, *, quick: bool) -> None:
    beside = () if row.figure in WITHOUT_ASYNCIO else (ASYNCIO,)
    values: dict[str, list[float]] = {party: [] for party in (*beside, *row.parties)}
    for _ in range(rounds):
        for party, measured in values.items():
            measured.append(measure(row.figure, party, row.quick if quick else row.count))
    print(f"  {row.title}")
    for party, measured in values.items():
        line = f"    {party:12} {statistics.median(measured):8.2f} {row.unit}  (min {min(measured):.2f})"
        if beside and party != ASYNCIO:
            ratio = statistics.median(own / base for own, base in zip(measured, values[ASYNCIO], strict=True))
            line += f"  {ratio:5.2f} x asyncio"
        if party != ASYNCIO:
            promise = row.promises[row.parties.index(party)]
            value = statistics.median(measured) if row.absolute else ratio
            line += f"  promised {promise:g}{'' if row.absolute else ' x'}: {verdict_at_most(value, promise)}"
        print(line, flush=True)


def _imports(rounds: int) -> None:
    print("  import in a fresh interpreter, processor time and resident memory")
    for statement in ("import asyncio", IMPORT, NAMES):
        figures = [imported(statement) for _ in range(rounds)]
        medians = {unit: statistics.median(figure[unit] for figure in figures) for unit in LIGHT}
        line = f"    {statement:48} {medians['s']:.3f} s  {medians['MB']:.1f} MB"
        if statement != "import asyncio":
            line += "".join(
                f"  promised {promise:g} {unit}: {verdict_at_most(medians[unit], promise)}"
                for unit, promise in LIGHT.items()
            )
        print(line, flush=True)
    figures = [imported(FIRST_SESSION) for _ in range(rounds)]
    print(
        f"    from nothing to the first line over a sealed session and back, both ends:"
        f" {statistics.median(figure['s'] for figure in figures):.3f} s"
        f"  {statistics.median(figure['MB'] for figure in figures):.1f} MB",
        flush=True,
    )


def run(*, quick: bool, rounds: int = 0) -> None:
    """Print each figure, its ratio and what is promised of it."""
    rounds = rounds or (1 if quick else 5)
    print(f"loopback, {rounds} round(s) of each party in turn, medians")
    for row in ROWS:
        _row(row, rounds, quick=quick)
    _imports(3 if quick else 7)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=0, help="default: 5")
    parser.add_argument("--quick", action="store_true", help="one round of short runs: a look, not a measurement")
    chosen = parser.parse_args()
    run(quick=chosen.quick, rounds=chosen.rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
