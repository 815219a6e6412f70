"""What one connection may send now, how fast it is thought to be, and how long it may be silent."""

from __future__ import annotations

from dataclasses import replace

import pytest

from multi.errors import LocalProtocolError, RemoteProtocolError
from multi.protocol.connection import (
    ANSWER_KEPT,
    BOUNDED_TRIPS,
    BUCKET_SECONDS,
    FAST_SEGMENT,
    FASTEST_SEGMENT,
    FULL_WAIT,
    LAGS_AFTER,
    LITTLE,
    SAMPLE_INTERVAL,
    SAMPLE_REFRESH,
    SHORT_SEGMENT,
    SLOW_SEGMENT,
    SUSPECT_SLACK,
    UNKNOWN_RTT,
    Connection,
)
from multi.protocol.sealing import Cipher
from multi.protocol.segment import SegmentType
from multi.protocol.state import Step
from multi.reasons import Cause, Reason
from multi.schedulers.estimates import arrival
from multi.types import ConnectionFacts, ConnectionId, ConnectionState, SessionId, StreamId, TransportSample

ID = SessionId(bytes(range(16)))
LATER = Reason(Cause.CONNECTED, "as it comes")
MBYTE = 1_000_000.0  # bytes per second


def connection(now: float = 0.0, *, max_rate: float = 0.0, rtt: float = 0.0, lanes: int = 1) -> Connection:
    return Connection(ConnectionId(0), ID, ConnectionFacts("tcp", lanes=lanes, max_rate=max_rate, rtt=rtt), now)


def ready(max_rate: float = 0.0) -> Connection:
    """A connection whose transport takes a megabyte."""
    made = connection(max_rate=max_rate)
    made.channel_credit = 1 << 20
    made.refresh_credit(0.0)
    return made


def carry(made: Connection, size: int, now: float = 0.0) -> None:
    """Bytes of stream 0 are given to it."""
    made.send_data((bytes(size),), size, 0, StreamId(0), now)


def sample(
    acked: int = 0, *, rate: float = 0.0, rtt: float = 0.0, unacked: int = 0, not_sent: int = 0, limited: bool = False
) -> TransportSample:
    return TransportSample(
        rtt=rtt,
        rtt_variation=rtt / 8,
        min_rtt=rtt,
        rate=rate,
        bytes_acked=acked,
        unacked=unacked,
        not_sent=not_sent,
        app_limited=limited,
    )


def fills_queues() -> Connection:
    """The same over a transport whose congestion control waits for losses."""
    made = ready()
    made.facts = replace(made.facts, fills_queues=True)
    return made


def starting(carries: int) -> Connection:
    """A connection that carries so many bytes, and whose transport knows its first window and no rate yet."""
    made = ready()
    made.take_sample(replace(sample(rtt=0.005), congestion_window=14_600), 0.0)
    carry(made, carries)
    return made


# --- what it may send  ---


def test_credit_is_what_the_transport_takes_and_shrinks_with_what_is_sent() -> None:
    made = ready()
    carry(made, 1000)
    assert made.credit == (1 << 20) - 1000
    assert made.bytes_sent == 1000
    carry(made, 1 << 20)
    assert made.credit == 0


def test_a_capped_connection_sends_its_rate_and_no_more() -> None:
    made, sent = ready(max_rate=MBYTE), 0
    for step in range(1, 1001):
        made.channel_credit = 1 << 20
        made.refresh_credit(step / 1000)
        size = min(made.credit, 4096)
        carry(made, size)
        sent += size
    assert sent == pytest.approx(MBYTE, rel=0.03)


def test_a_capped_connection_saves_up_no_more_than_its_bucket_holds() -> None:
    made = ready(max_rate=10 * MBYTE)
    made.refresh_credit(100.0)
    assert made.credit == 10 * MBYTE * BUCKET_SECONDS


def test_only_a_cap_that_is_the_obstacle_sets_a_time_to_go_on() -> None:
    free, capped, blocked = ready(), ready(max_rate=MBYTE), ready(max_rate=MBYTE)
    assert free.tokens_ready_at() is None
    assert capped.tokens_ready_at() is None, "it may send now"
    carry(capped, capped.credit)
    at = capped.tokens_ready_at()
    assert at is not None
    capped.refresh_credit(at)
    assert capped.credit > 0
    carry(blocked, blocked.credit)
    blocked.channel_credit = 0
    assert blocked.tokens_ready_at() is None, "the transport takes nothing anyway"


