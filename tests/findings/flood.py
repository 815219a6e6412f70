"""A flood of strangers in a process of its own: `python -m tests.findings.flood` does what lines of JSON tell it.

Each line begins a flood in place of the one before: port, way ("sealed", "TLS", "QUIC"), sources, the Session ID that
is attacked, the HELLO that was overheard, if any, and how many pieces a second; those of the first second are sent as
soon as can be. `null` ends it. Each line is answered by how many pieces of each kind the flood before has sent, when
the new one is under way: what found no connection does not count, nor does a session that did not come about.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from multi.errors import MultiError
from multi.protocol.segment import SegmentType, encode
from multi.transports.base import Channel, TransportSettings, transport
from multi.types import Candidate, Family, SessionId
from tests.integration.hostile import WAYS, OverChannels, hello_payload, join_segment

HOST = "127.0.0.1"
HELD = 600  # connections that stay open: above what one source may have half open
AT_ONCE = 10  # pieces that have not been answered: a server that is slow meets a flood that is, and not a queue
ANSWER_WITHIN = 1.0  # seconds
BATCH = 0.02  # seconds between two looks at how many pieces are due


class Silent:
    """Takes what a server says, and does nothing about it."""

    behind = False
    proved = True
    waiting = 0

    def __init__(self) -> None:
        self.answered = asyncio.Event()

    def data_received(self, data: memoryview, lane: int) -> None:
        self.answered.set()

    def batch_finished(self) -> None:
        pass

    def writable(self) -> None:
        pass

    def connection_lost(self, error: Exception | None) -> None:
        self.answered.set()


class Flood:
    """One order."""

    def __init__(self, port: int, way: str, sources: list[str], session: str, hello: str, rate: float) -> None:
        self._port, self._way, self._rate = port, way, rate
        self._sources = itertools.cycle(sources)
        self._session, self._hello = SessionId(bytes.fromhex(session)), bytes.fromhex(hello)
        self.sent: Counter[str] = Counter()
        self._tried = 0
        self.begun = asyncio.Event()
        self._held: deque[Channel] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        kinds: list[tuple[str, Callable[[], bytes] | None]] = [
            ("JOIN with its ID", lambda: join_segment(self._session, sealed=way == "sealed")),
            ("HELLO with its ID", lambda: encode(SegmentType.HELLO, self._session, hello_payload())),
            ("HELLO", lambda: encode(SegmentType.HELLO, SessionId(os.urandom(16)), hello_payload())),
            ("dropped session", None),
        ]
        if self._hello:
            kinds.append(("its own HELLO", lambda: self._hello))
        self._kinds = itertools.cycle(kinds)
        self._going = asyncio.ensure_future(self._go_on())

    async def _go_on(self) -> None:
        loop = asyncio.get_running_loop()
        began, asked = loop.time(), 0
        while True:
            while asked < (1.0 + loop.time() - began) * self._rate and len(self._tasks) < AT_ONCE:
                asked += 1
                task = asyncio.ensure_future(self._one(*next(self._kinds), next(self._sources)))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            await asyncio.sleep(BATCH)

    async def _one(self, kind: str, words: Callable[[], bytes] | None, source: str) -> None:
        with suppress(MultiError, OSError, AssertionError):  # refused, as most of them are sooner or later
            if words is None:
                client = OverChannels(self._way, self._port, source)
                try:
                    await client.connect()
                    self.sent[kind] += 1
                finally:
                    client.leave()
            else:
                name, tls, _ = WAYS[self._way]
                candidate = Candidate(name, Family.IPV4, HOST, HOST, self._port, local_address=source)
                channel = await transport(name).dial(candidate, TransportSettings(tls=tls))
                channel.start(silent := Silent())
                channel.write((words(),), 0)
                channel.flush()
                self.sent[kind] += 1
                self._held.append(channel)
                if len(self._held) > HELD:
                    self._held.popleft().abort()
                with suppress(TimeoutError):
                    await asyncio.wait_for(silent.answered.wait(), ANSWER_WITHIN)
        self._tried += 1
        if self._tried >= self._rate:
            self.begun.set()

    async def end(self) -> None:
        for task in (self._going, *self._tasks):
            task.cancel()
        await asyncio.gather(self._going, *self._tasks, return_exceptions=True)
        for channel in self._held:
            channel.abort()


async def obey() -> None:
    reader = asyncio.StreamReader(limit=1 << 20)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    flood: Flood | None = None
    while line := await reader.readline():
        sent: dict[str, int] = {}
        if flood is not None:
            sent = flood.sent
            await flood.end()
        order: dict[str, Any] | None = json.loads(line)
        flood = None
        if order is not None:
            flood = Flood(**order)
            await flood.begun.wait()
        print(json.dumps(sent), flush=True)


if __name__ == "__main__":
    asyncio.run(obey())
