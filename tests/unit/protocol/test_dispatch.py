"""What arrives is handed on once, in its order, to what it concerns, however connections overtake each other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from multi.events import AddressesAnnounced, RoleChanged
from multi.protocol.authenticator import ClientAuthenticator
from multi.protocol.dispatch import MAX_HELD
from multi.protocol.handshake import Hello
from multi.protocol.payloads import (
    Ack,
    Close,
    Keepalive,
    Policy,
    decode_ack,
    encode_addresses,
    encode_close,
    encode_keepalive,
    encode_policy,
    encode_role,
)
from multi.protocol.segment import HEADER_LENGTH, SegmentType, encode
from multi.protocol.settings import MAX_EARLY_DATA, SessionSettings
from multi.reasons import Cause
from multi.types import ConnectionFacts, Role, SessionId
from tests.unit.protocol.wiring import whole_ack

from .test_hostile_peer import two_lines, unplug
from .wiring import CLEAR, PLAIN, QUIC, STREAM_0, Ends, connected

T = SegmentType


def next_control(ends: Ends, count: int = 0) -> int:
    """Number of the control segment that the server expects next, and `count` behind it."""
    return ends.server.session.receiver.control.cumulative + count


# --- before the handshake is far enough  ---


def test_data_that_overtakes_the_handshake_on_another_lane_is_kept_until_it_is_done() -> None:
    ends = Ends(CLEAR, CLEAR)
    line = ends.connect(QUIC)
    ends.pump()
    joining = ends.connect(QUIC)
    joining.hold_up = True
    ends.pump()
    joining.hold_up = False
    control = [item for item in joining.up if item[0] == 0]
    joining.up.clear()
    joining.up.append(control.pop(0))  # JOIN alone: the server knows the connection, and nothing is proved
    line.hold_up = True
    ends.pump()
    ends.write(ends.client, b"over both")
    ends.pump()
    joining.up.extend(control)
    line.hold_up = False
    ends.pump()
    assert ends.server.got() == b"over both"


def test_early_data_at_its_limit_is_held_even_in_small_pieces() -> None:
    ends = Ends(CLEAR, CLEAR)
    line = ends.connect(PLAIN)
    line.hold_up = True
    for offset in range(0, MAX_EARLY_DATA, 1024):
        ends.write(ends.client, bytes([offset // 1024]) * 1024)
    line.hold_up = False
    ends.pump()
    assert len(ends.server.got()) == MAX_EARLY_DATA
    assert ends.server.states()[line.id] == "active"


def test_a_client_takes_nothing_but_the_answer_to_its_handshake() -> None:
    ends = Ends(CLEAR, CLEAR)
    line = ends.connect()
    line.hold_up = True
    line.answer(ends.segment(T.DATA, b"too early"))
    ends.pump()
    assert "a segment before the handshake was done" in ends.client.ended[line.id]
    assert not ends.client.got()


@pytest.mark.parametrize("lane", range(1, QUIC.lanes))
def test_a_handshake_belongs_on_the_first_lane(lane: int) -> None:
    ends = Ends(CLEAR, CLEAR)
    line = ends.connect(QUIC)
    ends.pump()
    line.inject(ends.segment(T.CONFIRM, bytes(32)), lane=lane)
    ends.pump()
    assert ends.server.ended[line.id] == "a handshake segment outside lane 0"


def test_what_is_held_for_a_peer_that_proves_nothing_is_bounded() -> None:
    ends = Ends(CLEAR, CLEAR)
    line = ends.connect(QUIC)
    line.hold_down = True
    ends.pump()
    stranger = ends.stranger(QUIC)
    stranger.inject(line.sent_up[0])  # the HELLO of somebody else: what follows is held until CONFIRM
    held = 0
    while stranger.id not in ends.server.ended:
        stranger.inject(ends.segment(T.DATA, bytes(8192)), lane=1)
        ends.pump()
        held += 8192
        assert held <= 2 * MAX_HELD
    assert "too many bytes before the handshake" in ends.server.ended[stranger.id]


# --- questions  ---


def test_a_question_is_answered_where_it_was_asked() -> None:
    ends, bad, good = two_lines()
    unplug(bad, good)
    for line in (bad, good):
        line.sent_down.clear()
    bad.inject(ends.segment(T.KEEPALIVE, encode_keepalive(Keepalive(77))))
    ends.pump()
    assert bad.sent_down == [ends.segment(T.KEEPALIVE, encode_keepalive(Keepalive(77, pong=True)))]
    assert good.sent_down == []


def test_a_question_for_the_window_is_answered_with_it() -> None:
    ends, line = connected()
    line.client = None
    line.sent_down.clear()
    line.inject(ends.segment(T.KEEPALIVE, encode_keepalive(Keepalive(1, wants_ack=True))))
    ends.pump()
    (ack,) = [decode_ack(segment[HEADER_LENGTH:]) for segment in line.sent_down if segment[1] == T.ACK]
    assert ack.session_window >= CLEAR.initial_window
    assert [entry.stream for entry in ack.streams] == [0]


def test_only_the_answer_to_the_last_question_measures_the_round_trip() -> None:
    ends, line = connected()
    connection = ends.server.session.connections[line.id]
    ends.advance(1.0)
    line.hold_up = True
    ends.server.session.ping(line.id, now=ends.now)
    ends.pump()
    ends.advance(0.100)
    line.hold_up = False
    line.up.appendleft((0, ends.segment(T.KEEPALIVE, encode_keepalive(Keepalive(999, pong=True)))))
    ends.pump()
    assert connection.rtt == pytest.approx(0.100)


# --- control: the newest counts  ---


@pytest.mark.parametrize("late", ["up", "down", "both"])
def test_both_ends_agree_where_both_change_a_role_at_once(late: str) -> None:
    """What one says is late by itself, or both cross; acknowledgements may take the other connection meanwhile."""
    ends, line, _ = two_lines()
    client, server = (node.session.connections[line.id] for node in (ends.client, ends.server))
    for held, of in ((late != "down", "hold_up"), (late != "up", "hold_down")):
        setattr(line, of, held)
    ends.client.session.set_role(line.id, Role.BACKUP, now=ends.now)
    ends.pump()
    ends.server.session.set_role(line.id, Role.SECONDARY, now=ends.now)
    ends.pump()
    line.hold_up = line.hold_down = False
    ends.pump()
    assert client.role is server.role
    assert ends.client.session.outbox.empty
    assert ends.server.session.outbox.empty


def test_a_role_said_earlier_and_come_later_changes_nothing() -> None:
    ends, line, other = two_lines()
    number = ends.server.session.connections[line.id].number
    first = next_control(ends)
    line.inject(ends.segment(T.ROLE, encode_role(number, Role.BACKUP), sequence=first + 1))
    ends.pump()
    other.inject(ends.segment(T.ROLE, encode_role(number, Role.ACTIVE), sequence=first))
    ends.pump()
    assert ends.server.session.connections[line.id].role is Role.BACKUP
    assert [e.role for e in ends.server.events if isinstance(e, RoleChanged)] == [Role.BACKUP]


def test_a_policy_said_earlier_and_come_later_changes_nothing() -> None:
    ends, line = connected()
    first = next_control(ends)
    line.inject(ends.segment(T.POLICY, encode_policy(Policy("RR")), sequence=first + 1))
    line.inject(ends.segment(T.POLICY, encode_policy(Policy("BLEST")), sequence=first))
    ends.pump()
    assert ends.server.session.scheduling.policy.scheduler == "RR"


def test_a_control_segment_that_comes_twice_acts_once_and_is_acknowledged_twice() -> None:
    ends, line, other = two_lines()
    unplug(line, other)
    number, first = ends.server.session.connections[line.id].number, next_control(ends)
    role = ends.segment(T.ROLE, encode_role(number, Role.BACKUP), sequence=first)
    line.inject(role)
    ends.pump()
    other.sent_down.clear()
    other.inject(role)
    ends.pump()
    assert len([e for e in ends.server.events if isinstance(e, RoleChanged)]) == 1
    acks = [decode_ack(segment[HEADER_LENGTH:]) for segment in other.sent_down if segment[1] == T.ACK]
    assert [ack.control_cumulative for ack in acks] == [first + 1]


def test_a_client_hears_the_servers_addresses_and_the_newest_count() -> None:
    ends, line = connected()
    first = ends.client.session.receiver.control.cumulative
    newer, older = [("192.0.2.2", 7788)], [("192.0.2.1", 7788)]
    line.answer(ends.segment(T.ADDRESS, encode_addresses(newer), sequence=first + 1))
    line.answer(ends.segment(T.ADDRESS, encode_addresses(older), sequence=first))
    ends.pump()
    heard = [event for event in ends.client.events if isinstance(event, AddressesAnnounced)]
    assert heard == [AddressesAnnounced((("192.0.2.2", 7788),))]


def test_a_client_announces_no_addresses() -> None:
    ends, line = connected()
    line.inject(ends.segment(T.ADDRESS, encode_addresses([("192.0.2.1", 7788)]), sequence=next_control(ends)))
    ends.pump()
    assert ends.server.ended[line.id] == "only a server announces addresses"


def test_an_acknowledgement_that_took_longer_than_a_newer_one_takes_nothing_back() -> None:
    ends, line = connected()
    ends.server.reading = False
    ends.write(ends.client, bytes(1000))
    ends.advance(0.05)
    sender = ends.client.session.sender
    window = sender.window
    line.answer(ends.segment(T.ACK, whole_ack(Ack(1, 0, ()))))
    ends.pump()
    assert sender.window == window
    assert not sender.unacked


# --- a peer of the future  ---


def test_what_a_later_version_may_add_is_skipped_and_its_control_acknowledged() -> None:
    ends, line = connected()
    number = next_control(ends)
    unplug(line)
    line.inject(
        ends.segment(129, b"a new kind of data"),
        ends.segment(191, bytes(65_536)),
        ends.segment(254, b"a new kind of control", sequence=number),
        ends.segment(255, b"", sequence=number + 1),
        ends.segment(T.DATA, b"and data"),
    )
    ends.pump()
    ends.advance(0.1)
    assert ends.server.got() == b"and data"
    acks = [decode_ack(s[HEADER_LENGTH:]) for s in line.sent_down if s[1] == T.ACK]
    assert acks[-1].control_cumulative == number + 2
    assert ends.server.states()[line.id] == "active"


def test_extensions_nobody_knows_here_mean_nothing_and_are_part_of_what_is_proved() -> None:
    ends = Ends(CLEAR, CLEAR)
    authenticator = ends.client.session._auth
    assert isinstance(authenticator, ClientAuthenticator)
    authenticator._hello = replace(authenticator._hello, extensions=((1, b""), (4710, b""), (4711, b"of tomorrow")))
    line = ends.connect()
    ends.pump()
    assert ends.client.states()[line.id] == ends.server.states()[line.id] == "active"

    altered = Ends(CLEAR, CLEAR)
    line = altered.connect()
    line.change_up = with_another_extension
    altered.pump()
    assert altered.client.states()[line.id] == "lost", "somebody in between has said it"


def with_another_extension(segment: bytes) -> bytes:
    if segment[1] != T.HELLO:
        return segment
    hello = replace(Hello.decode(segment[HEADER_LENGTH:]), extensions=((9, b"x"),))
    return encode(T.HELLO, SessionId(segment[8:24]), hello.encode())


def test_an_unknown_code_of_a_close_is_an_end_that_was_not_in_order() -> None:
    ends, line = connected()
    line.answer(ends.segment(T.CLOSE, encode_close(Close(4711, "of tomorrow"))))
    ends.pump()
    assert ends.client.closed is not None
    assert ends.client.closed.reason.cause is Cause.PEER_ABORTED


# --- time  ---


@pytest.mark.parametrize("facts", [PLAIN, QUIC], ids=["one lane", "three lanes"])
@pytest.mark.parametrize("settings", [CLEAR, SessionSettings()], ids=["clear", "sealed"])
def test_what_there_is_no_time_for_is_taken_later_in_order(settings: SessionSettings, facts: ConnectionFacts) -> None:
    ends = Ends(settings, settings)
    line = ends.connect(facts)
    line.hold_up = True
    pieces = [b"before the server has said anything %d " % n for n in range(50)]
    for piece in pieces:
        ends.write(ends.client, piece)
    ends.pump()
    early = [line.up.popleft() for _ in range(len(line.up))]
    line.up.append(early.pop(0))  # HELLO
    line.hold_up, line.hold_down = False, True
    ends.pump()
    line.hold_up, line.hold_down = True, False
    ends.pump()  # ACCEPT has come back
    session, said = ends.server.session, [*early, *line.up]
    line.up.clear()
    for lane in reversed(range(facts.lanes)):
        together = b"".join(data for its_lane, data in said if its_lane == lane)
        behind = session.receive(line.id, memoryview(together), lane, now=0.0, enough=lambda: True)
    turns = 0
    while behind:
        assert turns < len(said), "it takes nothing"
        behind = session.receive(line.id, memoryview(b""), now=0.0, enough=lambda: True)
        turns += 1
    line.hold_up = False
    ends.pump()
    assert turns > 1
    assert ends.server.got() == b"".join(pieces)


# --- a turn that is over  ---


def test_a_turn_that_ends_during_the_handshake_strands_nothing_that_cannot_be_read_yet() -> None:
    ends = Ends()
    line = ends.connect()
    ends.pump()
    tickets = ends.server.session._auth._tickets  # type: ignore[attr-defined]
    tickets.clear()
    ends.lose(line)
    joining = ends.connect()
    joining.hold_up = True
    ends.client.session.write(STREAM_0, b"x" * 40_000, now=ends.now)
    ends.pump()
    said = b"".join(data for _, data in joining.up)  # JOIN with a ticket that is spent, and what is sealed with it
    joining.up.clear()
    server = ends.server.session
    server.connection_opened(joining.id, PLAIN, now=ends.now)
    joining.server = ends.server
    server.receive(joining.id, memoryview(said), now=ends.now, enough=lambda: True)
    assert not server.connections[joining.id].held
    joining.hold_up = False
    ends.pump()
    assert ends.server.states()[joining.id] == "active"
    assert ends.server.got() == b"x" * 40_000
