"""One timer of an event loop for all its sessions that have bytes under way.

A timer for each session, moved whenever bytes come or go, costs more than the bytes do where messages are small. So a
session that moves bytes joins the watch of its loop, and leaves it when nothing is under way any more. What bytes make
due soon (acknowledgements, samples of the transports, copies of what is late) is seen at the next tick, at the latest.
"""

from __future__ import annotations

import asyncio
from typing import Protocol
from weakref import WeakValueDictionary

TICK = 0.010  # seconds


class Watched(Protocol):
    """A session's driver."""

    def look(self, now: float, watched: int) -> bool:
        """See to what is due, as one of `watched` sessions; False when nothing is under way any more."""


class Watch:
    """The sessions of one event loop; see `watch_of`."""

    __slots__ = ("__weakref__", "_loop", "_sessions", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._sessions: dict[Watched, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def join(self, session: Watched) -> None:
        """Look after it from now on, until `Watched.look` says no."""
        self._sessions[session] = None
        if self._timer is None:
            self._timer = self._loop.call_later(TICK, self._tick)

    def leave(self, session: Watched) -> None:
        """It has ended."""
        self._sessions.pop(session, None)

    def _tick(self) -> None:
        sessions = self._sessions
        now, count = self._loop.time(), len(sessions)
        # Set first: a bug in one session must not end the watch over the others.
        self._timer = self._loop.call_later(TICK, self._tick) if sessions else None
        for session in list(sessions):
            if not session.look(now, count):
                sessions.pop(session, None)


_watches: WeakValueDictionary[int, Watch] = WeakValueDictionary()
"""By the id of the loop, which lives as long as its watch does; and that lives as long as a driver of the loop."""


def watch_of(loop: asyncio.AbstractEventLoop) -> Watch:
    """The watch of `loop`."""
    watch = _watches.get(id(loop))
    if watch is None:
        watch = _watches[id(loop)] = Watch(loop)
    return watch
