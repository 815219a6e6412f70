"""Links, addresses and routes of this network namespace as Linux tells them over rtnetlink.

The questions go over a plain socket of our own: pyroute2's synchronous `IPRoute` runs an event loop inside, so it fails
where one runs already, and in every thread once uvloop is the policy. The few attributes that are wanted of plain
objects are taken from the bytes, because every session asks when it opens, and pyroute2's classes take ten times as
long as the kernel; routes with several hops or a router of the other family are left to them. A question takes a
fraction of a millisecond and never waits for the network.
"""

from __future__ import annotations

import logging
import os
import socket
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Protocol, TypeVar

from multi.discovery.rtnetlink import (
    HEADER,
    NLM_F_ACK,
    NLM_F_DUMP,
    NLM_F_REQUEST,
    NLMSG_DONE,
    NLMSG_ERROR,
    RECEIVE_SIZE,
    attribute,
    attributes,
    error_code,
    message,
    messages,
    u32,
)
from multi.types import Family

if TYPE_CHECKING:
    from pyroute2.netlink.rtnl.marshal import MarshalRtnl

__all__ = ["AddressRecord", "Route", "LinkRecord", "NetlinkSocket", "Snapshot", "snapshot"]

# include/uapi/linux/netlink.h and rtnetlink.h
NLM_F_DUMP_INTR = 0x10
RTNLGRP_LINK = 1
RTNLGRP_IPV4_IFADDR, RTNLGRP_IPV4_ROUTE, RTNLGRP_IPV4_RULE = 5, 7, 8
RTNLGRP_IPV6_IFADDR, RTNLGRP_IPV6_ROUTE, RTNLGRP_IPV6_RULE = 9, 11, 19
RTM_GETLINK = 18
RTM_GETADDR = 22
RTM_NEWROUTE = 24
RTM_GETROUTE = 26
RTM_F_FIB_MATCH = 0x2000
RTN_UNICAST = 1
RTNH_F_DEAD = 1
RTNH_F_LINKDOWN = 16
RTA_DST = 1
RTA_SRC = 2
RTA_OIF = 4
RTA_GATEWAY = 5
RTA_MULTIPATH = 9
RTA_VIA = 18
IFLA_ADDRESS, IFLA_IFNAME, IFLA_OPERSTATE, IFLA_LINKINFO, IFLA_CARRIER = 1, 3, 16, 18, 33
IFLA_INFO_KIND = 1
IFA_ADDRESS, IFA_LOCAL, IFA_FLAGS = 1, 2, 8
OPERSTATES = ("UNKNOWN", "NOTPRESENT", "DOWN", "LOWERLAYERDOWN", "TESTING", "DORMANT", "UP")
LINK = struct.Struct("=BxHiII")
ADDRESS = struct.Struct("=BBBBI")
NUMBER = struct.Struct("=I")
LINK_REQUEST = struct.pack("=BxHiII", 0, 0, 0, 0, 0)
ADDRESS_REQUEST = struct.pack("=BBBBI", 0, 0, 0, 0, 0)
ROUTE_REQUEST = struct.Struct("=BBBBBBBBI")
ROUTE = ROUTE_REQUEST
DESTINATION_LENGTH = HEADER.size + 1  # offset of rtmsg.rtm_dst_len

ANSWER_TIMEOUT = 1.0  # the kernel answers at once; never hang if something in between does not
DUMP_ATTEMPTS = 4  # a dump during which something changed may have holes and is taken again
FAMILIES = {int(socket.AF_INET): Family.IPV4, int(socket.AF_INET6): Family.IPV6}


log = logging.getLogger("multi.discovery")


@dataclass(frozen=True, slots=True)
class LinkRecord:
    """A link; `operstate` as in RFC 2863, in capitals."""

    index: int
    name: str
    flags: int
    hardware_type: int
    link_kind: str
    mac: str
    carrier: bool
    operstate: str


@dataclass(frozen=True, slots=True)
class AddressRecord:
    index: int
    family: Family
    address: str
    prefix_length: int
    flags: int


@dataclass(frozen=True, slots=True)
class Route:
    """One way out of a route of any table; the gateway is empty where none is needed."""

    index: int
    family: Family
    gateway: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    links: tuple[LinkRecord, ...]
    addresses: tuple[AddressRecord, ...]
    routes: tuple[Route, ...]
    """The default routes."""


Record = TypeVar("Record")


