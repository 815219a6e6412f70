"""A session's life: opening, losing all connections, coming back, closing and being ended."""

from __future__ import annotations

from dataclasses import replace

import pytest

from multi.errors import LocalProtocolError
from multi.events import (
    CloseConnection,
    ConnectionChanged,
    NetworkChanged,
    Notify,
    RoleChanged,
    SendBytes,
    SessionClosed,
    SessionConfirmed,
    SessionDetached,
    SessionEnded,
    SessionResumed,
)
from multi.protocol.connection import Connection
from multi.protocol.segment import SegmentType
from multi.protocol.session import UNKNOWN_SAID, SessionCore
from multi.protocol.settings import SessionSettings
from multi.protocol.state import SESSION_TRANSITIONS, Phase, SessionState
from multi.protocol.streams import DEFAULT_PRIORITY
from multi.reasons import IN_ORDER, Cause, Reason
from multi.schedulers import create_scheduler
from multi.types import STREAM_ZERO, ConnectionFacts, ConnectionId, Role, SessionId, Side, Source, TransportSample

from .test_hostile_peer import two_lines
from .wiring import CLEAR, PLAIN, QUIC, TLS, Ends, Line, Node

T = SegmentType
GONE = Reason(Cause.TRANSPORT, "connection reset by peer")
NOBODY = ConnectionId(99)


def joined(settings: SessionSettings = CLEAR, facts: ConnectionFacts = PLAIN) -> tuple[Ends, Line]:
    ends = Ends(settings, settings)
    line = ends.connect(facts)
    ends.pump()
    return ends, line


def happened(node: Node) -> list[str]:
    """What became of the session, in order."""
    kinds = (SessionConfirmed, SessionDetached, SessionResumed, SessionEnded)
    return [type(event).__name__ for event in node.events if isinstance(event, kinds)]


def cause(node: Node) -> Cause | None:
    """Why the session has ended; None while it lives."""
    return None if node.closed is None else node.closed.reason.cause


def swallow(*lines: Line) -> None:
    """The networks take everything and deliver nothing."""
    for line in lines:
        line.change_up = line.change_down = lambda _segment: None


# --- opening  ---


def test_the_application_may_send_before_the_peer_has_proved_itself_where_it_is_safe() -> None:
    for settings, facts, early in ((CLEAR, PLAIN, True), (SessionSettings(), PLAIN, False), (None, QUIC, True)):
        ends = Ends(settings, settings)
        line = ends.connect(facts)
        line.hold_up = True
        ends.pump()
        assert ends.client.opened == early
        assert not ends.client.session.confirmed
        line.hold_up = False
        ends.pump()
        assert ends.client.opened
        assert ends.client.session.confirmed
        assert happened(ends.client) == happened(ends.server) == ["SessionConfirmed"]


def test_a_client_that_never_confirms_leaves_nothing_behind() -> None:
    ends = Ends()
    line = ends.connect()
    line.hold_down = True
    ends.pump()
    ends.lose(line)
    ends.advance(SessionSettings().handshake_timeout + 0.1)
    assert cause(ends.server) is Cause.NEVER_CONFIRMED


def test_what_ends_before_it_was_opened_ends_at_once() -> None:
    ends = Ends()
    ends.client.session.close(now=0.0)
    ends.pump()
    assert cause(ends.client) is Cause.CLOSED


# --- losing connections  ---


def test_a_session_outlives_all_its_connections_and_goes_on_where_it_was() -> None:
    ends, line = joined()
    line.hold_up = True
    ends.write(ends.client, b"lost with its connection, ")
    ends.lose(line)
    assert ends.client.session.state is SessionState.DETACHED
    ends.write(ends.client, b"written while there was none")
    ends.advance(5.0)
    ends.connect()
    ends.pump()
    assert ends.server.got() == b"lost with its connection, written while there was none"
    assert happened(ends.client) == ["SessionConfirmed", "SessionDetached", "SessionResumed"]
    (resumed,) = [event for event in ends.client.events if isinstance(event, SessionResumed)]
    assert resumed.after == pytest.approx(5.0)


def test_a_session_without_connections_is_lost_after_its_patience() -> None:
    ends, line = joined(replace(CLEAR, resume_timeout=3.0))
    ends.lose(line)
    ends.advance(2.9)
    assert cause(ends.client) is None
    ends.advance(0.2)
    assert cause(ends.client) is cause(ends.server) is Cause.RESUME_TIMEOUT


