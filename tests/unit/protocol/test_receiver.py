"""The session's window, and when and what it acknowledges."""

from __future__ import annotations

import pytest

from multi.errors import RemoteProtocolError
from multi.protocol.connection import Connection
from multi.protocol.payloads import MAX_ACK_PAYLOAD, Ack, StreamAck, decode_ack
from multi.protocol.receive_stream import ReceiveStream
from multi.protocol.receiver import ACK_BYTES, ACK_DELAY, GAP_DELAY, MAX_ENDED, Receiver
from multi.protocol.segment import HEADER_LENGTH
from multi.protocol.settings import SessionSettings
from multi.types import ConnectionFacts, ConnectionId, SessionId, StreamId

WINDOW = SessionSettings().initial_window
RTT = 0.05


class End:
    """A receiver with stream 0, and a peer that sends to it."""

    def __init__(self, settings: SessionSettings | None = None) -> None:
        self.receiver = Receiver(settings or SessionSettings(), 0.0)
        self.stream = self.receiver.add(StreamId(0), 0.0)

    def arrive(self, start: int, end: int, stream: ReceiveStream | None = None, now: float = 0.0) -> bool:
        return self.receiver.data(stream or self.stream, start, memoryview(bytes(end - start)), False, now)

    def read(self, limit: int = -1, now: float = 0.0) -> int:
        return len(self.receiver.read(self.stream, limit, now, RTT))

    def ack(self) -> Ack:
        return decode_ack(self.receiver.ack_payload(0.0))

    def said(self) -> StreamAck:
        """What the next ACK says of stream 0."""
        (found,) = self.ack().streams
        return found


# --- what it keeps  ---


def test_ranges_above_gaps_are_objects_up_to_one_for_each_kib_of_the_window() -> None:
    end = End()
    other = end.receiver.add(StreamId(2), 0.0)
    for start in range(1, 400, 2):
        end.arrive(start, start + 1)
    assert len(end.stream.islands) == end.receiver.window.size // 1024
    assert not end.arrive(1, 2, other)
    assert not other.islands, "they count for the session"
    for start in range(0, 400, 2):
        end.arrive(start, start + 1)
    assert end.read() == 400
    end.arrive(5001, 5002, other)
    assert len(other.islands) == 1, "there is room again"
    end.receiver.reset(other, 9000, 0)
    for start in range(5001, 5401, 2):
        end.arrive(start, start + 1)
    assert len(end.stream.islands) == end.receiver.window.size // 1024


def test_bytes_beyond_every_offset_are_refused_on_an_ended_stream_too() -> None:
    end = End()
    with pytest.raises(RemoteProtocolError, match="has ended"):
        end.receiver.repeat(StreamId(2), (1 << 64) + 1)
    assert end.ack().streams == ()


def test_each_of_many_streams_that_have_ended_is_acknowledged_to_its_end() -> None:
    end = End()
    ended = [end.receiver.add(StreamId(2 * number), 0.0) for number in range(1, 101)]
    for stream in ended:
        end.arrive(0, 10, stream)
        end.receiver.forget(stream)
    said: dict[StreamId, int] = {}
    while len(said) < len(ended):  # one ACK has no room for all of them
        streams = end.ack().streams
        assert streams
        said.update((entry.stream, entry.cumulative) for entry in streams)
    assert said == {stream.id: 10 for stream in ended}


# --- when  ---


def test_bytes_in_order_are_acknowledged_after_a_moment() -> None:
    end = End()
    assert end.receiver.ack_due is None
    assert end.arrive(0, 1000, now=1.0)
    assert end.receiver.ack_due == 1.0 + ACK_DELAY
    assert not end.receiver.ack_now
    end.arrive(1000, 2000, now=1.005)
    assert end.receiver.ack_due == 1.0 + ACK_DELAY, "a stream of segments does not put it off"


def test_many_bytes_are_acknowledged_at_once() -> None:
    end = End(SessionSettings(initial_window=1 << 20))
    arrived = 0
    while not end.receiver.ack_now:
        end.arrive(arrived, arrived + 16_384)
        arrived += 16_384
        assert arrived <= 2 * ACK_BYTES
    assert arrived >= ACK_BYTES


