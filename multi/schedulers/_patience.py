"""How long a scheduler may wait for a blocked connection while another could send.

A rate is a memory: a connection that has just stalled still looks fast, and waiting for it would stop the
healthy ones until the session suspects it. Waiting is therefore allowed only while the awaited connection
moves.
"""

from __future__ import annotations

from math import inf

from multi.schedulers.base import ConnectionView
from multi.types import ConnectionId

MIN_STILL = 0.025  # seconds without progress that prove nothing: an acknowledgement and a sample may take 10 ms each
MAX_STILL = 1.0  # seconds; a round-trip time bloated by a full queue must not buy endless waiting
MIN_EPISODE = 0.100  # seconds without any segment sent, although one connection had credit
MAX_EPISODE = 2.0  # seconds
EPISODE_GAP = 1.0  # seconds between two questions after which waiting begins anew; the session asks every 5 ms
MAX_MARKS = 64  # connections remembered; ids are never reused, so old ones must go


class Patience:
    """Watches awaited connections; one per scheduler."""

    __slots__ = ("_asked", "_least", "_marks", "_since")

    def __init__(self, least: float = MIN_STILL) -> None:
        self._least = least
        self._marks: dict[ConnectionId, tuple[int, int, float]] = {}
        self._since = inf
        self._asked = -inf

    def allows(self, connection: ConnectionView, now: float) -> bool:
        """True while waiting for this blocked connection is justified.

        It must have bytes under way, something must have moved within two of its round trips, and nobody
        must have been kept from sending for more than four. What its transport still holds when the session waits for
        none of it went elsewhere long ago, because it was late.
        """
        in_flight = connection.in_flight
        not_sent = connection.not_sent
        if in_flight <= 0:
            return False
        if now - self._asked > EPISODE_GAP or self._since > now:
            self._since = now
        self._asked = now
        rtt = connection.rtt
        mark = self._marks.get(connection.id)
        if mark is None or mark[0] != in_flight or mark[1] != not_sent:
            if len(self._marks) >= MAX_MARKS:
                self._marks.clear()
            self._marks[connection.id] = (in_flight, not_sent, now)
        elif now - mark[2] > max(min(2 * rtt, MAX_STILL), self._least):
            return False
        return now - self._since <= max(min(4 * rtt, MAX_EPISODE), MIN_EPISODE, self._least)

    def allows_sparing(self, connection: ConnectionView, now: float) -> bool:
        """The same for who would rather not use the others at all: a rate cap that holds it back is no standstill."""
        return connection.held_by_cap or self.allows(connection, now)

    def sent_on(self, connection: ConnectionView) -> None:
        """A segment goes out on `connection`: it has moved, and the waiting is over."""
        if self._marks:
            self._marks.pop(connection.id, None)
        self._since = inf
