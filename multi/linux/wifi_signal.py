"""How strong the signal of WiFi interfaces is, and a watch that says when one fades and when it is good again.

What follows from a fading link is for the path manager to say. An average below -75 dBm is where cards fall back to
their slowest rates and begin to look for another access point, and at walking speed a wall or a corner takes 3 dB and
more within a second.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import weakref
from collections.abc import Callable, Iterable, Mapping

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

INTERVAL = 1.0  # seconds; a person takes a few of them to walk out of range, and drivers average as long
ALPHA = 0.3  # weight of a sample in the average
WEAK = -75.0  # dBm; below this the average is fading
FALL = 3.0  # dB from one sample to the next
FALLING_BELOW = -70.0  # dBm; above this a fall leaves enough, however steep
BAD_SAMPLES = 2  # in a row; one alone may be a hand before the antenna
RECOVERED = WEAK + 5.0  # dBm; a signal that hovers around the threshold must not switch to and fro
RECOVERY = 5  # samples in a row above that, after the first
STRONGEST, WEAKEST = 0, -120  # dBm, both excluded; drivers that know nothing say 0, -128 or 127


class SignalPredictor:
    """Judges one link by a sample (dBm) each second. It is good until two samples in a row say otherwise.

    Fading: the average is below -75 dBm, or the signal below -70 dBm and 3 dB or more weaker than the one before. Good
    again: the average has been at or above -70 dBm, and no such fall seen, for 5 s.
    """

    def __init__(self) -> None:
        self.fading = False
        self.restart()

    def restart(self) -> None:
        """What was measured so far says nothing about the samples to come: another station. The judgement stays."""
        self.average: float | None = None
        self._last = 0.0
        self._bad = self._good = 0

    def feed(self, dbm: float) -> bool:
        """Take a sample; whether the link is fading."""
        if self.average is None:
            self.average = self._last = dbm
        self.average += ALPHA * (dbm - self.average)
        bad = self.average < WEAK or (self._last - dbm >= FALL and dbm < FALLING_BELOW)
        self._last = dbm
        self._bad = self._bad + 1 if bad else 0
        self._good = 0 if bad or self.average < RECOVERED else self._good + 1
        if self._bad >= BAD_SAMPLES:
            self.fading = True
        elif self._good > RECOVERY:
            self.fading = False
        return self.fading


ReadSignal = Callable[[str], float | None]
"""Interface name -> dBm, or None when there is nothing to measure. Called in a thread."""
ReportSignal = Callable[[str, bool, float], None]
"""(interface name, whether it is fading, dBm of the sample that led to it)"""


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
        if len(value) == 1 and WEAKEST < (dbm := int.from_bytes(value, signed=True)) < STRONGEST:
            return dbm
    return None


def _is_direct(station: Mapping[int, bytes]) -> bool:
    """A neighbour to which a direct link was made past the access point (TDLS)."""
    value = station.get(STA_INFO_FLAGS, b"")
    return len(value) == FLAGS.size and bool(FLAGS.unpack(value)[1] & FLAG_TDLS_PEER)


class SignalWatch:
    """Reports when the signal of an interface begins to fade, and when it is good again; never the same twice.

    Interfaces count as good at first. All watches of an event loop with the same `read` share one timer and one
    reading per interface, in a thread, so a thousand sessions cost as much as one; without interfaces nothing runs.
    To be made in the event loop; the callback is called there.
    """

    def __init__(self, callback: ReportSignal, *, read: ReadSignal = read_signal, interval: float = INTERVAL) -> None:
        self.callback = callback
        self.told: dict[str, bool] = {}
        """Interface name -> whether it was fading by the last report."""
        key = asyncio.get_running_loop(), read, interval
        self._reader = _readers.get(key) or _readers.setdefault(key, _SignalReader(*key))

    def watch(self, interfaces: Iterable[str]) -> None:
        """Watch exactly these from now on.

        One that is fading already is reported soon. One that is left out is forgotten without a report.
        """
        self.told = {name: self.told.get(name, False) for name in interfaces}
        self._reader.serve(self)

    def close(self) -> None:
        """Watch nothing; the callback is not called again. A reading under way ends by itself."""
        self.watch(())


class _SignalReader:
    """Reads what the watches of one event loop want to know."""

    def __init__(self, loop: asyncio.AbstractEventLoop, read: ReadSignal, interval: float) -> None:
        self._loop, self._read, self._interval = loop, read, interval
        self._watches: set[SignalWatch] = set()
        self._predictors: dict[str, SignalPredictor] = {}
        self._running = False

    def serve(self, watch: SignalWatch) -> None:
        if not watch.told:
            self._watches.discard(watch)
            return
        self._watches.add(watch)
        if not self._running:
            self._running = True
            self._loop.call_soon(self._start_reading)

    def _start_reading(self) -> None:
        wanted = sorted({name for watch in self._watches for name in watch.told})
        self._predictors = {name: self._predictors.get(name) or SignalPredictor() for name in wanted}
        if not wanted:
            self._running = False
            return
        try:
            reading = start_in_thread(self._loop, lambda: {name: self._read(name) for name in wanted})
        except OSError:  # there is no thread to be had
            self._loop.call_later(self._interval, self._start_reading)
            return
        reading.add_done_callback(self._judge)

    def _judge(self, reading: asyncio.Future[dict[str, float | None]]) -> None:
        if reading.cancelled():
            return
        measured = reading.result()  # a reader with a bug is not asked again; the event loop reports it
        self._loop.call_later(self._interval, self._start_reading)
        for name, dbm in measured.items():
            predictor = self._predictors[name]
            if dbm is None:
                predictor.restart()  # the next station is another one, or as far away as another one
                continue
            fading = predictor.feed(dbm)
            for watch in list(self._watches):
                if watch.told.get(name, fading) is not fading:
                    watch.told[name] = fading
                    watch.callback(name, fading, dbm)


_readers: weakref.WeakValueDictionary[tuple[asyncio.AbstractEventLoop, ReadSignal, float], _SignalReader]
_readers = weakref.WeakValueDictionary()
