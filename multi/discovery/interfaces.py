"""The network interfaces of this machine as the path manager wants them.

Decides what counts as up, which addresses can be used and which kind an interface is. On Linux everything
comes over netlink, with sysfs for the kinds; elsewhere, or where netlink is not allowed, through netifaces.
"""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401 - otherwise asyncio imports it while the first session opens
import logging
import socket
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from ipaddress import ip_address

from multi.discovery.kinds import ARPHRD_LOOPBACK, DeviceFacts, kind_of
from multi.discovery.netlink import NetlinkSocket
from multi.discovery.resources import in_thread, is_exhaustion
from multi.discovery.snapshot import AddressRecord, LinkRecord, Snapshot, lookup, snapshots
from multi.discovery.sysfs import device_facts, device_index
from multi.errors import ConfigError
from multi.types import Family, Interface, InterfaceAddress, Kind

log = logging.getLogger("multi.discovery")

UserKinds = Mapping[str, Sequence[str]]
"""Kind -> names of interfaces, as in `interfaces` of the configuration."""

# include/uapi/linux/if.h and if_addr.h
IFF_UP = 0x1
IFA_F_OPTIMISTIC = 0x04
IFA_F_DADFAILED = 0x08
IFA_F_DEPRECATED = 0x20
IFA_F_TENTATIVE = 0x40


def interfaces(
    user_kinds: UserKinds = {},  # noqa: B006 - never changed
    *,
    anew: bool = True,
) -> tuple[Interface, ...]:
    """Read all interfaces now, in the order of the system; takes a few milliseconds, in any thread or loop.

    Unless `anew`, what was read before may be used again if the system has told of no change since: who opens many
    sessions need not ask each time. The names in `user_kinds` get their kind from there. Interfaces that vanish
    meanwhile are left out. Where nothing can be read the result is empty. Raises ConfigError for a kind that does not
    exist.
    """
    named = _named_kinds(user_kinds)
    if sys.platform == "linux":
        try:
            return _from_netlink(snapshots.read(anew=anew), tuple(named.items()))
        except OSError as error:
            if is_exhaustion(error):
                raise
            log.warning("netlink is not available (%s), reading interfaces through netifaces", error)
    return _from_netifaces(named)


def interfaces_known(
    user_kinds: UserKinds = {},  # noqa: B006 - never changed
) -> tuple[Interface, ...] | None:
    """What was read before and still holds; None = it has to be read, which takes milliseconds."""
    known = snapshots.known()
    return None if known is None else _from_netlink(known, tuple(_named_kinds(user_kinds).items()))


async def interfaces_async(
    user_kinds: UserKinds = {},  # noqa: B006 - never changed
    *,
    anew: bool = True,
) -> tuple[Interface, ...]:
    """The same from a thread, so that a slow system does not hold up the event loop."""
    return await in_thread(interfaces, user_kinds, anew=anew)


def routed(found: Iterable[Interface], remotes: Iterable[str]) -> frozenset[tuple[str, str]]:
    """The pairs (interface name, remote address) for which the system has a route through that interface.

    Asks the kernel with each usable source address, so it sees what a list of default routes cannot: routes
    to some networks only, tables chosen by rules. Costs some 50 microseconds per pair; empty where the system
    cannot be asked. Pass it to `multi.paths.candidates.candidates`.
    """
    if sys.platform != "linux":
        return frozenset()
    pairs: set[tuple[str, str]] = set()
    wanted = {remote: Family.IPV6 if ":" in remote else Family.IPV4 for remote in remotes}
    try:
        with NetlinkSocket() as kernel:
            for interface in found:
                for remote, family in wanted.items():
                    sources = (a.address for a in interface.addresses if a.usable and a.family is family)
                    if any(lookup(kernel, remote, source, interface.index) for source in sources):
                        pairs.add((interface.name, remote))
    except OSError as error:
        if is_exhaustion(error):
            raise
        log.warning("cannot ask for routes: %s", error)
    return frozenset(pairs)


