"""Sockets bound to a network, tuned and named: what the TCP, MPTCP and QUIC transports share.

Decides how a socket is tied to an interface, which options it gets and how an `errno` reads in words. Which
candidate is dialled, and what to do when it fails, is decided elsewhere. No function here needs root.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any, TypeAlias, TypeVar
from weakref import WeakKeyDictionary, WeakSet

from multi.errors import TransportError, words_of
from multi.types import Candidate, Family, host_and_port

SocketAddress: TypeAlias = Any
"""What `socket.getsockname` returns: `(address, port)` or `(address, port, flow, scope)`."""
Socket = TypeVar("Socket", bound=socket.socket)

RECEIVE_BUFFER = 1024 * 1024  # bytes, one per event loop: many connections cost no more memory than one
NOTSENT_LOWAT = 16 * 1024  # bytes; unsent ones cannot be taken back from a slow path. Channels raise it on fast ones

# Options the socket module of Python 3.11 has no name for (include/uapi/linux/in.h, tcp.h).
_IP_BIND_ADDRESS_NO_PORT = 24

_WORDS = {  # where the system's own text is not what people say
    errno.ECONNABORTED: "connection aborted",
    errno.EPIPE: "connection closed by peer",
    errno.ETIMEDOUT: "timed out",
    errno.ENFILE: "too many open files in the system",
    errno.EADDRNOTAVAIL: "address is not available on this machine",
    errno.ENODEV: "no such interface",
    errno.EPERM: "not permitted (a firewall or missing capability)",
    errno.EAFNOSUPPORT: "this machine does not support that IP version",
    errno.ENOBUFS: "no buffer space",
}


_ours: WeakSet[socket.socket] = WeakSet()
_receive_buffers: WeakKeyDictionary[asyncio.AbstractEventLoop, memoryview] = WeakKeyDictionary()


def ours(sock: Socket) -> Socket:
    """Every socket that carries or accepts connections goes through here, for `close_in_child`."""
    _ours.add(sock)
    return sock


def close_in_child() -> None:
    """In a forked child: close its copies, so that nothing it does is heard. Their connections are the parent's."""
    for sock in list(_ours):
        sock.close()


def words(error: OSError) -> str:
    """The reason of a socket error as people say it: "connection refused", "no route to host"."""
    if error.errno in _WORDS:
        return _WORDS[error.errno]
    return words_of(error)


def transport_error(error: OSError, doing: str = "") -> TransportError:
    """Wrap a socket error, keeping its `errno`; `doing` goes before the reason."""
    if isinstance(error, TransportError):
        return error
    reason = f"{doing}: {words(error)}" if doing else words(error)
    return TransportError(error.errno, reason) if error.errno is not None else TransportError(reason)


def format_address(address: SocketAddress) -> str:
    """`127.0.0.1:7788` or `[::1]:7788`; IPv4 addresses mapped into IPv6 are shown as IPv4."""
    host, port = unmapped(address[0]), address[1]
    return host_and_port(host, port)


def unmapped(host: str) -> str:
    return host[7:] if host.startswith("::ffff:") and "." in host else host


def is_loopback(host: str) -> bool:
    """True for the literal of an address that never leaves this machine."""
    host = unmapped(host)
    return host.startswith("127.") or host == "::1"


def family_of(address: SocketAddress) -> Family:
    return Family.of(unmapped(address[0]))


def socket_address(host: str, port: int, interface: str = "") -> SocketAddress:
    """The form `connect` and `bind` take for a literal address.

    A link-local IPv6 address needs its scope as a number: it comes from `%name` or from `interface`.
    """
    if ":" not in host:
        return (host, port)
    host, _, zone = host.partition("%")
    if not zone and host.lower().startswith("fe80:"):
        zone = interface
    if not zone:
        return (host, port, 0, 0)
    try:
        scope = int(zone) if zone.isdigit() else socket.if_nametoindex(zone)
    except OSError as error:
        raise TransportError(errno.ENODEV, f"no interface named {zone!r}") from error
    return (host, port, 0, scope)


