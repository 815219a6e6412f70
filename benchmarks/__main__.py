"""Run the benchmarks and print a report: `make bench`, `make bench ARGS=--quick`.

Every figure is measured against another party in the same run, in turn, several times; medians and ratios count,
because machines are shared and noisy. The exit code is 1 when a part that judges itself (`herd`, `crowd`) fell short.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from benchmarks.balancer.__main__ import run as balancer
from benchmarks.basics import counted, hardening, loopback, memory, opening, payload, quic, scale, tcp_channel
from benchmarks.everyday.__main__ import run as everyday
from benchmarks.everyuse.__main__ import run as everyuse
from benchmarks.grid.__main__ import run as grid
from benchmarks.hostile import crowd, floods
from benchmarks.links import herd
from benchmarks.links.__main__ import run as links
from benchmarks.workers.__main__ import run as workers

PARTS: dict[str, Callable[..., bool | None]] = {
    "loopback": loopback.run,
    "channel": tcp_channel.run,
    "payload": payload.run,
    "opening": opening.run,
    "everyday": everyday,
    "everyuse": everyuse,
    "hardening": hardening.run,
    "memory": memory.run,
    "counted": counted.run,
    "scale": scale.run,
    "crowd": crowd.run,
    "floods": floods.run,
    "links": links,
    "herd": herd.run,
    "quic": quic.run,
    "grid": grid,
    "workers": workers,
    "balancer": balancer,
}
"""By name; each returns whether it kept what is promised, None where it leaves that to who reads it."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="less data and fewer runs: a look, not a measurement")
    parser.add_argument("only", nargs="*", choices=[*PARTS, []], help="default: all")
    chosen = parser.parse_args()
    status = 0
    for name, part in PARTS.items():
        if not chosen.only or name in chosen.only:
            print(f"\n== {name} ==", flush=True)
            if part(quick=chosen.quick) is False:
                status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
