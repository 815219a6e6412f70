"""A client's data budgets: counts what its connections carry, warns, and restricts entries that have used theirs up.

What a restriction does to connections is decided where candidates are found and by the path manager, as when networks
change. The figures belong to all programs of a user (`multi.budgets.ledger`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import date

from multi.asyncio.driver import SessionDriver
from multi.asyncio.loop_shutdown import ignore
from multi.asyncio.resolution import Resolver
from multi.budgets.ledger import Ledger, shared_ledger
from multi.budgets.periods import Period
from multi.config import Entry
from multi.config.model import Budget
from multi.discovery.resources import in_thread, start_in_thread
from multi.errors import printable
from multi.events import BudgetChanged
from multi.protocol.connection import Connection
from multi.types import ConnectionId

LEVELS = (100, 90, 75)  # percent
LOOK_APART = 0.25  # seconds between looks; a fast network carries some megabytes beyond its budget meanwhile
SYNC_APART = 5.0  # seconds between exchanges with the file; what a killed program loses of its count


@dataclass(slots=True, eq=False)
class Account:
    """A budget under its name. Entries with the same of both have one."""

    name: str
    budget: Budget
    level: int = 0
    """Percent that were last said to be used, one of LEVELS; 0 = less."""

    @property
    def period(self) -> Period:
        return Period(self.budget.per, self.budget.reset_day)

    @property
    def key(self) -> str:
        """What it has in the ledger: periods of different kinds cannot be counted together."""
        return f"{self.name}: {self.period}"

    @property
    def spent(self) -> bool:
        return self.level == LEVELS[0]

    def is_same(self, other: Account) -> bool:
        """What is counted for one is counted for the other."""
        return (self.name, self.budget) == (other.name, other.budget)

    def add(self, ledger: Ledger, day: date, count: int) -> None:
        """Count `count` bytes more."""
        ledger.add(self.key, self.period.begin(day).isoformat(), count)

    def used(self, ledger: Ledger, day: date) -> int:
        """Bytes of the period that `day` is in."""
        return ledger.used(self.key, self.period.begin(day).isoformat())

    def level_now(self, ledger: Ledger, day: date) -> int:
        share = 100 * self.used(ledger, day)
        return next((level for level in LEVELS if share >= level * self.budget.bytes), 0)

    def state(self, ledger: Ledger, day: date, level: int) -> BudgetChanged:
        until = self.period.end(day).isoformat()
        return BudgetChanged(self.name, self.used(ledger, day), self.budget.bytes, level, until)


def accounts_of(entries: Mapping[int, Entry], tried: Collection[int] = ()) -> dict[int, Account]:
    """The accounts of the entries that have a budget, or share that of their group; nobody shares that of one that is
    only `tried`."""
    found: dict[int, Account] = {}
    sure = [entry for index, entry in entries.items() if index not in tried]
    for index, entry in entries.items():
        of_group = (other.budget for other in sure if other.group and other.group == entry.group)
        budget = entry.budget or next(filter(None, of_group), None)
        if budget is not None:
            account = Account(budget.name or entry.group or ", ".join(entry.interface), budget)
            same = (known for known in found.values() if known.is_same(account))
            found[index] = next(same, account)
    return found


class Budgets:
    """Of one session. `on_change` is called when entries have been restricted, or are no more.

    `today` gives the day in local time.
    """

    def __init__(
        self,
        driver: SessionDriver,
        resolver: Resolver,
        on_change: Callable[[], None],
        *,
        ledger: Ledger | None = None,
        today: Callable[[], date] = date.today,
    ) -> None:
        self._driver = driver
        self._resolver = resolver
        self._on_change = on_change
        self._ledger = ledger or shared_ledger()
        self._today = today
        self._accounts: dict[int, Account] = {}
        self._known: tuple[dict[int, Entry], frozenset[int]] = {}, frozenset()
        """Entries, and which of them are only tried, as of the last look."""
        self._counted: dict[ConnectionId, tuple[Connection, Account, int]] = {}
        """With the bytes that have been counted of each."""
        self._timer: asyncio.TimerHandle | None = None
        self._syncing: asyncio.Future[None] | None = None
        self._sync_at = float("-inf")
        self._closed = False
        self._warned = False
        resolver.on_added = self.look

    async def start(self) -> None:
        """Hear what has been used before the session opens."""
        if any(entry.budget is not None for entry in self._resolver.entries.values()):
            with suppress(OSError):  # no thread to be had: it is heard of later
                await in_thread(self._ledger.sync)
                self._sync_at = self._driver.now() + SYNC_APART
            if not self._closed:
                self.look()

    def look(self) -> None:
        """Count what has come and gone, say what is new, and look again after a while."""
        if self._known != (self._resolver.entries, frozenset(self._resolver.tried)):
            self._open_accounts()
        if self._closed or not self._accounts:
            return
        self._count()
        self._judge()
        self._say_problem()
        if self._driver.now() >= self._sync_at:
            self._sync()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._driver.loop.call_later(LOOK_APART, self.look)

    def close(self) -> None:
        """The session is over: count the last bytes and write them down."""
        if self._timer is not None:
            self._timer.cancel()
        if not self._closed and self._accounts:
            self._count()
            self._sync(last=True)
        self._closed = True
        self._on_change = ignore

    def _say_problem(self, _: object = None) -> None:
        """Once, also after the end: what the last exchange could not write down is lost."""
        if self._ledger.problem and not self._warned:
            self._warned = True
            self._driver.warn(f"data budgets are counted in memory only: {printable(self._ledger.problem)}")

    def _open_accounts(self) -> None:
        self._count()
        self._known = dict(self._resolver.entries), frozenset(self._resolver.tried)
        before, day = self._accounts, self._today()
        self._accounts = accounts_of(*self._known)
        for account in self._accounts.values():
            account.level = max((a.level for a in before.values() if a.is_same(account)), default=0)
        changed = False
        for index in self._known[0]:
            old, new = before.get(index), self._accounts.get(index)
            if old is not None and new is not None and new.is_same(old):
                continue
            self._count_for(new, index)
            if any(each is not None and each.spent for each in (old, new)):
                self._restrict(index, new, day)
                changed = True
        if changed:
            self._on_change()

    def _count(self) -> None:
        driver, day = self._driver, self._today()
        for link in driver.links.values():
            account = self._accounts.get(link.candidate.entry) if link.candidate is not None else None
            if account is not None and link.id not in self._counted and link.id in driver.core.connections:
                self._counted[link.id] = driver.core.connections[link.id], account, 0
        for key, (connection, account, counted) in list(self._counted.items()):
            carried = connection.wire_bytes
            if carried > counted:
                account.add(self._ledger, day, carried - counted)
                self._counted[key] = connection, account, carried
            if not connection.alive:
                del self._counted[key]

    def _count_for(self, account: Account | None, entry: int) -> None:
        """What connections of this entry carry from now on."""
        for link in self._driver.links.values():
            if link.candidate is not None and link.candidate.entry == entry:
                self._counted.pop(link.id, None)
                connection = self._driver.core.connections.get(link.id)
                if account is not None and connection is not None:
                    self._counted[link.id] = connection, account, connection.wire_bytes

    def _judge(self) -> None:
        day, changed = self._today(), False
        for account in dict.fromkeys(self._accounts.values()):
            before, level = account.level, account.level_now(self._ledger, day)
            if level == before:
                continue
            account.level = level
            if level > before or before == LEVELS[0]:
                self._driver.core.notify(account.state(self._ledger, day, level))
                self._driver.pump_soon()
            changed = changed or LEVELS[0] in (level, before)
        if changed:
            for index, account in self._accounts.items():
                self._restrict(index, account, day)
            self._sync_at = self._driver.now()
            self._on_change()

    def _restrict(self, index: int, account: Account | None, day: date) -> None:
        if account is not None and account.spent:
            self._resolver.restrict(index, account.budget, account.period.end(day).isoformat())
        else:
            self._resolver.restrict(index, None, "")

    def _sync(self, *, last: bool = False) -> None:
        """In a thread; the file may be on a disk that sleeps."""
        if self._syncing is not None and not self._syncing.done() and not last:
            return
        self._sync_at = self._driver.now() + SYNC_APART
        with suppress(OSError, RuntimeError):  # no thread to be had, or the loop takes no more work
            self._syncing = start_in_thread(self._driver.loop, self._ledger.sync)
            self._driver.settle_after(self._syncing)
            if last:  # nobody looks any more
                self._syncing.add_done_callback(self._say_problem)
