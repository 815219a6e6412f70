"""A non-blocking UDP socket for QUIC: bursts in, bursts out, answers from the address it was reached at.

Decides how many datagrams are read per turn and keeps what the socket does not take. It knows nothing of QUIC. It tells
when the kernel received a datagram: a round trip measured when a busy event loop comes to it would count the waiting.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice
from typing import NamedTuple, Protocol

from multi.transports.sockets import SocketAddress, format_address, unmapped
from multi.transports.tcp.channel import receive_buffer

MIN_DATAGRAM = 1200  # bytes; QUIC needs them wherever it runs (RFC 9000 section 14)
DATAGRAMS_PER_EVENT = 64  # then other connections get their turn
MANY = 16  # connections on one socket: it serves more than all others of the event loop do
READ_SHARE, READ_SHARE_OF_MANY = 0.25, 0.5  # of the time since the last reading, for the next
MAX_READ = 0.025  # seconds
SEGMENTS_PER_SEND = 44  # datagrams in one system call; 44 of 1472 bytes stay below the 64 KiB of one IP packet
SEGMENTED_MAX = 65_000  # bytes
SOCKET_BUFFER = 2 * 1024 * 1024  # bytes; the default of 208 KiB overflows in one burst of a fast sender
RECEIVE_BUFFER = 1024 * 1024  # bytes; what waits here for a busy process looks like a slow network to the sender
ANCILLARY_SIZE = 192  # bytes, room for a datagram's destination address, the size of its segments and its time
MAX_WAIT = 10.0  # seconds a datagram may have waited; more is a clock that was set
WAITED_LATELY = 1.0  # seconds since the last datagram; what waited before tells nothing of now

# include/uapi/linux/in.h, in6.h, udp.h
_SOL_UDP = 17
_UDP_SEGMENT = 103
_UDP_GRO = 104
_IP_MTU = 14
_IPV6_MTU = 24
_MTU_OPTIONS = {  # level, option, bytes of IP and UDP headers
    socket.AF_INET: (socket.IPPROTO_IP, _IP_MTU, 28),
    socket.AF_INET6: (socket.IPPROTO_IPV6, _IPV6_MTU, 48),
}
_SEGMENT_SIZE = struct.Struct("=H")
_GRO_SIZE = struct.Struct("=i")
_SO_TIMESTAMPNS = 35  # asm-generic/socket.h, also the type of the message
_TIMESPEC = struct.Struct("=qq")
_IP_PKTINFO = 8
_IPV6_RECVPKTINFO = 49
_IPV6_PKTINFO = 50
_IN6_PKTINFO = struct.Struct("=16sI")  # address, interface index
_IN_PKTINFO = struct.Struct("=I4s4s")  # interface index, our address for the answer, destination of the packet

_BUSY = (errno.EAGAIN, errno.EWOULDBLOCK, errno.EINTR)
# No segmentation on this device, or the datagram is larger than it carries: say so datagram by datagram.
_NOT_SEGMENTED = (errno.EIO, errno.EINVAL, errno.EMSGSIZE, errno.EOPNOTSUPP, errno.ENOPROTOOPT)
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

    def datagrams_received(self, data: bytes, segment: int, address: PeerAddress, at: float) -> None:
        """One or more datagrams of `segment` bytes each, the last may be shorter.

        `at`: when they were received, by the monotonic clock.
        """

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
        self._burst = SEGMENTS_PER_SEND
        self._read_at = time.monotonic()
        self.connections = 1
        """How many share it; its user keeps this up."""
        self._waited = self._waited_at = 0.0
        self._local: SocketAddress = sock.getsockname()
        for option, size in ((socket.SO_RCVBUF, RECEIVE_BUFFER), (socket.SO_SNDBUF, SOCKET_BUFFER)):
            with suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, option, size)
        self._tells_destination = peer is None and _ask_for_destination(sock, self._local[0])
        self._segments = sys.platform == "linux"
        self._coalesces = _ask_for_coalescing(sock)
        self._tells_time = _ask_for_time(sock)
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

    def waited(self, now: float) -> float:
        """Seconds that datagrams have waited lately for us to read them, smoothed."""
        return self._waited if now - self._waited_at < WAITED_LATELY else 0.0

    def local_name(self, address: PeerAddress) -> str:
        """Our end as the peer of `address` sees it."""
        if len(address.local) == 16:
            host = socket.inet_ntop(socket.AF_INET6, address.local)
        elif len(address.local) == 4:
            host = socket.inet_ntop(socket.AF_INET, address.local)
        else:
            host = self._local[0]
        return format_address((unmapped(host), self._local[1]))

    def send(self, datagrams: list[tuple[bytes, PeerAddress]], burst: int = SEGMENTS_PER_SEND) -> None:
        """Send what the socket takes, keep the rest. Raises OSError if the peer cannot be reached.

        `burst`: how many may leave back to back, with one system call.
        """
        self._burst = burst
        if self._outbox:
            self._outbox.extend(datagrams)
            return
        sent = self._send_some(datagrams)
        if sent < len(datagrams):
            self._outbox.extend(datagrams[sent:])
            self._loop.add_writer(self._fd, self._on_writable)

    def close(self) -> None:
        if not self.closed:
            self._loop.remove_reader(self._fd)
            self._loop.remove_writer(self._fd)
            self._outbox.clear()
            self._sock.close()

    def _send_some(self, datagrams: Sequence[tuple[bytes, PeerAddress]]) -> int:
        """Send until the socket is full; returns how many are gone."""
        sent = 0
        while sent < len(datagrams):
            count = _run_length(datagrams, sent, self._burst) if self._segments else 1
            run = [data for data, _ in datagrams[sent : sent + count]]
            if not self._send_run(run, datagrams[sent][1]):
                break
            sent += count
        return sent

    def _send_run(self, run: list[bytes], address: PeerAddress) -> bool:
        """Send datagrams of one size to one peer in one system call; False = the socket is full."""
        ancillary = _source(address) if address.local and self._peer is None else []
        try:
            if len(run) > 1:
                # Generic segmentation: the kernel cuts the buffer up, the last datagram may be shorter.
                ancillary.append((_SOL_UDP, _UDP_SEGMENT, _SEGMENT_SIZE.pack(len(run[0]))))
                self._sock.sendmsg(run, ancillary, 0, None if self._peer else address.socket_address)
            elif self._peer is not None:
                self._sock.send(run[0])
            elif ancillary:
                self._sock.sendmsg(run, ancillary, 0, address.socket_address)
            else:
                self._sock.sendto(run[0], address.socket_address)
        except OSError as error:
            if error.errno in _BUSY:
                return False
            if len(run) > 1 and error.errno in _NOT_SEGMENTED:
                self._segments = False
                return all(self._send_run([data], address) for data in run)
            # An unconnected socket serves many peers: one that cannot be reached is that peer's loss alone.
            if error.errno not in _LIKE_LOSS and self._peer is not None:
                raise
        return True

    def _on_writable(self) -> None:
        try:
            while self._outbox:
                some = list(islice(self._outbox, SEGMENTS_PER_SEND))
                sent = self._send_some(some)
                for _ in range(sent):
                    self._outbox.popleft()
                if sent < len(some):
                    return
        except OSError as error:
            self._outbox.clear()
            self._loop.remove_writer(self._fd)
            self._user.port_failed(error)
            return
        self._loop.remove_writer(self._fd)
        self._user.port_writable()

    def _on_readable(self) -> None:
        user, peer = self._user, self._peer
        failure: OSError | None = None
        received = 0
        began = time.monotonic()
        share = READ_SHARE_OF_MANY if self.connections > MANY else READ_SHARE
        enough = began + min(share * (began - self._read_at), MAX_READ)
        while received < DATAGRAMS_PER_EVENT or time.monotonic() < enough:
            try:
                size, segment, address, at = self._receive()
            except OSError as error:
                if error.errno not in _BUSY and peer is not None:
                    failure = error
                break
            received += max(1, -(-size // segment))
            user.datagrams_received(bytes(self._buffer[:size]), segment, address, at)
            if self.closed:
                return
        if received:
            user.burst_finished()
        self._read_at = time.monotonic()
        if failure is not None and not self.closed:
            user.port_failed(failure)

    def _receive(self) -> tuple[int, int, PeerAddress, float]:
        """One read: bytes now in the buffer, size of each datagram in it, who sent them and when they came."""
        at = time.monotonic()
        if not (self._tells_destination or self._coalesces or self._tells_time):
            if self._peer is not None:
                size = self._sock.recv_into(self._buffer)
                return size, max(1, size), self._peer, at
            size, source = self._sock.recvfrom_into(self._buffer)
            return size, max(1, size), _peer_address(source), at
        size, ancillary, _flags, source = self._sock.recvmsg_into([self._buffer], ANCILLARY_SIZE)
        segment = max(1, size)
        local, interface = b"", 0
        for level, kind, data in ancillary:
            if (level, kind) == (_SOL_UDP, _UDP_GRO):
                segment = _GRO_SIZE.unpack_from(data)[0]
            elif (level, kind) == (socket.SOL_SOCKET, _SO_TIMESTAMPNS):
                waited = _waited(data)
                self._waited += (waited - self._waited) / 8
                self._waited_at = at
                at -= waited
            elif (level, kind) == (socket.IPPROTO_IPV6, _IPV6_PKTINFO):
                local, interface = _IN6_PKTINFO.unpack_from(data)
            elif (level, kind) == (socket.IPPROTO_IP, _IP_PKTINFO):
                interface, local, _ = _IN_PKTINFO.unpack_from(data)
        if self._peer is not None:
            return size, segment, self._peer, at
        if not local.startswith(b"\xfe\x80"):
            interface = 0  # only a link-local answer needs it; otherwise routing decides, as it does for TCP
        return size, segment, _peer_address(source, local, interface), at


def largest_datagram(sock: socket.socket, wanted: int) -> int:
    """Bytes of UDP payload: `wanted`, or what fits the path of a connected socket as far as the system knows it."""
    option = _MTU_OPTIONS.get(sock.family) if sys.platform == "linux" else None
    if option is None:
        return wanted
    level, name, headers = option
    try:
        mtu = sock.getsockopt(level, name)
    except OSError:
        return wanted
    return max(MIN_DATAGRAM, min(wanted, mtu - headers))


def largest_datagram_to(peer: SocketAddress, wanted: int) -> int:
    """The same for a peer of a socket that is not connected."""
    host = unmapped(peer[0])
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.connect((host, *peer[1:]) if family == socket.AF_INET6 else (host, peer[1]))
            return largest_datagram(sock, wanted)
    except OSError:
        return wanted


def _run_length(datagrams: Sequence[tuple[bytes, PeerAddress]], start: int, most: int) -> int:
    """How many datagrams from `start` on the kernel can cut from one buffer: same peer, same size but the last."""
    first, address = datagrams[start]
    size = len(first)
    limit = min(len(datagrams) - start, most, SEGMENTED_MAX // max(1, size))
    count = 1
    while count < limit:
        data, other = datagrams[start + count]
        if len(data) > size or (other is not address and other != address):
            break
        count += 1
        if len(data) < size:
            break
    return count


def _ask_for_coalescing(sock: socket.socket) -> bool:
    """Let the kernel hand over datagrams of one size together (generic receive offload). Linux only."""
    if sys.platform != "linux":
        return False
    try:
        sock.setsockopt(_SOL_UDP, _UDP_GRO, 1)
    except OSError:
        return False
    return True


def _ask_for_time(sock: socket.socket) -> bool:
    """Make the socket tell when the kernel received each datagram. Linux only."""
    if sys.platform != "linux" or struct.calcsize("l") != 8:
        return False
    try:
        sock.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
    except OSError:
        return False
    return True


def _waited(stamp: bytes) -> float:
    """Seconds since `stamp`, a time of day; 0 when the clock was set meanwhile."""
    seconds, nanoseconds = _TIMESPEC.unpack_from(stamp)
    waited = time.time() - (seconds + nanoseconds * 1e-9)
    return waited if 0 < waited < MAX_WAIT else 0.0


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


def _source(address: PeerAddress) -> list[tuple[int, int, bytes]]:
    if len(address.local) == 16:
        packed = _IN6_PKTINFO.pack(address.local, address.interface)
        return [(socket.IPPROTO_IPV6, _IPV6_PKTINFO, packed)]
    packed = _IN_PKTINFO.pack(address.interface, address.local, b"\0\0\0\0")
    return [(socket.IPPROTO_IP, _IP_PKTINFO, packed)]
