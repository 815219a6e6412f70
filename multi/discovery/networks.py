"""Which network an interface is on, so that what was learnt there is found again after a reconnection."""

from __future__ import annotations

from ipaddress import ip_interface

from multi.types import Family, Interface, Kind


def network_id(interface: Interface) -> str:
    """What identifies the network an interface is on: to be compared, not to be read.

    The interface and its subnets; of a cellular interface, whose addresses are new each time, its name alone. What is
    remembered of a network is forgotten within minutes, so that two that use the same private addresses are seldom
    taken for one, and then all that happens is that something is tried last.
    """
    names = [interface.kind.value, interface.name]
    if interface.kind is not Kind.CELLULAR:
        names += _subnets(interface)
    return " ".join(names)


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
