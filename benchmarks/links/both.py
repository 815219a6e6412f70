"""Both links together: sessions over WiFi and 5G against each path alone, kernel MPTCP, asyncio streams and iperf3.

Every round measures every party once, in turn. Efficiency is formula 1 of Morawski and Karbowańczyk, "Multipath QUIC:
Directions of the Improvements": 1 = all that the paths carry one by one, 0 = no better than the best of them, and less
when worse; what a path carries is what `multi` alone reached on it in the same round.
"""

from __future__ import annotations

import asyncio
import importlib.util
import shutil
import statistics
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.links.stage import Entry, Result, Stage, spread
from benchmarks.verdicts import verdict
from multi.lab.testbed import load_profile

WIFI, CELLULAR = "wlan0", "wwan0"
PATHS = (WIFI, CELLULAR)
SETTLED = 2.0  # seconds after the first byte from which efficiency counts


@dataclass(frozen=True, slots=True)
class Promise:
    """Of a session over both links, for one way. Mbit/s, shares."""

    whole: float
    efficiency: float
    at_one_second: float = 0.8
    """Between 0.9 and 1.1 s, of the mean of seconds 4 to 8."""


PROMISES = {True: Promise(355.0, 0.95), False: Promise(218.0, 0.75)}
"""By whether it is a download."""
MIXED_PROMISE = 0.9  # of min(sum of the paths alone, one QUIC connection on loopback)


Measure = Callable[[Stage, float, bool], Awaitable[Result]]
"""Called with the stage, seconds and whether the server sends."""


@dataclass(frozen=True, slots=True)
class Party:
    name: str
    measure: Measure
    missing: str = ""
    promised: bool = False
    efficiency: bool = False


def _tcp(*interfaces: str) -> list[Entry]:
    return [("tcp", interface) for interface in interfaces]


def _session_alone(path: str) -> Measure:
    return lambda s, t, down: s.session(_tcp(path), t, down=down)


def _iperf3(path: str) -> Measure:
    return lambda s, t, down: s.iperf3(path, t, down=down)


def _parties() -> list[Party]:
    no_uvloop = "" if importlib.util.find_spec("uvloop") else "uvloop is not installed"
    no_iperf3 = "" if shutil.which("iperf3") else "iperf3 is not installed"
    both = _tcp(*PATHS)
    return [
        *(Party(f"multi, {path} alone", _session_alone(path)) for path in PATHS),
        Party("multi sealed", lambda s, t, down: s.session(both, t, down=down), promised=True, efficiency=True),
        Party(
            "multi unprotected",
            lambda s, t, down: s.session(both, t, down=down, protection="unprotected"),
            promised=True,
            efficiency=True,
        ),
        Party(
            "multi TLS",
            lambda s, t, down: s.session(both, t, down=down, protection="tls"),
            promised=True,
            efficiency=True,
        ),
        Party(
            "multi sealed, uvloop",
            lambda s, t, down: s.session(both, t, down=down, uvloop=True),
            missing=no_uvloop,
            efficiency=True,
        ),
        Party("kernel MPTCP", lambda s, t, down: s.plain("mptcp", "", t, down=down), efficiency=True),
        Party(f"asyncio, {WIFI}", lambda s, t, down: s.plain("asyncio", WIFI, t, down=down)),
        Party(f"asyncio on uvloop, {WIFI}", lambda s, t, down: s.plain("uvloop", WIFI, t, down=down), no_uvloop),
        *(Party(f"iperf3, {path}", _iperf3(path), no_iperf3) for path in PATHS),
    ]


def efficiency(together: float, alone: Sequence[float]) -> float:
    """Formula 1: 1 = the sum of the paths, 0 = the best of them, -1 = nothing."""
    best = max(alone)
    return (together - best) / (sum(alone) - best if together >= best else best)


def at_one_second(result: Result) -> float:
    """Rate between 0.9 and 1.1 s after the first byte, of the mean of seconds 4 to 8."""
    return result.mean(0.9, 1.1) / result.mean(4.0, 8.0)


def tcp(rounds: int, seconds: float, congestion: str = "bbr") -> None:
    """Print the parties over TCP, both ways."""
    asyncio.run(_tcp_both_ways(rounds, seconds, congestion))


async def _tcp_both_ways(rounds: int, seconds: float, congestion: str) -> None:
    parties = [party for party in _parties() if not party.missing]
    for party in _parties():
        if party.missing:
            print(f"  {party.name}: not measured, {party.missing}")
    with (
        tempfile.TemporaryDirectory(prefix="multi-links-") as work,
        Stage.open(load_profile("wifi_and_5g"), congestion, Path(work), mptcp=True) as stage,
    ):
        for down in (True, False):
            results: dict[str, list[Result]] = {party.name: [] for party in parties}
            for _ in range(rounds):
                for party in parties:
                    results[party.name].append(await party.measure(stage, seconds, down))
            _print_tcp(parties, results, seconds, down=down)


