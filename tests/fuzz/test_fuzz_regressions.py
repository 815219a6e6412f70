"""Inputs that once broke a promise, as they were found."""

from __future__ import annotations

import pytest

from multi.protocol.segment import SegmentType
from tests.fuzz.fuzz_handshake import spoken
from tests.fuzz.targets import TARGETS
from tests.unit.protocol.wiring import CLEAR, Ends

FOUND = {
    "a report whose count of repeated bytes is text": ("bench-answer", b'{"retransmitted": "x"}\n'),
    "a report whose count of repeated bytes is infinite": ("bench-answer", b'{"retransmitted": 1e999}\n'),
    "a report with figures that are no numbers": ("bench-answer", b'{"bytes": "5", "seconds": null}\n'),
    "a refusal that clears the screen": ("bench-answer", b'{"multi_bench": 1, "error": "\\u001b[2J"}\n'),
    "a version that clears the screen": ("bench-request", b'{"multi_bench": "\\u001b[2J"}\n'),
    "a time too large for a float": (
        "bench-request",
        b'{"multi_bench": 1, "reverse": false, "bytes": 0, "seconds": 1' + b"0" * 400 + b"}\n",
    ),
    "an error of the kernel cut short": ("netlink-questions", b"0\xc3\xa5\xa1\xe1\x1e\x96"),
    "an error number that is none": ("netlink-questions", b"\xf7\x07yu"),
    "an error of a family cut short": ("netlink-generic", b"\x00q\x16\x10~"),
    "an error number of a family that is none": ("netlink-generic", b"\x00\x0c.f"),
    "an error number of nl80211 that is none": ("netlink-generic", b"\xcd\x0e(5}"),
}


@pytest.mark.parametrize("name", FOUND)
def test_an_input_that_was_found_breaks_no_promise(name: str) -> None:
    target, data = FOUND[name]
    TARGETS[target].run(data)


def test_garbage_behind_a_wrong_proof_in_the_same_read_costs_only_that_connection() -> None:
    ends = Ends(CLEAR, CLEAR)
    honest = ends.connect()
    ends.pump()
    stranger = ends.stranger()
    stranger.inject(ends.segment(SegmentType.JOIN, spoken()[SegmentType.JOIN][0]))
    ends.pump()
    stranger.inject(ends.segment(SegmentType.PROVE, bytes(32)) + b"\5" * 32)
    ends.pump()
    assert ends.server.states() == {honest.id: "active", stranger.id: "lost"}
