"""The receiving half of a session: streams, the session window, and when to acknowledge.

It decides what an ACK says, when one is due and which connections carry it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from multi.errors import RemoteProtocolError
from multi.protocol.connection import Connection, Connections
from multi.protocol.control import MAX_AHEAD, Inbox
from multi.protocol.payloads import (
    MAX_ACK_PAYLOAD,
    MAX_OFFSET,
    encode_ack,
    encode_plain_ack,
    encode_stream_ack,
)
from multi.protocol.receive_stream import ReceiveStream, Window
from multi.protocol.segment import SegmentType
from multi.protocol.settings import MAX_EARLY_DATA, SessionSettings
from multi.reasons import Cause
from multi.schedulers.estimates import arrival, soonest
from multi.types import STREAM_ZERO, StreamId

ACK_DELAY = 0.010  # seconds an acknowledgement may wait for more bytes
SMALL_WINDOW = 2 * 1024 * 1024  # bytes, of all streams
GAP_DELAY = 0.005  # seconds between two that tell of gaps
AS_GOOD = 0.002  # seconds later than the first that an acknowledgement may arrive where that spares another
ACK_BYTES = 128 * 1024  # acknowledge at once after so many bytes, more when the window is large
FIRST_SHARE = MAX_EARLY_DATA  # bytes of window every stream has, whatever the others hold
MIN_NEWS = 4096  # bytes; less room is not announced, however little the peer has left
MAX_ENDED = 32  # streams that have ended whose last word is kept, to be said again where it may have been lost
ISLAND_SHARE = 1024  # bytes of the session's window for each range kept above a gap; it takes 256 besides its bytes
ACK = int(SegmentType.ACK)
_ACK_OVERHEAD = 18 + 16 * 32  # fixed part and the most control ranges


class SessionWindow:
    """What the peer may send on all streams: what has been read and room for all that the streams' windows allow.

    Only the windows of streams bound what is kept, so what nobody reads on one stream takes nothing from the others.
    A stream begins with FIRST_SHARE, always; up to `cap` windows grow beyond that. Where the server has no memory
    left the room is less than the sum, and streams share it; what others do not use is given up.
    """

    __slots__ = ("_cap", "_shares", "advertised", "held", "may_grow", "size")

    def __init__(self, cap: int) -> None:
        self.size = self.advertised = 0
        self.held = 0
        """The most that may have to be kept: `size`, or what was advertised when it was larger and is not consumed."""
        self.may_grow: Callable[[int], bool] | None = None
        """Asked for the bytes `held` would grow by; the answer yes is a promise to keep as many. None = yes."""
        self._cap = cap
        self._shares = 0

    def share(self, size: int) -> bool:
        """A stream's window would grow by `size`; return whether it may."""
        allowed = self._shares + size <= self._cap and self._grow(self._shares + size)
        if allowed:
            self._shares += size
        return allowed

    def add_stream(self, least: int, wanted: int) -> int:
        """A stream begins with a window of `wanted` bytes if it may, else of `least`; return which."""
        shares = self._shares + wanted
        if shares <= self.held and shares <= self._cap:  # the common case, written out: others have left the room
            self._shares, self.size = shares, max(self.size, shares)
            return wanted
        self._shares += least
        self._grow(self._shares)
        return wanted if wanted > least and self.share(wanted - least) else least

    def remove_stream(self, size: int) -> None:
        self._shares -= size

    def _grow(self, size: int) -> bool:
        missing = size - self.held
        if missing > 0:
            if self.may_grow is not None and not self.may_grow(missing):
                return False
            self.held = size
        self.size = max(self.size, size)
        return True

    def shrink(self, size: int, consumed: int) -> None:
        """The windows of streams have shrunk by `size`, and ended streams leave no room behind."""
        self._shares -= size
        self.size = min(self.size, self._shares)
        self.follow(consumed)

    def follow(self, consumed: int) -> None:
        """`consumed` bytes have been read: what was advertised beyond `size` has become less."""
        self.held = min(self.held, max(self.size, self.advertised - consumed))

    def advertise(self, consumed: int) -> int:
        """Return the absolute offset to advertise now; it never shrinks."""
        self.advertised = max(self.advertised, consumed + self.size)
        return self.advertised


