"""Silence, suspicion, questions and drains: what becomes of a connection that says nothing, or is wanted no more."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from multi.events import ConnectionChanged
from multi.protocol.liveness import DEAD_AFTER, DEAD_AFTER_LAST, MAX_PROBE, MIN_PROBE
from multi.protocol.payloads import DrainStep, Keepalive, decode_drain, decode_keepalive, encode_drain, encode_keepalive
from multi.protocol.segment import HEADER_LENGTH, SegmentType
from multi.protocol.settings import KEEPALIVE_INTERVAL, SessionSettings
from multi.reasons import Cause, Reason
from multi.types import STREAM_ZERO, ConnectionFacts, Role, TransportSample

from .test_hostile_peer import two_lines
from .wiring import CLEAR, PLAIN, QUIC, TLS, Ends, Line, connected, kinds

T = SegmentType
RTT, VARIATION = 0.06, 0.08  # seconds, as a busy sender measures a path of 10 ms
WITHIN = 0.2  # seconds: more than round trip and slack, less than that with the variation


def silent() -> tuple[Ends, Line, Line]:
    """A server whose transport has waited for acknowledgements on one of two connections since now."""
    ends, bad, good = two_lines()
    bad.hold_up = bad.hold_down = True
    sampled(ends, bad)
    return ends, bad, good


def sampled(ends: Ends, line: Line, acked: int = 1, not_sent: int = 0) -> None:
    sample = TransportSample(rtt=RTT, rtt_variation=VARIATION, bytes_acked=acked, unacked=100_000, not_sent=not_sent)
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


def test_where_nothing_is_heard_either_the_peers_word_is_enough_and_the_answer_goes_elsewhere() -> None:
    ends, bad, _good = two_lines()
    ends.advance(1.0, step=0.01)
    dead(ends, bad)
    waiting = TransportSample(rtt=RTT, bytes_acked=1, unacked=100)
    ends.client.session.sample(bad.id, waiting, now=ends.now)
    while ends.client.states()[bad.id] == "active":
        ends.advance(0.01, step=0.01)
    assert ends.server.states()[bad.id] == "suspect"
    bad.sent_down.clear()
    ends.server.session.write(STREAM_ZERO, b"answer", now=ends.now)
    ends.pump()
    assert ends.client.got() == b"answer"
    assert T.DATA not in kinds(bad.sent_down)


def test_what_the_peer_suspected_in_vain_recovers_with_the_answer_to_the_first_question() -> None:
    ends, bad, good = two_lines()
    ends.advance(1.0, step=0.01)
    peer_says_silent(ends, good, bad)
    ends.advance(0.3, step=0.01)
    assert ends.server.states()[bad.id] == "active"


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


# --- a path that was slow for a while  ---


def test_who_was_near_before_is_asked_again_while_others_are_used() -> None:
    ends, near, far = two_lines()
    server = ends.server.session
    connection = server.connections[near.id]

    def talk(mean: float, seconds: float = 1.0) -> int:
        """The server speaks over `far`; the other's transport remembers a mean. Returns how often it is asked."""
        before = questions(near, down=True)
        for _ in range(round(seconds * 10)):
            server.connections[far.id].sent_at = ends.now
            server.sample(far.id, TransportSample(rtt=0.06, min_rtt=0.05), now=ends.now)
            server.sample(near.id, TransportSample(rtt=mean, min_rtt=0.01), now=ends.now)
            ends.advance(0.02)
            near.hold_up = False
            ends.pump()
            near.hold_up = True
            ends.advance(0.08)
        return questions(near, down=True) - before

    near.hold_up = True
    assert talk(mean=0.05) == 0, "it is known to be near"
    assert talk(mean=0.25) >= 1
    assert connection.rtt < 0.05, "the answer was sooner"
    assert talk(mean=0.25) <= 1, "and for a while that is known"


