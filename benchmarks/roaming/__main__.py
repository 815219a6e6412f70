"""Measure what happens to a session when networks come, go and die: `make bench-roaming`.

Every run of every row is stored as JSON under `benchmarks/results/roaming`, and what is there is not measured again, so
an interrupted benchmark goes on where it was. The report is `benchmarks/results/roaming.md`. The rows are in
`benchmarks.roaming.rows`.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args

from benchmarks import RESULTS
from benchmarks.revision import described
from benchmarks.roaming.report import figure_in_words, report
from benchmarks.roaming.rows import BASE, FULL, ROWS, SHORT, Outcome, Row, measure
from benchmarks.roaming.stage import Transport, Variant
from multi.errors import TransportError
from multi.lab.testbed import TestbedNotAllowed
from multi.transports.quic.engine import implementation

ROUNDS = 10  # of the sessions promises are made for
VARIANT_ROUNDS = 3  # at most, of each other kind of session unless it is the only one

EACH: tuple[Variant, ...] = (
    BASE,
    replace(BASE, transport="quic"),
    replace(BASE, transport="quic-qh3"),
    replace(BASE, transport="mptcp"),
    replace(BASE, transport="mixed"),
    replace(BASE, transport="one-mptcp"),
    replace(BASE, transport="mpquic-aioquic"),
    replace(BASE, transport="mpquic-noq"),
    replace(BASE, version=6),
    replace(BASE, way="up"),
    replace(BASE, loop="uvloop"),
    replace(BASE, congestion="cubic"),
)
"""The base, and what differs from it in one thing."""


def all_variants() -> tuple[Variant, ...]:
    """Every kind of session."""
    return tuple(
        Variant(transport, version, way, loop, congestion)
        for transport in ("tcp", "quic", "mptcp", "mixed", "one-mptcp")
        for version in (4, 6)
        for way in ("down", "up")
        for loop in ("asyncio", "uvloop")
        for congestion in ("bbr", "cubic")
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="make bench-roaming", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="shorter, once: a look, not a measurement")
    parser.add_argument("--rounds", type=int, default=None, help=f"runs of each row; default {ROUNDS}, quick: 1")
    parser.add_argument("--only", action="append", choices=[row.key for row in ROWS], metavar="ROW", help="repeatable")
    parser.add_argument("--transport", choices=get_args(Transport))
    parser.add_argument(
        "--variants", choices=["base", "each", "all"], help="base; what differs in one thing (default); the product"
    )
    parser.add_argument("--report", action="store_true", help="measure nothing, write the report of what is there")
    parser.add_argument("--fresh", action="store_true", help="throw away what is there")
    parser.add_argument("--rows", action="store_true", help="list the rows")
    chosen = parser.parse_args()
    if chosen.rows:
        print("\n".join(f"{row.key:18} {row.event}: {row.promise}" for row in ROWS))
        return 0
    return _benchmark(chosen)


def _benchmark(chosen: argparse.Namespace) -> int:
    # A shell that starts this in the background has it ignore interruptions, and SIGTERM is made one of them.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    quick: bool = chosen.quick
    store = RESULTS / ("roaming-quick" if quick else "roaming")
    if chosen.fresh:
        shutil.rmtree(store, ignore_errors=True)
    variants = _playable(_variants(chosen))
    rows = [row for row in ROWS if (row.key in chosen.only if chosen.only else row.quick or not quick)]
    rounds = chosen.rounds or (1 if quick else ROUNDS)
    status = 0
    if not chosen.report:
        try:
            asyncio.run(_measure_all(list(_cells(rows, variants, rounds)), store, quick=quick))
        except KeyboardInterrupt:
            status = 130
        except TestbedNotAllowed as error:
            print(f"no testbed here: {error}", file=sys.stderr)
            return 1
    outcomes = [Outcome.decoded(path.read_text()) for path in sorted(store.glob("*/*/*.json"))]
    text = report(outcomes, variants, quick=quick)
    path = RESULTS / ("roaming-quick.md" if quick else "roaming.md")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    print(f"\n{text}\nThis report: {path}")
    return status


def _variants(chosen: argparse.Namespace) -> tuple[Variant, ...]:
    kind = chosen.variants or ("base" if chosen.quick else "each")
    if kind == "all":
        found = all_variants()
        return tuple(v for v in found if chosen.transport in (None, v.transport))
    if chosen.transport:
        base = replace(BASE, transport=chosen.transport)
        return (base,) if kind == "base" or base != BASE else tuple(v for v in EACH if v.transport == "tcp")
    return (BASE,) if kind == "base" else EACH


def _playable(variants: Sequence[Variant]) -> Sequence[Variant]:
    """Without those of the native engine where it is not built."""
    try:
        implementation("noq")
    except TransportError as error:
        print(f"mpquic-noq is left out: {error}", file=sys.stderr)
        return [variant for variant in variants if variant.transport != "mpquic-noq"]
    return variants


def _cells(rows: Sequence[Row], variants: Sequence[Variant], rounds: int) -> Iterator[tuple[Row, Variant, int]]:
    """Round by round, so that an early end leaves something of everything."""
    limit = VARIANT_ROUNDS if len(variants) > 1 else rounds
    for number in range(1, rounds + 1):
        for variant in variants:
            if variant == BASE or number <= limit:
                yield from ((row, variant, number) for row in rows if row.takes(variant))


async def _measure_all(cells: Sequence[tuple[Row, Variant, int]], store: Path, *, quick: bool) -> None:
    # SIGTERM is an interruption too: what is under way is taken down in order.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, signal.raise_signal, signal.SIGINT)
    for index, (row, variant, number) in enumerate(cells, 1):
        path = store / row.key / str(variant) / f"{number:02}.json"
        what = f"[{index}/{len(cells)}] {row.key} {variant} run {number}"
        if path.exists():
            print(f"{what}: there", flush=True)
            continue
        print(f"{what}: ", end="", flush=True)
        started = time.monotonic()
        outcome = await measure(row, variant, SHORT if quick else FULL, number)
        outcome.revision = described()
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".unfinished")
        unfinished.write_text(outcome.encoded())
        unfinished.rename(path)
        words = [*map(figure_in_words, outcome.figures), *outcome.faults, "held" if outcome.held else "NOT HELD"]
        print(f"{'; '.join(words)}; {time.monotonic() - started:.0f} s", flush=True)


if __name__ == "__main__":
    sys.exit(main())
