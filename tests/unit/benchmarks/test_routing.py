"""The model of many servers behind a balancer: whose sessions end, and how many attempts it takes."""

from __future__ import annotations

import pytest

from benchmarks.routing.__main__ import KINDS, SAFE, play

SESSIONS, SERVERS, ROUNDS = 150, 8, 2


@pytest.mark.parametrize("kind", SAFE)
def test_only_sessions_of_servers_that_died_end(kind: str) -> None:
    world = play(KINDS[kind](SERVERS, 1), SESSIONS, ROUNDS)
    counts = world.counts
    assert counts["ended wrongly"] == counts["second connection missing"] == 0
    assert counts["ended with their server"] > 0
    opened = len(world.clients) + counts["ended with their server"]
    assert opened == SESSIONS + 3 * ROUNDS * (SESSIONS // 100)
    assert all(client.server.alive for client in world.clients)
    assert any(client.server.draining for client in world.clients)


def test_with_tokens_each_attempt_of_a_living_session_finds_its_server() -> None:
    counts = play(KINDS["route tokens"](SERVERS, 2), SESSIONS, ROUNDS).counts
    assert counts["at strangers"] == 6 * counts["ended with their server"]  # three times on both networks
    assert counts["dials"] == counts["joins"]


@pytest.mark.parametrize("kind", sorted(set(KINDS) - set(SAFE)))
def test_what_does_not_know_the_server_loses_sessions(kind: str) -> None:
    """Else the model could not tell either."""
    assert play(KINDS[kind](SERVERS, 1), SESSIONS, ROUNDS).counts["ended wrongly"] > 0
