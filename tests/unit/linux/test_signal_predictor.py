"""When a radio link counts as fading, and when as good again."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multi.linux.wifi_signal import SignalPredictor

GOOD, FADING = False, True


def judge(*values: float, predictor: SignalPredictor | None = None) -> list[bool]:
    predictor = predictor or SignalPredictor()
    return [predictor.feed(dbm) for dbm in values]


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
    predictor.feed(-70)
    assert predictor.average == pytest.approx(-70 + 7 * 0.7)


def test_after_fading_it_must_be_5_db_better_for_5_s() -> None:
    seen = judge(-80, -80, -80, *[-60] * 20)
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
    assert predictor.fading
    assert predictor.feed(-110) is FADING
    seen = judge(*[-65] * 15, predictor=predictor)
    assert seen.index(GOOD) >= 6
    assert set(seen[seen.index(GOOD) :]) == {GOOD}


def test_a_new_station_is_measured_anew_but_not_trusted_at_once() -> None:
    predictor = SignalPredictor()
    judge(-85, -85, predictor=predictor)
    predictor.restart()
    assert predictor.average is None
    assert judge(*[-50] * 6, predictor=predictor) == [FADING] * 5 + [GOOD]


@given(
    st.lists(st.one_of(st.integers(-90, -60).map(float), st.sampled_from([-119.0, -76.0, -71.0, -1.0])), max_size=200)
)
def test_it_does_not_oscillate_faster_than_its_hysteresis(samples: list[float]) -> None:
    predictor = SignalPredictor()
    last = GOOD
    changes: list[tuple[int, bool]] = []
    averages: list[float] = []
    for number, dbm in enumerate(samples):
        fading = predictor.feed(dbm)
        assert predictor.average is not None
        averages.append(predictor.average)
        if fading is not last:
            changes.append((number, fading))
            last = fading
    assert [fading for _at, fading in changes] == ([FADING, GOOD] * len(changes))[: len(changes)]
    for (before, _), (after, fading) in pairwise(changes):
        assert after - before >= (2 if fading else 6)
    for after, fading in changes:
        assert fading or all(average >= -70 for average in averages[after - 5 : after + 1])


@given(st.lists(st.floats(-69.9, -20.0), max_size=200))
def test_a_signal_that_stays_above_70_never_fades(samples: list[float]) -> None:
    assert FADING not in judge(*samples)


@given(st.floats(-119.0, -75.1), st.integers(1, 20))
def test_a_signal_that_is_weak_fades(dbm: float, count: int) -> None:
    assert judge(*[dbm] * (1 + count)) == [GOOD] + [FADING] * count
