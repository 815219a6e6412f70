"""What a connection takes whose other side takes nothing."""

from __future__ import annotations

import asyncio
import socket
from typing import Any, cast

import pytest

from multi.forward.relay import BUFFERED, MIN_READ, READ, Counters, StreamPair, pair_of, relay

SENT = 1 << 20


class Seen(asyncio.StreamReader):
    """Counts what came from its socket."""

    came = 0

    def feed_data(self, data: Any) -> None:
        self.came += len(data)
        super().feed_data(data)


class Stuck:
    """The stream of a session whose other end reads nothing, and writes nothing."""

    def __init__(self) -> None:
        self.transport = self
        self.written = 0
        self.full = asyncio.Event()

    def write(self, data: bytes) -> None:
        self.written += len(data)
        self.full.set()

    async def drain(self) -> None:
        await asyncio.Event().wait()

    async def read(self, n: int = -1) -> bytes:
        await asyncio.Event().wait()
        return b""

    def set_write_buffer_limits(self, **_: int) -> None: ...

    def get_extra_info(self, *_: object) -> None: ...

    def is_closing(self) -> bool:
        return True


@pytest.mark.parametrize(("others", "most"), [(0, READ), (10_000, MIN_READ)])
def test_of_thousands_that_nobody_reads_each_keeps_little(
    others: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asyncio, "StreamReader", Seen)

    async def scenario() -> None:
        here, there = socket.socketpair()
        with there:
            there.setblocking(False)
            loop, stuck = asyncio.get_running_loop(), Stuck()
            sending = asyncio.ensure_future(loop.sock_sendall(there, bytes(SENT)))
            near = await pair_of(here)
            reader = cast(Seen, near.reader)
            far = StreamPair(cast(Any, stuck), cast(Any, stuck))
            relaying = asyncio.ensure_future(relay(near, far, Counters(open=others)))
            await stuck.full.wait()
            before = -1
            while before != reader.came:  # until its transport reads no more
                before = reader.came
                await asyncio.sleep(0.05)
            sending.cancel()
            relaying.cancel()
            await asyncio.gather(sending, relaying, return_exceptions=True)
            assert 0 < stuck.written <= most
            assert reader.came <= stuck.written + 2 * BUFFERED + most
            assert reader.came < SENT

    asyncio.run(scenario())
