"""What a server keeps for hostile sessions is at most half more than what it counts for them."""

from __future__ import annotations

import pytest

from benchmarks.basics.counted import ATTACKS, PROMISE, STREAMS, measure
from multi.asyncio.driver import SESSION_MEMORY, STREAM_MEMORY

SESSIONS = 2  # where counting misses something, it does so for one


@pytest.mark.parametrize("name", ATTACKS)
def test_a_session_takes_little_more_than_it_is_counted_for(name: str) -> None:
    counted, traced = measure(ATTACKS[name], SESSIONS, traced=True)
    assert traced <= PROMISE * counted


def test_streams_that_one_segment_opens_are_counted() -> None:
    counted, _ = measure(ATTACKS["streams"], SESSIONS, traced=False)
    assert counted >= SESSION_MEMORY + STREAM_MEMORY * len(STREAMS)
