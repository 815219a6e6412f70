"""The codec: golden bytes, split invariance, and what it does with bytes nobody should send."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from multi.errors import RemoteProtocolError
from multi.protocol.handshake import (
    WHEREABOUTS,
    Accept,
    Admit,
    Challenge,
    Choice,
    ConnectionTerms,
    Hello,
    Join,
    Refuse,
    RefuseCode,
    Ticket,
    Whereabouts,
    encode_tickets,
)
from multi.protocol.payloads import (
    Ack,
    Close,
    Keepalive,
    Policy,
    StreamAck,
    encode_addresses,
    encode_away,
    encode_close,
    encode_keepalive,
    encode_policy,
    encode_rate,
    encode_role,
    encode_scheduler,
    encode_unsigned,
)
from multi.protocol.sealing import Cipher
from multi.protocol.segment import (
    CONTROL_TYPES,
    HANDSHAKE_TYPES,
    HEADER_LENGTH,
    MAX_CONTROL_PAYLOAD,
    MAX_DATA_PAYLOAD,
    MAX_HEADER_LENGTH,
    TAG_LENGTH,
    VERSION,
    SegmentDecoder,
    SegmentType,
    encode,
    encode_header,
    encode_routed,
    peek,
    route_of,
)
from multi.types import Role, SessionId, StreamId
from tests.unit.protocol.wiring import whole_ack

SESSION = SessionId(bytes(range(0x10, 0x20)))
DOCUMENT = Path(__file__).parents[3] / "docs" / "wire-format.md"

Decoded = tuple[int, bytes, int, StreamId, bytes]

_TERMS = ConnectionTerms(sealed=True, role=Role.BACKUP, weight=2.0, max_rate=1e6)
_ORIGIN, _NONCE, _KEY, _PROOF, _TICKET = b"\xe0" * 16, b"\xa0" * 32, b"\xb0" * 32, b"\xc0" * 32, b"\xd0" * 32
_POLICY = Policy("WRR", (("n", 2.0),), switch=True, reinject="rescue")

EXAMPLES: dict[SegmentType, bytes] = {
    SegmentType.DATA: encode(SegmentType.DATA, SESSION, b"hello", sequence=0x0102, stream=StreamId(3)),
    SegmentType.ACK: encode(
        SegmentType.ACK,
        SESSION,
        whole_ack(Ack(0x20000, 5, ((7, 8),), (StreamAck(StreamId(0), 0x1000, 0x11000, ((0x2000, 0x3000),)),))),
    ),
    SegmentType.KEEPALIVE: encode(SegmentType.KEEPALIVE, SESSION, encode_keepalive(Keepalive(9, wants_ack=True))),
    SegmentType.CLOSE: encode(SegmentType.CLOSE, SESSION, encode_close(Close(1, "aborted"))),
    SegmentType.HELLO: encode(
        SegmentType.HELLO,
        SESSION,
        Hello(_NONCE, _KEY, 65536, 128, _POLICY, _TERMS, (1,), b"id", b"", 60_000, ((7, b"x"),)).encode(),
    ),
    SegmentType.ACCEPT: encode(
        SegmentType.ACCEPT,
        SESSION,
        Accept(1, _NONCE, _KEY, 65536, 128, Choice(4, True, Cipher.AES_128_GCM), _PROOF, 60_000, _KEY).encode(),
    ),
    SegmentType.CONFIRM: encode(SegmentType.CONFIRM, SESSION, _PROOF),
    SegmentType.JOIN: encode(SegmentType.JOIN, SESSION, Join(_ORIGIN, _NONCE, _TERMS, _TICKET, _PROOF).encode()),
    SegmentType.ADMIT: encode(SegmentType.ADMIT, SESSION, Admit(_NONCE, _PROOF).encode()),
    SegmentType.RATE: encode(SegmentType.RATE, SESSION, encode_rate(5, 1e6), sequence=10),
    SegmentType.STEER: encode(
        SegmentType.STEER,
        SESSION,
        encode_scheduler("steering.latency", (("max_rtt", 0.1),)),
        sequence=11,
        stream=StreamId(2),
    ),
    SegmentType.TICKETS: encode(SegmentType.TICKETS, SESSION, encode_tickets([Ticket(7, _TICKET)]), sequence=9),
    SegmentType.CHALLENGE: encode(
        SegmentType.CHALLENGE, SESSION, Challenge(Choice(5, True, Cipher.CHACHA20_POLY1305), _NONCE, _PROOF).encode()
    ),
    SegmentType.PROVE: encode(SegmentType.PROVE, SESSION, _PROOF),
    SegmentType.REFUSE: encode(SegmentType.REFUSE, SESSION, Refuse(RefuseCode.BUSY, limit="max_sessions").encode()),
    SegmentType.FIN: encode(SegmentType.FIN, SESSION, encode_unsigned((0x1234, 8)), sequence=0),
    SegmentType.RESET: encode(
        SegmentType.RESET, SESSION, encode_unsigned((0x1234, 8), (7, 4)), sequence=1, stream=StreamId(2)
    ),
    SegmentType.STOP_SENDING: encode(
        SegmentType.STOP_SENDING, SESSION, encode_unsigned((7, 4), (0x1234, 8)), sequence=2, stream=StreamId(2)
    ),
    SegmentType.OPEN: encode(SegmentType.OPEN, SESSION, encode_unsigned((3, 1)), sequence=3, stream=StreamId(2)),
    SegmentType.MAX_STREAMS: encode(SegmentType.MAX_STREAMS, SESSION, encode_unsigned((129, 8)), sequence=4),
    SegmentType.DRAIN: encode(SegmentType.DRAIN, SESSION, encode_unsigned((5, 4), (1, 1)), sequence=5),
    SegmentType.ROLE: encode(SegmentType.ROLE, SESSION, encode_role(5, Role.BACKUP), sequence=6),
    SegmentType.POLICY: encode(SegmentType.POLICY, SESSION, encode_policy(_POLICY), sequence=7),
    SegmentType.DATAGRAM: encode(SegmentType.DATAGRAM, SESSION, b"ping", sequence=0x20),
    SegmentType.ADDRESS: encode(
        SegmentType.ADDRESS, SESSION, encode_addresses([("192.0.2.7", 7788), ("2001:db8::7", 7788)]), sequence=8
    ),
    SegmentType.AWAY: encode(SegmentType.AWAY, SESSION, encode_away(25.0), sequence=11),
}


FURTHER_EXAMPLES = {
    "ACCEPT_WITH_ROUTE": encode(
        SegmentType.ACCEPT,
        SESSION,
        Accept(
            *(1, _NONCE, _KEY, 65536, 128, Choice(4, True, Cipher.AES_128_GCM), _PROOF, 60_000, _KEY),
            ((WHEREABOUTS, Whereabouts(b"\x0a\x0b", elsewhere=True).encode()),),
        ).encode(),
    ),
    "JOIN_WITH_ROUTE": encode_routed(
        SegmentType.JOIN, SESSION, Join(_ORIGIN, _NONCE, _TERMS, _TICKET, _PROOF).encode(), b"\x0a\x0b"
    ),
    "REFUSE_ELSEWHERE": encode(
        SegmentType.REFUSE, SESSION, Refuse(RefuseCode.ELSEWHERE, address=("192.0.2.7", 7788)).encode()
    ),
}
"""What is not in every segment of a type."""


def documented_examples() -> dict[str, bytes]:
    """Read the blocks that follow a line `NAME example:` in the document."""
    blocks = re.findall(r"^([A-Z_]+) example:\n+```\n(.*?)```", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
    return {name: bytes.fromhex(re.sub(r"\s", "", text)) for name, text in blocks}


def decode(*pieces: bytes) -> tuple[list[Decoded], str]:
    """Feed `pieces`; return what was yielded and the error, if any."""
    decoder = SegmentDecoder()
    found: list[Decoded] = []
    try:
        for piece in pieces:
            for segment in decoder.feed(memoryview(piece)):
                assert bytes(segment.header) != b""
                found.append(
                    (segment.type, segment.session_id, segment.sequence, segment.stream, bytes(segment.payload))
                )
            assert decoder.buffered < MAX_HEADER_LENGTH + MAX_DATA_PAYLOAD + TAG_LENGTH
    except RemoteProtocolError as error:
        return found, str(error)
    return found, ""


def header(
    version: int = VERSION,
    type_: int = SegmentType.DATA,
    header_length: int = HEADER_LENGTH,
    segment_length: int = HEADER_LENGTH,
) -> bytes:
    return struct.pack("!BBHI16sQ", version, type_, header_length, segment_length, SESSION, 0)


# --- golden bytes  ---


def test_every_segment_type_has_an_example() -> None:
    assert set(SegmentType) - set(EXAMPLES) == set(), "an entry in EXAMPLES of this file"


@pytest.mark.parametrize("type_", list(SegmentType), ids=lambda t: t.name)
def test_documented_golden_bytes_are_what_the_codec_writes(type_: SegmentType) -> None:
    documented = documented_examples().get(type_.name, b"")
    assert documented.hex(" ") == EXAMPLES[type_].hex(" "), f"`{type_.name} example:` in docs/wire-format.md"


@pytest.mark.parametrize("name", FURTHER_EXAMPLES)
def test_what_may_stand_besides_is_written_as_documented(name: str) -> None:
    assert documented_examples()[name].hex(" ") == FURTHER_EXAMPLES[name].hex(" ")


def test_a_route_is_read_from_the_header_of_a_whole_segment() -> None:
    for route in (b"", b"\x0a", b"\x0a" * 8):
        segment = encode_routed(SegmentType.JOIN, SESSION, b"payload", route)
        assert route_of(segment) == route
        assert decode(segment) == ([(SegmentType.JOIN, SESSION, 0, 0, b"payload")], "")


@pytest.mark.parametrize(
    "extensions", [b"\x02", b"\x02\x04abc", b"\x02\x00", b"\x02\x09" + bytes(9), b"\x07\x01"], ids=repr
)
def test_a_route_that_is_none_is_refused(extensions: bytes) -> None:
    length = HEADER_LENGTH + len(extensions)
    with pytest.raises(RemoteProtocolError):
        route_of(header(type_=SegmentType.JOIN, header_length=length, segment_length=length) + extensions)


def test_a_route_stands_among_other_extensions() -> None:
    extensions = b"\x07\x01x\x02\x02ab"
    length = HEADER_LENGTH + len(extensions)
    assert route_of(header(type_=SegmentType.JOIN, header_length=length, segment_length=length) + extensions) == b"ab"


@pytest.mark.parametrize("type_", list(SegmentType), ids=lambda t: t.name)
def test_every_segment_type_is_described_in_the_document(type_: SegmentType) -> None:
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \|", DOCUMENT.read_text(), re.MULTILINE)
    assert (str(int(type_)), type_.name) in rows, "the table of types in docs/wire-format.md"


def test_a_data_segment_is_laid_out_as_in_table_3() -> None:
    data = encode(SegmentType.DATA, SESSION, b"ab", sequence=0x0102030405060708)
    assert data == bytes([1, 1, 0, 32, 0, 0, 0, 34]) + SESSION + bytes([1, 2, 3, 4, 5, 6, 7, 8]) + b"ab"


def test_a_stream_other_than_zero_travels_in_an_extension() -> None:
    data = encode(SegmentType.DATA, SESSION, b"", stream=StreamId(0x01020304))
    assert data[2:8] == bytes([0, 38, 0, 0, 0, 38])
    assert data[32:] == bytes([1, 4, 1, 2, 3, 4])


def test_version_differs_from_the_first_byte_of_tls() -> None:
    assert VERSION != 0x16


def test_handshake_and_control_types_do_not_overlap() -> None:
    assert not HANDSHAKE_TYPES & CONTROL_TYPES
    others = {SegmentType.DATA, SegmentType.ACK, SegmentType.KEEPALIVE, SegmentType.CLOSE, SegmentType.DATAGRAM}
    assert others == set(SegmentType) - HANDSHAKE_TYPES - CONTROL_TYPES


# --- round trip and splits  ---

segments = st.builds(
    lambda type_, sequence, stream, payload: (
        encode(type_, SESSION, payload, sequence=sequence, stream=StreamId(stream)),
        (int(type_), bytes(SESSION), sequence, stream, payload),
    ),
    st.sampled_from(SegmentType),
    st.integers(0, 2**64 - 1),
    st.one_of(st.just(0), st.integers(0, 2**32 - 1)),
    st.binary(max_size=300),
)


@given(st.lists(segments, max_size=6), st.data())
def test_segments_decode_to_what_was_encoded_however_they_are_split(
    items: list[tuple[bytes, Decoded]], data: st.DataObject
) -> None:
    stream = b"".join(raw for raw, _ in items)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    expected = [decoded for _, decoded in items]
    assert decode(stream) == (expected, "")
    assert decode(*pieces) == (expected, "")
    assert decode(*(stream[i : i + 1] for i in range(len(stream)))) == (expected, "")


@given(st.lists(segments, max_size=3), st.binary(max_size=120), st.binary(max_size=40))
@example([], b"\x01", b"")
@example([], b"\x00", b"")
def test_random_bytes_give_segments_or_a_protocol_error_in_any_split(
    items: list[tuple[bytes, Decoded]], garbage: bytes, more: bytes
) -> None:
    stream = b"".join(raw for raw, _ in items) + garbage + more
    whole, whole_error = decode(stream)
    single, single_error = decode(*(stream[i : i + 1] for i in range(len(stream))))
    assert whole[: len(items)] == [decoded for _, decoded in items]
    assert single == whole
    assert bool(single_error) == bool(whole_error)


@given(segments, st.integers(0, 60), st.integers(0, 255))
def test_a_flipped_byte_gives_segments_or_a_protocol_error(
    item: tuple[bytes, Decoded], position: int, value: int
) -> None:
    raw = bytearray(item[0] * 2)
    raw[position % len(raw)] = value
    whole = decode(bytes(raw))
    single = decode(*(bytes(raw[i : i + 1]) for i in range(len(raw))))
    assert single[0] == whole[0]
    assert bool(single[1]) == bool(whole[1])


def test_payloads_of_whole_segments_borrow_the_receive_buffer_and_others_are_owned() -> None:
    raw = encode(SegmentType.DATA, SESSION, b"payload")
    decoder = SegmentDecoder()
    (whole,) = decoder.feed(memoryview(raw))
    assert isinstance(whole.payload, memoryview)
    assert not whole.owned
    assert whole.payload.obj is raw
    assert not list(decoder.feed(memoryview(raw[:35])))
    (split,) = decoder.feed(memoryview(raw[35:]))
    assert split.owned
    assert bytes(split.payload) == b"payload"


def test_an_unfinished_segment_is_all_the_decoder_keeps() -> None:
    raw = encode(SegmentType.DATA, SESSION, bytes(1000))
    decoder = SegmentDecoder()
    assert len(list(decoder.feed(memoryview(raw * 3 + raw[:500])))) == 3
    assert decoder.buffered == 500
    assert len(list(decoder.feed(memoryview(raw[500:])))) == 1
    assert decoder.buffered == 0


def test_a_lying_length_makes_the_decoder_keep_only_what_came() -> None:
    decoder = SegmentDecoder()
    assert not list(decoder.feed(memoryview(header(segment_length=HEADER_LENGTH + MAX_DATA_PAYLOAD))))
    assert decoder.buffered == HEADER_LENGTH


# --- what is refused  ---


@pytest.mark.parametrize("version", [0, 2, 15, 0x16, 0x47, 255])
def test_an_unknown_version_is_refused_with_its_first_byte(version: int) -> None:
    assert decode(bytes([version])) == ([], f"unknown version {version}")
    with pytest.raises(RemoteProtocolError, match="unknown version"):
        peek(bytes([version]))


@pytest.mark.parametrize("type_", sorted(set(range(128)) - {int(t) for t in SegmentType}))
def test_an_unknown_type_is_refused(type_: int) -> None:
    assert decode(header(type_=type_)) == ([], f"unknown segment type {type_}")


@pytest.mark.parametrize("type_", [129, 191, 192, 255])
def test_a_type_that_later_versions_may_add_is_taken(type_: int) -> None:
    (segment,) = SegmentDecoder().feed(memoryview(header(type_=type_)))
    assert segment.type == type_


@pytest.mark.parametrize(
    ("header_length", "segment_length"),
    [
        (0, 32),
        (31, 32),
        (MAX_HEADER_LENGTH + 1, 1000),
        (65535, 65535),
        (32, 0),
        (32, 31),
        (64, 63),
        (32, HEADER_LENGTH + MAX_DATA_PAYLOAD + TAG_LENGTH + 1),
        (32, 2**32 - 1),
    ],
)
def test_impossible_lengths_are_refused_before_any_payload_is_kept(header_length: int, segment_length: int) -> None:
    raw = header(header_length=header_length, segment_length=segment_length)
    found, error = decode(raw + bytes(200))
    assert not found
    assert "length" in error
    with pytest.raises(RemoteProtocolError, match="length"):
        peek(raw)


def test_the_largest_data_segment_is_taken_and_one_byte_more_is_refused() -> None:
    largest = encode(SegmentType.DATA, SESSION, bytes(MAX_DATA_PAYLOAD + TAG_LENGTH))
    assert len(decode(largest)[0]) == 1
    assert decode(encode(SegmentType.DATA, SESSION, bytes(MAX_DATA_PAYLOAD + TAG_LENGTH + 1)))[1]


@pytest.mark.parametrize("type_", sorted(set(SegmentType) - {SegmentType.DATA, SegmentType.DATAGRAM}))
def test_only_data_may_be_larger_than_a_control_payload(type_: SegmentType) -> None:
    assert not decode(encode(type_, SESSION, bytes(MAX_CONTROL_PAYLOAD + TAG_LENGTH)))[1]
    assert decode(encode(type_, SESSION, bytes(MAX_CONTROL_PAYLOAD + TAG_LENGTH + 1)))[1]


def test_a_truncated_segment_yields_nothing_and_no_error() -> None:
    raw = EXAMPLES[SegmentType.HELLO]
    assert all(decode(raw[:length]) == ([], "") for length in range(len(raw)))


def extended(extensions: bytes, payload: bytes = b"x") -> bytes:
    length = HEADER_LENGTH + len(extensions)
    return header(header_length=length, segment_length=length + len(payload)) + extensions + payload


def test_unknown_extensions_are_skipped() -> None:
    raw = extended(bytes([9, 3, 1, 2, 3]) + bytes([1, 4, 0, 0, 0, 6]) + bytes([200, 0]))
    (found,), error = decode(raw)
    assert not error
    assert found[3:] == (6, b"x")


@pytest.mark.parametrize(
    ("extensions", "message"),
    [
        (bytes([9]), "truncated"),
        (bytes([9, 1]), "longer than the header"),
        (bytes([1, 4, 0, 0, 0]), "longer than the header"),
        (bytes([1, 3, 0, 0, 0]), "stream extension of 3 bytes"),
        (bytes([1, 0]), "stream extension of 0 bytes"),
        (bytes([1, 5, 0, 0, 0, 0, 1]), "stream extension of 5 bytes"),
        (bytes([1, 4, 0, 0, 0, 1, 1, 4, 0, 0, 0, 2]), "two stream extensions"),
    ],
)
def test_malformed_extensions_are_refused(extensions: bytes, message: str) -> None:
    found, error = decode(extended(extensions))
    assert not found
    assert message in error


def test_segments_before_a_fault_are_still_yielded() -> None:
    good = encode(SegmentType.DATA, SESSION, b"good")
    found, error = decode(good + good + header(type_=99) + good)
    assert [item[4] for item in found] == [b"good", b"good"]
    assert error == "unknown segment type 99"


# --- peek  ---


def test_peek_needs_a_whole_header() -> None:
    raw = EXAMPLES[SegmentType.JOIN]
    assert all(peek(raw[:length]) is None for length in range(HEADER_LENGTH))
    assert peek(raw[:HEADER_LENGTH]) == (SegmentType.JOIN, SESSION)
    assert peek(bytearray(raw)) == peek(memoryview(raw)) == (SegmentType.JOIN, SESSION)


@given(st.binary(max_size=64))
def test_peek_answers_or_raises_a_protocol_error(data: bytes) -> None:
    try:
        found = peek(data)
    except RemoteProtocolError:
        return
    assert (found is None) == (len(data) < HEADER_LENGTH)


def test_the_header_of_a_sealed_segment_counts_its_tag() -> None:
    assert encode_header(SegmentType.DATA, SESSION, 0, StreamId(0), 5 + TAG_LENGTH)[4:8] == (32 + 21).to_bytes(4, "big")
