"""SOCKS5 and HTTP CONNECT on one port: what a program that speaks to a proxy wants, and how the answer is said to it.

RFC 1928 (CONNECT and UDP ASSOCIATE), RFC 1929 (user and password), RFC 9110 section 9.3.6. The first byte tells which
of the two it is. Names are not looked up here but at the far end.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import ipaddress
import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from multi.errors import RemoteProtocolError
from multi.forward.protocol import Code, HostPort, parse_address

HANDSHAKE_TIMEOUT = 10.0  # seconds a program gets to say what it wants
SOCKS5 = 5

_SOCKS_CODES = {
    Code.OK: 0,
    Code.NOT_ALLOWED: 2,
    Code.UNREACHABLE: 3,
    Code.NOT_FOUND: 4,
    Code.REFUSED: 5,
    Code.TIMED_OUT: 6,
}
_HTTP_STATUS = {
    Code.NOT_ALLOWED: (403, "Forbidden"),
    Code.BUSY: (503, "Service Unavailable"),
    Code.TIMED_OUT: (504, "Gateway Timeout"),
    Code.BAD_REQUEST: (400, "Bad Request"),
}
_REQUEST_LINE = re.compile(rb"([A-Z]+) (\S+) HTTP/1\.[01]")

Credentials: TypeAlias = Mapping[str, str]
"""User -> password; empty = nobody is asked."""


class ProxyRefusal(RemoteProtocolError):
    """What a program has asked for is not to be had; it has been told."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What a program wants to be connected to, and how it is told what became of it."""

    target: HostPort
    answer: Callable[[Code, str], bytes]
    """The bytes for how it went; the text is the address connected to, or why not."""
    associate: bool = False
    """It wants to send datagrams (UDP ASSOCIATE), in each of which it says where to."""


async def read_wish(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, credentials: Credentials) -> Wish:
    """Talk to a program until it has said what it wants.

    Raises ProxyRefusal, after it was told if its protocol has a word for it; EOFError when it ends before.
    """
    try:
        async with asyncio.timeout(HANDSHAKE_TIMEOUT):
            first = await reader.readexactly(1)
            if first[0] == SOCKS5:
                return await _socks(reader, writer, credentials)
            if first.isupper():
                return await _http(first, reader, writer, credentials)
    except TimeoutError:
        raise ProxyRefusal(f"nothing to connect to was named within {HANDSHAKE_TIMEOUT:g} s") from None
    raise ProxyRefusal(f"neither SOCKS5 nor HTTP: begins with byte {first[0]}")


# --- SOCKS5 ---

_NO_AUTHENTICATION, _PASSWORD, _NO_METHOD = 0, 2, 255
_CONNECT, _ASSOCIATE = 1, 3
_GENERAL_FAILURE, _COMMAND_UNKNOWN, _ADDRESS_UNKNOWN = 1, 7, 8


async def _socks(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, credentials: Credentials) -> Wish:
    methods = await reader.readexactly((await reader.readexactly(1))[0])
    wanted = _PASSWORD if credentials else _NO_AUTHENTICATION
    if wanted not in methods:
        writer.write(bytes((SOCKS5, _NO_METHOD)))
        raise ProxyRefusal(
            "no user and password offered" if credentials else "no known method of authentication offered"
        )
    writer.write(bytes((SOCKS5, wanted)))
    if credentials:
        await _socks_password(reader, writer, credentials)
    version, command, _, kind = await reader.readexactly(4)
    if version != SOCKS5:
        raise ProxyRefusal(f"a SOCKS request of version {version}")
    host = await _socks_host(reader, kind)
    if host is None:
        writer.write(_socks_reply(_ADDRESS_UNKNOWN))
        raise ProxyRefusal(f"SOCKS address type {kind} is not known")
    (port,) = struct.unpack("!H", await reader.readexactly(2))

    def answer(code: Code, text: str) -> bytes:
        return _socks_reply(_SOCKS_CODES.get(code, _GENERAL_FAILURE), text if code is Code.OK else "")

    if command == _ASSOCIATE:
        return Wish(HostPort(host, port), answer, associate=True)
    if command != _CONNECT:
        writer.write(_socks_reply(_COMMAND_UNKNOWN))
        raise ProxyRefusal(f"SOCKS command {command} is not known, only CONNECT and UDP ASSOCIATE")
    try:
        target = parse_address(str(HostPort(host, port)))
    except ValueError as error:
        writer.write(_socks_reply(_GENERAL_FAILURE))
        raise ProxyRefusal(str(error)) from None
    return Wish(target, answer)


