"""`multi get`: fetch a file."""

from __future__ import annotations

import argparse
from pathlib import Path

from multi.cli.arguments import Subparsers, add_command


def add_parser(commands: Subparsers) -> None:
    parser = add_command(commands, "get", run, "fetch a file over all connections")
    parser.add_argument("config", metavar="CONFIG", help="the client's configuration")
    parser.add_argument("name", metavar="NAME", help="the file's name on the server")
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, help="where to put it (default: here, same name)")


def run(parsed: argparse.Namespace) -> int:
    from multi.cli.copy import run_get

    return run_get(parsed.config, parsed.name, parsed.output)
