"""A handover of a session over one connection over several networks: that of multipath QUIC stays, and its paths over
the network that is meant carry everything; that of MPTCP cannot be told to."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias
from unittest.mock import patch

import pytest

import multi
from multi.lab.cert import write_development_certificates
from multi.lab.testbed import Direction, LinkSpec, Testbed
from multi.lab.testbed.pytest_plugin import MakeTestbed
from multi.linux.mptcp_pm import mptcp_available
from multi.transports.mpquic.channel import MpquicChannel
from multi.types import ConnectionId
from tests.engines import engine_or_skip
from tests.testbed.clients import active_transports, beside, carried_by, opened, send

PORT = 7788
FIGURES = Direction(rate_mbps=20, delay_ms=10)
LINKS = (
    LinkSpec.symmetric("wifi", "wlan0", FIGURES, kind="wifi"),
    LinkSpec.symmetric("cellular", "wwan0", FIGURES, kind="cellular"),
)
LOOKED_AT = 0.5  # seconds
Looks: TypeAlias = tuple[list[tuple[int, int]], list[list[ConnectionId]]]


async def serve(config: dict[str, Any]) -> None:
    async def on_client(_: multi.SessionReader, writer: multi.SessionWriter) -> None:
        with contextlib.suppress(ConnectionError):
            await send(writer)

    await multi.start_server(on_client, config)
    await asyncio.Event().wait()


async def download(config: dict[str, Any]) -> Looks:
    """Bytes that come over WiFi and 5G at first and after two handovers, and the session's connections then."""
    session = await opened(config)
    await session.reader.readexactly(1_000_000)
    looks, ids = [await settled(session)], [[connection.id for connection in session.connections]]
    for to in ("cellular", "wifi"):
        await session.handover(to)
        await session.reader.readexactly(1_000_000)  # what was under way
        looks.append(await look(session))
        ids.append([connection.id for connection in session.connections])
    session.abort()
    return looks, ids


async def look(session: multi.Session) -> tuple[int, int]:
    """Bytes that come over WiFi and 5G for a while."""
    before = [carried_by(name).received for name in ("wlan0", "wwan0")]
    end = time.monotonic() + LOOKED_AT
    while time.monotonic() < end:
        assert await session.reader.read(65536)
    wifi, cellular = (carried_by(name).received - count for name, count in zip(("wlan0", "wwan0"), before, strict=True))
    return wifi, cellular


async def settled(session: multi.Session) -> tuple[int, int]:
    """The same once both carry: where the processor is the limit, one path is used for a while."""
    for _ in range(20):
        looked = await look(session)
        if both_carry(looked):
            break
    return looked


def both_carry(carried: tuple[int, int]) -> bool:
    return min(carried) > 0.2 * max(carried)


async def two_at_once(config: dict[str, Any]) -> tuple[str, list[tuple[int, int]]]:
    """What a handover says during one to a network that is silent, and bytes over WiFi and 5G before and after it."""
    nowhere = {"transport": "tcp", "ip": "ipv4", "interface": "eth"}
    session = await opened(config | {"connection_priority": [*config["connection_priority"], nowhere]})
    await session.reader.readexactly(1_000_000)
    before = await settled(session)
    earlier = asyncio.create_task(session.handover("eth"))
    await asyncio.sleep(0)
    with pytest.raises(multi.TransportError) as caught:
        await session.handover("cellular")
    await session.reader.readexactly(1_000_000)
    after = await settled(session)
    session.abort()
    await asyncio.gather(earlier, return_exceptions=True)
    return str(caught.value), [before, after]


async def refused(config: dict[str, Any]) -> str:
    """What a handover to a network says over which there is no path, while the download goes on."""
    session = await opened(config)
    await session.reader.readexactly(1_000_000)
    with pytest.raises(multi.TransportError) as caught:
        await session.handover("cellular")
    await session.reader.readexactly(1_000_000)
    session.abort()
    return str(caught.value)


async def after_a_moment(config: dict[str, Any]) -> tuple[int, int]:
    """Bytes that come over WiFi and 5G after a handover to a path that does not answer at first."""
    session = await opened(config)
    await session.reader.readexactly(1_000_000)
    await settled(session)
    with patch.object(MpquicChannel, "works_over", side_effect=[False, False, True]):
        waiting = asyncio.create_task(session.handover("cellular"))
        await asyncio.sleep(0)
        with pytest.raises(multi.TransportError, match="another handover is under way"):
            await session.handover("wifi")
        await waiting
    await session.reader.readexactly(1_000_000)
    looked = await look(session)
    session.abort()
    return looked


async def past_mptcp(config: dict[str, Any]) -> tuple[list[str], list[str]]:
    """The transports before and after a handover to a network that an MPTCP connection uses and one of TCP."""
    session = await opened(config)
    while len(before := active_transports(session)) < 2:  # a server takes TCP a moment before or after MPTCP
        assert await session.reader.read(65536)
    await session.handover("cellular")
    while len(after := active_transports(session)) > 1:
        assert await session.reader.read(65536)
    await session.reader.readexactly(1_000_000)
    session.abort()
    return before, after


