"""The forwarding protocol, version 1: what the two ends of a session say before they carry other programs' bytes.

Stream 0 tells that both ends forward. Each side says one line of JSON, ASCII, and leaves the stream open; its end is
the end of forwarding: the server closes the session when its connections have ended. Unknown keys are ignored, so that
later versions may add some:

    client  {"multi_forward": 1}
    server  {"multi_forward": 1}

Every further stream carries one TCP connection, or stands for a port listened on. Whoever opens it says first what it
is for, the *head*, and need not wait for the answer before it sends what follows:

    version (1)  kind (1)  length of the body (2)  body

    CONNECT   client  address to connect to
    LISTEN    client  priority of the streams that come of it (1), loopback address to listen on (port 0 = any);
                      it listens until this stream ends
    FLOW      client  address that datagrams go to, and come back from; it lasts until this stream ends
    ACCEPTED  server  address listened on, as the answer to LISTEN gave it, and the address that has connected

    an address:  port (2)  length (1)  host, a name or an IP address in ASCII

The other side answers once, then bytes follow in both directions: end of stream for end of stream, reset for reset. In
a flow none do: its datagrams are datagrams of the session that begin with the number of its stream (4).

    code (1)  length (2)  text (UTF-8)

With the code OK the text is the address connected to or listened on; otherwise it says for people what is wrong, and
the stream ends. All numbers are big endian.

This module decides what is well-formed; what may be reached is decided by `multi.forward.rules`.
"""

from __future__ import annotations

import asyncio
import json
import re
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol, TypeAlias

from multi.errors import MultiError, RemoteProtocolError, printable
from multi.types import host_and_port

VERSION = 1
HELLO = (json.dumps({"multi_forward": VERSION}) + "\n").encode("ascii")
HELLO_KEY = "multi_forward"
MAX_HOST = 255  # bytes, RFC 1035 section 2.3.4 and what SOCKS5 has room for
MAX_TEXT = 1024  # bytes of an answer's text
MAX_BODY = 2 * (MAX_HOST + 3) + 1  # bytes

_HEAD = struct.Struct("!BBH")
_ANSWER = struct.Struct("!BH")
_PORT = struct.Struct("!HB")
_HOST = re.compile(r"[A-Za-z0-9._:%-]+")


class Code(IntEnum):
    """How opening a connection ended."""

    OK = 0
    NOT_ALLOWED = 1
    NOT_FOUND = 2
    """The name has no address."""
    UNREACHABLE = 3
    REFUSED = 4
    TIMED_OUT = 5
    BUSY = 6
    """Too many at once, or the machine has nothing left; later it may work."""
    BAD_REQUEST = 7
    FAILED = 8


