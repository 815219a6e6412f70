"""Accepting stream connections for the TCP and MPTCP transports.

Decides how many connections are taken per turn and what happens when file descriptors run out. What becomes
of an accepted socket is decided by the reception.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from time import monotonic

from multi.transports.sockets import (
    LISTEN_BACKLOG,
    format_address,
    is_loopback,
    send_unpaced,
    transport_error,
    unmapped,
    words,
)
from multi.transports.tcp.accepting import StreamReception

logger = logging.getLogger("multi.transports")

ACCEPT_TIME = 0.010  # seconds; then established connections get their turn
EXHAUSTED_PAUSE = 0.1  # seconds; the listener stays readable, so without a pause it would spin
EXHAUSTED_LOG_INTERVAL = 10.0  # seconds

_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class StreamListener:
    """A listening socket that hands each accepted socket, non-blocking, to a reception."""

    def __init__(self, sock: socket.socket, reception: StreamReception) -> None:
        """Take over a bound socket and start to listen. Raises TransportError if the port is in use."""
        if is_loopback(sock.getsockname()[0]):
            send_unpaced(sock)  # accepted sockets inherit it; what has been paced once keeps its timer
        try:
            sock.listen(LISTEN_BACKLOG)
        except OSError as error:
            place = format_address(sock.getsockname())
            sock.close()
            raise transport_error(error, f"cannot listen on {place}") from error
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._reception = reception
        self._address: tuple[str, int] = sock.getsockname()[:2]
        self._pause: asyncio.TimerHandle | None = None
        self._next_log = 0.0
        self._resume()

    @property
    def address(self) -> tuple[str, int]:
        return self._address

    @property
    def closed(self) -> bool:
        return self._sock.fileno() < 0

    def close(self) -> None:
        if self.closed:
            return
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._sock.fileno())
        self._sock.close()
        self._reception.close()

    def _resume(self) -> None:
        self._pause = None
        self._loop.add_reader(self._sock.fileno(), self._on_readable)

    def _on_readable(self) -> None:
        until = monotonic() + ACCEPT_TIME
        while not self.closed and monotonic() < until:
            try:
                sock, _address = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._wait(error)
                return
            sock.setblocking(False)
            self._reception.accepted(sock)

    def _wait(self, error: OSError) -> None:
        now = self._loop.time()
        if error.errno in _EXHAUSTED:
            self._reception.admission.report("file_descriptors")
        if error.errno not in _EXHAUSTED or now >= self._next_log:
            self._next_log = now + EXHAUSTED_LOG_INTERVAL
            host, port = self._address
            place = format_address((unmapped(host), port))
            logger.warning("cannot accept a connection on %s: %s; trying again", place, words(error))
        self._loop.remove_reader(self._sock.fileno())
        self._pause = self._loop.call_later(EXHAUSTED_PAUSE, self._resume)
