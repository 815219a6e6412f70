"""Floods of JOINs, HELLOs and dropped sessions that know the Session ID: nobody loses a session or waits a second more.

Over sealed TCP, TLS and QUIC, from beside, from the client's own address and from fifty networks. The client's Session
ID is configured, so that strangers know it before it comes; over TCP they have overheard its HELLO as well.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import multi
from multi.protocol.segment import SegmentType
from tests.findings.attacks import aborted_at_end, echoing, exchanged, first_segment, type_of
from tests.findings.delays import MORE, delays
from tests.integration.support import Relay, Way, run, until
from tests.processes import MORTAL

pytestmark = pytest.mark.usefixtures("bounded_callbacks")

ROOT = Path(__file__).parents[2]
WAYS = {"tcp-sealed": ("sealed", 300.0), "tcp-tls": ("TLS", 150.0), "quic": ("QUIC", 80.0)}
"""What the flood calls them, and pieces a second."""
LOW = {"max_unauthenticated": 300, "max_unauthenticated_per_source": 30, "max_detached_sessions": 60}
"""Limits that a flood of one network reaches, and above how many networks there are: each has a share. Those by default
hold where it comes from the client's own address, whose share it takes."""
DEVICE = b"device-000000042".hex()
HOME, ELSEWHERE = "127.5.5.5", "127.6.6.6"
ORIGINS = {
    "beside": ["127.66.6.6"],
    "the client's own address": [HOME, ELSEWHERE],
    "fifty networks": [f"127.66.{number}.1" for number in range(50)],
}


class Flooder:
    """The process of the flood."""

    def __init__(self) -> None:
        words = (*MORTAL, sys.executable, "-m", "tests.findings.flood")
        self._process = subprocess.Popen(words, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._going: dict[str, Any] | None = None
        self.sent: Counter[str] = Counter()

    async def goes(self, order: dict[str, Any] | None) -> None:
        """Let this flood go on from now on; None = none."""
        if order != self._going:
            self._going = order
            self.sent.update(await asyncio.to_thread(self._told, order))

    def _told(self, order: dict[str, Any] | None) -> dict[str, int]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(order), file=self._process.stdin, flush=True)
        sent: dict[str, int] = json.loads(self._process.stdout.readline())
        return sent

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture(scope="module")
def flooding() -> Iterator[Flooder]:
    flooder = Flooder()
    try:
        yield flooder
    finally:
        flooder.end()


async def overheard_hello(way: Way, port: int) -> bytes:
    """The first thing that a client of this ID says, over TCP in clear."""
    heard = bytearray()

    class Tapped(Relay):
        async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, counted: bool) -> None:
            if counted:
                heard.extend(first := await reader.read(65536))
                writer.write(first)
            await super()._pump(reader, writer, counted)

    async with Tapped(port) as relay, multi.connect(way.client(relay.port, session_id=DEVICE)) as session:
        await exchanged(session)
    assert type_of(bytes(heard)) is SegmentType.HELLO
    return first_segment(bytes(heard))


async def played(way: Way, origin: str, flooder: Flooder) -> dict[str, float]:
    """Seconds by which the flood delays an opening, a JOIN and a return; a session from before has to outlive it."""
    name, rate = WAYS[way.name]
    # A client that blocks its networks closes its connections, as one that has ended.
    patient = {"abandon_timeout": 0.0}
    loop = asyncio.get_running_loop()
    async with echoing(way, multi_config=patient, limits={} if HOME in ORIGINS[origin] else LOW) as server:
        hello = await overheard_hello(way, server.port) if name == "sealed" else b""
        entries = {host: [way.transport, "ipv4", host] for host in (HOME, ELSEWHERE)}

        async def measured(order: dict[str, Any] | None) -> dict[str, float]:
            await flooder.goes(order)
            took, began = {}, loop.time()
            config = way.client(server.port, connection_priority=[entries[HOME]], session_id=DEVICE)
            async with multi.connect(config) as session:
                await exchanged(session)
                took["opening"], began = loop.time() - began, loop.time()
                await session.add_connection(entries[ELSEWHERE])
                took["JOIN"] = loop.time() - began
                for network in (HOME, ELSEWHERE):
                    session.block(network)
                await until(lambda: session.state is multi.SessionState.DETACHED, "it is nowhere")
                began = loop.time()
                session.unblock(ELSEWHERE)
                await exchanged(session, b"back again")
                took["return"] = loop.time() - began
            return took

        before = await multi.connect(way.client(server.port, connection_priority=[entries[HOME]]))
        async with aborted_at_end(before):
            await exchanged(before)
            order = {"port": server.port, "way": name, "sources": ORIGINS[origin], "session": DEVICE}
            order |= {"hello": hello.hex(), "rate": rate}
            try:
                found = await delays(lambda: measured(None), lambda: measured(order))
            finally:
                await flooder.goes(None)
            await exchanged(before, b"still here")
            if origin == "beside":
                assert any(server.statistics.values()), "no limit was reached"
        return found


@pytest.mark.parametrize("origin", ORIGINS)
@pytest.mark.parametrize("name", WAYS)
def test_no_flood_ends_a_session_or_delays_a_client_by_a_second(
    name: str, origin: str, flooding: Flooder, development_certificates: Path
) -> None:
    before = flooding.sent.copy()
    found = run(played(Way(development_certificates, name), origin, flooding), timeout=90.0)
    assert max(found.values()) < MORE, found
    sent = flooding.sent - before
    assert len(sent) == (5 if name == "tcp-sealed" else 4), sent
    assert min(sent.values()) >= 10, sent
