"""Clients that come back when their server is stopped: `python -m benchmarks.balancer.returning PLAN`.

Each keeps a session with two connections open, speaks several times a second and checks every byte. Every other one
moves to a new session as soon as it hears that its server goes away; the others stay to the end. They say a line when
all have a session, and what each has met when they are asked for `figures`.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field

import multi
from benchmarks.balancer.clients import PATIENCE, PIECE, Plan
from benchmarks.balancer.server import NAME_LENGTH
from benchmarks.processes import answer, raise_descriptors, say

PAUSE = 0.2  # seconds between two questions
AGAIN = 0.2  # seconds until a session that could not be opened is tried again


@dataclass
class Stay:
    """One session. Times are of `time.time`."""

    server: str
    word: float = 0.0
    """When it heard that its server goes away."""
    deadline: float = 0.0
    """Seconds within which that was to be."""
    ended: float = 0.0
    end: str = ""
    """Why: a cause, `closed` where the client did not wait for it."""
    answers: int = 0


@dataclass
class Met:
    stays: list[Stay] = field(default_factory=list)
    refused: int = 0
    """Sessions that could not be opened."""
    apart: float = 0.0
    """The longest time without a session, in seconds."""
    error: str = ""


class Client:
    def __init__(self, number: int, plan: Plan) -> None:
        self.number, self.plan, self.met = number, plan, Met()
        self.over = False
        self.moves = bool(number % 2)

    async def run(self) -> None:
        """Until it is over, or something happens that should not."""
        try:
            session = await self._open()
            while not self.over:
                session = await self._stay(session) or await self._open()
            session.abort()
        except (multi.MultiError, OSError, EOFError, TimeoutError, AssertionError) as error:
            self.met.error = f"{type(error).__name__}: {error}"[:200]

    async def _open(self) -> multi.Session:
        begun = time.time()
        async with asyncio.timeout(PATIENCE):
            while True:
                try:
                    session = await multi.connect(self.plan.config)
                    server = (await session.reader.readexactly(NAME_LENGTH)).decode().strip()
                except (multi.MultiError, OSError, EOFError):
                    self.met.refused += 1
                    await asyncio.sleep(AGAIN)
                    continue
                self.met.stays.append(Stay(server))
                if len(self.met.stays) > 1 and not self.moves:
                    self.met.apart = max(self.met.apart, time.time() - begun)
                return session

    async def _stay(self, session: multi.Session) -> multi.Session | None:
        """Speak until the session ends, or is left for another one: that one."""
        stay = self.met.stays[-1]
        watching = asyncio.ensure_future(self._watch(session, stay))
        try:
            while not self.over and not (self.moves and stay.word):
                await self._speak(session, stay)
        except multi.SessionLost:
            await watching
            return None
        if self.over:
            return session
        following = await self._open()
        with suppress(multi.MultiError):
            await session.close()
        await watching
        return following

    async def _speak(self, session: multi.Session, stay: Stay) -> None:
        data = (self.number * 1_000_003 + stay.answers).to_bytes(8, "big") * (PIECE // 8)
        session.writer.write(data)
        await session.writer.drain()
        async with asyncio.timeout(PATIENCE):
            try:
                back = await session.reader.readexactly(len(data))
            except asyncio.IncompleteReadError as error:
                raise session.error or AssertionError("an end where none was said") from error
        assert back == data, "other bytes came back"
        stay.answers += 1
        await asyncio.sleep(PAUSE)

    async def _watch(self, session: multi.Session, stay: Stay) -> None:
        async for event in session.events():
            if isinstance(event, multi.GoingAway):
                stay.word, stay.deadline = time.time(), event.deadline
            elif isinstance(event, multi.SessionEnded) and not self.over:
                stay.ended, stay.end = time.time(), event.reason.cause.value


async def main(plan: Plan) -> None:
    clients = [Client(number, plan) for number in range(plan.sessions)]
    tasks = []
    for client in clients:
        tasks.append(asyncio.ensure_future(client.run()))
        await asyncio.sleep(plan.apart)
    async with asyncio.timeout(PATIENCE):
        while not all(client.met.stays or client.met.error for client in clients):  # noqa: ASYNC110 - once
            await asyncio.sleep(0.05)
    say({"open": len(clients)})

    def figures(_: str) -> object:
        for client in clients:
            client.over = True
        return [asdict(client.met) for client in clients]

    await answer(figures)


if __name__ == "__main__":
    raise_descriptors()
    asyncio.run(main(Plan(**json.loads(sys.argv[1]))))
