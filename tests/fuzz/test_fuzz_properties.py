"""The same targets with inputs that Hypothesis makes and shrinks, where a strategy says more than bytes do."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from multi.config import json_schema, load_config
from multi.errors import ConfigError
from multi.protocol.payloads import MAX_OFFSET, Ack, StreamAck
from multi.protocol.segment import HANDSHAKE_TYPES, SegmentType, encode
from multi.types import SessionId, StreamId
from tests.fuzz import fuzz_payloads, fuzz_segment
from tests.fuzz.targets import TARGETS
from tests.unit.protocol.wiring import whole_ack

quickly = settings(deadline=None, derandomize=True, max_examples=100, suppress_health_check=list(HealthCheck))

SEGMENTS = st.builds(
    encode,
    st.sampled_from(SegmentType),
    st.binary(min_size=16, max_size=16).map(SessionId),
    st.binary(max_size=300),
    sequence=st.integers(0, (1 << 64) - 1),
    stream=st.integers(0, (1 << 32) - 1).map(StreamId),
)
OFFSETS = st.integers(0, MAX_OFFSET - 200)
RANGES = st.lists(st.integers(1, 99), max_size=32, unique=True).map(sorted)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=12,
)
KEYS = st.sampled_from([*json_schema()["properties"], "unknown"])


@pytest.mark.parametrize("name", [name for name, target in TARGETS.items() if target.memory_base <= 64 * 1024])
@quickly
@given(data=st.data())
def test_any_bytes(name: str, data: st.DataObject) -> None:
    target = TARGETS[name]
    drawn: bytes = data.draw(st.one_of(st.binary(max_size=200), st.sampled_from(list(target.seeds()) or [b""])))
    target.run(drawn)


@quickly
@given(segments=st.lists(SEGMENTS, max_size=6), seed=st.binary(min_size=2, max_size=2), cut=st.integers(0, 400))
def test_segments_are_the_same_however_they_arrive(segments: list[bytes], seed: bytes, cut: int) -> None:
    stream = b"".join(segments)
    fuzz_segment.run(seed + stream)
    fuzz_segment.run(seed + stream[:cut])


@quickly
@given(
    numbers=st.tuples(OFFSETS, OFFSETS),
    control=RANGES,
    streams=st.lists(st.tuples(st.integers(0, (1 << 32) - 1), OFFSETS, OFFSETS, RANGES), max_size=4),
)
def test_acknowledgements_come_back_as_they_were(
    numbers: tuple[int, int], control: list[int], streams: list[tuple[int, int, int, list[int]]]
) -> None:
    window, above = numbers
    entries = tuple(StreamAck(StreamId(s), start, end, _ranges(start, steps)) for s, start, end, steps in streams)
    TARGETS["payload-ack"].run(whole_ack(Ack(window, above, _ranges(above, control), entries)))


def test_the_payload_of_every_segment_that_is_neither_data_nor_handshake_is_fuzzed() -> None:
    others = HANDSHAKE_TYPES | {SegmentType.DATA, SegmentType.DATAGRAM}
    assert set(fuzz_payloads.DECODERS) ^ (set(SegmentType) - others) == set(), "DECODERS in fuzz_payloads.py"


def _ranges(above: int, steps: list[int]) -> tuple[tuple[int, int], ...]:
    return tuple((above + 2 * step, above + 2 * step + 1) for step in steps)


@quickly
@given(config=st.dictionaries(KEYS, JSON, max_size=4))
def test_a_configuration_of_any_json_is_accepted_or_refused_in_words(config: dict[str, Any]) -> None:
    try:
        load_config(config)
    except ConfigError as error:
        str(error).encode()
