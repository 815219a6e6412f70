"""Blocks of 100 KiB that come and go cost no page faults, and objects that come and stay few full collections."""

from __future__ import annotations

import gc
import platform
import subprocess
import sys

import pytest

import multi
from multi.asyncio.allocator import OF_PYTHON, OF_SERVERS, collect_less_often

PROGRAM = """
import resource, sys
if sys.argv[1] == "told":
    from multi.asyncio.allocator import keep_freed_memory
    keep_freed_memory()
def come_and_go():
    blocks = [bytearray(100 * 1024) for _ in range(20)]
come_and_go()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(100):
    come_and_go()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(told: str) -> int:
    done = subprocess.run([sys.executable, "-c", PROGRAM, told], capture_output=True, text=True, timeout=60, check=True)
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another allocator keeps memory in its own way")
def test_blocks_that_come_and_go_cost_few_page_faults() -> None:
    assert 10 * page_faults("told") < page_faults("not told")


COLLECTIONS = """
import gc, sys
import multi.asyncio.server
from multi.asyncio.allocator import collect_less_often
if sys.argv[1] == "told":
    collect_less_often()
elif sys.argv[1] == "decided":
    gc.set_threshold(700, 10, 20)
    collect_less_often()
    print(gc.get_threshold()[2])
    sys.exit()
before = gc.get_stats()[2]["collections"]
kept = [[] for _ in range(500_000)]
print(gc.get_stats()[2]["collections"] - before)
"""


def collected(told: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", COLLECTIONS, told], capture_output=True, text=True, timeout=60, check=True
    )
    return int(done.stdout)


@pytest.mark.slow
@pytest.mark.skipif(gc.get_threshold()[2] != OF_PYTHON, reason="this Python collects in another way")
def test_a_server_that_many_come_to_makes_few_full_collections() -> None:
    assert collected("told") == 0
    assert collected("not told") > 0


def test_a_program_that_has_said_how_often_to_collect_is_not_overruled() -> None:
    assert collected("decided") == 20


async def test_a_server_has_python_collect_less_often() -> None:
    young, middle, full = gc.get_threshold()
    collect_less_often.cache_clear()
    gc.set_threshold(young, middle, OF_PYTHON)
    try:
        async with await multi.start_server(print, "127.0.0.1", 0, transports=["tcp"]):
            assert gc.get_threshold() == (young, middle, OF_SERVERS)
    finally:
        gc.set_threshold(young, middle, full)
