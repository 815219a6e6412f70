"""When the window of an aioquic connection stops doubling."""

from __future__ import annotations

import pytest
from aioquic.quic.packet import QuicPacketType
from aioquic.quic.packet_builder import QuicSentPacket
from aioquic.tls import Epoch

from multi.transports.quic.aioquic_cubic import Cubic, SlowStart

ROUND_TRIP = 0.040  # seconds


def played(*round_trips: float) -> SlowStart:
    """Rounds of ten acknowledgements each, of what was sent when the round before ended."""
    made, now = SlowStart(), 0.0
    for rtt in round_trips:
        begin = now
        for _ in range(10):
            now += rtt / 10
            made.measured(rtt, now)
            made.acknowledged(begin, now)
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


def test_single_long_round_trips_mean_nothing() -> None:
    made = SlowStart()
    for step in range(200):
        made.measured(ROUND_TRIP if step % 7 else 3 * ROUND_TRIP, step * 0.001)
    assert not made.holds


def test_what_is_lost_while_the_sender_waits_for_something_else_takes_a_part_of_the_window_only() -> None:
    made = Cubic(max_datagram_size=1000)
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
