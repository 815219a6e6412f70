"""Which connections carry the data."""

from __future__ import annotations

from dataclasses import replace

import pytest

from multi.paths.racing import ConnectMode
from multi.paths.roles import Mode
from multi.types import ConnectionId, Role, Source
from tests.unit.paths.world import ACTIVE, SUSPECT, World, candidate, two_up


def test_what_recovers_is_asked_for_signs_of_life_from_the_beginning_of_its_trial() -> None:
    world = World(candidate(0), candidate(1), mode=Mode.SWITCH)
    world.state(0, ACTIVE)
    world.run(0.3)
    world.state(1, ACTIVE)
    world.run(5.0)
    world.state(0, SUSPECT)
    world.run(0.1)
    world.connections.pinged.clear()
    world.state(0, ACTIVE)
    world.run(0.5)
    assert world.connections.pinged.count(0) >= 4


def test_a_connection_over_several_networks_fades_when_all_of_them_do() -> None:
    world = two_up(replace(candidate(0), more_sources=(Source("wwan0"),)), mode=Mode.SWITCH)
    world.run(1.0)
    world.paths.signal_changed("if0", True, world.now)
    world.run(1.0)
    assert world.connections.roles.get(1) is not Role.ACTIVE
    world.paths.signal_changed("wwan0", True, world.now)
    world.run(1.0)
    assert world.connections.roles[1] is Role.ACTIVE


@pytest.mark.parametrize("wanted", [Role.ACTIVE, Role.SECONDARY, Role.BACKUP])
def test_a_role_the_application_wants_stays_whatever_was_configured(wanted: Role) -> None:
    candidates = [candidate(0), replace(candidate(1), role=Role.BACKUP)]
    world = World(*candidates, connect=ConnectMode.PARALLEL)
    for connection in (0, 1):
        world.state(connection, ACTIVE)
    world.paths.set_role(ConnectionId(1), wanted, world.now)
    world.turn()
    assert world.connections.roles.get(1, wanted) is wanted


def test_in_switch_mode_a_backup_carries_only_without_others() -> None:
    world = two_up(mode=Mode.SWITCH)
    world.paths.update([replace(candidate(0), role=Role.BACKUP), candidate(1)], world.now)
    assert (world.connections.roles[0], world.connections.roles[1]) == (Role.BACKUP, Role.ACTIVE)
