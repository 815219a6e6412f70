"""What may queue on a path, and the rate it is told by."""

from __future__ import annotations

from multi.multipath.cap import LEAST, LeastLately, RateMeter, most_in_flight


def test_a_queue_is_capped_at_what_the_path_carries_and_a_little_more() -> None:
    assert most_in_flight(900_000, 1e6, least=0.2, min_rtt=0.04, max_queue=0.015) == 55_000
    assert most_in_flight(900_000, 1e3, least=0.2, min_rtt=0.04, max_queue=0.015) == LEAST
    assert most_in_flight(30_000, 1e6, least=0.2, min_rtt=0.04, max_queue=0.015) == 30_000


def test_nothing_is_capped_without_a_queue_a_rate_or_a_bound() -> None:
    assert most_in_flight(900_000, 1e6, least=0.05, min_rtt=0.04, max_queue=0.015) == 900_000
    assert most_in_flight(900_000, 0.0, least=0.2, min_rtt=0.04, max_queue=0.015) == 900_000
    assert most_in_flight(900_000, 1e6, least=0.2, min_rtt=0.04, max_queue=0.0) == 900_000


def test_the_rate_follows_what_is_acknowledged() -> None:
    meter = RateMeter()
    for step in range(1, 100):
        meter.update(step * 0.02, step * 20_000, rtt=0.02, idle=False)
    assert 0.99e6 < meter.rate < 1.01e6
    assert not meter.is_lower_bound


def test_a_rate_measured_while_little_was_sent_is_a_lower_bound() -> None:
    meter = RateMeter()
    for step in range(1, 50):
        meter.update(step * 0.02, step * 20_000, rtt=0.02, idle=False)
    meter.update(5.0, 49 * 20_000 + 10_000, rtt=0.02, idle=True)
    meter.update(5.1, 49 * 20_000 + 20_000, rtt=0.02, idle=True)
    assert meter.is_lower_bound
    assert meter.rate > 0.99e6


def test_a_queue_that_stands_is_told_from_a_process_that_is_busy_at_times() -> None:
    busy, standing = LeastLately(), LeastLately()
    for step in range(1, 100):
        busy.update(step * 0.01, 0.040 if step % 5 else 0.150, smoothed=0.060)
        standing.update(step * 0.01, 0.150, smoothed=0.150)
    assert busy.rtt == 0.040
    assert standing.rtt == 0.150
