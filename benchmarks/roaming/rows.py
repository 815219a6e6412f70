"""The rows of the roaming benchmark: what happens, what is promised, how it is played and judged.

A row is data and two functions: `play` does it to a `Stage`, `judge` turns what was seen into figures with bounds.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import time
import zlib
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Literal, Self

from benchmarks.roaming.end import Traffic
from benchmarks.roaming.figures import (
    Figure,
    carried,
    carries_again,
    continues,
    faults,
    gap,
    goodput,
    goodput_line,
    late,
    reinjected,
    round_trip,
    suspicions,
    undisturbed_gap,
)
from benchmarks.roaming.stage import Measurement, SessionRun, Stage, Timing, Variant, stage
from multi.lab.testbed import Link, TestbedError

__all__ = ["BASE", "FULL", "ROWS", "SHORT", "Outcome", "Row", "measure", "row"]

BASE = Variant()

FULL = Timing(
    settle=1.5, undisturbed=5.0, spread=2.0, after=6.0, baseline_skip=2.0, baseline=6.0,
    absence=3.0, loss=20.0, flap=60.0, nothing=60.0, opens=3, patience=25.0,
)  # fmt: skip
SHORT = Timing(
    settle=0.7, undisturbed=1.2, spread=0.4, after=1.7, baseline_skip=0.8, baseline=1.5,
    absence=1.0, loss=3.0, flap=8.0, nothing=5.0, opens=1, patience=10.0,
)  # fmt: skip

GAP_WINDOW = 3.0  # seconds after an event in which a gap is the event's
GOODPUT_FROM = 0.5  # seconds after a silent death from which on the goodput counts
FLAP_PERIOD = 2.0  # seconds up, and as many down
RETURN_BETWEEN = 2.0  # seconds at most between the two networks that come back after both were lost
SWALLOWING = {4: "10.77.0.99", 6: "fd77::99"}
"""Addresses routed to the server that nobody has: what is sent there gets no answer."""

SILENT_GAP, SILENT_SHARE = 0.150, 0.90  # seconds; of 5G alone
NATIVE_GAP, NATIVE_SHARE = 0.100, 0.93  # of multipath QUIC over the native engine
LOST_MARGIN = 0.040  # seconds, beyond the loaded round trip of what is left
HANDOVER_MARGIN = 0.020
BACK = 1.5
RESUME = 1.0
FLAP_SHARE = 0.95
OPEN_HEAD_START, OPEN_MARGIN = 0.250, 0.050

MPTCP_DEATH = "kernel MPTCP: 255 ms, then 1 s at almost nothing; Aggligator: 979 ms (earlier, on the same links)"

How = Literal["blackhole", "carrier", "address"]
Play = Callable[[Stage], Awaitable[None]]
Judge = Callable[[Measurement], list[Figure]]


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the benchmark."""

    key: str
    event: str
    promise: str
    play: Play
    judge: Judge
    known: str = ""
    """What others do, for the report; says where it is from."""
    only_tcp: bool = False
    one_connection: bool = False
    """Measured with one connection over both networks too, MPTCP's or multipath QUIC's."""
    quick: bool = True
    """Measured by quick runs too."""
    real_addresses: bool = False
    """IPv6 addresses are tentative when they appear."""

    def takes(self, variant: Variant) -> bool:
        """Whether this row is about such sessions."""
        if variant.one_connection:
            return self.one_connection
        return variant.transport == "tcp" or not self.only_tcp


@dataclass(slots=True)
class Outcome:
    """What one run of a row came to; this is stored."""

    row: str
    variant: str
    number: int
    revision: str = ""
    """Of the project, when this was measured."""
    figures: list[Figure] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    """Bytes missing, doubled or changed, sessions that broke: these fail a run whatever its figures."""
    facts: dict[str, float] = field(default_factory=dict)
    """What else was seen, the harness and the machine included."""
    suspicions: list[str] = field(default_factory=list)
    line: list[float] = field(default_factory=list)
    """Mbit/s of every 0.1 s, from 1 s before the first event on."""

    def encoded(self) -> str:
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def decoded(cls, text: str) -> Self:
        content = json.loads(text)
        return cls(**{**content, "figures": [Figure(**figure) for figure in content["figures"]]})

    @property
    def held(self) -> bool:
        return not self.faults and bool(self.figures) and all(figure.held for figure in self.figures)


