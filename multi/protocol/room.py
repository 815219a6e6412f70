"""How many bytes may be on the way of one connection where others would have to wait for them.

What queues in the network cannot be overtaken; a transport whose congestion control waits for losses fills any queue.
So no more is on the way than the path carries in its shortest round trip and in the time that others may wait: what is
more urgent and may come at any time, or what has arrived on another connection and comes later in the stream.

A round trip that is longer than that has two causes which look alike. The path has become slower, and the queue is this
session's: or its way has become longer, and what is on the way no longer fills it. Then less makes the round trip no
shorter, which is tried for a moment, and the shortest one of before counts no more for a while, as in
`multi.multipath.cap`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

LESS = 5 / 8  # of what is on the way, while it is tried
NEAR, PIECES = 5 / 4, 32 * 1024  # what is on the way is near its bound: with more, the queue is first to become shorter
TRIAL_ROUNDS, MIN_TRIAL = 4, 0.1  # round trips, seconds: so long, for a mean round trip takes some to follow
SHORTER = 7 / 8  # a round trip that is not even so much shorter then
AGAIN, AGAIN_ROUNDS = 1.0, 10  # seconds, round trips: so long after one that found a queue of ours there is no other
BELIEVED, BELIEVED_ROUNDS = 10.0, 20  # seconds, round trips, for which what another found is believed


@dataclass(slots=True, eq=False)
class Room:
    """Of one connection; times are in seconds."""

    _wait: float
    """So much sending may queue."""
    _longer: float = 0.0
    """A round trip that is no queue of ours, ..."""
    _longer_until: float = -inf
    _tried: tuple[float, float] = (0.0, inf)
    """Bytes on the way while less is tried, and until when; `inf` = it is not."""
    _no_queue: float = 0.0
    """The round trip when that began, or the one that is believed if that explains it with the room there is."""
    _next_at: float = -inf

    def most(
        self, peak_rate: float, min_rtt: float, rtt: float, variation: float, in_network: int, now: float
    ) -> float:
        """Bytes; `in_network` of them are on the way. Where round trips vary much a lower bound would starve it."""
        waits = max(self._wait, 2 * variation)
        less, until = self._tried
        if until < inf:
            if now < until:
                return less
            self._tried = 0.0, inf
            self._next_at = now + max(AGAIN, AGAIN_ROUNDS * rtt)
            if rtt >= self._no_queue * SHORTER:
                self._longer, self._longer_until = rtt, now + max(BELIEVED, BELIEVED_ROUNDS * rtt)
        shortest = max(min_rtt, self._longer if now < self._longer_until else 0.0)
        bound = peak_rate * (shortest + waits)
        if rtt > shortest + 2 * waits and in_network >= bound and now >= self._next_at:
            # Whether what was believed still holds is tried from where that has led.
            known = rtt < self._longer + 2 * waits
            usual = peak_rate * (self._longer + waits) if known else bound
            if in_network <= max(usual * NEAR, usual + PIECES):
                self._no_queue = min(rtt, self._longer) if known else rtt
                self._tried = in_network * LESS, now + max(TRIAL_ROUNDS * rtt, MIN_TRIAL)
                return in_network * LESS
        return bound
