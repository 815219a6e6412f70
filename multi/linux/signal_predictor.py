"""Whether a radio link is about to be lost, judged from its signal strength.

Only judges: who measures, and what is done about a fading link, is for others. Below an average of -75 dBm cards fall
back to their slowest rates and begin to look for another access point, and at walking speed a wall or a corner takes
3 dB and more within a second.
"""

from __future__ import annotations

import math
from enum import Enum

__all__ = ["Signal", "SignalPredictor"]

ALPHA = 0.3  # weight of a sample one second after the one before; of a later one more, of an earlier one less
WEAK = -75.0  # dBm; below this the average is fading
FALLING_BELOW = -70.0  # dBm; above this a fall leaves enough, however steep
FALLING = -3.0  # dB/s
BAD_SAMPLES = 2  # in a row; one alone may be a hand before the antenna
RECOVERED = WEAK + 5.0  # dBm; a signal that hovers around the threshold must not switch to and fro
RECOVERY = 5.0  # seconds without interruption above that
MIN_INTERVAL = 0.5  # seconds; over less, one decibel of rounding looks like a steep slope
MAX_INTERVAL = 10.0  # seconds; after more, what was measured before says nothing
STRONGEST, WEAKEST = 0.0, -120.0  # dBm, both excluded; drivers that know nothing say 0, -128 or 127


class Signal(Enum):
    """What to expect of a radio link."""

    GOOD = "good"
    FADING = "fading"


class SignalPredictor:
    """Judges one link. It is good until two samples in a row say otherwise.

    `feed` wants `dbm` and seconds of a clock that does not jump, in any rhythm: samples less than 0.5 s after the last
    one that counted are passed over, after a gap of more than 10 s the average starts again. FADING: the average is
    below -75 dBm, or the signal below -70 dBm and falling by 3 dB/s or more. GOOD again: the average has been at or
    above -70 dBm, and no such fall seen, for 5 s.
    """

    def __init__(self) -> None:
        self.signal = Signal.GOOD
        self.average: float | None = None
        """dBm; None before the first sample and after `restart`."""
        self._last = 0.0
        self._last_at = -math.inf
        self._bad = 0
        self._recovering_since: float | None = None

    def feed(self, dbm: float, now: float) -> Signal:
        """Take a sample and judge. Values no radio measures are passed over."""
        if not WEAKEST < dbm < STRONGEST or not math.isfinite(now):
            return self.signal
        interval = now - self._last_at
        if 0 <= interval < MIN_INTERVAL:
            return self.signal
        if self.average is None or not 0 <= interval <= MAX_INTERVAL:
            self.restart()
            self.average, slope = dbm, 0.0
        else:
            # What several samples in the same time would have left of the old average.
            self.average += (1 - (1 - ALPHA) ** interval) * (dbm - self.average)
            slope = (dbm - self._last) / interval
        self._last, self._last_at = dbm, now
        bad = self.average < WEAK or (slope <= FALLING and dbm < FALLING_BELOW)
        self._bad = self._bad + 1 if bad else 0
        if self.signal is Signal.GOOD:
            if self._bad >= BAD_SAMPLES:
                self.signal, self._recovering_since = Signal.FADING, None
        elif bad or self.average < RECOVERED:
            self._recovering_since = None
        elif self._recovering_since is None:
            self._recovering_since = now
        elif now - self._recovering_since >= RECOVERY:
            self.signal = Signal.GOOD
        return self.signal

    def restart(self) -> None:
        """What was measured so far says nothing about the samples to come: another station. The judgement stays."""
        self.average = None
        self._last_at = -math.inf
        self._bad = 0
        self._recovering_since = None
