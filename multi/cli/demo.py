"""`multi demo`: the roaming demo where network namespaces are allowed, elsewhere that over loopback, with MPTCP."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from multi.cli.parser import Parser, positive
from multi.lab import testbed
from multi.lab.demo import loopback as over_loopback
from multi.lab.demo import roaming


def add_arguments(parser: Parser) -> None:
    parser.runs(run_demo)
    parser.add_argument("--out", metavar="DIR", type=Path, default=Path("demo-out"), help="where to write its results")
    parser.add_argument(
        "--loopback", action="store_true", help="use loopback connections instead of network namespaces"
    )
    parser.add_argument("--speed", metavar="N", type=positive, default=1.0, help=argparse.SUPPRESS)


def run_demo(out: Path, *, loopback: bool = False, speed: float = 1.0) -> int:
    """Run a demo and write its results to `out`. Returns the exit code; 0 only when the file came whole.

    `speed` 5 makes the story a fifth as long. This process may end up in a user namespace of its own.
    """
    out.mkdir(parents=True, exist_ok=True)  # what is wrong with it is said before the demo, not after
    if not loopback:
        try:
            if sys.platform != "linux":
                raise testbed.TestbedNotAllowed(f"this is {sys.platform}, not Linux")
            if os.geteuid() != 0:
                testbed.enter_user_namespace()
            return roaming.run_roaming_demo(out, speed=speed)
        except testbed.TestbedNotAllowed as error:
            print(f"No network namespaces here ({error}): the same idea over rate-capped loopback connections.\n")
    return over_loopback.run_loopback_demo(out, speed=speed)
