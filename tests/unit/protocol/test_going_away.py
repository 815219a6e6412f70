"""A server that is stopped says when it ends its sessions and delivers what was written; nobody else can say so."""

from __future__ import annotations

import pytest

from multi.errors import RemoteProtocolError, SessionLost
from multi.events import GoingAway
from multi.protocol.payloads import Close, decode_away, encode_away, encode_close
from multi.protocol.segment import SegmentType
from multi.protocol.session import LEAVING
from multi.protocol.state import SessionState
from multi.reasons import Cause
from multi.types import ConnectionFacts

from .wiring import PLAIN, STREAM_0, TLS, Ends, Node, connected, kinds

T = SegmentType


def heard(node: Node) -> list[float]:
    return [event.deadline for event in node.events if isinstance(event, GoingAway)]


def go_away(ends: Ends, seconds: float) -> None:
    ends.server.session.go_away(seconds, now=ends.now)
    ends.pump()


def leave(ends: Ends) -> None:
    ends.server.session.leave(now=ends.now)
    ends.pump()


def causes(ends: Ends) -> list[Cause | None]:
    return [node.closed.reason.cause if node.closed is not None else None for node in (ends.client, ends.server)]


# --- announced  ---


def test_both_applications_hear_when_the_session_ends_and_it_goes_on_as_ever() -> None:
    ends, _ = connected()
    go_away(ends, 20.0)
    assert heard(ends.client) == heard(ends.server) == [20.0]
    second = ends.connect()
    ends.pump()
    assert ends.client.states()[second.id] == ends.server.states()[second.id] == "active"
    ends.write(ends.client, b"still")
    ends.write(ends.server, b"here")
    assert (ends.server.got(), ends.client.got()) == (b"still", b"here")
    ends.now = 5.0
    ends.client.session.handle_timer(now=5.0)
    assert ends.client.session.ends_in == 15.0


def test_the_last_deadline_holds_and_a_repeat_or_an_older_one_says_nothing() -> None:
    ends, line = connected()
    go_away(ends, 20.0)
    (first,) = (segment for segment in line.sent_down if segment[1] == T.AWAY)
    line.answer(first)
    ends.pump()
    assert heard(ends.client) == [20.0]
    go_away(ends, 5.0)
    line.answer(first)
    ends.pump()
    assert heard(ends.client) == [20.0, 5.0]
    assert ends.client.session.ends_in == 5.0


def test_a_peer_that_has_not_announced_to_hear_it_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    ends, line = connected()
    monkeypatch.setattr(ends.server.session, "_peer_hears_away", False)
    go_away(ends, 20.0)
    leave(ends)
    assert T.AWAY not in kinds(line.sent_down)
    assert causes(ends) == [Cause.GOING_AWAY, Cause.GOING_AWAY]


def test_a_client_that_comes_back_hears_how_much_is_left() -> None:
    ends, line = connected()
    ends.lose(line)
    go_away(ends, 20.0)
    ends.advance(8.0)
    ends.connect()
    ends.pump()
    assert heard(ends.client)[-1] == pytest.approx(12.0, abs=0.1)


@pytest.mark.parametrize("seconds", [0.0, 0.001, 25.0, 4_294_967.295])
def test_the_time_is_said_in_milliseconds(seconds: float) -> None:
    assert decode_away(encode_away(seconds)) == seconds


def test_what_does_not_fit_is_the_longest_time_there_is() -> None:
    assert decode_away(encode_away(1e12)) == 4_294_967.295
    assert decode_away(encode_away(-1.0)) == 0.0


# --- ended  ---


def test_what_was_written_before_is_delivered_and_nothing_can_be_written_after() -> None:
    ends, line = connected()
    line.hold_down = True
    ends.client.reading = False
    other = ends.server.session.open_stream(3, now=ends.now)
    assert other is not None
    ends.write(ends.server, b"a" * 50_000)
    ends.write(ends.server, b"b" * 50_000, other)
    leave(ends)
    assert T.CLOSE not in kinds(line.sent_down)
    for stream in (STREAM_0, other):
        with pytest.raises(SessionLost) as caught:
            ends.server.session.write(stream, b"too late", now=ends.now)
        assert caught.value.reason.cause is Cause.GOING_AWAY
    with pytest.raises(SessionLost):
        ends.server.session.open_stream(3, now=ends.now)
    line.hold_down = False
    ends.advance(0.15)
    assert causes(ends) == [Cause.GOING_AWAY, Cause.GOING_AWAY]
    session = ends.client.session
    assert session.read(STREAM_0, -1, now=ends.now) == b"a" * 50_000
    assert session.read(other, -1, now=ends.now) == b"b" * 50_000
    error = session.streams.receive_error(STREAM_0)
    assert error is not None
    assert error.reason.cause is Cause.GOING_AWAY  # it may not be all that there was to be


def test_a_stream_that_the_client_opens_meanwhile_is_cut_off_too() -> None:
    ends, line = connected()
    line.hold_down = True
    ends.write(ends.server, b"on its way")
    leave(ends)
    stream = ends.client.session.open_stream(3, now=ends.now)
    assert stream is not None
    ends.write(ends.client, b"question", stream)
    with pytest.raises(SessionLost):
        ends.server.session.write(stream, b"answer", now=ends.now)


