"""The streams of a session: opening, ending, resetting, and who still needs them.

It decides which stream ids are legal, when a stream is over on both sides, and what its reader and writer see.
"""

from __future__ import annotations

from collections.abc import Callable

from multi.errors import LocalProtocolError, RemoteProtocolError, SessionLost, StreamReset, fresh
from multi.events import Effect, StreamOpened, StreamWritable
from multi.protocol.control import Outbox
from multi.protocol.payloads import (
    decode_unsigned,
    encode_fin,
    encode_max_streams,
    encode_reset,
    encode_stop_sending,
    encode_unsigned,
)
from multi.protocol.receive_stream import ReceiveStream
from multi.protocol.receiver import Receiver
from multi.protocol.segment import Segment, SegmentType
from multi.protocol.send_stream import SendStream
from multi.protocol.sender import Sender
from multi.protocol.settings import MAX_EARLY_DATA
from multi.reasons import Cause, Reason
from multi.types import STREAM_ZERO, Side, StreamId

LOWEST_PRIORITY = 7
HIGHEST_DEADLINE = 3600.0  # seconds
HIGHEST_CODE = 2**32 - 1
DEFAULT_PRIORITY = 3
ROOM_SHARE = 4  # a quarter of the streams a peer may have open is worth telling of, as of a window
FIN, RESET, STOP_SENDING = SegmentType.FIN, SegmentType.RESET, SegmentType.STOP_SENDING
OPEN, MAX_STREAMS = SegmentType.OPEN, SegmentType.MAX_STREAMS  # by name: Enum looks members up slowly before 3.12
STOPPED_BY_PEER = Reason(Cause.PEER_ABORTED, "the peer stopped reading this stream")
RESET_BY_PEER = Reason(Cause.PEER_ABORTED, "the peer reset this stream")