HANDSHAKE = {T.HELLO, T.ACCEPT, T.CONFIRM, T.JOIN, T.CHALLENGE, T.PROVE, T.ADMIT}


def nothing_but_the_handshake(segment: bytes) -> bytes | None:
    return segment if segment[1] in HANDSHAKE else None


def break_after_each_handshake(ends: Ends, line: Line, times: int) -> None:
    """Once a second, as somebody may do it who is in the path of all networks."""
    for _ in range(times):
        ends.lose(line)
        ends.advance(1.0)
        if ends.client.closed is not None or ends.server.closed is not None:
            return
        line = ends.connect()
        line.change_up = line.change_down = nothing_but_the_handshake
        ends.pump()
        assert ends.client.states()[line.id] == ends.server.states()[line.id] == "active"


@pytest.mark.parametrize("writer", ["client", "server"])
def test_connections_on_which_nothing_arrives_gain_a_session_no_time(writer: str) -> None:
    ends, line = joined(replace(CLEAR, resume_timeout=5.0))
    began = ends.now
    line.change_up = line.change_down = nothing_but_the_handshake
    ends.write(getattr(ends, writer), b"never arrives")
    break_after_each_handshake(ends, line, 20)
    assert 4.0 < ends.now - began < 7.0
    assert cause(getattr(ends, writer)) is Cause.RESUME_TIMEOUT
    assert "no connection on which anything arrived for 5 s" in str(getattr(ends, writer).closed.reason)


def test_short_connections_gain_time_when_something_arrives_or_nothing_is_to_be_said() -> None:
    ends, line = joined(replace(CLEAR, resume_timeout=5.0))
    break_after_each_handshake(ends, line, 20)
    assert cause(ends.client) is cause(ends.server) is None
    for _ in range(20):
        line = ends.connect()
        ends.write(ends.client, b"arrives")
        ends.pump()
        ends.write(ends.client, b"arrives with the next")
        ends.lose(line)
        ends.advance(1.0)
    assert cause(ends.client) is cause(ends.server) is None


RESET = Reason(Cause.PEER_CLOSED, "connection reset")


@pytest.mark.parametrize("failure", [None, RESET], ids=["closed", "reset"])
@pytest.mark.parametrize(("abandon", "end"), [(2.0, Cause.PEER_CLOSED), (0.0, None), (90.0, None)])
def test_a_client_that_has_closed_its_last_connection_is_not_waited_for_long(
    failure: Reason | None, abandon: float, end: Cause | None
) -> None:
    ends, line = joined(replace(CLEAR, abandon_timeout=abandon))
    ends.server.session.connection_lost(line.id, failure, now=ends.now)
    ends.pump()
    ends.advance(1.9)
    assert cause(ends.server) is None
    ends.advance(0.2)
    assert cause(ends.server) is end
    ends.advance(58.0)
    assert cause(ends.server) is (end or Cause.RESUME_TIMEOUT)
    (detached,) = [event for event in ends.server.events if isinstance(event, SessionDetached)]
    assert detached.resume_timeout == (2.0 if end else 60.0)


def test_a_client_that_may_live_although_its_connections_were_closed_is_waited_for() -> None:
    ends, line = joined()
    server = ends.server.session
    server.connection_lost(line.id, None, now=ends.now)
    server.wait_for_peer(now=ends.now)
    ends.advance(59.0)
    assert cause(ends.server) is None
    ends.advance(1.1)
    assert cause(ends.server) is Cause.RESUME_TIMEOUT


@pytest.mark.parametrize(("later", "end"), [(5.0, Cause.RESUME_TIMEOUT), (15.0, Cause.PEER_CLOSED)])
def test_a_client_that_has_just_lost_another_network_may_have_lost_this_one_too(later: float, end: Cause) -> None:
    ends, first, second = two_lines()
    server = ends.server.session
    server.connection_lost(first.id, GONE, now=ends.now)
    ends.advance(later)
    server.connection_lost(second.id, RESET, now=ends.now)
    ends.advance(61.0)
    assert cause(ends.server) is end


