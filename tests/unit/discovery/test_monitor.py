"""The monitor itself: sharing, subscribing, ending, and looking where nothing is told."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import replace

import pytest
import uvloop

from multi.discovery.kinds import DeviceFacts
from multi.discovery.monitor import Loss, NetworkMonitor, losses, monitor
from multi.discovery.snapshot import AddressRecord, KernelRoute, LinkRecord, Snapshot
from multi.types import AddressReason, Family, InterfaceAddress
from tests.integration.support import until

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="netlink is a thing of Linux")

INDEX = 7
FOUR = AddressRecord(INDEX, InterfaceAddress("10.0.0.2", Family.IPV4, 24), created=1)
SIX = AddressRecord(INDEX, InterfaceAddress("fd00::2", Family.IPV6, 64), created=1)
LINK_LOCAL = AddressRecord(INDEX, InterfaceAddress("fe80::2", Family.IPV6, 64, False, "link-local"), created=1)
UP = LinkRecord(INDEX, DeviceFacts("wlan0"))
WLAN = Snapshot((UP,), (FOUR, SIX, LINK_LOCAL))
NO_CARRIER = replace(WLAN, links=(replace(UP, carrier=False),))
LOST = Loss("wlan0", "", "carrier lost")
WENT_DOWN = Loss("wlan0", "", "the interface went down")
REMOVED = Loss("wlan0", "", "the interface was removed")
INTERVAL = 0.01

NewLoop = Callable[[], asyncio.AbstractEventLoop]
both_loops = pytest.mark.parametrize(
    "new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"]
)


class Machine:
    """Interfaces that change when a test wants it."""

    def __init__(self) -> None:
        self.now = WLAN
        self.fails = False
        self.count = 0

    def __call__(self) -> Snapshot:
        if self.fails:
            raise OSError("not now")
        return self.now


def polling(machine: Machine) -> NetworkMonitor:
    return NetworkMonitor(netlink=False, poll_interval=INTERVAL, read=machine)


def netlink_sockets() -> int:
    """How many this process has open."""
    with open("/proc/net/netlink") as table:
        inodes = {line.split()[-1] for line in table}
    found = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        found += target.startswith("socket:[") and target[8:-1] in inodes
    return found


@both_loops
def test_a_loss_is_found_by_looking_and_told_once(new_loop: NewLoop) -> None:
    async def story() -> None:
        machine, told = Machine(), list[tuple[Loss, ...]]()
        unsubscribe = polling(machine).subscribe(told.append)
        machine.now = NO_CARRIER
        await until(lambda: bool(told))
        await asyncio.sleep(5 * INTERVAL)
        assert told == [(LOST,)]
        machine.now = WLAN
        await until(lambda: len(told) == 2)
        assert told[1] == ()
        unsubscribe()
        machine.now = NO_CARRIER
        await asyncio.sleep(5 * INTERVAL)
        assert len(told) == 2

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(story())


async def test_a_reading_that_fails_is_tried_again() -> None:
    machine, told = Machine(), list[tuple[Loss, ...]]()
    unsubscribe = polling(machine).subscribe(told.append)
    machine.fails = True
    await asyncio.sleep(3 * INTERVAL)
    machine.now, machine.fails = Snapshot(), False
    await until(lambda: bool(told))
    assert told == [(REMOVED,)]
    unsubscribe()


async def test_a_subscriber_that_raises_does_not_hurt_the_others(caplog: pytest.LogCaptureFixture) -> None:
    machine, told = Machine(), list[tuple[Loss, ...]]()
    shared = polling(machine)

    def broken(_losses: tuple[Loss, ...]) -> None:
        raise ZeroDivisionError("a bug")

    endings = [shared.subscribe(broken), shared.subscribe(told.append)]
    machine.now = NO_CARRIER
    await until(lambda: bool(told))
    assert told == [(LOST,)]
    assert "a subscriber to network changes failed" in caplog.text
    for end in endings:
        end()


async def test_a_subscription_may_end_in_a_callback() -> None:
    machine, told = Machine(), list[str]()
    shared = polling(machine)
    endings: list[Callable[[], None]] = []

    def first(_losses: tuple[Loss, ...]) -> None:
        told.append("first")
        for end in endings:
            end()
            end()

    endings += [shared.subscribe(first), shared.subscribe(lambda _losses: told.append("second"))]
    machine.now = Snapshot()
    await until(lambda: bool(told))
    machine.now = WLAN
    await asyncio.sleep(5 * INTERVAL)
    assert told == ["first"]


@linux_only
async def test_it_listens_from_the_first_subscriber_to_the_last() -> None:
    gc.collect()
    before = netlink_sockets()
    shared = NetworkMonitor()
    assert netlink_sockets() == before
    for _round in range(2):
        endings = [shared.subscribe(lambda _losses: None) for _ in range(3)]
        assert netlink_sockets() == before + 3
        for end in endings:
            end()
        assert netlink_sockets() == before


async def test_everybody_on_a_loop_shares_one() -> None:
    shared = monitor()
    assert monitor() is shared


@linux_only
@both_loops
def test_a_loop_that_is_closed_with_subscribers_left_leaks_nothing(new_loop: NewLoop) -> None:
    gc.collect()  # what an earlier test has left is not this one's
    before = netlink_sockets()

    async def forget() -> None:
        monitor().subscribe(lambda _losses: None)
        polling(Machine()).subscribe(lambda _losses: None)
        assert netlink_sockets() == before + 3

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(forget())
        del runner
        gc.collect()
    assert netlink_sockets() == before


@linux_only
@both_loops
def test_an_unsubscribe_after_the_loop_was_closed_is_no_error(new_loop: NewLoop) -> None:
    gc.collect()
    before = netlink_sockets()

    async def subscribe() -> Callable[[], None]:
        return monitor().subscribe(lambda _losses: None)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        unsubscribe = runner.run(subscribe())
    unsubscribe()
    assert netlink_sockets() == before


@linux_only
def test_an_idle_monitor_sets_no_timer() -> None:
    timers: list[object] = []

    class Loop(asyncio.SelectorEventLoop):
        def call_at(self, when, callback, *arguments, context=None):  # type: ignore[no-untyped-def, override]
            timers.append(callback)
            return super().call_at(when, callback, *arguments, context=context)

    async def story() -> None:
        unsubscribe = NetworkMonitor().subscribe(lambda _losses: None)
        await asyncio.sleep(0.3)
        unsubscribe()

    with asyncio.Runner(loop_factory=Loop) as runner:
        runner.run(story())
    assert not [timer for timer in timers if getattr(timer, "__module__", "") == "multi.discovery.monitor"]


async def test_a_shortage_when_it_begins_to_look_is_no_end(caplog: pytest.LogCaptureFixture) -> None:
    machine, told = Machine(), list[tuple[Loss, ...]]()
    machine.fails = True
    unsubscribe = polling(machine).subscribe(told.append)
    assert "cannot read the interfaces: not now" in caplog.text
    machine.fails = False
    await until(lambda: bool(told))
    assert told == [()], "nobody knows what there was before, so nothing is lost for certain"
    unsubscribe()


async def test_a_reading_with_holes_tells_nothing_and_is_taken_again() -> None:
    machine, told = Machine(), list[tuple[Loss, ...]]()
    unsubscribe = polling(machine).subscribe(told.append)
    machine.now = Snapshot(torn=True)
    await asyncio.sleep(5 * INTERVAL)
    machine.now = NO_CARRIER
    await until(lambda: bool(told))
    assert told == [(LOST,)]
    unsubscribe()


async def test_readings_that_take_long_leave_the_loop_to_others() -> None:
    machine, took = Machine(), 0.02

    def slow() -> Snapshot:
        begun = time.thread_time()
        while time.thread_time() < begun + took:  # as a machine with a thousand links needs
            pass
        machine.count += 1
        return machine.now

    unsubscribe = NetworkMonitor(netlink=False, poll_interval=0.0, read=slow).subscribe(lambda _losses: None)
    await asyncio.sleep(20 * took)
    assert machine.count <= 3
    unsubscribe()


@linux_only
async def test_subscribing_takes_less_than_20_ms_of_processor_time() -> None:
    durations = []
    for _round in range(10):
        begun = time.thread_time()
        unsubscribe = NetworkMonitor().subscribe(lambda _losses: None)
        durations.append(time.thread_time() - begun)
        unsubscribe()
    assert min(durations) < 0.020


async def test_without_a_socket_it_looks(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.delattr("socket.AF_NETLINK", raising=False)
    machine, told = Machine(), list[tuple[Loss, ...]]()
    unsubscribe = NetworkMonitor(poll_interval=INTERVAL, read=machine).subscribe(told.append)
    machine.now = NO_CARRIER
    await until(lambda: bool(told))
    assert told == [(LOST,)]
    assert "this system has no netlink" in caplog.text
    unsubscribe()


# What was lost between two readings


@pytest.mark.parametrize(
    ("links", "lost"),
    [
        ([UP], ()),
        ([replace(UP, facts=DeviceFacts("wlan1"))], ()),
        ([], (REMOVED,)),
        ([replace(UP, index=8)], (REMOVED,)),
        ([replace(UP, up=False, carrier=False)], (WENT_DOWN,)),
        ([replace(UP, carrier=False)], (LOST,)),
        ([replace(UP, carrier_downs=1)], (LOST,)),  # lost and back before anybody looked
        ([UP, LinkRecord(9, DeviceFacts("new"))], ()),
    ],
)
def test_what_was_lost_of_links(links: list[LinkRecord], lost: tuple[Loss, ...]) -> None:
    after = replace(WLAN, links=tuple(links))
    assert losses(WLAN, after) == lost
    if lost:
        assert losses(WLAN, replace(after, addresses=())) == lost, "and nothing of its addresses"


def removed(record: AddressRecord) -> Loss:
    return Loss("wlan0", record.address.address, f"the address {record.address.address} was removed")


def flagged(reason: AddressReason) -> AddressRecord:
    return replace(SIX, address=replace(SIX.address, usable=False, reason=reason))


@pytest.mark.parametrize(
    ("addresses", "lost"),
    [
        ([FOUR, SIX], ()),
        ([SIX], (removed(FOUR),)),
        ([], (removed(FOUR), removed(SIX))),
        ([FOUR, replace(SIX, created=2)], (removed(SIX),)),  # and added again
        ([FOUR, replace(SIX, index=8)], (removed(SIX),)),
        ([FOUR, flagged("duplicate")], (Loss("wlan0", "fd00::2", "the address fd00::2 is a duplicate"),)),
        ([FOUR, flagged("deprecated")], ()),
        ([FOUR, flagged("tentative")], ()),
        ([FOUR, replace(SIX, address=replace(SIX.address, prefix_length=128), created=2)], ()),
    ],
)
def test_what_was_lost_of_addresses(addresses: list[AddressRecord], lost: tuple[Loss, ...]) -> None:
    assert losses(WLAN, replace(WLAN, addresses=tuple(addresses))) == lost


def test_a_deprecated_address_may_be_lost_but_none_that_was_never_usable() -> None:
    none = replace(WLAN, addresses=())
    assert losses(replace(WLAN, addresses=(flagged("deprecated"),)), none) == (removed(SIX),)
    never: tuple[AddressReason, ...] = ("tentative", "duplicate", "link-local")
    for reason in never:
        assert losses(replace(WLAN, addresses=(flagged(reason),)), none) == ()


def test_an_address_with_two_prefixes_is_lost_once() -> None:
    twice = replace(WLAN, addresses=(SIX, replace(SIX, address=replace(SIX.address, prefix_length=128), created=2)))
    assert losses(twice, replace(WLAN, addresses=twice.addresses[1:])) == ()
    assert losses(twice, replace(WLAN, addresses=())) == (removed(SIX),)


def test_what_was_lost_already_is_not_lost_again_but_an_unheard_return_is() -> None:
    assert losses(NO_CARRIER, replace(NO_CARRIER, addresses=())) == ()
    down = replace(UP, carrier=False, up=False)
    assert losses(NO_CARRIER, replace(WLAN, links=(down,))) == ()
    assert losses(NO_CARRIER, WLAN) == ()
    assert losses(NO_CARRIER, replace(NO_CARRIER, links=(replace(UP, carrier=False, carrier_downs=1),))) == (LOST,)


@pytest.mark.parametrize(
    "changed",
    [
        replace(WLAN, addresses=(FOUR,), links=(LinkRecord(8, DeviceFacts("eth0")), UP)),
        replace(WLAN, addresses=(*WLAN.addresses, replace(FOUR, index=9))),
        replace(WLAN, routes=(KernelRoute(INDEX, Family.IPV4, "10.0.0.1"),)),
    ],
)
async def test_whatever_else_changes_is_told_once(changed: Snapshot) -> None:
    machine, told = Machine(), list[tuple[Loss, ...]]()
    machine.now = replace(WLAN, addresses=(FOUR,))
    unsubscribe = polling(machine).subscribe(told.append)
    machine.now = changed
    await until(lambda: bool(told))
    await asyncio.sleep(0.3)
    assert told == [()]
    unsubscribe()
