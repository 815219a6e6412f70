"""Waiting and memory: drain waits for a slow reader, buffers are taken as they are at the call, limits hold."""

from __future__ import annotations

import array
import asyncio
import sys
import time
from pathlib import Path

import pytest

import multi
from tests.integration.support import (
    LOOPS,
    WAYS,
    Inbox,
    Relay,
    Way,
    collect,
    multi_pair,
    pattern,
    run,
    standstill,
)

MIB = 1024 * 1024
CHUNK = 64 * 1024


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("way", WAYS)
def test_drain_waits_for_a_reader_that_does_not_read(way: str, loop: str, development_certificates: Path) -> None:
    async def scenario() -> None:
        async with multi_pair(Way(development_certificates, way)) as pair:
            data = pattern(16 * MIB)
            written = 0

            async def send() -> None:
                nonlocal written
                for start in range(0, len(data), CHUNK):
                    pair.writer.write(data[start : start + CHUNK])
                    written = start + CHUNK
                    await pair.writer.drain()
                pair.writer.write_eof()

            sending = asyncio.ensure_future(send())
            await standstill(lambda: written)
            assert written < 2 * MIB
            low, high = pair.writer.transport.get_write_buffer_limits()
            assert low < pair.writer.transport.get_write_buffer_size() <= high + CHUNK
            assert pair.session.memory < 2 * MIB
            assert pair.server_session.memory < MIB
            assert await pair.server_reader.read() == data
            await sending
            assert pair.writer.transport.get_write_buffer_size() == 0

    run(scenario(), loop)


def test_send_buffer_limit_bounds_what_a_silent_network_keeps(development_certificates: Path) -> None:
    async def scenario() -> None:
        way, inbox = Way(development_certificates), Inbox()
        async with await multi.start_server(inbox.on_client, way.server()) as server, Relay(server.port) as relay:
            config = way.client(relay.port, limits={"max_send_buffer": MIB})
            _, writer = await multi.open_connection(config)
            session = writer.get_extra_info("session")
            server_reader, _ = await inbox.next()
            grown = pattern(24 * MIB)
            receiving = asyncio.ensure_future(server_reader.readexactly(len(grown)))
            for start in range(0, len(grown), CHUNK):
                writer.write(grown[start : start + CHUNK])
                await writer.drain()
                assert session.memory <= MIB + 2 * CHUNK
            assert await receiving == grown
            relay.flowing.clear()
            written = 0

            async def send() -> None:
                nonlocal written
                while written < 8 * MIB:
                    writer.write(bytes(CHUNK))
                    written += CHUNK
                    await writer.drain()

            sending = asyncio.ensure_future(send())
            await standstill(lambda: written)
            assert written < 8 * MIB
            assert session.memory <= MIB + 2 * CHUNK
            relay.flowing.set()
            assert await server_reader.readexactly(8 * MIB) == bytes(8 * MIB)
            await sending
            writer.close()
            await writer.wait_closed()

    run(scenario())


def test_buffers_changed_after_write_arrive_as_they_were(development_certificates: Path) -> None:
    async def scenario() -> None:
        async with multi_pair(Way(development_certificates, "tcp-plain")) as pair:
            expected = bytearray()
            for size in (1, 100, 5000, 100_000):
                mutable = bytearray(b"a" * size)
                view = memoryview(bytearray(b"b" * size))
                numbers = array.array("I", [0x63636363] * size)
                for buffer in (
                    mutable,
                    view,
                    view[::2],
                    memoryview(mutable)[size // 2 :],
                    numbers,
                    memoryview(numbers),
                ):
                    expected += bytes(buffer)
                    pair.writer.write(buffer)
                mutable[:] = b"x" * size
                view[:] = b"x" * size
                for index in range(size):
                    numbers[index] = 0
            pair.writer.write_eof()
            assert await pair.server_reader.read() == expected

    run(scenario())


def test_bytes_are_kept_by_reference(development_certificates: Path) -> None:
    async def scenario() -> None:
        async with multi_pair(Way(development_certificates, "tcp-plain")) as pair:
            data = pattern(8 * MIB)
            before = sys.getrefcount(data)
            pair.writer.write(data)
            assert sys.getrefcount(data) > before
            view = memoryview(data)[: 4 * MIB]
            pair.writer.write(view)
            view.release()
            assert await pair.server_reader.readexactly(12 * MIB) == data + data[: 4 * MIB]
            pair.writer.close()
            await pair.writer.wait_closed()
            assert sys.getrefcount(data) == before

    run(scenario())


def test_writer_that_never_drains_does_not_starve_the_loop(development_certificates: Path) -> None:
    async def scenario() -> None:
        async with multi_pair(Way(development_certificates)) as pair:
            data = pattern(32 * MIB)
            pair.writer.write(data)
            pair.writer.write_eof()
            longest = 0.0  # seconds of this thread: what others take of the processor does not count
            reading = asyncio.ensure_future(pair.server_reader.read())
            while not reading.done():
                before = time.thread_time()
                await asyncio.sleep(0)
                longest = max(longest, time.thread_time() - before)
            assert await reading == data
            assert longest < 0.5

    run(scenario())


@pytest.mark.parametrize("way", ["tcp-sealed", "quic"])
def test_writing_to_a_session_that_the_peer_has_closed_raises(way: str, development_certificates: Path) -> None:
    async def scenario() -> None:
        async with multi_pair(Way(development_certificates, way)) as pair:
            pair.server_writer.close()

            async def write_forever() -> None:
                while True:
                    pair.writer.write(b"x" * 1000)
                    await pair.writer.drain()
                    await asyncio.sleep(0)

            assert isinstance(await collect(write_forever()), ConnectionError)

    run(scenario())


def test_lost_session_is_no_end_of_file(development_certificates: Path) -> None:
    async def scenario() -> None:
        async with multi_pair(Way(development_certificates)) as pair:
            pair.server_writer.write(b"line\nhalf a li")
            assert await pair.reader.readline() == b"line\n"
            assert await pair.reader.readexactly(4) == b"half"
            pair.server_writer.transport.abort()
            with pytest.raises(ConnectionError):
                await pair.reader.readline()
            assert not pair.reader.at_eof()
            assert await pair.reader.read(100) == b" a li"  # what came before is not lost
            assert not pair.reader.at_eof()
            for call in (pair.reader.read(1), pair.reader.read(), pair.reader.readexactly(1), pair.reader.readline()):
                with pytest.raises(ConnectionError):
                    await call
            with pytest.raises(ConnectionError):
                await pair.writer.drain()

    run(scenario())
