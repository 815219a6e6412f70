"""Where acknowledgements travel."""

from __future__ import annotations

import pytest

from multi.multipath.acks import carriers, probe_due
from multi.multipath.facts import PathFacts, PathState
from multi.multipath.policy import AckPath

NEAR, FAR = PathFacts(0, rtt=0.02), PathFacts(1, rtt=0.18)


@pytest.mark.parametrize(
    ("policy", "of", "expected"),
    [
        (AckPath.BEST, NEAR, [0]),
        (AckPath.BEST, FAR, [0]),
        (AckPath.SAME, FAR, [1]),
        (AckPath.ALL, FAR, [0, 1]),
    ],
)
def test_policies(policy: AckPath, of: PathFacts, expected: list[int]) -> None:
    assert carriers(policy, of, [NEAR, FAR], 1.0) == expected


@pytest.mark.parametrize("policy", AckPath)
def test_a_suspect_path_is_acknowledged_on_a_healthy_one_whatever_is_asked(policy: AckPath) -> None:
    suspect = NEAR._replace(state=PathState.SUSPECT)
    assert carriers(policy, suspect, [suspect, FAR], 1.0) == [1]


@pytest.mark.parametrize("policy", AckPath)
def test_with_suspect_paths_only_each_is_acknowledged_on_its_own(policy: AckPath) -> None:
    suspects = [path._replace(state=PathState.SUSPECT) for path in (NEAR, FAR)]
    assert carriers(policy, suspects[1], suspects, 1.0) == [1]


@pytest.mark.parametrize("policy", AckPath)
def test_late_packets_of_an_abandoned_path_are_acknowledged_on_another(policy: AckPath) -> None:
    assert carriers(policy, FAR._replace(state=PathState.ABANDONED), [NEAR], 1.0) == [0]


def test_a_path_that_is_hardly_nearer_does_not_take_them_over() -> None:
    assert carriers(AckPath.BEST, NEAR, [NEAR, PathFacts(1, rtt=0.019)], 1.0) == [0]
    assert carriers(AckPath.BEST, FAR, [NEAR._replace(rtt=0.0), FAR], 1.0) == [1]
    assert carriers(AckPath.BEST, NEAR._replace(rtt=0.0), [NEAR._replace(rtt=0.0), FAR], 1.0) == [1]


def test_a_near_path_from_which_nothing_comes_any_more_does_not_take_them_over() -> None:
    """Who only receives does not know yet that it is dead."""
    assert carriers(AckPath.BEST, FAR, [NEAR._replace(heard_at=0.99), FAR], 1.0) == [0]
    assert carriers(AckPath.BEST, FAR, [NEAR._replace(heard_at=0.97), FAR], 1.0) == [1]
    assert carriers(AckPath.BEST, NEAR, [NEAR._replace(heard_at=0.97), FAR._replace(heard_at=0.8)], 1.0) == [0]


def test_a_slow_path_is_heard_as_seldom_as_usual() -> None:
    slow = NEAR._replace(heard_at=0.9, pause=0.08)
    assert carriers(AckPath.BEST, FAR, [slow, FAR], 1.0) == [0]
    assert carriers(AckPath.BEST, FAR, [slow._replace(heard_at=0.83), FAR], 1.0) == [1]


def test_a_path_that_was_silent_for_long_of_late_does_not_take_them_over_with_each_burst() -> None:
    bursts = NEAR._replace(heard_at=1.0, pause=0.15)
    assert carriers(AckPath.BEST, FAR, [bursts, FAR], 1.0) == [1]
    assert carriers(AckPath.BEST, bursts, [bursts, FAR], 1.0) == [0]


def test_a_backup_does_not_take_them_over_but_acknowledges_what_comes_there() -> None:
    backup = NEAR._replace(backup=True)
    assert carriers(AckPath.BEST, FAR, [backup, FAR], 1.0) == [1]
    assert carriers(AckPath.SAME, backup, [backup, FAR], 1.0) == [0]


def test_acknowledgements_ask_for_one_about_once_a_round_trip() -> None:
    assert probe_due(1.0, 0.2, 1.2)
    assert not probe_due(1.0, 0.2, 1.19)
    assert not probe_due(1.0, 0.001, 1.05)
