"""What is still open when its event loop shuts down ends then, so that `asyncio.run` leaves no socket behind.

A loop tells nobody that it is about to close, except its async generators: `asyncio.run` and `asyncio.Runner` call
`loop.shutdown_asyncgens()`, which closes every generator that was started under the loop. By then all tasks have been
cancelled, but the loop still turns until the last generator is closed: there is time to bring to an end what was begun.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from typing import Any


def ignore(*_: object) -> None:
    """Takes the place of a callback when nobody wants to know any more, so that whoever was called is not kept."""


class LoopShutdownHook:
    """Awaits `cut()` once when the running loop shuts down, unless `release` came first. The loop waits for it."""

    def __init__(self, cut: Callable[[], Awaitable[None]]) -> None:
        self._cut: Callable[[], Awaitable[None]] | None = cut
        self._guard = self._wait()
        # From its first step on the loop knows the generator; it needs no task because it waits for nothing.
        _step(self._guard.__anext__())

    async def _wait(self) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            cut, self._cut = self._cut, None
            if cut is not None:
                await cut()

    def release(self) -> None:
        """Nothing is left that would have to end with the loop."""
        if self._cut is not None:
            self._cut = None
            _step(self._guard.aclose())


def _step(coroutine: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine that never waits."""
    try:
        coroutine.send(None)
    except StopIteration:
        pass
