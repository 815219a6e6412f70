"""Known faults of handovers: failed by what began before them, forgotten when another is cancelled."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import multi
from multi.core.ids import ConnectionState
from multi.sim.wire import route
from tests.integration.aio_support import Way, run, serving, until
from tests.sim.test_handover import hand_over
from tests.sim.worlds import FAST, opened

WAY = Way(Path())  # sealed TCP: needs no certificates
FIRST, SECOND = "127.0.0.1", "127.0.0.2"
PATIENCE = 2.0  # seconds; on loopback a handover takes milliseconds


def handover_beside_earlier_dial(refused: bool) -> tuple[list[str], bool]:
    """What a handover comes to that begins while a dial is under way, and whether its network carries the session.

    That dial is answered before the handover's own, with a refusal or not at all; what is dialled from then on works.
    """
    pair = opened(FAST, route(1e6, 0.300))
    pair.refused.add(1)
    pair.cut(1, 0.01)
    dials = len(pair.dials)
    assert pair.until(lambda: len(pair.dials) > dials + 2, 20.0)
    pair.run(0.3)
    if not refused:
        pair.cut(1, None, down=True)
        pair.refused.clear()
    done = hand_over(pair, 1)
    pair.run(0.4)  # the earlier dial has been answered by now
    pair.refused.clear()
    pair.down.clear()
    pair.run(6.0)
    return done, pair.client.active == [c.id for c in pair.client.session.connections.values() if c.facts.interface == "if1"]
