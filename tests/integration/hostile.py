"""Strangers and clients that do not keep to the rules: they say what they want, byte by byte."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Self

from multi.asyncio.session import Session
from multi.asyncio.settings import peer_scheduler
from multi.errors import TransportError
from multi.events import SendBytes, StreamReadable
from multi.protocol.authenticator import ClientAuthenticator
from multi.protocol.control import MAX_AHEAD
from multi.protocol.handshake import ConnectionTerms, Join
from multi.protocol.payloads import StreamAck, encode_role
from multi.protocol.segment import SegmentType, encode
from multi.protocol.sender import Sender
from multi.protocol.session import SessionCore
from multi.protocol.settings import Protect, SessionSettings
from multi.transports.base import Channel, TlsSettings, TransportSettings, transport
from multi.transports.quic.channel import QuicChannel
from multi.transports.quic.engine import LANE_STREAMS
from multi.transports.sockets import try_option
from multi.transports.tcp.channel import StreamChannel
from multi.types import (
    STREAM_ZERO,
    Candidate,
    ConnectionFacts,
    ConnectionId,
    Family,
    Role,
    SessionId,
    Side,
    StreamId,
)
from tests.integration.support import until

FIRST = ConnectionId(0)


class HandMade:
    """A client's core on a socket of its own, without the driver: what it sends can be changed or held back."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, protect: Protect) -> None:
        self.reader = reader
        self.writer = writer
        self.core = greeting(protect)

    @classmethod
    async def at(cls, port: int, source: str = "127.0.0.1", protect: Protect = Protect.AUTO) -> Self:
        opened = await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0))
        return cls(*opened, protect)

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    def flush(self) -> None:
        self.send(said(self.core))

    async def confirm(self) -> None:
        """Do the handshake as one should."""
        self.flush()
        while not self.core.confirmed:
            data = await self.reader.read(65536)
            assert data, "the server hung up"
            self.core.receive(FIRST, memoryview(data), now=0.0)
            self.flush()

    async def gone(self) -> bytes:
        """Wait until the server has ended the connection; return what it said until then."""
        heard = bytearray()
        with suppress(ConnectionError):
            while data := await self.reader.read(65536):
                heard += data
        self.writer.transport.abort()
        return bytes(heard)

    @property
    def session_id(self) -> SessionId:
        return self.core.session_id


WAYS = {
    "plain": ("tcp", None, Protect.NEVER),
    "sealed": ("tcp", None, Protect.AUTO),
    "TLS": ("tcp", TlsSettings(verify=False), Protect.AUTO),
    "QUIC": ("quic", TlsSettings(verify=False), Protect.AUTO),
}
"""Transport, TLS and protection."""
PATIENCE = 120.0  # seconds; a server that many attack takes its time
WIDE = 64 << 20  # bytes, the window of a client that wants to be sent much
ELSEWHERE = 77  # an error code of QUIC that means nothing here
MAX_RECORD = b"\x17\x03\x03\x41\x00" + bytes(0x4100)  # RFC 8446 section 5.2
UNKNOWN_CONNECTION = 1_000_000


