"""How strong the signal of WiFi interfaces is, and a watch that says when one fades and when it is good again.

Reads and reports. What a strength means is judged by `multi.linux.signal_predictor`, what follows from it by the path
manager.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from multi.discovery.netlink import OpenSocket
from multi.discovery.resources import start_in_thread
from multi.linux.genetlink import open_generic_netlink
from multi.linux.nl80211 import Nl80211
from multi.linux.signal_predictor import Signal, SignalPredictor

__all__ = ["ReadSignal", "SignalWatch", "read_signal"]

# include/uapi/linux/nl80211.h, enum nl80211_sta_info and nl80211_sta_flags
STA_INFO_SIGNAL = 7
STA_INFO_SIGNAL_AVG = 13
STA_INFO_FLAGS = 17
STA_INFO_BEACON_SIGNAL_AVG = 30
BY_PREFERENCE = (STA_INFO_SIGNAL_AVG, STA_INFO_BEACON_SIGNAL_AVG, STA_INFO_SIGNAL)
FLAG_TDLS_PEER = 1 << 6
FLAGS = struct.Struct("=II")  # which are known, which are set

INTERVAL = 1.0  # seconds; a person takes a few of them to walk out of range, and drivers average as long

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
        self._poller: _Poller | None = None

    def watch(self, interfaces: Iterable[str]) -> None:
        """Watch exactly these from now on; to be called in the event loop.

        One that is fading already is reported soon. One that is left out is forgotten without a report.
        """
        names = frozenset(interfaces)
        if self._poller is None and names:
            self._poller = _poller(self._read, self._interval)
        if self._poller is not None:
            self._poller.set(self, names)
            if not names:
                self._poller = None

    def close(self) -> None:
        """Watch nothing; the callback is not called again. A reading under way ends by itself."""
        self.watch(())


class _Poller:
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
        _pollers.pop((self.loop, self.read, self.interval), None)
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


_pollers: dict[tuple[asyncio.AbstractEventLoop, ReadSignal, float], _Poller] = {}


def _poller(read: ReadSignal, interval: float) -> _Poller:
    loop = asyncio.get_running_loop()
    for key in [key for key in _pollers if key[0].is_closed()]:
        del _pollers[key]  # of a loop that ended with watches still open
    return _pollers.setdefault((loop, read, interval), _Poller(loop, read, interval))


def _read_all(read: ReadSignal, names: tuple[str, ...]) -> dict[str, float | None]:
    return {name: _read_one(read, name) for name in names}


def _read_one(read: ReadSignal, name: str) -> float | None:
    try:
        return read(name)
    except OSError:
        return None
