"""Streams of a peer that nobody takes bound what that peer can open, and keep what ended them."""

from __future__ import annotations

from multi.errors import StreamReset
from multi.protocol.settings import SessionSettings
from tests.unit.protocol.wiring import CLEAR, Ends


def test_streams_that_nobody_takes_make_no_room_for_others_even_when_they_are_reset() -> None:
    ends = Ends(CLEAR, CLEAR)
    ends.connect()
    ends.pump()
    opened = 0
    for _ in range(3 * SessionSettings().max_streams):
        stream = ends.client.session.open_stream(3, now=0.0)
        if stream is None:
            break
        opened += 1
        ends.client.session.reset(stream, 7, now=0.0)
        ends.client.session.stop_sending(stream, 7, now=0.0)
        ends.pump()
    assert opened == SessionSettings().max_streams


def test_a_stream_that_was_reset_before_it_was_taken_still_says_so() -> None:
    ends = Ends(CLEAR, CLEAR)
    ends.connect()
    ends.pump()
    stream = ends.client.session.open_stream(3, now=0.0)
    assert stream is not None
    ends.client.session.reset(stream, 7, now=0.0)
    ends.client.session.stop_sending(stream, 7, now=0.0)
    ends.pump()
    received = ends.server.session.receiver.streams[stream]
    ends.server.session.accept_stream(stream, now=0.0)
    ends.pump()
    assert stream not in ends.server.session.receiver.streams
    assert isinstance(received.error, StreamReset)
    assert received.error.code == 7
