"""From what the configuration asks for to what can be dialled on this machine now.

Decides which (transport, IP version, interface, remote address) combinations an entry stands for, in which
order, and says in words why the others are left out. Resolving names, reading interfaces and dialling are
left to others.

Two rules of the system are built in:
- Towards this machine itself (loopback or one of its own addresses) packets never leave through a device, so
  a socket bound to a device is never answered. Such candidates are bound by source address at most, whatever
  interface the entry names; `any` stands for one candidate that is not bound at all.
- A socket bound to a device needs a route through that device. IPv6 fails at once without one; IPv4 takes
  every destination for a neighbour and waits for an answer that never comes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_interface,
    ip_network,
)
from itertools import chain, zip_longest

from multi.types import Candidate, Family, Interface, InterfaceAddress, Kind, Preferences, Source

__all__ = ["ANY", "EntrySpec", "Rejection", "candidates", "one_per_interface"]

ANY = "any"
KINDS = {kind.value: kind for kind in Kind}
UNIQUE_LOCAL = ip_network("fc00::/7")  # RFC 4193

_Address = IPv4Address | IPv6Address
_Network = IPv4Network | IPv6Network


@dataclass(frozen=True, slots=True)
class EntrySpec(Preferences):
    """An element of `connection_priority`, with the remote it leads to."""

    transport: str
    ip: str = ANY
    """`ipv4`, `ipv6` or `any`."""
    interfaces: tuple[str, ...] = (ANY,)
    """Each a kind, `any`, an interface name or a local IP address; none at all is the same as `any`."""
    spans_interfaces: bool = False
    """One connection uses all of them; otherwise each has its own."""
    group: str = ""
    remote_host: str = ""
    remote_port: int = 0


@dataclass(frozen=True, slots=True)
class Rejection:
    """A part of an entry that gives no candidate now."""

    entry: int
    """Index of the entry."""
    what: str
    """The interface as the entry lists it, or the remote host."""
    reason: str
    """Why, complete in itself: `wlan0: no carrier`."""

    def __str__(self) -> str:
        return self.reason


@dataclass(frozen=True, slots=True)
class _Source:
    """A place connections of an entry start from."""

    listed: str
    interface: Interface | None = None
    """None: not bound to an interface."""
    address: str = ""
    """Source address the entry asks for; empty = the best one of the interface."""
    for_here: bool = True
    """Used towards addresses of this machine."""
    for_elsewhere: bool = True
    """Used towards all other addresses."""
    quiet: bool = False
    """Not worth a word when it cannot be used and another can (bridges and the like under `any`)."""

    def bound(self, interface: str = "", address: str = "") -> Source:
        return Source(interface, address, self.interface.kind.value if self.interface else "")


_Bindings = list[tuple[_Address, Source]]
"""How the socket is bound towards each remote address; empty = not."""
_Slot = tuple[str, str, str, str, int]


def candidates(
    entries: Sequence[EntrySpec],
    interfaces: Sequence[Interface],
    addresses: Mapping[tuple[str, int], Sequence[str]],
    routed: Collection[tuple[str, str]] = (),
    *,
    first_entry: int = 0,
) -> tuple[list[Candidate], list[Rejection]]:
    """Expand entries into candidates, in the order in which they should be tried.

    `addresses` has the literal addresses of each (remote host, remote port) in resolver order. A remote
    counts as reachable through an interface that has a default route of its family or an address in the same
    subnet; `routed` adds pairs (interface, remote address) that have another route (`multi.discovery.routed` asks).

    tcp and quic give one connection per interface, mptcp one over all. Where more than one remote address
    could serve such a connection, the candidates are alternatives, IPv6 first and then by turns (RFC 8305
    section 4). Alternatives share the entry's `group`, or a generated one that stays the same while addresses
    change. A candidate that an earlier one covers is left out. `first_entry`: index of the first of `entries`.
    """
    machine = _Machine(interfaces, routed)
    found: list[Candidate] = []
    rejected: list[Rejection] = []
    groups = {entry.group for entry in entries}
    covered: dict[_Slot, int] = {}
    for index, entry in enumerate(entries, first_entry):
        wanted, reasons = _expand(index, entry, machine, addresses, groups)
        fresh: dict[_Slot, Candidate] = {}
        for candidate in wanted:
            if _slot(candidate) not in covered:
                fresh.setdefault(_slot(candidate), candidate)
        if wanted and not fresh:
            earlier = covered[_slot(wanted[0])]
            reasons.append(Rejection(index, entry.transport, f"the same as entry {earlier}"))
        covered |= dict.fromkeys(fresh, index)
        found += fresh.values()
        rejected += reasons
    return found, rejected


def one_per_interface(candidate: Candidate) -> list[Candidate]:
    """What stands in for an MPTCP connection whose subflows cannot be made: one connection for each interface.

    The first is the candidate itself without further interfaces. The others are wanted besides it, not instead of
    it, so they leave its group for one of their interface's own, where those of its alternatives join them. For a
    connection that is open but fell back to TCP, all but the first are what is missing.
    """
    alone = replace(candidate, more_interfaces=(), more_sources=())
    known = {source.interface: source for source in candidate.more_sources}
    further = [known.get(name, Source(name)) for name in candidate.more_interfaces]
    return [
        alone,
        *(
            replace(
                alone,
                interface=source.interface,
                local_address=source.address,
                kind=source.kind,
                group=f"{candidate.group}, {source.interface}" if candidate.group else "",
            )
            for source in further
        ),
    ]


def _expand(
    index: int,
    entry: EntrySpec,
    machine: _Machine,
    addresses: Mapping[tuple[str, int], Sequence[str]],
    groups: Collection[str],
) -> tuple[list[Candidate], list[Rejection]]:
    remotes = _remotes(entry, addresses)
    if isinstance(remotes, str):
        return [], [Rejection(index, entry.remote_host, remotes)]
    rejected: list[Rejection] = []
    usable: list[tuple[_Source, _Bindings]] = []
    unusable: list[tuple[_Source, list[str]]] = []
    for listed in entry.interfaces or (ANY,):
        sources = machine.sources(listed, remotes)
        if isinstance(sources, str):
            rejected.append(Rejection(index, listed, sources))
            continue
        for source in sources:
            bindings, reasons = machine.bindings(source, remotes)
            if bindings:
                usable.append((source, bindings))
            else:
                unusable.append((source, reasons))
    for source, reasons in unusable:
        if not (usable and source.quiet):
            rejected += [Rejection(index, source.listed, reason) for reason in reasons]
    make = _one_over_all if entry.spans_interfaces else _one_each
    return make(index, entry, usable, groups), list(dict.fromkeys(rejected))


def _one_each(
    index: int, entry: EntrySpec, usable: Sequence[tuple[_Source, _Bindings]], groups: Collection[str]
) -> list[Candidate]:
    """One connection per source: the remote addresses are alternatives of each other, the sources are not."""
    found: list[Candidate] = []
    for source, bindings in usable:
        name = " ".join(filter(None, (source.interface.name if source.interface else "", source.address))) or ANY
        group = _group(index, entry, name, groups)
        found += [_candidate(index, entry, binding, remote, group) for remote, binding in bindings]
    return found


def _one_over_all(
    index: int, entry: EntrySpec, usable: Sequence[tuple[_Source, _Bindings]], groups: Collection[str]
) -> list[Candidate]:
    """One connection over all sources that reach a remote: the first opens it, the rest add subflows."""
    found: dict[_Address, list[Source]] = {}
    for _, bindings in usable:
        for remote, binding in bindings:
            known = found.setdefault(remote, [])
            if not known or binding.interface not in ("", *(source.interface for source in known)):
                known.append(binding)
    group = _group(index, entry, entry.transport, groups)
    return [
        _candidate(index, entry, found[remote][0], remote, group, tuple(found[remote][1:]))
        for remote in _interleaved(list(found))
    ]


def _candidate(
    index: int,
    entry: EntrySpec,
    binding: Source,
    remote: _Address,
    group: str,
    more: tuple[Source, ...] = (),
) -> Candidate:
    return Candidate(
        transport=entry.transport,
        family=_family(remote),
        remote_host=entry.remote_host,
        remote_address=str(remote),
        remote_port=entry.remote_port,
        interface=binding.interface,
        local_address=binding.address,
        more_interfaces=tuple(further.interface for further in more),
        more_sources=more,
        kind=binding.kind,
        entry=index,
        role=entry.role,
        weight=entry.weight,
        cost=entry.cost,
        max_rate=entry.max_rate,
        group=group,
    )


def _slot(candidate: Candidate) -> _Slot:
    """What makes a connection: two candidates with the same slot would be the same connection twice."""
    return (
        candidate.transport,
        candidate.interface,
        candidate.local_address,
        candidate.remote_address,
        candidate.remote_port,
    )


def _group(index: int, entry: EntrySpec, name: str, groups: Collection[str]) -> str:
    """The entry's group, or one that no entry uses."""
    group = entry.group or f"entry {index}, {name}"
    while not entry.group and group in groups:
        group += "'"
    return group


