"""What the kernel's messages about links, addresses and routes mean for connections.

Decides from raw rtnetlink messages what is lost for certain, what else is worth a look and what is chatter. Does no
I/O: `multi.discovery.monitor` reads the socket. The few fields that count are taken straight from the messages, because
a full parser costs a hundred times as much and a router may send thousands of messages a second.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from ipaddress import ip_address

from multi.discovery import netlink
from multi.discovery.netlink import attributes, messages, text
from multi.types import Interface, InterfaceAddress

# include/uapi/linux/if.h, if_link.h, if_addr.h, rtnetlink.h
IFF_UP = 0x1
IFLA_IFNAME, IFLA_OPERSTATE, IFLA_CARRIER, IFLA_CARRIER_DOWN_COUNT = 3, 16, 33, 48
IF_OPER_UNKNOWN, IF_OPER_UP = 0, 6
IFA_ADDRESS, IFA_LOCAL, IFA_CACHEINFO, IFA_FLAGS = 1, 2, 6, 8
IFA_F_OPTIMISTIC, IFA_F_DADFAILED, IFA_F_DEPRECATED, IFA_F_TENTATIVE = 0x04, 0x08, 0x20, 0x40
RT_TABLE_LOCAL = 255
RTM_F_CLONED = 0x200
ROUTE_TYPES = frozenset({1, 6, 7, 8})  # unicast, blackhole, unreachable, prohibit: what decides where packets leave
ADDRESS_LENGTHS = {int(socket.AF_INET): 4, int(socket.AF_INET6): 16}
CREATED_OFFSET = 8  # of ifa_cacheinfo.cstamp
NO_COUNT = -1

WENT_DOWN = "the interface went down"
REMOVED = "the interface was removed"
CARRIER_LOST = "carrier lost"


@dataclass(frozen=True, slots=True)
class Loss:
    """Something connections may use is gone, for certain."""

    interface: str
    address: str
    """Literal; empty = the whole interface."""
    reason: str


@dataclass(frozen=True, slots=True)
class DumpAnswer:
    """The end of the answer to a question of ours."""

    sequence: int
    complete: bool


@dataclass(slots=True)
class LinkEvents:
    """What some messages said."""

    losses: list[Loss] = field(default_factory=list)
    changed: bool = False
    """Something else that may matter is different now."""
    carrier: bool = False
    """A known interface was connected or disconnected."""
    routes: int = 0
    """How many messages were about routes, relevant or not."""
    answers: list[DumpAnswer] = field(default_factory=list)
    interrupted: bool = False
    """Something changed while the kernel was answering, so the answer may have holes."""

    def collapsed(self) -> tuple[Loss, ...]:
        """The losses without those that a loss of the whole interface includes; of these the last one says why."""
        whole = {loss.interface: loss for loss in self.losses if not loss.address}
        return tuple(dict.fromkeys(whole.get(loss.interface, loss) for loss in self.losses))


@dataclass(frozen=True, slots=True)
class _Link:
    name: str
    up: bool
    carrier: bool
    operstate: int
    carrier_downs: int
    """How often the carrier was lost so far: shows a loss that was over before the kernel could tell."""

    @property
    def connected(self) -> bool:
        return self.up and self.carrier and self.operstate in (IF_OPER_UNKNOWN, IF_OPER_UP)


@dataclass(frozen=True, slots=True)
class _Address:
    usable: bool
    duplicate: bool
    deprecated: bool
    created: int
    """Changes when an address is removed and added again."""


_AddressKey = tuple[int, str, int]
"""Index of the interface, address, length of the prefix."""


class LinkState:
    """The links and addresses of one network namespace, as far as the messages have told.

    A dump of everything between `begin_dump` and `end_dump` tells what was missed: what it does not mention is gone.
    """

    def __init__(self) -> None:
        self._links: dict[int, _Link] = {}
        self._addresses: dict[_AddressKey, _Address] = {}
        self._mentioned: set[int | _AddressKey] | None = None

    def begin_dump(self) -> None:
        self._mentioned = set()

    def end_dump(self, heard: LinkEvents) -> None:
        """All links and addresses have been told since `begin_dump`."""
        mentioned = self._mentioned
        if mentioned is None:
            return
        self._mentioned = None
        for key in [key for key in self._addresses if key not in mentioned]:
            self._address_gone(key, heard)
        for index in [index for index in self._links if index not in mentioned]:
            self._link_gone(index, heard)

    def hear(self, data: bytes | memoryview, heard: LinkEvents) -> None:
        """Take in one datagram. What cannot be understood is passed over."""
        for kind, flags, sequence, body in messages(memoryview(data)):
            try:
                if kind in (netlink.RTM_NEWROUTE, netlink.RTM_DELROUTE):
                    heard.routes += 1
                    # One is as good as many: everything is read anew.
                    heard.changed = heard.changed or _matters(body)
                elif kind in (netlink.RTM_NEWLINK, netlink.RTM_DELLINK):
                    self._hear_link(kind == netlink.RTM_NEWLINK, body, heard)
                elif kind in (netlink.RTM_NEWADDR, netlink.RTM_DELADDR):
                    self._hear_address(kind == netlink.RTM_NEWADDR, body, heard)
                elif kind in (netlink.NLMSG_DONE, netlink.NLMSG_ERROR):
                    heard.answers.append(DumpAnswer(sequence, kind == netlink.NLMSG_DONE))
            except (struct.error, ValueError):
                # What it would have told is unknown, so let everybody look.
                heard.changed = True
            if kind != netlink.NLMSG_ERROR and flags & netlink.NLM_F_DUMP_INTR:
                heard.interrupted = True

    def _hear_link(self, present: bool, body: memoryview, heard: LinkEvents) -> None:
        family, _type, index, flags, _change = netlink.LINK.unpack_from(body)
        if family != socket.AF_UNSPEC:
            return  # a bridge says so of its port: the interface itself is not gone
        if not present:
            self._link_gone(index, heard)
            return
        before = self._links.get(index)
        now = _link(flags, attributes(body, netlink.LINK.size), before)
        if now is None:
            return
        self._links[index] = now
        if self._mentioned is not None:
            self._mentioned.add(index)
        if before is not None and before.connected != now.connected:
            heard.carrier = True
        if before is not None and (_carrier_went(before, now) or (before.connected and not now.connected)):
            heard.losses.append(Loss(before.name, "", CARRIER_LOST if now.up else WENT_DOWN))
        elif before is None or replace(before, carrier_downs=now.carrier_downs) != now:
            heard.changed = True

    def _link_gone(self, index: int, heard: LinkEvents) -> None:
        for key in [key for key in self._addresses if key[0] == index]:
            del self._addresses[key]
        link = self._links.pop(index, None)
        if link is not None:
            heard.losses.append(Loss(link.name, "", REMOVED))

    def _hear_address(self, present: bool, body: memoryview, heard: LinkEvents) -> None:
        family, prefix_length, short_flags, _scope, index = netlink.ADDRESS.unpack_from(body)
        length = ADDRESS_LENGTHS.get(family)
        if length is None:
            return
        found = attributes(body, netlink.ADDRESS.size)
        # On a point-to-point link IFA_ADDRESS is the other end and IFA_LOCAL ours.
        packed = found.get(IFA_LOCAL) or found.get(IFA_ADDRESS)
        if packed is None or len(packed) != length:
            raise ValueError("an address of another length")
        key = (index, socket.inet_ntop(family, packed), prefix_length)
        if not present:
            self._address_gone(key, heard)
            return
        flags = _number(found, IFA_FLAGS, short_flags)
        created = found.get(IFA_CACHEINFO, memoryview(b""))
        duplicate = bool(flags & IFA_F_DADFAILED)
        tentative = flags & IFA_F_TENTATIVE and not flags & IFA_F_OPTIMISTIC
        now = _Address(
            usable=not duplicate and not tentative,
            duplicate=duplicate,
            deprecated=bool(flags & IFA_F_DEPRECATED),
            created=netlink.NUMBER.unpack_from(created, CREATED_OFFSET)[0] if len(created) >= CREATED_OFFSET + 4 else 0,
        )
        before = self._addresses.get(key)
        self._addresses[key] = now
        if self._mentioned is not None:
            self._mentioned.add(key)
        if before == now:
            return
        heard.changed = True
        if before is not None and before.usable:
            if duplicate:
                self._lose(key, f"the address {key[1]} is a duplicate", heard)
            elif before.created != now.created:
                self._lose(key, _removed(key[1]), heard)

    def _address_gone(self, key: _AddressKey, heard: LinkEvents) -> None:
        address = self._addresses.pop(key, None)
        if address is None:
            return
        heard.changed = True
        twice = any(other[:2] == key[:2] for other in self._addresses)  # the same with another prefix
        if address.usable and not twice:
            self._lose(key, _removed(key[1]), heard)

    def _lose(self, key: _AddressKey, reason: str, heard: LinkEvents) -> None:
        """Report an address, unless nobody can be using it: no connection starts from a link-local address."""
        link = self._links.get(key[0])
        if link is not None and link.connected and not _is_link_local(key[1]):
            heard.losses.append(Loss(link.name, key[1], reason))


def compare(before: Iterable[Interface], after: Iterable[Interface]) -> tuple[Loss, ...]:
    """What was lost between two readings of the interfaces."""
    now = {interface.name: interface for interface in after}
    losses: list[Loss] = []
    for was in before:
        current = now.get(was.name)
        if current is None or current.index != was.index:
            losses.append(Loss(was.name, "", REMOVED))
        elif was.up and was.carrier:
            if not current.up:
                losses.append(Loss(was.name, "", WENT_DOWN))
            elif not current.carrier:
                losses.append(Loss(was.name, "", CARRIER_LOST))
            else:
                losses += _lost_addresses(was, current.addresses)
    return tuple(losses)


def _lost_addresses(was: Interface, now: Sequence[InterfaceAddress]) -> Iterator[Loss]:
    reasons = {address.address: address.reason for address in now}
    for address in dict.fromkeys(a.address for a in was.addresses if a.usable or a.reason == "deprecated"):
        if address not in reasons:
            yield Loss(was.name, address, _removed(address))
        elif reasons[address] == "duplicate":
            yield Loss(was.name, address, f"the address {address} is a duplicate")


def _removed(address: str) -> str:
    return f"the address {address} was removed"


def _is_link_local(address: str) -> bool:
    return ":" in address and ip_address(address).is_link_local


def _matters(route: memoryview) -> bool:
    fields = netlink.ROUTE.unpack_from(route)
    table, kind, flags = fields[4], fields[7], fields[8]
    return kind in ROUTE_TYPES and table != RT_TABLE_LOCAL and not flags & RTM_F_CLONED


def _link(flags: int, found: Mapping[int, memoryview], before: _Link | None) -> _Link | None:
    """What a message says; what it leaves out, as those about wireless events do, is as it was before."""
    name = text(found.get(IFLA_IFNAME, b""))
    if before is None:
        if not name:
            return None
        before = _Link(name, up=False, carrier=True, operstate=IF_OPER_UNKNOWN, carrier_downs=NO_COUNT)
    return _Link(
        name=name or before.name,
        up=bool(flags & IFF_UP),
        carrier=_byte(found, IFLA_CARRIER, before.carrier) != 0,
        operstate=_byte(found, IFLA_OPERSTATE, before.operstate),
        carrier_downs=_number(found, IFLA_CARRIER_DOWN_COUNT, before.carrier_downs),
    )


def _carrier_went(before: _Link, now: _Link) -> bool:
    """Whether it was lost at least once since, even if it is back, or had come back before and nobody heard of it."""
    return NO_COUNT not in (before.carrier_downs, now.carrier_downs) and before.carrier_downs != now.carrier_downs


def _byte(found: Mapping[int, Collection[int]], kind: int, otherwise: int) -> int:
    value = found.get(kind)
    return next(iter(value), otherwise) if value is not None else otherwise


def _number(found: Mapping[int, memoryview], kind: int, otherwise: int) -> int:
    value = found.get(kind)
    number: int = netlink.NUMBER.unpack_from(value)[0] if value is not None else otherwise
    return number
