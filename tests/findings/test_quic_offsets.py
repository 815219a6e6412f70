"""What a QUIC client that has said nothing of MULTI puts into its packets costs a server little, whatever it is."""

from __future__ import annotations

import asyncio
import fcntl
import gc
import os
import socket
import ssl
import sys
import termios
import time
import tracemalloc
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from aioquic.buffer import encode_uint_var
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.packet import QuicFrameType

import multi
from multi.transports.quic.channel import QuicChannel
from multi.transports.quic.engine import LANE_STREAMS
from multi.transports.quic.transport import INBOX_OVERHEAD, INBOX_SIZE
from multi.transports.quic.udp_port import PeerAddress
from tests.engines import engine_or_skip
from tests.findings.attacks import echoing, exchanged
from tests.integration.callbacks import callbacks_bounded
from tests.integration.support import HOST, Way, run, until

pytestmark = pytest.mark.usefixtures("bounded_callbacks")

MIB = 1 << 20
STREAM_WITH_OFFSET_AND_LENGTH = QuicFrameType.STREAM_BASE | 0x04 | 0x02
PACKET = 1100  # bytes of frames
FRAMES = 60  # of ten bytes at most, in a packet


def stream_frame(offset: int, stream: int = 0) -> bytes:
    """One byte of a stream."""
    parts = (STREAM_WITH_OFFSET_AND_LENGTH, stream, offset, 1)
    return b"".join(encode_uint_var(part) for part in parts) + b"x"


def packed(frames: Iterable[bytes]) -> list[bytes]:
    """As many frames in a packet as are allowed."""
    rest = list(frames)
    return [b"".join(rest[start : start + FRAMES]) for start in range(0, len(rest), FRAMES)]


class _Connection(QuicConnection):
    """After the handshake it says what its packets are made of."""

    def __init__(self) -> None:
        super().__init__(
            configuration=QuicConfiguration(
                is_client=True, alpn_protocols=["multi/1"], verify_mode=ssl.CERT_NONE, server_name="localhost"
            )
        )
        self.packets: list[bytes] = []

    def _write_stream_frame(self, builder: Any, space: Any, stream: Any, max_offset: int) -> int:
        if self.packets:
            frames = self.packets.pop(0)
            builder.start_frame(frames[0], capacity=len(frames)).push_bytes(frames[1:])
        return 0

    def unacknowledged(self) -> int:
        """Packets; 0 when the connection is over."""
        if self._close_event is not None:
            return 0
        return sum(space.ack_eliciting_in_flight for space in self._loss.spaces)


class Attacker(asyncio.DatagramProtocol):
    """A QUIC client on a socket of its own."""

    _transport: asyncio.DatagramTransport

    def __init__(self, port: int) -> None:
        self.quic = _Connection()
        self._server = (HOST, port)
        self._heard = asyncio.Event()

    @classmethod
    async def at(cls, port: int, source: str) -> Attacker:
        """With its handshake done."""
        self = cls(port)
        made = await asyncio.get_running_loop().create_datagram_endpoint(
            lambda: self, local_addr=(source, 0), remote_addr=self._server
        )
        self._transport = made[0]
        self.quic.connect(self._server, now=time.monotonic())
        self.flush()
        await until(lambda: self.quic._handshake_complete and not self.quic.unacknowledged(), "a QUIC handshake")
        return self

    def datagram_received(self, data: bytes, addr: object) -> None:
        self.quic.receive_datagram(data, self._server, now=time.monotonic())
        self._heard.set()
        self.flush()

    def flush(self) -> None:
        for data in self._datagrams():
            self._transport.sendto(data)

    def _datagrams(self) -> list[bytes]:
        return [data for data, _ in self.quic.datagrams_to_send(now=time.monotonic())]

    def prepared(self, packets: Iterable[bytes]) -> list[bytes]:
        """The datagrams that say this."""
        self.quic.packets = list(packets)
        self.quic._loss._cc.congestion_window = 1 << 30
        datagrams = []
        while self.quic.packets:
            self.quic.send_stream_data(0, b"x")  # or it would not look at the stream
            datagrams += self._datagrams()
        return datagrams

    def floods(self, datagrams: list[bytes]) -> None:
        """Say them from another thread, whatever the server answers."""
        with socket.socket(fileno=os.dup(self._transport.get_extra_info("socket").fileno())) as raw:
            raw.setblocking(True)
            for number, data in enumerate(datagrams):
                raw.send(data)
                if number % 32 == 31:
                    time.sleep(0.001)  # or most would not fit the server's buffer

    def send(self, data: bytes) -> None:
        """Say a datagram, whatever becomes of it."""
        self._transport.sendto(data)

    async def say(self, datagrams: list[bytes]) -> None:
        """Say them, and wait until the server has taken them or has ended the connection.

        It waits without looking again and again, which would be taken for work of the server: where a datagram is lost,
        it waits to the end.
        """
        for data in datagrams:
            self._transport.sendto(data)
            await asyncio.sleep(0)
        with suppress(TimeoutError):
            async with asyncio.timeout(5):
                while self.quic.unacknowledged():
                    self._heard.clear()
                    await self._heard.wait()

    def leave(self) -> None:
        self._transport.abort()


