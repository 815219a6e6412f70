"""What becomes of a handover, and of a slot's alternatives, when the network does not play along."""

from __future__ import annotations

import pytest

from multi.lab.sim.pair import Pair
from multi.lab.sim.wire import route
from multi.paths.manager import PathManager
from multi.protocol.payloads import Policy
from multi.reasons import Reason
from multi.types import ConnectionState
from tests.sim.worlds import FAST, SLOW, data, opened, transfer

pytestmark = pytest.mark.simulation


def paths_of(pair: Pair) -> PathManager:
    paths = pair.client.session.paths
    assert paths is not None
    return paths


def hand_over(pair: Pair, index: int) -> list[Reason | None]:
    """Start a handover to slot `index`; what it comes to is put into the list returned."""
    done: list[Reason | None] = []
    pair.client.session.path_manager(now=pair.clock.now).hand_over(
        [paths_of(pair).slots[index]], done.append, pair.clock.now
    )
    pair.client.pump()
    return done


def suspect_slow_path() -> Pair:
    """Two paths of which the second has fallen silent; the first could go on for ever."""
    pair = opened(FAST, SLOW, policy=Policy("redundant"))
    pair.stall(1)
    pair.client.write(data(pair, 100_000))
    assert pair.until(lambda: pair.client.state_of(1) is ConnectionState.SUSPECT, 3.0)
    return pair


def test_a_handover_never_breaks_for_a_suspect_connection() -> None:
    pair = suspect_slow_path()
    done = hand_over(pair, 1)
    assert pair.client.state_of(0) is ConnectionState.ACTIVE
    assert not done
    assert transfer(pair, pair.client, 100_000) < 1.0


def test_a_handover_goes_on_when_its_suspect_connection_recovers() -> None:
    pair = suspect_slow_path()
    done = hand_over(pair, 1)
    pair.restore(1)
    assert pair.until(lambda: done == [None], 3.0)
    assert pair.until(lambda: pair.client.state_of(0) is None, 3.0)
    assert transfer(pair, pair.client, 100_000) < 2.0


def test_a_handover_to_a_suspect_connection_fails_when_its_network_stays_away() -> None:
    pair = suspect_slow_path()
    done = hand_over(pair, 1)
    pair.refused.add(1)
    pair.stalled.discard(1)
    assert pair.until(lambda: bool(done), 15.0)
    assert done == ["connection refused"]
    assert pair.client.state_of(0) is ConnectionState.ACTIVE


def test_a_handover_fails_only_when_none_of_its_ways_is_left() -> None:
    pair = opened(FAST, SLOW, route(0.5e6, 0.050))
    pair.refused.update({1, 2})
    for index in (1, 2):
        pair.cut(index, notice=0.01)
    pair.run(0.05)
    pair.refused.discard(2)
    done: list[Reason | None] = []
    pair.client.session.path_manager(now=pair.clock.now).hand_over(
        paths_of(pair).slots[1:], done.append, pair.clock.now
    )
    pair.client.pump()
    assert pair.until(lambda: bool(done), 5.0)
    assert done == [None]
    assert pair.client.active == [pair.client.active[0]] != [0]


def test_a_handover_ends_with_its_session() -> None:
    pair = opened(FAST, SLOW)
    pair.cut(1, notice=0.01, down=True)
    pair.run(0.1)
    done = hand_over(pair, 1)
    pair.run(0.1)
    assert not done, "the network does not answer"
    pair.client.abort()
    assert done == ["the session has ended"]


def test_a_handover_ends_when_its_target_is_no_longer_wanted() -> None:
    pair = opened(FAST, SLOW)
    pair.cut(1, notice=0.01, down=True)
    pair.run(0.1)
    done = hand_over(pair, 1)
    pair.client.session.path_manager(now=pair.clock.now).withdraw(paths_of(pair).slots[1].entry, pair.clock.now)
    pair.client.pump()
    assert done == ["it was removed"]


def handed_over() -> Pair:
    """Two paths; the session has moved to the second."""
    pair = opened(FAST, SLOW)
    assert hand_over(pair, 1) == [None]
    assert pair.until(lambda: pair.client.state_of(0) is None, 3.0)
    pair.run(1.0)
    assert pair.client.active == [1]
    return pair


def test_what_was_left_by_a_handover_is_dialled_as_soon_as_the_target_falls_silent() -> None:
    pair = handed_over()
    pair.stall(1)
    assert transfer(pair, pair.client, 50_000) < 2.0


def test_what_was_left_by_a_handover_stays_left_when_the_target_recovers_at_once() -> None:
    pair = handed_over()
    pair.down.add(0)
    pair.stall(1)
    pair.client.write(data(pair, 50_000))
    assert pair.until(lambda: len(pair.dials) > 2, 2.0)
    pair.restore(1)
    assert pair.until(lambda: pair.client.active == [1], 2.0)
    pair.down.clear()
    dials = len(pair.dials)
    pair.run(15.0)
    assert pair.client.active == [1]
    assert len(pair.dials) == dials


def test_a_lost_connection_is_replaced_by_whichever_alternative_works() -> None:
    third = route(0.5e6, 0.020)
    pair = opened_group(FAST, SLOW, third)
    pair.refused.update({0, 1})
    pair.cut(0, notice=0.01)
    pair.run(0.01)
    start = pair.clock.now
    assert pair.until(lambda: len(pair.client.active) == 1 and len(pair.peer.active) == 1, 5.0), pair.dials
    assert pair.clock.now - start < 1.5
    assert transfer(pair, pair.client, 50_000) < 1.0


def test_the_alternatives_of_an_added_entry_are_all_tried() -> None:
    pair = opened_group(FAST)
    pair.routes += [SLOW, route(0.5e6, 0.020)]
    pair.refused.add(1)
    added = pair.client.session.path_manager(now=pair.clock.now).add(
        [pair.candidate(1, group="more"), pair.candidate(2, group="more")], pair.clock.now
    )
    pair.client.pump()
    assert pair.until(lambda: added[0].connection is not None, 5.0), pair.dials


def opened_group(*routes: object) -> Pair:
    """A pair whose routes are alternatives of one entry; the first is up."""
    pair = Pair(list(routes), groups=["any"] * len(routes))  # type: ignore[arg-type]
    assert pair.until(lambda: pair.server is not None and bool(pair.peer.active), 5.0)
    pair.run(1.0)
    return pair
