"""What a process does about its memory once: freed blocks stay within reach, and servers look for garbage less often.

A transfer allocates and frees blocks of some 100 KiB thousands of times a second. glibc gives such memory back to the
system at once, and the next block costs a page fault for every 4 KiB: half of the processor time of a sealed transfer
(measured: 555 against 220 ms of system time per GiB sent, 600 against 130 received). glibc learns by itself that a
program uses larger blocks, from the first one it frees: mallopt(3), "M_MMAP_THRESHOLD", dynamic adjustment.

A full garbage collection stops everything while it passes all objects there are: 0.4 s with 5,000 sessions. As Python
decides it, one comes with every 77,000 objects or so that stay, which is three while 1,500 sessions come. It finds
nothing: what has ended is freed by whoever lets go of it. So what sessions hold does not count, and ten times as many
objects of the program's own. Where sessions come and go, objects that are new and old ones that are freed are balanced
for Python, and what is young becomes much: smaller steps keep looking at it from taking 40 ms.
"""

from __future__ import annotations

import gc
from functools import cache

OF_PYTHON = (10, 10)  # collections of one generation for each of the next, unless the program says otherwise
YOUNG, MIDDLE = 700, 2
STAYING = 770_000  # objects that stay between two full collections
SESSION = 500  # of them, for each that comes (measured: 145 over TCP, 160 to 473 over QUIC)
APART = 50  # sessions that come between two looks
BLOCK = 8 * 1024 * 1024  # bytes; glibc keeps twice as much of what was freed at most


@cache  # once is enough
def keep_freed_memory() -> None:
    """Let the allocator see one block of this size freed. The block is never touched, so it costs no memory."""
    bytes(BLOCK)  # not a bytearray, which is written to: that alone takes milliseconds


class FullCollections:
    """How often Python makes them in a process with servers; a program that has said how often is not overruled."""

    def __init__(self) -> None:
        self._ours = OF_PYTHON
        """Thresholds that are not the program's."""
        self._sessions = 0
        self._passed = 0
        """How many of them the last one has passed."""
        self._made = 0

    def server_started(self) -> None:
        self._adjust()

    def session_came(self) -> None:
        self._sessions += 1
        if self._sessions % APART == 0:
            self._adjust()

    def session_went(self) -> None:
        self._sessions -= 1

    def _adjust(self) -> None:
        if gc.get_threshold()[1:] != self._ours:
            return
        made = gc.get_stats()[2]["collections"]
        if made != self._made:
            self._made, self._passed = made, self._sessions
        self._passed = min(self._passed, self._sessions)
        staying = STAYING + (self._sessions - self._passed) * SESSION
        self._ours = MIDDLE, staying // (YOUNG * (MIDDLE + 1))
        gc.set_threshold(YOUNG, *self._ours)


full_collections = FullCollections()
"""Of this process."""
