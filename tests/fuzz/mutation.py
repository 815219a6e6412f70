"""How inputs come into being: choices read off bytes, and bytes changed at random.

Both are deterministic, so that an input is the whole story of a run.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import TypeVar

__all__ = ["EDGES", "Choices", "Mutator"]

T = TypeVar("T")

EDGES = (
    *(0, 1, 2, 3, 4, 5, 7, 8, 15, 16, 31, 32, 33, 63, 64, 127, 128, 255, 256, 511, 512, 513, 1023, 1024, 4095, 4096),
    *(
        65_535,
        65_536,
        65_537,
        (1 << 20),
        (1 << 30),
        (1 << 30) + 1,
        (1 << 31) - 1,
        1 << 31,
        (1 << 32) - 2,
        (1 << 32) - 1,
    ),
    *((1 << 62) - 1, 1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 1),
)
"""Where lengths, windows, counts and offsets change their meaning."""


class Choices:
    """Decisions read off the bytes of an input, from its front; zeros behind its end."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        return max(0, len(self._data) - self._at)

    def byte(self) -> int:
        if self._at >= len(self._data):
            return 0
        self._at += 1
        return self._data[self._at - 1]

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size).ljust(size, b"\0"), "big")

    def below(self, limit: int) -> int:
        return (self.byte() if limit <= 256 else self.number(4)) % limit

    def chance(self, of: int) -> bool:
        """Once in so many."""
        return self.byte() % of == of - 1

    def pick(self, options: Sequence[T]) -> T:
        return options[self.below(len(options))]

    def take(self, size: int) -> bytes:
        piece = self._data[self._at : self._at + size]
        self._at += len(piece)
        return piece

    def some(self) -> bytes:
        """A piece whose length is given by a byte."""
        return self.take(self.byte())

    def rest(self) -> bytes:
        return self.take(self.left)

    def edge(self, *further: int, bits: int = 64) -> int:
        """A number near an edge, near one of `further`, or any."""
        kind = self.byte()
        options = (*further, *EDGES)
        if kind < 200:
            value = options[(kind * 7) % len(further) if further and kind < 100 else kind % len(options)]
            value += self.pick((0, 0, 0, 1, -1, 10))
        else:
            value = self.number(self.pick((1, 2, 4, 8)))
        return value % (1 << bits)

    def damaged(self, data: bytes) -> bytes:
        """`data`, mostly as it is."""
        match self.byte() % 16:
            case 15 if data:
                at = self.below(len(data))
                return data[:at] + bytes([data[at] ^ (1 << self.byte() % 8)]) + data[at + 1 :]
            case 14:
                return data[: self.below(len(data) + 1)]
            case 13:
                at = self.below(len(data) + 1)
                return data[:at] + self.some() + data[at:]
            case _:
                return data


class Mutator:
    """Changes inputs as libFuzzer does, without its knowledge of what is covered."""

    def __init__(self, random: Random, words: Sequence[bytes], longest: int) -> None:
        self._random = random
        self._words = words
        self._longest = longest

    def fresh(self) -> bytes:
        return self._random.randbytes(int(self._longest ** self._random.random()))

    def mutated(self, data: bytes, other: bytes) -> bytes:
        """`data` after a few changes; some take parts of `other`."""
        changed = bytearray(data)
        for _ in range(1 + int(self._random.expovariate(0.7))):
            self._change(changed, other)
        return bytes(changed[: self._longest])

    def _change(self, data: bytearray, other: bytes) -> None:
        random = self._random
        at = random.randrange(len(data) + 1)
        match random.randrange(11):
            case 0 if at < len(data):
                data[at] ^= 1 << random.randrange(8)
            case 1 if at < len(data):
                data[at] = random.randrange(256)
            case 2:
                del data[at : at + random.randrange(1, 9)]
            case 3:
                data[at:at] = random.randbytes(random.randrange(1, 9))
            case 4:
                del data[at:]
            case 5:
                size = random.choice((1, 2, 4, 8))
                edge = random.choice(EDGES) % (1 << 8 * size)
                data[at : at + size] = edge.to_bytes(size, random.choice(("big", "little")))
            case 6 if at < len(data):
                data[at] = (data[at] + random.choice((-1, 1, -16, 16))) % 256
            case 7 if self._words:
                word = random.choice(self._words)
                data[at : at + random.choice((0, len(word)))] = word
            case 8:
                start = random.randrange(len(other) + 1)
                data[at:] = other[start:]
            case 9:
                start = random.randrange(len(data) + 1)
                data[at:at] = data[start : start + random.randrange(1, 65)]
            case _:
                data += random.randbytes(random.randrange(1, 33))
