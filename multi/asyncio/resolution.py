"""What a client can dial now: its entries, expanded with the names, interfaces and routes of this moment.

Decides which addresses of a server count (those of its name, and those it has told, where `multi.paths.told` allows
it), where MPTCP over several interfaces becomes a connection for each, and what the user is told about it. How an entry
becomes candidates is decided by `multi.paths.candidates`, when to look by `multi.asyncio.roaming`.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from multi.asyncio.dns import Names
from multi.asyncio.loop_shutdown import ignore
from multi.config import Config, Entry
from multi.config.model import Budget, BudgetEnd
from multi.discovery import interfaces_async, interfaces_known, routed
from multi.discovery.networks import network_id
from multi.discovery.resources import in_thread
from multi.errors import LocalProtocolError, NoUsableConnection
from multi.linux.policy_routes import PolicyRoutes
from multi.paths.candidates import ANY, EntrySpec, Rejection, candidates, one_per_interface
from multi.paths.history import ConnectionHistory
from multi.paths.told import MAX_TOLD, may_be_told
from multi.transports.base import transport_type
from multi.types import PRECEDENCE, Address, Candidate, Interface, Kind, Role, Source, preferences_of

BLOCKED = "it is blocked"
NO_ANSWER_YET = "no answer yet"
MAX_REASONS = 3  # why an entry has no candidate, in one line

outcomes = ConnectionHistory()
"""What all sessions of this process have seen of networks and servers."""

Addresses = dict[tuple[str, int], list[str]]


@dataclass(frozen=True, slots=True)
class Found:
    """What can be dialled now, in order of preference."""

    candidates: list[Candidate]
    rejections: list[Rejection]
    """What of the entries gives no candidate."""
    errors: dict[str, str]
    """Host -> why it has no address; nothing of those that may still get one."""
    interfaces: tuple[Interface, ...]
    expecting: bool
    """Names may still give more."""

    @property
    def rejected(self) -> list[tuple[str, str]]:
        """(what, why not) for all that cannot be dialled."""
        return [*self.errors.items(), *((f"entry {r.entry} ({r.what})", r.reason) for r in self.rejections)]

    def reason(self, entry: int) -> str:
        """Why an entry leads nowhere now."""
        reasons = dict.fromkeys(r.reason for r in self.rejections if r.entry == entry)
        return "; ".join(list(reasons)[:MAX_REASONS]) or "its network is not there"


class Resolver:
    """Remembers the entries and what names they have; everything else is read anew, because networks change.

    `look` is called when there is reason to `find` anew, as when a name has got an answer that was not waited for,
    `on_warning` with what cannot be as configured, in words, each once.
    """

    def __init__(self, config: Config, look: Callable[[], None], on_warning: Callable[[str], None]) -> None:
        self._config = config
        self._on_warning = on_warning
        self._kinds = {kind: names for kind, names in config.interfaces.model_dump().items() if names}
        self.look = look
        self._names = Names(look)
        self.entries = dict(enumerate(config.connection_priority))
        """What is configured, and was added, by index."""
        self._specs = {index: self._spec(entry) for index, entry in self.entries.items()}
        self._next_entry = self._configured = len(self._specs)
        self._fallen_back: set[int] = set()
        self.opened_to = ""
        """The address at which the server has proved itself first; empty = it has not yet."""
        self._told: tuple[Address, ...] = ()
        """Where it says that it is too."""
        self._own: frozenset[str] = frozenset()
        """The addresses of this machine, as of the last look."""
        self._blocked: set[str] = set()
        self.unblocked: set[str] = set()
        """Networks that were blocked at the last look, and are not any more."""
        self.tried: set[int] = set()
        """Entries that were added and may yet lead nowhere."""
        self.routes = PolicyRoutes() if config.manage_routes else None
        """To be removed after the end, in a thread."""
        self._warned: set[str] = set()
        self.last: Found | None = None
        """What `find` has found last."""
        self.going: Callable[[], Collection[Candidate]] = tuple
        """What connections that are there were dialled for, over the networks that they use now."""
        self.on_added: Callable[[], None] = ignore
        """An entry was added that has not been looked for yet, or one has come about."""

    def add(self, entry: Entry) -> int:
        """Want one more entry; return its index. Raises ConfigError for one that can never work."""
        self._config.check_entry(entry)
        index, self._next_entry = self._next_entry, self._next_entry + 1
        self.entries[index] = entry
        self._specs[index] = self._spec(entry)
        self.tried.add(index)
        self.on_added()
        return index

    def came_about(self, entry: int) -> None:
        """One has led to a connection."""
        if entry in self.tried:
            self.tried.remove(entry)
            self.on_added()

    def was_added(self, entry: int) -> bool:
        """It is not among those that are configured."""
        return entry >= self._configured

    def withdraw(self, entry: int) -> None:
        """Want an entry that was added no more; it may have been withdrawn already."""
        self._specs.pop(entry, None)
        self.entries.pop(entry, None)
        self.tried.discard(entry)

    def restrict(self, entry: int, used_up: Budget | None, until: str) -> None:
        """The data budget of this entry is used up `until` a day, or is not (None)."""
        spec = self._spec(self.entries[entry])
        then = used_up.then if used_up is not None else BudgetEnd.model_construct()
        if then.max_rate:
            spec = replace(spec, max_rate=min(spec.max_rate or then.max_rate, then.max_rate))
        if then.role == "backup":
            spec = replace(spec, role=max(spec.role, Role.BACKUP, key=PRECEDENCE.index))
        elif used_up is not None and then.role == "never" and not spec.closed:
            text = f"its data budget of {used_up.mb:g} MB per {used_up.per} is used up until {until}"
            spec = replace(spec, closed=text)
        self._specs[entry] = spec

    def block(self, network: str) -> None:
        """Let nothing go out over a kind, an interface or a local address. Raises LocalProtocolError for others."""
        _check_name(network)
        interfaces, usable = (self.last.interfaces, self.last.candidates) if self.last is not None else ((), [])
        known = {i.name for i in interfaces} | {i.kind.value for i in interfaces} | self._blocked
        known |= {a.address for i in interfaces for a in i.addresses}
        known |= {name for c in usable for s in c.sources for name in (s.interface, s.address, s.kind) if name}
        known |= {name for spec in self._specs.values() for name in spec.interfaces if name != ANY}
        if network not in known:
            raise LocalProtocolError(f"no network is called {network!r}; known: {', '.join(sorted(known))}")
        self._blocked.add(network)
        self.unblocked.discard(network)
        self.look()

    def unblock(self, network: str) -> None:
        """Let it be used again. Raises LocalProtocolError where it is not blocked."""
        _check_name(network)
        if network not in self._blocked:
            raise LocalProtocolError(f"{network!r} is not blocked; blocked: {', '.join(self.blocked) or 'none'}")
        self._blocked.remove(network)
        self.unblocked.add(network)
        self.look()

    @property
    def blocked(self) -> tuple[str, ...]:
        """Kinds, interfaces and local addresses that nothing may go out over."""
        return tuple(sorted(self._blocked))

    def closed(self, candidate: Candidate, *, without: bool) -> bool:
        """What came of this candidate shall end; `without`: it can do without one of its networks."""
        spec = self._specs.get(candidate.entry)
        blocked = [source for source in candidate.sources if self.is_blocked(source)]
        return bool(spec is not None and spec.closed) or len(blocked) >= (len(candidate.sources) if without else 1)

    def is_blocked(self, source: Source) -> bool:
        """Nothing may go out from there."""
        return any(source.is_meant_by(name) for name in self._blocked)

    def fell_back(self, entry: int) -> None:
        """A connection of this entry uses one interface only: the further ones need connections of their own."""
        self._fallen_back.add(entry)

    def announced(self, addresses: Sequence[Address]) -> bool:
        """The server says that it can be reached at these addresses too: they are tried before those its name has.

        Returns whether that is news.
        """
        known = self._told
        allowed = [told for told in dict.fromkeys(addresses) if self._may_be_told(told[0])]
        self._told = tuple(allowed[:MAX_TOLD])
        return self._told != known

    def may_go(self, literal: str) -> bool:
        """Whether to dial an address because a server says so.

        Never one of this machine's own: behind it is no server of theirs, but whatever runs here.
        """
        return self._may_be_told(literal) and (literal not in self._own or _is_loopback(literal))

    def _may_be_told(self, literal: str) -> bool:
        try:
            return bool(self.opened_to) and may_be_told(literal, self.opened_to)
        except ValueError:  # opened over a transport of the application, which has other addresses
            return False

    def close(self) -> None:
        """Ask and tell nothing any more."""
        self._names.close()
        self.look = ignore
        self._on_warning = ignore
        self.going = tuple
        self.on_added = ignore

    async def find(self, *, anew: bool = True, entry: int | None = None) -> Found:
        """Look which connections are possible now; unless `anew`, interfaces that were read before may count.

        Waits until the name of one entry can be dialled, or with `entry` that one's. Raises NoUsableConnection when the
        system lacks what looking takes: descriptors, memory, threads.
        """
        try:
            self.last = await self._find(anew, entry)
        except OSError as error:
            raise NoUsableConnection(f"cannot look at the networks: {error.strerror or error}") from error
        return self.last

    @property
    def preferences(self) -> dict[int, dict[str, Any]]:
        """What entries ask of their connections now, by index."""
        return {index: preferences_of(spec) for index, spec in self._specs.items()}

    async def _find(self, anew: bool, entry: int | None) -> Found:
        interfaces = await self._interfaces(anew, entry)
        self._own = frozenset(a.address for interface in interfaces for a in interface.addresses)
        addresses = self._addresses()
        told = [address for address in self._told if self.may_go(address[0])]
        all_known = {a for known in addresses.values() for a in known} | {a for a, _ in told}
        elsewhere = {a for a in all_known if not _is_loopback(a)}
        routes: frozenset[tuple[str, str]] = frozenset()
        networks: dict[str, str] = {}
        if elsewhere:
            networks = {interface.name: network_id(interface) for interface in interfaces}
            used = [interface for interface in interfaces if self.routes is not None and self._may_use(interface)]
            problems, routes = await in_thread(self._ask_system, interfaces, used, elsewhere)
            for problem in problems:
                self.warn(f"manage_routes: {problem}")
        possible, rejections = self._expand(interfaces, addresses, told, routes)
        usable: list[Candidate] = []
        for candidate in possible:
            blocked = [source for source in candidate.sources if self.is_blocked(source)]
            if left := [source for source in candidate.sources if source not in blocked]:
                usable.append(candidate.over(*left))
            for source in blocked:
                what = source.interface or source.address
                rejections.append(Rejection(candidate.entry, what, BLOCKED, source.interface))
        unknown = self._names.unanswered
        return Found(
            [replace(candidate, network=networks.get(candidate.interface, "")) for candidate in usable],
            [replace(r, reason=f"{r.what}: {NO_ANSWER_YET}") if r.what in unknown else r for r in rejections],
            self._names.errors,
            interfaces,
            self._names.pending,
        )

    async def _interfaces(self, anew: bool, entry: int | None) -> tuple[Interface, ...]:
        """What there is, as soon as the names can be dialled that `find` waits for."""
        awaited = self._specs.values() if entry is None else [self._specs[entry]]
        # Read at once: entries may be added before it begins.
        resolving = self._names.resolve([(spec.remote_host, spec.ip) for spec in awaited])
        known = None if anew else interfaces_known(self._kinds)
        if known is not None:
            await resolving
            return known
        found, _ = await asyncio.gather(interfaces_async(self._kinds, anew=anew), resolving)
        return found

    def _ask_system(
        self, interfaces: Sequence[Interface], used: Sequence[Interface], remotes: set[str]
    ) -> tuple[list[str], frozenset[tuple[str, str]]]:
        """In a thread: why routes could not be made for those that are used, and which there are now."""
        problems: list[str] = []
        if self.routes is not None:
            problems = self.routes.install(used, remotes)
        return problems, routed(interfaces, remotes)

    def _may_use(self, interface: Interface) -> bool:
        """An entry names it, its kind or one of its addresses."""
        names = {interface.name, interface.kind.value, *(a.address for a in interface.addresses)}
        if interface.kind not in (Kind.LOOPBACK, Kind.VIRTUAL):
            names.add(ANY)
        return any(not names.isdisjoint(spec.interfaces or (ANY,)) for spec in self._specs.values())

    def _expand(
        self,
        interfaces: Sequence[Interface],
        addresses: Addresses,
        told: Sequence[Address],
        routes: frozenset[tuple[str, str]],
    ) -> tuple[list[Candidate], list[Rejection]]:
        """The configured entries together, so that none is wanted twice; every added one by itself."""
        groups = [(0, [spec for index, spec in self._specs.items() if index < self._configured])]
        groups += [(index, [spec]) for index, spec in self._specs.items() if index >= self._configured]
        going = self.going()
        usable: list[Candidate] = []
        rejections: list[Rejection] = []
        for first, specs in groups:
            found, rejected = candidates(
                specs, interfaces, addresses, routes, told=told, going=going, first_entry=first
            )
            usable += found
            rejections += rejected
        return [single for candidate in usable for single in self._over_interfaces(candidate)], rejections

    def _over_interfaces(self, candidate: Candidate) -> list[Candidate]:
        """A connection over several interfaces, or one for each where that cannot be."""
        if not candidate.more_interfaces:
            return [candidate]
        kind = transport_type(candidate.transport)
        if candidate.entry in self._fallen_back:
            to = " or ".join(kind.also_accepts).upper()
            reason = f"it fell back to {to}" if to else "it fell back"
        else:
            reason = kind.why_separately(candidate)
        if not reason:
            return [candidate]
        names = ", ".join((candidate.interface, *candidate.more_interfaces))
        what = f"{candidate.transport.upper()} over {names}"
        self.warn(f"{what}: {reason}; one connection per interface is opened instead")
        first, *others = one_per_interface(candidate)
        return [first, *(replace(each, transport=kind.separately or each.transport) for each in others)]

    def _addresses(self) -> Addresses:
        """Those that names have, by (host, port)."""
        names = self._names.addresses
        return {(s.remote_host, s.remote_port): names.get(s.remote_host, []) for s in self._specs.values()}

    def warn(self, message: str) -> None:
        """Say something once."""
        if message not in self._warned:
            self._warned.add(message)
            self._on_warning(message)

    def _spec(self, entry: Entry) -> EntrySpec:
        host, port = self._config.remote_of(entry)
        return EntrySpec(
            transport=entry.transport,
            ip=entry.ip,
            interfaces=entry.interface,
            spans_interfaces=transport_type(entry.transport).spans_interfaces,
            group=entry.group,
            closed="its role is never" if entry.role is Role.NEVER else "",
            remote_host=host,
            remote_port=port,
            **preferences_of(entry),
        )


def _check_name(network: object) -> None:
    if not isinstance(network, str):
        raise TypeError(f"found {network!r}; allowed: a kind, an interface or a local address")


def _is_loopback(literal: str) -> bool:
    return ipaddress.ip_address(literal).is_loopback
