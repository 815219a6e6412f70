"""Handovers: not failed by what began before them, nor forgotten when another one is cancelled."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import multi
from multi.lab.sim.wire import route
from multi.reasons import Reason
from multi.types import ConnectionState
from tests.integration.support import Way, run, serving, until
from tests.sim.test_handover import hand_over
from tests.sim.worlds import FAST, opened

WAY = Way(Path())  # sealed TCP: needs no certificates
FIRST, SECOND = "127.0.0.1", "127.0.0.2"
PATIENCE = 2.0  # seconds; on loopback a handover takes milliseconds


# --- what began before  ---


def handover_during_dial(refused: bool) -> tuple[list[Reason | None], list[str]]:
    """What a handover comes to that begins during a dial to its network, and the networks used after it.

    That dial is answered well or with a refusal; the network works from then on.
    """
    pair = opened(FAST, route(1e6, 0.300))
    pair.refused.add(1)
    pair.cut(1, 0.01)
    dials = len(pair.dials)
    assert pair.until(lambda: len(pair.dials) == dials + 3, 20.0)
    pair.run(0.3)
    if not refused:
        pair.refused.clear()
    done = hand_over(pair, 1)
    assert not done
    pair.run(0.4)
    pair.refused.clear()
    pair.run(5.0)
    used = [c.facts.interface for c in pair.client.session.connections.values() if c.state is ConnectionState.ACTIVE]
    return done, used


@pytest.mark.parametrize("refused", [False, True])
def test_a_handover_does_not_fail_on_a_dial_that_began_before_it(refused: bool) -> None:
    assert handover_during_dial(refused) == ([None], ["if1"])


# --- what is cancelled  ---


async def after_completed_handover(cancelled: bool) -> str:
    """What a handover comes to that begins when another has come up, whose caller hears of it, or is cancelled, later.

    Turn by turn of the event loop, so that it begins exactly in between.
    """
    entries = [["tcp", "ipv4", FIRST], ["tcp", "ipv4", SECOND]]
    async with serving(WAY) as (server, _):
        config = WAY.client(server.port, connection_priority=entries, multi_config={"wait": "all"})
        session = await multi.connect(config)

        def uses(address: str) -> bool:
            active = [c.local for c in session.connections if c.state is ConnectionState.ACTIVE]
            return any(local.startswith(f"{address}:") for local in active)

        try:
            await until(lambda: uses(FIRST) and uses(SECOND), "both connections are up")
            await session.handover(FIRST)
            await until(lambda: not uses(SECOND), "the other one is drained")
            earlier = asyncio.create_task(session.handover(SECOND))
            while uses(FIRST):  # noqa: ASYNC110 - no event can be awaited that comes before the caller hears
                await asyncio.sleep(0)
            assert not earlier.done()
            if cancelled:
                earlier.cancel()
            try:
                async with asyncio.timeout(PATIENCE):
                    await session.handover(FIRST)
            except TimeoutError:
                return f"nothing within {PATIENCE:g} s"
            finally:
                await asyncio.gather(earlier, return_exceptions=True)
            return "done" if uses(FIRST) and not uses(SECOND) else "another connection is used"
        finally:
            session.abort()
            await session.settle()


@pytest.mark.parametrize("cancelled", [False, True])
def test_cancelling_a_handover_does_not_drop_the_next_one(cancelled: bool) -> None:
    assert run(after_completed_handover(cancelled)) == "done"
