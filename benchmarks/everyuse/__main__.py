"""What programs get that know nothing of sessions, and what steering does for streams.

    python -m benchmarks.everyuse [flow] [constant] [keys] [messages] [morawski] [viernickel] [flood] [small] [ssh]
                                  [handover] [curl] [stream] [--rounds N] [--quick]

`flow` to `viernickel` run in virtual time: the two ends of the product, modelled kernels between them, the papers'
numbers beside ours. `flood` opens 10,000 connections at once over loopback. On emulated links, in network namespaces,
`small` sends small messages with real kernels, and `ssh`, `handover`, `curl` and `stream` run the commands themselves.
"""

from __future__ import annotations

import asyncio
import sys

from benchmarks.everyuse import flood, programs, small, virtual
from benchmarks.parts import main

SECONDS, QUICK_SECONDS = 8.0, 3.0
ROUNDS, QUICK_ROUNDS = 5, 1
ON_LINKS = {"small": ("200 bytes every 20 ms, BBR", small.small), **programs.PARTS}
NAMES = (*virtual.PARTS, "flood", *ON_LINKS)


def run(*, quick: bool, only: list[str] | None = None, rounds: int = 0) -> None:
    """Print the figures of these parts, of all without any named."""
    seconds = QUICK_SECONDS if quick else SECONDS
    rounds = rounds or (QUICK_ROUNDS if quick else ROUNDS)
    for name in only or NAMES:
        if name in virtual.PARTS:
            title, figures = virtual.PARTS[name]
            print(f"\n {title}; virtual time", flush=True)
            for figure in figures(seconds):
                print(f"  {figure}", flush=True)
        elif name == "flood":
            print("\n 10,000 connections at once to a forwarded port", flush=True)
            for figure in flood.measure(flood.COUNT // 10 if quick else flood.COUNT):
                print(f"  {figure}", flush=True)
        else:
            title, program = ON_LINKS[name]
            print(f"\n {title}; {rounds} rounds", flush=True)
            asyncio.run(program(rounds, seconds))


if __name__ == "__main__":
    sys.exit(main(run, NAMES, __doc__, ROUNDS))
