"""Steering: which path each mode takes, and how thresholds take one out and let it back."""

from __future__ import annotations

from itertools import pairwise

import pytest

from multi.errors import ConfigError
from multi.schedulers import create_scheduler, scheduler_names
from multi.schedulers.base import SendRequest
from multi.schedulers.steering import MODES, TRIAL
from multi.types import ConnectionId, StreamId
from tests.unit.schedulers.views import FakeView, view

WIFI, CELLULAR = view(0, rtt=0.01, weight=2.0), view(1)


def request(now: float = 0.0, *, again: bool = False) -> SendRequest:
    return SendRequest(StreamId(0), 3, 1000, 1000, 1 << 20, again, now)


def chosen(mode: str, *views: FakeView, now: float = 0.0, **thresholds: float) -> list[int]:
    scheduler = create_scheduler(f"steering.{mode}", thresholds)
    return [c.id for c in scheduler.select(request(now), views)]


def test_modes_are_made_by_their_names_and_are_no_schedulers_for_people() -> None:
    for mode in MODES:
        assert create_scheduler(f"steering.{mode}", {"max_rtt": 0.1, "max_loss": 0.5})
    assert not [name for name in scheduler_names(aliases=True) if name.startswith("steering")]
    with pytest.raises(ConfigError, match="max_loss"):
        create_scheduler("steering.latency", {"max_loss": 2.0})
    with pytest.raises(ConfigError, match="max_rtt"):
        create_scheduler("steering.latency", {"max_rtt": -1.0})


@pytest.mark.parametrize(
    ("mode", "free", "first_is_full"),
    [
        ("latency", [0], [1]),
        ("priority", [0], [1]),
        ("redundant", [1, 0], [1]),
        ("adaptive", [0], None),
        ("balance", [0], [1]),
        ("standby", [0], []),
    ],
)
def test_each_mode_takes_the_path_it_promises(mode: str, free: list[int], first_is_full: list[int] | None) -> None:
    assert chosen(mode, WIFI, CELLULAR) == free
    busy = WIFI.but(credit=0, in_flight=50_000)
    if first_is_full is not None:
        assert chosen(mode, busy, CELLULAR) == first_is_full


@pytest.mark.parametrize("unsteady", [WIFI.but(rtt_variation=0.006), WIFI.but(loss=0.03)], ids=["rtt", "loss"])
def test_latency_sends_a_lone_small_message_twice_while_the_best_path_is_unsteady(unsteady: FakeView) -> None:
    scheduler = create_scheduler("steering.latency", {})
    assert scheduler.select(request(), (unsteady, CELLULAR)) == (CELLULAR, unsteady)
    alone = request()._replace(backlog=50_000)
    for other in (alone, request()._replace(size=16_384, backlog=16_384), request(again=True)):
        assert scheduler.select(other, (unsteady, CELLULAR)) == (unsteady,)
    full = CELLULAR.but(credit=0)
    assert scheduler.select(request(), (unsteady, full)) == (unsteady,)


def test_the_best_path_has_the_largest_weight_then_is_the_cheapest_then_the_first() -> None:
    for mode in ("priority", "standby"):
        assert chosen(mode, CELLULAR, WIFI.but(id=ConnectionId(2))) == [2]
        assert chosen(mode, CELLULAR.but(cost=1.0), WIFI.but(id=ConnectionId(2), weight=1.0)) == [2]
        assert chosen(mode, CELLULAR, WIFI.but(id=ConnectionId(2), weight=1.0)) == [1]


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("steering.standby", {}),
        ("cost", {"seconds": 60.0}),
        ("top_latency", {"n": 1.0}),
        ("top_throughput", {"n": 1.0}),
    ],
)
def test_who_spares_a_path_waits_for_the_rate_cap_of_the_other(name: str, parameters: dict[str, float]) -> None:
    """A capped path whose bucket was empty and on which nothing was under way was taken for one that does not move."""
    scheduler = create_scheduler(name, parameters)
    spared = CELLULAR.but(cost=1.0, rate=100_000.0)
    assert scheduler.select(request(), (WIFI, spared)) == (WIFI,)
    capped = WIFI.but(credit=0, in_flight=0, held_by_cap=True)
    for passed in range(100):
        assert not list(scheduler.select(request(passed / 10), (capped, spared)))
    assert list(scheduler.select(request(10.0), (capped.but(held_by_cap=False), spared))) == [spared]


def test_standby_takes_over_from_a_path_that_does_not_move() -> None:
    scheduler = create_scheduler("steering.standby", {})
    stuck = WIFI.but(credit=0, in_flight=50_000)
    assert not scheduler.select(request(0.0), (stuck, CELLULAR))
    assert scheduler.select(request(0.5), (stuck, CELLULAR)) == (CELLULAR,)
    assert scheduler.select(request(again=True), (stuck, CELLULAR)) == (CELLULAR,)


@pytest.mark.parametrize("bad", [WIFI.but(rtt=0.2), WIFI.but(loss=0.2)], ids=["rtt", "loss"])
def test_a_path_beyond_a_threshold_is_out_until_it_was_clearly_better_for_a_while(bad: FakeView) -> None:
    scheduler = create_scheduler("steering.priority", {"max_rtt": 0.1, "max_loss": 0.1})
    assert scheduler.select(request(0.0), (WIFI, CELLULAR)) == (WIFI,)
    assert scheduler.select(request(1.0), (bad, CELLULAR)) == (CELLULAR,)
    nearly = WIFI.but(rtt=0.095, loss=0.095)
    assert scheduler.select(request(2.0), (nearly, CELLULAR)) == (CELLULAR,)
    assert scheduler.select(request(4.0), (nearly, CELLULAR)) == (CELLULAR,)
    assert scheduler.select(request(4.1), (WIFI, CELLULAR)) == (CELLULAR,)
    assert scheduler.select(request(5.2), (WIFI, CELLULAR)) == (WIFI,)
    assert scheduler.select(request(5.3), (nearly, CELLULAR)) == (nearly,)


def test_a_path_whose_figures_do_not_change_is_tried_again_less_and_less_often() -> None:
    scheduler = create_scheduler("steering.priority", {"max_rtt": 0.1})
    bad = WIFI.but(rtt=0.2)
    tries = [now for now in range(200) if scheduler.select(request(float(now)), (bad, CELLULAR)) == (bad,)]
    assert tries[0] == TRIAL
    gaps = [later - earlier for earlier, later in pairwise(tries)]
    assert len(tries) <= 5
    assert gaps == sorted(gaps)


def test_thresholds_that_no_path_keeps_bind_nobody_and_lost_bytes_go_anywhere() -> None:
    scheduler = create_scheduler("steering.latency", {"max_rtt": 0.001})
    assert scheduler.select(request(), (WIFI, CELLULAR)) == (WIFI,)
    scheduler = create_scheduler("steering.latency", {"max_rtt": 0.02})
    assert scheduler.select(request(again=True), (CELLULAR,)) == (CELLULAR,)
    late = CELLULAR.but(rtt=0.03)
    assert scheduler.select(request(again=True), (late, late.but(id=ConnectionId(3)))) == (late,)
