"""Clients of the servers behind the balancer, many in one process: `python -m benchmarks.balancer.clients PLAN`.

Each opens a session with two connections, checks every byte that comes back, and speaks once a second. It says a line
when all have been opened, stays until it is asked for `figures`, and answers with what each has met.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

import multi
from benchmarks.balancer.server import NAME_LENGTH
from benchmarks.processes import answer, raise_descriptors, say
from multi import AttemptFailed, ConnectionChanged, ConnectionState
from multi.reasons import Cause

REFUSALS = {cause.value for cause in Cause if cause.value.startswith("refused")}
PIECE = 100  # bytes that a client says each second
PATIENCE = 30.0  # seconds for an answer, longer than any promise


@dataclass
class Plan:
    config: dict[str, Any]
    sessions: int
    apart: float
    """Seconds between two that open."""


@dataclass
class Met:
    """What a client has met. Times are of `time.time`, which the processes of a machine share."""

    server: str = ""
    opened: float = 0.0
    first: float = 0.0
    """When its first connection was proved."""
    second: float = 0.0
    tried: int = 0
    refused: list[str] = field(default_factory=list)
    active: int = 0
    answers: int = 0
    longest: float = 0.0
    """Seconds it has waited for an answer."""
    error: str = ""
    ended: float = 0.0


class Client:
    def __init__(self, number: int, plan: Plan) -> None:
        self.number, self.plan, self.met = number, plan, Met()
        self.over = False
        self.id = ""

    async def run(self) -> None:
        met = self.met
        try:
            async with multi.connect(self.plan.config) as session:
                watching = asyncio.ensure_future(self._watch(session))
                try:
                    met.server = (await session.reader.readexactly(NAME_LENGTH)).decode().strip()
                    met.opened, self.id = time.time(), session.id.hex()
                    while not self.over:
                        await self._speak(session)
                    met.active = sum(info.state is ConnectionState.ACTIVE for info in session.connections)
                    met.tried = len(session.connections)
                finally:
                    session.abort()
                    await watching
        except (multi.MultiError, OSError, EOFError, TimeoutError, AssertionError) as error:
            met.error, met.ended = f"{type(error).__name__}: {error}"[:200], time.time()

    async def _speak(self, session: multi.Session) -> None:
        met = self.met
        data = (self.number * 1_000_003 + met.answers).to_bytes(8, "big") * (PIECE // 8)
        asked = time.time()
        session.writer.write(data)
        await session.writer.drain()
        async with asyncio.timeout(PATIENCE):
            back = await session.reader.readexactly(len(data))
        assert back == data, "other bytes came back"
        met.longest = max(met.longest, time.time() - asked)
        met.answers += 1
        await asyncio.sleep(1.0)

    async def _watch(self, session: multi.Session) -> None:
        proved: dict[int, float] = {}
        async for event in session.events():
            if isinstance(event, AttemptFailed) and event.reason.cause.value in REFUSALS:
                self.met.refused.append(event.reason.cause.value)
            elif isinstance(event, ConnectionChanged) and event.state is ConnectionState.ACTIVE:
                proved.setdefault(event.connection, time.time())
                if len(proved) == 1:
                    self.met.first = time.time()
                elif len(proved) == 2 and not self.met.second:
                    self.met.second = time.time()


async def main(plan: Plan) -> None:
    clients = [Client(number, plan) for number in range(plan.sessions)]
    tasks = []
    for client in clients:
        tasks.append(asyncio.ensure_future(client.run()))
        await asyncio.sleep(plan.apart)
        gc.freeze()  # they stand for devices of their own: no collection of one stops the others
    with suppress(TimeoutError):
        async with asyncio.timeout(PATIENCE):
            while not all(c.met.second or c.met.error for c in clients):  # noqa: ASYNC110 - each has events enough
                await asyncio.sleep(0.05)
    gc.freeze()
    say({"open": [client.id for client in clients if client.met.opened]})
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)  # the play is over
    for client in clients:
        client.over = True
    await asyncio.wait(tasks, timeout=PATIENCE)
    say([asdict(client.met) for client in clients])
    await answer(lambda _: {})


if __name__ == "__main__":
    raise_descriptors()
    asyncio.run(main(Plan(**json.loads(sys.argv[1]))))
