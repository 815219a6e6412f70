"""Networks that a session may not use any more, and one connection over several of them: nothing goes on over those."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import multi
from multi.lab.testbed.pytest_plugin import MakeTestbed
from tests.testbed.clients import active_transports, carried_by, opened
from tests.testbed.test_handover import LINKS, played

SOON = 5.0  # seconds
LITTLE = 50_000  # bytes: what was under way, and what says goodbye


async def stops_over_wifi(session: multi.Session) -> int:
    """Block WiFi during a download; return what comes there in a second, once nothing comes there or it is too late."""

    async def read() -> None:
        while await session.reader.read(65536):
            pass

    reading = asyncio.create_task(read())
    session.block("wlan0")
    end = asyncio.get_running_loop().time() + SOON
    while True:
        before = carried_by("wlan0").received
        await asyncio.sleep(1.0)
        came = carried_by("wlan0").received - before
        if came < LITTLE or asyncio.get_running_loop().time() > end:
            break
    reading.cancel()
    session.abort()
    await asyncio.gather(reading, return_exceptions=True)
    return came


async def without_the_other(config: dict[str, Any]) -> tuple[int, list[str]]:
    """What comes over WiFi when it is blocked after 5G has gone, and the transports used before."""
    session = await opened(config)
    await session.reader.readexactly(1_000_000)
    down = await asyncio.create_subprocess_exec("ip", "link", "set", "wwan0", "down")
    assert await down.wait() == 0
    for _ in range(100):  # until the session has looked at its networks
        assert await session.reader.read(65536)
        await asyncio.sleep(0.01)
    used = active_transports(session)
    return await stops_over_wifi(session), used


async def after_falling_back(config: dict[str, Any]) -> tuple[int, list[str]]:
    """What comes over WiFi when it is blocked, and the transports used before, of a server without multipath."""
    session = await opened(config)
    async with asyncio.timeout(SOON):
        while len(used := active_transports(session)) < 2:
            assert await session.reader.read(65536)
    return await stops_over_wifi(session), used


@pytest.mark.parametrize("engine", ["aioquic", "noq"])
async def test_a_network_is_left_when_it_is_the_last_one(
    make_testbed: MakeTestbed, tmp_path: Path, engine: str
) -> None:
    """A connection over two networks was thought to be able to do without the one, though the other had gone."""
    came, used = await played(make_testbed(LINKS), tmp_path, engine, without_the_other)
    assert used == ["mpquic"]
    assert came < LITTLE


async def test_a_network_is_left_by_a_connection_that_fell_back(make_testbed: MakeTestbed, tmp_path: Path) -> None:
    """A connection that goes over one network was thought to be able to do without it."""
    came, used = await played(make_testbed(LINKS), tmp_path, "aioquic", after_falling_back, listens=["quic"])
    assert used == ["quic", "quic"]
    assert came < LITTLE
