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
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_interface, ip_network
from itertools import chain, zip_longest
from typing import NamedTuple

from multi.types import (
    Address,
    Candidate,
    Family,
    Interface,
    InterfaceAddress,
    Kind,
    Preferences,
    Source,
    preferences_of,
)

ANY = "any"
KINDS = {kind.value: kind for kind in Kind}
MAX_FURTHER = 8  # connections of an entry over all interfaces besides the first
UNIQUE_LOCAL = ip_network("fc00::/7")  # RFC 4193

_Address = IPv4Address | IPv6Address


class _Remote(NamedTuple):
    """Where a server is."""

    address: _Address
    port: int
    told: bool = False
    """It has said so itself."""


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
    closed: str = ""
    """Why no connection of it is wanted now; empty = they are."""


@dataclass(frozen=True, slots=True)
class Rejection:
    """A part of an entry that gives no candidate now."""

    entry: int
    """Index of the entry."""
    what: str
    """The interface as the entry lists it, or the remote host."""
    reason: str
    """Why, complete in itself: `wlan0: no carrier`."""
    interface: str = ""
    """Whose fault it is, where it is one of this machine's."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where connections of an entry may start from."""

    listed: str
    interface: Interface | None = None
    """None: not bound to an interface."""
    address: str = ""
    """Source address the entry asks for; empty = the best one of the interface."""
    here: bool | None = None
    """Used towards addresses of this machine only (True), towards all others only (False), or towards both."""

    @property
    def name(self) -> str:
        return " ".join(filter(None, (self.interface.name if self.interface else "", self.address))) or ANY

    def bound(self, interface: str = "", address: str = "") -> Source:
        return Source(interface, address, self.interface.kind.value if self.interface else "")


class _Unusable(Exception):
    """Something gives no candidate; the text says why."""


def candidates(
    entries: Sequence[EntrySpec],
    interfaces: Sequence[Interface],
    addresses: Mapping[tuple[str, int], Sequence[str]],
    routed: Collection[tuple[str, str]] = (),
    *,
    told: Sequence[Address] = (),
    going: Collection[Candidate] = (),
    first_entry: int = 0,
) -> tuple[list[Candidate], list[Rejection]]:
    """Expand entries into candidates, in the order in which they should be tried.

    `addresses` has the literal addresses of each (remote host, remote port) in resolver order. A remote
    counts as reachable through an interface that has a default route of its family or an address in the same
    subnet; `routed` adds pairs (interface, remote address) that have another route (`multi.discovery.routed` asks).

    tcp and quic give one connection per interface, mptcp and mpquic one over all. Where more than one remote address
    could serve such a connection, the candidates are alternatives, IPv6 first and then by turns (RFC 8305 section 4);
    of one over all, first those that most interfaces reach. Alternatives share a group: the entry's, or one that
    stays the same while addresses change. Interfaces from which the first of one over all cannot be reached, as where
    one has IPv4 alone and another IPv6, get a further connection, unless the entry has a group. A candidate that an
    earlier one covers is left out.
    The addresses that the server has `told` come before those of its name; what connections that are `going` were
    dialled for, before both where they are over all. `first_entry`: index of the first of `entries`.
    """
    machine = _Machine(interfaces, routed)
    found: dict[tuple[str | int, ...], Candidate] = {}
    rejected: list[Rejection] = []
    for index, entry in enumerate(entries, first_entry):
        if entry.closed:
            rejected.append(Rejection(index, ", ".join(entry.interfaces), entry.closed))
            continue
        try:
            remotes = _remotes(entry, addresses, told)
        except _Unusable as reason:
            rejected.append(Rejection(index, entry.remote_host, str(reason)))
            continue
        wanted, reasons = _expand(index, entry, machine, remotes)
        if entry.spans_interfaces:
            further = 0 if entry.group else MAX_FURTHER
            wanted = _shared_out(wanted, [candidate for candidate in going if candidate.entry == index], further)
        covering = [found.setdefault(_connection(candidate), candidate) for candidate in wanted]
        if wanted and all(candidate.entry != index for candidate in covering):
            reasons.append(Rejection(index, entry.transport, f"the same as entry {covering[0].entry}"))
        rejected += dict.fromkeys(reasons)
    return list(found.values()), rejected


