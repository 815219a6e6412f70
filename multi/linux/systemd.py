"""What a service says to systemd, and which sockets systemd has opened for it: sd_notify(3), sd_listen_fds(3).

Where nobody has started this process as a service of that kind, nothing is said and there are no sockets.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket

logger = logging.getLogger("multi.linux")

FIRST_DESCRIPTOR = 3  # SD_LISTEN_FDS_START
PATIENCE = 1.0  # seconds that a manager who does not listen may hold up what is said once; signs of life come again


class Service:
    """This process as systemd's service: says when it is ready, that it lives, and when it ends.

    Only a process that has said that it is ready says more: its children say nothing.
    """

    def __init__(self) -> None:
        self._address = ""
        self._interval: float | None = None
        """Seconds between signs of life; None = nobody waits for them."""

    def ready(self, status: str) -> None:
        """Clients are served. From now on the running event loop gives signs of life, as long as it turns."""
        self._address = self._address or _taken("NOTIFY_SOCKET")
        self._say("READY=1", f"STATUS={status}")
        if self._interval is None and (interval := _watchdog_interval()) is not None:
            self._interval = interval
            self._alive(interval)

    def stopping(self, status: str, seconds: float) -> None:
        """It ends, and may take so long."""
        self._say("STOPPING=1", f"STATUS={status}", f"EXTEND_TIMEOUT_USEC={round(seconds * 1e6)}")

    def _alive(self, interval: float) -> None:
        self._say("WATCHDOG=1", patience=0.0)
        asyncio.get_running_loop().call_later(interval, self._alive, interval)

    def _say(self, *assignments: str, patience: float = PATIENCE) -> None:
        if not self._address:
            return
        # A name with @ is in the abstract namespace.
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
                sock.settimeout(patience)
                sock.sendto("\n".join(assignments).encode(), address)
        except OSError as error:
            logger.warning("systemd does not hear %s: %s", assignments[0], error)


service = Service()


def inherited_sockets() -> list[socket.socket]:
    """The sockets that systemd has opened for this process, bound, and listening where they are streams.

    They are handed out once: afterwards neither this process nor its children find any. Raises OSError for a descriptor
    that is none.
    """
    wanted, count = _taken("LISTEN_PID"), _taken("LISTEN_FDS")
    _taken("LISTEN_FDNAMES")
    if not (wanted.isdecimal() and count.isdecimal()) or int(wanted) != os.getpid():
        return []
    found = [socket.socket(fileno=FIRST_DESCRIPTOR + number) for number in range(int(count))]
    for sock in found:
        sock.set_inheritable(False)
        sock.setblocking(False)
    return found


def _watchdog_interval() -> float | None:
    """Half of what systemd waits for a sign of life; None where it waits for none of this process."""
    wanted, waits = _taken("WATCHDOG_PID"), _taken("WATCHDOG_USEC")
    if not (waits.isdecimal() and int(waits)) or (wanted and wanted != str(os.getpid())):
        return None
    return int(waits) / 2e6


def _taken(name: str) -> str:
    """A variable of the environment, which children shall not take for theirs."""
    return os.environ.pop(name, "")
