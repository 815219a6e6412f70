"""Reading interfaces: on this machine, in namespaces of our own, and without netlink."""

from __future__ import annotations

import ast
import asyncio
import dataclasses
import errno
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from multi.cli.interfaces import show_interfaces
from multi.discovery import interfaces, interfaces_async, routed
from multi.discovery import snapshot as module
from multi.discovery.netlink import NetlinkSocket
from multi.discovery.snapshot import Snapshot, snapshots
from multi.types import Family, Interface, InterfaceAddress, Kind

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="netlink is a thing of Linux")


def loopback(found: tuple[Interface, ...]) -> Interface:
    return next(i for i in found if i.kind is Kind.LOOPBACK)


# This machine


@linux_only
def test_the_configured_kinds_count_also_for_what_was_read_before() -> None:
    assert loopback(interfaces(anew=False)).name == "lo"
    found = interfaces({"wifi": ["lo"]}, anew=False)
    assert [i.kind for i in found if i.name == "lo"] == [Kind.WIFI]
    assert interfaces({"wifi": ["lo"]}, anew=False) is found
    assert loopback(interfaces(anew=False)).name == "lo"


def test_loopback_is_there_and_usable() -> None:
    lo = loopback(interfaces())
    assert lo.unusable_reason(Family.IPV4) == ""
    assert InterfaceAddress("127.0.0.1", Family.IPV4, 8) in lo.addresses
    assert lo.index > 0
    assert lo.gateways == ()
    assert lo.metered is None


@linux_only
def test_every_interface_of_the_system_is_found_with_its_index() -> None:
    assert {(i.index, i.name) for i in interfaces()} == set(socket.if_nameindex())


@linux_only
def test_reading_takes_less_than_20_ms_of_processor_time() -> None:
    durations = []
    for _ in range(10):
        start = time.thread_time()
        interfaces()
        durations.append(time.thread_time() - start)
    assert min(durations) < 0.020


def test_the_users_kinds_come_first() -> None:
    name = loopback(interfaces()).name
    by_name = {i.name: i for i in interfaces({"wifi": ["nowhere0"], "cellular": [name]})}
    assert by_name[name].kind is Kind.CELLULAR
    assert by_name[name].metered is True


def loops() -> list[Callable[[], asyncio.AbstractEventLoop]]:
    try:
        import uvloop
    except ImportError:
        return [asyncio.new_event_loop]
    return [asyncio.new_event_loop, uvloop.new_event_loop]


