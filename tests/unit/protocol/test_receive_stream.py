"""The receiving half of a stream against the simplest model there is: which offsets have come."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable, Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from multi.errors import RemoteProtocolError
from multi.protocol.payloads import MAX_RANGES
from multi.protocol.receive_stream import ReceiveStream, Window
from multi.types import StreamId

CONTENT = random.Random(7).randbytes(40_000)
BIG = 64 * 1024 * 1024


def new_stream(size: int = BIG) -> ReceiveStream:
    return ReceiveStream(StreamId(0), Window(size, max(size, BIG), 0.0))


def reassembling(stream: ReceiveStream) -> int:
    """Bytes kept out of order."""
    return sum(island.end - island.start for island in stream.islands)


def put(stream: ReceiveStream, start: int, end: int, *, owned: bool = False, room: bool = True) -> int:
    """Deliver [start, end) of CONTENT the way a connection does; borrowed memory is overwritten afterwards."""
    segment = bytearray(b"header" + CONTENT[start:end])
    advanced = stream.insert(start, memoryview(segment)[6:], owned, room=room)
    if not owned:
        segment[:] = b"\xff" * len(segment)
    return advanced


class ReceiveStreamModel(RuleBasedStateMachine):
    """Overlapping and repeated segments in any order, reads of any size."""

    def __init__(self) -> None:
        super().__init__()
        self.stream = new_stream()
        self.arrived = bytearray(len(CONTENT))
        self.read_so_far = 0
        self.charged = 0
        self.crumbs = False

    @rule(
        start=st.integers(0, 3000),
        size=st.one_of(st.integers(0, 40), st.integers(1500, 6000)),
        owned=st.booleans(),
        near=st.booleans(),
        room=st.booleans(),
    )
    def segment(self, start: int, size: int, owned: bool, near: bool, room: bool) -> None:
        if near:
            start = max(0, self.stream.next_offset + start // 100 - 10)
        end = min(start + size, len(CONTENT))
        start = min(start, end)
        self.charged += put(self.stream, start, end, owned=owned, room=room)
        self.crumbs |= not room
        if end > start:
            self.arrived[start:end] = b"\x01" * (end - start)

    @rule(limit=st.one_of(st.just(-1), st.integers(0, 50), st.integers(1000, 9000)))
    def read(self, limit: int) -> None:
        data = self.stream.read(limit)
        assert limit < 0 or len(data) <= limit
        assert data == CONTENT[self.read_so_far : self.read_so_far + len(data)]
        assert data or limit == 0 or not self.stream.readable
        self.read_so_far += len(data)

    @invariant()
    def everything_in_order_is_readable(self) -> None:
        hole = self.arrived.find(0)
        assert self.stream.next_offset == (len(CONTENT) if hole < 0 else hole)
        assert self.stream.readable == self.stream.next_offset - self.read_so_far

    @invariant()
    def ranges_are_the_islands_of_the_model(self) -> None:
        islands, position = [], self.stream.next_offset
        while (start := self.arrived.find(1, position)) >= 0:
            end = self.arrived.find(0, start)
            position = len(CONTENT) if end < 0 else end
            islands.append((start, position))
        told = self.stream.ranges()
        if self.crumbs:  # they are kept, not told
            assert all(any(start <= s and e <= end for start, end in islands) for s, e in told)
        else:
            assert told == tuple(islands[:MAX_RANGES])
            assert reassembling(self.stream) == sum(end - start for start, end in islands)

    @invariant()
    def the_session_is_charged_for_the_highest_offset(self) -> None:
        assert self.charged == self.stream.highest >= self.arrived.rfind(1) + 1


TestReceiveStreamModel = ReceiveStreamModel.TestCase
TestReceiveStreamModel.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)


# --- what a hostile peer can make it keep  ---


def in_order(count: int) -> Iterable[tuple[int, int]]:
    return ((i, i + 1) for i in range(count))


def backwards(count: int) -> Iterable[tuple[int, int]]:
    return ((i, i + 1) for i in range(count, 0, -1))


def gaps_then_fillings(count: int) -> Iterable[tuple[int, int]]:
    """Islands of one byte, four thousand of them, then the bytes between them."""
    for start in range(1, count, 8192):
        end = min(start + 8192, count)
        yield from ((i, i + 1) for i in range(start, end, 2))
        yield from ((i, i + 1) for i in range(start + 1, end, 2))


@pytest.mark.parametrize("order", [in_order, backwards, gaps_then_fillings])
@pytest.mark.parametrize("owned", [True, False])
def test_many_segments_of_one_byte_take_little_memory(
    order: Callable[[int], Iterable[tuple[int, int]]], owned: bool
) -> None:
    stream = new_stream()
    tracemalloc.start()
    for start, _ in order(12_500):
        stream.insert(start, memoryview(bytearray(b"hx"))[1:], owned)
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert stream.readable + reassembling(stream) >= 12_499
    assert kept < 250_000


def test_overlapping_segments_do_not_keep_more_than_twice_what_is_new() -> None:
    stream, size = new_stream(), 64 * 1024
    tracemalloc.start()
    for start in range(1, 200_000, 2100):
        stream.insert(start, memoryview(bytearray(size)), True)
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 2 * stream.highest


@pytest.mark.parametrize("step", [2, 3, 700, 2047, 2048, 2049, 9000])
@pytest.mark.parametrize("twice", [False, True])
def test_without_room_for_islands_memory_follows_the_offsets_alone(step: int, twice: bool) -> None:
    stream, size = new_stream(), min(1 << 20, step << 13)
    piece = memoryview(bytearray(min(step // 2, 1000)))
    tracemalloc.start()
    for start in range(1, size, step):
        stream.insert(start, piece, True, room=False)
    if twice:
        for start in range(1, size, step):
            stream.insert(start, piece, True)
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 1.3 * size + 2048  # who measures coverage keeps something, too
    assert (stream.next_offset, stream.highest > size - step) == (0, True)


def test_what_came_without_room_is_delivered_when_the_gaps_close_and_then_forgotten() -> None:
    stream = new_stream()
    put(stream, 8000, 9000)
    for start in range(1, len(CONTENT), 2):
        put(stream, start, start + 1, room=False)
    assert stream.ranges() == ((8000, 9000),)
    for start in range(0, len(CONTENT), 2):
        put(stream, start, start + 1, room=False)
    assert stream.read(-1) == CONTENT
    put(stream, len(CONTENT), len(CONTENT))
    assert not stream.islands


@pytest.mark.parametrize("start", [0, 1, 990, 1000, 2**62, 2**64 - 1])
def test_data_outside_the_window_is_refused_and_changes_nothing(start: int) -> None:
    stream = new_stream(1000)
    with pytest.raises(RemoteProtocolError, match="window ends at 1000"):
        stream.insert(start, memoryview(bytes(1001)), False)
    assert (stream.highest, stream.next_offset, stream.ranges()) == (0, 0, ())
    assert stream.insert(0, memoryview(bytes(1000)), False) == 1000


# --- the end  ---


def test_a_stream_ends_when_the_last_byte_was_read() -> None:
    stream = new_stream()
    put(stream, 0, 10)
    assert stream.finish(20) == 10
    assert not stream.complete
    put(stream, 10, 20)
    assert stream.complete
    assert not stream.at_end
    stream.read(-1)
    assert stream.at_end


def test_the_end_may_be_said_again_but_not_changed() -> None:
    stream = new_stream()
    stream.finish(20)
    assert stream.finish(20) == 0
    for other in (19, 21):
        with pytest.raises(RemoteProtocolError, match="ends at 20 and at"):
            stream.finish(other)


@pytest.mark.parametrize("final", [9, 0, 1001, 2**63])
def test_an_end_before_received_bytes_or_outside_the_window_is_refused(final: int) -> None:
    stream = new_stream(1000)
    put(stream, 5, 10)
    with pytest.raises(RemoteProtocolError, match=r"outside 10\.\.1000"):
        stream.finish(final)
    assert stream.final is None
    with pytest.raises(RemoteProtocolError):
        stream.reset(final, 1)
    assert stream.reset_code is None


def test_data_beyond_the_end_is_refused() -> None:
    stream = new_stream()
    stream.finish(10)
    with pytest.raises(RemoteProtocolError, match="which ends at 10"):
        put(stream, 5, 11)
    put(stream, 5, 10)


# --- giving window back: everything charged comes back exactly once  ---


@given(
    st.lists(st.tuples(st.integers(0, 300), st.integers(0, 60)), max_size=20),
    st.lists(st.sampled_from(["read", "discard"]), max_size=3),
    st.sampled_from(["nothing", "finish", "reset"]),
    st.randoms(use_true_random=False),
)
def test_discard_and_reset_give_back_exactly_what_was_charged(
    segments: list[tuple[int, int]], actions: list[str], ending: str, order: random.Random
) -> None:
    stream = new_stream()
    charged = given_back = 0
    steps: list[Callable[[], None]] = []

    def insert(start: int, size: int) -> None:
        nonlocal charged, given_back
        before = stream.next_offset
        charged += put(stream, start, start + size)
        if stream.discarding:
            given_back += stream.next_offset - before

    def act(action: str) -> None:
        nonlocal given_back
        given_back += len(stream.read(-1)) if action == "read" else stream.discard()

    steps += [lambda s=s: insert(*s) for s in segments]  # type: ignore[misc]
    steps += [lambda a=a: act(a) for a in actions]  # type: ignore[misc]
    order.shuffle(steps)
    for step in steps:
        step()
        assert stream.consumed == given_back <= charged == stream.highest
    final = stream.highest + 5
    if ending == "reset":
        before = stream.highest
        given_back += stream.reset(final, 7)
        charged += final - before
        assert given_back == charged == final
        assert not stream.readable
        assert stream.complete
        insert(0, min(50, final))
        assert given_back == charged
    elif ending == "finish":
        charged += stream.finish(final)
        insert(0, final)
        given_back += len(stream.read(-1))
        assert given_back == charged == final
        assert stream.at_end


def test_a_discarding_stream_keeps_nothing_that_is_in_order() -> None:
    stream = new_stream()
    put(stream, 0, 5000)
    assert stream.discard() == 5000
    assert stream.discard() == 0
    put(stream, 5000, 9000)
    assert stream.consumed == 9000
    assert stream.read(-1) == b""


# --- windows  ---


def test_a_window_never_shrinks_and_grows_only_with_fast_consumption() -> None:
    window = Window(1000, 4000, 0.0)
    assert window.advertise(0) == 1000
    assert window.consumed(600, 0.01, 0.1)
    assert window.size == 2000
    assert window.advertise(600) == 2600
    assert window.advertise(0) == 2600
    window.consumed(1700, 0.02, 0.1)
    window.consumed(4000, 0.03, 0.1)
    window.consumed(9000, 0.04, 0.1)
    assert window.size == 4000


def test_a_quarter_of_a_window_consumed_at_once_makes_it_grow() -> None:
    window = Window(1000, 4000, 0.0)
    window.consumed(249, 0.01, 0.1)
    assert window.size == 1000
    window.consumed(250, 0.02, 0.1)
    assert window.size == 2000


def test_a_window_that_is_used_up_in_a_round_trip_is_renewed_in_small_steps() -> None:
    def steps(seconds_each: float) -> int:
        window, told = Window(16_000, 16_000, 0.0), 0
        for step in range(1, 65):
            if window.consumed(1000 * step, step * seconds_each, 0.1):
                window.advertise(1000 * step)
                told += 1
        return told

    assert steps(0.5) == 64 // 4, "whoever has room left needs to hear less often"
    assert steps(0.005) > 64 * 0.9


def test_a_slow_reader_does_not_make_the_window_grow() -> None:
    window = Window(1000, 4000, 0.0)
    for step in range(1, 20):
        window.consumed(100 * step, float(step), 0.01)
    assert window.size == 1000


def test_an_initial_window_above_the_cap_is_the_cap() -> None:
    assert Window(5000, 1000, 0.0).advertised == 1000


def test_a_window_grows_only_when_there_is_memory_for_it() -> None:
    asked: list[int] = []
    allowed = False

    def may_grow(size: int) -> bool:
        asked.append(size)
        return allowed

    window = Window(64 * 1024, 256 * 1024, 0.0)
    window.may_grow = may_grow
    assert window.consumed(40 * 1024, 0.010, 0.1)  # the peer hears of what was read all the same
    assert (window.size, asked) == (64 * 1024, [64 * 1024])
    allowed = True
    window.consumed(80 * 1024, 0.020, 0.1)
    window.consumed(160 * 1024, 0.030, 0.1)
    window.consumed(320 * 1024, 0.040, 0.1)
    assert window.size == 256 * 1024
    assert asked == [64 * 1024, 64 * 1024, 128 * 1024]  # at its cap it asks no more
