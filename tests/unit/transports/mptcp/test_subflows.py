"""When a subflow is made again or given up: what the kernel and the interfaces say is made up."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable

import pytest

if sys.platform != "linux":
    pytest.skip("MPTCP path managers exist on Linux only", allow_module_level=True)

from multi.linux.mptcp_endpoints import EndpointLease
from multi.linux.mptcp_pm import MptcpAddress
from multi.transports.mptcp import subflows as module
from multi.transports.mptcp.info import MptcpInfo
from multi.transports.mptcp.subflows import SubflowManager, lease_subflows, why_few_accepted
from multi.transports.tcp.info import TcpInfo
from multi.types import Source
from tests.integration.support import until
from tests.unit.linux.fake_mptcp import CANDIDATE, Kernel

PLACES = {"eth0": MptcpAddress(2, "10.0.1.2"), "wlan0": MptcpAddress(3, "10.0.2.2")}
ETH, WLAN = CANDIDATE.sources
ESTABLISHED = 1


def flow(state: int = ESTABLISHED, retransmits: int = 0, acked: int = 0, unacked: int = 0) -> TcpInfo:
    return TcpInfo(retransmits=retransmits, state=state, bytes_acked=acked, unacked=unacked, rtt=0.001)


class Lease(EndpointLease):
    """Remembers what was asked of it."""

    def __init__(self) -> None:
        self.used: list[str] = []
        self.asked: list[tuple[str, bool]] = []
        self.released = 0

    def use(self, places: Iterable[MptcpAddress]) -> None:
        self.used += [place.address for place in places]

    def renew(self, place: MptcpAddress, *, usable: bool, stuck: bool = False) -> None:
        self.asked.append((place.address, usable))

    def release(self) -> None:
        self.released += 1


class World:
    """A connection whose subflows and interfaces the test decides."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.flows = {"10.0.1.2": flow()}
        self.acked = 100
        self.absent: dict[str, str] = {}
        self.gone = False
        monkeypatch.setattr(module, "address_of", lambda source, _family: self.place(source.interface))
        for name in ("CHECK_INTERVAL", "CHECK_BUSY", "RETRY_FIRST", "STUCK_SLACK"):
            monkeypatch.setattr(module, name, getattr(module, name) / 25)

    def place(self, interface: str) -> MptcpAddress | str:
        return self.absent.get(interface) or PLACES[interface]

    def read(self) -> MptcpInfo | None:
        if self.gone:
            return None
        flows = tuple(self.flows.values())
        return MptcpInfo(self.acked, 0, len(flows), flows, tuple(self.flows))

    def describe(self, manager: SubflowManager) -> str:
        kernel = self.read()
        assert kernel is not None
        return manager.describe(kernel)


def lent(monkeypatch: pytest.MonkeyPatch) -> list[Lease]:
    """Those that are made from now on."""
    made: list[Lease] = []

    def lend() -> Lease:
        made.append(Lease())
        return made[-1]

    monkeypatch.setattr(module, "why_no_subflows", lambda _candidate: "")
    monkeypatch.setattr(module, "EndpointLease", lend)
    return made


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


async def some_checks() -> None:
    await asyncio.sleep(10 * module.CHECK_INTERVAL)


async def test_a_subflow_that_the_kernel_has_not_made_is_asked_for_ever_more_rarely(world: World) -> None:
    lease = Lease()
    manager = SubflowManager(CANDIDATE, lease, "", world.read)
    await until(lambda: len(lease.asked) == 2)
    assert set(lease.asked) == {("10.0.2.2", True)}
    assert world.describe(manager) == "eth0; none over wlan0"
    world.flows["10.0.2.2"] = flow()
    await some_checks()
    assert len(lease.asked) <= 3
    assert world.describe(manager) == "eth0, wlan0"
    manager.stop()
    await until(lambda: lease.released == 1)


async def test_nothing_is_asked_for_before_data_has_gone_through(world: World) -> None:
    world.acked = 0
    lease = Lease()
    manager = SubflowManager(CANDIDATE, lease, "", world.read)
    await some_checks()
    assert lease.asked == []
    manager.stop()


