"""Requests to the MPTCP path manager: what is sent, what is understood, and why nothing can be done."""

from __future__ import annotations

import errno
import json
import os
import re
import socket
import struct
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from multi.discovery.netlink import attribute, attributes, u32
from multi.discovery.snapshot import snapshots
from multi.linux import mptcp_endpoints, mptcp_pm
from multi.linux.mptcp_endpoints import EndpointLease, lease_endpoints
from multi.linux.mptcp_pm import (
    FLAG_SIGNAL,
    FLAG_SUBFLOW,
    Endpoint,
    MptcpAddress,
    MptcpLimits,
    MptcpPathManager,
    SubflowName,
    address_of,
    parse_endpoint,
    why_no_subflows,
)
from multi.paths.candidates import one_per_interface
from multi.transports.mptcp.info import subflow_names
from multi.types import Candidate, Family, Source

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="MPTCP path managers exist on Linux only")

CANDIDATE = Candidate(
    "mptcp",
    Family.IPV4,
    "server",
    "10.0.0.1",
    7788,
    interface="eth0",
    local_address="10.0.1.2",
    more_sources=(Source("wlan0", "10.0.2.2", "wifi"),),
    kind="eth",
)
ETH, WLAN = MptcpAddress(2, "10.0.1.2"), MptcpAddress(3, "10.0.2.2")


def _u16(kind: int, value: int) -> bytes:
    return attribute(kind, struct.pack("=H", value))


class Kernel:
    """A path manager as the kernel would be, in place of `MptcpPathManager`."""

    def __init__(self, *endpoints: Endpoint, limit: int = 2, privileged: bool = True) -> None:
        self.present = list(endpoints)
        self.limit = MptcpLimits(limit, 0)
        self.privileged = privileged
        self.removed: list[str] = []

    def __enter__(self) -> Kernel:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def close(self) -> None:
        pass

    def permitted(self) -> bool:
        return self.privileged

    def endpoints(self) -> tuple[Endpoint, ...]:
        return tuple(self.present)

    def add_endpoint(self, address: str, index: int, flags: int = FLAG_SUBFLOW) -> None:
        if any(endpoint.address == address for endpoint in self.present):
            raise FileExistsError(errno.EEXIST, "file exists")
        self.present.append(Endpoint(address, index, len(self.present) + 1, flags))

    def remove_endpoint(self, endpoint: Endpoint) -> None:
        if endpoint not in self.present:
            raise OSError(errno.EINVAL, "invalid argument")
        self.present.remove(endpoint)
        self.removed.append(endpoint.address)

    def limits(self) -> MptcpLimits:
        return self.limit

    def set_limits(self, limits: MptcpLimits) -> None:
        self.limit = limits

    def raise_limits(self, subflows: int) -> MptcpLimits | None:
        before = self.limit
        if before.subflows >= subflows:
            return None
        self.limit = replace(before, subflows=subflows)
        return before


