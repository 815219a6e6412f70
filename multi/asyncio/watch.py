"""One timer of an event loop for all its sessions that have bytes under way, and one callback for all that pump soon.

A timer for each session, moved whenever bytes come or go, costs more than the bytes do where messages are small. So a
session that moves bytes joins the watch of its loop, and leaves it when nothing is under way any more. What bytes make
due soon (acknowledgements, samples of the transports, copies of what is late) is seen at the next tick, at the latest.

Where the tick itself comes late, the process was busy or had no processor, and what peers have said meanwhile waits in
its sockets. It is taken in first: else hundreds of sessions find their peers silent at once, and what they do about it
keeps the process busy for longer.
"""

from __future__ import annotations

import asyncio
from typing import Protocol
from weakref import WeakValueDictionary

TICK = 0.010  # seconds
LATE = 0.030  # seconds; clearly less than what makes a path suspect


class Watched(Protocol):
    """A session's driver."""

    soon: bool
    """It wants to be pumped; False once it was."""
    look_at: float
    """When to look at it next, in the time of the event loop."""

    def pump(self) -> None:
        """Send what was written."""

    def look(self, now: float, watched: int) -> bool:
        """See to what is due, as one of `watched` sessions; False when nothing is under way any more."""


class Watch:
    """The sessions of one event loop; see `watch_of`."""

    __slots__ = ("__weakref__", "_due", "_loop", "_sessions", "_soon", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._sessions: dict[Watched, None] = {}
        self._soon: list[Watched] = []
        """Those that wait for the callback which pumps all of them."""
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0

    def pump_soon(self, session: Watched) -> None:
        """Pump it in the next turn of the event loop, unless it is no longer `soon` by then."""
        if not self._soon:
            self._loop.call_soon(self._pump)
        self._soon.append(session)

    def _pump(self) -> None:
        soon, self._soon = self._soon, []
        for position, session in enumerate(soon):
            if session.soon:
                try:
                    session.pump()
                except BaseException:  # as KeyboardInterrupt; a bug ends its session only
                    for other in soon[position + 1 :]:
                        self.pump_soon(other)
                    raise

    def join(self, session: Watched) -> None:
        """Look after it from now on, at `look_at` or a tick later, until `Watched.look` says no."""
        self._sessions[session] = None
        if self._timer is None:
            self._set(self._loop.time())

    def leave(self, session: Watched) -> None:
        """It has ended."""
        self._sessions.pop(session, None)

    def _set(self, now: float) -> None:
        self._due = now + TICK
        self._timer = self._loop.call_at(self._due, self._tick)

    def _tick(self) -> None:
        now, due = self._loop.time(), self._due
        # Set first: a bug in one session must not end the watch over the others.
        self._timer = None
        if self._sessions:
            self._set(now)
        if now < due + LATE:
            self._look()
        else:
            # Sockets are read before or after the timers of a turn, by the loop; what was read is told in the next one.
            self._loop.call_soon(self._loop.call_soon, self._look)

    def _look(self) -> None:
        sessions = self._sessions
        now, count = self._loop.time(), len(sessions)
        for session in list(sessions):
            if session.look_at <= now and not session.look(now, count):
                sessions.pop(session, None)


_watches: WeakValueDictionary[int, Watch] = WeakValueDictionary()
"""By the id of the loop, which lives as long as its watch does; and that lives as long as a driver of the loop."""


def watch_of(loop: asyncio.AbstractEventLoop) -> Watch:
    """The watch of `loop`."""
    watch = _watches.get(id(loop))
    if watch is None:
        watch = _watches[id(loop)] = Watch(loop)
    return watch