def _remotes(entry: EntrySpec, addresses: Mapping[tuple[str, int], Sequence[str]]) -> list[_Address] | str:
    """The remote addresses of the entry's IP version in the order to try them, or why there are none."""
    known = [_parse(a) for a in addresses.get((entry.remote_host, entry.remote_port), ())]
    wanted = [a for a in dict.fromkeys(known) if entry.ip in (ANY, _family(a).value)]
    if not wanted:
        label = "" if entry.ip == ANY else f"{entry.ip} "
        return f"{entry.remote_host}: no {label}address"
    reachable = [a for a in wanted if not (isinstance(a, IPv6Address) and a.is_link_local)]
    if not reachable:
        return f"{entry.remote_host}: only link-local addresses ({', '.join(map(str, wanted))})"
    return _interleaved(reachable)


class _Machine:
    """What this machine's interfaces allow."""

    def __init__(self, interfaces: Sequence[Interface], routed: Collection[tuple[str, str]]) -> None:
        self._interfaces = interfaces
        self._routed = {(name, _parse(remote)) for name, remote in routed}
        self._own = {_literal(a) for i in interfaces for a in i.addresses}

    def sources(self, listed: str, remotes: Sequence[_Address]) -> list[_Source] | str:
        """The sources one element of an entry's interface list stands for, or why there is none."""
        if listed == ANY:
            return self._any(remotes)
        if listed in KINDS:
            of_kind = [_Source(listed, i) for i in self._interfaces if i.kind is KINDS[listed]]
            return of_kind or f"no interface of kind {listed}"
        if any(i.name == listed for i in self._interfaces):
            return [_Source(listed, i) for i in self._interfaces if i.name == listed]
        try:
            address = ip_address(listed)
        except ValueError:
            have = ", ".join(sorted(i.name for i in self._interfaces)) or "none"
            return f"no such interface {listed!r}; have: {have}"
        if address.is_loopback:
            return [_Source(listed, None, str(address))]
        owners = [i for i in self._interfaces if any(_literal(a) == address for a in i.addresses)]
        if not owners:
            return f"{listed} is no address of this machine"
        owner = next((i for i in owners if not i.unusable_reason()), owners[0])
        return [_Source(listed, owner, str(address))]

    def _any(self, remotes: Sequence[_Address]) -> list[_Source] | str:
        unbound = _Source(ANY, for_elsewhere=not self._interfaces)
        if all(self._is_here(remote) for remote in remotes) or not self._interfaces:
            return [unbound]
        devices = [
            _Source(ANY, i, for_here=False, quiet=i.kind is Kind.VIRTUAL)
            for i in self._interfaces
            if i.kind is not Kind.LOOPBACK
        ]
        if any(self._is_here(remote) for remote in remotes):
            return [unbound, *devices]
        return devices or "no interface but loopback"

    def bindings(self, source: _Source, remotes: Sequence[_Address]) -> tuple[_Bindings, list[str]]:
        """How to bind towards each remote address that can be reached, and why the others cannot."""
        bindings: _Bindings = []
        reasons: list[str] = []
        for remote in remotes:
            here = self._is_here(remote)
            if not (source.for_here if here else source.for_elsewhere):
                continue
            binding = self._towards_here(source, remote) if here else self._towards(source, remote)
            if isinstance(binding, Source):
                bindings.append((remote, binding))
            elif binding not in reasons:
                reasons.append(binding)
        return bindings, reasons

    def _towards_here(self, source: _Source, remote: _Address) -> Source | str:
        if source.interface is None and not source.address:
            return source.bound()
        address = _source_address(source, remote)
        return address if isinstance(address, str) else source.bound(address=str(address))

    def _towards(self, source: _Source, remote: _Address) -> Source | str:
        interface = source.interface
        if interface is None:
            return f"{source.address} reaches this machine only" if source.address else source.bound()
        address = _source_address(source, remote)
        if isinstance(address, str):
            return address
        if interface.kind is Kind.LOOPBACK:
            return f"{interface.name} reaches this machine only"
        if not self._has_route(interface, remote):
            return f"no route through {interface.name}"
        return source.bound(interface.name, str(address))

    def _has_route(self, interface: Interface, remote: _Address) -> bool:
        family = _family(remote)
        return (
            any(of is family for of, _ in interface.gateways)
            or any(a.usable and remote in _subnet(a) for a in interface.addresses)
            or (interface.name, remote) in self._routed
        )

    def _is_here(self, remote: _Address) -> bool:
        return remote.is_loopback or remote.is_unspecified or remote in self._own


