"""What may queue on a path, and the rate it is told by."""

from __future__ import annotations

from multi.multipath.cap import LEAST, LeastLately, QueueBound, RateMeter


def test_a_queue_is_capped_at_what_the_path_carries_and_a_little_more() -> None:
    assert QueueBound(0.015).most(900_000, 1e6, least=0.2, min_rtt=0.04) == 55_000
    assert QueueBound(0.015).most(900_000, 1e3, least=0.2, min_rtt=0.04) == LEAST
    assert QueueBound(0.015).most(30_000, 1e6, least=0.2, min_rtt=0.04) == 30_000


def test_nothing_is_capped_without_a_queue_a_rate_or_a_bound() -> None:
    assert QueueBound(0.015).most(900_000, 1e6, least=0.05, min_rtt=0.04) == 900_000
    assert QueueBound(0.015).most(900_000, 0.0, least=0.2, min_rtt=0.04) == 900_000
    assert QueueBound(0.0).most(900_000, 1e6, least=0.2, min_rtt=0.04) == 900_000


def test_a_queue_that_was_drained_does_not_come_back_at_once() -> None:
    queue = QueueBound(0.015)
    seen = [queue.most(900_000, 1e6, least, min_rtt=0.04) for least in (0.052, 0.056, 0.052, 0.048, 0.047, 0.052)]
    assert seen == [900_000, 55_000, 55_000, 55_000, 900_000, 900_000]


def test_the_rate_follows_what_is_acknowledged() -> None:
    meter = RateMeter()
    for step in range(1, 100):
        meter.update(step * 0.02, step * 20_000, rtt=0.02)
    assert 0.99e6 < meter.known < 1.01e6
    assert not meter.is_lower_bound


def test_what_was_measured_while_little_was_sent_never_lowers_the_rate() -> None:
    meter = RateMeter()
    for step in range(1, 50):
        meter.update(step * 0.02, step * 20_000, rtt=0.02)
    acked = 49 * 20_000
    for step in range(100):
        meter.sent(acked, 1000, 20_000)
        meter.update(5.0 + step * 0.1, acked, rtt=0.02)
        acked += 1000
    assert meter.known > 0.99e6
    assert meter.peak > 0.99e6


def test_what_was_measured_while_little_was_sent_raises_the_rate() -> None:
    meter = RateMeter()
    for step in range(1, 10):
        meter.update(step * 0.02, step * 2000, rtt=0.02)
    meter.sent(18_000, 50_000, 100_000)
    for step in range(1, 4):
        meter.update(0.18 + step * 0.02, 18_000 + step * 10_000, rtt=0.02)
    assert meter.known > 0.49e6


def test_a_few_control_frames_tell_no_rate() -> None:
    meter = RateMeter()
    meter.update(1.00, 0, rtt=0.04)
    meter.sent(0, 80, 14_000)
    meter.update(1.04, 80, rtt=0.04)
    assert (meter.known, meter.peak) == (0.0, 0.0)
    assert meter.rate > 0
    assert meter.is_lower_bound


def test_a_path_that_is_nearly_full_shows_what_it_carries() -> None:
    meter = RateMeter()
    meter.update(1.0, 1000, rtt=0.04)
    meter.sent(1000, 13_000, 14_000)
    meter.update(1.1, 101_000, rtt=0.04)
    assert 0.99e6 < meter.known < 1.01e6


def test_a_sample_counts_again_when_what_was_sent_too_little_has_gone_by() -> None:
    meter = RateMeter()
    meter.update(1.0, 1000, rtt=0.04)
    meter.sent(1000, 500, 14_000)
    meter.update(1.1, 1500, rtt=0.04)
    assert meter.is_lower_bound
    meter.update(1.2, 101_500, rtt=0.04)
    assert not meter.is_lower_bound
    assert 0.99e6 < meter.known < 1.01e6


def test_a_queue_that_stands_is_told_from_a_process_that_is_busy_at_times() -> None:
    busy, standing = LeastLately(), LeastLately()
    for step in range(1, 100):
        busy.update(step * 0.01, 0.040 if step % 5 else 0.150, smoothed=0.060)
        standing.update(step * 0.01, 0.150, smoothed=0.150)
    assert busy.rtt == 0.040
    assert standing.rtt == 0.150
