"""A session's data budgets: what is counted, said and restricted, with a calendar of the test's own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from multi.asyncio.budgets import LOOK_APART, Budgets, accounts_of
from multi.asyncio.driver import SessionDriver
from multi.asyncio.resolution import Resolver
from multi.budgets.ledger import Ledger
from multi.config import load_config, load_entry
from multi.events import BudgetChanged
from multi.types import Role

MB = 1_000_000


@dataclass
class Carrying:
    """A connection of an entry, as far as budgets look at it."""

    entry: int
    wire_bytes: int = 0
    alive: bool = True


@dataclass
class World:
    """Budgets over a driver that does nothing."""

    path: Path
    entries: list[dict[str, Any]]
    day: date = date(2026, 11, 20)
    said: list[BudgetChanged] = field(default_factory=list)
    warned: list[str] = field(default_factory=list)
    changes: int = 0

    async def start(self) -> World:
        config = load_config({"connection_priority": self.entries, "remote_host": "127.0.0.1"})
        self.resolver = Resolver(config, lambda: None, self.warned.append)
        loop = asyncio.get_running_loop()
        self.links: dict[int, Any] = {}
        self.connections: dict[int, Any] = {}
        self.work: list[asyncio.Future[None]] = []
        core = SimpleNamespace(connections=self.connections, notify=self.said.append)
        driver = SimpleNamespace(
            links=self.links,
            core=core,
            loop=loop,
            now=loop.time,
            pump_soon=lambda: None,
            settle_after=self.work.append,
            warn=self.warned.append,
        )
        self.ledger = Ledger(self.path)
        self.budgets = Budgets(
            cast(SessionDriver, driver), self.resolver, self._changed, ledger=self.ledger, today=lambda: self.day
        )
        await self.budgets.start()
        return self

    def _changed(self) -> None:
        self.changes += 1

    def carry(self, entry: int) -> Carrying:
        number = len(self.connections)
        carrying = self.connections[number] = Carrying(entry)
        self.links[number] = SimpleNamespace(id=number, candidate=SimpleNamespace(entry=entry))
        self.budgets.look()
        return carrying

    async def close(self) -> None:
        self.budgets.close()
        await asyncio.gather(*self.work)

    async def candidates(self) -> list[tuple[Role, float]]:
        found = await self.resolver.find()
        return [(c.role, c.max_rate) for c in found.candidates]

    @property
    def levels(self) -> list[int]:
        return [event.level for event in self.said]


def entry(address: str = "127.0.0.1", **more: Any) -> dict[str, Any]:
    return {"transport": "tcp", "ip": "ipv4", "interface": address, **more}


def run(path: Path, scenario: Callable[[World], Awaitable[None]], *entries: dict[str, Any]) -> World:
    async def main() -> World:
        world = await World(path / "budgets.json", list(entries)).start()
        await scenario(world)
        await world.close()
        return world

    return asyncio.run(main())


def test_each_level_is_said_once_and_what_is_used_up_has_effect_until_the_next_period(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        carrying = world.carry(0)
        assert await world.candidates() == [(Role.ACTIVE, 0.0)]
        for used, levels in (
            (74, []),
            (75, [75]),
            (80, [75]),
            (95, [75, 90]),
            (100, [75, 90, 100]),
            (103, [75, 90, 100]),
        ):
            carrying.wire_bytes = used * MB
            world.budgets.look()
            assert world.levels == levels
        assert world.changes == 1
        assert await world.candidates() == [(Role.BACKUP, 0.0)]
        world.day = date(2026, 12, 1)
        world.budgets.look()
        assert world.levels[3:] == [0]
        assert world.changes == 2
        assert await world.candidates() == [(Role.ACTIVE, 0.0)]
        assert str(world.said[2]).startswith(
            "the data budget of 127.0.0.1 is used up: 100.0 of 100 MB until 2026-12-01"
        )

    run(tmp_path, scenario, entry(budget={"mb": 100}))


@pytest.mark.parametrize(
    ("then", "left"),
    [
        ("never", []),
        ("backup", [(Role.BACKUP, 0.0)]),
        ({"max_rate_mbps": 1}, [(Role.ACTIVE, 125_000.0)]),
        ({"role": "backup", "max_rate_mbps": 1}, [(Role.BACKUP, 125_000.0)]),
    ],
)
def test_what_becomes_of_an_entry_also_in_the_next_run(tmp_path: Path, then: Any, left: list[Any]) -> None:
    async def use_up(world: World) -> None:
        carrying = world.carry(0)
        carrying.wire_bytes = MB
        carrying.alive = False  # it ends before anybody looks: its last bytes count

    async def look(world: World) -> None:
        assert world.levels == [100]
        assert await world.candidates() == left
        reasons = [r.reason for r in world.resolver.last.rejections] if world.resolver.last else []
        assert reasons == ([] if left else ["its data budget of 1 MB per month is used up until 2026-12-01"])

    run(tmp_path, use_up, entry(budget={"mb": 1, "then": then}))
    run(tmp_path, look, entry(budget={"mb": 1, "then": then}))


def test_entries_of_a_group_share_its_budget_and_others_are_not_counted(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        first, second, third = world.carry(0), world.carry(1), world.carry(2)
        first.wire_bytes, second.wire_bytes, third.wire_bytes = 4 * MB, 4 * MB, 50 * MB
        world.budgets.look()
        assert [(e.name, e.used, e.level) for e in world.said] == [("sim", 8 * MB, 75)]

    shared, alone = entry(group="sim", budget={"mb": 10}), entry("127.0.0.3")
    run(tmp_path, scenario, shared, entry("127.0.0.2", group="sim"), alone)


def test_who_shares_the_budget_of_an_entry_does_so_from_when_it_leads_anywhere_until_it_is_withdrawn(
    tmp_path: Path,
) -> None:
    async def scenario(world: World) -> None:
        mate = world.carry(0)
        mate.wire_bytes = 500 * MB
        world.carry(1).wire_bytes = 10 * MB
        world.budgets.look()
        unrestricted = [(Role.ACTIVE, 0.0), (Role.BACKUP, 0.0)]
        assert await world.candidates() == unrestricted
        added = entry("127.0.0.3", group="g", budget={"mb": 10, "name": "sim", "then": "backup"})
        index = world.resolver.add(load_entry(added))
        changes = world.changes
        assert await world.candidates() == [*unrestricted, (Role.BACKUP, 0.0)], "it may yet lead nowhere"
        world.resolver.came_about(index)
        assert world.changes > changes
        assert await world.candidates() == [(Role.BACKUP, 0.0)] * 3
        mate.wire_bytes += MB
        world.budgets.look()
        world.resolver.withdraw(index)
        changes = world.changes
        mate.wire_bytes += MB
        world.budgets.look()
        assert world.changes > changes
        assert await world.candidates() == unrestricted
        mate.wire_bytes += 100 * MB
        world.budgets.look()
        (account,) = set(accounts_of(world.resolver.entries).values())
        assert account.used(world.ledger, world.day) == 12 * MB, "what was carried while it was shared"

    used_up = entry("127.0.0.2", budget={"mb": 10, "name": "sim", "then": "backup"})
    run(tmp_path, scenario, entry(group="g"), used_up)


def test_a_clock_set_back_goes_on_counting_where_it_was(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        carrying = world.carry(0)
        carrying.wire_bytes = 80 * MB
        world.budgets.look()
        world.day = date(2026, 11, 2)
        carrying.wire_bytes = 91 * MB
        world.budgets.look()
        assert world.levels == [75, 90]
        world.day = date(2026, 10, 31)
        world.budgets.look()
        world.day = date(2026, 11, 20)
        world.budgets.look()
        assert world.said[-1].used == 91 * MB

    run(tmp_path, scenario, entry(budget={"mb": 100}))


def test_two_that_share_a_budget_hear_of_each_other(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        other = await World(world.path, world.entries).start()
        other.carry(0).wire_bytes = 95 * MB
        await other.close()
        world.ledger.sync()
        world.budgets.look()
        assert world.levels == [90]

    run(tmp_path, scenario, entry(budget={"mb": 100}))


def test_a_file_that_cannot_be_written_is_said_once_and_counting_goes_on(tmp_path: Path) -> None:
    (tmp_path / "budgets.json").write_text("no record")

    async def scenario(world: World) -> None:
        world.carry(0).wire_bytes = 80 * MB
        world.budgets.look()
        await asyncio.sleep(2 * LOOK_APART)
        assert world.levels == [75]
        assert len(world.warned) == 1
        assert "in memory only" in world.warned[0]

    run(tmp_path, scenario, entry(budget={"mb": 100}))


def test_what_can_only_at_the_end_not_be_written_is_said_too(tmp_path: Path) -> None:
    """As of a copy that takes a second, with a directory in which nothing can be made."""
    (tmp_path / "budgets.lock").mkdir()

    async def scenario(world: World) -> None:
        world.carry(0).wire_bytes = MB
        assert not world.warned

    (warning,) = run(tmp_path, scenario, entry(budget={"mb": 100})).warned
    assert "in memory only" in warning


def test_without_a_budget_nothing_is_looked_at_and_no_file_made(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        world.carry(0).wire_bytes = 80 * MB
        world.budgets.look()
        assert not world.said

    world = run(tmp_path, scenario, entry())
    assert not world.path.exists()


def test_budgets_of_one_name_with_other_periods_are_counted_apart() -> None:
    config = load_config(
        {
            "connection_priority": [
                entry(budget={"mb": 1, "name": "sim"}),
                entry("127.0.0.2", budget={"mb": 2, "name": "sim"}),
                entry("127.0.0.3", budget={"mb": 1, "name": "sim", "per": "day"}),
                entry("127.0.0.4", budget={"mb": 1, "name": "sim"}),
            ],
            "remote_host": "127.0.0.1",
        }
    )
    accounts = accounts_of(dict(enumerate(config.connection_priority)))
    assert accounts[0] is accounts[3] is not accounts[1]
    assert accounts[0].key == accounts[1].key != accounts[2].key


def test_an_entry_whose_role_is_never_leads_to_nothing(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        assert await world.candidates() == [(Role.SECONDARY, 0.0)]
        assert world.resolver.last is not None
        assert [r.reason for r in world.resolver.last.rejections] == ["its role is never"]

    run(tmp_path, scenario, entry(role="never"), entry("127.0.0.2", role="secondary"))