def test_a_stream_that_was_ended_before_is_read_to_its_end() -> None:
    ends, _ = connected()
    ends.client.reading = False
    ends.write(ends.server, b"all of it")
    ends.server.session.finish(STREAM_0, now=ends.now)
    leave(ends)
    assert ends.client.session.read(STREAM_0, -1, now=ends.now) == b"all of it"
    assert ends.client.session.streams.at_end(STREAM_0)
    assert ends.client.session.streams.receive_error(STREAM_0) is None


def test_whoever_has_closed_already_ends_in_order() -> None:
    ends, line = connected()
    line.hold_up = True
    ends.write(ends.server, b"bye")
    ends.server.session.close(now=ends.now)
    leave(ends)
    line.hold_up = False
    ends.pump()
    ends.client.session.close(now=ends.now)
    ends.pump()
    assert causes(ends) == [Cause.CLOSED, Cause.CLOSED]


def test_a_handler_that_closes_while_its_session_leaves_does_not_hold_it_up() -> None:
    ends, line = connected()
    line.hold_up = True
    ends.write(ends.server, b"bye")
    leave(ends)
    ends.server.session.close(now=ends.now)
    line.hold_up = False
    ends.advance(0.1)
    assert causes(ends) == [Cause.GOING_AWAY, Cause.GOING_AWAY]
    assert ends.client.got() == b"bye"


def test_a_client_that_closes_when_it_hears_of_it_ends_in_order() -> None:
    ends, _ = connected()
    go_away(ends, 20.0)
    ends.client.session.close(now=ends.now)
    ends.pump()
    ends.server.session.close(now=ends.now)
    ends.pump()
    assert causes(ends) == [Cause.CLOSED, Cause.CLOSED]


def test_closing_and_leaving_that_cross_each_other_end_both() -> None:
    ends, line = connected()
    line.hold_up = line.hold_down = True
    ends.client.session.close(now=ends.now)
    leave(ends)
    line.hold_up = line.hold_down = False
    ends.pump()
    assert causes(ends)[0] in (Cause.CLOSED, Cause.GOING_AWAY)
    assert causes(ends)[1] is Cause.GOING_AWAY


def test_close_that_is_lost_is_said_again_on_the_next_connection() -> None:
    ends, line = connected()
    line.change_down = lambda segment: None if segment[1] == T.CLOSE else segment
    leave(ends)
    assert causes(ends) == [None, None]
    assert ends.server.session.state is SessionState.CLOSING
    ends.connect()
    ends.pump()
    assert causes(ends) == [Cause.GOING_AWAY, Cause.GOING_AWAY]


def test_without_an_answer_it_ends_after_lingering() -> None:
    ends, line = connected()
    line.hold_down = True
    leave(ends)
    ends.advance(3.0)
    assert causes(ends)[1] is Cause.GOING_AWAY


def test_when_the_time_is_over_it_ends_at_once_and_says_why() -> None:
    ends, line = connected()
    line.hold_up = True  # nothing is acknowledged any more
    ends.write(ends.server, b"x" * 1000)
    leave(ends)
    assert causes(ends) == [None, None]
    ends.server.session.abort(LEAVING, now=ends.now)
    ends.pump()
    assert causes(ends) == [Cause.GOING_AWAY, Cause.GOING_AWAY]


def test_a_client_that_goes_away_is_taken_to_abort() -> None:
    ends, line = connected()
    line.inject(ends.segment(T.CLOSE, encode_close(Close(4, "I go away"))))
    ends.pump()
    assert ends.server.closed is not None
    assert ends.server.closed.reason.cause is Cause.PEER_ABORTED


# --- not believed  ---


def test_a_client_cannot_send_its_server_away() -> None:
    ends, line = connected()
    number = ends.server.session.receiver.control.cumulative
    line.inject(ends.segment(T.AWAY, encode_away(1.0), sequence=number))
    ends.pump()
    assert ends.server.ended[line.id] == "only a server goes away"
    assert not heard(ends.server)


@pytest.mark.parametrize("facts", [TLS, PLAIN], ids=["tls", "sealed"])
def test_somebody_in_between_who_says_it_costs_the_connection_it_was_said_on(facts: ConnectionFacts) -> None:
    """Sealed segments cannot be made, and before its proof a server is not listened to."""
    ends = Ends()
    first = ends.connect()
    ends.pump()
    line = ends.connect(facts)
    line.captured = True  # its server is not ours
    ends.pump()
    line.answer(ends.segment(T.AWAY, encode_away(0.0), sequence=0), ends.segment(T.CLOSE, encode_close(Close(4))))
    ends.pump()
    assert not heard(ends.client)
    assert ends.client.closed is None
    assert line.id in ends.client.ended
    first.answer(ends.segment(T.AWAY, encode_away(0.0), sequence=1))
    ends.pump()
    assert not heard(ends.client)
    assert ends.client.closed is None
    assert first.id in ends.client.ended


def test_what_is_no_time_ends_the_connection() -> None:
    ends, line = connected()
    line.answer(ends.segment(T.AWAY, b"soon!", sequence=0))
    ends.pump()
    assert "surplus" in ends.client.ended[line.id]
    assert not heard(ends.client)
    with pytest.raises(RemoteProtocolError):
        decode_away(bytes(3))
