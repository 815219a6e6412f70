"""`multi demo`: the roaming demo where network namespaces are allowed, the loopback demo elsewhere."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from multi.cli.arguments import Subparsers, add_command, positive


def add_parser(commands: Subparsers) -> None:
    parser = add_command(commands, "demo", run, "run the roaming demo")
    parser.add_argument("--out", metavar="DIR", type=Path, default=Path("demo-out"), help="where to write its results")
    parser.add_argument("--loopback", action="store_true", help="over loopback connections, without network namespaces")
    parser.add_argument("--speed", metavar="N", type=positive, default=1.0, help=argparse.SUPPRESS)


def run(parsed: argparse.Namespace) -> int:
    return run_demo(parsed.out, loopback=parsed.loopback, speed=parsed.speed)


def run_demo(out: Path, *, loopback: bool = False, speed: float = 1.0) -> int:
    """Run a demo and write its results to `out`. Returns the exit code; 0 only when the file came whole.

    `speed` 5 makes the story a fifth as long. This process may end up in a user namespace of its own.
    """
    from multi.lab.demo.loopback import run_loopback_demo

    if not loopback:
        from multi.lab.demo.roaming import run_roaming_demo
        from multi.lab.testbed import TestbedNotAllowed, enter_user_namespace

        try:
            if sys.platform != "linux":
                raise TestbedNotAllowed(f"this is {sys.platform}, not Linux")
            if os.geteuid() != 0:
                enter_user_namespace()
            return run_roaming_demo(out, speed=speed)
        except TestbedNotAllowed as error:
            print(f"No network namespaces here ({error}): the same idea over rate-capped loopback connections.\n")
    return run_loopback_demo(out, speed=speed)
