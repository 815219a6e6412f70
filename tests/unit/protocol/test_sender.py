"""Which bytes a session sends next, and which again: order, windows, rescue and opportunistic copies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import cycle, pairwise
from typing import Any

import pytest

from multi.protocol.connection import SLOW_SEGMENT, URGENT_WAIT, Connection
from multi.protocol.payloads import StreamAck
from multi.protocol.segment import SegmentDecoder
from multi.protocol.send_stream import SendStream
from multi.protocol.sender import HOLD_CHECK, MAX_COPIES, REINJECT_ALLOWANCE, REINJECT_BUDGET, Sender
from multi.protocol.state import Step
from multi.reasons import Cause, Reason
from multi.schedulers import create_scheduler
from multi.schedulers.base import WAIT, ConnectionView, Scheduler, SendRequest
from multi.types import ConnectionFacts, ConnectionId, ConnectionState, SessionId, StreamId, TransportSample

AS_IT_COMES = Reason(Cause.CONNECTED, "as it comes")
PLENTY = 1 << 30  # bytes of window
MBYTE = 1_000_000.0
TWO = ((MBYTE, 0.020), (MBYTE, 0.020))  # connections: with one alone nobody asks a scheduler

Sent = tuple[int, int, int]
"""(stream, first offset, offset behind the last)."""


class Chooses:
    """A scheduler that does what a test wants, and remembers what it was asked."""

    def __init__(self, choose: Callable[[Sequence[ConnectionView]], Sequence[ConnectionView]]) -> None:
        self._choose = choose
        self.requests: list[SendRequest] = []

    def select(self, request: SendRequest, connections: Sequence[ConnectionView]) -> Sequence[ConnectionView]:
        self.requests.append(request)
        return self._choose(connections)


def numbered(*wanted: int) -> Chooses:
    return Chooses(lambda connections: [c for c in connections if c.id in wanted])


class Bench:
    """A sender with connections of its own, on which nothing arrives unless the test says so."""

    def __init__(
        self,
        *rates_and_delays: tuple[float, float],
        scheduler: Scheduler | None = None,
        reinject: str = "full",
        window: int = PLENTY,
        answered: bool = True,
    ) -> None:
        self.now = 0.0
        self.connections: dict[ConnectionId, Connection] = {}
        self.failures: list[Exception] = []
        self.sender = Sender(
            self.connections, scheduler or create_scheduler("lowest_latency", {}), reinject, window, self.replace
        )
        if answered:
            self.sender.peer_grants(window)
        for rate, rtt in rates_and_delays or ((MBYTE, 0.020),):
            self.connect(rate, rtt)
        self.stream()

    def replace(self, error: Exception, stream: SendStream) -> None:
        self.failures.append(error)
        self.sender.scheduler = create_scheduler("lowest_latency", {})

    def connect(self, rate: float, rtt: float, *, proved: bool = True, lanes: int = 1) -> Connection:
        facts = ConnectionFacts("tcp" if lanes == 1 else "quic", lanes=lanes)
        made = Connection(ConnectionId(len(self.connections)), SessionId(bytes(16)), facts, self.now)
        self.connections[made.id] = made
        made.step(Step.PROVED if proved else Step.MAY_SEND, AS_IT_COMES)
        made.take_sample(TransportSample(rtt=rtt, rtt_variation=rtt / 10, min_rtt=rtt, rate=rate), self.now)
        made.accelerates = False  # it has done so before
        self.credit(made.id, PLENTY)
        return made

    def credit(self, connection: int, size: int) -> None:
        found = self.connections[ConnectionId(connection)]
        found.channel_credit = size
        found.refresh_credit(self.now)

    def stream(self, priority: int = 3, window: int = PLENTY) -> SendStream:
        stream = StreamId(2 * len(self.sender.streams))
        made = SendStream(stream, window, priority, self.sender.active)
        self.sender.add(made)
        return made

    def write(self, size: int, stream: int = 0) -> None:
        self.sender.streams[StreamId(stream)].write(bytes(size))

    def fill(self, *, also_unproved: bool = False) -> dict[int, list[Sent]]:
        """Let the sender send; return what each connection was given, in order."""
        usable = [c for c in self.connections.values() if c.state is ConnectionState.ACTIVE or also_unproved]
        self.sender.fill(usable, self.now)
        given: dict[int, list[Sent]] = {}
        for connection in self.connections.values():
            raw, connection.output[0] = b"".join(connection.output[0]), []
            for segment in SegmentDecoder().feed(memoryview(raw)):
                end = segment.sequence + len(segment.payload)
                given.setdefault(connection.id, []).append((segment.stream, segment.sequence, end))
        return given

    def lanes(self, connection: Connection) -> list[set[StreamId]]:
        """The streams whose data each lane has been given since it was asked last."""
        found = [{s.stream for s in SegmentDecoder().feed(memoryview(b"".join(raw)))} for raw in connection.output]
        connection.output = [[] for _ in connection.output]
        return found

    def acknowledge(self, cumulative: int, *ranges: tuple[int, int], stream: int = 0) -> None:
        self.sender.acknowledge(StreamAck(StreamId(stream), cumulative, PLENTY, ranges), self.now)

    def suspect(self, connection: int) -> None:
        found = self.connections[ConnectionId(connection)]
        found.step(Step.SILENT, AS_IT_COMES)
        self.sender.lose(found)

    def lose(self, connection: int) -> None:
        found = self.connections[ConnectionId(connection)]
        found.step(Step.LOSE, AS_IT_COMES)
        self.sender.lose(found)
        self.sender.detach(found)


def covered(given: list[Sent]) -> int:
    return sum(end - start for _, start, end in given)


# --- new bytes  ---


def test_everything_written_is_sent_once_in_order() -> None:
    bench = Bench()
    bench.write(100_000)
    (given,) = bench.fill().values()
    assert given[0][1] == 0
    assert all(before[2] == after[1] for before, after in pairwise(given))
    assert given[-1][2] == 100_000
    assert bench.fill() == {}
    assert bench.connections[ConnectionId(0)].in_flight == 100_000
    assert (bench.sender.used, bench.sender.reinjected_bytes) == (100_000, 0)


def test_no_byte_goes_beyond_the_session_window() -> None:
    bench = Bench(window=10_000)
    bench.write(50_000)
    assert covered(bench.fill()[0]) == 10_000
    assert bench.sender.blocked_by_window
    bench.sender.widen(30_000)
    assert covered(bench.fill()[0]) == 20_000


def test_no_byte_goes_beyond_a_streams_window() -> None:
    bench = Bench()
    narrow = bench.stream(window=5_000)
    bench.write(20_000, stream=narrow.id)
    assert bench.fill() == {0: [(narrow.id, 0, 5_000)]}
    assert bench.sender.blocked_by_window
    bench.sender.acknowledge(StreamAck(narrow.id, 5_000, 12_000), bench.now)
    assert bench.fill() == {0: [(narrow.id, 5_000, 12_000)]}


def test_a_window_that_opens_byte_by_byte_is_not_used_byte_by_byte() -> None:
    bench = Bench(window=10_000)
    bench.write(50_000)
    bench.fill()
    for window in range(10_001, 10_500):
        bench.sender.widen(window)
        assert bench.fill() == {}
    bench.sender.widen(20_000)
    assert covered(bench.fill()[0]) == 10_000


def test_before_the_peer_has_answered_only_so_much_is_sent() -> None:
    bench = Bench(window=4_000, answered=False)
    bench.write(50_000)
    assert covered(bench.fill()[0]) == 4_000
    bench.sender.widen(1 << 20)
    assert covered(bench.fill()[0]) == 46_000


def test_a_small_window_that_is_shut_is_spread_over_a_round_trip() -> None:
    size = 256 * 1024
    bench = Bench((20 * MBYTE, 0.020), (20 * MBYTE, 0.0001), window=size)
    far, local = bench.connections.values()
    assert bench.sender.pace(far) == 0.0, "nothing has stopped it yet"
    bench.write(size + 1)
    bench.fill()
    assert bench.sender.pace(far) == pytest.approx(1.1 * size / 0.020)
    assert bench.sender.pace(local) == 0.0, "inside a machine it would only cost time"
    bench.sender.widen(16 * size)
    bench.write(2 * size)
    bench.fill()
    assert bench.sender.pace(far) == 0.0, "a large window is bounded by the networks"


def test_a_small_window_is_spread_until_two_have_been_sent_without_being_stopped() -> None:
    """A window that is twice what a path carries lasts for two round trips, and BBR needs more to leave its startup."""
    size = 256 * 1024
    bench = Bench((20 * MBYTE, 0.020), window=size)
    (path,) = bench.connections.values()
    bench.write(size + 1)
    bench.fill()
    for at in range(size, 4 * size, size // 4):
        bench.acknowledge(at)
        bench.sender.widen(at + size)
        bench.write(size // 4)
        bench.fill()
        assert bool(bench.sender.pace(path)) == (bench.sender.used < 3 * size)


@pytest.mark.parametrize("other", [2 * MBYTE, 6 * MBYTE])
def test_a_path_is_sent_what_it_has_carried_where_the_window_is_more_than_all_of_them_carry(other: int) -> None:
    size = 256 * 1024
    bench = Bench((4 * MBYTE, 0.020), (other, 0.020), window=size)
    path, _ = bench.connections.values()
    bench.write(size + 1)
    bench.fill()
    if other < 4 * MBYTE:
        assert bench.sender.pace(path) == pytest.approx(1.1 * 4 * MBYTE)
    else:
        assert bench.sender.pace(path) == pytest.approx(1.1 * size / 0.020), "it may have had but a part of the window"


def test_a_window_that_stays_shut_for_long_is_not_taken_for_one_that_grows() -> None:
    size, scheduler = 128 * 1024, numbered(0)
    bench = Bench(*TWO, scheduler=scheduler, window=size)
    bench.write(3 * size)
    bench.fill()
    bench.now = 0.5
    bench.acknowledge(size)
    bench.sender.widen(2 * size)
    bench.fill()
    assert not scheduler.requests[-1].window_grows


@pytest.mark.parametrize(
    ("given", "fills_queues", "window", "max_rate"),
    [
        (100_000, False, PLENTY, 0.0),
        (100_000, True, PLENTY, 0.0),  # it does not leave its startup by what it was given
        (0, False, PLENTY, 0.0),
        (100_000, False, 100_000, 0.0),  # the peer allows no more
        (100_000, False, PLENTY, 1.0),
    ],
)
def test_a_connection_that_is_kept_in_its_startup_gets_little_more_than_its_path_carries(
    given: int, fills_queues: bool, window: int, max_rate: float
) -> None:
    """BBR sends at 2.9 times the rate as long as it gets less than that."""
    bench = Bench((MBYTE, 0.020), window=window)
    bench.write(1_000_000)
    (connection,) = bench.connections.values()
    connection.facts = replace(connection.facts, fills_queues=fills_queues)
    bench.credit(0, given)
    bench.fill()
    told = TransportSample(rtt=0.060, min_rtt=0.020, rate=MBYTE, app_limited=True, unacked=given)
    paces = []
    for _ in range(20):
        bench.now += 0.010
        connection.take_sample(told, bench.now)
        bench.credit(0, PLENTY)
        if max_rate:
            connection.set_max_rate(max_rate)
            bench.credit(0, PLENTY)
            connection.credit = 0
        paces.append(bench.sender.pace(connection))
    usual = given > 0 and not fills_queues and window == PLENTY and not max_rate
    assert paces[0] == 0.0
    assert paces[-1] == pytest.approx(1.1 * MBYTE if usual else 0.0)


def test_a_sender_that_the_window_never_stopped_is_not_paced() -> None:
    bench = Bench(window=256 * 1024)
    for at in range(1, 40):
        bench.write(16_000)
        bench.fill()
        bench.acknowledge(16_000 * at)
        bench.sender.widen(16_000 * at + 256 * 1024)
    assert bench.sender.pace(bench.connections[ConnectionId(0)]) == 0.0


def test_nothing_is_sent_without_credit_and_the_last_segment_may_exceed_it() -> None:
    bench = Bench()
    bench.write(50_000)
    bench.credit(0, 0)
    assert bench.fill() == {}
    bench.credit(0, 1)
    assert covered(bench.fill()[0]) == SLOW_SEGMENT


def test_an_urgent_stream_goes_first_and_equals_take_turns() -> None:
    bench = Bench((10 * MBYTE, 0.020))
    one, other, urgent = bench.stream(priority=3), bench.stream(priority=3), bench.stream(priority=0)
    for stream in (one, other, urgent):
        bench.write(3 * SLOW_SEGMENT, stream=stream.id)
    order = [stream for stream, _, _ in bench.fill()[0]]
    assert order == [urgent.id] * 3 + [one.id, other.id] * 3


@pytest.mark.parametrize("connections", [1, 2])
def test_streams_more_urgent_than_others_have_a_lane_where_there_is_one(connections: int) -> None:
    bench = Bench()
    bench.lose(0)
    bench.connections.clear()
    made = [bench.connect(MBYTE, 0.020, lanes=3) for _ in range(connections)]

    def used() -> list[set[StreamId]]:
        bench.fill()
        return [set.union(*each) for each in zip(*map(bench.lanes, made), strict=True)]

    bench.write(5_000)
    assert used() == [set(), set(), {0}], "no other stream is less urgent"
    urgent, equal = bench.stream(priority=0), bench.stream(priority=3)
    for stream in (0, urgent.id, equal.id):
        bench.write(5_000, stream=stream)
    assert used() == [set(), {urgent.id}, {0, equal.id}]
    bench.sender.set_priority(urgent, 3)
    bench.write(5_000, stream=urgent.id)
    assert used() == [set(), set(), {urgent.id}]
    bench.sender.set_priority(bench.sender.streams[StreamId(0)], 7)
    bench.write(5_000, stream=urgent.id)
    assert used() == [set(), {urgent.id}, set()]
    bench.sender.remove(StreamId(0))
    bench.write(5_000, stream=urgent.id)
    assert used() == [set(), set(), {urgent.id}]


def test_what_is_sent_again_of_an_urgent_stream_takes_its_lane_too() -> None:
    bench = Bench()
    bench.lose(0)
    bench.connections.clear()
    lost, other = bench.connect(MBYTE, 0.020, lanes=3), bench.connect(MBYTE, 0.020, lanes=3)
    bench.credit(1, 0)
    urgent = bench.stream(priority=0)
    bench.write(5_000, stream=urgent.id)
    bench.fill()
    assert bench.lanes(lost)[1:] == [{urgent.id}, set()]
    bench.lose(0)
    bench.credit(1, PLENTY)
    bench.fill()
    assert bench.lanes(other)[1:] == [{urgent.id}, set()]


def test_a_stream_that_is_blocked_holds_up_no_other() -> None:
    bench = Bench()
    blocked, free = bench.stream(priority=0, window=0), bench.stream(priority=7)
    bench.write(10_000, stream=blocked.id)
    bench.write(10_000, stream=free.id)
    assert bench.fill() == {0: [(free.id, 0, 10_000)]}


# --- room for what is more urgent  ---


def way(rate: float, rtt: float, *, variation: float = 0.002) -> Bench:
    """One connection over which nothing is sent yet, and streams 0 of priority 3, 2 of priority 0."""
    bench = Bench((rate, rtt))
    bench.stream(priority=0)
    sample = TransportSample(rtt=rtt, rtt_variation=variation, min_rtt=rtt, rate=rate)
    bench.connections[ConnectionId(0)].take_sample(sample, bench.now)
    return bench


@pytest.mark.parametrize("connections", [1, 2])
def test_no_more_of_bulk_is_on_its_way_than_an_urgent_byte_may_wait_for(connections: int) -> None:
    bench = way(MBYTE, 0.040)
    if connections == 2:
        bench.connect(MBYTE, 0.040)
    bench.write(10_000_000)
    sent = bench.fill()
    most = MBYTE * (0.040 + URGENT_WAIT)
    for given in sent.values():
        assert most <= covered(given) < most + SLOW_SEGMENT
    assert bench.sender.hold_until is not None
    bench.write(5_000, stream=2)
    for number in range(connections):
        bench.credit(number, PLENTY)
    (urgent,) = bench.fill().values()
    assert [stream for stream, _, _ in urgent] == [2]


def test_thousands_of_streams_with_a_little_each_are_looked_at_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flood of forwarded connections: looking at all of them for each segment took minutes."""
    looks = 0
    original = SendStream.worth_sending

    def counted(stream: SendStream, room: int) -> int:
        nonlocal looks
        looks += 1
        return original(stream, room)

    monkeypatch.setattr(SendStream, "worth_sending", counted)
    bench = Bench((100 * MBYTE, 0.020), (100 * MBYTE, 0.020))
    for number in range(1, 2000):
        bench.write(10, stream=bench.stream(priority=number % 3).id)
    assert covered([sent for given in bench.fill().values() for sent in given]) == 10 * 1999
    assert looks < 5 * 2000