def _print_tcp(parties: list[Party], results: dict[str, list[Result]], seconds: float, *, down: bool) -> None:
    print(f"\n  {'down' if down else 'up'}, {seconds:g} s, Mbit/s: median (lowest to highest) of the whole run")
    alone = [results[f"multi, {path} alone"] for path in PATHS]
    promise = PROMISES[down]
    for party in parties:
        runs = results[party.name]
        print(f"  {party.name:26} {spread([r.mbps for r in runs]):>24}", end="")
        if party.name == "kernel MPTCP":
            print(f"  {min(r.paths for r in runs)} subflows", end="")
        if not party.efficiency:
            print(flush=True)
            continue
        whole = statistics.median(r.mbps for r in runs)
        phi, soon = [], []
        if seconds >= 8:
            phi = [
                efficiency(run.mean(SETTLED, 8.0), [path[number].mean(SETTLED, 8.0) for path in alone])
                for number, run in enumerate(runs)
            ]
            soon = [at_one_second(run) for run in runs]
            print(f"  φ {spread(phi, 3)}  at 1 s {spread(soon, 2)}", end="")
        if again := [run.sent_again for run in runs if run.carried]:
            gap = statistics.median(run.longest_gap_ms for run in runs)
            print(f"  gap {gap:.0f} ms, sent again {statistics.median(again) / 1e6:.1f} MB", end="")
        print(flush=True)
        if party.promised:
            print(f"    whole run at least {promise.whole:g}: {verdict(whole, promise.whole, 1)}")
            if phi:
                middle = statistics.median(phi)
                print(f"    φ at least {promise.efficiency:g}: {verdict(middle, promise.efficiency, 3)}")
                middle = statistics.median(soon)
                print(f"    at 1 s at least {promise.at_one_second:g}: {verdict(middle, promise.at_one_second)}")
            else:
                print("    φ and the rate at 1 s: not measured, the run is too short")


# --- TCP with QUIC, QUIC with QUIC ---

ENGINES = ("aioquic", "qh3")
MIXTURES: tuple[tuple[str, tuple[Entry, Entry]], ...] = (
    ("TCP on WiFi, QUIC on 5G", (("tcp", WIFI), ("quic", CELLULAR))),
    ("QUIC on WiFi, TCP on 5G", (("quic", WIFI), ("tcp", CELLULAR))),
    ("QUIC on both", (("quic", WIFI), ("quic", CELLULAR))),
)


def _missing_engine(name: str) -> str:
    """Why an engine cannot be measured here."""
    from multi.config import Config
    from multi.errors import ConfigError

    config = {
        "connection_priority": [["quic", "ipv4", "any"]],
        "remote_host": "localhost",
        "quic_config": {"engine": name},
    }
    try:
        Config.model_validate(config)
    except (ConfigError, ValueError):
        return "" if name == ENGINES[0] else "this version has no quic_config.engine"
    return "" if importlib.util.find_spec(name) else f"{name} is not installed"


def quic(rounds: int, seconds: float, congestion: str = "bbr") -> None:
    """Print sessions with QUIC, for each engine there is."""
    for engine in ENGINES:
        if missing := _missing_engine(engine):
            print(f"  {engine}: not measured, {missing}")
        else:
            asyncio.run(_quic_both_ways(engine, rounds, seconds, congestion))


async def _quic_both_ways(engine: str, rounds: int, seconds: float, congestion: str) -> None:
    settings = None if engine == ENGINES[0] else {"engine": engine}
    with (
        tempfile.TemporaryDirectory(prefix="multi-links-") as work,
        Stage.open(load_profile("wifi_and_5g"), congestion, Path(work), quic=settings) as stage,
    ):
        for down in (True, False):
            loopback: list[float] = []
            singles: dict[Entry, list[float]] = {(t, path): [] for t in ("tcp", "quic") for path in PATHS}
            together: dict[str, list[Result]] = {name: [] for name, _ in MIXTURES}
            for _ in range(rounds):
                loopback.append((await stage.loopback("quic", seconds, quic=settings)).mbps)
                for entry, rates in singles.items():
                    result = await stage.session([entry], seconds, down=down, protection="tls", quic=settings)
                    rates.append(result.mbps)
                for name, entries in MIXTURES:
                    together[name].append(
                        await stage.session(entries, seconds, down=down, protection="tls", quic=settings)
                    )
            _print_quic(engine, seconds, loopback, singles, together, down=down)


def _print_quic(
    engine: str,
    seconds: float,
    loopback: list[float],
    singles: dict[Entry, list[float]],
    together: dict[str, list[Result]],
    *,
    down: bool,
) -> None:
    print(f"\n  {engine}, {'down' if down else 'up'}, {seconds:g} s, Mbit/s: median (lowest to highest)")
    print(f"  {'one QUIC connection, loopback':32} {spread(loopback):>24}")
    for (transport, path), rates in singles.items():
        print(f"  {f'{transport}, {path} alone':32} {spread(rates):>24}")
    for name, entries in MIXTURES:
        runs = together[name]
        shares = [
            run.mbps / min(sum(singles[entry][number] for entry in entries), loopback[number])
            for number, run in enumerate(runs)
        ]
        gap = statistics.median(run.longest_gap_ms for run in runs)
        again = statistics.median(run.sent_again for run in runs) / 1e6
        print(
            f"  {name:32} {spread([run.mbps for run in runs]):>24}  gap {gap:.0f} ms, sent again {again:.1f} MB"
            f"  [{', '.join(runs[-1].carried)} MB]"
        )
        share = statistics.median(shares)
        print(
            f"    {spread(shares, 3)} of min(sum alone, QUIC on loopback), at least {MIXED_PROMISE:g}: "
            f"{verdict(share, MIXED_PROMISE, 3)}",
            flush=True,
        )
