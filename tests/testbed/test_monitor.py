"""What a network monitor hears when the links of a testbed change.

It asks an event loop to watch a socket and to call it later, and nothing else: a loss, a return, a flap and a monitor
without netlink are told on both loops, everything else on one.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
import uvloop

from multi.discovery import interfaces
from multi.discovery.monitor import Loss, NetworkMonitor, monitor
from multi.discovery.netlink import NetlinkSocket
from multi.discovery.snapshot import Snapshot, snapshot
from multi.lab.testbed import Direction, Link, LinkSpec, Testbed
from multi.lab.testbed.netlink import HostNetlink
from multi.lab.testbed.pytest_plugin import started
from multi.types import Interface

FAST = Direction(rate_mbps=100, delay_ms=1)
LINKS = (LinkSpec.symmetric("one", "eth0", FAST), LinkSpec.symmetric("two", "wlan0", FAST, kind="wifi"))
SOON = 5.0  # seconds for anything that should happen; far more than it takes
SETTLED = 0.6  # seconds after which a burst has been told
KERNEL_PAUSE = 1.1  # seconds; the kernel itself tells of carriers once a second at most
LATENCY = 0.050  # seconds, generous: the test machine may be busy
CALLS_PER_SECOND = 5
OTHER_TABLE = 4242

NewLoop = Callable[[], asyncio.AbstractEventLoop]


class Listener:
    """A subscriber that remembers when it heard what."""

    def __init__(self, heard: NetworkMonitor) -> None:
        self.calls: list[tuple[float, tuple[Loss, ...]]] = []
        self._event = asyncio.Event()
        self.unsubscribe = heard.subscribe(self._hear)

    def _hear(self, losses: tuple[Loss, ...]) -> None:
        self.calls.append((time.monotonic(), losses))
        self._event.set()

    @property
    def losses(self) -> list[Loss]:
        return [loss for _when, losses in self.calls for loss in losses]

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(SOON):
            while not condition():
                self._event.clear()
                await self._event.wait()

    async def lost(self, interface: str, address: str, reason: str) -> float:
        """When this loss was told."""
        wanted = Loss(interface, address, reason)
        await self.until(lambda: wanted in self.losses)
        return next(when for when, losses in self.calls if wanted in losses)

    async def quiet(self) -> None:
        """Forget what was heard, once nothing more comes."""
        await asyncio.sleep(SETTLED)
        self.calls.clear()


class Client:
    """The client host of a testbed with somebody who listens there."""

    def __init__(self, testbed: Testbed, **options: Any) -> None:
        self.testbed = testbed
        self.one, self.two = testbed.links["one"], testbed.links["two"]
        with testbed.client.entered():
            self.kernel = HostNetlink()
            self.heard = Listener(NetworkMonitor(**options))

    def interface(self, name: str) -> Interface:
        with self.testbed.client.entered():
            return next(interface for interface in interfaces() if interface.name == name)

    def usable(self, name: str, address: str) -> bool:
        return any(a.usable for a in self.interface(name).addresses if a.address == address)

    def close(self) -> None:
        self.heard.unsubscribe()
        self.kernel.close()


@pytest.fixture(scope="module")
def testbed() -> Iterator[Testbed]:
    with started(LINKS, detect_duplicates=True) as running:
        if running.rootless:
            pytest.skip("NO TESTBED HERE: a thread cannot enter a host without root")
        time.sleep(2.5)  # IPv6 addresses are tentative at first
        yield running


on_both_loops = pytest.mark.parametrize(
    "new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"]
)


def on_client(
    testbed: Testbed,
    story: Callable[[Client], Awaitable[None]],
    *,
    new_loop: NewLoop = asyncio.new_event_loop,
    **options: Any,
) -> None:
    """Let a story happen, in the end of which the links are as they were."""

    async def tell() -> None:
        client = Client(testbed, **options)
        try:
            await client.heard.quiet()
            await story(client)
        finally:
            client.close()
            for link in testbed.links.values():
                restore(link)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(tell())


def restore(link: Link) -> None:
    """As it was, whatever happened to it."""
    link.reappear()
    link.carrier(True)
    link.restore_address()


async def act(action: Callable[[], object]) -> float:
    """Do something while the loop runs; when it began."""
    begun = time.monotonic()
    await asyncio.to_thread(action)
    return begun


def show(capsys: pytest.CaptureFixture[str], text: str) -> None:
    with capsys.disabled():
        print(f"\n    {text}", end="")


@pytest.mark.alone
@on_both_loops
def test_a_lost_carrier_is_told_at_once_and_its_return_when_settled(
    testbed: Testbed, new_loop: NewLoop, capsys: pytest.CaptureFixture[str]
) -> None:
    latencies: list[float] = []
    returns: list[float] = []

    async def story(client: Client) -> None:
        heard = client.heard
        while not latencies or (latencies[0] >= LATENCY and len(latencies) < 3):  # the machine may be busy
            begun = await act(lambda: client.one.carrier(False))
            latencies.append(await heard.lost("eth0", "", "carrier lost") - begun)
            assert heard.calls[0][1] == (Loss("eth0", "", "carrier lost"),)
            assert client.interface("eth0").unusable_reason() == "no carrier"
            await heard.quiet()
            begun = await act(lambda: client.one.carrier(True))
            await heard.until(lambda: bool(heard.calls))
            returns.append(heard.calls[0][0] - begun)
            assert client.interface("eth0").unusable_reason() == ""
            await heard.quiet()

    on_client(testbed, story, new_loop=new_loop)
    show(
        capsys,
        f"carrier lost: {', '.join(f'{1e3 * latency:.1f}' for latency in latencies)} ms; "
        f"back: median {1e3 * statistics.median(returns):.0f} ms",
    )
    assert statistics.median(latencies) < LATENCY


@pytest.mark.alone
def test_a_carrier_lost_soon_after_it_came_is_told_before_the_kernel_does(
    testbed: Testbed, capsys: pytest.CaptureFixture[str]
) -> None:
    async def story(client: Client) -> None:
        await asyncio.sleep(KERNEL_PAUSE)
        await act(lambda: client.one.carrier(False))
        await client.heard.lost("eth0", "", "carrier lost")
        await act(lambda: client.one.carrier(True))
        await asyncio.sleep(SETTLED / 2)
        client.heard.calls.clear()
        begun = await act(lambda: client.one.carrier(False))
        told = await client.heard.lost("eth0", "", "carrier lost")
        show(capsys, f"carrier lost soon after it came: {1e3 * (told - begun):.1f} ms")
        assert told - begun < 4 * LATENCY

    on_client(testbed, story)


@on_both_loops
def test_a_carrier_that_flaps_is_told_as_lost(testbed: Testbed, new_loop: NewLoop) -> None:
    async def story(client: Client) -> None:
        client.one.carrier(False)  # both before the event loop gets its turn
        client.one.carrier(True)
        await client.heard.lost("eth0", "", "carrier lost")
        await asyncio.sleep(SETTLED)
        assert client.heard.losses.count(Loss("eth0", "", "carrier lost")) == 1

    on_client(testbed, story, new_loop=new_loop)


@pytest.mark.alone
def test_a_removed_address_is_told_at_once_and_nothing_else_of_its_interface(
    testbed: Testbed, capsys: pytest.CaptureFixture[str]
) -> None:
    async def story(client: Client) -> None:
        heard, address = client.heard, client.two.client_address()
        begun = await act(lambda: client.two.remove_address(4))
        told = await heard.lost("wlan0", address, f"the address {address} was removed")
        show(capsys, f"address removed: {1e3 * (told - begun):.1f} ms")
        assert told - begun < LATENCY
        await asyncio.sleep(SETTLED)
        assert heard.losses == [Loss("wlan0", address, f"the address {address} was removed")]
        await heard.quiet()
        await act(lambda: client.two.restore_address(4))
        await heard.until(lambda: bool(heard.calls) and client.usable("wlan0", address))
        await asyncio.sleep(SETTLED)
        assert len(heard.calls) == 1
        assert heard.losses == []

    on_client(testbed, story)


def test_an_interface_that_vanishes_is_told_and_so_is_its_return(
    testbed: Testbed, capsys: pytest.CaptureFixture[str]
) -> None:
    async def story(client: Client) -> None:
        heard = client.heard
        begun = await act(client.two.vanish)
        await heard.until(lambda: any(loss.interface == "wlan0" and not loss.address for loss in heard.losses))
        show(capsys, f"interface gone: {1e3 * (heard.calls[0][0] - begun):.1f} ms, {heard.calls[0][1][0].reason}")
        await heard.lost("wlan0", "", "the interface was removed")
        assert {loss.interface for loss in heard.losses} == {"wlan0"}
        await heard.quiet()
        await act(client.two.reappear)
        await heard.until(lambda: bool(heard.calls) and client.usable("wlan0", client.two.client_address()))
        assert heard.losses == []
        await asyncio.sleep(2.5)  # IPv6 addresses are tentative at first

    on_client(testbed, story)


def test_an_interface_that_is_taken_down_is_told(testbed: Testbed) -> None:
    async def story(client: Client) -> None:
        index = client.interface("lo").index
        client.kernel.set_up(index, False)
        await client.heard.lost("lo", "", "the interface went down")
        assert client.heard.calls[0][1] == (Loss("lo", "", "the interface went down"),)
        await client.heard.quiet()
        client.kernel.set_up(index, True)
        await client.heard.until(lambda: bool(client.heard.calls))
        assert client.heard.losses == []

    on_client(testbed, story)


def test_an_ipv6_address_is_told_again_when_it_becomes_usable(
    testbed: Testbed, capsys: pytest.CaptureFixture[str]
) -> None:
    async def story(client: Client) -> None:
        heard, address = client.heard, client.two.client_address(6)
        await act(lambda: client.two.remove_address(6))
        await heard.lost("wlan0", address, f"the address {address} was removed")
        await heard.quiet()
        begun = await act(lambda: client.two.restore_address(6))
        await heard.until(lambda: bool(heard.calls))
        assert not client.usable("wlan0", address)
        told = heard.calls[0][0]
        await heard.until(lambda: client.usable("wlan0", address))
        show(capsys, f"IPv6 address: told after {told - begun:.2f} s, usable after {time.monotonic() - begun:.2f} s")
        assert heard.losses == []

    on_client(testbed, story)


def test_a_duplicate_address_that_never_was_usable_is_no_loss(testbed: Testbed) -> None:
    async def story(client: Client) -> None:
        heard, address = client.heard, client.two.server_address(6)
        index = client.interface("wlan0").index

        def reason() -> str:
            return next((a.reason for a in client.interface("wlan0").addresses if a.address == address), "")

        client.kernel.add_address(index, address, 64, detect_duplicates=True)
        try:
            await heard.until(lambda: reason() == "duplicate")
            await asyncio.sleep(SETTLED)
            assert heard.losses == []
        finally:
            client.kernel.delete_address(index, address, 64)
        await heard.quiet()

    on_client(testbed, story)


def test_ten_thousand_changes_of_routes_cost_few_calls(testbed: Testbed, capsys: pytest.CaptureFixture[str]) -> None:
    count = 5000  # added, then deleted

    async def story(client: Client) -> None:
        heard, index = client.heard, client.interface("wlan0").index

        def storm() -> None:
            for change in (client.kernel.add_route, client.kernel.delete_route):
                for number in range(count):
                    change(index, f"100.64.{number >> 8}.{number & 255}/32", table=OTHER_TABLE)

        begun, processor = time.monotonic(), time.thread_time()
        await act(storm)
        took = time.monotonic() - begun
        await heard.until(lambda: bool(heard.calls))
        await asyncio.sleep(SETTLED)
        used = time.thread_time() - processor
        show(
            capsys,
            f"{2 * count} routes in {took:.2f} s: {len(heard.calls)} calls, {1e3 * used:.0f} ms of processor "
            f"({100 * used / took:.1f} %)",
        )
        assert heard.losses == []
        assert len(heard.calls) <= CALLS_PER_SECOND * (took + SETTLED) + CALLS_PER_SECOND
        assert used < 0.5
        # And afterwards routes are heard again.
        heard.calls.clear()
        client.kernel.add_route(index, "100.64.0.0/16", table=OTHER_TABLE)
        await heard.until(lambda: bool(heard.calls))
        client.kernel.delete_route(index, "100.64.0.0/16", table=OTHER_TABLE)

    on_client(testbed, story)


@pytest.mark.alone
def test_a_loss_in_a_storm_of_routes_is_told_at_once(testbed: Testbed, capsys: pytest.CaptureFixture[str]) -> None:
    async def story(client: Client) -> None:
        index = client.interface("wlan0").index
        ended = False

        def storm() -> None:
            while not ended:
                client.kernel.add_route(index, "100.64.0.1/32", table=OTHER_TABLE)
                client.kernel.delete_route(index, "100.64.0.1/32", table=OTHER_TABLE)
                time.sleep(0.001)  # or the kernel, which needs the same lock to tell of it, waits for its turn for long

        storming = asyncio.create_task(asyncio.to_thread(storm))
        latencies: list[float] = []
        try:
            while len(latencies) < 10 and min(latencies, default=1.0) >= 3 * LATENCY:  # the machine may be busy
                await asyncio.sleep(KERNEL_PAUSE)
                client.heard.calls.clear()
                begun = await act(lambda: client.one.carrier(False))
                latencies.append(await client.heard.lost("eth0", "", "carrier lost") - begun)
                client.one.carrier(True)
        finally:
            ended = True
            await storming
        show(capsys, f"carrier lost in a storm: {', '.join(f'{1e3 * latency:.1f}' for latency in latencies)} ms")
        assert min(latencies) < 3 * LATENCY

    on_client(testbed, story)


@pytest.mark.parametrize("what", ["carrier", "carrier and back", "address", "address and back", "interface and back"])
def test_a_loss_among_messages_that_were_lost_is_told(testbed: Testbed, what: str) -> None:
    async def story(client: Client) -> None:
        heard, index, address = client.heard, client.interface("wlan0").index, client.one.client_address()
        expected = {
            "carrier": Loss("eth0", "", "carrier lost"),
            "address": Loss("eth0", address, f"the address {address} was removed"),
            "interface": Loss("eth0", "", "the interface was removed"),
        }[what.split()[0]]
        # Nothing is awaited here, so nothing is read meanwhile.
        for number in range(50):
            client.kernel.add_route(index, f"100.64.0.{number}/32", table=OTHER_TABLE)
            client.kernel.add_address(index, f"100.65.0.{number}", 32, detect_duplicates=False)
        if what.startswith("carrier"):
            client.one.carrier(False)
        elif what.startswith("address"):
            client.one.remove_address(4)
        else:
            client.one.vanish()
        if what.endswith("back"):
            restore(client.one)
        await heard.lost(expected.interface, expected.address, expected.reason)
        for number in range(50):
            client.kernel.delete_route(index, f"100.64.0.{number}/32", table=OTHER_TABLE)
            client.kernel.delete_address(index, f"100.65.0.{number}", 32)

    on_client(testbed, story)


def test_a_listener_that_is_overwhelmed_without_end_still_tells_of_losses(
    testbed: Testbed, capsys: pytest.CaptureFixture[str]
) -> None:
    async def story(client: Client) -> None:
        index = client.interface("wlan0").index
        ended = False

        def storm() -> None:
            while not ended:
                client.kernel.add_address(index, "100.65.0.1", 32, detect_duplicates=False)
                client.kernel.delete_address(index, "100.65.0.1", 32)

        storming = asyncio.create_task(asyncio.to_thread(storm))
        try:
            for _round in range(3):
                await asyncio.sleep(KERNEL_PAUSE)
                client.heard.calls.clear()
                begun = await act(lambda: client.one.carrier(False))
                told = await client.heard.lost("eth0", "", "carrier lost")
                show(capsys, f"carrier lost in a storm of addresses: {1e3 * (told - begun):.0f} ms")
                client.one.carrier(True)
        finally:
            ended = True
            await storming

    on_client(testbed, story)


@on_both_loops
def test_without_netlink_the_same_is_told_later(testbed: Testbed, new_loop: NewLoop) -> None:
    async def story(client: Client) -> None:
        heard = client.heard
        await act(lambda: client.one.carrier(False))
        await heard.lost("eth0", "", "carrier lost")
        await heard.quiet()
        await act(lambda: client.one.carrier(True))
        await heard.until(lambda: bool(heard.calls))
        assert heard.losses == []

    def read() -> Snapshot:
        with testbed.client.entered(), NetlinkSocket() as kernel:  # this thread is elsewhere
            return snapshot(kernel)

    on_client(testbed, story, new_loop=new_loop, netlink=False, poll_interval=0.05, read=read)


def test_each_network_namespace_has_a_monitor_of_its_own(testbed: Testbed) -> None:
    async def story(client: Client) -> None:
        with testbed.client.entered():
            there = monitor()
            assert monitor() is there
        assert monitor() is not there

    on_client(testbed, story)
