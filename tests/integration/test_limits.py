"""What strangers can do to a server: half-open connections, garbage, floods, no file descriptors left."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
from pathlib import Path

import pytest

import multi
from tests.integration.support import HOST, Way, pattern, run, serving, until

pytestmark = pytest.mark.usefixtures("bounded_callbacks")

MIB = 1024 * 1024


class Stranger:
    """A plain TCP connection that never says anything sensible."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        self.gone = asyncio.ensure_future(self._read(reader))

    @classmethod
    async def at(cls, port: int) -> Stranger:
        return cls(*await asyncio.open_connection(HOST, port))

    @staticmethod
    async def _read(reader: asyncio.StreamReader) -> bytes:
        try:
            return await reader.read()
        except ConnectionError:
            return b""

    async def leave(self) -> None:
        self.writer.transport.abort()
        await self.gone


@pytest.mark.parametrize("limit", ["max_unauthenticated", "max_unauthenticated_per_source"])
def test_the_oldest_half_open_connection_goes_when_there_are_too_many(
    limit: str, development_certificates: Path
) -> None:
    async def scenario() -> None:
        way = Way(development_certificates)
        async with serving(way, **{limit: 4}) as (server, inbox):
            strangers = [await Stranger.at(server.port) for _ in range(7)]
            await asyncio.gather(*(s.gone for s in strangers[:3]))
            assert not any(s.gone.done() for s in strangers[3:])
            async with multi.connect(way.client(server.port)) as session:  # who proves himself gets in
                session.writer.write(b"hello")
                reader, _ = await inbox.next()
                assert await reader.readexactly(5) == b"hello"
                await asyncio.wait_for(strangers[3].gone, 5)
                later = [await Stranger.at(server.port) for _ in range(8)]
                session.writer.write(b"still here")
                assert await reader.readexactly(10) == b"still here"
            for stranger in strangers + later:
                await stranger.leave()

    run(scenario())


def test_connection_that_says_nothing_is_given_up(development_certificates: Path) -> None:
    async def scenario() -> None:
        async with serving(Way(development_certificates), handshake_timeout=0.2) as (server, _):
            silent = await Stranger.at(server.port)
            halting = await Stranger.at(server.port)
            halting.writer.write(b"\x01")  # the first byte of a segment and no more
            loop = asyncio.get_running_loop()
            started = loop.time()
            await asyncio.gather(silent.gone, halting.gone)
            assert 0.1 < loop.time() - started < 1.5
            for stranger in (silent, halting):
                await stranger.leave()

    run(scenario())


GARBAGE = {
    "text": b"GET / HTTP/1.1\r\nHost: example\r\n\r\n",
    "zeros": bytes(100),
    "ones": b"\xff" * 100,
    "flood": os.urandom(64) * 20_000,
    "unknown type": bytes([1, 250, 0, 24]) + bytes(40),
    "tls": bytes.fromhex("160301020001000c") + bytes(600),
}


@pytest.mark.parametrize("way", ["tcp-sealed", "tcp-plain", "tcp-tls"])
@pytest.mark.parametrize("garbage", GARBAGE)
def test_garbage_costs_only_its_own_connection(garbage: str, way: str, development_certificates: Path) -> None:
    async def scenario() -> None:
        described = Way(development_certificates, way)
        async with serving(described, handshake_timeout=2.0) as (server, inbox):
            async with multi.connect(described.client(server.port)) as session:
                reader, _ = await inbox.next()
                stranger = await Stranger.at(server.port)
                stranger.writer.write(GARBAGE[garbage])
                await asyncio.wait_for(stranger.gone, 5)
                session.writer.write(b"unharmed")
                assert await reader.readexactly(8) == b"unharmed"
                await stranger.leave()
            async with multi.connect(described.client(server.port)) as session:
                await session.confirmed()
                assert len(server.sessions) <= 2

    run(scenario())


def test_no_session_is_taken_while_those_that_live_keep_too_much(
    development_certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("multi.asyncio.admission.GRACE", 60.0)  # the one that does not read is not idle for long

    async def scenario() -> None:
        way = Way(development_certificates)
        async with serving(way, max_memory=MIB) as (server, inbox), multi.connect(way.client(server.port)) as session:
            _, writer = await inbox.next()
            writer.write(bytes(8 * MIB))  # nobody reads it
            await until(lambda: server.sessions[0].memory > MIB, "the server keeps it")

            async def becomes(wanted: bool) -> None:
                for _ in range(200):
                    try:
                        async with multi.connect(way.client(server.port, multi_config={"open_timeout": 0.2})):
                            taken = True
                    except multi.SessionRefused:
                        taken = False
                    except multi.NoUsableConnection:  # the machine stood still for as long
                        continue
                    if taken is wanted:
                        return
                    await asyncio.sleep(0.02)  # the server adds up what it keeps ten times a second
                raise AssertionError(f"new sessions are {'still refused' if wanted else 'still taken'}")

            await becomes(False)
            await session.reader.readexactly(8 * MIB)
            await becomes(True)

    run(scenario())


def test_no_file_descriptors_left_neither_kills_the_server_nor_its_sessions(development_certificates: Path) -> None:
    async def scenario() -> None:
        way = Way(development_certificates)
        async with serving(way) as (server, inbox), multi.connect(way.client(server.port)) as session:
            reader, _ = await inbox.next()
            crowd = [socket.socket() for _ in range(30)]
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            highest = max(int(name) for name in os.listdir("/proc/self/fd"))
            resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 3, hard))
            try:
                for sock in crowd:
                    sock.connect((HOST, server.port))
                data = pattern(4 * MIB)
                session.writer.write(data)
                assert await reader.readexactly(len(data)) == data
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
                for sock in crowd:
                    sock.close()
            async with multi.connect(way.client(server.port)) as second:
                await second.confirmed()

    run(scenario())
