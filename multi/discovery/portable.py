"""Interfaces through netifaces, for systems without netlink.

It tells names, addresses and gateways. It does not tell whether a link is up and has a carrier, or an address
is still tentative, so every interface with an address counts as usable.
"""

from __future__ import annotations

import socket
import zlib
from collections.abc import Iterable, Iterator
from ipaddress import ip_address, ip_network

from multi.discovery.kinds import ARPHRD_LOOPBACK, DeviceFacts
from multi.discovery.snapshot import AddressRecord, KernelRoute, LinkRecord, Snapshot
from multi.types import Family, InterfaceAddress

FAMILIES = ((Family.IPV4, int(socket.AF_INET)), (Family.IPV6, int(socket.AF_INET6)))


def read() -> Snapshot:
    """All interfaces; those that vanish while they are read are left out. Raises OSError."""
    try:
        import netifaces
    except ImportError as error:
        raise OSError(str(error)) from error
    gateways = netifaces.gateways()
    links, addresses, routes = [], [], []
    for name in netifaces.interfaces():
        try:
            by_family = netifaces.ifaddresses(name)
        except (OSError, ValueError):
            continue
        index = _index(name)
        own = [_address(f, entry) for f, n in FAMILIES for entry in by_family.get(n, ())]
        addresses += [AddressRecord(index, address) for address in own if address is not None]
        routes += [KernelRoute(index, f, g) for f, n in FAMILIES for g in _gateways(gateways.get(n, ()), name)]
        loopback = any(ip_address(a.address).is_loopback for a in own if a is not None)
        mac = next((entry["addr"] for entry in by_family.get(netifaces.AF_LINK, ()) if "addr" in entry), "")
        links.append(LinkRecord(index, DeviceFacts(name, ARPHRD_LOOPBACK if loopback else 1, mac=mac)))
    return Snapshot(tuple(links), tuple(addresses), tuple(routes))


def _index(name: str) -> int:
    try:
        return socket.if_nametoindex(name)
    except OSError:
        return -zlib.crc32(name.encode())  # Windows has none for these names


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
