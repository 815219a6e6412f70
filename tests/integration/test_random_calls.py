"""Calls in any order, each cancelled anywhere: what was not cancelled has happened, and no byte is lost or doubled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

import multi
from tests.integration.support import Pair, Way, multi_pair, pattern, run

SEEDS = 6
CALLS = 60
MOST = 70_000  # bytes of a write
TWO_WAYS = [["tcp", "ipv4", "127.0.0.1"], ["tcp", "ipv4", "127.0.0.2"]]


class RandomCalls:
    """One seed: both ends of a session, what was written to each and what has been read."""

    def __init__(self, seed: int, pair: Pair) -> None:
        self._dice = Random(seed)
        self._pair = pair
        self._ends = ((pair.reader, pair.writer), (pair.server_reader, pair.server_writer))
        self._written: list[bytearray] = [bytearray(), bytearray()]
        self._read: list[bytearray] = [bytearray(), bytearray()]
        self.cancelled = 0

    async def run(self) -> None:
        calls = (self._write, self._write, self._take, self._take, self._take_line, self._session)
        for call in self._dice.choices(calls, k=CALLS):
            await call()
        for side in (0, 1):
            missing = len(self._written[1 - side]) - len(self._read[side])
            self._read[side] += await self._ends[side][0].readexactly(missing)
            assert self._read[side] == self._written[1 - side]

    async def _perhaps(self, call: Awaitable[Any]) -> Any:
        """Its result; None = it was cancelled after some turns of the event loop."""
        task = asyncio.ensure_future(call)
        for _ in range(self._dice.choice((0, 1, 2, 3, 5, 8, 20, 200))):
            await asyncio.sleep(0)
            if task.done():
                break
        if not task.done():
            task.cancel()
            self.cancelled += 1
        result: Any = (await asyncio.gather(task, return_exceptions=True))[0]
        if isinstance(result, BaseException) and not isinstance(result, asyncio.CancelledError | multi.MultiError):
            raise result
        return None if isinstance(result, BaseException) else result

    async def _write(self) -> None:
        side = self._dice.randrange(2)
        data = pattern(self._dice.randrange(1, MOST), self._dice.randrange(1000))
        self._ends[side][1].write(data)
        self._written[side] += data
        await self._perhaps(self._ends[side][1].drain())

    async def _take(self) -> None:
        side = self._dice.randrange(2)
        waiting = len(self._written[1 - side]) - len(self._read[side])
        size = self._dice.randrange(1, MOST)
        exactly = self._dice.random() < 0.5 and size <= waiting
        reader = self._ends[side][0]
        self._read[side] += await self._perhaps(reader.readexactly(size) if exactly else reader.read(size)) or b""

    async def _take_line(self) -> None:
        side = self._dice.randrange(2)
        self._ends[1 - side][1].write(b"a line\n")
        self._written[1 - side] += b"a line\n"
        try:
            self._read[side] += await self._perhaps(self._ends[side][0].readuntil(b"\n")) or b""
        except asyncio.LimitOverrunError:
            pass  # there is more before it than a line may have, and all of it is still there

    async def _session(self) -> None:
        """Something with connections and streams, the server's answer included."""
        session = self._pair.session
        active = [c.id for c in session.connections if c.state is multi.ConnectionState.ACTIVE]
        calls: list[Callable[[], Awaitable[Any]]] = [
            lambda: session.handover(to=self._dice.choice(active)),
            lambda: session.add_connection(self._dice.choice(TWO_WAYS)),
            session.open_stream,
            session.confirmed,
        ]
        if len(active) > 1:
            calls.append(lambda: session.remove_connection(active[0]))
        if active:
            await self._perhaps(self._dice.choice(calls)())


@pytest.mark.parametrize("seed", range(SEEDS))
def test_calls_that_are_cancelled_anywhere_lose_nothing(seed: int) -> None:
    async def scenario() -> int:
        async with multi_pair(Way(Path()), connection_priority=TWO_WAYS) as pair:
            calls = RandomCalls(seed, pair)
            await calls.run()
            return calls.cancelled

    assert run(scenario()) > CALLS // 10