def unpack_datagram(data: bytes) -> tuple[HostPort, bytes, bytes] | None:
    """Where a datagram from a program goes, the header that answers carry, and its content (RFC 1928 section 7).

    None for what is malformed or a fragment.
    """
    if len(data) < 5 or data[2]:
        return None
    sizes = {1: 4, 3: data[4] + 1, 4: 16}
    end = 4 + sizes.get(data[3], len(data)) + 2
    if len(data) < end:
        return None
    raw = data[4 : end - 2]
    host = raw[1:].decode("latin-1") if data[3] == 3 else str(ipaddress.ip_address(raw))
    try:
        target = parse_address(str(HostPort(host, 0)))
    except ValueError:
        return None
    return HostPort(target.host, int.from_bytes(data[end - 2 : end])), b"\0\0\0" + data[3:end], data[end:]


async def _socks_password(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, credentials: Credentials) -> None:
    """RFC 1929."""
    version = (await reader.readexactly(1))[0]
    user = await reader.readexactly((await reader.readexactly(1))[0])
    password = await reader.readexactly((await reader.readexactly(1))[0])
    good = version == 1 and _matches(credentials, user, password)
    writer.write(bytes((1, 0 if good else 1)))
    if not good:
        raise ProxyRefusal("wrong user or password")


async def _socks_host(reader: asyncio.StreamReader, kind: int) -> str | None:
    """The address of a request; None for a type nobody knows, whose length nobody knows either."""
    match kind:
        case 1:
            return str(ipaddress.IPv4Address(await reader.readexactly(4)))
        case 3:
            name = await reader.readexactly((await reader.readexactly(1))[0])
            return name.decode("latin-1")
        case 4:
            return str(ipaddress.IPv6Address(await reader.readexactly(16)))
    return None


def _socks_reply(code: int, bound: str = "") -> bytes:
    """RFC 1928 section 6; without an address connected to it is 0.0.0.0:0."""
    host, port = ipaddress.ip_address("0.0.0.0"), 0
    if bound:
        try:
            address = parse_address(bound)
            host, port = ipaddress.ip_address(address.host), address.port
        except ValueError:
            pass  # the far end says where it has connected to in its own way
    kind = 1 if host.version == 4 else 4
    return bytes((SOCKS5, code, 0, kind)) + host.packed + struct.pack("!H", port)


# --- HTTP CONNECT ---


async def _http(
    first: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, credentials: Credentials
) -> Wish:
    try:
        head = first + await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        raise _http_refusal(
            writer, 431, "Request Header Fields Too Large", "the head of the request is too long"
        ) from None
    line, *fields = head[:-4].split(b"\r\n")
    request = _REQUEST_LINE.fullmatch(line)
    if request is None:
        raise _http_refusal(writer, 400, "Bad Request", "this is no HTTP/1.1 request")
    headers = {name.strip().lower(): value.strip() for name, _, value in (field.partition(b":") for field in fields)}
    if b"origin" in headers:
        # A web page must not get through its visitor's browser to where only programs of this machine should.
        raise _http_refusal(writer, 403, "Forbidden", "requests of web pages are not forwarded")
    if credentials and not _authorized(headers.get(b"proxy-authorization", b""), credentials):
        challenge = 'Proxy-Authenticate: Basic realm="multi"'
        raise _http_refusal(writer, 407, "Proxy Authentication Required", "wrong user or password, or none", challenge)
    if request[1] != b"CONNECT":
        raise _http_refusal(writer, 405, "Method Not Allowed", "only CONNECT is known here", "Allow: CONNECT")
    try:
        target = parse_address(request[2].decode("latin-1"))
    except ValueError as error:
        raise _http_refusal(writer, 400, "Bad Request", str(error)) from None

    def answer(code: Code, text: str) -> bytes:
        if code is Code.OK:
            return b"HTTP/1.1 200 Connection established\r\n\r\n"
        return _http_answer(*_HTTP_STATUS.get(code, (502, "Bad Gateway")), text)

    return Wish(target, answer)


def _http_answer(status: int, phrase: str, text: str, *headers: str) -> bytes:
    body = (text + "\n").encode("utf-8", "replace")
    lines = (
        f"HTTP/1.1 {status} {phrase}",
        *headers,
        "Content-Type: text/plain; charset=utf-8",
        f"Content-Length: {len(body)}",
        "Connection: close",
    )
    return "\r\n".join(lines).encode("ascii") + b"\r\n\r\n" + body


def _http_refusal(writer: asyncio.StreamWriter, status: int, phrase: str, text: str, *headers: str) -> ProxyRefusal:
    writer.write(_http_answer(status, phrase, text, *headers))
    return ProxyRefusal(f"HTTP request refused: {text}")


def _authorized(value: bytes, credentials: Credentials) -> bool:
    scheme, _, encoded = value.partition(b" ")
    try:
        user, _, password = base64.b64decode(encoded.strip(), validate=True).partition(b":")
    except binascii.Error:
        return False
    return scheme.lower() == b"basic" and _matches(credentials, user, password)


def _matches(credentials: Credentials, user: bytes, password: bytes) -> bool:
    """Compare in a time that does not tell how much of it was right."""
    expected = credentials.get(user.decode("utf-8", "replace"))
    same = hmac.compare_digest((expected or "").encode(), password)
    return same and expected is not None