@pytest.mark.parametrize("new_loop", loops(), ids=lambda make: make.__module__)
def test_both_forms_work_inside_a_running_loop(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def both() -> tuple[tuple[Interface, ...], tuple[Interface, ...]]:
        return await interfaces_async(), interfaces()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        from_thread, direct = runner.run(both())
    assert from_thread == direct
    assert loopback(direct).name


def test_reading_works_where_uvloop_is_the_policy() -> None:
    pytest.importorskip("uvloop", reason="uvloop is not installed")
    script = """
import asyncio, uvloop
uvloop.install()
from multi.discovery import interfaces, interfaces_async
assert asyncio.run(interfaces_async()) == interfaces() != ()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_nothing_stays_open() -> None:
    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("no /proc to count open files in")
    interfaces()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        routed(interfaces(), ["192.0.2.1"])
    assert len(os.listdir("/proc/self/fd")) == before


def test_asking_for_a_route_to_a_scoped_address_spoils_no_other_answer() -> None:
    found = interfaces()
    alone = routed(found, ["192.0.2.1"])
    assert {pair for pair in routed(found, ["fe80::1%lo", "192.0.2.1"]) if pair[1] == "192.0.2.1"} == alone


# Without netlink


@linux_only
def test_without_netlink_netifaces_finds_the_same_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_kernel: NetlinkSocket) -> None:
        raise PermissionError("netlink is not allowed here")

    truth = interfaces()
    monkeypatch.setattr("multi.discovery.snapshot.snapshot", refused)
    found = interfaces({"wifi": ["lo"]})
    assert {i.name: i.index for i in found} == {i.name: i.index for i in truth}
    assert next(i for i in found if i.name == "lo").kind is Kind.WIFI

    def usable(of: tuple[Interface, ...]) -> set[InterfaceAddress]:
        return {a for i in of for a in i.addresses if a.usable}

    assert usable(found) == usable(truth)
    assert {i.name: i.kind for i in found if i.name != "lo"} == {i.name: i.kind for i in truth if i.name != "lo"}


def fake_netifaces(monkeypatch: pytest.MonkeyPatch, tables: dict[str, dict[int, list[dict[str, str]]]]) -> None:
    import netifaces

    def addresses(name: str) -> dict[int, list[dict[str, str]]]:
        if not tables[name]:
            raise ValueError("You must specify a valid interface name.")
        return tables[name]

    four: list[tuple[str, str, bool]] = [("192.0.2.1", "en0", True), ("198.51.100.1", "en1", False)]
    gateways = {"default": {netifaces.AF_INET: four[0][:2]}, netifaces.AF_INET: four}
    gateways[netifaces.AF_INET6] = [("fe80::1%en0", "en0", True)]
    monkeypatch.setattr(netifaces, "interfaces", lambda: list(tables))
    monkeypatch.setattr(netifaces, "ifaddresses", addresses)
    monkeypatch.setattr(netifaces, "gateways", lambda: gateways)
    monkeypatch.setattr(sys, "platform", "darwin")


def test_off_linux_netifaces_is_all_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    import netifaces

    four, six = int(netifaces.AF_INET), int(netifaces.AF_INET6)
    tables = {
        "lo0": {four: [{"addr": "127.0.0.1", "netmask": "255.0.0.0"}]},
        "gone0": {},
        "en0": {
            four: [{"addr": "192.0.2.2", "netmask": "255.255.255.0"}, {"addr": "odd"}, {}],
            six: [
                {"addr": "2001:db8::2", "netmask": "ffff:ffff:ffff:ffff::"},
                {"addr": "2001:db8::3", "netmask": "ffff:ffff:ffff:ffff::/64"},
                {"addr": "fe80::2%en0", "netmask": "ffff:ffff:ffff:ffff::/64"},
            ],
        },
        "en1": {four: [{"addr": "198.51.100.2"}]},
    }
    fake_netifaces(monkeypatch, tables)
    lo, en0, en1 = interfaces({"wifi": ["en1"]})
    assert (lo.name, lo.kind) == ("lo0", Kind.LOOPBACK)
    assert en0 == Interface(
        "en0",
        0,
        Kind.ETH,
        addresses=(
            InterfaceAddress("192.0.2.2", Family.IPV4, 24),
            InterfaceAddress("2001:db8::2", Family.IPV6, 64),
            InterfaceAddress("2001:db8::3", Family.IPV6, 64),
            InterfaceAddress("fe80::2", Family.IPV6, 64, False, "link-local"),
        ),
        gateways=((Family.IPV4, "192.0.2.1"), (Family.IPV6, "fe80::1")),
    )
    assert en1.kind is Kind.WIFI
    assert en1.addresses == (InterfaceAddress("198.51.100.2", Family.IPV4, 32),)
    assert en1.gateways == ((Family.IPV4, "198.51.100.1"),)
    assert routed((en0,), ["203.0.113.1"]) == frozenset()


# Namespaces of our own


def in_namespace(setup: str, expression: str) -> Any:
    """Set up a fresh network namespace with `ip` and evaluate an expression in it; `found` is by name."""
    unshare, ip = shutil.which("unshare"), shutil.which("ip")
    if not (sys.platform == "linux" and unshare and ip):
        pytest.skip("SKIPPED LOUDLY: network namespaces need Linux with unshare and ip")
    if subprocess.run([unshare, "-rn", "true"], capture_output=True).returncode:
        pytest.skip("SKIPPED LOUDLY: this system does not allow network namespaces")
    script = f"""set -e
ip link set lo up
{setup}
exec {sys.executable} -c '
from multi.discovery import interfaces, routed
found = {{i.name: i for i in interfaces({{"wifi": ["named0"]}})}}
print(repr({expression}))'"""
    done = subprocess.run([unshare, "-rn", "sh", "-c", script], capture_output=True, text=True, timeout=60)
    if done.returncode and "Unknown device type" in done.stderr:
        pytest.skip(f"SKIPPED LOUDLY: the kernel lacks a device type: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    return ast.literal_eval(done.stdout)


PAIR = "ip link add name va type veth peer name vb && ip link set va up && ip link set vb up"


def test_in_a_namespace_link_states_and_reasons_are_read() -> None:
    reasons = in_namespace(
        f"""{PAIR}
        ip link add name down0 type veth peer name peer0
        ip link add name dark0 type veth peer name peer1; ip link set dark0 up
        ip addr add 10.1.0.1/24 dev va; ip addr add 10.2.0.1/24 dev dark0""",
        "{n: i.unusable_reason() for n, i in found.items()}",
    )
    assert reasons["lo"] == reasons["va"] == ""
    assert reasons["down0"] == "the interface is down"
    assert reasons["dark0"] == "no carrier"
    assert reasons["vb"] in ("no usable address (tentative)", "no usable address (link-local)")


def test_in_a_namespace_address_flags_become_reasons() -> None:
    addresses = in_namespace(
        f"""{PAIR}
        echo 60 > /proc/sys/net/ipv6/conf/va/dad_transmits || true
        ip addr add 10.1.0.1/24 dev va
        ip addr add 10.3.0.1 peer 10.3.0.2/32 dev va
        ip addr add fd01::1/64 dev va nodad
        ip addr add fd01::2/64 dev va nodad preferred_lft 0
        ip addr add fd01::3/64 dev va""",
        '[(a.address, a.prefix_length, a.usable, a.reason) for a in found["va"].addresses]',
    )
    assert ("10.1.0.1", 24, True, "") in addresses
    assert ("10.3.0.1", 32, True, "") in addresses
    assert ("fd01::1", 64, True, "") in addresses
    assert ("fd01::2", 64, False, "deprecated") in addresses
    assert ("fd01::3", 64, False, "tentative") in addresses
    link_local = [(usable, reason) for a, _, usable, reason in addresses if a.startswith("fe80:")]
    assert link_local == [(False, "tentative")] or link_local == [(False, "link-local")]


def test_in_a_namespace_default_routes_of_every_table_are_read() -> None:
    gateways = in_namespace(
        f"""{PAIR}
        ip addr add 10.1.0.1/24 dev va; ip addr add 10.2.0.1/24 dev vb; ip addr add fd01::1/64 dev va nodad
        ip route add default via 10.1.0.254 dev va
        ip route add default dev vb table 777
        ip route add 10.99.0.0/16 via 10.2.0.254 dev vb
        ip route add blackhole default metric 4000
        ip -6 route add default via fd01::fe dev va table 778
        ip -6 route add unreachable default metric 5000""",
        "{n: [(f.value, g) for f, g in i.gateways] for n, i in found.items()}",
    )
    assert sorted(gateways["va"]) == [("ipv4", "10.1.0.254"), ("ipv6", "fd01::fe")]
    assert gateways["vb"] == [("ipv4", "")]
    assert gateways["lo"] == []


def test_in_a_namespace_every_hop_of_a_multipath_default_counts() -> None:
    gateways = in_namespace(
        f"""{PAIR}
        ip addr add 10.1.0.1/24 dev va; ip addr add 10.2.0.1/24 dev vb
        ip route add default nexthop via 10.1.0.254 dev va nexthop via 10.2.0.254 dev vb
        ip addr add fd01::1/64 dev va nodad; ip addr add fd02::1/64 dev vb nodad
        ip -6 route add default nexthop via fd01::fe dev va nexthop via fd02::fe dev vb""",
        "{n: sorted((f.value, g) for f, g in i.gateways) for n, i in found.items()}",
    )
    assert gateways["va"] == [("ipv4", "10.1.0.254"), ("ipv6", "fd01::fe")]
    assert gateways["vb"] == [("ipv4", "10.2.0.254"), ("ipv6", "fd02::fe")]


def test_in_a_namespace_the_kernel_tells_which_remotes_have_a_route() -> None:
    pairs = in_namespace(
        f"""{PAIR}
        ip addr add 10.1.0.1/24 dev va; ip addr add 10.2.0.1/24 dev vb; ip addr add fd01::1/64 dev va nodad
        ip route add 10.99.0.0/16 via 10.1.0.254 dev va
        ip route add default via 10.2.0.254 dev vb table 777; ip rule add from 10.2.0.1 lookup 777
        ip -6 route add fd99::/32 via fd01::fe dev va""",
        'sorted(routed(found.values(), ["10.99.0.1", "203.0.113.1", "10.1.0.9", "fd99::1", "2001:db8::1"]))',
    )
    assert pairs == [
        ("va", "10.1.0.9"),
        ("va", "10.99.0.1"),
        ("va", "fd99::1"),
        ("vb", "10.1.0.9"),  # through the table of its rule
        ("vb", "10.99.0.1"),
        ("vb", "203.0.113.1"),
    ]


def test_in_a_namespace_devices_made_by_software_are_virtual_unless_named() -> None:
    kinds = in_namespace(
        "ip link add name eth0 type veth peer name named0",
        "{n: (i.kind.value, i.metered) for n, i in found.items()}",
    )
    assert kinds["lo"] == ("loopback", None)
    assert kinds["eth0"] == ("virtual", None), "a name in /sys of another namespace must not count"
    assert kinds["named0"] == ("wifi", None)


def test_in_a_namespace_interfaces_may_vanish_while_they_are_read() -> None:
    reads = in_namespace(
        "(for n in $(seq 150); do ip link add name v1 type veth peer name v2; ip link del v1; done) >/dev/null 2>&1 &",
        'all("lo" in {i.name for i in interfaces()} for _ in range(300))',
    )
    assert reads is True


# The table


def test_the_table_has_a_line_per_interface_and_cuts_nothing_when_piped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    many = tuple(InterfaceAddress(f"2001:db8:1111:2222:3333:4444:555:{n}", Family.IPV6, 64) for n in range(9))
    eth0 = Interface("eth0", 2, Kind.ETH, addresses=many, gateways=((Family.IPV6, "fe80::1"),))
    shown = (
        eth0,
        dataclasses.replace(eth0, name="odd[red]0", kind=Kind.CELLULAR, gateways=(), metered=True),
        Interface("wlan0", 3, Kind.WIFI, carrier=False),
        Interface("lo", 1, Kind.LOOPBACK, addresses=(InterfaceAddress("127.0.0.1", Family.IPV4, 8),)),
    )
    monkeypatch.setattr("multi.cli.interfaces.interfaces", lambda kinds: shown)
    assert show_interfaces() == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if line.strip()]
    by_name = {line[0]: line[1:] for line in lines}
    assert by_name["eth0"][-2:] == ["fe80::1", "yes"]
    assert [word.rstrip(",") for word in by_name["eth0"][1:10]] == [f"{a.address}/64" for a in many]
    assert by_name["odd[red]0"][0] == "cellular"
    assert " ".join(by_name["odd[red]0"][-5:]) == "yes yes, no default route"
    assert " ".join(by_name["wlan0"]) == "wifi no: no carrier"
    assert " ".join(by_name["lo"]) == "loopback 127.0.0.1/8 yes, this machine only"


@linux_only
def test_out_of_descriptors_is_not_taken_for_no_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    found = interfaces()
    monkeypatch.setattr(socket, "socket", refuse)
    for look in (interfaces, lambda: routed(found, ["192.0.2.1"])):
        with pytest.raises(OSError, match="Too many open files"):
            look()


def fork_while_somebody_reads() -> None:
    """Ends 0 when the child can read too."""
    reading, go_on = threading.Event(), threading.Event()
    real = module.snapshot

    def slow(kernel: NetlinkSocket) -> Snapshot:
        reading.set()
        go_on.wait(20)
        return real(kernel)

    setattr(module, "snapshot", slow)  # noqa: B010 - its own function of another type
    thread = threading.Thread(target=snapshots.read, kwargs={"anew": True})
    thread.start()
    reading.wait(20)
    child = os.fork()
    setattr(module, "snapshot", real)  # noqa: B010
    if not child:
        snapshots.read(anew=False)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    go_on.set()
    thread.join()
    assert status == 0
    assert snapshots.known() is not None


@linux_only
def test_a_forked_child_does_not_wait_for_a_thread_it_does_not_have() -> None:
    program = "from tests.unit.discovery.test_interfaces import fork_while_somebody_reads as f; f()"
    subprocess.run([sys.executable, "-W", "ignore", "-c", program], timeout=30, check=True)
