"""What the parts of a session know of it: how it moves on, what leaves it, and whether an end is near."""

from __future__ import annotations

import pytest

from multi.errors import LocalProtocolError
from multi.events import CloseConnection, Notify, SessionConfirmed
from multi.protocol.base import SessionBase
from multi.protocol.connection import Connection
from multi.protocol.session import SessionCore
from multi.protocol.settings import SessionSettings
from multi.protocol.state import SESSION_TRANSITIONS, Phase, SessionState
from multi.reasons import IN_ORDER
from multi.schedulers import create_scheduler
from multi.types import ConnectionFacts, ConnectionId, SessionId, Side


def made() -> SessionBase:
    return SessionCore(
        Side.CLIENT, SessionId(bytes(16)), SessionSettings(), entropy=bytes, make_scheduler=create_scheduler, now=0.0
    )


@pytest.mark.parametrize("origin", SessionState)
@pytest.mark.parametrize("goal", SessionState)
def test_it_moves_as_the_table_has_it_and_not_otherwise(origin: SessionState, goal: SessionState) -> None:
    session = made()
    session.state = origin
    if goal in SESSION_TRANSITIONS[origin]:
        session.move(goal)
        assert session.state is goal
    else:
        with pytest.raises(LocalProtocolError, match=f"cannot go from {origin.value} to {goal.value}"):
            session.move(goal)
        assert session.state is origin


def test_effects_leave_in_the_order_they_came_and_news_is_acted_upon() -> None:
    session = made()
    session.pending.clear()
    session.needs_flush = session.unsettled = False
    closing = CloseConnection(ConnectionId(1), True, IN_ORDER)
    session.emit(closing)
    assert not session.needs_flush
    session.notify(SessionConfirmed())
    assert session.pending == [closing, Notify(SessionConfirmed())]
    assert session.needs_flush
    assert session.unsettled


def test_an_end_is_near_while_the_session_or_a_connection_waits_for_acknowledgements() -> None:
    session = made()
    connection = Connection(ConnectionId(1), session.session_id, ConnectionFacts("tcp"), 0.0)
    session.connections[connection.id] = connection
    assert not session.settling
    connection._enter(Phase.DRAINING)
    assert session.settling
    del session.connections[connection.id]
    assert not session.settling
    session.leaving = True
    assert session.settling
