"""The sending half of a stream against the simplest model there is: one byte array."""

from __future__ import annotations

import random
import tracemalloc
from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from multi.errors import LocalProtocolError, RemoteProtocolError
from multi.protocol.payloads import MAX_OFFSET
from multi.protocol.send_stream import (
    CHUNK_OVERHEAD,
    COALESCE_BELOW,
    COALESCED_CHUNK,
    MAX_PIECES,
    SILLY_WINDOW,
    Outstanding,
    SendStream,
)
from multi.types import ConnectionId, StreamId

ONE = (ConnectionId(1),)
NO_WINDOW_LIMIT = 1 << 40
KINDS = ("bytes", "bytearray", "view of bytes", "view of bytearray", "slice of a view", "words", "every second byte")


def new_stream(window: int = NO_WINDOW_LIMIT) -> SendStream:
    return SendStream(StreamId(0), window, 3, {})


def write_as(stream: SendStream, kind: str, content: bytes) -> bytes:
    """Write `content` as an object of this kind, spoil the object afterwards, and return what must be sent."""
    match kind:
        case "bytes":
            stream.write(content)
        case "bytearray":
            changing = bytearray(content)
            stream.write(changing)
            changing[:] = bytes(len(changing))
        case "view of bytes":
            view = memoryview(content)
            stream.write(view)
            view.release()
        case "view of bytearray":
            changing = bytearray(content)
            stream.write(memoryview(changing))
            changing[:] = bytes(len(changing))
        case "slice of a view":
            with memoryview(b"<" + content + b">") as outer:
                stream.write(outer[1:-1])
        case "words":
            words = array("I", content[: len(content) // 4 * 4])
            content = words.tobytes()
            stream.write(memoryview(words))
            for index in range(len(words)):
                words[index] = 0
        case "every second byte":
            stream.write(memoryview(content)[::2])
            content = content[::2]
    return content


class SendStreamModel(RuleBasedStateMachine):
    """Random writes, sends, losses, splits and acknowledgements; every slice equals the model's bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.stream = new_stream()
        self.model = bytearray()
        self.random = random.Random(1)
        self.acked: set[int] = set()
        self.now = 0.0

    def pick(self, index: int) -> Outstanding | None:
        items = list(self.stream.outstanding())
        return items[index % len(items)] if items else None

    @rule(kind=st.sampled_from(KINDS), size=st.one_of(st.integers(0, 60), st.integers(4000, 9000)), seed=st.integers())
    def write(self, kind: str, size: int, seed: int) -> None:
        self.model += write_as(self.stream, kind, random.Random(seed).randbytes(size))

    @precondition(lambda self: self.stream.unsent)
    @rule(size=st.one_of(st.integers(1, 100), st.integers(1, 5000)), carrier=st.integers(0, 3), later=st.booleans())
    def take(self, size: int, carrier: int, later: bool) -> None:
        size = min(size, self.stream.unsent)
        self.now += later
        start, buffers = self.stream.take(size, (ConnectionId(carrier),), self.now)
        assert b"".join(buffers) == self.model[start : start + size]

    @rule(index=st.integers(0, 50))
    def lose(self, index: int) -> None:
        if (item := self.pick(index)) is not None:
            self.stream.lose(item)

    @rule(size=st.integers(1, 3000))
    def rescue(self, size: int) -> None:
        if (item := self.stream.next_rescue()) is not None:
            item = self.stream.split(item, size)
            assert item.end - item.start <= size
            self.stream.rescued(item)
            assert b"".join(self.stream.slice(item.start, item.end)) == self.model[item.start : item.end]

    @rule(index=st.integers(0, 50), count=st.integers(1, 3))
    def acknowledge_ranges(self, index: int, count: int) -> None:
        items = [i for i in self.stream.outstanding() if i.start > self.stream.acked]
        if items:
            index %= len(items)
            chosen = items[index : index + count]
            newly = self.stream.acknowledge(self.stream.acked, ((chosen[0].start, chosen[-1].end),))
            self.acked |= {offset for i in chosen for offset in range(i.start, i.end)}
            assert set(chosen) <= set(newly)

    @rule(share=st.floats(0, 1))
    def acknowledge_up_to_anywhere(self, share: float) -> None:
        """Not only between segments: a peer may say any number."""
        target = self.stream.acked + int((self.stream.next_offset - self.stream.acked) * share)
        before = {i: (i.start, i.end) for i in self.stream.outstanding()}
        newly = self.stream.acknowledge(target, ())
        covered = sum(i.end - i.start for i in newly)
        assert covered == sum(max(0, min(end, target) - start) for start, end in before.values())

    @rule(stale=st.integers(0, 20_000))
    def acknowledge_again(self, stale: int) -> None:
        self.stream.acknowledge(min(stale, self.stream.acked), ())

    @invariant()
    def outstanding_bytes_are_kept(self) -> None:
        previous = self.stream.acked
        for item in self.stream.outstanding():
            assert item.start >= previous
            previous = item.end
            assert b"".join(self.stream.slice(item.start, item.end)) == self.model[item.start : item.end]
        assert previous <= self.stream.next_offset <= self.stream.end_offset == len(self.model)

    @invariant()
    def unacknowledged_bytes_are_outstanding_or_acknowledged_by_range(self) -> None:
        waiting = {o for i in self.stream.outstanding() for o in range(i.start, i.end)}
        for offset in range(self.stream.acked, self.stream.next_offset):
            assert (offset in waiting) != (offset in self.acked)

    @invariant()
    def lost_ranges_are_in_order_and_unacknowledged(self) -> None:
        rescues = [item for item in self.stream.lost if not item.acked]
        assert [r.start for r in rescues] == sorted(r.start for r in rescues)
        assert all(r.lost for r in rescues)
        assert {id(r) for r in rescues} == {id(i) for i in self.stream.outstanding() if i.lost}

    @invariant()
    def memory_counts_everything_kept(self) -> None:
        assert self.stream.memory >= self.stream.unacked
        if not self.model:
            assert self.stream.memory == 0


TestSendStreamModel = SendStreamModel.TestCase
TestSendStreamModel.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)


# --- how bytes are kept  ---


def test_large_bytes_are_kept_by_reference() -> None:
    stream, data = new_stream(), bytes(COALESCE_BELOW)
    stream.write(data)
    _, (kept,) = stream.take(COALESCE_BELOW, ONE, 0.0)
    assert kept is data


def test_large_views_of_bytes_are_kept_by_reference() -> None:
    stream, data = new_stream(), bytes(3 * COALESCE_BELOW)
    stream.write(memoryview(data)[100 : 100 + COALESCE_BELOW])
    stream.write(memoryview(data).cast("I"))
    _, views = stream.take(4 * COALESCE_BELOW, ONE, 0.0)
    kept = [view for view in views if isinstance(view, memoryview)]
    assert [view.obj is data for view in kept] == [True, True]
    assert [view.nbytes for view in kept] == [COALESCE_BELOW, 3 * COALESCE_BELOW]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [8, 64, COALESCE_BELOW, 4 * COALESCE_BELOW])
def test_changing_or_releasing_a_buffer_after_write_changes_nothing(kind: str, size: int) -> None:
    stream = new_stream()
    content = random.Random(size).randbytes(size)
    stream.write(b"tail")
    sent = write_as(stream, kind, content)
    assert stream.unsent == 4 + len(sent)
    assert b"".join(stream.take(stream.unsent, ONE, 0.0)[1]) == b"tail" + sent


def test_a_write_after_a_send_does_not_change_what_was_sent() -> None:
    stream = new_stream()
    stream.write(b"first")
    _, views = stream.take(5, ONE, 0.0)
    stream.write(b"second")
    assert b"".join(views) == b"first"
    assert b"".join(stream.slice(0, 11)) == b"firstsecond"


def test_many_small_writes_are_a_few_chunks() -> None:
    stream, count = new_stream(), 3 * COALESCED_CHUNK
    tracemalloc.start()
    for _ in range(count):
        stream.write(b"x")
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 1.2 * count
    assert stream.memory <= count + CHUNK_OVERHEAD * 4
    assert len(stream.slice(0, count)) == 3


@pytest.mark.parametrize("pieces", [1, 2])
@pytest.mark.parametrize("size", [2, 100, COALESCE_BELOW])
def test_the_memory_figure_is_close_to_what_sent_writes_really_take(size: int, pieces: int) -> None:
    stream = new_stream()
    tracemalloc.start()
    for index in range(5000):
        for piece in range(pieces):
            stream.write(bytes([piece]) * (size // pieces))
        stream.take(size, (ConnectionId(index),), float(index))
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 0.8 * kept < stream.memory < 1.2 * kept


def test_a_buffer_of_which_a_byte_is_not_acknowledged_is_kept_and_counted_whole() -> None:
    stream, size = new_stream(), 1 << 20
    stream.write(bytes(size))
    stream.take(size, ONE, 0.0)
    stream.acknowledge(size - 1, ())
    assert (stream.memory, stream.backlog) == (size + CHUNK_OVERHEAD, 1 + CHUNK_OVERHEAD)


def test_acknowledged_chunks_are_released() -> None:
    stream = new_stream()
    for _ in range(2000):
        stream.write(bytes(COALESCE_BELOW))
    stream.take(2000 * COALESCE_BELOW, ONE, 0.0)
    stream.acknowledge(1999 * COALESCE_BELOW, ())
    assert stream.memory == COALESCE_BELOW + CHUNK_OVERHEAD
    stream.acknowledge(2000 * COALESCE_BELOW, ())
    assert stream.memory == 0


def test_writing_goes_on_after_everything_was_acknowledged() -> None:
    stream = new_stream()
    for round_ in range(600):
        stream.write(b"%05d" % round_)
        start, views = stream.take(5, ONE, 0.0)
        assert b"".join(views) == b"%05d" % round_
        stream.acknowledge(start + 5, ())
    assert stream.unacked == 0


# --- windows, the end, misuse  ---


def test_sendable_ends_at_the_window() -> None:
    stream = new_stream(window=10)
    stream.write(b"0123456789abc")
    assert stream.sendable == 10
    stream.take(10, ONE, 0.0)
    assert stream.sendable == 0
    stream.window = 13
    assert stream.sendable == 3


def test_a_silly_window_is_used_only_when_nothing_is_under_way() -> None:
    stream = new_stream(window=1000)
    stream.write(bytes(5000))
    assert stream.sendable == 1000
    stream.take(1000, ONE, 0.0)
    stream.window = 1000 + SILLY_WINDOW - 1
    assert stream.sendable == 0
    stream.window = 1000 + SILLY_WINDOW
    assert stream.sendable == SILLY_WINDOW
    stream.window = 1001
    stream.acknowledge(1000, ())
    assert stream.sendable == 1


@pytest.mark.parametrize(("cumulative", "ranges"), [(6, ()), (0, ((3, 6),)), (2**62, ()), (0, ((1, 2**62 - 1),))])
def test_acknowledging_what_was_never_sent_is_an_error_of_the_peer(
    cumulative: int, ranges: tuple[tuple[int, int], ...]
) -> None:
    stream = new_stream()
    stream.write(b"0123456789")
    stream.take(5, ONE, 0.0)
    with pytest.raises(RemoteProtocolError, match="never sent"):
        stream.acknowledge(cumulative, ranges)
    assert stream.acked == 0
    assert len(list(stream.outstanding())) == 1


def test_a_segment_acknowledged_in_part_is_rescued_from_there() -> None:
    stream = new_stream()
    stream.write(b"a" * COALESCE_BELOW + b"0123456789")
    stream.write(b"b" * COALESCE_BELOW)
    stream.take(COALESCE_BELOW + 10, ONE, 0.0)
    (done,) = stream.acknowledge(COALESCE_BELOW + 3, ())
    assert (done.start, done.end) == (0, COALESCE_BELOW + 3)
    (rest,) = stream.outstanding()
    stream.lose(rest)
    assert stream.next_rescue() is rest
    assert b"".join(stream.slice(rest.start, rest.end)) == b"3456789"


def test_small_segments_sent_together_are_sent_again_as_one() -> None:
    stream = new_stream()
    for number in range(3000):
        stream.write(b"%04d" % number)
        stream.take(4, ONE, number / 1e6)
    items = list(stream.outstanding())
    assert [i.end - i.start for i in items] == [COALESCE_BELOW, COALESCE_BELOW, 12_000 - 2 * COALESCE_BELOW]
    assert len(stream.slice(0, COALESCE_BELOW)) <= MAX_PIECES
    assert b"".join(stream.slice(0, 12_000)) == b"".join(b"%04d" % n for n in range(3000))


def test_segments_are_kept_apart_by_connection_time_loss_and_acknowledgement() -> None:
    stream = new_stream()
    stream.write(bytes(100))
    stream.take(10, ONE, 0.0)
    stream.take(10, (ConnectionId(2),), 0.0)
    stream.take(10, (ConnectionId(2),), 1.0)
    stream.lose(list(stream.outstanding())[-1])
    stream.take(10, (ConnectionId(2),), 1.0)
    stream.acknowledge(0, ((30, 40),))
    stream.take(10, (ConnectionId(2),), 1.0)
    assert [(i.start, i.end) for i in stream.outstanding()] == [(0, 10), (10, 20), (20, 30), (40, 50)]


def test_discard_forgets_everything_and_ends_at_what_was_sent() -> None:
    stream = new_stream()
    stream.write(b"0123456789")
    stream.take(4, ONE, 0.0)
    stream.take(2, ONE, 0.0)
    stream.lose(next(stream.outstanding()))
    assert [(i.start, i.end) for i in stream.discard()] == [(0, 6)]
    assert (stream.unsent, stream.unacked, stream.memory) == (0, 0, 0)
    assert stream.next_rescue() is None
    assert stream.acknowledge(6, ()) == []


def test_done_means_that_the_bytes_and_the_end_are_acknowledged() -> None:
    stream = new_stream()
    stream.write(b"x")
    stream.take(1, ONE, 0.0)
    stream.final = stream.finish_acked = True
    assert not stream.done
    stream.acknowledge(1, ())
    assert stream.done


def test_a_stream_does_not_grow_beyond_the_largest_offset() -> None:
    stream = new_stream()
    stream.end_offset = stream.next_offset = stream.acked = MAX_OFFSET - 1
    with pytest.raises(LocalProtocolError, match="2\\^62"):
        stream.write(b"xy")


@given(st.lists(st.binary(min_size=1, max_size=50), min_size=1, max_size=20), st.randoms(use_true_random=False))
def test_acknowledgements_in_any_order_release_everything(writes: list[bytes], order: random.Random) -> None:
    stream = new_stream()
    ranges = []
    for number, data in enumerate(writes):
        stream.write(data)
        start, _ = stream.take(len(data), ONE, float(number))
        ranges.append((start, start + len(data)))
    order.shuffle(ranges)
    seen = 0
    for start, end in ranges:
        newly = stream.acknowledge(0, ((start, end),)) if start else stream.acknowledge(end, ())
        seen += sum(i.end - i.start for i in newly)
    assert seen == stream.next_offset
    stream.acknowledge(stream.next_offset, ())
    assert stream.unacked == 0
    assert not list(stream.outstanding())
