"""A network that swallows large packets and tells nobody, and the ends of a session over it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import multi
from multi.lab.testbed.devices import wire_size
from multi.lab.testbed.specs import Way

PORT = 7788


class Hole:
    """Packets of more than so many bytes are lost. Runs in the relay of a testbed: `link.intercept(Hole, 1280)`."""

    def __init__(self, largest: int) -> None:
        self._largest = largest
        self._lost = 0

    def frame(self, way: Way, frame: bytes) -> Iterable[tuple[Way, bytes]]:
        size, packets = wire_size(frame)
        if -(-size // packets) > self._largest:
            self._lost += packets
            return []
        return [(way, frame)]

    def asked(self, question: object) -> object:
        return self._lost


def serve(host: str, size: int) -> None:
    """Send the first client so many bytes; returns when it has them."""
    asyncio.run(_serve(host, size))


async def _serve(host: str, size: int) -> None:
    ended = asyncio.Event()

    async def on_client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(1)
        writer.write(bytes(size))
        writer.close()
        await writer.wait_closed()
        ended.set()

    listen = {"host": host, "port": PORT, "transports": ["tcp"]}
    async with await multi.start_server(on_client, {"listen": listen}):
        await ended.wait()


def fetch(host: str, interface: str) -> int:
    """Bytes that the server has sent, over one TCP connection at a time."""
    return asyncio.run(_fetch(host, interface))


async def _fetch(host: str, interface: str) -> int:
    entry = ["tcp", "ipv4", interface]
    config = {"connection_priority": [entry], "remote_host": host, "remote_port": PORT}
    reader, writer = await multi.open_connection(config)
    writer.write(b"?")
    received = len(await reader.read())
    writer.close()
    await writer.wait_closed()
    return received
