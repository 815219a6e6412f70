"""Reliable control segments: numbered per session, acknowledged in ACK, sent again until acknowledged.

Control is state: what is lost with a connection is sent again on another. Which connection is the session's choice.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from multi.errors import RemoteProtocolError
from multi.protocol.connection import Connection
from multi.protocol.payloads import MAX_RANGES, AckRange
from multi.protocol.receive_stream import run_of_ones
from multi.protocol.segment import EPHEMERAL, SegmentType
from multi.types import ConnectionId, StreamId

MAX_AHEAD = 256  # control segments outstanding beyond the first unacknowledged one; bounds the peer's memory


@dataclass(slots=True)
class _Control:
    type: SegmentType
    payload: bytes
    stream: StreamId
    connection: ConnectionId | None = None


class Outbox:
    """The sending side."""

    def __init__(self, connections: Mapping[ConnectionId, Connection]) -> None:
        self._connections = connections
        self._next = 0
        self._sent = 0  # all below this have left once
        self.acked = 0
        """All below this have been acknowledged."""
        self.queue: list[int] = []
        """Numbers of what is to be sent, again or for the first time."""
        self._controls: dict[int, _Control] = {}

    @property
    def empty(self) -> bool:
        """Nothing is waiting for an acknowledgement."""
        return not self._controls

    @property
    def settled(self) -> bool:
        """Nothing that matters beyond the connections is waiting for an acknowledgement."""
        return all(control.type in EPHEMERAL for control in self._controls.values())

    def waits_for(self, number: int) -> bool:
        """The control segment with this number is not acknowledged yet."""
        return number in self._controls

    def __len__(self) -> int:
        """How many control segments are not acknowledged yet."""
        return len(self._controls)

    @property
    def full(self) -> bool:
        """A peer that acknowledges nothing has let so much pile up: what it makes us say is left unsaid, or waits."""
        return len(self) >= MAX_AHEAD

    def add(self, type_: SegmentType, payload: bytes, stream: StreamId = StreamId(0)) -> int:
        number = self._next
        self._next += 1
        self._controls[number] = _Control(type_, payload, stream)
        self.queue.append(number)
        return number

    def holds(self, type_: SegmentType) -> bool:
        """A control segment of this type is not acknowledged yet."""
        return any(control.type is type_ for control in self._controls.values())

    def send(self, connection: Connection, now: float) -> None:
        """Put everything that waits on `connection`."""
        queue, end = self.queue, self.acked + MAX_AHEAD
        while queue and queue[0] < end:
            number = queue.pop(0)
            control = self._controls[number]
            control.connection = connection.id
            if number >= self._sent:
                self._sent = number + 1
            connection.send_control(number, control.type, control.payload, control.stream, now)

    def acknowledge(self, cumulative: int, ranges: tuple[AckRange, ...]) -> list[tuple[SegmentType, StreamId]]:
        """Return the control segments newly acknowledged."""
        highest = ranges[-1][1] if ranges else cumulative
        if highest > self._sent:
            raise RemoteProtocolError("acknowledgement of control segments that were never sent")
        if cumulative <= self.acked and not ranges:
            return []
        numbers: Sequence[int] = range(self.acked, cumulative)
        if ranges:
            numbers = [*numbers, *(n for start, end in ranges for n in range(max(start, self.acked), end))]
        newly = []
        for number in numbers:
            control = self._controls.pop(number, None)
            if control is None:
                continue
            newly.append((control.type, control.stream))
            if control.connection is None:
                self.queue.remove(number)
            elif control.connection in self._connections:
                self._connections[control.connection].carried_control.discard(number)
        self.acked = max(self.acked, cumulative)
        return newly

    def lose(self, connection: Connection) -> None:
        """Send again what only `connection` carried."""
        for number in connection.carried_control:
            control = self._controls.get(number)
            if control is not None and control.connection == connection.id:
                control.connection = None
                insort(self.queue, number)
        connection.carried_control.clear()


class Inbox:
    """The receiving side: which control numbers have arrived."""

    def __init__(self) -> None:
        self.cumulative = 0
        self.above = 0
        """Those that have arrived beyond a gap: a bit for each, the lowest for `cumulative`."""

    def take(self, number: int) -> bool:
        """Record a control segment; return False for a repeat."""
        if number == self.cumulative and not self.above:  # the common case, written out
            self.cumulative += 1
            return True
        ahead = number - self.cumulative
        if ahead < 0 or self.above >> ahead & 1:
            return False
        if ahead >= 2 * MAX_AHEAD:
            raise RemoteProtocolError(f"control segment {number} while waiting for {self.cumulative}")
        self.above |= 1 << ahead
        run = run_of_ones(self.above)
        self.cumulative += run
        self.above >>= run
        return True

    def ranges(self) -> tuple[AckRange, ...]:
        ranges: list[AckRange] = []
        start, above = self.cumulative, self.above
        while above and len(ranges) < MAX_RANGES:
            gap = run_of_ones(~above)
            run = run_of_ones(above >> gap)
            ranges.append((start + gap, start + gap + run))
            start, above = start + gap + run, above >> (gap + run)
        return tuple(ranges)
