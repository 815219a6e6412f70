"""When a connection that makes no progress becomes SUSPECT, by its own measure and with the peer as second witness."""

from __future__ import annotations

from multi.protocol.payloads import DrainStep, decode_drain, encode_drain
from multi.protocol.segment import HEADER_LENGTH, SegmentType
from multi.types import TransportSample

from .test_hostile_peer import two_lines
from .wiring import Ends, Line

T = SegmentType
RTT, VARIATION = 0.06, 0.08  # seconds, as a busy sender measures a path of 10 ms
WITHIN = 0.2  # seconds: more than round trip and slack, less than that with the variation


def silent() -> tuple[Ends, Line, Line]:
    """A server whose transport has waited for acknowledgements on one of two connections since now."""
    ends, bad, good = two_lines()
    bad.hold_up = bad.hold_down = True
    sampled(ends, bad)
    return ends, bad, good


def sampled(ends: Ends, line: Line, acked: int = 1) -> None:
    sample = TransportSample(rtt=RTT, rtt_variation=VARIATION, bytes_acked=acked, unacked=100_000)
    ends.server.session.sample(line.id, sample, now=ends.now)


def peer_says_silent(ends: Ends, line: Line, about: Line) -> None:
    number = ends.server.session.connections[about.id].number
    control = ends.server.session.receiver.control.cumulative
    line.inject(ends.segment(T.DRAIN, encode_drain(number, DrainStep.SILENT), sequence=control))
    ends.pump()


def test_round_trips_that_vary_make_it_wait() -> None:
    ends, bad, _good = silent()
    ends.advance(WITHIN, step=0.01)
    assert ends.server.states()[bad.id] == "active"
    ends.advance(2 * (RTT + 4 * VARIATION), step=0.01)
    assert ends.server.states()[bad.id] == "suspect"


def test_when_the_peer_waits_in_vain_too_their_variation_does_not_count() -> None:
    ends, bad, good = silent()
    ends.advance(0.01)
    peer_says_silent(ends, good, bad)
    assert ends.server.states()[bad.id] == "active", "the peer's word alone is not enough"
    ends.advance(WITHIN, step=0.01)
    assert ends.server.states()[bad.id] == "suspect"


def test_progress_after_the_peers_word_counts_more() -> None:
    ends, bad, good = silent()
    peer_says_silent(ends, good, bad)
    ends.advance(0.05, step=0.01)
    sampled(ends, bad, acked=2)
    ends.advance(WITHIN, step=0.01)
    assert ends.server.states()[bad.id] == "active"


def test_the_word_of_a_connection_about_itself_is_none() -> None:
    ends, bad, _good = silent()
    bad.hold_up = False
    peer_says_silent(ends, bad, bad)
    sampled(ends, bad)
    bad.hold_up = True
    ends.advance(WITHIN, step=0.01)
    assert ends.server.states()[bad.id] == "active"


def test_who_suspects_by_silence_says_so_on_what_is_left() -> None:
    ends, bad, good = silent()
    good.sent_down.clear()
    ends.advance(2 * (RTT + 4 * VARIATION), step=0.01)
    number = ends.server.session.connections[bad.id].number
    drains = [decode_drain(s[HEADER_LENGTH:]) for s in good.sent_down if s[1] == T.DRAIN]
    assert drains == [(number, DrainStep.SILENT)]
