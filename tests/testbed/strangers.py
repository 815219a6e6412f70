"""Strangers and clients that misbehave, byte by byte: what they try, and what the server answers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
import ssl
import struct
import time
from collections.abc import Callable
from typing import Any

from multi.protocol.handshake import Accept, ConnectionTerms, Hello, Join, KeyPair, SessionKeys
from multi.protocol.sealing import Opener, Sealer
from multi.protocol.segment import MAX_DATA_PAYLOAD, SegmentType, encode, encode_header
from multi.protocol.settings import SessionSettings
from multi.types import SessionId, StreamId

SERVER = "10.77.0.1"
IP_FREEBIND = 15  # include/uapi/linux/in.h
held: list[socket.socket] = []


def dial(port: int, source: str = "", interface: str = "", timeout: float = 4.0) -> socket.socket:
    sock = socket.socket()
    sock.settimeout(timeout)
    if interface:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, interface.encode())
    if source:
        sock.bind((source, 0))
    sock.connect((SERVER, port))
    return sock


def rest(sock: socket.socket) -> bytes:
    """What still comes until the other end has closed."""
    said = bytearray()
    with contextlib.suppress(ConnectionError):
        while data := sock.recv(65536):
            said += data
    return bytes(said)


def say(port: int, *parts: bytes, interface: str = "") -> tuple[bytes, bytes, float]:
    """Say one thing after the other, each when the one before is answered; (answers, the last one, its seconds)."""
    with dial(port, interface=interface) as sock:
        answers = last = b""
        for number, part in enumerate(parts, 1):
            started = time.monotonic()
            last = b""
            with contextlib.suppress(ConnectionError):
                sock.sendall(part)
                last = rest(sock) if number == len(parts) else sock.recv(65536)
            took = time.monotonic() - started
            answers += last
        return answers, last, took


async def steal(
    port: int, session: str, heard: str, interface: str, only: str = "", without: str = "", rounds: int = 5
) -> dict[str, Any]:
    """Whoever has heard a JOIN with a ticket tries everything; what the server answered to each."""
    wanted = SessionId(bytes.fromhex(session))
    terms = ConnectionTerms(sealed=True)
    prove = encode(SegmentType.PROVE, wanted, bytes(32))
    nonce = b"\x55" * 32
    join = Join.decode(bytes.fromhex(heard))
    origin = join.origin
    plain = encode(SegmentType.JOIN, wanted, bytes.fromhex(heard))
    forged = encode(SegmentType.JOIN, wanted, Join(origin, nonce, terms).encode())
    stolen = encode(SegmentType.JOIN, wanted, Join(origin, nonce, terms, join.ticket, b"\x66" * 32).encode())
    unknown = SessionId(b"\x77" * 16)
    tries: dict[str, tuple[bytes, ...]] = {
        "HELLO of another client": (encode(SegmentType.HELLO, wanted, hello(KeyPair(b"\x11" * 32)).encode()),),
        "JOIN and a wrong proof": (plain, prove),
        "JOIN and a PROVE that is cut short": (plain, encode(SegmentType.PROVE, wanted, bytes(31))),
        "JOIN and CONFIRM": (plain, encode(SegmentType.CONFIRM, wanted, bytes(32))),
        "JOIN and DATA": (plain, encode(SegmentType.DATA, wanted, b"x" * 64)),
        "a forged JOIN": (forged,),
        "a stolen ticket": (stolen,),
        "a stolen ticket and DATA": (stolen + encode(SegmentType.DATA, wanted, b"x" * 64),),
        "a JOIN of an unknown session": (encode(SegmentType.JOIN, unknown, Join(origin, nonce, terms).encode()),),
        "a JOIN of another origin": (encode(SegmentType.JOIN, wanted, Join(bytes(16), nonce, terms).encode()),),
        "a JOIN with other protection": (
            encode(SegmentType.JOIN, wanted, Join(origin, nonce, ConnectionTerms(sealed=False)).encode()),
        ),
        "a wrong proof and more": (plain, prove + b"\xff" * 64),
        "a JOIN that is garbage": (encode(SegmentType.JOIN, wanted, origin + b"\xff" * 60),),
    }
    answers: dict[str, Any] = {}
    for name, parts in tries.items():
        if (only and name != only) or name == without:
            continue
        times, lasts = [], set()
        waits = "DATA" in name  # until the proof, as long as the server has patience
        for _ in range(1 if waits else rounds):
            _all, last, took = await asyncio.to_thread(say, port, *parts, interface=interface)
            times.append(took)
            lasts.add(last.hex().replace(unknown.hex(), wanted.hex()))
            await asyncio.sleep(0.02)
        answers[name] = {"answers": sorted(lasts), "ms": round(sorted(times)[len(times) // 2] * 1e3, 2)}
    return answers


async def replay(port: int, said: str, interface: str, *, pieces: bool) -> str:
    """Say again what a client has said; at once, or segment by segment. What the server answered."""
    data = bytes.fromhex(said)
    parts, at = [data], 0
    if pieces:
        parts = []
        while at + 32 <= len(data) and len(parts) < 4:
            length = int.from_bytes(data[at + 4 : at + 8], "big")
            parts.append(data[at : at + length])
            at += length
        parts.append(data[at:])
    answers, _last, _took = await asyncio.to_thread(say, port, *[p for p in parts if p], interface=interface)
    return answers.hex()


async def join_flood(port: int, session: str, interface: str, seconds: float) -> int:
    """JOINs of a session whose ID is all one knows, as many as go."""
    wanted, count, stop_at = SessionId(bytes.fromhex(session)), 0, time.monotonic() + seconds
    join = encode(SegmentType.JOIN, wanted, Join(bytes(16), b"\x55" * 32, ConnectionTerms(sealed=True)).encode())
    open_: list[socket.socket] = []
    while time.monotonic() < stop_at:
        with contextlib.suppress(OSError):
            sock = await asyncio.to_thread(dial, port, interface=interface)
            open_.append(sock)
            sock.sendall(join)
            count += 1
        if len(open_) > 32:
            open_.pop(0).close()
        await asyncio.sleep(0.003)
    for sock in open_:
        sock.close()
    return count


def client_hello() -> bytes:
    """The first thing a client of TLS says."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).wrap_bio(incoming, outgoing, server_hostname="server")
    with contextlib.suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


