"""What was read of this machine's networks before, as long as the system tells of no change since. Linux only.

Every session asks when it opens, and asking takes longer than all else that opens one. A socket hears the system's
announcements; nobody reads them, but while there is none, what was read is true.
"""

from __future__ import annotations

import atexit
import os
import socket
import threading

from multi.discovery.namespace import Namespace, namespace_if_told
from multi.discovery.netlink import (
    RTNLGRP_IPV4_IFADDR,
    RTNLGRP_IPV4_ROUTE,
    RTNLGRP_IPV4_RULE,
    RTNLGRP_IPV6_IFADDR,
    RTNLGRP_IPV6_ROUTE,
    RTNLGRP_IPV6_RULE,
    RTNLGRP_LINK,
    Snapshot,
    snapshot,
)
from multi.discovery.rtnetlink import NETLINK_ADD_MEMBERSHIP, SOL_NETLINK

__all__ = ["SnapshotCache", "recent"]

GROUPS = (
    RTNLGRP_LINK,
    *(RTNLGRP_IPV4_IFADDR, RTNLGRP_IPV4_ROUTE, RTNLGRP_IPV4_RULE),
    *(RTNLGRP_IPV6_IFADDR, RTNLGRP_IPV6_ROUTE, RTNLGRP_IPV6_RULE),
)
RECEIVE_BUFFER = 16 * 1024  # bytes; more announcements than fit are one: something has changed
TAKEN_AT_ONCE = 64  # announcements; what is left will be found the next time


class SnapshotCache:
    """The last snapshot of one network namespace. For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._of: tuple[int, Namespace] | None = None
        """Process and namespace of the socket: a fork shares it, and would take what the other has to hear."""
        self._snapshot: Snapshot | None = None

    def known(self) -> Snapshot | None:
        """What was read before and still holds; None = it has to be read, which takes milliseconds."""
        if not self._lock.acquire(blocking=False):
            return None  # somebody is reading
        try:
            return self._known()
        finally:
            self._lock.release()

    def read(self, *, anew: bool) -> Snapshot:
        """What is known, or read now. Raises OSError when netlink is not available."""
        with self._lock:
            known = None if anew else self._known()
            if known is not None:
                return known
            self._snapshot = None
            self._listen()  # before the reading: a change in between is found the next time
            read = snapshot()
            if self._socket is not None:
                self._snapshot = read
            return read

    def close(self) -> None:
        """Forget it all."""
        with self._lock:
            self._close()

    def forked(self) -> None:
        """In a forked child: a thread that is not there may have held the lock, and what it did is half done."""
        self._lock = threading.Lock()
        if self._socket is not None:
            self._socket.close()
        self._socket = self._of = self._snapshot = None

    def _known(self) -> Snapshot | None:
        if self._snapshot is None or self._of != (os.getpid(), namespace_if_told()) or self._changed():
            self._snapshot = None
        return self._snapshot

    def _listen(self) -> None:
        here = (os.getpid(), namespace_if_told())
        if self._socket is not None and self._of == here:
            self._changed()
            return
        self._close()
        try:
            self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
            self._socket.setblocking(False)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
            self._socket.bind((0, 0))
            for group in GROUPS:
                self._socket.setsockopt(SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, group)
        except OSError:
            self._close()
            return
        self._of = here

    def _changed(self) -> bool:
        """Whether anything was announced since the last time."""
        assert self._socket is not None
        announced = False
        for _ in range(TAKEN_AT_ONCE):
            try:
                self._socket.recv(1)
            except BlockingIOError:
                return announced
            except OSError:
                pass  # more than fits
            announced = True
        return True

    def _close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = self._of = self._snapshot = None


recent = SnapshotCache()
"""Of this process."""
atexit.register(recent.close)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=recent.forked)
