"""`multi serve`: run the file service until a signal comes."""

from __future__ import annotations

import argparse
from pathlib import Path

from multi.cli.arguments import Subparsers, add_command


def add_parser(commands: Subparsers) -> None:
    parser = add_command(commands, "serve", run, "serve the files of a directory")
    parser.add_argument("config", metavar="CONFIG", help="the server's configuration")
    parser.add_argument("--dir", metavar="DIR", required=True, type=Path, help="the directory; nothing outside of it")
    parser.add_argument("--allow-put", action="store_true", help="let clients store files")


def run(parsed: argparse.Namespace) -> int:
    from multi.cli.serve import run_serve

    return run_serve(parsed.config, parsed.dir, allow_put=parsed.allow_put)
