"""Signals that interrupt a program as Ctrl-C does, wherever it was started."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run_interruptible(main: Coroutine[Any, Any, T], *numbers: signal.Signals) -> T:
    """`asyncio.run`; these signals cancel `main` as SIGINT does, and KeyboardInterrupt is raised once it has ended.

    They do so where SIGINT is ignored too, as in what a shell script starts in the background. One that is ignored
    itself, as SIGHUP is under nohup, stays so.
    """

    async def interruptible() -> T:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        for number in numbers:
            if signal.getsignal(number) is not signal.SIG_IGN:
                loop.add_signal_handler(number, task.cancel)
        return await main

    try:
        return asyncio.run(interruptible())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