def test_a_client_that_comes_back_in_time_was_not_dead() -> None:
    ends, line = joined()
    ends.server.session.connection_lost(line.id, None, now=ends.now)
    ends.lose(line)
    ends.advance(1.0)
    ends.connect()
    ends.pump()
    ends.advance(10.0)
    assert ends.server.session.state is SessionState.OPEN
    assert ends.server.session.left_at is None


def test_a_client_that_dials_lives_although_its_proof_has_not_come_yet() -> None:
    ends, line = joined()
    ends.server.session.connection_lost(line.id, None, now=ends.now)
    ends.lose(line)
    ends.connect().change_up = lambda segment: None if segment[1] == T.PROVE else segment
    ends.pump()
    ends.advance(59.0)
    assert cause(ends.server) is None
    ends.advance(1.1)
    assert cause(ends.server) is Cause.RESUME_TIMEOUT


def test_a_session_that_closes_while_it_has_no_connection_cannot_know_that_all_has_arrived() -> None:
    ends, line = joined(replace(CLEAR, resume_timeout=3.0))
    ends.write(ends.client, b"all of it")
    ends.advance(0.1)
    ends.lose(line)
    ends.client.session.close(now=ends.now)
    ends.advance(3.1)
    assert cause(ends.client) is Cause.RESUME_TIMEOUT


@pytest.mark.parametrize("facts", [TLS, PLAIN], ids=["tls", "sealed"])
@pytest.mark.parametrize(("key", "said"), [(b"k" * 32, 1), (b"another" * 5, UNKNOWN_SAID)], ids=["proved", "said"])
def test_a_server_that_has_forgotten_the_session_ends_it_sooner_when_it_is_known_to_be_the_server(
    facts: ConnectionFacts, key: bytes, said: int
) -> None:
    ends, line = joined(SessionSettings(reset_key=b"k" * 32), facts)
    ends.lose(line)
    ends.table = ends.new_table(reset_key=key)
    for _ in range(said - 1):
        ends.connect(facts)
        ends.pump()
        assert cause(ends.client) is None
    ends.connect(facts)
    ends.pump()
    assert cause(ends.client) is Cause.SESSION_GONE


def test_a_connection_that_ends_tells_why_and_its_record_can_be_dropped() -> None:
    ends, line, _ = two_lines()
    session = ends.client.session
    session.forget_connection(line.id)
    assert line.id in session.connections, "it lives"
    session.connection_lost(line.id, GONE, now=0.0)
    ends.pump()
    changes = [e for e in ends.client.events if isinstance(e, ConnectionChanged) and e.connection == line.id]
    assert (changes[-1].state.value, changes[-1].reason) == ("lost", GONE)
    session.forget_connection(line.id)
    assert line.id not in session.connections


def test_what_comes_for_a_connection_that_has_ended_is_ignored() -> None:
    ends, line, _ = two_lines()
    session = ends.client.session
    session.connection_lost(line.id, GONE, now=0.0)
    ends.pump()
    for connection in (line.id, NOBODY):
        session.receive(connection, memoryview(b"whatever"), now=0.0)
        session.connection_lost(connection, GONE, now=0.0)
        session.set_credit(connection, 5, now=0.0)
        session.sample(connection, TransportSample(), now=0.0)
        session.suspect(connection, GONE, now=0.0)
    assert session.effects() == []


@pytest.mark.parametrize("proved", [True, False])
def test_a_peer_that_hangs_up_is_told_apart_from_one_that_never_spoke(proved: bool) -> None:
    ends = Ends(CLEAR, CLEAR)
    line = ends.connect()
    line.hold_up = not proved
    ends.pump()
    ends.client.session.connection_lost(line.id, None, now=0.0)
    reason = ends.client.session.connections[line.id].reason
    assert reason.cause is Cause.PEER_CLOSED
    assert ("during the handshake" in reason) == (not proved)


@pytest.mark.parametrize("name", ["remove", "set_role"])
def test_wishes_about_a_connection_that_does_not_exist_are_refused(name: str) -> None:
    ends, _ = joined()
    session = ends.client.session
    wishes = {
        "remove": lambda: session.remove_connection(NOBODY, now=0.0),
        "set_role": lambda: session.set_role(NOBODY, Role.BACKUP, now=0.0),
    }
    with pytest.raises(LocalProtocolError, match="there is no connection 99"):
        wishes[name]()