def test_a_gap_is_told_of_soon_and_a_repeat_at_once() -> None:
    gap = End()
    gap.arrive(1000, 2000, now=1.0)
    gap.arrive(3000, 4000, now=1.0)
    assert gap.receiver.ack_now
    again = End()
    again.arrive(0, 1000)
    again.ack()
    assert not again.arrive(0, 1000)
    assert again.receiver.ack_now


def test_gaps_that_come_and_go_are_not_told_of_one_by_one() -> None:
    end = End(SessionSettings(initial_window=4 * 1024 * 1024))
    end.ack()
    for start in range(1000, 9000, 2000):
        end.arrive(start, start + 1000, now=0.001)
    assert (end.receiver.ack_now, end.receiver.ack_due) == (False, GAP_DELAY)
    assert end.receiver.is_due(GAP_DELAY)


def test_the_sender_of_a_small_window_hears_of_gaps_at_once() -> None:
    end = End(SessionSettings(initial_window=256 * 1024))
    end.ack()
    for start in range(1000, 9000, 2000):
        end.arrive(start, start + 1000, now=0.001)
    assert end.receiver.ack_now


def test_the_end_of_a_stream_is_acknowledged_at_once() -> None:
    end = End()
    end.receiver.finish(end.stream, 1000)
    end.arrive(0, 1000)
    assert end.receiver.ack_now


def test_control_is_acknowledged_at_once_where_it_is_urgent() -> None:
    urgent, patient = End(), End()
    urgent.receiver.control_arrived(1.0, urgent=True)
    assert urgent.receiver.ack_now
    patient.receiver.control_arrived(1.0, urgent=False)
    assert not patient.receiver.ack_now
    assert patient.receiver.ack_due == 1.0 + ACK_DELAY


def test_what_was_said_is_not_due_any_more() -> None:
    end = End()
    end.arrive(1000, 2000, now=1.0)
    end.arrive(3000, 4000, now=1.0)
    end.ack()
    assert (end.receiver.ack_now, end.receiver.ack_due) == (False, None)
    assert end.ack().streams == ()


# --- what  ---


def test_an_acknowledgement_says_what_has_come_and_what_may_come() -> None:
    end = End()
    end.arrive(0, 1000)
    end.arrive(2000, 3000)
    assert end.said() == StreamAck(StreamId(0), 1000, WINDOW, ((2000, 3000),))


def test_after_a_connection_died_everything_is_said_again() -> None:
    end = End()
    end.arrive(0, 1000)
    before = end.said()
    end.receiver.everything_dirty()
    assert end.receiver.ack_now
    assert end.said() == before


def test_after_a_connection_died_the_latest_ended_streams_are_said_again_too() -> None:
    end, count = End(), 3 * MAX_ENDED
    for number in range(count):
        stream = end.receiver.add(StreamId(2 * number + 2), 0.0)
        end.arrive(0, number + 1, stream)
        end.ack()
        end.receiver.forget(stream)
    end.receiver.everything_dirty()
    said: list[StreamAck] = []
    while end.receiver.ack_now:
        said += end.ack().streams
    ended = range(count - MAX_ENDED, count)
    assert said == [
        StreamAck(StreamId(0), 0, WINDOW),
        *(StreamAck(StreamId(2 * number + 2), number + 1, number + 1) for number in ended),
    ]


def test_what_came_on_a_connection_is_said_there_once_more() -> None:
    end = End()
    end.arrive(0, 1000)
    before = end.said()
    carrier = Connection(ConnectionId(1), SessionId(bytes(16)), ConnectionFacts("tcp"), 0.0)
    carrier.streams_to_ack |= {StreamId(0), StreamId(77)}
    end.receiver.acknowledge_on([carrier], 0.0)
    ((written,),) = carrier.output
    assert decode_ack(bytes(written[HEADER_LENGTH:])).streams == (before,)
    assert not carrier.streams_to_ack


def test_a_stream_that_has_ended_is_still_acknowledged_and_so_are_its_repeats() -> None:
    end = End()
    other = end.receiver.add(StreamId(2), 0.0)
    end.arrive(0, 500, other)
    end.receiver.forget(other)
    assert end.ack().streams == (StreamAck(StreamId(2), 500, 500),)
    end.receiver.repeat(StreamId(2), 300)
    end.receiver.repeat(StreamId(2), 500)
    end.receiver.repeat(StreamId(2), 400)
    assert end.ack().streams == (StreamAck(StreamId(2), 500, 500),)


