"""The grid of unequal paths: points spread evenly over what paths can be, computed, always the same.

Two paths have six factors (rate ratio, round-trip ratio, two losses, two queues), three have ten.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import dist

from benchmarks.spread import spread

__all__ = ["Path", "Point", "grid", "testbed_points"]

TOTAL_MBPS = 100.0
MIN_RTT = 0.010  # seconds
RATE_RATIO = 20.0  # between the fastest and the slowest path, at most
RTT_RATIO = 50.0
MAX_LOSS = 0.02
LOSS_FREE = 0.25  # of the axis: many links lose nothing but what their queue drops
QUEUES = (0.5, 10.0)  # times the bandwidth-delay product
MIN_QUEUE = 3000.0  # bytes; two packets, or nothing gets through
TWO_PATHS, THREE_PATHS = 64, 36
TESTBED = 12


@dataclass(frozen=True, slots=True)
class Path:
    """Mbit/s of packets, seconds there and back, probability of a loss, bytes that may wait; both ways the same."""

    mbps: float
    rtt: float
    loss: float
    queue: float
    jitter: float = 0.0
    """Seconds a packet may be earlier or later."""

    @property
    def rate(self) -> float:
        """Bytes per second."""
        return self.mbps * 1e6 / 8

    def __str__(self) -> str:
        product = self.queue / (self.rate * self.rtt)
        return f"{self.mbps:.1f} Mbit/s {self.rtt * 1000:.0f} ms {self.loss:.2%} {product:.1f} BDP"


@dataclass(frozen=True, slots=True)
class Point:
    """One combination of paths; the first has the shortest round trip."""

    name: str
    paths: tuple[Path, ...]

    def __str__(self) -> str:
        return f"{self.name}: " + " + ".join(map(str, self.paths))


@cache
def grid() -> tuple[Point, ...]:
    """All points, those with two paths first."""
    two = [_two(f"2-{n:02}", c) for n, c in enumerate(spread(6, TWO_PATHS, seed=1), 1)]
    three = [_three(f"3-{n:02}", c) for n, c in enumerate(spread(10, THREE_PATHS, seed=2), 1)]
    return (*two, *three)


@cache
def testbed_points() -> tuple[Point, ...]:
    """The points for real kernels: eight with two paths and four with three, as far from each other as possible."""
    two, three = spread(6, TWO_PATHS, seed=1), spread(10, THREE_PATHS, seed=2)
    points = grid()
    chosen = [points[i] for i in _far_apart(two, TESTBED * 2 // 3)]
    return (*chosen, *(points[TWO_PATHS + i] for i in _far_apart(three, TESTBED // 3)))


# --- from the unit cube to paths ---


def _two(name: str, at: tuple[float, ...]) -> Point:
    rate, rtt, *rest = at
    ratio = RATE_RATIO ** (2 * rate - 1)
    first = TOTAL_MBPS * ratio / (1 + ratio)
    return _point(name, (first, TOTAL_MBPS - first), (1.0, RTT_RATIO**rtt), rest)


def _three(name: str, at: tuple[float, ...]) -> Point:
    # Two factors say how unequal the three rates are: none is more than RATE_RATIO times another.
    first, second, rtt2, rtt3, *rest = at
    shares = (RATE_RATIO**first, RATE_RATIO**second, RATE_RATIO**0.5)
    rates = tuple(TOTAL_MBPS * share / sum(shares) for share in shares)
    return _point(name, rates, (1.0, RTT_RATIO**rtt2, RTT_RATIO**rtt3), rest)


def _point(name: str, rates: tuple[float, ...], ratios: tuple[float, ...], rest: list[float]) -> Point:
    count = len(rates)
    paths = []
    for mbps, ratio, loss, queue in zip(rates, ratios, rest[:count], rest[count:], strict=True):
        rtt = MIN_RTT * ratio
        least, most = QUEUES
        product = mbps * 1e6 / 8 * rtt
        times = least * (most / least) ** queue
        paths.append(Path(mbps, rtt, _loss(loss), max(MIN_QUEUE, times * product)))
    return Point(name, tuple(paths))


def _loss(at: float) -> float:
    return MAX_LOSS * max(0.0, at - LOSS_FREE) / (1 - LOSS_FREE)


def _far_apart(points: tuple[tuple[float, ...], ...], count: int) -> list[int]:
    """Indices of `count` points, each as far as possible from those before it; the first is the most central."""
    centre = (0.5,) * len(points[0])
    chosen = [min(range(len(points)), key=lambda i: dist(points[i], centre))]
    while len(chosen) < count:
        chosen.append(max(range(len(points)), key=lambda i: min(dist(points[i], points[c]) for c in chosen)))
    return sorted(chosen)
