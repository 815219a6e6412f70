"""A stream of bytes of which every position is known, and a checker of what arrives of it.

The stream is cut into blocks of a prime number of bytes: a number that counts the blocks, then random-looking filler.
Whatever is missing, doubled, moved or changed does not match, however long the piece is.
"""

from __future__ import annotations

import hashlib

__all__ = ["Checker", "piece"]

BLOCK = 65_521  # bytes, a prime: no size of a segment, a packet or a write divides it
NUMBER = 8  # bytes of a block that count the blocks
FILLER = hashlib.shake_128(b"benchmarks.pattern").digest(BLOCK - NUMBER)


def piece(offset: int, size: int) -> bytes:
    """The stream at [offset, offset + size)."""
    number, start = divmod(offset, BLOCK)
    if not start and size == BLOCK:
        return number.to_bytes(NUMBER) + FILLER
    last = (offset + size - 1) // BLOCK
    blocks = b"".join(n.to_bytes(NUMBER) + FILLER for n in range(number, last + 1))
    return blocks[start : start + size]


class Checker:
    """Compares a stream with what it should be, as it arrives."""

    def __init__(self) -> None:
        self.received = 0
        self.damaged_at: int | None = None
        """Offset of the first piece that did not match."""

    def feed(self, data: bytes) -> None:
        position = 0
        while position < len(data):
            number, start = divmod(self.received, BLOCK)
            size = min(BLOCK - start, len(data) - position)
            if self.damaged_at is None and not self._matches(data, position, number, start, size):
                self.damaged_at = self.received
            position += size
            self.received += size

    @staticmethod
    def _matches(data: bytes, position: int, number: int, start: int, size: int) -> bool:
        # `startswith` compares in place; memoryviews compare byte by byte, which takes longer than receiving.
        if start >= NUMBER:
            filler = FILLER if (start, size) == (NUMBER, BLOCK - NUMBER) else FILLER[start - NUMBER :][:size]
            return data.startswith(filler, position)
        counted = number.to_bytes(NUMBER)[start:][:size]
        rest = size - len(counted)
        filler = FILLER if rest == len(FILLER) else FILLER[:rest]
        return data.startswith(counted, position) and data.startswith(filler, position + len(counted))