# --- plays ---


def _lose(link: Link, how: How, version: int) -> None:
    match how:
        case "blackhole":
            link.blackhole(True)
        case "carrier":
            link.carrier(False)
        case "address":
            link.remove_address(version)


def _give_back(link: Link, how: How, version: int) -> None:
    match how:
        case "blackhole":
            link.blackhole(False)
        case "carrier":
            link.carrier(True)
        case "address":
            link.restore_address(version)


async def _wifi_lost(stage: Stage, how: How) -> None:
    await stage.start(baseline=how == "blackhole")
    stage.do("lost", partial(_lose, stage.wifi, how, stage.variant.version))
    await stage.finish()


async def _handover(stage: Stage, to: str, **multi_config: object) -> None:
    await stage.start(**multi_config)  # type: ignore[arg-type]  # all of it is for the session
    await stage.hand_over(to, "handover")
    await stage.finish()


async def _wifi_back(stage: Stage, how: How, seconds: float | None = None) -> None:
    await stage.start()
    stage.do("lost", partial(_lose, stage.wifi, how, stage.variant.version))
    await asyncio.sleep(stage.timing.absence if seconds is None else seconds)
    stage.do("back", partial(_give_back, stage.wifi, how, stage.variant.version))
    await stage.usable(stage.wifi)
    await stage.finish()


async def _all_lost(stage: Stage, how: How) -> None:
    await stage.start()
    version = stage.variant.version
    networks = [stage.wifi, stage.cellular]
    stage.random.shuffle(networks)
    for link in networks:
        stage.do(f"{link.name} lost", partial(_lose, link, how, version))
    await asyncio.sleep(stage.timing.loss)
    for link in networks:
        stage.do(f"{link.name} back", partial(_give_back, link, how, version))
        await stage.usable(link)
        await asyncio.sleep(min(RETURN_BETWEEN, stage.timing.after / 2))
    await stage.finish()


async def _flap(stage: Stage, how: How) -> None:
    await stage.start(baseline=True)
    version, up = stage.variant.version, True
    start = time.monotonic()
    for period in range(round(stage.timing.flap / FLAP_PERIOD)):
        stage.do(f"{'down' if up else 'up'} {period}", partial(_lose if up else _give_back, stage.wifi, how, version))
        up = not up
        await asyncio.sleep(start + (period + 1) * FLAP_PERIOD - time.monotonic())
    await stage.stop()


async def _address_changes(stage: Stage) -> None:
    await stage.start(["wifi"])
    await stage.change_address("lost", stage.wifi)
    await stage.finish()


async def _first_is_dead(stage: Stage, how: Literal["blackhole", "swallowed"]) -> None:
    dead = stage.entry("wifi")
    await stage.usable(stage.wifi, note=False)
    await stage.usable(stage.cellular, note=False)
    if how == "blackhole":
        stage.do("lost", partial(stage.wifi.blackhole, True))
    else:
        dead["remote_host"] = SWALLOWING[stage.variant.version]
    for _ in range(stage.timing.opens):
        await stage.open_times("second alone", stage.config([stage.entry("5g")]), 1)
        await stage.open_times("dead first", stage.config([dead, stage.entry("5g")]), 1)


async def _nothing(stage: Stage, traffic: Traffic) -> None:
    await stage.start(traffic=traffic)
    stage.do("nothing", lambda: None)
    # What has passed since the opening was undisturbed too.
    await asyncio.sleep(stage.timing.nothing - stage.timing.undisturbed)
    await stage.stop()


# --- judges ---


def _run(seen: Measurement) -> SessionRun:
    assert seen.run is not None
    return seen.run


def _alone(seen: Measurement) -> float | None:
    """Mbit/s of the same session over 5G alone."""
    alone = seen.baseline
    if alone is None or not alone.client.opened:
        return None
    begin = alone.client.opened + seen.timing.baseline_skip
    return goodput(alone.receiving, begin, alone.stopped)


def _share(value: float, whole: float | None) -> float | None:
    return value / whole if whole else None


