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

from multi.discovery.monitor import Loss, NetworkMonitor, monitor
from multi.types import Family, Interface, InterfaceAddress, Kind

pytestmark = pytest.mark.timeout(30)
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="netlink is a thing of Linux")

WLAN = Interface("wlan0", 7, Kind.WIFI, addresses=(InterfaceAddress("10.0.0.2", Family.IPV4, 24),))
LOST = Loss("wlan0", "", "carrier lost")
INTERVAL = 0.01

NewLoop = Callable[[], asyncio.AbstractEventLoop]
both_loops = pytest.mark.parametrize(
    "new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"]
)


class Machine:
    """Interfaces that change when a test wants it."""

    def __init__(self) -> None:
        self.now: tuple[Interface, ...] = (WLAN,)
        self.fails = False

    def __call__(self) -> tuple[Interface, ...]:
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


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - what is waited for happens in a thread
            await asyncio.sleep(0.002)


@both_loops
def test_a_loss_is_found_by_looking_and_told_once(new_loop: NewLoop) -> None:
    async def story() -> None:
        machine, told = Machine(), list[tuple[Loss, ...]]()
        unsubscribe = polling(machine).subscribe(told.append)
        machine.now = (replace(WLAN, carrier=False),)
        await until(lambda: bool(told))
        await asyncio.sleep(5 * INTERVAL)
        assert told == [(LOST,)]
        machine.now = (WLAN,)
        await until(lambda: len(told) == 2)
        assert told[1] == ()
        unsubscribe()
        machine.now = (replace(WLAN, carrier=False),)
        await asyncio.sleep(5 * INTERVAL)
        assert len(told) == 2

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(story())


async def test_a_reading_that_fails_is_tried_again() -> None:
    machine, told = Machine(), list[tuple[Loss, ...]]()
    unsubscribe = polling(machine).subscribe(told.append)
    machine.fails = True
    await asyncio.sleep(3 * INTERVAL)
    machine.now, machine.fails = (), False
    await until(lambda: bool(told))
    assert told == [(Loss("wlan0", "", "the interface was removed"),)]
    unsubscribe()


async def test_a_subscriber_that_raises_does_not_hurt_the_others(caplog: pytest.LogCaptureFixture) -> None:
    machine, told = Machine(), list[tuple[Loss, ...]]()
    shared = polling(machine)

    def broken(_losses: tuple[Loss, ...]) -> None:
        raise ZeroDivisionError("a bug")

    endings = [shared.subscribe(broken), shared.subscribe(told.append)]
    machine.now = (replace(WLAN, carrier=False),)
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
    machine.now = ()
    await until(lambda: bool(told))
    machine.now = (WLAN,)
    await asyncio.sleep(5 * INTERVAL)
    assert told == ["first"]


@linux_only
async def test_it_listens_from_the_first_subscriber_to_the_last() -> None:
    before = netlink_sockets()
    shared = NetworkMonitor()
    assert netlink_sockets() == before
    for _round in range(2):
        endings = [shared.subscribe(lambda _losses: None) for _ in range(3)]
        assert netlink_sockets() == before + 1
        for end in endings:
            end()
        assert netlink_sockets() == before


async def test_everybody_on_a_loop_shares_one() -> None:
    shared = monitor()
    assert monitor() is shared


@linux_only
@both_loops
def test_a_loop_that_is_closed_with_subscribers_left_leaks_nothing(new_loop: NewLoop) -> None:
    before = netlink_sockets()

    async def forget() -> None:
        monitor().subscribe(lambda _losses: None)
        polling(Machine()).subscribe(lambda _losses: None)
        assert netlink_sockets() == before + 1

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


async def test_without_a_thread_it_tries_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_thread(*_arguments: object) -> None:
        raise RuntimeError("can't start new thread")

    machine, told = Machine(), list[tuple[Loss, ...]]()
    with monkeypatch.context() as patched:
        patched.setattr(asyncio.get_running_loop(), "run_in_executor", no_thread)
        unsubscribe = polling(machine).subscribe(told.append)
        await until(lambda: "cannot look for network changes" in caplog.text)
    machine.now = (replace(WLAN, carrier=False),)
    await until(lambda: bool(told))
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
    machine.now = (replace(WLAN, carrier=False),)
    await until(lambda: bool(told))
    assert told == [(LOST,)]
    assert "this system has no netlink" in caplog.text
    unsubscribe()
