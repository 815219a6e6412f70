"""Processes of benchmarks: what they tell when there is little left, and when they have ended."""

from __future__ import annotations

import asyncio
import os
import resource
import sys
from contextlib import suppress

import pytest

from benchmarks.processes import Process, answer, resident

MODULE = "tests.unit.benchmarks.test_processes"


def main() -> None:
    """As a process of a benchmark, or of one that fails."""
    if sys.argv[1] == "fail":
        raise ZeroDivisionError("a bug of the benchmark")
    if sys.argv[1] == "die":
        os.abort()
    asyncio.run(answer(told))


def told(question: str) -> int:
    if question == "after all descriptors":
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        with suppress(OSError):
            while True:
                os.open(os.devnull, os.O_RDONLY)
    return resident()


def test_memory_is_told_when_no_descriptor_is_left() -> None:
    with Process(MODULE, "answer") as process:
        assert process.ask("before") > 0
        assert process.ask("after all descriptors") > 0


def test_it_is_said_how_a_process_has_ended() -> None:
    for how, words in (("fail", r"exit code 1: (?s:.*)a bug of the benchmark"), ("die", "signal SIGABRT")):
        with Process(MODULE, how) as process, pytest.raises(RuntimeError, match=words):
            process.line()


if __name__ == "__main__":
    main()
