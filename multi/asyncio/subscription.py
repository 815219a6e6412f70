"""What an application hears of its session: events, kept for each subscriber until it takes them."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol, Self

from multi.events import Event, EventsDropped

EVENTS_KEPT = 1000  # events a slow subscriber may be behind


class EventListener(Protocol):
    """Hears the events of a session, in its event loop."""

    def put(self, event: Event) -> None: ...

    def end(self) -> None:
        """The session is over; no event follows."""


class Subscription:
    """One subscriber's events, oldest first, bounded. It lasts as long as somebody holds it."""

    def __init__(self, first: list[Event]) -> None:
        self._events: deque[Event] = deque(first)
        self._dropped = 0
        self._ended = False
        self._news = asyncio.Event()

    def put(self, event: Event) -> None:
        if len(self._events) >= EVENTS_KEPT:
            self._events.popleft()
            self._dropped += 1
        self._events.append(event)
        self._news.set()

    def end(self) -> None:
        self._ended = True
        self._news.set()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event | EventsDropped:
        while not self._events and not self._dropped:
            if self._ended:
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()
        if self._dropped:
            dropped, self._dropped = self._dropped, 0
            return EventsDropped(dropped)
        return self._events.popleft()
