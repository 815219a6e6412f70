"""Measures what callbacks of event loops cost, for tests of attacks: while one runs, everybody else waits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

CALLBACK = 0.020  # seconds of processor time that no callback uses, whatever one peer sends


@dataclass
class Callback:
    """The longest one so far."""

    seconds: float = 0.0
    what: str = ""


@contextmanager
def callbacks_measured() -> Iterator[Callback]:
    """The longest callback until the end of the block, in processor time of the thread it runs in.

    That of asyncio's own loop; attackers who are not to be counted send from other threads.
    """
    longest = Callback()
    run = asyncio.Handle._run

    def measured(handle: asyncio.Handle) -> None:
        what, began = repr(handle), time.thread_time()
        run(handle)
        if (seconds := time.thread_time() - began) > longest.seconds:
            longest.seconds, longest.what = seconds, what

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio.Handle, "_run", measured)
        yield longest
