"""Code written for asyncio streams works unchanged: every scenario gives the same result on both."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.support import LOOPS, WAYS, Pair, Way, asyncio_pair, multi_pair, run

KINDS = (
    asyncio.IncompleteReadError,
    asyncio.LimitOverrunError,
    asyncio.CancelledError,
    ConnectionError,
    RuntimeError,
    ValueError,
    TypeError,
)
LIMIT = 1000


async def outcome(awaitable: Awaitable[Any]) -> object:
    """A result, or what an `except` clause of an asyncio application could tell of an error."""
    try:
        return await awaitable
    except asyncio.IncompleteReadError as error:
        return "IncompleteReadError", error.partial, error.expected
    except Exception as error:
        return next(kind.__name__ for kind in KINDS if isinstance(error, kind))


def called(function: Callable[..., Any], *arguments: Any) -> object:
    try:
        return function(*arguments)
    except Exception as error:
        return next(kind.__name__ for kind in KINDS if isinstance(error, kind))


async def reads_of_every_kind(pair: Pair) -> object:
    pair.server_writer.write(b"0123456789" * 3)
    first = await pair.reader.readexactly(2)
    results = [
        first,
        await pair.reader.read(0),
        await pair.reader.read(3),
        await pair.reader.readexactly(0),
        await pair.reader.readexactly(10),
        pair.reader.at_eof(),
        await outcome(pair.reader.readexactly(-1)),
    ]
    pair.server_writer.write_eof()
    results += [await pair.reader.read(-1), await pair.reader.read(-1), await pair.reader.read(5)]
    results += [pair.reader.at_eof(), await outcome(pair.reader.readexactly(4)), await pair.reader.readline()]
    return results


async def end_inside_readexactly(pair: Pair) -> object:
    pair.server_writer.write(b"abc")
    pair.server_writer.write_eof()
    return [await outcome(pair.reader.readexactly(10)), pair.reader.at_eof(), await pair.reader.read()]


async def end_inside_readuntil(pair: Pair) -> object:
    pair.server_writer.write(b"one\ntwo")
    pair.server_writer.write_eof()
    return [
        await pair.reader.readuntil(),
        await outcome(pair.reader.readuntil(b"\n")),
        await outcome(pair.reader.readuntil(b"\n")),
        pair.reader.at_eof(),
    ]


async def lines(pair: Pair) -> object:
    pair.server_writer.writelines([b"one\n", b"\n", b"three\nfo", bytearray(b"ur\n"), memoryview(b"five")])
    pair.server_writer.close()
    return [line async for line in pair.reader]


async def separator_split_across_segments(pair: Pair) -> object:
    pair.server_writer.write(b"> ab\r")
    await pair.reader.readexactly(2)
    reading = asyncio.ensure_future(pair.reader.readuntil(b"\r\n--"))
    await asyncio.sleep(0)
    results: list[object] = [reading.done()]
    for piece in (b"\n", b"-", b"x\r\n-", b"-rest"):
        pair.server_writer.write(piece)
        await pair.server_writer.drain()
        pair.writer.write(b"?")
        await pair.server_reader.readexactly(1)
    results += [await reading, await pair.reader.readexactly(4)]
    results.append(await outcome(pair.reader.readuntil(b"")))
    return results


async def separator_longer_than_the_limit(pair: Pair) -> object:
    separator = b"-" * (LIMIT + LIMIT // 5)
    pair.server_writer.write(b"hi" + separator + b"rest")
    return await pair.reader.readuntil(separator), await pair.reader.readexactly(4)


async def too_long_a_line(pair: Pair) -> object:
    pair.server_writer.write(b"." + b"x" * 5000 + b"\nnext\n")
    await pair.reader.readexactly(1)
    results = [await outcome(pair.reader.readuntil(b"\n")), len(await pair.reader.readexactly(5000))]
    results.append(await pair.reader.readuntil(b"\n"))
    return [*results, await pair.reader.readline()]


async def line_over_the_limit(pair: Pair) -> object:
    pair.server_writer.write(b"y" * 1001)
    pair.server_writer.write(b"\nafter\n")
    return [await outcome(pair.reader.readline()), await pair.reader.readline()]


async def line_at_the_limit(pair: Pair) -> object:
    pair.server_writer.write(b"y" * 1000 + b"\n" + b"z" * 999 + b"\n")
    return [await outcome(pair.reader.readline()), await outcome(pair.reader.readline())]


async def half_close_of_the_client(pair: Pair) -> object:
    pair.writer.write(b"question")
    results: list[object] = [pair.writer.can_write_eof(), pair.writer.write_eof(), pair.writer.is_closing()]
    results += [await pair.server_reader.read(), called(pair.writer.write, b"more")]
    pair.server_writer.write(b"answer")
    pair.server_writer.close()
    results += [await pair.reader.read(), pair.server_writer.is_closing()]
    pair.writer.close()
    await pair.writer.wait_closed()
    await pair.server_writer.wait_closed()
    return results


async def half_close_of_the_server(pair: Pair) -> object:
    pair.server_writer.write(b"greeting")
    pair.server_writer.write_eof()
    results = [await pair.reader.read(), pair.reader.at_eof()]
    pair.writer.write(b"still here")
    results.append(await pair.server_reader.readexactly(10))
    pair.writer.close()
    results.append(await pair.server_reader.read())
    await pair.writer.wait_closed()
    return results


async def write_after_close(pair: Pair) -> object:
    pair.writer.close()
    pair.writer.close()
    results = [pair.writer.is_closing(), called(pair.writer.write, b"late")]
    await pair.writer.wait_closed()
    results += [called(pair.writer.write, b"late"), await outcome(pair.writer.drain()), await pair.reader.read()]
    return results


async def two_readers(pair: Pair) -> object:
    first = asyncio.ensure_future(pair.reader.read(1))
    await asyncio.sleep(0)
    results = [await outcome(pair.reader.read(1)), await outcome(pair.reader.readline())]
    pair.server_writer.write(b"z")
    return [*results, await first]


async def aborted(pair: Pair) -> object:
    pair.writer.write(b"x" * 10)
    pair.writer.transport.abort()
    results = [pair.writer.is_closing(), await outcome(pair.writer.wait_closed())]
    results.append(await outcome(pair.writer.drain()))
    return results


async def buffer_limits(pair: Pair) -> object:
    transport = pair.writer.transport
    results: list[object] = [transport.get_write_buffer_size()]
    for arguments in ({"high": 1000}, {"low": 10}, {"high": 100, "low": 7}, {"high": 0}):
        transport.set_write_buffer_limits(**arguments)
        results.append(transport.get_write_buffer_limits())
    results.append(called(transport.set_write_buffer_limits, 1, 2))
    transport.set_write_buffer_limits(high=0)
    pair.writer.write(b"x" * 100)
    await pair.writer.drain()
    results.append(transport.get_write_buffer_size())
    return results


async def things_to_write(pair: Pair) -> object:
    pieces = [b"a", bytearray(b"b"), memoryview(b"xcx")[1:2], b"", memoryview(b"d.d.")[::2].tobytes()]
    for piece in pieces:
        pair.writer.write(piece)
    results = [called(pair.writer.write, "text"), called(pair.writer.write, 5), called(pair.writer.write, None)]
    pair.writer.write_eof()
    return [*results, await pair.server_reader.read()]


async def cancelled_reads(pair: Pair) -> object:
    results: list[object] = []
    pair.server_writer.write(b">partial")
    await pair.reader.readexactly(1)
    for call in (pair.reader.readexactly(100), pair.reader.readuntil(b"\n"), pair.reader.readline()):
        reading = asyncio.ensure_future(call)
        await asyncio.sleep(0)
        reading.cancel()
        results.append(isinstance((await asyncio.gather(reading, return_exceptions=True))[0], asyncio.CancelledError))
    pair.server_writer.write(b" line\n")
    return [*results, await pair.reader.readline()]


async def names_of_extra_info(pair: Pair) -> object:
    known = [pair.writer.get_extra_info(name) for name in ("peername", "sockname")]
    return [
        [address[0] for address in known],
        known[0] == pair.server_writer.get_extra_info("sockname"),
        known[1] == pair.server_writer.get_extra_info("peername"),
        pair.writer.get_extra_info("nonsense"),
        pair.writer.get_extra_info("nonsense", 5),
        pair.writer.transport.get_extra_info("peername") == known[0],
    ]


async def large_transfer_both_ways(pair: Pair) -> object:
    data = bytes(range(256)) * 4096

    async def send(writer: Any) -> None:
        for start in range(0, len(data), 10_000):
            writer.write(data[start : start + 10_000])
            await writer.drain()
        writer.write_eof()

    _, _, there, back = await asyncio.gather(
        send(pair.writer), send(pair.server_writer), pair.server_reader.read(), pair.reader.read()
    )
    return [there == data, back == data]


SCENARIOS = [
    reads_of_every_kind,
    end_inside_readexactly,
    end_inside_readuntil,
    lines,
    separator_split_across_segments,
    separator_longer_than_the_limit,
    too_long_a_line,
    line_over_the_limit,
    line_at_the_limit,
    half_close_of_the_client,
    half_close_of_the_server,
    write_after_close,
    two_readers,
    aborted,
    buffer_limits,
    things_to_write,
    cancelled_reads,
    names_of_extra_info,
    large_transfer_both_ways,
]

Scenario = Callable[[Pair], Awaitable[object]]


async def over_asyncio(scenario: Scenario) -> object:
    async with asyncio_pair(limit=LIMIT) as pair:
        return await scenario(pair)


async def over_multi(scenario: Scenario, way: Way) -> object:
    async with multi_pair(way, limit=LIMIT) as pair:
        return await scenario(pair)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_gives_what_asyncio_gives(scenario: Scenario, way: str, development_certificates: Path) -> None:
    expected = run(over_asyncio(scenario))
    assert run(over_multi(scenario, Way(development_certificates, way))) == expected


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_gives_what_asyncio_gives_on_uvloop(scenario: Scenario, development_certificates: Path) -> None:
    expected = run(over_asyncio(scenario))
    assert run(over_multi(scenario, Way(development_certificates, "tcp-sealed")), "uvloop") == expected


@pytest.mark.parametrize("loop", LOOPS)
def test_readuntil_takes_the_separator_that_ends_first(loop: str, development_certificates: Path) -> None:
    async def scenario() -> None:
        async with multi_pair(Way(development_certificates)) as pair:
            pair.server_writer.write(b"one;two\r\nthree-end-four")
            pair.server_writer.write_eof()
            assert await pair.reader.readuntil((b"\r\n", b";")) == b"one;"
            assert await pair.reader.readuntil((b"\r\n", b";")) == b"two\r\n"
            assert await pair.reader.readuntil((b"-end-", b"nd")) == b"three-end"
            with pytest.raises(asyncio.IncompleteReadError) as caught:
                await pair.reader.readuntil((b"x", b"yy"))
            assert caught.value.partial == b"-four"
            with pytest.raises(ValueError, match="at least one"):
                await pair.reader.readuntil(())

    run(scenario(), loop)


@pytest.mark.parametrize("loop", LOOPS)
def test_lines_written_after_close_are_dropped_as_bytes_are(loop: str, development_certificates: Path) -> None:
    """Not compared: asyncio's own `writelines` stumbles over its closed transport on Python 3.13.0."""

    async def scenario() -> None:
        async with multi_pair(Way(development_certificates)) as pair:
            pair.writer.close()
            assert called(pair.writer.writelines, [b"late"]) is None
            await pair.writer.wait_closed()
            assert called(pair.writer.writelines, [b"late"]) is None

    run(scenario(), loop)


def test_a_line_may_be_longer_than_the_first_window(development_certificates: Path) -> None:
    async def scenario() -> None:
        async with multi_pair(Way(development_certificates), limit=4 * 1024 * 1024) as pair:
            line = b"x" * 3_000_000 + b"\n"
            pair.server_writer.write(line)
            assert await pair.reader.readline() == line
            pair.server_writer.write(line)
            assert await pair.reader.readexactly(len(line)) == line

    run(scenario())
