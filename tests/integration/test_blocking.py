"""Networks that are blocked while a session lives: left in order, not dialled, and taken up again."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import multi
from tests.integration.support import Pair, Way, multi_pair, run, until

SEALED = Way(Path())
TWO = [["tcp", "ipv4", "127.0.0.1"], ["tcp", "ipv4", "127.0.0.2"]]
SIZE = 300_000


def up(pair: Pair) -> list[str]:
    """Local addresses of the connections that carry data."""
    return sorted(c.local.partition(":")[0] for c in pair.session.connections if c.state.value == "active")


async def carries(pair: Pair) -> None:
    pair.writer.write(bytes(SIZE))
    assert await pair.server_reader.readexactly(SIZE) == bytes(SIZE)


def test_a_network_that_is_unblocked_is_handed_over_to_at_once() -> None:
    """It was still blocked as of the last look at the networks."""

    async def scenario() -> None:
        async with multi_pair(SEALED, connection_priority=TWO) as pair:
            await until(lambda: up(pair) == ["127.0.0.1", "127.0.0.2"])
            pair.session.block("127.0.0.2")
            await until(lambda: up(pair) == ["127.0.0.1"])
            pair.session.unblock("127.0.0.2")
            await pair.session.handover("127.0.0.2")
            await until(lambda: up(pair) == ["127.0.0.2"])
            await carries(pair)

    run(scenario())


def test_a_handover_that_can_be_waits_for_no_other_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("multi.asyncio.session.ANSWER_LOOK", 3600.0)

    async def scenario() -> None:
        async with multi_pair(SEALED, connection_priority=TWO) as pair:
            await until(lambda: up(pair) == ["127.0.0.1", "127.0.0.2"])
            resolver = pair.session._resolver
            assert resolver is not None
            resolver.unblocked.add("somewhere")
            await pair.session.handover("127.0.0.2")
            with pytest.raises(TypeError):
                await pair.session.handover(True)

    run(scenario())


def test_a_blocked_network_is_drained_and_comes_back_when_it_is_unblocked() -> None:
    async def scenario() -> None:
        async with multi_pair(SEALED, connection_priority=TWO) as pair:
            await until(lambda: up(pair) == ["127.0.0.1", "127.0.0.2"])
            pair.session.block("127.0.0.2")
            pair.session.block("127.0.0.2")
            await until(lambda: pair.session.connections[1].state is multi.ConnectionState.CLOSED)
            assert pair.session.connections[1].reason == "drained"
            assert pair.session.blocked == ("127.0.0.2",)
            await carries(pair)
            assert up(pair) == ["127.0.0.1"]
            pair.session.unblock("127.0.0.2")
            await until(lambda: up(pair) == ["127.0.0.1", "127.0.0.2"])
            assert not pair.session.blocked
            with pytest.raises(multi.LocalProtocolError, match="only the client blocks networks"):
                pair.server_session.block("127.0.0.1")

    run(scenario())


def test_nothing_is_handed_over_to_a_network_that_has_just_been_blocked() -> None:
    async def scenario() -> None:
        async with multi_pair(SEALED, connection_priority=TWO) as pair:
            await until(lambda: len(up(pair)) == 2)
            pair.session.block("127.0.0.2")
            for _ in range(2):
                with pytest.raises(multi.TransportError, match=r"handover to 127.0.0.2 failed: it is blocked"):
                    await pair.session.handover("127.0.0.2")
                await until(lambda: len(up(pair)) == 1)
            await carries(pair)

    run(scenario())


def test_with_everything_blocked_a_session_waits_and_loses_nothing() -> None:
    async def scenario() -> None:
        async with multi_pair(SEALED, connection_priority=TWO) as pair:
            await until(lambda: len(up(pair)) == 2)
            pair.session.block("127.0.0.1")
            pair.session.block("127.0.0.2")
            await until(lambda: pair.session.state is multi.SessionState.DETACHED)
            pair.writer.write(bytes(SIZE))
            pair.session.unblock("127.0.0.1")
            assert await pair.server_reader.readexactly(SIZE) == bytes(SIZE)
            assert up(pair) == ["127.0.0.1"]

    run(scenario())


@pytest.mark.parametrize("way", ["tcp-sealed", "tcp-tls", "quic"])
@pytest.mark.parametrize("connections", [1, 2])
def test_a_server_waits_for_a_client_that_has_blocked_its_last_network(
    development_certificates: Path, way: str, connections: int
) -> None:
    """It took its closed connections for a client that was gone, in the middle of what both send."""
    described = Way(development_certificates, way)
    entries = [[described.transport, "ipv4", address] for address in ("127.0.0.1", "127.0.0.2")][:connections]
    impatient = {"multi_config": {"abandon_timeout": 0.1}}

    async def scenario() -> None:
        async with multi_pair(described, server=impatient, connection_priority=entries) as pair:
            await until(lambda: len(up(pair)) == connections)
            for writer in (pair.writer, pair.server_writer):
                writer.write(bytes(10 * SIZE))
            await pair.reader.readexactly(SIZE)
            for address in ("127.0.0.1", "127.0.0.2")[:connections]:
                pair.session.block(address)
            await until(lambda: pair.server_session.state is multi.SessionState.DETACHED)
            await asyncio.sleep(0.5)
            assert pair.server_session.state is multi.SessionState.DETACHED
            pair.session.unblock("127.0.0.1")
            assert await pair.server_reader.readexactly(10 * SIZE) == bytes(10 * SIZE)
            assert await pair.reader.readexactly(9 * SIZE) == bytes(9 * SIZE)

    run(scenario())