def test_a_cap_that_is_lifted_lets_everything_go_and_one_that_is_set_bounds_the_known_rate() -> None:
    made = ready()
    made.take_sample(sample(rate=50 * MBYTE), 0.0)
    made.set_max_rate(MBYTE)
    assert made.rate == MBYTE
    made.take_sample(sample(rate=50 * MBYTE), 0.1)
    assert made.rate == MBYTE, "the network may be faster, this connection is not"
    made.set_max_rate(0.0)
    made.refresh_credit(0.1)
    assert made.credit == 1 << 20


def test_what_may_leave_before_the_peer_is_heard_bounds_credit() -> None:
    made = ready()
    made.allowance = 5000
    made.refresh_credit(0.0)
    assert made.credit == 5000
    carry(made, 4000)
    made.refresh_credit(0.0)
    assert made.credit == 1000


def test_what_a_starting_path_has_delivered_is_no_rate_where_its_congestion_window_is_known() -> None:
    for window, known in ((14_600, False), (0, True)):
        made = ready()
        made.take_sample(replace(sample(rtt=0.040), congestion_window=window), 0.0)
        for at in (0.1, 0.2, 0.3):
            made.delivered(14_600, at)
        assert (made.rate > 0.0) is known


def test_a_starting_path_that_does_not_return_its_first_window_in_time_shows_its_rate() -> None:
    made = starting(60_000)
    made.in_flight -= 6_000
    made.delivered(6_000, 0.015)
    assert made.rate == 0.0, "its acknowledgements may have waited"
    made.in_flight -= 6_000
    made.delivered(6_000, 0.035)
    assert made.rate == pytest.approx(12_000 / 0.030)
    made.take_sample(sample(rate=MBYTE), 0.036)
    made.in_flight -= 6_000
    made.delivered(6_000, 0.060)
    assert made.rate == MBYTE, "the transport knows better"


def test_a_starting_path_shows_its_rate_although_the_session_was_served_elsewhere() -> None:
    """What its transport holds is the measure, not what was sent on another path too and acknowledged there."""
    made = starting(65_536)
    for at, rate in ((0.0, 0.0), (0.008, 0.0), (0.1, 12_500), (0.2, 12_500)):
        acked = int(12_500 * at)
        taken = sample(acked, rtt=0.005, unacked=65_536 - acked, not_sent=50_936 - acked)
        made.take_sample(replace(taken, congestion_window=14_600), at)
        assert made.rate == rate
    made.in_flight = 0
    made.delivered(65_536, 0.2)
    carry(made, 16_384, 0.2)
    assert made.rate == 12_500


def test_a_path_that_began_slowly_may_double_its_rate_once_the_transport_tells_it() -> None:
    made = starting(60_000)
    made.in_flight -= 12_000
    made.delivered(12_000, 0.035)
    assert made.rate
    assert not made.accelerates
    made.take_sample(sample(rate=MBYTE, rtt=0.005), 0.036)
    assert made.accelerates
    made.take_sample(sample(rate=MBYTE, rtt=0.005), 0.042)
    assert not made.accelerates, "it does not"


def test_a_path_that_is_given_little_shows_no_rate() -> None:
    made = starting(2_000)
    for at in range(1, 20):
        carry(made, 1_000, at / 200)
        made.in_flight -= 1_000
        made.delivered(1_000, at / 200)
    assert made.rate == 0.0


def test_segments_grow_with_the_rate() -> None:
    made = connection()
    sizes = []
    for rate in (0.0, 0.01 * MBYTE, 0.2 * MBYTE, 10 * MBYTE, 30 * MBYTE, 300 * MBYTE):
        made.take_sample(sample(rate=rate), 0.0)
        sizes.append(made.segment_size)
    assert sizes == [SLOW_SEGMENT, SHORT_SEGMENT, 4_000, SLOW_SEGMENT, FAST_SEGMENT, FASTEST_SEGMENT]