@pytest.mark.parametrize("least", [0.08, 0.0595], ids=["farther", "hardly nearer"])
def test_who_was_never_nearer_by_what_counts_is_left_alone(least: float) -> None:
    ends, one, other = two_lines()
    server = ends.server.session
    for _ in range(30):
        server.connections[other.id].sent_at = ends.now
        server.sample(other.id, TransportSample(rtt=0.06, min_rtt=0.05), now=ends.now)
        server.sample(one.id, TransportSample(rtt=0.25, min_rtt=least), now=ends.now)
        ends.advance(0.1)
    assert questions(one, down=True) == 0


# --- a network that swallows large packets  ---


def stuck(ends: Ends, *lines: Line, not_sent: int = 0, turns: int = 20) -> None:
    """For a second the server hears its peer on `lines`, whose transports get on with nothing."""
    for turn in range(turns):
        for line in lines:
            sampled(ends, line, not_sent=not_sent)
            line.inject(ends.segment(T.KEEPALIVE, encode_keepalive(Keepalive(turn + 1, pong=True))))
        ends.advance(0.05)


def carried(line: Line) -> int:
    """Bytes of streams that the server has put on a line."""
    return sum(len(segment) - HEADER_LENGTH for segment in line.sent_down if segment[1] == T.DATA)


def test_what_a_stuck_transport_carries_goes_elsewhere_although_its_peer_is_heard() -> None:
    ends, bad, good = two_lines()
    ends.server.session.set_role(good.id, Role.BACKUP, now=ends.now)
    bad.hold_down = True
    ends.write(ends.server, bytes(1000))
    assert (carried(bad), carried(good)) == (1000, 0)
    stuck(ends, bad)
    assert (carried(bad), carried(good)) == (1000, 1000)
    assert ends.server.states()[bad.id] == "active", "it is alive"
    ends.write(ends.server, bytes(500))
    assert (carried(bad), carried(good)) == (1000, 1500)
    sampled(ends, bad, acked=2)
    ends.write(ends.server, bytes(500))
    assert (carried(bad), carried(good)) == (1500, 1500), "it gets on again"


def test_a_stuck_transport_is_given_up_after_seconds_unless_it_waits_for_its_peer_to_read() -> None:
    for not_sent, state in ((0, "lost"), (100_000, "active")):
        ends, bad, _good = two_lines()
        bad.hold_down = True
        ends.write(ends.server, bytes(1000))
        for _ in range(4):
            stuck(ends, bad, not_sent=not_sent)
        assert ends.server.states()[bad.id] == "active"
        stuck(ends, bad, not_sent=not_sent)
        assert ends.server.states()[bad.id] == state


def test_a_transport_is_as_long_stuck_as_it_gets_on_with_nothing_although_its_peer_falls_silent_in_between() -> None:
    """As over the only network, whose peer speaks when it is asked: it was suspect and heard again for ever."""
    ends, bad, _good = two_lines()
    bad.hold_down = True
    ends.write(ends.server, bytes(1000))
    since: set[float] = set()
    for turn in range(7):
        ends.advance(0.6, step=0.05)
        sampled(ends, bad)
        bad.inject(ends.segment(T.KEEPALIVE, encode_keepalive(Keepalive(turn + 1, pong=True))))
        ends.advance(0.01)
        since.add(ends.server.session.connections[bad.id].stuck_since)
    seen = [e.state.value for e in ends.server.events if isinstance(e, ConnectionChanged) and e.connection == bad.id]
    assert seen.count("suspect") > 3
    assert len(since - {-inf}) == 1


def test_a_stuck_transport_is_not_given_up_for_the_seconds_in_which_this_process_stood_still() -> None:
    ends, bad, _good = two_lines()
    bad.hold_down = True
    ends.write(ends.server, bytes(1000))
    stuck(ends, bad, turns=2)
    ends.now += 5.0
    stuck(ends, bad)
    assert ends.server.states()[bad.id] == "active"


def test_a_stuck_transport_carries_on_when_it_is_the_only_one() -> None:
    ends = Ends(CLEAR, CLEAR)
    line = ends.connect()
    ends.pump()
    line.hold_down = True
    ends.write(ends.server, bytes(1000))
    stuck(ends, line)
    assert carried(line) == 1000, "nothing is sent twice into the same queue"
    ends.write(ends.server, bytes(500))
    assert carried(line) == 1500


