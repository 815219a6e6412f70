"""Processes of a benchmark: a module of this checkout, asked line by line over its standard input and output."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from benchmarks import ROOT

MOST_DESCRIPTORS = 65_536  # for as many sockets as one port has clients on one address


class Process:
    """`python -m MODULE ARGUMENT...`, ended with the block. What it says are lines of JSON."""

    def __init__(self, module: str, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def kill(self) -> None:
        """End it at once, as a crash does."""
        self._process.kill()
        self._process.wait()

    def line(self) -> Any:
        """What it says next. Raises RuntimeError when it has ended."""
        assert self._process.stdout is not None
        if not (line := self._process.stdout.readline()):
            raise RuntimeError("the process has ended")
        return json.loads(line)

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
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def raise_descriptors() -> int:
    """Allow this process as many file descriptors as it may have, root up to `MOST_DESCRIPTORS`; return how many."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (MOST_DESCRIPTORS, max(hard, MOST_DESCRIPTORS)))
    except (OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
