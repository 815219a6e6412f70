"""Links in virtual time: reliable byte streams with a rate, a delay and a bounded send buffer.

They model what a transport connection looks like from above, not packets: our transports hide loss. A stalled link
keeps its bytes and delivers them later; a cut one loses what is in flight and whatever is written afterwards, which is
what reinjection must survive.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Generic, TypeVar

from multi.types import MESSAGES, TransportSample

PACKET = 1500  # bytes
BURST = 0.020  # seconds of the rate that arrive together; finer costs events, coarser looks like silence
SPLIT_SHARE = 0.2  # of the deliveries arrive in pieces: transports keep order, not boundaries

Spec = TypeVar("Spec")


@dataclass(frozen=True, slots=True)
class StreamLinkSpec:
    """One direction of a link: bytes per second, seconds one way, bytes the sender's transport keeps."""

    rate: float = 1e6
    delay: float = 0.010
    buffer: int = 64 * 1024
    loss: float = 0.0
    """Share of the messages (`MESSAGES`) that are lost; what a lane carries never is."""
    jitter: float = 0.0
    """Seconds a message may take longer than another."""


@dataclass(eq=False)
class Medium(Generic[Spec]):
    """What every model of one direction of a connection has."""

    spec: Spec
    _clock: Callable[[], float]
    _schedule: Callable[[float, Callable[[], None]], None]
    _deliver: Callable[[bytes, int], None]
    _random: Random
    stalled: bool = field(default=False, init=False)
    """Nothing gets through, and nobody is told."""
    cut: bool = field(default=False, init=False)
    queues_less: bool = field(default=False, init=False)
    """As `QueueingChannel.queue_less` asks."""
    pace: float = field(default=0.0, init=False)
    """As `QueueingChannel.pace` asks."""
    on_writable: Callable[[], None] | None = field(default=None, init=False)
    """Called when a full send buffer takes bytes again, where `writable_at` cannot know it."""

    def sever_delivery(self) -> None:
        """The far transport goes on acknowledging, but nobody reads what it takes."""
        self._deliver = lambda data, lane: None


@dataclass(eq=False)
class StreamLink(Medium[StreamLinkSpec]):
    """One lane-aware, ordered, reliable direction of one connection."""

    def __post_init__(self) -> None:
        self._free_at = 0.0
        self._last_arrival = 0.0
        self._in_transit: deque[tuple[bytes, int]] = deque()
        self._arrived: deque[tuple[bytes, int]] = deque()
        self._leaving: deque[tuple[float, int]] = deque()
        self._backlog = 0
        self._unacked: deque[tuple[float, int]] = deque()
        self._sent = self._delivered = self._acked = 0

    @property
    def backlog(self) -> int:
        """Bytes written and not yet on the wire."""
        now = self._clock()
        while self._leaving and self._leaving[0][0] <= now:
            self._backlog -= self._leaving.popleft()[1]
        return self._backlog

    def credit(self) -> int:
        """Bytes the sender's transport takes now."""
        stuck = self.stalled or self.cut
        return max(0, self.spec.buffer - (self._sent - self._delivered if stuck else self.backlog))

    def writable_at(self) -> float | None:
        """When half of the send buffer is free again, as a transport tells; None = it is, or nobody knows when."""
        if self.stalled or self.cut:
            return None
        excess = self.backlog - self.spec.buffer // 2
        for time, size in self._leaving:
            if excess <= 0:
                return None
            excess -= size
            if excess <= 0:
                return time
        return None

    def write(self, data: bytes, lane: int) -> None:
        self._sent += len(data)
        if self.cut or not data:
            return
        self._free_at = max(self._clock(), self._free_at)
        self._backlog += len(data)
        burst = max(PACKET, int(self.spec.rate * BURST))
        for start in range(0, len(data), burst):
            piece = data[start : start + burst]
            self._free_at += len(piece) / self.spec.rate
            self._leaving.append((self._free_at, len(piece)))
            self._transmit(piece, lane)

    def write_message(self, data: bytes) -> None:
        """Send what may be lost, or overtaken by what is sent later."""
        if self.cut:
            return
        self._free_at = max(self._clock(), self._free_at) + len(data) / self.spec.rate
        if self._random.random() >= self.spec.loss:
            late = self._random.random() * self.spec.jitter
            self._schedule(self._free_at + self.spec.delay + late, lambda: self._arrive_message(data))

    def _arrive_message(self, data: bytes) -> None:
        if not (self.cut or self.stalled):
            self._deliver(data, MESSAGES)

    def end(self) -> None:
        """The sender closes: the receiver gets an empty delivery after everything written."""
        if not self.cut:
            self._free_at = max(self._clock(), self._free_at)
            self._transmit(b"", 0)

    def _transmit(self, data: bytes, lane: int) -> None:
        arrival = max(self._last_arrival, self._free_at + self.spec.delay)
        self._last_arrival = arrival
        self._in_transit.append((data, lane))
        self._schedule(arrival, self._arrive)

    def _arrive(self) -> None:
        if self.cut or not self._in_transit:
            return
        self._arrived.append(self._in_transit.popleft())
        if not self.stalled:
            self._hand_over()

    def _hand_over(self) -> None:
        while self._arrived and not self.cut and not self.stalled:
            data, lane = self._arrived.popleft()
            size = len(data)
            self._delivered += size
            self._unacked.append((self._clock() + self.spec.delay, size))
            if size > 1 and self._random.random() < SPLIT_SHARE:
                cut = self._random.randint(1, size - 1)
                self._deliver(data[:cut], lane)
                data = data[cut:]
            self._deliver(data, lane)

    def resume(self) -> None:
        """The stall is over: what arrived meanwhile is delivered now."""
        self.stalled = False
        self._hand_over()

    def sever(self) -> None:
        """Everything in flight is lost."""
        self.cut = True
        self._in_transit.clear()
        self._arrived.clear()

    def sample(self) -> TransportSample:
        """What the sender's kernel would say."""
        now = self._clock()
        while self._unacked and self._unacked[0][0] <= now and not self.cut:
            self._acked += self._unacked.popleft()[1]
        return TransportSample(
            rtt=2 * self.spec.delay + 0.001,
            rtt_variation=0.002,
            min_rtt=2 * self.spec.delay + 0.001,
            rate=self.spec.rate if self._delivered else 0.0,
            congestion_window=int(self.spec.rate * 2 * self.spec.delay) + 3000,
            bytes_acked=self._acked,
            unacked=self._sent - self._acked,
            not_sent=self.backlog,
        )