def test_what_the_path_manager_wants_of_a_connection_that_has_ended_is_ignored() -> None:
    ends, _ = joined()
    session = ends.client.session
    before = ends.client.states()
    session.drain(NOBODY)
    session.give_up(NOBODY, GONE)
    session.ping(NOBODY)
    session.give_role(NOBODY, Role.BACKUP, "it carries nothing")
    ends.pump()
    assert ends.client.states() == before
    assert not [event for event in ends.client.events if isinstance(event, RoleChanged)]


def test_the_last_usable_connection_cannot_be_removed_and_another_can() -> None:
    ends, line = joined()
    with pytest.raises(LocalProtocolError, match="last usable"):
        ends.client.session.remove_connection(line.id, now=0.0)
    ends.connect()
    ends.pump()
    ends.client.session.remove_connection(line.id, now=0.0)
    ends.advance(0.5)
    assert ends.client.states()[line.id] == "closed"


def test_a_connection_that_has_not_proved_itself_is_not_drained_but_dropped() -> None:
    ends, _ = joined()
    late = ends.connect()
    late.hold_down = True
    ends.pump()
    ends.client.session.drain(late.id, now=0.0)
    assert ends.client.states()[late.id] == "lost"
    assert ends.client.session.connections[late.id].reason.cause is Cause.REMOVED


def test_connections_of_strangers_make_room_for_those_of_the_client() -> None:
    ends, _ = joined(replace(CLEAR, max_connections=3))
    strangers = [ends.stranger() for _ in range(4)]
    hello = ends.lines[0].sent_up[0]
    for stranger in strangers:
        stranger.inject(hello[:40])
    ends.pump()
    second = ends.connect()
    ends.pump()
    assert ends.server.states()[second.id] == "active"
    assert len([c for c in ends.server.session.connections.values() if c.alive]) <= 3


# --- networks  ---


def test_a_network_that_goes_away_makes_what_runs_over_it_suspect_and_says_so() -> None:
    ends = Ends(CLEAR, CLEAR)
    wifi, wired = ends.connect(replace(PLAIN, interface="wlan0")), ends.connect(replace(PLAIN, interface="eth0"))
    ends.pump()
    ends.client.session.network_changed("wlan0", False, now=0.0, reason="no carrier")
    assert ends.client.states() == {wifi.id: "suspect", wired.id: "active"}
    ends.pump()
    assert NetworkChanged("wlan0", False, "no carrier") in ends.client.events


def test_a_connection_over_several_networks_is_known_by_one_that_it_uses() -> None:
    ends = Ends(CLEAR, CLEAR)
    line = ends.connect(replace(PLAIN, interface="wlan0", kind="wifi", more_interfaces=("wwan0",)))
    ends.pump()
    wifi, cellular = Source("wlan0", "192.0.2.1", "wifi"), Source("wwan0", "192.0.2.9", "cellular")
    session = ends.client.session

    def known_by() -> tuple[str, str, tuple[str, ...]]:
        facts = session.connections[line.id].facts
        return facts.interface, facts.kind, facts.more_interfaces

    session.starts_from(line.id, [cellular, wifi])
    assert known_by() == ("wlan0", "wifi", ("wwan0",))
    session.network_changed("wwan0", False, now=0.0)
    session.starts_from(line.id, [cellular])
    assert known_by() == ("wwan0", "cellular", ())
    session.network_changed("wlan0", False, now=0.0)
    assert ends.client.states() == {line.id: "active"}
    session.network_changed("wwan0", False, now=0.0)
    assert ends.client.states() == {line.id: "suspect"}
    session.starts_from(line.id, [wifi, cellular])
    assert known_by() == ("wwan0", "cellular", ("wlan0",))


def test_an_address_that_is_removed_ends_what_was_bound_to_it_and_nothing_else() -> None:
    ends = Ends(CLEAR, CLEAR)
    facts = replace(PLAIN, interface="wlan0")
    bound = ends.connect(replace(facts, local="192.0.2.1:40000"))
    other = ends.connect(replace(facts, local="192.0.2.2:40000"))
    spread = ends.connect(replace(facts, local="192.0.2.1:40001", more_interfaces=("eth0",)))
    ends.pump()
    ends.client.session.network_changed("wlan0", False, now=0.0, address="192.0.2.1")
    assert ends.client.states() == {bound.id: "lost", other.id: "active", spread.id: "active"}
    assert ends.client.session.connections[bound.id].reason.cause is Cause.ADDRESS_GONE


