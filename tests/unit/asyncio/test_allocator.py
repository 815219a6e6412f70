"""Blocks of 100 KiB that come and go cost no page faults, and objects that come and stay few full collections."""

from __future__ import annotations

import gc
import platform
import subprocess
import sys
from collections.abc import Iterator

import pytest

import multi
from multi.asyncio.allocator import APART, MIDDLE, OF_PYTHON, SESSION, STAYING, YOUNG, FullCollections
from tests.integration.support import until

ALONE = STAYING // (YOUNG * (MIDDLE + 1))  # middle collections for each full one, without sessions

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
from multi.asyncio.allocator import FullCollections
if sys.argv[1] == "told":
    FullCollections().server_started()
elif sys.argv[1] == "decided":
    gc.set_threshold(700, 10, 20)
    FullCollections().server_started()
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
@pytest.mark.skipif(gc.get_threshold()[1:] != OF_PYTHON, reason="this Python collects in another way")
def test_a_server_that_many_come_to_makes_few_full_collections() -> None:
    assert collected("told") == 0
    assert collected("not told") > 0


def test_a_program_that_has_said_how_often_to_collect_is_not_overruled() -> None:
    assert collected("decided") == 20


@pytest.fixture
def thresholds_of_python(monkeypatch: pytest.MonkeyPatch) -> Iterator[FullCollections]:
    """As nobody has changed them, and those of a process without sessions."""
    before = gc.get_threshold()
    gc.set_threshold(700, *OF_PYTHON)
    fresh = FullCollections()
    monkeypatch.setattr("multi.asyncio.server.full_collections", fresh)
    try:
        yield fresh
    finally:
        gc.set_threshold(*before)


async def test_a_server_has_python_collect_less_often(thresholds_of_python: FullCollections) -> None:
    async with await multi.start_server(print, "127.0.0.1", 0, transports=["tcp"]):
        assert gc.get_threshold() == (YOUNG, MIDDLE, ALONE)


def test_what_sessions_hold_brings_no_full_collection_until_one_has_passed_it(
    thresholds_of_python: FullCollections,
) -> None:
    collections = thresholds_of_python
    collections.server_started()
    for _ in range(40 * APART):
        collections.session_came()
    allowed = (STAYING + 40 * APART * SESSION) // (YOUNG * (MIDDLE + 1))
    assert gc.get_threshold()[2] == allowed
    gc.collect()
    for _ in range(APART):
        collections.session_came()
    assert gc.get_threshold()[2] == ALONE, "it has passed them all"
    for _ in range(40 * APART):
        collections.session_went()
    for _ in range(20 * APART):
        collections.session_came()
    assert ALONE < gc.get_threshold()[2] < allowed, "those that went count no more"


def test_sessions_do_not_overrule_a_program_that_says_later_how_often(thresholds_of_python: FullCollections) -> None:
    collections = thresholds_of_python
    collections.server_started()
    gc.set_threshold(700, 10, 30)
    for _ in range(2 * APART):
        collections.session_came()
    assert gc.get_threshold()[2] == 30


async def test_a_server_counts_the_sessions_that_live(thresholds_of_python: FullCollections) -> None:
    changes: list[int] = []
    thresholds_of_python.session_came = lambda: changes.append(1)  # type: ignore[method-assign]
    thresholds_of_python.session_went = lambda: changes.append(-1)  # type: ignore[method-assign]

    async def hold(reader: multi.SessionReader, writer: multi.SessionWriter) -> None:
        await reader.read()

    async with await multi.start_server(hold, "127.0.0.1", 0, transports=["tcp"]) as server:
        for _ in range(2):
            async with multi.connect("127.0.0.1", server.port, transports=["tcp"]) as session:
                await session.confirmed()
                assert sum(changes) == 1
            await until(lambda: sum(changes) == 0, "it has ended")
    assert changes == [1, -1] * 2
