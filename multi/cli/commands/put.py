"""`multi put`: store a file."""

from __future__ import annotations

import argparse
from pathlib import Path

from multi.cli.arguments import Subparsers, add_command


def add_parser(commands: Subparsers) -> None:
    parser = add_command(commands, "put", run, "store a file on the server over all connections")
    parser.add_argument("config", metavar="CONFIG", help="the client's configuration")
    parser.add_argument("file", metavar="FILE", type=Path, help="the file")
    parser.add_argument("--as", metavar="NAME", dest="name", help="its name on the server (default: the same)")
    parser.add_argument("--force", action="store_true", help="replace a file of that name")


def run(parsed: argparse.Namespace) -> int:
    from multi.cli.copy import run_put

    return run_put(parsed.config, parsed.file, parsed.name, force=parsed.force)
