"""Datagrams as an application holds them: messages that may be lost, beside the streams of the session."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Literal

from multi.asyncio.driver import SessionDriver
from multi.errors import LocalProtocolError, SessionLost
from multi.protocol.datagrams import DatagramCounts

DEFAULT_TTL = 0.2  # seconds; what is older is of no use to those who talk, play or steer
Copies = Literal[1, 2, "auto"]
_COPIES: dict[object, int] = {1: 1, 2: 2, "auto": 0}


class DatagramSocket:
    """The datagrams of a session; see `Session.datagrams`. Several of one session share what comes."""

    def __init__(self, driver: SessionDriver, ttl: float, copies: Copies, *, session: object) -> None:
        """`session` lives as long as this does."""
        if isinstance(ttl, bool) or not isinstance(ttl, int | float) or not 0 < ttl < float("inf"):
            raise LocalProtocolError(f"found ttl={ttl!r}; allowed: seconds above 0")
        if isinstance(copies, bool) or copies not in _COPIES:
            raise LocalProtocolError(f'found copies={copies!r}; allowed: 1, 2, "auto"')
        self._driver = driver
        self._session = session
        self._datagrams = driver.core.datagrams
        self._ttl = float(ttl)
        self._copies = _COPIES[copies]
        self._datagrams.check_peer()

    @property
    def max_size(self) -> int:
        """Bytes of the largest datagram that fits one of the connections there are now."""
        return self._datagrams.max_size

    @property
    def counts(self) -> DatagramCounts:
        """What became of the session's datagrams so far."""
        return replace(self._datagrams.counts)

    def send(self, data: bytes | bytearray | memoryview) -> None:
        """Send one, or give it up when no connection takes it within its time to live; never waits.

        Raises DatagramTooLarge, LocalProtocolError after the session was closed or where the peer takes no datagrams,
        SessionLost when the session is over.
        """
        driver = self._driver
        driver.core.send_datagram(bytes(memoryview(data)), self._ttl, self._copies, now=driver.now())
        driver.pump_soon()

    async def receive(self) -> bytes:
        """Wait for the next one. Raises SessionLost when the session is over."""
        while (data := self._datagrams.read()) is None:
            if self._driver.closed.done():
                raise self._driver.failure()
            self._datagrams.check_peer()
            await self._driver.wait_datagrams()
        return data

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        try:
            return await self.receive()
        except SessionLost:
            if self._driver.closed_error is None:
                raise StopAsyncIteration from None
            raise
