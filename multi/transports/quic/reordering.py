"""How far packets of a path overtake each other, which those tell that were taken for lost and arrive all the same.

With the fixed threshold of three packets a path that mixes them up a little, such as a radio link that repeats frames,
carries a hundredth of what it could: each packet that was overtaken counts as lost, and makes the window smaller.
"""

from __future__ import annotations

from collections.abc import Iterable

PACKETS = 3  # that have overtaken one that is lost (RFC 9002 section 6.1.1)
MAX_PACKETS = 1024
TIME = 9 / 8  # round trips in which it has not come (RFC 9002 section 6.1.2)
TIME_STEP, MAX_TIME = 1 / 8, 2.0
REMEMBERED = 1024  # packets


class Reordering:
    """Of one path; only packets of the application are told of."""

    def __init__(self) -> None:
        self.packets = PACKETS
        self.time = TIME
        self._gone: dict[int, float] = {}
        """When the packets were sent that are taken for lost, by their numbers, in their order."""
        self._some_lost = False
        """One has been for good, since there was none."""
        self._until = 0.0
        """From then on none of them is waited for."""

    def lost(self, packets: Iterable[tuple[int, float]], now: float, patience: float) -> bool:
        """Number and time of those that are taken for lost now; what does not come in `patience` seconds is.

        Whether what was taken for lost before plays no part any more: it has come, or is.
        """
        gone = self._gone
        first = not gone
        if first:
            self._some_lost = False
        gone.update(packets)
        self._until = now + patience
        for number in list(gone):
            if len(gone) <= REMEMBERED and now - gone[number] <= patience:
                break
            del gone[number]
            self._some_lost = True
        return first or self._some_lost

    def arrived(self, ranges: Iterable[range], now: float) -> bool:
        """Numbers that are acknowledged, lowest first. Whether all has come by now that was taken for lost."""
        gone = self._gone
        if not gone:
            return False
        if now > self._until:  # a window of them would be looked through with each acknowledgement
            gone.clear()
            return False
        known, late = list(ranges), []
        waiting = iter(known)
        span = next(waiting, None)
        for number in gone:
            while span is not None and span.stop <= number:
                span = next(waiting, None)
            if span is None:
                break
            if number >= span.start:
                late.append(number)
        if not late:
            return False
        self.packets = min(max(self.packets, known[-1].stop - late[0]), MAX_PACKETS)
        self.time = min(self.time + TIME_STEP, MAX_TIME)
        for number in late:
            del gone[number]
        return not gone and not self._some_lost
