"""Whether a congestion control is kept in its startup, by what its transport says every ten milliseconds."""

from __future__ import annotations

from multi.protocol.startup import KEPT_TRIPS, LEAVES_TRIPS, Startup

LOOK = 0.010  # seconds
RATE = 1e6  # bytes per second
SHORTEST, LONG = 0.050, 0.100  # seconds: without a queue and with one


class Looks:
    def __init__(self) -> None:
        self.now = 0.0
        self._startup = Startup()

    def seconds(
        self, most: float, *, rate: float = RATE, rtt: float = LONG, limited: bool = True, waits: bool = True
    ) -> float:
        """Until it is kept in its startup, or is no more; `most` if it stays as it is."""
        began = self.now
        first = None
        while self.now < began + most:
            self.now += LOOK
            kept = self._startup.kept(self.now, rate, rtt, SHORTEST, limited=limited, waits=waits)
            if first is None:
                first = kept
            if kept != first:
                return self.now - began
        return most


def test_it_is_after_some_round_trips_without_growth_in_which_it_got_too_little() -> None:
    assert abs(Looks().seconds(9.0) - KEPT_TRIPS * LONG) < 3 * LOOK


def test_it_is_helped_until_what_was_sent_before_has_arrived() -> None:
    looks = Looks()
    looks.seconds(9.0)
    assert looks.seconds(9.0) == 9.0, "it still gets too little"
    assert abs(looks.seconds(9.0, limited=False) - LEAVES_TRIPS * LONG) < 3 * LOOK


def test_it_is_not_where_it_gets_enough_or_nothing_waits_or_nothing_queues() -> None:
    assert Looks().seconds(9.0, limited=False) == 9.0
    assert Looks().seconds(9.0, waits=False) == 9.0
    assert Looks().seconds(9.0, rtt=SHORTEST) == 9.0


def test_one_look_at_which_nothing_waits_says_nothing() -> None:
    looks = Looks()
    for _ in range(15):
        assert looks.seconds(LOOK) == LOOK
        assert looks.seconds(LOOK, waits=False) == LOOK
    assert looks.seconds(9.0, limited=False) < 9.0, "it was helped"


def test_it_is_not_while_the_rate_grows() -> None:
    looks = Looks()
    for trip in range(20):
        assert looks.seconds(LONG, rate=RATE * 1.3**trip) == LONG


def test_a_path_that_carries_more_is_let_go_at_once() -> None:
    looks = Looks()
    looks.seconds(9.0)
    assert looks.seconds(0.5, rate=RATE * 1.05) == 0.5, "rates vary"
    assert abs(looks.seconds(9.0, rate=RATE * 1.1) - KEPT_TRIPS * LONG) < 3 * LOOK, "until that grows no more either"