async def test_what_has_lost_its_interface_is_given_up_once_and_made_again_at_once(world: World) -> None:
    world.flows["10.0.2.2"] = flow()
    lease = Lease()
    manager = SubflowManager(CANDIDATE, lease, "", world.read)
    world.absent["wlan0"] = "wlan0: no carrier"
    await until(lambda: lease.asked)
    del world.flows["10.0.2.2"]
    await some_checks()
    assert lease.asked == [("10.0.2.2", False)]
    assert world.describe(manager) == "eth0; wlan0: no carrier"
    world.absent.clear()
    await until(lambda: len(lease.asked) > 1)
    assert lease.asked[1] == ("10.0.2.2", True)
    manager.stop()


async def test_the_last_subflow_is_never_given_up(world: World) -> None:
    lease = Lease()
    world.flows["10.0.2.2"] = flow(retransmits=2)
    manager = SubflowManager(CANDIDATE, lease, "", world.read)
    world.absent["eth0"] = "eth0: no carrier"
    await some_checks()
    assert ("10.0.1.2", False) not in lease.asked
    world.flows["10.0.2.2"] = flow()
    await until(lambda: ("10.0.1.2", False) in lease.asked)
    manager.stop()


async def test_a_stuck_subflow_is_made_again_while_another_works(world: World) -> None:
    world.flows["10.0.2.2"] = flow(retransmits=2)
    lease = Lease()
    manager = SubflowManager(CANDIDATE, lease, "", world.read)
    await until(lambda: ("10.0.2.2", True) in lease.asked)
    manager.stop()


async def test_what_waits_longer_than_its_round_trips_is_made_again_before_the_kernel_has_repeated_it(
    world: World,
) -> None:
    world.flows["10.0.2.2"] = flow(acked=1, unacked=1)
    lease = Lease()
    manager = SubflowManager(CANDIDATE, lease, "", world.read)
    await until(lambda: ("10.0.2.2", True) in lease.asked)
    world.flows["10.0.2.2"] = flow()
    await some_checks()
    assert ("10.0.1.2", True) not in lease.asked
    manager.stop()


async def test_what_gets_on_or_has_nothing_to_get_on_with_is_left_alone(world: World) -> None:
    acked, lease = 0, Lease()

    def getting_on() -> MptcpInfo | None:
        nonlocal acked
        acked += 1
        world.flows["10.0.2.2"] = flow(acked=acked, unacked=1)
        return world.read()

    manager = SubflowManager(CANDIDATE, lease, "", getting_on)
    await until(lambda: acked > 20)
    manager.stop()
    world.flows["10.0.2.2"] = flow(acked=1)
    manager = SubflowManager(CANDIDATE, lease, "", world.read)
    await some_checks()
    assert lease.asked == []
    manager.stop()


async def test_where_all_wait_nothing_is_made_again(world: World) -> None:
    world.flows = {address: flow(acked=1, unacked=1) for address in ("10.0.1.2", "10.0.2.2")}
    lease = Lease()
    manager = SubflowManager(CANDIDATE, lease, "", world.read)
    await some_checks()
    assert lease.asked == []
    manager.stop()


async def test_an_interface_with_another_number_has_its_subflow_made_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.flows["10.0.2.2"] = flow()
    lease = Lease()
    manager = SubflowManager(CANDIDATE, lease, "", world.read)
    await some_checks()
    assert lease.asked == []
    monkeypatch.setitem(PLACES, "wlan0", MptcpAddress(9, "10.0.2.2"))
    await until(lambda: lease.asked)
    await some_checks()
    assert lease.asked == [("10.0.2.2", True)]
    manager.stop()


async def test_what_was_left_at_another_address_is_given_up_before_it_is_made_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.flows["10.0.2.2"] = flow(unacked=1)
    lease = Lease()
    manager = SubflowManager(CANDIDATE, lease, "", world.read)
    monkeypatch.setitem(PLACES, "wlan0", MptcpAddress(3, "10.0.2.7"))
    await until(lambda: len(lease.asked) > 1)
    assert lease.asked[:2] == [("10.0.2.2", False), ("10.0.2.7", True)]
    manager.stop()


