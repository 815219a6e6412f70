"""Known differences: what code written for asyncio's streams does not find on a session's."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.integration.support import Pair, Way, asyncio_pair, multi_pair, run
from tests.integration.test_conformity import outcome

WAY = Way(Path())  # sealed TCP: needs no certificates
LIMIT = 1000

Scenario = Callable[[Pair], Awaitable[object]]


async def reads_after_own_abort(pair: Pair) -> object:
    pair.writer.transport.abort()
    return [await outcome(pair.reader.read(10)), await outcome(pair.reader.readline()), pair.reader.at_eof()]


async def bytes_that_came_before_own_close(pair: Pair) -> object:
    pair.server_writer.write(b"> already here")
    await pair.reader.readexactly(2)  # they come together
    pair.writer.close()
    return [await outcome(pair.reader.read(100)), await outcome(pair.reader.read(100)), pair.reader.at_eof()]


async def writer_after_the_close_of_the_peer(pair: Pair) -> object:
    pair.server_writer.write(b"bye")
    pair.server_writer.close()
    results: list[object] = [await pair.reader.read()]
    closed = asyncio.ensure_future(pair.server_writer.wait_closed())
    await asyncio.wait([closed], timeout=1.0)
    results += [await outcome(pair.writer.drain()), pair.writer.is_closing()]
    closed.cancel()
    await asyncio.gather(closed, return_exceptions=True)
    return results


async def consumed_when_no_separator_is_found(pair: Pair) -> object:
    pair.server_writer.write(b">" + b"x" * 5 * LIMIT)
    await pair.reader.readexactly(1)
    try:
        await pair.reader.readuntil(b"\n")
    except asyncio.LimitOverrunError as error:
        return error.consumed
    return None


async def cancelled_line(pair: Pair) -> object:
    """The same on both, so that a difference is one."""
    pair.server_writer.write(b"> half a")
    await pair.reader.readexactly(2)
    reading = asyncio.ensure_future(pair.reader.readline())
    await asyncio.sleep(0)
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    pair.server_writer.write(b" line\n")
    return await pair.reader.readline()


def differs(scenario: Scenario, reason: str) -> object:
    return pytest.param(
        scenario, marks=pytest.mark.xfail(strict=True, raises=AssertionError, reason=reason), id=scenario.__name__
    )


async def over_asyncio(scenario: Scenario) -> object:
    async with asyncio_pair(limit=LIMIT) as pair:
        return await scenario(pair)


async def over_multi(scenario: Scenario) -> object:
    async with multi_pair(WAY, limit=LIMIT) as pair:
        return await scenario(pair)


@pytest.mark.parametrize(
    "scenario",
    [
        pytest.param(cancelled_line, id=cancelled_line.__name__),
        differs(reads_after_own_abort, "reading after one's own abort() raises, where asyncio tells of the end"),
        differs(bytes_that_came_before_own_close, "close() throws away bytes that had come and were not read yet"),
        differs(
            writer_after_the_close_of_the_peer,
            "the peer's close ends both directions: drain() raises and is_closing() is true before one's own close()",
        ),
        differs(
            consumed_when_no_separator_is_found,
            "LimitOverrunError.consumed is smaller than asyncio's: less is searched than has come",
        ),
    ],
)
def test_gives_what_asyncio_gives(scenario: Scenario) -> None:
    assert run(over_multi(scenario)) == run(over_asyncio(scenario))