def test_after_sleep_nothing_is_known_of_any_connection() -> None:
    ends, line, other = two_lines()
    ends.client.session.slept(3600.0, now=0.0)
    assert ends.client.states() == {line.id: "suspect", other.id: "suspect"}
    ends.advance(1.0)
    assert ends.client.states() == {line.id: "active", other.id: "active"}


def test_only_a_client_decides_which_connections_exist() -> None:
    ends, _ = joined()
    with pytest.raises(LocalProtocolError, match="only the client"):
        ends.server.session.path_manager(now=0.0)


# --- closing  ---


def test_closing_delivers_everything_first() -> None:
    ends, line = joined()
    line.hold_up = True
    ends.write(ends.client, bytes(40_000))
    ends.client.session.close(now=0.0)
    ends.client.session.close(now=0.0)
    ends.pump()
    assert cause(ends.client) is None
    line.hold_up = False
    ends.pump()
    ends.server.session.close(now=0.0)
    ends.pump()
    assert len(ends.server.got()) == 40_000
    assert cause(ends.client) is cause(ends.server) is Cause.CLOSED


def test_closing_ends_both_directions_once_this_side_has_been_heard() -> None:
    ends, _ = joined()
    ends.client.session.close(now=0.0)
    ends.pump()
    assert cause(ends.client) is cause(ends.server) is Cause.CLOSED


def test_both_may_close_at_once() -> None:
    ends, line = joined()
    line.hold_up = line.hold_down = True
    for node in (ends.client, ends.server):
        ends.write(node, bytes(1000))
        node.session.close(now=0.0)
    ends.pump()
    line.hold_up = line.hold_down = False
    ends.pump()
    assert cause(ends.client) is cause(ends.server) is Cause.CLOSED


def test_a_peer_that_does_not_answer_close_is_not_waited_for_for_ever() -> None:
    ends, line = joined()
    ends.client.session.close(now=0.0)
    ends.pump()
    swallow(line)
    ends.advance(15.0)
    assert cause(ends.client) is Cause.CLOSED


def test_a_peer_that_goes_on_sending_after_close_is_listened_to_for_a_bounded_time() -> None:
    wanted = replace(CLEAR, resume_timeout=5.0)
    ends, line = joined(wanted)
    line.change_up = lambda segment: None if segment[1] == SegmentType.CLOSE else segment  # it has not heard it
    ends.client.session.close(now=ends.now)
    ends.pump()
    closed = ends.now
    while ends.client.closed is None and ends.now < closed + 60:
        ends.write(ends.server, b"and another thing")
        ends.advance(0.25)
    assert cause(ends.client) is Cause.CLOSED
    assert wanted.linger < ends.now - closed <= wanted.resume_timeout + 0.5


def test_a_peer_that_closes_early_is_told_from_one_that_has_read_everything() -> None:
    ends, line = joined()
    line.change_up = lambda segment: None if segment[1] == T.DATA else segment
    ends.write(ends.client, b"12345")
    ends.server.session.close(now=0.0)
    ends.pump()
    assert ends.client.closed is not None
    assert ends.client.closed.reason.cause is Cause.PEER_CLOSED
    assert "before 5 bytes were acknowledged" in ends.client.closed.reason
    assert cause(ends.server) is Cause.CLOSED


def echo_whose_acknowledgement_is_lost(ends: Ends, *lines: Line) -> None:
    """A stream that has ended on the client's side; the server does not know that its bytes have come."""
    stream = ends.client.session.open_stream(DEFAULT_PRIORITY, 0.0, now=ends.now)
    assert stream is not None
    ends.write(ends.client, b"question", stream)
    ends.client.session.finish(stream, now=ends.now)
    ends.pump()
    for line in lines:
        line.change_up = lambda segment: None if segment[1] == T.ACK else segment
    ends.server.session.accept_stream(stream, now=ends.now)
    ends.write(ends.server, b"answer", stream)
    ends.server.session.finish(stream, now=ends.now)
    ends.pump()
    assert ends.client.got(stream) == b"answer"
    assert stream not in ends.client.session.receiver.streams
    assert ends.server.session.sender.unacked
    for line in lines:
        line.change_up = None


def test_what_was_acknowledged_of_an_ended_stream_is_said_again_when_a_connection_dies() -> None:
    ends, first, second = two_lines()
    echo_whose_acknowledgement_is_lost(ends, first, second)
    ends.lose(second)  # which has not carried the answer: nothing is sent again
    assert not ends.server.session.sender.unacked


