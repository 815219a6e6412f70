"""When periods of data budgets begin and end."""

from __future__ import annotations

from datetime import date

import pytest

from multi.budgets.periods import Period


@pytest.mark.parametrize(
    ("period", "day", "begin", "end"),
    [
        (Period("day"), date(2026, 12, 31), date(2026, 12, 31), date(2027, 1, 1)),
        (Period("week"), date(2026, 11, 22), date(2026, 11, 16), date(2026, 11, 23)),
        (Period("week", 7), date(2026, 11, 22), date(2026, 11, 22), date(2026, 11, 29)),
        (Period("month"), date(2026, 12, 31), date(2026, 12, 1), date(2027, 1, 1)),
        (Period("month", 12), date(2027, 1, 11), date(2026, 12, 12), date(2027, 1, 12)),
        (Period("month", 12), date(2027, 1, 12), date(2027, 1, 12), date(2027, 2, 12)),
        (Period("month", 31), date(2026, 2, 28), date(2026, 2, 28), date(2026, 3, 31)),
        (Period("month", 31), date(2026, 2, 27), date(2026, 1, 31), date(2026, 2, 28)),
        (Period("month", 30), date(2028, 3, 1), date(2028, 2, 29), date(2028, 3, 30)),
    ],
)
def test_a_period_begins_on_its_day_or_the_last_one_there_is(period: Period, day: date, begin: date, end: date) -> None:
    assert (period.begin(day), period.end(day)) == (begin, end)


@pytest.mark.parametrize("period", [Period("day"), Period("week", 3), Period("month", 1), Period("month", 31)])
def test_every_day_is_in_one_period(period: Period) -> None:
    begin = period.begin(date(2027, 1, 1))
    for number in range(date(2027, 1, 1).toordinal(), date(2028, 12, 31).toordinal()):
        day = date.fromordinal(number)
        if period.begin(day) != begin:
            assert day == period.end(date.fromordinal(number - 1))
            begin = day
        assert period.begin(day) == begin <= day < period.end(day)
