"""Which path gets the next bytes: every scheduler of the session is asked about paths as about connections."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import pytest

from multi.multipath.facts import PathFacts, PathState
from multi.multipath.scheduling import LOOK, PathView, Progress, choose, overtaken_at, runs_dry, usable, view_of
from multi.schedulers import create_scheduler, scheduler_names
from multi.schedulers.estimates import STALL, arrival
from multi.types import ConnectionId, Role

NEAR = PathView(ConnectionId(0), credit=30_000, congestion_window=50_000, rtt=0.02, min_rtt=0.02, rate=2.5e6)
FAR = PathView(ConnectionId(1), credit=30_000, congestion_window=50_000, rtt=0.18, min_rtt=0.18, rate=2.5e6)


def test_backups_and_paths_that_do_not_answer_carry_nothing_while_others_can() -> None:
    healthy, backup = PathFacts(0), PathFacts(1, backup=True)
    suspect, new = PathFacts(2, PathState.SUSPECT), PathFacts(3, PathState.VALIDATING)
    assert usable([suspect, backup, new, healthy]) == [healthy]
    assert usable([suspect, backup, new]) == [backup]
    assert usable([suspect, new]) == []


def test_a_path_looks_like_a_connection() -> None:
    facts = PathFacts(5, backup=True, rtt=0.03, min_rtt=0.02, congestion_window=20_000, bytes_in_flight=7000)
    view = view_of(facts, rate=1e6, credit=13_000)
    assert (view.id, view.role, view.credit, view.in_flight) == (5, Role.BACKUP, 13_000, 7000)
    assert (view.rtt, view.min_rtt, view.rate, view.congestion_window) == (0.03, 0.02, 1e6, 20_000)


@pytest.mark.parametrize("name", scheduler_names())
def test_every_scheduler_chooses_among_paths(name: str) -> None:
    chosen = choose(create_scheduler(name, {}), [NEAR, FAR], 10_000, 1_000_000, now=1.0)
    assert chosen
    assert set(chosen) <= {0, 1}
    if name == "redundant":
        assert chosen == [0, 1]


def test_what_fits_the_near_path_does_not_go_on_the_far_one() -> None:
    scheduler = create_scheduler("adaptive", {})
    assert choose(scheduler, [NEAR, FAR], 5000, 5000, now=1.0) == [0]
    blocked = NEAR._replace(credit=0, in_flight=50_000)
    assert choose(scheduler, [blocked, FAR], 5000, 5000, now=1.0) == []


def test_nobody_is_asked_about_one_path_or_none_with_room() -> None:
    class Never:
        def select(self, request: object, connections: object) -> tuple[()]:
            raise AssertionError

    assert choose(Never(), [NEAR], 1, 1, now=0.0) == [0]
    assert choose(Never(), [NEAR._replace(credit=0), FAR._replace(credit=0)], 1, 1, now=0.0) == []


def test_what_a_path_carries_is_overtaken_once_another_delivers_it_in_half_the_time_left() -> None:
    assert overtaken_at(FAR, 1.0, NEAR, 1000) == -inf  # 90 ms away, and 10
    expected = 1.0 + NEAR.rtt + 2 * arrival(FAR, 1000) - NEAR.rtt / 2
    assert overtaken_at(NEAR, 1.0, FAR, 1000) == pytest.approx(expected)


def test_paths_that_are_alike_do_not_overtake_each_other_within_a_round_trip() -> None:
    other = NEAR._replace(id=ConnectionId(1))
    assert overtaken_at(NEAR, 1.0, other, 1000) > 1.0 + NEAR.rtt


def test_a_way_back_over_another_path_makes_no_copy_due() -> None:
    """What came back over a path whose way there is longer seemed to be late, and was all sent again at once."""
    expected = pytest.approx(overtaken_at(NEAR, 1.0, FAR, 1000))
    assert overtaken_at(NEAR._replace(asymmetry=0.1), 1.0, FAR, 1000) == expected
    assert overtaken_at(NEAR, 1.0, FAR._replace(asymmetry=-0.1), 1000) == expected


def test_a_near_path_runs_dry_in_its_round_trip_and_before_the_far_one_delivers() -> None:
    assert runs_dry(NEAR, 0, FAR, 1.0, now=1.0)
    assert runs_dry(NEAR, NEAR.congestion_window, FAR, 1.0, now=1.0)
    assert not runs_dry(NEAR, NEAR.congestion_window + 1, FAR, 1.0, now=1.0)
    assert not runs_dry(NEAR, 30_000, FAR, 1.0, now=1.08)  # 10 ms before it comes; 30,000 bytes take 12
    assert runs_dry(NEAR, 20_000, FAR, 1.0, now=1.08)
    assert runs_dry(NEAR, 30_000, FAR, 1.0, now=1.11)  # late by 20 ms


def watched(until: float) -> Progress:
    """Little of stream 0 has come in order, as often as it is looked at until then."""
    progress = Progress()
    for step in range(round(until / LOOK) + 1):
        progress.look([(0, 1000, 100_000)], [NEAR, FAR], step * LOOK)
    return progress


def far_has(sent_at: float) -> Callable[[int], tuple[float, int] | None]:
    """A packet of 1,350 bytes is on its way since then."""
    return {int(FAR.id): (sent_at, 1350)}.get


LATE = far_has(-0.5)
"""It should have come when the looks begin."""


def test_what_a_slow_path_holds_up_for_long_goes_on_another() -> None:
    assert watched(STALL - LOOK).rescue([NEAR, FAR], LATE, STALL) is None, "not yet"
    progress = watched(STALL + LOOK)
    assert progress.rescue([NEAR, FAR], LATE, STALL + LOOK) == (FAR, NEAR)
    full = NEAR._replace(credit=1000)
    assert progress.rescue([full, FAR], LATE, STALL + LOOK) is None, "it has no room"
    assert progress.rescue([NEAR, FAR], far_has(0.1), STALL + LOOK) is None, "it is not late"
    assert progress.rescue([NEAR, FAR], lambda path: None, STALL + LOOK) is None
    assert progress.rescue([NEAR, FAR], LATE, STALL + LOOK) is None, "all of it had come"


def test_what_left_after_the_reader_had_begun_to_wait_stays_where_it_is() -> None:
    progress, later = watched(STALL + LOOK), STALL + 2 * LOOK
    assert progress.rescue([NEAR, FAR], far_has(later), later + 1.0) is None


def test_a_reader_of_whom_much_comes_waits_for_nothing() -> None:
    progress = Progress()
    for step in range(50):
        progress.look([(0, step * 1000, 20_000 + step * 1000)], [NEAR, FAR], step * LOOK)
    assert progress.rescue([NEAR, FAR], LATE, 1.0) is None
    progress.look([], [NEAR, FAR], 1.0)
    assert progress.rescue([NEAR, FAR], LATE, 1.0) is None
    trickles = Progress()
    for step in range(50):
        trickles.look([(0, step * 10, 20_000 + step * 1000)], [NEAR, FAR], step * LOOK)
    assert trickles.rescue([NEAR, FAR], LATE, 1.0) == (FAR, NEAR), "a trickle is nothing"


def test_a_path_is_slowed_that_takes_more_than_twice_its_least() -> None:
    progress = watched(0.0)
    assert progress.due(LOOK)
    assert not progress.due(LOOK / 2)
    assert not progress.slowed(FAR)
    assert not progress.slowed(FAR._replace(rtt=0.35))
    assert progress.slowed(FAR._replace(rtt=0.37))
    assert not progress.slowed(PathView(ConnectionId(7), rtt=9.0)), "it was never looked at"
