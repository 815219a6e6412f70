"""`multi interfaces`: what a session can do with the interfaces of this machine."""

from __future__ import annotations

import argparse

from multi.cli.arguments import Subparsers, add_command


def add_parser(commands: Subparsers) -> None:
    help = "show the interfaces of this machine and what a session can do with them"
    add_command(commands, "interfaces", run, help)


def run(_parsed: argparse.Namespace) -> int:
    from multi.cli.interfaces import show_interfaces

    return show_interfaces()
