"""The two ends of what is played on the testbed: sessions of `multi`, or asyncio's streams over TCP and MPTCP.

The functions run on the hosts of a testbed. A stream of requests is answered in order: `get N` with so many bytes,
`put S` with what came in S seconds. With `mixed N` the stream carries N bytes in frames, and between two of them the
answers to `urgent`. A kernel's connection is secured with TLS, as a session over QUIC is, and is one stream.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
import struct
import sys
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import multi
from multi.linux.mptcp_pm import IPPROTO_MPTCP

__all__ = ["KILOBYTE", "SAMPLE", "Way", "downloads", "rates", "serve", "urgent"]

BLOCK, READ = 64 * 1024, 1 << 20  # bytes written and asked for at a time
FRAME = struct.Struct("!?H")  # whether it is urgent, and its bytes
FRAME_SIZE = 16_000  # bytes
SAMPLE = 0.5  # seconds of which a rate is the mean
SETTLED, INTERVAL = 1.0, 0.2  # seconds of a download before the first urgent request, and between two of them
KILOBYTE = 1000
PATIENCE = 15.0  # seconds for opening, and for an answer behind what is queued

Stream = tuple[Any, Any]
"""Reader and writer."""


@dataclass(frozen=True, slots=True)
class Way:
    """How a client reaches the server."""

    config: dict[str, Any]
    """Of a session; a kernel's connection takes from it where to go, and whom to trust."""
    kernel: str = ""
    """`tcp` or `mptcp` in place of a session, and"""
    interface: str = ""
    """what its first subflow goes over."""


def _socket(kernel: str) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, IPPROTO_MPTCP if kernel == "mptcp" else 0)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


# --- server ---


async def serve(kernel: str, config: dict[str, Any]) -> None:
    """Answer until the process is ended; say "ready" when it can be asked."""
    if kernel:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(config["ssl_config"]["cert"], config["ssl_config"]["key"])
        sock = _socket(kernel)
        sock.bind(("", config["listen"]["port"]))
        serving: Any = await asyncio.start_server(_on_client, sock=sock, ssl=context)
    else:
        serving = await multi.start_server(_on_client, config)
    print("ready", flush=True)
    await serving.serve_forever()


async def _on_client(reader: Any, writer: Any) -> None:
    session = writer.get_extra_info("session")
    try:
        async with asyncio.TaskGroup() as answering:
            answering.create_task(_answer(reader, writer))
            if session is not None:
                async for stream in session.streams():
                    answering.create_task(_answer(*stream))
    except* (OSError, multi.MultiError):
        pass  # the client has seen enough
    finally:
        writer.close()


async def _answer(reader: Any, writer: Any) -> None:
    while line := await reader.readline():
        what, amount = line.split()
        if what == b"get":
            await _send(writer, int(amount))
        elif what == b"put":
            writer.write(json.dumps(await _received(reader, float(amount))).encode() + b"\n")
            return
        else:
            await _mixed(reader, writer, int(amount))


async def _send(writer: Any, size: int) -> None:
    block = bytes(BLOCK)
    while size > 0:
        writer.write(block[:size])
        size -= BLOCK
        await writer.drain()


async def _mixed(reader: Any, writer: Any, size: int) -> None:
    """Until the client ends its requests."""

    async def answer() -> None:
        while await reader.readline():
            writer.write(FRAME.pack(True, KILOBYTE) + bytes(KILOBYTE))

    async with asyncio.TaskGroup() as both:
        both.create_task(answer())
        while size > 0:
            length = min(FRAME_SIZE, size)
            writer.write(FRAME.pack(False, length) + bytes(length))
            size -= length
            await writer.drain()


async def _received(reader: Any, seconds: float) -> list[int]:
    """Bytes in each `SAMPLE` seconds from the first byte on."""
    bins = [0] * round(seconds / SAMPLE)
    begin = 0.0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(None) as limit:
            while data := await reader.read(READ):
                if not begin:
                    begin = time.monotonic()
                    limit.reschedule(asyncio.get_running_loop().time() + seconds)
                bins[min(int((time.monotonic() - begin) / SAMPLE), len(bins) - 1)] += len(data)
    return bins


# --- client ---


@dataclass(frozen=True, slots=True)
class _Opened:
    stream: Stream
    session: Any = None


