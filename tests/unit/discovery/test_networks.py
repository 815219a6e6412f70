"""What identifies a network."""

from __future__ import annotations

from dataclasses import replace

import pytest

from multi.discovery import interfaces
from multi.discovery.networks import network_id
from multi.types import Family, Interface, InterfaceAddress, Kind

NO_INDEX = 0x7FFFFFFF  # of no interface
FOUR = InterfaceAddress("192.168.1.20", Family.IPV4, 24)
SIX = InterfaceAddress("2001:db8:1::20", Family.IPV6, 64)
LINK_LOCAL = InterfaceAddress("fe80::1", Family.IPV6, 64, False, "link-local")
WLAN = Interface("wlan0", NO_INDEX, Kind.WIFI, addresses=(FOUR,), gateways=((Family.IPV4, "192.168.1.1"),))


def test_another_address_on_the_same_subnet_is_the_same_network() -> None:
    assert network_id(WLAN) == network_id(replace(WLAN, addresses=(replace(FOUR, address="192.168.1.77"),)))


def test_ipv6_that_comes_later_does_not_change_the_network() -> None:
    assert network_id(WLAN) == network_id(replace(WLAN, addresses=(LINK_LOCAL, FOUR, SIX)))


@pytest.mark.parametrize(
    "other",
    [
        replace(WLAN, addresses=(replace(FOUR, address="192.168.2.20"),)),
        replace(WLAN, addresses=(replace(FOUR, prefix_length=16),)),
        replace(WLAN, addresses=(SIX,)),
        replace(WLAN, addresses=()),
        replace(WLAN, name="wlan1"),
        replace(WLAN, kind=Kind.ETH),
    ],
)
def test_another_subnet_or_interface_is_another_network(other: Interface) -> None:
    assert network_id(WLAN) != network_id(other)


def test_a_cellular_network_is_the_same_with_the_new_address_of_each_connection() -> None:
    before = Interface("wwan0", NO_INDEX, Kind.CELLULAR, addresses=(InterfaceAddress("10.1.2.3", Family.IPV4, 30),))
    after = replace(before, addresses=(InterfaceAddress("10.9.8.7", Family.IPV4, 30), SIX))
    assert network_id(before) == network_id(after)
    assert network_id(before) != network_id(replace(before, name="wwan1"))


def test_every_interface_of_this_machine_is_on_a_network() -> None:
    found = interfaces()
    assert len({network_id(interface) for interface in found}) == len(found)
