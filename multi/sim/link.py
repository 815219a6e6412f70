"""Links in virtual time: reliable byte streams with a rate, a delay and a bounded send buffer.

They model what a transport connection looks like from above, not packets: our transports hide loss. A stalled link
keeps its bytes and delivers them later; a cut one loses what is in flight and tells each side only after a while, or
never, which is what reinjection must survive.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from multi.core.facts import TransportSample


@dataclass(frozen=True, slots=True)
class LinkSpec:
    """One direction of a link: bytes per second, seconds one way, bytes the sender's transport keeps."""

    rate: float = 1e6
    delay: float = 0.010
    buffer: int = 64 * 1024


class Direction:
    """One lane-aware, ordered, reliable direction of one connection."""

    def __init__(
        self,
        spec: LinkSpec,
        clock: Callable[[], float],
        schedule: Callable[[float, Callable[[], None]], None],
        deliver: Callable[[bytes, int], None],
        random: Random,
    ) -> None:
        self.spec = spec
        self._clock = clock
        self._schedule = schedule
        self._deliver = deliver
        self._random = random
        self._free_at = 0.0
        self._last_arrival = 0.0
        self._in_transit: deque[tuple[bytes, int]] = deque()
        self._arrived: deque[tuple[bytes, int]] = deque()
        self._leaving: deque[tuple[float, int]] = deque()
        self._unacked: deque[tuple[float, int]] = deque()
        self._sent = 0
        self._delivered = 0
        self.stalled = False
        self.cut = False

    @property
    def backlog(self) -> int:
        """Bytes written and not yet on the wire."""
        now = self._clock()
        while self._leaving and self._leaving[0][0] <= now:
            self._leaving.popleft()
        return sum(size for _, size in self._leaving)

    def credit(self) -> int:
        return max(0, self.spec.buffer - (self._sent - self._delivered if self.stalled else self.backlog))

    def backlog_ends(self) -> float | None:
        """When credit grows next."""
        return self._leaving[0][0] if self._leaving else None

    def write(self, data: bytes, lane: int) -> None:
        if self.cut or not data:
            return
        now = self._clock()
        self._free_at = max(now, self._free_at) + len(data) / self.spec.rate
        arrival = max(self._last_arrival, self._free_at + self.spec.delay)
        self._last_arrival = arrival
        self._leaving.append((self._free_at, len(data)))
        self._in_transit.append((data, lane))
        self._sent += len(data)
        self._schedule(arrival, self._arrive)

    def _arrive(self) -> None:
        if self.cut or not self._in_transit:
            return
        self._arrived.append(self._in_transit.popleft())
        if not self.stalled:
            self._hand_over()

    def _hand_over(self) -> None:
        while self._arrived and not self.cut:
            data, lane = self._arrived.popleft()
            self._delivered += len(data)
            self._unacked.append((self._clock() + self.spec.delay, len(data)))
            # Transports keep order, not boundaries.
            while data:
                size = self._random.randint(1, len(data)) if self._random.random() < 0.3 else len(data)
                self._deliver(data[:size], lane)
                data = data[size:]

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
        while self._unacked and self._unacked[0][0] <= now:
            self._unacked.popleft()
        pending = sum(size for _, size in self._unacked)
        return TransportSample(
            rtt=2 * self.spec.delay + 0.001,
            rtt_variation=0.002,
            min_rtt=2 * self.spec.delay + 0.001,
            rate=self.spec.rate,
            congestion_window=int(self.spec.rate * 2 * self.spec.delay) + 3000,
            bytes_acked=self._delivered - pending,
            unacked=self._sent - self._delivered + pending,
            not_sent=self.backlog,
        )
