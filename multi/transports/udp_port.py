"""A non-blocking UDP socket for QUIC: bursts in, bursts out, answers from the address it was reached at.

Decides how many datagrams are read per turn and keeps what the socket does not take. It knows nothing of QUIC.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import struct
import sys
from collections import deque
from contextlib import suppress
from typing import NamedTuple, Protocol

from multi.transports.sockets import SocketAddress, format_address, unmapped
from multi.transports.stream_channel import receive_buffer

DATAGRAMS_PER_EVENT = 64  # then other connections get their turn
SOCKET_BUFFER = 2 * 1024 * 1024  # bytes; the default of 208 KiB overflows in one burst of a fast sender
ANCILLARY_SIZE = 128  # bytes, room for the destination address of a datagram

# include/uapi/linux/in.h, in6.h
_IP_PKTINFO = 8
_IPV6_RECVPKTINFO = 49
_IPV6_PKTINFO = 50
_IN6_PKTINFO = struct.Struct("=16sI")  # address, interface index
_IN_PKTINFO = struct.Struct("=I4s4s")  # interface index, our address for the answer, destination of the packet

_BUSY = (errno.EAGAIN, errno.EWOULDBLOCK, errno.EINTR)
_LIKE_LOSS = (errno.ENOBUFS, errno.ENOMEM, errno.EPERM)  # a full queue or a firewall: QUIC sends it again


class PeerAddress(NamedTuple):
    """Where datagrams come from, and on a server also where they were sent to."""

    host: str
    port: int
    flow: int = 0
    scope: int = 0
    local: bytes = b""
    """The packed address of ours that was reached, empty if the socket has just one."""
    interface: int = 0

    @property
    def socket_address(self) -> SocketAddress:
        if ":" in self.host:
            return (self.host, self.port, self.flow, self.scope)
        return (self.host, self.port)

    def __str__(self) -> str:
        return format_address((self.host, self.port))


class DatagramUser(Protocol):
    """What a port calls."""

    def datagram_received(self, data: bytes, address: PeerAddress) -> None: ...

    def burst_finished(self) -> None:
        """No more datagrams for now: answer them together."""

    def port_writable(self) -> None:
        """The socket takes datagrams again."""

    def port_failed(self, error: OSError) -> None:
        """A connected socket learned that the peer cannot be reached."""


class UdpPort:
    """One UDP socket and the datagrams it has not taken yet."""

    def __init__(self, sock: socket.socket, user: DatagramUser, peer: PeerAddress | None = None) -> None:
        """Take over a bound socket; `peer` is given if it is connected."""
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._fd = sock.fileno()
        self._user = user
        self._peer = peer
        self._buffer = receive_buffer(self._loop)
        self._outbox: deque[tuple[bytes, PeerAddress]] = deque()
        self._local: SocketAddress = sock.getsockname()
        for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            with suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, option, SOCKET_BUFFER)
        self._tells_destination = peer is None and _ask_for_destination(sock, self._local[0])
        self._loop.add_reader(self._fd, self._on_readable)

    @property
    def address(self) -> tuple[str, int]:
        return self._local[0], self._local[1]

    @property
    def closed(self) -> bool:
        return self._sock.fileno() < 0

    @property
    def blocked(self) -> bool:
        """Datagrams wait for the socket: making more would only let them grow old."""
        return bool(self._outbox)

    def local_name(self, address: PeerAddress) -> str:
        """Our end as the peer of `address` sees it."""
        if len(address.local) == 16:
            host = socket.inet_ntop(socket.AF_INET6, address.local)
        elif len(address.local) == 4:
            host = socket.inet_ntop(socket.AF_INET, address.local)
        else:
            host = self._local[0]
        return format_address((unmapped(host), self._local[1]))

    def send(self, datagrams: list[tuple[bytes, PeerAddress]]) -> None:
        """Send what the socket takes, keep the rest. Raises OSError if the peer cannot be reached."""
        if self._outbox:
            self._outbox.extend(datagrams)
            return
        for index, (data, address) in enumerate(datagrams):
            if not self._send_one(data, address):
                self._outbox.extend(datagrams[index:])
                self._loop.add_writer(self._fd, self._on_writable)
                return

    def close(self) -> None:
        if not self.closed:
            self._loop.remove_reader(self._fd)
            self._loop.remove_writer(self._fd)
            self._outbox.clear()
            self._sock.close()

    def _send_one(self, data: bytes, address: PeerAddress) -> bool:
        """False = the socket is full."""
        try:
            if self._peer is not None:
                self._sock.send(data)
            elif address.local:
                self._sock.sendmsg([data], _source(address), 0, address.socket_address)
            else:
                self._sock.sendto(data, address.socket_address)
        except OSError as error:
            if error.errno in _BUSY:
                return False
            # An unconnected socket serves many peers: one that cannot be reached is that peer's loss alone.
            if error.errno not in _LIKE_LOSS and self._peer is not None:
                raise
        return True

    def _on_writable(self) -> None:
        try:
            while self._outbox:
                if not self._send_one(*self._outbox[0]):
                    return
                self._outbox.popleft()
        except OSError as error:
            self._outbox.clear()
            self._loop.remove_writer(self._fd)
            self._user.port_failed(error)
            return
        self._loop.remove_writer(self._fd)
        self._user.port_writable()

    def _on_readable(self) -> None:
        buffer, user, peer = self._buffer, self._user, self._peer
        failure: OSError | None = None
        received = False
        for _ in range(DATAGRAMS_PER_EVENT):
            try:
                if peer is not None:
                    size, address = self._sock.recv_into(buffer), peer
                elif self._tells_destination:
                    size, ancillary, _flags, source = self._sock.recvmsg_into([buffer], ANCILLARY_SIZE)
                    address = _peer_address(source, *_destination(ancillary))
                else:
                    size, source = self._sock.recvfrom_into(buffer)
                    address = _peer_address(source)
            except OSError as error:
                if error.errno not in _BUSY and peer is not None:
                    failure = error
                break
            received = True
            user.datagram_received(bytes(buffer[:size]), address)
            if self.closed:
                return
        if received:
            user.burst_finished()
        if failure is not None and not self.closed:
            user.port_failed(failure)


def _ask_for_destination(sock: socket.socket, host: str) -> bool:
    """Make a wildcard socket tell which of our addresses each datagram was sent to. Linux only."""
    if sys.platform != "linux" or host not in ("::", "0.0.0.0"):
        return False
    try:
        if sock.family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, _IPV6_RECVPKTINFO, 1)
        else:
            sock.setsockopt(socket.IPPROTO_IP, _IP_PKTINFO, 1)
    except OSError:
        return False
    return True


def _peer_address(source: SocketAddress, local: bytes = b"", interface: int = 0) -> PeerAddress:
    flow, scope = source[2:4] if len(source) > 2 else (0, 0)
    return PeerAddress(source[0], source[1], flow, scope, local, interface)


def _destination(ancillary: list[tuple[int, int, bytes]]) -> tuple[bytes, int]:
    """Our address and interface index that a datagram was sent to."""
    local, interface = b"", 0
    for level, kind, data in ancillary:
        if (level, kind) == (socket.IPPROTO_IPV6, _IPV6_PKTINFO):
            local, interface = _IN6_PKTINFO.unpack_from(data)
        elif (level, kind) == (socket.IPPROTO_IP, _IP_PKTINFO):
            interface, local, _ = _IN_PKTINFO.unpack_from(data)
    if not local.startswith(b"\xfe\x80"):
        interface = 0  # only a link-local answer needs it; otherwise routing decides, as it does for TCP
    return local, interface


def _source(address: PeerAddress) -> list[tuple[int, int, bytes]]:
    if len(address.local) == 16:
        packed = _IN6_PKTINFO.pack(address.local, address.interface)
        return [(socket.IPPROTO_IPV6, _IPV6_PKTINFO, packed)]
    packed = _IN_PKTINFO.pack(address.interface, address.local, b"\0\0\0\0")
    return [(socket.IPPROTO_IP, _IP_PKTINFO, packed)]
