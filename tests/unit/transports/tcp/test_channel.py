"""How much a channel leaves with the kernel; what it does with a peer: `tests/integration/transports/tcp`."""

from __future__ import annotations

from multi.transports.sockets import NOTSENT_LOWAT
from multi.transports.tcp.channel import (
    LOWAT_TIME,
    LOWAT_TIME_URGENT,
    MAX_LOWAT,
    MAX_LOWAT_TIME,
    unsent_limit,
)


def test_a_busy_event_loop_leaves_more_with_the_kernel() -> None:
    rate = 25e6
    assert unsent_limit(rate, 0.0) == unsent_limit(rate, 0.010) == rate * LOWAT_TIME
    assert unsent_limit(rate, 0.025) > rate * 0.025, "enough until it comes by again"
    assert unsent_limit(rate, 1.0) == rate * MAX_LOWAT_TIME, "what a dying path was given cannot be taken back"


def test_the_limit_stays_within_its_bounds() -> None:
    assert unsent_limit(1.0, 0.010) == NOTSENT_LOWAT
    assert unsent_limit(1e12, 0.010) == MAX_LOWAT


def test_less_waits_where_urgent_bytes_may_come() -> None:
    rate = 25e6
    assert unsent_limit(rate, 0.010, LOWAT_TIME_URGENT) == rate * LOWAT_TIME_URGENT < unsent_limit(rate, 0.010)
    assert unsent_limit(rate, 0.025, LOWAT_TIME_URGENT) > rate * 0.025, "enough until it comes by again, all the same"
