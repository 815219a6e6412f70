"""The route token in the first bytes of a connection, as far as they have come."""

from __future__ import annotations

import os
import ssl

import pytest

from multi.protocol.segment import SegmentType, encode, encode_routed
from multi.transports.tls import ALPN
from multi.types import SessionId
from multi.workers.first_bytes import route_named

SESSION = SessionId(bytes(range(16)))
ROUTE = bytes.fromhex("a1b2c3d4e5f60702")
JOIN = encode_routed(SegmentType.JOIN, SESSION, bytes(200), ROUTE)


def greeting(*protocols: str) -> bytes:
    """What a TLS client says first."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if protocols:
        context.set_alpn_protocols(protocols)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(incoming, outgoing, server_hostname="server.example")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


GREETING = greeting(f"{ALPN};r={ROUTE.hex()}", ALPN)


def test_a_join_names_the_route_it_was_given() -> None:
    assert route_named(JOIN) == ROUTE
    assert route_named(encode_routed(SegmentType.JOIN, SESSION, b"", b"\x07")) == b"\x07"
    assert route_named(encode(SegmentType.HELLO, SESSION, bytes(100))) == b""


def test_a_greeting_names_it_in_its_protocols() -> None:
    assert route_named(GREETING) == ROUTE
    assert route_named(greeting("h2", f"{ALPN};r=07")) == b"\x07"
    for others in ((ALPN,), ("h2", "http/1.1"), (f"{ALPN};r=xyz",), ()):
        assert route_named(greeting(*others)) == b""


@pytest.mark.parametrize("whole", [JOIN, GREETING], ids=["join", "greeting"])
def test_more_is_waited_for_until_the_route_can_be_there(whole: bytes) -> None:
    found = [route_named(whole[:size]) for size in range(len(whole) + 1)]
    known = found.index(ROUTE)
    assert found[:known] == [None] * known
    assert set(found[known:]) == {ROUTE}


def test_nobody_is_named_by_what_is_no_greeting_and_nothing_fails() -> None:
    for other in (b"GET / HTTP/1.1\r\n", b"\x02" + bytes(40), b"\x16\x03\x01\x00\x01\x02", b"\x16\x03\x01\x00\x00"):
        assert route_named(other) == b""
    malformed = bytearray(JOIN)
    malformed[33] = 200  # longer than the header
    assert route_named(bytes(malformed)) == b""


def test_damaged_greetings_name_a_route_or_none() -> None:
    for position in range(5, len(GREETING)):
        for value in (0, 1, 255):
            damaged = GREETING[:position] + bytes([value]) + GREETING[position + 1 :]
            route = route_named(damaged)
            assert route is None or isinstance(route, bytes)
    for _ in range(200):
        route_named(b"\x16" + os.urandom(64))