def test_a_path_is_full_when_a_tenth_of_a_second_queues_on_it() -> None:
    made = fills_queues()
    assert not made.full(0.0), "nothing is known of it"
    carry(made, 300_000)
    most = round(MBYTE * (0.050 + FULL_WAIT))
    for step in range(1, 4):
        made.take_sample(sample(rate=MBYTE, rtt=0.050, unacked=most - 1), 0.1 * step)
    assert not made.accelerates
    assert not made.full(0.3)
    carry(made, 2, 0.3)
    assert made.full(0.3), "what its transport was given since it was asked counts"
    made.take_sample(sample(rate=MBYTE, rtt=0.050, unacked=most + 1), 0.4)
    made.in_flight = 0
    assert made.full(0.4), "all of it has come elsewhere, and is sent here nevertheless"
    made.facts = replace(made.facts, fills_queues=False)
    assert not made.full(0.4), "its transport sees to that"
    much = round(MBYTE * (BOUNDED_TRIPS * 0.050 + FULL_WAIT)) + 1
    made.take_sample(sample(rate=MBYTE, rtt=0.050, unacked=much), 0.5)
    assert made.full(0.5), "it did, before its path became slower"


def test_a_path_is_full_while_what_came_elsewhere_is_still_to_come_on_it() -> None:
    made = connection()
    carry(made, 150_000)
    for step in range(1, 4):
        made.take_sample(sample(rate=MBYTE, rtt=0.050, unacked=150_000), 0.1 * step)
    made.in_flight, made.overtaken = 0, 150_000
    made.take_sample(sample(40_000, rate=MBYTE, rtt=0.050, unacked=110_000), 0.4)
    assert made.overtaken == 110_000
    assert made.full(0.4)
    made.take_sample(sample(60_000, rate=MBYTE, rtt=0.050, unacked=90_000), 0.5)
    assert not made.full(0.5)
    made.take_sample(sample(150_000, rate=MBYTE, rtt=0.050), 0.6)
    assert made.overtaken == 0


def test_a_path_has_become_slower_when_little_comes_of_what_is_on_its_way() -> None:
    made = connection()
    carry(made, 600_000)
    acked, now = 0, 0.0

    def goes_on(rate: float, until: float) -> None:
        nonlocal acked, now
        while now < until:
            now, acked = now + 0.01, acked + round(rate * 0.01)
            made.take_sample(sample(acked, rate=MBYTE, rtt=0.050, unacked=600_000 - acked), now)

    goes_on(MBYTE, 0.4)
    assert not made.accelerates
    assert not made.slowed
    goes_on(MBYTE / 10, 0.5)
    assert not made.slowed, "for a moment"
    goes_on(MBYTE / 10, 0.8)
    assert made.slowed, "though its transport tells the same rate still"
    made.in_flight = made.unacked - 20_000
    assert made.comes_in(50_000) == pytest.approx(0.7), "behind what is still to come and was overtaken"


def test_a_path_that_begins_is_full_only_if_a_queue_shows() -> None:
    made = fills_queues()
    carry(made, 300_000)
    made.take_sample(sample(rate=MBYTE, rtt=0.050, unacked=300_000), 0.1)
    assert made.accelerates
    assert not made.full(0.1)
    made.take_sample(replace(sample(rate=MBYTE, rtt=0.160, unacked=300_000), min_rtt=0.050), 0.12)
    assert made.accelerates
    assert made.full(0.12)


# --- what is measured  ---


def test_a_lower_rate_counts_only_if_there_was_enough_to_send() -> None:
    made = connection()
    made.take_sample(sample(rate=10 * MBYTE), 0.0)
    made.take_sample(sample(rate=MBYTE, limited=True), 0.1)
    assert made.rate == 10 * MBYTE
    made.take_sample(sample(rate=20 * MBYTE, limited=True), 0.2)
    assert made.rate == 20 * MBYTE
    made.take_sample(sample(rate=MBYTE), 0.3)
    assert made.rate == 10 * MBYTE, "one sample halves it at most: a kernel that repeats what was lost tells too little"
    for step in range(4):
        made.take_sample(sample(rate=MBYTE), 0.4 + 0.1 * step)
    assert made.rate == MBYTE


