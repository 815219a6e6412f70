"""One connection of multipath QUIC while its networks go, come back, die and fade: the other one carries, no byte is
missing, the session keeps its connection, and the network is used again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest

from benchmarks.pattern import Checker
from multi.asyncio import roaming
from multi.asyncio.suspend import SleepWatch
from multi.lab.testbed import Direction, Link, LinkSpec
from multi.lab.testbed.pytest_plugin import MakeTestbed
from multi.linux.wifi_signal import SignalWatch
from multi.transports.mpquic.channel import MpquicChannel
from tests.engines import engine_or_skip
from tests.integration.support import until
from tests.testbed.clients import opened
from tests.testbed.test_handover import played

FIGURES = Direction(rate_mbps=3, delay_ms=10)  # both together leave the processor time, so that both are used
LINKS = (
    LinkSpec.symmetric("wifi", "wlan0", FIGURES, kind="wifi"),
    LinkSpec.symmetric("cellular", "wwan0", FIGURES, kind="cellular"),
)
USED = 60_000  # bytes
SAID = "said"
"""The file by which a client is told what to hear of next. It is empty once that is done."""


class Told(NamedTuple):
    damaged_at: int | None
    first_stays: bool
    transports: set[str]
    heard_of: set[tuple[str, bool]]
    """Interfaces that its one connection hears to have lost something, and whether that is an address."""
    sleeps: int


async def reads(config: dict[str, Any]) -> Told:
    """All that comes until it is told to end."""
    said, checker = Path(config["ssl_config"]["ca"]).with_name(SAID), Checker()
    with (
        heard_from(SignalWatch, "SignalWatch") as signal,
        heard_from(SleepWatch, "SleepWatch") as sleep,
        calls_of("network_lost") as lost,
        calls_of("slept") as sleeps,
    ):
        session = await opened(config)
        (first,) = session.connections
        while (told := said.read_text()) != "end":
            if told == "slept":
                sleep[-1](3600.0)
            elif told:
                signal[-1]("wlan0", told == "fading", -80.0)
            if told:
                said.write_text("")
            checker.feed(await session.reader.read(65536))
        kept = [info for info in session.connections if not info.state.over]
        session.abort()
    heard_of = {(call.args[1], bool(call.args[2])) for call in lost.mock_calls}
    stays = first.id in {info.id for info in kept}
    return Told(checker.damaged_at, stays, {info.transport for info in kept}, heard_of, sleeps.call_count)


@contextmanager
def heard_from(watch: type, name: str) -> Iterator[list[Callable[..., None]]]:
    """What such watches of sessions would call; the last is that of the one which was opened."""
    callbacks: list[Callable[..., None]] = []

    def made(callback: Callable[..., None]) -> Any:
        callbacks.append(callback)
        return watch(callback)

    with patch.object(roaming, name, made):
        yield callbacks


def calls_of(name: str) -> AbstractContextManager[Any]:
    """Of the channel, which does what it does."""
    return patch.object(MpquicChannel, name, autospec=True, side_effect=getattr(MpquicChannel, name))


async def carries(link: Link) -> None:
    before = link.statistics().down.bytes
    await until(lambda: link.statistics().down.bytes > before + USED, f"{link.name} carries")


async def carries_alone(link: Link, other: Link) -> None:
    """In one of a few looks: acknowledgements and probes may still come over the other."""

    def looked() -> tuple[int, int]:
        return link.statistics().down.bytes, other.statistics().down.bytes

    for _ in range(20):
        before = looked()
        await carries(link)
        here, there = (after - earlier for after, earlier in zip(looked(), before, strict=True))
        if there < 0.1 * here:
            return
    raise AssertionError(f"{other.name} goes on carrying")


@pytest.mark.parametrize("engine", ["aioquic", "noq"])
async def test_the_other_network_carries_and_the_path_returns(
    make_testbed: MakeTestbed, tmp_path: Path, engine: str
) -> None:
    if engine != "aioquic":
        engine_or_skip(engine)
    testbed = make_testbed(LINKS)
    wifi, cellular = testbed.links["wifi"], testbed.links["cellular"]
    said = tmp_path / SAID
    said.write_text("")

    async def tell(what: str) -> None:
        said.write_text(what)
        await until(lambda: not said.read_text(), f"{what} is heard")

    async def story() -> None:
        await carries(wifi)
        await carries(cellular)
        wifi.carrier(False)
        await carries(cellular)
        wifi.carrier(True)
        await carries(wifi)
        cellular.remove_address()
        await carries(wifi)
        cellular.restore_address()
        await carries(cellular)
        wifi.blackhole(True)
        await carries(cellular)
        wifi.blackhole(False)
        await carries(wifi)
        await tell("fading")
        await carries_alone(cellular, wifi)
        await tell("well")
        await carries(wifi)
        await tell("slept")
        await carries(wifi)
        await carries(cellular)
        said.write_text("end")

    playing = asyncio.create_task(played(testbed, tmp_path, engine, reads))
    try:
        await story()
        told: Told = await playing
    finally:
        playing.cancel()
    assert told == Told(None, True, {"mpquic"}, {("wlan0", False), ("wwan0", True)}, 1)
