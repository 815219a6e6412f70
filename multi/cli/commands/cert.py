"""`multi cert`: certificates to try things out with."""

from __future__ import annotations

import argparse
from pathlib import Path

from multi.cli.arguments import Subparsers, add_command


def add_parser(commands: Subparsers) -> None:
    parser = add_command(commands, "cert", run, "make certificates for development")
    parser.add_argument("directory", metavar="DIR", type=Path, help="where to write them")
    parser.add_argument(
        "--name", metavar="NAME", action="append", default=[], help="a name or address of the server; may be repeated"
    )


def run(parsed: argparse.Namespace) -> int:
    from multi.lab.cert import run_cert

    return run_cert(parsed.directory, parsed.name)
