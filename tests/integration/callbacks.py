"""Measures what callbacks of event loops cost, for tests of attacks: while one runs, everybody else waits.

What counts is processor time of the thread, which other processes do not lengthen. What is left of noise is what a
callback pays for others: caches that others have filled, a collection of garbage that happened to be due. It comes
once, and where it happens is chance. So one callback may have taken longer, if the same one has run several times and
stayed below each other time; a server that does too much for what a peer says does so again when it is said again. A
slower processor is given as much more time as it takes for a loop of Python.

Steps of tasks whose coroutine is a test's or a benchmark's are not counted: they are the attackers, the honest clients
and the applications. All others are, those of clients on the same loop too. Only asyncio's own loop can be watched.
Servers in processes of their own tell in a file: `FILE` in their environment names it, and `told_callbacks` reads it.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

TURNS, TURN = 20_000, 20e-9  # of a loop, and the seconds that one takes on an ordinary processor


def _slowness() -> float:
    """How many times as long as an ordinary processor this one takes; never less than 1."""

    def loop() -> float:
        began = time.thread_time()
        for _ in range(TURNS):
            pass
        return time.thread_time() - began

    return max(1.0, median(loop() for _ in range(9)) / (TURNS * TURN))


CALLBACK = 0.020 * _slowness()  # seconds of processor time that no callback uses, whatever one peer sends
OURS = tuple(str(Path(__file__).parents[2] / name) for name in ("tests", "benchmarks"))
REPEATED = 3  # times that a callback has to stay below for one that did not
FILE = "MULTI_TESTS_CALLBACKS"
TOLD_EACH = 0.1  # seconds


@dataclass
class Callbacks:
    """What ran: how often each callback did, which took longest, and those that took too long."""

    ran: Counter[str] = field(default_factory=Counter)
    longest: tuple[float, str] = (0.0, "nothing")
    too_long: list[tuple[float, str]] = field(default_factory=list)

    def add(self, name: str, seconds: float) -> None:
        self.ran[name] += 1
        if seconds > self.longest[0]:
            self.longest = seconds, name
        if seconds > CALLBACK:
            self.too_long.append((seconds, name))

    def tell(self, file: Path) -> None:
        """Write all of it, at once: who reads it meanwhile finds what was there before."""
        unfinished = file.with_suffix(".unfinished")
        unfinished.write_text(json.dumps([self.ran, self.longest, self.too_long]))
        unfinished.rename(file)

    @property
    def held(self) -> bool:
        """None took too long, but for one by chance (see above)."""
        return not self.too_long or (len(self.too_long) == 1 and self.ran[self.too_long[0][1]] > REPEATED)

    def figures(self) -> dict[str, Any]:
        """For the line of JSON of a benchmark's server; `in_words` reads it."""
        return {"longest": self.longest, "too long": len(self.too_long), "held": self.held}

    def check(self) -> None:
        """Raise AssertionError unless that was `held`."""
        found = ", ".join(f"{name} {seconds * 1e3:.1f} ms of {self.ran[name]}" for seconds, name in self.too_long)
        assert self.held, f"callbacks above {CALLBACK * 1e3:.0f} ms of the processor: {found}"


def in_words(figures: dict[str, Any]) -> str:
    """The verdict on `Callbacks.figures`."""
    seconds, name = figures["longest"]
    verdict = "held" if figures["held"] else f"short by {(seconds - CALLBACK) * 1e3:.0f} ms"
    longest = f"longest callback of the server {seconds * 1e3:.0f} ms of the processor, in {name}"
    return f"{longest}, {figures['too long']} above {CALLBACK * 1e3:.0f} ms ({verdict})"


@contextmanager
def callbacks_measured() -> Iterator[Callbacks]:
    """What runs until the end of the block."""
    found = Callbacks()
    run = asyncio.Handle._run

    def measured(handle: asyncio.Handle) -> None:
        began = time.thread_time()
        run(handle)
        seconds = time.thread_time() - began
        if (name := _name(handle)) is not None:
            found.add(name, seconds)

    asyncio.Handle._run = measured  # type: ignore[method-assign, assignment]
    try:
        yield found
    finally:
        asyncio.Handle._run = run  # type: ignore[method-assign]


@contextmanager
def callbacks_bounded() -> Iterator[Callbacks]:
    """The same; at the end of a block that has not failed none has taken too long."""
    with callbacks_measured() as found:
        yield found
    found.check()


@contextmanager
def callbacks_told() -> Iterator[None]:
    """For a process that is going to be killed: measure until then, and tell in the file of the environment, if any."""
    if (file := os.environ.get(FILE)) is None:
        yield
        return
    told = 0.0
    with callbacks_measured() as found:
        add = found.add

        def add_and_tell(name: str, seconds: float) -> None:
            nonlocal told
            add(name, seconds)
            if seconds > CALLBACK or time.monotonic() > told + TOLD_EACH:
                told = time.monotonic()
                found.tell(Path(file))

        found.add = add_and_tell  # type: ignore[method-assign]
        yield


def told_callbacks(file: Path) -> Callbacks:
    """What a process has told."""
    ran, longest, too_long = json.loads(file.read_text())
    return Callbacks(Counter(ran), tuple(longest), [tuple(each) for each in too_long])


def _name(handle: asyncio.Handle) -> str | None:
    """What a handle has called; None where it is a test's own."""
    callback: Callable[..., object] | None = handle._callback  # type: ignore[attr-defined]
    while (inner := getattr(callback, "func", None)) is not None:  # a partial
        callback = inner
    task = getattr(callback, "__self__", None)
    if isinstance(task, asyncio.Task):
        coroutine = task.get_coro()
        code = getattr(coroutine, "cr_code", None)
        if code is not None and code.co_filename.startswith(OURS):
            return None
        return f"{getattr(coroutine, '__qualname__', coroutine)}, a step"
    return getattr(callback, "__qualname__", None) or repr(callback)
