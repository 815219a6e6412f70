"""What to do when the system is out of descriptors, memory or threads: say so, and let the caller ask again.

Whoever took a failed look for a look at nothing would believe that all networks are gone.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from functools import partial
from typing import ParamSpec, TypeVar

SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EAGAIN})

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def is_exhaustion(error: OSError) -> bool:
    """It may well work a moment later; nothing is wrong with what was asked."""
    return error.errno in SHORTAGES


async def in_thread(
    function: Callable[Parameters, Result], *arguments: Parameters.args, **keywords: Parameters.kwargs
) -> Result:
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
