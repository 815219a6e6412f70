"""Calls in any order, each cancelled anywhere: what was not cancelled has happened, and no byte is lost or doubled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

import multi
from tests.integration.support import Pair, Way, multi_pair, pattern, run, until

SEEDS = 30
CALLS = 60
MAX_WRITE = 70_000  # bytes of a write
MAX_ON_STREAM = 5_000  # bytes of a further stream, said at once
TWO_WAYS = [["tcp", "ipv4", "127.0.0.1"], ["tcp", "ipv4", "127.0.0.2"]]
Stream = tuple[multi.SessionReader, multi.SessionWriter]


class RandomCalls:
    """One seed: both ends of a session, what was written to each and what has been read."""

    def __init__(self, seed: int, pair: Pair) -> None:
        self._dice = Random(seed)
        self._pair = pair
        self._ends = ((pair.reader, pair.writer), (pair.server_reader, pair.server_writer))
        self._written: list[bytearray] = [bytearray(), bytearray()]
        self._read: list[bytearray] = [bytearray(), bytearray()]
        self._opened: list[dict[int, bytes]] = [{}, {}]
        """What each side has said on the streams that it has opened, by their id."""
        self._taken: list[dict[int, Stream]] = [{}, {}]
        """The other side's streams that each side has been given."""
        self._held: list[Stream] = []
        self.cancelled = 0

    async def run(self) -> None:
        calls = (
            *(self._write, self._write, self._take, self._take, self._take_line, self._session, self._session),
            *(self._open, self._open, self._next_stream, self._next_stream, self._wait_closed, self._hand_over_twice),
        )
        for call in self._dice.choices(calls, k=CALLS):
            await call()
        for side in (0, 1):
            await self._take_all_streams(side)
        await (self._close if self._dice.random() < 0.5 else self._read_the_rest)()

    async def _read_the_rest(self) -> None:
        for side in (0, 1):
            missing = len(self._written[1 - side]) - len(self._read[side])
            self._read[side] += await self._ends[side][0].readexactly(missing)
            assert self._read[side] == self._written[1 - side]

    # --- the end  ---

    async def _close(self) -> None:
        """One side closes with much unread at the other, during a handover, and whoever waits for it is cancelled."""
        side = self._dice.randrange(2)
        session, (reader, writer) = self._sessions[side], self._ends[side]
        self._read[side] += await reader.readexactly(len(self._written[1 - side]) - len(self._read[side]))
        assert self._read[side] == self._written[1 - side]
        data = pattern(self._dice.randrange(1, 4 * MAX_WRITE))
        writer.write(data)
        self._written[side] += data
        handover = asyncio.ensure_future(self._pair.session.handover(to=self._dice.choice(self._active())))
        ends: list[Callable[[], Awaitable[Any]]] = [session.close, writer.wait_closed]
        self._dice.shuffle(ends)
        writer.close()
        for end in ends:
            await self._perhaps(end())
        closing = asyncio.ensure_future(session.close())
        rest = len(self._written[side]) - len(self._read[1 - side])
        self._read[1 - side] += await self._ends[1 - side][0].read(-1)
        assert self._read[1 - side] == self._written[side], f"of the last {rest} bytes"
        await closing
        for each in self._sessions:
            await each.wait_closed()
        (outcome,) = await asyncio.gather(handover, return_exceptions=True)
        assert outcome is None or isinstance(outcome, multi.MultiError), outcome

    async def _take_all_streams(self, side: int) -> None:
        """Every stream of the other side comes, each once, with all that was said on it."""
        opened, taken = self._opened[1 - side], self._taken[side]
        while opened.keys() - taken.keys():
            self._keep(side, await anext(self._sessions[side].streams()))
        for stream, words in opened.items():
            assert await taken[stream][0].read(-1) == words

    # --- calls  ---

    @property
    def _sessions(self) -> tuple[multi.Session, multi.Session]:
        return self._pair.session, self._pair.server_session

    def _active(self) -> list[int]:
        return [c.id for c in self._pair.session.connections if c.state is multi.ConnectionState.ACTIVE]

    def _keep(self, side: int, stream: Stream) -> None:
        number = stream[1].get_extra_info("stream")
        assert number not in self._taken[side], "given out twice"
        self._taken[side][number] = stream

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
        data = pattern(self._dice.randrange(1, MAX_WRITE), self._dice.randrange(1000))
        self._ends[side][1].write(data)
        self._written[side] += data
        await self._perhaps(self._ends[side][1].drain())

    async def _take(self) -> None:
        side = self._dice.randrange(2)
        waiting = len(self._written[1 - side]) - len(self._read[side])
        size = self._dice.randrange(1, MAX_WRITE)
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
        """Something with connections, the server's answer included."""
        session, active = self._pair.session, self._active()
        calls: list[Callable[[], Awaitable[Any]]] = [
            lambda: session.handover(to=self._dice.choice(active)),
            lambda: session.add_connection(self._dice.choice(TWO_WAYS)),
            session.confirmed,
        ]
        if len(active) > 1:
            calls.append(lambda: session.remove_connection(active[0]))
        if active:
            await self._perhaps(self._dice.choice(calls)())

    async def _hand_over_twice(self) -> None:
        """At the same time: one of them has to wait for another day, and either may be cancelled."""
        if active := self._active():
            both = [self._pair.session.handover(to=self._dice.choice(active)) for _ in range(2)]
            await asyncio.gather(*map(self._perhaps, both))
            await until(self._active, "a connection carries the session")

    async def _open(self) -> None:
        """A stream on which everything is said at once, by either side."""
        side = self._dice.randrange(2)
        stream: Stream | None = await self._perhaps(self._sessions[side].open_stream())
        if stream is not None:
            words = pattern(self._dice.randrange(1, MAX_ON_STREAM), self._dice.randrange(1000))
            stream[1].write(words)
            stream[1].write_eof()
            self._opened[side][stream[1].get_extra_info("stream")] = words
            self._held.append(stream)

    async def _next_stream(self) -> None:
        """The next stream of the other side, if one comes meanwhile."""
        side = self._dice.randrange(2)
        stream: Stream | None = await self._perhaps(anext(self._sessions[side].streams()))
        if stream is not None:
            self._keep(side, stream)

    async def _wait_closed(self) -> None:
        """Nothing ends, and who waits for it is cancelled."""
        side, before = self._dice.randrange(2), self.cancelled
        await self._perhaps(self._dice.choice((self._sessions[side], self._ends[side][1])).wait_closed())
        assert self.cancelled > before, "it has not ended"


@pytest.mark.parametrize("seed", range(SEEDS))
def test_calls_that_are_cancelled_anywhere_lose_nothing(seed: int) -> None:
    async def scenario() -> int:
        async with multi_pair(Way(Path()), connection_priority=TWO_WAYS) as pair:
            calls = RandomCalls(seed, pair)
            await calls.run()
            return calls.cancelled

    assert run(scenario(), timeout=60.0) > CALLS // 10
