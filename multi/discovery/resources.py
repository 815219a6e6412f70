"""What to do when the system is out of descriptors, memory or threads: say so, and let the caller ask again.

Whoever took a failed look for a look at nothing would believe that all networks are gone. And how to read files that
may have no end, and where to keep some.
"""

from __future__ import annotations

import asyncio
import errno
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import ParamSpec, TypeVar

NO_STATE_DIRECTORY = "neither XDG_STATE_HOME nor a home directory is set"
SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EAGAIN})
ENOUGH_DESCRIPTORS = 1 << 20  # where the system sets no limit
PIECE = 16 * 1024  # bytes of a file that are read at once

P = ParamSpec("P")
Result = TypeVar("Result")


def is_exhaustion(error: OSError) -> bool:
    """It may well work a moment later; nothing is wrong with what was asked."""
    return error.errno in SHORTAGES


def read_bounded(path: Path, most: int) -> bytes:
    """A file that a user has named. Raises OSError, also where it has more than `most` bytes: a device has no end."""
    content = bytearray()
    with path.open("rb", buffering=0) as file:
        while piece := file.read(PIECE):
            content += piece
            if len(content) > most:
                raise OSError(errno.EFBIG, f"more than {most} bytes", str(path))
    return bytes(content)


def state_directory() -> Path | None:
    """Where this user's programs keep what outlives them (XDG Base Directory Specification); None = nowhere."""
    state = os.environ.get("XDG_STATE_HOME", "")
    try:
        return (Path(state) if os.path.isabs(state) else Path.home() / ".local" / "state") / "multi"
    except RuntimeError:
        return None


def allowed_descriptors() -> int:
    """Files and sockets that this process may have open."""
    if sys.platform == "win32":
        return ENOUGH_DESCRIPTORS
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft if soft != resource.RLIM_INFINITY else ENOUGH_DESCRIPTORS


def allow_many_descriptors() -> None:
    """Raise the soft limit, 1024 on most systems, to the hard one.

    Each forwarded connection takes a descriptor, and so does each of a server's: strangers who say nothing would leave
    none to open a file with.
    """
    if sys.platform == "win32":
        return
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    many = hard if hard != resource.RLIM_INFINITY else ENOUGH_DESCRIPTORS
    with suppress(OSError, ValueError):  # macOS has another limit besides; what there is will do
        resource.setrlimit(resource.RLIMIT_NOFILE, (many, hard))


class SpareDescriptor:
    """A descriptor kept for when none is left, so that one more can be had for a moment."""

    def __init__(self) -> None:
        self._number: int | None = None
        self.take()

    def take(self) -> bool:
        """Have it back; False = there is still none."""
        if self._number is None:
            try:
                self._number = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            except OSError as error:
                if not is_exhaustion(error):
                    raise
        return self._number is not None

    def give(self) -> bool:
        """Let it go for something else; False = it has not come back since the last time."""
        if self._number is None:
            return False
        os.close(self._number)
        self._number = None
        return True


async def in_thread(function: Callable[P, Result], *arguments: P.args, **keywords: P.kwargs) -> Result:
    """As `asyncio.to_thread`; raises OSError when there is no thread to be had, where that raises RuntimeError."""
    return await start_in_thread(asyncio.get_running_loop(), partial(function, *arguments, **keywords))


def start_in_thread(loop: asyncio.AbstractEventLoop, work: Callable[[], Result]) -> asyncio.Future[Result]:
    """The same without waiting."""
    try:
        return loop.run_in_executor(None, work)
    except RuntimeError as error:
        if "thread" not in str(error):
            raise
        raise OSError(errno.EAGAIN, str(error)) from error
