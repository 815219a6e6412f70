"""Which paths a client wants as its networks come and go."""

from __future__ import annotations

from multi.multipath.facts import PathError
from multi.multipath.keeper import (
    FLAP,
    RETRY_FIRST,
    AbandonPath,
    OpenPath,
    PathKeeper,
    SetBackup,
    SuspectPath,
)
from multi.types import Source

WIFI, CELLULAR = Source("wlan0", "10.0.0.2", "wifi"), Source("wwan0", "10.9.0.2", "cellular")
TRIAL = 0.2


def both_open() -> PathKeeper:
    keeper = PathKeeper(WIFI, TRIAL)
    keeper.use([WIFI, CELLULAR], 0.0)
    assert keeper.effects() == [OpenPath(CELLULAR, backup=False)]
    keeper.opened(CELLULAR, 1, 0.0)
    keeper.validated(1, 0.1)
    assert keeper.effects() == []
    assert keeper.next_timer() is None
    return keeper


def test_a_path_is_opened_over_every_network_at_once() -> None:
    both_open()


def test_a_lost_carrier_is_acted_upon_at_once_and_the_path_outlives_a_flap() -> None:
    keeper = both_open()
    keeper.network_lost("wlan0", "", 1.0)
    assert keeper.effects() == [SuspectPath(0), SetBackup(0, True)]
    keeper.use([CELLULAR], 1.01)
    assert keeper.effects() == []
    keeper.use([WIFI, CELLULAR], 1.5)
    assert keeper.effects() == []
    assert keeper.next_timer() == 1.5 + TRIAL
    keeper.handle_timer(1.5 + TRIAL)
    assert keeper.effects() == [SetBackup(0, False)]
    assert keeper.next_timer() is None


def test_a_network_that_stays_away_takes_its_path_along_and_gets_a_new_one_on_trial() -> None:
    keeper = both_open()
    keeper.network_lost("wlan0", "", 1.0)
    keeper.use([CELLULAR], 1.01)
    keeper.effects()
    assert keeper.next_timer() == 1.0 + FLAP
    keeper.handle_timer(1.0 + FLAP)
    assert keeper.effects() == [AbandonPath(WIFI, 0, PathError.PATH_UNSTABLE_OR_POOR)]
    assert keeper.next_timer() is None
    keeper.use([WIFI, CELLULAR], 9.0)
    assert keeper.effects() == [OpenPath(WIFI, backup=True)]
    keeper.opened(WIFI, 2, 9.0)
    keeper.validated(2, 9.05)
    keeper.handle_timer(9.05 + TRIAL)
    assert keeper.effects() == [SetBackup(2, False)]


def test_a_removed_address_ends_its_path_at_once() -> None:
    keeper = both_open()
    keeper.network_lost("wlan0", "10.0.0.99", 1.0)
    assert keeper.effects() == []
    keeper.network_lost("wlan0", "10.0.0.2", 1.0)
    assert keeper.effects() == [SuspectPath(0), AbandonPath(WIFI, 0, PathError.PATH_UNSTABLE_OR_POOR)]


def test_an_interface_with_a_new_address_gets_a_new_path() -> None:
    keeper = both_open()
    moved = Source("wlan0", "10.0.7.7", "wifi")
    keeper.network_lost("wlan0", "10.0.0.2", 1.0)
    keeper.effects()
    keeper.use([moved, CELLULAR], 1.1)
    assert keeper.effects() == [OpenPath(moved, backup=False)]


def test_the_last_path_is_never_abandoned() -> None:
    keeper = PathKeeper(WIFI, TRIAL)
    keeper.network_lost("wlan0", "10.0.0.2", 1.0)
    keeper.handle_timer(100.0)
    assert keeper.effects() == [SuspectPath(0), SetBackup(0, True)]
    assert keeper.next_timer() is None
    keeper.use([CELLULAR], 101.0)
    assert keeper.effects() == [OpenPath(CELLULAR, backup=False)]
    keeper.opened(CELLULAR, 1, 101.0)
    assert keeper.effects() == [AbandonPath(WIFI, 0, PathError.PATH_UNSTABLE_OR_POOR)]


def test_trials_become_longer_with_losses_that_follow_closely() -> None:
    keeper, now, trials = both_open(), 1.0, []
    for _ in range(4):
        keeper.network_lost("wlan0", "", now)
        keeper.use([WIFI, CELLULAR], now + 0.1)
        due = keeper.next_timer()
        assert due is not None
        trials.append(round(due - now - 0.1, 3))
        now += 1.0
        keeper.handle_timer(now)
    assert trials == [0.2, 0.4, 0.6, 0.6]


