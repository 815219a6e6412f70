"""A stranger who makes tokens up: `python -m benchmarks.balancer.tokens PORT COUNT SESSION-ID...`.

Says COUNT JOINs with random tokens to a server, each on a connection of its own, half of them for sessions that it
holds. Answers with a line of JSON: how often it was refused, and how.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter
from contextlib import suppress

from benchmarks.processes import raise_descriptors, say
from multi.protocol.handshake import NONCE_LENGTH, ORIGIN_LENGTH, ConnectionTerms, Join, Refuse, RefuseCode
from multi.protocol.segment import SegmentDecoder, SegmentType, encode_routed
from multi.types import ROUTE_LENGTH, SESSION_ID_LENGTH, SessionId

AT_ONCE = 64
HOST = "127.0.0.1"


async def ask(port: int, session_id: bytes) -> str:
    """What the server says to one of them."""
    join = Join(os.urandom(ORIGIN_LENGTH), os.urandom(NONCE_LENGTH), ConnectionTerms(sealed=True))
    segment = encode_routed(SegmentType.JOIN, SessionId(session_id), join.encode(), os.urandom(ROUTE_LENGTH))
    reader, writer = await asyncio.open_connection(HOST, port)
    writer.write(segment)
    with suppress(OSError):
        answer = await reader.read()
        for found in SegmentDecoder().feed(memoryview(answer)):
            if found.type == SegmentType.REFUSE:
                return RefuseCode(Refuse.decode(found.payload).code).name
    writer.close()
    return "no answer"


async def flood(port: int, count: int, living: list[bytes]) -> None:
    said: Counter[str] = Counter()
    left = iter(range(count))

    async def some() -> None:
        for number in left:
            known = living[number % len(living)] if number % 2 else os.urandom(SESSION_ID_LENGTH)
            try:
                said[await ask(port, known)] += 1
            except OSError:
                said["no connection"] += 1

    await asyncio.gather(*(some() for _ in range(AT_ONCE)))
    say(dict(said))


if __name__ == "__main__":
    raise_descriptors()
    asyncio.run(flood(int(sys.argv[1]), int(sys.argv[2]), [bytes.fromhex(one) for one in sys.argv[3:]]))
