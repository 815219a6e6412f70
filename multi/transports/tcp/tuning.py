"""What is set on the sockets of TCP and MPTCP connections, and whether this system can do it."""

from __future__ import annotations

import errno
import socket
import sys
from pathlib import Path

from multi.errors import TransportError
from multi.transports.sockets import NOTSENT_LOWAT, is_loopback, try_option
from multi.transports.tcp.settings import TcpSettings

MAX_RTO_MS = 2000  # a path that comes back must be noticed within seconds, not after a backed-off minute
USER_TIMEOUT_MS = 10_000  # sent and not acknowledged for so long; a backstop, our own detection is faster
SEES_QUEUES = ("bbr", "vegas", "nv", "cdg", "dctcp")  # congestion controls of Linux that notice one before it is full

_TCP_RTO_MAX_MS = 44  # include/uapi/linux/tcp.h; the socket module of Python 3.11 has no name for it


def tune_stream(sock: socket.socket, settings: TcpSettings, remote: str) -> None:
    """Set the options of a TCP or MPTCP connection to or from the address `remote`."""
    if settings.congestion:
        try_option(sock, "TCP_CONGESTION", settings.congestion.encode())
    elif is_loopback(remote):
        send_unpaced(sock)
    # asyncio sets TCP_NODELAY only on sockets whose protocol number it knows, and never on MPTCP.
    try_option(sock, "TCP_NODELAY", 0 if settings.nagle else 1)
    try_option(sock, "TCP_NOTSENT_LOWAT", NOTSENT_LOWAT)
    try_option(sock, "TCP_USER_TIMEOUT", USER_TIMEOUT_MS)
    if sys.platform == "linux":
        try_option(sock, _TCP_RTO_MAX_MS, MAX_RTO_MS)


def send_unpaced(sock: socket.socket) -> None:
    """Keep a connection inside this machine from being paced, as BBR would: there is no queue to spare.

    A timer for every 64 KiB costs both ends two fifths of the processor time of a transfer (measured: 351 against 202
    ms per GiB sent, 306 against 186 received). Reno is in every kernel and may always be chosen.
    """
    try_option(sock, "TCP_CONGESTION", b"reno")


def fills_queues(sock: socket.socket) -> bool:
    """Whether the connection's congestion control sends more and more until something is lost, as most do."""
    try:
        name = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0").decode()
    except (OSError, AttributeError):
        return True
    return not name.startswith(SEES_QUEUES)


def check_congestion(settings: TcpSettings, place: str = "") -> None:
    """Raise TransportError that begins with `place` when connections cannot have the congestion control wanted.

    Asked of a TCP socket: an MPTCP socket takes any name, and drops an unknown one when it connects.
    """
    if not settings.congestion:
        return
    if not hasattr(socket, "TCP_CONGESTION"):
        raise TransportError(f"{place}this system cannot choose the congestion control of a connection")
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, settings.congestion.encode())
    except OSError as error:
        available = ", ".join(available_congestion_controls()) or "unknown"
        verb = "may not be chosen without privilege" if error.errno == errno.EPERM else "is not available"
        message = f"{place}congestion control {settings.congestion!r} {verb}; available: {available}"
        raise TransportError(error.errno or errno.ENOENT, message) from error


def available_congestion_controls() -> list[str]:
    """Names the kernel has loaded; empty where it does not tell."""
    try:
        text = Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text()
    except OSError:
        return []
    return sorted(text.split())


def congestion_state(place: str, settings: TcpSettings) -> list[str]:
    """A line about the congestion control that the section `place` asks for, if it does."""
    if not settings.congestion:
        return []
    try:
        check_congestion(settings)
    except TransportError as error:
        return [f"{place}.congestion: {error}"]
    return [f"{place}.congestion: {settings.congestion} is available"]
