"""STREAM frames with gaps, from a QUIC client that has said nothing of MULTI, cost a server no more than others do."""

from __future__ import annotations

import asyncio
import gc
import ssl
import time
import tracemalloc
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.packet import QuicFrameType

from tests.findings.attacks import echoing
from tests.integration.support import HOST, Way, collect, run, until

MIB = 1 << 20
STREAM_WITH_OFFSET_AND_LENGTH = QuicFrameType.STREAM_BASE | 0x04 | 0x02
FRAME = 1 + 1 + 8 + 2 + 1  # bytes at most: type, stream, offset, length, one byte of data


class _Connection(QuicConnection):
    """After the handshake it says one byte at each offset of a list."""

    def __init__(self) -> None:
        super().__init__(
            configuration=QuicConfiguration(
                is_client=True, alpn_protocols=["multi/1"], verify_mode=ssl.CERT_NONE, server_name="localhost"
            )
        )
        self.offsets: list[int] = []

    def _write_stream_frame(self, builder: Any, space: Any, stream: Any, max_offset: int) -> int:
        while self.offsets and builder.remaining_flight_space > 2 * FRAME:
            frame = builder.start_frame(STREAM_WITH_OFFSET_AND_LENGTH, capacity=FRAME)
            frame.push_uint_var(0)
            frame.push_uint_var(self.offsets.pop(0))
            frame.push_uint_var(1)
            frame.push_bytes(b"x")
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
        self.flush()

    def flush(self) -> None:
        for data in self._datagrams():
            self._transport.sendto(data)

    def _datagrams(self) -> list[bytes]:
        return [data for data, _ in self.quic.datagrams_to_send(now=time.monotonic())]

    def prepared(self, offsets: Iterable[int]) -> list[bytes]:
        """The datagrams that say a byte at each of these offsets."""
        self.quic.offsets = list(offsets)
        self.quic._loss._cc.congestion_window = 1 << 30
        datagrams = []
        while self.quic.offsets:
            self.quic.send_stream_data(0, b"x")  # or it would not look at the stream
            datagrams += self._datagrams()
        return datagrams

    async def say(self, datagrams: list[bytes]) -> None:
        """Say them, and wait until the server has taken them or has ended the connection."""
        for data in datagrams:
            self._transport.sendto(data)
            await asyncio.sleep(0)
        await collect(until(lambda: not self.quic.unacknowledged(), timeout=5))

    def leave(self) -> None:
        self._transport.abort()


# --- time ---

FRAMES = 7_000
MORE_WORK = 10  # times that of frames without gaps; today it is about 40


async def work_for(way: Way, engine: str, offsets: list[int]) -> float:
    """Seconds of processor time that a server, in this thread, has for one byte at each of these offsets."""
    async with echoing(way, quic_config={"engine": engine}) as server:
        attacker = await Attacker.at(server.port, "127.66.1.1")
        try:
            datagrams = attacker.prepared(offsets)
            began = time.thread_time()
            await attacker.say(datagrams)
            return time.thread_time() - began
        finally:
            attacker.leave()


SLOW_WITH_GAPS = pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="aioquic walks a list of all ranges of a stream for every frame, and nothing bounds how many there are",
)


@pytest.mark.parametrize("engine", [pytest.param("aioquic", marks=SLOW_WITH_GAPS), "qh3"])
def test_stream_frames_with_gaps_cost_no_more_time_than_others(engine: str, development_certificates: Path) -> None:
    if engine == "qh3":
        pytest.importorskip("qh3")
    way = Way(development_certificates, "quic")
    usual = run(work_for(way, engine, [1] * FRAMES))
    with_gaps = run(work_for(way, engine, [1 + 2 * n for n in range(FRAMES)]))
    assert with_gaps < MORE_WORK * usual


# --- memory ---

CONNECTIONS = 8
MOST = 2 * MIB  # for all of them; today it is 36 MiB


async def memory_for(way: Way, offset: int) -> int:
    """Bytes that a server, in this process, keeps for one byte at this offset from each connection."""
    async with echoing(way, limits={"max_memory": MIB}) as server:
        attackers = [await Attacker.at(server.port, f"127.66.{n}.1") for n in range(CONNECTIONS)]
        prepared = [attacker.prepared([offset]) for attacker in attackers]
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


@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="aioquic fills gaps with zeros, up to 4 MiB for each connection, and max_memory knows nothing of it",
)
def test_a_byte_far_ahead_costs_no_memory_for_what_is_missing(development_certificates: Path) -> None:
    assert run(memory_for(Way(development_certificates, "quic"), 4 * MIB - 2)) < MOST


def test_a_byte_out_of_order_costs_little_memory(development_certificates: Path) -> None:
    assert run(memory_for(Way(development_certificates, "quic"), 1)) < MOST