@pytest.fixture
def book(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "book.json"
    monkeypatch.setattr(mptcp_endpoints, "_book_file", lambda: path)
    return path


def install(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> Kernel:
    for module in (mptcp_pm, mptcp_endpoints):
        monkeypatch.setattr(module, "MptcpPathManager", lambda: kernel)
    return kernel


class Recorded:
    """Takes requests in place of the kernel."""

    def __init__(self, *answers: bytes) -> None:
        self.requests: list[tuple[int, bytes, bool]] = []
        self.answers = list(answers)

    def request(self, command: int, body: bytes = b"", *, dump: bool = False) -> list[bytes]:
        self.requests.append((command, body, dump))
        return self.answers


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    recorded = Recorded()
    monkeypatch.setattr(MptcpPathManager, "__init__", lambda _self: None)
    monkeypatch.setattr(
        MptcpPathManager, "request", lambda _self, *arguments, **how: recorded.request(*arguments, **how)
    )
    return recorded


# What is sent and understood


def test_attributes_survive_padding_and_stop_where_they_are_cut_short() -> None:
    data = attribute(1, b"abc") + _u16(2, 7)
    assert attributes(data) == {1: b"abc", 2: struct.pack("=H", 7)}
    assert attributes(data[:10]) == {1: b"abc"}
    assert attributes(b"\x00\x00\x01\x00") == {}
    assert attributes(b"") == {}


def test_an_endpoint_is_added_with_family_address_flags_and_interface(wire: Recorded) -> None:
    MptcpPathManager().add_endpoint("10.0.2.2", 3)
    ((command, body, _dump),) = wire.requests
    assert command == 1
    assert attributes(attributes(body)[1]) == {
        1: struct.pack("=H", socket.AF_INET),
        3: bytes((10, 0, 2, 2)),
        6: struct.pack("=I", FLAG_SUBFLOW),
        7: struct.pack("=i", 3),
    }


def test_a_subflow_is_asked_for_by_token_from_an_address_to_an_address(wire: Recorded) -> None:
    MptcpPathManager().create_subflow(0xABCD, MptcpAddress(5, "fd00::2"), 9, "fd00::1", 7788)
    ((command, body, _dump),) = wire.requests
    found = attributes(body)
    assert command == 10
    assert found[4] == struct.pack("=I", 0xABCD)
    assert attributes(found[1]) == {
        1: struct.pack("=H", socket.AF_INET6),
        2: b"\x09",
        4: socket.inet_pton(socket.AF_INET6, "fd00::2"),
        7: struct.pack("=i", 5),
    }
    assert attributes(found[6])[5] == struct.pack("=H", 7788)


def test_a_subflow_is_destroyed_by_both_ports(wire: Recorded) -> None:
    MptcpPathManager().destroy_subflow(1, SubflowName("10.0.2.2", 4711, "10.0.0.1", 7788))
    ((command, body, _dump),) = wire.requests
    found = attributes(body)
    assert command == 11
    assert attributes(found[1])[5] == struct.pack("=H", 4711)
    assert attributes(found[6])[5] == struct.pack("=H", 7788)


def test_limits_are_raised_only_where_they_are_lower(wire: Recorded) -> None:
    wire.answers = [u32(2, 1) + u32(3, 2)]
    assert MptcpPathManager().raise_limits(2) is None
    assert MptcpPathManager().raise_limits(4) == MptcpLimits(2, 1)
    assert wire.requests[-1] == (5, u32(2, 1) + u32(3, 4), False)


def test_endpoints_that_make_no_sense_are_passed_over() -> None:
    whole = attribute(1, _u16(1, 2) + attribute(3, bytes((10, 0, 2, 2))) + attribute(2, b"\x07") + u32(6, 2))
    assert parse_endpoint(whole) == Endpoint("10.0.2.2", 0, 7, FLAG_SUBFLOW)
    assert parse_endpoint(attribute(1, attribute(3, b"\x0a"))) is None
    assert parse_endpoint(b"") is None


def test_names_of_subflows_are_read_from_socket_addresses() -> None:
    def address(text: str, port: int) -> bytes:
        head = struct.pack("=H", socket.AF_INET6) + struct.pack("!HI", port, 0)
        return (head + socket.inet_pton(socket.AF_INET6, text)).ljust(128, b"\0")

    plain = struct.pack("=H", socket.AF_INET) + struct.pack("!H", 1) + bytes((10, 0, 0, 1))
    names = bytes(8) + plain.ljust(128, b"\0") + address("::ffff:10.0.0.2", 2)
    names += bytes(8) + address("fd00::1", 3) + bytes(128)
    assert subflow_names(names) == (("10.0.0.1", 1, "10.0.0.2", 2), ("fd00::1", 3, "", 0))
    assert subflow_names(b"") == ()


# Why not


def test_there_is_a_reason_without_mptcp_in_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mptcp_pm, "_IPPROTO_MPTCP", 261)
    assert "this kernel has no MPTCP" in why_no_subflows()


def test_there_is_a_reason_where_mptcp_is_switched_off(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "enabled").write_text("0\n")
    monkeypatch.setattr(mptcp_pm, "SYSCTL", tmp_path)
    monkeypatch.setattr(mptcp_pm, "_IPPROTO_MPTCP", 261)
    assert why_no_subflows() == "MPTCP is switched off on this host (net.mptcp.enabled is 0)"


@pytest.mark.parametrize(
    ("kind", "kernel", "reason"),
    [
        ("userspace", Kernel(privileged=False), "is in user space .* needs CAP_NET_ADMIN"),
        ("bpf", Kernel(), "path manager of this host is 'bpf'"),
        ("kernel", Kernel(privileged=False), "no endpoint for wlan0.*ip mptcp endpoint add 10.0.2.2 dev wlan0 subflow"),
        (
            "kernel",
            Kernel(Endpoint("10.0.2.2", 3, 1, FLAG_SIGNAL), privileged=False),
            "no endpoint for wlan0",
        ),
        (
            "kernel",
            Kernel(Endpoint("10.0.2.2", 9, 1, FLAG_SUBFLOW), privileged=False),
            "no endpoint for wlan0",
        ),
        (
            "kernel",
            Kernel(Endpoint("10.0.2.2", 3, 1, FLAG_SUBFLOW), limit=0, privileged=False),
            "0 further subflows.*ip mptcp limits set subflows 1",
        ),
        ("kernel", Kernel(Endpoint("10.0.2.2", 0, 1, FLAG_SUBFLOW), privileged=False), "^$"),
        ("kernel", Kernel(), "^$"),
        ("userspace", Kernel(), "^$"),
    ],
)
def test_the_reason_is_exact(kind: str, kernel: Kernel, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    install(kernel, monkeypatch)
    monkeypatch.setattr(mptcp_pm, "_why_no_mptcp", lambda: "")
    monkeypatch.setattr(mptcp_pm, "path_manager_type", lambda: kind)
    monkeypatch.setattr(mptcp_pm, "address_of", lambda _source, _family: WLAN)
    found = why_no_subflows(CANDIDATE)
    assert re.search(reason, found), found


def test_an_interface_that_does_not_exist_has_no_place() -> None:
    assert address_of(Source("nosuch0"), Family.IPV4) == "nosuch0: no such interface"
    assert address_of(Source("a name that is too long for an interface"), Family.IPV4).__class__ is str


def test_a_shortage_tells_nothing_of_an_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_arguments: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    snapshots.close()
    monkeypatch.setattr(socket, "socket", full)
    with pytest.raises(OSError, match="Too many open files"):
        address_of(Source("lo"), Family.IPV4)


def test_loopback_has_a_place_and_an_address_that_is_gone_is_replaced() -> None:
    assert address_of(Source("lo"), Family.IPV4) == MptcpAddress(socket.if_nametoindex("lo"), "127.0.0.1")
    assert address_of(Source("lo", "192.0.2.1"), Family.IPV4) == MptcpAddress(socket.if_nametoindex("lo"), "127.0.0.1")


# Lending


def test_what_was_added_goes_with_the_last_who_uses_it(book: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = install(Kernel(limit=0), monkeypatch)
    first, second = lease_endpoints([WLAN], 1), lease_endpoints([WLAN], 1)
    assert [endpoint.address for endpoint in kernel.present] == ["10.0.2.2"]
    assert kernel.limit.subflows == 1
    first.release()
    first.release()
    assert kernel.present
    assert kernel.limit.subflows == 1
    second.release()
    assert kernel.present == []
    assert kernel.limit.subflows == 0
    assert not book.exists()


def test_what_an_administrator_has_set_up_is_used_and_left_alone(book: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = Endpoint("10.0.2.2", 0, 1, FLAG_SUBFLOW)
    kernel = install(Kernel(theirs), monkeypatch)
    lease = lease_endpoints([WLAN], 1)
    lease.renew(WLAN)
    lease.suspend(WLAN)
    lease.release()
    assert kernel.present == [theirs]
    assert kernel.removed == []


def test_an_endpoint_for_another_purpose_is_not_touched(book: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = Endpoint("10.0.2.2", 3, 1, FLAG_SIGNAL)
    kernel = install(Kernel(theirs), monkeypatch)
    with pytest.raises(FileExistsError, match="for another purpose"):
        lease_endpoints([ETH, WLAN], 2)
    assert kernel.present == [theirs]
    assert not book.exists()


def test_without_privilege_only_what_is_there_can_be_used(book: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = install(Kernel(Endpoint("10.0.2.2", 3, 1, FLAG_SUBFLOW), privileged=False), monkeypatch)
    lease_endpoints([WLAN], 1).release()
    with pytest.raises(PermissionError, match=r"10\.0\.1\.2 needs CAP_NET_ADMIN"):
        lease_endpoints([ETH], 1)
    with pytest.raises(PermissionError, match="limit"):
        lease_endpoints([WLAN], 3)
    assert len(kernel.present) == 1
    assert not book.exists()


def test_the_next_one_takes_away_what_a_killed_process_left(book: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = install(Kernel(limit=0), monkeypatch)
    lease_endpoints([WLAN], 1)
    content = json.loads(book.read_text())
    dead = f"{os.getpid()}:1:1"  # this process id, started at another time
    for change in content:
        change["users"] = [dead]
    book.write_text(json.dumps(content))
    lease = lease_endpoints([ETH], 0)
    assert [endpoint.address for endpoint in kernel.present] == ["10.0.1.2"]
    assert kernel.removed == ["10.0.2.2"]
    lease.release()
    assert kernel.present == []
    assert kernel.limit.subflows == 0


def test_a_limit_that_somebody_else_changed_meanwhile_stays(book: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = install(Kernel(limit=0), monkeypatch)
    lease = lease_endpoints([], 2)
    kernel.set_limits(MptcpLimits(5, 0))
    lease.release()
    assert kernel.limit.subflows == 5


@pytest.mark.parametrize("content", [b"{", b"[]", b"[{}]", b'{"limits": 3}', b"3", b"\xff\xfe"])
def test_a_damaged_record_stops_nobody(book: Path, content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = install(Kernel(), monkeypatch)
    book.write_bytes(content)
    lease_endpoints([WLAN], 1).release()
    assert kernel.present == []


def test_an_interface_with_a_new_number_gets_a_new_endpoint(book: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = install(Kernel(), monkeypatch)
    lease: EndpointLease = lease_endpoints([WLAN], 1)
    moved = MptcpAddress(9, WLAN.address)
    lease.renew(moved)
    assert [(endpoint.address, endpoint.index) for endpoint in kernel.present] == [(WLAN.address, 9)]
    lease.release()
    assert kernel.present == []


# Instead of subflows


def test_one_connection_for_each_interface_has_its_address_and_kind() -> None:
    first, second = one_per_interface(replace(CANDIDATE, group="fast"))
    assert (first.interface, first.local_address, first.kind, first.group) == ("eth0", "10.0.1.2", "eth", "fast")
    assert (second.interface, second.local_address, second.kind) == ("wlan0", "10.0.2.2", "wifi")
    assert second.group == "fast, wlan0"
    assert not first.more_interfaces
    assert not second.more_interfaces
    assert not second.more_sources


def test_one_connection_for_each_interface_works_from_names_alone() -> None:
    found = one_per_interface(replace(CANDIDATE, more_sources=(Source("wlan0"), Source("wwan0"))))
    assert [(c.interface, c.local_address) for c in found] == [("eth0", "10.0.1.2"), ("wlan0", ""), ("wwan0", "")]
    assert [c.group for c in found] == ["", "", ""]


def test_a_candidate_of_one_interface_stays_what_it_is() -> None:
    alone = replace(CANDIDATE, more_sources=())
    assert one_per_interface(alone) == [alone]