# --- a segment whose rest does not come  ---


def part(ends: Ends, line: Line, facts: ConnectionFacts, size: int = 16_000) -> None:
    """Of a segment that the server sends, the client gets so many bytes and then nothing."""
    line.hold_up = line.hold_down = True
    ends.write(ends.server, bytes(16_000))
    lane, segment = line.down[-1]
    assert lane == facts.lanes - 1
    ends.client.session.receive(line.id, memoryview(segment)[:size], lane, now=ends.now)


@pytest.mark.parametrize("settings", [CLEAR, SessionSettings()])
@pytest.mark.parametrize("size", [1, HEADER_LENGTH, 9_000])
def test_a_peer_that_has_sent_a_part_of_a_segment_owes_its_rest(settings: SessionSettings, size: int) -> None:
    """As over the only network that begins to swallow large packets: who only reads has nothing acknowledged."""
    ends, line = connected(settings)
    part(ends, line, PLAIN, size)
    asked = questions(line)
    assert not ends.client.session.at_rest()
    ends.advance(1.4, step=0.01)
    assert (ends.client.states()[line.id], questions(line)) == ("active", asked), "the network may be slow"
    ends.advance(4.2, step=0.01)
    assert ends.client.states()[line.id] == "suspect"


@pytest.mark.parametrize(("size", "state"), [(16_000, "suspect"), (100, "active")])
def test_the_rest_of_a_segment_is_owed_sooner_where_much_has_come(size: int, state: str) -> None:
    ends, line = connected()
    much_comes(ends, size)
    part(ends, line, PLAIN, 100)
    ends.advance(1.0, step=0.01)
    assert ends.client.states()[line.id] == "active", "the peer may be busy"
    ends.advance(0.7, step=0.01)
    assert ends.client.states()[line.id] == state


def much_comes(ends: Ends, size: int = 16_000) -> None:
    for _ in range(20):
        ends.write(ends.server, bytes(size))
        ends.advance(0.05)


def test_while_the_rest_of_a_segment_does_not_come_acknowledgements_end_no_suspicion() -> None:
    """Small packets still get through: it would be suspect and active again with every round trip."""
    ends, line = connected()
    much_comes(ends)
    part(ends, line, PLAIN)
    ends.advance(1.4, step=0.01)
    for count in range(50):
        ends.advance(0.01)
        ends.write(ends.client, b"question")
        sample = TransportSample(rtt=RTT, bytes_acked=1 + count, unacked=1)
        ends.client.session.sample(line.id, sample, now=ends.now)
    changes = [e.state.value for e in ends.client.events if isinstance(e, ConnectionChanged)]
    assert (ends.client.states()[line.id], changes.count("suspect")) == ("suspect", 1)


def test_the_rest_of_a_segment_that_was_late_once_may_take_longer() -> None:
    """Where packets are always as far apart as that it would be suspect again and again."""
    ends, line = connected()
    for pause, state in ((1.7, "suspect"), (2.0, "active")):
        much_comes(ends)
        part(ends, line, PLAIN)
        cut = line.down[-1]
        for _ in range(round(pause / 0.1)):
            ends.advance(0.1, step=0.01)
            ends.client.session.sample(line.id, TransportSample(rtt=RTT, bytes_acked=1), now=ends.now)
        assert ends.client.states()[line.id] == state
        line.down[line.down.index(cut)] = 0, cut[1][16_000:]
        line.hold_up = line.hold_down = False
        ends.pump()
        assert ends.client.states()[line.id] == "active"


def test_a_rest_that_never_came_gives_the_next_no_more_time() -> None:
    ends, line = connected()
    for _ in range(4):
        much_comes(ends)
        part(ends, line, PLAIN)
        for _ in range(17):
            ends.advance(0.1, step=0.01)
        assert ends.client.states()[line.id] == "suspect"
        ends.lose(line)
        line = ends.connect(PLAIN)
        ends.pump()


