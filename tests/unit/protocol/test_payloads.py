"""Payload decoders: what was encoded, or RemoteProtocolError, whatever the bytes."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from multi.errors import LocalProtocolError, RemoteProtocolError
from multi.protocol.handshake import (
    Accept,
    Challenge,
    Choice,
    ConnectionTerms,
    Hello,
    Join,
    Refuse,
    RefuseCode,
    Whereabouts,
    decode_proof,
)
from multi.protocol.payloads import (
    MAX_ACK_PAYLOAD,
    MAX_OFFSET,
    MAX_RANGES,
    MAX_REASON,
    Ack,
    Close,
    Fields,
    Keepalive,
    Policy,
    StreamAck,
    decode_ack,
    decode_close,
    decode_keepalive,
    decode_policy,
    decode_rate,
    decode_role,
    decode_scheduler,
    decode_unsigned,
    encode_addresses,
    encode_close,
    encode_keepalive,
    encode_policy,
    encode_rate,
    encode_role,
    encode_scheduler,
    encode_unsigned,
)
from multi.protocol.sealing import Cipher
from multi.protocol.segment import MAX_CONTROL_PAYLOAD
from multi.schedulers.base import MAX_NAME, MAX_PARAMETER_NAME, MAX_PARAMETERS
from multi.types import Role, StreamId
from tests.unit.protocol.wiring import whole_ack

offsets = st.integers(0, MAX_OFFSET)
printable = st.text(st.characters(codec="utf-8").filter(str.isprintable), max_size=20)
keys32 = st.binary(min_size=32, max_size=32)
unsigned32 = st.integers(0, 2**32 - 1)


@st.composite
def acked(draw: st.DrawFn, count: int = 4) -> tuple[int, tuple[tuple[int, int], ...]]:
    """A cumulative number and ranges that rise above it."""
    numbers = sorted(draw(st.sets(offsets, min_size=1, max_size=2 * count + 1)))
    return numbers[0], tuple(zip(numbers[1::2], numbers[2::2], strict=False))


stream_acks = st.builds(
    lambda stream, ack, window: StreamAck(StreamId(stream), ack[0], window, ack[1]), unsigned32, acked(2), offsets
)
acks = st.builds(
    lambda window, control, streams: Ack(window, control[0], control[1], tuple(streams)),
    offsets,
    acked(),
    st.lists(stream_acks, max_size=10),
)
policies = st.builds(
    Policy,
    printable,
    st.lists(
        st.tuples(printable.filter(lambda t: len(t.encode()) <= 64), st.floats(allow_nan=False, allow_infinity=False)),
        max_size=4,
    ).map(tuple),
    st.booleans(),
    st.sampled_from(["off", "rescue", "full"]),
)
terms = st.builds(
    ConnectionTerms,
    st.booleans(),
    st.lists(st.integers(0, 255), max_size=5).map(tuple),
    st.sampled_from([Role.ACTIVE, Role.SECONDARY, Role.BACKUP]),
    st.floats(1e-6, 1e6),
    st.floats(0, 1e15),
    st.just(0.0) | st.floats(1e-6, 1e6),
)
hellos = st.builds(
    Hello,
    keys32,
    keys32,
    st.integers(0, 1 << 30),
    unsigned32,
    policies,
    terms,
    st.lists(st.integers(0, 255), max_size=5).map(tuple),
    st.binary(max_size=64),
    st.binary(max_size=32),
)
choices = st.builds(Choice, unsigned32, st.booleans(), st.sampled_from(Cipher))
accepts = st.builds(
    Accept,
    st.integers(0, 255),
    keys32,
    keys32,
    st.integers(0, 1 << 30),
    unsigned32,
    choices,
    keys32,
)

Codec = tuple[str, st.SearchStrategy[Any], Callable[[Any], bytes], Callable[[bytes], Any]]
CODECS: list[Codec] = [
    ("ACK", acks, whole_ack, decode_ack),
    (
        "KEEPALIVE",
        st.builds(Keepalive, st.integers(0, 2**64 - 1), st.booleans(), st.booleans()),
        encode_keepalive,
        decode_keepalive,
    ),
    ("CLOSE", st.builds(Close, unsigned32, printable), encode_close, decode_close),
    ("POLICY", policies, encode_policy, lambda data: decode_policy(Fields(data))),
    (
        "STEER",
        policies.map(lambda policy: (policy.scheduler, policy.parameters)),
        lambda v: encode_scheduler(*v),
        decode_scheduler,
    ),
    ("RATE", st.tuples(unsigned32, st.floats(0, 1e15)), lambda v: encode_rate(*v), decode_rate),
    (
        "ROLE",
        st.tuples(unsigned32, st.sampled_from([Role.ACTIVE, Role.SECONDARY, Role.BACKUP])),
        lambda v: encode_role(*v),
        decode_role,
    ),
    (
        "numbers",
        st.tuples(st.integers(0, 2**64 - 1), unsigned32),
        lambda v: encode_unsigned((v[0], 8), (v[1], 4)),
        lambda data: decode_unsigned(data, 8, 4),
    ),
    ("HELLO", hellos, Hello.encode, Hello.decode),
    ("ACCEPT", accepts, Accept.encode, Accept.decode),
    ("JOIN", st.builds(Join, st.binary(min_size=16, max_size=16), keys32, terms), Join.encode, Join.decode),
    (
        "CHALLENGE",
        st.builds(Challenge, choices, keys32, keys32),
        Challenge.encode,
        Challenge.decode,
    ),
    (
        "REFUSE",
        st.builds(Refuse, st.integers(0, 255), st.lists(st.integers(0, 255), max_size=9).map(tuple)),
        Refuse.encode,
        Refuse.decode,
    ),
    ("proof", keys32, bytes, decode_proof),
]
every_codec = pytest.mark.parametrize("codec", CODECS, ids=lambda c: c[0])


@every_codec
@given(data=st.data())
def test_decoding_gives_back_what_was_encoded_and_refuses_less_or_more(codec: Codec, data: st.DataObject) -> None:
    name, values, encode, decode = codec
    value = data.draw(values)
    raw = encode(value)
    assert decode(raw) == value
    # Proofs are computed over encodings of decoded messages: there must be only one encoding.
    assert encode(decode(raw)) == raw
    if name != "CLOSE":  # its text ends where the payload ends
        with pytest.raises(RemoteProtocolError):
            decode(raw[:-1])
    if name not in ("CLOSE", "POLICY", "REFUSE"):  # a later version may say more in a REFUSE
        with pytest.raises(RemoteProtocolError):
            decode(raw + b"\x00")


# --- ACK  ---


@pytest.mark.parametrize(
    "ranges",
    [
        ((10, 11),),
        ((5, 12),),
        ((12, 12),),
        ((13, 12),),
        ((12, 13), (13, 14)),
        ((12, 14), (13, 15)),
        ((20, 21), (12, 13)),
        ((12, MAX_OFFSET + 1),),
        ((12, 2**64 - 1),),
    ],
)
def test_ranges_rise_strictly_above_the_cumulative_number(ranges: tuple[tuple[int, int], ...]) -> None:
    with pytest.raises(RemoteProtocolError, match="not ascending"):
        decode_ack(whole_ack(Ack(0, 10, ranges)))
    with pytest.raises(RemoteProtocolError, match="not ascending"):
        decode_ack(whole_ack(Ack(0, 0, (), (StreamAck(StreamId(0), 10, 20, ranges),))))


@pytest.mark.parametrize(
    "ack",
    [
        Ack(MAX_OFFSET + 1, 0),
        Ack(0, MAX_OFFSET + 1),
        Ack(0, 0, (), (StreamAck(StreamId(0), MAX_OFFSET + 1, 0),)),
        Ack(0, 0, (), (StreamAck(StreamId(0), 0, MAX_OFFSET + 1),)),
        Ack(0, 2**64 - 1),
    ],
)
def test_offsets_beyond_the_limit_are_refused(ack: Ack) -> None:
    with pytest.raises(RemoteProtocolError, match="beyond 2"):
        decode_ack(whole_ack(ack))


def test_an_acknowledgement_has_bounded_ranges_and_size() -> None:
    ranges = tuple((2 * i + 1, 2 * i + 2) for i in range(MAX_RANGES))
    assert decode_ack(whole_ack(Ack(0, 0, ranges))).control_ranges == ranges
    with pytest.raises(RemoteProtocolError, match="33 ranges"):
        decode_ack(whole_ack(Ack(0, 0, (*ranges, (100, 101)))))
    full = Ack(0, 0, ranges, tuple(StreamAck(StreamId(i), 0, 0) for i in range(30)))
    assert len(whole_ack(full)) > MAX_ACK_PAYLOAD
    with pytest.raises(RemoteProtocolError, match="acknowledgement of"):
        decode_ack(whole_ack(full))


# --- KEEPALIVE, CLOSE, ROLE  ---


@pytest.mark.parametrize("flags", [4, 8, 0x80, 0xFF])
def test_unknown_keep_alive_flags_are_refused(flags: int) -> None:
    with pytest.raises(RemoteProtocolError, match="flags"):
        decode_keepalive(bytes([flags]) + bytes(8))


@given(st.text(max_size=400))
@example("\x1b[2J" * 3)
@example("ä" * 300)
@example("x" * (MAX_REASON - 1) + "€")
def test_any_reason_travels_as_bounded_printable_text(reason: str) -> None:
    raw = encode_close(Close(1, reason))
    assert len(raw) <= 4 + MAX_REASON
    received = decode_close(raw).reason
    assert received.isprintable()
    if reason.isascii() and reason.isprintable() and len(reason) <= MAX_REASON:
        assert received == reason


@pytest.mark.parametrize("text", [b"a\x1b[2Jb", b"line\nline", b"\xff", b"x" * (MAX_REASON + 1)])
def test_text_that_could_harm_a_terminal_or_a_log_is_refused(text: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_close(bytes(4) + text)


@pytest.mark.parametrize("role", [3, 255])
def test_an_unknown_role_is_refused(role: int) -> None:
    with pytest.raises(RemoteProtocolError, match="unknown role"):
        decode_role(bytes([0, 0, 0, 1, role]))


@pytest.mark.parametrize("rate", [-1.0, 1e16, math.nan, math.inf])
def test_a_rate_cap_that_no_honest_peer_has_is_refused(rate: float) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_rate(bytes([0, 0, 0, 1]) + struct.pack("!d", rate))


# --- POLICY  ---


def policy_bytes(value: bytes, name: bytes = b"RR", key: bytes = b"n") -> bytes:
    return bytes([len(name)]) + name + b"\x01" + bytes([len(key)]) + key + value + b"\x00\x02"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_parameters_that_are_not_finite_are_refused_on_both_sides(value: float) -> None:
    with pytest.raises(RemoteProtocolError, match="not finite"):
        decode_policy(Fields(policy_bytes(struct.pack("!d", value))))
    with pytest.raises(LocalProtocolError, match="not finite"):
        encode_policy(Policy("RR", (("n", value),)))


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (policy_bytes(bytes(8), key=b"k" * (MAX_PARAMETER_NAME + 1)), "parameter name of 65"),
        (policy_bytes(bytes(8), name=b"\x1b[31m"), "control characters"),
        (policy_bytes(bytes(8), name=b"\xff"), "UTF-8"),
        (b"\x02RR" + bytes([MAX_PARAMETERS + 1]), "more than 16"),
        (b"\x02RR\x00\x02\x00", "malformed"),
        (b"\x02RR\x00\x00\x03", "malformed"),
    ],
)
def test_malformed_policies_are_refused(raw: bytes, message: str) -> None:
    with pytest.raises(RemoteProtocolError, match=message):
        decode_policy(Fields(raw))


@pytest.mark.parametrize(
    "policy",
    [
        Policy("x" * (MAX_NAME + 1)),
        Policy("ä" * 128),
        Policy("line\nline"),
        Policy("RR", (("k" * (MAX_PARAMETER_NAME + 1), 1.0),)),
        Policy("RR", tuple((f"p{i}", 1.0) for i in range(MAX_PARAMETERS + 1))),
        Policy("RR", reinject="sometimes"),
    ],
)
def test_a_policy_no_peer_would_take_is_refused_before_it_is_sent(policy: Policy) -> None:
    with pytest.raises(LocalProtocolError):
        encode_policy(policy)


def test_the_largest_hello_fits_into_a_control_payload() -> None:
    policy = Policy("x" * MAX_NAME, tuple(("k" * MAX_PARAMETER_NAME, 1.0) for _ in range(MAX_PARAMETERS)))
    hello = Hello(bytes(32), bytes(32), 1, 1, policy, ConnectionTerms(True), (1,), bytes(64), bytes(32))
    assert len(hello.encode()) <= MAX_CONTROL_PAYLOAD


# --- handshake messages  ---


UNUSABLE = {
    "weight": (0.0, -1.0, 1.1e6, math.nan, math.inf),
    "cost": (-1.0, 1.1e6, math.nan, math.inf),
    "max_rate": (-1.0, 1.1e15, math.nan, math.inf),
}


@pytest.mark.parametrize("unusable", [{name: value} for name, values in UNUSABLE.items() for value in values], ids=str)
def test_terms_that_no_scheduler_or_bucket_could_use_are_refused(unusable: dict[str, Any]) -> None:
    raw = Join(bytes(16), bytes(32), ConnectionTerms(True, **unusable)).encode()
    with pytest.raises(RemoteProtocolError):
        Join.decode(raw)


def test_a_cost_of_nothing_has_one_encoding() -> None:
    """It is left out; proofs are computed over encodings."""
    terms = ConnectionTerms(True, cost=1.0).encode()
    free = terms[:-8] + bytes(8)
    assert len(ConnectionTerms(True).encode()) == len(terms) - 8
    with pytest.raises(RemoteProtocolError, match="cost"):
        ConnectionTerms.decode(Fields(free))


def test_an_absurd_initial_window_is_refused() -> None:
    hello = Hello(bytes(32), bytes(32), (1 << 30) + 1, 1, Policy(), ConnectionTerms(True))
    with pytest.raises(RemoteProtocolError, match="initial window"):
        Hello.decode(hello.encode())


def test_a_key_name_longer_than_64_bytes_is_refused() -> None:
    hello = Hello(bytes(32), bytes(32), 1, 1, Policy(), ConnectionTerms(True), psk_id=bytes(65))
    with pytest.raises(RemoteProtocolError, match="key name of 65"):
        Hello.decode(hello.encode())


def test_a_refusal_says_in_words_what_the_matter_is() -> None:
    assert "refused" in Refuse(0x10).reason
    assert "(1, 7)" in Refuse(0x11, (1, 7)).reason
    assert "protect" in Refuse(0x12).reason
    assert "max_sessions" in Refuse(0x20, limit="max_sessions").reason
    assert "does not know" in Refuse(0x30).reason
    assert "another server" in Refuse(0x40).reason


@pytest.mark.parametrize("address", [None, ("192.0.2.7", 7788), ("2001:db8::7", 1)])
def test_a_refusal_may_say_where_another_server_is(address: tuple[str, int] | None) -> None:
    refuse = Refuse(RefuseCode.ELSEWHERE, address=address)
    assert Refuse.decode(refuse.encode()) == refuse
    assert Refuse.decode(Refuse(RefuseCode.BUSY).encode() + b"more").address is None
    for wrong in (b"\x05\x1e\x6c" + bytes(4), b"\x04\x00\x00" + bytes(4), b"\x04\x1e\x6c"):
        with pytest.raises(RemoteProtocolError):
            Refuse.decode(Refuse(RefuseCode.ELSEWHERE).encode() + wrong)


@pytest.mark.parametrize("value", [b"", bytes(10)])
def test_a_place_that_is_none_is_refused(value: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        Whereabouts.decode(value)


def test_of_a_place_unknown_flags_mean_nothing() -> None:
    assert Whereabouts.decode(b"\xfe\x0a") == Whereabouts(b"\x0a")


@pytest.mark.parametrize("address", [("server", 7788), ("192.0.2.1", 0), ("192.0.2.1", 65536), ("", 7788)])
def test_what_a_client_would_take_for_a_violation_is_not_announced(address: tuple[str, int]) -> None:
    with pytest.raises(LocalProtocolError):
        encode_addresses([address])
