"""What a process does about its memory once: freed blocks stay within reach, and servers look for garbage less often.

A transfer allocates and frees blocks of some 100 KiB thousands of times a second. glibc gives such memory back to the
system at once, and the next block costs a page fault for every 4 KiB: half of the processor time of a sealed transfer
(measured: 555 against 220 ms of system time per GiB sent, 600 against 130 received). glibc learns by itself that a
program uses larger blocks, from the first one it frees: mallopt(3), "M_MMAP_THRESHOLD", dynamic adjustment.

A full garbage collection stops everything while it passes all objects there are: 135 ms with 1,500 sessions. As Python
decides it, one comes with every 70,000 objects or so that stay, which is three while so many sessions come. It finds
nothing: what has ended is freed by whoever lets go of it.
"""

from __future__ import annotations

import gc
from functools import cache

OF_PYTHON = 10  # collections of the middle generation for each full one, unless the program says otherwise
OF_SERVERS = 100
BLOCK = 8 * 1024 * 1024  # bytes; glibc keeps twice as much of what was freed at most


@cache  # once is enough
def keep_freed_memory() -> None:
    """Let the allocator see one block of this size freed. The block is never touched, so it costs no memory."""
    bytes(BLOCK)  # not a bytearray, which is written to: that alone takes milliseconds


@cache
def collect_less_often() -> None:
    """Have Python make full collections ten times less often; a program that has said how often is not overruled."""
    young, middle, full = gc.get_threshold()
    if full == OF_PYTHON:
        gc.set_threshold(young, middle, OF_SERVERS)
