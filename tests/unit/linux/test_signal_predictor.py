"""When a radio link counts as fading, and when as good again."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multi.linux.wifi_signal import Signal, SignalPredictor

GOOD, FADING = Signal.GOOD, Signal.FADING


def judge(*values: float, interval: float = 1.0, predictor: SignalPredictor | None = None) -> list[Signal]:
    """Feed samples at an even rhythm."""
    predictor = predictor or SignalPredictor()
    return [predictor.feed(dbm, 100.0 + number * interval) for number, dbm in enumerate(values)]


def test_a_weak_link_is_fading_from_the_second_sample_on() -> None:
    assert judge(-80, -80, -80) == [GOOD, FADING, FADING]


def test_a_steep_fall_is_seen_before_the_signal_is_weak() -> None:
    predictor = SignalPredictor()
    assert judge(-60, -60, -66, -71, -74, predictor=predictor) == [GOOD, GOOD, GOOD, GOOD, FADING]
    assert predictor.average is not None
    assert predictor.average > -70


def test_a_fall_that_ends_above_70_is_no_danger() -> None:
    assert set(judge(-40, -46, -52, -58, -64, -69, -69, -69)) == {GOOD}


def test_a_single_drop_is_no_danger() -> None:
    assert set(judge(-60, -60, -85, -60, -60, -85, -60)) == {GOOD}


def test_the_average_weighs_three_tenths_of_each_second() -> None:
    predictor = SignalPredictor()
    judge(-60, -70, predictor=predictor)
    assert predictor.average == pytest.approx(-63.0)
    predictor.feed(-70, 103.0)  # two seconds later: as two samples would have done
    assert predictor.average == pytest.approx(-70 + 7 * 0.7**2)


def test_after_fading_it_must_be_5_db_better_for_5_s() -> None:
    predictor = SignalPredictor()
    seen = judge(-80, -80, -80, *[-60] * 20, predictor=predictor)
    average, since = -80.0, 3
    for number in range(3, len(seen)):
        average += 0.3 * (-60 - average)
        if average < -70:
            since = number + 1
        assert (seen[number] is GOOD) is (number - since >= 5), number


def test_just_above_the_threshold_is_not_good_again() -> None:
    assert set(judge(-80, -80, *[-71] * 200)[1:]) == {FADING}


def test_a_dip_during_recovery_starts_the_5_s_again() -> None:
    predictor = SignalPredictor()
    judge(-80, -80, *[-65] * 8, predictor=predictor)
    assert predictor.signal is FADING
    assert predictor.feed(-110, 111.0) is FADING
    assert {predictor.feed(-65, 112.0 + second) for second in range(6)} == {FADING}
    assert predictor.feed(-65, 130.0) is FADING
    assert [predictor.feed(-65, 131.0 + second) for second in range(5)][-2:] == [FADING, GOOD]


@pytest.mark.parametrize("absurd", [0, 1, 127, -120, -128, 1e9, math.nan, math.inf, -math.inf])
def test_values_no_radio_measures_change_nothing(absurd: float) -> None:
    predictor = SignalPredictor()
    judge(-60, -62, predictor=predictor)
    average = predictor.average
    assert [predictor.feed(absurd, 102.0 + second) for second in range(5)] == [GOOD] * 5
    assert predictor.average == average


def test_rapid_samples_do_not_look_like_a_fall() -> None:
    # 1 dB up and down every 10 ms would be a slope of 100 dB/s.
    assert set(judge(*[-71, -72] * 500, interval=0.01)) == {GOOD}


def test_rapid_samples_are_judged_all_the_same() -> None:
    seen = judge(*[-80] * 200, interval=0.01)
    assert seen.index(FADING) == 50


def test_after_a_gap_the_average_starts_again() -> None:
    predictor = SignalPredictor()
    judge(-60, -60, predictor=predictor)
    assert predictor.feed(-90, 200.0) is GOOD
    assert predictor.average == -90
    assert predictor.feed(-90, 201.0) is FADING


def test_a_clock_that_goes_back_starts_the_average_again() -> None:
    predictor = SignalPredictor()
    judge(-80, -80, predictor=predictor)
    assert predictor.feed(-60, 5.0) is FADING
    assert predictor.average == -60
    assert predictor.feed(-60, 10.0) is GOOD


def test_a_new_station_is_measured_anew_but_not_trusted_at_once() -> None:
    predictor = SignalPredictor()
    judge(-85, -85, predictor=predictor)
    predictor.restart()
    assert predictor.average is None
    assert [predictor.feed(-50, 102.0 + second) for second in range(6)] == [FADING] * 5 + [GOOD]


Samples = st.lists(
    st.tuples(
        st.one_of(st.just(1.0), st.floats(0.0, 20.0)),
        st.one_of(
            st.integers(-90, -60).map(float),
            st.floats(-130.0, 10.0),
            st.sampled_from([math.nan, math.inf, -math.inf, -76.0, -71.0, -69.0]),
        ),
    ),
    max_size=200,
)


@given(Samples)
def test_it_does_not_oscillate_faster_than_its_hysteresis(samples: list[tuple[float, float]]) -> None:
    predictor = SignalPredictor()
    now = 0.0
    last = GOOD
    changes: list[tuple[float, Signal]] = []
    averages: list[tuple[float, float]] = []
    for interval, dbm in samples:
        now += interval
        signal = predictor.feed(dbm, now)
        if predictor.average is not None:
            averages.append((now, predictor.average))
        if signal is not last:
            changes.append((now, signal))
            last = signal
    assert [signal for _at, signal in changes] == ([FADING, GOOD] * len(changes))[: len(changes)]
    for (before, _), (after, signal) in pairwise(changes):
        assert after - before >= (5.0 if signal is GOOD else 0.5)
    for after, signal in changes:
        if signal is GOOD:
            assert all(average >= -70 for at, average in averages if after - 5.0 < at <= after)


@given(st.lists(st.tuples(st.floats(0.0, 3.0), st.floats(-69.9, -20.0)), max_size=200))
def test_a_signal_that_stays_above_70_never_fades(samples: list[tuple[float, float]]) -> None:
    predictor, now = SignalPredictor(), 0.0
    for interval, dbm in samples:
        now += interval
        assert predictor.feed(dbm, now) is GOOD


@given(st.floats(-119.0, -75.1), st.lists(st.floats(0.51, 9.9), min_size=1, max_size=20))
def test_a_signal_that_is_weak_fades_whatever_the_rhythm(dbm: float, intervals: list[float]) -> None:
    predictor, now = SignalPredictor(), 0.0
    assert predictor.feed(dbm, now) is GOOD
    for interval in intervals:
        now += interval
        assert predictor.feed(dbm, now) is FADING
