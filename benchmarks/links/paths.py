"""One connection of multipath QUIC over WiFi and 5G, with each engine: against its single paths, and against TCP.

Every round measures every party once, in turn; a ratio is taken within a round. With the native engine the other party
is `multi` over two TCP connections, sealed; the sum of the paths alone is what Viernickel et al., Figure 7, is about.
aioquic is bound by the processor there: what two paths must not be is slower than one.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.links.both import PATHS
from benchmarks.links.stage import Result, Stage, spread
from benchmarks.verdicts import verdict
from multi.errors import TransportError
from multi.lab.testbed import load_profile
from multi.transports.quic.engine import implementation

CONGESTION = "bbr"
TCP = "multi, two TCP"
TOGETHER = "mpquic, both"
Rates = dict[str, list[float]]
"""Mbit/s of each party, a run each."""


@dataclass(frozen=True, slots=True)
class Promise:
    """Of the connection over both links."""

    what: str
    least: float
    base: Callable[[Rates, int], float]
    """Mbit/s that it is held against, in a round."""
    only_down: bool = False


def _alone(path: str) -> str:
    return f"mpquic, {path} alone"


def _alone_on(rates: Rates, number: int) -> list[float]:
    return [rates[_alone(path)][number] for path in PATHS]


PROMISES = {
    "noq": (
        Promise(TCP, 0.95, lambda rates, number: rates[TCP][number]),
        Promise("both paths alone", 0.93, lambda rates, number: sum(_alone_on(rates, number)), True),
    ),
    "aioquic": (Promise("the best path alone", 0.97, lambda rates, number: max(_alone_on(rates, number))),),
}


def run(rounds: int, seconds: float) -> None:
    """Print the parties for each engine, both ways."""
    for engine in PROMISES:
        try:
            implementation(engine)
        except TransportError as error:
            print(f"  {engine}: not measured, {error}")
        else:
            asyncio.run(_both_ways(engine, rounds, seconds))


async def _both_ways(engine: str, rounds: int, seconds: float) -> None:
    settings = {"engine": engine}
    with (
        tempfile.TemporaryDirectory(prefix="multi-links-") as work,
        Stage.open(
            load_profile("wifi_and_5g"), CONGESTION, Path(work), protections=("sealed", "tls"), mpquic=settings
        ) as stage,
    ):
        for down in (True, False):
            rates: Rates = {name: [] for name in (TCP, TOGETHER, *map(_alone, PATHS))}
            last = Result(0.0, ())
            for _ in range(rounds):
                tcp = [("tcp", path) for path in PATHS]
                rates[TCP].append((await stage.session(tcp, seconds, down=down)).mbps)
                for name, where in ((TOGETHER, PATHS), *((_alone(path), path) for path in PATHS)):
                    last = await stage.session(
                        [("mpquic", where)], seconds, down=down, protection="tls", mpquic=settings
                    )
                    rates[name].append(last.mbps)
            _print(engine, rates, seconds, down=down)


def _print(engine: str, rates: Rates, seconds: float, *, down: bool) -> None:
    print(f"\n  {engine}, {'down' if down else 'up'}, {seconds:g} s, Mbit/s: median (lowest to highest)")
    for name, runs in rates.items():
        print(f"  {name:32} {spread(runs):>24}", flush=True)
    for promise in PROMISES[engine]:
        if down or not promise.only_down:
            shares = [rate / promise.base(rates, number) for number, rate in enumerate(rates[TOGETHER])]
            share = statistics.median(shares)
            print(
                f"    {spread(shares, 3)} of {promise.what}, at least {promise.least:g}: "
                f"{verdict(share, promise.least, 3)}",
                flush=True,
            )
