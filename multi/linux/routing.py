"""The rules and routes of policy routing as objects, and how they are read from and given to the Linux kernel.

Knows how to tell our own rules and routes from those of others: by protocol number 99 and by tables above 10000.
Which ones should exist is decided in `multi.linux.policy_routes`.
"""

from __future__ import annotations

import errno
import socket
import struct
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network

from multi.discovery.netlink import NetlinkSocket
from multi.discovery.rtnetlink import HEADER, attribute, attributes, u32
from multi.types import Family

__all__ = ["DefaultRoute", "RoutingKernel", "RoutingTables", "Rule", "TableRoute", "table_of"]

# include/uapi/linux/netlink.h, rtnetlink.h and fib_rules.h
NLM_F_REPLACE = 0x100
NLM_F_EXCL = 0x200
NLM_F_CREATE = 0x400
RTM_NEWROUTE, RTM_DELROUTE, RTM_GETROUTE = 24, 25, 26
RTM_NEWRULE, RTM_DELRULE, RTM_GETRULE = 32, 33, 34
RTA_DST, RTA_SRC, RTA_OIF, RTA_GATEWAY = 1, 2, 4, 5
RTA_PRIORITY, RTA_PREFSRC, RTA_MULTIPATH, RTA_TABLE, RTA_VIA = 6, 7, 9, 15, 18
FRA_SRC, FRA_PRIORITY, FRA_TABLE, FRA_PROTOCOL = 2, 6, 15, 21
FR_ACT_TO_TBL = 1
RTN_UNICAST = 1
RTNH_F_DEAD, RTNH_F_ONLINK, RTNH_F_LINKDOWN = 1, 4, 16
SCOPE_UNIVERSE, SCOPE_LINK = 0, 253
ROUTE = struct.Struct("=BBBBBBBBI")  # rtmsg: family, dst_len, src_len, tos, table, protocol, scope, type, flags;
# fib_rule_hdr has the same layout, with the action in the place of the type
NEXT_HOP = struct.Struct("=HBBi")  # rtnexthop: length, flags, hops, interface index

OUR_PROTOCOL = 99  # rtm_protocol and FRA_PROTOCOL; the kernel and routing daemons use others
FIRST_TABLE = 10_000  # the table of an interface, and the priority of its rules, is this plus its index
FAMILY_NUMBERS = {Family.IPV4: int(socket.AF_INET), Family.IPV6: int(socket.AF_INET6)}
FAMILIES = {number: family for family, number in FAMILY_NUMBERS.items()}
ANYWHERE = {Family.IPV4: "0.0.0.0/0", Family.IPV6: "::/0"}


@dataclass(frozen=True, slots=True)
class Rule:
    """Packets from this address are routed by this table."""

    family: Family
    address: str
    table: int


@dataclass(frozen=True, slots=True)
class TableRoute:
    """One route of one of our tables."""

    family: Family
    table: int
    index: int
    network: str
    gateway: str = ""
    source: str = ""
    """The address packets get that have none yet."""
    on_link: bool = field(default=False, compare=False)
    """The gateway is a neighbour though no subnet says so."""


@dataclass(frozen=True, slots=True)
class DefaultRoute:
    """A default route somebody else has made, in whatever table."""

    family: Family
    index: int
    gateway: str
    metric: int


@dataclass(frozen=True, slots=True)
class RoutingTables:
    """What the kernel has: our rules and routes, and the default routes of others, the preferred ones first."""

    rules: frozenset[Rule]
    routes: frozenset[TableRoute]
    defaults: tuple[DefaultRoute, ...]


def table_of(index: int) -> int:
    """Table and rule priority of an interface."""
    return FIRST_TABLE + index


class RoutingKernel:
    """Routing of the network namespace the thread is in when this is made. Every method raises OSError."""

    def __init__(self) -> None:
        self._netlink = NetlinkSocket()

    def close(self) -> None:
        self._netlink.close()

    def read(self) -> RoutingTables:
        rules: set[Rule] = set()
        routes: set[TableRoute] = set()
        defaults: list[DefaultRoute] = []
        for raw in self._netlink.raw_dump(RTM_GETRULE, ROUTE.pack(0, 0, 0, 0, 0, 0, 0, 0, 0)):
            rule = _rule(raw)
            if rule is not None:
                rules.add(rule)
        for raw in self._netlink.raw_dump(RTM_GETROUTE, ROUTE.pack(0, 0, 0, 0, 0, 0, 0, 0, 0)):
            if len(raw) < HEADER.size + ROUTE.size:
                continue
            _family, length, _, _, _, protocol, _, kind, _ = ROUTE.unpack_from(raw, HEADER.size)
            if kind != RTN_UNICAST:
                continue
            if protocol == OUR_PROTOCOL:
                route = _route(raw)
                if route is not None:
                    routes.add(route)
            elif length == 0:
                defaults += _defaults(raw)
        defaults.sort(key=lambda one: one.metric)
        return RoutingTables(frozenset(rules), frozenset(routes), tuple(defaults))

    def way_out(self, source: str, remote: str) -> int:
        """Index of the interface through which packets leave that are bound to `source` only; 0 = none."""
        family = _family_of(remote)
        bits = 128 if family is Family.IPV6 else 32
        body = ROUTE.pack(FAMILY_NUMBERS[family], bits, bits, 0, 0, 0, 0, 0, 0)
        body += attribute(RTA_DST, _packed(remote)) + attribute(RTA_SRC, _packed(source))
        try:
            answer = self._netlink.request(RTM_GETROUTE, 0, body)
        except OSError:
            return 0
        return _number(attributes(answer, HEADER.size + ROUTE.size).get(RTA_OIF, b""))

    def add_rule(self, rule: Rule) -> None:
        """A rule that is there already is no error."""
        try:
            self._netlink.request(RTM_NEWRULE, NLM_F_CREATE | NLM_F_EXCL, rule_body(rule))
        except FileExistsError:
            pass

    def delete_rule(self, rule: Rule) -> None:
        """A rule that is not there is no error."""
        try:
            self._netlink.request(RTM_DELRULE, 0, rule_body(rule))
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ESRCH):
                raise

    def add_route(self, route: TableRoute) -> None:
        """A route to the same network in the same table is replaced."""
        self._netlink.request(RTM_NEWROUTE, NLM_F_CREATE | NLM_F_REPLACE, route_body(route))

    def delete_route(self, route: TableRoute) -> None:
        """A route that is not there is no error."""
        try:
            self._netlink.request(RTM_DELROUTE, 0, route_body(route))
        except OSError as error:
            if error.errno not in (errno.ESRCH, errno.ENODEV):
                raise