def one_per_interface(candidate: Candidate) -> list[Candidate]:
    """What stands in for an MPTCP connection whose subflows cannot be made: one connection for each interface.

    The first is the candidate itself without further interfaces. The others are wanted besides it, not instead of
    it, so they leave its group for one of their interface's own, where those of its alternatives join them. For a
    connection that is open but fell back to TCP, all but the first are what is missing.
    """
    alone = replace(candidate, more_sources=())
    return [
        alone,
        *(
            replace(alone.over(source), group=f"{candidate.group}, {source.interface}" if candidate.group else "")
            for source in candidate.more_sources
        ),
    ]


def _expand(
    index: int, entry: EntrySpec, machine: _Machine, remotes: Sequence[_Remote]
) -> tuple[list[Candidate], list[Rejection]]:
    rejected: list[Rejection] = []
    quiet: list[Rejection] = []  # of bridges and the like under `any`: not worth a word when another can be used
    usable: list[tuple[_Place, _Remote, Source]] = []
    for listed in entry.interfaces or (ANY,):
        try:
            places = machine.places(listed)
        except _Unusable as reason:
            rejected.append(Rejection(index, listed, str(reason)))
            continue
        for place in places:
            bindings, reasons = machine.bindings(place, remotes)
            usable += [(place, remote, source) for remote, source in bindings]
            if not bindings:
                is_quiet = listed == ANY and place.interface is not None and place.interface.kind is Kind.VIRTUAL
                name = place.interface.name if place.interface is not None else ""
                (quiet if is_quiet else rejected).extend(Rejection(index, listed, reason, name) for reason in reasons)
    if entry.spans_interfaces:
        usable.sort(key=lambda one: remotes.index(one[1]))
    sources: dict[tuple[str, _Remote], list[Source]] = {}
    for place, remote, source in usable:
        # Over all interfaces: the first opens the connection, the others add subflows. Else each has its own, and the
        # remote addresses are alternatives of each other.
        name = entry.transport if entry.spans_interfaces else place.name
        known = sources.setdefault((name, remote), [])
        if not known or source.interface not in ("", *(other.interface for other in known)):
            known.append(source)
    found = [_candidate(index, entry, name, remote, *those) for (name, remote), those in sources.items()]
    return found, rejected if usable else [*rejected, *quiet]


def _shared_out(found: Sequence[Candidate], going: Collection[Candidate], further: int) -> list[Candidate]:
    """The candidates of an entry whose connections are over several interfaces, for as few as bring all into use.

    Those that are going go on, and have what leads to their address. Each is a group: its first candidate, and
    alternatives over what the others leave. `further`: how many there may be besides the first.
    """
    order = sorted(found, key=_worth)
    names = [candidate.group for candidate in order[:1]]
    names += [f"{name}, {number}" for name in names for number in range(1, further + 1)]
    firsts: dict[str, Candidate] = {}

    def left_to(group: str) -> list[Candidate]:
        taken = {source.interface for name, first in firsts.items() if name != group for source in first.sources}
        left = []
        for candidate in order:
            sources = [source for source in candidate.sources if source.interface not in taken]
            # Towards this machine itself, where no interface is named, one connection is enough.
            if sources and not (taken and "" in {*taken, candidate.interface}):
                left.append(replace(candidate.over(*sources), group=group))
        return left

    for there in going:
        if there.group in names and there.group not in firsts:
            same = [candidate for candidate in left_to(there.group) if _remote_of(candidate) == _remote_of(there)]
            if same:
                firsts[there.group] = same[0]
    for name in names:
        if name not in firsts and (left := left_to(name)):
            firsts[name] = min(left, key=_worth)
    return [
        candidate
        for name in names
        if name in firsts
        for candidate in sorted(left_to(name), key=lambda each: _remote_of(each) != _remote_of(firsts[name]))
    ]