def _gap_around(seen: Measurement, name: str) -> float:
    run, event = _run(seen), seen.mark(name)
    return gap(run.receiving, event.before, min(event.after + GAP_WINDOW, run.stopped))


def _judge_silent_death(seen: Measurement) -> list[Figure]:
    run, event = _run(seen), seen.mark("lost")
    rate = goodput(run.receiving, event.after + GOODPUT_FROM, run.stopped)
    native = seen.variant.transport == "mpquic-noq"
    longest, least = (NATIVE_GAP, NATIVE_SHARE) if native else (SILENT_GAP, SILENT_SHARE)
    return [
        Figure("gap", _gap_around(seen, "lost") * 1e3, "ms", longest * 1e3),
        Figure("goodput, share of 5G alone", _share(rate, _alone(seen)), "", least, at_most=False),
    ]


def _judge_known_loss(seen: Measurement) -> list[Figure]:
    run, event = _run(seen), seen.mark("lost")
    rtt = round_trip(run.sending, "5g", event.before - seen.timing.undisturbed, event.before)
    bound = None if rtt is None else (LOST_MARGIN + rtt) * 1e3
    if bound is None:
        return [Figure("gap", None, "ms", LOST_MARGIN * 1e3)]
    return [Figure("gap", _gap_around(seen, "lost") * 1e3, "ms", bound)]


def _judge_handover(seen: Measurement, to: str) -> list[Figure]:
    run, event = _run(seen), seen.mark("handover")
    begin = event.before - seen.timing.undisturbed
    before = undisturbed_gap(run.receiving, begin, event.before)
    bound = max(round_trip(run.sending, to, begin, event.before) or 0.0, before) + HANDOVER_MARGIN
    longest = gap(run.receiving, event.before, min(event.after + 1.0, run.stopped))
    return [Figure("gap", longest * 1e3, "ms", bound * 1e3)]


def _judge_handover_rescue(seen: Measurement, to: str) -> list[Figure]:
    run, event = _run(seen), seen.mark("handover")
    rescued = reinjected(run.sending, event.before, event.after + 1.0)
    return [*_judge_handover(seen, to), Figure("rescued", float(rescued), "bytes", 0.0)]


def _judge_back(seen: Measurement) -> list[Figure]:
    run = _run(seen)
    again = carries_again(run.receiving, "wifi", seen.usable["wifi"])
    return [Figure("WiFi carries data after", again, "s", BACK)]


def _judge_resumed(seen: Measurement) -> list[Figure]:
    usable = min(seen.usable.values())
    return [Figure("continues after", continues(_run(seen).receiving, usable), "s", RESUME)]


def _judge_flap(seen: Measurement) -> list[Figure]:
    run = _run(seen)
    rate = goodput(run.receiving, seen.marks[0].before, run.stopped)
    return [Figure("goodput, share of 5G alone", _share(rate, _alone(seen)), "", FLAP_SHARE, at_most=False)]


def _judge_open(seen: Measurement) -> list[Figure]:
    alone, dead = seen.opens.get("second alone", []), seen.opens.get("dead first", [])
    own = statistics.median(alone) if alone else 0.0
    bound = (OPEN_HEAD_START + own + OPEN_MARGIN) * 1e3
    return [Figure("opens after", max(dead) * 1e3 if alone and dead else None, "ms", bound)]


def _judge_nothing(seen: Measurement) -> list[Figure]:
    return [Figure("suspected", float(len(suspicions(_run(seen)))), "times", 0.0)]


# --- the rows ---


def _back_row(key: str, event: str, how: How, seconds: float | None = None, *, quick: bool = True) -> Row:
    promise = "carries data again within 1.5 s of being usable, by itself"
    play = partial(_wifi_back, how=how, seconds=seconds)
    return Row(key, event, promise, play, _judge_back, quick=quick, real_addresses=True)


_KNOWN_LOSS = "gap at most 40 ms + loaded RTT of 5G"
_HANDOVER = "gap at most max(RTT of the new path, longest gap of the undisturbed time before) + 20 ms"
_RESUME = "continues within 1 s of the first usable network; nothing lost or doubled"
_FLAP = "goodput at least 0.95 of 5G alone"
_NEVER = "no connection is ever suspected"
_OPEN = "opens within 250 ms + the second entry's own time + 50 ms"

