"""Networks that are blocked while a session lives: left in order, not dialled, and taken up again."""

from __future__ import annotations

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
