"""The reception of a server: how it answers first bytes."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import pytest

import multi
from multi.asyncio.reception import PendingConnection, Reception
from multi.protocol.dispatch import HELD_OVERHEAD, MAX_HELD
from multi.protocol.segment import HEADER_LENGTH, SegmentType, peek

HOST = "127.0.0.1"
LISTEN = {"listen": {"host": HOST, "port": 0, "transports": ["tcp"]}}


def ignore(_reader: Any, _writer: Any) -> None:
    """No client matters here."""


async def answer_to(server: multi.Server, *pieces: bytes) -> bytes:
    """What a bare TCP client is told; a reset says nothing."""
    reader, writer = await asyncio.open_connection(HOST, server.port)
    for piece in pieces:
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(0.02)
    try:
        async with asyncio.timeout(5):
            return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


async def test_another_version_is_told_which_one_is_spoken_and_what_is_no_segment_nothing() -> None:
    async with await multi.start_server(ignore, LISTEN) as server:
        other_version = b"\x07" + bytes(HEADER_LENGTH - 1)
        refusal = await answer_to(server, other_version[:10], other_version[10:])
        peeked = peek(refusal)
        assert peeked is not None
        assert peeked[0] == SegmentType.REFUSE
        assert await answer_to(server, b"GET / HTTP/1.1\r\nHost: example\r\n\r\n") == b""
        assert server.sessions == ()


async def test_a_bug_with_one_connection_does_not_keep_the_others_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    failures: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(str(context["exception"])))
    bugs = [ZeroDivisionError("a bug")]

    def peek_with_a_bug(data: bytes) -> Any:
        if bugs:
            raise bugs.pop()
        return peek(data)

    async with await multi.start_server(ignore, LISTEN) as server:
        monkeypatch.setattr("multi.protocol.acceptor.peek", peek_with_a_bug)
        _, unlucky = await asyncio.open_connection(HOST, server.port)
        unlucky.write(bytes([1, SegmentType.HELLO]) + bytes(HEADER_LENGTH))
        async with asyncio.timeout(5):
            while not failures:  # noqa: ASYNC110 - the bug is met in the server
                await asyncio.sleep(0.001)
        assert await answer_to(server, b"\x01\xff" + bytes(HEADER_LENGTH)) == b""
        assert failures == ["a bug"]
        unlucky.close()


async def test_bytes_held_in_pieces_count_for_what_pieces_take() -> None:
    """On other lanes than the first of a QUIC connection, until something comes on that."""
    reception = SimpleNamespace(admission=MagicMock(handshake_timeout=5.0), arrivals={}, route=None)
    channel = MagicMock(info=SimpleNamespace(remote="127.0.0.1:5", transport="quic"))
    connection = PendingConnection(cast(Reception, reception), channel)
    pieces = 0
    while not channel.abort.called and pieces < MAX_HELD:
        connection.data_received(memoryview(b"x"), 1 + pieces % 2)
        pieces += 1
    assert pieces == MAX_HELD // (1 + HELD_OVERHEAD) + 1
