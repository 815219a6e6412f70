"""What workers know of each other: counts in memory that they share."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest

from multi.workers.counts import SharedCounts, clear, shared_memory

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memfd_create is Linux's")

WORKERS = 3


@pytest.fixture
def memory() -> Iterator[int]:
    descriptor = shared_memory(WORKERS)
    yield descriptor
    os.close(descriptor)


def views(memory: int) -> list[SharedCounts]:
    return [SharedCounts(memory, WORKERS, index, b"key") for index in range(WORKERS)]


def test_each_worker_sees_what_the_others_have_and_not_its_own(memory: int) -> None:
    first, second, third = views(memory)
    first.count("sessions", "192.0.2.0/24", 2)
    second.count("sessions", "198.51.100.0/24", 5)
    second.count("detached", "192.0.2.0/24", 1)
    assert [view.elsewhere("sessions") for view in (first, second, third)] == [5, 2, 7]
    assert [view.elsewhere("sessions", "192.0.2.0/24") for view in (first, second, third)] == [0, 2, 2]
    second.count("sessions", "198.51.100.0/24", -5)
    assert third.elsewhere("sessions") == 2
    assert third.elsewhere("sessions", "198.51.100.0/24") == 0
    assert third.elsewhere("detached") == 1


def test_a_worker_that_has_ended_has_nothing_and_the_others_keep_theirs(memory: int) -> None:
    first, second, third = views(memory)
    first.count("memory", "192.0.2.0/24", 1 << 40)
    second.count("memory", "192.0.2.0/24", 7)
    clear(memory, 0)
    assert third.elsewhere("memory") == third.elsewhere("memory", "192.0.2.0/24") == 7
    assert SharedCounts(memory, WORKERS, 0, b"key").elsewhere("memory") == 7


def test_a_worker_is_there_from_when_it_says_so_until_it_has_ended(memory: int) -> None:
    first, second, _ = views(memory)
    assert not second.serves(0)
    first.live()
    assert [second.serves(index) for index in range(WORKERS)] == [True, False, False]
    clear(memory, 0)
    assert not second.serves(0)


def test_a_source_never_seems_to_have_fewer_than_it_has_and_seldom_many_more(memory: int) -> None:
    first, second, _ = views(memory)
    sources = [f"10.{high}.{low}.0/24" for high in range(40) for low in range(250)]
    for source in sources:
        first.count("sessions", source, 1)
    seen = [second.elsewhere("sessions", source) for source in sources]
    assert min(seen) >= 1
    assert sum(seen) / len(seen) < 6
    assert max(seen) < 25
    assert second.elsewhere("sessions") == len(sources)


def test_alone_there_is_nobody_else() -> None:
    descriptor = shared_memory(1)
    only = SharedCounts(descriptor, 1, 0, b"key")
    os.close(descriptor)
    only.count("half_open", "192.0.2.0/24", 3)
    assert only.elsewhere("half_open") == only.elsewhere("half_open", "192.0.2.0/24") == 0
