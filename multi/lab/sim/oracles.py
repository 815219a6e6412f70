"""What must hold in every simulated run, whatever happens to the connections. Each end has one `Oracles`.

A violation raises AssertionError at the moment it happens. Where segments travel in clear they are looked into.
"""

from __future__ import annotations

from multi.events import CloseConnection, ConnectionChanged, Effect
from multi.lab.sim.wire import Terminal, Wire
from multi.protocol.segment import SegmentDecoder, SegmentType
from multi.reasons import Cause
from multi.types import ConnectionId, ConnectionState, StreamId

TIMERS_PER_WINDOW = 400  # firings in TIMER_WINDOW seconds; a scheduler that waits makes 20, a spin more than 1000
TIMER_WINDOW = 0.1
CONTROL_ROOM = 64 * 1024  # acknowledgements and control may exceed a full buffer; more would be a leak

EXPECTED_CAUSES = frozenset(
    {
        Cause.ABORTED,
        Cause.ADDRESS_GONE,
        Cause.CLOSED,
        Cause.DRAINED,
        Cause.GOING_AWAY,
        Cause.HANDSHAKE_TIMEOUT,
        Cause.IDLE_TIMEOUT,
        Cause.NETWORK_GONE,
        Cause.NEVER_CONFIRMED,
        Cause.NO_CONNECTION,
        Cause.NO_PROGRESS,
        Cause.PEER_ABORTED,
        Cause.PEER_CLOSED,
        Cause.PEER_LOST,
        Cause.REFUSED,
        Cause.REFUSED_UNKNOWN,
        Cause.REMOVED,
        Cause.REPLACED,
        Cause.RESUME_TIMEOUT,
        Cause.SESSION_GONE,
        Cause.TRANSPORT,
    }
)
"""Why a connection may end in a healthy pair. Anything else is a protocol error."""

HOSTILE_CAUSES = frozenset(
    {
        Cause.BAD_PROOF,
        Cause.CONNECTION_LIMIT,
        Cause.FLOW_CONTROL,
        Cause.NOT_MULTI,
        Cause.PROTOCOL,
        Cause.REFUSED_BUSY,
        Cause.REFUSED_ELSEWHERE,
        Cause.REFUSED_PROTECTION,
        Cause.SEGMENT_SIZE,
        Cause.STREAM_LIMIT,
    }
)
"""And where somebody hostile takes part."""


