"""The sending half of a stream: bytes the application wrote, until the session acknowledges them.

It decides how application data is kept (by reference where it cannot change, copied once otherwise, small writes
coalesced) and what is outstanding. Which connection carries what, and when, is the sender's business.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field

from multi.errors import LocalProtocolError, RemoteProtocolError, SessionLost
from multi.protocol.payloads import MAX_OFFSET, AckRange, Parameters
from multi.schedulers.base import Scheduler
from multi.types import Buffer, ConnectionId, StreamId

COALESCE_BELOW = 4096  # bytes; copying less costs less than keeping one more object and buffer
COALESCED_CHUNK = 64 * 1024  # bytes a coalesced chunk grows to
CHUNK_OVERHEAD = 320  # bytes of objects kept per chunk (measured: 305 to 310), counted against limits
SILLY_WINDOW = 1024  # bytes; less window than this is not used alone
SENT_TOGETHER = 0.005  # seconds within which small segments on the same connection share one record
MAX_PIECES = 64  # buffers of one segment; more are joined, a system call takes 1,024 in all
_COMPACT_AFTER = 256  # dead entries at the front of a list before it is cut


@dataclass(slots=True, eq=False)
class Outstanding:
    """A range that was sent and is not acknowledged; `carriers` are the connections that carry it, newest last."""

    start: int
    end: int
    carriers: tuple[ConnectionId, ...]
    first_sent_at: float
    sent_at: float
    """When it was sent last."""
    acked: bool = False
    lost: bool = False
    """True while it waits to be rescued."""


@dataclass(frozen=True, slots=True, eq=False)
class StreamSteering:
    """How streams divide their bytes among the connections, where that is not as the session does.

    Those that are steered alike share one: they are one group to its scheduler.
    """

    name: str
    parameters: Parameters
    scheduler: Scheduler


@dataclass(slots=True, eq=False)
class SendStream:
    """Offsets are those of the wire: `acked <= next_offset <= end_offset`."""

    id: StreamId
    window: int
    """Absolute offset the peer allows."""
    priority: int
    active: dict[StreamId, SendStream] = field(repr=False)
    """The streams of the session that have bytes which are not acknowledged; this one enters and leaves by itself."""
    deadline: float = 0.0
    """Seconds in which bytes should arrive once they are sent; 0 = none."""
    steering: StreamSteering | None = None
    """None = as the session."""
    steer_sequence: int = -1
    """Number of the newest STEER taken."""
    acked: int = 0
    moved_at: float = 0.0
    """When `acked` last grew by more than a trickle, or the first byte left that is not acknowledged."""
    moved_to: int = 0
    """`acked` then."""
    next_offset: int = 0
    end_offset: int = 0
    final: bool = False
    """True once the application has ended this direction."""
    finish_acked: bool = False
    """True once the peer has acknowledged the FIN or RESET."""
    reset_code: int | None = None
    error: SessionLost | None = None
    """Why writing has ended early."""
    _offsets: list[int] = field(default_factory=list)
    _buffers: list[Buffer] = field(default_factory=list)
    _buffers_head: int = 0
    _tail_open: bool = False
    _outstanding: list[Outstanding] = field(default_factory=list)
    _outstanding_head: int = 0
    lost: list[Outstanding] = field(default_factory=list)
    """Ranges to be sent again elsewhere, in offset order; those acknowledged meanwhile may still be among them."""

    # --- application  ---

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append bytes. `bytes` and views of `bytes` are kept, anything else is copied now."""
        size = len(data) if type(data) is not memoryview else data.nbytes
        end = self.end_offset + size
        if end > MAX_OFFSET:
            raise LocalProtocolError("a stream cannot carry more than 2^62 bytes")
        if not size:
            return
        if self.acked == self.end_offset:
            self.active[self.id] = self
        if size < COALESCE_BELOW:
            if isinstance(data, memoryview):
                data = data.tobytes()  # a bytearray takes no view that has gaps or items wider than a byte
            if self._tail_open and self._join(data):
                self.end_offset = end
                return
            kept: Buffer = data if type(data) is bytes else bytearray(data)
        elif isinstance(data, bytes):
            kept = data
        elif isinstance(data, memoryview) and type(data.obj) is bytes and data.c_contiguous:
            # A view of our own: the caller may release his as soon as write() has returned.
            kept = data.cast("B") if data.ndim != 1 or data.format != "B" else data[:]
        else:
            kept = bytes(data)
        self._tail_open = size < COALESCE_BELOW
        self._offsets.append(self.end_offset)
        self._buffers.append(kept)
        self.end_offset = end

    def _join(self, data: bytes | bytearray) -> bool:
        """Add a small piece to the one before, of which nothing was sent; False when that is large enough."""
        tail = self._buffers[-1]
        if len(tail) + len(data) > COALESCED_CHUNK:
            return False
        if isinstance(tail, bytearray):
            tail += data
        else:
            self._buffers[-1] = bytearray(tail) + data  # a piece that stays alone is sent as it came
        return True

    @property
    def unsent(self) -> int:
        return self.end_offset - self.next_offset

    @property
    def unacked(self) -> int:
        """Bytes written and not acknowledged, sent or not."""
        return self.end_offset - self.acked

    @property
    def backlog(self) -> int:
        """Bytes not acknowledged, with the overhead of the objects that hold them."""
        return self.end_offset - self.acked + CHUNK_OVERHEAD * (len(self._buffers) - self._buffers_head)

    @property
    def memory(self) -> int:
        """Bytes kept, with that overhead: a buffer stays whole until the last byte of it is acknowledged."""
        count = len(self._buffers) - self._buffers_head
        return self.end_offset - self._offsets[self._buffers_head] + CHUNK_OVERHEAD * count if count else 0

    @property
    def sendable(self) -> int:
        """New bytes the peer's stream window allows now."""
        return self.worth_sending(self.window - self.next_offset)

    def worth_sending(self, room: int) -> int:
        """Return how much of `room` to use: all of it, or nothing while it is silly.

        A peer that opens its window byte by byte would get, and make us keep, a segment for each (RFC 1122 section
        4.2.3.4). While earlier bytes are unacknowledged, waiting for a larger window cannot stall.
        """
        unsent = self.end_offset - self.next_offset
        if unsent <= room:
            return unsent
        return 0 if room < SILLY_WINDOW and self.acked < self.next_offset else room

    @property
    def done(self) -> bool:
        """Everything, with the end, is acknowledged."""
        return self.finish_acked and not self.unacked

    # --- sending  ---

    def take(self, size: int, carriers: tuple[ConnectionId, ...], now: float) -> tuple[int, list[Buffer]]:
        """Mark the next `size` unsent bytes as sent on `carriers`; return their offset and buffers."""
        start = self.next_offset
        if start == self.acked:
            self.moved_at, self.moved_to = now, start
        end = self.next_offset = start + size
        last = self._outstanding[-1] if len(self._outstanding) > self._outstanding_head else None
        if (
            last is not None
            and end - last.start <= COALESCE_BELOW
            and last.carriers == carriers
            and now - last.sent_at <= SENT_TOGETHER
            and not last.acked
            and not last.lost
        ):
            last.end = end  # small segments sent together are lost and sent again together: one then, not hundreds
        else:
            self._outstanding.append(Outstanding(start, end, carriers, now, now))
        if self._offsets[-1] == start:
            piece = self._buffers[-1]
            if type(piece) is bytes and len(piece) == size:  # the common case, written out
                self._tail_open = False
                return start, [piece]
        return start, self.slice(start, end)

    def slice(self, start: int, end: int) -> list[Buffer]:
        """Return the buffers of [start, end); the range must still be kept."""
        index = bisect_right(self._offsets, start, self._buffers_head) - 1
        pieces: list[Buffer] = []
        while start < end:
            buffer, base = self._buffers[index], self._offsets[index]
            if type(buffer) is bytearray:  # what was sent once can never change
                buffer = self._buffers[index] = bytes(buffer) if len(buffer) < COALESCE_BELOW else memoryview(buffer)
            if index == len(self._buffers) - 1:
                self._tail_open = False
            if type(buffer) is bytes and base == start and len(buffer) <= end - start:
                piece: Buffer = buffer  # all of it: no view is needed
            else:
                if not isinstance(buffer, memoryview):
                    buffer = self._buffers[index] = memoryview(buffer)
                piece = buffer[start - base : end - base]
            pieces.append(piece)
            start += len(piece)
            index += 1
        if len(pieces) > MAX_PIECES:
            return [b"".join(pieces)]
        return pieces

    def split(self, item: Outstanding, size: int) -> Outstanding:
        """Cut `item` after `size` bytes and return its first part (still in the list, as is the rest)."""
        if item.end - item.start <= size:
            return item
        index = bisect_left(self._outstanding, item.start, self._outstanding_head, key=lambda o: o.start)
        rest = Outstanding(item.start + size, item.end, item.carriers, item.first_sent_at, item.sent_at)
        item.end = rest.start
        self._outstanding.insert(index + 1, rest)
        if item.lost:
            rest.lost = True
            self.lost.insert(self.lost.index(item) + 1, rest)
        return item

    def outstanding(self) -> Iterator[Outstanding]:
        """Unacknowledged ranges in offset order; where one is split meanwhile, its rest comes next."""
        items, index = self._outstanding, self._outstanding_head
        while index < len(items):
            if not items[index].acked:
                yield items[index]
            index += 1

    def lose(self, item: Outstanding) -> None:
        """Queue a range for rescue."""
        if not item.lost and not item.acked:
            item.lost = True
            index = bisect_left(self.lost, item.start, key=lambda o: o.start)
            self.lost.insert(index, item)

    def next_rescue(self) -> Outstanding | None:
        while self.lost and self.lost[0].acked:
            self.lost.pop(0)
        return self.lost[0] if self.lost else None

    def rescued(self, item: Outstanding) -> None:
        """`item` has been handed to another connection, or its own has recovered."""
        if item.lost:
            item.lost = False
            self.lost.remove(item)

    # --- acknowledgement  ---

    def acknowledge(self, cumulative: int, ranges: tuple[AckRange, ...]) -> list[Outstanding]:
        """Take an acknowledgement in; return the ranges it newly covers.

        Raises RemoteProtocolError for bytes that were never sent.
        """
        if cumulative > self.next_offset or (ranges and ranges[-1][1] > self.next_offset):
            raise RemoteProtocolError("acknowledgement of data that was never sent")
        if cumulative == self.end_offset:
            return self._release_all() if self.acked < cumulative else []
        newly: list[Outstanding] = []
        items = self._outstanding
        head = self._outstanding_head
        if cumulative > self.acked:
            while head < len(items) and items[head].end <= cumulative:
                if not items[head].acked:
                    newly.append(items[head])
                head += 1
            if head < len(items) and items[head].start < cumulative and not items[head].acked:
                # No honest peer acknowledges part of a segment; for another one, released bytes would be sent again.
                part = items[head]
                newly.append(Outstanding(part.start, cumulative, part.carriers, part.first_sent_at, part.sent_at))
                part.start = cumulative
            self._outstanding_head = head
            self.acked = cumulative
            if head > _COMPACT_AFTER and head * 2 > len(items):
                del items[:head]
                self._outstanding_head = 0
            self._release(cumulative)
        for start, end in ranges:
            index = bisect_left(items, start, self._outstanding_head, key=lambda o: o.start)
            while index < len(items) and items[index].end <= end:
                if not items[index].acked:
                    newly.append(items[index])
                    items[index].acked = True
                index += 1
        for item in newly:
            item.acked = True
        return newly

    def _release_all(self) -> list[Outstanding]:
        """Nothing written need be kept any more; return the ranges that were outstanding."""
        newly: list[Outstanding] = []
        for item in self._outstanding[self._outstanding_head :]:
            if not item.acked:
                item.acked = True
                newly.append(item)
        self._outstanding.clear()
        self._offsets.clear()
        self._buffers.clear()
        self._outstanding_head = self._buffers_head = 0
        self._tail_open = False
        self.acked = self.end_offset
        self.active.pop(self.id, None)
        return newly

    def _release(self, below: int) -> None:
        """Drop the buffers that end at or before `below`."""
        head, count = self._buffers_head, len(self._buffers)
        while head + 1 < count and self._offsets[head + 1] <= below:
            self._buffers[head] = b""
            head += 1
        self._buffers_head = head
        if head > _COMPACT_AFTER and head * 2 > count:
            del self._buffers[:head]
            del self._offsets[:head]
            self._buffers_head = 0

    def discard(self) -> list[Outstanding]:
        """Forget everything unsent and unacknowledged (RESET); return what was outstanding."""
        self.lost.clear()
        self.end_offset = self.next_offset
        return self._release_all()
