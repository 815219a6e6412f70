"""What the two ends on a testbed need, each in a process of its host."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Coroutine
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import multi
from benchmarks.pattern import piece
from multi.types import ConnectionState

T = TypeVar("T")
PIECE = 16384  # bytes


class Carried(NamedTuple):
    """Bytes."""

    received: int
    sent: int


def carried_by(interface: str) -> Carried:
    """What this host has received and sent there; /sys shows another host's."""
    lines = Path("/proc/self/net/dev").read_text().splitlines()
    fields = next(line.split() for line in lines if line.split()[0] == f"{interface}:")
    return Carried(int(fields[1]), int(fields[9]))


async def opened(config: dict[str, Any]) -> multi.Session:
    """A session with the server, which may still be starting."""
    for _ in range(100):
        with contextlib.suppress(multi.NoUsableConnection):
            return await multi.connect(config)
        await asyncio.sleep(0.1)
    raise AssertionError("nobody listens")


def active_transports(session: multi.Session) -> list[str]:
    """Of connections that carry something, in order of their names."""
    return sorted(info.transport for info in session.connections if info.state is ConnectionState.ACTIVE)


async def take(reader: multi.SessionReader) -> None:
    """All that comes."""
    while await reader.read(65536):
        pass


async def send(writer: multi.SessionWriter) -> None:
    """As much as is taken, of the stream that `Checker` knows."""
    for offset in count(step=PIECE):
        writer.write(piece(offset, PIECE))
        await writer.drain()


async def beside(serving: Coroutine[Any, Any, None], client: Awaitable[T]) -> T:
    """What the client comes to, while a server runs."""
    server = asyncio.create_task(serving)
    try:
        return await client
    finally:
        server.cancel()
        await asyncio.gather(server, return_exceptions=True)