@pytest.mark.parametrize(("facts", "size"), [(PLAIN, 16_000 + HEADER_LENGTH), (QUIC, 9_000)])
def test_a_peer_that_pauses_owes_nothing_nor_one_that_speaks_on_another_lane(facts: ConnectionFacts, size: int) -> None:
    ends = Ends(CLEAR, CLEAR)
    line = ends.connect(facts)
    ends.pump()
    asked = questions(line)
    part(ends, line, facts, size)
    for _ in range(50):
        ends.advance(0.1)
        ends.client.session.sample(line.id, TransportSample(rtt=RTT, bytes_acked=1), now=ends.now)
    assert (ends.client.states()[line.id], questions(line)) == ("active", asked)


@pytest.mark.parametrize(("received_ago", "state"), [(inf, "active"), (0.0, "active"), (6.0, "suspect")])
def test_the_rest_of_a_segment_in_tls_is_late_when_the_transport_says_that_nothing_comes(
    received_ago: float, state: str
) -> None:
    """A record that is not whole is not seen here, and a slow network takes a while for one."""
    ends = Ends(CLEAR, CLEAR)
    line = ends.connect(TLS)
    ends.pump()
    part(ends, line, TLS, 9_000)
    for _ in range(60):
        ends.advance(0.1)
        sample = TransportSample(rtt=RTT, bytes_acked=1, received_ago=received_ago)
        ends.client.session.sample(line.id, sample, now=ends.now)
    assert ends.client.states()[line.id] == state
    sample = TransportSample(rtt=RTT, bytes_acked=1, received_ago=0.0)
    ends.client.session.sample(line.id, sample, now=ends.now)
    assert ends.client.states()[line.id] == "active", "more of the record has come"


def test_what_came_just_before_a_network_lost_its_carrier_is_no_sign_that_it_is_back() -> None:
    """Transports tell in ticks of some milliseconds when something came."""
    ends, line = connected()
    much_comes(ends)
    ends.client.session.suspect(line.id, Reason(Cause.NETWORK_GONE, "no carrier"), now=ends.now)
    ends.now += 0.001
    ends.client.session.sample(line.id, TransportSample(rtt=RTT, bytes_acked=1, received_ago=0.0), now=ends.now)
    assert ends.client.states()[line.id] == "suspect"


# --- questions and the end of patience  ---


def questions(line: Line, *, down: bool = False) -> int:
    """How often one side has asked for a sign of life."""
    raw = line.sent_down if down else line.sent_up
    return len([s for s in raw if s[1] == T.KEEPALIVE and not decode_keepalive(s[HEADER_LENGTH:]).pong])


def dead(ends: Ends, line: Line) -> None:
    """From now on the network under it swallows everything."""
    line.change_up = line.change_down = lambda _segment: None


def test_an_idle_connection_is_kept_alive_and_never_suspected() -> None:
    ends, one, _other = two_lines()
    before = questions(one)
    ends.advance(10 * KEEPALIVE_INTERVAL, step=1.0)
    assert 9 <= questions(one) - before <= 11
    assert set(ends.client.states().values()) == {"active"}
    assert not [e for e in ends.client.events if isinstance(e, ConnectionChanged) and e.state.value == "suspect"]


def test_a_short_idle_timeout_makes_keepalives_come_sooner_and_the_loss_too() -> None:
    settings = replace(CLEAR, idle_timeouts=(("tcp", 3.0),))
    ends = Ends(settings, settings)
    line = ends.connect()
    ends.pump()
    ends.advance(9.0)
    assert questions(line) + questions(line, down=True) >= 8
    assert ends.client.states()[line.id] == "active"
    dead(ends, line)
    ends.advance(3.5)
    (reason,) = [c.reason for c in ends.client.session.connections.values()]
    assert reason.cause in (Cause.IDLE_TIMEOUT, Cause.NO_PROGRESS)
    assert not ends.client.session.connections[line.id].alive