ROWS: tuple[Row, ...] = (
    Row(
        "silent-death",
        "WiFi dies silently",
        "gap at most 150 ms; from 0.5 s on at least 0.90 of 5G alone; mpquic-noq 100 ms and 0.93",
        partial(_wifi_lost, how="blackhole"),
        _judge_silent_death,
        MPTCP_DEATH,
        one_connection=True,
    ),
    Row("carrier-lost", "WiFi loses its carrier", _KNOWN_LOSS, partial(_wifi_lost, how="carrier"), _judge_known_loss),
    Row("address-gone", "WiFi loses its address", _KNOWN_LOSS, partial(_wifi_lost, how="address"), _judge_known_loss),
    Row(
        "handover-to-5g",
        "handover from both to 5G",
        _HANDOVER,
        partial(_handover, to="5g"),
        partial(_judge_handover, to="5g"),
    ),
    Row(
        "handover-to-wifi",
        "handover from both to WiFi",
        _HANDOVER,
        partial(_handover, to="wifi"),
        partial(_judge_handover, to="wifi"),
    ),
    Row(
        "handover-switch",
        "handover from WiFi to a 5G that stood by (`mode: switch`)",
        _HANDOVER,
        partial(_handover, to="5g", mode="switch"),
        partial(_judge_handover, to="5g"),
        quick=False,
    ),
    Row(
        "handover-rescue",
        "handover from both to 5G with `reinject: rescue`",
        f"{_HANDOVER}; nothing is rescued",
        partial(_handover, to="5g", reinject="rescue"),
        partial(_judge_handover_rescue, to="5g"),
    ),
    _back_row("back-blackhole-3", "WiFi comes back after 3 s of silence", "blackhole", 3.0),
    _back_row("back-blackhole-10", "WiFi comes back after 10 s of silence", "blackhole", 10.0, quick=False),
    _back_row("back-blackhole-30", "WiFi comes back after 30 s of silence", "blackhole", 30.0, quick=False),
    _back_row("back-carrier", "WiFi gets its carrier back", "carrier"),
    _back_row("back-address", "WiFi gets its address back", "address"),
    Row(
        "all-lost-carrier",
        "carriers of both lost for 20 s",
        _RESUME,
        partial(_all_lost, how="carrier"),
        _judge_resumed,
        real_addresses=True,
    ),
    Row("all-lost-silent", "both silent for 20 s", _RESUME, partial(_all_lost, how="blackhole"), _judge_resumed),
    Row("flap-silent", "WiFi 2 s up, 2 s silent for 60 s", _FLAP, partial(_flap, how="blackhole"), _judge_flap),
    Row(
        "flap-carrier",
        "WiFi 2 s up, 2 s without carrier for 60 s",
        _FLAP,
        partial(_flap, how="carrier"),
        _judge_flap,
        quick=False,
    ),
    Row(
        "address-changes",
        "the address of the only connection changes",
        "continues from the new address within 1 s; nothing lost or doubled",
        _address_changes,
        _judge_resumed,
        only_tcp=True,
    ),
    Row(
        "first-silent",
        "the first entry's link is a black hole",
        _OPEN,
        partial(_first_is_dead, how="blackhole"),
        _judge_open,
    ),
    Row(
        "first-swallowed",
        "the first entry's server swallows SYNs",
        _OPEN,
        partial(_first_is_dead, how="swallowed"),
        _judge_open,
    ),
    Row(
        "nothing-full", "nothing, under full load, for 60 s", _NEVER, partial(_nothing, traffic="full"), _judge_nothing
    ),
    Row("nothing-idle", "nothing, idle, for 60 s", _NEVER, partial(_nothing, traffic="idle"), _judge_nothing),
    Row("nothing-limited", "nothing, 1 Mbit/s, for 60 s", _NEVER, partial(_nothing, traffic="limited"), _judge_nothing),
)


def row(key: str) -> Row:
    return next(row for row in ROWS if row.key == key)


# --- measuring ---


