"""Messages of the file protocol: what is well-formed, and what is said about the rest."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from multi.errors import RemoteProtocolError
from multi.lab.files.protocol import (
    MAX_LINE,
    Begin,
    End,
    FileMessage,
    FileRefused,
    FileRequest,
    Get,
    Item,
    List,
    Listed,
    Problem,
    Put,
    Receiving,
    Refusal,
    Sending,
    Stored,
    decode,
    encode,
    pack_length,
    read_length,
    read_message,
    refusal_of,
)

HASH = "ab" * 32


@pytest.mark.parametrize(
    "message",
    [
        Get("a b/größe\udcff", 7, HASH),
        Sending(1 << 62, 0, 0o644),
        Put("name", 0, 0o755, True),
        Receiving(3, HASH),
        Begin(0),
        End(HASH),
        Stored(5, HASH),
        List(""),
        Item("a\nb\udcff", 1 << 62, 1_700_000_000),
        Listed(False),
        Refusal("busy", "why"),
    ],
)
def test_messages_survive_the_wire(message: FileMessage) -> None:
    line = encode(message)
    assert line.isascii()
    assert line.count(b"\n") == 1
    assert decode(line) == message


def test_golden_bytes_of_a_request() -> None:
    assert encode(Get("f", 0, HASH)) == (
        b'{"multi_files": 1, "type": "get", "name": "f", "offset": 0, "prefix_sha256": "' + HASH.encode() + b'"}\n'
    )


def good(**changes: Any) -> bytes:
    return json.dumps(
        {"multi_files": 1, "type": "get", "name": "f", "offset": 0, "prefix_sha256": HASH, **changes}
    ).encode()


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"GET / HTTP/1.1\r\n", "is not JSON"),
        (b"\xff\n", "is not JSON"),
        (b"[" * 10_000 + b"\n", "is not JSON"),
        (b"9" * 5000 + b"\n", "is not JSON"),
        (b"[]\n", "does not speak the file protocol"),
        (b"{}\n", "does not speak the file protocol"),
        (good(multi_files=2), "speaks version 2 of the file protocol, this is version 1"),
        (good(type="steal"), "unknown message 'steal'"),
        (good(type=["get"]), "unknown message"),
        (good(name=5), "no valid 'name'"),
        (good(offset=-1), "no valid 'offset'"),
        (good(offset=True), "no valid 'offset'"),
        (good(offset=1.0), "no valid 'offset'"),
        (good(offset=1 << 63), "no valid 'offset'"),
        (good(prefix_sha256="ab"), "no valid 'prefix_sha256'"),
        (good(prefix_sha256="zz" * 32), "no valid 'prefix_sha256'"),
        (good(type="put", size=1, mode=0, force="yes"), "no valid 'force'"),
    ],
)
def test_malformed_messages_are_refused_with_a_reason(line: bytes, reason: str) -> None:
    with pytest.raises(RemoteProtocolError) as error:
        decode(line)
    assert reason in str(error.value)


def test_unknown_keys_are_for_later_versions() -> None:
    assert decode(good(compression="none")) == Get("f", 0, HASH)


def reader_of(data: bytes) -> asyncio.StreamReader:
    reader = asyncio.StreamReader(limit=MAX_LINE)
    reader.feed_data(data)
    reader.feed_eof()
    return reader


async def test_peer_that_refuses_is_heard_whatever_was_expected() -> None:
    refusal = refusal_of(FileRefused(Problem.BUSY, "busy \x1b[2J"))
    with pytest.raises(FileRefused) as error:
        await read_message(reader_of(encode(refusal)), Sending)
    assert error.value.problem is Problem.BUSY
    assert str(error.value) == "busy \\x1b[2J"


async def test_unexpected_and_endless_messages_are_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="unexpected message 'begin'"):
        await read_message(reader_of(encode(Begin(0))), Sending)
    with pytest.raises(RemoteProtocolError, match="unexpected message 'begin'"):
        await read_message(reader_of(encode(Begin(0))), FileRequest)
    with pytest.raises(RemoteProtocolError, match="too long"):
        await read_message(reader_of(b"x" * (MAX_LINE + 1) + b"\n"), FileRequest)
    with pytest.raises(EOFError):
        await read_message(reader_of(b'{"multi_files": 1'), FileRequest)


async def test_lengths_of_blocks_are_bounded() -> None:
    assert await read_length(reader_of(pack_length(1 << 20))) == 1 << 20
    with pytest.raises(RemoteProtocolError, match="allowed: at most"):
        await read_length(reader_of(pack_length((1 << 20) + 1)))


def test_names_too_long_for_a_line_are_refused_before_they_are_sent() -> None:
    with pytest.raises(FileRefused, match="the name is too long"):
        encode(Get("\u2028" * MAX_LINE, 0, HASH))
