"""MPTCP over a slow link: what the kernel holds and has not sent cannot be taken back, and it does not bound that."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any
from unittest.mock import patch

import pytest

import multi
from multi.lab.testbed import Direction, LinkSpec
from multi.lab.testbed.pytest_plugin import MakeTestbed
from multi.linux.mptcp_pm import mptcp_available
from multi.transports.mptcp.info import MptcpInfo
from multi.transports.mptcp.transport import MptcpChannel
from multi.transports.sockets import NOTSENT_LOWAT
from multi.transports.tcp.channel import MIN_QUANTUM, QUANTUM_START
from multi.transports.tcp.info import read_tcp_info
from tests.testbed.clients import beside, carried_by, opened, send, take

pytestmark = pytest.mark.skipif(not mptcp_available(), reason="this kernel has no MPTCP")

PORT = 7790
RATE = 20.0  # Mbit/s
INTERFACE = "wwan0"
LINK = LinkSpec.symmetric("radio", INTERFACE, Direction(rate_mbps=RATE, delay_ms=20), kind="cellular")


async def serve(config: dict[str, Any]) -> None:
    async def on_client(reader: multi.SessionReader, _: multi.SessionWriter) -> None:
        with contextlib.suppress(ConnectionError):
            await take(reader)

    await multi.start_server(on_client, config)
    await asyncio.Event().wait()


async def upload(config: dict[str, Any]) -> tuple[float, int]:
    """Mbit/s, and the most that the kernel held unsent whenever it was asked."""
    held = 0
    look = MptcpChannel._look_at_unsent

    def look_and_note(channel: MptcpChannel, kernel: MptcpInfo | None) -> None:
        nonlocal held
        if (flow := read_tcp_info(channel._sock)) is not None:
            held = max(held, flow.not_sent)
        look(channel, kernel)

    with patch.object(MptcpChannel, "_look_at_unsent", look_and_note):
        session = await opened(config)
        sending = asyncio.create_task(send(session.writer))
        await asyncio.sleep(1.0)
        before, start = carried_by(INTERFACE), time.monotonic()
        await asyncio.sleep(1.5)
        took, after = time.monotonic() - start, carried_by(INTERFACE)
    sending.cancel()
    session.abort()
    return (after.sent - before.sent) * 8 / 1e6 / took, held


@pytest.mark.parametrize("accepted", ["mptcp", "tcp"])
async def test_little_waits_in_the_kernel_and_the_link_is_full(make_testbed: MakeTestbed, accepted: str) -> None:
    """Where the server takes TCP only, a connection of MPTCP falls back to it."""
    testbed = make_testbed((LINK,))
    server = {"listen": {"host": "::", "port": PORT, "transports": [accepted]}}
    client = {
        "connection_priority": [["mptcp", "ipv4", "cellular"]],
        "remote_host": testbed.server.address(),
        "remote_port": PORT,
        "interfaces": testbed.interface_kinds,
    }
    found: tuple[float, int] = await beside(
        testbed.server.run_python(serve, server), testbed.client.run_python(upload, client)
    )
    rate, held = found
    assert 0 < held < NOTSENT_LOWAT + QUANTUM_START + 2 * MIN_QUANTUM  # it was 0.4 to 1.1 MB
    assert rate > 0.7 * RATE  # by a busy machine; 1.0 by one that has nothing else to do
