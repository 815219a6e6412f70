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
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_interface, ip_network
from pathlib import Path

from multi.types import Family, Interface, InterfaceAddress, Kind

if sys.platform == "linux":
    from multi.discovery.namespace import namespace
from multi.linux.routing import ANYWHERE, RoutingKernel, RoutingTables, Rule, TableRoute, table_of

__all__ = ["PolicyRoutes"]

log = logging.getLogger("multi.linux")

NOT_PERMITTED = "manage_routes: not permitted to change routes (needs CAP_NET_ADMIN): they are left as they are"
NO_POLICY_ROUTING = "manage_routes: this kernel has no routing by rules: routes are left as they are"
NOT_LINUX = "manage_routes: this works on Linux only: routes are left as they are"

Gateways = Mapping[str, Sequence[str]]
"""Interface name -> addresses of its routers, as somebody knows who is not the kernel."""

PROBES = {Family.IPV4: "192.0.2.1", Family.IPV6: "2001:db8::1"}  # RFC 5737, RFC 3849: somewhere in the Internet
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
                return _space().install(self, interfaces, tuple(remotes), gateways)
            except OSError as error:
                return [_refusal(error)]

    def remove(self) -> None:
        """Remove what no other session needs; nothing for who has installed nothing."""
        if sys.platform == "linux":
            with _lock:
                for space in list(_spaces.values()):
                    space.leave(self)


_lock = threading.Lock()


def _unlock() -> None:
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unlock)  # the thread that held it is not there