def test_who_closes_says_once_more_what_has_come() -> None:
    ends, line = joined()
    echo_whose_acknowledgement_is_lost(ends, line)
    ends.client.session.close(now=ends.now)
    ends.pump()
    assert cause(ends.server) is cause(ends.client) is Cause.CLOSED


def test_aborting_ends_both_sides_at_once_with_the_reason() -> None:
    ends, _ = joined()
    ends.client.session.abort(Reason(Cause.APPLICATION, "a bug"), now=0.0)
    ends.client.session.abort(now=0.0)
    ends.pump()
    assert cause(ends.client) is Cause.APPLICATION
    assert ends.server.closed is not None
    assert ends.server.closed.reason.cause is Cause.PEER_ABORTED
    assert "a bug" in ends.server.closed.reason


def test_the_last_effect_of_a_session_says_that_it_is_over_and_nothing_follows() -> None:
    ends, line = joined()
    session = ends.client.session
    session.abort(now=0.0)
    effects = session.effects()
    assert isinstance(effects[-1], SessionClosed)
    assert any(isinstance(effect, CloseConnection) for effect in effects)
    assert any(isinstance(effect, SendBytes) for effect in effects), "the peer is told"
    assert session.next_timer() is None
    session.close(now=1.0)
    session.handle_timer(now=2.0)
    session.announce([("192.0.2.1", 7788)], now=2.0)
    session.network_changed("", True, now=2.0)
    session.signal_changed("wlan0", True, -80.0, now=2.0)
    session.slept(5.0, now=2.0)
    session.connection_lost(line.id, GONE, now=2.0)
    assert session.effects() == []
    session.connection_opened(ConnectionId(7), PLAIN, now=3.0)
    assert [type(effect) for effect in session.effects()] == [CloseConnection]


# --- timers  ---


def test_a_timer_is_never_in_the_past_and_an_idle_session_is_left_in_peace() -> None:
    ends, _ = joined()
    ends.advance(1.0)
    woken = 0
    while (due := ends.client.session.next_timer()) is not None and due < 61.0:
        assert due > ends.client.session.now
        woken += 1
        ends.now = due
        for node in (ends.client, ends.server):
            node.session.handle_timer(now=due)
        ends.pump()
    assert woken < 20


def test_a_new_session_has_nothing_to_do() -> None:
    session = SessionCore(
        Side.CLIENT, SessionId(bytes(16)), SessionSettings(), entropy=bytes, make_scheduler=create_scheduler, now=5.0
    )
    assert session.effects() == []
    assert session.next_timer() is None
    assert not session.under_way()


def test_a_sample_makes_no_work_where_nothing_is_on_its_way() -> None:
    ends, lines = Ends(), list[Line]()
    for _ in range(2):
        lines.append(ends.connect(PLAIN))
        ends.pump()
    ends.advance(1.0)
    session = ends.client.session
    for line in lines:
        session.sample(line.id, TransportSample(rtt=0.02), now=ends.now)
    assert session.quiet()
    for line in lines:
        line.hold_up = True
    ends.write(ends.client, b"a line")
    assert session.quiet()
    session.sample(lines[0].id, TransportSample(rtt=0.02), now=ends.now)
    assert not session.quiet(), "what one carries may be copied to another"


def test_samples_are_wanted_while_something_is_on_its_way() -> None:
    ends, line = joined()
    ends.advance(1.0)
    session = ends.client.session
    session.sample(line.id, TransportSample(), now=ends.now)
    assert not session.under_way()
    line.hold_up = True
    ends.write(ends.client, bytes(1000))
    assert session.under_way()


def test_a_session_is_at_rest_while_nothing_is_owed_in_either_direction() -> None:
    ends, line = joined()
    ends.advance(1.0)
    client, server = ends.client.session, ends.server.session
    for session in (client, server):
        session.sample(line.id, TransportSample(), now=ends.now)
        session.effects()
        session.far_timer()
        assert session.at_rest()
        assert session.near_timer() is None
    ends.write(ends.client, b"a line")
    assert (client.at_rest(), server.at_rest()) == (False, False)
    ends.advance(0.012)
    assert (client.at_rest(), client.near_timer()) == (True, None)
    client.streams.open(DEFAULT_PRIORITY, 0.0)
    ends.pump()
    assert not client.at_rest(), "the peer has yet to hear of the stream"