def _worth(candidate: Candidate) -> tuple[bool, int]:
    """Sorts first what is worth most: an address that more of the networks lead to is worth more than IPv6."""
    return not candidate.told, -len(candidate.sources)


def _remote_of(candidate: Candidate) -> Address:
    return candidate.remote_address, candidate.remote_port


def _candidate(
    index: int, entry: EntrySpec, name: str, remote: _Remote, source: Source, *more_sources: Source
) -> Candidate:
    return Candidate(
        transport=entry.transport,
        family=_family(remote.address),
        remote_host=entry.remote_host,
        remote_address=str(remote.address),
        remote_port=remote.port,
        told=remote.told,
        interface=source.interface,
        local_address=source.address,
        more_sources=more_sources,
        kind=source.kind,
        entry=index,
        group=f"group {entry.group}" if entry.group else f"entry {index}, {name}",
        **preferences_of(entry),
    )


def _connection(candidate: Candidate) -> tuple[str | int, ...]:
    """Two candidates with the same would be the same connection twice."""
    return (
        candidate.transport,
        candidate.interface,
        candidate.local_address,
        candidate.remote_address,
        candidate.remote_port,
    )


def _remotes(
    entry: EntrySpec, addresses: Mapping[tuple[str, int], Sequence[str]], told: Sequence[Address]
) -> list[_Remote]:
    """Where the entry leads in its IP version, in the order to try it."""
    port = entry.remote_port
    named = [_Remote(_parse(a), port) for a in addresses.get((entry.remote_host, port), ())]
    further = [_Remote(_parse(a), its_port, told=True) for a, its_port in told]
    known: dict[tuple[_Address, int], _Remote] = {}
    for remote in (*further, *named):
        known.setdefault((remote.address, remote.port), remote)
    wanted = [remote for remote in known.values() if entry.ip in (ANY, _family(remote.address).value)]
    if not wanted:
        label = "" if entry.ip == ANY else f"{entry.ip} "
        raise _Unusable(f"{entry.remote_host}: no {label}address")
    reachable = [r for r in wanted if not (isinstance(r.address, IPv6Address) and r.address.is_link_local)]
    if not reachable:
        only = ", ".join(str(remote.address) for remote in wanted)
        raise _Unusable(f"{entry.remote_host}: only link-local addresses ({only})")
    return [*_by_turns([r for r in reachable if r.told]), *_by_turns([r for r in reachable if not r.told])]


def _by_turns(remotes: Sequence[_Remote]) -> list[_Remote]:
    """IPv6 first, then by turns, each family in the order it has (RFC 8305 section 4)."""
    six = [remote for remote in remotes if isinstance(remote.address, IPv6Address)]
    four = [remote for remote in remotes if isinstance(remote.address, IPv4Address)]
    return [remote for remote in chain.from_iterable(zip_longest(six, four)) if remote is not None]