@pytest.mark.parametrize(("others", "patience"), [(1, DEAD_AFTER), (0, DEAD_AFTER_LAST)])
def test_a_suspect_connection_is_given_up_later_when_it_is_the_last(others: int, patience: float) -> None:
    ends = Ends(CLEAR, CLEAR)
    line = ends.connect()
    for _ in range(others):
        ends.connect()
    ends.pump()
    dead(ends, line)
    ends.client.session.ping(line.id, now=ends.now)
    ends.client.session.suspect(line.id, Reason(Cause.NETWORK_GONE, "carrier lost"), now=ends.now)
    ends.pump()
    ends.advance(patience - 0.2)
    assert ends.client.states()[line.id] == "suspect"
    ends.advance(0.4)
    assert ends.client.session.connections[line.id].reason.cause is Cause.NO_PROGRESS
    assert ends.client.states()[line.id] == "lost"


def test_a_suspect_connection_is_asked_ever_less_often() -> None:
    ends = Ends(CLEAR, CLEAR)
    line = ends.connect()
    ends.pump()
    dead(ends, line)
    ends.client.session.suspect(line.id, Reason(Cause.NETWORK_GONE, "carrier lost"), now=ends.now)
    asked = []
    for _ in range(8):
        before = questions(line)
        ends.advance(1.0, step=0.01)
        asked.append(questions(line) - before)
    assert asked[0] > asked[-1] == 1
    assert asked == sorted(asked, reverse=True)


@pytest.mark.parametrize("sign", ["a word of the peer", "progress of the transport"])
def test_a_sign_of_life_brings_a_suspect_connection_back(sign: str) -> None:
    ends, line, other = two_lines()
    ends.client.session.set_role(other.id, Role.BACKUP, now=ends.now)
    line.hold_up = other.hold_up = True
    ends.write(ends.client, bytes(1000))
    ends.client.session.suspect(line.id, Reason(Cause.NO_PROGRESS, "silence"), now=ends.now)
    if sign == "a word of the peer":
        line.answer(ends.segment(T.KEEPALIVE, encode_keepalive(Keepalive(5))))
        ends.pump()
    else:
        ends.client.session.sample(line.id, TransportSample(rtt=0.02, bytes_acked=1, unacked=5), now=ends.now)
    assert ends.client.states()[line.id] == "active"
    assert ends.client.session.connections[line.id].reason.cause is Cause.RECOVERED


def test_parts_of_a_sealed_segment_are_signs_of_life() -> None:
    """A slow network takes seconds for one, and the transport's acknowledgements wait behind it."""
    ends = Ends()
    line = ends.connect()
    ends.pump()
    line.hold_up = line.hold_down = True
    ends.write(ends.server, bytes(16_000))
    ((lane, sealed),) = line.down
    waiting = TransportSample(rtt=RTT, rtt_variation=RTT / 2, unacked=1_000)
    ends.client.session.sample(line.id, waiting, now=ends.now)
    for at in range(0, 15_000, 1_000):
        ends.client.session.receive(line.id, memoryview(sealed)[at : at + 1_000], lane, now=ends.now)
        ends.advance(WITHIN, step=0.01)
        assert ends.client.states()[line.id] == "active"
    ends.advance(WITHIN, step=0.01)
    assert ends.client.states()[line.id] == "suspect", "nothing more has come"


def test_parts_of_a_tls_record_are_signs_of_life() -> None:
    """Only the kernel sees them: TLS hands out nothing before a record is whole."""
    ends = Ends(CLEAR, CLEAR)
    line = ends.connect()
    ends.pump()
    line.hold_up = line.hold_down = True
    for _ in range(15):
        sample = TransportSample(rtt=RTT, rtt_variation=RTT / 2, unacked=1_000, received_ago=0.0)
        ends.client.session.sample(line.id, sample, now=ends.now)
        assert ends.client.states()[line.id] == "active"
        ends.advance(WITHIN, step=0.01)
    ends.advance(WITHIN, step=0.01)
    assert ends.client.states()[line.id] == "suspect", "nothing more has come"