def test_a_path_accelerates_until_a_round_trip_has_not_made_it_half_as_fast_again() -> None:
    made = connection()
    made.send_data([b"x"], 1, 0, StreamId(0), 0.0)
    for step, (rate, accelerates) in enumerate([(1, True), (2, True), (4, True), (5, False), (50, False)]):
        made.take_sample(sample(rate=rate * MBYTE), 1.0 + step)
        assert made.accelerates == accelerates


def test_the_smallest_round_trip_is_remembered() -> None:
    made = connection()
    for rtt in (0.080, 0.020, 0.060):
        made.take_sample(sample(rtt=rtt), 0.0)
    assert (made.rtt, made.min_rtt) == (0.060, 0.020)


def test_answers_to_questions_give_the_round_trip_of_a_transport_that_does_not_tell() -> None:
    made = connection()
    made.take_rtt(0.100, 0.0)
    assert (made.rtt, made.rtt_variation) == (0.100, 0.050)
    for _ in range(100):
        made.take_rtt(0.020, 0.0)
    assert made.rtt == pytest.approx(0.020, abs=0.001)
    assert made.min_rtt == 0.020


def test_a_transport_that_tells_knows_better_than_answers_to_questions() -> None:
    made = connection()
    made.take_sample(sample(rtt=0.030), 0.0)
    made.take_rtt(0.500, 0.0)
    assert made.rtt == 0.030


def test_an_answer_that_came_sooner_than_the_transports_mean_counts_until_newer_round_trips_are_known() -> None:
    made = connection()
    made.take_sample(sample(rtt=0.300), 0.0)
    made.take_rtt(0.010, 1.0)
    assert (made.rtt, made.min_rtt) == (0.010, 0.010)
    made.take_sample(sample(rtt=0.260), 1.5)
    assert made.rtt == 0.010
    made.take_sample(sample(rtt=0.270), 1.6)
    assert made.rtt == 0.270, "it grows: what came since took longer"
    made.take_rtt(0.010, 2.0)
    made.take_sample(sample(rtt=0.250), 2.0 + ANSWER_KEPT)
    assert made.rtt == 0.250, "that was long ago"


def test_a_path_on_which_all_that_is_little_is_late_counts_with_its_mean_until_it_is_near_again() -> None:
    made = connection()
    made.take_sample(sample(rtt=0.010, rate=MBYTE), 0.0)
    made.take_sample(sample(rtt=0.300, rate=MBYTE), 1.0)
    carry(made, 100, 1.0)
    before = arrival(made, 100)
    made.late(1.0)
    assert arrival(made, 100) == before, "a loss and its repetition make it late, too"
    made.late(1.0 + LAGS_AFTER)
    assert arrival(made, 100) == pytest.approx(before + (0.300 - 0.010) / 2, rel=0.01)
    made.take_sample(sample(rtt=0.350, rate=MBYTE), 2.0)
    assert arrival(made, 100) == pytest.approx(before + (0.350 - 0.010) / 2, rel=0.01)
    assert made.least_rtt == 0.010
    made.take_rtt(0.012, 3.0)
    assert arrival(made, 100) == pytest.approx(before, rel=0.1)


def test_what_is_delivered_or_much_makes_a_path_lag_no_more() -> None:
    made = connection()
    made.take_sample(sample(rtt=0.010, rate=MBYTE), 0.0)
    made.take_sample(sample(rtt=0.300, rate=MBYTE), 1.0)
    made.late(1.0)
    made.delivered(0, 1.1)
    made.late(1.0 + LAGS_AFTER)
    assert made.min_rtt == 0.010
    carry(made, LITTLE + 1, 1.5)
    made.late(2.0 + LAGS_AFTER)
    assert made.min_rtt == 0.010, "its own queue makes its round trip long"


def test_a_few_bytes_that_come_back_late_tell_no_rate() -> None:
    made = connection()
    made.take_sample(replace(sample(rtt=0.040), congestion_window=14_600), 0.0)
    carry(made, 120)
    made.in_flight -= 40
    made.delivered(40, 0.5)
    assert made.rate == 0.0
    carry(made, 40_000, 0.5)
    made.in_flight -= 2_000
    made.delivered(2_000, 1.5)
    assert 0.0 < made.rate < 3_000


