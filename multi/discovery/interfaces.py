"""The network interfaces of this machine as the path manager wants them.

Decides which kind an interface is, and puts together what is known of it. On Linux everything comes over netlink, with
sysfs for the kinds; elsewhere, or where netlink is not allowed, through netifaces.
"""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401 - otherwise asyncio imports it while the first session opens
import logging
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from multi.discovery import portable
from multi.discovery.kinds import ARPHRD_LOOPBACK, DeviceFacts, kind_of
from multi.discovery.netlink import NetlinkSocket
from multi.discovery.resources import in_thread, is_exhaustion
from multi.discovery.snapshot import LinkRecord, Snapshot, lookup, snapshots
from multi.discovery.sysfs import device_facts, device_index
from multi.types import Family, Interface, InterfaceAddress, Kind

logger = logging.getLogger("multi.discovery")

UserKinds = Mapping[str, Sequence[str]]
"""Kind -> names of interfaces, as in `interfaces` of the configuration."""
NO_KINDS: UserKinds = {}


def interfaces(user_kinds: UserKinds = NO_KINDS, *, anew: bool = True) -> tuple[Interface, ...]:
    """Read all interfaces now, in the order of the system; takes a few milliseconds, in any thread or loop.

    Unless `anew`, what was read before may be used again if the system has told of no change since: who opens many
    sessions need not ask each time. The names in `user_kinds` get their kind from there. Interfaces that vanish
    meanwhile are left out. Where nothing can be read the result is empty.
    """
    named = _named_kinds(user_kinds)
    if sys.platform == "linux":
        try:
            return _interfaces(snapshots.read(anew=anew), named)
        except OSError as error:
            if is_exhaustion(error):
                raise
            logger.warning("netlink is not available (%s), reading interfaces through netifaces", error)
    try:
        return _interfaces(portable.read(), named)
    except OSError as error:
        if is_exhaustion(error):
            raise
        logger.warning("cannot read the interfaces: %s", error)
        return ()


def interfaces_known(user_kinds: UserKinds) -> tuple[Interface, ...] | None:
    """What was read before and still holds; None = it has to be read, which takes milliseconds."""
    known = snapshots.known()
    return None if known is None else _interfaces(known, _named_kinds(user_kinds))


async def interfaces_async(user_kinds: UserKinds = NO_KINDS, *, anew: bool = True) -> tuple[Interface, ...]:
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
    wanted = {remote: Family.of(remote) for remote in remotes}
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
        logger.warning("cannot ask for routes: %s", error)
    return frozenset(pairs)


def _named_kinds(user_kinds: UserKinds) -> tuple[tuple[str, Kind], ...]:
    return tuple((name, Kind(word)) for word, names in user_kinds.items() for name in names)


@lru_cache(maxsize=4)
def _interfaces(snapshot: Snapshot, named: tuple[tuple[str, Kind], ...]) -> tuple[Interface, ...]:
    """The same snapshot is not looked at twice: that takes as long as all else that opens a session."""
    addresses: dict[int, list[InterfaceAddress]] = {}
    for record in snapshot.addresses:
        addresses.setdefault(record.index, []).append(record.address)
    gateways: dict[int, dict[tuple[Family, str], None]] = {}
    for route in snapshot.routes:
        gateways.setdefault(route.index, {})[route.family, route.gateway] = None
    found = []
    for link in snapshot.links:
        recognised = kind_of(_facts(link))
        kind = dict(named).get(link.facts.name, recognised)
        found.append(
            Interface(
                name=link.facts.name,
                index=max(link.index, 0),
                kind=kind,
                up=link.up,
                carrier=link.carrier,
                addresses=tuple(addresses.get(link.index, ())),
                gateways=tuple(gateways.get(link.index, ())),
                metered=True if Kind.CELLULAR in (kind, recognised) else None,
            )
        )
    return tuple(found)


def _facts(link: LinkRecord) -> DeviceFacts:
    """What the snapshot says, and sysfs where it has more to say.

    A mounted /sys may show another network namespace, where the same name is another device: then it is
    not asked. Nor is it for a device made by software, of which a machine with containers has hundreds.
    """
    facts = link.facts
    if facts.hardware_type == ARPHRD_LOOPBACK or facts.link_kind or device_index(facts.name) != link.index:
        return facts
    told = device_facts(facts.name)
    return told if told.mac == facts.mac else facts
