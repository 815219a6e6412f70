"""One MPTCP connection over two links: kernels' real subflows, made, lost, made again and cleaned up after."""

from __future__ import annotations

import asyncio
import contextlib
import json
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from multi.lab.testbed import Direction, Link, LinkSpec, Testbed
from multi.lab.testbed.call import environment
from multi.lab.testbed.pytest_plugin import MakeTestbed
from multi.linux.mptcp_pm import mptcp_available
from multi.types import Candidate, Family, Source
from tests.testbed import mptcp_ends
from tests.testbed.mptcp_ends import PORT

RATE = 40  # Mbit/s of each link
FIGURES = Direction(rate_mbps=RATE, delay_ms=5)
LINKS = (LinkSpec.symmetric("one", "eth0", FIGURES), LinkSpec.symmetric("two", "wlan0", FIGURES, kind="wifi"))
BOTH = "2 subflows (eth0, wlan0)"
PATIENCE = 20.0  # seconds for what should take one, on a machine that does other things


pytestmark = pytest.mark.skipif(not mptcp_available(), reason="this kernel has no MPTCP")


class End:
    """A program on a host, told by lines and telling by lines."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self._lines: queue.Queue[dict[str, Any]] = queue.Queue()
        self.heard: list[dict[str, Any]] = []
        self._ended = False
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(json.loads(line))

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def until(self, condition: Callable[[dict[str, Any]], bool], patience: float = PATIENCE) -> float:
        """Seconds until it tells what satisfies the condition; it is the last of `heard` then."""
        start = time.monotonic()
        while True:
            left = start + patience - time.monotonic()
            try:
                self.heard.append(self._lines.get(timeout=max(0.01, left)))
            except queue.Empty:
                pytest.fail(f"not heard within {patience:g} s; heard: {self.heard[-6:]}")
            if condition(self.heard[-1]):
                return time.monotonic() - start

    def until_detail(self, detail: str, patience: float = PATIENCE) -> float:
        return self.until(lambda told: told.get("detail") == detail, patience)

    def report(self) -> dict[str, float]:
        self.tell("report")
        self.until(lambda told: "bytes" in told)
        return self.heard[-1]

    def end(self) -> None:
        """Have it end in order; a second time does nothing."""
        if self._ended:
            return
        self._ended = True
        with contextlib.suppress(OSError):
            self.tell("quit")
        try:
            self.process.wait(5.0)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._reading.join(2.0)
        for pipe in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(OSError):
                if pipe is not None:
                    pipe.close()


class World:
    """A testbed with a server that listens."""

    def __init__(self, testbed: Testbed, stack: contextlib.ExitStack) -> None:
        self.testbed = testbed
        self._stack = stack
        self.one, self.two = testbed.links["one"], testbed.links["two"]

    def _start(self, role: str, host: Any, address: str, options: dict[str, str]) -> End:
        command = [sys.executable, "-m", "tests.testbed.mptcp_ends", role, address, json.dumps(options)]
        process = host.popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment())
        end = End(process)
        self._stack.callback(end.end)
        return end

    def serve(self, version: int = 4, **options: str) -> End:
        server = self._start("server", self.testbed.server, self.testbed.server.address(version), options)
        server.until(lambda told: "listening" in told)
        return server

    def dial(self, version: int = 4, *, interfaces: str = "eth0,wlan0", **options: str) -> End:
        options["interfaces"] = interfaces
        client = self._start("client", self.testbed.client, self.testbed.server.address(version), options)
        client.until(lambda told: "dialled" in told)
        return client

    def on_client(self, function: Callable[..., Any], *arguments: object) -> Any:
        return asyncio.run(self.testbed.client.run_python(function, *arguments))

    def on_server(self, function: Callable[..., Any], *arguments: object) -> Any:
        return asyncio.run(self.testbed.server.run_python(function, *arguments))

    def administer(self, *links: Link, subflows: int = 2) -> None:
        indices = dict(self.on_client(_indices))
        endpoints = [(link.client_address(), indices[link.interface]) for link in links]
        self.on_client(mptcp_ends.administer, endpoints, subflows)

    def candidate(self) -> Candidate:
        return Candidate(
            "mptcp",
            Family.IPV4,
            "server",
            self.testbed.server.address(),
            PORT,
            interface="eth0",
            more_sources=(Source("wlan0", self.two.client_address(), "wifi"),),
        )


def _indices() -> list[tuple[str, int]]:
    return [(name, index) for index, name in socket.if_nameindex()]


@pytest.fixture
def world(make_testbed: MakeTestbed) -> Iterator[World]:
    testbed = make_testbed(LINKS)
    with contextlib.ExitStack() as stack:
        yield World(testbed, stack)


def test_one_connection_is_as_fast_as_both_links(world: World) -> None:
    server, client = world.serve(), world.dial()
    took = client.until_detail(BOTH)
    assert client.heard[-1]["subflows"] == 2
    server.report()
    before = {link.name: link.statistics().up.bytes for link in (world.one, world.two)}
    time.sleep(2.0)
    rate = server.report()["bytes"] * 8e-6 / 2.0
    carried = {link.name: link.statistics().up.bytes - before[link.name] for link in (world.one, world.two)}
    print(f"second subflow after {took * 1e3:.0f} ms, {rate:.1f} of {2 * RATE} Mbit/s, {carried}")
    assert rate > 1.3 * RATE
    assert all(size > 0.3 * RATE * 1e6 / 8 for size in carried.values())
    client.end()
    assert world.on_client(mptcp_ends.state) == []


@pytest.mark.parametrize(
    ("name", "how"), [("one", "carrier"), ("one", "blackhole"), ("two", "carrier"), ("two", "blackhole")]
)
def test_bytes_go_on_when_a_link_is_cut_and_its_subflow_comes_back(world: World, name: str, how: str) -> None:
    server, client = world.serve(), world.dial()
    client.until_detail(BOTH)
    time.sleep(0.5)
    server.report()
    link = world.testbed.links[name]
    other = "wlan0" if name == "one" else "eth0"
    if how == "carrier":
        link.carrier(False)
        gone = client.until_detail(f"1 subflow ({other}; {link.interface}: no carrier)")
    else:
        link.blackhole(True)
        gone = client.until_detail(f"1 subflow ({other}; none over {link.interface})")
    time.sleep(1.5)
    found = server.report()
    link.carrier(True) if how == "carrier" else link.blackhole(False)
    back = client.until_detail(BOTH)
    print(
        f"{name}, {how}: gap {found['gap'] * 1e3:.0f} ms, given up after {gone * 1e3:.0f} ms, "
        f"back after {back * 1e3:.0f} ms"
    )
    assert found["gap"] < 2.0
    assert found["bytes"] > RATE * 1e6 / 8 * 0.5
    assert back < 3.0


def test_an_interface_vanishes_comes_back_and_loses_its_address(world: World) -> None:
    server, client = world.serve(), world.dial()
    client.until_detail(BOTH)
    for off, on, why in (
        (world.two.vanish, world.two.reappear, "no such interface"),
        (world.two.remove_address, world.two.restore_address, "no ipv4 address"),
    ):
        server.report()
        off()
        client.until_detail(f"1 subflow (eth0; wlan0: {why})")
        on()
        client.until_detail(BOTH)
        assert server.report()["gap"] < 2.0
    client.end()
    assert world.on_client(mptcp_ends.state) == []


def test_an_interface_without_address_gets_its_subflow_with_the_address(world: World) -> None:
    world.two.remove_address()
    _server, client = world.serve(), world.dial()
    client.until_detail("1 subflow (eth0; wlan0: no ipv4 address)")
    world.two.restore_address()
    client.until_detail(BOTH)


def test_an_interface_vanishes_while_its_subflow_is_being_made(world: World) -> None:
    world.two.blackhole(True)
    server, client = world.serve(), world.dial()
    client.until_detail("1 subflow (eth0; none over wlan0)")
    world.two.vanish()
    client.until_detail("1 subflow (eth0; wlan0: no such interface)")
    world.two.blackhole(False)
    world.two.reappear()
    client.until_detail(BOTH)
    assert server.report()["bytes"] > 0


def test_an_unprivileged_process_is_told_why_not_and_has_one_subflow(world: World) -> None:
    candidate = world.candidate()
    said, took = world.on_client(mptcp_ends.reason, candidate, False)
    expected = (
        "the kernel's MPTCP path manager has no endpoint for wlan0, and adding one needs CAP_NET_ADMIN "
        f"(ip mptcp endpoint add {world.two.client_address()} dev wlan0 subflow)"
    )
    assert said == expected
    print(f"why_no_subflows: {took * 1e6:.0f} us")
    assert took < 0.001
    assert world.on_client(mptcp_ends.reason, candidate, True)[0] == ""
    _server, client = world.serve(), world.dial(unprivileged="yes")
    client.until_detail(f"1 subflow (eth0; none over wlan0: {expected})")


def test_an_unprivileged_process_relies_on_the_endpoints_of_an_administrator(world: World) -> None:
    world.administer(world.two, subflows=1)
    assert world.on_client(mptcp_ends.reason, world.candidate(), False)[0] == ""
    _server, client = world.serve(unprivileged="yes"), world.dial(unprivileged="yes")
    client.until_detail(BOTH)
    client.end()
    assert world.on_client(mptcp_ends.state) == [world.two.client_address()]
    world.administer(subflows=0)
    said, _took = world.on_client(mptcp_ends.reason, world.candidate(), False)
    assert said.endswith("(ip mptcp limits set subflows 1)")


def test_a_limit_that_is_too_low_is_named_on_either_side(world: World) -> None:
    world.administer(subflows=0)
    said, _took = world.on_client(mptcp_ends.reason, world.candidate(), True)
    assert said == "this host allows MPTCP connections 0 further subflows (ip mptcp limits set subflows 1)"
    world.on_server(mptcp_ends.administer, [], 0)
    assert world.on_server(mptcp_ends.accepting).endswith("0 further subflows (ip mptcp limits set subflows 2)")


def test_what_a_killed_process_left_goes_with_the_next_one(world: World) -> None:
    _server, killed = world.serve(), world.dial()
    killed.until_detail(BOTH)
    killed.process.kill()
    killed.process.wait()
    assert world.on_client(mptcp_ends.state) == [world.two.client_address()]
    following = world.dial()
    following.until_detail(BOTH)
    following.end()
    assert world.on_client(mptcp_ends.state) == []


def test_an_endpoint_stays_while_another_process_uses_it(world: World) -> None:
    _server, first, second = world.serve(), world.dial(), world.dial()
    first.until_detail(BOTH)
    second.until_detail(BOTH)
    first.end()
    assert world.on_client(mptcp_ends.state) == [world.two.client_address()]
    second.end()
    assert world.on_client(mptcp_ends.state) == []


def test_another_program_goes_on_where_the_endpoint_below_its_only_subflow_is_needed_no_more(world: World) -> None:
    server, other, client = world.serve(), world.dial(interfaces="wlan0"), world.dial()
    client.until_detail(BOTH)
    client.end()
    assert world.on_client(mptcp_ends.state) == [world.two.client_address()]
    server.report()
    time.sleep(1.0)
    assert server.report()["bytes"] > 0
    other.end()
    following = world.dial()
    following.until_detail(BOTH)
    following.end()
    assert world.on_client(mptcp_ends.state) == []


@pytest.mark.parametrize("chosen", ["kernel", "userspace"])
def test_the_path_manager_of_the_host_decides_whether_subflows_can_be_asked_for(world: World, chosen: str) -> None:
    if not world.on_client(mptcp_ends.choose, chosen):
        pytest.skip(f"this kernel has no {chosen} path manager")
    said, _took = world.on_client(mptcp_ends.reason, world.candidate(), True)
    assert said == (
        ""
        if chosen == "kernel"
        else "the MPTCP path manager of this host is 'userspace', which takes no requests from `multi`"
    )


def test_a_connection_that_fell_back_says_so_when_it_is_dialled(world: World) -> None:
    _server, client = world.serve(kind="tcp"), world.dial()
    assert client.heard[-1]["fell_back"] is True
    client.until(lambda told: "fell back to TCP" in told.get("detail", ""))
    assert client.heard[-1]["subflows"] == 0
    deadline = time.monotonic() + PATIENCE
    while world.on_client(mptcp_ends.state) != []:
        assert time.monotonic() < deadline


def test_subflows_over_ipv6_with_uvloop(world: World) -> None:
    pytest.importorskip("uvloop")
    _server, client = world.serve(6, uvloop="yes"), world.dial(6, uvloop="yes")
    client.until_detail(BOTH)
    client.end()
    assert world.on_client(mptcp_ends.state) == []
