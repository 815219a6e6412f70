"""Streams of a session: opening, ending, giving up, and what their readers and writers are told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from multi.errors import LocalProtocolError, SessionLost, StreamReset
from multi.events import Effect, SendBytes, StreamOpened
from multi.protocol.payloads import encode_unsigned
from multi.protocol.segment import SegmentType
from multi.protocol.settings import SessionSettings
from multi.protocol.streams import ROOM_SHARE
from multi.types import STREAM_ZERO, StreamId
from tests.unit.protocol.wiring import CLEAR, Ends, Line, Node, cut, kinds

T = SegmentType
MAX_STREAMS = SessionSettings().max_streams
GIVEN_UP = 7  # an application's code


def joined() -> tuple[Ends, Line]:
    ends = Ends(CLEAR, CLEAR)
    line = ends.connect()
    ends.pump()
    return ends, line


def open_stream(ends: Ends, node: Node, priority: int = 3) -> StreamId:
    stream = node.session.open_stream(priority, now=ends.now)
    assert stream is not None
    ends.pump()
    return stream


def both_sides(ends: Ends) -> tuple[Node, Node]:
    return ends.client, ends.server


# --- opening  ---


def test_a_clients_streams_are_even_and_a_servers_odd() -> None:
    ends, _ = joined()
    assert [open_stream(ends, ends.client) for _ in range(3)] == [2, 4, 6]
    assert [open_stream(ends, ends.server) for _ in range(3)] == [1, 3, 5]


def test_the_peer_hears_of_a_stream_its_priority_and_its_bytes() -> None:
    ends, _ = joined()
    stream = open_stream(ends, ends.client, priority=6)
    assert ends.server.session.sender.streams[stream].priority == 6
    ends.write(ends.client, b"hello", stream)
    assert ends.server.got(stream) == b"hello"
    ends.write(ends.server, b"answer", stream)
    assert ends.client.got(stream) == b"answer"


def test_both_ends_know_whether_one_stream_is_more_urgent_than_another() -> None:
    ends, _ = joined()
    both = [node.session.sender for node in (ends.client, ends.server)]
    assert not any(sender.ranked for sender in both)
    same = open_stream(ends, ends.client)
    assert not any(sender.ranked for sender in both)
    stream = open_stream(ends, ends.client, priority=0)
    ends.server.session.accept_stream(stream, now=0.0)
    assert all(sender.ranked for sender in both)
    for node in (ends.client, ends.server):
        node.session.finish(stream, now=0.0)
    ends.pump()
    assert ends.server.got(stream) == ends.client.got(stream) == b""
    ends.pump()
    assert same in both[0].streams
    assert stream not in both[0].streams
    assert not any(sender.ranked for sender in both)


def test_naming_a_stream_opens_all_lower_ones_of_its_side() -> None:
    ends, line = joined()
    line.client = None
    opened: list[Effect] = []
    ends.server.session.receive(line.id, memoryview(ends.segment(T.DATA, b"x", stream=6)), now=0.0)
    opened += [e for e in ends.server.session.effects() if isinstance(e, StreamOpened)]
    assert opened == [StreamOpened(StreamId(2)), StreamOpened(StreamId(4)), StreamOpened(StreamId(6))]


def test_of_streams_opened_by_naming_a_later_one_none_is_made_before_it_is_needed() -> None:
    """One segment may open thousands, and making each takes as long as hundreds of bytes."""
    ends, line = joined()
    line.client = None
    server = ends.server.session
    server.receive(line.id, memoryview(ends.segment(T.DATA, b"x", stream=8)), now=0.0)
    assert list(server.receiver.streams) == [0, 8]
    server.receive(line.id, memoryview(ends.segment(T.DATA, b"y", stream=4)), now=0.0)
    server.make_stream(StreamId(2), now=0.0)
    assert list(server.receiver.streams) == [0, 8, 4, 2]
    server.make_stream(StreamId(4), now=0.0)
    assert server.read(StreamId(4), -1, now=0.0) == b"y"
    server.accept_stream(StreamId(6), now=0.0)
    assert not server.streams.at_end(StreamId(6))


def test_streams_that_the_application_never_took_end_with_the_session() -> None:
    ends, line = joined()
    line.client = None
    server = ends.server.session
    server.receive(line.id, memoryview(ends.segment(T.DATA, b"x", stream=6)), now=0.0)
    server.close(now=0.0)
    said = b"".join(bytes(buffer) for e in server.effects() if isinstance(e, SendBytes) for buffer in e.buffers)
    assert kinds(cut(said)).count(T.FIN) == 4
    assert list(server.receiver.streams) == [0, 6], "to make them all would take memory"


def test_streams_that_are_opened_after_the_session_was_closed_end_as_well() -> None:
    ends, line = joined()
    line.client = None
    server = ends.server.session
    server.close(now=0.0)
    server.effects()
    server.receive(line.id, memoryview(ends.segment(T.DATA, b"x", stream=6)), now=0.0)
    said = b"".join(bytes(buffer) for e in server.effects() if isinstance(e, SendBytes) for buffer in e.buffers)
    assert kinds(cut(said)).count(T.FIN) == 3


@pytest.mark.parametrize("priority", [-1, 8])
def test_a_priority_that_does_not_exist_is_the_applications_mistake(priority: int) -> None:
    ends, _ = joined()
    with pytest.raises(LocalProtocolError, match=r"not in 0\.\.7"):
        ends.client.session.open_stream(priority, now=0.0)


def test_a_stream_the_peer_cannot_have_opened_ends_the_connection() -> None:
    ends, line = joined()
    line.inject(ends.segment(T.DATA, b"x", stream=1))  # the server's own first one
    ends.pump()
    assert ends.server.ended[line.id] == "stream 1 was never opened"


def test_no_stream_opens_before_the_peer_has_said_how_many_it_allows() -> None:
    ends = Ends(CLEAR, CLEAR)
    line = ends.connect()
    line.hold_down = True
    ends.pump()
    assert ends.client.session.open_stream(3, now=0.0) is None
    line.hold_down = False
    ends.pump()
    assert open_stream(ends, ends.client) == 2


def test_no_more_streams_open_than_the_peer_allows_until_it_allows_more() -> None:
    ends, line = joined()
    for _ in range(MAX_STREAMS):
        open_stream(ends, ends.client)
    assert ends.client.session.open_stream(3, now=0.0) is None
    control = ends.client.session.receiver.control.cumulative
    line.answer(ends.segment(T.MAX_STREAMS, encode_unsigned((MAX_STREAMS + 1, 8)), sequence=control))
    ends.pump()
    assert open_stream(ends, ends.client) == 2 * MAX_STREAMS + 2
    assert ends.client.session.open_stream(3, now=0.0) is None


def test_a_peer_that_opens_more_than_it_may_loses_its_connection() -> None:
    ends, line = joined()
    line.inject(ends.segment(T.DATA, b"x", stream=2 * MAX_STREAMS + 2))
    ends.pump()
    assert ends.server.ended[line.id] == f"more than {MAX_STREAMS} streams open"


def test_an_application_that_has_closed_opens_no_more() -> None:
    ends, line = joined()
    line.hold_down = True
    ends.client.session.close(now=0.0)
    with pytest.raises(LocalProtocolError, match="closed the session"):
        ends.client.session.open_stream(3, now=0.0)
    line.hold_down = False
    ends.server.session.close(now=0.0)
    ends.pump()
    with pytest.raises(SessionLost, match="the session is closed"):
        ends.client.session.open_stream(3, now=0.0)


def test_what_the_peer_opens_after_this_side_has_closed_is_read_by_nobody_and_holds_up_nothing() -> None:
    ends, line = joined()
    line.hold_up = line.hold_down = True
    stream = ends.server.session.open_stream(3, now=0.0)
    assert stream is not None
    ends.server.session.write(stream, b"too late", now=0.0)
    ends.client.session.close(now=0.0)
    ends.server.session.close(now=0.0)
    line.hold_up = line.hold_down = False
    ends.pump()
    assert ends.client.got(stream) == b""
    for node in both_sides(ends):
        assert node.closed is not None
        assert node.closed.reason.orderly


# --- ending  ---


@pytest.mark.parametrize("data", [b"", b"the last words"])
def test_a_reader_sees_the_end_after_the_last_byte_and_a_writer_that_it_has_arrived(data: bytes) -> None:
    ends, _ = joined()
    stream = open_stream(ends, ends.client)
    writer, reader = ends.client.session.streams, ends.server.session.streams
    ends.server.reading = False
    ends.write(ends.client, data, stream)
    ends.client.session.finish(stream, now=0.0)
    assert not writer.finished(stream)
    ends.pump()
    assert writer.finished(stream)
    assert reader.complete(stream)
    assert reader.readable(stream) == len(data)
    assert reader.at_end(stream) == (not data)
    assert ends.server.session.read(stream, -1, now=0.0) == data
    assert reader.at_end(stream)


def test_nothing_can_be_written_after_the_end() -> None:
    ends, _ = joined()
    stream = open_stream(ends, ends.client)
    ends.client.session.finish(stream, now=0.0)
    ends.client.session.finish(stream, now=0.0)
    with pytest.raises(LocalProtocolError, match="writing side of this stream has ended"):
        ends.client.session.write(stream, b"more", now=0.0)


def test_the_end_of_one_direction_leaves_the_other_open() -> None:
    ends, _ = joined()
    stream = open_stream(ends, ends.client)
    ends.client.session.finish(stream, now=0.0)
    ends.pump()
    ends.write(ends.server, b"still here", stream)
    assert ends.client.got(stream) == b"still here"


def test_a_stream_that_both_have_ended_and_read_is_forgotten_and_makes_room() -> None:
    ends, _ = joined()
    for _ in range(3 * MAX_STREAMS):
        stream = open_stream(ends, ends.client)
        ends.server.session.accept_stream(stream, now=0.0)
        for node in both_sides(ends):
            ends.write(node, b"bytes", stream)
            node.session.finish(stream, now=0.0)
        ends.pump()
        for node in both_sides(ends):
            assert stream not in node.session.sender.streams
            assert stream not in node.session.receiver.streams
            assert node.session.streams.at_end(stream)
            assert node.session.streams.finished(stream)


@pytest.mark.parametrize("most", [1, 2, 3, 16])
def test_room_for_further_streams_is_told_now_and_then_and_always_to_who_has_none_left(most: int) -> None:
    ends = Ends(CLEAR, replace(CLEAR, max_streams=most))
    line = ends.connect()
    ends.pump()
    streams = 4 * most
    for _ in range(streams):
        stream = open_stream(ends, ends.client)
        ends.server.session.accept_stream(stream, now=0.0)
        for node in both_sides(ends):
            node.session.finish(stream, now=0.0)
        ends.pump()
        assert stream not in ends.server.session.receiver.streams
    told = kinds(line.sent_down).count(T.MAX_STREAMS)
    assert streams // most <= told <= max(streams // max(1, most // ROOM_SHARE), streams // most)
    for _ in range(most):
        open_stream(ends, ends.client)
    assert ends.client.session.open_stream(3, now=0.0) is None


def test_who_opens_the_last_stream_it_may_hears_of_those_that_have_ended() -> None:
    ends, _ = joined()
    done = open_stream(ends, ends.client)
    ends.server.session.accept_stream(done, now=0.0)
    for node in both_sides(ends):
        node.session.finish(done, now=0.0)
    ends.pump()
    for _ in range(MAX_STREAMS):
        assert open_stream(ends, ends.client)
    assert ends.client.session.open_stream(3, now=0.0) is None


def test_that_a_stream_was_opened_is_acknowledged_with_what_is_said_anyway() -> None:
    ends, line = joined()
    ends.advance(0.1)
    line.sent_down.clear()
    ends.client.session.open_stream(3, now=ends.now)
    ends.pump()
    assert T.ACK not in kinds(line.sent_down)
    ends.advance(0.1)
    assert kinds(line.sent_down).count(T.ACK) == 1


def test_bytes_that_come_again_for_a_forgotten_stream_are_acknowledged_again() -> None:
    ends, line = joined()
    stream = open_stream(ends, ends.client)
    ends.server.session.accept_stream(stream, now=0.0)
    ends.write(ends.client, b"bytes", stream)
    for node in both_sides(ends):
        node.session.finish(stream, now=0.0)
    ends.pump()
    line.sent_down.clear()
    line.inject(ends.segment(T.DATA, b"bytes", stream=stream))
    ends.pump()
    assert T.ACK in [segment[1] for segment in line.sent_down]
    assert ends.server.states()[line.id] == "active"


def test_two_ends_of_the_same_stream_at_different_places_are_a_fault_of_the_peer() -> None:
    ends, line = joined()
    start = ends.server.session.receiver.control.cumulative
    for number, final in enumerate((5, 6)):
        line.inject(ends.segment(T.FIN, encode_unsigned((final, 8)), sequence=start + number))
    ends.pump()
    assert ends.server.ended[line.id] == "stream 0 ends at 5 and at 6"


# --- giving up  ---


def test_a_writer_that_gives_up_is_heard_by_the_reader_with_its_code() -> None:
    ends, line = joined()
    stream = open_stream(ends, ends.client)
    line.hold_up = True
    ends.write(ends.client, b"never to be read", stream)
    ends.client.session.reset(stream, GIVEN_UP, now=0.0)
    ends.client.session.reset(stream, GIVEN_UP + 1, now=0.0)
    line.up.clear()
    line.hold_up = False
    ends.lose(line)
    ends.connect()
    ends.pump()
    error = ends.server.session.streams.receive_error(stream)
    assert isinstance(error, StreamReset)
    assert error.code == GIVEN_UP
    assert ends.client.session.streams.finished(stream), "nothing of it matters any more"


def test_a_reader_that_gives_up_stops_the_writer_who_hears_how_much_was_not_delivered() -> None:
    ends, line = joined()
    stream = open_stream(ends, ends.client)
    ends.server.session.stop_sending(stream, GIVEN_UP, now=0.0)
    ends.server.session.stop_sending(stream, GIVEN_UP + 1, now=0.0)
    line.hold_down = True
    ends.pump()
    ends.write(ends.client, b"12345", stream)
    line.hold_down = False
    ends.pump()
    with pytest.raises(StreamReset, match="stopped reading") as stopped:
        ends.client.session.write(stream, b"more", now=0.0)
    assert stopped.value.code == GIVEN_UP
    kept = ends.client.session.streams.send_error(stream)
    assert isinstance(kept, StreamReset)
    assert kept.code == GIVEN_UP


def test_a_reader_that_goes_says_how_far_it_came_for_its_acknowledgement_may_come_later() -> None:
    ends, line = joined()
    stream = open_stream(ends, ends.client)
    line.change_down = lambda segment: None if segment[1] == T.ACK else segment  # a slower connection carries those
    ends.write(ends.client, b"12345", stream)
    ends.server.session.stop_sending(stream, GIVEN_UP, now=0.0)
    ends.pump()
    stopped = ends.client.session.streams.send_error(stream)
    assert isinstance(stopped, StreamReset)
    assert stopped.unacknowledged == 0


def test_a_reader_that_goes_after_more_than_was_sent_breaks_the_protocol() -> None:
    ends, line = joined()
    ends.write(ends.server, b"12345")
    control = ends.server.session.receiver.control.cumulative
    line.inject(ends.segment(T.STOP_SENDING, encode_unsigned((GIVEN_UP, 4), (6, 8)), sequence=control))
    ends.pump()
    assert ends.server.ended[line.id] == "a reader has gone after more than was ever sent"
    assert ends.server.session.streams.send_error(STREAM_ZERO) is None


def test_what_nobody_reads_any_more_gives_its_window_to_the_other_streams() -> None:
    ends, _ = joined()
    ends.server.reading = False
    ends.server.session.receiver.window.may_grow = lambda _size: False  # no memory is left: streams share a window
    stream = open_stream(ends, ends.client)
    ends.write(ends.client, bytes(CLEAR.initial_window), stream)
    ends.write(ends.client, b"waits for window")
    assert ends.server.session.streams.readable(STREAM_ZERO) == 0
    ends.server.session.stop_sending(stream, GIVEN_UP, now=0.0)
    ends.pump()
    assert ends.server.session.streams.readable(STREAM_ZERO) == len(b"waits for window")
    assert ends.server.session.streams.at_end(stream)
    assert ends.server.session.streams.complete(stream)


def test_a_reset_after_the_end_has_come_changes_nothing() -> None:
    ends, line = joined()
    ends.server.reading = False
    ends.write(ends.client, b"whole")
    ends.client.session.finish(STREAM_ZERO, now=0.0)
    ends.pump()
    control = ends.server.session.receiver.control.cumulative
    line.inject(ends.segment(T.RESET, encode_unsigned((5, 8), (GIVEN_UP, 4)), sequence=control))
    ends.pump()
    assert ends.server.session.streams.receive_error(STREAM_ZERO) is None
    assert ends.server.session.read(STREAM_ZERO, -1, now=0.0) == b"whole"


def test_streams_that_nobody_takes_make_no_room_for_others_even_when_they_are_reset() -> None:
    ends, _ = joined()
    opened = 0
    for _ in range(3 * MAX_STREAMS):
        stream = ends.client.session.open_stream(3, now=0.0)
        if stream is None:
            break
        opened += 1
        ends.client.session.reset(stream, GIVEN_UP, now=0.0)
        ends.client.session.stop_sending(stream, GIVEN_UP, now=0.0)
        ends.pump()
    assert opened == MAX_STREAMS


def test_a_stream_that_was_reset_before_it_was_taken_still_says_so() -> None:
    ends, _ = joined()
    stream = open_stream(ends, ends.client)
    ends.client.session.reset(stream, GIVEN_UP, now=0.0)
    ends.client.session.stop_sending(stream, GIVEN_UP, now=0.0)
    ends.pump()
    received = ends.server.session.receiver.streams[stream]
    ends.server.session.accept_stream(stream, now=0.0)
    ends.pump()
    assert stream not in ends.server.session.receiver.streams
    assert isinstance(received.error, StreamReset)
    assert received.error.code == GIVEN_UP


# --- the end of the session  ---


def test_when_the_session_is_lost_readers_get_what_had_come_and_then_the_reason() -> None:
    ends, _ = joined()
    ends.server.reading = False
    ends.write(ends.client, b"before the end")
    ends.client.session.abort(now=0.0)
    ends.pump()
    streams = ends.server.session.streams
    assert streams.receive_error(STREAM_ZERO) is None, "there is still something to read"
    assert ends.server.session.read(STREAM_ZERO, -1, now=0.0) == b"before the end"
    assert "aborted" in str(streams.receive_error(STREAM_ZERO))
    assert streams.at_end(STREAM_ZERO)
    assert "aborted" in str(streams.send_error(STREAM_ZERO))
    with pytest.raises(SessionLost, match="aborted"):
        ends.server.session.write(STREAM_ZERO, b"more", now=0.0)
    with pytest.raises(SessionLost, match="aborted"):
        ends.server.session.open_stream(3, now=0.0)


def test_what_is_asked_of_a_stream_after_the_session_has_ended_does_nothing() -> None:
    ends, _ = joined()
    ends.client.session.abort(now=0.0)
    ends.pump()
    ends.client.session.finish(STREAM_ZERO, now=0.0)
    ends.client.session.reset(STREAM_ZERO, GIVEN_UP, now=0.0)
    ends.client.session.stop_sending(STREAM_ZERO, GIVEN_UP, now=0.0)
    assert ends.client.session.effects() == []
    assert ends.client.session.read(StreamId(44), -1, now=0.0) == b""


def test_a_deadline_holds_in_both_directions_and_is_checked() -> None:
    ends, _ = joined()
    stream = ends.client.session.open_stream(0, 0.1, now=ends.now)
    assert stream is not None
    ends.pump()
    assert ends.client.session.sender.streams[stream].deadline == 0.1
    assert ends.server.session.sender.streams[stream].deadline == 0.1
    plain = open_stream(ends, ends.client)
    ends.pump()
    assert ends.server.session.sender.streams[plain].deadline == 0.0
    for wrong in (-1.0, 3601.0, float("nan")):
        with pytest.raises(LocalProtocolError, match="deadline"):
            ends.client.session.open_stream(0, wrong, now=ends.now)