if sys.platform == "linux":

    @dataclass(frozen=True, slots=True)
    class _Wanted:
        """An address that needs a rule."""

        interface: Interface
        address: InterfaceAddress

        @property
        def rule(self) -> Rule:
            literal = str(ip_address(self.address.address))
            return Rule(self.address.family, literal, table_of(self.interface.index))

    @dataclass(slots=True)
    class _Plan:
        """What should exist."""

        rules: set[Rule] = field(default_factory=set)
        routes: set[TableRoute] = field(default_factory=set)

    class _Space:
        """Our routes in one network namespace. Its sockets stay there, whoever removes the routes."""

        def __init__(self, key: tuple[int, int]) -> None:
            self._key = key
            self._kernel = RoutingKernel()
            self._plans: dict[PolicyRoutes, _Plan] = {}
            self._beacon: socket.socket | None = None

        def install(
            self, holder: PolicyRoutes, interfaces: Sequence[Interface], remotes: Sequence[str], gateways: Gateways
        ) -> list[str]:
            tables = self._kernel.read()
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
                    self._apply(self._kernel.read(), plan)
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

        def _needs_rule(self, one: _Wanted, tables: RoutingTables, remotes: Sequence[str]) -> bool:
            """An address that has our rule keeps it: it may be why packets take the right way now."""
            family = one.address.family
            if one.rule in tables.rules:
                return True
            asked = [remote for remote in remotes if (":" in remote) is (family is Family.IPV6)]
            return any(
                self._kernel.way_out(one.address.address, remote) != one.interface.index
                for remote in asked or [PROBES[family]]
            )

        def _apply(self, tables: RoutingTables, had: _Plan) -> list[str]:
            """Make what all plans want, remove what `had` wanted besides or a process has left that is gone."""
            rules = {rule for plan in self._plans.values() for rule in plan.rules}
            routes = {route for plan in self._plans.values() for route in plan.routes}
            stale_rules, stale_routes = set(tables.rules - rules), set(tables.routes - routes)
            if self._others_live():
                # What we did not make may be another one's; but two gateways in one table cannot both be right.
                mine = {route.table for route in routes | had.routes}
                stale_rules &= had.rules
                stale_routes = {route for route in stale_routes if route.table in mine}
            missing = routes - tables.routes
            replaced = {(route.table, route.network) for route in missing}
            warnings: list[str] = []
            # Subnets first: a gateway must be in one of them.
            for route in sorted(missing, key=lambda one: bool(one.gateway)):
                warnings += self._try_route(route)
            for rule in rules - tables.rules:
                self._kernel.add_rule(rule)
                log.info("added rule: from %s lookup %d", rule.address, rule.table)
            for rule in stale_rules:
                self._kernel.delete_rule(rule)
                log.info("removed rule: from %s lookup %d", rule.address, rule.table)
            for route in stale_routes:
                if (route.table, route.network) not in replaced:
                    self._kernel.delete_route(route)
            return warnings

        def _try_route(self, route: TableRoute) -> Iterator[str]:
            try:
                self._kernel.add_route(route)
            except PermissionError:
                raise
            except OSError as error:
                via = f" via {route.gateway}" if route.gateway else ""
                name = _name(route.index)
                yield f"{name}: the route to {route.network}{via} is refused: {error.strerror}"

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

    _spaces: dict[tuple[int, int], _Space] = {}
    _process = 0

    def _space() -> _Space:
        """Of the network namespace this thread is in. Raises OSError."""
        global _process
        if _process != os.getpid():
            if not _process:
                atexit.register(_remove_all)
            for inherited in _spaces.values():
                inherited.close()  # after a fork: the routes are the parent's to remove
            _spaces.clear()
            _process = os.getpid()
        key = namespace()
        if key not in _spaces:
            _spaces[key] = _Space(key)
        return _spaces[key]

    def _remove_all() -> None:
        if _process == os.getpid():
            with _lock:
                for space in list(_spaces.values()):
                    space.leave_all()

    def _candidates(interfaces: Sequence[Interface]) -> Iterator[_Wanted]:
        for interface in interfaces:
            if not interface.up or interface.kind is Kind.LOOPBACK or not interface.index:
                continue
            for address in interface.addresses:
                if address.usable or address.reason in KEEPS_ROUTES:
                    yield _Wanted(interface, address)

    def _plan(wanted: Sequence[_Wanted], tables: RoutingTables, gateways: Gateways) -> tuple[_Plan, list[str]]:
        """Rules and routes for these addresses; in words for whom there is no way but to the neighbours."""
        plan = _Plan()
        warnings: list[str] = []
        for one in wanted:
            family, interface, rule = one.address.family, one.interface, one.rule
            gateway = _gateway(interface, family, tables, gateways)
            if gateway is None and interface.kind is Kind.VIRTUAL:
                continue  # the bridge of some containers or the like: no way out, and nobody thinks so
            plan.rules.add(rule)
            subnet = str(ip_interface(f"{one.address.address}/{one.address.prefix_length}").network)
            if not any(route.table == rule.table and route.network == subnet for route in plan.routes):
                # The first of several addresses of a subnet; the second would only replace it.
                plan.routes.add(TableRoute(family, rule.table, interface.index, subnet, source=rule.address))
            if gateway is None:
                warning = f"{interface.name}: no gateway known for {family.value}, only its own subnet is routed"
                if warning not in warnings:
                    warnings.append(warning)
                continue
            on_link = bool(gateway) and not _is_neighbour(gateway, interface)
            anywhere = ANYWHERE[family]
            plan.routes.add(TableRoute(family, rule.table, interface.index, anywhere, gateway=gateway, on_link=on_link))
        return plan, warnings

    def _gateway(interface: Interface, family: Family, tables: RoutingTables, gateways: Gateways) -> str | None:
        """The router to use; empty = the link needs none, None = nobody knows one."""
        for literal in gateways.get(interface.name, ()):
            if (":" in literal) is (family is Family.IPV6):
                return str(ip_address(literal))
        for route in tables.defaults:
            if route.index == interface.index and route.family is family:
                return route.gateway
        return None

    def _is_neighbour(gateway: str, interface: Interface) -> bool:
        router = ip_address(gateway)
        return router.is_link_local or any(
            router in ip_network(f"{one.address}/{one.prefix_length}", strict=False) for one in interface.addresses
        )

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
