"""The receiving half of a stream: reassembly, duplicates and overlaps, the window, the end.

It decides what is new and in which order it is read. When to acknowledge is left to the receiver.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from multi.errors import RemoteProtocolError, SessionLost
from multi.events import StreamReadable
from multi.protocol.payloads import MAX_RANGES, AckRange
from multi.reasons import Cause
from multi.types import StreamId

UPDATES = 4  # parts of a window; the peer hears when one has been read
UPDATES_IF_USED_UP = 16  # the same where it waits for each: what it hears late adds to its round trips
UNUSED_AFTER = 1.0  # seconds in which reading never made a window grow, or would not have: then a smaller one will do
CRUMBS = 2048  # bytes of a stream that one crumb stands for; it takes 500 more at most
_JOIN_BELOW = 2048  # bytes; smaller pieces are joined, so that tiny segments cost no object each
_JOINED = 16 * 1024  # bytes a joined piece grows to

Piece = bytes | bytearray | memoryview


@dataclass(slots=True, eq=False)
class _Island:
    """A received range above a gap."""

    start: int
    end: int
    pieces: list[Piece]


def run_of_ones(bits: int) -> int:
    """How many of the lowest bits are set without a gap; of a negative number not all may be."""
    return (bits ^ (bits + 1)).bit_length() - 1


@dataclass(slots=True, eq=False)
class _Crumb:
    """What has come of CRUMBS bytes of a stream, with a bit for each that is there: no gaps make it larger."""

    content: bytearray = field(default_factory=lambda: bytearray(CRUMBS))
    there: int = 0

    def put(self, at: int, piece: bytes | memoryview) -> None:
        self.content[at : at + len(piece)] = piece
        self.there |= ((1 << len(piece)) - 1) << at

    def run(self, at: int) -> int:
        """How many bytes are there from `at` on without a gap."""
        return run_of_ones(self.there >> at)


def _kept(piece: bytes | memoryview, owned: bool) -> Piece:
    """Return `piece` as it may be kept.

    A view keeps the whole segment alive: one that shows little of it is copied, or a peer whose segments overlap
    would fill far more memory than his window.
    """
    if not owned or len(piece) < _JOIN_BELOW:
        return bytes(piece)
    whole = piece.obj if isinstance(piece, memoryview) else None
    return bytes(piece) if isinstance(whole, (bytes, bytearray)) and 5 * len(piece) < 4 * len(whole) else piece


def _start(island: _Island) -> int:
    return island.start


def _append(pieces: list[Piece] | deque[Piece], piece: Piece) -> None:
    """Add `piece` at the end. No two neighbours stay below _JOIN_BELOW, however small the segments are."""
    if len(piece) < _JOIN_BELOW and pieces:
        last = pieces[-1]
        if isinstance(last, bytearray) and len(last) < _JOINED:
            last += piece
            return
        if len(last) < _JOIN_BELOW:
            joined = bytearray(last)
            joined += piece
            pieces[-1] = joined
            return
    pieces.append(piece)


def _prepend(pieces: list[Piece], piece: Piece) -> None:
    """Add `piece` at the front, under the same rule."""
    if len(piece) < _JOIN_BELOW and len(pieces[0]) < _JOIN_BELOW:
        joined = bytearray(piece)
        joined += pieces[0]
        pieces[0] = joined
    else:
        pieces.insert(0, piece)


def _extend(pieces: list[Piece] | deque[Piece], more: list[Piece]) -> None:
    """Add all of `more`, which follows the same rule already."""
    _append(pieces, more[0])
    pieces.extend(more[1:])


class Window:
    """What the peer may send on one stream: an absolute offset that follows reading, and grows with its speed.

    The size doubles whenever a quarter of it is consumed within two round trips, up to a hard cap: the receiver-side
    autotuning of TCP. At half of it, senders that double their own windows every round trip, on several connections
    and with what their kernels hold besides, found it shut: 1 MB over two paths took a fifth longer. An application
    that does not read never makes it grow.
    """

    __slots__ = ("_cap", "_mark", "_mark_at", "_updates", "_used_at", "advertised", "may_grow", "shrinks_to", "size")

    def __init__(self, size: int, cap: int, now: float) -> None:
        self.size = self.advertised = min(size, cap)
        self.shrinks_to = 0
        """The size it gets to as what was advertised is consumed; 0 = it keeps its own."""
        self.may_grow: Callable[[int], bool] | None = None
        """Asked for the bytes it would grow by; the answer yes is a promise to keep as many. None = yes."""
        self._cap = cap
        self._mark = 0
        self._updates = UPDATES
        self._mark_at = self._used_at = now

    def consumed(self, total: int, now: float, rtt: float) -> bool:
        """`total` bytes have been consumed so far; return True when the peer should hear of a new window."""
        took = now - self._mark_at
        recently = took <= 2 * rtt + 0.020
        if total - self._mark >= self.size // 4:
            if recently:
                self._used_at, self.shrinks_to = now, 0
                self.grow(self.size * 2)
            self._updates = UPDATES_IF_USED_UP if took <= rtt else UPDATES
            self._mark, self._mark_at = total, now
        elif not recently:
            self._updates = UPDATES
            self._mark, self._mark_at = total, now
        return total + self.size - self.advertised >= self.size // self._updates

    def grow(self, size: int) -> bool:
        """Grow to `size` if that is more, as far as the cap and others allow; return True when it has grown."""
        more = min(self._cap, size) - self.size
        grows = more > 0 and (self.may_grow is None or self.may_grow(more))
        if grows:
            self.size += more
        return grows

    def shrink(self, size: int, total: int, now: float) -> int:
        """Shrink to `size` unless so large a window was of use lately; return by how much it has shrunk."""
        if self.size > size and now >= self._used_at + UNUSED_AFTER:
            self.shrinks_to = size
        return self.follow(total)

    def follow(self, total: int) -> int:
        """Shrink, if it is to, as `total` bytes have been consumed; return by how much it has shrunk.

        What was advertised stands: the window follows reading again once all but `shrinks_to` of it is consumed.
        """
        less = self.size - max(self.shrinks_to, self.advertised - total) if self.shrinks_to else 0
        if less <= 0:
            return 0
        self.size -= less
        if self.size == self.shrinks_to:
            self.shrinks_to = 0
        return less

    def advertise(self, total: int) -> int:
        """Return the absolute offset to advertise now; it never shrinks."""
        self.advertised = max(self.advertised, total + self.size)
        return self.advertised


@dataclass(slots=True, eq=False)
class ReceiveStream:
    """`consumed <= next_offset <= highest <= window.advertised`."""

    id: StreamId
    window: Window
    next_offset: int = 0
    highest: int = 0
    consumed: int = 0
    final: int | None = None
    reset_code: int | None = None
    error: SessionLost | None = None
    """Why reading ends early."""
    accepted: bool = True
    """The application holds its reader and writer; False for a stream of the peer nobody has asked for yet."""
    discarding: bool = False
    """The application reads no more: bytes are acknowledged and dropped."""
    islands: list[_Island] = field(default_factory=list)
    news: StreamReadable = field(init=False)
    """The effect that says so when there is something to read."""
    _ready: deque[Piece] = field(default_factory=deque)
    _crumbs: dict[int, _Crumb] = field(default_factory=dict)
    """What came above a gap when the session had as many islands as it may; by offset // CRUMBS."""

    def __post_init__(self) -> None:
        self.news = StreamReadable(self.id)

    @property
    def readable(self) -> int:
        """Bytes in order and not yet read."""
        return self.next_offset - self.consumed

    @property
    def waits(self) -> bool:
        """There is nothing to read, and nothing is known that would keep more from coming."""
        return self.next_offset == self.consumed and self.final is None and self.error is None and not self.discarding

    @property
    def lone_line(self) -> int:
        """Bytes of what comes next where that is one line and nothing else, as small messages are; else 0."""
        piece = self._ready[0] if self._ready else b""
        if isinstance(piece, memoryview):
            return 0
        end = piece.find(b"\n") + 1
        return end if end == len(piece) else 0

    @property
    def at_end(self) -> bool:
        """All bytes up to the end were read."""
        return self.final is not None and self.consumed >= self.final

    @property
    def complete(self) -> bool:
        """All bytes up to the end have arrived, or the peer has reset the stream."""
        return self.reset_code is not None or (self.final is not None and self.next_offset >= self.final)

    def ranges(self) -> tuple[AckRange, ...]:
        """Received ranges above `next_offset`, the lowest MAX_RANGES of them; crumbs are not told of."""
        return tuple((i.start, i.end) for i in self.islands[:MAX_RANGES])

    def insert(self, start: int, payload: bytes | memoryview, owned: bool, *, room: bool = True) -> int:
        """Take a segment's bytes in; return how far `highest` moved (what the session window is charged).

        `owned` payloads are kept, others copied; without `room` no further island is made. Raises RemoteProtocolError
        for data outside the window or beyond the end.
        """
        end = start + len(payload)
        if end > self.window.advertised:
            raise RemoteProtocolError(
                f"data up to {end} on stream {self.id}, but the window ends at {self.window.advertised}",
                Cause.FLOW_CONTROL,
            )
        if self.final is not None and end > self.final:
            raise RemoteProtocolError(f"data up to {end} on stream {self.id}, which ends at {self.final}")
        if end > self.next_offset and self.reset_code is None:
            if start < self.next_offset:
                payload = payload[self.next_offset - start :]
                start = self.next_offset
            before = self.next_offset
            if start == before and not self.islands:
                self._deliver(_kept(payload, owned), end)
            else:
                self._fill(start, end, payload, owned, room)
            if self._crumbs:
                self._take_crumbs(before)
        advanced = end - self.highest
        if advanced <= 0:
            return 0
        self.highest = end
        return advanced

    def append(self, payload: bytes | memoryview, owned: bool, end: int) -> None:
        """Take in what comes next and ends at `end`, where nothing has come beyond it and somebody reads."""
        if len(payload) < _JOIN_BELOW:
            _append(self._ready, bytes(payload))
        else:
            self._ready.append(payload if type(payload) is bytes else _kept(payload, owned))
        self.next_offset = self.highest = end

    def _deliver(self, piece: Piece, end: int) -> None:
        if self.discarding:
            self.consumed = end
        elif len(piece) >= _JOIN_BELOW:
            self._ready.append(piece)
        else:
            _append(self._ready, piece)
        self.next_offset = end

    def _fill(self, start: int, end: int, payload: bytes | memoryview, owned: bool, room: bool) -> None:
        """Put the parts of [start, end) that are new into the islands, then deliver what is in order."""
        islands = self.islands
        index = bisect_right(islands, start, key=_start)
        if index and islands[index - 1].end > start:
            cut = islands[index - 1].end - start
            payload, start = payload[cut:], start + cut
        while start < end:
            stop = min(end, islands[index].start) if index < len(islands) else end
            if stop > start:
                self._add(index, start, stop, payload[: stop - start], owned, room)
                index = bisect_right(islands, start, key=_start)
            reached = max(stop, islands[index - 1].end) if index else stop
            payload, start = payload[reached - start :], reached
            index = bisect_right(islands, start, key=_start)
        self._take_island()

    def _take_island(self) -> None:
        """Deliver the first island if it is in order now."""
        if self.islands and self.islands[0].start == self.next_offset:
            island = self.islands.pop(0)
            if self.discarding:
                self.consumed = island.end
            else:
                _extend(self._ready, island.pieces)
            self.next_offset = island.end

    def _take_crumbs(self, before: int) -> None:
        """Deliver what is in order now, and forget the crumbs of what has been delivered since `before`."""
        while crumb := self._crumbs.get(self.next_offset // CRUMBS):
            at = self.next_offset % CRUMBS
            size = crumb.run(at)
            if self.islands:
                size = min(size, self.islands[0].start - self.next_offset)
            if not size:
                break
            self._deliver(bytes(crumb.content[at : at + size]), self.next_offset + size)
            self._take_island()
        for index in range(before // CRUMBS, self.next_offset // CRUMBS):
            self._crumbs.pop(index, None)

    def _add(self, index: int, start: int, end: int, payload: bytes | memoryview, owned: bool, room: bool) -> None:
        """Insert a piece that overlaps no island at `index`, joining it with its neighbours, or among the crumbs.

        What is a crumb already stays one: otherwise bytes that are said twice would be kept twice.
        """
        before = self.islands[index - 1] if index else None
        after = self.islands[index] if index < len(self.islands) else None
        joins = (before is not None and before.end == start) or (after is not None and after.start == end)
        if start // CRUMBS in self._crumbs or not (joins or room or start == self.next_offset):
            for at in range(start - start % CRUMBS, end, CRUMBS):
                first = max(start, at)
                part = payload[first - start : at + CRUMBS - start]
                self._crumbs.setdefault(at // CRUMBS, _Crumb()).put(first - at, part)
            return
        for covered in range(-(-start // CRUMBS), end // CRUMBS if self._crumbs else 0):
            self._crumbs.pop(covered, None)
        piece = _kept(payload, owned)
        if before is not None and before.end == start:
            _append(before.pieces, piece)
            before.end = end
            if after is not None and after.start == end:
                _extend(before.pieces, after.pieces)
                before.end = after.end
                del self.islands[index]
        elif after is not None and after.start == end:
            _prepend(after.pieces, piece)
            after.start = start
        else:
            self.islands.insert(index, _Island(start, end, [piece]))

    def check_final(self, final: int) -> None:
        """Raise RemoteProtocolError when the stream cannot end at `final`."""
        if self.final is not None and self.final != final:
            raise RemoteProtocolError(f"stream {self.id} ends at {self.final} and at {final}")
        if final < self.highest or final > self.window.advertised:
            raise RemoteProtocolError(
                f"stream {self.id} ends at {final}, outside {self.highest}..{self.window.advertised}"
            )

    def finish(self, final: int) -> int:
        """The peer ends the stream at `final`; return how far `highest` moved."""
        self.check_final(final)
        self.final = final
        advanced = final - self.highest
        self.highest = final
        return advanced

    def reset(self, final: int, code: int) -> int:
        """The peer gives the stream up; return the bytes of session window it gives back."""
        self.finish(final)
        self.reset_code = code
        given_back = final - self.consumed
        self.consumed = self.next_offset = final
        self._ready.clear()
        self.islands.clear()
        self._crumbs.clear()
        return given_back

    def discard(self) -> int:
        """The application reads no more; return the bytes of session window that gives back."""
        self.discarding = True
        given_back = self.next_offset - self.consumed
        self.consumed = self.next_offset
        self._ready.clear()
        return given_back

    def read(self, limit: int) -> bytes:
        """Return up to `limit` bytes in order; negative = everything there is. Cheap when whole pieces fit."""
        ready = self._ready
        if not ready or limit == 0:
            return b""
        if limit < 0:
            data = b"".join(ready) if len(ready) > 1 else bytes(ready[0])
            ready.clear()
        elif len(ready[0]) > limit:
            view = memoryview(ready[0])
            data, ready[0] = bytes(view[:limit]), view[limit:]
        else:
            data = bytes(ready.popleft())
            # Large pieces are handed out one by one: joining them would copy them once more.
            if ready and len(data) < _JOINED and len(data) + len(ready[0]) <= limit:
                more, room = [data], limit - len(data)
                while ready and len(ready[0]) <= room:
                    room -= len(ready[0])
                    more.append(bytes(ready.popleft()))
                data = b"".join(more)
        self.consumed += len(data)
        return data
