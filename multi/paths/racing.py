"""Racing: in which order and when candidates are tried (RFC 8305 section 5, RFC 9623 section 4.4).

Unlike Happy Eyeballs the other winners are kept. It decides start times only; what an attempt leads to is the manager's
business.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum

from multi.events import CancelDial, Effect
from multi.paths.slots import Attempt, Slot
from multi.types import Candidate, ConnectionId

ATTEMPT_DELAY = 0.250  # seconds, RFC 8305 section 8
SEQUENTIAL_TIMEOUT = 3.0  # seconds; the kernel's own SYN retries would block the next entry for more than a minute


class ConnectMode(Enum):
    """`multi_config.connect`."""

    SEQUENTIAL = "seq"
    PARALLEL = "par"
    STAGGERED = "stag"


class Race:
    """The candidates not yet tried, and when the next may start. `effects`: the path manager's own list."""

    def __init__(self, candidates: Sequence[Candidate], mode: ConnectMode, now: float, effects: list[Effect]) -> None:
        self._queue = list(candidates)
        self._effects = effects
        self._mode = mode
        self._next_at = now
        self._pending = 0
        self._won = False

    @property
    def finished(self) -> bool:
        """Every candidate has been started and has succeeded or failed."""
        return not self._queue and not self._pending

    def due(self, now: float) -> list[Candidate]:
        """Return the candidates to start now, in order."""
        started: list[Candidate] = []
        while self._queue and (now >= self._next_at or self._mode is ConnectMode.PARALLEL):
            started.append(self._queue.pop(0))
            self._pending += 1
            if self._mode is ConnectMode.SEQUENTIAL:
                self._next_at = now + SEQUENTIAL_TIMEOUT
            elif self._mode is ConnectMode.STAGGERED and not self._won:
                self._next_at = now + ATTEMPT_DELAY
        return started

    def add(self, candidates: Sequence[Candidate], now: float) -> None:
        """More have become known: their turn comes after the others'."""
        if not self._queue and not self._pending:
            self._next_at = now
        self._queue += [candidate for candidate in candidates if candidate not in self._queue]

    def skip(self, candidate: Candidate) -> None:
        """Never start `candidate`: an alternative of its group has won."""
        if candidate in self._queue:
            self._queue.remove(candidate)

    def holds(self, candidate: Candidate) -> bool:
        """`candidate` has not been started and will be."""
        return candidate in self._queue

    def next_timer(self) -> float | None:
        return self._next_at if self._queue else None

    def ended(self, now: float, *, won: bool = False) -> None:
        """An attempt has succeeded or failed: the next one starts. Once one has won, staggered ones wait no more."""
        self._pending -= 1
        self._won = self._won or won
        self._next_at = now

    def end(self, slot: Slot, connection: ConnectionId, now: float, *, won: bool = False) -> Attempt:
        """This attempt of `slot` is over, whether the race has started it or not."""
        attempt = slot.attempts.pop(connection)
        if attempt.raced:
            self.ended(now, won=won)
        return attempt

    def cancel(self, slot: Slot, connections: Iterable[ConnectionId], now: float) -> None:
        """End these attempts of `slot`: another connection is there, or none is wanted."""
        for connection in list(connections):
            self.end(slot, connection, now)
            self._effects.append(CancelDial(connection))
