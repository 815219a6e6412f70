"""A client of the server that is measured: `python -m benchmarks.workers.client CONFIG SESSIONS`.

It says when its sessions are open; to a number of bytes it answers when each of them has got so many.
"""

from __future__ import annotations

import asyncio
import sys

import multi
from benchmarks.processes import say
from benchmarks.workers.server import BLOCK


async def fetch(session: multi.Session, size: int) -> None:
    """Every byte is compared."""
    session.writer.write(f"send {size}\n".encode())
    for start in range(0, size, len(BLOCK)):
        wanted = min(len(BLOCK), size - start)
        assert await session.reader.readexactly(wanted) == BLOCK[:wanted]


async def main(config: str, count: int) -> None:
    sessions = [await multi.connect(config) for _ in range(count)]
    say("open")
    while line := await asyncio.to_thread(sys.stdin.readline):
        await asyncio.gather(*(fetch(session, int(line)) for session in sessions))
        say("done")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
