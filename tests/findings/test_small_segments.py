"""Tiny segments, whole or out of order, cost a server no more time and memory than their bytes do otherwise."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import socket
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from multi.protocol.payloads import Ack
from multi.protocol.segment import SegmentType, encode
from multi.protocol.settings import Protect
from multi.types import ConnectionState, SessionId, StreamId
from tests.integration.callbacks import callbacks_bounded
from tests.integration.hostile import HandMade
from tests.integration.support import Way, collect, run, serving, until
from tests.unit.protocol.wiring import whole_ack

pytestmark = pytest.mark.usefixtures("bounded_callbacks")

KIB, MIB = 1 << 10, 1 << 20
WINDOW = 64 * KIB  # what a server lets a session send at first, and counts for it


def data(session: SessionId, offset: int, size: int, stream: int = 0) -> bytes:
    return encode(SegmentType.DATA, session, bytes(size), sequence=offset, stream=StreamId(stream))


async def client_at(port: int) -> HandMade:
    client = await HandMade.at(port, protect=Protect.NEVER)
    await client.confirm()
    return client


# --- time ---


@contextmanager
def socket_of(client: HandMade) -> Iterator[socket.socket]:
    """Its socket for another thread to write to."""
    with socket.socket(fileno=os.dup(client.writer.get_extra_info("socket").fileno())) as raw:
        raw.settimeout(5.0)
        yield raw


async def flooded(way: Way, segment: Callable[[SessionId], bytes]) -> None:
    """The same bytes come again and again to a server, whose callbacks are bounded."""
    async with serving(way) as (server, _):
        client = await client_at(server.port)
        try:
            with callbacks_bounded(), socket_of(client) as raw, suppress(OSError):
                said = segment(client.session_id)
                await asyncio.to_thread(raw.sendall, said * (VOLUME // len(said)))
        finally:
            client.writer.transport.abort()


VOLUME = 4 * MIB


@pytest.mark.parametrize(
    "segment",
    [
        pytest.param(lambda session: data(session, 0, 1), id="a byte"),
        pytest.param(lambda session: data(session, 0, 16 * KIB), id="many bytes"),
        pytest.param(lambda session: encode(SegmentType.KEEPALIVE, session, bytes(9)), id="a question"),
        pytest.param(lambda session: encode(SegmentType.ACK, session, whole_ack(Ack(WINDOW, 0))), id="an ACK"),
        pytest.param(lambda session: encode(SegmentType.DRAIN, session, b"\0\0\0\x63\4"), id="DRAIN again"),
    ],
)
def test_no_segments_keep_a_server_from_its_other_connections(
    segment: Callable[[SessionId], bytes], development_certificates: Path
) -> None:
    run(flooded(Way(development_certificates, "tcp-plain"), segment))


async def checks_in_a_turn(way: Way, many: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """How often a server looked at the clock in one turn of its event loop, at most; each time a millisecond later.

    `many` clients say more than there is time for at once.
    """
    looked, most, ticking = 0, 0, asyncio.Event()

    def clock() -> float:
        nonlocal looked
        looked += 1
        return next(clocks) / 1000

    async def turns() -> None:
        nonlocal looked, most
        while not ticking.is_set():
            most, looked = max(most, looked), 0
            await asyncio.sleep(0)

    clocks = itertools.count(1)
    async with serving(way) as (server, _):
        clients = [await client_at(server.port) for _ in range(many)]
        for name in ("driver", "admission"):
            monkeypatch.setattr(f"multi.asyncio.{name}.monotonic", clock)
        counting = asyncio.create_task(turns())
        for client in clients:  # each as much as a socket takes, without a turn of the loop
            client.writer.write(data(client.session_id, 0, 1) * 600)
        await until(lambda: len(server.admission._waiting) == many)
        await until(lambda: len(server.admission._waiting) == 0)
        ticking.set()
        await counting
        for client in clients:
            client.writer.transport.abort()
    return most


def test_many_who_say_much_have_no_more_of_a_turn_than_a_few(
    development_certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each had five milliseconds of every turn, and with 300 of them a turn took seconds."""
    assert run(checks_in_a_turn(Way(development_certificates, "tcp-plain"), 24, monkeypatch)) < 90


async def read_from_leaver(way: Way, size: int) -> bytes:
    """What is read of a client that says bytes one by one, more than there is time for at once, and no more."""
    async with serving(way) as (server, inbox):
        client = await client_at(server.port)
        session = await inbox.session()
        said = b"".join(data(client.session_id, offset, 1) for offset in range(size))
        with socket_of(client) as raw:
            await asyncio.to_thread(raw.sendall, said)
        client.writer.write_eof()
        try:
            return await session.reader.readexactly(size)
        finally:
            client.writer.transport.abort()


def test_what_a_server_has_no_time_for_is_not_lost_with_the_connection(development_certificates: Path) -> None:
    assert run(read_from_leaver(Way(development_certificates, "tcp-plain"), 20_000)) == bytes(20_000)


async def ended_by(way: Way, segment: Callable[[SessionId], bytes]) -> bool:
    """Whether the server ends a connection that says this."""
    async with serving(way) as (server, _):
        client = await client_at(server.port)
        client.send(segment(client.session_id))
        try:
            await asyncio.wait_for(client.gone(), 1)
        except TimeoutError:
            return False
        finally:
            client.writer.transport.abort()
        return True


def test_data_without_a_byte_costs_the_connection(development_certificates: Path) -> None:
    way = Way(development_certificates, "tcp-plain")
    assert run(ended_by(way, lambda session: data(session, 0, 0)))
    assert not run(ended_by(way, lambda session: data(session, 0, 1)))


# --- memory ---

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
