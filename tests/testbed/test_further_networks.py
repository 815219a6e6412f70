"""Networks that come, or come back, after a connection over several was opened without them: they are used too."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import multi
from multi.asyncio import dns
from multi.discovery.interfaces import interfaces
from multi.lab.testbed import Testbed
from multi.lab.testbed.pytest_plugin import MakeTestbed
from multi.lab.testbed.specs import SERVER_ADDRESSES
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
    for _ in range(3):  # not in every look: where the processor is the limit, one path is used for a while
        await until_carried(session)
    session.abort()


async def with_a_name(config: dict[str, Any]) -> multi.Session:
    """A session with the server by a name that has addresses of both IP versions."""

    def lookup(host: str, family: Family) -> list[str]:
        return [address for address in SERVER_ADDRESSES.values() if Family.of(address) is family]

    dns.system_lookup = lookup
    ((transport, _, interfaces),) = config["connection_priority"]
    return await opened(
        config | {"connection_priority": [[transport, "any", interfaces]], "remote_host": "both.example"}
    )


async def unlike_networks(config: dict[str, Any]) -> list[str]:
    """The networks of a session's connections once both carry."""
    session = await with_a_name(config)
    await until_carried(session, 0)
    await until_carried(session, 1)
    used = sorted(info.interface for info in session.connections if not info.state.over)
    session.abort()
    return used


async def without_5g_at_first(
    testbed: Testbed, certificates: Path, *how: Sequence[str], client: Callable[..., Any] = comes_later
) -> Any:
    """What `client` returns. 5G comes once something has been read over WiFi."""
    wifi, cellular = testbed.links["wifi"], testbed.links["cellular"]
    cellular.carrier(False)

    async def come() -> None:
        await until(lambda: wifi.statistics().down.bytes > 2_000_000)
        cellular.carrier(True)

    coming = asyncio.create_task(come())
    try:
        return await played(testbed, certificates, "aioquic", client, *how)
    finally:
        coming.cancel()


async def until_carried(session: Any, network: int = 1) -> None:
    """By WiFi (0) or 5G (1)."""
    async with asyncio.timeout(SOON):
        while (await look(session))[network] < USED:
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


@pytest.mark.parametrize("transport", [pytest.param("mptcp", marks=needs_mptcp), "mpquic"])
async def test_networks_with_unlike_ip_versions(make_testbed: MakeTestbed, tmp_path: Path, transport: str) -> None:
    """None of the server's addresses is reached from both."""
    testbed = make_testbed((replace(LINKS[0], ipv6=False), replace(LINKS[1], ipv4=False)))
    used = await played(testbed, tmp_path, "aioquic", unlike_networks, [transport])
    assert used == ["wlan0", "wwan0"]


async def test_a_network_that_comes_later_and_has_not_the_ip_version_of_the_connection(
    make_testbed: MakeTestbed, tmp_path: Path
) -> None:
    """It was opened by IPv6, over WiFi, and goes on."""
    testbed = make_testbed((replace(LINKS[0], ipv4=False), replace(LINKS[1], ipv6=False)))
    assert await without_5g_at_first(testbed, tmp_path, ["mpquic"], client=unlike_networks) == ["wlan0", "wwan0"]
