"""QUIC over a slow link with room for much more than it carries: what is queued there cannot be taken back, but what
acknowledgements wait for the other way is no queue of ours."""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

import pytest

import multi
from multi.lab.cert import write_development_certificates
from multi.lab.testbed import Direction, LinkSpec, Testbed
from multi.lab.testbed.pytest_plugin import started
from tests.engines import engine_or_skip, is_there
from tests.testbed.clients import beside, carried_by, opened, send, take

pytestmark = pytest.mark.alone

PORT = 7789
RATE = 4.0  # Mbit/s
INTERFACE = "wwan0"
ENGINES = ("aioquic", "qh3", "noq")
Measured: TypeAlias = tuple[float, float, float]
"""Mbit/s up and down, and the usual round trip in seconds."""
LONG, SHORT = (
    LinkSpec.symmetric("radio", INTERFACE, Direction(rate_mbps=RATE, delay_ms=20, queue_ms=queue), kind="cellular")
    for queue in (800, 100)
)


async def serve(config: dict[str, Any], answers: bool) -> None:
    """Take what comes, and send as much as one takes."""

    async def on_client(reader: multi.SessionReader, writer: multi.SessionWriter) -> None:
        with contextlib.suppress(ConnectionError):
            await asyncio.gather(take(reader), *([send(writer)] if answers else []))

    await multi.start_server(on_client, config)
    await asyncio.Event().wait()


async def exchange(config: dict[str, Any]) -> Measured:
    """Looks for two seconds; in 1.5 s before them congestion control fills what it can."""
    session = await opened(config)
    working = [asyncio.create_task(send(session.writer)), asyncio.create_task(take(session.reader))]
    await asyncio.sleep(1.5)
    before, start = carried_by(INTERFACE), time.monotonic()
    round_trips = []
    for _ in range(40):
        await asyncio.sleep(0.05)
        (connection,) = session.connections
        round_trips.append(connection.rtt)
    took = time.monotonic() - start
    down, up = ((after - count) * 8 / 1e6 / took for after, count in zip(carried_by(INTERFACE), before, strict=True))
    for task in working:
        task.cancel()
    session.abort()
    return up, down, median(round_trips)


async def measured(testbed: Testbed, certificates: Path, engine: str, *, answers: bool) -> Measured:
    server = {
        "listen": {"host": "::", "port": PORT, "transports": ["quic"]},
        "ssl_config": {name: str(certificates / f"server-{name}.pem") for name in ("cert", "key")},
        "quic_config": {"engine": engine},
    }
    client = {
        "connection_priority": [["quic", "ipv4", "cellular"]],
        "remote_host": testbed.server.address(),
        "remote_port": PORT,
        "interfaces": testbed.interface_kinds,
        "ssl_config": {"ca": str(certificates / "ca.pem"), "server_name": "localhost"},
        "quic_config": {"engine": engine},
    }
    found: Measured = await beside(
        testbed.server.run_python(serve, server, answers), testbed.client.run_python(exchange, client)
    )
    up, down, rtt = found
    print(f"{engine}: {up:.2f} Mbit/s up and {down:.2f} down of {RATE}, round trips {rtt * 1e3:.0f} ms")
    return found


def measured_at_once(link: LinkSpec, certificates: Path, *, answers: bool) -> dict[str, Measured]:
    """What each engine that is there does over a link of its own, all at the same time: they have little to do."""
    write_development_certificates(certificates, [])
    engines = [engine for engine in ENGINES if is_there(engine)]
    with contextlib.ExitStack() as stack:
        testbeds = [stack.enter_context(started((link,))) for _ in engines]

        async def play() -> list[Measured]:
            plays = zip(testbeds, engines, strict=True)
            return await asyncio.gather(*(measured(bed, certificates, name, answers=answers) for bed, name in plays))

        return dict(zip(engines, asyncio.run(play()), strict=True))


@pytest.fixture(scope="module")
def uploads(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Measured]:
    return measured_at_once(LONG, tmp_path_factory.mktemp("uploads"), answers=False)


@pytest.fixture(scope="module")
def both_ways(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Measured]:
    return measured_at_once(SHORT, tmp_path_factory.mktemp("both_ways"), answers=True)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_slow_link_queues_little_and_is_full(engine: str, uploads: dict[str, Measured]) -> None:
    engine_or_skip(engine)
    up, _, rtt = uploads[engine]
    assert up > 0.75 * RATE  # by a busy machine; 1.0 by one that has nothing else to do
    assert rtt < 0.040 + 0.100


@pytest.mark.parametrize("engine", ENGINES)
def test_both_directions_are_full(engine: str, both_ways: dict[str, Measured]) -> None:
    engine_or_skip(engine)
    up, down, _ = both_ways[engine]
    assert min(up, down) > 0.5 * RATE
