"""Run the benchmarks and print a report: `make bench`, `make bench ARGS=--quick`.

Every figure is measured against another party in the same run, in turn, several times; medians and ratios count,
because machines are shared and noisy.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

import grid
import hardening
import links
import loopback
import memory
import opening
import quic_loopback
import scale


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="less data and fewer runs: a look, not a measurement")
    parts = {
        "loopback": loopback.run,
        "opening": opening.run,
        "hardening": hardening.run,
        "memory": memory.run,
        "scale": scale.run,
        "links": links.run,
        "quic": quic_loopback.run,
        "grid": grid.run,
    }
    parser.add_argument("only", nargs="*", choices=[*parts, []], help="default: all")
    chosen = parser.parse_args()
    for name, part in parts.items():
        if not chosen.only or name in chosen.only:
            print(f"\n== {name} ==", flush=True)
            part(quick=chosen.quick)
    return 0


if __name__ == "__main__":
    sys.exit(main())
