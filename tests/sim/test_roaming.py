"""Networks come, go, lie and come back: what the path manager makes of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from multi.events import AddressesAnnounced, HandoverChanged, HandoverState, RoleChanged
from multi.lab.sim.pair import Pair
from multi.lab.sim.wire import Route, route
from multi.paths.handover import DISMISS_AFTER, HANDOVER_TIMEOUT
from multi.paths.manager import PathManager
from multi.paths.roles import Mode
from multi.paths.slots import BESIDE_FIRST, MAX_TRIAL, TRIAL_FIRST
from multi.reasons import Reason
from multi.types import ConnectionId, ConnectionState, Role
from tests.sim.worlds import FAST, SLOW, clear_pair, data, opened, reasons, transfer

pytestmark = pytest.mark.simulation

GONE = "no carrier"


def paths_of(pair: Pair) -> PathManager:
    paths = pair.client.session.paths
    assert paths is not None
    return paths


def networks(pair: Pair, *there: int) -> None:
    """These routes can be dialled now, no others."""
    present = [pair.candidates[index] for index in there]
    client = pair.client
    client.session.path_manager(now=client.now).update(present, client.now, reason=lambda entry: GONE)
    client.pump()


def busy(pair: Pair, size: int = 50_000_000) -> None:
    """The server has more to send than any test waits for."""
    pair.peer.write(data(pair, size))


def role_of(pair: Pair, connection: ConnectionId) -> Role:
    return pair.peer.session.connections[connection].role


def newest(pair: Pair) -> ConnectionId:
    return max(pair.client.session.connections)


def test_a_network_that_is_not_there_is_not_dialled_and_is_as_soon_as_it_is() -> None:
    pair = opened(FAST, SLOW)
    networks(pair, 1)
    pair.cut(0, notice=0.01)
    pair.run(5.0)
    dials = [index for _, index in pair.dials]
    assert dials.count(0) == 1
    networks(pair, 0, 1)
    back = pair.clock.now
    assert pair.until(lambda: len(pair.client.active) == 2, 1.0)
    assert pair.clock.now - back < 0.2


def test_a_new_network_is_taken_up_by_itself() -> None:
    pair = opened(FAST)
    pair.routes.append(SLOW)
    pair.candidates.append(pair.candidate(1))
    networks(pair, 0, 1)
    assert pair.until(lambda: len(pair.client.active) == 2, 1.0)


def test_a_connection_that_may_be_dead_gets_another_beside_it_that_replaces_it() -> None:
    pair = opened(FAST, SLOW)
    busy(pair)
    pair.run(0.5)
    pair.cut(0, notice=None)  # silence, but what is dialled now gets through
    assert pair.until(lambda: len(pair.client.active) == 2 and 0 not in pair.client.active, 1.5)
    assert pair.client.state_of(0) is None
    lost = [e for e in pair.client.changes(ConnectionState.LOST) if e.connection == 0]
    assert "replaced by connection" in lost[0].reason
    assert pair.until(lambda: pair.peer.state_of(0) is None, 0.5), "the server is told"


def test_a_connection_that_recovers_first_stays() -> None:
    pair = opened(FAST, SLOW)
    busy(pair)
    pair.run(0.5)
    pair.stall(0)
    assert pair.until(lambda: pair.peer.state_of(0) is ConnectionState.SUSPECT, 1.0)
    pair.run(0.1)
    pair.restore(0)
    pair.run(1.0)
    assert pair.client.active == [0, 1]


@pytest.mark.parametrize("first", [0, 1])
def test_the_first_that_comes_back_after_all_were_silent_is_no_end_of_the_others(first: int) -> None:
    pair = opened(FAST, SLOW)
    busy(pair)
    pair.run(0.5)
    pair.stall(0)
    pair.stall(1)
    pair.run(6.0)
    pair.restore(first)
    assert pair.until(lambda: first in pair.client.active and first in pair.peer.active, 3.0)
    pair.run(0.3)
    pair.restore(1 - first)
    assert pair.until(lambda: pair.client.active == pair.peer.active == [0, 1], 3.0), reasons(pair.peer)


def test_what_comes_back_must_prove_itself_before_it_carries_the_stream() -> None:
    pair = opened(FAST, SLOW)
    busy(pair)
    pair.run(0.5)
    pair.cut(0, notice=0.01)
    assert pair.until(lambda: newest(pair) > 1 and len(pair.client.active) == 2, 1.5)
    back, came = newest(pair), pair.clock.now
    assert pair.until(lambda: back in pair.peer.active, 0.2)
    assert role_of(pair, back) is Role.BACKUP
    pair.run(0.9 * TRIAL_FIRST)
    assert pair.peer.session.connections[back].bytes_sent == 0
    assert pair.until(lambda: role_of(pair, back) is Role.ACTIVE, 1.0)
    assert pair.clock.now - came >= TRIAL_FIRST
    pair.run(0.5)
    assert pair.peer.session.connections[back].bytes_sent > 0


def test_who_fails_again_and_again_is_tried_longer_but_not_for_ever() -> None:
    pair = opened(FAST, SLOW)
    busy(pair)
    waits = []
    for _ in range(4):
        pair.run(0.3)
        pair.cut(0, notice=0.01)
        before = newest(pair)
        assert pair.until(lambda before=before: newest(pair) > before and len(pair.client.active) == 2, 5.0)  # type: ignore[misc]
        back, came = newest(pair), pair.clock.now
        assert pair.until(lambda back=back: back in pair.peer.active and role_of(pair, back) is Role.ACTIVE, 5.0)  # type: ignore[misc]
        waits.append(round(pair.clock.now - came, 3))
    assert waits == sorted(waits)
    assert waits[0] < 2 * TRIAL_FIRST
    assert MAX_TRIAL <= waits[-1] < MAX_TRIAL + 0.2


def test_the_only_connection_needs_no_proof() -> None:
    pair = opened(FAST)
    pair.cut(0, notice=0.01)
    assert pair.until(lambda: bool(pair.client.active), 1.0)
    assert transfer(pair, pair.client, 50_000) < 0.5


def test_the_server_hears_of_a_lost_network_over_the_other_one() -> None:
    pair = opened(FAST, SLOW)
    busy(pair)
    pair.run(1.0)
    pair.stall(0)
    pair.client.change_network("if0", False)
    told = pair.clock.now
    assert pair.until(lambda: pair.peer.state_of(0) is ConnectionState.SUSPECT, 1.0)
    assert pair.clock.now - told < SLOW.round_trip
    assert pair.peer.changes(ConnectionState.SUSPECT)[-1].reason == "the peer's network went away"


def test_a_lost_address_ends_its_connection_on_both_sides() -> None:
    pair = opened(FAST, SLOW)
    pair.stall(0)
    pair.client.session.network_changed(
        "if0", False, address="10.0.0.2", reason="the address was removed", now=pair.clock.now
    )
    pair.client.pump()
    assert pair.client.state_of(0) is None
    assert pair.until(lambda: pair.peer.state_of(0) is None, 1.0)
    other = opened(FAST, SLOW)
    other.client.session.network_changed(
        "if0", False, address="10.9.9.9", reason="the address was removed", now=other.clock.now
    )
    other.client.pump()
    assert other.client.active == [0, 1], "another address of the interface"


def test_an_mptcp_connection_outlives_the_address_of_its_first_subflow() -> None:
    pair = opened(FAST, SLOW)
    over_both, over_one = (pair.client.session.connections[ConnectionId(index)] for index in (0, 1))
    over_both.facts = replace(over_both.facts, local="192.0.2.1:50000", more_interfaces=("if1",))
    over_one.facts = replace(over_one.facts, local="192.0.2.2:50000")
    for index in (0, 1):
        gone = f"192.0.2.{index + 1}"
        pair.client.session.network_changed(f"if{index}", False, address=gone, now=pair.clock.now)
    pair.client.pump()
    assert pair.client.active == [0]
    pair.client.session.network_changed("", False, now=pair.clock.now)
    pair.client.pump()
    assert pair.client.state_of(0) is ConnectionState.SUSPECT, "all networks are gone"


def test_a_silent_network_is_tried_often_at_first_and_then_ever_more_rarely() -> None:
    pair = opened(FAST, SLOW)
    busy(pair, 1_000_000)  # what follows is as long without traffic
    pair.stall(0)
    pair.cut(0, notice=0.01, down=True)
    started = pair.clock.now
    pair.run(30.0)
    early = sum(1 for at, index in pair.dials if index == 0 and at > started)
    assert 30.0 / BESIDE_FIRST * 0.8 <= early <= 30.0 / BESIDE_FIRST + 2
    pair.run(600.0)
    before = len(pair.dials)
    pair.run(60.0)
    assert len(pair.dials) - before <= 10


def test_switching_back_takes_longer_than_switching_away() -> None:
    pair = opened(FAST, SLOW, mode=Mode.SWITCH)
    busy(pair)
    pair.run(0.5)
    assert [role_of(pair, ConnectionId(i)) for i in (0, 1)] == [Role.ACTIVE, Role.BACKUP]
    pair.cut(0, notice=0.01)
    assert pair.until(lambda: role_of(pair, ConnectionId(1)) is Role.ACTIVE, 0.5)
    assert pair.until(lambda: len(pair.client.active) == 2, 1.0)
    back, came = newest(pair), pair.clock.now
    assert pair.until(lambda: back in pair.peer.active and role_of(pair, back) is Role.ACTIVE, 5.0)
    assert pair.clock.now - came >= 1.0
    assert role_of(pair, ConnectionId(1)) is Role.BACKUP


def test_a_fading_signal_moves_a_switching_session_before_its_network_is_gone() -> None:
    pair = opened(FAST, SLOW, mode=Mode.SWITCH)
    pair.run(0.5)
    pair.client.session.signal_changed("if0", True, -80.0, now=pair.clock.now)
    pair.client.pump()
    assert pair.until(lambda: role_of(pair, ConnectionId(1)) is Role.ACTIVE, 0.5)
    pair.client.session.signal_changed("if0", False, -60.0, now=pair.clock.now)
    pair.client.pump()
    assert pair.until(lambda: role_of(pair, ConnectionId(0)) is Role.ACTIVE, 0.5)
    assert not pair.client.changes(ConnectionState.SUSPECT)


def handed_over(pair: Pair, index: int) -> list[Reason | None]:
    done: list[Reason | None] = []
    pair.client.session.path_manager(now=pair.clock.now).hand_over(
        [paths_of(pair).slots[index]], done.append, pair.clock.now
    )
    pair.client.pump()
    return done


def busy_after_a_handover() -> Pair:
    """Bytes move over the fast route, to which a session was handed over; the slow one is left."""
    pair = opened(SLOW, FAST)
    assert handed_over(pair, 1) == [None]
    pair.run(1.0)
    busy(pair)
    pair.run(0.3)
    return pair


def test_a_fading_signal_brings_back_what_a_handover_had_left() -> None:
    pair = opened(SLOW, FAST)
    assert handed_over(pair, 1) == [None]
    pair.run(1.0)
    assert pair.client.active == [1]
    pair.client.session.signal_changed("if1", True, -80.0, now=pair.clock.now)
    pair.client.pump()
    assert pair.until(lambda: len(pair.client.active) == 2, 1.0)
    pair.client.session.signal_changed("if1", False, -60.0, now=pair.clock.now)
    pair.client.pump()
    pair.run(DISMISS_AFTER - 0.5)
    assert len(pair.client.active) == 2
    assert pair.until(lambda: pair.client.active == [1], 2.0)


def test_what_was_recalled_goes_again_when_the_target_of_the_handover_lives_on() -> None:
    pair = busy_after_a_handover()
    pair.stall(1)
    assert pair.until(lambda: len(pair.client.active) == 1 and pair.client.active != [1], 2.0)
    pair.restore(1)
    assert pair.until(lambda: len(pair.client.active) == 2, 3.0)
    assert pair.until(lambda: len(pair.client.active) == 1, 2 * DISMISS_AFTER)
    assert pair.candidates[1].interface == pair.client.session.connections[pair.client.active[0]].interface


def test_what_was_recalled_stays_while_the_target_is_in_trouble_again() -> None:
    pair = busy_after_a_handover()
    pair.stall(1)
    assert pair.until(lambda: len(pair.client.active) == 1 and pair.client.active != [1], 2.0)
    recalled = pair.client.active[0]
    pair.restore(1)
    assert pair.until(lambda: len(pair.client.active) == 2, 3.0)
    pair.run(0.6 * DISMISS_AFTER)
    pair.stall(1)
    pair.run(DISMISS_AFTER)
    assert pair.client.state_of(recalled) is ConnectionState.ACTIVE


def test_what_was_recalled_goes_also_when_the_target_had_to_be_dialled_again() -> None:
    pair = busy_after_a_handover()
    pair.cut(1, notice=None)
    pair.down.add(1)
    assert pair.until(lambda: pair.client.state_of(1) is None and len(pair.client.active) == 1, 10.0)
    pair.down.clear()
    assert pair.until(lambda: len(pair.client.active) == 2, 5.0)
    pair.run(0.8 * DISMISS_AFTER)
    assert len(pair.client.active) == 2
    assert pair.until(lambda: len(pair.client.active) == 1, DISMISS_AFTER)
    assert pair.candidates[1].interface == pair.client.session.connections[pair.client.active[0]].interface


def test_a_handover_to_a_network_that_is_not_there_fails_at_once_and_says_why() -> None:
    pair = opened(FAST, SLOW)
    pair.cut(1, notice=0.01)
    networks(pair, 0)
    pair.run(0.2)
    assert handed_over(pair, 1) == [GONE]
    assert pair.client.active == [0]


def test_a_handover_to_a_network_that_swallows_everything_ends() -> None:
    pair = opened(FAST, SLOW)
    pair.cut(1, notice=0.01, down=True)
    pair.run(0.2)
    done = handed_over(pair, 1)
    started = pair.clock.now
    assert pair.until(lambda: bool(done), 2 * HANDOVER_TIMEOUT)
    assert pair.clock.now - started == pytest.approx(HANDOVER_TIMEOUT, abs=0.1)
    assert pair.client.active == [0]
    states = [e.state for e in pair.client.events if isinstance(e, HandoverChanged)]
    assert states == [HandoverState.STARTED, HandoverState.FAILED]


def test_after_a_sleep_nothing_is_taken_for_granted() -> None:
    pair = opened(FAST, SLOW)
    pair.cut(0, notice=None)
    pair.cut(1, notice=None)
    pair.client.session.slept(3600.0, now=pair.clock.now)
    pair.client.pump()
    assert [e.reason for e in pair.client.changes(ConnectionState.SUSPECT)] == ["the machine slept for 3600 s"] * 2
    assert pair.until(lambda: len(pair.client.active) == 2, 1.0)
    assert transfer(pair, pair.client, 50_000) < 0.5


@pytest.mark.parametrize("beside", [(), (FAST,)], ids=["alone", "beside another"])
@pytest.mark.parametrize("round_trip", [1.2, 3.0])
def test_a_slow_network_is_back_after_the_round_trips_that_it_takes(
    round_trip: float, beside: tuple[Route, ...]
) -> None:
    """Of attempts that are made beside one another one has the time that it needs."""
    far = route(1e6, round_trip / 2)
    pair = clear_pair(far, *beside)
    assert pair.until(lambda: len(pair.client.active) == len(pair.routes), 4 * round_trip)
    pair.run(10.0)
    pair.cut(0, notice=0.01)
    pair.run(0.1)
    assert pair.until(lambda: len(pair.client.active) == len(pair.routes), 3 * round_trip)


@pytest.mark.parametrize("seconds", [2.5, 9.0, 14.5])
def test_a_slow_network_is_found_again_after_it_was_away(seconds: float) -> None:
    pair = opened(route(1e6, 0.6), FAST)
    pair.cut(0, notice=0.01, down=True)
    pair.run(seconds)
    pair.restore(0)
    assert pair.until(lambda: len(pair.client.active) == 2, 6.0)


def test_the_role_the_application_gave_outlives_the_connection() -> None:
    pair = opened(FAST, SLOW)
    pair.client.set_role(ConnectionId(1), Role.BACKUP)
    pair.cut(1, notice=0.01)
    assert pair.until(lambda: len(pair.client.active) == 2, 1.0)
    pair.run(2.0)
    assert role_of(pair, newest(pair)) is Role.BACKUP


def test_what_was_removed_is_not_brought_back_by_its_network() -> None:
    pair = opened(FAST, SLOW)
    pair.client.remove_connection(ConnectionId(1))
    assert pair.until(lambda: pair.client.state_of(1) is None, 2.0)
    networks(pair, 0)
    networks(pair, 0, 1)
    pair.run(2.0)
    assert pair.client.active == [0]


def test_a_client_hears_of_further_addresses_and_the_newest_word_counts() -> None:
    pair = opened(FAST)
    for addresses in ([("192.0.2.1", 7788)], [("192.0.2.2", 7788), ("2001:db8::2", 7789)]):
        pair.peer.session.announce(addresses, now=pair.clock.now)
    pair.peer.pump()
    pair.run(0.2)
    told = [e.addresses for e in pair.client.events if isinstance(e, AddressesAnnounced)]
    assert told[-1] == (("192.0.2.2", 7788), ("2001:db8::2", 7789))


def test_a_change_of_role_says_why() -> None:
    pair = opened(FAST, SLOW)
    busy(pair)
    pair.run(0.3)
    pair.cut(0, notice=0.01)
    assert pair.until(lambda: len(pair.client.active) == 2, 1.5)
    pair.run(1.0)
    reasons = [e.reason for e in pair.client.events if isinstance(e, RoleChanged)]
    assert reasons[-1] == "as configured"