def rule_body(rule: Rule) -> bytes:
    packed = _packed(rule.address)
    body = ROUTE.pack(FAMILY_NUMBERS[rule.family], 0, len(packed) * 8, 0, 0, 0, 0, FR_ACT_TO_TBL, 0)
    body += attribute(FRA_SRC, packed) + u32(FRA_PRIORITY, rule.table) + u32(FRA_TABLE, rule.table)
    return body + attribute(FRA_PROTOCOL, bytes((OUR_PROTOCOL,)))


def route_body(route: TableRoute) -> bytes:
    network = ip_network(route.network)
    # IPv6 has no scopes; for IPv4 a route without gateway is a link's.
    scope = SCOPE_LINK if route.family is Family.IPV4 and not route.gateway else SCOPE_UNIVERSE
    flags = RTNH_F_ONLINK if route.on_link else 0
    family, length = FAMILY_NUMBERS[route.family], network.prefixlen
    body = ROUTE.pack(family, length, 0, 0, 0, OUR_PROTOCOL, scope, RTN_UNICAST, flags)
    if length:
        body += attribute(RTA_DST, network.network_address.packed)
    body += u32(RTA_OIF, route.index) + u32(RTA_TABLE, route.table)
    if route.gateway:
        body += attribute(RTA_GATEWAY, _packed(route.gateway))
    if route.source:
        body += attribute(RTA_PREFSRC, _packed(route.source))
    return body


def _rule(raw: bytes) -> Rule | None:
    """The rule in a message, if it is one of ours."""
    if len(raw) < HEADER.size + ROUTE.size:
        return None
    family = FAMILIES.get(raw[HEADER.size])
    found = attributes(raw, HEADER.size + ROUTE.size)
    table, address = _number(found.get(FRA_TABLE, b"")), _literal(found.get(FRA_SRC, b""))
    ours = found.get(FRA_PROTOCOL) == bytes((OUR_PROTOCOL,)) and table > FIRST_TABLE
    if family is None or not address or not ours or _number(found.get(FRA_PRIORITY, b"")) != table:
        return None
    return Rule(family, address, table)


def _route(raw: bytes) -> TableRoute | None:
    """The route in a message with our protocol number, if it is in one of our tables."""
    number, length, *_ = ROUTE.unpack_from(raw, HEADER.size)
    family = FAMILIES.get(number)
    found = attributes(raw, HEADER.size + ROUTE.size)
    table = _number(found.get(RTA_TABLE, b""))
    if family is None or table <= FIRST_TABLE:
        return None
    network = f"{_literal(found.get(RTA_DST, b''))}/{length}" if length else ANYWHERE[family]
    gateway, source = _literal(found.get(RTA_GATEWAY, b"")), _literal(found.get(RTA_PREFSRC, b""))
    return TableRoute(family, table, _number(found.get(RTA_OIF, b"")), network, gateway, source)


def _defaults(raw: bytes) -> list[DefaultRoute]:
    """The ways out of a default route. One over a gateway of the other family (RFC 5549) is not among them."""
    number, *_, flags = ROUTE.unpack_from(raw, HEADER.size)
    family = FAMILIES.get(number)
    if family is None:
        return []
    found = attributes(raw, HEADER.size + ROUTE.size)
    metric = _number(found.get(RTA_PRIORITY, b""))
    hops = found.get(RTA_MULTIPATH)
    if hops is None:
        return _default(family, _number(found.get(RTA_OIF, b"")), found, metric, flags)
    ways: list[DefaultRoute] = []
    while len(hops) >= NEXT_HOP.size:
        size, hop_flags, _weight, index = NEXT_HOP.unpack_from(hops)
        if size < NEXT_HOP.size:
            break
        ways += _default(family, index, attributes(hops[:size], NEXT_HOP.size), metric, hop_flags)
        hops = hops[(size + 3) & ~3 :]
    return ways


def _default(family: Family, index: int, found: dict[int, bytes], metric: int, flags: int) -> list[DefaultRoute]:
    if not index or RTA_VIA in found or flags & (RTNH_F_DEAD | RTNH_F_LINKDOWN):
        return []
    return [DefaultRoute(family, index, _literal(found.get(RTA_GATEWAY, b"")), metric)]


def _family_of(literal: str) -> Family:
    return Family.IPV6 if ":" in literal else Family.IPV4


def _packed(literal: str) -> bytes:
    return ip_address(literal).packed


def _literal(packed: bytes) -> str:
    return str(ip_address(packed)) if len(packed) in (4, 16) else ""


def _number(packed: bytes) -> int:
    return int(struct.unpack("=I", packed)[0]) if len(packed) == 4 else 0
