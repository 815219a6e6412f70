"""Networks that swallow large packets and tell nobody."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from multi.lab.cert import write_development_certificates
from multi.lab.testbed import Link, Testbed, load_profile
from multi.lab.testbed.pytest_plugin import MakeTestbed
from multi.linux.mptcp_pm import mptcp_available
from tests.testbed.hole import Hole, fetch, serve

SIZE = 500_000  # bytes
LARGEST = 1280
SOON = 5.0  # seconds, on a machine that does other things; whoever waits for the server to give up waits 10


async def fetched(
    testbed: Testbed, link: Link, transport: str = "tcp", certificates: Path | None = None
) -> tuple[int, float]:
    host = testbed.server.address()
    serving = asyncio.create_task(testbed.server.run_python(serve, host, SIZE, transport, certificates))
    async with asyncio.timeout(30.0):
        while True:
            try:
                outcome = await testbed.client.run_python(fetch, host, link.interface, transport, certificates)
                break
            except ConnectionError:  # the server does not listen yet
                await asyncio.sleep(0.1)
        await serving
    return outcome


async def test_tcp_goes_on_with_small_packets_where_large_ones_vanish(make_testbed: MakeTestbed) -> None:
    testbed = make_testbed(load_profile("wifi_and_5g"))
    link = testbed.links["wifi"]
    link.intercept(Hole, LARGEST)
    received, _ = await fetched(testbed, link)
    assert received == SIZE
    assert link.ask_interceptor(None) > 0


@pytest.mark.parametrize("protection", ["tcp", "tls", "mptcp"])
async def test_who_only_reads_goes_on_soon_where_large_packets_begin_to_vanish(
    make_testbed: MakeTestbed, tmp_path: Path, protection: str
) -> None:
    """Nothing of the reader waits to be acknowledged, and what the server says stands behind what is lost."""
    if protection == "mptcp" and not mptcp_available():
        pytest.skip("this kernel has no MPTCP")
    testbed = make_testbed(load_profile("wifi_and_5g"))
    certificates = None
    if protection == "tls":
        certificates = tmp_path
        write_development_certificates(certificates, [testbed.server.address()])
    link = testbed.links["wifi"]
    link.intercept(Hole, LARGEST, SIZE // 3)
    received, longest = await fetched(testbed, link, "mptcp" if protection == "mptcp" else "tcp", certificates)
    assert received == SIZE
    assert link.ask_interceptor(None) > 0
    assert longest < SOON