class Receiver:
    """All receive streams of one session."""

    def __init__(self, settings: SessionSettings, now: float) -> None:
        self._settings = settings
        self.streams: dict[StreamId, ReceiveStream] = {}
        self.window = SessionWindow(settings.max_session_window)
        self.control = Inbox()
        self.charged = 0
        """Sum of the highest offsets of all streams: what the peer has used of the session window."""
        self.consumed = 0
        self.moved_at = now
        """When bytes of a stream last came in order."""
        self._islands = 0
        """Ranges kept above gaps, on all streams."""
        self._dirty: dict[StreamId, None] = {}
        self._ended: dict[StreamId, int] = {}
        """Streams that have ended, or on which bytes came again after that: they are acknowledged up to here."""
        self._unacked = 0
        self._changes = 0
        self._control_said = 0
        """Up to which number control was acknowledged last."""
        self._acked_at = now
        self.ack_due: float | None = None
        """When an acknowledgement must leave, None = nothing to say."""
        self.ack_now = False

    def add(self, stream: StreamId, now: float) -> ReceiveStream:
        # A client may send the first share of stream 0 before it knows any window, so less cannot be granted.
        settings = self._settings
        cap = max(settings.max_stream_window, FIRST_SHARE)
        wanted = min(max(settings.initial_window, FIRST_SHARE), cap)
        window = Window(wanted if stream == STREAM_ZERO else FIRST_SHARE, cap, now)
        window.may_grow = self.window.share
        if stream == STREAM_ZERO:
            self.window.add_stream(wanted, wanted)
            self.window.advertise(0)  # HELLO or ACCEPT does
        else:
            window.size = self.window.add_stream(FIRST_SHARE, wanted)
            if window.size > FIRST_SHARE:
                self._dirty[stream] = None
                self.ack_now = True
        created = self.streams[stream] = ReceiveStream(stream, window)
        return created

    # --- bytes in  ---

    def data(self, stream: ReceiveStream, start: int, payload: bytes | memoryview, owned: bool, now: float) -> bool:
        """Take a DATA segment; return True when the reader has something new."""
        size = len(payload)
        end = start + size
        in_turn = start == stream.next_offset == stream.highest and end <= stream.window.advertised
        read = stream.final is None and not stream.discarding
        if in_turn and read and self.charged + size <= self.window.advertised:
            # The common case, written out: it is what comes next, and nothing has come beyond it.
            stream.append(payload, owned, end)
            self.charged += size
            self.moved_at = now
            self._dirty[stream.id] = None
            self._unacked += size
            if self._unacked >= ACK_BYTES and self._unacked >= self.window.size // 8:
                self.ack_now = True
            if self.ack_due is None:
                self.ack_due = now + ACK_DELAY
            return True
        before, islands = stream.next_offset, len(stream.islands)
        gaps = stream.final is None and bool(islands)
        self._check_room(end - stream.highest)
        room = self._islands < self.window.held // ISLAND_SHARE
        self.charged += stream.insert(start, payload, owned, room=room)
        self._islands += len(stream.islands) - islands
        self._dirty[stream.id] = None
        self._unacked += size
        in_order = stream.next_offset > before
        if in_order:
            self.moved_at = now
        if not in_order or gaps:
            # A gap opened or closed, or a repeat came: the sender wants to know soon.
            self._changes += 1
            if end <= before:
                self.ack_now = True
            elif self._changes >= 2 or stream.next_offset > end:
                self._acknowledge_gaps(now)
        if (stream.final is not None and stream.complete) or (
            self._unacked >= ACK_BYTES and self._unacked >= self.window.size // 8
        ):
            self.ack_now = True
        if self.ack_due is None:
            self.ack_due = now + ACK_DELAY
        if stream.discarding and in_order:
            self.give_back(stream.next_offset - before)
        return in_order

    def _check_room(self, advanced: int) -> None:
        # Before anything is taken in: what is refused must not count, or honest bytes would be refused after it.
        if advanced > 0 and self.charged + advanced > self.window.advertised:
            raise RemoteProtocolError(
                f"{self.charged + advanced} bytes on all streams, but the session window ends at "
                f"{self.window.advertised}",
                Cause.FLOW_CONTROL,
            )

    def finish(self, stream: ReceiveStream, final: int) -> None:
        stream.check_final(final)
        self._check_room(final - stream.highest)
        self.charged += stream.finish(final)
        if stream.discarding:
            stream.consumed = stream.next_offset

    def reset(self, stream: ReceiveStream, final: int, code: int) -> None:
        stream.check_final(final)
        self._check_room(final - stream.highest)
        self.charged += final - stream.highest
        self._islands -= len(stream.islands)
        self.give_back(stream.reset(final, code))

    def forget(self, stream: ReceiveStream) -> None:
        """The stream has ended on both sides; what is not acknowledged yet still will be."""
        del self.streams[stream.id]
        self.window.remove_stream(stream.window.size)
        self._has_ended(stream.id, stream.next_offset)

    def repeat(self, stream: StreamId, end: int) -> None:
        """Bytes came again for a stream that has ended here: acknowledge them so that the peer forgets them."""
        if end > MAX_OFFSET:
            raise RemoteProtocolError(f"data up to {end} on stream {stream}, which has ended")
        self._dirty[stream] = None
        self._has_ended(stream, end)
        self.ack_now = True

    def _has_ended(self, stream: StreamId, end: int) -> None:
        ended, dirty = self._ended, self._dirty
        ended[stream] = max(end, ended.get(stream, 0))
        while len(ended) > MAX_ENDED and (oldest := next(iter(ended))) not in dirty:
            del ended[oldest]

    # --- the application reads  ---

    def read(self, stream: ReceiveStream, limit: int, now: float, rtt: float) -> bytes:
        data = stream.read(limit)
        if data:
            if stream.window.consumed(stream.consumed, now, rtt) and stream.final is None:
                self._dirty[stream.id] = None
                self.ack_now = True
            if stream.window.shrinks_to:
                self.window.shrink(stream.window.follow(stream.consumed), self.consumed + len(data))
            self.give_back(len(data))
        return data

    def give_back(self, size: int) -> None:
        """`size` bytes of session window were consumed or discarded."""
        window = self.window
        self.consumed += size
        if window.held > window.size:
            window.follow(self.consumed)
        # The peer should hear of what was read when that is a good part of the window, or more than it has left.
        freed = self.consumed + window.size - window.advertised
        if freed >= window.size // 4 or freed > max(MIN_NEWS, window.advertised - self.charged):
            self.ack_now = True

    def shrink(self, now: float) -> None:
        """Give up what windows have grown by where it was not of use lately, as what was advertised is consumed.

        Not before: bytes that the peer may still send on one stream would take the room of the others.
        """
        streams = self.streams.values()
        self.window.shrink(sum([s.window.shrink(FIRST_SHARE, s.consumed, now) for s in streams]), self.consumed)

    def discard(self, stream: ReceiveStream) -> None:
        self.give_back(stream.discard())

    # --- acknowledgement  ---

    def control_arrived(self, now: float, *, urgent: bool) -> None:
        if urgent or self.control.cumulative >= self._control_said + MAX_AHEAD // 4:
            self.ack_now = True
        elif self.ack_due is None:
            self.ack_due = now + ACK_DELAY

    def _acknowledge_gaps(self, now: float) -> None:
        """Soon, but not with every batch: where two connections carry a stream gaps come and go with each of them.

        The sender of a small window waits for each word about its room.
        """
        at = self._acked_at + GAP_DELAY
        if now >= at or self.window.size <= SMALL_WINDOW:
            self.ack_now = True
        elif self.ack_due is None or self.ack_due > at:
            self.ack_due = at

    def everything_dirty(self) -> None:
        """A connection died or joined: acknowledge everything again, for an ACK may have died with the connection.

        What has ended too: its sender would say it all again before it hears, and a peer that closes no more does.
        """
        for stream in (*self.streams, *self._ended):
            self._dirty[stream] = None
        self.ack_now = True

    def is_due(self, now: float) -> bool:
        return self.ack_now or (self.ack_due is not None and now >= self.ack_due)

    def rides(self, now: float) -> bool:
        """An acknowledgement is not due yet, but may leave with bytes that leave anyway: it costs no packet then.

        Not more often than it would be due, for it is a segment of its own.
        """
        return self.ack_due is not None and now >= self._acked_at + ACK_DELAY

    def send_acks(self, connections: Connections, ready: list[Connection], now: float) -> None:
        """Acknowledge what is due, where it arrives first of `ready`, and where the peer has to hear something."""
        if not ready:
            return
        due = self.is_due(now)
        # On the connection that delivers it first, not the one the data came on (the Multiflow idea), and on every
        # connection whose peer needs to hear something there.
        targets: list[Connection] = []
        for connection in connections.values():
            if connection.ack_wanted and connection.sends:
                connection.ack_wanted = False
                if connection.authenticated:
                    targets.append(connection)
        if due and (best := ready[0] if len(ready) == 1 else self._best(ready)) not in targets:
            targets.append(best)
        if targets:
            self.acknowledge_on(targets, now)

    def acknowledge_on(self, targets: Sequence[Connection], now: float) -> None:
        """Say on each of `targets` all that is new, and what came on it besides."""
        for connection in targets:
            connection.ack_keepalive_due = 0.0
            # What it brought may have been acknowledged on a path that died meanwhile: say it here once more.
            for stream in connection.streams_to_ack:
                if stream in self.streams:
                    self._dirty[stream] = None
            connection.streams_to_ack.clear()
        while True:
            payload = self.ack_payload(now)
            for connection in targets:
                connection.send(ACK, payload, now)
            if not self.ack_now:
                return

    @staticmethod
    def _best(ready: list[Connection]) -> Connection:
        """The connection that delivers first, or one as good that owes its peer a sign anyway: one does for both."""
        best = soonest(ready)
        if best.ack_keepalive_due:
            return best
        latest = arrival(best, 0) + AS_GOOD
        return next((c for c in ready if c.ack_keepalive_due and arrival(c, 0) <= latest), best)

    def ack_payload(self, now: float) -> bytes:
        """Build the newest ACK and consider it sent. Streams that do not fit follow in the next one."""
        self.ack_due, self._acked_at, self._unacked, self._changes = None, now, 0, 0
        self._control_said = self.control.cumulative
        if len(self._dirty) == 1 and not self._islands and not self.control.above:
            (only,) = self._dirty
            if (found := self.streams.get(only)) is not None:  # the common case, written out
                self._dirty.clear()
                self.ack_now = False
                whole, own = self.window, found.window
                whole.advertised = max(whole.advertised, self.consumed + whole.size)
                own.advertised = max(own.advertised, found.consumed + own.size)
                at = self.control.cumulative, only, found.next_offset
                return encode_plain_ack(whole.advertised, *at, own.advertised)
        room = MAX_ACK_PAYLOAD - _ACK_OVERHEAD
        streams: list[bytes] = []
        while self._dirty and len(streams) < 255:
            stream_id = next(iter(self._dirty))
            stream = self.streams.get(stream_id)
            if stream is None:
                end = self._ended[stream_id]
                entry = encode_stream_ack(stream_id, end, end, ())
            else:
                window = stream.window.advertise(stream.consumed)
                fitting = stream.ranges()[: max(0, (room - 21) // 16)] if stream.islands else ()
                entry = encode_stream_ack(stream_id, stream.next_offset, window, fitting)
            room -= len(entry)
            if room < 0:
                break
            streams.append(entry)
            del self._dirty[stream_id]
        self.ack_now = bool(self._dirty)
        ranges = self.control.ranges() if self.control.above else ()
        return encode_ack(self.window.advertise(self.consumed), self.control.cumulative, ranges, streams)
