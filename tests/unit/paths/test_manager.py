"""Decisions of the path manager for which the order of events matters more than what a network does."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from multi.paths.history import ConnectionHistory
from multi.paths.manager import MAX_HUNG_UP, SMALL_FOR, TOLD_WITHIN
from multi.paths.racing import ConnectMode
from multi.paths.slots import DIAL_APART, MAX_RETRY, SHORT_LIFE
from multi.paths.told import MAX_TOLD, TOLD_APART
from multi.reasons import Cause, Reason
from multi.types import Candidate, ConnectionId, ConnectionState, Role, Source, preferences_of
from tests.unit.paths.world import ACTIVE, LOST, SETUP, SUSPECT, World, candidate, two_up


def test_an_alternative_that_appears_when_the_others_were_started_is_tried_too() -> None:
    first, gone, fresh = (replace(candidate(0, f"192.0.2.{n}", "one"), network="shaky") for n in (1, 2, 3))
    other = candidate(1)
    history = ConnectionHistory()
    history.failed(first, 0.0)
    world = World(first, gone, other, history=history)
    world.run(0.3)
    assert [c for _, c in world.dials] == [other, first]
    world.state(0, ACTIVE)
    world.paths.update([first, fresh, other], world.now)
    world.turn()
    world.paths.attempt_failed(ConnectionId(1), Reason(Cause.TRANSPORT, "refused"), world.now)
    world.run(0.5)
    assert fresh in [c for _, c in world.dials]


def test_a_server_that_ends_what_it_has_just_accepted_is_dialled_ever_more_rarely() -> None:
    world = World(candidate(0), candidate(1))
    world.state(0, ACTIVE)
    world.run(SETUP)
    while world.now < 120.0:
        newest = world.dials[-1][0]
        world.state(newest, ACTIVE)
        world.state(newest, LOST)
        count = len(world.dials)
        while len(world.dials) == count:
            due = world.paths.next_timer()
            assert due is not None
            assert due <= world.now + MAX_RETRY
            world.run(due - world.now)
    assert len(world.dials) < 15


def grouped(entry: int) -> Candidate:
    return candidate(entry, group="one")


def test_an_alternative_that_is_added_to_what_is_up_is_dialled_once_that_is_lost() -> None:
    world = World(grouped(0), candidate(1))
    world.state(0, ACTIVE)
    world.run(SETUP)
    world.state(1, ACTIVE)
    assert [slot.connection for slot in world.paths.add([grouped(2)], world.now)] == [0]
    world.run(1.0)
    count = len(world.dials)
    assert count == 2
    world.state(0, LOST)
    world.run(1.0)
    world.paths.attempt_failed(world.dials[count][0], Reason(Cause.TRANSPORT, "refused"), world.now)
    world.run(0.1)
    assert [made.entry for _, made in world.dials[count:]] == [0, 2]


def test_an_alternative_that_is_added_to_what_is_down_is_tried_first_and_heard_of() -> None:
    world = World(grouped(0), candidate(1))
    world.paths.attempt_failed(world.dials[0][0], Reason(Cause.TRANSPORT, "refused"), world.now)
    world.run(0.1)
    world.state(world.dials[1][0], ACTIVE)
    (slot,) = world.paths.add([grouped(2), grouped(3)], world.now)
    for _ in range(2):
        assert not slot.attempted
        world.run(0.2)
        world.paths.attempt_failed(world.dials[-1][0], Reason(Cause.TRANSPORT, "refused"), world.now)
        world.collect()
    assert [made.entry for _, made in world.dials[2:]] == [2, 3]


def test_an_alternative_that_is_withdrawn_leaves_the_others() -> None:
    world = World(grouped(0), candidate(1))
    world.state(0, ACTIVE)
    world.run(SETUP)
    world.state(1, ACTIVE)
    world.state(0, LOST)
    world.paths.add([grouped(2)], world.now)
    world.run(DIAL_APART)
    assert world.dials[-1][1].entry == 2
    assert world.paths.withdraw(2, world.now) == []
    world.collect()
    assert world.cancelled[-1] == world.dials[-1][0]
    world.run(1.0)
    assert world.dials[-1][1].entry == 0


def test_an_attempt_over_several_networks_outlives_the_first_of_them() -> None:
    """Else opening a session would fail beside a network that works: each candidate is tried once meanwhile."""
    other = Source("if1")
    both, left = replace(candidate(0), more_sources=(other,)), candidate(0).begun_from(other)
    world = World(both)
    world.paths.network_changed("if0", False, world.now)
    world.collect()
    assert not world.all_attempted
    world.paths.update([replace(left, more_sources=())], world.now)
    world.run(1.0)
    assert [made.interface for _, made in world.dials] == ["if0", "if1"]
    world.state(1, ACTIVE)
    assert world.cancelled == [0]


def test_who_takes_connections_and_says_nothing_is_dialled_as_rarely_as_silence() -> None:
    world = World(candidate(0), candidate(1))
    world.state(0, ACTIVE)
    mute = Reason(Cause.HANDSHAKE_TIMEOUT, "nothing was said")
    dialled_at: dict[int, float] = {}
    while world.now < 600.0:
        world.run(0.1)
        dialled_at |= {dial: world.now for dial, _ in world.dials if dial not in dialled_at}
        for dial in [one for one, at in dialled_at.items() if at <= world.now - 5.0 and one]:
            world.paths.connection_changed(ConnectionId(dial), LOST, mute, world.now)
            world.collect()
    assert world.now - max(dialled_at.values()) < 40.0, "it may become a network at any time"
    assert len(world.dials) < 60


def test_a_session_whose_connections_come_about_and_break_dials_in_measure() -> None:
    """As behind somebody who lets the handshake through and nothing else, on the only network."""
    world = World(candidate(0))
    world.state(0, ACTIVE)
    world.run(2 * SHORT_LIFE)
    at = [world.now]
    newest = 0
    while world.now < 20.0:
        world.state(newest, LOST)
        world.paths.detached(world.now)
        while world.dials[-1][0] == newest:
            due = world.paths.next_timer()
            assert due is not None
            world.run(due - world.now)
        at.append(world.now)
        newest = world.dials[-1][0]
        world.state(newest, ACTIVE)
        world.paths.resumed()
        world.run(0.005)
    gaps = [after - before for before, after in pairwise(at)]
    assert gaps[0] < 0.1, "at once, after a connection that lived"
    assert min(gaps[1:]) >= 0.2
    assert max(gaps) <= 0.51


def test_beside_what_is_stuck_a_connection_with_small_packets_is_dialled_and_takes_its_place() -> None:
    world = World(candidate(0))
    world.state(0, ACTIVE)
    world.run(1.0)
    world.paths.stuck(ConnectionId(0), world.now)
    world.run(0.01)
    assert [c.small for _, c in world.dials] == [False, True]
    world.state(0, SUSPECT)
    world.state(0, ACTIVE)  # it is heard, and still gets on with nothing
    assert not world.cancelled
    world.state(1, ACTIVE)
    assert world.connections.given_up.keys() == {0}


def test_what_was_stuck_and_gets_on_stays() -> None:
    world = World(candidate(0))
    world.state(0, ACTIVE)
    world.paths.stuck(ConnectionId(0), world.now)
    world.run(0.01)
    world.paths.gets_on(ConnectionId(0), world.now)
    world.collect()
    assert world.cancelled == [1]
    world.run(5.0)
    assert len(world.dials) == 2


@pytest.mark.parametrize(("cause", "small"), [(Cause.NO_PROGRESS, True), (Cause.NETWORK_GONE, False)])
def test_where_large_packets_may_vanish_dials_ask_for_small_ones_for_a_while(cause: Cause, small: bool) -> None:
    world = World(candidate(0))
    world.state(0, ACTIVE)
    world.state(0, SUSPECT)
    world.run(0.3)
    assert [c.small for _, c in world.dials] == [False, True]  # beside what is silent
    world.state(1, ACTIVE)
    world.paths.connection_changed(ConnectionId(1), LOST, Reason(cause, "over"), world.now)
    world.run(SMALL_FOR / 2)
    assert [c.small for _, c in world.dials[2:]] == [small] * (len(world.dials) - 2) != []
    world.run(SMALL_FOR)
    assert not world.dials[-1][1].small


def test_a_connection_that_lived_is_dialled_again_at_once() -> None:
    world = World(candidate(0), candidate(1))
    world.state(0, ACTIVE)
    world.run(SETUP)
    for _ in range(5):
        newest, count = world.dials[-1][0], len(world.dials)
        world.state(newest, ACTIVE)
        world.run(2 * SHORT_LIFE)
        world.state(newest, LOST)
        world.run(0.25)
        assert len(world.dials) == count + 1


def test_learning_which_network_it_is_interrupts_no_dial() -> None:
    first, second = candidate(0), candidate(1)
    world = World(first, second)
    world.state(0, ACTIVE)
    world.run(0.3)
    assert len(world.dials) == 2
    world.paths.update([first, replace(second, network="wifi 02:00:00:00:00:01")], world.now)
    world.run(0.3)
    assert world.cancelled == []
    assert len(world.dials) == 2


@pytest.mark.parametrize("cause", [Cause.REFUSED_BUSY, Cause.GOING_AWAY, Cause.HANDSHAKE_TIMEOUT])
def test_a_server_under_load_is_asked_again_while_the_session_opens(cause: Cause) -> None:
    world = World(candidate(0))
    world.paths.begun = True
    for attempt in range(20):
        world.paths.attempt_failed(ConnectionId(attempt), Reason(cause, "not now"), world.now)
        world.run(1.0)
    assert len(world.dials) == 21
    assert not world.paths.hopeless
    assert len(world.paths.failures) == 1, "said once, however often it was heard"


def test_a_network_that_says_nothing_is_asked_again_until_nobody_waits_for_the_session() -> None:
    world = World(candidate(0))
    world.run(45.0)
    assert len(world.dials) == 5, "each had ten seconds"
    assert len(world.cancelled) == 4
    assert not world.paths.hopeless


def test_what_fails_while_another_connection_is_there_is_listed_until_all_were_tried() -> None:
    world = World(candidate(0), candidate(1), connect=ConnectMode.PARALLEL)
    world.state(0, ACTIVE)
    world.paths.attempt_failed(ConnectionId(1), Reason(Cause.TRANSPORT, "no route to host"), world.now)
    world.run(2.0)
    again = world.dials[-1][0]
    world.paths.attempt_failed(again, Reason(Cause.TRANSPORT, "connection refused"), world.now)
    assert [str(reason) for _, reason in world.paths.failures] == ["no route to host"]


def test_what_has_not_answered_is_listed_when_nobody_waits_for_it_any_more() -> None:
    world = World(candidate(0), candidate(1), connect=ConnectMode.PARALLEL)
    world.state(0, ACTIVE)
    world.paths.give_up(3.0)
    assert world.paths.failures == [(str(candidate(1)), Reason(Cause.ATTEMPT_TIMEOUT, "no answer within 3 s"))]


def test_a_server_that_is_being_stopped_is_told_at_once_as_long_as_another_session_will_do() -> None:
    world = World(candidate(0))
    world.paths.attempt_failed(ConnectionId(0), Reason(Cause.GOING_AWAY, "elsewhere"), world.now)
    assert world.paths.hopeless


def test_a_peer_that_hangs_up_without_a_word_is_asked_a_few_times_more() -> None:
    world = World(candidate(0))
    while not world.paths.hopeless:
        last = world.dials[-1][0]
        world.paths.attempt_failed(last, Reason(Cause.PEER_CLOSED, "connection reset by peer"), world.now)
        world.run(1.0)
    assert len(world.dials) == 1 + MAX_HUNG_UP


def test_a_refused_connection_is_told_at_once() -> None:
    world = World(candidate(0))
    world.paths.attempt_failed(ConnectionId(0), Reason(Cause.TRANSPORT, "connection refused"), world.now)
    assert world.paths.hopeless


# --- preferences that change  ---


def test_what_is_up_takes_the_preferences_that_its_candidate_has_now() -> None:
    world = two_up()
    world.paths.update([candidate(0), replace(candidate(1), role=Role.BACKUP, max_rate=1e5)], world.now)
    assert (world.connections.roles[1], world.connections.caps[1]) == (Role.BACKUP, 1e5)
    world.paths.update([candidate(0), candidate(1)], world.now)
    assert (world.connections.roles[1], world.connections.caps[1]) == (Role.ACTIVE, 0.0)
    assert 0 not in world.connections.roles
    assert not world.connections.drained


def test_what_is_up_takes_the_preferences_of_its_entry_whatever_has_become_of_its_addresses() -> None:
    """Its own is not among the candidates any more, as when an IPv6 address is deprecated; or there are none."""
    backup = preferences_of(replace(candidate(1), role=Role.BACKUP, max_rate=1e5))
    renewed = replace(candidate(1), local_address="192.0.2.77")
    for there in ([candidate(0), renewed], [candidate(0)]):
        world = two_up()
        world.paths.update(there, world.now, preferences={1: backup})
        assert (world.connections.roles[1], world.connections.caps[1]) == (Role.BACKUP, 1e5)
        world.paths.update(there, world.now, preferences={1: preferences_of(candidate(1))})
        assert (world.connections.roles[1], world.connections.caps[1]) == (Role.ACTIVE, 0.0)
    world = two_up()
    world.paths.update([candidate(0), replace(renewed, role=Role.BACKUP, max_rate=1e5)], world.now)
    assert (world.connections.roles[1], world.connections.caps[1]) == (Role.BACKUP, 1e5)


def test_an_entry_that_is_withdrawn_takes_no_connection_of_another_along_that_has_a_new_address() -> None:
    one, other = candidate(0, group="g"), candidate(1, group="g")
    world = World(one, connect=ConnectMode.PARALLEL)
    world.state(0, ACTIVE)
    world.paths.update([replace(one, local_address="192.0.2.77")], world.now)
    world.paths.add([other], world.now)
    assert world.paths.withdraw(1, world.now) == []
    assert world.connections.drained == []


def test_preferences_that_change_while_it_is_dialled_hold_when_it_is_up() -> None:
    world = World(candidate(0), candidate(1), connect=ConnectMode.PARALLEL)
    world.paths.update([candidate(0), replace(candidate(1), role=Role.BACKUP, max_rate=1e5)], world.now)
    for connection in (0, 1):
        world.state(connection, ACTIVE)
    world.turn()
    assert (world.connections.roles[1], world.connections.caps) == (Role.BACKUP, {1: 1e5})


def test_a_connection_of_an_entry_that_is_closed_is_drained_while_another_can_carry() -> None:
    world = two_up()
    world.paths.update([candidate(0)], world.now, reason=lambda _: "used up", closed=lambda c: c.entry == 1)
    assert world.connections.drained == [1]
    world.state(1, ConnectionState.DRAINING)
    dials = len(world.dials)
    world.run(40.0)
    assert len(world.dials) == dials
    world.paths.update([candidate(0), candidate(1)], world.now)
    world.run(0.1)
    assert len(world.dials) == dials + 1


def test_the_last_connection_is_closed_with_its_entry_since_draining_it_would_go_on() -> None:
    world = two_up()
    world.state(0, LOST)
    world.paths.update([candidate(0)], world.now, reason=lambda _: "used up", closed=lambda c: c.entry == 1)
    assert world.connections.closed_for_now == {1: "used up"}


@pytest.mark.parametrize("how", [SUSPECT, LOST, "closed as well"])
def test_a_connection_that_drains_since_its_entry_is_closed_ends_with_the_last_other(
    how: ConnectionState | str,
) -> None:
    world = two_up()
    world.paths.update([candidate(0)], world.now, reason=lambda _: "used up", closed=lambda c: c.entry == 1)
    world.state(1, ConnectionState.DRAINING)
    assert world.connections.closed_for_now == {}
    if isinstance(how, ConnectionState):
        world.state(0, how)
        assert world.connections.closed_for_now == {1: "used up"}
    else:
        world.paths.update([], world.now, reason=lambda _: how, closed=lambda _: True)
        assert world.connections.closed_for_now == {0: how, 1: "used up"}


def test_a_connection_that_drains_may_go_on_when_its_entry_is_open_again() -> None:
    world = two_up()
    world.paths.update([candidate(0)], world.now, closed=lambda c: c.entry == 1)
    world.state(1, ConnectionState.DRAINING)
    world.paths.update([candidate(0), candidate(1)], world.now)
    world.state(0, LOST)
    assert world.connections.closed_for_now == {}


def test_connections_that_shall_go_together_are_no_reason_to_wait_for_each_other() -> None:
    world = two_up()
    world.paths.update([], world.now, reason=lambda _: "blocked", closed=lambda _: True)
    assert world.connections.closed_for_now == {0: "blocked", 1: "blocked"}
    assert not world.connections.drained


# --- where the server says that it is ---


def told(entry: int, address: str = "203.0.113.9", port: int = 443) -> Candidate:
    return replace(candidate(entry, address), remote_port=port, told=True, group=f"entry {entry}")


def named(entry: int) -> Candidate:
    return candidate(entry, group=f"entry {entry}")


def test_a_server_that_wants_to_be_joined_elsewhere_is_joined_nowhere_before_it_has_told_where() -> None:
    world = World(named(0), named(1), named(2), connect=ConnectMode.PARALLEL)
    assert len(world.dials) == 3
    world.paths.elsewhere(ConnectionId(0), world.now)
    world.state(0, ACTIVE)
    assert world.cancelled == [1, 2]
    world.run(0.3)
    assert len(world.dials) == 3
    world.paths.update([told(0), named(0), told(1), named(1), told(2), named(2)], world.now)
    world.turn()
    assert [c.remote_port for _, c in world.dials[3:]] == [443], "one goes ahead"
    world.state(3, ACTIVE)
    world.turn()
    assert [c.remote_port for _, c in world.dials[4:]] == [443], "and the other follows when the server is there"


def test_a_server_that_is_where_it_was_found_is_joined_there_at_once() -> None:
    world = World(named(0), named(1), connect=ConnectMode.PARALLEL)
    world.paths.elsewhere(ConnectionId(0), world.now)
    world.state(0, ACTIVE)
    world.paths.update([replace(named(0), told=True), replace(named(1), told=True)], world.now)
    world.turn()
    (_, made), *_ = world.dials[2:]
    assert (made.remote_address, made.told, made.proved) == ("192.0.2.1", True, True)


def test_a_server_that_tells_nothing_is_joined_where_it_was_found() -> None:
    world = World(named(0), named(1), connect=ConnectMode.PARALLEL)
    world.paths.elsewhere(ConnectionId(0), world.now)
    world.state(0, ACTIVE)
    world.run(TOLD_WITHIN - 0.05)
    assert len(world.dials) == 2
    world.run(0.1)
    assert [c.remote_address for _, c in world.dials[2:]] == ["192.0.2.1"]


def test_a_server_that_is_slow_where_it_wants_to_be_joined_is_not_looked_for_elsewhere() -> None:
    world = World(named(0), named(1), connect=ConnectMode.PARALLEL)
    world.paths.elsewhere(ConnectionId(0), world.now)
    world.state(0, ACTIVE)
    world.paths.update([told(0), named(0), told(1), named(1)], world.now)
    world.run(TOLD_WITHIN - 0.1)
    assert {c.remote_port for _, c in world.dials[2:]} == {443}, "it has not answered yet"
    world.run(3.0)
    assert "192.0.2.1" in {c.remote_address for _, c in world.dials[2:]}, "nobody is there: perhaps the balancer is"


def test_with_nothing_left_a_server_is_looked_for_everywhere() -> None:
    world = World(named(0), named(1), connect=ConnectMode.PARALLEL)
    world.paths.elsewhere(ConnectionId(0), world.now)
    world.state(0, ACTIVE)
    world.paths.update([told(0), named(0), told(1), named(1)], world.now)
    world.state(0, LOST)
    world.paths.detached(world.now)
    world.run(2.5)
    assert {c.remote_port for _, c in world.dials[2:]} == {443, 7788}


def test_what_races_later_does_not_begin_where_the_server_is_not() -> None:
    world = World(named(0), named(1), named(2))
    world.paths.elsewhere(ConnectionId(0), world.now)
    world.state(0, ACTIVE)
    world.run(0.6)
    assert len(world.dials) == 1


def test_an_address_that_was_told_is_dialled_once_a_second_by_all_together() -> None:
    entries = range(4)
    world = World(*(named(entry) for entry in entries), connect=ConnectMode.PARALLEL)
    for entry in entries:
        world.state(entry, ACTIVE)
    world.paths.update([c for entry in entries for c in (told(entry, port=443 + entry), named(entry))], world.now)
    for entry in entries:
        world.state(entry, LOST)
    dialled: list[float] = []
    while world.now < 10.0:
        before = len(world.dials)
        world.run(0.01)
        for connection, made in world.dials[before:]:
            assert made.told == (made.remote_address == "203.0.113.9")
            assert not made.proved
            if made.told:
                dialled.append(world.now)
                world.paths.attempt_failed(connection, Reason(Cause.TRANSPORT, "refused"), world.now)
    apart = [later - earlier for earlier, later in pairwise(dialled)]
    assert len(dialled) > 3
    assert min(apart) >= TOLD_APART - 0.011


def test_a_server_that_tells_other_addresses_all_the_time_aims_its_client_at_four_a_second() -> None:
    world = World(named(0), named(1), connect=ConnectMode.PARALLEL)
    world.state(0, ACTIVE)
    world.state(1, ACTIVE)
    world.state(1, LOST)
    for number in range(200):
        world.paths.update([named(0), told(1, f"203.0.113.{number}")], world.now)
        world.run(0.05)
    addresses = [made.remote_address for _, made in world.dials if made.told]
    assert len(addresses) == len(set(addresses))
    assert 30 <= len(addresses) <= 10 * MAX_TOLD + MAX_TOLD


def test_a_server_that_has_moved_is_followed_within_a_second() -> None:
    world = World(named(0), named(1), connect=ConnectMode.PARALLEL)
    world.state(0, ACTIVE)
    world.state(1, ACTIVE)
    world.state(1, LOST)
    for number in range(MAX_TOLD + 1):
        world.paths.update([named(0), told(1, f"203.0.113.{number}")], world.now)
        world.run(0.11)
    world.run(TOLD_APART - 0.11 * MAX_TOLD)
    assert world.dials[-1][1].remote_address == f"203.0.113.{MAX_TOLD}"


def test_where_the_server_has_proved_itself_nothing_waits() -> None:
    world = World(named(0), named(1), connect=ConnectMode.PARALLEL)
    world.state(0, ACTIVE)
    world.state(1, ACTIVE)
    world.paths.update([told(0), named(0), told(1), named(1)], world.now)
    world.state(0, LOST)
    world.run(0.5)
    assert world.dials[-1][1].told
    world.state(world.dials[-1][0], ACTIVE)
    world.state(1, LOST)
    world.run(0.5)
    assert (world.dials[-1][1].remote_port, world.dials[-1][1].proved) == (443, True)


def redirected(world: World, connection: int, address: tuple[str, int]) -> None:
    world.paths.redirected(ConnectionId(connection), address)
    strays(world, connection, Cause.REFUSED_ELSEWHERE)


def strays(world: World, connection: int, cause: Cause) -> None:
    """A server refuses it that does not hold the session."""
    world.paths.connection_changed(ConnectionId(connection), LOST, Reason(cause, "astray"), world.now)
    world.collect()


def test_a_stray_is_sent_to_its_server_once() -> None:
    world = World(named(0), named(1), connect=ConnectMode.PARALLEL, may_go=lambda address: True)
    world.state(0, ACTIVE)
    redirected(world, 1, ("203.0.113.1", 7001))
    connection, made = world.dials[-1]
    assert (made.remote_address, made.remote_port, made.told) == ("203.0.113.1", 7001, True)
    count = len(world.dials)
    redirected(world, connection, ("203.0.113.2", 7002))
    world.run(0.1)
    assert len(world.dials) == count, "no chain"
    world.run(0.5)
    assert world.dials[-1][1].remote_address == "192.0.2.1", "it begins anew where its name leads"


@pytest.mark.parametrize("cause", [Cause.REFUSED_ELSEWHERE, Cause.REFUSED_UNKNOWN])
def test_what_was_dialled_before_the_server_was_known_and_went_astray_is_dialled_again_at_once(cause: Cause) -> None:
    """Its first bytes could not say which server is meant; those of the next dial do."""
    world = World(candidate(0), candidate(1), connect=ConnectMode.PARALLEL)
    world.state(0, ACTIVE)
    strays(world, 1, cause)
    assert [made.entry for _, made in world.dials] == [0, 1, 1]
    strays(world, world.dials[-1][0], cause)
    world.run(0.1)
    assert len(world.dials) == 3, "it could say it"
    world.run(0.5)
    assert len(world.dials) == 4


def test_redirects_to_one_address_are_followed_once_a_second() -> None:
    world = World(named(0), named(1), named(2), connect=ConnectMode.PARALLEL, may_go=lambda address: True)
    world.state(0, ACTIVE)
    redirected(world, 1, ("203.0.113.1", 7001))
    redirected(world, 2, ("203.0.113.1", 7002))
    assert [c.remote_address for _, c in world.dials[3:]] == ["203.0.113.1"]


def test_a_redirect_where_nobody_may_be_sent_leads_nowhere() -> None:
    asked: list[str] = []

    def may_go(address: str) -> bool:
        asked.append(address)
        return False

    world = World(named(0), named(1), connect=ConnectMode.PARALLEL, may_go=may_go)
    world.state(0, ACTIVE)
    redirected(world, 1, ("127.0.0.1", 22))
    world.run(5.0)
    assert asked == ["127.0.0.1"]
    assert {c.remote_address for _, c in world.dials} == {"192.0.2.1"}


def test_a_redirect_to_another_ip_version_is_none_the_socket_could_follow() -> None:
    world = World(named(0), named(1), connect=ConnectMode.PARALLEL, may_go=lambda address: True)
    world.state(0, ACTIVE)
    redirected(world, 1, ("2001:db8::1", 7001))
    assert [made.remote_address for _, made in world.dials] == ["192.0.2.1"] * 3


def test_that_there_is_no_server_where_it_was_told_counts_when_nothing_is_left() -> None:
    world = World(named(0), named(1), connect=ConnectMode.PARALLEL)
    world.state(0, ACTIVE)
    world.paths.update([told(0), named(0), told(1), named(1)], world.now)
    world.state(1, LOST)
    world.run(0.5)
    refused = Reason(Cause.TRANSPORT, "connection refused")
    world.paths.attempt_failed(world.dials[-1][0], refused, world.now)
    assert not world.paths.away, "a connection lives"
    world.state(0, LOST)
    world.paths.detached(world.now)
    world.run(2.0)
    mistaken = [connection for connection, made in world.dials[3:] if not made.told]
    world.paths.attempt_failed(mistaken[-1], refused, world.now)
    assert not world.paths.away
    asked = [connection for connection, made in world.dials[3:] if made.told]
    world.paths.attempt_failed(asked[-1], refused, world.now)
    assert world.paths.away
    world.paths.detached(world.now)
    assert not world.paths.away


def test_who_looks_late_waits_for_what_has_come_meanwhile_before_it_dials_beside() -> None:
    """A busy process would double its work, and that of its server."""
    world = World(candidate(0))
    world.state(0, ACTIVE)
    world.run(2.0)
    world.state(0, LOST)
    world.paths.detached(world.now)
    world.run(0.25)
    assert len(world.dials) == 2  # the second is under way
    for _ in range(4):
        world.now += 0.9
        world.turn()  # its timer was due at 0.5 s
        assert len(world.dials) == 2
    world.run(0.7)
    assert len(world.dials) == 3  # in time, and nobody has answered
    world.now += 60.0
    world.run(0.2)  # after a night
    assert len(world.dials) == 4
