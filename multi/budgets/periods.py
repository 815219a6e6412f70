"""The calendar of data budgets. Pure: the day comes in."""

from __future__ import annotations

from calendar import monthrange
from dataclasses import dataclass
from datetime import date, timedelta

WEEKDAYS = 7


@dataclass(frozen=True, slots=True)
class Period:
    """`day`, `week` or `month`, and the day on which the latter two begin: from Monday = 1, or of the month."""

    per: str
    reset_day: int = 1

    def begin(self, day: date) -> date:
        """First day of the period that `day` is in."""
        if self.per == "day":
            return day
        if self.per == "week":
            return day - timedelta(days=(day.isoweekday() - self.reset_day) % WEEKDAYS)
        this = self._in_month(day.year, day.month)
        if this <= day:
            return this
        before = day.replace(day=1) - timedelta(days=1)
        return self._in_month(before.year, before.month)

    def end(self, day: date) -> date:
        """First day of the period after the one that `day` is in."""
        begin = self.begin(day)
        if self.per == "day":
            return begin + timedelta(days=1)
        if self.per == "week":
            return begin + timedelta(days=WEEKDAYS)
        after = begin.replace(day=1) + timedelta(days=31)
        return self._in_month(after.year, after.month)

    def _in_month(self, year: int, month: int) -> date:
        return date(year, month, min(self.reset_day, monthrange(year, month)[1]))

    def __str__(self) -> str:
        return self.per if self.per == "day" else f"{self.per} from day {self.reset_day}"