def test_the_sessions_own_acknowledgements_give_a_rate_where_the_transport_tells_none() -> None:
    made = connection()
    carry(made, 1_000_000, 0.0)
    for step in range(1, 11):
        made.delivered(100_000, step / 10)
    assert made.rate == pytest.approx(MBYTE, rel=0.05)


def test_the_sessions_own_rate_gives_way_to_the_transports() -> None:
    made = connection()
    made.take_sample(sample(rate=5 * MBYTE), 0.0)
    carry(made, 1_000_000, 0.0)
    made.delivered(500_000, 0.5)
    assert made.rate == 5 * MBYTE


def test_what_the_kernel_holds_unsent_is_guessed_between_samples() -> None:
    made = connection()
    made.take_sample(sample(rate=MBYTE, not_sent=100_000), 0.0)
    made.estimate_not_sent(0.050)
    assert made.not_sent == 50_000
    made.estimate_not_sent(1.0)
    assert made.not_sent == 0


# --- how long it may be silent  ---


def test_silence_is_suspicious_after_a_round_trip_its_variation_and_some_slack() -> None:
    made = connection()
    assert made.suspect_after == UNKNOWN_RTT + SUSPECT_SLACK
    made.take_sample(sample(rtt=0.080), 0.0)
    assert made.suspect_after == pytest.approx(0.080 + 4 * 0.010 + SUSPECT_SLACK)


def test_nothing_is_expected_of_a_connection_that_carries_nothing() -> None:
    made = connection()
    assert made.suspect_at() is None
    made.send_control(3, SegmentType.ROLE, b"", StreamId(0), 0.0)
    assert made.suspect_at() is not None


def test_silence_counts_from_when_the_first_byte_was_sent_after_idling() -> None:
    made = connection()
    carry(made, 1000, 60.0)
    assert made.suspect_at() == 60.0 + made.suspect_after


def test_progress_of_the_transport_puts_suspicion_off() -> None:
    made = connection(rtt=0.1)
    carry(made, 100_000, 0.0)
    assert made.take_sample(sample(1, rtt=0.1, unacked=99_999), 0.1)
    assert not made.take_sample(sample(1, rtt=0.1, unacked=99_999), 0.2), "nothing more has arrived"
    assert made.suspect_at() == pytest.approx(0.1 + made.suspect_after)


def test_a_transport_that_goes_on_acknowledging_for_a_silent_session_is_suspect_in_the_end() -> None:
    made = connection(rtt=0.1)
    carry(made, 100_000, 0.0)
    now = 0.0
    while not made.suspect_at() or now < (made.suspect_at() or 0.0):
        now += 0.05
        made.take_sample(sample(int(now * 1000), rate=MBYTE, rtt=0.1, unacked=1), now)
        assert now < 5.0
    assert now > made.suspect_after
    assert not made.in_time(now)


def test_the_clock_of_a_transport_starts_with_what_was_written_and_not_with_the_look_at_it() -> None:
    made = connection(rtt=0.1)
    made.take_sample(sample(0, rtt=0.1), 1.0)
    assert made.suspect_at() is None
    made.unsampled_at = 5.0
    assert made.suspect_at() == pytest.approx(5.0 + SAMPLE_INTERVAL + made.suspect_after)
    assert not made.take_sample(sample(0, rtt=0.1, unacked=100), 5.2)
    assert made.suspect_at() == pytest.approx(5.0 + SAMPLE_INTERVAL + made.suspect_after), "asked late, it is as late"


def test_silence_counts_from_when_the_transport_heard_its_peer() -> None:
    made = connection(rtt=0.1)
    carry(made, 100_000, 0.0)
    made.take_sample(TransportSample(rtt=0.1, bytes_acked=1000, unacked=99_000, silent_for=0.04), 0.1)
    assert made.progress_at == pytest.approx(0.06)


