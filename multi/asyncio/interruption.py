"""Signals that interrupt a program as Ctrl-C does, wherever it was started."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

INTERRUPTIONS = (signal.SIGTERM, signal.SIGHUP)  # SIGHUP: the terminal was closed, or ssh ends its proxy command


def run_interruptible(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run`; SIGTERM and SIGHUP cancel `main` as SIGINT does, and KeyboardInterrupt is raised at its end.

    They do so where SIGINT is ignored too, as in what a shell script starts in the background. One that is ignored
    itself, as SIGHUP is under nohup, stays so. Signals are for the main thread; in another this is `asyncio.run`.
    """

    async def interruptible() -> T:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        for number in INTERRUPTIONS if threading.current_thread() is threading.main_thread() else ():
            if signal.getsignal(number) is not signal.SIG_IGN:
                loop.add_signal_handler(number, task.cancel)
        return await main

    try:
        return asyncio.run(interruptible())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