@pytest.mark.parametrize(("streams", "most"), [(200, 50), (2560, 5)])
def test_late_bytes_of_thousands_of_streams_are_looked_for_less_often(
    streams: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a flood of forwarded connections these looks took three quarters of the time."""
    seen = 0
    original = SendStream.outstanding

    def counted(stream: SendStream) -> Any:
        nonlocal seen
        seen += 1
        return original(stream)

    bench = Bench((100 * MBYTE, 0.020), (100 * MBYTE, 0.020))
    for _ in range(streams):
        bench.write(10, stream=bench.stream().id)
    bench.fill()
    monkeypatch.setattr(SendStream, "outstanding", counted)
    bench.now += 0.1
    for _ in range(50):
        bench.now += 0.020
        bench.fill()
    assert most - 1 <= seen // streams <= most + 1


def test_bulk_has_all_the_room_there_is_while_nothing_is_more_urgent() -> None:
    bench = way(MBYTE, 0.040)
    bench.sender.set_priority(bench.sender.streams[StreamId(2)], 3)
    bench.write(10_000_000)
    assert covered(bench.fill()[0]) > 5 * MBYTE * 0.040


def test_a_path_whose_round_trips_vary_anyway_is_not_starved() -> None:
    bench = way(MBYTE, 0.010, variation=0.030)
    bench.write(10_000_000)
    assert covered(bench.fill()[0]) >= MBYTE * (0.010 + 2 * 0.030)


def test_what_has_come_and_waits_for_something_lost_takes_no_room_of_bulk() -> None:
    bench = way(MBYTE, 0.040)
    bench.write(10_000_000)
    before = covered(bench.fill()[0])
    connection = bench.connections[ConnectionId(0)]
    sample = TransportSample(rtt=0.040, rtt_variation=0.002, min_rtt=0.040, rate=MBYTE)
    sample.unacked, sample.arrived = before, before // 2
    connection.take_sample(sample, bench.now)
    bench.credit(0, PLENTY)
    assert before // 2 - SLOW_SEGMENT < covered(bench.fill()[0]) < before // 2 + SLOW_SEGMENT


def test_a_moment_of_little_to_send_does_not_take_the_room_away() -> None:
    bench = way(MBYTE, 0.040)
    bench.now = 0.3
    slow = TransportSample(rtt=0.040, rtt_variation=0.002, min_rtt=0.040, rate=MBYTE / 2)
    bench.connections[ConnectionId(0)].take_sample(slow, bench.now)
    bench.write(10_000_000)
    assert covered(bench.fill()[0]) >= MBYTE * 0.040


# --- the scheduler  ---


def test_a_scheduler_may_choose_several_connections_for_the_same_bytes() -> None:
    bench = Bench((MBYTE, 0.02), (MBYTE, 0.02), scheduler=numbered(0, 1))
    bench.write(1_000)
    assert bench.fill() == {0: [(0, 0, 1_000)], 1: [(0, 0, 1_000)]}
    assert (bench.sender.used, bench.sender.reinjected_bytes) == (1_000, 1_000)
    assert [c.reinjected for c in bench.connections.values()] == [1_000, 0]
    bench.acknowledge(1_000)
    assert [c.in_flight for c in bench.connections.values()] == [0, 0]


@pytest.mark.parametrize("reinject", ["off", "rescue", "full"])
def test_a_scheduler_hears_whether_it_may_send_more_than_rescues_twice(reinject: str) -> None:
    scheduler = numbered(0)
    bench = Bench(*TWO, scheduler=scheduler, reinject=reinject)
    bench.write(1_000)
    bench.fill()
    assert [asked.may_copy for asked in scheduler.requests] == [reinject == "full"]


def test_a_scheduler_that_waits_is_asked_again_soon() -> None:
    waits = Chooses(lambda _connections: WAIT)
    bench = Bench(*TWO, scheduler=waits)
    bench.write(1_000)
    assert bench.fill() == {}
    assert bench.sender.hold_until == HOLD_CHECK
    bench.sender.scheduler = numbered(0)
    assert covered(bench.fill()[0]) == 1_000
    assert bench.sender.hold_until is None


def test_with_one_connection_no_scheduler_is_asked() -> None:
    asked = Chooses(lambda _connections: WAIT)
    bench = Bench(scheduler=asked)
    bench.write(50_000)
    assert covered(bench.fill()[0]) == 50_000
    assert not asked.requests
    bench.connect(MBYTE, 0.02)
    bench.write(1_000)
    assert bench.fill() == {}
    assert len(asked.requests) == 1


def test_a_scheduler_that_fails_is_replaced_and_nothing_is_lost() -> None:
    def broken(_connections: Sequence[ConnectionView]) -> Sequence[ConnectionView]:
        raise ZeroDivisionError

    bench = Bench(*TWO, scheduler=Chooses(broken))
    bench.write(1_000)
    assert bench.fill() == {0: [(0, 0, 1_000)]}
    assert [type(error) for error in bench.failures] == [ZeroDivisionError]


@pytest.mark.parametrize("answer", [None, 7, [object()]])
def test_a_scheduler_that_answers_nonsense_sends_nothing_wrong(answer: Any) -> None:
    bench = Bench(*TWO, scheduler=Chooses(lambda _connections: answer))
    bench.write(1_000)
    given = bench.fill()
    assert given == ({} if isinstance(answer, list) else {0: [(0, 0, 1_000)]})


def test_a_scheduler_hears_how_much_waits_and_a_writer_that_is_held_back_counts_as_having_more() -> None:
    asked = numbered(0)
    bench = Bench(*TWO, scheduler=asked)
    bench.write(50_000)
    bench.fill()
    assert [r.backlog for r in asked.requests] == [50_000 - n * SLOW_SEGMENT for n in range(4)]
    asked.requests.clear()
    bench.sender.held_back = True
    bench.write(1_000)
    bench.fill()
    assert asked.requests[0].backlog == 50_000


def test_a_scheduler_hears_only_of_what_an_urgent_stream_waits_behind() -> None:
    asked = numbered(0)
    bench = Bench(*TWO, scheduler=asked)
    bench.stream(priority=0)
    bench.sender.held_back = True
    bench.write(20_000)
    bench.write(100, stream=2)
    bench.fill()
    assert [(r.stream, r.backlog) for r in asked.requests] == [(2, 100), (0, 20_000), (0, 20_000 - SLOW_SEGMENT)]


def test_an_urgent_segment_waits_for_the_near_connection_that_bulk_has_filled() -> None:
    bench = Bench((25 * MBYTE, 0.002), (25 * MBYTE, 0.050), scheduler=create_scheduler("adaptive", {}))
    bench.write(4_000_000)
    bench.stream(priority=0)
    bench.credit(0, 100_000)
    bench.credit(1, 500_000)
    assert set(bench.fill()) == {0, 1}, "bulk takes what has room"
    bench.credit(1, 100_000)
    bench.write(100, stream=2)
    assert bench.fill() == {}
    bench.credit(0, 1_000)
    assert bench.fill()[0][0] == (2, 0, 100)


def test_a_window_can_be_expected_to_grow_until_as_much_as_it_holds_has_been_sent() -> None:
    asked = numbered(0)
    bench = Bench(*TWO, scheduler=asked, window=10_000)
    bench.now = 100.0

    def grows(*, window: int = 10_000, pause: float = 0.0) -> bool:
        """Whether the scheduler hears so when 6,000 more bytes are written."""
        bench.now += pause
        bench.sender.widen(bench.sender.used + window)
        bench.write(6_000)
        bench.fill()
        bench.sender.streams[StreamId(0)].acknowledge(bench.sender.used, ())
        return asked.requests[-1].window_grows

    for pause in (0.0, 30.0):
        assert grows(pause=pause), "writing has begun"
        assert grows()
        assert not grows()
    assert grows(window=30_000)


def test_what_waits_for_a_connection_is_what_the_window_allows_unless_it_grows() -> None:
    bench = Bench(*TWO, window=10_000)
    bench.write(4_000)
    assert bench.sender.waiting == 4_000
    bench.write(26_000)
    assert bench.sender.waiting == 30_000
    bench.sender.peer_grants(12_000)  # so little that it will not grow
    assert bench.sender.waiting == 12_000
    bench.fill()
    assert bench.sender.waiting == 0


# --- rescue  ---


def test_what_a_lost_connection_carried_goes_to_another_before_anything_new() -> None:
    bench = Bench((MBYTE, 0.02), (MBYTE, 0.02), scheduler=numbered(0))
    bench.write(10_000)
    bench.fill()
    bench.write(10_000)
    bench.sender.scheduler = numbered(1)
    bench.lose(0)
    assert bench.fill() == {1: [(0, 0, 10_000), (0, 10_000, 20_000)]}
    assert bench.sender.reinjected_bytes == 10_000
    assert bench.connections[ConnectionId(1)].in_flight == 20_000


def test_only_what_was_not_acknowledged_is_sent_again() -> None:
    bench = Bench((MBYTE, 0.02), (MBYTE, 0.02), scheduler=numbered(0))
    bench.write(4 * SLOW_SEGMENT)
    bench.fill()
    bench.acknowledge(SLOW_SEGMENT, (2 * SLOW_SEGMENT, 3 * SLOW_SEGMENT))
    bench.lose(0)
    again = bench.fill()[1]
    assert again == [(0, SLOW_SEGMENT, 2 * SLOW_SEGMENT), (0, 3 * SLOW_SEGMENT, 4 * SLOW_SEGMENT)]


def test_what_a_suspect_connection_carries_is_sent_again_elsewhere_and_never_on_itself() -> None:
    bench = Bench((MBYTE, 0.02), (MBYTE, 0.02), scheduler=numbered(0))
    bench.write(10_000)
    bench.fill()
    bench.sender.scheduler = numbered(0, 1)
    bench.suspect(0)
    assert bench.fill() == {1: [(0, 0, 10_000)]}
    assert bench.fill() == {}, "once is enough"


def test_a_copy_that_another_connection_carries_need_not_be_rescued() -> None:
    bench = Bench((MBYTE, 0.02), (MBYTE, 0.02), (MBYTE, 0.02), scheduler=numbered(0, 1))
    bench.write(10_000)
    bench.fill()
    bench.suspect(0)
    assert bench.fill() == {}
    bench.suspect(1)
    assert bench.fill() == {2: [(0, 0, 10_000)]}


def test_with_no_other_connection_it_waits_for_one() -> None:
    bench = Bench()
    bench.write(10_000)
    bench.fill()
    bench.suspect(0)
    assert bench.fill() == {}
    assert bench.sender.waits()
    bench.connect(MBYTE, 0.05)
    assert bench.fill() == {1: [(0, 0, 10_000)]}
    assert not bench.sender.waits()


def test_a_connection_that_recovers_in_time_spares_the_copies() -> None:
    bench = Bench()
    bench.write(10_000)
    bench.fill()
    bench.suspect(0)
    bench.connections[ConnectionId(0)].step(Step.HEARD, AS_IT_COMES)
    bench.sender.recover(bench.connections[ConnectionId(0)])
    bench.connect(MBYTE, 0.05)
    assert bench.fill() == {}


def test_a_rescue_waits_for_no_better_connection() -> None:
    bench = Bench((MBYTE, 0.02), (MBYTE, 0.02), scheduler=numbered(0))
    bench.write(10_000)
    bench.fill()
    bench.sender.scheduler = Chooses(lambda _connections: WAIT)
    bench.lose(0)
    assert bench.fill() == {1: [(0, 0, 10_000)]}
    assert bench.sender.hold_until is None


@pytest.mark.parametrize("n", [0, 2])
def test_of_several_that_are_chosen_the_one_expected_to_deliver_rescues(n: int) -> None:
    three = (MBYTE, 0.010), (MBYTE, 0.050), (MBYTE, 0.020)
    bench = Bench(*three, scheduler=create_scheduler("redundant", {"n": n}), reinject="rescue")
    for connection in (1, 2):
        bench.credit(connection, 0)
    bench.write(1_000)
    assert bench.fill() == {0: [(0, 0, 1_000)]}
    for connection in (1, 2):
        bench.credit(connection, PLENTY)
    bench.lose(0)
    assert bench.fill() == {2: [(0, 0, 1_000)]}


def test_nothing_new_overtakes_a_rescue_that_waits_for_credit() -> None:
    bench = Bench((MBYTE, 0.02), (MBYTE, 0.02), scheduler=numbered(0))
    bench.write(10_000)
    bench.fill()
    bench.lose(0)
    bench.write(10_000)
    bench.credit(1, 0)
    assert bench.fill() == {}
    bench.sender.scheduler = numbered(1)
    bench.credit(1, PLENTY)
    assert bench.fill()[1][0] == (0, 0, 10_000)


def test_without_reinjection_only_what_is_surely_lost_is_sent_again() -> None:
    bench = Bench((MBYTE, 0.02), (MBYTE, 0.02), scheduler=numbered(0), reinject="off")
    bench.write(10_000)
    bench.fill()
    bench.sender.scheduler = numbered(1)
    bench.suspect(0)
    assert bench.fill() == {}
    bench.lose(0)
    assert bench.fill() == {1: [(0, 0, 10_000)]}


def test_a_stream_that_was_reset_leaves_nothing_under_way() -> None:
    bench = Bench()
    bench.write(10_000)
    bench.fill()
    bench.write(5_000)
    bench.sender.forget(bench.sender.streams[StreamId(0)], bench.now)
    assert not bench.sender.unacked
    assert bench.connections[ConnectionId(0)].in_flight == 0
    assert bench.fill() == {}


# --- opportunistic copies  ---


def late(reinject: str = "full", copies: int = 1) -> Bench:
    """Bytes lie on a path that takes seconds for them, while a fast one has nothing to do."""
    bench = Bench((20_000.0, 0.5), *[(10 * MBYTE, 0.010)] * copies, scheduler=numbered(0), reinject=reinject)
    bench.write(40_000)
    bench.fill()
    bench.now = 0.6
    return bench


def test_bytes_that_are_late_are_copied_to_a_connection_that_delivers_them_clearly_earlier() -> None:
    bench = late()
    copied = bench.fill()
    assert list(copied) == [1]
    assert covered(copied[1]) == 40_000
    assert bench.sender.reinjected_bytes == 40_000
    assert bench.fill() == {}, "once is enough"


def test_bytes_that_have_only_just_left_are_not_copied() -> None:
    bench = late()
    bench.now = 0.005
    assert bench.fill() == {}


def test_bytes_behind_a_repetition_are_copied_to_a_connection_that_delivers_them_earlier() -> None:
    """They seemed about to be acknowledged: that something was lost showed half a round trip too late."""
    bench = Bench((MBYTE, 0.100), (10 * MBYTE, 0.010), scheduler=numbered(0))
    bench.write(40_000)
    bench.fill()
    bench.now = 0.099
    assert bench.fill() == {}
    bench.connections[ConnectionId(0)].take_sample(
        TransportSample(rtt=0.100, rtt_variation=0.010, min_rtt=0.100, rate=MBYTE, bytes_sent=45_000, bytes_lost=1_448),
        bench.now,
    )
    bench.now = 0.101
    assert covered(bench.fill()[1]) == 40_000


@pytest.mark.parametrize(("more", "copied"), [(0, 0), (100_000, 40_000)])
def test_what_is_a_little_late_is_copied_while_it_keeps_the_window_shut(more: int, copied: int) -> None:
    """A path stood still for 70 ms: what another had lost was about to be acknowledged, or so it seemed."""
    bench = Bench((MBYTE, 0.100), (10 * MBYTE, 0.010), scheduler=numbered(0), window=40_000)
    bench.write(40_000)
    assert covered(bench.fill()[0]) == 40_000
    bench.write(more)
    bench.now = 0.115
    assert bench.fill() == {}
    bench.now = 0.125
    assert covered(bench.fill().get(1, [])) == copied


def test_a_reader_that_gets_a_trickle_is_given_all_that_a_slower_path_carries() -> None:
    """It moves, but by next to nothing."""
    turns, size = cycle((0, 1)), 10 * SLOW_SEGMENT
    bench = Bench(*TWO, scheduler=Chooses(lambda connections: [connections[next(turns)]]))
    bench.write(2 * size)
    given = bench.fill()
    assert covered(given[0]) == covered(given[1]) == size
    fades, good = bench.connections.values()
    for connection in (fades, good):
        bench.credit(connection.id, 0)
    bench.write(10_000_000)
    bench.sender.scheduler = numbered(1)
    trickle = 0
    for step in range(1, 31):
        bench.now = step / 100
        trickle += 100
        bench.acknowledge(trickle, *[(start, end) for _, start, end in given[1]])
        told = TransportSample(
            rtt=0.5, rtt_variation=0.01, min_rtt=0.02, rate=MBYTE, bytes_acked=trickle, unacked=size - trickle
        )
        fades.take_sample(told, bench.now)
        assert bench.fill() == {}
    bench.credit(good.id, PLENTY)
    copied = bench.fill()[1]
    assert covered(copied) == size - trickle + 10_000_000
    assert covered(copied[:10]) == size - trickle, "before anything new"
    bench.acknowledge(2 * size)
    assert fades.overtaken == size - trickle, "it comes here nevertheless, and before what this path is given now"
    fades.take_sample(TransportSample(rtt=0.5, min_rtt=0.02, rate=MBYTE, bytes_acked=size), bench.now)
    assert fades.overtaken == 0


def beginning(*trips: float) -> Bench:
    """Connections that have just begun: their windows and round trips are known, and no rate."""
    bench = Bench(*[(0.0, trip) for trip in trips], scheduler=create_scheduler("adaptive", {}))
    for connection in bench.connections.values():
        connection.congestion_window, connection.accelerates = 14_480, True
    return bench


def test_the_end_of_a_transfer_over_paths_of_unknown_rates_is_copied_at_once() -> None:
    bench = beginning(0.011, 0.022)
    bench.write(30_000)
    given = bench.fill()
    assert covered(given[1]) == 30_000 - SLOW_SEGMENT, "it would arrive there a moment sooner"
    assert covered(given[0]) == 30_000, "unless that path is slow"
    assert bench.fill() == {}, "once is enough"


@pytest.mark.parametrize("size", [2_000, 300_000])
def test_a_message_and_what_much_waits_behind_are_not_copied_at_once(size: int) -> None:
    bench = beginning(0.011, 0.022)
    bench.credit(0, 48_000)
    bench.credit(1, 16_000)
    bench.write(size)
    bench.fill()
    assert bench.sender.reinjected_bytes == 0


def test_a_connection_whose_peer_has_not_proved_itself_gets_no_copies() -> None:
    bench = late(copies=0)
    bench.connect(10 * MBYTE, 0.010, proved=False)
    assert bench.fill(also_unproved=True) == {}
    bench.connections[ConnectionId(1)].step(Step.PROVED, AS_IT_COMES)
    assert covered(bench.fill()[1]) == 40_000


def test_nothing_is_copied_to_a_connection_that_would_deliver_no_earlier() -> None:
    bench = Bench((MBYTE, 0.020), (MBYTE, 0.500), scheduler=numbered(0))
    bench.write(40_000)
    bench.fill()
    bench.now = 0.040
    assert bench.fill() == {}


@pytest.mark.parametrize("reinject", ["rescue", "off"])
def test_copies_are_made_only_where_they_were_asked_for(reinject: str) -> None:
    assert late(reinject).fill() == {}


def test_no_range_is_carried_by_more_than_a_few_connections() -> None:
    bench = late(copies=2 * MAX_COPIES)
    carriers: dict[int, set[int]] = {offset: {0} for offset in range(0, 40_000, 1_000)}
    for _ in range(20):
        bench.now += 1.0
        for connection, given in bench.fill().items():
            for _, start, end in given:
                for offset in carriers.keys() & range(start, end):
                    carriers[offset].add(connection)
    assert max(len(found) for found in carriers.values()) == MAX_COPIES


def test_copies_cost_no_more_than_their_share() -> None:
    bench = Bench((MBYTE, 0.5), (100 * MBYTE, 0.010), scheduler=numbered(0))
    bench.write(8 << 20)
    bench.fill()
    for _ in range(200):
        bench.now += 0.1
        bench.fill()
    used, copied = bench.sender.used, bench.sender.reinjected_bytes
    assert copied > REINJECT_ALLOWANCE / 2
    assert copied <= REINJECT_ALLOWANCE + REINJECT_BUDGET * used


def test_before_the_window_is_full_its_head_is_copied_though_there_is_more_to_send() -> None:
    bench = Bench((20_000.0, 0.5), (10 * MBYTE, 0.010), scheduler=numbered(0), window=100_000)
    bench.write(60_000)
    bench.fill()
    bench.write(1_000_000)
    bench.sender.scheduler = numbered(1)
    bench.now = 2.0
    first = bench.fill()[1]
    assert first[0][1] == 0, "the head of the window before new bytes"
    assert any(start >= 60_000 for _, start, _ in first)


# --- deadlines  ---


def urgent(deadline: float) -> Bench:
    """10 ms to the first connection, 40 ms to the second; 1,000 bytes are under way on the first."""
    bench = Bench((MBYTE, 0.010), (MBYTE, 0.040), reinject="rescue")
    bench.sender.streams[StreamId(0)].deadline = deadline
    bench.write(1000)
    assert list(bench.fill()) == [0]
    return bench


@pytest.mark.parametrize("variation", [0.002, 0.5])
def test_what_a_reader_has_waited_for_long_is_copied_though_there_is_more_to_send_and_much_window(
    variation: float,
) -> None:
    """A path that had become next to dead held up the reader for seconds; what came behind filled no large window."""
    bench = Bench((MBYTE, 0.020), (MBYTE, 0.020))
    bench.connections[ConnectionId(0)].rtt_variation = variation  # what was lost has made round trips vary
    bench.credit(1, 0)
    bench.write(16_000)
    assert bench.fill() == {0: [(0, 0, 16_000)]}
    bench.credit(0, 0)
    bench.write(10_000_000)
    copied_after = []
    for step in range(1, 11):
        bench.now += 0.060
        bench.credit(1, 50_000)
        given = bench.fill()[1]
        if any(start == 0 for _, start, _ in given):
            copied_after.append(0.060 * step)
        bench.acknowledge(0, (16_000, bench.sender.streams[StreamId(0)].next_offset))
    assert copied_after == [pytest.approx(0.240)]


def test_what_has_a_deadline_is_copied_when_a_copy_has_to_leave_to_be_in_time() -> None:
    bench = urgent(0.2)
    bench.now = 0.1
    assert bench.fill() == {}
    assert bench.sender.reinject_at is not None
    bench.now = 0.15
    assert bench.fill() == {1: [(StreamId(0), 0, 1000)]}
    bench.now = 0.3
    assert bench.fill() == {}, "both carry it already"


def test_what_is_acknowledged_or_has_no_deadline_is_not_copied_for_one() -> None:
    bench = urgent(0.2)
    bench.acknowledge(1000)
    bench.now = 0.15
    assert bench.fill() == {}
    assert not urgent(0.0).fill()


def test_a_deadline_that_no_copy_can_meet_costs_none() -> None:
    bench = urgent(0.015)
    bench.now = 0.014
    assert bench.fill() == {}


def test_no_copy_leaves_for_a_deadline_that_has_passed() -> None:
    bench = urgent(0.2)
    bench.now = 0.25
    assert bench.fill() == {}
    bench = Bench((MBYTE, 0.010), (MBYTE, 0.040), (MBYTE, 0.040), reinject="rescue")
    bench.sender.streams[StreamId(0)].deadline = 0.2
    bench.write(1000)
    bench.fill()
    bench.now = 0.15
    assert list(bench.fill()) == [1]
    bench.now = 0.31  # as long after the copy as the copy left after the first
    assert bench.fill() == {}


def test_copy_for_a_deadline_is_whole_where_the_other_connection_takes_smaller_segments() -> None:
    bench = Bench((500 * MBYTE, 0.010), (10 * MBYTE, 0.040), reinject="rescue")
    bench.sender.streams[StreamId(0)].deadline = 0.2
    bench.write(4 * SLOW_SEGMENT)
    assert bench.fill() == {0: [(StreamId(0), 0, 4 * SLOW_SEGMENT)]}
    bench.now = 0.14
    parts = [(StreamId(0), n * SLOW_SEGMENT, (n + 1) * SLOW_SEGMENT) for n in range(4)]
    assert bench.fill() == {1: parts}


def test_copies_for_deadlines_leave_before_new_bytes_and_are_bounded() -> None:
    bench = urgent(0.1)
    bench.stream(priority=5)
    bench.write(4_000_000, stream=2)
    bench.credit(0, 0)
    bench.credit(1, 2000)
    bench.now = 0.05
    assert bench.fill()[1][0] == (StreamId(0), 0, 1000)
    bench = Bench((MBYTE, 0.010), (1000 * MBYTE, 0.040), reinject="rescue")
    bench.sender.streams[StreamId(0)].deadline = 1.0
    bench.credit(1, 0)
    bench.write(2_000_000)
    bench.fill()
    bench.credit(1, 4_000_000)
    bench.now = 0.94
    bench.fill()
    assert 0 < bench.sender.reinjected_bytes <= 256 * 1024 + 0.15 * bench.sender.used
