"""An authenticated peer that breaks the protocol: that connection is closed with a reason, the session lives on."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import pytest

from multi.protocol.control import MAX_AHEAD
from multi.protocol.payloads import (
    MAX_OFFSET,
    Ack,
    Close,
    Keepalive,
    Policy,
    StreamAck,
    encode_close,
    encode_keepalive,
    encode_policy,
    encode_role,
    encode_unsigned,
)
from multi.protocol.segment import MAX_CONTROL_PAYLOAD, SegmentType, encode
from multi.types import Role, SessionId, StreamId
from tests.unit.protocol.wiring import whole_ack

from .wiring import CLEAR, PLAIN, QUIC, STREAM_0, TLS, Ends, Line

T = SegmentType
WINDOW = CLEAR.initial_window
OWN, OTHERS = 2, 1  # a stream the client opens, one the server opens


def two_lines() -> tuple[Ends, Line, Line]:
    ends = Ends(CLEAR, CLEAR)
    bad, good = ends.connect(), ends.connect()
    ends.pump()
    assert set(ends.server.states().values()) == set(ends.client.states().values()) == {"active"}
    return ends, bad, good


def heard_join(ends: Ends) -> bytes:
    """What somebody hears who listens while the client joins."""
    line = ends.connect()
    line.captured = True
    ends.pump()
    return next(segment for segment in line.sent_up if segment[1] == T.JOIN)


def unplug(*lines: Line) -> None:
    """From here on the test is the client: a real one would not understand the answers to what is injected."""
    for line in lines:
        line.client = None


def assert_answers(ends: Ends, line: Line) -> None:
    line.sent_down.clear()
    line.inject(ends.segment(T.KEEPALIVE, encode_keepalive(Keepalive(1234))))
    ends.pump()
    assert ends.segment(T.KEEPALIVE, encode_keepalive(Keepalive(1234, pong=True))) in line.sent_down
    assert ends.server.closed is None


def fin(final: int, number: int, stream: int = 0) -> tuple[int, bytes, int, int]:
    return T.FIN, encode_unsigned((final, 8)), number, stream


def reset(final: int, number: int, stream: int = 0) -> tuple[int, bytes, int, int]:
    return T.RESET, encode_unsigned((final, 8), (1, 4)), number, stream


def data(size: int, offset: int = 0, stream: int = 0) -> tuple[int, bytes, int, int]:
    return T.DATA, bytes(size), offset, stream


def ack(
    cumulative: int = 0, window: int = WINDOW, session: int = WINDOW, control: int = 0, **more: object
) -> tuple[int, bytes, int, int]:
    ranges = more.get("ranges", ())
    entry = StreamAck(StreamId(0), cumulative, window, ranges)  # type: ignore[arg-type]
    return T.ACK, whole_ack(Ack(session, control, more.get("control_ranges", ()), (entry,))), 0, 0  # type: ignore[arg-type]


HOSTILE: dict[str, tuple[list[tuple[int, bytes, int, int]], str]] = {
    "data outside the window": ([data(10, WINDOW)], "window ends at"),
    "data at an offset beyond 2^62": ([data(10, 1 << 62)], "window ends at"),
    "data at the last offset": ([data(1, 2**64 - 1)], "window ends at"),
    "data on a stream that was never opened": ([data(1, 0, OTHERS)], "never opened"),
    "data on too many streams": ([data(1, 0, 2 * (CLEAR.max_streams + 1))], "streams open"),
    "data on the last stream": ([data(1, 0, 2**32 - 2)], "streams open"),
    "data over the session window": (
        [data(WINDOW - 10, 0, OWN), data(20, 0, OWN + 2)],
        "session window ends at",
    ),
    "data beyond the end": ([fin(10, 0), data(11)], "which ends at 10"),
    "an end before the data": ([data(10), fin(9, 0)], "outside 10"),
    "two ends": ([fin(10, 0), fin(11, 1)], "ends at 10 and at 11"),
    "an end outside the window": ([fin(WINDOW + 1, 0)], "outside 0"),
    "an end beyond 2^63": ([fin(2**63, 0)], "outside 0"),
    "a reset before the data": ([data(10, 0, OWN), reset(9, 0, OWN)], "outside 10"),
    "a reset outside the window": ([reset(WINDOW + 1, 0, OWN)], "outside 0"),
    "a reset at another end": ([fin(10, 0, OWN), reset(9, 1, OWN)], "ends at 10 and at 9"),
    "an end over the session window": (
        [fin(WINDOW, 0, OWN), fin(WINDOW, 1, OWN + 2)],
        "session window ends at",
    ),
    "a reset over the session window": (
        [data(WINDOW, 0, OWN), reset(WINDOW, 0, OWN + 2)],
        "session window ends at",
    ),
    "an acknowledgement of data never sent": ([ack(1)], "never sent"),
    "a range of data never sent": ([ack(0, ranges=((5, 6),))], "never sent"),
    "an acknowledgement of control never sent": ([ack(control=1000)], "never sent"),
    "a range of control never sent": ([ack(control_ranges=((5, 1000),))], "never sent"),
    "a window beyond 2^62": ([ack(window=MAX_OFFSET + 1)], "beyond 2"),
    "control far ahead": ([fin(0, 2 * MAX_AHEAD)], "while waiting for 0"),
    "control at the last number": ([fin(0, 2**64 - 1)], "while waiting for 0"),
    "a handshake segment after the handshake": ([(T.HELLO, bytes(100), 0, 0)], "unexpected HELLO"),
    "a proof after the handshake": ([(T.PROVE, bytes(32), 0, 0)], "unexpected PROVE"),
    "a truncated acknowledgement": ([(T.ACK, bytes(5), 0, 0)], "truncated"),
    "a truncated keep-alive": ([(T.KEEPALIVE, bytes(5), 0, 0)], "keep-alive of 5"),
    "a role that does not exist": ([(T.ROLE, bytes([0, 0, 0, 0, 7]), 0, 0)], "unknown role"),
    "a policy that is garbage": ([(T.POLICY, b"\xff", 0, 0)], "truncated"),
    "a close that is garbage": ([(T.CLOSE, b"\x00", 0, 0)], "truncated"),
    "a drain of the wrong size": ([(T.DRAIN, bytes(6), 0, 0)], "surplus"),
    "an oversized stream limit": ([(T.MAX_STREAMS, bytes(9), 0, 0)], "surplus"),
    "an open without a priority": ([(T.OPEN, b"", 0, OWN)], "truncated"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_the_connection_is_closed_with_a_reason_and_the_session_lives_on(name: str) -> None:
    segments, reason = HOSTILE[name]
    ends, bad, good = two_lines()
    unplug(bad, good)
    bad.inject(*(ends.segment(t, p, sequence=n, stream=s) for t, p, n, s in segments))
    ends.pump()
    assert ends.server.states() == {bad.id: "lost", good.id: "active"}
    assert reason in ends.server.ended[bad.id]
    assert_answers(ends, good)


def test_a_segment_of_another_session_closes_the_connection() -> None:
    ends, bad, _ = two_lines()
    bad.inject(encode(T.DATA, SessionId(b"another session!"), b"x"))
    ends.pump()
    assert ends.server.ended[bad.id] == "a segment of another session"


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"\x16\x03\x01", "unknown version 22"),
        (b"GET /", "unknown version 71"),
        (b"\x01\x63" + bytes(30), "unknown segment type 99"),
        (b"\x01\x01\x00\x1f" + bytes(28), "header length 31"),
        (b"\x01\x01\x00\x20\xff\xff\xff\xff" + bytes(24), "segment length"),
    ],
)
def test_bytes_that_are_no_segment_close_the_connection(raw: bytes, reason: str) -> None:
    ends, bad, good = two_lines()
    bad.inject(raw)
    ends.pump()
    assert ends.server.states() == {bad.id: "lost", good.id: "active"}
    assert reason in ends.server.ended[bad.id]


def test_nothing_is_taken_from_a_connection_after_its_fault() -> None:
    ends, bad, _ = two_lines()
    bad.inject(encode(T.DATA, ends.session_id, b"x", sequence=1 << 40) + ends.segment(T.DATA, b"too late"))
    ends.pump()
    bad.inject(ends.segment(T.DATA, b"much too late"))
    ends.pump()
    assert ends.server.got() == b""


def test_a_refused_segment_leaves_no_trace_in_the_session_window() -> None:
    """What was refused must not be charged: later honest data would be refused too."""
    ends, bad, _ = two_lines()
    ends.server.reading = False
    bad.inject(
        ends.segment(T.DATA, bytes(WINDOW - 10), stream=OWN),
        ends.segment(T.DATA, bytes(20), stream=OWN + 2),
    )
    ends.pump()
    assert "session window" in ends.server.ended[bad.id]
    assert ends.server.session.receiver.charged == WINDOW - 10
    third = ends.connect()
    ends.pump()
    third.inject(ends.segment(T.DATA, b"0123456789", stream=OWN + 2))
    ends.pump()
    assert ends.server.states()[third.id] == "active"
    assert ends.server.session.receiver.charged == WINDOW


def test_naming_a_stream_beyond_the_limit_opens_none() -> None:
    ends, bad, _ = two_lines()
    before = set(ends.server.session.receiver.streams)
    bad.inject(ends.segment(T.DATA, b"x", stream=2**32 - 2))
    ends.pump()
    assert set(ends.server.session.receiver.streams) == before


@pytest.mark.parametrize(("settings", "facts"), [(CLEAR, PLAIN), (None, TLS)])
def test_a_peer_that_has_not_proved_itself_cannot_end_the_session(settings: object, facts: object) -> None:
    ends = Ends(settings, settings)  # type: ignore[arg-type]
    line = ends.connect(facts)  # type: ignore[arg-type]
    line.hold_down = True
    ends.pump()
    line.inject(ends.segment(T.CLOSE, encode_close(Close(1, "over"))))
    ends.pump()
    assert ends.server.closed is None
    assert "CLOSE before the handshake" in ends.server.ended[line.id]


def test_a_stranger_neither_drains_nor_demotes_a_living_connection() -> None:
    ends, first, second = two_lines()
    stranger = ends.stranger()
    stranger.inject(
        heard_join(ends),
        ends.segment(T.DRAIN, encode_unsigned((0, 4)), sequence=0),
        ends.segment(T.ROLE, encode_role(1, Role.BACKUP), sequence=1),
        ends.segment(T.CLOSE, encode_close(Close(0))),
    )
    ends.pump()
    assert ends.server.states() == {first.id: "active", second.id: "active", stranger.id: "authenticating"}
    assert {c.role for c in ends.server.session.connections.values()} == {Role.ACTIVE}
    ends.advance(6)
    assert ends.server.states()[stranger.id] == "lost"


def test_strangers_cannot_keep_a_client_out_by_filling_the_session() -> None:
    settings = replace(CLEAR, max_connections=4, max_unproved=3)
    ends = Ends(CLEAR, settings)
    ends.connect()
    ends.pump()
    for _ in range(10):
        stranger = ends.stranger()
        stranger.inject(heard_join(ends))
        ends.pump()
    joined = ends.connect()
    ends.pump()
    assert ends.server.states()[joined.id] == ends.client.states()[joined.id] == "active"
    living = [s for s in ends.server.states().values() if s in ("active", "authenticating")]
    assert len(living) <= 4 + 3


@pytest.mark.parametrize("lane", range(QUIC.lanes))
def test_bytes_held_before_the_handshake_are_bounded_and_cheap(lane: int) -> None:
    ends = Ends()
    line = ends.connect(QUIC)
    line.hold_down = True
    ends.pump()
    stranger = ends.stranger(QUIC)
    stranger.inject(next(s for s in line.sent_up if s[1] == T.HELLO))
    ends.pump()
    piece = ends.segment(T.DATA, b"x") if lane == 0 else b"\x01"
    tracemalloc.start()
    stranger.inject(*[piece] * 20_000, lane=lane)
    before, _ = tracemalloc.get_traced_memory()
    ends.pump()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert "too many bytes before the handshake" in ends.server.ended[stranger.id]
    assert after - before < 1_000_000


def test_a_peer_that_opens_the_window_byte_by_byte_does_not_get_a_segment_for_each() -> None:
    """The silly window syndrome (RFC 1122 4.2.3.4), here as a way to make the other side keep a record per byte."""
    ends, line, other = two_lines()
    unplug(line, other)
    ends.write(ends.server, bytes(WINDOW + 10_000))
    before = len(line.sent_down) + len(other.sent_down)
    for step in range(1, 1000):
        entry = StreamAck(STREAM_0, WINDOW // 2, WINDOW + step)
        line.inject(ends.segment(T.ACK, whole_ack(Ack(WINDOW + step, 0, (), (entry,)))))
        ends.pump()
    assert len(line.sent_down) + len(other.sent_down) - before < 50


def test_questions_get_one_answer_each_and_policies_of_a_peer_are_safe() -> None:
    ends, line, other = two_lines()
    unplug(line, other)
    assert_answers(ends, line)
    for number, policy in enumerate(
        [
            Policy("no such scheduler"),
            Policy("RR", (("no such parameter", 1.0),)),
            Policy("adaptive", (("n", -1e308),)),
            Policy("top_throughput", (("n", 1e308),)),
            Policy("WRR", (("a", 0.0), ("a", 1.0))),
            Policy(""),
        ]
    ):
        line.inject(ends.segment(T.POLICY, encode_policy(policy), sequence=number))
        ends.pump()
        ends.write(ends.server, b"x" * 1000)
        assert ends.server.session.sender.used == 1000 * (number + 1)
    assert_answers(ends, line)


def test_an_acknowledgement_may_not_cost_more_than_it_says() -> None:
    """Ranges below what is acknowledged already are not walked through again."""
    ends, line, _ = two_lines()
    outbox = ends.server.session.outbox
    for _ in range(3000):
        ends.server.session.set_role(line.id, Role.BACKUP, now=0.0)
        ends.server.session.set_role(line.id, Role.ACTIVE, now=0.0)
        ends.pump()
    tracemalloc.start()
    outbox.acknowledge(0, ((1, 6000),))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert outbox.empty
    assert peak < 20_000


def test_the_largest_control_payload_of_garbage_is_harmless() -> None:
    for type_ in sorted(set(T) - {T.DATA}):
        ends, bad, good = two_lines()
        bad.inject(ends.segment(type_, b"\xff" * MAX_CONTROL_PAYLOAD, sequence=0, stream=2))
        ends.pump()
        assert ends.server.states()[good.id] == "active"
        assert ends.server.closed is None
