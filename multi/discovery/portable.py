"""Interfaces through netifaces, for systems without netlink.

It tells names, addresses and gateways. It does not tell whether a link is up and has a carrier, or an address
is still tentative, so every interface with an address counts as usable.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from ipaddress import ip_address, ip_network

import netifaces

from multi.discovery.kinds import ARPHRD_LOOPBACK, DeviceFacts
from multi.discovery.sysfs import SYS_CLASS_NET, device_facts
from multi.types import Family, InterfaceAddress

FAMILIES = ((Family.IPV4, netifaces.AF_INET), (Family.IPV6, netifaces.AF_INET6))


@dataclass(frozen=True, slots=True)
class PortableInterface:
    facts: DeviceFacts
    addresses: tuple[InterfaceAddress, ...]
    gateways: tuple[tuple[Family, str], ...]


def read() -> list[PortableInterface]:
    """All interfaces; those that vanish while they are read are left out."""
    gateways = netifaces.gateways()
    found = []
    for name in netifaces.interfaces():
        try:
            by_family = netifaces.ifaddresses(name)
        except (OSError, ValueError):
            continue
        addresses = tuple(
            address
            for family, number in FAMILIES
            for entry in by_family.get(number, ())
            if (address := _address(family, entry)) is not None
        )
        routes = tuple((f, gateway) for f, n in FAMILIES for gateway in _gateways(gateways.get(n, ()), name))
        found.append(PortableInterface(_facts(name, addresses), addresses, routes))
    return found


def _facts(name: str, addresses: Sequence[InterfaceAddress]) -> DeviceFacts:
    if SYS_CLASS_NET.is_dir():
        return device_facts(name)
    loopback = any(ip_address(a.address).is_loopback for a in addresses)
    return DeviceFacts(name, hardware_type=ARPHRD_LOOPBACK if loopback else 1)


def _address(family: Family, entry: dict[str, str]) -> InterfaceAddress | None:
    literal = entry.get("addr", "").partition("%")[0]  # link-local addresses come with their scope
    try:
        address = ip_address(literal)
        # IPv6 masks come as `ffff:ffff:ffff:ffff::/64`, as a bare mask on some systems, or not at all.
        mask, _, length = entry.get("netmask", "").partition("/")
        prefix = int(length) if length else _prefix_length(mask, address.max_prefixlen)
    except ValueError:
        return None
    link_local = family is Family.IPV6 and address.is_link_local
    return InterfaceAddress(str(address), family, prefix, not link_local, "link-local" if link_local else "")


def _prefix_length(mask: str, longest: int) -> int:
    if not mask:
        return longest
    if ":" in mask:
        return int(ip_address(mask)).bit_count()
    return ip_network(f"0.0.0.0/{mask}").prefixlen


def _gateways(routes: Iterable[object], name: str) -> Iterator[str]:
    """Gateways of the default routes through an interface, from tuples (gateway, interface, ...)."""
    for route in routes:
        if isinstance(route, tuple) and len(route) >= 2 and route[1] == name:
            yield str(route[0]).partition("%")[0]
