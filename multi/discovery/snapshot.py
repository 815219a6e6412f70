"""Links, addresses and routes of a network namespace, as Linux lists them over rtnetlink.

A snapshot takes a fraction of a millisecond and never waits for the network. `snapshots` remembers the last one until
the kernel announces a change: a session that opens reads nothing then, which is half of what opening costs.
"""

from __future__ import annotations

import atexit
import logging
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from ipaddress import ip_address
from typing import TypeVar

from multi.discovery import netlink
from multi.discovery.kinds import DeviceFacts
from multi.discovery.namespace import NamespaceId, namespace_if_told
from multi.discovery.netlink import Announcements, NetlinkSocket, attribute, attributes, text, u32
from multi.types import AddressReason, Family, InterfaceAddress

logger = logging.getLogger("multi.discovery")

# include/uapi/linux/rtnetlink.h, if.h, if_link.h, if_addr.h
RTM_F_FIB_MATCH = 0x2000
RTN_UNICAST = 1
RTNH_F_DEAD, RTNH_F_LINKDOWN = 1, 16
RTA_DST, RTA_SRC, RTA_OIF, RTA_GATEWAY, RTA_PRIORITY = 1, 2, 4, 5, 6
RTA_MULTIPATH, RTA_TABLE, RTA_VIA = 9, 15, 18
IFF_UP = 0x1
IFLA_ADDRESS, IFLA_IFNAME, IFLA_OPERSTATE, IFLA_LINKINFO = 1, 3, 16, 18
IFLA_EXT_MASK, IFLA_CARRIER, IFLA_CARRIER_DOWN_COUNT = 29, 33, 48
RTEXT_FILTER_SKIP_STATS = 8
IFLA_INFO_KIND = 1
IFA_ADDRESS, IFA_LOCAL, IFA_CACHEINFO, IFA_FLAGS = 1, 2, 6, 8
IFA_F_OPTIMISTIC, IFA_F_DADFAILED, IFA_F_DEPRECATED, IFA_F_TENTATIVE = 0x04, 0x08, 0x20, 0x40
NEXT_HOP = struct.Struct("=HBBi")  # rtnexthop: length, flags, hops, interface index
OPERATIONAL = (b"\0", b"\6")  # RFC 2863: unknown (loopback, tun and others that have no notion of it) and up

FAMILIES = {int(socket.AF_INET): Family.IPV4, int(socket.AF_INET6): Family.IPV6}

LINK_GROUPS = (netlink.RTNLGRP_LINK, netlink.RTNLGRP_IPV4_IFADDR, netlink.RTNLGRP_IPV6_IFADDR)
ROUTE_GROUPS = (
    *(netlink.RTNLGRP_IPV4_ROUTE, netlink.RTNLGRP_IPV4_RULE),
    *(netlink.RTNLGRP_IPV6_ROUTE, netlink.RTNLGRP_IPV6_RULE),
)

Record = TypeVar("Record")


@dataclass(frozen=True, slots=True)
class LinkRecord:
    index: int
    """Negative = the system has none."""
    facts: DeviceFacts
    up: bool = True
    carrier: bool = True
    """It has one and is operational."""
    carrier_downs: int = 0
    """How often the carrier was lost so far: shows a loss that was over before anybody looked."""

    @property
    def connected(self) -> bool:
        return self.up and self.carrier


@dataclass(frozen=True, slots=True)
class AddressRecord:
    index: int
    """Of the interface."""
    address: InterfaceAddress
    created: int = 0
    """Changes when an address is removed and added again."""


@dataclass(frozen=True, slots=True)
class KernelRoute:
    """One way out of a route of any table; the gateway is empty where none is needed."""

    index: int
    family: Family
    gateway: str
    network: str = ""
    """Empty = everywhere."""
    table: int = 0
    protocol: int = 0
    metric: int = 0


@dataclass(frozen=True, eq=False)
class Snapshot:
    """What was read at one time; equal to itself only."""

    links: tuple[LinkRecord, ...] = ()
    addresses: tuple[AddressRecord, ...] = ()
    routes: tuple[KernelRoute, ...] = ()
    """The default routes."""
    torn: bool = False
    """So much was changing that something may be missing."""


