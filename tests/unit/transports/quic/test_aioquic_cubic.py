"""When the window of an aioquic connection stops doubling."""

from __future__ import annotations

import pytest
from aioquic.quic.packet import QuicPacketType
from aioquic.quic.packet_builder import QuicSentPacket
from aioquic.tls import Epoch

from multi.transports.quic.aioquic_cubic import AioquicCubic, SlowStart

ROUND_TRIP = 0.040  # seconds
WINDOW = 20_000  # bytes


def played(*round_trips: float) -> SlowStart:
    """Rounds of ten acknowledgements each, of what was sent when the round before ended."""
    made, now = SlowStart(), 0.0
    for rtt in round_trips:
        begin = now
        for _ in range(10):
            now += rtt / 10
            made.measured(rtt, now)
            made.acknowledged(begin, now, WINDOW)
    return made


def test_a_window_doubles_while_round_trips_stay() -> None:
    assert not played(*[ROUND_TRIP] * 20).holds


def test_round_trips_that_stay_longer_are_a_queue() -> None:
    made = played(ROUND_TRIP, *[ROUND_TRIP + 0.01] * 5)
    assert made.holds
    assert made.over


@pytest.mark.parametrize("longer", [0.006, 0.060])
def test_a_delay_that_passes_holds_the_window_for_as_long(longer: float) -> None:
    made = played(ROUND_TRIP, ROUND_TRIP + longer)
    assert made.holds
    made = played(ROUND_TRIP, ROUND_TRIP + longer, *[ROUND_TRIP] * 3)
    assert not made.holds
    assert not made.over


@pytest.mark.parametrize("rounds", [3, 20])
def test_a_queue_that_is_gone_was_not_one_of_its_own(rounds: int) -> None:
    """Such as of acknowledgements that wait for each other on their way."""
    longer = [ROUND_TRIP + 0.01] * rounds
    assert played(ROUND_TRIP, *longer).over
    made = played(ROUND_TRIP, *longer, *[ROUND_TRIP] * 2)
    assert not made.over
    assert not made.holds


def test_round_trips_over_another_way_are_judged_by_its_own_shortest() -> None:
    made = played(ROUND_TRIP, *[ROUND_TRIP + 0.01] * 5)
    made.comes_back_otherwise(0.1, 1.0)
    for step in range(1, 30):
        made.measured(0.1, 1.0 + step * 0.01)
        made.acknowledged(1.0 + step * 0.01 - 0.1, 1.0 + step * 0.01, WINDOW)
    assert not made.over
    made.comes_back_otherwise(ROUND_TRIP, 2.0)
    for step in range(1, 40):
        made.measured(ROUND_TRIP + 0.01, 2.0 + step * 0.01)
        made.acknowledged(2.0 + step * 0.01 - 0.05, 2.0 + step * 0.01, WINDOW)
    assert made.over