# --- turns ---


def test_what_strangers_send_waits_for_its_turn_and_sessions_do_not(
    development_certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    way = Way(development_certificates, "quic")

    async def scenario() -> None:
        async with echoing(way) as server, multi.connect(way.client(server.port)) as session:
            await exchanged(session)
            works: dict[object, tuple[str, Callable[[], None]]] = {}
            in_turn = server.admission.in_turn

            def keep_waiting(connection: object, host: str, work: Callable[[], None]) -> None:
                works[connection] = host, work

            monkeypatch.setattr(server.admission, "in_turn", keep_waiting)
            entering = asyncio.create_task(Attacker.at(server.port, "127.66.1.1"))
            await until(lambda: bool(works), "it has said something")
            await exchanged(session, bytes(100_000))
            assert not entering.done()
            monkeypatch.setattr(server.admission, "in_turn", in_turn)
            for connection, (host, work) in works.items():
                server.admission.in_turn(connection, host, work)
            (await entering).leave()

    run(scenario())


def unread(server: multi.Server) -> int:
    """Bytes of the next datagram that waits in the server's socket."""
    (sock,) = (sock for sock in server.sockets if sock.type == socket.SOCK_DGRAM)
    return int.from_bytes(fcntl.ioctl(sock.fileno(), termios.FIONREAD, bytes(4)), sys.byteorder)


@pytest.mark.parametrize("size", [PACKET, 20])
def test_what_waits_for_its_turn_is_bounded(
    size: int, development_certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with echoing(Way(development_certificates, "quic")) as server:
            attacker = await Attacker.at(server.port, "127.66.1.1")
            taken, flood = 0, set[bytes]()
            receive = QuicChannel.datagrams_received

            def count(channel: QuicChannel, data: bytes, segment: int, address: PeerAddress, at: float) -> None:
                nonlocal taken
                taken += data in flood  # and not what answers the acknowledgements of these
                receive(channel, data, segment, address, at)

            works: list[Callable[[], None]] = []
            monkeypatch.setattr(QuicChannel, "datagrams_received", count)
            with monkeypatch.context() as patch:
                patch.setattr(server.admission, "in_turn", lambda *asked: works.append(asked[-1]))
                packets = attacker.prepared([b"\x01" * size] * 900)
                flood.update(packets)
                # The first may acknowledge something besides, and be larger than the others.
                most = INBOX_SIZE // (min(map(len, packets)) + INBOX_OVERHEAD)
                for data in packets:
                    attacker.send(data)
                    await asyncio.sleep(0)
                await until(lambda: works and not unread(server), "all has come")
                await asyncio.sleep(0.05)  # what came together waits in the port until the loop has turned
            works[-1]()
            await until(lambda: taken > 0.9 * most, "what was kept is taken")
            await asyncio.sleep(0.05)
            assert taken <= most
            attacker.leave()

    run(scenario())


# --- time ---

OFFSETS = 7_000
MORE_WORK = 10  # times that of frames without gaps; today it is about 40


async def work_for(way: Way, engine: str, offsets: list[int]) -> float:
    """Seconds of processor time that a server, in this thread, has for one byte at each of these offsets."""
    async with echoing(way, quic_config={"engine": engine}) as server:
        attacker = await Attacker.at(server.port, "127.66.1.1")
        try:
            datagrams = attacker.prepared(packed(stream_frame(offset) for offset in offsets))
            began = time.thread_time()
            await attacker.say(datagrams)
            return time.thread_time() - began
        finally:
            attacker.leave()


@pytest.mark.parametrize("engine", ["aioquic", "qh3", "noq"])
def test_stream_frames_with_gaps_cost_no_more_time_than_others(engine: str, development_certificates: Path) -> None:
    engine_or_skip(engine)
    way = Way(development_certificates, "quic")
    usual = run(work_for(way, engine, [1] * OFFSETS))
    with_gaps = run(work_for(way, engine, [1 + 2 * n for n in range(OFFSETS)]))
    assert with_gaps < MORE_WORK * usual


# --- callbacks ---


async def flooded(way: Way, engine: str, packets: list[bytes]) -> None:
    """Such packets come to a server, whose callbacks are bounded."""
    async with echoing(way, quic_config={"engine": engine}) as server:
        attacker = await Attacker.at(server.port, "127.66.1.1")
        try:
            datagrams = attacker.prepared(packets)
            with callbacks_bounded():
                await asyncio.to_thread(attacker.floods, datagrams)
                await asyncio.sleep(0.2)
        finally:
            attacker.leave()


FAR = 60_000  # within what is granted at first

HOSTILE_PACKETS: dict[str, Callable[[], list[bytes]]] = {
    "a byte again and again": lambda: packed([stream_frame(1)] * 50_000),
    "gaps": lambda: packed(stream_frame(offset) for offset in range(1, FAR, 2)),
    "gaps, the last first": lambda: packed(stream_frame(offset) for offset in reversed(range(1, FAR, 2))),
    "as many gaps as are allowed": lambda: packed([stream_frame(1 + n % 120 * 500) for n in range(50_000)]),
    "few frames in each packet": lambda: [stream_frame(1 + 2 * n) for n in range(100)] * 50,
    "pings": lambda: [b"\x01" * PACKET] * 500,
    "sixty pings": lambda: [b"\x01" * 60] * 5_000,
    "ping and padding": lambda: [b"\x01\x00" * (PACKET // 2)] * 500,
    "handshake without end": lambda: packed(
        bytes([QuicFrameType.CRYPTO]) + encode_uint_var(offset) + b"\x01\xff" for offset in range(100_000)
    ),
    "other streams": lambda: packed(stream_frame(0, stream) for stream in range(LANE_STREAMS[-1] + 4, 500, 4)),
    "far away": lambda: [stream_frame(4 * MIB - 2)] * 10,
}


@pytest.mark.parametrize("engine", ["aioquic", "qh3", "noq"])
@pytest.mark.parametrize("what", HOSTILE_PACKETS)
def test_no_packets_keep_a_server_from_its_other_connections(
    what: str, engine: str, development_certificates: Path
) -> None:
    engine_or_skip(engine)
    run(flooded(Way(development_certificates, "quic"), engine, HOSTILE_PACKETS[what]()))


# --- memory ---

CONNECTIONS = 8
MOST = 2 * MIB  # for all of them; today it is 36 MiB


async def memory_for(way: Way, offset: int) -> int:
    """Bytes that a server, in this process, keeps for one byte at this offset from each connection."""
    async with echoing(way, limits={"max_memory": MIB}) as server:
        attackers = [await Attacker.at(server.port, f"127.66.{n}.1") for n in range(CONNECTIONS)]
        prepared = [attacker.prepared([stream_frame(offset)]) for attacker in attackers]
        gc.collect()
        tracemalloc.start()
        try:
            for attacker, datagrams in zip(attackers, prepared, strict=True):
                await attacker.say(datagrams)
            gc.collect()
            return tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
            for attacker in attackers:
                attacker.leave()


def test_a_byte_far_ahead_costs_no_memory_for_what_is_missing(development_certificates: Path) -> None:
    assert run(memory_for(Way(development_certificates, "quic"), 4 * MIB - 2)) < MOST


def test_a_byte_out_of_order_costs_little_memory(development_certificates: Path) -> None:
    assert run(memory_for(Way(development_certificates, "quic"), 1)) < MOST