def snapshot(kernel: NetlinkSocket, *, with_routes: bool = True) -> Snapshot:
    """Read everything once. Raises OSError."""
    links = kernel.dump(netlink.RTM_GETLINK, bytes(netlink.LINK.size) + u32(IFLA_EXT_MASK, RTEXT_FILTER_SKIP_STATS))
    torn = kernel.torn
    addresses = kernel.dump(netlink.RTM_GETADDR, bytes(netlink.ADDRESS.size))
    torn = torn or kernel.torn
    listed = kernel.dump(netlink.RTM_GETROUTE, bytes(netlink.ROUTE.size)) if with_routes else []
    # A full routing table is long, and most of it says nothing of where the rest goes.
    defaults = (body for body in listed if body[1:2] == b"\0")
    return Snapshot(
        tuple(readable(_link, links)),
        tuple(readable(_address, addresses)),
        tuple(route for found in readable(routes, defaults) for route in found),
        torn,
    )


def lookup(kernel: NetlinkSocket, remote: str, source: str, index: int = 0) -> list[KernelRoute]:
    """The way packets to `remote` take, by the kernel's own rules and tables; none if there is no route.

    `index`: through this interface only. The kernel is asked for the matching entry then (RTM_F_FIB_MATCH), because
    without one an IPv4 lookup bound to a device takes any destination for a neighbour and succeeds; and the entry must
    name the device, because an IPv6 lookup may answer with another one.
    """
    family = socket.AF_INET6 if ":" in remote else socket.AF_INET
    destination = socket.inet_pton(family, remote.partition("%")[0])
    bits, flags = len(destination) * 8, RTM_F_FIB_MATCH if index else 0
    body = netlink.ROUTE.pack(family, bits, bits if source else 0, 0, 0, 0, 0, 0, flags)
    body += attribute(RTA_DST, destination)
    if index:
        body += u32(RTA_OIF, index)
    if source:
        body += attribute(RTA_SRC, socket.inet_pton(family, source))
    try:
        answers = kernel.exchange(netlink.RTM_GETROUTE, body)
    except TimeoutError:
        raise
    except OSError:
        return []
    return [route for found in readable(routes, answers) for route in found if index in (0, route.index)]


def readable(read: Callable[[bytes], Record | None], bodies: Iterable[bytes]) -> Iterator[Record]:
    """What can be read of these messages; one that cannot must not hide all others."""
    for body in bodies:
        try:
            record = read(body)
        except (struct.error, ValueError) as error:
            logger.debug("a message that cannot be read: %r", error)
            continue
        if record is not None:
            yield record


def routes(body: bytes) -> list[KernelRoute]:
    """The ways out of a route; none for one that leads nowhere."""
    number, length, _, _, table, protocol, _, kind, flags = netlink.ROUTE.unpack_from(body)
    family = FAMILIES.get(number)
    if family is None or kind != RTN_UNICAST:
        return []
    found = attributes(body, netlink.ROUTE.size)
    network = f"{_literal(found.get(RTA_DST))}/{length}" if length else ""
    table, metric = _number(found.get(RTA_TABLE)) or table, _number(found.get(RTA_PRIORITY))

    def way(index: int, flags: int, told: dict[int, bytes]) -> list[KernelRoute]:
        if not index or flags & (RTNH_F_DEAD | RTNH_F_LINKDOWN):
            return []
        # A router of the other family (RFC 5549) is told with its family in front.
        gateway = _literal(told.get(RTA_GATEWAY) or told.get(RTA_VIA, b"")[2:])
        return [KernelRoute(index, family, gateway, network, table, protocol, metric)]

    hops = found.get(RTA_MULTIPATH)
    if hops is None:
        return way(_number(found.get(RTA_OIF)), flags, found)
    ways: list[KernelRoute] = []
    while len(hops) >= NEXT_HOP.size:
        size, hop_flags, _weight, index = NEXT_HOP.unpack_from(hops)
        if size < NEXT_HOP.size:
            break
        ways += way(index, hop_flags, attributes(hops[:size], NEXT_HOP.size))
        hops = hops[(size + 3) & ~3 :]
    return ways


