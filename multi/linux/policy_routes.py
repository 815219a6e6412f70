"""Routes by source address, so that packets leave through the interface whose address they carry.

A machine with two networks sends everything through the one with the best default route, packets with the other's
address included, where no provider lets them pass. Decides for which addresses rules and routes of our own are needed
and which have to go again. Device-bound sockets need no more than a default route of any metric; this is for those
bound to an address only, and for interfaces to which no default route leads.

Everything made here carries protocol number 99 and a table above 10000, so that the next process recognises what a
crashed one has left. Processes that live keep a socket with a name in the network namespace: the last one cleans up.
"""

from __future__ import annotations

import atexit
import errno
import logging
import os
import socket
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from ipaddress import ip_address, ip_interface
from pathlib import Path
from typing import NamedTuple

from multi.discovery.namespace import Namespace, namespace
from multi.discovery.netlink import ROUTE, RTM_GETROUTE, RTM_GETRULE, NetlinkSocket, attributes
from multi.discovery.snapshot import FAMILIES, Route, lookup, readable, routes
from multi.linux.route_netlink import RouteNetlink
from multi.types import Family, Interface, Kind

log = logging.getLogger("multi.linux")

NOT_PERMITTED = "manage_routes: not permitted to change routes (needs CAP_NET_ADMIN): they are left as they are"
NO_POLICY_ROUTING = "manage_routes: this kernel has no routing by rules: routes are left as they are"
NOT_LINUX = "manage_routes: this works on Linux only: routes are left as they are"

Gateways = Mapping[str, Sequence[str]]
"""Interface name -> addresses of its routers, as somebody knows who is not the kernel."""

OUR_PROTOCOL = 99  # rtm_protocol and FRA_PROTOCOL; the kernel and routing daemons use others
FIRST_TABLE = 10_000  # the table of an interface, and the priority of its rules, is this plus its index
FRA_SRC, FRA_PRIORITY, FRA_TABLE, FRA_PROTOCOL = 2, 6, 15, 21  # include/uapi/linux/fib_rules.h
PROBES = {Family.IPV4: "192.0.2.1", Family.IPV6: "2001:db8::1"}  # RFC 5737, RFC 3849: somewhere in the Internet
ANYWHERE = {Family.IPV4: "0.0.0.0/0", Family.IPV6: "::/0"}
KEEPS_ROUTES = frozenset({"deprecated"})  # existing connections use such an address, new ones do not
BEACON = "multi-policy-routes-"  # of the abstract socket names that living processes have


class PolicyRoutes:
    """The routes one session wants. All sessions of a process share what is installed; safe in any thread.

    The calls take some milliseconds in the kernel; from an event loop call them through `asyncio.to_thread`.
    """

    def install(
        self,
        interfaces: Sequence[Interface],
        *,
        remotes: Iterable[str] = (),
        gateways: Gateways = {},  # noqa: B006 - never changed
    ) -> list[str]:
        """Make what is missing and remove what no longer fits; to be called again whenever the network has changed.

        `interfaces` are all the session may use: an address that is not among them any more loses its rule. Whether
        packets from an address already leave through its interface is asked for each of `remotes`, or for the
        Internet at large. Routers come from the default routes of any table, after `gateways`; none is guessed.
        Returns in words what could not be done, the same each time while that lasts; raises nothing.
        """
        if sys.platform != "linux":
            return [NOT_LINUX]
        with _lock:
            try:
                key = namespace()
                if key not in _spaces:
                    _spaces[key] = _Space(key)
                return _spaces[key].install(self, interfaces, tuple(remotes), gateways)
            except OSError as error:
                return [_refusal(error)]

    def remove(self) -> None:
        """Remove what no other session needs; nothing for who has installed nothing."""
        with _lock:
            for space in list(_spaces.values()):
                space.leave(self)


@dataclass(frozen=True, slots=True)
class Rule:
    """Packets from this address are routed by this table."""

    address: str
    table: int

    @property
    def family(self) -> Family:
        return _family(self.address)


@dataclass(frozen=True, slots=True)
class RoutingTables:
    """What the kernel has: our rules and routes, and the default routes of others, the preferred ones first."""

    rules: frozenset[Rule]
    routes: frozenset[Route]
    defaults: tuple[Route, ...]


def read_tables(kernel: NetlinkSocket) -> RoutingTables:
    rules = readable(_our_rule, kernel.dump(RTM_GETRULE, bytes(ROUTE.size)))
    ours, defaults = set(), []
    for body in kernel.dump(RTM_GETROUTE, bytes(ROUTE.size)):
        if len(body) < ROUTE.size or (body[5] != OUR_PROTOCOL and body[1]):
            continue  # a full routing table is long
        for route in (route for found in readable(routes, [body]) for route in found):
            if route.protocol != OUR_PROTOCOL:
                # One over a router of the other family (RFC 5549) cannot be repeated in a table of ours.
                if not route.gateway or _family(route.gateway) is route.family:
                    defaults.append(route)
            elif route.table > FIRST_TABLE:
                ours.add(replace(route, metric=0))
    return RoutingTables(frozenset(rules), frozenset(ours), tuple(sorted(defaults, key=lambda one: one.metric)))


