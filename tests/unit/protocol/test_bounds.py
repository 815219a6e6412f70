"""What an authenticated peer could make grow, and what an application may ask of a connection that is not ready."""

from __future__ import annotations

from dataclasses import replace

import pytest

from multi.events import CloseConnection, SendBytes
from multi.protocol.control import MAX_AHEAD
from multi.protocol.payloads import (
    Ack,
    DrainStep,
    Keepalive,
    Policy,
    encode_drain,
    encode_keepalive,
    encode_policy,
    encode_role,
)
from multi.protocol.segment import SegmentType
from multi.protocol.session import MAX_CONTROL_BACKLOG
from multi.types import STREAM_ZERO, Role
from tests.unit.protocol.wiring import whole_ack

from .test_hostile_peer import assert_answers, data, two_lines, unplug
from .wiring import CLEAR, QUIC, Ends, Line

T = SegmentType


def test_control_that_was_not_sent_yet_cannot_be_acknowledged() -> None:
    """Otherwise a peer could free its streams and let what tells it of that pile up here."""
    ends, bad, good = two_lines()
    unplug(bad, good)
    for number in range(300):  # more than may be under way, so some have not left
        ends.server.session.set_role(bad.id, Role(1 - number % 2), now=0.0)
    ends.pump()
    bad.inject(ends.segment(T.ACK, whole_ack(Ack(CLEAR.initial_window, 0, ((299, 300),)))))
    ends.pump()
    assert "never sent" in ends.server.ended[bad.id]


def test_policies_that_cannot_be_followed_are_answered_once_until_the_answer_is_acknowledged() -> None:
    ends, line, other = two_lines()
    unplug(line, other)
    line.sent_down.clear()
    other.sent_down.clear()
    for number in range(1000):
        line.inject(ends.segment(T.POLICY, encode_policy(Policy("no such scheduler")), sequence=number))
        ends.pump()
    answers = [s for s in (*line.sent_down, *other.sent_down) if s[1] == T.POLICY]
    assert len(answers) == 1
    assert_answers(ends, line)


def acknowledge(ends: Ends, control: int) -> bytes:
    return ends.segment(T.ACK, whole_ack(Ack(CLEAR.initial_window, control, ())))


def said(type_: SegmentType, *lines: Line) -> list[bytes]:
    """The payloads of what the server has said, in the order of their numbers."""
    found = [s for line in lines for s in line.sent_down if s[1] == type_]
    return [s[s[3] :] for s in sorted(found, key=lambda s: s[24:32])]


def fill_outbox(ends: Ends, line: Line) -> int:
    """Have the server say as much as is acknowledged at a time; return the number of what it says next."""
    session = ends.server.session
    first = session.outbox.acked
    for number in range(MAX_AHEAD):
        session.set_role(line.id, Role(1 - number % 2), now=0.0)
    ends.pump()
    assert session.outbox.full
    return first + MAX_AHEAD


def test_roles_that_cross_pile_up_no_more_than_what_may_be_under_way_and_the_last_one_is_said() -> None:
    ends, line, other = two_lines()
    unplug(line, other)
    session = ends.server.session
    first, number = session.outbox.acked, session.connections[line.id].number
    session.set_role(line.id, Role.BACKUP, now=0.0)
    for sequence in range(1001):
        line.inject(ends.segment(T.ROLE, encode_role(number, Role(1 - sequence % 2)), sequence=sequence))
        ends.pump()
    assert len(session.outbox) == MAX_AHEAD
    assert session.connections[line.id].role is Role.BACKUP
    assert said(T.ROLE, line, other)[-1] == encode_role(number, Role.ACTIVE)
    line.inject(acknowledge(ends, first + MAX_AHEAD))
    ends.pump()
    assert said(T.ROLE, line, other)[-1] == encode_role(number, Role.BACKUP)
    assert len(session.outbox) == 1


def test_a_role_that_waits_to_be_said_is_the_clients_word_as_well() -> None:
    ends, line, other = two_lines()
    line.captured = other.captured = True
    session = ends.client.session
    first = session.outbox.acked
    session.set_role(other.id, Role.BACKUP, now=0.0)
    for number in range(MAX_AHEAD):
        session.set_role(line.id, Role(1 - number % 2), now=0.0)
    session.set_role(other.id, Role.ACTIVE, now=0.0)
    ends.pump()
    line.answer(acknowledge(ends, first + 1))  # there is room for one, and two connections wait
    numbered = ends.server.session.outbox.acked
    role = encode_role(session.connections[other.id].number, Role.SECONDARY)
    line.answer(ends.segment(T.ROLE, role, sequence=numbered))
    ends.pump()
    assert session.connections[other.id].role is Role.ACTIVE


