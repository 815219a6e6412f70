"""Datagrams: which of them leave, over which connection, which of those that come are new, and what is kept of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from multi.errors import DatagramTooLarge, LocalProtocolError, SessionLost
from multi.events import DatagramDropped
from multi.protocol.connection import MAX_DATAGRAM
from multi.protocol.datagrams import MAX_RECEIVED, MAX_UNSENT, OVERHEAD, SEEN
from multi.protocol.segment import HEADER_LENGTH, SegmentType
from multi.protocol.settings import Protect, SessionSettings
from multi.types import MESSAGES, ConnectionFacts, TransportSample
from tests.unit.protocol.wiring import CLEAR, PLAIN, QUIC, TLS, Ends, Line, Node

FRAMES = replace(QUIC, message_size=1200)
TTL = 0.5


def opened(*facts: ConnectionFacts, settings: SessionSettings = CLEAR) -> tuple[Ends, list[Line]]:
    ends = Ends(settings, settings)
    lines = []
    for each in facts or (PLAIN,):
        lines.append(ends.connect(each))
        ends.pump()
    assert all(ends.client.states()[line.id] == "active" for line in lines)
    for line in lines:
        line.sent_up.clear()
        line.sent_down.clear()
    return ends, lines


def send(ends: Ends, data: bytes, ttl: float = TTL, copies: int = 1) -> None:
    ends.client.session.send_datagram(data, ttl, copies, now=ends.now)
    ends.pump()


def read(node: Node) -> list[bytes]:
    found = []
    while (data := node.session.datagrams.read()) is not None:
        found.append(data)
    return found


def carried(line: Line) -> int:
    return sum(segment[1] == SegmentType.DATAGRAM for segment in line.sent_up)


def block(*lines: Line) -> None:
    for line in lines:
        line.credit = 0


def unblock(*lines: Line) -> None:
    for line in lines:
        line.credit = 1 << 20


# --- what arrives  ---


@pytest.mark.parametrize("facts", [PLAIN, TLS, QUIC, FRAMES])
@pytest.mark.parametrize("protect", list(Protect))
def test_datagrams_arrive_both_ways_however_the_session_is_protected(facts: ConnectionFacts, protect: Protect) -> None:
    ends, (line,) = opened(facts, settings=SessionSettings(protect=protect))
    send(ends, b"")
    send(ends, b"there")
    ends.server.session.send_datagram(b"and back", TTL, 1, now=ends.now)
    ends.pump()
    assert read(ends.server) == [b"", b"there"]
    assert read(ends.client) == [b"and back"]
    sealed = protect is Protect.ALWAYS or (protect is Protect.AUTO and not facts.secure)
    clear = [s for s in line.sent_up if s[1] == SegmentType.DATAGRAM and s.endswith(b"there")]
    assert len(clear) == (not sealed)


def test_a_datagram_is_never_delivered_twice_and_may_be_overtaken() -> None:
    ends, (line,) = opened(FRAMES)
    for number in (5, 3, 5, 4, 3, 6, 0):
        line.inject(ends.segment(SegmentType.DATAGRAM, bytes([number]), sequence=number), lane=MESSAGES)
    ends.pump()
    assert read(ends.server) == [b"\5", b"\3", b"\4", b"\6", b"\0"]
    assert ends.server.session.datagrams.counts.duplicates == 2


def test_what_comes_later_than_thousands_of_others_counts_as_a_repeat() -> None:
    ends, (line,) = opened(FRAMES)
    for number in (0, SEEN, 1, 0, SEEN + 5000, SEEN + 4999):
        line.inject(ends.segment(SegmentType.DATAGRAM, b"%d" % number, sequence=number), lane=MESSAGES)
    ends.pump()
    assert read(ends.server) == [b"0", b"%d" % SEEN, b"1", b"%d" % (SEEN + 5000), b"%d" % (SEEN + 4999)]


def test_a_peer_that_has_not_announced_it_is_sent_none_and_the_caller_hears_so() -> None:
    ends = Ends(CLEAR, replace(CLEAR, datagrams=False))
    line = ends.connect()
    ends.client.session.send_datagram(b"too early to know", TTL, 1, now=ends.now)
    ends.pump()
    with pytest.raises(LocalProtocolError, match="the peer takes no datagrams"):
        ends.client.session.send_datagram(b"x", TTL, 1, now=ends.now)
    assert carried(line) == 0
    ends.server.session.send_datagram(b"the client has", TTL, 1, now=ends.now)
    ends.pump()
    assert read(ends.client) == [b"the client has"]


def test_what_was_sent_before_the_peer_was_known_waits_for_it() -> None:
    ends = Ends(CLEAR, CLEAR)
    ends.client.session.send_datagram(b"early", TTL, 1, now=ends.now)
    ends.connect()
    ends.pump()
    assert read(ends.server) == [b"early"]


# --- what is given up  ---


def test_what_no_connection_took_within_its_time_to_live_is_given_up() -> None:
    ends, (line,) = opened()
    block(line)
    send(ends, b"old", ttl=0.1)
    send(ends, b"young", ttl=10.0)
    ends.advance(0.2)
    assert ends.client.session.datagrams.counts.expired == 1
    unblock(line)
    ends.advance(0.1)
    assert read(ends.server) == [b"young"]
    assert not ends.client.session.datagrams.waiting


def test_the_oldest_goes_when_too_much_waits() -> None:
    ends, (line,) = opened()
    block(line)
    fit = MAX_UNSENT // (1000 + OVERHEAD)
    for number in range(fit + 3):
        send(ends, bytes([number % 256]) * 1000, ttl=10.0)
    assert ends.client.session.datagrams.counts.crowded_out == 3
    unblock(line)
    ends.advance(0.1)
    assert [data[0] for data in read(ends.server)] == [number % 256 for number in range(3, fit + 3)]
    assert ends.client.session.datagrams.memory == 0


def test_an_application_that_does_not_read_keeps_the_newest() -> None:
    ends, _ = opened()
    fit = MAX_RECEIVED // (1000 + OVERHEAD)
    for number in range(fit + 3):
        send(ends, bytes([number % 256]) * 1000)
    assert ends.server.session.datagrams.memory <= MAX_RECEIVED
    assert ends.server.session.datagrams.counts.unread == 3
    assert [data[0] for data in read(ends.server)] == [number % 256 for number in range(3, fit + 3)]


@pytest.mark.parametrize("ttl", [0.0, -1.0, float("inf"), float("nan")])
def test_a_time_to_live_is_seconds(ttl: float) -> None:
    ends, _ = opened()
    with pytest.raises(LocalProtocolError, match="time to live"):
        send(ends, b"x", ttl=ttl)


def test_nothing_is_sent_after_the_end() -> None:
    ends, _ = opened()
    ends.client.session.close(now=ends.now)
    with pytest.raises((LocalProtocolError, SessionLost)):
        send(ends, b"x")
    ends.server.session.abort(now=ends.now)
    ends.pump()
    with pytest.raises(SessionLost):
        ends.server.session.send_datagram(b"x", TTL, 1, now=ends.now)


# --- what fits  ---


def test_the_caller_is_told_what_fits() -> None:
    ends, _ = opened(FRAMES)
    most = 1200 - HEADER_LENGTH
    assert ends.client.session.datagrams.max_size == most
    with pytest.raises(DatagramTooLarge) as caught:
        send(ends, bytes(most + 1))
    assert (caught.value.size, caught.value.max_size) == (most + 1, most)
    assert ends.client.session.datagrams.counts.too_large == 1
    send(ends, bytes(most))
    assert read(ends.server) == [bytes(most)]


def test_what_does_not_fit_the_best_connection_goes_over_one_that_it_fits() -> None:
    ends, (frames, plain) = opened(FRAMES, TLS)
    send(ends, bytes(5000))
    assert read(ends.server) == [bytes(5000)]
    assert (carried(frames), carried(plain)) == (0, 1)
    with pytest.raises(DatagramTooLarge):
        send(ends, bytes(MAX_DATAGRAM + 1))


def test_what_fits_no_connection_any_more_is_dropped_and_told() -> None:
    ends, (frames, plain) = opened(FRAMES, TLS)
    block(frames, plain)
    send(ends, bytes(5000))
    ends.lose(plain)
    ends.advance(0.1)
    most = 1200 - HEADER_LENGTH
    assert [e for e in ends.client.events if isinstance(e, DatagramDropped)] == [DatagramDropped(5000, most)]
    assert ends.client.session.datagrams.counts.too_large == 1


# --- over which connection  ---


def sampled(ends: Ends, line: Line, **facts: float) -> None:
    known = {"rtt": 0.01, "min_rtt": 0.01, "rate": 1e6, **facts}
    sample = TransportSample(**known)  # type: ignore[arg-type]
    ends.client.session.sample(line.id, sample, now=ends.now)


def test_the_earlier_connection_is_waited_for_while_the_datagram_is_young() -> None:
    ends, (near, far) = opened(TLS, TLS)
    sampled(ends, near)
    sampled(ends, far, rtt=0.3, min_rtt=0.3)
    block(near)
    send(ends, b"x", ttl=0.2)
    assert carried(far) == 0
    ends.advance(0.12, step=0.01)
    assert carried(far) == 1, "half its time is over"
    send(ends, b"y", ttl=0.2)
    unblock(near)
    ends.advance(0.01, step=0.01)
    assert (carried(near), carried(far)) == (1, 1)


def test_two_copies_go_over_two_connections_and_arrive_once() -> None:
    ends, lines = opened(TLS, FRAMES)
    send(ends, b"x", copies=2)
    assert [carried(line) for line in lines] == [1, 1]
    assert read(ends.server) == [b"x"]
    counts = ends.client.session.datagrams.counts
    assert (counts.sent, counts.copied, ends.server.session.datagrams.counts.duplicates) == (1, 1, 1)


def test_one_connection_carries_one_copy() -> None:
    ends, (line,) = opened()
    send(ends, b"x", copies=2)
    assert carried(line) == 1


def test_copies_are_sent_where_the_first_is_in_doubt() -> None:
    ends, (near, far) = opened(TLS, TLS)
    sampled(ends, near)
    sampled(ends, far, rtt=0.1, min_rtt=0.1)
    send(ends, b"sure", copies=0)
    assert [carried(line) for line in (near, far)] == [1, 0]
    send(ends, b"too slow for it", ttl=0.001, copies=0)
    assert [carried(line) for line in (near, far)] == [2, 1]
    sampled(ends, near, unacked=100)  # from now on it owes something
    ends.now += 0.05
    send(ends, b"silent", copies=0)
    assert [carried(line) for line in (near, far)] == [3, 2]


def test_copies_go_on_while_the_better_path_is_suspect() -> None:
    ends, (near, far) = opened(TLS, TLS)
    sampled(ends, near)
    sampled(ends, far, rtt=0.1, min_rtt=0.1)
    near.hold_up = near.hold_down = True
    ends.client.session.network_changed("", False, now=ends.now)
    ends.client.session.connections[far.id].heard(ends.now)
    ends.pump()
    assert ends.client.states()[near.id] == "suspect"
    if ends.client.states()[far.id] == "suspect":
        ends.client.session.ping(far.id, now=ends.now)
        ends.pump()
    before = carried(near), carried(far)
    send(ends, b"x", copies=0)
    assert (carried(near) - before[0], carried(far) - before[1]) == (1, 1)


def test_datagrams_leave_streams_half_of_what_a_connection_takes() -> None:
    ends, (line,) = opened()
    block(line)
    ends.write(ends.client, bytes(60_000))
    for _ in range(60):
        send(ends, bytes(1000), ttl=10.0)
    line.credit = 20_000
    session = ends.client.session
    session.set_credit(line.id, line.credit, now=ends.now)
    session.effects(now=ends.now)
    assert session.datagrams.counts.sent == 10
    assert session.sender.used >= 10_000


def test_a_transport_that_tells_nothing_of_datagrams_is_asked_for_signs_of_life() -> None:
    ends, (line,) = opened(FRAMES)
    for _ in range(10):
        send(ends, b"x")
        ends.advance(0.05)
    asked = [s for s in line.sent_up if s[1] == SegmentType.KEEPALIVE]
    assert 3 <= len(asked) <= 6


# --- what no honest peer sends  ---


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda ends: ends.segment(SegmentType.DATA, b"x"), "no DATAGRAM"),
        (lambda ends: ends.segment(SegmentType.DATAGRAM, b"x", sequence=1 << 62), "datagram number"),
        (lambda ends: ends.segment(SegmentType.DATAGRAM, bytes(MAX_DATAGRAM + 1)), "a datagram of 65536 bytes"),
        (lambda ends: ends.segment(SegmentType.DATAGRAM, b"xyz")[:-1], "no whole segment"),
        (lambda ends: ends.segment(SegmentType.DATAGRAM, b"x")[:8] + bytes(24) + b"x", "another session"),
        (lambda ends: b"\2", "version"),
    ],
)
def test_a_message_that_no_honest_peer_sends_ends_the_connection(make: object, reason: str) -> None:
    ends, (line, other) = opened(FRAMES, PLAIN)
    assert callable(make)
    line.inject(make(ends), lane=MESSAGES)
    ends.pump()
    assert ends.server.states()[line.id] == "lost"
    assert reason in ends.server.ended[line.id]
    assert ends.server.states()[other.id] == "active"


def test_messages_before_the_handshake_is_done_are_lost() -> None:
    ends = Ends(CLEAR, CLEAR)
    line = ends.connect(FRAMES)
    ends.client.session.receive(line.id, memoryview(ends.segment(SegmentType.DATAGRAM, b"x")), MESSAGES, now=ends.now)
    ends.pump()
    assert ends.client.states()[line.id] == "active"
    assert read(ends.client) == []


def test_a_message_that_is_not_sealed_is_none_where_the_session_seals() -> None:
    ends, (line,) = opened(FRAMES, settings=SessionSettings(protect=Protect.ALWAYS))
    line.inject(ends.segment(SegmentType.DATAGRAM, b"x"), lane=MESSAGES)
    ends.pump()
    assert "not sealed" in ends.server.ended[line.id]
