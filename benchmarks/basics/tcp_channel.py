"""How fast is a bare channel on loopback, next to asyncio's streams in the same run?

Two processes, one sends and one receives; nothing of the session layer takes part. Prints Mbit/s from the first to
the last byte received, the median of the rounds.

    python -m benchmarks.basics.tcp_channel [--bytes N] [--write SIZE] [--rounds N]
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import statistics
import time
from collections.abc import Callable, Coroutine
from multiprocessing.connection import Connection
from typing import Any

from multi.errors import TransportError
from multi.transports import transport
from multi.transports.base import Channel, TransportSettings
from multi.types import Candidate, Family

HOST = "127.0.0.1"
PARTIES = ("tcp", "mptcp", "asyncio streams")
LOOPS = ("asyncio", "uvloop")
SIZE, QUICK_SIZE = 8_000_000_000, 500_000_000  # bytes
WRITE = 64 * 1024  # bytes
ROUNDS, QUICK_ROUNDS = 3, 1


class Meter:
    """A sink that counts bytes and sends the time they took through a pipe."""

    behind = False
    proved = True
    waiting = 0

    def __init__(self, expected: int) -> None:
        self._missing = expected
        self._started = 0.0
        self.seconds: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    def count(self, size: int) -> None:
        self._started = self._started or time.monotonic()
        self._missing -= size
        if self._missing <= 0 and not self.seconds.done():
            self.seconds.set_result(time.monotonic() - self._started)

    def data_received(self, data: memoryview, lane: int) -> None:
        self.count(len(data))

    def batch_finished(self) -> None:
        pass

    def writable(self) -> None:
        pass

    def connection_lost(self, error: TransportError | None) -> None:
        pass


class Pump(Meter):
    """A sink that writes as long as there is credit."""

    def __init__(self, channel: Channel, size: int, write: int) -> None:
        super().__init__(0)
        self._channel, self._left, self._data = channel, size, memoryview(bytes(write))

    def writable(self) -> None:
        while self._left > 0 and self._channel.credit() > 0:
            self._channel.write((self._data,), 0)
            self._channel.flush()
            self._left -= len(self._data)


async def receive(pipe: Connection, party: str, size: int) -> None:
    meter = Meter(size)

    async def on_client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while not meter.seconds.done():
            meter.count(len(await reader.read(1 << 20)))

    if party == "asyncio streams":
        server = await asyncio.start_server(on_client, HOST, 0, limit=1 << 20)
        pipe.send(server.sockets[0].getsockname()[1])
    else:
        listener = await transport(party).listen(HOST, 0, TransportSettings(), lambda channel: channel.start(meter))
        pipe.send(listener.address[1])
    pipe.send(await meter.seconds)


async def send(port: int, party: str, size: int, write: int) -> None:
    if party == "asyncio streams":
        _, writer = await asyncio.open_connection(HOST, port)
        data = bytes(write)
        for _ in range(0, size, write):
            writer.write(data)
            await writer.drain()
    else:
        candidate = Candidate(party, Family.IPV4, "localhost", HOST, port)
        channel = await transport(party).dial(candidate, TransportSettings())
        pump = Pump(channel, size, write)
        channel.start(pump)
        pump.writable()
    await asyncio.get_running_loop().create_future()  # until the parent ends this process


def _on_loop(loop: str, main: Callable[..., Coroutine[Any, Any, None]], *arguments: object) -> None:
    factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    if loop == "uvloop":
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main(*arguments))


def measure(loop: str, party: str, size: int, write: int) -> float:
    """Mbit/s of one transfer."""
    ours, theirs = multiprocessing.Pipe()
    receiver = multiprocessing.Process(target=_on_loop, args=(loop, receive, theirs, party, size))
    receiver.start()
    sender = multiprocessing.Process(target=_on_loop, args=(loop, send, ours.recv(), party, size, write))
    sender.start()
    seconds = float(ours.recv())
    sender.kill()
    sender.join()
    receiver.join()
    return size * 8 / seconds / 1e6


def run(*, quick: bool, size: int = 0, write: int = WRITE, rounds: int = 0) -> None:
    """Print the median of each party's rounds; `size` and `rounds` 0 = as usual."""
    size = size or (QUICK_SIZE if quick else SIZE)
    rounds = rounds or (QUICK_ROUNDS if quick else ROUNDS)
    for loop in LOOPS:
        for party in PARTIES:
            rates = [measure(loop, party, size, write) for _ in range(rounds)]
            print(f"{loop:8} {party:16} {statistics.median(rates):8.0f} Mbit/s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--bytes", type=int, default=SIZE)
    parser.add_argument("--write", type=int, default=WRITE)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    run(quick=False, size=options.bytes, write=options.write, rounds=options.rounds)


if __name__ == "__main__":
    main()
