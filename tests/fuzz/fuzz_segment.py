"""Cutting bytes into segments: the same segments and the same fault however the bytes arrive."""

from __future__ import annotations

from random import Random

from multi.errors import RemoteProtocolError
from multi.protocol import segment
from multi.protocol.segment import SegmentDecoder, SegmentType, encode, peek
from multi.types import SessionId, StreamId
from tests.fuzz.mutation import Choices
from tests.fuzz.target import Target, check

SESSION = SessionId(bytes(range(16, 32)))
LARGEST = segment.MAX_HEADER_LENGTH + segment.MAX_DATA_PAYLOAD + segment.TAG_LENGTH

Record = tuple[int, bytes, int, StreamId, bytes]
"""(type, Session ID, sequence number, stream, payload)."""


def decode(data: bytes, *, streaming: bool, cuts: Random | None) -> tuple[list[Record], str]:
    """What a decoder makes of `data`, with neighbouring DATA joined, and the text of its complaint."""
    decoder = SegmentDecoder()
    decoder.streaming = streaming
    records: list[Record] = []
    while data:
        size = len(data) if cuts is None else min(len(data), cuts.choice((1, 2, 7, 31, 32, 33, 38, 39, 64, 300)))
        piece, data = bytearray(data[:size]), data[size:]
        try:
            for found in decoder.feed(memoryview(piece)):
                _append(
                    records, (found.type, bytes(found.session_id), found.sequence, found.stream, bytes(found.payload))
                )
        except RemoteProtocolError as error:
            return records, str(error)
        check(decoder.buffered < LARGEST, "an unfinished segment is larger than any segment")
        piece[:] = bytes(len(piece))  # a receive buffer is used again
    return records, ""


def _append(records: list[Record], new: Record) -> None:
    if records:
        type_, session, sequence, stream, payload = records[-1]
        if type_ == new[0] == SegmentType.DATA and (session, stream, sequence + len(payload)) == (
            new[1],
            new[3],
            new[2],
        ):
            records[-1] = (type_, session, sequence, stream, payload + new[4])
            return
    records.append(new)


def run(data: bytes) -> None:
    cuts = Random(int.from_bytes(data[:2], "big"))
    data = data[2:]
    peeked = None
    try:
        peeked = peek(data)
    except RemoteProtocolError as error:
        check(decode(data, streaming=False, cuts=None) == ([], str(error)), "peek and the decoder disagree")
    whole, fault = decode(data, streaming=False, cuts=None)
    check(sum(len(r[4]) for r in whole) <= len(data), "more payload than bytes")
    if whole:
        check(peeked == whole[0][:2], "peek and the decoder see different segments")
    check(decode(data, streaming=False, cuts=cuts) == (whole, fault), "other segments when the bytes are cut")
    for pieces in (None, cuts):
        records, complaint = decode(data, streaming=True, cuts=pieces)
        if fault:
            check((records, complaint) == (whole, fault), "other segments when they are streamed")
            continue
        # Beyond the last whole segment there may be the beginning of one, and a fault in its header.
        check(_begins(records, whole), "other segments when they are streamed, the last one unfinished")


def _begins(longer: list[Record], shorter: list[Record]) -> bool:
    if len(longer) - len(shorter) not in (0, 1):
        return False
    if len(longer) > len(shorter):
        return longer[: len(shorter)] == shorter
    return longer[:-1] == shorter[:-1] and all(
        a[:4] == b[:4] and a[4].startswith(b[4]) for a, b in zip(longer[-1:], shorter[-1:], strict=True)
    )


def seeds() -> list[bytes]:
    segments = [
        encode(SegmentType.DATA, SESSION, b"hello", sequence=258, stream=StreamId(3)),
        encode(SegmentType.DATA, SESSION, bytes(300)),
        encode(SegmentType.DATA, SESSION, b"", sequence=(1 << 64) - 1),
        encode(SegmentType.KEEPALIVE, SESSION, bytes(9)),
        encode(SegmentType.OPEN, SESSION, b"\3", sequence=1, stream=StreamId(2)),
        # A later version's extension before ours.
        bytes.fromhex("0101002a0000002d") + SESSION + bytes(8) + b"\x09\x02xx" + b"\x01\x04\0\0\0\x05" + b"abc",
    ]
    return [b"\0\1" + b"".join(segments), *(b"\0\2" + s for s in segments), b"\0\3" + segments[1] * 3]


def expanded(data: bytes) -> bytes:
    """Segments from choices, for drivers that know nothing of lengths: valid ones, now and then damaged."""
    choices, parts = Choices(data), [data[:2]]
    choices.take(2)
    while choices.left:
        kind = choices.pick(tuple(SegmentType)) if choices.chance(3) else SegmentType.DATA
        stream = StreamId(choices.edge(bits=32) if choices.chance(2) else 0)
        payload = choices.some() + bytes(choices.pick((0, 0, 1, 64, 4096, 70_000)) if choices.chance(8) else 0)
        parts.append(choices.damaged(encode(kind, SESSION, payload, sequence=choices.edge(), stream=stream)))
    return b"".join(parts)


TARGETS = (
    Target("segment", run, seeds, (segment,), short=800, weight=3, longest=2048, words=(SESSION, b"\1\4", b"\1\1")),
    Target(
        "segment-valid",
        lambda data: run(expanded(data)),
        lambda: [bytes(range(200)), bytes(64)],
        (segment,),
        short=400,
        longest=400,
        memory_base=4 << 20,  # a few bytes of choices stand for up to 70,000
        memory_factor=64 * 1024,
    ),
)