class Oracles:
    """Watches one end."""

    def __init__(self, end: Terminal) -> None:
        self._end = end
        self.expected_causes = EXPECTED_CAUSES
        """Why a connection may end."""
        self._granted: dict[ConnectionId, int] = {}
        self._decoders: dict[tuple[ConnectionId, int], SegmentDecoder] = {}
        self._carried: dict[tuple[ConnectionId, StreamId], bytearray] = {}
        """A 1 for each byte of a stream that a connection has carried."""
        self._timers = 0
        self._timers_since = 0.0
        self._far: float | None = None
        self.segments: dict[SegmentType, int] = {}
        """Segments sent, by type, where they could be looked into."""
        self.data_bytes: dict[ConnectionId, int] = {}
        self.data_log: list[tuple[float, ConnectionId, StreamId, int]] = []
        """(time, connection, stream, size) of every DATA segment in clear."""

    def _fail(self, message: str) -> None:
        raise AssertionError(f"{self._end.now:.6f} {self._end.name}: {message}")

    # --- what is read  ---

    def delivered(self, stream: StreamId, data: bytes) -> None:
        """Delivered is a prefix of what was sent."""
        other = self._end.other
        sent = other.sent.get(stream, bytearray()) if other is not None else bytearray()
        start = self._end.got(stream)
        if sent[start : start + len(data)] != data:
            self._fail(f"stream {stream} delivered what was never sent, at {start}")

    # --- what is done  ---

    def effect(self, effect: Effect) -> None:
        """SessionClosed is the last effect; late connections may still be released."""
        if self._end.closed is not None and not isinstance(effect, CloseConnection):
            self._fail(f"{effect} after the session was closed")

    def granted(self, wire: Wire, credit: int) -> None:
        self._granted[wire.id] = credit

    def sending(self, wire: Wire, data: bytes, lane: int) -> None:
        """No DATA without credit, none again on the connection that carried it while another was usable."""
        direction = wire.outgoing(self._end)
        segment = self._end.session.connections.get(wire.id)
        largest = segment.segment_size if segment is not None else 128 * 1024
        if direction.backlog + len(data) > direction.spec.buffer + 2 * largest + CONTROL_ROOM:
            self._fail(f"{direction.backlog + len(data)} bytes in the send buffer of {wire.id}")
        if not self._end.world.transparent:
            return
        decoder = self._decoders.setdefault((wire.id, lane), SegmentDecoder())
        for item in decoder.feed(memoryview(data)):
            type_ = SegmentType(item.type)
            self.segments[type_] = self.segments.get(type_, 0) + 1
            if type_ is SegmentType.DATA:
                self._data(wire, item.stream, item.sequence, len(item.payload))

    def _data(self, wire: Wire, stream: StreamId, start: int, size: int) -> None:
        if self._granted.get(wire.id, 0) <= 0:
            self._fail(f"{size} bytes on {wire.id} without credit")
        self._granted[wire.id] -= size
        self.data_bytes[wire.id] = self.data_bytes.get(wire.id, 0) + size
        self.data_log.append((self._end.now, wire.id, stream, size))
        end = start + size
        if self._has_carried(wire.id, stream, start, end):
            others = [c.id for c in self._end.session.connections.for_data() if c.id != wire.id]
            free = [c for c in others if not self._has_carried(c, stream, start, end)]
            if free:
                self._fail(f"bytes {start}..{end} of stream {stream} again on {wire.id}, with {free} usable")
        carried = self._carried.setdefault((wire.id, stream), bytearray())
        carried.extend(bytes(max(0, end - len(carried))))
        carried[start:end] = b"\1" * size

    def _has_carried(self, connection: ConnectionId, stream: StreamId, start: int, end: int) -> bool:
        return 1 in self._carried.get((connection, stream), b"")[start:end]

    def connection_changed(self, event: ConnectionChanged) -> None:
        """A healthy pair never breaks the protocol."""
        if event.state is ConnectionState.LOST and event.reason.cause not in self.expected_causes:
            self._fail(f"connection {event.connection} was lost: {event.reason}")

    # --- what time does  ---

    def timer_fired(self) -> None:
        now = self._end.now
        if now >= self._timers_since + TIMER_WINDOW:
            self._timers, self._timers_since = 0, now
        self._timers += 1
        if self._timers > TIMERS_PER_WINDOW:
            self._fail(f"{self._timers} timers within {TIMER_WINDOW} s")

    def timer_set(self, near: float | None, far: float | None, *, unsettled: bool, at_rest: bool) -> None:
        """What only bytes have moved since `far_timer` was asked is told by `near_timer` alone: drivers rely on it.

        And they ask for none where the session is at rest.
        """
        if at_rest and near is not None:
            self._fail(f"at rest, and due at {near:.6f}")
        if unsettled:
            self._far = far
        elif far is not None and (near is None or far < near) and (self._far is None or self._far > far):
            self._fail(f"due at {far:.6f}, told: {near} and {self._far}")

    # --- windows, memory, acknowledgements  ---

    def check(self) -> None:
        """Windows are kept, memory is bounded, nothing is acknowledged that has not arrived."""
        session = self._end.session
        sender, receiver = session.sender, session.receiver
        if sender.used > sender.window:
            self._fail(f"{sender.used} bytes sent, the session window allows {sender.window}")
        held = receiver.charged - receiver.consumed
        if held > receiver.window.held:
            self._fail(f"holds {held} bytes and is counted for {receiver.window.held}")
        if receiver.window.advertised - receiver.consumed > receiver.window.held:
            self._fail(f"promises more than the {receiver.window.held} bytes it is counted for")
        together = sum(stream.window.size for stream in receiver.streams.values())
        if receiver.window.may_grow is None and together > receiver.window.size:
            self._fail(
                f"streams may hold {together} bytes, and of all only {receiver.window.size}: one can stop others"
            )
        for received in receiver.streams.values():
            promised = received.window.advertised - received.consumed
            if received.highest - received.consumed > max(received.window.size, promised):
                self._fail(f"stream {received.id} holds {received.highest - received.consumed} bytes")
        other = self._end.other
        if other is None or other.session.session_id != session.session_id:
            return
        peer = other.session.receiver
        for stream in sender.streams.values():
            if stream.next_offset > stream.window:
                self._fail(f"stream {stream.id} sent {stream.next_offset}, its window is {stream.window}")
            theirs = peer.streams.get(stream.id)
            if stream.reset_code is None and theirs is not None and stream.acked > theirs.next_offset:
                self._fail(f"stream {stream.id}: {stream.acked} acknowledged, {theirs.next_offset} arrived")


class Unwatched(Oracles):
    """Looks at what is read, and at nothing else."""

    def effect(self, effect: Effect) -> None:
        pass

    def sending(self, wire: Wire, data: bytes, lane: int) -> None:
        pass

    def check(self) -> None:
        pass
