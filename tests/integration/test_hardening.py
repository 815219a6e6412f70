"""Every limit of a server, reached by somebody who means harm, and told of."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from aioquic.quic.packet import QuicPacketType, pull_quic_header

import multi
from multi.protocol.authenticator import ClientAuthenticator
from multi.protocol.handshake import ConnectionTerms, Join, Refuse, RefuseCode
from multi.protocol.segment import HEADER_LENGTH, SegmentDecoder, SegmentType, encode, encode_header
from multi.protocol.settings import Protect
from multi.transports.base import TlsSettings
from multi.transports.quic.aioquic_engine import AioquicEngine
from multi.transports.quic.connection_ids import PLAIN_IDS
from multi.transports.quic.engine import EngineSettings
from multi.transports.quic.settings import QuicSettings
from multi.transports.quic.udp_port import PeerAddress
from multi.transports.tcp import channel
from multi.types import SessionId, StreamId
from tests.integration.hostile import HandMade, Stranger, UdpStranger, greeting, join_segment, origin_of_session, said
from tests.integration.support import Relay, Way, pattern, run, serving, standstill, until
from tests.processes import MORTAL

pytestmark = pytest.mark.usefixtures("bounded_callbacks")

KIB, MIB = 1024, 1024 * 1024
ELSEWHERE = "127.9.9.9"  # another /24 than the honest client's


async def gets_in(way: Way, port: int, within: float = 2.0) -> None:
    """An honest client opens a session, is confirmed and leaves in order; the second where the first is late.

    It takes milliseconds, but on a busy machine anybody may be late once.
    """

    async def one() -> None:
        async with asyncio.timeout(within), multi.connect(way.client(port)) as session:
            await session.confirmed()

    try:
        await one()
    except TimeoutError:
        await one()


# --- somebody who is slow, at every stage  ---

CLIENT_HELLO = bytes.fromhex("16030100c8010000c40303") + bytes(80)
STAGES: dict[str, tuple[str, Callable[[], bytes]]] = {
    "connected, silent": ("tcp-sealed", lambda: b""),
    "half a header": ("tcp-sealed", lambda: said(greeting())[:7]),
    "half a HELLO": ("tcp-sealed", lambda: said(greeting())[:100]),
    "HELLO never confirmed": ("tcp-sealed", lambda: said(greeting())),
    "connected, silent, TLS": ("tcp-tls", lambda: b""),
    "half a ClientHello": ("tcp-tls", lambda: CLIENT_HELLO),
}


@pytest.mark.parametrize("stage", STAGES)
def test_whoever_does_not_go_on_is_given_up_in_time(
    stage: str, development_certificates: Path, caplog: pytest.LogCaptureFixture
) -> None:
    name, first = STAGES[stage]

    async def scenario() -> None:
        way = Way(development_certificates, name)
        async with serving(way, handshake_timeout=1.0) as (server, _):
            started = time.monotonic()
            slow = [await Stranger.at(server.port, first(), ELSEWHERE) for _ in range(5)]
            await gets_in(way, server.port)
            await asyncio.wait_for(asyncio.gather(*(stranger.gone for stranger in slow)), 3)
            assert time.monotonic() - started > 0.9
            await until(lambda: not server.sessions, "nothing is left of them")
            assert server.statistics["handshake_timeout"] >= 5
            for stranger in slow:
                await stranger.leave()

    with caplog.at_level(logging.WARNING, "multi.server"):
        run(scenario())
    warnings = [record.message for record in caplog.records if "limit handshake_timeout" in record.message]
    assert len(warnings) == 1
    assert "127.9.9.0/24" in warnings[0]


def initial_datagrams() -> list[bytes]:
    """The first flight of a QUIC client that never goes on."""
    engine = AioquicEngine(
        AioquicEngine.configure(EngineSettings(QuicSettings(), TlsSettings(), server_name="localhost")), 1200
    )
    engine.connect(PeerAddress(("127.0.0.1", 1)), time.monotonic())
    return [bytes(burst.data) for burst in engine.bursts(time.monotonic())]


def test_a_stalled_quic_handshake_is_given_up_in_time(development_certificates: Path) -> None:
    async def scenario() -> None:
        way = Way(development_certificates, "quic")
        async with serving(way, handshake_timeout=1.0) as (server, _):
            stranger = await UdpStranger.at(server.port, ELSEWHERE, lambda data: None)
            for datagram in initial_datagrams():
                stranger.sendto(datagram)
            await gets_in(way, server.port)
            await until(lambda: server.statistics["handshake_timeout"] == 1, "it was given up")
            stranger.close()

    run(scenario())


def test_quic_addresses_are_validated_under_load(development_certificates: Path) -> None:
    async def scenario() -> None:
        way = Way(development_certificates, "quic")
        async with serving(way, handshake_timeout=20.0) as (server, _):
            answers: list[QuicPacketType] = []

            def note(data: bytes) -> None:
                from aioquic._buffer import Buffer

                answers.append(pull_quic_header(Buffer(data=data), host_cid_length=PLAIN_IDS.length).packet_type)

            sockets = []
            for number in range(70):  # 64 unfinished handshakes are taken, one from each /24
                sockets.append(await UdpStranger.at(server.port, f"127.8.{number}.1", note))
                for datagram in initial_datagrams():
                    sockets[-1].sendto(datagram)
            await until(lambda: answers.count(QuicPacketType.RETRY) >= 6, "who comes later has to come back")
            assert server.statistics["quic_retry"] >= 6
            await gets_in(way, server.port)
            for each in sockets:
                each.close()

    run(scenario())


def test_one_address_alone_is_validated_before_it_uses_up_its_share(development_certificates: Path) -> None:
    async def scenario() -> None:
        way = Way(development_certificates, "quic")
        async with serving(way, handshake_timeout=3.0, max_unauthenticated_per_source=8) as (server, _):
            stranger = await UdpStranger.at(server.port, ELSEWHERE, lambda data: None)
            for _ in range(20):
                for datagram in initial_datagrams():
                    stranger.sendto(datagram)
            await until(lambda: server.statistics["quic_retry"] >= 10, "it is asked to come back")
            assert not server.statistics["max_unauthenticated_per_source"]
            await gets_in(way, server.port)
            stranger.close()

    run(scenario())


# --- in the middle of a segment  ---


@pytest.mark.parametrize("trickle", [False, True])
def test_half_a_segment_does_not_hold_a_connection_for_ever(trickle: bool, development_certificates: Path) -> None:
    async def scenario() -> None:
        async with serving(Way(development_certificates), segment_timeout=0.4) as (server, inbox):
            hostile = await HandMade.at(server.port)
            await hostile.confirm()
            await inbox.next()
            hostile.core.write(StreamId(0), bytes(8 * KIB), now=0.0)
            segment = said(hostile.core)
            hostile.send(segment[:1000])

            async def drip() -> None:
                for byte in segment[1000:2000]:
                    hostile.send(bytes([byte]))
                    await asyncio.sleep(0.01)

            dripping = asyncio.ensure_future(drip()) if trickle else None
            await asyncio.wait_for(hostile.gone(), 3)
            assert server.statistics["segment_timeout"] == 1
            if dripping is not None:
                dripping.cancel()

    run(scenario())


def test_an_honest_connection_is_not_taken_for_a_stalled_one(development_certificates: Path) -> None:
    async def scenario() -> None:
        way = Way(development_certificates)
        async with (
            serving(way, segment_timeout=0.1) as (server, inbox),
            multi.connect(way.client(server.port)) as session,
        ):
            reader, _ = await inbox.next()
            for _ in range(30):  # now and then, and in between nothing for long
                session.writer.write(bytes(40 * KIB))
                await reader.readexactly(40 * KIB)
                await asyncio.sleep(0.02)
            assert not server.statistics["segment_timeout"]

    run(scenario())


# --- sessions  ---


@pytest.mark.parametrize("limit", ["max_sessions", "max_sessions_per_source"])
def test_sessions_that_are_never_confirmed_make_room(limit: str, development_certificates: Path) -> None:
    async def scenario() -> None:
        way = Way(development_certificates)
        async with serving(way, **{limit: 4}) as (server, _):
            strangers = [await Stranger.at(server.port, said(greeting())) for _ in range(6)]
            await until(lambda: server.statistics[limit] >= 2, "the table is full")
            for left_at_once in strangers[4:]:  # their sessions would wait for them
                await left_at_once.leave()
            await gets_in(way, server.port, 10)  # who has just been answered may yet go on
            for stranger in strangers:
                await stranger.leave()

    run(scenario())


@pytest.mark.parametrize("limit", ["max_sessions", "max_sessions_per_source"])
def test_sessions_that_are_confirmed_stay_and_others_are_refused(
    limit: str, development_certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("multi.asyncio.admission.GRACE", 60.0)  # none of them is idle for long

    async def scenario() -> None:
        way = Way(development_certificates)
        async with serving(way, **{limit: 2}) as (server, _):
            sessions = [await multi.connect(way.client(server.port)) for _ in range(2)]
            for session in sessions:
                await session.confirmed()
            with pytest.raises(multi.SessionRefused, match=limit):
                await multi.open_connection(way.client(server.port, multi_config={"open_timeout": 3.0}))
            assert server.statistics[limit] >= 1
            for session in sessions:
                await session.close()

    run(scenario())


def test_a_source_beyond_its_share_loses_its_own_longest_idle_session(
    development_certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("multi.asyncio.admission.GRACE", 0.2)

    async def scenario() -> None:
        way = Way(development_certificates)

        def at(address: str) -> multi.connect:
            return multi.connect(way.client(server.port, connection_priority=[["tcp", "ipv4", address]]))

        async with serving(way, max_sessions_per_source=2) as (server, inbox), at(ELSEWHERE) as other:
            ends = [await inbox.next()]
            sessions = []
            for _ in range(2):
                sessions.append(await at("127.0.0.1"))
                ends.append(await inbox.next())
            for session, (reader, _) in zip((sessions[1], sessions[0]), (ends[2], ends[1]), strict=True):
                session.writer.write(b"hello")  # who came first says something last
                assert await reader.readexactly(5) == b"hello"
                await asyncio.sleep(0.05)
            async with at("127.0.0.2") as third:
                await third.confirmed()
                with pytest.raises(multi.SessionLost, match="max_sessions_per_source"):
                    await sessions[1].wait_closed()
                for session, (_, writer) in ((sessions[0], ends[1]), (other, ends[0])):
                    writer.write(b"still here")
                    assert await session.reader.readexactly(10) == b"still here"
            await sessions[0].close()

    run(scenario())


def test_the_session_that_waits_longest_goes_when_too_many_wait(development_certificates: Path) -> None:
    async def scenario() -> None:
        way = Way(development_certificates)
        async with serving(way, max_detached_sessions=1) as (server, inbox):
            sessions, ends = [], []
            for _ in range(2):
                async with Relay(server.port) as relay:
                    sessions.append(await multi.connect(way.client(relay.port)))
                    await sessions[-1].confirmed()
                    ends.append(await inbox.session())
                    await ends[-1].confirmed()
                await until(lambda: ends[-1].state.value == "detached", "its connection is gone")
            with pytest.raises(multi.SessionLost, match="too many sessions wait"):
                await ends[0].wait_closed()
            assert ends[1].state.value == "detached"
            assert server.statistics["max_detached_sessions"] == 1
            for session in sessions:
                session.abort()
                await session.settle()

    run(scenario())


# --- connections of a session  ---


def refusal_of(session_id: SessionId, code: int) -> bytes:
    return encode(SegmentType.REFUSE, session_id, Refuse(code).encode())


def test_joins_without_the_keys_are_refused_and_nothing_is_kept_for_them(development_certificates: Path) -> None:
    async def scenario() -> None:
        way = Way(development_certificates)
        async with serving(way) as (server, _), multi.connect(way.client(server.port)) as session:
            await session.confirmed()
            wanted = SessionId(session.id)
            forged = join_segment(wanted, origin=origin_of_session(session))
            strangers = [await Stranger.at(server.port, forged, ELSEWHERE) for _ in range(100)]
            for stranger in strangers:
                assert await asyncio.wait_for(stranger.gone, 3) == refusal_of(wanted, RefuseCode.REFUSED)
            nobody = await Stranger.at(server.port, join_segment(wanted), ELSEWHERE)
            (answer,) = SegmentDecoder().feed(memoryview(await asyncio.wait_for(nobody.gone, 3)))
            assert Refuse.decode(answer.payload).meaning is RefuseCode.UNKNOWN, "of another origin"
            assert len(server.sessions[0].connections) == 1
            async with asyncio.timeout(2):
                await session.add_connection(["tcp", "ipv4", "127.0.0.2"])
            for stranger in (*strangers, nobody):
                await stranger.leave()

    run(scenario())


def test_a_join_that_is_heard_and_said_again_keeps_nobody_out(development_certificates: Path) -> None:
    async def scenario() -> None:
        way = Way(development_certificates)
        async with serving(way) as (server, _), multi.connect(way.client(server.port)) as session:
            await session.confirmed()
            core = session._driver.core
            assert isinstance(core._auth, ClientAuthenticator)
            assert core._auth.keys is not None
            join = Join(core._auth._origin, os.urandom(32), ConnectionTerms(sealed=True))
            join = replace(join, proof=core._auth.keys.join_request_proof(join, b""))
            heard = encode(SegmentType.JOIN, SessionId(session.id), join.encode())
            strangers = [await Stranger.at(server.port, heard, ELSEWHERE) for _ in range(40)]
            await until(lambda: sum(s.gone.done() for s in strangers) == 38, "two of them may try")
            assert server.statistics["max_pending_joins"] == 38
            async with asyncio.timeout(2):
                await session.add_connection(["tcp", "ipv4", "127.0.0.2"])
            for stranger in strangers:
                await stranger.leave()

    run(scenario())


def test_a_session_has_so_many_connections_and_strangers_take_no_place_of_them(development_certificates: Path) -> None:
    async def scenario() -> None:
        way = Way(development_certificates)
        async with (
            serving(way, max_connections_per_session=2) as (server, _),
            multi.connect(way.client(server.port)) as session,
        ):
            await session.confirmed()
            for host in ("127.0.0.2", "127.0.0.3", "127.0.0.4"):
                async with asyncio.timeout(2):
                    await session.add_connection(["tcp", "ipv4", host])
            (live,) = server.sessions
            active = [c for c in live.connections if c.state is multi.ConnectionState.ACTIVE]
            assert len(active) == 2, "the one heard least recently went"
            assert server.statistics["max_connections_per_session"]

    run(scenario())


# --- what a client sends that has proved itself  ---


def data_segment(session_id: SessionId, stream: int, offset: int, size: int) -> bytes:
    return encode_header(SegmentType.DATA, session_id, offset, StreamId(stream), size) + bytes(size)


HOSTILE = {
    "max_streams": lambda session_id: data_segment(session_id, 2 + 2 * 8, 0, 10),
    "flow_control": lambda session_id: data_segment(session_id, 0, 1 << 30, 10),
    "segment_size": lambda session_id: data_segment(session_id, 0, 0, 1 << 20),
}


@pytest.mark.parametrize("limit", HOSTILE)
def test_a_bound_of_the_protocol_costs_the_connection_and_is_counted(
    limit: str, development_certificates: Path
) -> None:
    async def scenario() -> None:
        way = Way(development_certificates, "tcp-plain")
        async with serving(way, max_streams=8) as (server, inbox):
            hostile = await HandMade.at(server.port, protect=Protect.NEVER)
            await hostile.confirm()
            await inbox.next()
            hostile.send(HOSTILE[limit](hostile.session_id))
            await asyncio.wait_for(hostile.gone(), 3)
            await until(lambda: server.statistics[limit] == 1, "it was counted")
            await gets_in(way, server.port)

    run(scenario())


def test_too_much_before_the_first_segment_is_whole_is_not_kept(development_certificates: Path) -> None:
    async def scenario() -> None:
        way = Way(development_certificates)
        async with serving(way) as (server, _):
            hello = said(greeting())
            endless = hello[:HEADER_LENGTH] + os.urandom(300 * KIB)
            flood = await Stranger.at(server.port, hello + endless, ELSEWHERE)
            await asyncio.wait_for(flood.gone, 3)
            await gets_in(way, server.port)
            await flood.leave()

    run(scenario())


# --- memory  ---


def test_windows_stop_growing_when_the_memory_of_the_server_is_taken(development_certificates: Path) -> None:
    async def scenario() -> None:
        way = Way(development_certificates)
        most = 2 * MIB
        async with serving(way, max_memory=most) as (server, inbox):
            data = pattern(8 * MIB)
            kept = 0

            async def transfer() -> None:
                nonlocal kept
                async with multi.connect(way.client(server.port)) as session:
                    reader, writer = await inbox.next()
                    end = writer.get_extra_info("session")
                    session.writer.write(data)
                    received = 0
                    while received < len(data):
                        part = await reader.read(256 * KIB)
                        assert part == data[received : received + len(part)]
                        received += len(part)
                    # Now nobody reads: what the server keeps is what its windows let in.
                    session.writer.write(data)
                    await standstill(lambda: end.memory)
                    kept += end.memory
                    await asyncio.sleep(0.3)
                    session.abort()

            results = await asyncio.gather(*(transfer() for _ in range(4)), return_exceptions=True)
            assert not [error for error in results if isinstance(error, AssertionError)]
            assert server.statistics["max_memory"] > 0
            assert 4 * 64 * KIB <= kept <= most
            await until(lambda: not server.sessions, "all are gone")
            await gets_in(way, server.port)  # what they had taken is free again

    run(scenario())


def test_who_comes_first_leaves_windows_for_the_others(development_certificates: Path) -> None:
    async def scenario() -> None:
        way = Way(development_certificates)
        async with serving(way, max_memory=16 * MIB) as (server, inbox):  # windows of one source have a quarter
            data = pattern(8 * MIB)
            sessions, ends = [], []
            for _ in range(6):
                sessions.append(await multi.connect(way.client(server.port)))
                ends.append(await inbox.next())
            granted = []
            for session, (reader, writer) in zip(sessions, ends, strict=True):
                session.writer.write(data)
                assert await reader.readexactly(len(data)) == data
                session.writer.write(data)  # nobody reads it: what comes is what the window lets in
                end = writer.get_extra_info("session")
                await standstill(lambda end=end: end.memory)  # type: ignore[misc] # it has a default
                granted.append(end.memory)
            assert min(granted) > 2 * 60 * KIB, "the last one's window could not grow"
            assert sum(granted) <= 4 * MIB
            for session in sessions:
                session.abort()

    run(scenario())


def test_who_comes_late_gets_what_those_before_do_not_use_any_more(development_certificates: Path) -> None:
    async def scenario() -> None:
        way = Way(development_certificates)
        limits = {"max_memory": 8 * MIB, "max_stream_window": 256 * KIB}  # windows of one source have a quarter
        async with serving(way, **limits) as (server, inbox):
            data = pattern(MIB)

            async def granted() -> int:
                """What the server keeps for a client that has sent as fast as it could and goes on unread."""
                async with multi.connect(way.client(server.port)) as session:
                    reader, writer = await inbox.next()
                    session.writer.write(data + data)
                    assert await reader.readexactly(len(data)) == data
                    end = writer.get_extra_info("session")
                    await standstill(lambda: end.memory)
                    kept = int(end.memory)
                    session.abort()
                await until(lambda: len(server.sessions) == 6, "it is gone")
                return kept

            early = []
            for _ in range(6):
                session = await multi.connect(way.client(server.port))
                reader, _ = await inbox.next()
                session.writer.write(data)
                assert await reader.readexactly(len(data)) == data
                early.append((session, reader))
            assert await granted() <= 64 * KIB, "memory is taken"
            await asyncio.sleep(1.1)
            await granted()  # it wants more than there is, so what is not used is not renewed
            for _ in range(60):
                for session, reader in early:
                    session.writer.write(data[: 4 * KIB])
                    await reader.readexactly(4 * KIB)
                await asyncio.sleep(0.03)
            assert await granted() >= 128 * KIB
            for session, reader in early:  # those who come back get more again, too
                session.writer.write(data)
                assert await reader.readexactly(len(data)) == data
                session.abort()

    run(scenario())


def test_where_memory_is_short_clients_that_read_nothing_go_in_time(development_certificates: Path) -> None:
    async def scenario() -> None:
        way = Way(development_certificates)
        async with serving(way, max_memory=MIB, segment_timeout=0.4) as (server, inbox):
            session = await multi.connect(way.client(server.port))
            _, writer = await inbox.next()
            writer.write(bytes(8 * MIB))  # nobody reads it
            with pytest.raises(multi.SessionLost, match="max_memory"):
                await writer.get_extra_info("session").wait_closed()
            session.abort()
            await session.settle()
            await gets_in(way, server.port)

    run(scenario())


def test_a_client_that_reads_nothing_stays_while_there_is_memory(development_certificates: Path) -> None:
    async def scenario() -> None:
        way = Way(development_certificates)
        async with (
            serving(way, segment_timeout=0.1) as (server, inbox),
            multi.connect(way.client(server.port)) as session,
        ):
            _, writer = await inbox.next()
            writer.write(pattern(8 * MIB))
            await asyncio.sleep(0.5)
            assert await session.reader.readexactly(8 * MIB) == pattern(8 * MIB)

    run(scenario())


# --- file descriptors  ---

FEW_DESCRIPTORS = """
import asyncio, logging, resource, sys
import multi

