"""What may queue on a path, and the rate it is told by."""

from __future__ import annotations

from collections import deque
from math import inf
from random import Random
from statistics import median

import pytest

from multi.multipath.cap import MIN_BYTES, QueueBound, RateMeter

STEP = 0.001  # seconds
RATE = 1e6  # bytes per second


class Carrying:
    """Who has always something to send, on a path whose queue takes everything and with a window that never ends."""

    def __init__(self, round_trip: float, max_queue: float = 0.015) -> None:
        """`round_trip` in seconds, without a queue."""
        self.bound = QueueBound(max_queue)
        self.rate = RATE
        self.round_trip = self.min_rtt = round_trip
        self.others = 0.0
        """Seconds that others always stand in the queue."""
        self.window = 14_000.0
        self.paused = False
        self.datagram = 1
        """Bytes; only so many at a time are sent."""
        self._now = 1.0
        self._acked = self._in_flight = self._queue = 0.0
        self._left: deque[tuple[float, float, float]] = deque()
        """When it is acknowledged, how much, and its round trip."""

    def run(self, seconds: float) -> tuple[float, float]:
        """The rate in bytes per second and what queues, in seconds: both means."""
        until, acked, waited = self._now + seconds, self._acked, 0.0
        while self._now < until:
            self._now += STEP
            latest = inf
            while self._left and self._left[0][0] <= self._now:
                _, size, latest = self._left.popleft()
                self._acked += size
                self.window += size
                self._in_flight -= size
            before = self._in_flight
            self._queue = max(0.0, self._queue - self.rate * STEP)
            room = self.bound.most(int(self.window)) - self._in_flight
            sent = 0.0 if self.paused else max(0.0, min(room, 4 * RATE * STEP) // self.datagram * self.datagram)
            self._queue += sent
            self._in_flight += sent
            waiting = self._queue / self.rate
            rtt = self.round_trip + waiting + self.others
            self._left.append((self._now + rtt, sent, rtt))
            self.bound.update(self._now, int(self._acked), int(before + sent), latest, self.min_rtt)
            waited += waiting * STEP
        return (self._acked - acked) / seconds, waited / seconds


@pytest.mark.parametrize("round_trip", [0.002, 0.040, 0.200])
def test_what_queues_is_what_is_allowed_and_the_rate_that_of_the_path(round_trip: float) -> None:
    path = Carrying(round_trip)
    path.run(5.0)
    rate, queue = path.run(5.0)
    assert rate > 0.99 * RATE
    assert 0.005 < queue < 0.018


def test_without_a_bound_the_queue_grows_without_end() -> None:
    path = Carrying(0.040, max_queue=0.0)
    path.run(2.0)
    assert path.run(1.0)[1] > 0.5


def test_the_bound_follows_a_path_that_becomes_faster_and_slower() -> None:
    slower = []
    for phase in range(5):
        path = Carrying(0.040)
        path.run(3.0 + phase / 10)
        path.rate = 4 * RATE
        path.run(2.0)
        rate, queue = path.run(1.0)
        assert rate > 3.9 * RATE
        assert queue < 0.018
        path.rate = RATE / 4
        path.run(3.0)
        rate, queue = path.run(1.0)
        slower.append(rate)
        assert queue < 0.05  # `MIN_BYTES` takes as long
    assert median(slower) > 0.99 * RATE / 4


def test_a_bound_is_no_smaller_for_what_was_not_sent() -> None:
    path = Carrying(0.040)
    path.run(3.0)
    path.paused = True
    path.run(1.0)
    path.paused = False
    path.run(0.1)
    rate, _ = path.run(0.2)
    assert rate > 0.97 * RATE


def test_a_path_that_was_slow_for_a_moment_is_soon_used_as_before() -> None:
    """The bound fell to what came in that moment, and grew by a quarter at a time: half the rate was left after it."""
    path = Carrying(0.040)
    path.rate = 2 * RATE
    path.run(5.0)
    path.rate /= 6
    path.run(0.1)
    path.rate *= 6
    path.run(0.7)
    rate, queue = path.run(0.3)
    assert rate > 0.85 * path.rate
    assert queue < 0.018


@pytest.mark.parametrize("longer", [0.020, 0.060])
def test_a_way_that_has_become_longer_is_no_queue(longer: float) -> None:
    path = Carrying(0.040)
    path.run(3.0)
    path.round_trip += longer
    path.run(3.0)
    rate, queue = path.run(20.0)
    assert rate > 0.95 * RATE
    assert queue < 0.020


@pytest.mark.parametrize("before", [0.002, 0.020, 0.100])
@pytest.mark.parametrize("longer", [0.020, 0.060, 0.200])
def test_a_way_that_became_longer_before_there_was_much_to_send_is_no_queue(before: float, longer: float) -> None:
    """The bound was at its least then, where fewer bytes cannot be tried: it stayed there, at 0.002 of the rate."""
    path = Carrying(before)
    path.round_trip += longer
    path.run(3.0 + 20 * path.round_trip)
    rate, queue = path.run(30.0)
    assert rate > 0.95 * RATE
    assert queue < max(0.020, path.round_trip / 4)  # the bound grows by a quarter at a time


@pytest.mark.parametrize("rate", [20_000, 100_000])
def test_a_slow_path_is_given_more_than_the_least_only_now_and_then(rate: float) -> None:
    path = Carrying(0.020)
    path.rate = rate
    path.run(5.0)
    carried, queue = path.run(60.0)
    assert carried > 0.99 * rate
    assert queue < 1.1 * MIN_BYTES / rate


def test_acknowledgements_that_come_back_another_way_are_no_queue() -> None:
    """The way back took 76 ms instead of 1: the bound fell to its least, and the path carried a quarter."""
    path = Carrying(0.010)
    path.run(2.0)
    path.round_trip = path.min_rtt = 0.085
    path.run(2.0)
    rate, queue = path.run(4.0)
    assert rate > 0.97 * RATE
    assert queue < 0.016


def test_what_others_queue_costs_no_more_than_a_look_now_and_then() -> None:
    path = Carrying(0.040)
    path.run(3.0)
    path.others = 0.100
    path.run(3.0)
    assert path.run(20.0)[0] > 0.95 * RATE


@pytest.mark.parametrize("before", [0.1, 3.0])
@pytest.mark.parametrize("period", [0.7, 1.5, 4.0])
def test_what_others_queue_may_swing(before: float, period: float) -> None:
    """Each round trip that was unlike the one before began another judgement, with fewer bytes each: 0.1 was left."""
    path = Carrying(0.020, max_queue=0.030)
    path.run(before)
    rates = []
    for step in range(400):
        path.others = 0.250 + 0.150 * (step * 0.05 / period % 1)
        rates.append(path.run(0.05)[0])
    assert sum(rates[100:]) > 0.6 * RATE * 300


@pytest.mark.parametrize("max_queue", [0.015, 0.030])
@pytest.mark.parametrize("others", [0.7, 0.9, 1.0, 1.1, 1.5, 3.0, 8.0])
@pytest.mark.parametrize("swing", [0.1, 0.5])
def test_who_begins_while_others_queue_soon_has_the_path(max_queue: float, others: float, swing: float) -> None:
    """As a download that begins beside an upload, whose queue is as long as a bound allows: 0.01 was left for good, and
    with longer ones it took seconds."""
    chance, rates = Random(1), []
    path = Carrying(0.046, max_queue)
    path.rate = 4 * RATE
    for _ in range(100):
        path.others = max_queue * max(0.0, others + chance.uniform(-swing, swing))
        rates.append(path.run(0.05)[0] / path.rate)
    assert sum(rates[:60]) > 0.35 * 60
    assert sum(rates[60:]) > 0.8 * 40


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("others", [1.0, 2.0])
def test_what_others_queue_may_come_and_go_while_one_begins(others: float, seed: int) -> None:
    """The first round trip that was long made a bound, and for four seconds it was less than half of the path."""
    chance, carried = Random(seed), 0.0
    path = Carrying(0.046)
    path.rate = 4 * RATE
    for _ in range(60):
        path.others = 0.015 * max(0.0, others + chance.uniform(-1, 1))
        carried += path.run(0.05)[0] / path.rate
    assert carried > 0.7 * 60


@pytest.mark.parametrize("datagram", [1, 1200, 1350, 1400, 1452, 3000])
def test_the_least_bound_is_left_again_by_whoever_sends_whole_datagrams(datagram: int) -> None:
    """Fewer bytes than that bound were in flight then, and told nothing: a fifth of the rate was left for good."""
    path = Carrying(0.040)
    path.datagram = datagram
    path.run(3.0)
    path.rate /= 50
    path.run(6.0)
    path.rate *= 50
    path.run(3.0)
    assert path.run(5.0)[0] > 0.9 * RATE


def test_a_few_messages_beside_what_others_queue_make_no_bound() -> None:
    bound = QueueBound(0.015)
    for step in range(1, 200):
        bound.update(1 + step * 0.1, step * 500, 1000, 0.100, min_rtt=0.040)
    assert bound.most(900_000) == 900_000


def test_what_others_queue_within_what_is_allowed_leaves_the_path_to_nobody() -> None:
    """The bound stayed where it was, at 0.3 of the rate, for as long as they stood there."""
    path = Carrying(0.040)
    path.rate = RATE / 4
    path.run(5.0)
    path.rate, path.others = RATE, 0.012
    path.run(12.0)
    assert path.run(5.0)[0] > 0.95 * RATE


def test_what_a_process_that_is_busy_at_times_adds_is_no_queue() -> None:
    bound = QueueBound(0.015)
    for step in range(1, 500):
        bound.update(1 + step * 0.01, step * 10_000, 50_000, 0.040 if step % 5 else 0.150, min_rtt=0.040)
    assert bound.most(900_000) == 900_000


def test_a_bound_leaves_enough_to_tell_losses_by() -> None:
    bound = QueueBound(0.015)
    for step in range(1, 500):
        bound.update(1 + step * 0.01, step * 10, 50_000, 0.5, min_rtt=0.040)
    assert bound.most(900_000) >= MIN_BYTES
    assert bound.most(MIN_BYTES - 1) == MIN_BYTES - 1


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


def test_what_was_measured_while_little_was_sent_raises_the_rate() -> None:
    meter = RateMeter()
    for step in range(1, 10):
        meter.update(step * 0.02, step * 2000, rtt=0.02)
    meter.sent(18_000, 50_000, 100_000)
    for step in range(1, 4):
        meter.update(0.18 + step * 0.02, 18_000 + step * 10_000, rtt=0.02)
    assert meter.known > 0.49e6


def test_a_pause_is_no_time_in_which_less_was_delivered() -> None:
    """The first window of a path filled it; its only sample said a tenth of that, and nothing was sent there again."""
    meter = RateMeter()
    meter.update(1.0, 100, rtt=0.2)
    meter.begins(2.8, 100)
    meter.update(3.0, 14_100, rtt=0.2)
    assert 69_000 < meter.known < 71_000


def test_a_few_control_frames_tell_no_rate() -> None:
    meter = RateMeter()
    meter.update(1.00, 0, rtt=0.04)
    meter.sent(0, 80, 14_000)
    meter.update(1.04, 80, rtt=0.04)
    assert meter.known == 0.0
    assert meter.rate > 0
    assert meter.is_lower_bound


def test_a_path_that_is_nearly_full_shows_what_it_carries() -> None:
    meter = RateMeter()
    meter.update(1.0, 1000, rtt=0.04)
    meter.sent(1000, 13_000, 14_000)
    meter.update(1.1, 101_000, rtt=0.04)
    assert 0.99e6 < meter.known < 1.01e6


def test_a_path_carries_what_it_delivers_of_what_is_late_however_little_is_sent() -> None:
    meter = RateMeter()
    for step in range(1, 50):
        meter.update(step * 0.02, step * 20_000, rtt=0.02)
    acked = 49 * 20_000
    meter.sent(acked, 5000, 20_000)
    meter.late(5000)
    meter.update(1.25, acked + 1000, rtt=2.0)  # from here on
    for step in range(2, 4):
        meter.update(1.0 + step * 0.25, acked + step * 1000, rtt=2.0)
        assert meter.known == pytest.approx(4000)
    meter.update(1.85, acked + 5000, rtt=2.0)  # the rest, and nothing more is in flight
    assert meter.known == pytest.approx(20_000)
    meter.sent(acked + 5000, 1000, 20_000)
    meter.update(9.0, acked + 6000, rtt=2.0)
    assert meter.known == pytest.approx(20_000), "a pause is no time in which less was delivered"


def test_nothing_is_late_any_more_where_nothing_is_in_flight() -> None:
    meter = RateMeter()
    for step in range(1, 50):
        meter.update(step * 0.02, step * 20_000, rtt=0.02)
    acked = 49 * 20_000
    meter.late(5000)
    meter.sent(acked, 0, 20_000)  # all of it was lost
    for step in range(1, 4):
        meter.sent(acked + step * 1000, 1000, 20_000)
        meter.update(step * 3.0, acked + step * 1000, rtt=0.02)
    assert meter.known > 0.99e6


def test_a_sample_counts_again_when_what_was_sent_too_little_has_gone_by() -> None:
    meter = RateMeter()
    meter.update(1.0, 1000, rtt=0.04)
    meter.sent(1000, 500, 14_000)
    meter.update(1.1, 1500, rtt=0.04)
    assert meter.is_lower_bound
    meter.update(1.2, 101_500, rtt=0.04)
    assert not meter.is_lower_bound
    assert 0.99e6 < meter.known < 1.01e6
