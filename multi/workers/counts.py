"""What all workers of a server have together, in memory that they share: limits are of the whole server.

Each process writes its own counts and reads those of the others, so there is nothing to lock: what is read may be a
moment old, as after a message. Sources are unbounded, and are counted in a count-min sketch (Cormode and Muthukrishnan,
2005): two sources may share a place, so that a source may seem to have a few more than it has, and never fewer.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import sys
from functools import lru_cache

from multi.asyncio.sources import Counts

KINDS = ("sessions", "half_open", "unconfirmed", "detached", "memory")
ROWS = 2  # a source has a place in each, and the smaller count of both is closer
PLACES = 2048  # in a row; with 10,000 sources of one session each, one of them seems to have about five
PER_KIND = 1 + ROWS * PLACES  # a total, and the counts of the sources
SERVING = len(KINDS) * PER_KIND  # where a worker says that it is there, and again and again that it lives
PER_WORKER = SERVING + 1
SIZE = 8  # bytes of a count, which is written at once


def shared_memory(workers: int) -> int:
    """A file descriptor of memory for so many workers, all counts 0. Raises OSError."""
    descriptor = os.memfd_create("multi-counts")
    os.ftruncate(descriptor, workers * PER_WORKER * SIZE)
    return descriptor


def clear(descriptor: int, index: int) -> None:
    """A worker has ended: it has nothing any more."""
    size = PER_WORKER * SIZE
    os.pwrite(descriptor, bytes(size), index * size)


def signs_of_life(descriptor: int, index: int) -> int:
    """How often a worker has said that it lives; 0 = it does not serve."""
    found = os.pread(descriptor, SIZE, (index * PER_WORKER + SERVING) * SIZE)
    return int.from_bytes(found, sys.byteorder)


class SharedCounts(Counts):
    """The view of one worker."""

    def __init__(self, descriptor: int, workers: int, index: int, key: bytes) -> None:
        """`key` is the same for all of them, and unknown to peers: nobody can choose sources that share a place."""
        counts = memoryview(mmap.mmap(descriptor, workers * PER_WORKER * SIZE)).cast("q")
        parts = [counts[start : start + PER_WORKER] for start in range(0, len(counts), PER_WORKER)]
        self._all, self._own = parts, parts[index]
        self.processes = workers
        self._others = [*parts[:index], *parts[index + 1 :]]
        self._key = key
        self._places = lru_cache(maxsize=4096)(self._places_of)

    def live(self) -> None:
        """This worker serves, until its process ends and somebody calls `clear`; each call is a sign of life."""
        self._own[SERVING] += 1

    def serves(self, index: int) -> bool:
        """Whether a worker is there: else nobody has the sessions any more that were its own."""
        return bool(self._all[index][SERVING])

    def change(self, kind: str, source: str, by: int) -> None:
        start = KINDS.index(kind) * PER_KIND
        for place in self._places(source):
            self._own[start + place] += by

    def elsewhere(self, kind: str, source: str = "") -> int:
        start = KINDS.index(kind) * PER_KIND
        return min(sum(other[start + place] for other in self._others) for place in self._places(source))

    def _places_of(self, source: str) -> tuple[int, ...]:
        if not source:
            return (0,)
        digest = hashlib.blake2b(source.encode(), key=self._key, digest_size=8 * ROWS).digest()
        numbers = (int.from_bytes(digest[8 * row : 8 * row + 8], "big") for row in range(ROWS))
        return tuple(1 + row * PLACES + number % PLACES for row, number in enumerate(numbers))
