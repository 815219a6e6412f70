"""Power saving of WiFi interfaces, switched for the time of a session and put back afterwards.

Between two beacons a WiFi card that saves power sleeps, and what arrives waits at the access point: up to 100 ms and
more on every packet that nobody was waiting for. Decides what several sessions together want of an interface, and
what is put back when they have gone. Which interfaces a session uses is for others to say.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import logging
import os
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from multi.discovery.namespace import namespace
from multi.discovery.netlink import ANSWER_TIMEOUT, OpenSocket
from multi.linux.genetlink import open_generic_netlink
from multi.linux.nl80211 import Nl80211

log = logging.getLogger("multi.linux")

BUSY = "another thread has been waiting for the driver for too long"

_Place = tuple[int, int, str]
"""Network namespace (device and inode) and interface name: the same name may exist in several."""


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
    wishes: dict[object, bool] = field(default_factory=dict)
    """By holder."""


class PowerControl:
    """What the sessions of a process hold; `PowerSaving` uses one for all. Safe to use from several threads."""

    def __init__(self, open_socket: OpenSocket = open_generic_netlink) -> None:
        self._open_socket = open_socket
        self._lock = threading.Lock()
        self._switches: dict[_Place, _Switch] = {}
        atexit.register(self.restore_all)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget)

    def hold(self, holder: object, place: _Place, on: bool) -> str:
        try:
            with self._locked(place) as switch:
                self._hold(switch, holder, place, on)
        except OSError as error:
            return _reason(error, place[2])
        return ""

    def release(self, holder: object, place: _Place) -> None:
        """The others may want something else now; the last one puts back what was found."""
        try:
            with self._locked(place) as switch:
                if switch is None or switch.wishes.pop(holder, None) is None:
                    return
                if switch.wishes:
                    self._apply(switch, place)
                else:
                    self._restore(place)
        except OSError as error:
            log.warning("%s: power saving is left as it is: %s", place[2], _reason(error, place[2]))

    def restore_all(self) -> None:
        """Put everything back, whoever holds it: the process ends."""
        for place in list(self._switches):
            try:
                with self._locked(place):
                    self._restore(place)
            except OSError as error:
                log.warning("%s: power saving is left as it is: %s", place[2], _reason(error, place[2]))

    @contextlib.contextmanager
    def _locked(self, place: _Place) -> Iterator[_Switch | None]:
        """The interface, if somebody holds it; waiting for it and for all answers takes a second at most."""
        deadline = time.monotonic() + ANSWER_TIMEOUT
        if not self._lock.acquire(timeout=ANSWER_TIMEOUT):
            raise OSError(errno.EBUSY, BUSY)
        try:
            switch = self._switches.get(place)
            if switch is not None:
                switch.kernel.deadline = deadline
            yield switch
        finally:
            self._lock.release()

    def _forget(self) -> None:
        """In a forked child: what is held is its parent's to put back, and a thread that had the lock is not there."""
        self._lock = threading.Lock()
        for switch in self._switches.values():
            switch.kernel.close()
        self._switches.clear()

    def _hold(self, switch: _Switch | None, holder: object, place: _Place, on: bool) -> None:
        index = _index(place[2])
        if switch is None:
            kernel = Nl80211(self._open_socket)
            try:
                found = kernel.power_saving(index)
                switch = _Switch(kernel, index, found, found, {holder: on})
                self._apply(switch, place)
            except OSError:
                kernel.close()
                raise
            self._switches[place] = switch
            return
        # Others may have switched meanwhile: a network manager does so whenever it connects.
        switch.current = switch.kernel.power_saving(index)
        if switch.index != index:
            # The device has gone and come back, as new: there is nothing to put back.
            switch.index, switch.found = index, switch.current
        before = switch.wishes.copy()
        switch.wishes[holder] = on
        try:
            self._apply(switch, place)
        except OSError:
            switch.wishes = before
            raise

    def _apply(self, switch: _Switch, place: _Place) -> None:
        """Off as soon as one holder wants it off: sleeping costs that one more than waking costs the others."""
        wanted = all(switch.wishes.values())
        if wanted != switch.current:
            switch.kernel.set_power_saving(switch.index, wanted)
            switch.current = wanted
            log.info("%s: power saving %s", place[2], "on" if wanted else "off")

    def _restore(self, place: _Place) -> None:
        switch = self._switches.pop(place)
        try:
            # A state that is not ours has been chosen by somebody else since.
            if switch.current != switch.found and switch.kernel.power_saving(switch.index) == switch.current:
                switch.kernel.set_power_saving(switch.index, switch.found)
                log.info("%s: power saving %s again", place[2], "on" if switch.found else "off")
        except OSError as error:
            if error.errno != errno.ENODEV:  # gone, and its state with it
                raise
        finally:
            switch.kernel.close()


_control = PowerControl()


class PowerSaving:
    """What one session wants of WiFi interfaces. May be used from any thread, one at a time.

    The calls ask the kernel, which does what the driver needs before it answers: from an event loop call them through
    `asyncio.to_thread`. They give up waiting for an answer after a second.
    """

    def __init__(self, control: PowerControl = _control) -> None:
        self._control = control
        self._places: dict[str, _Place] = {}

    def hold(self, interface: str, on: bool) -> str:
        """Let the interface save power or not, until `release`; the reason why not, empty = done.

        Held again, it is applied again: the interface may have been connected anew, or be another device. While
        several sessions want different things, it saves no power. Needs CAP_NET_ADMIN unless it is as wanted already.
        """
        try:
            place = self._places.get(interface) or (*namespace(), interface)
        except OSError:
            return "this system has no nl80211"
        reason = self._control.hold(self, place, on)
        if not reason:
            self._places[interface] = place
        return reason

    def release(self, interface: str) -> None:
        """Put back what was found, unless other sessions hold the interface; nothing for one that is not held."""
        place = self._places.pop(interface, None)
        if place is not None:
            self._control.release(self, place)

    def release_all(self) -> None:
        for interface in list(self._places):
            self.release(interface)


def _index(interface: str) -> int:
    try:
        return socket.if_nametoindex(interface)
    except OSError:
        raise OSError(errno.ENXIO, os.strerror(errno.ENXIO)) from None


def _reason(error: OSError, interface: str) -> str:
    if error.strerror == BUSY:
        return BUSY
    if isinstance(error, TimeoutError):
        return f"the driver of {interface} did not answer within {ANSWER_TIMEOUT:g} s"
    match error.errno:
        case errno.ENXIO:
            return f"there is no interface {interface}"
        case errno.ENOENT | errno.EAFNOSUPPORT | errno.EPROTONOSUPPORT:
            return "this kernel has no nl80211: no WiFi driver is loaded"
        case errno.ENODEV:
            return f"{interface} is not a WiFi interface"
        case errno.EPERM | errno.EACCES:
            return f"not permitted to change the power saving of {interface} (needs CAP_NET_ADMIN)"
        case errno.EOPNOTSUPP:
            return f"the driver of {interface} cannot change its power saving"
        case _:
            return f"the driver of {interface} refuses: {error.strerror}"
