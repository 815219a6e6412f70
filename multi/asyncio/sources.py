"""Peers of a server by where they come from: a source is an IPv4 /24 or an IPv6 /56, and has addresses.

It counts them, here and in other processes of the same server, and knows who is first and whose turn it is. What
follows from that is decided by `admission`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


def source_of(host: str) -> str:
    """Where limits per source count a peer: its IPv4 /24 or IPv6 /56, what one customer usually holds."""
    return place_of(host)[0]


@lru_cache(maxsize=4096)  # asked several times for each connection
def place_of(host: str) -> tuple[str, str]:
    """(source, address in it): an address is an IPv4 address or an IPv6 /64, of which each device may use all."""
    address = address_of(host)
    if address.version == 4:
        return str(ip_network((address, 24), strict=False)), str(address)
    return str(ip_network((address, 56), strict=False)), str(ip_network((address, 64), strict=False))


def address_of(host: str) -> IPv4Address | IPv6Address:
    """Without its zone, and as IPv4 where it is one."""
    address = ip_address(host.partition("%")[0])
    return getattr(address, "ipv4_mapped", None) or address


class _Ranking:
    """Counts by name, and which name has the most. Counts change by one, so the highest does too."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self._names: dict[int, OrderedDict[str, None]] = {}
        self._most = 0

    def change(self, name: str, by: int) -> None:
        """Count one more (1) or one less (-1)."""
        before = self.counts.pop(name, 0)
        after = before + by
        if before:
            del self._names[before][name]
            if not self._names[before]:
                del self._names[before]
        if after:
            self.counts[name] = after
            self._names.setdefault(after, OrderedDict())[name] = None
        if after > self._most or self._most not in self._names:
            self._most = after

    @property
    def busiest(self) -> str:
        """Of several that have as many, the one that has had so many for longest. Empty = there is none."""
        return next(iter(self._names[self._most])) if self._most else ""


class Counts:
    """What other processes of the same server have, for limits are of the whole server. Here: there are none."""

    processes = 1
    """How many there are, this one included."""

    def reached(self, most: int, here: int, in_all: int) -> bool:
        """There are `most`, and this process has its part of them: `here` of `in_all`.

        Where one process has them all, the others go on up to their part. Else somebody who fills that one would have
        them turn away newcomers, and end what honest peers have there. In all there are less than twice as many.
        """
        return in_all >= most and here * self.processes >= most

    def change(self, kind: str, source: str, by: int) -> None:
        """This process has so many more: of all sources where `source` is empty, else from that one."""

    def count(self, kind: str, source: str, by: int) -> None:
        """Both at once."""
        self.change(kind, "", by)
        self.change(kind, source, by)

    def elsewhere(self, kind: str, source: str = "") -> int:
        """Those of the others that are from `source`; all without one."""
        return 0


class BySource(Generic[T]):
    """Things in order of arrival, by source and address.

    A flood may come from thousands of sources and needs the busiest one with every connection, so nothing here looks at
    all of them; addresses of one source are few, because it has its own limit. Whatever keeps losing its first entry is
    an OrderedDict: a dict passes all that have left before it finds one.
    """

    def __init__(self, counts: Counts | None = None, kind: str = "") -> None:
        """With `counts`, others hear of these under the name `kind`."""
        self._counts, self._kind = counts or Counts(), kind
        self._places: dict[T, tuple[str, str]] = {}
        self._members: OrderedDict[str, OrderedDict[str, OrderedDict[T, None]]] = OrderedDict()
        self._ranking = _Ranking()

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, member: T) -> bool:
        return member in self._places

    def add(self, member: T, host: str) -> None:
        if member in self._places:
            return
        source, address = self._places[member] = place_of(host)
        addresses = self._members.setdefault(source, OrderedDict())
        addresses.setdefault(address, OrderedDict())[member] = None
        self._count(source, 1)

    def discard(self, member: T) -> None:
        if member not in self._places:
            return
        source, address = self._places.pop(member)
        addresses = self._members[source]
        del addresses[address][member]
        if not addresses[address]:
            del addresses[address]
        if not addresses:
            del self._members[source]
        self._count(source, -1)

    def _count(self, source: str, by: int) -> None:
        self._ranking.change(source, by)
        self._counts.count(self._kind, source, by)

    @property
    def all(self) -> int:
        """How many there are, those of other processes included."""
        return len(self._places) + self._counts.elsewhere(self._kind)

    def all_of(self, source: str) -> int:
        """The same from `source`."""
        return self.count(source) + self._counts.elsewhere(self._kind, source)

    def full(self, most: int, source: str = "") -> bool:
        """There is no room here for more, of `source` or of any: see `Counts.reached`."""
        if source:
            return self._counts.reached(most, self.count(source), self.all_of(source))
        return self._counts.reached(most, len(self), self.all)

    def members(self, source: str) -> list[T]:
        return [member for members in self._members.get(source, {}).values() for member in members]

    def count(self, source: str) -> int:
        return self._ranking.counts.get(source, 0)

    def crowds_out(self, member: T, host: str) -> bool:
        """Where `member` is from there would still be twice as many as where `host` is: of its source, or address."""
        source, address = self._places[member]
        other, beside = place_of(host)
        if source != other:
            return self.count(source) > 2 * self.count(other) + 1
        addresses = self._members[source]
        return address != beside and len(addresses[address]) > 2 * len(addresses.get(beside, ())) + 1

    @property
    def busiest(self) -> str:
        """The source with the most; empty = there is none."""
        return self._ranking.busiest

    def oldest(self, source: str = "") -> T | None:
        """The first that came from the busiest address of `source`; without one, of the busiest source."""
        addresses = self._members.get(source or self.busiest)
        if not addresses:
            return None
        busiest: OrderedDict[T, None] = max(addresses.values(), key=len)
        return next(iter(busiest))

    def next(self) -> T:
        """Take out whose turn it is: sources take turns, and in a source its addresses do. Raises StopIteration.

        Who comes alone waits for one of each other source, however many a flood has sent before him.
        """
        source, addresses = next(iter(self._members.items()))
        address, members = next(iter(addresses.items()))
        member = next(iter(members))
        self._members.move_to_end(source)  # behind the others
        addresses.move_to_end(address)
        self.discard(member)
        return member