class Streams:
    """Client's ids are even, server's odd; stream 0 exists from the start and belongs to both."""

    def __init__(
        self,
        side: Side,
        max_streams: int,
        sender: Sender,
        receiver: Receiver,
        outbox: Outbox,
        emit: Callable[[Effect], None],
    ) -> None:
        """The peer may have `max_streams` open; `emit` lets the application hear of what has become of one."""
        self._max_streams = max_streams
        self._sender = sender
        self._receiver = receiver
        self._outbox = outbox
        self._emit = emit
        self._own_parity = 0 if side is Side.CLIENT else 1
        self._next_own = 2 if side is Side.CLIENT else 1
        self._next_peer = 1 if side is Side.CLIENT else 2
        self._own_limit = 0  # until HELLO or ACCEPT says how many the peer allows
        self._peer_limit = max_streams
        """How many streams the peer may open in all, as far as it has been told."""
        self._room = 0
        """How many more, as far as it has not."""
        self._unmade: set[StreamId] = set()
        """Those of the peer that it has opened by naming a later one, thousands with one segment perhaps: each is made
        when it is named itself or taken."""
        self._ended: SessionLost | None = None
        self._closing = False
        self._cut_off: SessionLost | None = None
        """Why nothing more is written, although the session lives on until what was written is acknowledged."""
        self._over = False
        self.ending: dict[StreamId, SendStream] = {}
        """Streams whose end the peer has not been told yet."""

    # --- opening  ---

    def create(self, stream: StreamId, priority: int) -> None:
        self._sender.add(SendStream(stream, MAX_EARLY_DATA, priority, self._sender.active))
        received = self._receiver.add(stream, 0.0)
        if self._closing:  # the peer opened it before it heard of our end
            self.finish(stream)
            self._receiver.discard(received)
        if self._cut_off is not None:
            self.cut_off(self._cut_off)

    @property
    def unmade(self) -> int:
        """How many streams the peer has opened of which nothing has come and which nobody has taken."""
        return len(self._unmade)

    def check_open(self) -> None:
        """Raise SessionLost where the session is over, LocalProtocolError where this side has closed it."""
        if self._over:
            raise fresh(self._ended or SessionLost())
        if self._cut_off is not None:
            raise fresh(self._cut_off)
        if self._closing:
            raise LocalProtocolError("this side has closed the session")

    def open(self, priority: int, deadline: float) -> StreamId | None:
        _check("priority", priority, LOWEST_PRIORITY)
        if not 0.0 <= deadline <= HIGHEST_DEADLINE:
            raise LocalProtocolError(f"deadline {deadline!r} is not in 0..{HIGHEST_DEADLINE} seconds")
        self.check_open()
        if (self._next_own - 1) // 2 >= self._own_limit:
            return None
        stream = StreamId(self._next_own)
        self._next_own += 2
        self.create(stream, priority)
        self._sender.streams[stream].deadline = deadline
        fields = [(priority, 1)]
        if deadline:
            fields.append((max(1, round(deadline * 1000)), 4))
        self._outbox.add(OPEN, encode_unsigned(*fields), stream)
        return stream

    def peer_known(self, window: int, max_streams: int) -> None:
        self._own_limit = max_streams
        first = self._sender.streams[STREAM_ZERO]
        first.window = max(first.window, window)
        self._emit(StreamWritable(STREAM_ZERO))

    def of_peer(self, stream: StreamId) -> ReceiveStream | None:
        """The stream the peer has named, which that may open; None when it has ended here."""
        if (found := self._receiver.streams.get(stream)) is not None:
            return found
        if stream == STREAM_ZERO or stream % 2 == self._own_parity:
            if stream >= self._next_own:
                raise RemoteProtocolError(f"stream {stream} was never opened")
            return None
        if stream < self._next_peer:
            return self._made(stream)
        # Naming a stream opens all lower ones of its side, as in RFC 9000 section 2.1.
        if (stream - 1) // 2 >= self._peer_limit:
            limit = self._max_streams
            raise RemoteProtocolError(f"more than {limit} streams open", Cause.STREAM_LIMIT)
        opened = [StreamId(number) for number in range(self._next_peer, stream + 1, 2)]
        self._next_peer = stream + 2
        self._unmade.update(opened)
        for each in opened:
            self._emit(StreamOpened(each))
        if self._room:
            self._give_room()
        found = self._made(stream)
        if self._closing:
            self._finish_unmade()
        return found

    def _made(self, stream: StreamId) -> ReceiveStream | None:
        """A stream of the peer that it has opened; None when it has ended here."""
        if stream in self._unmade:
            self._unmade.remove(stream)
            self.create(stream, DEFAULT_PRIORITY)
            self._receiver.streams[stream].accepted = False
        return self._receiver.streams.get(stream)

    def accept(self, stream: StreamId) -> None:
        """The application has taken a stream of the peer; only now does it make room for another when it ends."""
        found = self._made(stream)
        if found is not None:
            found.accepted = True
            if found.final is not None:
                self.maybe_over(stream)

    # --- the application writes  ---

    def check_writable(self, stream: StreamId) -> SendStream:
        found = self._sender.streams.get(stream)
        if found is not None and found.error is not None:
            raise fresh(found.error)
        if self._over:
            raise fresh(self._ended or SessionLost())
        if found is None or found.final:
            raise LocalProtocolError("the writing side of this stream has ended")
        return found

    def finish(self, stream: StreamId) -> None:
        found = self._sender.streams.get(stream)
        if found is None or found.final or self._over:
            return
        found.final = True
        self.ending[stream] = found

    def send_fins(self) -> None:
        """Say the end of every stream whose last byte has been handed out; before that it could break the window."""
        for stream in [stream for stream in self.ending.values() if stream.next_offset == stream.end_offset]:
            del self.ending[stream.id]
            if stream.reset_code is None:
                self._outbox.add(FIN, encode_fin(stream.end_offset), stream.id)

    def reset(self, stream: StreamId, code: int, now: float) -> None:
        _check("code", code, HIGHEST_CODE)
        found = self._sender.streams.get(stream)
        if found is None or found.finish_acked or found.reset_code is not None or self._over:
            return
        self._sender.forget(found, now)
        found.final, found.reset_code = True, code
        self._outbox.add(RESET, encode_reset(found.next_offset, code), stream)
        self._emit(StreamWritable(stream))

    def finish_all(self) -> None:
        """Session close: end every writing side, read no more."""
        self._closing = True
        self._finish_unmade()
        for stream in list(self._sender.streams):
            self.finish(stream)
        for received in list(self._receiver.streams.values()):
            self._discard(received)

    def _finish_unmade(self) -> None:
        """End the streams that nobody will take; the peer waits for their ends too. To make them takes memory."""
        for stream in sorted(self._unmade):
            self._outbox.add(FIN, encode_fin(0), stream)
        self._unmade.clear()

    def cut_off(self, error: SessionLost) -> None:
        """Nothing more is written. The streams get no end that their readers could take for all of it."""
        self._cut_off = error
        for stream in self._sender.streams.values():
            if not stream.final:
                stream.final, stream.error = True, error
                self._emit(StreamWritable(stream.id))

    def _discard(self, received: ReceiveStream) -> None:
        """Read no more; whoever waits to read hears of it now, and not when the peer says something."""
        self._receiver.discard(received)
        self._emit(received.news)

    @property
    def all_sent_acknowledged(self) -> bool:
        return all(s.done for s in self._sender.streams.values())

    @property
    def all_written_acknowledged(self) -> bool:
        """As far as this side has ended streams, with the ends."""
        return all(s.done or (s.error is not None and not s.unacked) for s in self._sender.streams.values())

    @property
    def all_received(self) -> bool:
        """Everything the peer has written has come, up to the end of each stream."""
        return all(r.complete for r in self._receiver.streams.values())

    def send_error(self, stream: StreamId) -> SessionLost | None:
        """Why the writing side no longer works, or None."""
        found = self._sender.streams.get(stream)
        if found is not None and found.error is not None:
            return found.error
        return self._ended if self._over else None

    def unsent(self, stream: StreamId) -> int:
        found = self._sender.streams.get(stream)
        return found.unsent if found is not None else 0

    def finished(self, stream: StreamId) -> bool:
        """Everything written, with the end, was acknowledged (or nothing of it matters any more)."""
        found = self._sender.streams.get(stream)
        return found is None or found.done

    # --- the application reads  ---

    def readable(self, stream: StreamId) -> int:
        found = self._receiver.streams.get(stream)
        return found.readable if found is not None and not found.discarding else 0

    def at_end(self, stream: StreamId) -> bool:
        """Nothing more will ever be read from this stream."""
        found = self._receiver.streams.get(stream)
        if found is None or found.at_end or found.discarding:
            return True
        return self._over and not found.readable

    def complete(self, stream: StreamId) -> bool:
        """Everything up to the end has come (or nothing of it matters any more)."""
        found = self._receiver.streams.get(stream)
        return found is None or found.complete or found.discarding

    def lacks(self, stream: StreamId) -> bool:
        """What has come is read, and more is needed: whoever reads goes on with the session, or ends with it."""
        return not (self.readable(stream) or self.complete(stream))

    def receive_error(self, stream: StreamId) -> SessionLost | None:
        """Why reading ends early, or None. Bytes that arrived before are read first."""
        found = self._receiver.streams.get(stream)
        if found is not None and found.error is not None:
            return found.error
        return self._ended if self._over and self.lacks(stream) else None

    def stop_sending(self, stream: StreamId, code: int) -> None:
        _check("code", code, HIGHEST_CODE)
        found = self._receiver.streams.get(stream)
        if found is None or found.discarding or self._over:
            return
        self._discard(found)
        if not found.complete:
            # With how far it has come: the acknowledgement may be on its way over another connection still.
            self._outbox.add(STOP_SENDING, encode_stop_sending(code, found.next_offset), stream)
        self.maybe_over(stream)

    # --- the peer sends  ---

    def control(self, segment: Segment, now: float) -> None:
        """Take a control segment that concerns streams."""
        type_, stream, payload = segment.type, segment.stream, segment.payload
        if type_ == OPEN:
            priority, *more = decode_unsigned(payload, 1, 4) if len(payload) > 1 else decode_unsigned(payload, 1)
            received, sending = self.of_peer(stream), self._sender.streams.get(stream)
            if received is not None and sending is not None:
                self._sender.set_priority(sending, min(priority, LOWEST_PRIORITY))
                sending.deadline = min(more[0] / 1000, HIGHEST_DEADLINE) if more else 0.0
        elif type_ == FIN:
            (final,) = decode_unsigned(payload, 8)
            if (received := self.of_peer(stream)) is not None:
                self._receiver.finish(received, final)
                self._emit(received.news)
                self.maybe_over(stream)
        elif type_ == RESET:
            final, code = decode_unsigned(payload, 8, 4)
            if (received := self.of_peer(stream)) is not None:
                self._peer_reset(received, final, code)
        elif type_ == STOP_SENDING:
            code, arrived = decode_unsigned(payload, 4, 8)
            sending = self._sender.streams.get(stream) if self.of_peer(stream) is not None else None
            if sending is not None and arrived > sending.next_offset:
                raise RemoteProtocolError("a reader has gone after more than was ever sent")
            if sending is not None and not sending.finish_acked:
                left = sending.end_offset - max(sending.acked, arrived)
                sending.error = StreamReset(STOPPED_BY_PEER, code, left)
                self.reset(stream, code, now)
        elif type_ == MAX_STREAMS:
            (limit,) = decode_unsigned(payload, 8)
            self._own_limit = max(self._own_limit, limit)
            self._emit(StreamWritable(STREAM_ZERO))

    def _peer_reset(self, received: ReceiveStream, final: int, code: int) -> None:
        if received.complete:
            return
        self._receiver.reset(received, final, code)
        if not received.discarding:
            received.error = StreamReset(RESET_BY_PEER, code)
        self._emit(received.news)
        self.maybe_over(received.id)

    def control_acknowledged(self, type_: SegmentType, stream: StreamId) -> None:
        if type_ is not FIN and type_ is not RESET:
            return
        found = self._sender.streams.get(stream)
        if found is None or (type_ is FIN and found.reset_code is not None):
            return
        found.finish_acked = True
        self._emit(StreamWritable(stream))
        self.maybe_over(stream)

    # --- the end  ---

    def maybe_over(self, stream: StreamId) -> None:
        """Forget a stream that both sides have finished and the application has taken and read to the end.

        What ended it early is kept by the halves themselves, which its reader and writer hold.
        """
        if stream == STREAM_ZERO:
            return
        sending = self._sender.streams.get(stream)
        if sending is None or not sending.finish_acked or sending.acked != sending.end_offset:
            return
        received = self._receiver.streams.get(stream)
        if received is None or not received.accepted or not received.complete:
            return
        if not (received.at_end or received.reset_code is not None or received.discarding):
            return
        self._sender.remove(stream)
        self._receiver.forget(received)
        if stream % 2 != self._own_parity:
            self._room += 1
            self._give_room()

    def _give_room(self) -> None:
        """Let the peer open as many streams as have ended, once that is a good part of all, or more than it has left.

        So one that opens many is told now and then, and one that may open no more at once.
        """
        left = self._peer_limit - (self._next_peer - 1) // 2
        if self._room > left or self._room * ROOM_SHARE >= self._max_streams:
            self._peer_limit += self._room
            self._room = 0
            self._outbox.add(MAX_STREAMS, encode_max_streams(self._peer_limit))

    def session_ended(self, error: SessionLost | None) -> None:
        self._over = True
        self._ended = error


def _check(name: str, found: int, highest: int) -> None:
    """Refuse what the wire has no room for before anything has changed."""
    if not isinstance(found, int) or not 0 <= found <= highest:
        raise LocalProtocolError(f"{name} {found!r} is not in 0..{highest}")
