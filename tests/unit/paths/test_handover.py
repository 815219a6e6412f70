"""What a handover leaves, and how it ends."""

from __future__ import annotations

from dataclasses import replace

from multi.events import HandoverChanged, HandoverState
from multi.paths.handover import Destination
from multi.paths.racing import ConnectMode
from multi.reasons import Cause, Reason
from multi.types import ConnectionId, ConnectionState, Source
from tests.unit.paths.world import ACTIVE, REASON, World, candidate


def test_a_handover_during_the_race_leaves_the_rest_of_the_race_out() -> None:
    world = World(candidate(0), candidate(1), candidate(2), connect=ConnectMode.SEQUENTIAL)
    world.paths.established()
    world.paths.connection_changed(ConnectionId(0), ACTIVE, REASON, world.now)
    done: list[Reason | None] = []
    world.paths.hand_over([world.paths.slots[0]], done.append, world.now)
    world.run(10.0)
    assert done == [None]
    assert [c.entry for _, c in world.dials] == [0]


def test_what_a_handover_has_left_is_opened_when_the_application_adds_it() -> None:
    left, target = candidate(0, group="left"), candidate(1)
    world = World(left, target)
    world.state(0, ACTIVE)
    world.run(0.3)
    world.state(1, ACTIVE)
    world.paths.hand_over([world.paths.slots[1]], lambda reason: None, world.now)
    world.state(0, ConnectionState.CLOSED)
    world.run(5.0)
    assert len(world.dials) == 2
    world.paths.add([left], world.now)
    world.turn()
    assert [c for _, c in world.dials[2:]] == [left]


def test_a_handover_that_is_cancelled_has_an_end() -> None:
    world = World(candidate(0), candidate(1))
    world.state(0, ACTIVE)
    world.turn()
    done: list[Reason | None] = []
    world.paths.hand_over([world.paths.slots[1]], done.append, world.now)
    world.paths.cancel_handover()
    world.turn()
    assert [reason and reason.cause for reason in done] == [Cause.ABORTED]
    states = [event.state for event in world.events if isinstance(event, HandoverChanged)]
    assert states == [HandoverState.STARTED, HandoverState.FAILED]


def test_a_handover_dials_beside_what_is_under_way_and_fails_only_with_what_it_has_dialled() -> None:
    world = World(candidate(0), candidate(1))
    world.state(0, ACTIVE)
    world.run(0.5)
    earlier = [connection for connection, c in world.dials if c.entry == 1]
    done: list[Reason | None] = []
    world.paths.hand_over([world.paths.slots[1]], done.append, world.now)
    world.turn()
    own = [connection for connection, c in world.dials if c.entry == 1 and connection not in earlier]
    assert len(earlier) == len(own) == 1
    refused = Reason(Cause.TRANSPORT, "refused")
    world.paths.attempt_failed(earlier[0], refused, world.now)
    world.turn()
    assert done == []
    world.paths.attempt_failed(own[0], refused, world.now)
    assert done == [refused]


def test_a_handover_fails_when_an_alternative_fills_the_place() -> None:
    """It was done with whatever came up, over the network that it should leave."""
    over = candidate(1, group="either"), candidate(2, group="either")
    world = World(candidate(0), *over)
    world.state(0, ACTIVE)
    world.turn()
    done: list[Reason | None] = []
    place = world.paths.slots[1]
    world.paths.hand_over([place], done.append, world.now, Destination("if1"))
    world.run(0.5)
    assert done == []
    other = next(connection for connection, c in world.dials if c == over[1])
    world.state(other, ACTIVE)
    assert done == ["an alternative is used instead, tcp over if2 to 192.0.2.1:7788"]
    assert world.connections.drained == []
    world.paths.hand_over([place], done.append, world.now, Destination("if2"))
    assert done[1:] == [None]
    assert world.connections.drained == [0]


def test_a_handover_leaves_a_place_that_an_alternative_fills() -> None:
    """It stayed, since the network that was meant might have filled it."""
    there = replace(candidate(3), interface="if1")
    world = World(candidate(0), candidate(1, group="either"), candidate(2, group="either"), there)
    world.state(0, ACTIVE)
    world.run(0.5)
    dials = {c.entry: connection for connection, c in world.dials}
    done: list[Reason | None] = []
    world.paths.hand_over(world.paths.slots[1:], done.append, world.now, Destination("if1"))
    world.state(dials[2], ACTIVE)
    assert done == []
    world.state(dials[3], ACTIVE)
    assert done == [None]
    assert sorted(world.connections.drained) == [0, dials[2]]


def test_a_handover_of_a_connection_over_several_networks_names_those_that_are_meant() -> None:
    """It named the first one, whichever was meant."""
    both = candidate(0).over(Source("wlan0", "", "wifi"), Source("wwan0", "", "cellular"))
    world = World(both, candidate(1))
    world.state(0, ACTIVE)
    world.paths.hand_over(
        world.paths.slots[:1], lambda reason: None, world.now, Destination("cellular", frozenset({ConnectionId(0)}))
    )
    world.turn()
    told = [(event.state, event.to) for event in world.events if isinstance(event, HandoverChanged)]
    assert told == [(HandoverState.STARTED, "wwan0"), (HandoverState.DONE, "wwan0")]
