"""The command line of benchmarks that consist of parts, each measured in rounds."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import Protocol


class Run(Protocol):
    """Measures the parts named in `only`, all where it is empty; `rounds` 0 = as many as usual."""

    def __call__(self, *, quick: bool, only: list[str] | None = None, rounds: int = 0) -> None: ...


def main(run: Run, parts: Iterable[str], description: str | None, rounds: int) -> int:
    """Parse the command line and `run` what it names; `rounds` are the usual ones. Returns 0."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("only", nargs="*", choices=[*parts, []], help="default: all")
    parser.add_argument("--rounds", type=int, default=0, help=f"of what takes real time; default: {rounds}")
    parser.add_argument("--quick", action="store_true", help="one round of short runs: a look, not a measurement")
    chosen = parser.parse_args()
    run(quick=chosen.quick, only=chosen.only, rounds=chosen.rounds)
    return 0
