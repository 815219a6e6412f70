"""What an aioquic connection of `mpquic` costs, in calls: with Python's own speed for a limit each of them counts."""

from __future__ import annotations

import sys
from typing import Any, cast

from multi.lab.engines.links import link_of
from multi.multipath.policy import PathPolicy
from multi.transports.mpquic.aioquic_engine import AioquicPathEngine
from multi.transports.quic.aioquic_engine import AioquicEngine
from multi.transports.quic.engine import PathEngine
from tests.unit.transports.mpquic.ends import DEFAULT, pair

NEAR = (link_of(200, 0.004),) * 2
SIZE = 4_000_000
READS_AFTER = 0.001  # seconds; a process reads what has come meanwhile at once


def calls_of_a_download(engine: type[AioquicEngine], policy: PathPolicy | None, paths: int = 1) -> int:
    """Of Python's functions and built-in ones, by both ends."""
    kind = cast(type[PathEngine], engine)
    made = pair([NEAR] * paths, policy, policy, engines=(kind, kind))
    made.connect()
    if policy is not None:
        made.open_all()
    assert made.server is not None
    made.client.reads_after = made.server.reads_after = READS_AFTER
    count = 0

    def counting(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(counting)
    try:
        made.download(SIZE)
    finally:
        sys.setprofile(None)
    return count


def test_paths_cost_little_beside_the_packets_themselves() -> None:
    plain = calls_of_a_download(AioquicEngine, None)
    one = calls_of_a_download(AioquicPathEngine, DEFAULT)
    two = calls_of_a_download(AioquicPathEngine, DEFAULT, 2)
    assert plain < one < 1.19 * plain, "1.17, and 1.23 where each packet asked what only each burst has to"
    assert one < two < 1.4 * plain