def test_an_acknowledgement_never_grows_beyond_its_bound_and_the_rest_follows() -> None:
    end, acknowledged = End(SessionSettings(initial_window=1 << 20)), set[int]()
    for number in range(100):
        stream = end.receiver.add(StreamId(2 * number + 2), 0.0)
        for island in range(30):
            end.arrive(2 * island + 1, 2 * island + 2, stream)
    for _ in range(200):
        payload = end.receiver.ack_payload(0.0)
        assert len(payload) <= MAX_ACK_PAYLOAD
        acknowledged |= {entry.stream for entry in decode_ack(payload).streams}
        if not end.receiver.ack_now:
            break
    assert acknowledged == {2 * number + 2 for number in range(100)}


# --- windows  ---


def test_reading_opens_the_windows_again() -> None:
    end = End()
    end.arrive(0, WINDOW)
    ack = end.ack()
    assert (ack.session_window, ack.streams[0].window) == (WINDOW, WINDOW)
    assert end.read() == WINDOW
    assert end.receiver.ack_now
    ack = end.ack()
    assert ack.session_window >= 2 * WINDOW
    assert ack.streams[0].window >= 2 * WINDOW


def test_an_application_that_does_not_read_gives_no_window() -> None:
    end = End()
    end.arrive(0, WINDOW)
    assert end.said().window == WINDOW
    end.receiver.everything_dirty()
    assert end.said().window == WINDOW


def test_all_streams_together_may_bring_no_more_than_the_session_window() -> None:
    end = End(SessionSettings(initial_window=WINDOW))
    other = end.receiver.add(StreamId(2), 0.0)
    end.arrive(0, WINDOW - 100)
    with pytest.raises(RemoteProtocolError, match="session window ends at"):
        end.arrive(0, 101, other)
    assert end.receiver.charged == WINDOW - 100, "what was refused does not count"
    end.arrive(0, 100, other)


def test_the_end_of_a_stream_counts_against_the_session_window_too() -> None:
    end = End()
    other = end.receiver.add(StreamId(2), 0.0)
    end.arrive(0, WINDOW - 100)
    with pytest.raises(RemoteProtocolError, match="session window ends at"):
        end.receiver.finish(other, 101)
    with pytest.raises(RemoteProtocolError, match="session window ends at"):
        end.receiver.reset(other, 101, 7)
    end.receiver.finish(other, 100)
    assert end.receiver.charged == WINDOW


@pytest.mark.parametrize("how", ["discarded", "reset"])
def test_what_nobody_will_read_gives_its_window_back(how: str) -> None:
    end = End()
    end.arrive(0, 30_000)
    if how == "discarded":
        end.receiver.discard(end.stream)
        end.arrive(30_000, 40_000)
    else:
        end.receiver.reset(end.stream, 40_000, 7)
    assert end.receiver.charged == end.receiver.consumed == 40_000
    assert end.ack().session_window >= 40_000 + WINDOW


