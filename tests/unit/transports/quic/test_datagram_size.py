"""Which datagrams a path carries, as its packets tell."""

from __future__ import annotations

from multi.transports.quic.datagram_size import MAX_PROBE_INTERVAL, PROBE_AFTER, DatagramSize

LARGE, SMALL = 1350, 1200
NOW = 100.0


def test_the_last_large_packet_that_is_lost_makes_datagrams_small_and_asks_at_once_whether_it_was_its_size() -> None:
    size = DatagramSize(LARGE)
    assert size.lost([1], NOW, last=True)
    assert size.now == SMALL
    assert size.probe_due(NOW)
    size.arrived(2)
    assert size.now == LARGE


def test_large_packets_lost_in_a_row_make_datagrams_small_and_are_no_sign_of_congestion() -> None:
    size = DatagramSize(LARGE)
    assert not size.lost([1, 2], NOW)
    assert size.now == LARGE
    assert size.lost([3], NOW)
    assert size.now == SMALL


def test_what_was_lost_before_a_large_packet_that_arrived_is_lost_to_congestion() -> None:
    size = DatagramSize(LARGE)
    size.arrived(10)
    assert not size.lost(list(range(10)), NOW)
    assert size.now == LARGE
    assert not size.lost([11, 12], NOW)
    size.arrived(13)
    assert not size.lost([14, 15], NOW)
    assert size.now == LARGE


def test_a_timeout_makes_datagrams_small_until_a_large_packet_arrives() -> None:
    size = DatagramSize(LARGE)
    size.timed_out(NOW)
    assert size.now == SMALL
    size.arrived(5)
    assert size.now == LARGE
    assert not size.probe_due(NOW + 2 * MAX_PROBE_INTERVAL)


def test_probes_follow_at_once_and_then_more_and_more_seldom() -> None:
    size = DatagramSize(LARGE)
    assert not size.probe_due(NOW)
    size.timed_out(NOW)
    now, pauses = NOW, []
    for _ in range(9):
        assert size.probe_due(now)
        size.probed(now)
        begin = now
        while not size.probe_due(now):
            now += PROBE_AFTER / 2
        pauses.append(now - begin)
        size.timed_out(now)  # again: it is small already, and nothing begins anew
    assert pauses == [1, 2, 4, 8, 16, 32, MAX_PROBE_INTERVAL, MAX_PROBE_INTERVAL, MAX_PROBE_INTERVAL]


def test_the_largest_that_the_peer_takes_bounds_what_is_sent() -> None:
    size = DatagramSize(LARGE)
    size.limit(1280)
    assert (size.most, size.now) == (1280, 1280)
    size.timed_out(NOW)
    size.limit(LARGE)
    assert (size.most, size.now) == (1280, SMALL)


def test_where_all_datagrams_are_small_there_is_nothing_to_find_out() -> None:
    size = DatagramSize(SMALL)
    size.timed_out(NOW)
    assert not size.lost([], NOW)
    assert size.now == SMALL
    assert not size.probe_due(NOW + MAX_PROBE_INTERVAL)
