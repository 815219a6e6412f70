"""Power saving of WiFi interfaces, switched for the time of a session and put back afterwards.

Between two beacons a WiFi card that saves power sleeps, and what arrives waits at the access point: up to 100 ms and
more on every packet that nobody was waiting for. Decides what several sessions together want of an interface, and
what is put back when they have gone. Which interfaces a session uses is for others to say.
"""

from __future__ import annotations

import atexit
import errno
import logging
import os
import socket
import threading
from dataclasses import dataclass, field

from multi.discovery.namespace import namespace
from multi.discovery.netlink import ANSWER_TIMEOUT, OpenSocket
from multi.linux.genetlink import open_generic_netlink
from multi.linux.nl80211 import Nl80211

logger = logging.getLogger("multi.linux")

NO_WIFI_DRIVER = "this kernel has no nl80211: no WiFi driver is loaded"
REASONS = {
    errno.ENXIO: "there is no interface {}",
    errno.ENOENT: NO_WIFI_DRIVER,
    errno.EAFNOSUPPORT: NO_WIFI_DRIVER,
    errno.EPROTONOSUPPORT: NO_WIFI_DRIVER,
    errno.ENODEV: "{} is not a WiFi interface",
    errno.EPERM: "not permitted to change the power saving of {} (needs CAP_NET_ADMIN)",
    errno.EACCES: "not permitted to change the power saving of {} (needs CAP_NET_ADMIN)",
    errno.EOPNOTSUPP: "the driver of {} cannot change its power saving",
    errno.ETIMEDOUT: f"the driver of {{}} did not answer within {ANSWER_TIMEOUT:g} s",
}

_Place = tuple[OpenSocket, int, int, str]
"""Kernel, network namespace (device and inode) and interface name: the same name may exist in several."""


@dataclass(slots=True)
class _Switch:
    """An interface somebody holds."""

    kernel: Nl80211
    """Made in the network namespace of the interface, where it stays, whoever puts the state back."""
    index: int
    found: bool
    """The state before the first holder came."""
    current: bool
    """The state as we left it."""
    wishes: dict[PowerSaving, bool] = field(default_factory=dict)

    def apply(self, wishes: dict[PowerSaving, bool]) -> None:
        """Off as soon as one holder wants it off: sleeping costs that one more than waking costs the others."""
        wanted = all(wishes.values())
        if wanted != self.current:
            self.kernel.set_power_saving(self.index, wanted)
            self.current = wanted
        self.wishes = wishes

    def restore(self) -> None:
        """Put back what was found, unless somebody else has chosen another state since."""
        try:
            if self.current != self.found and self.kernel.power_saving(self.index) == self.current:
                self.kernel.set_power_saving(self.index, self.found)
        finally:
            self.kernel.close()


class PowerSaving:
    """What one session wants of WiFi interfaces; all sessions of a process together decide. Safe in any thread.

    The calls ask the kernel, which does what the driver needs before it answers: from an event loop call them through
    `asyncio.to_thread`. They give up waiting for an answer after a second. Such a thread goes on when the session is
    over: once it has released all it holds nothing any more.
    """

    def __init__(self, open_socket: OpenSocket = open_generic_netlink) -> None:
        self._open_socket = open_socket
        self._places: dict[str, _Place] = {}
        self._released = False

    def hold(self, interface: str, on: bool) -> str:
        """Let the interface save power or not, until `release_all`; the reason why not, empty = done.

        Held again, it is applied again: the interface may have been connected anew, or be another device. While
        several sessions want different things, it saves no power. Needs CAP_NET_ADMIN unless it is as wanted already.
        """
        try:
            place = self._places.get(interface) or (self._open_socket, *namespace(), interface)
        except OSError:
            return "this system has no nl80211"
        try:
            with _lock:
                if self._released:
                    return ""
                self._hold(place, interface, on)
        except OSError as error:
            return _reason(error, interface)
        return ""

    def _hold(self, place: _Place, interface: str, on: bool) -> None:
        try:
            index = socket.if_nametoindex(interface)
        except OSError:
            raise OSError(errno.ENXIO, os.strerror(errno.ENXIO)) from None
        switch = _switches.get(place)
        kernel = Nl80211(self._open_socket) if switch is None else switch.kernel
        try:
            current = kernel.power_saving(index)
            if switch is None:
                switch = _Switch(kernel, index, current, current)
            elif switch.index != index:
                # The device has gone and come back, as new: there is nothing to put back.
                switch.index, switch.found = index, current
            switch.current = current  # a network manager switches whenever it connects
            switch.apply(switch.wishes | {self: on})
        except OSError:
            if place not in _switches:
                kernel.close()
            raise
        _switches[place] = switch
        self._places[interface] = place

    def release_all(self) -> None:
        """Put back what was found, unless other sessions hold it too."""
        with _lock:
            self._released = True
            for place in self._places.values():
                _release(place, self)
            self._places.clear()


_lock = threading.Lock()
_switches: dict[_Place, _Switch] = {}


def _release(place: _Place, holder: PowerSaving) -> None:
    """The others may want something else now; the last one puts back what was found."""
    switch = _switches.get(place)
    if switch is None:
        return
    others = {other: on for other, on in switch.wishes.items() if other is not holder}
    try:
        if others:
            switch.apply(others)
        else:
            del _switches[place]
            switch.restore()
    except OSError as error:
        switch.wishes = others
        if error.errno != errno.ENODEV:  # gone, and its state with it
            logger.warning("%s: power saving is left as it is: %s", place[-1], _reason(error, place[-1]))


@atexit.register
def _release_all() -> None:
    with _lock:
        for place, switch in list(_switches.items()):
            for holder in list(switch.wishes):
                _release(place, holder)


def _forked() -> None:
    """In a child: what is held is its parent's to put back, and a thread that had the lock is not there."""
    global _lock
    _lock = threading.Lock()
    for switch in _switches.values():
        switch.kernel.close()
    _switches.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def _reason(error: OSError, interface: str) -> str:
    code = errno.ETIMEDOUT if isinstance(error, TimeoutError) else error.errno or 0
    return REASONS.get(code, f"the driver of {{}} refuses: {error.strerror}").format(interface)
