"""Networks that change faster than anything can be dialled, and handovers that come to nothing."""

from __future__ import annotations

import pytest

from multi.lab.sim.pair import Pair
from multi.paths.handover import HANDOVER_TIMEOUT
from multi.paths.slots import DIAL_APART
from multi.types import ConnectionState
from tests.sim.test_roaming import busy, handed_over, networks
from tests.sim.worlds import FAST, SLOW, opened, transfer

pytestmark = pytest.mark.simulation

SECONDS = 5.0


def interfaces(pair: Pair) -> list[str]:
    """Those of the client's connections that work."""
    living = pair.client.session.connections.values()
    return sorted(c.interface for c in living if c.state is ConnectionState.ACTIVE)


@pytest.mark.parametrize("who", ["system", "application"])
def test_a_network_that_comes_and_goes_all_the_time_is_dialled_within_bounds(who: str) -> None:
    pair = opened(SLOW, FAST)
    busy(pair)
    before, start = len(pair.dials), pair.clock.now
    there = True
    while pair.clock.now < start + SECONDS:
        there = not there
        if who == "system":
            networks(pair, *((0, 1) if there else (1,)))
        if who == "application" or not there:
            pair.client.change_network("if0", there)
        pair.run(0.005)
    assert len(pair.dials) - before <= SECONDS / DIAL_APART + 2
    networks(pair, 0, 1)
    pair.client.change_network("if0", True)
    assert pair.until(lambda: interfaces(pair) == ["if0", "if1"], 3.0)


def test_all_networks_may_be_gone_for_a_while() -> None:
    pair = opened(SLOW, FAST)
    for index in (0, 1):
        pair.cut(index, notice=0.01)
    networks(pair)
    before = len(pair.dials)
    pair.run(20.0)
    assert len(pair.dials) == before, "what is not there is not dialled"
    networks(pair, 0, 1)
    assert pair.until(lambda: interfaces(pair) == ["if0", "if1"], 2.0)
    assert transfer(pair, pair.client, 50_000) < 2.0


def test_what_a_handover_had_left_comes_back_when_its_target_goes() -> None:
    pair = opened(SLOW, FAST)
    assert handed_over(pair, 1) == [None]
    pair.run(1.0)
    networks(pair, 0)
    pair.cut(1, notice=0.01)
    assert pair.until(lambda: interfaces(pair) == ["if0"], 3.0)


def left_for_the_other() -> Pair:
    """A session that was moved from the first network to the second; the first swallows everything now."""
    pair = opened(SLOW, FAST)
    assert handed_over(pair, 1) == [None]
    pair.run(1.0)
    assert interfaces(pair) == ["if1"]
    pair.cut(0, notice=0.01, down=True)
    return pair


def test_a_target_that_had_been_left_is_left_again_when_the_handover_back_to_it_fails() -> None:
    pair = left_for_the_other()
    done = handed_over(pair, 0)
    assert pair.until(lambda: bool(done), 2 * HANDOVER_TIMEOUT)
    assert done != [""]
    pair.restore(0)
    pair.run(30.0)
    assert interfaces(pair) == ["if1"]


def test_a_target_that_had_been_left_is_left_again_when_the_handover_back_to_it_is_cancelled() -> None:
    pair = left_for_the_other()
    handed_over(pair, 0)
    pair.run(0.3)
    pair.client.session.path_manager(now=pair.clock.now).cancel_handover()
    pair.client.pump()
    pair.restore(0)
    pair.run(30.0)
    assert interfaces(pair) == ["if1"]