def downloaded(made: AioquicCubic, rtt: float, begin: float, rounds: int) -> None:
    """So many windows are sent and arrive, each at once and with the same round trip."""
    for step in range(rounds):
        sent_at = begin + step * rtt
        sent = [
            QuicSentPacket(Epoch.ONE_RTT, True, True, False, number, QuicPacketType.ONE_RTT, sent_at, 1000)
            for number in range(made.congestion_window // 1000)
        ]
        for packet in sent:
            made.on_packet_sent(packet=packet)
        for packet in sent:
            made.on_packet_acked(now=sent_at + rtt, packet=packet)
            made.on_rtt_measurement(now=sent_at + rtt, rtt=rtt)


def test_a_window_doubles_again_once_the_queue_is_gone_and_never_after_a_loss() -> None:
    made = AioquicCubic(max_datagram_size=1000)
    downloaded(made, ROUND_TRIP, 1.0, 2)
    downloaded(made, ROUND_TRIP + 0.01, 2.0, 5)
    held = made.congestion_window
    assert made.ssthresh is not None
    downloaded(made, ROUND_TRIP, 3.0, 5)
    assert made.congestion_window > 4 * held
    lost = QuicSentPacket(Epoch.ONE_RTT, True, True, False, 1, QuicPacketType.ONE_RTT, 4.0, 1000)
    made.on_packet_sent(packet=lost)
    made.on_packets_lost(now=4.1, packets=[lost])
    held = made.congestion_window
    downloaded(made, ROUND_TRIP, 5.0, 5)
    assert made.congestion_window < 1.2 * held


@pytest.mark.slow
@pytest.mark.parametrize("longer", [0.010, 0.100])
def test_a_window_doubles_again_when_more_makes_round_trips_no_longer(longer: float) -> None:
    """The way has become longer: the window grew by a datagram a round trip from there on."""
    made = AioquicCubic(max_datagram_size=1000)
    downloaded(made, ROUND_TRIP, 1.0, 1)
    rtt, rounds = ROUND_TRIP + longer, 0
    while made.congestion_window <= 1_000_000:
        assert rounds < 30
        downloaded(made, rtt, 2.0 + rounds * rtt, 1)
        rounds += 1


def test_a_window_that_fills_a_queue_does_not_double_again() -> None:
    made = AioquicCubic(max_datagram_size=1000)
    downloaded(made, ROUND_TRIP, 1.0, 2)
    begin = 2.0
    for _ in range(30):
        rtt = max(ROUND_TRIP, made.congestion_window / 500_000)
        downloaded(made, rtt, begin, 1)
        begin += rtt
    assert made.congestion_window < 100_000


def test_single_long_round_trips_mean_nothing() -> None:
    made = SlowStart()
    for step in range(200):
        made.measured(ROUND_TRIP if step % 7 else 3 * ROUND_TRIP, step * 0.001)
    assert not made.holds


def test_what_is_lost_while_the_sender_waits_for_something_else_takes_a_part_of_the_window_only() -> None:
    made = AioquicCubic(max_datagram_size=1000)
    sent = [
        QuicSentPacket(Epoch.ONE_RTT, True, True, False, number, QuicPacketType.ONE_RTT, 1.0, 1000)
        for number in range(100)
    ]
    for packet in sent:
        made.on_packet_sent(packet=packet)
    made.congestion_window = 100_000
    lost, arrived = sent[50:60], sent[:50] + sent[60:]
    made.ssthresh = 1  # what arrives makes the window hardly larger
    for packet in arrived:
        made.on_packet_acked(now=1.2, packet=packet)
    window = made.congestion_window
    made.on_packets_lost(now=1.2, packets=lost)
    assert made.congestion_window == int((window - 10_000) * 0.7)
    made.on_packets_lost(now=1.2, packets=lost[-1:])  # of the same loss
    assert made.congestion_window == int((window - 10_000) * 0.7)


def test_a_window_doubles_where_a_round_trip_takes_longer_than_a_pause_after_which_it_begins_anew() -> None:
    made = AioquicCubic(max_datagram_size=1000)
    downloaded(made, 2.5, 1.0, 4)
    assert made.congestion_window == 160_000
    for step in range(10):  # nothing is acknowledged yet
        at = 11.0 + step * 0.24
        made.on_packet_sent(
            packet=QuicSentPacket(Epoch.ONE_RTT, True, True, False, 9, QuicPacketType.ONE_RTT, at, 1000)
        )
    assert made.congestion_window == 160_000


@pytest.mark.parametrize(("pause", "kept"), [(1.9, True), (2.1, False)])
def test_a_window_begins_anew_after_two_seconds_without_anything_on_its_way(pause: float, kept: bool) -> None:
    made = AioquicCubic(max_datagram_size=1000)
    downloaded(made, ROUND_TRIP, 1.0, 3)
    window = made.congestion_window
    assert window > 40_000
    at = 1.0 + 3 * ROUND_TRIP + pause
    made.on_packet_sent(packet=QuicSentPacket(Epoch.ONE_RTT, True, True, False, 9, QuicPacketType.ONE_RTT, at, 1000))
    assert (made.congestion_window == window) is kept
