"""Control segments: each arrives, however often the connections that carry them die, and none is kept twice."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multi.errors import RemoteProtocolError
from multi.protocol.connection import Connection
from multi.protocol.control import MAX_AHEAD, Inbox, Outbox
from multi.protocol.payloads import MAX_RANGES
from multi.protocol.segment import EPHEMERAL, SegmentType
from multi.types import ConnectionFacts, ConnectionId, SessionId, StreamId

T = SegmentType


def ends(count: int = 2) -> tuple[Outbox, list[Connection]]:
    """An outbox and the connections it may use."""
    made = [Connection(ConnectionId(n), SessionId(bytes(16)), ConnectionFacts("tcp"), 0.0) for n in range(count)]
    return Outbox({connection.id: connection for connection in made}), made


def numbers(connection: Connection) -> list[int]:
    """The control segments that lie on a connection, by number; they are taken off it."""
    raw = b"".join(connection.output[0])
    connection.output[0] = []
    return [segment.sequence for segment in connection.decoders[0].feed(memoryview(raw))]


# --- sending  ---


def test_control_is_numbered_in_the_order_it_was_said() -> None:
    outbox, (one, _) = ends()
    said = [outbox.add(type_, b"payload") for type_ in (T.ROLE, T.FIN, T.ROLE)]
    assert said == [0, 1, 2]
    outbox.send(one, 0.0)
    assert numbers(one) == said
    assert not outbox.queue
    assert one.outstanding


def test_what_is_acknowledged_is_forgotten_and_reported_once() -> None:
    outbox, (one, _) = ends()
    outbox.add(T.FIN, b"", StreamId(2))
    outbox.add(T.ROLE, b"")
    outbox.send(one, 0.0)
    assert outbox.acknowledge(1, ()) == [(T.FIN, 2)]
    assert outbox.acknowledge(1, ()) == []
    assert outbox.acknowledge(2, ()) == [(T.ROLE, 0)]
    assert outbox.empty
    assert not one.outstanding


def test_acknowledgements_may_have_gaps() -> None:
    outbox, (one, _) = ends()
    for _ in range(5):
        outbox.add(T.ROLE, b"")
    outbox.send(one, 0.0)
    assert len(outbox.acknowledge(1, ((2, 4),))) == 3
    assert not outbox.empty
    assert len(outbox.acknowledge(5, ())) == 2
    assert outbox.empty


def test_what_a_lost_connection_carried_is_sent_again_in_order_and_the_rest_is_not() -> None:
    outbox, (one, other) = ends()
    outbox.add(T.FIN, b"")
    outbox.send(one, 0.0)
    outbox.add(T.ROLE, b"")
    outbox.send(other, 0.0)
    outbox.add(T.ROLE, b"")
    outbox.send(one, 0.0)
    assert numbers(one) == [0, 2]
    assert numbers(other) == [1]
    outbox.lose(one)
    assert not one.outstanding
    outbox.send(other, 0.0)
    assert numbers(other) == [0, 2]


def test_an_acknowledgement_that_comes_late_spares_the_repeat() -> None:
    outbox, (one, other) = ends()
    outbox.add(T.FIN, b"")
    outbox.send(one, 0.0)
    outbox.lose(one)
    assert outbox.queue
    outbox.acknowledge(1, ())
    assert not outbox.queue
    outbox.send(other, 0.0)
    assert numbers(other) == []


def test_only_what_was_sent_can_be_acknowledged() -> None:
    for cumulative, ranges in ((2, ()), (0, ((1, 2),))):
        outbox, (one, _) = ends()
        outbox.add(T.ROLE, b"")
        outbox.send(one, 0.0)
        outbox.add(T.ROLE, b"")
        with pytest.raises(RemoteProtocolError, match="never sent"):
            outbox.acknowledge(cumulative, ranges)


def test_a_peer_that_acknowledges_nothing_gets_no_more_than_it_can_keep() -> None:
    outbox, (one, _) = ends()
    for _ in range(MAX_AHEAD + 10):
        outbox.add(T.ROLE, b"")
    outbox.send(one, 0.0)
    assert len(numbers(one)) == MAX_AHEAD
    assert outbox.full
    outbox.send(one, 0.0)
    assert numbers(one) == []
    outbox.acknowledge(4, ())
    outbox.send(one, 0.0)
    assert numbers(one) == list(range(MAX_AHEAD, MAX_AHEAD + 4))


@pytest.mark.parametrize("type_", sorted(set(T) & set(range(T.FIN, T.STEER + 1))))
def test_closing_waits_for_everything_but_what_is_of_no_use_afterwards(type_: SegmentType) -> None:
    outbox, _ = ends()
    outbox.add(type_, b"")
    assert not outbox.empty
    assert outbox.settled == (type_ in EPHEMERAL)
    assert outbox.holds(type_)


# --- receiving  ---


def test_a_repeat_is_recognised() -> None:
    inbox = Inbox()
    assert [inbox.take(number) for number in (0, 2, 0, 2, 1, 1)] == [True, True, False, False, True, False]
    assert inbox.cumulative == 3


@given(st.permutations(range(40)))
def test_whatever_the_order_each_is_taken_once_and_the_gaps_are_told(order: list[int]) -> None:
    inbox, seen = Inbox(), set[int]()
    for number in order:
        assert inbox.take(number)
        seen.add(number)
        told = set(range(inbox.cumulative)) | {n for start, end in inbox.ranges() for n in range(start, end)}
        assert told <= seen
        assert told == seen or len(inbox.ranges()) == MAX_RANGES
    assert (inbox.cumulative, inbox.ranges()) == (40, ())


def test_a_peer_cannot_run_ahead_without_bound() -> None:
    inbox = Inbox()
    inbox.take(2 * MAX_AHEAD - 1)
    with pytest.raises(RemoteProtocolError, match=f"control segment {2 * MAX_AHEAD} while waiting for 0"):
        inbox.take(2 * MAX_AHEAD)