def acknowledging(writer: str) -> tuple[Ends, Line, SessionCore]:
    """What `writer` has sent is read and acknowledged; and the session that did so."""
    ends, line = joined()
    ends.advance(1.0)
    taker = ends.server if writer == "client" else ends.client
    for session in (ends.client.session, ends.server.session):
        session.sample(line.id, TransportSample(), now=ends.now)
    ends.pump()
    ends.write(ends.client if writer == "client" else ends.server, bytes(1000))
    assert taker.session.receiver.ack_due is not None
    ends.now += 0.012
    for node in (ends.client, ends.server):
        node.session.now = ends.now
    ends.pump()
    taker.session.far_timer()
    assert taker.session.receiver.ack_due is None
    return ends, line, taker.session


def test_nobody_watches_over_the_acknowledgements_of_a_server_that_could_do_nothing_about_them() -> None:
    *_, server = acknowledging("client")
    assert (server.under_way(), server.at_rest(), server.near_timer()) == (False, True, None)


def test_a_client_watches_over_its_acknowledgements_for_it_can_dial() -> None:
    ends, _, client = acknowledging("server")
    assert (client.under_way(), client.at_rest()) == (True, False)
    assert (at := client.near_timer()) is not None
    assert ends.now < at < ends.now + 0.5


def test_acknowledgements_that_left_unwatched_count_once_they_could_take_another_way() -> None:
    ends, line, server = acknowledging("client")
    line.hold_up = True
    ends.advance(1.0)
    ends.connect()
    ends.pump()
    assert (at := server.near_timer()) is not None
    assert at <= ends.now + 1e-3, "they are as old as they are"
    server.sample(line.id, TransportSample(unacked=100), now=ends.now)
    server.handle_timer(now=ends.now)
    assert server.connections[line.id].suspect


def test_a_question_of_a_server_without_an_answer_makes_its_only_connection_suspect() -> None:
    ends, line, server = acknowledging("client")
    server.ping(line.id, now=ends.now)
    line.hold_up = True
    ends.pump()
    assert server.near_timer() is not None


def test_bytes_that_only_come_cost_no_effects_but_their_news() -> None:
    ends, line = joined()
    ends.advance(1.0)
    ends.server.reading = False
    ends.server.session.receive(line.id, memoryview(ends.segment(T.DATA, b"x" * 100)), now=ends.now)
    kinds = {type(effect).__name__ for effect in ends.server.session.effects()}
    assert kinds == {"StreamReadable"}
    assert ends.server.session.streams.readable(STREAM_ZERO) == 100


def test_an_acknowledgement_rides_with_bytes_but_not_with_all_of_them() -> None:
    ends, line = joined()
    ends.advance(1.0)
    line.sent_down.clear()
    for _ in range(20):
        ends.write(ends.client, b"question")
        ends.write(ends.server, b"answer")
    kinds = [segment[1] for segment in line.sent_down]
    assert (kinds.count(T.DATA), kinds.count(T.ACK)) == (20, 1), "it left with the first answer, without a timer"


def test_what_small_writes_put_on_one_connection_waits_for_nothing_else() -> None:
    """The short way of bytes alone and the long way of everything lead to the same."""
    ends, line = joined()
    ends.advance(1.0)
    for number in range(50):
        ends.write(ends.client, b"x" * (number * 700))
        if number % 7 == 0:
            ends.client.session.set_role(line.id, Role.BACKUP if number % 2 else Role.ACTIVE, now=ends.now)
    assert ends.server.got() == b"x" * sum(number * 700 for number in range(50))
    ends.advance(1.0)
    assert ends.client.session.sender.unacked == 0


def test_nothing_is_under_way_without_a_connection_that_takes_the_acknowledgement() -> None:
    ends, line = joined()
    ends.client.session.write(STREAM_ZERO, b"hello", now=ends.now)
    ends.pump()
    server = ends.server.session
    assert server.receiver.ack_due is not None
    assert server.under_way()
    server.connection_lost(line.id, GONE, now=ends.now)
    server.effects()
    assert server.state is SessionState.DETACHED
    assert not server.under_way(), "somebody would look after it all the time that it is detached"


def made() -> SessionCore:
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
