"""Tiny segments, whole or out of order, cost a server no more time and memory than their bytes do otherwise."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from multi.protocol.segment import SegmentType, encode
from multi.protocol.settings import Protect
from multi.types import ConnectionState, SessionId, StreamId
from tests.integration.hostile import HandMade
from tests.integration.support import Way, collect, run, serving, until

KIB, MIB = 1 << 10, 1 << 20


def data(session: SessionId, offset: int, size: int, stream: int = 0) -> bytes:
    return encode(SegmentType.DATA, session, bytes(size), sequence=offset, stream=StreamId(stream))


async def client_at(port: int) -> HandMade:
    client = await HandMade.at(port, protect=Protect.NEVER)
    await client.confirm()
    return client


# --- time ---


class Turns:
    """Measures the processor time this thread spends in each turn of its event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.longest = 0.0
        self._begun = time.thread_time()
        self._handle = self._loop.call_soon(self._next)

    def _next(self) -> None:
        self.longest = max(self.longest, time.thread_time() - self._begun)
        time.sleep(0.01)  # so that there is always something to read
        self._begun = time.thread_time()
        self._handle = self._loop.call_soon(self._next)

    def stop(self) -> None:
        self._handle.cancel()


@contextmanager
def socket_of(client: HandMade) -> Iterator[socket.socket]:
    """Its socket for another thread to write to."""
    with socket.socket(fileno=os.dup(client.writer.get_extra_info("socket").fileno())) as raw:
        raw.settimeout(5.0)
        yield raw


async def longest_turn(way: Way, size: int) -> float:
    """Seconds of processor time in the longest turn of a server that is sent the same bytes again and again."""
    async with serving(way) as (server, _):
        client = await client_at(server.port)
        with socket_of(client) as raw:
            segment = data(client.session_id, 0, size)
            said = segment * (VOLUME // len(segment))
            turns = Turns()
            try:
                with suppress(OSError):
                    await asyncio.to_thread(raw.sendall, said)
            finally:
                turns.stop()
                client.writer.transport.abort()
            return turns.longest


VOLUME = 8 * MIB
TURN = 0.1  # seconds; today it is 0.3


@pytest.mark.xfail(
    strict=True, raises=AssertionError, reason="a turn reads up to 4 MiB, however many segments they are"
)
@pytest.mark.parametrize("size", [0, 1])
def test_tiny_segments_do_not_keep_a_server_from_its_other_connections(
    size: int, development_certificates: Path
) -> None:
    assert run(longest_turn(Way(development_certificates, "tcp-plain"), size)) < TURN


def test_large_segments_do_not_keep_a_server_from_its_other_connections(development_certificates: Path) -> None:
    assert run(longest_turn(Way(development_certificates, "tcp-plain"), 16 * KIB)) < TURN


# --- memory ---

WINDOW = 64 * KIB  # what a server lets a session send at first, and counts for it
MOST = 5 * MIB // 2  # it was 7 when each range above a gap was an object


def in_order(session: SessionId) -> bytes:
    """Half of the window."""
    return data(session, 0, WINDOW // 2)


def in_islands(session: SessionId) -> bytes:
    """Every other byte of the window, over as many streams as it takes."""
    of_each = 4096
    streams = range(0, 2 * (WINDOW // 2 // of_each), 2)
    return b"".join(data(session, 1 + 2 * n, 1, stream) for stream in streams for n in range(of_each))


async def memory_for(way: Way, segments: Callable[[SessionId], bytes]) -> int:
    """Bytes that a server, in this process, keeps for them when nobody reads."""
    async with serving(way) as (server, inbox):
        client = await client_at(server.port)
        session = await inbox.session()
        said = segments(client.session_id)

        def taken() -> bool:
            (connection,) = session.connections
            return connection.payload_received == WINDOW // 2 or connection.state is not ConnectionState.ACTIVE

        gc.collect()
        tracemalloc.start()
        try:
            with socket_of(client) as raw, suppress(OSError):
                await asyncio.to_thread(raw.sendall, said)
            await collect(until(taken, timeout=4.0))
            gc.collect()
            return tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
            client.writer.transport.abort()


def test_bytes_out_of_order_take_memory_in_proportion_to_what_is_counted(development_certificates: Path) -> None:
    assert run(memory_for(Way(development_certificates, "tcp-plain"), in_islands)) < MOST


def test_bytes_in_order_take_memory_in_proportion_to_what_is_counted(development_certificates: Path) -> None:
    assert run(memory_for(Way(development_certificates, "tcp-plain"), in_order)) < MOST
