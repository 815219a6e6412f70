"""Cost: costly connections join only when the cheaper ones cannot cope."""

from __future__ import annotations

from collections.abc import Sequence

from multi.errors import ConfigError
from multi.schedulers._patience import Patience
from multi.schedulers.base import WAIT, ConnectionView, SendRequest
from multi.schedulers.estimates import earliest, rate_of
from multi.schedulers.registry import register_scheduler


@register_scheduler("cost")
class Cost:
    """Earliest arrival among the cheapest connections, by the `cost` of their entries.

    The next cost level joins while the backlog would take the cheaper levels more than `seconds` to send,
    or when they have not moved for so long. A connection of unknown rate is given the benefit of the doubt:
    not knowing is no reason to spend money.
    """

    def __init__(self, seconds: float = 1.0) -> None:
        if not 0.0 <= seconds <= 3600.0:
            raise ConfigError(f"found {seconds:g}; allowed: 0 to 3600", "seconds")
        self._seconds = seconds
        self._patience = Patience(least=self._seconds)

    def select(self, request: SendRequest, connections: Sequence[ConnectionView]) -> Sequence[ConnectionView]:
        able: list[ConnectionView] = []
        for level in sorted({c.cost for c in connections}):
            able += [c for c in connections if c.cost == level]
            choice = earliest(able, request.size)
            if self._copes(request.backlog, able) and (choice or self._moves(able, request.now)):
                break
        if not choice:
            return WAIT
        self._patience.sent_on(choice[0])
        return choice

    def _copes(self, backlog: int, able: Sequence[ConnectionView]) -> bool:
        rates = [rate_of(c) for c in able]
        return min(rates) <= 0.0 or backlog <= self._seconds * sum(rates)

    def _moves(self, able: Sequence[ConnectionView], now: float) -> bool:
        return any(self._patience.allows_sparing(c, now) for c in able)
