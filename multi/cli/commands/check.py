"""`multi check`: validate a configuration and explain it for this machine."""

from __future__ import annotations

import argparse

from multi.cli.arguments import Subparsers, add_command


def add_parser(commands: Subparsers) -> None:
    parser = add_command(commands, "check", run, "validate a configuration and explain it for this machine")
    parser.add_argument("config", metavar="CONFIG", help="a client's or server's configuration")


def run(parsed: argparse.Namespace) -> int:
    from multi.cli.check import run_check

    return run_check(parsed.config)
