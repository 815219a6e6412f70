"""A network that swallows large packets and tells nobody, and the ends of a session over it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from time import monotonic
from typing import Any

import multi
from multi.lab.testbed.devices import wire_size
from multi.lab.testbed.specs import Way

PORT = 7788


class Hole:
    """Packets of more than so many bytes are lost, once `after` bytes have come down.

    Runs in the relay of a testbed: `link.intercept(Hole, 1280)`.
    """

    def __init__(self, largest: int, after: int = 0) -> None:
        self._largest = largest
        self._left = after
        self._lost = 0

    def frame(self, way: Way, frame: bytes) -> Iterable[tuple[Way, bytes]]:
        size, packets = wire_size(frame)
        if way == "down":
            self._left -= size
        if self._left <= 0 and -(-size // packets) > self._largest:
            self._lost += packets
            return []
        return [(way, frame)]

    def asked(self, question: object) -> object:
        return self._lost


def serve(host: str, size: int, transport: str = "tcp", certificates: Path | None = None) -> None:
    """Send the first client so many bytes; returns when it has them."""
    asyncio.run(_serve(host, size, transport, certificates))


async def _serve(host: str, size: int, transport: str, certificates: Path | None) -> None:
    ended = asyncio.Event()

    async def on_client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(1)
        writer.write(bytes(size))
        writer.close()
        await writer.wait_closed()
        ended.set()

    config: dict[str, Any] = {"listen": {"host": host, "port": PORT, "transports": [transport]}}
    if certificates is not None:
        files = {name: str(certificates / f"server-{name}.pem") for name in ("cert", "key")}
        config["ssl_config"] = files
    async with await multi.start_server(on_client, config):
        await ended.wait()


def fetch(host: str, interface: str, transport: str = "tcp", certificates: Path | None = None) -> tuple[int, float]:
    """Bytes that the server has sent, over one connection at a time, and the longest wait between two of them."""
    return asyncio.run(_fetch(host, interface, transport, certificates))


async def _fetch(host: str, interface: str, transport: str, certificates: Path | None) -> tuple[int, float]:
    entry = [transport, "ipv4", interface]
    config: dict[str, Any] = {"connection_priority": [entry], "remote_host": host, "remote_port": PORT}
    if certificates is not None:
        config["ssl_config"] = {"ca": str(certificates / "ca.pem")}
    reader, writer = await multi.open_connection(config)
    writer.write(b"?")
    received, longest = len(await reader.read(65_536)), 0.0
    before = monotonic()
    while data := await reader.read(65_536):
        received, longest, before = received + len(data), max(longest, monotonic() - before), monotonic()
    writer.close()
    await writer.wait_closed()
    return received, longest