def halves() -> dict[str, bytes]:
    """Beginnings of something."""
    greeting = encode(SegmentType.HELLO, SessionId(os.urandom(16)), hello(KeyPair(b"\x11" * 32)).encode())
    tls = client_hello()
    return {
        "nothing": b"",
        "one byte": greeting[:1],
        "half a ClientHello": tls[: len(tls) // 2],
        "half a HELLO": greeting[: len(greeting) // 2],
        "HELLO and no CONFIRM": greeting,
    }


async def half_open(port: int, count: int, kinds: list[str], sources: list[str], interface: str) -> dict[str, int]:
    """Open connections that stay unfinished, and then say a byte at a time on each that is left."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    loop, failed = asyncio.get_running_loop(), 0
    opened: list[socket.socket] = []
    beginnings = halves()

    async def one(number: int) -> None:
        nonlocal failed
        sock = socket.socket()
        sock.setblocking(False)
        held.append(sock)
        try:
            if interface:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, interface.encode())
            if sources:
                sock.setsockopt(socket.SOL_IP, IP_FREEBIND, 1)
                sock.bind((sources[number % len(sources)], 0))
            await asyncio.wait_for(loop.sock_connect(sock, (SERVER, port)), 3.0)
            said = beginnings[kinds[number % len(kinds)]]
            await loop.sock_sendall(sock, said[:8] + os.urandom(16) + said[24:] if said[:2] == b"\x01\x10" else said)
            opened.append(sock)
        except (OSError, TimeoutError):
            failed += 1

    for start in range(0, count, 100):
        await asyncio.gather(*(one(number) for number in range(start, min(count, start + 100))))
    left = 0
    for sock in opened:
        with contextlib.suppress(OSError):
            sock.send(b"\x01")
            left += 1
    return {"opened": len(opened), "failed": failed, "still open": left}


async def dropped() -> None:
    """Close what `half_open` has opened."""
    for sock in held:
        sock.close()
    held.clear()


# --- clients that misbehave ---


def hello(pair: KeyPair, *, sealed: bool = True, window: int = 1 << 20) -> Hello:
    settings = SessionSettings()
    terms = ConnectionTerms(sealed=sealed)
    return Hello(b"\x22" * 32, pair.public, window, 128, settings.policy, terms)


class RawClient:
    """A client that does the handshake as it should and then says what it likes, sealed as it should be."""

    def __init__(self, port: int, interface: str) -> None:
        self.id = SessionId(os.urandom(16))
        self.sock = dial(port, interface=interface)
        pair = KeyPair(b"\x11" * 32)
        greeting = hello(pair)
        self.sock.sendall(encode(SegmentType.HELLO, self.id, greeting.encode()))
        said = b""
        while len(said) < 32 or len(said) < int.from_bytes(said[4:8], "big"):
            more = self.sock.recv(65536)
            assert more, said
            said += more
        length = int.from_bytes(said[4:8], "big")
        accept = Accept.decode(said[32:length])
        keys = SessionKeys(self.id, greeting.session_part(), accept.session_part(), pair.agree(accept.key), b"")
        proof = keys.hello_proof(b"C", greeting.terms.encode(), accept.choice.encode(), b"")
        self.sock.sendall(encode(SegmentType.CONFIRM, self.id, proof))
        number, cipher = accept.choice.number, accept.choice.cipher
        self._sealer = Sealer(keys.traffic_secret(b"C", number, greeting.nonce, accept.nonce), cipher, 0)
        self._opener = Opener(keys.traffic_secret(b"S", number, greeting.nonce, accept.nonce), cipher, 0)

    def send(self, type_: int, payload: bytes, *, sequence: int = 0, stream: int = 0) -> None:
        header = encode_header(type_, self.id, sequence, StreamId(stream), len(payload) + 16)
        self.sock.sendall(header + self._sealer.seal(header, [payload]))

    def closed(self, within: float = 3.0) -> bool:
        self.sock.settimeout(within)
        try:
            rest(self.sock)
        except TimeoutError:
            return False
        return True


def _ack(window: int, entries: list[tuple[int, int, int]]) -> bytes:
    said = struct.pack("!QQBB", window, 0, 0, len(entries))
    return said + b"".join(struct.pack("!IQQB", stream, cumulative, far, 0) for stream, cumulative, far in entries)


LAST = (1 << 62) - 1


def _many_streams(client: RawClient) -> None:
    for number in range(300):
        client.send(SegmentType.OPEN, b"\x03", sequence=number, stream=2 * number + 2)


def _ahead(client: RawClient) -> None:
    for number in range(600):
        client.send(SegmentType.OPEN, b"\x03", sequence=number + 1, stream=2 * number + 2)


def _pings(client: RawClient) -> None:
    for number in range(200_000):
        client.send(SegmentType.KEEPALIVE, b"\x00" + number.to_bytes(8, "big"))


MISBEHAVIOUR: dict[str, Callable[[RawClient], None]] = {
    "the last offset there is": lambda c: c.send(SegmentType.DATA, b"x" * 100, sequence=LAST - 50),
    "an offset beyond all": lambda c: c.send(SegmentType.DATA, b"x", sequence=(1 << 64) - 1),
    "data beyond the window": lambda c: c.send(SegmentType.DATA, b"x" * 1000, sequence=64 << 20),
    "an end beyond the window": lambda c: c.send(SegmentType.FIN, LAST.to_bytes(8, "big")),
    "an acknowledgement of what was never sent": lambda c: c.send(SegmentType.ACK, _ack(1 << 30, [(0, 1 << 40, LAST)])),
    "ranges that fall": lambda c: c.send(
        SegmentType.ACK, _ack(0, [])[:17] + b"\x01" + struct.pack("!IQQB", 0, 9, 0, 1)
    ),
    "an offset no stream has": lambda c: c.send(SegmentType.ACK, _ack(1 << 63, [])),
    "300 streams": _many_streams,
    "control far ahead": _ahead,
    "a stream of the server's that is not open": lambda c: c.send(SegmentType.DATA, b"x", stream=4001),
    "tickets from a client": lambda c: c.send(SegmentType.TICKETS, b"\x00"),
    "addresses from a client": lambda c: c.send(SegmentType.ADDRESS, b"\x00"),
    "4 GiB of segment": lambda c: c.sock.sendall(struct.pack("!BBHI16sQ", 1, 1, 32, 0xFFFFFFFF, c.id, 0)),
    "a segment shorter than its header": lambda c: c.sock.sendall(struct.pack("!BBHI16sQ", 1, 1, 32, 0, c.id, 0)),
    "a header of 64 KiB": lambda c: c.sock.sendall(struct.pack("!BBHI16sQ", 1, 1, 0xFFFF, 0xFFFF, c.id, 0)),
    "another session's segment": lambda c: c.sock.sendall(
        struct.pack("!BBHI16sQ", 1, 1, 32, 64, bytes(16), 0) + bytes(32)
    ),
    "a HELLO again": lambda c: c.sock.sendall(encode(SegmentType.HELLO, c.id, hello(KeyPair(b"\x11" * 32)).encode())),
    "pings and no reading": _pings,
}


async def misbehave(port: int, interface: str) -> dict[str, str]:
    """Clients that have proved themselves and then claim too much; what became of each."""

    def one(do: Callable[[RawClient], None]) -> str:
        client = RawClient(port, interface)
        with contextlib.closing(client.sock):
            try:
                do(client)
            except (ConnectionError, TimeoutError) as error:
                return f"closed ({type(error).__name__})"
            return "closed" if client.closed() else "still there"

    names = list(MISBEHAVIOUR)
    results = await asyncio.gather(*(asyncio.to_thread(one, MISBEHAVIOUR[name]) for name in names))
    return dict(zip(names, results, strict=True))


async def claim(port: int, interface: str) -> dict[str, str]:
    """Strangers that claim too much in their first segment."""
    session = SessionId(os.urandom(16))
    big = struct.pack("!BBHI16sQ", 1, SegmentType.HELLO, 32, 0xFFFFFFFF, session, 0)
    greeting = bytearray(hello(KeyPair(b"\x11" * 32)).encode())
    window = bytearray(greeting)
    window[68:72] = b"\xff\xff\xff\xff"
    versions = bytearray(greeting)
    versions[2] = 255
    part = bytearray(greeting)
    part[0:2] = b"\xff\xff"
    data = encode(SegmentType.DATA, session, b"x" * 1000, sequence=LAST)
    early = encode(SegmentType.HELLO, session, bytes(greeting)) + b"".join(
        encode(SegmentType.DATA, session, b"x" * MAX_DATA_PAYLOAD, sequence=number * MAX_DATA_PAYLOAD)
        for number in range(4)
    )
    tries = {
        "4 GiB of HELLO": big,
        "a window of 4 GiB": encode(SegmentType.HELLO, session, bytes(window)),
        "255 versions": encode(SegmentType.HELLO, session, bytes(versions)),
        "a session part of 64 KiB": encode(SegmentType.HELLO, session, bytes(part)),
        "DATA first": data,
        "1 MiB before CONFIRM": early,
        "zeros": bytes(1000),
        "ones": b"\xff" * 1000,
    }

    def one(said: bytes) -> str:
        try:
            return say(port, said, interface=interface)[0].hex() or "closed"
        except TimeoutError:
            return "still there"
        except ConnectionError as error:
            return f"closed ({type(error).__name__})"

    names = list(tries)
    results = await asyncio.gather(*(asyncio.to_thread(one, tries[name]) for name in names))
    return dict(zip(names, results, strict=True))
