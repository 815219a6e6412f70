"""Networks that swallow large packets and tell nobody."""

from __future__ import annotations

import asyncio

from multi.lab.testbed import load_profile
from multi.lab.testbed.pytest_plugin import MakeTestbed
from tests.testbed.hole import Hole, fetch, serve

SIZE = 500_000  # bytes


async def test_tcp_goes_on_with_small_packets_where_large_ones_vanish(make_testbed: MakeTestbed) -> None:
    testbed = make_testbed(load_profile("wifi_and_5g"))
    link = testbed.links["wifi"]
    link.intercept(Hole, 1280)
    host = testbed.server.address()
    serving = asyncio.create_task(testbed.server.run_python(serve, host, SIZE))
    async with asyncio.timeout(30.0):
        while True:
            try:
                received = await testbed.client.run_python(fetch, host, link.interface)
                break
            except ConnectionError:  # the server does not listen yet
                await asyncio.sleep(0.1)
        await serving
    assert received == SIZE
    assert link.ask_interceptor(None) > 0
