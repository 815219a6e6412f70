"""What the lanes of a QUIC connection are for: on one of its own a few bytes wait for nothing that another has lost."""

from __future__ import annotations

import random
import statistics
from typing import Any

import pytest

from multi.lab.engines.links import link_of
from multi.transports.quic.engine import LANE_STREAMS
from tests.unit.transports.mpquic.ends import connected_engines

URGENT, BULK = LANE_STREAMS[1:]
LOSS = 0.02
AHEAD = 32 * 1024  # bytes that wait in the engine, as much as a channel leaves there
KILOBYTE = 1000


def delays(engine: str, lane: int) -> list[float]:
    """Seconds until each of some kilobytes has come in order on a lane, beside all that 20 Mbit/s carry of bulk."""
    made = connected_engines(engine, engine, (link_of(20, 0.040),) * 2)
    server = made.server
    assert server is not None
    for stream in LANE_STREAMS:
        made.client.write(b"\x01", stream=stream)
    made.run(lambda: False, 0.5)
    came, sent, found = dict.fromkeys(LANE_STREAMS, 0), dict.fromkeys(LANE_STREAMS, 0), list[float]()
    chance, send = random.Random(1), made.downs[0].send

    def hear(event: Any) -> None:
        if type(event).__name__ == "StreamDataReceived":
            came[event.stream_id] += len(event.data)

    def say(stream: int, size: int) -> None:
        server.write(bytes(size), stream=stream)
        sent[stream] += size

    made.client.on_event = hear
    made.downs[0].send = lambda data: None if chance.random() < LOSS else send(data)  # type: ignore[method-assign]
    asked, target = 0.0, 0
    while len(found) < 60 and made.clock.now < 30.0:
        while server.engine.unsent() < AHEAD:
            say(BULK, 8 * KILOBYTE)
        if not target:
            say(lane, KILOBYTE)
            asked, target = made.clock.now, sent[lane]
        made.run(lambda: came[lane] >= target, 0.005)  # noqa: B023
        if came[lane] >= target:
            found.append(made.clock.now - asked)
            target = 0
    assert len(found) == 60
    assert came[BULK] > 200_000
    return found


@pytest.mark.parametrize("engine", ["aioquic", "noq"])
def test_what_is_urgent_waits_for_nothing_that_bulk_has_lost(engine: str) -> None:
    assert statistics.median(delays(engine, URGENT)) < 0.6 * statistics.median(delays(engine, BULK))