async def main():
    logging.basicConfig(level=logging.WARNING, stream=sys.stdout, format="LOG %(message)s")
    async def echo(reader, writer):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()
    server = await multi.start_server(echo, CONFIG)
    resource.setrlimit(resource.RLIMIT_NOFILE, (FEW, FEW))
    print(server.port, flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    print("STATISTICS", server.statistics["file_descriptors"], flush=True)
    server.abort()
    await server.wait_closed()

asyncio.run(main())
"""


@pytest.mark.parametrize("name", ["tcp-sealed", "tcp-tls"])
def test_a_server_without_descriptors_says_so_once_serves_on_and_takes_who_comes(
    name: str, development_certificates: Path
) -> None:
    way = Way(development_certificates, name)
    program = f"CONFIG, FEW = {way.server()!r}, 40\n{FEW_DESCRIPTORS}"
    with subprocess.Popen(
        [*MORTAL, sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        assert server.stdin is not None
        port = int(server.stdout.readline())

        async def scenario() -> None:
            async with multi.connect(way.client(port)) as session:
                await session.confirmed()
                crowd = [await Stranger.at(port) for _ in range(60)]  # more than it can take
                data = pattern(MIB)
                session.writer.write(data)
                assert await session.reader.readexactly(len(data)) == data
                await gets_in(way, port)
                assert any(not stranger.gone.done() for stranger in crowd), "it needs no more room than for one"
                for stranger in crowd:
                    await stranger.leave()

        try:
            run(scenario())
            said_by_server, _ = server.communicate("stop\n", timeout=10)
        finally:
            server.kill()
    assert said_by_server.count("limit file_descriptors") == 1
    (counted,) = [line for line in said_by_server.splitlines() if line.startswith("STATISTICS")]
    assert 20 <= int(counted.split()[1]) <= 100  # once for each that found none left, and no more


def test_sessions_that_hold_all_descriptors_make_room_for_who_comes_from_elsewhere(
    development_certificates: Path,
) -> None:
    way = Way(development_certificates)
    program = f"CONFIG, FEW = {way.server()!r}, 40\n{FEW_DESCRIPTORS}"
    with subprocess.Popen(
        [*MORTAL, sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        port = int(server.stdout.readline())

        async def scenario() -> None:
            neighbours = []
            try:
                for _ in range(60):
                    neighbour = await HandMade.at(port, "127.7.7.7")
                    neighbours.append(neighbour)
                    with suppress(AssertionError, ConnectionError):  # no room for more of them
                        await neighbour.confirm()
                assert 10 < sum(neighbour.core.confirmed for neighbour in neighbours) < 40
                for _ in range(3):
                    await gets_in(way, port)
            finally:
                for neighbour in neighbours:
                    neighbour.writer.transport.abort()
                    with suppress(OSError):  # the server may have reset it: told nobody, asyncio complains
                        await neighbour.writer.wait_closed()

        try:
            run(scenario())
        finally:
            server.kill()


def test_connections_that_only_say_goodbye_make_room_first(
    development_certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever ends sessions and keeps his sockets open holds the server's as long as it waits for his goodbye."""
    monkeypatch.setattr(channel, "LINGER_TIME", 300.0)
    monkeypatch.setattr(channel, "MAX_LINGER", 300.0)

    async def scenario() -> None:
        async with serving(Way(development_certificates)) as (server, _):
            leavers = [await HandMade.at(server.port, ELSEWHERE) for _ in range(3)]
            for leaver in leavers:
                await leaver.confirm()
            server.abort_clients()
            assert not server.sessions
            honest = await HandMade.at(server.port)
            await honest.confirm()
            assert all(server.admission.free_descriptor(ELSEWHERE) for _ in leavers)
            for leaver in leavers:
                await leaver.gone()  # no goodbye is waited for
            assert len(server.sessions) == 1
            honest.writer.transport.abort()

    run(scenario())


def test_when_a_flood_ends_its_connections_are_seen_to_in_turns(
    development_certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of an attacker's connections end at once: in one turn of the event loop each of them would be an end."""

    async def scenario() -> None:
        async with serving(Way(development_certificates)) as (server, _):
            in_turn, works, holding = server.admission.in_turn, list[Callable[[], None]](), False

            def held_back(connection: object, host: str, work: Callable[[], None]) -> None:
                if holding:
                    works.append(work)
                else:
                    in_turn(connection, host, work)

            def begun() -> int:
                return sum(server.stats().sessions.values())

            monkeypatch.setattr(server.admission, "in_turn", held_back)
            honest = await HandMade.at(server.port)
            await honest.confirm()
            strangers = [await HandMade.at(server.port, ELSEWHERE) for _ in range(5)]
            for stranger in strangers:
                stranger.flush()
                await stranger.reader.read(1)
            assert begun() == 6
            holding = True
            for stranger in strangers:
                stranger.writer.transport.abort()
            await until(lambda: len(works) == 5, "it has heard of all")
            assert begun() == 6
            for work in works:
                work()
            await until(lambda: begun() == 1)
            server.abort_clients()  # who has proved himself waits for no turn
            assert not server.sessions
            honest.writer.transport.abort()

    run(scenario())
