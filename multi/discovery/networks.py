"""Which network an interface is on, so that what was learnt there is found again after a reconnection.

The router's hardware address says it best: it is the same tomorrow, and another one in the hotel that uses the same
private addresses. Only the kernel's table of neighbours is asked, which costs no packet.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Mapping
from ipaddress import ip_interface

from multi.discovery.resources import is_exhaustion
from multi.discovery.snapshot import neighbours
from multi.types import Family, Interface, Kind

log = logging.getLogger("multi.discovery")

SHARED_MACS = ("00:00:5e:00:01:", "00:00:5e:00:02:", "00:00:0c:07:ac:", "00:00:0c:9f:f")
"""Virtual routers (VRRP of RFC 9568, HSRP): the same address on networks that have nothing to do with each other."""

_Neighbours = Mapping[tuple[int, str], str]
"""Index of the interface, IP address -> hardware address."""


def network_ids(found: Iterable[Interface]) -> dict[str, str]:
    """For each interface, by name, what identifies the network it is on: to be compared, not to be read.

    The kind of the interface and the router's hardware address; where that is not known the name of the interface
    and its subnets, but for a cellular interface, whose addresses are new each time, the name alone. Takes a fraction
    of a millisecond, in any thread.
    """
    listed = list(found)
    known: _Neighbours = {}
    if sys.platform == "linux" and any(interface.gateways for interface in listed):
        try:
            known = neighbours()
        except OSError as error:
            if is_exhaustion(error):
                raise
            log.warning("cannot ask for the neighbours: %s", error)
    return {interface.name: _identified(interface, known) for interface in listed}


def _identified(interface: Interface, known: _Neighbours) -> str:
    # Two interfaces on one network are still two ways to it: one may be blocked where the other is not.
    kind = interface.kind.value
    for wanted in Family:  # IPv4 first; usually it is the same router
        for family, gateway in interface.gateways:
            mac = known.get((interface.index, gateway))
            if family is wanted and mac:
                return " ".join([kind, mac, *(_subnets(interface) if mac.startswith(SHARED_MACS) else ())])
    if interface.kind is Kind.CELLULAR:
        return f"{kind} {interface.name}"
    return " ".join([kind, interface.name, *_subnets(interface)])


def _subnets(interface: Interface) -> list[str]:
    """Those of IPv4, else those of IPv6: they come later, and the name should not change then."""
    for family in Family:
        subnets = {
            str(ip_interface(f"{address.address}/{address.prefix_length}").network)
            for address in interface.addresses
            if address.family is family and address.reason != "link-local"
        }
        if subnets:
            return sorted(subnets)
    return []
