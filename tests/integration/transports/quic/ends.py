"""Two ends of QUIC connections over real sockets, with every pair of engines."""

from __future__ import annotations

import asyncio
import random
import ssl
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from aioquic.quic.configuration import QuicConfiguration

from multi.transports import transport
from multi.transports.base import Channel, Listener, TransportSettings
from multi.transports.quic.settings import QuicSettings
from multi.transports.sockets import format_address
from multi.types import Candidate, Family
from tests.integration.transports.test_contract import Recorder


class Engines:
    """Which engine the client and the server of a test use."""

    client = "aioquic"
    server = "aioquic"


ENGINES = {
    "aioquic": ("aioquic", "aioquic"),
    "qh3": ("qh3", "qh3"),
    "aioquic to qh3": ("aioquic", "qh3"),
    "qh3 to aioquic": ("qh3", "aioquic"),
    "noq": ("noq", "noq"),
    "aioquic to noq": ("aioquic", "noq"),
    "noq to aioquic": ("noq", "aioquic"),
}


def using(settings: TransportSettings, engine: str) -> TransportSettings:
    quic = settings.section("quic", QuicSettings).model_copy(update={"engine": engine})
    return replace(settings, sections={"quic": quic})


def candidate(port: int, host: str = "127.0.0.1", name: str = "localhost") -> Candidate:
    return Candidate("quic", Family.IPV4, name, host, port)


class QuicServer:
    """A listener whose channels get recorders."""

    def __init__(self) -> None:
        self.channels: asyncio.Queue[tuple[Channel, Recorder]] = asyncio.Queue()
        self.listener: Listener

    async def listen(self, settings: TransportSettings, host: str = "127.0.0.1") -> int:
        self.listener = await transport("quic").listen(host, 0, using(settings, Engines.server), self.accept)
        return self.listener.address[1]

    def accept(self, channel: Channel) -> None:
        sink = Recorder()
        sink.attach(channel)
        self.channels.put_nowait((channel, sink))


async def dial(
    settings: TransportSettings, port: int, host: str = "127.0.0.1", name: str = "localhost"
) -> tuple[Channel, Recorder]:
    channel = await transport("quic").dial(candidate(port, host, name), using(settings, Engines.client))
    sink = Recorder()
    sink.attach(channel)
    return channel, sink


class Relay:
    """A UDP relay in front of a server: loses packets by seed and by size, holds them back to a rate."""

    def __init__(
        self, server_port: int, loss: float = 0.0, rate: float = 0.0, queue: int = 100_000, largest: int = 65_535
    ) -> None:
        self._server = ("127.0.0.1", server_port)
        self._loss, self._rate, self._queue = loss, rate, queue
        self.largest = largest
        """Bytes of the largest datagram that gets through; it may change."""
        self._random = random.Random(1)
        self._client: tuple[str, int] | None = None
        self._free_at = {True: 0.0, False: 0.0}
        self.dropped = Counter[str]()
        """Packets, by the client whose they were."""

    async def open(self) -> int:
        self._loop = asyncio.get_running_loop()
        self._front, _ = await self._loop.create_datagram_endpoint(
            lambda: _RelayEnd(self._from_client), local_addr=("127.0.0.1", 0)
        )
        self._back, _ = await self._loop.create_datagram_endpoint(
            lambda: _RelayEnd(self._from_server), remote_addr=self._server
        )
        return int(self._front.get_extra_info("sockname")[1])

    def close(self) -> None:
        self._front.close()
        self._back.close()

    def _from_client(self, data: bytes, address: tuple[str, int]) -> None:
        if len(data) <= self.largest:
            self._client = address
        self._pass(data, address, True, lambda: self._back.sendto(data))

    def _from_server(self, data: bytes, address: tuple[str, int]) -> None:
        assert self._client is not None
        self._pass(data, self._client, False, lambda: self._front.sendto(data, self._client))

    def _pass(self, data: bytes, client: tuple[str, int], up: bool, send: Callable[[], None]) -> None:
        now = self._loop.time()
        waiting = max(0.0, self._free_at[up] - now)
        full = waiting * self._rate > self._queue
        if self._random.random() < self._loss or full or len(data) > self.largest:
            self.dropped[format_address(client)] += 1
        elif self._rate:
            self._free_at[up] = now + waiting + len(data) / self._rate
            self._loop.call_at(self._free_at[up], send)
        else:
            send()


class _RelayEnd(asyncio.DatagramProtocol):
    def __init__(self, received: Callable[[bytes, tuple[str, int]], None]) -> None:
        self._received = received

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self._received(data, addr)


def stranger(alpn: str = "multi/1") -> QuicConfiguration:
    return QuicConfiguration(is_client=True, alpn_protocols=[alpn], verify_mode=ssl.CERT_NONE)
