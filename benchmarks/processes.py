"""Processes of a benchmark: a module of this checkout, asked line by line over its standard input and output."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from tempfile import TemporaryFile
from typing import Any, Self

from benchmarks import ROOT

MAX_DESCRIPTORS = 65_536  # for as many sockets as one port has clients on one address
LAST_WORDS = 2_000  # bytes of what it says on standard error that are shown when it has ended


class Process:
    """`python -m MODULE ARGUMENT...`, ended with the block. What it says are lines of JSON."""

    def __init__(self, module: str, *arguments: str) -> None:
        self._errors = TemporaryFile()  # noqa: SIM115 - closed with the process
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
        self._errors.close()

    def kill(self) -> None:
        """End it at once, as a crash does."""
        self._process.kill()
        self._process.wait()

    def line(self) -> Any:
        """What it says next. Raises RuntimeError, with how and its last words, when it has ended."""
        assert self._process.stdout is not None
        if not (line := self._process.stdout.readline()):
            code = self._process.wait()
            how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
            raise RuntimeError(f"the process has ended, {how}: {self._last_words()}")
        return json.loads(line)

    def _last_words(self) -> str:
        self._errors.seek(max(0, os.fstat(self._errors.fileno()).st_size - LAST_WORDS))
        return self._errors.read().decode(errors="replace").strip() or "it has said nothing"

    def begin(self, question: str) -> None:
        """Ask, and leave the answer for `line`."""
        assert self._process.stdin is not None
        self._process.stdin.write(question + "\n")
        self._process.stdin.flush()

    def ask(self, question: str = "figures") -> Any:
        """Its answer to a line."""
        self.begin(question)
        return self.line()


def say(what: object) -> None:
    """From within such a process."""
    print(json.dumps(what), flush=True)


async def answer(questions: Callable[[str], object]) -> None:
    """Answer each line of standard input until there are no more; then end the process at once."""
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        say(questions(line.strip()))
    os._exit(0)


def resident() -> int:
    """Bytes of memory this process has now."""
    return int(os.pread(_memory_file(), 200, 0).split()[1]) * resource.getpagesize()


@cache
def _memory_file() -> int:
    """Kept open: who measures how many connections fit has no descriptor left for it in the end."""
    return os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)


def raise_descriptors() -> int:
    """Allow this process as many file descriptors as it may have, root up to `MAX_DESCRIPTORS`; return how many."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (MAX_DESCRIPTORS, max(hard, MAX_DESCRIPTORS)))
    except (OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
