"""Keeps the memory a busy session frees within reach, instead of giving it back to the system each time.

A transfer allocates and frees blocks of some 100 KiB thousands of times a second. glibc gives such memory back to the
system at once, and the next block costs a page fault for every 4 KiB: half of the processor time of a sealed transfer
(measured: 555 against 220 ms of system time per GiB sent, 600 against 130 received). glibc learns by itself that a
program uses larger blocks, from the first one it frees: mallopt(3), "M_MMAP_THRESHOLD", dynamic adjustment.
"""

from __future__ import annotations

from functools import cache

BLOCK = 8 * 1024 * 1024  # bytes; glibc keeps twice as much of what was freed at most


@cache  # once is enough
def keep_freed_memory() -> None:
    """Let the allocator see one block of this size freed. The block is never touched, so it costs no memory."""
    bytes(BLOCK)  # not a bytearray, which is written to: that alone takes milliseconds
