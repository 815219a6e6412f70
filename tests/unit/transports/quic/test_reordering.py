"""How far packets overtake each other."""

from __future__ import annotations

from multi.transports.quic.reordering import MAX_PACKETS, MAX_TIME, PACKETS, REMEMBERED, TIME, Reordering

PATIENCE = 0.2  # seconds


def test_where_nothing_comes_that_was_taken_for_lost_all_stays() -> None:
    made = Reordering()
    made.lost([(3, 1.0), (4, 1.0)], 1.1, PATIENCE)
    assert not made.arrived([range(3), range(5, 9)], 1.2)
    assert (made.packets, made.time) == (PACKETS, TIME)


def test_what_comes_late_tells_how_far_it_was_overtaken() -> None:
    made = Reordering()
    made.lost([(3, 1.0), (4, 1.0)], 1.1, PATIENCE)
    assert not made.arrived([range(4), range(5, 30)], 1.2)
    assert made.packets == 30 - 3
    assert made.time > TIME
    assert made.arrived([range(32)], 1.2)
    assert made.packets == 32 - 4
    made.lost([(40, 1.0)], 1.1, PATIENCE)
    assert made.arrived([range(42)], 1.2)
    assert made.packets == 32 - 4, "it was further once"


def test_what_is_lost_for_good_is_no_reason_to_take_back_what_followed() -> None:
    made = Reordering()
    assert made.lost([(3, 1.0)], 1.1, PATIENCE)
    assert made.lost([(7, 1.3)], 1.4, PATIENCE), "the first is lost by now"
    assert not made.arrived([range(5, 9)], 1.2)
    assert made.lost([(12, 1.5)], 1.6, PATIENCE), "a new beginning"
    assert not made.lost([(13, 1.5)], 1.6, PATIENCE)
    assert not made.arrived([range(11, 13)], 1.2)
    assert made.arrived([range(11, 14)], 1.2)


def test_what_is_lost_is_looked_for_no_longer_than_it_may_come() -> None:
    made = Reordering()
    made.lost([(3, 1.0), (4, 1.0)], 1.1, PATIENCE)
    assert not made.arrived([range(9)], 1.1 + PATIENCE + 0.01)
    assert not made._gone
    assert made.packets == PACKETS


def test_a_peer_cannot_make_it_wait_or_remember_without_end() -> None:
    made = Reordering()
    for number in range(0, 10_000, 2):
        made.lost([(number, 1.0)], 1.0, PATIENCE)
    assert len(made._gone) == REMEMBERED
    for number in range(8_000, 10_000, 2):
        made.arrived([range(number, number + 1), range(50_000, 50_001)], 1.2)
    assert made.packets == MAX_PACKETS
    assert made.time == MAX_TIME
