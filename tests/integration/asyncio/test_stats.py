"""The snapshots of servers and sessions: what they say is what the other end has counted."""

from __future__ import annotations

import json
from pathlib import Path

import multi
from tests.integration.support import Way, event_of, multi_pair, run, until

SEALED = Way(Path())
SIZE = 300_000


async def _send(writer: multi.SessionWriter, reader: multi.SessionReader, size: int) -> None:
    writer.write(bytes(size))
    await writer.drain()
    await reader.readexactly(size)


def test_what_a_session_counts_is_what_its_peer_counts() -> None:
    async def scenario() -> None:
        async with multi_pair(SEALED) as pair:
            await _send(pair.writer, pair.server_reader, SIZE)
            mine, theirs = pair.session.stats(), pair.server_session.stats()
            assert mine.id == theirs.id == pair.session.id.hex()
            assert theirs.payload_received == mine.bytes_sent == SIZE
            assert theirs.bytes_received > SIZE
            assert mine.scheduler == "adaptive"
            assert mine.reinjected == 0
            assert [c.transport for c in theirs.connections] == ["tcp"]
            assert json.loads(json.dumps(mine.as_dict(), allow_nan=False))["connections"][0]["role"] == "active"

    run(scenario())


def test_a_server_counts_on_when_sessions_and_connections_have_ended() -> None:
    async def scenario() -> None:
        async def on_client(reader: multi.SessionReader, writer: multi.SessionWriter) -> None:
            await reader.read()
            writer.close()

        server = await multi.start_server(on_client, SEALED.server())
        async with server:
            assert (server.stats().sessions, server.stats().transports) == ({}, {})
            for _ in range(3):
                reader, writer = await multi.open_connection(SEALED.client(server.port))
                writer.write(bytes(SIZE))
                assert (await _living(server)).sessions == {"open": 1}
                writer.write_eof()
                assert not await reader.read()
                writer.close()
                await writer.wait_closed()
            await until(lambda: not server.sessions)
            stats = server.stats()
            assert stats.accepting
            assert stats.sessions == {}
            assert stats.sessions_opened == sum(stats.sessions_ended.values()) == 3
            tcp = stats.transports["tcp"]
            assert tcp.connections == {}
            assert sum(tcp.ended.values()) == 3
            assert tcp.payload_received == 3 * SIZE
            assert tcp.in_flight == 0
        assert not server.stats().accepting

    async def _living(server: multi.Server) -> multi.ServerStats:
        await until(lambda: server.stats().sessions.get("open", 0) == 1)
        return server.stats()

    run(scenario())


def test_bytes_of_connections_that_were_removed_stay_counted() -> None:
    two = [["tcp", "ipv4", "127.0.0.1"], ["tcp", "ipv4", "127.0.0.2"]]

    async def scenario() -> None:
        async with multi_pair(SEALED, connection_priority=two) as pair:
            await event_of(
                pair.session, lambda _: sum(c.state.value == "active" for c in pair.session.connections) == 2
            )
            await _send(pair.writer, pair.server_reader, SIZE)
            for connection in [c for c in pair.session.connections if c.bytes_sent][:1]:
                await pair.session.remove_connection(connection.id)
            stats = pair.session.stats()
            assert stats.bytes_sent - stats.reinjected == SIZE
            assert stats.bytes_sent == sum(c.bytes_sent for c in stats.connections)

    run(scenario())


def test_snapshots_add_up() -> None:
    tcp = multi.TransportStats({"active": 2}, {"closed": 1}, 10, 20, 15, 1, 5)
    one = multi.ServerStats(5.0, False, {"open": 1}, 2, {"closed": 1}, 1, 3, 100, {"max_memory": 1}, {"tcp": tcp})
    other = multi.ServerStats(7.0, True, {"open": 2}, 2, {}, 0, 2, 50, {"max_memory": 2}, {"tcp": tcp, "quic": tcp})
    both = one + other
    assert both == other + one
    assert (both.uptime, both.accepting, both.sessions, both.sessions_opened) == (7.0, True, {"open": 3}, 4)
    assert (both.sessions_ended, both.arrivals, both.streams, both.memory) == ({"closed": 1}, 1, 5, 150)
    assert both.limits_hit == {"max_memory": 3}
    assert both.transports["quic"] == tcp
    assert both.transports["tcp"] == multi.TransportStats({"active": 4}, {"closed": 2}, 20, 40, 30, 2, 10)
    assert json.loads(json.dumps(both.as_dict()))["transports"]["tcp"]["ended"] == {"closed": 2}
