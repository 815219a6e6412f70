"""Requests to the MPTCP path manager: what is sent, what is understood, and why nothing can be done."""

from __future__ import annotations

import errno
import os
import re
import socket
import struct
import sys
from pathlib import Path

import pytest

from multi.discovery.netlink import attribute, attributes, u32
from multi.discovery.snapshot import snapshots
from multi.linux import mptcp_pm
from multi.linux.mptcp_pm import (
    FLAG_SUBFLOW,
    NO_MPTCP,
    Endpoint,
    MptcpAddress,
    MptcpPathManager,
    address_of,
    parse_endpoint,
    path_manager_type,
    why_no_subflows,
)
from multi.types import Family, Source
from tests.unit.linux.fake_mptcp import CANDIDATE, WLAN, Kernel

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="MPTCP path managers exist on Linux only")


def _u16(kind: int, value: int) -> bytes:
    return attribute(kind, struct.pack("=H", value))


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


def test_an_endpoint_is_removed_by_its_number(wire: Recorded) -> None:
    MptcpPathManager().remove_endpoint(Endpoint("fd00::2", 3, 9, FLAG_SUBFLOW))
    ((command, body, _dump),) = wire.requests
    assert command == 2
    assert attributes(attributes(body)[1]) == {
        1: struct.pack("=H", socket.AF_INET6),
        2: b"\x09",
        4: socket.inet_pton(socket.AF_INET6, "fd00::2"),
    }


def test_the_limit_of_subflows_is_read_and_set_alone(wire: Recorded) -> None:
    wire.answers = [u32(2, 1) + u32(3, 2)]
    assert MptcpPathManager().subflow_limit() == 2
    MptcpPathManager().set_subflow_limit(4)
    assert wire.requests[-1] == (5, u32(3, 4), False)


def test_endpoints_that_make_no_sense_are_passed_over() -> None:
    whole = attribute(1, _u16(1, 2) + attribute(3, bytes((10, 0, 2, 2))) + attribute(2, b"\x07") + u32(6, 2))
    assert parse_endpoint(whole) == Endpoint("10.0.2.2", 0, 7, FLAG_SUBFLOW)
    assert parse_endpoint(attribute(1, attribute(3, b"\x0a"))) is None
    assert parse_endpoint(b"") is None


# Why not


def test_there_is_a_reason_without_mptcp_in_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mptcp_pm, "IPPROTO_MPTCP", 261)
    assert why_no_subflows(CANDIDATE) == NO_MPTCP


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"path_manager": "bpf\n", "pm_type": "0\n"}, "bpf"),
        ({"pm_type": "0\n"}, "kernel"),
        ({"pm_type": "1\n"}, "userspace"),
        ({}, "kernel"),
    ],
)
def test_the_path_manager_is_known_by_old_and_new_names(
    files: dict[str, str], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    monkeypatch.setattr(mptcp_pm, "SYSCTL", tmp_path)
    assert path_manager_type() == expected


@pytest.mark.parametrize(
    ("kind", "kernel", "reason"),
    [
        ("userspace", Kernel(), "path manager of this host is 'userspace', which takes no requests"),
        ("kernel", Kernel(privileged=False), "no endpoint for wlan0.*ip mptcp endpoint add 10.0.2.2 dev wlan0 subflow"),
        (
            "kernel",
            Kernel(Endpoint("10.0.2.2", 3, 1, 1), privileged=False),
            "no endpoint for wlan0",
        ),
        (
            "kernel",
            Kernel(Endpoint("10.0.2.2", 9, 1, FLAG_SUBFLOW), privileged=False),
            "no endpoint for wlan0",
        ),
        (
            "kernel",
            Kernel(Endpoint("10.0.2.2", 3, 1, FLAG_SUBFLOW), limit=0),
            "0 further subflows .ip mptcp limits set subflows 1",
        ),
        ("kernel", Kernel(Endpoint("10.0.2.2", 0, 1, FLAG_SUBFLOW), privileged=False), "^$"),
        ("kernel", Kernel(), "^$"),
    ],
)
def test_the_reason_is_exact(kind: str, kernel: Kernel, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel.install(monkeypatch)
    monkeypatch.setattr(mptcp_pm, "mptcp_available", lambda: True)
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