def test_what_came_before_the_silence_does_not_lengthen_it() -> None:
    """A sample is taken when silence is about to be believed: the bytes it counts may have come long before."""
    ends = Ends(CLEAR, CLEAR)
    line = ends.connect()
    ends.pump()
    line.hold_up = line.hold_down = True
    since = ends.now
    ends.client.session.sample(line.id, TransportSample(rtt=RTT, rtt_variation=RTT / 2, unacked=1_000), now=since)
    connection = ends.client.session.connections[line.id]
    ends.advance(connection.suspect_after - 0.01, step=0.01)
    assert ends.client.states()[line.id] == "active"
    late = TransportSample(rtt=RTT, rtt_variation=RTT / 2, unacked=1_000, received_ago=ends.now - since)
    ends.client.session.sample(line.id, late, now=ends.now)
    ends.advance(since + connection.suspect_after + 0.02 - ends.now, step=0.01)
    assert ends.client.states()[line.id] == "suspect"


def test_a_server_that_never_answers_the_handshake_is_left_in_time() -> None:
    ends = Ends(CLEAR, CLEAR)
    line = ends.connect()
    dead(ends, line)
    line.hold_up = True
    ends.advance(CLEAR.handshake_timeout + 0.2)
    connection = ends.client.session.connections[line.id]
    assert connection.reason.cause is Cause.HANDSHAKE_TIMEOUT
    assert "does not speak MULTI" in connection.reason


# --- draining  ---


def test_a_drained_connection_closes_once_everything_it_carried_is_acknowledged() -> None:
    ends, line, other = two_lines()
    line.hold_down = other.hold_down = True
    ends.client.session.set_role(other.id, Role.BACKUP, now=ends.now)
    ends.write(ends.client, bytes(50_000))
    assert ends.client.session.connections[line.id].in_flight
    ends.client.session.drain(line.id, now=ends.now)
    ends.pump()
    assert ends.client.states()[line.id] == "draining"
    line.hold_down = other.hold_down = False
    ends.advance(0.2)
    assert ends.client.states()[line.id] == "closed"
    assert ends.client.session.connections[line.id].reason.cause is Cause.DRAINED
    assert ends.client.session.sender.reinjected_bytes == 0, "a planned change costs nothing"
    assert len(ends.server.got()) == 50_000


def test_nothing_breaks_before_it_is_made() -> None:
    ends = Ends(CLEAR, CLEAR)
    line = ends.connect()
    ends.pump()
    ends.client.session.drain(line.id, now=ends.now)
    ends.advance(1.0)
    assert ends.client.states()[line.id] == "draining"
    ends.write(ends.client, b"still carried")
    assert ends.server.got() == b"still carried"
    ends.connect()
    ends.advance(0.5)
    assert ends.client.states()[line.id] == "closed"


def test_a_draining_connection_that_makes_no_progress_is_given_up_at_once() -> None:
    ends, line, other = two_lines()
    ends.client.session.set_role(other.id, Role.BACKUP, now=ends.now)
    dead(ends, line)
    ends.write(ends.client, bytes(50_000))
    ends.client.session.drain(line.id, now=ends.now)
    ends.advance(1.0)
    assert ends.client.states()[line.id] == "lost"
    assert len(ends.server.got()) == 50_000, "what it carried went over the other"


# --- windows  ---


def test_a_window_whose_acknowledgement_was_lost_is_asked_for() -> None:
    ends = Ends(CLEAR, CLEAR)
    line = ends.connect()
    ends.pump()
    ends.server.reading = False
    size = CLEAR.initial_window
    ends.write(ends.client, bytes(size + 1000))
    ends.advance(0.1)
    assert ends.client.session.sender.blocked_by_window
    line.change_down = lambda segment: None if segment[1] == T.ACK else segment
    assert len(ends.server.session.read(STREAM_ZERO, -1, now=ends.now)) == size
    ends.advance(0.1)
    line.change_down = None
    assert ends.server.session.streams.readable(STREAM_ZERO) == 0, "the word of the new window is lost"
    ends.advance(2 * MIN_PROBE)
    assert ends.server.session.streams.readable(STREAM_ZERO) == 1000


def test_an_application_that_does_not_read_is_asked_ever_less_often() -> None:
    ends = Ends(CLEAR, CLEAR)
    line = ends.connect()
    ends.pump()
    ends.server.reading = False
    ends.write(ends.client, bytes(2 * CLEAR.initial_window))
    before = questions(line)
    ends.advance(60.0)
    assert 60 / MAX_PROBE <= questions(line) - before <= 3 * 60 / MAX_PROBE