def test_a_drain_goes_on_once_the_peer_acknowledges_again() -> None:
    ends, line, other = two_lines()
    unplug(line, other)
    number = ends.server.session.connections[line.id].number
    following = fill_outbox(ends, line)
    line.inject(ends.segment(T.DRAIN, encode_drain(number, DrainStep.ASKED)))
    ends.pump()
    assert ends.server.states()[line.id] == "draining"
    assert len(ends.server.session.outbox) == MAX_AHEAD
    other.inject(acknowledge(ends, following))
    ends.pump()
    assert said(T.DRAIN, line, other) == [encode_drain(number, DrainStep.DRAINED)]


@pytest.mark.parametrize("what", ["questions", "repeats"])
def test_a_peer_that_asks_and_does_not_read_loses_its_connection(what: str) -> None:
    ends, bad, good = two_lines()
    unplug(bad, good)
    session = ends.server.session
    for line in (bad, good):
        session.set_credit(line.id, 0, now=0.0)  # the transport takes nothing more
    question = ends.segment(T.KEEPALIVE, encode_keepalive(Keepalive(1)))
    repeat = ends.segment(*data(1)[:2])
    written = 0
    for _ in range(40_000):
        session.receive(bad.id, memoryview(question if what == "questions" else repeat), now=0.0)
        effects = session.effects()
        written += sum(len(b) for e in effects if isinstance(e, SendBytes) for b in e.buffers)
        if any(isinstance(e, CloseConnection) for e in effects):
            break
    assert any("does not read" in c.reason for c in session.connections.values())
    assert written < 2 * MAX_CONTROL_BACKLOG


def test_so_does_one_whose_only_connection_it_is() -> None:
    ends = Ends(CLEAR, CLEAR)
    bad = ends.connect()
    ends.pump()
    unplug(bad)
    session = ends.server.session
    session.write(STREAM_ZERO, b"bytes alone are under way from now on", now=0.0)
    ends.pump()
    session.set_credit(bad.id, 0, now=0.0)
    for _ in range(40_000):
        session.receive(bad.id, memoryview(ends.segment(*data(1)[:2])), now=0.0)
        if any(isinstance(e, CloseConnection) for e in session.effects()):
            break
    assert "does not read" in session.connections[bad.id].reason


def test_a_peer_that_answers_close_with_nothing_but_questions_does_not_keep_the_session() -> None:
    ends, bad, good = two_lines()
    unplug(bad, good)
    ends.server.session.close(now=0.0)
    ends.pump()
    bad.inject(ends.segment(T.ACK, whole_ack(Ack(CLEAR.initial_window, 1, ()))))
    ends.pump()
    for token in range(20):
        bad.inject(ends.segment(T.KEEPALIVE, encode_keepalive(Keepalive(token))))
        ends.advance(0.5)
    assert ends.server.closed is not None
    assert ends.server.closed.reason.orderly


@pytest.mark.parametrize("side", ["client", "server"])
def test_a_role_set_before_a_connection_is_authenticated_holds_on_both_sides(side: str) -> None:
    ends = Ends(CLEAR, CLEAR)
    ends.connect()
    ends.pump()
    late = ends.connect()
    late.hold_up = side == "client"
    late.hold_down = side == "server"
    ends.pump()
    node = ends.client if side == "client" else ends.server
    node.session.set_role(late.id, Role.BACKUP, now=0.0)
    ends.pump()
    late.hold_up = late.hold_down = False
    ends.pump()
    for node in (ends.client, ends.server):
        assert node.states()[late.id] == "active"
        assert node.session.connections[late.id].role is Role.BACKUP


def test_a_peer_that_keeps_saying_that_a_network_went_away_makes_nothing_sent_again_each_time() -> None:
    ends, bad, good = two_lines()
    ends.server.session.write(STREAM_ZERO, bytes(200_000), now=0.0)
    good.hold_down = bad.hold_down = True
    ends.pump()
    sender = ends.server.session.sender
    carried = max(ends.server.session.connections.values(), key=lambda c: c.in_flight)
    if carried.id == bad.id:
        bad, good = good, bad
    before, start = sender.reinjected_bytes, ends.server.session.receiver.control.cumulative
    copied = []
    for control in range(start, start + 40):
        bad.inject(ends.segment(T.DRAIN, encode_drain(carried.number, DrainStep.SUSPECT), sequence=control))
        good.inject(ends.segment(T.KEEPALIVE, encode_keepalive(Keepalive(control))))
        ends.pump()
        copied.append(sender.reinjected_bytes)
    assert copied[0] > before
    assert copied[-1] == copied[0]


def test_a_capped_connection_that_waits_to_be_heard_sets_no_timer_for_its_cap() -> None:
    """Tokens would be there at once again and again, while what is missing is a word of the peer."""
    ends = Ends(client=CLEAR, server=CLEAR)
    facts = replace(QUIC, max_rate=1e7)
    line = ends.connect(facts)
    line.hold_up = True
    ends.write(ends.client, bytes(400_000))
    session, timers = ends.client.session, 0
    assert session.connections[line.id].allowance == 0
    while (due := session.next_timer()) is not None and due < ends.now + 1.0:
        timers += 1
        assert timers < 20
        session.handle_timer(now=due)
        ends.pump()
