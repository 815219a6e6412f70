"""Sessions in network namespaces whose interfaces, addresses and servers go at the worst moment.

Each story is told in `hostile_stories`; it runs on the client and has the links changed. Every byte has to come back.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest

from multi.lab.testbed import Direction, Host, LinkSpec, Testbed, call
from multi.lab.testbed.pytest_plugin import MakeTestbed
from tests.testbed.hostile_stories import SERVER, remove_server_address

LINKS = (
    LinkSpec.symmetric("wifi", "wlan0", Direction(rate_mbps=100, delay_ms=2), kind="wifi"),
    LinkSpec.symmetric("cellular", "wwan0", Direction(rate_mbps=50, delay_ms=10), kind="cellular"),
)


@pytest.mark.parametrize(
    ("story", "loop"),
    [
        ("vanishes_while_it_is_dialled", "uvloop"),
        ("vanishes_while_the_session_opens", "asyncio"),
        ("address_goes_between_bind_and_connect", "asyncio"),
        ("messages_about_the_network_are_lost", "uvloop"),
        ("handovers_to_what_does_not_work", "asyncio"),
        ("handovers_meet", "asyncio"),
        ("everything_changes_two_hundred_times_a_second", "asyncio"),
        ("may_change_nothing", "asyncio"),
        ("configured_address_dies", "asyncio"),
    ],
)
async def test_a_session_lives_on_when(
    story: str, loop: str, make_testbed: MakeTestbed, capsys: pytest.CaptureFixture[str]
) -> None:
    testbed = make_testbed(LINKS)
    # Only where it matters: an entry whose own address is closed would come up at one that the server announces.
    announced = [SERVER] if story == "configured_address_dies" else []
    async with (
        running(testbed.server, "serve", "asyncio", *announced) as server,
        running(testbed.client, story, loop) as client,
    ):
        assert server.stdout is not None
        assert await asyncio.to_thread(server.stdout.readline) == "ready\n"
        await obey(testbed, client)
        status = await asyncio.to_thread(client.wait, 10.0)
        assert client.stderr is not None
        told = client.stderr.read()
    assert status == 0, told[-6000:]
    with capsys.disabled():
        print(f"\n  {story}: {told.strip()[-300:]}" if story.startswith("everything") else "", end="")


@contextlib.asynccontextmanager
async def running(host: Host, *arguments: str) -> AsyncIterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.testbed.hostile_stories", *arguments]
    streams: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = host.popen(command, text=True, env=call.environment(), **streams)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()


async def obey(testbed: Testbed, client: subprocess.Popen[str]) -> None:
    """Change what the client asks for, until it has ended."""
    assert client.stdout is not None
    assert client.stdin is not None
    client.stdin.write("begin\n")
    client.stdin.flush()
    while line := await asyncio.to_thread(client.stdout.readline):
        name, change, *arguments = json.loads(line)
        if name == "server":
            await testbed.server.run_python(remove_server_address)
        else:
            await asyncio.to_thread(getattr(testbed.links[name], change), *arguments)
        client.stdin.write("\n")
        client.stdin.flush()
