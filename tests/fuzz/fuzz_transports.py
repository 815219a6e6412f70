"""What strangers send to listening sockets before anything is known of them: first bytes, datagrams, QUIC packets."""

from __future__ import annotations

import asyncio
import atexit
import socket
import tempfile
from contextlib import suppress
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Literal

from aioquic.buffer import encode_uint_var
from aioquic.quic.crypto import CryptoPair
from aioquic.quic.packet import QuicErrorCode, QuicProtocolVersion

from multi.errors import TransportError
from multi.transports.base import TlsSettings, TransportSettings
from multi.transports.quic import aioquic_engine as quic_aioquic
from multi.transports.quic import channel as quic_channel
from multi.transports.quic import packets as quic_packets
from multi.transports.quic import transport as quic
from multi.transports.quic.engine import EngineSettings
from multi.transports.quic.packets import (
    RetryTokens,
    connection_of_all,
    header_of,
    may_begin_connection,
    refusal,
    version_negotiation,
)
from multi.transports.quic.settings import QuicSettings
from multi.transports.quic.transport import Quic, QuicListener
from multi.transports.quic.udp_port import MIN_DATAGRAM, PeerAddress
from multi.transports.tcp import listener as tcp_listener
from multi.transports.tcp import proxy_header
from multi.transports.tcp.transport import Tcp
from multi.types import host_of
from tests.fuzz.mutation import Choices
from tests.fuzz.target import Target, check
from tests.integration.certificates import certificates_in

VERSIONS = (0, 1, 0x6B3343CF, 0xFF00001D, 0x0A0A0A0A, 0xFFFFFFFF)


@cache
def loop() -> asyncio.AbstractEventLoop:
    made = asyncio.new_event_loop()
    # A callback that raises would only be logged.
    made.set_exception_handler(lambda _loop, context: _unhandled.append(context.get("exception") or context["message"]))
    atexit.register(made.close)
    return made


_unhandled: list[Any] = []


def _raise_unhandled() -> None:
    found, _unhandled[:] = list(_unhandled), []
    for error in found:
        if isinstance(error, Exception):
            raise error
        check(False, str(error))


@cache
def _settings() -> TransportSettings:
    directory = tempfile.TemporaryDirectory(prefix="multi-fuzz-")
    atexit.register(directory.cleanup)
    return certificates_in(Path(directory.name) / "made").server_settings()


# --- QUIC  ---


@cache
def _client_packet() -> bytes:
    """The first datagram of an honest client, made once: its keys are random."""
    configuration = quic_aioquic.AioquicEngine.configure(
        EngineSettings(QuicSettings(), TlsSettings(verify=False), server_name="server.example")
    )
    client = quic_aioquic.AioquicEngine(configuration, 1350)
    client.connect(PeerAddress(("127.0.0.1", 1)), 0.0)
    return bytes(client.bursts(0.0)[0].data)


def _initial(choices: Choices, packet_type: int = 0xC0) -> bytes:
    """An Initial packet with valid protection and any frames: whoever knows the standard can make one."""
    destination = choices.take(choices.pick((8, 8, 8, 20, 0, 7)))
    source, token = choices.take(choices.pick((8, 8, 0, 20))), choices.some() if choices.chance(4) else b""
    frames = b""
    while choices.left and len(frames) < 1000:
        kind = choices.pick((0, 1, 2, 3, 6, 6, 6, 0x1C, 0x1D, choices.byte()))
        body = choices.take(choices.pick((0, 2, 4, 20, 60)))
        if kind == 6:  # CRYPTO
            body = (
                encode_uint_var(choices.pick((0, 0, 0, 60, 1 << 20, (1 << 62) - 1))) + encode_uint_var(len(body)) + body
            )
        frames += bytes([kind]) + body
    frames = frames.ljust(choices.pick((1150, 1150, 1150, 20)), b"\0")[:1150]
    header = bytes([packet_type | 1]) + QuicProtocolVersion.VERSION_1.to_bytes(4, "big")
    header += bytes([len(destination)]) + destination + bytes([len(source)]) + source
    header += encode_uint_var(len(token)) + token
    header += (0x4000 | (2 + len(frames) + 16)).to_bytes(2, "big") + choices.pick((b"\0\0", b"\0\1", b"\xff\xff"))
    crypto = CryptoPair()
    crypto.setup_initial(cid=destination, is_client=True, version=QuicProtocolVersion.VERSION_1)
    return crypto.encrypt_packet(header, frames, 0)