class ForwardRefused(MultiError):
    """A connection or a port to listen on was not to be had; `code` says why for programs."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class HostPort:
    """Where to connect or listen. A host is a name or an IP address; written `host:port`, `[::1]:port`."""

    host: str
    port: int

    def __str__(self) -> str:
        return host_and_port(self.host, self.port)


@dataclass(frozen=True, slots=True)
class Connect:
    target: HostPort


@dataclass(frozen=True, slots=True)
class RemoteListen:
    address: HostPort
    priority: int


@dataclass(frozen=True, slots=True)
class Accepted:
    listener: HostPort
    peer: HostPort


@dataclass(frozen=True, slots=True)
class Flow:
    target: HostPort


Head: TypeAlias = Connect | RemoteListen | Accepted | Flow


class ByteReader(Protocol):
    """What is needed of a reader."""

    async def readexactly(self, n: int) -> bytes: ...


def is_hello(line: bytes) -> bool:
    """A line of stream 0 that asks for forwarding. Raises RemoteProtocolError for a version that is not ours."""
    content = _hello(line)
    if not content:
        return False
    if content[HELLO_KEY] != VERSION:
        found = printable(str(content[HELLO_KEY])[:20])
        raise RemoteProtocolError(f"the peer speaks version {found} of the forwarding protocol, this is {VERSION}")
    return True


def asks_to_forward(line: bytes) -> bool:
    """The same, in whatever version."""
    return bool(_hello(line))


def _hello(line: bytes) -> dict[str, object]:
    """Its content; empty for any other line."""
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) and HELLO_KEY in content else {}


def check_host(host: str) -> str:
    """Raise ForwardRefused for what can be no host: it would reach resolvers, logs and other programs."""
    if not _HOST.fullmatch(host) or len(host) > MAX_HOST:
        raise ForwardRefused(Code.BAD_REQUEST, f"{printable(host[:60])!r} is no host name or address")
    return host


def _pack_address(address: HostPort) -> bytes:
    host = check_host(address.host).encode("ascii")
    return _PORT.pack(address.port, len(host)) + host


def _unpack_address(body: bytes, at: int) -> tuple[HostPort, int]:
    port, length = _PORT.unpack_from(body, at)
    start = at + _PORT.size
    host = body[start : start + length]
    if len(host) != length:
        raise struct.error("host is cut off")
    return HostPort(check_host(host.decode("ascii")), port), start + length


def encode_head(head: Head) -> bytes:
    """The bytes a stream begins with. Raises ForwardRefused for an address that has no encoding."""
    match head:
        case Connect(target):
            kind, body = 1, _pack_address(target)
        case RemoteListen(address, priority):
            kind, body = 2, bytes((priority,)) + _pack_address(address)
        case Accepted(listener, peer):
            kind, body = 3, _pack_address(listener) + _pack_address(peer)
        case Flow(target):
            kind, body = 4, _pack_address(target)
    return _HEAD.pack(VERSION, kind, len(body)) + body


async def read_head(reader: ByteReader) -> Head:
    """The head of a stream of the peer's.

    Raises ForwardRefused for what is malformed or of another version, IncompleteReadError at the end, SessionLost.
    """
    version, kind, length = _HEAD.unpack(await reader.readexactly(_HEAD.size))
    if version != VERSION or length > MAX_BODY:
        raise ForwardRefused(Code.BAD_REQUEST, f"a head of version {version} and {length} bytes; this is {VERSION}")
    body = await reader.readexactly(length)
    try:
        match kind:
            case 1:
                return Connect(_unpack_address(body, 0)[0])
            case 2:
                return RemoteListen(_unpack_address(body, 1)[0], body[0])
            case 3:
                listener, end = _unpack_address(body, 0)
                return Accepted(listener, _unpack_address(body, end)[0])
            case 4:
                return Flow(_unpack_address(body, 0)[0])
    except (struct.error, UnicodeDecodeError):
        raise ForwardRefused(Code.BAD_REQUEST, "a head that is cut off or not ASCII") from None
    raise ForwardRefused(Code.BAD_REQUEST, f"unknown kind {kind} of stream")


def encode_answer(code: Code, text: str) -> bytes:
    """What the side that was asked answers."""
    encoded = text.encode("utf-8", "replace")[:MAX_TEXT]
    return _ANSWER.pack(code, len(encoded)) + encoded


async def read_answer(reader: ByteReader) -> str:
    """The address connected to or listened on, as text. Raises ForwardRefused, RemoteProtocolError, SessionLost."""
    try:
        number, length = _ANSWER.unpack(await reader.readexactly(_ANSWER.size))
        if length > MAX_TEXT:
            raise RemoteProtocolError(f"an answer of {length} bytes; allowed: {MAX_TEXT}")
        text = printable((await reader.readexactly(length)).decode("utf-8", "replace"))
    except asyncio.IncompleteReadError:
        raise RemoteProtocolError("the far end has ended the stream without an answer") from None
    if number == Code.OK:
        return text
    raise ForwardRefused(Code(number) if number in Code.__members__.values() else Code.FAILED, text)


def parse_address(text: str) -> HostPort:
    """`host:port` or `[::1]:port`. Raises ValueError."""
    name, _, port = text.rpartition(":")
    bracketed = name.startswith("[") and name.endswith("]")
    name = name[1:-1] if bracketed else name
    if not name or not _HOST.fullmatch(name) or (":" in name) != bracketed:
        raise ValueError(f"{text!r} is not HOST:PORT (an IPv6 address stands in brackets)")
    return HostPort(name, parse_port(port))


def parse_port(text: str, lowest: int = 0) -> int:
    """A port. Raises ValueError."""
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and lowest <= int(text) <= 65535):
        raise ValueError(f"{text!r} is not a port ({lowest} to 65535)")
    return int(text)