def _source_address(source: _Source, remote: _Address) -> _Address | str:
    """The address to bind towards `remote`, or why there is none.

    Where the entry leaves the choice: an address in the remote's own subnet, then one of the same scope (an
    IPv6 unique local address gets no answer from the Internet; RFC 6724 rule 2), then the interface's first.
    """
    family = _family(remote)
    if source.interface is not None and (reason := source.interface.unusable_reason(family)):
        return f"{source.interface.name}: {reason}"
    if source.address:
        return _given_source_address(source, family)
    assert source.interface is not None
    usable = [a for a in source.interface.addresses if a.usable and a.family is family]
    best = min(usable, key=lambda a: (remote not in _subnet(a), _is_local(_literal(a)) != _is_local(remote)))
    return _literal(best)


def _given_source_address(source: _Source, family: Family) -> _Address | str:
    address = ip_address(source.address)
    if _family(address) is not family:
        return f"{source.address} is no {family.value} address"
    owned = source.interface.addresses if source.interface else ()
    reasons = [a.reason for a in owned if _literal(a) == address and not a.usable]
    return f"{source.address}: {reasons[0]}" if reasons else address


def _family(address: _Address) -> Family:
    return Family.IPV4 if isinstance(address, IPv4Address) else Family.IPV6


_parse = lru_cache(maxsize=1024)(ip_address)
_network = lru_cache(maxsize=1024)(ip_interface)


def _literal(address: InterfaceAddress) -> _Address:
    return _parse(address.address)


def _subnet(address: InterfaceAddress) -> _Network:
    return _network(f"{address.address}/{address.prefix_length}").network


def _is_local(address: _Address) -> bool:
    return isinstance(address, IPv6Address) and address in UNIQUE_LOCAL


def _interleaved(addresses: Sequence[_Address]) -> list[_Address]:
    """IPv6 first, then by turns, each family in resolver order (RFC 8305 section 4)."""
    six = [a for a in addresses if isinstance(a, IPv6Address)]
    four = [a for a in addresses if isinstance(a, IPv4Address)]
    return [a for a in chain.from_iterable(zip_longest(six, four)) if a is not None]
