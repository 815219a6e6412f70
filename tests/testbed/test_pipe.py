"""One direction of a link against the clock of the test."""

from __future__ import annotations

from random import Random

import pytest

from multi.lab.testbed import Direction
from multi.lab.testbed.pipe import Pipe

MBIT = Direction(rate_mbps=8, delay_ms=10, queue_ms=10.5)  # a million bytes a second, 10.5 kB of queue


def pipe(figures: Direction = MBIT) -> Pipe:
    return Pipe(figures, Random(1))


def arrivals(tested: Pipe, until: float = 1e9) -> list[float]:
    times = []
    while (due := tested.next_arrival) is not None and due <= until:
        assert tested.arrived(due) is not None
        times.append(due)
    return times


def test_a_packet_takes_its_serialization_and_the_delay() -> None:
    tested = pipe()
    tested.accept(b"x", 1000, 1, now=5.0)
    assert tested.arrived(5.0109) is None
    assert arrivals(tested) == [pytest.approx(5.011)]


def test_packets_wait_for_those_before_them() -> None:
    tested = pipe()
    for _ in range(3):
        tested.accept(b"x", 1000, 1, now=5.0)
    assert tested.statistics(5.0).queue_bytes == 3000
    assert arrivals(tested) == pytest.approx([5.011, 5.012, 5.013])


def test_a_full_queue_drops_from_the_tail() -> None:
    tested = pipe()
    for _ in range(15):
        tested.accept(b"x", 1000, 1, now=5.0)
    assert tested.statistics(5.0).queue_drops == 5
    assert len(arrivals(tested)) == 10


def test_a_lower_rate_holds_for_what_waits_already() -> None:
    tested = pipe()
    for _ in range(4):
        tested.accept(b"x", 1000, 1, now=5.0)
    tested.shape(Direction(rate_mbps=4, delay_ms=10), now=5.0015)
    # The first had left; half of the second is still to go.
    assert arrivals(tested) == pytest.approx([5.011, 5.0125, 5.0145, 5.0165])


def test_a_shorter_delay_lets_nothing_overtake() -> None:
    tested = pipe(Direction(rate_mbps=8, delay_ms=100))
    tested.accept(b"x", 1000, 1, now=5.0)
    tested.shape(Direction(rate_mbps=8, delay_ms=1), now=5.05)
    tested.accept(b"x", 1000, 1, now=5.05)
    assert arrivals(tested) == pytest.approx([5.101, 5.101])


def test_jitter_stays_in_its_bounds_and_in_order() -> None:
    tested = pipe(Direction(rate_mbps=8000, delay_ms=10, jitter_ms=5))
    for number in range(500):
        tested.accept(b"x", 100, 1, now=number * 0.1)
    delays = [time - number * 0.1 for number, time in enumerate(arrivals(tested))]
    assert 0.005 <= min(delays) < 0.0055
    assert 0.0145 < max(delays) <= 0.0151


def test_random_loss_is_as_frequent_as_it_should_be() -> None:
    tested = pipe(Direction(rate_mbps=8000, delay_ms=10, loss=0.1))
    for number in range(10_000):
        tested.accept(b"x", 100, 1, now=number * 0.1)
    assert 900 < tested.statistics(0.0).random_losses < 1100


def test_a_cut_loses_what_is_on_its_way() -> None:
    tested = pipe()
    tested.accept(b"x", 1000, 1, now=5.0)
    tested.cut(True)
    tested.accept(b"x", 1000, 1, now=5.0)
    tested.cut(False)
    assert tested.next_arrival is None
    assert tested.statistics(5.0).cut_drops == 2
    tested.accept(b"x", 1000, 1, now=6.0)
    assert arrivals(tested) == [pytest.approx(6.011)]
