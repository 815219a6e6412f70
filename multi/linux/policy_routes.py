"""Routes by source address, so that packets leave through the interface whose address they carry.

A machine with two networks sends everything through the one with the best default route, packets with the other's
address included, where no provider lets them pass. Decides for which addresses rules and routes of our own are needed
and which have to go again. Device-bound sockets need no more than a default route of any metric; this is for those
bound to an address only.

Everything made here carries protocol number 99, and tables above 10000 whose numbers tell the process: each has a slot
of its own, held by a socket with a name in the network namespace. The name goes with its process, so that the next one
recognises what a crashed one has left; processes that live never touch what another one has made.
"""

from __future__ import annotations

import atexit
import errno
import logging
import os
import socket
import sys
import threading
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from ipaddress import ip_address, ip_interface

from multi.discovery.namespace import NamespaceId, namespace
from multi.discovery.netlink import ROUTE, RTM_GETROUTE, RTM_GETRULE, NetlinkSocket, attributes
from multi.discovery.snapshot import FAMILIES, KernelRoute, lookup, readable, routes
from multi.linux.route_netlink import RouteNetlink
from multi.types import Family, Interface, Kind

logger = logging.getLogger("multi.linux")

NOT_PERMITTED = "not permitted to change routes (needs CAP_NET_ADMIN): they are left as they are"
NOT_LINUX = "this works on Linux only: routes are left as they are"

OUR_PROTOCOL = 99  # rtm_protocol and FRA_PROTOCOL; the kernel and routing daemons use others
FIRST_TABLE = 10_000
SLOTS = 256  # processes at the same time; the table of an interface is FIRST_TABLE + index * SLOTS + slot
RULE_PRIORITY = 10_000  # before the main table, which has 32766
FRA_SRC, FRA_TABLE, FRA_PROTOCOL = 2, 15, 21  # include/uapi/linux/fib_rules.h
ANYWHERE = {Family.IPV4: "0.0.0.0/0", Family.IPV6: "::/0"}
SLOT_NAME = "\0multi-policy-routes-"  # of an abstract socket, followed by the number of the slot


class PolicyRoutes:
    """The routes one session wants. All sessions of a process share what is installed; safe in any thread.

    The calls take some milliseconds in the kernel; from an event loop call them through `asyncio.to_thread`. Such a
    thread goes on when the session is over: once they are removed none are installed, and they would stay for good.
    """

    removed = False

    def install(self, interfaces: Sequence[Interface], remotes: Iterable[str]) -> list[str]:
        """Make what is missing and remove what no longer fits; to be called again whenever the network has changed.

        `interfaces` are all the session may use: an address that is not among them any more loses its rule. Whether
        packets from an address to each of `remotes` leave through its interface already is asked first. Routers come
        from the default routes of any table; none is guessed. Returns in words what could not be done, the same each
        time while that lasts; raises nothing.
        """
        if sys.platform != "linux":
            return [NOT_LINUX]
        with _lock:
            if self.removed:
                return []
            try:
                key = namespace()
                if key not in _spaces:
                    _spaces[key] = _Space()
                return _spaces[key].install(self, interfaces, tuple(remotes))
            except OSError as error:
                return [_refusal(error)]
            finally:
                _close_idle()

    def remove(self) -> None:
        """Remove what no other session needs; nothing for who has installed nothing."""
        with _lock:
            self.removed = True
            for space in _spaces.values():
                space.leave(self)
            _close_idle()


@dataclass(frozen=True, slots=True)
class Rule:
    """Packets from this address are routed by this table."""

    address: str
    table: int


Item = Rule | KernelRoute


@dataclass(frozen=True, slots=True)
class RoutingTables:
    """What the kernel has: rules and routes of ours, and the default routes of others, the preferred ones first."""

    ours: frozenset[Item]
    defaults: tuple[KernelRoute, ...]


