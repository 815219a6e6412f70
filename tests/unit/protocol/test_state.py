"""The lifecycles: which states lead where, as promised in one table each."""

from __future__ import annotations

from enum import Enum

import pytest

from multi.errors import LocalProtocolError
from multi.protocol.state import (
    CONNECTION_TRANSITIONS,
    SESSION_TRANSITIONS,
    SessionState,
    check_connection,
    check_session,
)
from multi.types import ConnectionState


def reachable(transitions: dict[Enum, frozenset[Enum]], start: Enum) -> set[Enum]:
    found, waiting = {start}, [start]
    while waiting:
        for state in transitions[waiting.pop()] - found:
            found.add(state)
            waiting.append(state)
    return found


TABLES = [
    pytest.param(CONNECTION_TRANSITIONS, ConnectionState, id="connection"),
    pytest.param(SESSION_TRANSITIONS, SessionState, id="session"),
]


@pytest.mark.parametrize(("table", "states"), TABLES)
def test_every_state_can_be_reached_and_has_an_end(table: dict[Enum, frozenset[Enum]], states: type[Enum]) -> None:
    assert set(table) == set(states)
    ends = {state for state in states if not table[state]}
    assert ends
    assert reachable(table, next(iter(states))) == set(states)
    for state in states:
        assert reachable(table, state) & ends, f"{state} is a trap"


def test_a_connection_never_comes_back_from_its_end_and_never_carries_again_once_it_drains() -> None:
    for ended in (ConnectionState.LOST, ConnectionState.CLOSED):
        for state in ConnectionState:
            with pytest.raises(LocalProtocolError, match=f"from {ended.value} to {state.value}"):
                check_connection(ended, state)
    with pytest.raises(LocalProtocolError, match="from draining to active"):
        check_connection(ConnectionState.DRAINING, ConnectionState.ACTIVE)


def test_a_session_that_closes_does_not_open_again() -> None:
    assert check_session(SessionState.DETACHED, SessionState.OPEN) is SessionState.OPEN
    for state in (SessionState.OPENING, SessionState.OPEN, SessionState.DETACHED):
        with pytest.raises(LocalProtocolError, match=f"from closing to {state.value}"):
            check_session(SessionState.CLOSING, state)
