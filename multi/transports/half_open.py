"""Connections whose peer has not proved anything yet, bounded: what strangers can make a server hold.

When there are too many, the oldest one of the busiest address of the busiest source goes first, so that one source
cannot crowd out the others, nor one address its neighbours, and who proves himself at once gets in.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import lru_cache
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Generic, TypeVar

STRANGERS_MAX = 1024  # of a listener on its own; a server sets `limits.max_unauthenticated`
TOO_MANY = "too many connections have not proved themselves"

T = TypeVar("T", bound=Hashable)


def source_of(host: str) -> str:
    """Where limits per source count a peer: its IPv4 /24 or IPv6 /56, what one customer usually holds."""
    return place_of(host)[0]


@lru_cache(maxsize=4096)  # asked several times for each connection
def place_of(host: str) -> tuple[str, str]:
    """(source, address in it): an address is an IPv4 address or an IPv6 /64, of which each device may use all."""
    address = ip_address(host.partition("%")[0])
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    if address.version == 4:
        return str(ip_network((address, 24), strict=False)), str(address)
    return str(ip_network((address, 56), strict=False)), str(ip_network((address, 64), strict=False))


class _MaxCounter:
    """Counts by name. The busiest name is known without looking at the others: floods come from thousands."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._by_count: dict[int, dict[str, None]] = {}
        self._most = 0

    def count(self, name: str) -> int:
        return self._counts.get(name, 0)

    def add(self, name: str) -> None:
        before = self._counts.get(name, 0)
        self._move(name, before, before + 1)
        self._most = max(self._most, before + 1)

    def discard(self, name: str) -> None:
        before = self._counts[name]
        self._move(name, before, before - 1)
        if before == self._most and before not in self._by_count:
            self._most -= 1  # where the name is now

    def _move(self, name: str, before: int, after: int) -> None:
        if before:
            same = self._by_count[before]
            del same[name]
            if not same:
                del self._by_count[before]
        if after:
            self._counts[name] = after
            self._by_count.setdefault(after, {})[name] = None
        else:
            del self._counts[name]

    def busiest(self) -> str:
        """The name with the most; of several the one that has had so many for longest. Empty = there is none."""
        return next(iter(self._by_count[self._most])) if self._most else ""


class _Source(Generic[T]):
    """What came from one source, by address, in order of arrival."""

    def __init__(self) -> None:
        self.tally: _MaxCounter = _MaxCounter()
        self.members: dict[str, dict[T, None]] = {}


class SourceIndex(Generic[T]):
    """Things by source and address, in order of arrival."""

    def __init__(self) -> None:
        self._places: dict[T, tuple[str, str]] = {}
        self._tally: _MaxCounter = _MaxCounter()
        self._sources: dict[str, _Source[T]] = {}

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, member: object) -> bool:
        return member in self._places

    def add(self, member: T, host: str) -> None:
        source, address = self._places[member] = place_of(host)
        self._tally.add(source)
        found = self._sources.get(source)
        if found is None:
            found = self._sources[source] = _Source()
        found.tally.add(address)
        found.members.setdefault(address, {})[member] = None

    def discard(self, member: T) -> None:
        place = self._places.pop(member, None)
        if place is None:
            return
        source, address = place
        self._tally.discard(source)
        found = self._sources[source]
        found.tally.discard(address)
        members = found.members[address]
        del members[member]
        if not members:
            del found.members[address]
            if not found.members:
                del self._sources[source]

    def count(self, source: str) -> int:
        return self._tally.count(source)

    def oldest(self, source: str = "") -> T | None:
        """The first that came from the busiest address of `source`; without one, of the busiest source."""
        found = self._sources.get(source or self._tally.busiest())
        return next(iter(found.members[found.tally.busiest()])) if found is not None else None


class FairQueue(Generic[T]):
    """Things that wait for their turn: sources take turns, and in a source its addresses do.

    Who comes alone waits for one of each other source, however many a flood has sent before him.
    """

    def __init__(self) -> None:
        self._places: dict[T, tuple[str, str]] = {}
        self._sources: dict[str, dict[str, dict[T, None]]] = {}

    def __len__(self) -> int:
        return len(self._places)

    def add(self, member: T, host: str) -> None:
        if member in self._places:
            return
        source, address = self._places[member] = place_of(host)
        self._sources.setdefault(source, {}).setdefault(address, {})[member] = None

    def discard(self, member: T) -> None:
        place = self._places.pop(member, None)
        if place is not None:
            source, address = place
            addresses = self._sources[source]
            members = addresses[address]
            del members[member]
            if not members:
                del addresses[address]
                if not addresses:
                    del self._sources[source]

    def next(self) -> T | None:
        """Take out whose turn it is; None = nobody waits."""
        if not self._places:
            return None
        source, addresses = next(iter(self._sources.items()))
        address, members = next(iter(addresses.items()))
        member = next(iter(members))
        self.discard(member)
        if addresses := self._sources.pop(source, {}):
            self._sources[source] = addresses  # behind all others
            if members := addresses.pop(address, {}):
                addresses[address] = members
        return member


class HalfOpenConnections:
    """The crowd of all listeners of a server, from accepting a connection until its peer has proved himself."""

    def __init__(
        self,
        most: int = STRANGERS_MAX,
        per_source: int = STRANGERS_MAX,
        report: Callable[[str, str], None] = lambda limit, source: None,
    ) -> None:
        self._most = most
        self.per_source = per_source
        self._report = report
        self._crowd: SourceIndex[Hashable] = SourceIndex()
        self._drop: dict[Hashable, Callable[[str], None]] = {}

    def __len__(self) -> int:
        return len(self._crowd)

    def add(self, stranger: Hashable, host: str, drop: Callable[[str], None]) -> None:
        """Take one in, after another had to go where there are too many: its `drop(reason)` is called."""
        source = source_of(host)
        if self._crowd.count(source) >= self.per_source:
            self._report("max_unauthenticated_per_source", source)
            self._evict(self._crowd.oldest(source))
        elif len(self._crowd) >= self._most:
            self._report("max_unauthenticated", source)
            self._evict(self._crowd.oldest())
        self._crowd.add(stranger, host)
        self._drop[stranger] = drop

    def discard(self, stranger: Hashable) -> None:
        """It has proved itself, or is gone."""
        self._crowd.discard(stranger)
        self._drop.pop(stranger, None)

    def count(self, host: str) -> int:
        """How many there are from where `host` is."""
        return self._crowd.count(source_of(host))

    def _evict(self, stranger: Hashable | None) -> None:
        if stranger is not None:
            drop = self._drop[stranger]
            self.discard(stranger)
            drop(TOO_MANY)