@contextlib.asynccontextmanager
async def _opened(way: Way) -> AsyncIterator[_Opened]:
    if not way.kernel:
        session = await multi.connect(way.config)
        try:
            yield _Opened((session.reader, session.writer), session)
        finally:
            session.abort()
        return
    context = ssl.create_default_context(cafile=way.config["ssl_config"]["ca"])
    sock = _socket(way.kernel)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, way.interface.encode())
    sock.connect((way.config["remote_host"], way.config["remote_port"]))  # asyncio's refuses MPTCP, and nothing waits
    sock.setblocking(False)
    reader, writer = await asyncio.open_connection(sock=sock, ssl=context, server_hostname="localhost")
    try:
        yield _Opened((reader, writer))
    finally:
        writer.transport.abort()


async def downloads(way: Way, first: Way, jobs: Sequence[Sequence[int]], limit: float) -> list[float]:
    """Seconds of each job, from opening a connection for it to the last byte; its files have a stream each.

    Over `first` both ends load and compile what they need once, which does not count. Raises TimeoutError when a job
    takes longer than `limit`.
    """
    await _download(first, [1], limit)
    return [await _download(way, sizes, limit) for sizes in jobs]


async def _download(way: Way, sizes: Sequence[int], limit: float) -> float:
    begin = time.monotonic()
    async with asyncio.timeout(limit), _opened(way) as opened:
        streams = [opened.stream]
        streams[0][1].write(b"get %d\n" % sizes[0])
        for size in sizes[1:]:
            streams.append(await opened.session.open_stream() if opened.session is not None else opened.stream)
            streams[-1][1].write(b"get %d\n" % size)
        if opened.session is None:
            streams, sizes = streams[:1], [sum(sizes)]
        await asyncio.gather(*(_skip(reader, size) for (reader, _), size in zip(streams, sizes, strict=True)))
        return time.monotonic() - begin


async def _skip(reader: Any, size: int) -> None:
    while size:
        data = await reader.read(min(size, READ))
        if not data:
            raise asyncio.IncompleteReadError(b"", size)
        size -= len(data)


async def rates(ways: Sequence[Way], seconds: float, down: bool) -> list[tuple[float, list[int]]]:
    """When data was asked for or begun, on the monotonic clock, and bytes that came in each `SAMPLE` seconds from then.

    Over each of the connections, all at the same time.
    """
    return await asyncio.gather(*(_rate(way, seconds, down) for way in ways))


async def _rate(way: Way, seconds: float, down: bool) -> tuple[float, list[int]]:
    async with asyncio.timeout(seconds + PATIENCE), _opened(way) as opened:
        reader, writer = opened.stream
        began = time.monotonic()
        if down:
            writer.write(b"get %d\n" % 10**12)
            return began, await _received(reader, seconds)
        writer.write(b"put %g\n" % seconds)
        sending = asyncio.create_task(_send(writer, 10**12))
        try:
            seen: list[int] = json.loads(await reader.readline())
        finally:
            sending.cancel()
        return began, seen


async def urgent(way: Way, size: int, in_order: bool, limit: float) -> list[float]:
    """During a download of `size` bytes a kilobyte is asked for, again and again; seconds to the last byte of each.

    `in_order`: in the stream of the download, as in a connection that has one only.
    """
    async with asyncio.timeout(limit), _opened(way) as opened:
        return await (_in_order if in_order else _beside)(opened, size)


async def _beside(opened: _Opened, size: int) -> list[float]:
    delays = []
    reader, writer = await opened.session.open_stream(priority=0)
    opened.stream[1].write(b"get %d\n" % size)
    bulk = asyncio.create_task(_skip(opened.stream[0], size))
    due = time.monotonic() + SETTLED
    while not (await asyncio.wait([bulk], timeout=due - time.monotonic()))[0]:
        begin = time.monotonic()
        writer.write(b"get %d\n" % KILOBYTE)
        await _skip(reader, KILOBYTE)
        delays.append(time.monotonic() - begin)
        due = max(due + INTERVAL, time.monotonic())
    await bulk
    return delays


async def _in_order(opened: _Opened, size: int) -> list[float]:
    reader, writer = opened.stream
    asked, delays = list[float](), list[float]()

    async def ask() -> None:
        await asyncio.sleep(SETTLED)
        while True:
            asked.append(time.monotonic())
            writer.write(b"urgent 1\n")
            await asyncio.sleep(INTERVAL)

    writer.write(b"mixed %d\n" % size)
    asking = asyncio.create_task(ask())
    while size or len(delays) < len(asked):
        is_urgent, length = FRAME.unpack(await reader.readexactly(FRAME.size))
        await reader.readexactly(length)
        if is_urgent:
            delays.append(time.monotonic() - asked[len(delays)])
        else:
            size -= length
        if not size:
            asking.cancel()
    return delays


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], json.loads(sys.argv[2])))
