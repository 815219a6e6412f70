"""Whole transfers in virtual time: what the choices of a scheduler add up to.

The links are simple on purpose: a fixed rate and delay, a sender queue of fixed size, no loss, no
reinjection. The simulator's links are better; these need nothing but the scheduler.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from multi.schedulers import create_scheduler, scheduler_names
from multi.schedulers.base import SendRequest
from multi.types import STREAM_ZERO, ConnectionId
from tests.unit.schedulers.views import FakeView

SEGMENT = 16 * 1024
MEGABIT = 125_000.0  # bytes per second


@dataclass(slots=True)
class Link(FakeView):
    """A connection whose segments leave at `line_rate` and arrive half a round trip later."""

    line_rate: float = field(kw_only=True)
    credit: int = 0
    rate: float = 0.0
    congestion_window: int = 0
    rtt_variation: float = 0.001
    queue: int = 64 * 1024
    tells_rate: bool = True
    stalls_at: float = float("inf")
    free_at: float = 0.0
    under_way: list[tuple[float, float, int]] = field(default_factory=list)  # left, acknowledged, bytes

    def __post_init__(self) -> None:
        self.min_rtt = self.rtt

    def update(self, now: float) -> None:
        if self.tells_rate and self.rate == 0.0 and any(done <= now for _, done, _ in self.under_way):
            self.rate = self.line_rate
        self.under_way = [entry for entry in self.under_way if entry[1] > now]
        self.in_flight = sum(size for _, _, size in self.under_way)
        self.not_sent = sum(size for left, _, size in self.under_way if left > now)
        self.credit = max(0, self.queue - self.not_sent)

    def send(self, now: float, size: int) -> float:
        """Return when the segment arrives."""
        self.free_at = max(now, self.free_at) + size / self.line_rate
        arrives = self.free_at + self.rtt / 2
        if arrives >= self.stalls_at:
            self.free_at = arrives = float("inf")
        self.under_way.append((self.free_at, arrives + self.rtt / 2, size))
        self.update(now)
        return arrives


def transfer(name: str, links: list[Link], size: int, *, window: int = 1 << 40, **parameters: float) -> float:
    """Send `size` bytes and return when the last one can be read in order."""
    scheduler = create_scheduler(name, parameters)
    now, sent, arrivals = 0.0, 0, []
    read_at: list[tuple[float, int]] = []  # when, in-order bytes
    while sent < size:
        for link in links:
            link.update(now)
        in_order = max((upto for when, upto in read_at if when + links[0].rtt / 2 <= now), default=0)
        room = window - (sent - in_order)
        chosen = []
        if room > 0:
            n = min(SEGMENT, size - sent, room)
            request = SendRequest(STREAM_ZERO, 3, n, size - sent, room, False, now)
            chosen = [c for c in scheduler.select(request, links) if c.credit > 0]
        if not chosen:
            now += 0.001
            assert now < 600, f"{name} sent {sent} of {size} bytes and then waited"
            continue
        arrivals.append(min(link.send(now, n) for link in links if link in chosen))
        sent += n
        read_at.append((max(arrivals[-1], read_at[-1][0] if read_at else 0.0), sent))
    return read_at[-1][0]


def fast() -> Link:
    return Link(ConnectionId(1), line_rate=40 * MEGABIT, rtt=0.010)


def slow() -> Link:
    return Link(ConnectionId(2), line_rate=8 * MEGABIT, rtt=0.100)


def satellite() -> Link:
    return Link(ConnectionId(2), line_rate=1 * MEGABIT, rtt=0.600)


def mbps(name: str, links: list[Link], size: int = 8 << 20, **options: int) -> float:
    return size * 8 / 1e6 / transfer(name, links, size, **options)


@pytest.mark.parametrize("name", scheduler_names())
def test_every_scheduler_completes_over_links_of_any_order(name: str) -> None:
    assert transfer(name, [fast(), slow()], 1 << 20) < 5
    assert transfer(name, [slow(), fast()], 1 << 20) < 5
    assert transfer(name, [fast(), satellite()], 1 << 20, window=256 * 1024) < 10


def test_adaptive_comes_close_to_the_sum_of_the_links() -> None:
    assert mbps("adaptive", [fast(), slow()]) > 0.97 * 48
    assert mbps("adaptive", [fast(), slow()], window=512 * 1024) > 0.85 * 48


def test_adaptive_is_not_slower_than_the_best_link_alone() -> None:
    alone = mbps("adaptive", [fast()])
    assert mbps("adaptive", [fast(), satellite()]) >= alone
    assert mbps("adaptive", [fast(), slow()], window=512 * 1024) >= alone


@pytest.mark.parametrize("name", ["RR", "WRR", "lowest_latency", "BLEST", "ECF", "cost", "top_latency"])
def test_adaptive_is_at_least_as_fast_as_the_others_when_the_window_is_small(name: str) -> None:
    assert mbps("adaptive", [fast(), slow()], window=512 * 1024) >= mbps(name, [fast(), slow()], window=512 * 1024)


@pytest.mark.parametrize("name", [n for n in scheduler_names() if n != "redundant"])
def test_data_flows_on_when_the_best_link_stalls_but_its_rate_is_remembered(name: str) -> None:
    """What was on it is lost here (reinjection is the session's work); the rest must not wait for it."""
    links = [fast(), slow()]
    links[0].stalls_at = 0.2
    transfer(name, links, 1_500_000)
    assert links[0].credit == 0
    # 1.5 MB at 1 MB/s after the stall, and little more.
    assert links[1].free_at < 0.2 + 1.5 + 0.1