def _our_rule(body: bytes) -> Rule | None:
    found = attributes(body, ROUTE.size)
    table, source = found.get(FRA_TABLE, b""), found.get(FRA_SRC, b"")
    number = int.from_bytes(table, sys.byteorder)
    ours = found.get(FRA_PROTOCOL) == bytes((OUR_PROTOCOL,)) and number > FIRST_TABLE
    if not ours or found.get(FRA_PRIORITY) != table or body[0] not in FAMILIES:
        return None
    return Rule(str(ip_address(source)), number)


class _Wanted(NamedTuple):
    """An address that may need a rule."""

    interface: Interface
    rule: Rule
    subnet: str


@dataclass(slots=True)
class _Plan:
    """What should exist."""

    rules: set[Rule] = field(default_factory=set)
    routes: set[Route] = field(default_factory=set)


class _Space:
    """Our routes in one network namespace. Its sockets stay there, whoever removes the routes."""

    def __init__(self, key: Namespace) -> None:
        self._key = key
        self._kernel = RouteNetlink()
        self._plans: dict[PolicyRoutes, _Plan] = {}
        self._beacon: socket.socket | None = None

    def install(
        self, holder: PolicyRoutes, interfaces: Sequence[Interface], remotes: Sequence[str], gateways: Gateways
    ) -> list[str]:
        tables = read_tables(self._kernel)
        wanted = [one for one in _candidates(interfaces) if self._needs_rule(one, tables, remotes)]
        plan, warnings = _plan(wanted, tables, gateways)
        had = self._plans.pop(holder, _Plan())
        if plan.rules:
            self._announce_liveness()
            self._plans[holder] = plan
        try:
            warnings += self._apply(tables, had)
        except PermissionError:
            self._plans.pop(holder, None)
            warnings = [NOT_PERMITTED]
        self._close_when_idle()
        return warnings

    def leave(self, holder: PolicyRoutes) -> None:
        plan = self._plans.pop(holder, None)
        if plan is None:
            return
        try:
            if not self._others_live():
                self._apply(read_tables(self._kernel), plan)
        except OSError as error:
            log.warning("policy routes are left behind: %s", _refusal(error))
        self._close_when_idle()

    def leave_all(self) -> None:
        for holder in list(self._plans):
            self.leave(holder)

    def close(self) -> None:
        """Forget everything and change nothing."""
        self._plans.clear()
        self._kernel.close()
        if self._beacon is not None:
            self._beacon.close()

    def _needs_rule(self, wanted: _Wanted, tables: RoutingTables, remotes: Sequence[str]) -> bool:
        """An address that has our rule keeps it: it may be why packets take the right way now."""
        interface, rule = wanted.interface, wanted.rule
        if rule in tables.rules:
            return True
        asked = [remote for remote in remotes if _family(remote) is rule.family] or [PROBES[rule.family]]
        return any(
            interface.index not in {route.index for route in lookup(self._kernel, remote, rule.address)}
            for remote in asked
        )

    def _apply(self, tables: RoutingTables, had: _Plan) -> list[str]:
        """Make what all plans want, remove what `had` wanted besides or a process has left that is gone."""
        wanted_rules = {rule for plan in self._plans.values() for rule in plan.rules}
        wanted_routes = {route for plan in self._plans.values() for route in plan.routes}
        stale_rules, stale_routes = set(tables.rules - wanted_rules), set(tables.routes - wanted_routes)
        if self._others_live():
            # What we did not make may be another one's; but two gateways in one table cannot both be right.
            mine = {route.table for route in wanted_routes | had.routes}
            stale_rules &= had.rules
            stale_routes = {route for route in stale_routes if route.table in mine}
        missing = wanted_routes - tables.routes
        replaced = {(route.table, route.family, route.network) for route in missing}
        # Subnets first: with the default route packets get an address from there.
        warnings = [
            warning for route in sorted(missing, key=lambda one: bool(one.gateway)) for warning in self._add(route)
        ]
        for rule in wanted_rules - tables.rules:
            self._kernel.add_rule(rule.address, rule.table, OUR_PROTOCOL)
            log.info("added rule: from %s lookup %d", rule.address, rule.table)
        for rule in stale_rules:
            self._kernel.delete_rule(rule.address, rule.table, OUR_PROTOCOL)
            log.info("removed rule: from %s lookup %d", rule.address, rule.table)
        for route in stale_routes:
            if (route.table, route.family, route.network) not in replaced:
                self._kernel.delete_route(
                    route.index,
                    _network(route),
                    gateway=route.gateway,
                    source=route.source,
                    table=route.table,
                    protocol=OUR_PROTOCOL,
                )
        return warnings

    def _add(self, route: Route) -> Iterator[str]:
        try:
            self._kernel.add_route(
                route.index,
                _network(route),
                gateway=route.gateway,
                source=route.source,
                table=route.table,
                protocol=OUR_PROTOCOL,
                on_link=bool(route.gateway),  # somebody knows the router: no subnet need say so
            )
        except PermissionError:
            raise
        except OSError as error:
            via = f" via {route.gateway}" if route.gateway else ""
            yield f"{_name(route.index)}: the route to {_network(route)}{via} is refused: {error.strerror}"

    def _announce_liveness(self) -> None:
        if self._beacon is None:
            self._beacon = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._beacon.bind(f"\0{BEACON}{os.urandom(8).hex()}")

    def _others_live(self) -> bool:
        """Whether another process has routes here. Names that a crashed one had are gone with it."""
        own = self._beacon.getsockname()[1:].decode() if self._beacon is not None else ""
        try:
            lines = Path("/proc/thread-self/net/unix").read_text(errors="replace").splitlines()
        except OSError:
            return False
        names = {line.partition(f"@{BEACON}")[2].strip() for line in lines if f"@{BEACON}" in line}
        return bool(names - {own.removeprefix(BEACON)})

    def _close_when_idle(self) -> None:
        if not self._plans:
            self.close()
            _spaces.pop(self._key, None)


