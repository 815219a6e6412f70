"""Networks that come, or come back, after a connection over several was opened without them: they are used too."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import multi
from multi.discovery.interfaces import interfaces
from multi.lab.testbed import Testbed
from multi.lab.testbed.pytest_plugin import MakeTestbed
from multi.types import Family
from tests.integration.support import until
from tests.testbed.clients import active_transports, opened
from tests.testbed.test_handover import LINKS, look, needs_mptcp, played

SOON = 10.0  # seconds
USED = 100_000  # bytes while one looks


async def comes_later(config: dict[str, Any]) -> tuple[list[str], list[str]]:
    """The transports of a session that was opened without 5G, and those once 5G carries."""
    session = await opened(config)
    events = session.events()
    await session.reader.readexactly(1_000_000)
    before = active_transports(session)
    await until_carried(session)
    after = active_transports(session)
    async with asyncio.timeout(SOON):  # it has been said, too
        while not isinstance(event := await anext(events), multi.NetworkChanged):
            pass
    assert (event.interface, event.usable) == ("wwan0", True)
    session.abort()
    return before, after


async def comes_back(config: dict[str, Any]) -> None:
    """5G is blocked in a download, and unblocked: it carries again."""
    session = await opened(config)
    await until_carried(session)
    session.block("wwan0")
    async with asyncio.timeout(SOON):
        while (await look(session))[1] > USED:
            pass
    session.unblock("wwan0")
    await until_carried(session)
    session.abort()


async def goes_on(config: dict[str, Any]) -> None:
    """5G's address is deprecated in a download, as one whose successor is about to come: it goes on carrying."""
    session = await opened(config)
    await until_carried(session)
    (held,) = (a for each in interfaces() if each.name == "wwan0" for a in each.addresses if a.family is Family.IPV4)
    change = ("ip", "address", "change", f"{held.address}/{held.prefix_length}", "dev", "wwan0", "preferred_lft", "0")
    assert await (await asyncio.create_subprocess_exec(*change)).wait() == 0
    await look(session)  # meanwhile this has been seen
    for _ in range(3):
        assert (await look(session))[1] > USED
    session.abort()


async def without_5g_at_first(testbed: Testbed, certificates: Path, *how: Sequence[str]) -> tuple[list[str], list[str]]:
    """What `comes_later` returns. 5G comes once something has been read over WiFi."""
    wifi, cellular = testbed.links["wifi"], testbed.links["cellular"]
    cellular.carrier(False)

    async def come() -> None:
        await until(lambda: wifi.statistics().down.bytes > 2_000_000)
        cellular.carrier(True)

    coming = asyncio.create_task(come())
    try:
        found: tuple[list[str], list[str]] = await played(testbed, certificates, "aioquic", comes_later, *how)
    finally:
        coming.cancel()
    return found


async def until_carried(session: Any) -> None:
    """By 5G."""
    async with asyncio.timeout(SOON):
        while (await look(session))[1] < USED:
            pass


@pytest.mark.parametrize("transport", [pytest.param("mptcp", marks=needs_mptcp), "mpquic"])
async def test_a_network_that_comes_later(make_testbed: MakeTestbed, tmp_path: Path, transport: str) -> None:
    before, after = await without_5g_at_first(make_testbed(LINKS), tmp_path, [transport])
    assert before == after == [transport]


@pytest.mark.parametrize("listens", ["quic", pytest.param("tcp", marks=needs_mptcp)])
async def test_a_network_that_comes_after_falling_back(make_testbed: MakeTestbed, tmp_path: Path, listens: str) -> None:
    """It gets a connection of its own."""
    transport = {"quic": "mpquic", "tcp": "mptcp"}[listens]
    before, after = await without_5g_at_first(make_testbed(LINKS), tmp_path, [transport], [listens])
    assert len(before) == 1
    assert len(after) == 2


@pytest.mark.parametrize("transport", [pytest.param("mptcp", marks=needs_mptcp), "mpquic"])
async def test_a_network_that_is_unblocked(make_testbed: MakeTestbed, tmp_path: Path, transport: str) -> None:
    await played(make_testbed(LINKS), tmp_path, "aioquic", comes_back, [transport])


@pytest.mark.parametrize("transport", [pytest.param("mptcp", marks=needs_mptcp), "mpquic"])
async def test_a_network_whose_address_is_deprecated(make_testbed: MakeTestbed, tmp_path: Path, transport: str) -> None:
    await played(make_testbed(LINKS), tmp_path, "aioquic", goes_on, [transport])
