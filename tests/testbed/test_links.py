"""What can happen to the links of a running testbed, over both back ends."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from multi.lab.testbed import Direction, LinkSpec, Testbed, TestbedError, TestbedNotAllowed
from multi.lab.testbed.pytest_plugin import MakeTestbed, started

FAST = Direction(rate_mbps=100, delay_ms=1)
LINKS = (LinkSpec.symmetric("one", "eth0", FAST), LinkSpec.symmetric("two", "wlan0", FAST, kind="wifi"))
RTMGRP_LINK = 1


@pytest.fixture(scope="module", params=["tap", "veth"])
def testbed(request: pytest.FixtureRequest) -> Iterator[Testbed]:
    before = time.monotonic()
    with started(LINKS, backend=request.param) as running:
        took = time.monotonic() - before
        print(f"{request.param}: up in {took:.2f} s")
        assert took < 9.0
        yield running


def reaches(testbed: Testbed, interface: str, version: int = 4, patience: float = 5.0) -> bool:
    """Whether a datagram from this interface gets to the server."""
    family = socket.AF_INET6 if version == 6 else socket.AF_INET
    with (
        testbed.server.socket(family, socket.SOCK_DGRAM) as receiver,
        testbed.client.socket(family, socket.SOCK_DGRAM) as sender,
    ):
        receiver.bind((testbed.server.address(version), 0))
        receiver.settimeout(patience)
        try:
            sender.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, interface.encode())
            sender.sendto(b"hello", receiver.getsockname()[:2])
            return receiver.recv(100) == b"hello"
        except TimeoutError:
            return False
        except OSError as error:
            if error.errno in (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENODEV, errno.ENETDOWN):
                return False
            raise


def cut_off(testbed: Testbed, interface: str, version: int = 4) -> bool:
    return not reaches(testbed, interface, version, patience=0.5)


@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("name", ["one", "two"])
def test_bound_sockets_leave_through_their_link(testbed: Testbed, name: str, version: int) -> None:
    link = testbed.links[name]
    before = link.statistics().up.packets
    assert reaches(testbed, link.interface, version)
    assert link.statistics().up.packets > before
    family = socket.AF_INET6 if version == 6 else socket.AF_INET
    with testbed.client.socket(family, socket.SOCK_DGRAM) as sender:
        sender.bind((link.client_address(version), 0))
        before = link.statistics().up.packets
        sender.sendto(b"by source", (testbed.server.address(version), 9))
        deadline = time.monotonic() + 10.0
        while link.statistics().up.packets <= before:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_a_blackhole_is_silent_and_ends(testbed: Testbed) -> None:
    link = testbed.links["one"]
    link.blackhole(True)
    assert cut_off(testbed, link.interface)
    assert link.statistics().up.cut_drops > 0
    assert reaches(testbed, testbed.links["two"].interface)
    link.blackhole(False)
    assert reaches(testbed, link.interface)


def _events(testbed: Testbed) -> socket.socket:
    """A socket that hears what happens to the client's interfaces."""
    events = testbed.client.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
    events.bind((0, RTMGRP_LINK))
    events.settimeout(10.0)
    return events


def _hears(events: socket.socket, kind: int, condition: Callable[[int], bool]) -> float:
    """Seconds until a message of this kind about an interface whose flags satisfy the condition."""
    start = time.monotonic()
    while True:
        message = events.recv(65536)
        if int.from_bytes(message[4:6], "little") == kind and condition(int.from_bytes(message[24:28], "little")):
            return time.monotonic() - start


def test_a_lost_carrier_is_a_netlink_event(testbed: Testbed) -> None:
    link = testbed.links["one"]
    running, lower_up, new_link = 0x40, 0x10000, 16
    with _events(testbed) as events:
        link.carrier(False)
        took = _hears(events, new_link, lambda flags: not flags & (running if testbed.backend == "tap" else lower_up))
        print(f"{testbed.backend}: carrier loss heard after {took * 1e3:.1f} ms")
        assert cut_off(testbed, link.interface)
        link.carrier(True)
        _hears(events, new_link, lambda flags: bool(flags & lower_up))
    assert reaches(testbed, link.interface)


def test_an_interface_vanishes_and_reappears(testbed: Testbed) -> None:
    link = testbed.links["two"]
    del_link = 17
    with _events(testbed) as events:
        link.vanish()
        _hears(events, del_link, lambda _flags: True)
    assert cut_off(testbed, link.interface)
    link.vanish()
    assert reaches(testbed, testbed.links["one"].interface)
    link.reappear()
    assert reaches(testbed, link.interface)
    assert reaches(testbed, link.interface, 6)


def test_an_interface_that_vanishes_under_load_leaves_the_others_alone(testbed: Testbed) -> None:
    def load(sender: socket.socket, stop: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while not stop.is_set():
                sender.sendto(bytes(100), (testbed.server.address(), 9))

    for _ in range(5):
        # All sockets are made before: asking the relay for one would wake it up.
        with (
            testbed.server.socket(kind=socket.SOCK_DGRAM) as receiver,
            testbed.client.socket(kind=socket.SOCK_DGRAM) as probe,
            testbed.client.socket(kind=socket.SOCK_DGRAM) as sender,
        ):
            receiver.bind((testbed.server.address(), 0))
            receiver.settimeout(10.0)
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"eth0")
            sender.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"wlan0")
            stop = threading.Event()
            loading = threading.Thread(target=load, args=(sender, stop))
            loading.start()
            time.sleep(0.05)
            try:
                testbed.links["two"].vanish()
                probe.sendto(b"hello", receiver.getsockname())
                assert receiver.recv(100) == b"hello"
            finally:
                stop.set()
                loading.join()
        testbed.links["two"].reappear()


