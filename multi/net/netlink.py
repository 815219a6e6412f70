"""Links, addresses and routes of this network namespace as Linux tells them over rtnetlink.

The questions go over a plain socket of our own and only the answers through pyroute2: its synchronous
`IPRoute` runs an event loop inside, so it fails where one runs already, and in every thread once uvloop is
the policy. A question takes a fraction of a millisecond and never waits for the network.
"""

from __future__ import annotations

import logging
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeGuard

from pyroute2.netlink.rtnl.marshal import MarshalRtnl

from multi.core.ids import Family
from multi.net.messages import (
    HEADER,
    NLM_F_ACK,
    NLM_F_DUMP,
    NLM_F_REQUEST,
    NLMSG_DONE,
    NLMSG_ERROR,
    RECEIVE_SIZE,
    attribute,
    error_code,
    message,
    messages,
    u32,
)

__all__ = ["AddressRecord", "Route", "LinkRecord", "NetlinkSocket", "Snapshot", "snapshot"]

# include/uapi/linux/netlink.h and rtnetlink.h
NLM_F_DUMP_INTR = 0x10
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
LINK_REQUEST = struct.pack("=BxHiII", 0, 0, 0, 0, 0)
ADDRESS_REQUEST = struct.pack("=BBBBI", 0, 0, 0, 0, 0)
ROUTE_REQUEST = struct.Struct("=BBBBBBBBI")
DESTINATION_LENGTH = HEADER.size + 1  # offset of rtmsg.rtm_dst_len

ANSWER_TIMEOUT = 1.0  # the kernel answers at once; never hang if something in between does not
DUMP_ATTEMPTS = 4  # a dump during which something changed may have holes and is taken again
FAMILIES = {int(socket.AF_INET): Family.IPV4, int(socket.AF_INET6): Family.IPV6}


log = logging.getLogger("multi.net")


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


class _Message(Protocol):
    """A message as pyroute2 parses it; an attribute that is absent is None."""

    def get(self, key: str, default: object = None, /) -> object: ...
    def get_attr(self, name: str, /) -> object: ...


_Filter = Callable[[bytes], bool]


def snapshot() -> Snapshot:
    """Read everything once. Raises OSError when netlink is not available."""
    with NetlinkSocket() as netlink:
        links = [_link(m) for m in netlink.dump(RTM_GETLINK, LINK_REQUEST)]
        addresses = [_address(m) for m in netlink.dump(RTM_GETADDR, ADDRESS_REQUEST)]
        request = ROUTE_REQUEST.pack(0, 0, 0, 0, 0, 0, 0, 0, 0)
        routes = [r for m in netlink.dump(RTM_GETROUTE, request, _is_default) for r in _routes(m)]
    return Snapshot(
        tuple(link for link in links if link),
        tuple(address for address in addresses if address),
        tuple(dict.fromkeys(routes)),
    )


_recent: tuple[tuple[int, int], float, Snapshot] | None = None


def recent_snapshot(max_age: float) -> Snapshot:
    """A snapshot at most `max_age` seconds old, of the network namespace this thread is in."""
    global _recent
    if (known := _known(max_age)) is not None:
        return known
    space, now, read = _space(), time.monotonic(), snapshot()
    _recent = (space, now, read)
    return read


def is_known(max_age: float) -> bool:
    """Whether `recent_snapshot` need not ask the kernel."""
    return _known(max_age) is not None


def _known(max_age: float) -> Snapshot | None:
    recent = _recent
    if max_age <= 0 or recent is None or time.monotonic() - recent[1] > max_age or recent[0] != _space():
        return None
    return recent[2]


def _space() -> tuple[int, int]:
    """The network namespace this thread is in."""
    space = os.stat("/proc/thread-self/ns/net")
    return space.st_dev, space.st_ino


class NetlinkSocket:
    """A socket for questions, one at a time."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
        self._marshal = MarshalRtnl()
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

    def dump(self, kind: int, body: bytes, wanted: _Filter | None = None) -> list[_Message]:
        """All objects of a kind. `wanted` looks at the raw message, to spare parsing a full routing table."""
        parsed = (self._parsed(m) for m in self.raw_dump(kind, body) if wanted is None or wanted(m))
        return [message for message in parsed if message is not None]

    def raw_dump(self, kind: int, body: bytes) -> list[bytes]:
        """The same as whole messages."""
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
                found = self._parsed(raw)
                return found is not None and any(route.index == index for route in _routes(found))
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

    def _parsed(self, raw: bytes) -> _Message | None:
        """None for what pyroute2 does not understand: one such message must not hide all others."""
        parsed: _Message | None = None
        try:
            parsed = next(iter(self._marshal.parse(raw)), None)
        except (struct.error, ValueError, LookupError, TypeError, AttributeError) as error:
            log.debug("a message that cannot be parsed: %r", error)
        return parsed


def _link(message: _Message) -> LinkRecord | None:
    index, flags, hardware_type = message.get("index"), message.get("flags"), message.get("ifi_type")
    name = message.get_attr("IFLA_IFNAME")
    if not (isinstance(index, int) and isinstance(flags, int) and isinstance(name, str)):
        return None
    information = message.get_attr("IFLA_LINKINFO")
    link_kind = information.get_attr("IFLA_INFO_KIND") if _has_attributes(information) else None
    carrier = message.get_attr("IFLA_CARRIER")
    return LinkRecord(
        index=index,
        name=name,
        flags=flags,
        hardware_type=hardware_type if isinstance(hardware_type, int) else 1,
        link_kind=_text(link_kind),
        mac=_text(message.get_attr("IFLA_ADDRESS")),
        carrier=carrier != 0,
        operstate=_text(message.get_attr("IFLA_OPERSTATE")) or "UNKNOWN",
    )


def _address(message: _Message) -> AddressRecord | None:
    index, prefix_length = message.get("index"), message.get("prefixlen")
    family = _family(message)
    # On a point-to-point link IFA_ADDRESS is the other end and IFA_LOCAL ours.
    address = message.get_attr("IFA_LOCAL") or message.get_attr("IFA_ADDRESS")
    flags = message.get_attr("IFA_FLAGS")
    if not isinstance(flags, int):
        flags = message.get("flags")
    if family is None or not (isinstance(index, int) and isinstance(prefix_length, int)):
        return None
    if not (isinstance(address, str) and isinstance(flags, int)):
        return None
    return AddressRecord(index, family, address, prefix_length, flags)


def _is_default(raw: bytes) -> bool:
    return len(raw) > DESTINATION_LENGTH and raw[DESTINATION_LENGTH] == 0


def _routes(message: _Message) -> Iterator[Route]:
    family = _family(message)
    if family is None or message.get("type") != RTN_UNICAST:
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
    via = hop.get_attr("RTA_VIA")  # an IPv4 route over an IPv6 router (RFC 5549)
    return _text(via.get("addr")) if isinstance(via, dict) else ""


def _family(message: _Message) -> Family | None:
    family = message.get("family")
    return FAMILIES.get(family) if isinstance(family, int) else None


def _has_attributes(value: object) -> TypeGuard[_Message]:
    return hasattr(value, "get_attr")


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
