"""Whose turn it is, where a line of a client asks for seconds of work: one at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary


class WorkTurns:
    """Those of one source wait for each other first: however many they are, others wait for one of them."""

    def __init__(self) -> None:
        self._all = asyncio.Lock()
        self._of: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """By source, as long as anybody holds one or waits for it."""

    @asynccontextmanager
    async def turn(self, source: str) -> AsyncIterator[None]:
        own = self._of.get(source)
        if own is None:
            own = self._of[source] = asyncio.Lock()
        async with own, self._all:
            yield