def readable(read: Callable[[bytes], Record | None], raw: Iterable[bytes]) -> Iterator[Record]:
    """What can be read of these messages; one that cannot must not hide all others."""
    for each in raw:
        try:
            record = read(each)
        except (struct.error, ValueError) as error:
            log.debug("a message that cannot be read: %r", error)
            continue
        if record is not None:
            yield record


def snapshot() -> Snapshot:
    """Read everything once. Raises OSError when netlink is not available."""
    with NetlinkSocket() as netlink:
        links = netlink.raw_dump(RTM_GETLINK, LINK_REQUEST)
        addresses = netlink.raw_dump(RTM_GETADDR, ADDRESS_REQUEST)
        # A full routing table is long, and most of it says nothing of where the rest goes.
        routes = filter(_is_default, netlink.raw_dump(RTM_GETROUTE, ROUTE_REQUEST.pack(0, 0, 0, 0, 0, 0, 0, 0, 0)))
        return Snapshot(
            tuple(readable(_link, links)),
            tuple(readable(_address, addresses)),
            tuple(dict.fromkeys(route for found in readable(_routes, routes) for route in found)),
        )


class NetlinkSocket:
    """A socket for questions, one at a time."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
        self._sequence = 0
        try:
            self._socket.settimeout(ANSWER_TIMEOUT)
            self._socket.bind((0, 0))
        except OSError:
            self._socket.close()
            raise

    def __enter__(self) -> NetlinkSocket:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def raw_dump(self, kind: int, body: bytes) -> list[bytes]:
        """All objects of a kind, as whole messages."""
        for _attempt in range(DUMP_ATTEMPTS):
            raw, interrupted = self._dump_once(kind, body)
            if not interrupted:
                break
        return raw

    def request(self, kind: int, flags: int, body: bytes) -> bytes:
        """Have something done, or ask for one object, which is returned as a whole message; empty = there is none.

        Raises OSError with the kernel's error number.
        """
        self._send(kind, NLM_F_REQUEST | NLM_F_ACK | flags, body)
        answer = b""
        while True:
            for answered, _flags, raw in self._receive():
                if answered != NLMSG_ERROR:
                    answer = raw
                elif code := error_code(raw):
                    raise OSError(code, os.strerror(code))
                else:
                    return answer

    def has_route(self, index: int, remote: str, source: str = "") -> bool:
        """Whether packets from `source` to `remote` have a route through the interface with this index.

        The kernel's own rules and tables decide. It is asked for the matching entry (RTM_F_FIB_MATCH),
        because without one an IPv4 lookup bound to a device takes any destination for a neighbour and
        succeeds; and the entry must name the device, because an IPv6 lookup may answer with another one.
        """
        family = socket.AF_INET6 if ":" in remote else socket.AF_INET
        destination = socket.inet_pton(family, remote.partition("%")[0])
        attributes = attribute(RTA_DST, destination) + u32(RTA_OIF, index)
        if source:
            attributes += attribute(RTA_SRC, socket.inet_pton(family, source))
        bits = len(destination) * 8
        request = ROUTE_REQUEST.pack(family, bits, bits if source else 0, 0, 0, 0, 0, 0, RTM_F_FIB_MATCH)
        self._send(RTM_GETROUTE, NLM_F_REQUEST, request + attributes)
        for kind, _flags, raw in self._receive():
            if kind == NLMSG_ERROR:
                return False
            if kind == RTM_NEWROUTE:
                return any(route.index == index for found in readable(_routes, [raw]) for route in found)
        return False

    def _dump_once(self, kind: int, body: bytes) -> tuple[list[bytes], bool]:
        self._send(kind, NLM_F_REQUEST | NLM_F_DUMP, body)
        found: list[bytes] = []
        interrupted = False
        while True:
            for answer, flags, raw in self._receive():
                interrupted = interrupted or bool(flags & NLM_F_DUMP_INTR)
                if answer == NLMSG_ERROR:
                    raise OSError(error_code(raw), "netlink refused to list")
                if answer == NLMSG_DONE:
                    return found, interrupted
                found.append(raw)

    def _send(self, kind: int, flags: int, body: bytes) -> None:
        self._sequence += 1
        self._socket.send(message(kind, flags, self._sequence, body))

    def _receive(self) -> Iterator[tuple[int, int, bytes]]:
        """Messages of one datagram that answer the last question: (type, flags, whole message)."""
        return messages(self._socket.recv(RECEIVE_SIZE), self._sequence)


def _link(raw: bytes) -> LinkRecord | None:
    _family, hardware_type, index, flags, _change = LINK.unpack_from(raw, HEADER.size)
    found = attributes(raw, HEADER.size + LINK.size)
    name = _text(found.get(IFLA_IFNAME, b""))
    if not name:
        return None
    operstate = found.get(IFLA_OPERSTATE, b"")[:1]
    return LinkRecord(
        index=index,
        name=name,
        flags=flags,
        hardware_type=hardware_type,
        link_kind=_text(attributes(found.get(IFLA_LINKINFO, b"")).get(IFLA_INFO_KIND, b"")),
        mac=hardware_address(found.get(IFLA_ADDRESS, b"")),
        carrier=found.get(IFLA_CARRIER) != b"\0",
        operstate=OPERSTATES[operstate[0]] if operstate and operstate[0] < len(OPERSTATES) else "UNKNOWN",
    )


def _address(raw: bytes) -> AddressRecord | None:
    number, prefix_length, flags, _scope, index = ADDRESS.unpack_from(raw, HEADER.size)
    family = FAMILIES.get(number)
    found = attributes(raw, HEADER.size + ADDRESS.size)
    # On a point-to-point link IFA_ADDRESS is the other end and IFA_LOCAL ours.
    packed = found.get(IFA_LOCAL) or found.get(IFA_ADDRESS)
    if family is None or packed is None:
        return None
    if IFA_FLAGS in found:
        (flags,) = NUMBER.unpack_from(found[IFA_FLAGS])
    return AddressRecord(index, family, socket.inet_ntop(number, packed), prefix_length, flags)


def hardware_address(packed: bytes) -> str:
    """As the kernel writes it: `02:00:5e:10:00:01`."""
    return packed.hex(":")


def _is_default(raw: bytes) -> bool:
    return len(raw) > DESTINATION_LENGTH and raw[DESTINATION_LENGTH] == 0


def _routes(raw: bytes) -> list[Route]:
    """The ways out of a route; none for one that leads nowhere."""
    number, *_fields, kind, flags = ROUTE.unpack_from(raw, HEADER.size)
    family = FAMILIES.get(number)
    if family is None or kind != RTN_UNICAST:
        return []
    found = attributes(raw, HEADER.size + ROUTE.size)
    if RTA_MULTIPATH in found or RTA_VIA in found:
        return list(_unusual_routes(raw, family))
    if RTA_OIF not in found or flags & (RTNH_F_DEAD | RTNH_F_LINKDOWN):
        return []
    gateway = found.get(RTA_GATEWAY)
    (index,) = NUMBER.unpack_from(found[RTA_OIF])
    return [Route(index, family, socket.inet_ntop(number, gateway) if gateway else "")]


class _Message(Protocol):
    """A message as pyroute2 parses it; an attribute that is absent is None."""

    def get(self, key: str, default: object = None, /) -> object: ...
    def get_attr(self, name: str, /) -> object: ...


def _unusual_routes(raw: bytes, family: Family) -> Iterator[Route]:
    """Those of several hops (RTA_MULTIPATH), or over a router of the other family (RTA_VIA, RFC 5549)."""
    message = _parsed(raw)
    if message is None:
        return
    hops = message.get_attr("RTA_MULTIPATH")
    for hop in hops if isinstance(hops, list) else [message]:
        index = hop.get_attr("RTA_OIF") if hop is message else hop.get("oif")
        flags = hop.get("flags")
        if isinstance(flags, int) and flags & (RTNH_F_DEAD | RTNH_F_LINKDOWN):
            continue
        if isinstance(index, int):
            yield Route(index, family, _gateway(hop))


def _gateway(hop: _Message) -> str:
    gateway = hop.get_attr("RTA_GATEWAY")
    if isinstance(gateway, str):
        return gateway
    via = hop.get_attr("RTA_VIA")
    address = via.get("addr") if isinstance(via, dict) else None
    return address if isinstance(address, str) else ""


@cache
def _marshal() -> MarshalRtnl:
    from pyroute2.netlink.rtnl.marshal import MarshalRtnl

    return MarshalRtnl()


def _parsed(raw: bytes) -> _Message | None:
    """None for what pyroute2 does not understand."""
    parsed: _Message | None = None
    try:
        parsed = next(iter(_marshal().parse(raw)), None)
    except (struct.error, ValueError, LookupError, TypeError, AttributeError) as error:
        log.debug("a route that cannot be parsed: %r", error)
    return parsed


def _text(value: bytes) -> str:
    return value.partition(b"\0")[0].decode(errors="replace")
