"""Whether the congestion control of a connection is kept in its startup by being given too little.

BBR sends at 2.9 times the rate that it has seen, until that grows no more for three round trips in which it was given
as much. A busy program does not give as much: BBR counts none of these round trips then, and stays in its startup for
good. What it sends fills the queue of the network, and is lost there, again and again. It leaves when its pace is
bounded to little more than what the path carries, for then it is given enough (draft-cardwell-iccrg-bbr-congestion-
control-00 has the rule). Of MPTCP connections Linux hardly ever says that they are given too little, and it takes no
pace for one.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

STANDING = 5 / 4  # times what a path holds without a queue: it carries no more
GROWS = 5 / 4  # times a rate: so much more, and startup has its reason
CARRIES_MORE = 1.08  # times the rate that bounds the pace: a path that was full carries no more than that
LOOKS_APART = 0.05  # seconds, at most, on a busy machine
KEPT_TRIPS = 2  # round trips without growth after which it is kept there
LEAVES_TRIPS = 8  # round trips in which it leaves: what was sent before has to arrive first


@dataclass(slots=True, eq=False)
class Startup:
    """Of one connection; times are in seconds."""

    _rate: float = 0.0
    """Bytes per second that came when it was first given too little, ..."""
    _since: float = inf
    """... and when that was."""
    _until: float = -inf
    _waited: bool = False
    _looked_at: float = -inf

    def kept(self, now: float, rate: float, rtt: float, *, limited: bool, queues: bool, waits: bool) -> bool:
        """Whether it is, and has to be helped out of it.

        `rate` is the largest of late; `limited`: the transport says that it was given too little; `queues`: what it has
        sent is more than the path holds; `waits`: there are bytes which it would be given if there were room. One look
        that finds none says nothing.
        """
        if now > self._looked_at + KEPT_TRIPS * rtt + LOOKS_APART:  # nothing was under way
            self._since, self._until, self._waited = inf, -inf, False
        if rate > self._rate * (CARRIES_MORE if now < self._until else GROWS):
            self._rate, self._since, self._until = rate, inf, -inf
        if not limited or not (waits or self._waited):
            self._since = inf
        elif self._since == inf and queues:
            self._since = now
            if now >= self._until:
                self._rate = rate
        self._waited, self._looked_at = waits, now
        if now > self._since + KEPT_TRIPS * rtt:
            self._until = now + LEAVES_TRIPS * rtt
        return now < self._until
