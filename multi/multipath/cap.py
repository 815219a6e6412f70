"""How much may be in flight on a path beyond what it carries: control that waits for losses fills any buffer.

What queues cannot be taken back when the path dies, and what is urgent waits behind it (Morawski and Karbowanczyk see
delays of six times the path's).
"""

from __future__ import annotations

from collections import deque
from math import inf

RATE_WINDOW = 0.010  # seconds, the shortest time a rate is measured over
STANDING_TIME = 0.1  # seconds, or a round trip, twice which what queues has to last
NEARLY = 7 / 8  # of what may be in flight: so full a path shows what it carries
PEAK_TIME = 1.0  # seconds for which the largest rate counts
LEAST = 32 * 1024  # bytes; a rate that was measured while little was sent must not stop what could be sent now
RELEASE = 0.5  # of the queue that is allowed: with less the path would take more
RATE_GAIN = 0.3  # weight of a sample that is smaller; a larger one counts at once, since what it shows has happened


class RateMeter:
    """Acknowledged bytes per second over windows of at least one round trip.

    Judged as in draft-cheng-iccrg-delivery-rate-estimation: a sample of a time in which the sender had less to send
    than the path would have taken tells what the path carries at least, so it counts only where it raises the rate.
    """

    def __init__(self) -> None:
        self.rate = 0.0
        """Bytes per second; 0 = nothing was acknowledged yet."""
        self.is_lower_bound = True
        """No sample yet was bounded by the path: a few control frames tell nothing of what it carries."""
        self._samples: deque[tuple[float, float]] = deque()
        """Moments and rates, each larger than those that follow."""
        self._since = 0.0
        self._acked = 0
        self._limited_until = 1
        """Bytes acknowledged in all when what was sent while there was too little has gone by."""

    @property
    def known(self) -> float:
        """The rate, 0 where only lower bounds of it are known."""
        return 0.0 if self.is_lower_bound else self.rate

    @property
    def peak(self) -> float:
        """The largest lately, known as `known` is. The mean follows a growing window too late."""
        return self._samples[0][1] if self._samples else 0.0

    def sent(self, acked: int, in_flight: int, most: int) -> None:
        """So many bytes are acknowledged in all and in flight now, and `most` might be, unless a pacer still waits."""
        if in_flight < most * NEARLY:
            self._limited_until = max(1, acked + in_flight)

    def update(self, now: float, acked: int, rtt: float) -> None:
        """`acked` bytes in all so far, `rtt` seconds."""
        elapsed = now - self._since
        if elapsed < max(RATE_WINDOW, rtt):
            return
        if acked > self._acked and self._since:
            self._sample(now, (acked - self._acked) / elapsed, limited=self._acked < self._limited_until)
        self._since, self._acked = now, acked

    def _sample(self, now: float, measured: float, *, limited: bool) -> None:
        if limited:
            self.rate = max(self.rate, measured)
            if self.is_lower_bound or measured < self.peak:
                return
        elif self.is_lower_bound:
            self.rate, self.is_lower_bound = max(self.rate, measured), False
        else:
            self.rate = max(measured, self.rate + RATE_GAIN * (measured - self.rate))
        while self._samples and (self._samples[-1][1] <= measured or self._samples[0][0] < now - PEAK_TIME):
            self._samples.pop() if self._samples[-1][1] <= measured else self._samples.popleft()
        self._samples.append((now, measured))


class LeastLately:
    """The smallest of the round trips of late: what stands in a queue is in all of them, a busy process in some."""

    def __init__(self) -> None:
        self._since = 0.0
        self._now = self._before = inf

    @property
    def rtt(self) -> float:
        """Seconds; inf without any."""
        return min(self._now, self._before)

    def update(self, now: float, latest: float, smoothed: float) -> None:
        """Another round trip."""
        if now >= self._since + max(STANDING_TIME, smoothed):
            self._since, self._before, self._now = now, self._now, inf
        self._now = min(self._now, latest)


class QueueBound:
    """How many bytes may be in flight on a path where no more than `max_queue` seconds are to queue, 0 = any."""

    def __init__(self, max_queue: float) -> None:
        self._max_queue = max_queue
        self._holds = False

    def most(self, window: int, rate: float, least: float, min_rtt: float) -> int:
        """The congestion window, or what fills the path and `max_queue` more where more than that queues.

        `least` is the smallest round trip of late (`LeastLately`). With a mean, a busy process would look like a queue;
        less in flight would make it no faster, and be taken for a smaller rate. It holds until half of that is left:
        let go at once, the window would fill the queue again.
        """
        if not self._max_queue or not rate:
            return window
        self._holds = least > min_rtt + self._max_queue * (RELEASE if self._holds else 1)
        if not self._holds:
            return window
        return min(window, max(LEAST, int(rate * (min_rtt + self._max_queue))))
