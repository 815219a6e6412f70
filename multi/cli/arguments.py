"""What the parsers of several commands share."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TypeAlias

Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

VERBOSE = "log to stderr (-vv: in detail), show tracebacks"


def add_command(
    commands: Subparsers, name: str, run: Callable[[argparse.Namespace], int] | None, help: str
) -> argparse.ArgumentParser:
    """A parser for `multi NAME`, which calls `run`; without `run` further words have to follow."""
    added = commands.add_parser(name, help=help, description=help, allow_abbrev=False)
    if run is not None:
        added.add_argument("-v", "--verbose", action="count", default=argparse.SUPPRESS, help=VERBOSE)
        added.set_defaults(run=run)
    return added


def positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 86_400:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0 and up to 86400")
    return value


def byte_count(text: str) -> int:
    """A number of bytes, `K`, `M` and `G` as powers of 1024."""
    factor = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:].upper(), 1)
    try:
        value = int(text[:-1] if factor > 1 else text) * factor
    except ValueError:
        value = 0
    if value <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number of bytes")
    return value