async def measure(row: Row, variant: Variant, timing: Timing, number: int) -> Outcome:
    """Play a row once and judge it. What goes wrong on the way is a fault of the outcome, not an exception.

    Raises TestbedNotAllowed where there can be no testbed.
    """
    outcome = Outcome(row.key, str(variant), number)
    seed = zlib.crc32(f"{row.key} {variant} {number}".encode())
    load, (busy, whole) = os.getloadavg()[0], _processor_time()
    async with stage(variant, timing, seed, real_addresses=row.real_addresses) as running:
        seen = running.seen
        try:
            await row.play(running)
        except (TestbedError, OSError) as error:
            outcome.faults.append(f"{type(error).__name__}: {error}")
    if seen.trouble:
        outcome.faults.append(seen.trouble)
    for name, run in (("", seen.run), ("5G alone: ", seen.baseline)):
        if run is not None:
            outcome.faults += [name + fault for fault in faults(run)]
    if (seen.run is not None and seen.marks) or seen.opens:
        figures = row.judge(seen)
        # One MPTCP connection over both networks is the kernel's doing: reported, not promised.
        unbound = variant.transport == "one-mptcp"
        outcome.figures = [Figure(f.name, f.value, f.unit) if unbound else f for f in figures]
    now_busy, now_whole = _processor_time()
    share = (now_busy - busy) / max(1, now_whole - whole)
    outcome.facts = {"machine: load before": round(load, 2), "machine: busy share": round(share, 3), **_facts(seen)}
    if seen.run is not None and seen.marks:
        outcome.suspicions = suspicions(seen.run)
        outcome.line = goodput_line(seen.run.receiving, seen.marks[0].before - 1.0, seen.run.stopped)
    return outcome


def _processor_time() -> tuple[int, int]:
    """What all processors of the machine have worked, whoever for, and what they could have; in ticks."""
    with open("/proc/stat", encoding="ascii") as file:
        ticks = [int(word) for word in file.readline().split()[1:9]]
    idle = ticks[3] + ticks[4]
    return sum(ticks) - idle, sum(ticks)


def _facts(seen: Measurement) -> dict[str, float]:
    run = seen.run
    if run is None or not seen.marks:
        return {f"{name}, ms": statistics.median(times) * 1e3 for name, times in seen.opens.items()}
    event = seen.marks[0]
    begin = event.before - seen.timing.undisturbed
    receiving = run.receiving
    facts: dict[str, float | None] = {
        "undisturbed: longest gap, ms": undisturbed_gap(receiving, begin, event.before) * 1e3,
        "undisturbed: goodput, Mbit/s": goodput(receiving, begin, event.before),
        "undisturbed: ends kept waiting by the machine, ms": late(run, begin, event.before) * 1e3,
        "afterwards: ends kept waiting by the machine, ms": late(run, event.before, run.stopped) * 1e3,
        "afterwards: goodput, Mbit/s": goodput(receiving, event.after + GOODPUT_FROM, run.stopped),
        "afterwards: WiFi in the last second, Mbit/s": carried(receiving, "wifi", run.stopped - 1.0, run.stopped),
        "sent again within 1 s of the event, bytes": float(reinjected(run.sending, event.before, event.after + 1.0)),
        "sent again in all, bytes": float(reinjected(run.sending, 0.0, run.stopped)),
        "suspected before the event, times": float(len(suspicions(run)) - len(suspicions(run, event.before))),
        "suspected afterwards, times": float(len(suspicions(run, event.before))),
        "5G alone, Mbit/s": _alone(seen),
        "event took, ms": (event.after - event.before) * 1e3,
        "opened after, ms": (run.client.opened - run.client.opening) * 1e3,
        "processor, client": run.client.cpu,
        "processor, server": run.server.cpu,
    }
    for link in ("wifi", "5g"):
        facts[f"undisturbed: over {link}, Mbit/s"] = carried(receiving, link, begin, event.before)
        rtt = round_trip(run.sending, link, begin, event.before)
        facts[f"undisturbed: RTT of {link}, ms"] = None if rtt is None else rtt * 1e3
    for link, at in seen.usable.items():
        given_back = next((m.before for m in seen.marks if m.name in ("back", f"{link} back")), event.before)
        facts[f"{link} usable after, ms"] = (at - given_back) * 1e3
    return {name: round(value, 3) for name, value in facts.items() if value is not None}
