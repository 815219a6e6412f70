"""Steering: what a user wants of several paths, in the words of 3GPP's ATSSS (TS 23.501 section 5.32.8).

A mode says which scheduler decides; thresholds take a path away from it whose round trip or loss is too high, and let
it back with hysteresis. They bind nobody when no path keeps them, and lost bytes are sent again wherever that is
possible.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from multi.errors import ConfigError
from multi.schedulers._patience import Patience
from multi.schedulers.adaptive import Adaptive
from multi.schedulers.base import WAIT, ConnectionView, Scheduler, SendRequest
from multi.schedulers.estimates import latency, nearest
from multi.schedulers.lowest_latency import LowestLatency
from multi.schedulers.redundant import Redundant
from multi.schedulers.registry import register_scheduler
from multi.schedulers.wrr import WeightedRoundRobin
from multi.types import ConnectionId

PREFIX = "steering."
BETTER = 0.8  # share of a threshold below which a path keeps it again: round trips jitter by about a tenth
DWELL = 1.0  # seconds it has to keep it before it is let back
TRIAL = 10.0  # seconds after which it is let back unproved: a path that carries nothing measures nothing
MAX_TRIAL = 320.0  # seconds; doubled each time it is taken out again soon after
SMALL = 4096  # bytes of a message that is worth sending twice
REPEATED = 0.200  # seconds after which a kernel repeats what nothing came after (Linux: TCP_RTO_MIN)
LOSSY = 0.01  # share of lost packets from which on the usual message may be one of them
MAX_MARKS = 64  # connections remembered; ids are never reused, so old ones must go


class Latency:
    """The lowest round trip; a lone small message also over the next lowest while the best may be later than that.

    (ATSSS: smallest delay.) What is lost on a path that carries little else is repeated when something comes after it,
    or REPEATED later, and holds up what follows it.
    """

    def __init__(self) -> None:
        self._nearest = LowestLatency()

    def select(self, request: SendRequest, connections: Sequence[ConnectionView]) -> Sequence[ConnectionView]:
        chosen = self._nearest.select(request, connections)
        if not chosen or request.reinjection or request.size > SMALL or request.backlog > request.size:
            return chosen
        first = chosen[0]
        for second in nearest(c for c in connections if c is not first):
            if _late(first) > latency(second) / 2:
                return second, first
        return chosen


def _late(connection: ConnectionView) -> float:
    """Seconds that a few packets in a hundred take one way: all that round trips vary may be on this one (RFC 6298)."""
    late = connection.rtt / 2 + 4 * connection.rtt_variation
    return late + REPEATED if connection.loss > LOSSY else late


class Priority:
    """The best connection alone while it copes; what it cannot take goes over the next best (ATSSS: priority-based)."""

    def __init__(self) -> None:
        self._patience = Patience()

    def select(self, request: SendRequest, connections: Sequence[ConnectionView]) -> Sequence[ConnectionView]:
        for connection in sorted(connections, key=_precedence):
            if connection.credit > 0:
                self._patience.sent_on(connection)
                return (connection,)
        return WAIT


class Standby:
    """The best connection alone, others only when it is out (ATSSS: active-standby)."""

    def __init__(self) -> None:
        self._patience = Patience()

    def select(self, request: SendRequest, connections: Sequence[ConnectionView]) -> Sequence[ConnectionView]:
        first, *others = sorted(connections, key=_precedence)
        if first.credit > 0:
            self._patience.sent_on(first)
            return (first,)
        if request.reinjection or not others or self._patience.allows_sparing(first, request.now):
            return nearest(others) if request.reinjection else WAIT
        return nearest(others)


def _precedence(connection: ConnectionView) -> tuple[float, float, ConnectionId]:
    """The largest weight first, of equal ones the cheapest, then the one that was there first."""
    return -connection.weight, connection.cost, connection.id


MODES: dict[str, Callable[[], Scheduler]] = {
    "latency": Latency,
    "balance": WeightedRoundRobin,
    "priority": Priority,
    "standby": Standby,
    "redundant": Redundant,
    "adaptive": Adaptive,
}


class _Absence:
    """A connection that does not keep the thresholds."""

    __slots__ = ("good_since", "out", "returns_at", "since", "trial")

    def __init__(self) -> None:
        self.out = False
        self.since = self.returns_at = 0.0
        self.good_since: float | None = None
        self.trial = TRIAL


class Steering:
    """A mode's scheduler over the connections that keep the thresholds; all of them when none does.

    `max_rtt` in seconds and `max_loss` as a share, both 0 = no threshold.
    """

    def __init__(self, mode: str, max_rtt: float = 0.0, max_loss: float = 0.0) -> None:
        if not 0.0 <= max_rtt <= 3600.0:
            raise ConfigError(f"found {max_rtt:g}; allowed: 0 to 3600 seconds", "max_rtt")
        if not 0.0 <= max_loss <= 1.0:
            raise ConfigError(f"found {max_loss:g}; allowed: 0 to 1", "max_loss")
        self._inner = MODES[mode]()
        self._max_rtt, self._max_loss = max_rtt, max_loss
        self._absences: dict[ConnectionId, _Absence] = {}

    def select(self, request: SendRequest, connections: Sequence[ConnectionView]) -> Sequence[ConnectionView]:
        if len(connections) == 1 or request.reinjection or not (self._max_rtt or self._max_loss):
            return self._inner.select(request, connections)
        if len(self._absences) > MAX_MARKS:
            present = {c.id for c in connections}
            self._absences = {k: v for k, v in self._absences.items() if k in present}
        keeping = [c for c in connections if not self._is_out(c, request.now)]
        return self._inner.select(request, keeping or connections)

    def _exceeds(self, connection: ConnectionView, share: float) -> bool:
        """Whether it is above this share of a threshold."""
        return bool(
            (self._max_rtt and connection.rtt > share * self._max_rtt)
            or (self._max_loss and connection.loss > share * self._max_loss)
        )

    def _is_out(self, connection: ConnectionView, now: float) -> bool:
        known = self._absences.get(connection.id)
        if known is None or not known.out:
            if self._exceeds(connection, 1.0):
                self._take_out(connection, known or self._absences.setdefault(connection.id, _Absence()), now)
                return True
            return False
        if self._exceeds(connection, BETTER):
            known.good_since = None
        elif known.good_since is None:
            known.good_since = now
        if now >= known.returns_at or (known.good_since is not None and now - known.good_since >= DWELL):
            known.out, known.since = False, now
        return known.out

    def _take_out(self, connection: ConnectionView, absence: _Absence, now: float) -> None:
        soon = absence.since and now - absence.since < absence.trial
        absence.trial = min(2 * absence.trial, MAX_TRIAL) if soon else TRIAL
        absence.out, absence.good_since, absence.returns_at = True, None, now + absence.trial


Factory: TypeAlias = Callable[..., Steering]


def _factory(mode: str) -> Factory:
    def make(max_rtt: float = 0.0, max_loss: float = 0.0) -> Steering:
        return Steering(mode, max_rtt, max_loss)

    return make


for _mode in MODES:
    register_scheduler(PREFIX + _mode, listed=False)(_factory(_mode))