def test_a_transport_is_asked_often_while_much_is_under_way_and_seldom_otherwise() -> None:
    made = connection(rtt=0.1)
    made.step(Step.PROVED, LATER)
    made.take_sample(sample(0, rtt=0.1), 1.0)
    assert not made.sample_due(9.0, SAMPLE_INTERVAL), "nothing is under way"
    carry(made, 100, 9.0)
    made.take_sample(sample(0, rtt=0.1, unacked=100), 9.0)
    assert not made.sample_due(9.4, SAMPLE_INTERVAL)
    assert made.sample_due(9.0 + SAMPLE_REFRESH, SAMPLE_INTERVAL)
    carry(made, LITTLE + 1, 9.0)
    assert not made.sample_due(9.0 + SAMPLE_INTERVAL / 2, SAMPLE_INTERVAL)
    assert made.sample_due(9.0 + 2 * SAMPLE_INTERVAL, SAMPLE_INTERVAL)


def test_what_the_peer_has_in_full_need_not_be_asked_of_the_transport() -> None:
    made = connection(rtt=0.1)
    made.step(Step.PROVED, LATER)
    made.take_sample(sample(0, rtt=0.1), 0.0)
    carry(made, 100, 5.0)
    made.unsampled_at = 5.0
    assert made.under_way()
    made.in_flight = 0
    made.delivered(100, 5.1)
    assert not made.under_way()
    assert made.suspect_at() is None
    carry(made, 100, 6.0)
    made.take_sample(sample(0, rtt=0.1, unacked=100), 6.0)
    made.in_flight = 0
    made.delivered(100, 6.1)
    assert not made.under_way(), "what the transport has said before is no longer so"


def test_being_heard_starts_the_silence_anew() -> None:
    made = connection(rtt=0.1)
    carry(made, 1000, 0.0)
    made.heard(7.0)
    assert made.suspect_at() == 7.0 + made.suspect_after


# --- states and keys  ---


def test_a_connection_that_has_ended_stays_ended_and_says_why() -> None:
    made = connection()
    made.step(Step.LOSE, LATER)
    assert not made.alive
    assert (made.state, made.reason) == (ConnectionState.LOST, LATER)
    with pytest.raises(LocalProtocolError):
        made.step(Step.PROVED, LATER)


def test_bytes_given_to_a_suspect_connection_are_not_expected_to_arrive() -> None:
    made = connection()
    made.step(Step.PROVED, LATER)
    assert made.delivers
    made.step(Step.SILENT, LATER)
    assert made.alive
    assert not made.delivers


@pytest.mark.parametrize("payload", [b"", b"a payload"])
def test_what_one_end_seals_only_the_other_opens_and_only_once(payload: bytes) -> None:
    ours, theirs = connection(lanes=3), connection(lanes=3)
    ours.protect(Cipher.AES_128_GCM, outgoing=b"o" * 32, incoming=b"t" * 32)
    theirs.protect(Cipher.AES_128_GCM, outgoing=b"t" * 32, incoming=b"o" * 32)
    assert theirs.openers is not None
    for lane, opener in enumerate(theirs.openers):
        ours.send(SegmentType.DATA, payload, 0.0, stream=StreamId(2), lane=lane)
        raw = b"".join(ours.output[lane])
        assert not payload or payload not in raw
        (segment,) = theirs.decoders[lane].feed(memoryview(raw))
        assert opener.open(segment.header, segment.payload) == payload
        (again,) = theirs.decoders[lane].feed(memoryview(raw))
        with pytest.raises(RemoteProtocolError):
            opener.open(again.header, again.payload)


def test_unprotected_segments_are_sent_as_they_are() -> None:
    made = connection()
    made.protect(Cipher.CHACHA20_POLY1305, outgoing=b"o" * 32)
    made.unprotect()
    assert made.openers is None
    made.send(SegmentType.DATA, b"in clear", 0.0)
    assert b"in clear" in b"".join(made.output[0])


def test_losses_are_counted_over_many_bytes_and_smoothed() -> None:
    link = connection()
    link.take_sample(TransportSample(bytes_sent=10_000, bytes_lost=9_000), 1.0)
    assert link.loss == 0.0  # a single lost packet of a few says nothing
    for turn in range(1, 40):
        link.take_sample(TransportSample(bytes_sent=turn * 50_000, bytes_lost=turn * 5_000), 1.0 + turn)
    assert link.loss == pytest.approx(0.1, abs=0.01)
    for turn in range(40, 60):
        link.take_sample(TransportSample(bytes_sent=turn * 50_000, bytes_lost=39 * 5_000), 1.0 + turn)
    assert link.loss < 0.01