async def before_mptcp(config: dict[str, Any]) -> list[str]:
    """The transports used after a handover to the network of a TCP connection, before that of MPTCP is up."""
    session = await opened(config | {"connection_priority": config["connection_priority"][::-1]})
    await session.handover("cellular")
    await session.reader.readexactly(2_000_000)
    after = active_transports(session)
    session.abort()
    return after


async def played(
    testbed: Testbed,
    certificates: Path,
    engine: str,
    client: Callable[..., Any],
    transports: Sequence[str] = ("mpquic",),
    listens: Sequence[str] = (),
) -> Any:
    """What `client` returns, which is given the configuration of a client: the first over both networks.

    `listens`: what the server takes, none: the same transports.
    """
    if engine != "aioquic":
        engine_or_skip(engine)
    write_development_certificates(certificates, [])
    listening = {
        "listen": {"host": "::", "port": PORT, "transports": listens or transports},
        "ssl_config": {name: str(certificates / f"server-{name}.pem") for name in ("cert", "key")},
        "mpquic_config": {"engine": engine},
    }
    config = {
        "connection_priority": [
            [transports[0], "ipv4", ["wifi", "cellular"]],
            *([transport, "ipv4", "cellular"] for transport in transports[1:]),
        ],
        "remote_host": testbed.server.address(),
        "remote_port": PORT,
        "interfaces": testbed.interface_kinds,
        "ssl_config": {"ca": str(certificates / "ca.pem"), "server_name": "localhost"},
        "mpquic_config": {"engine": engine},
    }
    return await beside(testbed.server.run_python(serve, listening), testbed.client.run_python(client, config))


@pytest.mark.parametrize("engine", ["aioquic", "noq"])
async def test_a_handover_moves_what_one_connection_carries(
    make_testbed: MakeTestbed, tmp_path: Path, engine: str
) -> None:
    found: Looks = await played(make_testbed(LINKS), tmp_path, engine, download)
    looks, ids = found
    assert ids[0] == ids[1] == ids[2], "it is the same connection"
    assert len(ids[0]) == 1
    at_first, (wifi_left, cellular_alone), (wifi_again, cellular_left) = looks
    assert both_carry(at_first)
    assert wifi_left < 0.1 * cellular_alone
    assert cellular_left < 0.1 * wifi_again


async def test_a_handover_to_a_network_over_which_there_is_no_path_fails(
    make_testbed: MakeTestbed, tmp_path: Path
) -> None:
    """It said that it had worked, and everything went on over the other network."""
    testbed = make_testbed(LINKS)
    testbed.links["cellular"].blackhole(True)
    said: str = await played(testbed, tmp_path, "aioquic", refused)
    assert said == "handover to cellular failed: the connection that uses it has no path there now"


async def test_a_handover_waits_a_moment_for_a_path_that_does_not_answer_now(
    make_testbed: MakeTestbed, tmp_path: Path
) -> None:
    """On a busy machine paths are suspect now and then, and what was wanted failed by chance."""
    wifi, cellular = await played(make_testbed(LINKS), tmp_path, "aioquic", after_a_moment)
    assert wifi < 0.1 * cellular


async def test_a_handover_that_is_refused_changes_nothing(make_testbed: MakeTestbed, tmp_path: Path) -> None:
    testbed = make_testbed((*LINKS, LinkSpec.symmetric("eth", "eth1", FIGURES, kind="eth")))
    testbed.links["eth"].blackhole(True)
    said, looks = await played(testbed, tmp_path, "aioquic", two_at_once)
    assert said == "handover to cellular failed: another handover is under way"
    assert all(both_carry(each) for each in looks)


needs_mptcp = pytest.mark.skipif(not mptcp_available(), reason="this kernel has no MPTCP")


@needs_mptcp
async def test_a_handover_to_a_network_that_only_mptcp_uses_fails(make_testbed: MakeTestbed, tmp_path: Path) -> None:
    said: str = await played(make_testbed(LINKS), tmp_path, "aioquic", refused, ["mptcp"])
    assert said == "handover to cellular failed: the system decides which of its networks a connection over mptcp uses"


@needs_mptcp
async def test_a_handover_takes_the_connection_beside_that_of_mptcp(make_testbed: MakeTestbed, tmp_path: Path) -> None:
    both = ["mptcp", "tcp"]
    transports: tuple[list[str], list[str]] = await played(make_testbed(LINKS), tmp_path, "aioquic", past_mptcp, both)
    assert transports == (both, ["tcp"])


@needs_mptcp
async def test_a_handover_leaves_a_connection_over_mptcp_that_is_not_up_yet(
    make_testbed: MakeTestbed, tmp_path: Path
) -> None:
    """It joined afterwards, and went on over the network that the session should leave."""
    used: list[str] = await played(make_testbed(LINKS), tmp_path, "aioquic", before_mptcp, ["mptcp", "tcp"])
    assert used == ["tcp"]
