"""Where a server may send its client."""

from __future__ import annotations

import pytest

from multi.paths.told import MAX_TOLD, PROVED_KEPT, TOLD_APART, ToldAddresses, may_be_told
from multi.types import Candidate, Family

PUBLIC, PRIVATE, LOOPBACK = "93.184.215.14", "192.168.1.20", "127.0.0.1"


@pytest.mark.parametrize(
    ("told", "opened_to"),
    [
        ("8.8.8.8", PUBLIC),
        ("2606:2800:21f:cb07::1", PUBLIC),
        ("8.8.8.8", PRIVATE),
        ("8.8.8.8", LOOPBACK),
        ("10.1.2.3", PRIVATE),
        ("fd00::1", PRIVATE),
        ("100.64.0.1", "100.64.7.7"),
        ("127.0.0.2", LOOPBACK),
        ("::1", LOOPBACK),
    ],
)
def test_a_session_follows_its_server_within_the_kind_of_network_it_was_opened_in(told: str, opened_to: str) -> None:
    assert may_be_told(told, opened_to)


@pytest.mark.parametrize("opened_to", [PUBLIC, PRIVATE, "2606:2800:21f:cb07::1"])
def test_nobody_is_sent_to_loopback_from_elsewhere(opened_to: str) -> None:
    assert not may_be_told("127.0.0.1", opened_to)
    assert not may_be_told("::1", opened_to)


@pytest.mark.parametrize("opened_to", [PUBLIC, LOOPBACK])
@pytest.mark.parametrize("told", ["10.1.2.3", "192.168.1.1", "172.16.0.1", "100.64.0.1", "fd00::1", "198.18.0.1"])
def test_nobody_is_sent_to_a_private_address_from_elsewhere(told: str, opened_to: str) -> None:
    assert not may_be_told(told, opened_to)


@pytest.mark.parametrize("opened_to", [PUBLIC, PRIVATE, LOOPBACK, "169.254.1.2", "fe80::2"])
@pytest.mark.parametrize(
    "told",
    [
        "169.254.1.1",
        "169.254.169.254",
        "fe80::1",
        "224.0.0.1",
        "ff02::1",
        "0.0.0.0",
        "0.1.2.3",
        "::",
        "255.255.255.255",
        "240.0.0.1",
        "::ffff:127.0.0.1",
        "::ffff:8.8.8.8",
        "::127.0.0.1",
        "64:ff9b::7f00:1",
        "2002:7f00:1::",
        "2002:c0a8:101::1",
    ],
)
def test_nobody_is_sent_to_link_local_addresses_and_to_what_is_no_server(told: str, opened_to: str) -> None:
    assert not may_be_told(told, opened_to)


def told_at(port: int, address: str = "203.0.113.9") -> Candidate:
    return Candidate("tcp", Family.IPV4, "server.example", address, port, told=True)


def test_a_machine_is_dialled_once_a_second_whatever_ports_it_is_told_with_until_the_server_is_there() -> None:
    addresses, first, second = ToldAddresses(), told_at(443), told_at(444)
    assert addresses.free_at(first) < 5.0
    addresses.dialled(first, 5.0)
    assert addresses.free_at(first) == addresses.free_at(second) == 5.0 + TOLD_APART
    addresses.proved(second)
    assert (addresses.doubtful(first), addresses.doubtful(second)) == (True, False)
    assert addresses.free_at(second) < 5.0 < addresses.free_at(first)


def test_a_server_that_tells_ever_new_addresses_gets_no_more_dials_than_for_those_it_may_tell_at_a_time() -> None:
    addresses, dials = ToldAddresses(), list[float]()
    for now in (tick / 64 for tick in range(640)):
        candidate = told_at(443, f"2001:db8::{len(dials):x}")
        if addresses.free_at(candidate) <= now:
            addresses.dialled(candidate, now)
            dials.append(now)
    assert len(dials) == MAX_TOLD * 10
    assert min(later - earlier for earlier, later in zip(dials, dials[MAX_TOLD:], strict=False)) >= TOLD_APART


def test_where_the_server_has_proved_itself_others_are_not_waited_for() -> None:
    addresses = ToldAddresses()
    addresses.proved(told_at(443))
    for number in range(MAX_TOLD):
        addresses.dialled(told_at(443, f"203.0.113.{number}"), 5.0)
    assert addresses.free_at(told_at(443, "203.0.113.100")) == 5.0 + TOLD_APART
    addresses.dialled(told_at(443), 5.0)
    assert addresses.free_at(told_at(443)) < 5.0


def test_a_server_that_tells_ever_new_addresses_fills_no_memory() -> None:
    addresses = ToldAddresses()
    for port in range(PROVED_KEPT + 1):
        addresses.proved(told_at(port + 1))
    assert [port for port in range(1, PROVED_KEPT + 2) if addresses.doubtful(told_at(port))] == [1]
