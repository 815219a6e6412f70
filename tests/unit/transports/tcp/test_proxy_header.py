"""Whom a proxy speaks for, and what is no header."""

from __future__ import annotations

import asyncio
import socket
from ipaddress import IPv6Address

import pytest

from multi.errors import TransportError
from multi.transports.sockets import ready
from multi.transports.tcp.proxy_header import FIXED, MAX_EXTRAS, SIGNATURE, body_length, client_in, read_header

IPV4 = bytes([192, 0, 2, 7, 203, 0, 113, 1]) + (50000).to_bytes(2, "big") + (7788).to_bytes(2, "big")
IPV6 = bytes.fromhex("20010db8000000000000000000000007") + bytes(15) + b"\1" + (50001).to_bytes(2, "big") + b"\x1e\x6c"

MAPPED = IPv6Address("::ffff:192.0.2.7").packed + IPV6[16:]


def header(body: bytes = IPV4, command: int = 0x21, family: int = 0x11) -> bytes:
    return SIGNATURE + bytes([command, family]) + len(body).to_bytes(2, "big") + body


async def read(data: bytes, *, end: bool = True, at_once: bool = True) -> tuple[str | None, bytes]:
    """What the header says, and what is left to be read."""
    near, far = socket.socketpair()
    with near, far:
        near.setblocking(False)
        reading = asyncio.ensure_future(read_header(near, ready))
        size = len(data) if at_once else 5
        for start in range(0, len(data), size or 1):
            far.sendall(data[start : start + size])
            await asyncio.sleep(0)
        if end:
            far.shutdown(socket.SHUT_WR)
        found = await reading
        left = b""
        while more := near.recv(65536):
            left += more
        return found, left


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize(
    ("data", "client"),
    [
        (header(), "192.0.2.7:50000"),
        (header(IPV6, family=0x21), "[2001:db8::7]:50001"),
        (header(MAPPED, family=0x21), "192.0.2.7:50001"),
        (header(IPV4 + b"\x04\x00\x03abc"), "192.0.2.7:50000"),
        (header(IPV4 + bytes(MAX_EXTRAS - len(IPV4))), "192.0.2.7:50000"),
        (header(b"", command=0x20, family=0x00), ""),
        (header(IPV4, command=0x20), ""),
        (header(bytes(216), family=0x31), ""),
        (header(b"", family=0x00), ""),
        (header(IPV4, family=0x12), ""),
    ],
    ids=["IPv4", "IPv6", "IPv4 in IPv6", "extras", "longest", "health check", "LOCAL", "Unix", "not told", "datagrams"],
)
async def test_the_client_is_told_and_not_a_byte_more_is_taken(data: bytes, client: str, at_once: bool) -> None:
    assert await read(data + b"\x16 what follows", at_once=at_once) == (client, b"\x16 what follows")


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"PROXY TCP4 192.0.2.7 203.0.113.1 50000 7788\r\n", "version 1"),
        (bytes.fromhex("01100020000000a1") + bytes(40), "no PROXY protocol header"),
        (b"\x16\x03\x01" + bytes(40), "no PROXY protocol header"),
        (SIGNATURE[:-1] + b"\r" + bytes(40), "no PROXY protocol header"),
        (header(command=0x31), "version 3"),
        (header(command=0x22), "command 2"),
        (header(IPV4 + bytes(MAX_EXTRAS)), f"allowed: {MAX_EXTRAS}"),
        (header(IPV4[:-1]), "11 bytes of addresses"),
        (header(IPV4, family=0x21), "12 bytes of addresses"),
        (SIGNATURE, "left in its"),
        (header()[:-1], "left in its"),
    ],
)
async def test_what_is_no_header_is_refused_in_words(data: bytes, why: str) -> None:
    with pytest.raises(TransportError, match=why):
        await read(data)


async def test_a_proxy_that_leaves_without_a_word_is_no_error() -> None:
    assert await read(b"") == (None, b"")


def test_the_first_bytes_alone_decide_how_many_follow() -> None:
    assert body_length(header()[:FIXED]) == len(IPV4)
    assert client_in(header()[:FIXED], IPV4) == "192.0.2.7:50000"
