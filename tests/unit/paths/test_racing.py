"""When candidates are started: one after the other, together, or a moment apart."""

from __future__ import annotations

import pytest

from multi.paths.racing import ATTEMPT_DELAY, SEQUENTIAL_TIMEOUT, ConnectMode, Race
from multi.types import Candidate, Family

FIRST, SECOND, THIRD = (
    Candidate("tcp", Family.IPV4, "server.example", f"192.0.2.{number}", 7788, entry=number) for number in range(3)
)
ALL = (FIRST, SECOND, THIRD)


def starts(race: Race, until: float = 20.0, step: float = 0.01) -> list[tuple[float, Candidate]]:
    """What starts when, while nobody answers."""
    found = []
    for tick in range(int(until / step)):
        now = tick * step
        found += [(now, candidate) for candidate in race.due(now)]
    return found


def test_parallel_starts_all_at_once() -> None:
    race = Race(ALL, ConnectMode.PARALLEL, 0.0, [])
    assert race.due(0.0) == list(ALL)
    assert race.next_timer() is None


def test_staggered_starts_the_next_a_quarter_of_a_second_later() -> None:
    assert starts(Race(ALL, ConnectMode.STAGGERED, 0.0, [])) == [
        (0.0, FIRST),
        (pytest.approx(ATTEMPT_DELAY), SECOND),
        (pytest.approx(2 * ATTEMPT_DELAY), THIRD),
    ]


def test_sequential_waits_longer_than_a_lost_packet_takes_to_be_repeated() -> None:
    assert [at for at, _ in starts(Race(ALL, ConnectMode.SEQUENTIAL, 0.0, []))] == [
        0.0,
        pytest.approx(SEQUENTIAL_TIMEOUT),
        pytest.approx(2 * SEQUENTIAL_TIMEOUT),
    ]


@pytest.mark.parametrize("mode", [ConnectMode.SEQUENTIAL, ConnectMode.STAGGERED])
def test_after_a_failure_the_next_starts_at_once(mode: ConnectMode) -> None:
    race = Race(ALL, mode, 0.0, [])
    assert race.due(0.0) == [FIRST]
    race.ended(0.05)
    assert race.next_timer() == 0.05
    assert race.due(0.05) == [SECOND]


def test_once_somebody_has_answered_staggered_starts_all_the_others() -> None:
    race = Race(ALL, ConnectMode.STAGGERED, 0.0, [])
    race.due(0.0)
    race.ended(0.04, won=True)
    assert race.due(0.04) == [SECOND, THIRD]


def test_sequential_goes_on_one_by_one_after_a_success() -> None:
    race = Race(ALL, ConnectMode.SEQUENTIAL, 0.0, [])
    race.due(0.0)
    race.ended(0.04, won=True)
    assert race.due(0.04) == [SECOND]


def test_an_alternative_of_a_winner_is_never_started() -> None:
    race = Race(ALL, ConnectMode.STAGGERED, 0.0, [])
    race.due(0.0)
    race.skip(SECOND)
    race.skip(SECOND)
    race.ended(0.04, won=True)
    assert race.due(0.04) == [THIRD]
    assert not race.holds(SECOND)


def test_what_becomes_known_later_has_its_turn_after_the_others_and_only_once() -> None:
    race = Race([FIRST], ConnectMode.STAGGERED, 0.0, [])
    race.due(0.0)
    race.ended(0.1)
    assert race.finished
    race.add([SECOND, THIRD], 5.0)
    race.add([SECOND], 5.0)
    assert race.due(5.0) == [SECOND]
    assert race.next_timer() == pytest.approx(5.0 + ATTEMPT_DELAY)


def test_a_race_is_over_when_all_have_succeeded_or_failed() -> None:
    race = Race(ALL, ConnectMode.PARALLEL, 0.0, [])
    assert not race.finished
    race.due(0.0)
    race.ended(0.1, won=True)
    race.ended(0.2)
    assert not race.finished
    race.ended(0.3)
    assert race.finished