def read_tables(kernel: NetlinkSocket) -> RoutingTables:
    ours: set[Item] = set(readable(_our_rule, kernel.dump(RTM_GETRULE, bytes(ROUTE.size))))
    defaults = []
    for body in kernel.dump(RTM_GETROUTE, bytes(ROUTE.size)):
        if len(body) < ROUTE.size or (body[5] != OUR_PROTOCOL and body[1]):
            continue  # a full routing table is long
        for route in (route for found in readable(routes, [body]) for route in found):
            if route.protocol != OUR_PROTOCOL:
                # One over a router of the other family (RFC 5549) cannot be repeated in a table of ours.
                if not route.gateway or Family.of(route.gateway) is route.family:
                    defaults.append(route)
            elif route.table > FIRST_TABLE:
                ours.add(replace(route, metric=0))
    return RoutingTables(frozenset(ours), tuple(sorted(defaults, key=lambda one: one.metric)))


def _our_rule(body: bytes) -> Rule | None:
    found = attributes(body, ROUTE.size)
    table = int.from_bytes(found.get(FRA_TABLE, b""), sys.byteorder)
    if found.get(FRA_PROTOCOL) != bytes((OUR_PROTOCOL,)) or table <= FIRST_TABLE or body[0] not in FAMILIES:
        return None
    return Rule(str(ip_address(found.get(FRA_SRC, b""))), table)


class _Space:
    """Our routes in one network namespace. Its sockets stay there, whoever removes the routes."""

    def __init__(self) -> None:
        self.plans: dict[PolicyRoutes, set[Item]] = {}
        self._slot, self._claim = _free_slot()
        self._kernel = RouteNetlink()

    def install(self, holder: PolicyRoutes, interfaces: Sequence[Interface], remotes: Sequence[str]) -> list[str]:
        tables = read_tables(self._kernel)
        self._sweep(tables)
        plan, warnings = self._plan(interfaces, remotes, tables)
        self.plans.pop(holder, None)
        if plan:
            self.plans[holder] = plan
        try:
            return warnings + self._apply(tables)
        except PermissionError:
            self.plans.pop(holder, None)
            return [NOT_PERMITTED]

    def leave(self, holder: PolicyRoutes) -> None:
        if self.plans.pop(holder, None) is None:
            return
        try:
            self._apply(read_tables(self._kernel))
        except OSError as error:
            logger.warning("policy routes are left behind: %s", _refusal(error))

    def close(self) -> None:
        """Forget everything and change nothing."""
        self._kernel.close()
        self._claim.close()

    def _plan(
        self, interfaces: Sequence[Interface], remotes: Sequence[str], tables: RoutingTables
    ) -> tuple[set[Item], list[str]]:
        """What should exist, and in words for whom there is no way but to the neighbours."""
        plan: set[Item] = set()
        warnings: dict[str, None] = {}  # in order
        ruled = {item.address for item in tables.ours if isinstance(item, Rule)}
        for interface in interfaces:
            if not interface.up or interface.kind is Kind.LOOPBACK or not interface.index:
                continue
            for address in interface.addresses:
                # Existing connections use a deprecated address, new ones do not.
                if not address.usable and address.reason != "deprecated":
                    continue
                # An address that has a rule needs one: it may be why packets take the right way now.
                if address.address not in ruled and self._leaves_right(interface, address.address, remotes):
                    continue
                family, index = address.family, interface.index
                ways = (way.gateway for way in tables.defaults if way.index == index and way.family is family)
                gateway = next(ways, None)
                if gateway is None and interface.kind is Kind.VIRTUAL:
                    continue  # the bridge of some containers or the like: no way out, and nobody thinks so
                table = FIRST_TABLE + index * SLOTS + self._slot
                subnet = str(ip_interface(f"{address.address}/{address.prefix_length}").network)
                plan.add(Rule(address.address, table))
                plan.add(KernelRoute(index, family, "", subnet, table, OUR_PROTOCOL))
                if gateway is not None:
                    plan.add(KernelRoute(index, family, gateway, "", table, OUR_PROTOCOL))
                else:
                    warnings[
                        f"{interface.name}: no gateway known for {family.value}, only its own subnet is routed"
                    ] = None
        return plan, list(warnings)

    def _leaves_right(self, interface: Interface, address: str, remotes: Sequence[str]) -> bool:
        """Packets from this address to all remotes leave through its interface."""
        return all(
            interface.index in {route.index for route in lookup(self._kernel, remote, address)}
            for remote in remotes
            if Family.of(remote) is Family.of(address)
        )

    def _apply(self, tables: RoutingTables) -> list[str]:
        """Make what all plans want, and remove what else is in our slot."""
        wanted = {item for plan in self.plans.values() for item in plan}
        have = {item for item in tables.ours if _slot_of(item) == self._slot}
        self._remove(have - wanted)
        warnings = []
        for item in sorted(wanted - have, key=lambda one: isinstance(one, Rule)):
            try:
                if isinstance(item, Rule):
                    self._kernel.add_rule(item.address, item.table, RULE_PRIORITY, OUR_PROTOCOL)
                else:
                    # Somebody knows the router: no subnet need say so.
                    self._kernel.add_route(item.index, _network(item), on_link=bool(item.gateway), **_options(item))
            except PermissionError:
                raise
            except OSError as error:
                warnings.append(f"{_words(item)} is refused: {error.strerror}")
            else:
                logger.info("added %s", _words(item))
        return warnings

    def _remove(self, items: Collection[Item]) -> None:
        for item in sorted(items, key=lambda one: isinstance(one, KernelRoute)):
            if isinstance(item, Rule):
                self._kernel.delete_rule(item.address, item.table, RULE_PRIORITY, OUR_PROTOCOL)
            else:
                self._kernel.delete_route(item.index, _network(item), **_options(item))
            logger.info("removed %s", _words(item))

    def _sweep(self, tables: RoutingTables) -> None:
        """Remove what processes have left that are gone: nobody holds their slots."""
        for slot in {_slot_of(item) for item in tables.ours} - {self._slot}:
            with suppress(OSError), _claimed(slot):
                self._remove([item for item in tables.ours if _slot_of(item) == slot])


