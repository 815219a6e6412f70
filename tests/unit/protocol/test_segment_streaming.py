"""A decoder that streams hands unfinished DATA on in parts; nothing else may change."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from multi.protocol.segment import HEADER_LENGTH, SegmentDecoder, SegmentType, encode
from multi.types import SessionId, StreamId

SESSION = SessionId(b"s" * 16)


@pytest.mark.parametrize("seed", range(300))
def test_parts_of_data_cover_every_byte_once_whatever_the_cuts(seed: int) -> None:
    choose = random.Random(seed)
    wire, sent, other = b"", {}, []
    offset = 0
    for _ in range(choose.randint(1, 8)):
        stream = StreamId(choose.choice([0, 0, 2]))
        payload = choose.randbytes(choose.choice([1, 5, 100, 3000]))
        if choose.random() < 0.3:
            wire += encode(SegmentType.ACK, SESSION, payload)
            other.append(payload)
        else:
            wire += encode(SegmentType.DATA, SESSION, payload, sequence=offset, stream=stream)
            sent.update({(stream, offset + at): byte for at, byte in enumerate(payload)})
            offset += len(payload)
    decoder = SegmentDecoder()
    received: dict[tuple[StreamId, int], int] = {}
    acknowledgements = []
    start = 0
    while start < len(wire):
        piece = wire[start : start + choose.choice([1, 2, 7, 31, 33, 100, 5000])]
        decoder.streaming = choose.random() < 0.95
        taken = len(piece)
        for segment in decoder.feed(memoryview(piece)):
            if segment.type == SegmentType.ACK:
                acknowledgements.append(bytes(segment.payload))
            else:
                for at, byte in enumerate(segment.payload):
                    key = (segment.stream, segment.sequence + at)
                    assert key not in received
                    received[key] = byte
            if choose.random() < 0.2:
                taken = decoder.taken  # the others have to wait
                break
        start += taken
    assert received == sent
    assert acknowledgements == other


def test_a_streaming_decoder_holds_no_payload() -> None:
    decoder = SegmentDecoder()
    decoder.streaming = True
    wire = encode(SegmentType.DATA, SESSION, bytes(100_000))
    parts = list(decoder.feed(memoryview(wire[: HEADER_LENGTH + 60_000])))
    assert [len(part.payload) for part in parts] == [60_000]
    assert decoder.buffered == 0


def test_a_decoder_that_does_not_stream_yields_whole_segments_only() -> None:
    decoder = SegmentDecoder()
    wire = encode(SegmentType.DATA, SESSION, bytes(1000))
    assert list(decoder.feed(memoryview(wire[:900]))) == []
    assert [len(part.payload) for part in decoder.feed(memoryview(wire[900:]))] == [1000]


@pytest.mark.parametrize("streaming", [True, False])
def test_a_decoder_knows_that_a_part_of_a_segment_has_come(streaming: bool) -> None:
    decoder = SegmentDecoder()
    decoder.streaming = streaming
    wire = encode(SegmentType.DATA, SESSION, bytes(1000))
    cuts = (0, 1, HEADER_LENGTH, 900, len(wire))
    seen = []
    for start, end in pairwise(cuts):
        list(decoder.feed(memoryview(wire[start:end])))
        seen.append(decoder.partial)
    assert seen == [True, True, True, False]
