"""How a server that is being stopped ends its sessions: announced, in the last fifth of the time, one after the other.

All of them at once would come back to its successor, or to the other servers, in the same moment.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from multi.asyncio.driver import SessionDriver
from multi.protocol.session import LEAVING

LAST = 0.2  # of the time: sessions that have not ended by themselves until then are ended
DELIVERING = 0.1  # of the time, the very end: no session begins to end then, but what was written may still arrive


class Draining:
    """Of one server. `sessions` gives those that live at the moment."""

    def __init__(self, loop: asyncio.AbstractEventLoop, sessions: Callable[[], Sequence[SessionDriver]]) -> None:
        self._loop = loop
        self._sessions = sessions
        self._timer: asyncio.TimerHandle | None = None
        self._ends = 0.0
        self._delivering = 0.0
        """Seconds that whatever the last session wrote has to arrive."""
        self._waiting: deque[SessionDriver] = deque()
        """Whose turn to end is still to come."""
        self._next_turn = self._between = 0.0

    def begin(self, seconds: float) -> None:
        """Announce that all sessions end within `seconds`, and see to it; what was announced before is forgotten."""
        self.stop()
        now = self._loop.time()
        self._ends = now + seconds
        self._delivering = DELIVERING * seconds
        for driver in self._sessions():
            driver.core.go_away(seconds, now=now)
            driver.pump_soon()
        self._next_turn = self._ends - LAST * seconds
        self._between = (LAST - DELIVERING) * seconds  # divided among the sessions that are left then
        self._timer = self._loop.call_at(self._next_turn, self._begin_to_end)

    def stop(self) -> None:
        """Nothing is left to end."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._waiting.clear()

    def _begin_to_end(self) -> None:
        """Those come first that have done nothing for longest: the others may be about to finish."""
        self._waiting.extend(sorted(self._sessions(), key=lambda driver: driver.core.moved_at))
        self._between /= max(1, len(self._waiting))
        self._end_some()

    def _end_some(self) -> None:
        now = self._loop.time()
        while self._waiting and self._next_turn <= now:
            driver = self._waiting.popleft()
            driver.core.leave(now=now)
            driver.pump_soon()
            self._next_turn += self._between
        if self._waiting:
            self._timer = self._loop.call_at(self._next_turn, self._end_some)
        else:
            # A server that is late does not cut off the last goodbye.
            self._timer = self._loop.call_at(max(self._ends, now + self._delivering), self._cut)

    def _cut(self) -> None:
        """The time is over."""
        for driver in self._sessions():
            driver.core.abort(LEAVING, now=self._loop.time())
            driver.pump()
