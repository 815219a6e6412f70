"""Emulated WiFi and 5G: one connection against kernel TCP, both links together, and short transfers.

    python -m benchmarks.links [alone] [tcp] [quic] [mpquic] [urgent] [short] [--rounds N] [--quick]

`alone`: one TCP connection of `multi` against a blocking socket of kernel TCP. `tcp`, `quic`, `mpquic`: both links
together. `urgent`: requests on a stream of priority 0 beside bulk. `short`: 100 kB to 10 MB over two equal paths. Over
TCP everybody has the same congestion control, runs are in turn in one testbed, and rates are the receiver's, from its
first byte to its last.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.links import both, paths, short, urgent
from benchmarks.links.stage import Stage, spread
from benchmarks.parts import main
from benchmarks.verdicts import verdict
from multi.lab.testbed import load_profile

PROMISE = 0.97  # of what kernel TCP reaches
ROUNDS, SECONDS = 5, 8.0
QUICK_ROUNDS, QUICK_SECONDS = 1, 3.0


def alone(rounds: int, seconds: float) -> None:
    """Print one connection against kernel TCP, on each link, both ways."""
    for congestion in ("bbr", "cubic"):
        asyncio.run(_alone(rounds, seconds, congestion))


async def _alone(rounds: int, seconds: float, congestion: str) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="multi-links-") as work,
        Stage.open(load_profile("wifi_and_5g"), congestion, Path(work), protections=["unprotected"]) as stage,
    ):
        for down in (True, False):
            for interface in both.PATHS:
                plain, ours = [], []
                for _ in range(rounds):
                    plain.append((await stage.plain("tcp", interface, seconds, down=down)).mbps)
                    entry = ("tcp", interface)
                    ours.append((await stage.session([entry], seconds, down=down, protection="unprotected")).mbps)
                ratio = statistics.median(own / base for own, base in zip(ours, plain, strict=True))
                print(
                    f"  {congestion:5} {interface} {'down' if down else 'up':4}  kernel TCP {spread(plain)}  "
                    f"multi {spread(ours)} Mbit/s  ratio {ratio:.3f}, at least {PROMISE:g}: "
                    f"{verdict(ratio, PROMISE, 3)}",
                    flush=True,
                )


def short_transfers(rounds: int, seconds: float) -> None:
    """`rounds` of the long ones; there are more of the short ones."""
    short.run(rounds / ROUNDS)


PARTS: dict[str, tuple[str, Callable[[int, float], None]]] = {
    "alone": ("One TCP connection, unprotected, against kernel TCP", alone),
    "tcp": ("TCP on both links, BBR, connect: par", both.tcp),
    "quic": ("QUIC on one link or both, connect: par; TCP with BBR", both.quic),
    "mpquic": ("One connection of multipath QUIC over both links; TCP with BBR, QUIC with Cubic", paths.run),
    "urgent": ("An urgent request beside bulk: TCP on both links, BBR, sealed", urgent.run),
    "short": ("Short transfers over two paths of 10 Mbit/s and 44 ms", short_transfers),
}


def run(*, quick: bool, only: list[str] | None = None, rounds: int = 0) -> None:
    seconds = QUICK_SECONDS if quick else SECONDS
    rounds = rounds or (QUICK_ROUNDS if quick else ROUNDS)
    print(f"WiFi 200 Mbit/s 1.8 ms and 5G 190/35 Mbit/s 46 ms; {rounds} rounds")
    for name in only or PARTS:
        title, part = PARTS[name]
        print(f"\n {title}", flush=True)
        part(rounds, seconds)


if __name__ == "__main__":
    sys.exit(main(run, PARTS, __doc__, ROUNDS))
