"""Which datagrams a path carries: the usual ones, or small ones where large ones vanish and nobody says so. Pure.

Discovery of a path's MTU by its own packets (RFC 8899, RFC 9000 section 14.3), with two sizes: the one that is wanted,
which nearly all networks carry, and the one without which there is no QUIC.
"""

from __future__ import annotations

from collections.abc import Sequence

from multi.transports.quic.udp_port import MIN_DATAGRAM

MAX_LOST = 3  # large packets in a row (MAX_PROBES, RFC 8899 section 5.1.2)
PROBE_AFTER, MAX_PROBE_INTERVAL = 1.0, 60.0  # seconds between probes: at first, and at most, since networks do change


class DatagramSize:
    """That of one path.

        most ─ a probe timeout, or large packets lost: three in a row, or the last ─> small
          ^                                                                            │  probed now, then after 1, 2,
          └───────────────── a large packet, or a probe, has arrived ──────────────────┘  4 and so on to 60 s

    A timeout or a loss alone proves nothing, but what follows then arrives wherever anything does, and a probe beside
    tells the two apart within a round trip. Others on their way tell as well; where there are none, as with a question
    each second, waiting for three costs three. Only packets larger than the small size are *large*; the rest is not
    looked at.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        """Bytes of the largest that may be sent."""
        self.now = most
        """Bytes of the largest that is sent."""
        self.came = 0
        """Bytes of the latest that has come from the peer."""
        self._lost = 0
        self._arrived = -1
        """Number of the latest large packet that has arrived."""
        self._probe_at = self._pause = 0.0

    def limit(self, most: int) -> None:
        """The peer takes no larger ones."""
        self.most = min(self.most, most)
        self.now = min(self.now, most)

    def arrived(self, number: int) -> None:
        """The large packet of this number was acknowledged."""
        self._arrived = max(self._arrived, number)
        self._lost, self.now = 0, self.most

    def lost(self, numbers: Sequence[int], now: float, *, last: bool = False) -> bool:
        """These large packets were lost, or are sent again; `last`: no large one has left since, and none will tell.

        True: for their size, which is no sign of congestion.
        """
        vanished = sum(number > self._arrived for number in numbers)
        self._lost += vanished
        if self._lost >= MAX_LOST or (last and vanished):
            self._shrink(now)
        return self.now < self.most and vanished == len(numbers)

    def timed_out(self, now: float) -> None:
        """Large packets were not acknowledged in time, and nothing after them."""
        self._shrink(now)

    def _shrink(self, now: float) -> None:
        if self.now > MIN_DATAGRAM:
            self.now, self._probe_at, self._pause = MIN_DATAGRAM, now, PROBE_AFTER

    def probe_due(self, now: float) -> bool:
        """Whether one of `most` bytes is to be sent beside the next packet that asks for an acknowledgement."""
        return self.now < self.most and now >= self._probe_at

    def probed(self, now: float) -> None:
        """It has left."""
        self._probe_at = now + self._pause
        self._pause = min(2 * self._pause, MAX_PROBE_INTERVAL)
