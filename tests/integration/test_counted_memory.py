"""What a server keeps for hostile sessions is at most half more than what it counts for them."""

from __future__ import annotations

import pytest

from benchmarks.basics.counted import PROMISE, STREAMS, measure
from multi.asyncio.driver import CONTROL_MEMORY, SESSION_MEMORY, STREAM_MEMORY
from multi.protocol.control import MAX_AHEAD

SESSIONS = 1  # where counting misses something, it does so for one
AT_LEAST = {  # bytes
    "streams": SESSION_MEMORY + STREAM_MEMORY * len(STREAMS),
    "sealed, unacknowledged": SESSION_MEMORY + CONTROL_MEMORY * MAX_AHEAD,
}
CLASSES = (
    "unread",
    "streams",
    "streams with gaps",
    "unfinished segments",
    "grown, large islands",
    "sealed, eight connections",
    "sealed, unacknowledged",
    "returns",
    "all but one byte",
    "QUIC, returns",
    "QUIC, questions",
)
"""One of each way to make a server keep something, alone or with others; the benchmark has them all."""


@pytest.mark.parametrize("name", CLASSES)
def test_a_session_takes_little_more_than_it_is_counted_for(name: str) -> None:
    counted, traced = measure(name, SESSIONS, traced=True)
    assert traced <= PROMISE * counted
    assert counted >= AT_LEAST.get(name, SESSION_MEMORY)