def bound_socket(candidate: Candidate, kind: int, protocol: int = 0) -> socket.socket:
    """A fresh non-blocking socket of the candidate's family, bound to its interface and source address.

    Raises TransportError when the interface or the address does not exist here.
    """
    interface, address, doing = candidate.interface, candidate.local_address, ""
    family = socket.AF_INET6 if candidate.family is Family.IPV6 else socket.AF_INET
    with ExitStack() as undo:
        try:
            sock = undo.enter_context(socket.socket(family, kind, protocol))
            sock.setblocking(False)
            if interface and sys.platform == "linux":
                # An address alone does not choose the interface: with one default route, packets leave through it,
                # whatever source address they carry. Elsewhere the address has to do.
                doing = f"cannot bind to interface {interface}"
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, interface.encode())
            if address:
                doing = f"cannot bind to {address}"
                # Choose the port at connect, when the remote address is known: one port can then serve many remotes.
                try_option(sock, _IP_BIND_ADDRESS_NO_PORT, 1, socket.IPPROTO_IP)
                sock.bind(socket_address(address, 0, interface))
        except OSError as error:
            raise transport_error(error, doing) from error
        undo.pop_all()
    return ours(sock)


def receive_buffer(loop: asyncio.AbstractEventLoop) -> memoryview:
    """The loop's shared receive buffer. Callbacks run one after the other, so it is never read into twice."""
    view = _receive_buffers.get(loop)
    if view is None:
        view = _receive_buffers[loop] = memoryview(bytearray(RECEIVE_BUFFER))
    return view


def try_option(sock: socket.socket, option: int | str, value: int | bytes, level: int = socket.IPPROTO_TCP) -> None:
    """Set what other systems, older kernels and MPTCP sockets may lack: it only sharpens what works without."""
    with suppress(OSError, AttributeError):
        sock.setsockopt(level, getattr(socket, option) if isinstance(option, str) else option, value)


async def connect(sock: socket.socket, candidate: Candidate) -> None:
    """Connect a non-blocking stream socket. Raises TransportError in words; cancelling is safe.

    By hand, because `loop.sock_connect` resolves the address with the socket's protocol and fails on MPTCP.
    """
    address = socket_address(candidate.remote_address, candidate.remote_port, candidate.interface)
    try:
        code = sock.connect_ex(address)
        if code in (errno.EINPROGRESS, errno.EWOULDBLOCK, errno.EINTR):
            await ready(sock, writing=True)
            code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code == 0 and sock.getsockname() == sock.getpeername():
            # The port we dialled was free and the kernel picked it as our own: TCP then connects to itself.
            code = errno.ECONNREFUSED
    except OSError as error:
        raise transport_error(error) from error
    if code:
        reason = words(OSError(code, os.strerror(code)))
        if code in (errno.ENETUNREACH, errno.EHOSTUNREACH) and candidate.interface:
            reason += f" through {candidate.interface}"
        raise TransportError(code, reason)


async def ready(sock: socket.socket, *, writing: bool = False) -> None:
    """Wait until something can be read, or written. Cancelling is safe."""
    loop = asyncio.get_running_loop()
    add, remove = (loop.add_writer, loop.remove_writer) if writing else (loop.add_reader, loop.remove_reader)
    event = asyncio.Event()
    descriptor = sock.fileno()
    add(descriptor, event.set)
    try:
        await event.wait()
    finally:
        remove(descriptor)


def listening_socket(host: str, port: int, open_socket: Callable[[int], socket.socket]) -> socket.socket:
    """A non-blocking socket bound to `host` and `port`; `open_socket(family)` creates it.

    `::` and the empty host serve both families, or IPv4 alone without IPv6. Raises TransportError.
    """
    if host in ("", "::"):
        try:
            return _bind_server("::", port, open_socket)
        except TransportError as error:
            if error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
                raise
        return _bind_server("0.0.0.0", port, open_socket)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        raise TransportError(f"cannot listen on {host!r}: {error.strerror}") from error
    return _bind_server(str(found[0][4][0]), port, open_socket)


def _bind_server(host: str, port: int, open_socket: Callable[[int], socket.socket]) -> socket.socket:
    with ExitStack() as undo:
        try:
            sock = undo.enter_context(open_socket(socket.AF_INET6 if ":" in host else socket.AF_INET))
            sock.setblocking(False)
            if ":" in host:
                try_option(sock, socket.IPV6_V6ONLY, 0, socket.IPPROTO_IPV6)
            if sock.type == socket.SOCK_STREAM and os.name == "posix":
                # A restarted server must not wait for connections of its former life to leave TIME-WAIT.
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(socket_address(host, port))
        except OSError as error:
            raise transport_error(error, f"cannot listen on {format_address((host, port))}") from error
        undo.pop_all()
    return ours(sock)