_lock = threading.Lock()
_spaces: dict[NamespaceId, _Space] = {}


def _close_idle() -> None:
    for key in [key for key, space in _spaces.items() if not space.plans]:
        _spaces.pop(key).close()


@atexit.register
def _remove_all() -> None:
    with _lock:
        for space in _spaces.values():
            for holder in list(space.plans):
                space.leave(holder)


def _forked() -> None:
    """In a child: the routes are the parent's to remove, and the thread that held the lock is not there."""
    global _lock
    _lock = threading.Lock()
    for inherited in _spaces.values():
        inherited.close()
    _spaces.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def _claimed(slot: int) -> socket.socket:
    """Holds the slot in the network namespace of this thread until it is closed. OSError: another process does."""
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        claim.bind(f"{SLOT_NAME}{slot}")
    except OSError:
        claim.close()
        raise
    return claim


def _free_slot() -> tuple[int, socket.socket]:
    for slot in range(SLOTS):
        try:
            return slot, _claimed(slot)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
    raise OSError(errno.EBUSY, "too many processes manage routes")


def _slot_of(item: Item) -> int:
    return (item.table - FIRST_TABLE) % SLOTS


def _network(route: KernelRoute) -> str:
    return route.network or ANYWHERE[route.family]


def _options(route: KernelRoute) -> dict[str, str | int]:
    return {"gateway": route.gateway, "table": route.table, "protocol": OUR_PROTOCOL}


def _words(item: Item) -> str:
    if isinstance(item, Rule):
        return f"the rule from {item.address} lookup {item.table}"
    via = f" via {item.gateway}" if item.gateway else ""
    return f"the route to {_network(item)}{via} in table {item.table}"


def _refusal(error: OSError) -> str:
    if isinstance(error, PermissionError):
        return NOT_PERMITTED
    return f"routes cannot be changed: {error.strerror or error}"
