"""Connections whose peer has not proved anything yet, bounded: what strangers can make a server hold.

When there are too many, the oldest one of the busiest source goes first, so that one source cannot crowd out the
others, and who proves himself at once gets in.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from functools import lru_cache
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Generic, TypeVar

STRANGERS_MAX = 1024  # of a listener on its own; a server sets `limits.max_unauthenticated`
TOO_MANY = "too many connections have not proved themselves"

T = TypeVar("T", bound=Hashable)


@lru_cache(maxsize=4096)  # asked several times for each connection
def source_of(host: str) -> str:
    """Where limits per source count a peer: its IPv4 /24 or IPv6 /56, what one customer usually holds."""
    address = ip_address(host.partition("%")[0])
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return str(ip_network((address, 24 if address.version == 4 else 56), strict=False))


class Crowd(Generic[T]):
    """Things by source, in order of arrival."""

    def __init__(self) -> None:
        self._source: dict[T, str] = {}
        self._members: dict[str, dict[T, None]] = {}

    def __len__(self) -> int:
        return len(self._source)

    def __iter__(self) -> Iterator[T]:
        return iter(list(self._source))

    def __contains__(self, member: object) -> bool:
        return member in self._source

    def add(self, member: T, source: str) -> None:
        self._source[member] = source
        self._members.setdefault(source, {})[member] = None

    def discard(self, member: T) -> None:
        source = self._source.pop(member, None)
        if source is not None:
            members = self._members[source]
            del members[member]
            if not members:
                del self._members[source]

    def count(self, source: str) -> int:
        return len(self._members.get(source, ()))

    def oldest(self, source: str = "") -> T | None:
        """The first that came from `source`; without one, from the source with the most members."""
        if not source and self._members:
            source = max(self._members, key=lambda name: len(self._members[name]))
        return next(iter(self._members.get(source, ())), None)


class Strangers:
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
        self._crowd: Crowd[Hashable] = Crowd()
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
        self._crowd.add(stranger, source)
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