def test_the_session_window_grows_only_as_far_as_the_server_has_memory() -> None:
    asked: list[int] = []

    def refuse(size: int) -> bool:
        asked.append(size)
        return False

    end = End()
    end.receiver.window.may_grow = refuse
    offset = 0
    for _ in range(20):
        end.arrive(offset, offset + WINDOW // 2)
        offset += WINDOW // 2
        end.read()
        end.ack()
    assert end.receiver.window.size == WINDOW
    assert asked
    end.receiver.window.may_grow = None
    for _ in range(20):
        end.arrive(offset, offset + WINDOW // 2)
        offset += WINDOW // 2
        end.read()
        end.ack()
    assert end.receiver.window.size > WINDOW


def test_a_window_that_is_not_used_shrinks_as_what_it_promised_is_consumed_and_grows_again() -> None:
    end, asked = End(), list[int]()

    def more(size: int) -> bool:
        asked.append(size)
        return True

    end.receiver.window.may_grow = more
    offset, now = 0, 0.0

    def bring(size: int) -> None:
        nonlocal offset
        end.arrive(offset, offset + size, now=now)
        offset += size
        end.read(now=now)
        end.ack()

    for _ in range(40):
        bring(WINDOW // 2)
    grown = end.receiver.window.size
    assert grown == WINDOW + sum(asked) >= 4 * WINDOW
    end.receiver.shrink(now)
    assert end.receiver.window.size == grown, "it was in use just now"

    now += 5.0
    promised = end.receiver.window.advertised
    end.receiver.shrink(now)
    assert end.receiver.window.held == promised - offset, "what was advertised is still counted"
    while end.receiver.window.held > WINDOW:
        now += 1.0
        before = end.receiver.window.held
        bring(WINDOW // 8)
        assert end.receiver.window.advertised == max(promised, offset + WINDOW)
        assert end.receiver.window.held == max(WINDOW, before - WINDOW // 8)
    for _ in range(40):
        bring(WINDOW // 2)
    assert end.receiver.window.size == end.receiver.window.held >= grown


def test_a_stream_that_nobody_reads_takes_no_room_of_others_when_its_window_is_to_shrink() -> None:
    end = End()
    offset = 0
    while end.stream.window.size < 8 * WINDOW:
        end.arrive(offset, offset + WINDOW // 2)
        offset += WINDOW // 2
        end.read()
        end.ack()
    end.arrive(offset, offset + WINDOW)  # from now on nobody reads it
    other = end.receiver.add(StreamId(2), 0.0)
    end.receiver.everything_dirty()
    end.ack()
    end.receiver.shrink(5.0)
    end.arrive(offset + WINDOW, end.stream.window.advertised)
    for start in range(0, 20 * WINDOW, WINDOW):
        end.arrive(start, start + WINDOW, other, now=5.0)
        end.receiver.read(other, -1, 5.0, RTT)
        end.receiver.everything_dirty()
        end.ack()
    end.read()
    end.receiver.shrink(10.0)
    assert end.receiver.window.held <= end.stream.window.size + other.window.size


def test_streams_that_have_ended_leave_no_room_behind_where_memory_is_short() -> None:
    end = End()
    other = end.receiver.add(StreamId(2), 0.0)
    assert other.window.grow(8 * WINDOW)
    end.receiver.forget(other)
    assert end.receiver.window.held == 9 * WINDOW
    end.receiver.shrink(0.0)
    assert end.receiver.window.held == end.receiver.window.size == WINDOW


# --- one window beside the others  ---


def test_every_stream_has_room_whatever_the_others_hold() -> None:
    end = End()
    end.arrive(0, WINDOW)
    for number in range(2, 2 * SessionSettings().max_streams, 2):
        other = end.receiver.add(StreamId(number), 0.0)
        end.receiver.everything_dirty()
        end.ack()
        end.arrive(0, WINDOW, other)
    assert end.receiver.window.advertised == end.receiver.charged == WINDOW * SessionSettings().max_streams


def test_windows_grow_together_as_far_as_the_session_allows_and_the_room_of_ended_streams_is_used_again() -> None:
    end = End(SessionSettings(max_session_window=4 * WINDOW))
    first, second = (end.receiver.add(StreamId(number), 0.0) for number in (2, 4))
    assert first.window.grow(2 * WINDOW)
    assert not second.window.grow(2 * WINDOW), "the sum of all windows would be five"
    assert end.receiver.window.size == 4 * WINDOW
    end.receiver.forget(first)
    assert second.window.grow(2 * WINDOW)
    assert end.receiver.window.size == 4 * WINDOW


def test_a_stream_of_one_who_grants_much_begins_with_as_much_once_the_peer_knows_the_stream() -> None:
    end = End(SessionSettings(initial_window=1 << 20))
    end.receiver.add(StreamId(2), 0.0)
    assert end.receiver.ack_now
    ack = end.ack()
    assert [(entry.stream, entry.window) for entry in ack.streams] == [(2, 1 << 20)]
    assert ack.session_window == 2 << 20


def test_what_was_read_is_announced_when_it_is_more_than_the_peer_has_left() -> None:
    end = End()
    end.receiver.window.may_grow = lambda _size: False
    other = end.receiver.add(StreamId(2), 0.0)
    end.arrive(0, WINDOW - 8000, other)
    end.arrive(0, 8000)
    end.ack()
    assert end.read() == 8000
    assert end.receiver.ack_now
    assert end.ack().session_window == WINDOW + 8000
