"""Connections whose handshake is not finished, bounded: what strangers can make a server hold.

When it is full, the oldest one of the busiest source goes first, so that one source cannot crowd out the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Generic, TypeVar

PENDING_MAX = 1024  # unfinished handshakes per listener

T = TypeVar("T")


class PendingHandshakes(Generic[T]):
    """A set of handshakes by source address, in order of arrival."""

    def __init__(self, limit: int = PENDING_MAX) -> None:
        self._limit = limit
        self._sources: dict[T, str] = {}
        self._counts: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._sources)

    def __iter__(self) -> Iterator[T]:
        return iter(list(self._sources))

    def add(self, handshake: T, source: str) -> T | None:
        """Take one in; returns the one that must go to make room, already removed here."""
        evicted = self._pick() if len(self._sources) >= self._limit else None
        self._sources[handshake] = source
        self._counts[source] += 1
        return evicted

    def discard(self, handshake: T) -> None:
        source = self._sources.pop(handshake, None)
        if source is not None:
            self._counts[source] -= 1
            if not self._counts[source]:
                del self._counts[source]

    def _pick(self) -> T:
        busiest = max(self._counts, key=self._counts.__getitem__)
        oldest = next(handshake for handshake, source in self._sources.items() if source == busiest)
        self.discard(oldest)
        return oldest
