"""Lines on standard output and error that a program does without when nobody takes them: what it serves goes on.

A pipe that nobody empties takes 64 KiB; a full disk, or a reader that has gone, takes nothing.
"""

from __future__ import annotations

import os
import select
import sys
from contextlib import suppress
from typing import TextIO

from multi.errors import counted

PATIENCE = 100  # milliseconds that a reader who is behind gets; then nothing, until there is room again


class Room:
    """Whether a stream takes a line without keeping its writer waiting: up to 4 KiB, a page of a pipe."""

    def __init__(self) -> None:
        self._behind = False
        self.lost = 0
        """Lines for which there was none since `lost` was last set to 0."""

    def for_a_line(self, stream: TextIO) -> bool:
        """Wait for it, though not for long. What is no file has room, and so has what will refuse the line."""
        if not hasattr(select, "poll"):  # Windows
            return True
        waiting = select.poll()
        with suppress(OSError, ValueError):
            waiting.register(stream.fileno(), select.POLLOUT)
            self._behind = not waiting.poll(0 if self._behind else PATIENCE)
        self.lost += self._behind
        return not self._behind


_room = Room()


def put_line(line: str) -> None:
    """Write a line to standard output, or drop it where nobody takes it.

    It passes the buffer of `sys.stdout` by, which would try again, and fail, when the program ends.
    """
    with suppress(OSError):
        if _room.for_a_line(sys.stdout):
            lines = [lost_lines(_room.lost)] * bool(_room.lost) + [line]
            text = "".join(f"{each}\n" for each in lines)
            os.write(sys.stdout.fileno(), text.encode(sys.stdout.encoding, "backslashreplace"))
            _room.lost = 0


def lost_lines(count: int) -> str:
    """What stands in their place."""
    return f"(lost here, because nobody took them: {counted(count, 'line')})"
