"""Virtual time: a heap of events and nothing else. Same seed, same order, same trace."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from random import Random

from multi.lab.sim.trace import line


class Livelock(AssertionError):
    """More events than any sane run needs: somebody answers itself."""


class Clock:
    """The simulated world's time and its future."""

    def __init__(self, seed: int) -> None:
        self.now = 0.0
        self.random = Random(seed)
        self.trace: list[str] = []
        self.events = 0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._tie = 0

    def entropy(self, count: int) -> bytes:
        return self.random.randbytes(count)

    def at(self, time: float, action: Callable[[], None]) -> None:
        self._tie += 1
        heapq.heappush(self._heap, (max(time, self.now), self._tie, action))

    def log(self, *words: object, comment: str = "") -> None:
        """Write a line of the trace; `words` are those of `multi.lab.sim.trace` and numbers, the comment is for
        people."""
        self.trace.append(line(self.now, words, comment))

    def run_until(self, condition: Callable[[], bool], limit: float, max_events: int = 500_000) -> bool:
        """Run until `condition` holds; False when `limit` seconds pass first, and the time is set to their end."""
        end, budget = self.now + limit, self.events + max_events
        while not condition():
            if not self._heap or self._heap[0][0] > end:
                self.now = max(self.now, end)
                return condition()
            if self.events >= budget:
                raise Livelock(f"{max_events} events; now {self.now}")
            self.events += 1
            self.now, _, action = heapq.heappop(self._heap)
            action()
        return True
