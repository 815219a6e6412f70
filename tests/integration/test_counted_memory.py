"""What a server keeps for hostile sessions is at most half more than what it counts for them."""

from __future__ import annotations

import pytest

from benchmarks.basics.counted import ATTACKS, PROMISE, STREAMS, measure
from multi.asyncio.driver import SESSION_MEMORY, STREAM_MEMORY

SESSIONS = 1  # where counting misses something, it does so for one
AT_LEAST = {"streams": SESSION_MEMORY + STREAM_MEMORY * len(STREAMS)}  # bytes: one segment opens all of them


@pytest.mark.parametrize("name", ATTACKS)
def test_a_session_takes_little_more_than_it_is_counted_for(name: str) -> None:
    counted, traced = measure(ATTACKS[name], SESSIONS, traced=True)
    assert traced <= PROMISE * counted
    assert counted >= AT_LEAST.get(name, SESSION_MEMORY)
