"""Which server a new connection is meant for, as its first bytes say: the route token of a JOIN, or of a TLS greeting.

Nothing here is believed: the server that a route leads to asks for proofs. Pure.
"""

from __future__ import annotations

from multi.errors import RemoteProtocolError
from multi.protocol.segment import peek, route_of
from multi.transports.tls import ALPN, FIRST_BYTE

RECORD_HEADER, MESSAGE_HEADER = 5, 4  # RFC 8446 sections 5.1 and 4
CLIENT_HELLO = 1
ALPN_EXTENSION = 16  # RFC 7301
WITH_ROUTE = f"{ALPN};r=".encode()


def route_named(first: bytes) -> bytes | None:
    """The route token in the first bytes of a connection; empty = they name none, None = more of them are needed."""
    if not first:
        return None
    try:
        if first[0] == FIRST_BYTE:
            return _of_greeting(first)
        if peek(first) is None or len(first) < int.from_bytes(first[2:4], "big"):
            return None
        return route_of(first)
    except (RemoteProtocolError, IndexError):
        return b""  # whoever serves the connection says what is wrong with it


def _of_greeting(first: bytes) -> bytes | None:
    """Of a ClientHello, which is taken as far as its first record goes."""
    length = RECORD_HEADER + int.from_bytes(first[3:5], "big")
    if len(first) < RECORD_HEADER or len(first) < length:
        return None
    hello = first[RECORD_HEADER:length]
    if hello[0] != CLIENT_HELLO:
        return b""
    position = MESSAGE_HEADER + 2 + 32  # version and random
    position += 1 + hello[position]  # session id
    position += 2 + int.from_bytes(hello[position : position + 2], "big")  # cipher suites
    position += 1 + hello[position]  # compression methods
    position += 2
    while position + 4 <= len(hello):
        kind, size = (int.from_bytes(hello[start : start + 2], "big") for start in (position, position + 2))
        position += 4
        if kind == ALPN_EXTENSION:
            return _of_names(hello[position + 2 : position + size])
        position += size
    return b""


def _of_names(names: bytes) -> bytes:
    while names:
        name, names = names[1 : 1 + names[0]], names[1 + names[0] :]
        if name.startswith(WITH_ROUTE):
            try:
                return bytes.fromhex(name[len(WITH_ROUTE) :].decode())
            except ValueError:
                return b""
    return b""
