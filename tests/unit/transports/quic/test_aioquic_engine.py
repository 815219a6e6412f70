"""What aioquic is kept from: walking all gaps of a stream, and packets of nothing but small frames."""

from __future__ import annotations

import pytest
from aioquic.quic.connection import QuicConnectionError
from aioquic.quic.packet import QuicPacketType
from aioquic.quic.packet_builder import QuicSentPacket
from aioquic.quic.rangeset import RangeSet
from aioquic.quic.recovery import QuicPacketSpace
from aioquic.tls import Epoch
from hypothesis import given
from hypothesis import strategies as st

from multi.transports.quic.aioquic_engine import MAX_FRAMES, PACING_BUCKET, Frames, Pacer, Ranges, Recovery

PIECES = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 12)), max_size=40)


@given(PIECES)
def test_ranges_are_those_that_aioquic_would_keep(pieces: list[tuple[int, int]]) -> None:
    ours, theirs = Ranges(lambda: 1000), RangeSet()
    for start, size in pieces:
        ours.add(start, start + size)
        theirs.add(start, start + size)
        assert list(ours) == list(theirs)


def test_more_gaps_than_the_window_explains_end_the_connection() -> None:
    ranges = Ranges(lambda: 3)
    for start in (0, 10, 20):
        ranges.add(start)
    ranges.add(1, 10)  # closes one
    ranges.add(30)
    with pytest.raises(QuicConnectionError, match="too many gaps"):
        ranges.add(40)


def test_a_packet_has_so_many_frames_at_most() -> None:
    frames = Frames({1: "ping"})
    assert [frames[1] for _ in range(MAX_FRAMES)] == ["ping"] * MAX_FRAMES
    with pytest.raises(QuicConnectionError, match="too many frames"):
        frames[1]
    frames.left = MAX_FRAMES
    assert frames[1] == "ping"


def test_a_tick_of_the_timer_is_no_speed_limit() -> None:
    pacer = Pacer(max_datagram_size=1350)
    pacer.update_rate(congestion_window=10_000_000, smoothed_rtt=0.01)
    assert pacer.bucket_max >= PACING_BUCKET


@pytest.mark.parametrize(("packets", "grows"), [(2, False), (8, True)])
def test_a_window_that_is_not_used_grows_no_more(packets: int, grows: bool) -> None:
    """Ten packets are the first window. A program that writes a little for hours would else have any number of them."""
    made = Recovery(
        congestion_control_algorithm="multi-cubic",
        initial_rtt=0.1,
        max_datagram_size=1000,
        peer_completed_address_validation=True,
        send_probe=lambda: None,
    )
    space, window = QuicPacketSpace(is_application_data=True), made.congestion_window
    made.spaces = [space]
    for turn in range(20):
        numbers = range(turn * packets, (turn + 1) * packets)
        for number in numbers:
            packet = QuicSentPacket(Epoch.ONE_RTT, True, True, False, number, QuicPacketType.ONE_RTT, turn * 0.1, 1000)
            made.on_packet_sent(packet=packet, space=space)
        acknowledged = RangeSet([numbers])
        made.on_ack_received(ack_rangeset=acknowledged, ack_delay=0.0, now=turn * 0.1 + 0.05, space=space)
    assert (made.congestion_window > window) is grows