class OverChannels:
    """A client's core on channels of any transport, without the driver: it says what it should not, and dials nothing.

    Several connections lead to one session. Time stands still for it: it asks nothing and suspects nobody.
    """

    def __init__(self, way: str, port: int, source: str, window: int = WIDE) -> None:
        self._name, self._tls, protect = WAYS[way]
        self._port, self._source = port, source
        self._channels: dict[ConnectionId, Channel] = {}
        self._next = FIRST
        self.core = client_core(SessionSettings(protect=protect, initial_window=window))
        self._got = 0
        self.reads = True
        """What comes is read, and room for more is granted."""
        self._stuck = False
        """Within a segment that is not finished."""

    def now(self) -> float:
        return 0.0

    async def connect(self) -> None:
        """Open one more connection and prove itself on it. Raises TransportError when it is lost before."""
        host = "127.0.0.1"
        candidate = Candidate(self._name, Family.IPV4, host, host, self._port, local_address=self._source)
        channel = await transport(self._name).dial(candidate, TransportSettings(tls=self._tls))
        if isinstance(channel, StreamChannel):  # a server that is measured may leave the window shut for longer
            try_option(channel._sock, "TCP_USER_TIMEOUT", 0)
        connection, self._next = self._next, ConnectionId(self._next + 1)
        self._channels[connection] = channel
        self.core.connection_opened(connection, channel.info, now=0.0)
        channel.start(_Hearing(self, connection))
        self.flush()
        opened = self.core.connections.get(connection)
        if opened is None:
            raise TransportError(f"the session is over: {self.core.reason}")
        await until(lambda: opened.authenticated or not opened.alive, timeout=PATIENCE)
        if not opened.authenticated:
            raise TransportError(f"the server hung up: {opened.reason}")

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for something that what comes makes true."""
        await until(lambda: not self.core.connections.alive() or condition(), timeout=PATIENCE)
        assert self.core.connections.alive(), "the server hung up"

    @property
    def window(self) -> int:
        """Bytes of stream 0 that the server has allowed so far."""
        sender = self.core.sender
        return min(sender.window, sender.streams[STREAM_ZERO].window)

    def has_got(self, size: int) -> bool:
        """So many bytes of stream 0."""
        return self._got >= size

    def flush(self) -> None:
        for connection, channel in self._channels.items():
            self.core.set_credit(connection, channel.credit(), now=0.0)
        for effect in self.core.effects():
            if isinstance(effect, SendBytes) and not self._stuck:
                self._channels[effect.connection].write(effect.buffers, effect.lane)
            elif isinstance(effect, StreamReadable) and effect.stream == STREAM_ZERO and self.reads:
                self._got += len(self.core.read(STREAM_ZERO, -1, now=0.0))
        for channel in list(self._channels.values()):
            channel.flush()

    def heard(self, connection: ConnectionId, data: memoryview, lane: int) -> None:
        self.core.receive(connection, data, lane, now=0.0)

    def say(self, kind: int, payload: bytes, *, sequence: int = 0, stream: int = 0, over: int = 0) -> None:
        """Say a segment with the next flush, sealed where that is due, on one connection of all."""
        if kind == SegmentType.DATA:  # what is acknowledged from now on the core has never said
            self.core.sender.__class__ = _Unacknowledged
        alive = list(self.core.connections.alive())
        assert alive, f"the server hung up: {self.core.reason} {[c.reason for c in self.core.connections.values()]}"
        connection = alive[over % len(alive)]
        lane = connection.lanes - 1 if kind == SegmentType.DATA else 0
        connection.send(kind, payload, 0.0, sequence=sequence, stream=StreamId(stream), lane=lane)
        self._channels[connection.id].write(connection.output[lane], lane)
        connection.output[lane] = []

    def say_raw(self, data: bytes, *, over: int = 0) -> None:
        """Say the beginning of a segment on the last lane, and then nothing more."""
        channel, self._stuck = self._channels[ConnectionId(over)], True
        channel.write((data,), channel.info.lanes - 1)
        channel.flush()

    @property
    def clogged(self) -> bool:
        """The network does not take what was said."""
        return any(channel.sample().not_sent for channel in self._channels.values())

    async def drained(self) -> None:
        """Wait until the network has taken what was said."""
        self.flush()
        await until(lambda: not self.clogged, timeout=PATIENCE)

    def say_half_a_tls_record(self) -> None:
        """On each connection the beginning of the largest record there is, below TLS, and then nothing more."""
        self._stuck = True
        for channel in self._channels.values():
            assert isinstance(channel, StreamChannel)
            with socket.socket(fileno=os.dup(channel._sock.fileno())) as below:
                below.send(MAX_RECORD[:-1])

    def be_deaf(self) -> None:
        """Take nothing more from the network."""
        for channel in self._channels.values():
            if isinstance(channel, QuicChannel):
                asyncio.get_running_loop().remove_reader(channel._port._fd)
                channel.engine._connection._loss._cc.congestion_window = 1 << 30  # type: ignore[attr-defined]
            else:
                assert isinstance(channel, StreamChannel)
                asyncio.get_running_loop().remove_reader(channel._fd)

    def acknowledge_nothing(self) -> None:
        """Not a word of what comes."""
        self.core.receiver.acknowledge_on = lambda *_: None  # type: ignore[method-assign]

    async def say_gaps(self) -> None:
        """Bytes above gaps in QUIC packets, as many as are granted, which are no part of what was said on the lane."""
        (channel,) = self._channels.values()
        assert isinstance(channel, QuicChannel)
        quic: Any = channel.engine._connection  # type: ignore[attr-defined]
        stream = quic._streams[LANE_STREAMS[-1]]
        first, last = stream.sender._buffer_stop + 600, stream.max_stream_data_remote
        for offset in range(first, last, 600):
            stream.sender._buffer_stop = offset
            stream.sender._buffer = bytearray(b"x")
            stream.sender._buffer_start = offset
            stream.sender._pending.add(offset, offset + 1)
            stream.sender._buffer_stop = offset + 1
            quic._remote_max_data_used = 0
            channel.flush()
            await asyncio.sleep(0.001)

    async def come_and_go(self, last_words: str) -> None:
        """Open one more connection and break it off, over QUIC with last words."""
        await self.connect()
        connection, channel = self._channels.popitem()
        if isinstance(channel, QuicChannel):
            channel.abort(ELSEWHERE, last_words)
        else:
            channel.abort()
        self.core.connection_lost(connection, None, now=0.0)
        self.flush()

    def say_control_with_gaps(self) -> None:
        """As much control above a gap as the server keeps, every other one missing."""
        first = self.core.outbox.acked
        self.core.outbox._sent = first + 2 * MAX_AHEAD  # or it wonders at what is acknowledged from now on
        for number in range(first + 1, first + 2 * MAX_AHEAD, 2):
            self.say(SegmentType.ROLE, encode_role(UNKNOWN_CONNECTION, Role.ACTIVE), sequence=number)

    def leave(self) -> None:
        for channel in self._channels.values():
            channel.abort()


class _Unacknowledged(Sender):
    """Does not wonder at acknowledgements of what it has never sent."""

    __slots__ = ()

    def acknowledge(self, entry: StreamAck, now: float) -> bool:
        return False


class _Hearing:
    """What comes on one connection."""

    behind = False
    proved = True
    waiting = 0

    def __init__(self, client: OverChannels, connection: ConnectionId) -> None:
        self._client, self._connection = client, connection

    def data_received(self, data: memoryview, lane: int) -> None:
        self._client.heard(self._connection, data, lane)

    def batch_finished(self) -> None:
        self._client.flush()

    def writable(self) -> None:
        self._client.flush()

    def connection_lost(self, error: TransportError | None) -> None:
        self._client.core.connection_lost(self._connection, None, now=0.0)


def client_core(settings: SessionSettings) -> SessionCore:
    """A client's core that nothing has happened to."""
    return SessionCore(
        Side.CLIENT,
        SessionId(os.urandom(16)),
        settings,
        entropy=os.urandom,
        make_scheduler=peer_scheduler,
        now=0.0,
    )


