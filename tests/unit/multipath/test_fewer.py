"""One path or all, where the processor is the limit: a model of what comes over either."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise

from multi.multipath.fewer import FIRST_WAIT, LOOK, MAX_WAIT, MOMENT, PATIENCE, PAUSE, WINDOW, FewerPaths

MBYTE = 1_000_000
TRIAL = (WINDOW + 2) * LOOK  # seconds that one takes at most, where a window tells
SOON = (MOMENT + 1) * LOOK  # seconds in which it is seen that one path is not enough any more


class Machine:
    """What paths carry and what it costs, as long as nobody changes `both`, `alone` or `busy`."""

    def __init__(self, both: tuple[float, ...], alone: tuple[float, ...], busy: float = 0.8) -> None:
        """Bytes per second of each path: of all together, and of each alone."""
        self.both, self.alone, self.busy = both, alone, busy
        self.fewer = FewerPaths()
        self.now, self.processor = 100.0, 5.0
        self.carried: dict[int, float] = dict.fromkeys(range(len(both)), 0.0)
        self.history: list[tuple[float, int | None]] = []

    @property
    def rates(self) -> Mapping[int, float]:
        only = self.fewer.only
        if only is None:
            return dict(enumerate(self.both))
        return {path: self.alone[path] if path == only else 0.0 for path in self.carried}

    def run(self, seconds: float, noise: Callable[[float], float] = lambda _: 1.0) -> None:
        """So long, with a look whenever one is due."""
        until = self.now + seconds
        while self.now < until:
            self.now += LOOK
            self.processor += self.busy * LOOK
            for path, rate in self.rates.items():
                self.carried[path] += rate * LOOK * noise(self.now)
            before = self.fewer.only
            self.fewer.look(self.now, self.processor, {path: int(bytes_) for path, bytes_ in self.carried.items()})
            if self.fewer.only != before:
                self.history.append((self.now, self.fewer.only))

    @property
    def shares(self) -> list[int | None]:
        return [only for _, only in self.history]


def test_one_path_is_used_where_it_carries_as_much() -> None:
    machine = Machine(both=(8 * MBYTE, 4 * MBYTE), alone=(13 * MBYTE, 13 * MBYTE))
    machine.run(2 * TRIAL)
    assert machine.shares == [0], "the one that carried most"
    machine.run(FIRST_WAIT / 2)
    assert machine.shares == [0]


def test_all_paths_are_used_again_where_one_carries_less() -> None:
    machine = Machine(both=(5 * MBYTE, 4 * MBYTE), alone=(5 * MBYTE, 4 * MBYTE))
    machine.run(4.0)
    assert machine.shares == [0, None]
    (begin, _), (end, _) = machine.history
    assert round((end - begin) / LOOK) == MOMENT + 2, "where it is clear a moment is enough"
    machine.run(20 * MAX_WAIT)
    tried = [at for at, only in machine.history if only is not None]
    assert [only for only in machine.shares if only is not None][:4] == [0, 1, 0, 1], "in turn"
    waits = [round((after - before) / FIRST_WAIT) for before, after in pairwise(tried)]
    assert waits[:5] == [2, 4, 8, 8, 8]
    assert MAX_WAIT == 8 * FIRST_WAIT
    carried = sum(machine.carried.values()) / (machine.now - 100.0)
    assert carried > 0.99 * sum(machine.both)


def test_the_path_that_carries_most_may_be_the_one_that_is_not_enough() -> None:
    machine = Machine(both=(7 * MBYTE, 4 * MBYTE), alone=(7 * MBYTE, 13 * MBYTE))
    machine.run(2 * FIRST_WAIT + 4 * TRIAL)
    assert machine.shares == [0, None, 1]


def test_the_nearest_of_those_that_carry_much_is_tried_first() -> None:
    near = Machine(both=(4 * MBYTE, 7 * MBYTE), alone=(13 * MBYTE, 12 * MBYTE))
    near.run(2 * TRIAL)
    assert near.shares == [0]
    far = Machine(both=(3 * MBYTE, 7 * MBYTE), alone=(3 * MBYTE, 12 * MBYTE))
    far.run(2 * TRIAL)
    assert far.shares == [1]


def test_a_little_less_over_one_path_is_worth_it_and_noise_is_no_reason_to_change() -> None:
    machine = Machine(both=(8 * MBYTE, 4 * MBYTE), alone=(11.8 * MBYTE, 11 * MBYTE))
    machine.run(FIRST_WAIT, noise=lambda now: 1.15 if round(now / LOOK) % 2 else 0.85)
    assert machine.shares == [0]


def test_what_is_not_clear_is_looked_at_for_longer() -> None:
    machine = Machine(both=(8 * MBYTE, 4 * MBYTE), alone=(13 * MBYTE, 13 * MBYTE))
    machine.run(0.8)
    assert machine.shares == [0]
    machine.run(TRIAL, noise=lambda now: 0.78)  # others need the machine for a moment
    machine.run(TRIAL)
    assert machine.shares == [0]
    half = Machine(both=(6 * MBYTE, 4 * MBYTE), alone=(8 * MBYTE, 8 * MBYTE))
    half.run(FIRST_WAIT)
    assert half.shares == [0, None]
    assert round((half.history[1][0] - half.history[0][0]) / LOOK) == PATIENCE + 2


def test_nothing_is_tried_where_one_path_carries_nearly_all_as_it_is() -> None:
    machine = Machine(both=(12 * MBYTE, MBYTE), alone=(13 * MBYTE, 13 * MBYTE))
    machine.run(FIRST_WAIT)
    assert machine.shares == []
    machine.both = (9 * MBYTE, 3 * MBYTE)
    machine.run(TRIAL)
    assert machine.shares == [0]


def test_nothing_is_tried_while_windows_open() -> None:
    machine = Machine(both=(5 * MBYTE, 4 * MBYTE), alone=(5 * MBYTE, 4 * MBYTE))
    machine.run(2.5, noise=lambda now: 1.4 ** ((now - 102.5) / LOOK))
    assert machine.shares == []
    machine.run(TRIAL, noise=lambda now: 1.0)
    assert machine.shares == [0, None]


def test_nothing_is_tried_where_the_processor_has_little_to_do() -> None:
    machine = Machine(both=(2 * MBYTE, MBYTE), alone=(3 * MBYTE, 3 * MBYTE), busy=0.4)
    machine.run(MAX_WAIT)
    assert machine.shares == []


def test_all_paths_are_used_at_once_when_the_processor_has_less_to_do() -> None:
    machine = Machine(both=(8 * MBYTE, 4 * MBYTE), alone=(13 * MBYTE, 13 * MBYTE))
    machine.run(2 * TRIAL)
    assert machine.shares == [0]
    machine.alone, machine.busy = (5 * MBYTE, 13 * MBYTE), 0.4  # the network has become slow
    machine.run(SOON)
    assert machine.shares == [0, None]


def test_all_paths_are_tried_now_and_then_and_kept_where_they_carry_more() -> None:
    machine = Machine(both=(8 * MBYTE, 4 * MBYTE), alone=(13 * MBYTE, 13 * MBYTE))
    machine.run(2 * FIRST_WAIT + 2 * TRIAL)
    assert machine.shares[:3] == [0, None, 0], "they were tried, and carried less"
    machine.both = (12 * MBYTE, 6 * MBYTE)  # others leave more of the machine
    machine.history.clear()
    machine.run(2 * FIRST_WAIT + 2 * TRIAL)
    assert machine.shares[:1] == [None]
    at = machine.history[0][0]
    assert len(machine.history) == 1 or machine.history[1][0] >= at + FIRST_WAIT


def test_all_paths_are_used_at_once_when_the_one_brings_half_as_much_though_others_keep_the_processor_busy() -> None:
    machine = Machine(both=(8 * MBYTE, 4 * MBYTE), alone=(13 * MBYTE, 13 * MBYTE))
    machine.run(2 * TRIAL)
    machine.alone = (6 * MBYTE, 13 * MBYTE)
    machine.run(SOON)
    assert machine.shares == [0, None]


def test_what_is_little_is_no_reason_whatever_else_keeps_the_processor_busy() -> None:
    machine = Machine(both=(0.1 * MBYTE, 0.1 * MBYTE), alone=(0.2 * MBYTE, 0.2 * MBYTE))
    machine.run(MAX_WAIT)
    assert machine.shares == []
    machine.both, machine.alone = (5 * MBYTE, 4 * MBYTE), (13 * MBYTE, 13 * MBYTE)
    machine.run(2 * TRIAL)
    assert machine.shares == [0]
    machine.alone = (0.2 * MBYTE, 0.2 * MBYTE)
    machine.run(SOON)
    assert machine.shares == [0, None]


def test_a_processor_that_was_busy_for_a_moment_is_no_limit() -> None:
    machine = Machine(both=(2 * MBYTE, MBYTE), alone=(3 * MBYTE, 3 * MBYTE))
    machine.run(0.8)
    assert machine.shares == [0]
    machine.busy = 0.2
    machine.run(2 * TRIAL)
    assert machine.shares == [0, None]


def test_a_path_that_carries_little_never_has_its_turn() -> None:
    machine = Machine(both=(5 * MBYTE, 5 * MBYTE, 0.1 * MBYTE), alone=(5 * MBYTE, 5 * MBYTE, 0.1 * MBYTE))
    machine.run(3 * MAX_WAIT)
    assert set(machine.shares) == {0, 1, None}
    machine.both = (10 * MBYTE, 0.1 * MBYTE, 0.1 * MBYTE)
    machine.history.clear()
    machine.run(3 * MAX_WAIT)
    assert machine.shares == []


def test_a_pause_in_the_middle_puts_the_next_trial_off() -> None:
    machine = Machine(both=(5 * MBYTE, 4 * MBYTE), alone=(8 * MBYTE, 8 * MBYTE))
    for _ in range(10):
        machine.run(1.6)
        machine.now += 2 * PAUSE
    assert machine.shares.count(0) <= 3


def test_others_are_used_where_paths_come_or_go() -> None:
    machine = Machine(both=(8 * MBYTE, 4 * MBYTE), alone=(13 * MBYTE, 13 * MBYTE))
    machine.run(2 * TRIAL)
    assert machine.fewer.only == 0
    machine.now += LOOK
    machine.fewer.look(machine.now, machine.processor, {1: int(machine.carried[1])})
    assert machine.fewer.only is None
    machine.now += 10 * LOOK
    machine.fewer.look(machine.now, machine.processor + 10.0, {1: int(machine.carried[1]) + 50 * MBYTE})
    assert machine.fewer.only is None, "there is but one"


def test_a_pause_ends_it() -> None:
    machine = Machine(both=(8 * MBYTE, 4 * MBYTE), alone=(13 * MBYTE, 13 * MBYTE))
    machine.run(2 * TRIAL)
    assert machine.fewer.only == 0
    machine.now += 2 * PAUSE
    machine.run(LOOK)
    assert machine.fewer.only is None


def test_a_look_is_due_ten_times_a_second() -> None:
    fewer = FewerPaths()
    fewer.look(10.0, 0.0, {0: 0, 1: 0})
    assert not fewer.due(10.0 + LOOK * 0.9)
    assert fewer.due(10.0 + LOOK)
