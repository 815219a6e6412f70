"""Links that carry datagrams: a rate, a delay, a queue that drops what does not fit, and things that go wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from multi.lab.sim.clock import Clock

HEADERS = 28  # bytes of IP and UDP, which take their time too
MBIT = 125_000  # bytes per second in a Mbit/s


@dataclass(frozen=True, slots=True)
class DatagramLinkSpec:
    """One direction."""

    rate: float
    """Bytes per second."""
    delay: float
    """Seconds one way."""
    queue: int
    """Bytes that wait at most."""
    loss: float = 0.0
    """Share of datagrams lost at random."""
    largest: int = 65_535
    """Bytes of the largest datagram that gets through."""
    jitter: float = 0.0
    """Seconds at most by which each datagram comes later, at random: they overtake each other."""


def link_of(mbps: float, round_trip: float, queue: float = 1.5, **more: float) -> DatagramLinkSpec:
    """A direction of a path by what papers say of it; `queue` in bandwidth-delay products, and two packets."""
    rate = mbps * MBIT
    return replace(DatagramLinkSpec(rate, round_trip / 2, int(queue * rate * round_trip) + 4000), **more)  # type: ignore[arg-type]


class Line:
    """What datagrams wait for: that of one link, or a bottleneck that several have in common."""

    def __init__(self) -> None:
        self.free_at = 0.0


class DatagramLink:
    """One direction, from now on."""

    def __init__(
        self, spec: DatagramLinkSpec, clock: Clock, deliver: Callable[[bytes], None], line: Line | None = None
    ) -> None:
        self.spec = spec
        self.silent = False
        """Swallows everything, and nobody is told."""
        self.carried = self.sent = self.dropped = 0
        """Bytes that came through; datagrams that were sent and that were dropped."""
        self.copies = 1
        """Of each datagram that come through."""
        self._clock, self._deliver = clock, deliver
        self._line = line or Line()

    def send(self, data: bytes) -> None:
        """Deliver it some time later, perhaps."""
        self.sent += 1
        spec, now = self.spec, self._clock.now
        start = max(now, self._line.free_at)
        full = start > now and (start - now) * spec.rate + len(data) > spec.queue
        lost = spec.loss > 0 and self._clock.random.random() < spec.loss
        if self.silent or full or lost or len(data) > spec.largest:
            self.dropped += 1
            return
        self._line.free_at = start + (len(data) + HEADERS) / spec.rate
        for _ in range(self.copies):
            late = spec.jitter * self._clock.random.random() if spec.jitter else 0.0
            self._clock.at(self._line.free_at + spec.delay + late, lambda: self._arrive(data))

    def _arrive(self, data: bytes) -> None:
        if not self.silent:
            self.carried += len(data)
            self._deliver(data)