def greeting(protect: Protect = Protect.AUTO) -> SessionCore:
    """A client's core that has just connected."""
    core = client_core(SessionSettings(protect=protect))
    facts = ConnectionFacts("tcp")
    core.connection_opened(FIRST, facts, now=0.0)
    core.set_credit(FIRST, 1 << 20, now=0.0)
    return core


def hello_payload() -> bytes:
    """The payload of a HELLO that fits any Session ID."""
    whole = said(greeting())
    return whole[int.from_bytes(whole[2:4], "big") : int.from_bytes(whole[4:8], "big")]


def said(core: SessionCore) -> bytes:
    """What it wants to send now."""
    buffers = [buffer for effect in core.effects() if isinstance(effect, SendBytes) for buffer in effect.buffers]
    return b"".join(bytes(buffer) for buffer in buffers)


def origin_of_session(session: Session) -> bytes:
    """What somebody knows who has heard its HELLO and ACCEPT."""
    authenticator = session._driver.core._auth
    assert isinstance(authenticator, ClientAuthenticator)
    return authenticator._origin


def join_segment(session_id: SessionId, sealed: bool = True, origin: bytes = b"") -> bytes:
    """JOIN from somebody who knows the Session ID, perhaps with its origin, and nothing else."""
    join = Join(origin or os.urandom(16), os.urandom(32), ConnectionTerms(sealed=sealed))
    return encode(SegmentType.JOIN, session_id, join.encode())


class Stranger:
    """A TCP connection from any address of this machine that says `first` and then listens."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        self.gone = asyncio.ensure_future(self._read(reader))

    @classmethod
    async def at(cls, port: int, first: bytes = b"", source: str = "127.0.0.1") -> Self:
        stranger = cls(*await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0)))
        stranger.writer.write(first)
        return stranger

    @staticmethod
    async def _read(reader: asyncio.StreamReader) -> bytes:
        heard = bytearray()
        with suppress(ConnectionError):
            while data := await reader.read(65536):
                heard += data
        return bytes(heard)

    async def leave(self) -> bytes:
        self.writer.transport.abort()
        return await self.gone


class UdpStranger(asyncio.DatagramProtocol):
    """A UDP socket from any address of this machine."""

    def __init__(self, on_datagram: Callable[[bytes], None] = lambda data: None) -> None:
        self._on_datagram = on_datagram

    @classmethod
    async def at(cls, port: int, source: str, on_datagram: Callable[[bytes], None]) -> asyncio.DatagramTransport:
        transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
            lambda: cls(on_datagram), local_addr=(source, 0), remote_addr=("127.0.0.1", port), family=socket.AF_INET
        )
        return transport

    def datagram_received(self, data: bytes, addr: object) -> None:
        self._on_datagram(data)
