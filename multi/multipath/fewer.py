"""Whether one path carries as much as all: where the processor is the limit, a further path costs more than it brings.

A datagram over two paths costs what it costs over one and some more, for acknowledgements of each and what comes out of
order. So one is tried alone, and what carries more is kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

LOOK = 0.1  # seconds between looks
SETTLES = 0.15  # seconds in which what was sent before arrives
PAUSE = 1.0  # seconds without one: nothing came or went
MOMENT = 4  # looks over which is seen whether the processor is the limit, and whether a path brings far too little
WINDOW = 8  # looks over which is compared
PATIENCE = 24  # looks, where a window does not tell
BUSY = 1 / 2  # of a processor: both ends on one machine share its two with whatever is between them
MUCH = 1_000_000  # bytes per second; less is not what the processor is busy with
HALF = 1 / 2  # of what comes over the path that carries most, or came over the one that is used
LESS = 0.7  # of the processor's share that it was: it is no limit any more
ENOUGH = 0.9  # of what all paths carry: they bring no more than they cost
HOPELESS = 3 / 4  # of it: a moment tells
NEARLY_ALL = 7 / 8  # of what comes: the others cost little
GROWS = 3 / 2  # times what it was half a moment ago: windows still open, and one path may seem to carry what all did
FIRST_WAIT, MAX_WAIT = 8.0, 64.0  # seconds to the next trial, twice as many after each that changes nothing


class _Look(NamedTuple):
    at: float
    busy: float
    """Seconds of a processor so far."""
    carried: Mapping[int, int]
    """Bytes so far, both ways, by the ids of paths that may carry data, the nearest first."""


class FewerPaths:
    """Which path to use alone, if any.

    Of those that carry much the nearest is tried first: what is on its way costs, too. Where much less comes, the next
    has its turn. All are used at once where the processor has less to do, half as much comes, or paths come or go, and
    are tried again now and then.
    """

    def __init__(self) -> None:
        self.only: int | None = None
        """Its id; None: all are used."""
        self._looks: list[_Look] = []
        """At what is used now, the first when that has settled."""
        self._settled_at = 0.0
        self._last = _Look(0.0, 0.0, {})
        self._before: tuple[int | None, float] | None = None
        """What was used before that which is being tried, and its bytes per second."""
        self._least_busy = self._least = 0.0
        """Share of a processor and bytes per second below which one path is not enough any more."""
        self._wait = FIRST_WAIT
        self._next_at = 0.0
        self._failed = 0

    def due(self, now: float) -> bool:
        """Whether to look."""
        return now >= self._last.at + LOOK

    def look(self, now: float, busy: float, carried: Mapping[int, int]) -> None:
        """`busy`: seconds of a processor so far; `carried`: bytes so far, to the peer and from it, by the ids of all
        paths that may carry data and answer, the nearest first."""
        last, self._last = self._last, _Look(now, busy, carried)
        if carried.keys() != last.carried.keys():
            self._failed = 0
            self._use_all(now)
        elif now > last.at + PAUSE:
            if self._before is not None:
                self._put_off(now)
            self._use(now, None)
        elif len(carried) > 1 and now >= self._settled_at:
            self._looks.append(self._last)
            if len(self._looks) > 1:
                self._judge(now)

    def _judge(self, now: float) -> None:
        seen = self._looks
        if self._before is not None:
            self._compare(now, *self._before)
        elif self.only is not None and self._falls_short():
            self._use_all(now)
        elif len(seen) > (window := MOMENT if self.only is None else WINDOW):
            del seen[: -window - 1]
            rate, busy = _between(seen[0], seen[-1])
            limits = busy >= BUSY and rate >= MUCH
            tries = self._in_turn(seen[0]) if self.only is None and limits else None
            if now >= self._next_at and not _grows(seen) and (tries is not None or self.only is not None):
                self._use(now, tries, (self.only, rate))

    def _falls_short(self) -> bool:
        if len(self._looks) <= MOMENT:
            return False
        rate, busy = _between(self._looks[-MOMENT - 1], self._looks[-1])
        return busy < self._least_busy or rate < self._least

    def _compare(self, now: float, before: int | None, its_rate: float) -> None:
        """See what has come of a trial; what is not clear is looked at for longer."""
        looks = len(self._looks) - 1
        rate, busy = _between(self._looks[0], self._looks[-1])
        if self.only is not None:
            worth = rate >= its_rate * ENOUGH and looks >= WINDOW
            hopeless = rate < its_rate * HOPELESS and looks >= MOMENT
        else:
            worth = rate * ENOUGH > its_rate and looks >= PATIENCE
            hopeless = rate < its_rate and looks >= WINDOW
        if not (worth or hopeless or looks >= PATIENCE):
            return
        if worth:
            self._wait, self._next_at = FIRST_WAIT, now + FIRST_WAIT
        else:
            self._put_off(now)
        if self.only is not None:
            self._least_busy, self._least = max(busy, BUSY) * LESS, max(rate * HALF, MUCH)
            self._failed += not worth
        self._use(now, self.only if worth else before)

    def _put_off(self, now: float) -> None:
        self._wait = min(self._wait * 2, MAX_WAIT)
        self._next_at = now + self._wait

    def _in_turn(self, since: _Look) -> int | None:
        """The path to try, None: one carries nearly all as it is."""
        carried = {path: total - since.carried[path] for path, total in self._last.carried.items()}
        most = max(carried.values())
        if most > sum(carried.values()) * NEARLY_ALL:
            return None
        candidates = [path for path, its in carried.items() if its >= most * HALF]
        return candidates[self._failed % len(candidates)]

    def _use_all(self, now: float) -> None:
        """It is another question now whether one would do."""
        self._wait, self._next_at = FIRST_WAIT, now
        self._use(now, None)

    def _use(self, now: float, only: int | None, before: tuple[int | None, float] | None = None) -> None:
        self.only, self._looks, self._before = only, [], before
        self._settled_at = now + SETTLES


def _grows(seen: Sequence[_Look]) -> bool:
    middle = seen[len(seen) // 2]
    return _between(middle, seen[-1])[0] > _between(seen[0], middle)[0] * GROWS


def _between(one: _Look, other: _Look) -> tuple[float, float]:
    """Bytes per second, and the share of a processor."""
    seconds = other.at - one.at
    carried = sum(other.carried.values()) - sum(one.carried.values())
    return carried / seconds, (other.busy - one.busy) / seconds
