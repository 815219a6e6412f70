"""Who goes first where too many connections are half open, and who has the next turn."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections import Counter
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

import pytest

from multi.asyncio.admission import (
    LIMITS,
    MEMORY_TIME,
    ON_THE_WAY_IN,
    Admission,
    _Account,
)
from multi.asyncio.driver import SESSION_MEMORY, TLS_MEMORY, SessionDriver
from multi.asyncio.sources import BySource, Counts, source_of
from multi.config.model import Limits
from multi.events import SessionDetached
from multi.protocol.settings import MAX_EARLY_DATA
from multi.reasons import Reason
from multi.transports.base import transport_type
from multi.types import ConnectionId


def coming(admission: Admission) -> tuple[Callable[[int, str], None], list[int]]:
    """What counts a connection in, and the list of those dropped."""
    dropped: list[int] = []

    def come(number: int, host: str) -> None:
        admission.admit(number, host, lambda _reason: dropped.append(number))

    return come, dropped


async def test_one_address_does_not_crowd_out_its_neighbours() -> None:
    come, dropped = coming(Admission(Limits(max_unauthenticated=1000, max_unauthenticated_per_source=4)))
    come(-1, "192.0.2.1")
    for number in range(100):
        come(number, "192.0.2.77")
    assert dropped == list(range(97))


async def test_the_oldest_of_the_busiest_source_goes_first() -> None:
    admission = Admission(Limits(max_unauthenticated=4, max_unauthenticated_per_source=3))
    come, dropped = coming(admission)
    quiet, busy, other, newcomer = "192.0.2.1", "198.51.100.7", "203.0.113.9", "2001:db8::1"
    for number, host in enumerate([quiet, busy, busy, other]):
        come(number, host)
    assert dropped == []
    come(4, newcomer)
    assert dropped == [1]
    come(5, busy)
    assert dropped == [1, 0]  # all are as busy: the oldest of all
    admission.settled(3)
    admission.settled(3)
    come(6, "198.51.100.8")
    assert dropped == [1, 0]
    come(7, busy)
    assert dropped == [1, 0, 2]  # its share is used up
    assert {name: count for name, count in admission.counts.items() if count} == {
        "max_unauthenticated": 2,
        "max_unauthenticated_per_source": 1,
    }


async def test_a_source_is_crowded_when_half_its_share_is_half_open() -> None:
    admission = Admission(Limits(max_unauthenticated_per_source=4))
    come, _ = coming(admission)
    come(1, "192.0.2.1")
    assert not admission.crowded("192.0.2.9")
    come(2, "192.0.2.2")
    assert admission.crowded("192.0.2.9")
    assert not admission.crowded("198.51.100.1")
    admission.settled(1)
    assert not admission.crowded("192.0.2.9")


def test_every_configured_limit_is_counted_under_its_name() -> None:
    not_counted = {"max_stream_window", "max_session_window", "max_send_buffer"}
    assert set(Limits.model_fields) - not_counted <= set(LIMITS)


async def test_what_strangers_want_done_is_done_by_turns() -> None:
    admission = Admission(Limits())
    done: list[int | str] = []
    over = asyncio.Event()

    def flood() -> None:
        for number in range(5):
            admission.in_turn(number, "192.0.2.77", partial(done.append, number))
        admission.in_turn(3, "192.0.2.77", lambda: done.append("3 again"))
        admission.settled(2)
        admission.in_turn("alone", "198.51.100.7", lambda: done.append("alone"))
        admission.in_turn("last", "192.0.2.77", over.set)

    admission.in_turn("first", "192.0.2.77", flood)
    await over.wait()
    assert done == [0, "alone", 1, "3 again", 4]
    admission.stop()


async def test_who_repeats_joins_he_has_heard_takes_no_place_of_one_that_is_new() -> None:
    admission = Admission(Limits(max_pending_joins=4))

    class Driver:
        core = SimpleNamespace(confirmed=True, connections={})

    driver = Driver()
    account = admission._accounts[driver] = _Account("")  # type: ignore[index]
    dropped: list[ConnectionId] = []

    def drop(_driver: object, connection: ConnectionId, _text: str) -> None:
        dropped.append(connection)
        del account.pending[connection]

    admission._drop = drop  # type: ignore[assignment, method-assign]

    def comes(number: int, host: str, nonce: bytes) -> bool:
        allowed = admission.may_try(driver, host, nonce)  # type: ignore[arg-type]
        if allowed:
            admission.connection_came(driver, ConnectionId(number), host, nonce, has_descriptor=True)  # type: ignore[arg-type]
        return allowed

    for number in range(10):  # the client's, of which nothing is left but what somebody has heard
        assert comes(number, "192.0.2.1", bytes([number]) * 32)
        account.pending.clear()
    assert comes(100, "192.0.2.1", b"n" * 32)
    allowed = [comes(200 + number, "198.51.100.1", bytes([number]) * 32) for number in range(10)]
    assert allowed == [True] * 3 + [False] * 7
    assert comes(101, "192.0.2.1", b"m" * 32)
    assert ConnectionId(100) in account.pending
    assert dropped == [ConnectionId(200)]
    admission.stop()


# --- memory  ---


class Keeper:
    """A session that keeps so many bytes besides its window."""

    def __init__(self, keeps: int) -> None:
        self.kept_besides = keeps
        window = SimpleNamespace(held=64, may_grow=lambda _: False)
        self.core = SimpleNamespace(receiver=SimpleNamespace(window=window), connections={})


async def test_memory_is_looked_at_for_a_while_and_then_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(1000))
    monkeypatch.setattr("multi.asyncio.admission.monotonic", lambda: next(clock) * MEMORY_TIME / 10)
    monkeypatch.setattr("multi.asyncio.admission.MEMORY_INTERVAL", 0)
    admission = Admission(Limits())
    keepers = [Keeper(1000) for _ in range(25)]
    for keeper in keepers:
        admission.session_opened(keeper, source_of(CROWDED))  # type: ignore[arg-type]
    windows = 25 * 64
    assert admission.taken() == windows + 10 * 1000
    assert admission.taken(source_of(CROWDED)) == windows + 20 * 1000
    assert admission.taken() == windows + 25 * 1000, "the rest, and some of them again"
    for keeper in keepers[:24]:
        admission.session_closed(keeper)  # type: ignore[arg-type]
    assert admission.taken() == admission.taken(source_of(CROWDED)) == 64 + 1000
    admission.session_closed(keepers[24])  # type: ignore[arg-type]
    assert admission.taken() == admission.taken(source_of(CROWDED)) == 0
    admission.stop()


# --- file descriptors  ---

CROWDED, ELSEWHERE = "192.0.2.1", "198.51.100.1"


class Tenant:
    """A session with a connection, as far as descriptors go."""

    def __init__(self, name: str, moved_at: float, ended: list[str]) -> None:
        self.name, self._ended = name, ended
        self.links = {0: None}
        self.kept_besides = self.kept_to_send = 0
        self.core = SimpleNamespace(confirmed=True, connections={}, state=None, moved_at=moved_at, abort=self._abort)

    def _abort(self, reason: str, now: float) -> None:
        self._ended.append(self.name)

    def now(self) -> float:
        return 0.0

    def pump(self) -> None:
        """There is nothing to perform."""

    def abort_channels(self) -> None:
        self.links.clear()


def house(admission: Admission, tenants: dict[str, list[float]]) -> list[str]:
    """So many confirmed sessions of each address, which moved so many seconds ago; the names of those that end."""
    ended: list[str] = []
    now = asyncio.get_running_loop().time()
    number = 0
    for host, idle in tenants.items():
        for place, seconds in enumerate(idle):
            driver = Tenant(f"{host} {place}", now - seconds, ended)
            account = admission._accounts[driver] = _Account(source_of(host))  # type: ignore[index]
            admission._sessions[account.source][driver] = None  # type: ignore[index]
            number += 1
            admission.connection_came(driver, ConnectionId(number), host, b"nonce", has_descriptor=True)  # type: ignore[arg-type]
    return ended


async def test_without_descriptors_a_flood_of_strangers_displaces_itself() -> None:
    admission = Admission(Limits())
    come, dropped = coming(admission)
    ended = house(admission, {CROWDED: [10.0] * 50})
    for number in range(40):
        come(number, f"203.0.113.{number}")
    assert all(admission.free_descriptor(ELSEWHERE) for _ in range(24))
    assert dropped == list(range(24))
    assert ended == []
    assert admission.counts["file_descriptors"] == 24


async def test_who_holds_more_than_his_share_of_descriptors_pays_for_who_comes_from_elsewhere() -> None:
    admission = Admission(Limits())
    ended = house(admission, {CROWDED: [0.1, 0.2, 0.0] * 20, "203.0.113.1": [99.0]})
    assert admission.free_descriptor(ELSEWHERE)
    assert ended == [f"{CROWDED} 1"]  # idle for longest of the crowd, although somebody else is idle for longer
    assert not admission.free_descriptor(CROWDED), "all of the crowd are in use, and its own newcomers can wait"


async def test_without_descriptors_nobody_within_his_share_loses_a_session_to_a_stranger() -> None:
    admission = Admission(Limits())
    come, dropped = coming(admission)
    ended = house(admission, {f"203.0.{number}.1": [10.0] * 4 for number in range(10)})
    assert not admission.free_descriptor(ELSEWHERE)
    come(1, "192.0.2.7")
    assert admission.free_descriptor(ELSEWHERE)
    assert (dropped, ended) == ([1], [])


async def test_what_has_no_descriptor_of_its_own_frees_none() -> None:
    admission = Admission(Limits())
    dropped: list[str] = []
    admission.admit("quic", ELSEWHERE, dropped.append, has_descriptor=False)
    assert not admission.free_descriptor(ELSEWHERE)
    assert dropped == []


async def test_a_flood_of_hellos_displaces_itself_and_no_session_that_somebody_has_proved() -> None:
    admission = Admission(Limits())
    ended = house(admission, {CROWDED: [10.0] * 30})
    admission.make_room("max_sessions_per_source", CROWDED)
    assert ended == [f"{CROWDED} 0"], "the longest idle one makes room for one who may be honest"
    for number in range(ON_THE_WAY_IN + 1):
        stranger = Tenant(f"stranger {number}", -10.0, ended)
        admission._accounts[stranger] = _Account(source_of(CROWDED))  # type: ignore[index]
        admission._unconfirmed.add(stranger, CROWDED)  # type: ignore[arg-type]
    admission.make_room("max_sessions_per_source", CROWDED)
    assert ended == [f"{CROWDED} 0", "stranger 0"]


async def test_who_floods_a_full_source_does_not_have_its_sessions_put_in_order_with_every_hello(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    admission = Admission(Limits())
    ended = house(admission, {CROWDED: [10.0] * 50})
    looks, rank = 0, admission._rank

    def counted(driver: object) -> tuple[int, float]:
        nonlocal looks
        looks += 1
        return rank(driver)  # type: ignore[arg-type]

    monkeypatch.setattr(admission, "_rank", counted)
    for _ in range(60):
        admission.make_room("max_sessions_per_source", CROWDED)
    assert len(ended) == len(set(ended)) == 50
    assert looks == 50


async def test_a_crowd_that_was_put_in_order_is_not_held_after_it_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("multi.asyncio.admission.ORDER_INTERVAL", 0.0)
    admission = Admission(Limits())
    house(admission, {CROWDED: [10.0] * 3})
    admission.make_room("max_sessions_per_source", CROWDED)
    left = [weakref.ref(driver) for driver in admission._accounts]
    admission._accounts.clear()
    admission._sessions.clear()
    admission._unconfirmed = BySource()
    admission._sweep()
    admission.stop()
    gc.collect()
    assert [ref() for ref in left] == [None] * 3


async def test_all_sessions_are_looked_at_in_as_many_turns_as_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("multi.asyncio.admission.LOOK_TIME", 0.0)
    admission = Admission(Limits())
    house(admission, {CROWDED: [10.0] * 30})
    drivers, seen, turns = list(admission._accounts), list[SessionDriver](), list[int]()

    def look(driver: SessionDriver) -> None:
        seen.append(driver)
        turns.append(turn)
        if len(seen) == 10:
            del admission._accounts[drivers[20]]

    turn = 0
    admission._for_each(iter(drivers), look)
    while len(seen) < 29 and turn < 100:
        turn += 1
        await asyncio.sleep(0)
    assert seen == [*drivers[:20], *drivers[21:]], "one has ended meanwhile"
    assert len(set(turns)) == 29
    admission._for_each(iter(drivers), look)
    admission.stop()
    await asyncio.sleep(0.01)
    assert len(seen) == 30


class Fallen:
    """A session whose client has closed all its connections."""

    def __init__(self, told: list[Fallen]) -> None:
        self.core = SimpleNamespace(left_at=0.0, hurries=True, wait_for_peer=self._wait)
        self._told = told

    def _wait(self, now: float) -> None:
        self.core.hurries = False
        self._told.append(self)

    def now(self) -> float:
        return 0.0

    def pump_soon(self) -> None:
        """There is nothing to perform."""


async def test_sessions_that_fall_together_wait_for_their_clients_and_are_told_once() -> None:
    admission = Admission(Limits())
    told: list[Fallen] = []
    fallen = [Fallen(told) for _ in range(50)]
    for driver in fallen:
        admission._detached.add(driver, CROWDED)  # type: ignore[arg-type]
        admission._left(driver, _Account(CROWDED, host=CROWDED))  # type: ignore[arg-type]
    assert told == fallen
    admission.stop()


class Elsewhere(Counts):
    """Other processes with what a test gives them; and what they have been told."""

    def __init__(self, processes: int = 2, **there: int) -> None:
        self.processes = processes
        self.there, self.told = there, Counter[tuple[str, str]]()

    def change(self, kind: str, source: str, by: int) -> None:
        self.told[kind, source] += by

    def elsewhere(self, kind: str, source: str = "") -> int:
        return self.there.get(f"{kind}_of_source" if source else kind, 0)


async def test_half_open_connections_of_other_processes_count_and_those_of_this_one_go() -> None:
    others = Elsewhere(half_open_of_source=3)
    come, dropped = coming(Admission(Limits(max_unauthenticated_per_source=4), counts=others))
    come(1, "192.0.2.1")
    come(2, "192.0.2.2")  # up to an equal part: who has filled another process keeps nobody out of this one
    assert dropped == []
    come(3, "192.0.2.3")
    assert dropped == [1]
    assert others.told["half_open", "192.0.2.0/24"] == others.told["half_open", ""] == 2
    others.there["half_open_of_source"] = 100
    come(4, "198.51.100.1")
    assert dropped == [1]


async def test_what_has_come_to_have_more_than_it_may_gives_up_two_for_each_newcomer() -> None:
    others = Elsewhere()
    come, dropped = coming(Admission(Limits(max_unauthenticated=6), counts=others))
    for number in range(6):
        come(number, f"192.0.2.{number}")
    assert dropped == []
    others.there["half_open"] = 3  # the others go on up to their part
    for number in range(6, 10):
        come(number, f"192.0.2.{number}")
    assert dropped == [0, 1, 2, 3, 4, 5, 6], "two, two, two, and then there are as many as may be"


async def test_what_waits_in_other_processes_ends_no_session_here() -> None:
    """Whoever leaves a thousand sessions behind in one process would end all others that lose their network."""
    others = Elsewhere(processes=4, detached=1000)
    admission = Admission(Limits(max_detached_sessions=8), counts=others)
    waiting = [Waiting() for _ in range(3)]
    for number, driver in enumerate(waiting):
        admission._accounts[driver] = _Account("192.0.2.0/24", host=f"192.0.2.{number}")  # type: ignore[index]
        admission._event(driver, SessionDetached(60.0))  # type: ignore[arg-type]
    assert [driver.failed for driver in waiting] == [True, False, False], "beyond a quarter, the first goes"
    admission.stop()


class Waiting:
    """A session without a connection, as far as it is asked."""

    left_at = None
    failed = False

    @property
    def core(self) -> Waiting:
        return self

    def now(self) -> float:
        return 0.0

    def fail(self, reason: Reason, now: float) -> None:
        self.failed = True

    def pump_soon(self) -> None:
        """Its end is told later."""


async def test_a_session_is_refused_for_those_that_other_processes_have() -> None:
    limits = Limits(max_sessions=100, max_sessions_per_source=10, max_unauthenticated=50, max_memory=1 << 20)
    others = Elsewhere()
    admission = Admission(limits, counts=others)
    within_a_part = ("max_sessions_per_source", "max_unauthenticated")  # this process has none of them yet
    assert admission.full("192.0.2.0/24") is None
    for kind, limit in (
        ("sessions", "max_sessions"),
        ("sessions_of_source", "max_sessions_per_source"),
        ("unconfirmed", "max_unauthenticated"),
        ("memory", "max_memory"),
        ("memory_of_source", "max_memory"),
    ):
        others.there = {kind: {"max_memory": 1 << 20}.get(limit) or getattr(limits, limit)}
        full = admission.full("192.0.2.0/24")
        assert (full and full[0]) == (None if limit in within_a_part else limit)


@pytest.mark.parametrize("transport", ["tcp", "mptcp", "quic", "mpquic"])
async def test_one_source_may_have_two_thousand_sessions_over_any_transport(transport: str) -> None:
    connection = transport_type(transport).connection_memory + (0 if "quic" in transport else TLS_MEMORY)
    of_each = SESSION_MEMORY + MAX_EARLY_DATA + connection
    others = Elsewhere()
    admission = Admission(Limits(), counts=others)
    others.there = {"memory": 2000 * of_each, "memory_of_source": 2000 * of_each}
    assert admission.full("192.0.2.0/24") is None
