"""One direction of a link: which packets are lost, and when the others arrive. No I/O and no clock here.

Every packet's departure and arrival are computed when it comes in (departure = when the ones before it have left plus
its own serialization), so lateness of the process does not add up, and the length of the queue is known exactly at any
time. Changed figures apply to the packets that still wait.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from random import Random

from multi.lab.testbed.specs import Direction


@dataclass(slots=True)
class PipeStatistics:
    """What a direction has done so far. Packets are IP packets on the link, however large the kernel's pieces were."""

    bytes: int = 0
    packets: int = 0
    queue_drops: int = 0
    random_losses: int = 0
    cut_drops: int = 0  # because of a blackhole, a lost carrier or a vanished interface
    queue_bytes: int = 0  # waiting now
    queue_ms: float = 0.0  # how long the last of them will wait


@dataclass(slots=True)
class _Flight:
    """A packet between its acceptance and its arrival."""

    arrival: float
    departure: float
    size: int
    packets: int
    jitter: float
    frame: bytes


class Pipe:
    """A drop-tail queue in front of a delay line. `early` is taken off the delay: the time the host needs by itself."""

    def __init__(self, figures: Direction, random: Random, early: float = 0.0) -> None:
        self._random = random
        self._early = early
        self._flights: deque[_Flight] = deque()
        self._free = 0.0  # when the last accepted packet will have left
        self._last_arrival = 0.0
        self._cut = False
        self._done = PipeStatistics()
        self._take(figures)

    def accept(self, frame: bytes, size: int, packets: int, now: float) -> None:
        """A frame with `packets` IP packets of together `size` bytes has come to this end."""
        if self._cut:
            self._done.cut_drops += packets
            return
        if self._loss and self._random.random() < self._loss:
            self._done.random_losses += packets
            return
        if self._free > now:
            if (self._free - now) * self._rate + size > self._limit:
                self._done.queue_drops += packets
                return
            departure = self._free + size / self._rate
        else:
            departure = now + size / self._rate
        self._free = departure
        jitter = self._random.uniform(-self._jitter, self._jitter) if self._jitter else 0.0
        arrival = max(departure + self._delay + jitter, self._last_arrival)
        self._last_arrival = arrival
        self._flights.append(_Flight(arrival, departure, size, packets, jitter, frame))

    @property
    def next_arrival(self) -> float | None:
        return self._flights[0].arrival if self._flights else None

    def arrived(self, now: float) -> bytes | None:
        """The next frame that has arrived by `now`, if any."""
        if not self._flights or self._flights[0].arrival > now:
            return None
        flight = self._flights.popleft()
        self._done.bytes += flight.size
        self._done.packets += flight.packets
        return flight.frame

    def shape(self, figures: Direction, now: float) -> None:
        """Change the figures. What waits leaves at the new rate; what has left keeps the delay it had."""
        old_rate = self._rate
        self._take(figures)
        self._free = now
        waiting = [flight for flight in self._flights if flight.departure > now]
        flying = len(self._flights) - len(waiting)
        self._last_arrival = self._flights[flying - 1].arrival if flying else 0.0
        for flight in waiting:
            unsent = min(flight.size, (flight.departure - now) * old_rate) if flight is waiting[0] else flight.size
            flight.departure = self._free = self._free + unsent / self._rate
            jitter = max(-self._jitter, min(flight.jitter, self._jitter))
            flight.arrival = self._last_arrival = max(flight.departure + self._delay + jitter, self._last_arrival)

    def cut(self, on: bool) -> None:
        """Lose everything, also what is on its way, until told otherwise."""
        self._cut = on
        if on:
            self._done.cut_drops += sum(flight.packets for flight in self._flights)
            self._flights.clear()
            self._free = self._last_arrival = 0.0

    def statistics(self, now: float) -> PipeStatistics:
        backlog = max(0.0, self._free - now)
        return replace(self._done, queue_bytes=round(backlog * self._rate), queue_ms=backlog * 1e3)

    def _take(self, figures: Direction) -> None:
        self._rate = figures.bytes_per_second
        self._limit = figures.queue_limit
        self._delay = max(0.0, figures.delay_ms / 1e3 - self._early)
        self._jitter = figures.jitter_ms / 1e3
        self._loss = figures.loss