class _Machine:
    """What this machine's interfaces allow."""

    def __init__(self, interfaces: Sequence[Interface], routed: Collection[tuple[str, str]]) -> None:
        self._interfaces = interfaces
        self._routed = {(name, _parse(remote)) for name, remote in routed}
        self._own = {_parse(a.address) for i in interfaces for a in i.addresses}

    def places(self, listed: str) -> list[_Place]:
        """The places one element of an entry's interface list stands for."""
        if listed == ANY:
            devices = [i for i in self._interfaces if i.kind is not Kind.LOOPBACK]
            unbound = _Place(ANY, here=True if devices else None)
            return [unbound, *(_Place(ANY, device, here=False) for device in devices)]
        if listed in KINDS:
            of_kind = [_Place(listed, i) for i in self._interfaces if i.kind is KINDS[listed]]
            if not of_kind:
                raise _Unusable(f"no interface of kind {listed}")
            return of_kind
        named = [_Place(listed, i) for i in self._interfaces if i.name == listed]
        if named:
            return named
        try:
            address = ip_address(listed)
        except ValueError:
            have = ", ".join(sorted(i.name for i in self._interfaces)) or "none"
            raise _Unusable(f"no such interface {listed!r}; have: {have}") from None
        if address.is_loopback:
            return [_Place(listed, None, str(address))]
        owners = [i for i in self._interfaces if any(_parse(a.address) == address for a in i.addresses)]
        if not owners:
            raise _Unusable(f"{listed} is no address of this machine")
        owner = next((i for i in owners if not i.unusable_reason()), owners[0])
        return [_Place(listed, owner, str(address))]

    def bindings(self, place: _Place, remotes: Sequence[_Remote]) -> tuple[list[tuple[_Remote, Source]], list[str]]:
        """How to bind towards each remote address that can be reached, and why the others cannot."""
        bindings: list[tuple[_Remote, Source]] = []
        reasons: list[str] = []
        for remote in remotes:
            address = remote.address
            here = address.is_loopback or address.is_unspecified or address in self._own
            if place.here not in (None, here):
                continue
            try:
                bindings.append((remote, _towards_here(place, address) if here else self._towards(place, address)))
            except _Unusable as reason:
                reasons.append(str(reason))
        return bindings, reasons

    def _towards(self, place: _Place, remote: _Address) -> Source:
        interface = place.interface
        if interface is None:
            if place.address:
                raise _Unusable(f"{place.address} reaches this machine only")
            if self._interfaces:
                raise _Unusable("no interface but loopback")
            return place.bound()
        address = _source_address(place, remote)
        if interface.kind is Kind.LOOPBACK:
            raise _Unusable(f"{interface.name} reaches this machine only")
        if not self._has_route(interface, remote):
            raise _Unusable(f"no {_family(remote).value} route through {interface.name}")
        return place.bound(interface.name, str(address))

    def _has_route(self, interface: Interface, remote: _Address) -> bool:
        return (
            any(family is _family(remote) for family, _ in interface.gateways)
            or any(a.usable and _is_neighbour(remote, a) for a in interface.addresses)
            or (interface.name, remote) in self._routed
        )


def _towards_here(place: _Place, remote: _Address) -> Source:
    if place.interface is None and not place.address:
        return place.bound()
    return place.bound(address=str(_source_address(place, remote)))


def _source_address(place: _Place, remote: _Address) -> _Address:
    """The address to bind towards `remote`.

    Where the entry leaves the choice: an address in the remote's own subnet, then one of the same scope (an
    IPv6 unique local address gets no answer from the Internet; RFC 6724 rule 2), then the interface's first.
    """
    family, interface = _family(remote), place.interface
    if interface is not None and (reason := interface.unusable_reason(family)):
        raise _Unusable(f"{interface.name}: {reason}")
    owned = interface.addresses if interface is not None else ()
    if not place.address:
        usable = [a for a in owned if a.usable and a.family is family]
        return _parse(min(usable, key=lambda a: _distance(remote, a)).address)
    address = _parse(place.address)
    if _family(address) is not family:
        raise _Unusable(f"{place.address} is no {family.value} address")
    for known in owned:
        if _parse(known.address) == address and not known.usable:
            raise _Unusable(f"{place.address}: {known.reason}")
    return address


def _distance(remote: _Address, address: InterfaceAddress) -> tuple[bool, bool]:
    unique_local = [isinstance(a, IPv6Address) and a in UNIQUE_LOCAL for a in (remote, _parse(address.address))]
    return not _is_neighbour(remote, address), unique_local[0] != unique_local[1]


def _is_neighbour(remote: _Address, address: InterfaceAddress) -> bool:
    return remote in _network(f"{address.address}/{address.prefix_length}").network


def _family(address: _Address) -> Family:
    return Family.IPV4 if isinstance(address, IPv4Address) else Family.IPV6


_parse = lru_cache(maxsize=1024)(ip_address)
_network = lru_cache(maxsize=1024)(ip_interface)
