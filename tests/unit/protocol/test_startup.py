"""Whether a congestion control is kept in its startup, by what its transport says every ten milliseconds."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest

from multi.protocol.startup import KEPT_TRIPS, LEAVES_TRIPS, Startup

LOOK = 0.010  # seconds
RATE = 1e6  # bytes per second
RTT = 0.100  # seconds


class Looks:
    def __init__(self) -> None:
        self.now = 0.0
        self._startup = Startup()

    def look(self, *, rate: float = RATE, limited: bool = True, queues: bool = True, waits: bool = True) -> bool:
        self.now += LOOK
        return self._startup.kept(self.now, rate, RTT, limited=limited, queues=queues, waits=waits)

    def trips(self, kept: bool, **said: Any) -> float:
        """Round trips until it says so; infinite if it does not within a hundred."""
        began = self.now
        while self.now < began + 100 * RTT:
            if self.look(**said) is kept:
                return (self.now - began) / RTT
        return inf


def test_it_is_after_some_round_trips_without_growth_in_which_it_got_too_little() -> None:
    assert KEPT_TRIPS <= Looks().trips(True) < KEPT_TRIPS + 0.3


def test_it_is_helped_until_what_was_sent_before_has_arrived() -> None:
    looks = Looks()
    looks.trips(True)
    assert looks.trips(False) == inf, "it still gets too little"
    assert LEAVES_TRIPS - 0.3 < looks.trips(False, limited=False) < LEAVES_TRIPS + 0.3


@pytest.mark.parametrize("said", ["limited", "queues", "waits"])
def test_it_is_not_where_it_gets_enough_or_nothing_queues_or_nothing_waits(said: str) -> None:
    assert Looks().trips(True, **{said: False}) == inf


def test_one_look_at_which_nothing_waits_says_nothing() -> None:
    looks = Looks()
    assert any(looks.look(waits=bool(turn % 2)) for turn in range(40))
    looks = Looks()
    assert not any(looks.look(waits=not turn % 3) for turn in range(40))


def test_it_is_not_while_the_rate_grows() -> None:
    looks = Looks()
    grown = [looks.look(rate=RATE * 1.3 ** (turn * LOOK // RTT)) for turn in range(200)]
    assert not any(grown)


def test_a_path_that_carries_more_is_let_go_at_once() -> None:
    looks = Looks()
    looks.trips(True)
    assert looks.look(rate=RATE * 1.05), "rates vary"
    assert not looks.look(rate=RATE * 1.1)
    assert KEPT_TRIPS <= looks.trips(True, rate=RATE * 1.1) < KEPT_TRIPS + 0.3, "until that grows no more either"


def test_what_was_seen_before_nothing_was_under_way_counts_no_more() -> None:
    looks = Looks()
    looks.look()
    looks.now += 10.0
    assert not looks.look()
    looks.trips(True)
    looks.now += 1.0
    assert not looks.look()
