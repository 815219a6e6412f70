"""One timer of an event loop for all its sessions that have bytes under way, and one callback for all that pump soon.

A timer for each session, moved whenever bytes come or go, costs more than the bytes do where messages are small. So a
session that moves bytes joins the watch of its loop, and leaves it when nothing is under way any more. What bytes make
due soon (acknowledgements, samples of the transports, copies of what is late) is seen up to TICK later, together with
what becomes due meanwhile for other sessions: a process that sleeps in between wakes up once for all of them.

Where the timer itself comes late, the process was busy or had no processor, and what peers have said meanwhile waits in
its sockets. It is taken in first: else hundreds of sessions find their peers silent at once, and what they do about it
keeps the process busy for longer.
"""

from __future__ import annotations

import asyncio
from math import inf
from operator import attrgetter
from typing import Protocol
from weakref import WeakValueDictionary

TICK = 0.010  # seconds between two looks, at least
TOGETHER = 0.005  # seconds that whoever is due first waits for others, unless the last look was just before
ANSWER_TURNS = 3  # of the event loop in which who was woken may answer: a task that starts another needs as many
LATE = 0.030  # seconds; clearly less than what makes a path suspect
_LOOK_AT = attrgetter("look_at")


class Watched(Protocol):
    """A session's driver."""

    soon: bool
    """It wants to be pumped; False once it was."""
    later: int
    """It wants to be pumped in so many turns of the event loop, unless it is `soon` before; 0 = no, or it was."""
    look_at: float
    """When to look at it next, in the time of the event loop. Who brings it nearer tells the watch (`Watch.join`)."""

    def pump(self) -> None:
        """Send what was written."""

    def look(self, now: float, watched: int) -> bool:
        """See to what is due, as one of `watched` sessions; False when nothing is under way any more."""


class Watch:
    """The sessions of one event loop; see `watch_of`."""

    __slots__ = ("__weakref__", "_due", "_looked_at", "_loop", "_sessions", "_soon", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._sessions: dict[Watched, None] = {}
        self._soon: dict[Watched, None] = {}
        """Those that wait for the callback which pumps all of them."""
        self._timer: asyncio.TimerHandle | None = None
        self._due = inf
        """When it looks next, as far as is known."""
        self._looked_at = -inf

    def pump_soon(self, session: Watched) -> None:
        """Pump it from the event loop: what the application does until then goes out together."""
        if not session.soon:
            session.soon = True
            if not self._soon:
                self._loop.call_soon(self._pump)
            self._soon[session] = None

    def pump_later(self, session: Watched) -> None:
        """Pump within ANSWER_TURNS, sooner when the application does something: one packet instead of several."""
        if not (session.soon or session.later):
            session.later = ANSWER_TURNS
            self._in_next_turn(session)

    def _in_next_turn(self, session: Watched) -> None:
        if not self._soon:
            self._loop.call_soon(self._pump)
        self._soon[session] = None

    def _pump(self) -> None:
        soon, self._soon = self._soon, {}
        while soon:
            session = next(iter(soon))
            del soon[session]
            if session.later > 1 and not session.soon:
                session.later -= 1
                self._in_next_turn(session)
            elif session.soon or session.later:
                try:
                    session.pump()
                except BaseException:  # as KeyboardInterrupt; a bug ends its session only
                    for other in soon:
                        self._in_next_turn(other)
                    raise

    def join(self, session: Watched) -> None:
        """Look after it from now on, at `look_at` or up to TICK later, until `Watched.look` says no.

        Again when `look_at` has come nearer.
        """
        self._sessions[session] = None
        due = max(session.look_at + TOGETHER, self._looked_at + TICK)
        if due < self._due:
            if self._timer is not None:
                self._timer.cancel()
            self._due = due
            self._timer = self._loop.call_at(due, self._on_timer)

    def leave(self, session: Watched) -> None:
        """It has ended, or nothing of it is under way any more."""
        self._sessions.pop(session, None)

    def _on_timer(self) -> None:
        now, due = self._loop.time(), self._due
        self._timer, self._due, self._looked_at = None, inf, now
        if not self._sessions:
            return  # all have left meanwhile
        if now < due + LATE:
            self._look()
        else:
            # Sockets are read before or after the timers of a turn, by the loop; what was read is told in the next one.
            self._loop.call_soon(self._loop.call_soon, self._look)

    def _look(self) -> None:
        sessions = self._sessions
        now, count = self._loop.time(), len(sessions)
        try:
            for session in list(sessions):
                if session.look_at <= now and not session.look(now, count):
                    sessions.pop(session, None)
        finally:
            if sessions:
                self.join(min(sessions, key=_LOOK_AT))


_watches: WeakValueDictionary[int, Watch] = WeakValueDictionary()
"""By the id of the loop, which lives as long as its watch does; and that lives as long as a driver of the loop."""


def watch_of(loop: asyncio.AbstractEventLoop) -> Watch:
    """The watch of `loop`."""
    watch = _watches.get(id(loop))
    if watch is None:
        watch = _watches[id(loop)] = Watch(loop)
    return watch