async def test_without_a_lease_it_only_tells_why(world: World) -> None:
    manager = SubflowManager(CANDIDATE, None, "not allowed here", world.read)
    await some_checks()
    assert world.describe(manager) == "eth0; none over wlan0: not allowed here"
    manager.stop()


async def test_the_lease_goes_back_when_the_connection_is_no_mptcp_any_more(world: World) -> None:
    lease = Lease()
    manager = SubflowManager(CANDIDATE, lease, "", world.read)
    world.gone = True
    await until(lambda: lease.released)
    manager.stop()
    await some_checks()
    assert lease.released == 1


async def test_a_network_that_comes_later_gets_a_subflow_with_a_lease_of_its_own(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    leases = lent(monkeypatch)
    manager = SubflowManager(CANDIDATE.over(ETH), None, "", world.read)
    assert world.describe(manager) == ""
    manager.use([ETH, WLAN])
    manager.use([WLAN, ETH])
    await until(lambda: leases and leases[0].asked)
    assert leases[0].used == ["10.0.2.2"]
    assert leases[0].asked == [("10.0.2.2", True)]
    world.flows["10.0.2.2"] = flow()
    assert world.describe(manager) == "eth0, wlan0"
    manager.stop()
    await until(lambda: leases[0].released == 1)
    assert len(leases) == 1


async def test_what_is_bound_to_no_interface_needs_no_lease(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    leases = lent(monkeypatch)
    here = Source("", "127.0.0.1")
    manager = SubflowManager(CANDIDATE.over(here), None, "", world.read)
    manager.use([here])
    await some_checks()
    assert leases == []
    manager.stop()


async def test_a_lease_that_comes_after_the_end_goes_back(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    leases = lent(monkeypatch)
    manager = SubflowManager(CANDIDATE.over(ETH), None, "", world.read)
    manager.use([ETH, WLAN])
    await until(lambda: leases)
    manager.stop()
    await until(lambda: leases[0].released == 1)


async def test_of_many_networks_those_that_are_gone_are_forgotten(world: World) -> None:
    lease = Lease()
    manager = SubflowManager(CANDIDATE, lease, "", world.read)
    for number in range(40):
        name = f"ppp{number}"
        world.absent[name] = f"{name}: no such interface"
        manager.use([ETH, WLAN, Source(name)])
        await asyncio.sleep(2 * module.CHECK_INTERVAL)
    assert len(world.describe(manager).split(";")) <= module.KEPT
    manager.stop()


async def test_a_cancelled_dial_gives_back_what_it_was_about_to_borrow(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = Lease()
    monkeypatch.setattr(module, "why_no_subflows", lambda _candidate: "")
    monkeypatch.setattr(module, "EndpointLease", lambda: lease)

    async def slow(*_arguments: object) -> None:
        await asyncio.sleep(60)

    monkeypatch.setattr(module, "in_thread", slow)
    leasing = asyncio.ensure_future(lease_subflows(CANDIDATE))
    await asyncio.sleep(0)
    leasing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leasing
    await until(lambda: lease.released == 1)


async def test_what_cannot_be_borrowed_is_a_reason(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "why_no_subflows", lambda _candidate: "no MPTCP here")
    assert await lease_subflows(CANDIDATE) == (None, "no MPTCP here")

    def refused() -> EndpointLease:
        raise PermissionError(1, "operation not permitted")

    monkeypatch.setattr(module, "why_no_subflows", lambda _candidate: "")
    monkeypatch.setattr(module, "EndpointLease", refused)
    lease, reason = await lease_subflows(CANDIDATE)
    assert lease is None
    assert reason.startswith("not permitted")


@pytest.mark.parametrize(
    ("kind", "limit", "expected"),
    [
        ("kernel", 2, ""),
        ("kernel", 1, "this host allows MPTCP connections 1 further subflows (ip mptcp limits set subflows 2)"),
        ("userspace", 2, "its MPTCP path manager is 'userspace', which has to accept them"),
    ],
)
def test_a_server_says_when_it_will_not_take_all_subflows(
    kind: str, limit: int, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "path_manager_type", lambda: kind)
    monkeypatch.setattr(module, "MptcpPathManager", lambda: Kernel(limit=limit))
    assert why_few_accepted() == expected