def _named_kinds(user_kinds: UserKinds) -> dict[str, Kind]:
    named: dict[str, Kind] = {}
    for word, names in user_kinds.items():
        try:
            kind = Kind(word)
        except ValueError:
            known = ", ".join(k.value for k in Kind)
            raise ConfigError(f"{word!r} is no kind of interface; known: {known}", "interfaces") from None
        named |= dict.fromkeys(names, kind)
    return named


@lru_cache(maxsize=4)
def _from_netlink(snapshot: Snapshot, named: tuple[tuple[str, Kind], ...]) -> tuple[Interface, ...]:
    """The same snapshot is not looked at twice: that takes as long as all else that opens a session."""
    addresses: dict[int, list[InterfaceAddress]] = {}
    for record in snapshot.addresses:
        addresses.setdefault(record.index, []).append(_address(record))
    gateways: dict[int, dict[tuple[Family, str], None]] = {}
    for route in snapshot.routes:
        gateways.setdefault(route.index, {})[route.family, route.gateway] = None
    return tuple(
        _interface(
            _link_facts(link),
            dict(named),
            index=link.index,
            up=bool(link.flags & IFF_UP),
            carrier=link.connected,
            addresses=addresses.get(link.index, ()),
            gateways=gateways.get(link.index, ()),
        )
        for link in snapshot.links
    )


def _address(record: AddressRecord) -> InterfaceAddress:
    reason = ""
    if record.flags & IFA_F_DADFAILED:
        reason = "duplicate"
    elif record.flags & IFA_F_TENTATIVE and not record.flags & IFA_F_OPTIMISTIC:
        reason = "tentative"
    elif record.flags & IFA_F_DEPRECATED:
        reason = "deprecated"
    elif record.family is Family.IPV6 and ip_address(record.address).is_link_local:
        reason = "link-local"
    return InterfaceAddress(record.address, record.family, record.prefix_length, not reason, reason)


def _link_facts(link: LinkRecord) -> DeviceFacts:
    """What netlink says, and sysfs where it has more to say.

    A mounted /sys may show another network namespace, where the same name is another device: then it is
    not asked. Nor is it for a device made by software, of which a machine with containers has hundreds.
    """
    facts = DeviceFacts(link.name, hardware_type=link.hardware_type, link_kind=link.link_kind, mac=link.mac)
    if link.hardware_type == ARPHRD_LOOPBACK or link.link_kind or device_index(link.name) != link.index:
        return facts
    told = device_facts(link.name)
    return told if told.mac == link.mac else facts


def _from_netifaces(named: Mapping[str, Kind]) -> tuple[Interface, ...]:
    try:
        from multi.discovery import portable

        found = portable.read()
    except (ImportError, OSError) as error:
        if isinstance(error, OSError) and is_exhaustion(error):
            raise
        log.warning("cannot read the interfaces: %s", error)
        return ()
    return tuple(
        _interface(i.facts, named, index=_index(i.facts.name), addresses=i.addresses, gateways=i.gateways)
        for i in found
    )


def _index(name: str) -> int:
    try:
        return socket.if_nametoindex(name)
    except OSError:
        return 0


def _interface(
    facts: DeviceFacts,
    named: Mapping[str, Kind],
    *,
    index: int,
    addresses: Sequence[InterfaceAddress],
    gateways: Collection[tuple[Family, str]],
    up: bool = True,
    carrier: bool = True,
) -> Interface:
    recognised = kind_of(facts)
    kind = named.get(facts.name, recognised)
    return Interface(
        name=facts.name,
        index=index,
        kind=kind,
        up=up,
        carrier=carrier,
        addresses=tuple(addresses),
        gateways=tuple(gateways),
        metered=True if Kind.CELLULAR in (kind, recognised) else None,
    )
