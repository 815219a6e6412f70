"""Whom a proxy speaks for: the header of the PROXY protocol, version 2, that it sends before anything else.

Decides what a well-formed header is and which address it gives (HAProxy's proxy-protocol.txt, section 2.2). Who is
believed, and what is done with the address, is decided by the listener.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable
from ipaddress import IPv4Address, IPv6Address

from multi.errors import TransportError
from multi.transports.sockets import format_address

SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"
FIXED = len(SIGNATURE) + 4  # bytes: version and command, family and protocol, length of what follows
MAX_EXTRAS = 4096  # bytes that may follow; addresses take 36, the rest is for extras that proxies add
VERSION_1 = b"PROXY "
VERSION_2 = 2
LOCAL, PROXY = 0, 1  # commands
TCP_IPV4, TCP_IPV6 = 0x11, 0x21
ADDRESSES = {TCP_IPV4: (IPv4Address, 4), TCP_IPV6: (IPv6Address, 16)}


def body_length(fixed: bytes) -> int:
    """How many bytes follow the first FIXED ones. Raises TransportError where they are no header."""
    if fixed.startswith(VERSION_1):
        raise TransportError("a PROXY protocol header of version 1: the proxy has to send version 2")
    if not fixed.startswith(SIGNATURE):
        raise TransportError("no PROXY protocol header, although listen.proxy_protocol names where it comes from")
    version, command = fixed[12] >> 4, fixed[12] & 0x0F
    if version != VERSION_2 or command not in (LOCAL, PROXY):
        raise TransportError(f"a PROXY protocol header of version {version} with command {command}")
    length = int.from_bytes(fixed[14:16], "big")
    if length > MAX_EXTRAS:
        raise TransportError(f"a PROXY protocol header of {length} bytes; allowed: {MAX_EXTRAS}")
    return length


def client_in(fixed: bytes, body: bytes) -> str:
    """For whom the proxy speaks, `address:port` with brackets around IPv6; empty: for nobody who has such an address.

    `body_length` has looked at `fixed`. Raises TransportError where the rest is malformed.
    """
    known = ADDRESSES.get(fixed[13])
    if fixed[12] & 0x0F == LOCAL or known is None:
        return ""  # a health check, a client on a Unix socket, or a family that is not told
    make, size = known
    if len(body) < 2 * size + 4:
        raise TransportError(f"a PROXY protocol header with {len(body)} bytes of addresses")
    port = int.from_bytes(body[2 * size : 2 * size + 2], "big")
    address = make(body[:size])  # a proxy that listens for both families may tell IPv4 clients in IPv6
    return format_address((str(getattr(address, "ipv4_mapped", None) or address), port))


async def read_header(sock: socket.socket, ready: Callable[[socket.socket], Awaitable[None]]) -> str | None:
    """Take a header from the beginning of a connection, and no byte more: `client_in` it.

    None: the proxy left without a word. Raises TransportError where there is none, OSError where the connection ends.
    """
    fixed = await _take(sock, FIXED, ready)
    if not fixed:
        return None
    if len(fixed) < FIXED:
        raise TransportError("the proxy left in its PROXY protocol header")
    length = body_length(fixed)
    body = await _take(sock, length, ready)
    if len(body) < length:
        raise TransportError("the proxy left in its PROXY protocol header")
    return client_in(fixed, body)


async def _take(sock: socket.socket, count: int, ready: Callable[[socket.socket], Awaitable[None]]) -> bytes:
    """`count` bytes; fewer where the connection ends."""
    taken = b""
    while len(taken) < count:
        await ready(sock)
        try:
            more = sock.recv(count - len(taken))
        except (BlockingIOError, InterruptedError):
            continue
        if not more:
            break
        taken += more
    return taken