def _long_header(choices: Choices) -> bytes:
    ids = b"".join(
        bytes([choices.pick((0, 8, 20, 21, 255))]) + choices.take(choices.pick((0, 8, 20))) for _ in range(2)
    )
    start = bytes([choices.pick((0xC0, 0xD0, 0xE0, 0xF0, choices.byte()))]) + choices.pick(VERSIONS).to_bytes(4, "big")
    return (start + ids + choices.some()).ljust(choices.pick((0, 1200, 1200)), b"\0")


def run_header(data: bytes) -> None:
    """What `QuicListener` does with the first packet of a connection, each answer tried."""
    for segment in (1, 9, 400, max(1, len(data))):
        of_all = connection_of_all(data, segment)
        check(of_all is None or all(data[at + 1 : at + 9] == of_all for at in range(0, len(data), segment)), "mixed up")
    header = header_of(data)
    if header is None or len(data) < MIN_DATAGRAM:
        return
    tokens = RetryTokens()
    negotiation = version_negotiation(header, quic_aioquic.AioquicEngine.VERSIONS)
    if negotiation is not None:
        check(len(negotiation) < 128, "an answer that amplifies")
        return
    if not may_begin_connection(header):
        return
    check(len(refusal(header, QuicErrorCode.INVALID_TOKEN)) <= len(data), "an answer that amplifies")
    retry = tokens.retry(header, "somebody", 1.0)
    check(len(retry) <= len(data), "an answer that amplifies")
    check(tokens.original_id(header, "somebody", 1.0) is None, "a token that nobody gave")
    again = header_of(retry)
    assert again is not None
    again.destination_cid = again.source_cid
    check(tokens.original_id(again, "somebody", 1.0) == header.destination_cid, "a token that does not come back")


def run_quic(data: bytes) -> None:
    """Datagrams from a few strangers to one listener."""
    loop().run_until_complete(_quic(Choices(data), "aioquic"))
    _raise_unhandled()


def run_qh3(data: bytes) -> None:
    """The same to a listener with the other engine."""
    loop().run_until_complete(_quic(Choices(data), "qh3"))
    _raise_unhandled()


async def _quic(choices: Choices, engine: Literal["aioquic", "qh3"]) -> None:
    sinks = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2)]
    accepted: list[Any] = []
    settings = replace(_settings(), sections={"quic": QuicSettings(retry=choices.chance(4), engine=engine)})
    made = await Quic().listen("127.0.0.1", 0, settings, accepted.append)
    assert isinstance(made, QuicListener)
    try:
        for sink in sinks:
            sink.bind(("127.0.0.1", 0))
        for _ in range(8):
            if not choices.left:
                break
            kind = choices.below(8)
            if kind < 4:
                datagram = _initial(choices, choices.pick((0xC0, 0xC0, 0xC0, 0xD0, 0xE0)))
            else:
                datagram = (_client_packet() if kind == 4 else _long_header(choices)) if kind < 7 else choices.some()
            address = PeerAddress(choices.pick(sinks).getsockname())
            datagram = choices.damaged(datagram)
            segment = choices.pick((len(datagram), len(datagram), 400)) or 1
            made.datagrams_received(datagram, segment, address, 0.0)
            if choices.chance(2):
                made.burst_finished()
        made.burst_finished()
        await asyncio.sleep(0)
    finally:
        made.close()
        for sink in sinks:
            sink.close()
    await asyncio.sleep(0)
    check(not accepted, "a stranger without a handshake is accepted")


# --- the first byte of a stream  ---


