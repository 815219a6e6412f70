"""What stops a process that serves: SIGTERM drains it, SIGINT ends it soon, a second one of them at once."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from typing import Any, Self

from multi.asyncio.server import Server
from multi.errors import TransportError, counted
from multi.linux.systemd import service

GRACE = 2.0  # seconds that work under way gets after SIGINT


class StopSignals:
    """Of a process with `server`; `say` gets a line for people about what they do.

    SIGHUP reads certificates and keys again; a change of the files is noticed without it.
    """

    def __init__(self, server: Server, say: Callable[[str], None]) -> None:
        self._server = server
        self._say = say
        self._came: asyncio.Queue[signal.Signals] = asyncio.Queue()

    def listen(self) -> Self:
        """Take those that the system sends to this process."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            self._server.get_loop().add_signal_handler(number, self.take, number)
        return self

    def take(self, number: signal.Signals) -> None:
        """Somebody has sent it."""
        if number == signal.SIGHUP:
            self._renew()
        else:
            self._came.put_nowait(number)

    async def stopped(self, under_way: Callable[[], str] = str) -> signal.Signals:
        """Return when the server has stopped, with the first signal; SIGTERM where it was drained without one.

        `under_way` says in words what SIGINT leaves time for; nothing if there is nothing.
        """
        server, closed = self._server, asyncio.ensure_future(self._server.wait_closed())
        try:
            if (first := await self._next_signal(closed, None)) is None:
                return signal.SIGTERM
            if first is signal.SIGTERM:
                seconds = server.start_draining()
                left = len(server.sessions)
                text = f"draining: {counted(left, 'session')} to end within {seconds:g} s"
                service.stopping(text, seconds + GRACE)
                if left:
                    self._say(text)
                await self._next_signal(closed, None)
            else:
                server.close()
                if what := under_way():
                    self._say(f"stopping: {what} get {GRACE:g} s")
                    await self._next_signal(closed, GRACE)
            server.abort()
            await closed
        finally:
            closed.cancel()
        return first

    async def _next_signal(self, closed: asyncio.Future[None], timeout: float | None) -> signal.Signals | None:
        """The next one, unless the server has stopped or the time is over before."""
        coming = asyncio.ensure_future(self._came.get())
        either: set[asyncio.Future[Any]] = {closed, coming}
        await asyncio.wait(either, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        if coming.done():
            return coming.result()
        coming.cancel()
        return None

    def _renew(self) -> None:
        try:
            self._server.renew_certificates()
            self._say("certificates and keys read again")
        except TransportError as error:
            self._say(f"certificates or keys cannot be used, the old ones stay: {error}")
