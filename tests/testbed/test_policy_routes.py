"""Policy routes in network namespaces: packets leave through the interface whose address they carry."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import socket
import sys
import time
from pathlib import Path

import pytest

from multi.discovery import interfaces
from multi.discovery.snapshot import KernelRoute
from multi.lab.testbed import Direction, LinkSpec
from multi.lab.testbed.netlink import HostNetlink
from multi.lab.testbed.pytest_plugin import MakeTestbed
from multi.linux.policy_routes import (
    NOT_PERMITTED,
    OUR_PROTOCOL,
    RULE_PRIORITY,
    PolicyRoutes,
    RoutingTables,
    Rule,
    read_tables,
)
from multi.types import Interface

FAST = Direction(rate_mbps=1000, delay_ms=0.1)
LINKS = (LinkSpec.symmetric("one", "eth0", FAST), LinkSpec.symmetric("two", "wlan0", FAST, kind="wifi"))
ANYWHERE = {4: "0.0.0.0/0", 6: "::/0"}
OWN = {4: "10.77.2.2", 6: "fd77:2::2"}
ROUTER = {4: "10.77.2.1", 6: "fd77:2::1"}
SUBNET = {4: "10.77.2.0/24", 6: "fd77:2::/64"}
SERVER = {4: "10.77.0.1", 6: "fd77::1"}
MAIN, TESTBED_TABLE, TESTBED_METRIC = 254, 1002, 102
REMOTES = list(SERVER.values())
KINDS = {"eth": ["eth0"], "wifi": ["wlan0"]}

# What follows runs on the client, where `hide_second_link` comes first: only the first link has a way to the server.


def both() -> tuple[Interface, ...]:
    return interfaces(KINDS)


def hide_second_link(*, gateway: bool = True) -> None:
    """Take away the rules and routes of the testbed; its table, which nothing leads to then, tells the gateway."""
    kernel, index = HostNetlink(), socket.if_nametoindex("wlan0")
    for version in (4, 6):
        kernel.delete_rule(OWN[version], TESTBED_TABLE)
        kernel.delete_route(index, ANYWHERE[version], gateway=ROUTER[version], RTA_PRIORITY=TESTBED_METRIC)
        if not gateway:
            kernel.delete_route(index, ANYWHERE[version], gateway=ROUTER[version], table=TESTBED_TABLE)
            kernel.delete_route(index, SUBNET[version], table=TESTBED_TABLE)
    kernel.close()


def told_gateways(*gateways: str) -> None:
    """In the table of the testbed; the kernel forgets them with the address or the link."""
    with contextlib.closing(HostNetlink()) as kernel:
        for version, gateway in zip((4, 6), gateways, strict=True):
            index = socket.if_nametoindex("wlan0")
            kernel.delete_route(index, ANYWHERE[version], table=TESTBED_TABLE)
            kernel.add_route(index, ANYWHERE[version], gateway=gateway, table=TESTBED_TABLE, on_link=True)


def sent_bytes() -> dict[str, int]:
    with open("/proc/thread-self/net/dev") as lines:
        rows = [line.split() for line in lines if ":" in line]
    return {row[0].rstrip(":"): int(row[9]) for row in rows}


def way_of(version: int) -> str:
    """The interface that datagrams to the server leave through which are bound to the second link's address."""
    before = sent_bytes()
    with socket.socket(socket.AF_INET6 if version == 6 else socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.bind((OWN[version], 0))
        for _ in range(10):
            sender.sendto(bytes(1000), (SERVER[version], 7788))
    deadline = time.monotonic() + 2.0
    while time.monotonic() < deadline:
        grown = [name for name, count in sent_bytes().items() if count - before.get(name, 0) >= 10_000]
        if grown:
            return " ".join(grown)
        time.sleep(0.01)
    return ""


def ways() -> list[str]:
    return [way_of(4), way_of(6)]


def tables_now() -> RoutingTables:
    with HostNetlink() as kernel:
        return read_tables(kernel)


def ours() -> tuple[int, int]:
    """How many rules and routes of ours the kernel has."""
    return len(our_rules()), len(our_routes())


def our_rules() -> list[Rule]:
    return [item for item in tables_now().ours if isinstance(item, Rule)]


def our_routes() -> list[KernelRoute]:
    return [item for item in tables_now().ours if isinstance(item, KernelRoute)]


def come_and_go() -> list[object]:
    hide_second_link()
    seen: list[object] = [ways()]
    routes = PolicyRoutes()
    seen += [routes.install(both(), REMOTES), ways(), ours()]
    routes.remove()
    routes.remove()
    return [*seen, ways(), ours()]


async def test_packets_leave_through_the_interface_of_their_address(make_testbed: MakeTestbed) -> None:
    testbed = make_testbed(LINKS)
    before, warnings, during, held, after, left = await testbed.client.run_python(come_and_go)
    assert before == ["eth0", "eth0"]
    assert warnings == []
    assert during == ["wlan0", "wlan0"]
    assert held == (2, 4)
    assert after == ["eth0", "eth0"]
    assert left == (0, 0)


def no_gateway() -> list[object]:
    hide_second_link(gateway=False)
    routes = PolicyRoutes()
    return [routes.install(both(), REMOTES), ours(), routes.install(both(), REMOTES)]


async def test_no_gateway_is_guessed(make_testbed: MakeTestbed) -> None:
    warnings, installed, again = await make_testbed(LINKS).client.run_python(no_gateway)
    assert warnings == [
        "wlan0: no gateway known for ipv4, only its own subnet is routed",
        "wlan0: no gateway known for ipv6, only its own subnet is routed",
    ]
    assert installed == (2, 2)
    assert again == warnings


def bridge_without_a_way_out() -> list[object]:
    hide_second_link(gateway=False)
    return [PolicyRoutes().install(interfaces({"virtual": ["wlan0"]}), REMOTES), ours()]


async def test_bridges_and_the_like_without_a_gateway_are_none_of_our_business(make_testbed: MakeTestbed) -> None:
    assert await make_testbed(LINKS).client.run_python(bridge_without_a_way_out) == [[], (0, 0)]


def nothing_to_do() -> list[object]:
    return [PolicyRoutes().install(both(), REMOTES), ours()]


async def test_where_packets_take_the_right_way_nothing_is_installed(make_testbed: MakeTestbed) -> None:
    assert await make_testbed(LINKS).client.run_python(nothing_to_do) == [[], (0, 0)]


def twice() -> list[object]:
    hide_second_link()
    routes, other = PolicyRoutes(), PolicyRoutes()
    routes.install(both(), REMOTES)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as events:
        # RTMGRP_IPV4_ROUTE, IPV4_RULE, IPV6_ROUTE and RTNLGRP_IPV6_RULE
        events.bind((0, 0x40 | 0x80 | 0x400 | 1 << 18))
        events.setblocking(False)
        routes.install(both(), REMOTES)
        other.install(both(), REMOTES)
        routes.remove()
        try:
            heard: object = events.recv(1 << 16)
        except BlockingIOError:
            heard = "nothing"
        held = ours()
        other.remove()
        return [heard, held, ours(), len(events.recv(1 << 16)) > 0]


async def test_installing_again_changes_nothing_and_the_last_session_removes(make_testbed: MakeTestbed) -> None:
    assert await make_testbed(LINKS).client.run_python(twice) == ["nothing", (2, 4), (0, 0), True]


def down_and_up() -> list[object]:
    hide_second_link()
    routes, kernel, index = PolicyRoutes(), HostNetlink(), socket.if_nametoindex("wlan0")
    routes.install(both(), REMOTES)
    kernel.set_up(index, False)
    seen: list[object] = [ours(), routes.install(both(), REMOTES), ours()]
    kernel.set_up(index, True)
    kernel.add_address(index, OWN[6], 64, detect_duplicates=False)
    told_gateways(*ROUTER.values())
    seen += [routes.install(both(), REMOTES), ours()]
    # Neighbours were entered for good, and are forgotten when a link goes down.
    for version in (4, 6):
        kernel.add_neighbour(index, ROUTER[version], "02:77:00:00:02:01")
    return [*seen, ways()]


async def test_routes_come_back_with_the_link(make_testbed: MakeTestbed) -> None:
    at_once, while_down, left, after, restored, taken = await make_testbed(LINKS).client.run_python(down_and_up)
    assert at_once == (2, 0)  # the kernel takes the routes, not the rules
    assert (while_down, left) == ([], (0, 0))
    assert (after, restored) == ([], (2, 4))
    assert taken == ["wlan0", "wlan0"]


def another_address() -> list[object]:
    hide_second_link()
    routes, kernel, index = PolicyRoutes(), HostNetlink(), socket.if_nametoindex("wlan0")
    routes.install(both(), REMOTES)
    kernel.delete_address(index, OWN[4], 24)
    kernel.add_address(index, "10.77.2.9", 24, detect_duplicates=False)
    kernel.delete_address(index, OWN[6], 64)
    told_gateways(*ROUTER.values())
    warnings = routes.install(both(), REMOTES)
    rules = sorted(rule.address for rule in our_rules())
    return [warnings, rules, sorted((route.network, route.gateway) for route in our_routes())]


async def test_what_belongs_to_an_address_goes_with_it(make_testbed: MakeTestbed) -> None:
    warnings, rules, routes = await make_testbed(LINKS).client.run_python(another_address)
    assert warnings == []
    assert rules == ["10.77.2.9"]
    assert routes == [("", "10.77.2.1"), ("10.77.2.0/24", "")]


def another_gateway() -> list[object]:
    hide_second_link()
    routes = PolicyRoutes()
    routes.install(both(), REMOTES)
    told_gateways("10.77.2.77", "fe80::77")
    warnings = routes.install(both(), REMOTES)
    return [warnings, sorted(route.gateway for route in our_routes())]


async def test_a_new_gateway_replaces_the_old_one(make_testbed: MakeTestbed) -> None:
    warnings, gateways = await make_testbed(LINKS).client.run_python(another_gateway)
    assert warnings == []
    assert gateways == ["", "", "10.77.2.77", "fe80::77"]


def gateway_outside_the_subnet() -> list[object]:
    hide_second_link()
    told_gateways("10.99.0.1", "fd99::1")
    return [PolicyRoutes().install(both(), REMOTES), ours()]


async def test_a_gateway_outside_the_subnet_is_taken_for_a_neighbour(make_testbed: MakeTestbed) -> None:
    assert await make_testbed(LINKS).client.run_python(gateway_outside_the_subnet) == [[], (2, 4)]


def crash() -> None:
    hide_second_link()
    PolicyRoutes().install(both(), REMOTES)
    # One for an address that has gone since, on an interface that has gone too.
    kernel = HostNetlink()
    kernel.add_rule("10.99.0.1", 10_777, RULE_PRIORITY, OUR_PROTOCOL)
    kernel.add_rule("10.99.0.1", 10_888)  # somebody else's, without our protocol number
    os._exit(0)


def after_a_crash(find: bool) -> list[object]:
    found = ours()
    routes = PolicyRoutes()
    mine = [one for one in both() if find or one.name != "wlan0"]
    warnings = routes.install(mine, REMOTES)
    seen: list[object] = [found, warnings, ours()]
    routes.remove()
    return [*seen, ours()]


@pytest.mark.parametrize(("find", "kept"), [(True, (2, 4)), (False, (0, 0))])
async def test_what_a_crashed_process_left_is_taken_over_or_cleaned(
    make_testbed: MakeTestbed, find: bool, kept: tuple[int, int]
) -> None:
    client = make_testbed(LINKS).client
    await client.run_code("from tests.testbed.test_policy_routes import crash; crash()")
    assert await client.run_python(after_a_crash, find) == [(3, 4), [], kept, (0, 0)]


ENDS = """
from tests.testbed.test_policy_routes import *
hide_second_link()
routes = PolicyRoutes()
routes.install(both(), REMOTES)
print(*ours())
"""


async def test_routes_go_when_the_program_ends(make_testbed: MakeTestbed) -> None:
    client = make_testbed(LINKS).client
    assert await client.run_code(ENDS) == "2 4\n"
    assert await client.run_python(ours) == (0, 0)


async def test_each_process_has_routes_of_its_own(make_testbed: MakeTestbed) -> None:
    client = make_testbed(LINKS).client
    holding = client.popen(
        [sys.executable, "-c", ENDS.replace("print(*ours())", "print('up', flush=True); input(); routes.remove()")],
        stdin=-1,
        stdout=-1,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
    )
    with holding:
        assert holding.stdout is not None
        assert await asyncio.to_thread(holding.stdout.readline) == "up\n"
        # Neither one that needs the same nor one that needs nothing takes them away.
        assert await client.run_python(after_a_crash, True) == [(2, 4), [], (4, 8), (2, 4)]
        assert await client.run_python(after_a_crash, False) == [(2, 4), [], (2, 4), (2, 4)]
        holding.communicate("\n", timeout=20)
    assert await client.run_python(ours) == (0, 0)


def without_rights() -> list[object]:
    hide_second_link()
    # capset(2), version 3: this thread gives up every capability
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.capset((ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()) == 0
    routes = PolicyRoutes()
    seen: list[object] = [routes.install(both(), REMOTES), ours()]
    routes.remove()
    return seen


async def test_without_permission_there_is_one_warning(make_testbed: MakeTestbed) -> None:
    assert await make_testbed(LINKS).client.run_python(without_rights) == [[NOT_PERMITTED], (0, 0)]
