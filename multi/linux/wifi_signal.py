"""How strong the signal of WiFi interfaces is, and a watch that says when one fades and when it is good again.

What follows from a fading link is for the path manager to say. An average below -75 dBm is where cards fall back to
their slowest rates and begin to look for another access point, and at walking speed a wall or a corner takes 3 dB and
more within a second.
"""

from __future__ import annotations

import asyncio
import math
import socket
import struct
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from functools import partial

from multi.discovery.netlink import OpenSocket
from multi.discovery.resources import start_in_thread
from multi.linux.genetlink import open_generic_netlink
from multi.linux.nl80211 import Nl80211

# include/uapi/linux/nl80211.h, enum nl80211_sta_info and nl80211_sta_flags
STA_INFO_SIGNAL = 7
STA_INFO_SIGNAL_AVG = 13
STA_INFO_FLAGS = 17
STA_INFO_BEACON_SIGNAL_AVG = 30
BY_PREFERENCE = (STA_INFO_SIGNAL_AVG, STA_INFO_BEACON_SIGNAL_AVG, STA_INFO_SIGNAL)
FLAG_TDLS_PEER = 1 << 6
FLAGS = struct.Struct("=II")  # which are known, which are set

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
INTERVAL = 1.0  # seconds; a person takes a few of them to walk out of range, and drivers average as long


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


ReadSignal = Callable[[str], float | None]
"""Interface name -> dBm, or None when there is nothing to measure. Called in a thread; may raise OSError."""
ReportSignal = Callable[[str, Signal, float], None]
"""(interface name, judgement, dBm of the sample that led to it)"""


def read_signal(interface: str, open_socket: OpenSocket = open_generic_netlink) -> int | None:
    """dBm of the access point this interface is associated with; takes a fraction of a millisecond, and no rights.

    None where there is none: not associated, not WiFi, a kernel without nl80211, an interface that is itself an access
    point or in a mesh and has many stations, a driver that measures nothing.
    """
    try:
        index = socket.if_nametoindex(interface)
        with Nl80211(open_socket) as kernel:
            stations = [one for one in kernel.stations(index) if not _is_direct(one)]
    except OSError:
        return None
    return _strength(stations[0]) if len(stations) == 1 else None


def _strength(station: Mapping[int, bytes]) -> int | None:
    for kind in BY_PREFERENCE:
        value = station.get(kind, b"")
        if len(value) == 1 and (dbm := struct.unpack("b", value)[0]) < 0:
            return int(dbm)
    return None


def _is_direct(station: Mapping[int, bytes]) -> bool:
    """A neighbour to which a direct link was made past the access point (TDLS)."""
    value = station.get(STA_INFO_FLAGS, b"")
    if len(value) < FLAGS.size:
        return False
    _known, flags = FLAGS.unpack_from(value)
    return bool(flags & FLAG_TDLS_PEER)


class SignalWatch:
    """Reports when the signal of an interface begins to fade, and when it is good again; never the same twice.

    Interfaces count as good at first. All watches of an event loop with the same `read` share one timer and one
    reading per interface, in a thread, so a thousand sessions cost as much as one; without interfaces nothing runs.
    The callback is called in the loop. `read` may raise OSError, which counts as nothing measured.
    """

    def __init__(self, callback: ReportSignal, *, read: ReadSignal = read_signal, interval: float = INTERVAL) -> None:
        self.callback = callback
        self._read, self._interval = read, interval
        self._reader: _SignalReader | None = None

    def watch(self, interfaces: Iterable[str]) -> None:
        """Watch exactly these from now on; to be called in the event loop.

        One that is fading already is reported soon. One that is left out is forgotten without a report.
        """
        names = frozenset(interfaces)
        if self._reader is None and names:
            self._reader = _shared_reader(self._read, self._interval)
        if self._reader is not None:
            self._reader.set(self, names)
            if not names:
                self._reader = None

    def close(self) -> None:
        """Watch nothing; the callback is not called again. A reading under way ends by itself."""
        self.watch(())


class _SignalReader:
    """Reads what the watches of one event loop want to know."""

    def __init__(self, loop: asyncio.AbstractEventLoop, read: ReadSignal, interval: float) -> None:
        self.loop, self.read, self.interval = loop, read, interval
        self._watches: dict[SignalWatch, dict[str, Signal]] = {}
        """What each has been told last, by interface."""
        self._predictors: dict[str, SignalPredictor] = {}
        self._timer: asyncio.Handle | None = None
        self._reading: asyncio.Future[dict[str, float | None]] | None = None

    def set(self, watch: SignalWatch, names: frozenset[str]) -> None:
        told = self._watches.pop(watch, {})
        if names:
            self._watches[watch] = {name: told.get(name, Signal.GOOD) for name in names}
        wanted = {name for known in self._watches.values() for name in known}
        self._predictors = {name: self._predictors.get(name) or SignalPredictor() for name in sorted(wanted)}
        if not wanted:
            self._stop()
        elif self._timer is None and self._reading is None:
            self._timer = self.loop.call_soon(self._start_reading)

    def _stop(self) -> None:
        _readers.pop((self.loop, self.read, self.interval), None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _start_reading(self) -> None:
        self._timer = None
        try:
            self._reading = start_in_thread(self.loop, partial(_read_all, self.read, tuple(self._predictors)))
        except OSError:  # there is no thread to be had
            self._timer = self.loop.call_later(self.interval, self._start_reading)
            return
        self._reading.add_done_callback(self._judge)

    def _judge(self, reading: asyncio.Future[dict[str, float | None]]) -> None:
        self._reading = None
        if reading.cancelled() or not self._predictors:
            return
        measured = reading.result()  # a reader with a bug is not asked again; the event loop reports it
        self._timer = self.loop.call_later(self.interval, self._start_reading)
        for name, dbm in measured.items():
            predictor = self._predictors.get(name)
            if predictor is None:
                continue
            if dbm is None:
                predictor.restart()  # the next station is another one, or as far away as another one
            else:
                predictor.feed(dbm, self.loop.time())
                self._report(name, predictor.signal, dbm)

    def _report(self, name: str, signal: Signal, dbm: float) -> None:
        for watch, told in list(self._watches.items()):
            # The callback of another one may have changed what this one watches.
            if self._watches.get(watch) is told and told.get(name, signal) is not signal:
                told[name] = signal
                watch.callback(name, signal, dbm)


_readers: dict[tuple[asyncio.AbstractEventLoop, ReadSignal, float], _SignalReader] = {}


def _shared_reader(read: ReadSignal, interval: float) -> _SignalReader:
    loop = asyncio.get_running_loop()
    for key in [key for key in _readers if key[0].is_closed()]:
        del _readers[key]  # of a loop that ended with watches still open
    return _readers.setdefault((loop, read, interval), _SignalReader(loop, read, interval))


def _read_all(read: ReadSignal, names: tuple[str, ...]) -> dict[str, float | None]:
    return {name: _read_one(read, name) for name in names}


def _read_one(read: ReadSignal, name: str) -> float | None:
    try:
        return read(name)
    except OSError:
        return None