def test_addresses_go_and_come_back_by_version(testbed: Testbed) -> None:
    link = testbed.links["one"]
    link.remove_address(4)
    assert cut_off(testbed, link.interface, 4)
    assert reaches(testbed, link.interface, 6)
    link.remove_address()
    assert cut_off(testbed, link.interface, 6)
    link.restore_address()
    assert reaches(testbed, link.interface, 4)
    assert reaches(testbed, link.interface, 6)


def test_bad_changes_change_nothing(testbed: Testbed) -> None:
    link = testbed.links["one"]
    before = link.spec
    with pytest.raises(TestbedError, match="loss: 2 is outside"):
        link.set(rate_mbps=1, loss=2)
    with pytest.raises(TestbedError, match="'sideways' is unknown"):
        link.set(rate_mbps=1, direction="sideways")  # type: ignore[arg-type]  # that is the test
    assert link.spec == before


def test_a_program_that_fails_says_why(testbed: Testbed) -> None:
    async def run() -> None:
        assert (await testbed.client.exec(["cat"], input="through")).stdout == "through"
        with pytest.raises(TestbedError, match="status 3: out of order"):
            await testbed.client.exec(["sh", "-c", "echo out of order >&2; exit 3"])
        with pytest.raises(TestbedError, match="cannot run /no/such"):
            await testbed.client.exec(["/no/such"])
        with pytest.raises(TimeoutError):
            await testbed.client.exec(["sleep", "60"], timeout=0.1)
        with pytest.raises(TestbedError, match="cannot be imported"):
            await testbed.client.run_python(lambda: None)
        assert await testbed.client.run_python(socket.if_nameindex) != socket.if_nameindex()
        with pytest.raises(OSError, match="no interface"):
            await testbed.server.run_python(socket.if_nametoindex, "eth9")
        assert "wlan0" in await testbed.client.run_code("import socket; print(socket.if_nameindex())")

    asyncio.run(run())


def test_sockets_made_inside_belong_to_the_host(testbed: Testbed) -> None:
    if testbed.rootless:
        with pytest.raises(TestbedNotAllowed), testbed.client.entered():
            pass
        return
    outside = socket.if_nameindex()
    with testbed.client.entered():
        assert {"eth0", "wlan0"} <= {name for _index, name in socket.if_nameindex()}
    assert socket.if_nameindex() == outside


def test_two_testbeds_live_side_by_side(make_testbed: MakeTestbed) -> None:
    first, second = make_testbed(LINKS), make_testbed(LINKS)
    first.links["one"].blackhole(True)
    assert cut_off(first, "eth0")
    assert reaches(second, "eth0")


def test_new_ipv6_addresses_are_tentative_if_wanted(make_testbed: MakeTestbed) -> None:
    testbed = make_testbed(LINKS[:1], detect_duplicates=True)
    flags = asyncio.run(testbed.client.exec(["cat", "/proc/net/if_inet6"])).stdout.splitlines()
    assert any(int(line.split()[4], 16) & 0x40 for line in flags if line.endswith("eth0"))


@pytest.mark.parametrize("name", ["cubic", "bbr"])
def test_congestion_control_can_be_chosen(make_testbed: MakeTestbed, name: str) -> None:
    testbed = make_testbed(LINKS[:1], congestion=name)
    tcp_congestion = 13
    with testbed.server.socket() as listener, testbed.client.socket() as client:
        listener.bind((testbed.server.address(), 0))
        listener.listen()
        client.connect(listener.getsockname())
        accepted, _address = listener.accept()
        with accepted:
            for sock in (client, accepted):
                used = sock.getsockopt(socket.IPPROTO_TCP, tcp_congestion, 16)
                assert used.rstrip(b"\0").decode() == name


def test_an_unknown_congestion_control_is_refused(make_testbed: MakeTestbed) -> None:
    make_testbed(LINKS[:1])  # so that this is skipped where nothing is allowed
    with pytest.raises(TestbedNotAllowed, match="no congestion control 'warp' here; available: "):
        Testbed(LINKS[:1], congestion="warp").start()


def test_mptcp_gets_through(make_testbed: MakeTestbed) -> None:
    testbed = make_testbed(LINKS)
    try:
        listener = testbed.server.socket(protocol=262)
    except TestbedError as error:
        pytest.skip(f"NO MPTCP HERE: {error}")
    with listener, testbed.client.socket(protocol=262) as client:
        listener.bind((testbed.server.address(), 0))
        listener.listen()
        client.connect(listener.getsockname())
        accepted, _address = listener.accept()
        with accepted:
            client.sendall(b"many ways")
            assert accepted.recv(100) == b"many ways"
            tcp_is_mptcp = 43
            assert client.getsockopt(socket.IPPROTO_TCP, tcp_is_mptcp) == 1


def test_mptcp_makes_subflows_over_all_links_if_wanted(make_testbed: MakeTestbed) -> None:
    testbed = make_testbed(LINKS, mptcp=True)
    with testbed.server.socket(protocol=262) as listener, testbed.client.socket(protocol=262) as client:
        listener.bind((testbed.server.address(), 0))
        listener.listen()
        client.connect(listener.getsockname())
        accepted, _address = listener.accept()
        with accepted:
            accepted.sendall(b"both ways")
            assert client.recv(100) == b"both ways"
            deadline = time.monotonic() + 5.0
            while not all(link.statistics().up.packets for link in testbed.links.values()):
                assert time.monotonic() < deadline
                client.sendall(bytes(100_000))
                accepted.recv(1 << 20)
