"""Clients on a host of a testbed to whom bad things happen; see `test_roaming_hostile`.

`python -m tests.testbed.hostile_stories STORY` plays one. A story asks for changes of the links in lines of JSON on its
standard output, `["wifi", "carrier", false]`, and goes on when a line comes back.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import resource
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

import multi
from multi import AttemptFailed, ConnectionChanged, ConnectionState, NetworkChanged, Warned
from multi.discovery import interfaces
from multi.lab.testbed.netlink import HostNetlink
from multi.paths import handover
from multi.transports import sockets
from multi.transports.tcp import transport as tcp
from tests.testbed.mptcp_ends import drop_privileges

PORT = 7788
SERVER = "10.77.0.1"
WIFI_ADDRESS, WIFI_PREFIX = "10.77.1.2", 24
CONFIGURED_SERVER = "10.77.1.1"
CELLULAR_ADDRESS, CELLULAR_TABLE = "10.77.2.2", 1002
OTHER_TABLE = 4243
MIB = 1024 * 1024
ACTIVE = ConnectionState.ACTIVE
CHANGES = 1000
SOON = 8.0  # seconds for anything that should happen; far more than it takes

WIFI = {"transport": "tcp", "ip": "ipv4", "interface": "wlan0"}
CELLULAR = {"transport": "tcp", "ip": "ipv4", "interface": "wwan0"}


def ask(*request: object) -> None:
    """Have the links changed; blocks until they are."""
    print(json.dumps(request), flush=True)
    assert sys.stdin.readline()


def config(*entries: Any, **more: Any) -> dict[str, Any]:
    return {
        "connection_priority": list(entries) or [WIFI, CELLULAR],
        "remote_host": SERVER,
        "remote_port": PORT,
        "interfaces": {"wifi": ["wlan0"], "cellular": ["wwan0"]},
    } | more


class Client:
    """A session with an echoing server, and what it has told."""

    def __init__(self, session: multi.Session) -> None:
        self.session = session
        self.events: list[Any] = []
        self.sent = 0
        self._listening = asyncio.ensure_future(self._listen())

    async def _listen(self) -> None:
        async for event in self.session.events():
            self.events.append(event)

    def active(self) -> list[str]:
        """The interfaces of the connections that work."""
        return sorted(info.interface for info in self.session.connections if info.state is ACTIVE)

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + SOON
        while not condition():
            told = [str(e)[:400] for e in self.events[-8:]]
            assert time.monotonic() < deadline, f"never happened: {what}; {self.active()} {told}"
            await asyncio.sleep(0.005)

    async def transfer(self, size: int) -> None:
        """All of it comes back as it was."""
        data = random.Random(size).randbytes(size)

        async def send() -> None:
            for start in range(0, size, 65536):
                self.session.writer.write(data[start : start + 65536])
                await self.session.writer.drain()

        sending = asyncio.ensure_future(send())
        assert await self.session.reader.readexactly(size) == data
        await sending
        self.sent += size


@asynccontextmanager
async def client(settings: dict[str, Any], *, both: bool = True) -> AsyncIterator[Client]:
    async with multi.connect(settings) as session:
        told = Client(session)
        await session.confirmed()
        if both:
            await told.until(lambda: told.active() == ["wlan0", "wwan0"], "both are up")
        yield told
        session.writer.write_eof()
        assert await session.reader.read() == b""
    await told._listening


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def index_of(name: str) -> int:
    return socket.if_nametoindex(name)


def _restore_address(kernel: HostNetlink) -> None:
    """Whatever has been done to it; with the routes, of which nobody knows what is left."""
    with contextlib.suppress(OSError):
        kernel.add_address(index_of("wlan0"), WIFI_ADDRESS, WIFI_PREFIX, detect_duplicates=False)
    ask("wifi", "remove_address", 4)
    ask("wifi", "restore_address", 4)


# --- stories ---


async def vanishes_while_it_is_dialled() -> None:
    ask("wifi", "blackhole", True)
    async with client(config(), both=False) as c:
        before = descriptors()
        await c.until(lambda: descriptors() > before or bool(c.of(AttemptFailed)), "wlan0 is dialled")
        index = index_of("wlan0")
        ask("wifi", "vanish")
        await c.until(lambda: any(e.candidate.interface == "wlan0" for e in c.of(AttemptFailed)), "the attempt is over")
        await asyncio.sleep(0.2)
        failed = len(c.of(AttemptFailed))
        await c.transfer(MIB)
        assert len(c.of(AttemptFailed)) == failed, "nobody dials over an interface that is not there"
        await _refused(c, "wifi", "wlan0")
        ask("wifi", "blackhole", False)
        ask("wifi", "reappear")
        assert index_of("wlan0") != index
        await c.until(lambda: c.active() == ["wlan0", "wwan0"], "it is back")
        await c.transfer(MIB)


async def vanishes_while_the_session_opens() -> None:
    ask("wifi", "blackhole", True)
    opening = asyncio.ensure_future(_open(config(WIFI)))
    await asyncio.sleep(0.3)
    before = time.monotonic()
    ask("wifi", "vanish")
    with pytest.raises(multi.NoUsableConnection, match="wlan0"):
        await opening
    assert time.monotonic() - before < 5.0, "at once, not when the time is over"
    ask("wifi", "blackhole", False)
    ask("wifi", "reappear")
    async with client(config()) as c:
        await c.transfer(MIB)


async def _open(settings: dict[str, Any]) -> multi.Session:
    return await multi.connect(settings)


async def address_goes_between_bind_and_connect() -> None:
    kernel, index, real = HostNetlink(), index_of("wlan0"), sockets.bound_socket
    removed = 0

    def bound(candidate: Any, *arguments: Any) -> socket.socket:
        nonlocal removed
        sock = real(candidate, *arguments)
        if candidate.interface == "wlan0" and not removed:
            removed += 1
            kernel.delete_address(index, WIFI_ADDRESS, WIFI_PREFIX)
        return sock

    setattr(tcp, "bound_socket", bound)  # noqa: B010 - an import that is not exported
    async with client(config(), both=False) as c:
        await c.until(lambda: removed == 1, "it was dialled")
        await c.transfer(MIB)
        assert c.active() == ["wwan0"]
        _restore_address(kernel)
        await c.until(lambda: c.active() == ["wlan0", "wwan0"], "the address is back")
        await c.transfer(MIB)
    kernel.close()


async def messages_about_the_network_are_lost() -> None:
    kernel = HostNetlink()
    async with client(config()) as c:
        moving = asyncio.ensure_future(c.transfer(3 * MIB))
        await asyncio.sleep(0.2)
        for turn in range(2):
            _storm(kernel)
            ask("wifi", "carrier", False)
            _storm(kernel)
            await c.until(lambda: "wlan0" not in c.active(), f"the lost carrier is heard, {turn}")
            _storm(kernel)
            ask("wifi", "carrier", True)
            _storm(kernel)
            await c.until(lambda: "wlan0" in c.active(), f"and its return, {turn}")
        lost = [e for e in c.of(NetworkChanged) if e.interface == "wlan0" and not e.usable]
        assert [e.reason for e in lost] == 2 * ["carrier lost"], "not found out by silence alone"
        await moving
    kernel.close()


def _storm(kernel: HostNetlink) -> None:
    """More than the sockets keep while the event loop stands still."""
    index = index_of("wwan0")
    for number in range(150):
        kernel.add_route(index, f"198.18.{number}.0/24", table=OTHER_TABLE)
        kernel.delete_route(index, f"198.18.{number}.0/24", table=OTHER_TABLE)
        kernel.add_address(index, f"198.19.0.{number}", 32, detect_duplicates=False)
        kernel.delete_address(index, f"198.19.0.{number}", 32)


async def handovers_to_what_does_not_work() -> None:
    closed = CELLULAR | {"remote_port": 9}
    handover.HANDOVER_TIMEOUT = 2.0
    async with client(config(WIFI, CELLULAR)) as c:
        for prepare, repair, reason in (
            (("cellular", "carrier", False), ("cellular", "carrier", True), "no carrier|carrier lost"),
            (("cellular", "remove_address"), ("cellular", "restore_address"), "address"),
        ):
            ask(*prepare)
            await c.until(lambda: c.active() == ["wlan0"], "it is gone")
            await asyncio.sleep(0.4)  # until the candidates have been found anew
            await _refused(c, "cellular", reason)
            await c.transfer(MIB // 4)
            ask(*repair)
            await c.until(lambda: c.active() == ["wlan0", "wwan0"], "it is back")
        await c.session.handover("wifi")
        await c.until(lambda: c.active() == ["wlan0"], "moved to wifi")
        ask("cellular", "blackhole", True)
        before = time.monotonic()
        await _refused(c, "wwan0", "did not come up within 2 s")
        assert time.monotonic() - before < 5.0
        await c.transfer(MIB // 4)
        ask("cellular", "blackhole", False)
        await c.session.handover("cellular")
        await c.until(lambda: c.active() == ["wwan0"], "moved to cellular")
    async with client(config(WIFI, closed), both=False) as c:
        await _refused(c, "cellular", "refused")
        assert c.active() == ["wlan0"]
        await c.transfer(MIB // 4)


async def _refused(c: Client, to: str, reason: str) -> None:
    with pytest.raises(multi.TransportError, match=reason):
        await c.session.handover(to)


async def handovers_meet() -> None:
    async with client(config()) as c:
        moving = asyncio.ensure_future(c.transfer(4 * MIB))
        await c.session.handover("wifi")
        ask("cellular", "blackhole", True)
        first = asyncio.ensure_future(c.session.handover("cellular"))
        await asyncio.sleep(0.1)
        await _refused(c, "wifi", "another handover is under way")
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        assert first.cancelled()
        ask("cellular", "blackhole", False)
        await c.session.handover("cellular")
        await moving
        last = asyncio.ensure_future(c.session.handover("wifi"))
        await asyncio.sleep(0)
        await last
        await c.transfer(MIB)


async def everything_changes_two_hundred_times_a_second() -> None:
    rng = random.Random(5)
    kernel = HostNetlink()
    async with client(config()) as c:
        await c.transfer(MIB)
        before = descriptors(), len(asyncio.all_tasks()), threading.active_count()
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        told = len(c.events)
        over = asyncio.Event()
        moving = asyncio.ensure_future(_transfers(c, over))
        cpu, started = time.process_time(), time.monotonic()
        for changes in range(CHANGES):
            await asyncio.sleep(max(0.0, started + changes / 200 - time.monotonic()))
            with contextlib.suppress(OSError):
                _change(kernel, rng)
        over.set()
        cpu = time.process_time() - cpu
        ask("wifi", "carrier", True)
        kernel.set_up(index_of("wlan0"), True)
        _restore_address(kernel)
        await asyncio.wait_for(moving, 2 * SOON)
        kinds = Counter(type(event).__name__ for event in c.events[told:])
        dials = len({e.connection for e in c.of(ConnectionChanged)}) + kinds["AttemptFailed"]
        print(
            f"{CHANGES} changes, {c.sent} bytes, {cpu:.2f} s of processor, {dials} dials, {dict(kinds)}",
            file=sys.stderr,
        )
        assert c.sent > 2 * MIB
        assert cpu < 4.0
        assert dials < 120, kinds
        assert sum(kinds.values()) < 1500, kinds
        await c.until(lambda: c.active() == ["wlan0", "wwan0"], "both are back")
        await c.transfer(MIB)
        await asyncio.sleep(1.0)
        assert descriptors() <= before[0] + 2, (descriptors(), before)
        assert len(asyncio.all_tasks()) <= before[1] + 1
        assert threading.active_count() <= before[2] + 8  # of the loop's executor
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < 60_000, "KiB"
    kernel.close()


async def _transfers(c: Client, over: asyncio.Event) -> None:
    while not over.is_set():
        await c.transfer(MIB // 2)


def _change(kernel: HostNetlink, rng: random.Random) -> None:
    index = index_of("wlan0")
    network = f"198.18.{rng.randrange(200)}.0/24"
    match rng.randrange(8):
        case 0:
            kernel.set_up(index, False)
        case 1 | 2:
            kernel.set_up(index, True)
        case 3:
            kernel.delete_address(index, WIFI_ADDRESS, WIFI_PREFIX)
        case 4 | 5:
            kernel.add_address(index, WIFI_ADDRESS, WIFI_PREFIX, detect_duplicates=False)
        case 6:
            ask("wifi", "carrier", rng.random() < 0.6)
        case _:
            kernel.add_route(index_of("wwan0"), network, table=OTHER_TABLE)


async def may_change_nothing() -> None:
    kernel = HostNetlink()
    kernel.delete_rule(CELLULAR_ADDRESS, CELLULAR_TABLE)  # now its packets would leave through wlan0
    kernel.close()
    drop_privileges()
    wishes = {"manage_routes": True, "wifi_config": {"power_savings": False}}
    async with client(config(**wishes)) as c:
        await c.transfer(MIB)
        await c.until(lambda: len(c.of(Warned)) >= 2, "both warnings")
        warnings = {e.message for e in c.of(Warned)}
        assert any(w.startswith("manage_routes") and "CAP_NET_ADMIN" in w for w in warnings), warnings
        power = next(w for w in warnings if w.startswith("wifi_config.power_savings"))
        assert "nl80211" in power or "not a WiFi interface" in power or "CAP_NET_ADMIN" in power, power
        ask("wifi", "carrier", False)
        ask("wifi", "carrier", True)
        await c.until(lambda: c.active() == ["wlan0", "wwan0"], "both are up")
        assert len(c.of(Warned)) == len(warnings), "each is said once"


async def configured_address_dies() -> None:
    async with client(config(remote_host=CONFIGURED_SERVER)) as c:
        told = multi.AddressesAnnounced
        await c.until(lambda: bool(c.of(told)), "the server tells of its other address")
        assert c.of(told)[0].addresses == ((SERVER, PORT),)
        removing = asyncio.ensure_future(asyncio.to_thread(ask, "server", "remove_address"))
        while not removing.done():
            await c.transfer(MIB // 4)
        await c.transfer(MIB)
        # Without that address the server's end of the wifi link has none, and takes nothing.
        assert c.active() == ["wwan0"], c.active()
        remotes = {i.remote for i in c.session.connections if i.state is ACTIVE}
        assert remotes == {f"{SERVER}:{PORT}"}, remotes


# --- the other end ---


async def serve(announce: list[str]) -> None:
    async def echo(reader: Any, writer: Any) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
            writer.close()

    listen = {"host": "::", "port": PORT, "transports": ["tcp", "mptcp"], "announce": announce}
    async with await multi.start_server(echo, {"listen": listen}) as server:
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        server.abort()


def remove_server_address() -> None:
    """The server moves: the address the client has been given is no longer there."""
    kernel = HostNetlink()
    for interface in interfaces():
        for address in interface.addresses:
            if address.address == CONFIGURED_SERVER:
                kernel.delete_address(interface.index, CONFIGURED_SERVER, address.prefix_length)
    kernel.close()


def main() -> None:
    name, loop, *arguments = sys.argv[1:]
    factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    if loop == "uvloop":
        import uvloop

        factory = uvloop.new_event_loop
    story: Callable[..., Awaitable[None]] = globals()[name]

    async def play() -> None:
        await (story(arguments) if name == "serve" else story())
        left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        assert name == "serve" or not left, left

    if name != "serve":
        sys.stdin.readline()  # the server is ready
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(play())


if __name__ == "__main__":
    main()