def test_a_path_that_cannot_be_opened_is_tried_again_less_and_less_often() -> None:
    keeper = PathKeeper(WIFI, TRIAL)
    keeper.use([WIFI, CELLULAR], 0.0)
    keeper.effects()
    keeper.not_opened(CELLULAR, 0.0)
    assert keeper.next_timer() == RETRY_FIRST
    keeper.handle_timer(RETRY_FIRST)
    assert keeper.effects() == [OpenPath(CELLULAR, backup=False)]
    keeper.opened(CELLULAR, 1, RETRY_FIRST)
    keeper.closed(1, 6.0)  # nobody answered
    assert keeper.effects() == []
    assert keeper.next_timer() == 6.0 + 2 * RETRY_FIRST


def test_a_network_that_is_blocked_is_left_at_once() -> None:
    keeper = both_open()
    keeper.use([CELLULAR], 1.0, {"wlan0"})
    assert keeper.effects() == [SuspectPath(0), AbandonPath(WIFI, 0, PathError.PATH_UNSTABLE_OR_POOR)]
    keeper.use([WIFI, CELLULAR], 2.0)
    assert keeper.effects() == [OpenPath(WIFI, backup=True)]


def test_a_fading_network_stands_back_while_it_lasts() -> None:
    keeper = both_open()
    keeper.signal_changed("wlan0", True, 1.0)
    assert keeper.effects() == [SetBackup(0, True)]
    keeper.signal_changed("wlan0", True, 1.1)
    assert keeper.effects() == []
    keeper.signal_changed("wlan0", False, 2.0)
    assert keeper.effects() == [SetBackup(0, False)]


def test_after_a_sleep_every_path_has_to_answer_first() -> None:
    keeper = both_open()
    keeper.use([WIFI, CELLULAR, Source("eth0", "10.1.0.2", "cable")], 1.0)
    keeper.effects()
    keeper.slept()
    assert keeper.effects() == [SuspectPath(0), SuspectPath(1)], "the third is not open yet"


def test_a_handover_makes_all_others_backups_and_is_taken_back() -> None:
    keeper = both_open()
    assert (keeper.answered({"eth0"}), keeper.answered({"eth0", "wwan0"})) == ([], [1])
    keeper.prefer({"wwan0"}, 1.0)
    assert keeper.effects() == [SetBackup(0, True)]
    keeper.prefer({"wlan0"}, 2.0)
    assert keeper.effects() == [SetBackup(0, False), SetBackup(1, True)]
    keeper.prefer({"wlan0", "wwan0"}, 3.0)
    assert keeper.effects() == [SetBackup(1, False)]


def test_a_path_that_was_opened_too_late_is_given_up() -> None:
    keeper = PathKeeper(WIFI, TRIAL)
    keeper.use([WIFI, CELLULAR], 0.0)
    keeper.effects()
    keeper.use([WIFI], 0.1)
    keeper.opened(CELLULAR, 1, 3.0)
    assert keeper.effects() == [AbandonPath(CELLULAR, 1, PathError.NO_ERROR)]


def test_one_path_is_used_alone_as_long_as_it_is_to_carry_data() -> None:
    keeper = both_open()
    keeper.use_only(1)
    assert keeper.effects() == [SetBackup(0, True)]
    assert keeper.carrying() == [0, 1]
    keeper.prefer({"wlan0"}, 1.0)
    assert keeper.effects() == [SetBackup(0, False), SetBackup(1, True)], "a handover is at once"
    assert keeper.carrying() == [0]
    keeper.prefer((), 2.0)
    assert keeper.effects() == [SetBackup(0, True), SetBackup(1, False)]
    keeper.signal_changed("wwan0", True, 3.0)
    assert keeper.effects() == [SetBackup(0, False), SetBackup(1, True)]
    keeper.signal_changed("wwan0", False, 3.1)
    assert keeper.effects() == [SetBackup(0, True), SetBackup(1, False)]
    keeper.closed(1, 4.0)
    assert SetBackup(0, False) in keeper.effects()


def test_all_paths_are_used_again() -> None:
    keeper = both_open()
    keeper.use_only(0)
    assert keeper.effects() == [SetBackup(1, True)]
    keeper.use_only(None)
    assert keeper.effects() == [SetBackup(1, False)]