def _link(body: bytes) -> LinkRecord | None:
    _family, hardware_type, index, flags, _change = netlink.LINK.unpack_from(body)
    found = attributes(body, netlink.LINK.size)
    name = text(found.get(IFLA_IFNAME, b""))
    if not name:
        return None
    kind = text(attributes(found.get(IFLA_LINKINFO, b"")).get(IFLA_INFO_KIND, b""))
    return LinkRecord(
        index,
        DeviceFacts(name, hardware_type, link_kind=kind, mac=found.get(IFLA_ADDRESS, b"").hex(":")),
        up=bool(flags & IFF_UP),
        carrier=found.get(IFLA_OPERSTATE, b"\0") in OPERATIONAL and found.get(IFLA_CARRIER) != b"\0",
        carrier_downs=_number(found.get(IFLA_CARRIER_DOWN_COUNT)),
    )


def _address(body: bytes) -> AddressRecord | None:
    number, prefix_length, flags, _scope, index = netlink.ADDRESS.unpack_from(body)
    family = FAMILIES.get(number)
    found = attributes(body, netlink.ADDRESS.size)
    # On a point-to-point link IFA_ADDRESS is the other end and IFA_LOCAL ours.
    packed = found.get(IFA_LOCAL) or found.get(IFA_ADDRESS)
    if family is None or packed is None:
        return None
    address = ip_address(packed)
    flags = _number(found.get(IFA_FLAGS)) or flags
    reason: AddressReason = ""
    if flags & IFA_F_DADFAILED:
        reason = "duplicate"
    elif flags & IFA_F_TENTATIVE and not flags & IFA_F_OPTIMISTIC:
        reason = "tentative"
    elif flags & IFA_F_DEPRECATED:
        reason = "deprecated"
    elif family is Family.IPV6 and address.is_link_local:
        reason = "link-local"
    usable = InterfaceAddress(str(address), family, prefix_length, not reason, reason)
    return AddressRecord(index, usable, created=_number(found.get(IFA_CACHEINFO, b"")[8:12]))


def _literal(packed: bytes | None) -> str:
    return str(ip_address(packed)) if packed and len(packed) in (4, 16) else ""


def _number(packed: bytes | None) -> int:
    return int(netlink.NUMBER.unpack(packed)[0]) if packed and len(packed) == netlink.NUMBER.size else 0


class SnapshotCache:
    """The last snapshot of one network namespace, for any thread; it holds as long as nothing is announced."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._announced: Announcements | None = None
        self._of: NamespaceId | None = None
        self._snapshot: Snapshot | None = None

    def known(self) -> Snapshot | None:
        """What was read before and still holds; None = it has to be read. Does not wait for a reader."""
        if not self._lock.acquire(blocking=False):
            return None
        try:
            return self._known()
        finally:
            self._lock.release()

    def read(self, *, anew: bool) -> Snapshot:
        """What is known, or read now. Raises OSError when netlink is not available."""
        with self._lock:
            known = self._known()  # before the reading: a change in between is found the next time
            if known is not None and not anew:
                return known
            self._snapshot = None
            if self._announced is None:
                self._announced, self._of = Announcements(*LINK_GROUPS, *ROUTE_GROUPS), namespace_if_told()
            with NetlinkSocket() as kernel:
                self._snapshot = snapshot(kernel)
            return self._snapshot

    def close(self) -> None:
        """Forget it all; nobody else may be using it."""
        self._leave()
        self._lock = threading.Lock()

    def _leave(self) -> None:
        if self._announced is not None:
            self._announced.close()
        self._announced = self._of = self._snapshot = None

    def _known(self) -> Snapshot | None:
        if self._of != namespace_if_told():
            self._leave()
        elif self._announced is not None and self._announced.drain():
            self._snapshot = None
        return self._snapshot


snapshots = SnapshotCache()
"""Of this process."""
atexit.register(snapshots.close)
if hasattr(os, "register_at_fork"):
    # A child would take what its parent has to hear, and a thread that is not there may have held the lock.
    os.register_at_fork(after_in_child=snapshots.close)
