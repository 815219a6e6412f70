"""Streams whose readers do not read never hold up those whose readers do."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest

import multi
from multi.types import STREAM_ZERO
from tests.integration.support import Way, multi_pair, run, standstill, until
from tests.sim.worlds import FAST, opened

pytestmark = pytest.mark.usefixtures("bounded_callbacks")

KIB, MIB = 1024, 1024 * 1024
WAY = Way(Path())  # sealed TCP: needs no certificates
PATIENCE = 1.5  # seconds; on loopback it takes milliseconds


# --- the receiver's window  ---


async def delivers_beside_unread_stream(direction: str, size: int) -> None:
    """One stream brings `size` bytes that nobody reads; then stream 0 has something to say."""
    async with multi_pair(WAY) as pair:
        upwards = direction == "to the server"
        sender, receiver = (pair.session, pair.server_session) if upwards else (pair.server_session, pair.session)
        reader = pair.server_reader if upwards else pair.reader
        _, unread = await sender.open_stream()
        unread.write(b"?" * size)
        waiting = receiver.streams()
        kept = await anext(waiting)
        await standstill(lambda: receiver.memory)  # everything has come, or a window is shut
        sender.writer.write(b"ping")
        try:
            answer = await asyncio.wait_for(reader.readexactly(4), PATIENCE)
        except TimeoutError:
            answer = b""
        await waiting.aclose()  # type: ignore[attr-defined]
        assert kept
        assert answer == b"ping"


@pytest.mark.parametrize("direction", ["to the server", "to the client"])
def test_one_unread_stream_does_not_stop_the_others(direction: str) -> None:
    run(delivers_beside_unread_stream(direction, 2 * MIB))


@pytest.mark.parametrize("direction", ["to the server", "to the client"])
def test_a_little_unread_does_not_stop_the_others(direction: str) -> None:
    run(delivers_beside_unread_stream(direction, 16 * KIB))


def seconds_beside_unread(held: int) -> float:
    """Simulated seconds for 200 kB on stream 0, read 30 ms late, while `held` bytes of another stream are unread."""
    pair = opened(FAST)
    pair.peer.session.receiver.window.may_grow = lambda _size: False  # the server has no memory left: streams share
    unread = pair.client.open_stream()
    assert unread is not None
    pair.client.write(b"?", unread)
    pair.run(0.2)
    pair.peer.pause(unread)
    pair.peer.pause(STREAM_ZERO)
    pair.client.write(b"?" * held, unread)
    pair.run(0.2)
    pair.client.write(bytes(200_000))
    start = pair.clock.now
    while pair.peer.got() < 200_000 and pair.clock.now - start < 30.0:
        pair.run(0.030)
        pair.peer.resume(STREAM_ZERO)
        pair.peer.pause(STREAM_ZERO)
    return pair.clock.now - start


@pytest.mark.parametrize("held", [30 * KIB, 56 * KIB])
def test_a_small_room_beside_an_unread_stream_is_used_without_pauses(held: int) -> None:
    # 12 KiB each round trip of 20 ms and 30 ms of reading would do; four fifths of the limit are margin.
    assert seconds_beside_unread(held) < 2.0


# --- the sender's buffer  ---


async def drains_beside_stalled_streams(stalled: int) -> None:
    """Writers of `stalled` streams wait in `drain` for readers that do not read; stream 0 flows."""
    async with multi_pair(WAY, limits={"max_send_buffer": 4 * MIB}) as pair:
        arrived = 0

        async def sink() -> None:
            nonlocal arrived
            while data := await pair.server_reader.read(MIB):
                arrived += len(data)

        async def fill(writer: multi.SessionWriter) -> None:
            with suppress(ConnectionError):
                while True:
                    writer.write(bytes(64 * KIB))
                    await writer.drain()

        tasks = [asyncio.create_task(sink())]
        try:
            written = 0
            for _ in range(64):  # the session window grows far beyond what the stalled streams take of it
                pair.writer.write(bytes(256 * KIB))
                written += 256 * KIB
                await pair.writer.drain()
            await until(lambda: arrived == written, "stream 0 has delivered everything")
            for _ in range(stalled):
                _, writer = await pair.session.open_stream()
                tasks.append(asyncio.create_task(fill(writer)))
            await standstill(lambda: pair.session.memory)  # their writers wait, all of them
            assert pair.session.memory < 2 * 4 * MIB + stalled * 64 * KIB
            pair.writer.write(b"x" * 1000)
            await until(lambda: arrived == written + 1000, "the reader of stream 0 has everything")
            draining = asyncio.create_task(pair.writer.drain())
            tasks.append(draining)
            await asyncio.wait([draining], timeout=PATIENCE)
            assert draining.done(), "a writer waits that has nothing unsent and nothing unacknowledged"
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("stalled", [1, 6, 24])
def test_stalled_streams_do_not_hold_up_the_writer_of_one_that_flows(stalled: int) -> None:
    run(drains_beside_stalled_streams(stalled))