def run_first_bytes(data: bytes) -> None:
    """Somebody connects to a listener with TLS, says something in two pieces, and leaves."""
    loop().run_until_complete(_first_bytes(Choices(data)))
    _raise_unhandled()


async def _first_bytes(choices: Choices) -> None:
    accepted: list[Any] = []
    listener = await Tcp().listen("127.0.0.1", 0, _settings(), accepted.append)
    pieces = (choices.some(), choices.rest())
    with socket.create_connection(listener.address) as client:
        for piece in pieces:
            with suppress(ConnectionError):  # it may have been refused already
                client.sendall(piece)
            for _ in range(3):
                await asyncio.sleep(0)
    for _ in range(6):
        await asyncio.sleep(0)
    first = b"".join(pieces)[:1]
    check(not accepted or first not in (b"", b"\x16"), "a stranger without a handshake is accepted")
    check(all(not channel.info.secure for channel in accepted), "a plain connection counts as secure")
    listener.close()
    for channel in accepted:
        channel.abort()
    for _ in range(3):
        await asyncio.sleep(0)


def _tls_hello() -> bytes:
    import ssl

    context = ssl.create_default_context()
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    try:
        client.do_handshake()
    except ssl.SSLWantReadError:
        pass
    return outgoing.read()


def run_proxy_header(data: bytes) -> None:
    """A header is an address or nothing, or refused in words."""
    fixed, body = data[: proxy_header.FIXED], data[proxy_header.FIXED :]
    if len(fixed) < proxy_header.FIXED:
        return
    try:
        length = proxy_header.body_length(fixed)
        client = proxy_header.client_in(fixed, body[:length])
    except TransportError as error:
        check(str(error).isprintable(), "a complaint with control characters")
        return
    check(length <= proxy_header.MAX_EXTRAS, "a header without measure")
    if client:
        ip_address(host_of(client))
        check(0 <= int(client.rpartition(":")[2]) < 65536, "a port that is none")


def _proxy_headers() -> list[bytes]:
    start = proxy_header.SIGNATURE
    return [
        start + b"\x21\x11\x00\x0c" + bytes(range(12)),
        start + b"\x21\x21\x00\x24" + bytes(range(36)),
        start + b"\x20\x00\x00\x00",
        start + b"\x21\x31\x00\xd8" + bytes(216),
        b"PROXY TCP4 192.0.2.7 203.0.113.1 1 2\r\n",
    ]


def _quic_seeds() -> list[bytes]:
    return [bytes((n * i * i + i) % 256 for i in range(300)) for n in range(1, 12)]


def _headers() -> list[bytes]:
    made = [_long_header(Choices(data)) for data in _quic_seeds()] + [_initial(Choices(data)) for data in _quic_seeds()]
    return [*made, _client_packet(), b"\x40" + bytes(40)]


def _qh3_targets() -> list[Target]:
    """The optional engine, where it is installed."""
    if find_spec("qh3") is None:
        return []
    from multi.transports.quic import qh3_engine as quic_qh3

    watched = (quic, quic_packets, quic_qh3, quic_channel)
    return [Target("quic-qh3", run_qh3, _quic_seeds, watched, short=25, longest=700, memory_base=8 << 20)]


TARGETS = (
    Target("quic-header", run_header, _headers, (quic_packets,), short=200, longest=1400),
    Target(
        "quic-listener",
        run_quic,
        _quic_seeds,
        (quic, quic_packets, quic_aioquic, quic_channel),
        short=25,
        weight=2,
        longest=700,
        memory_base=8 << 20,
    ),
    *_qh3_targets(),
    Target("proxy-header", run_proxy_header, _proxy_headers, (proxy_header,), short=200, longest=300),
    Target(
        "first-bytes",
        run_first_bytes,
        lambda: [
            b"\5" + _tls_hello(),
            b"\xff" + _tls_hello(),
            b"\0\x16",
            b"\1\x16",
            b"\0",
            b"\3GET / HTTP/1.1",
            b"\1\1\2\3",
        ],
        (tcp_listener,),
        short=25,
        longest=700,
        memory_base=4 << 20,
    ),
)