_lock = threading.Lock()
_spaces: dict[Namespace, _Space] = {}


@atexit.register
def _remove_all() -> None:
    with _lock:
        for space in list(_spaces.values()):
            space.leave_all()


def _forked() -> None:
    """In a child: the routes are the parent's to remove, and the thread that held the lock is not there."""
    global _lock
    _lock = threading.Lock()
    for inherited in _spaces.values():
        inherited.close()
    _spaces.clear()


with suppress(AttributeError):  # not on Windows
    os.register_at_fork(after_in_child=_forked)


def _candidates(interfaces: Sequence[Interface]) -> Iterator[_Wanted]:
    for interface in interfaces:
        if not interface.up or interface.kind is Kind.LOOPBACK or not interface.index:
            continue
        for address in interface.addresses:
            if address.usable or address.reason in KEEPS_ROUTES:
                with_prefix = ip_interface(f"{address.address}/{address.prefix_length}")
                rule = Rule(str(with_prefix.ip), FIRST_TABLE + interface.index)
                yield _Wanted(interface, rule, str(with_prefix.network))


def _plan(wanted: Sequence[_Wanted], tables: RoutingTables, gateways: Gateways) -> tuple[_Plan, list[str]]:
    """Rules and routes for these addresses; in words for whom there is no way but to the neighbours."""
    plan = _Plan()
    warnings: dict[str, None] = {}
    for interface, rule, subnet in wanted:
        family = rule.family
        gateway = _gateway(interface, family, tables, gateways)
        if gateway is None and interface.kind is Kind.VIRTUAL:
            continue  # the bridge of some containers or the like: no way out, and nobody thinks so
        plan.rules.add(rule)
        if not any(route.table == rule.table and route.network == subnet for route in plan.routes):
            # The first of several addresses of a subnet; the second would only replace it.
            plan.routes.add(Route(interface.index, family, "", subnet, rule.table, OUR_PROTOCOL, source=rule.address))
        if gateway is None:
            warnings[f"{interface.name}: no gateway known for {family.value}, only its own subnet is routed"] = None
        else:
            plan.routes.add(Route(interface.index, family, gateway, "", rule.table, OUR_PROTOCOL))
    return plan, list(warnings)


def _gateway(interface: Interface, family: Family, tables: RoutingTables, gateways: Gateways) -> str | None:
    """The router to use; empty = the link needs none, None = nobody knows one."""
    for literal in gateways.get(interface.name, ()):
        if _family(literal) is family:
            return str(ip_address(literal))
    for route in tables.defaults:
        if route.index == interface.index and route.family is family:
            return route.gateway
    return None


def _network(route: Route) -> str:
    return route.network or ANYWHERE[route.family]


def _family(literal: str) -> Family:
    return Family.IPV6 if ":" in literal else Family.IPV4


def _name(index: int) -> str:
    try:
        return socket.if_indextoname(index)
    except OSError:
        return f"interface {index}"


def _refusal(error: OSError) -> str:
    if isinstance(error, PermissionError):
        return NOT_PERMITTED
    if error.errno in (errno.EOPNOTSUPP, errno.EAFNOSUPPORT):
        return NO_POLICY_ROUTING
    return f"manage_routes: routes cannot be changed: {error.strerror or error}"
