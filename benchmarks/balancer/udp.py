"""A balancer for UDP that knows nothing, since HAProxy has none: `python -m benchmarks.balancer.udp PORT SERVER...`.

Each address that something comes from is given to the next server in turn.
"""

from __future__ import annotations

import asyncio
import sys
from itertools import cycle
from typing import Any

from benchmarks.processes import answer, raise_descriptors, say

HOST = "127.0.0.1"


class Front(asyncio.DatagramProtocol):
    """Where clients come to."""

    def __init__(self, servers: list[int]) -> None:
        self._turns = cycle(servers)
        self._backs: dict[Any, asyncio.Task[asyncio.DatagramTransport]] = {}

    def connection_made(self, transport: Any) -> None:
        self._front = transport

    def datagram_received(self, data: bytes, client: Any) -> None:
        if client not in self._backs:
            self._backs[client] = asyncio.ensure_future(self._open(client, next(self._turns)))
        opening = self._backs[client]
        if opening.done():
            opening.result().sendto(data)
        else:
            opening.add_done_callback(lambda opened: opened.result().sendto(data))

    async def _open(self, client: Any, server: int) -> asyncio.DatagramTransport:
        loop = asyncio.get_running_loop()
        back, _ = await loop.create_datagram_endpoint(lambda: Back(self._front, client), remote_addr=(HOST, server))
        return back


class Back(asyncio.DatagramProtocol):
    """One client's way to its server."""

    def __init__(self, front: asyncio.DatagramTransport, client: Any) -> None:
        self._front, self._client = front, client

    def datagram_received(self, data: bytes, _: Any) -> None:
        self._front.sendto(data, self._client)


async def balance(port: int, servers: list[int]) -> None:
    loop = asyncio.get_running_loop()
    await loop.create_datagram_endpoint(lambda: Front(servers), local_addr=(HOST, port))
    say({"serving": port})
    await answer(lambda _: {})


if __name__ == "__main__":
    raise_descriptors()
    asyncio.run(balance(int(sys.argv[1]), [int(port) for port in sys.argv[2:]]))
