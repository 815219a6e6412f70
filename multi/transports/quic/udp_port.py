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
from asyncio.trsock import TransportSocket
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice
from typing import NamedTuple, Protocol

from multi.transports.sockets import SocketAddress, format_address, receive_buffer, unmapped

MIN_DATAGRAM = 1200  # bytes; QUIC needs them wherever it runs (RFC 9000 section 14)
DATAGRAMS_PER_EVENT = 64  # then other connections get their turn
MANY = 16  # connections on one socket: it serves more than all others of the event loop do
READ_SHARE, READ_SHARE_OF_MANY = 0.25, 0.5  # of the time since the last reading, for the next
MAX_READ = 0.010  # seconds, also for those 64
DATAGRAMS_AT_ONCE = 16  # of those that are handed over together: a peer can make each cost half a millisecond
TOGETHER = 0.001  # seconds in which those come that are: the time of the last one counts for all
SEGMENTS_PER_SEND = 44  # datagrams in one system call; 44 of 1472 bytes stay below the 64 KiB of one IP packet
MAX_SEGMENTED = 65_000  # bytes
SOCKET_BUFFER = 2 * 1024 * 1024  # bytes; the default of 208 KiB overflows in one burst of a fast sender
RECEIVE_BUFFER = 1024 * 1024  # bytes; what waits here for a busy process looks like a slow network to the sender
ANCILLARY_SIZE = 192  # bytes, room for a datagram's destination address, the size of its segments and its time
MAX_WAIT = 10.0  # seconds a datagram may have waited; more is a clock that was set
WAITED_LATELY = 1.0  # seconds since the last datagram; what waited before tells nothing of now

# include/uapi/linux/in.h, in6.h, udp.h, asm-generic/socket.h
_SOL_UDP = 17
_UDP_SEGMENT = 103
_UDP_GRO = 104
_IP_MTU = 14
_IPV6_MTU = 24
_IP_PKTINFO = 8
_IPV6_RECVPKTINFO = 49
_IPV6_PKTINFO = 50
_SO_TIMESTAMPNS = 35  # also the type of the message
_SEGMENT_SIZE = struct.Struct("=H")
_GRO_SIZE = struct.Struct("=i")
_TIMESPEC = struct.Struct("@ll")
_IN6_PKTINFO = struct.Struct("=16sI")  # address, interface index
_IN_PKTINFO = struct.Struct("=I4s4s")  # interface index, our address for the answer, destination of the packet

_BUSY = (errno.EAGAIN, errno.EWOULDBLOCK, errno.EINTR)
# No segmentation on this device, or the datagram is larger than it carries: say so datagram by datagram.
_NOT_SEGMENTED = (errno.EIO, errno.EINVAL, errno.EMSGSIZE, errno.EOPNOTSUPP, errno.ENOPROTOOPT)
_LIKE_LOSS = (errno.ENOBUFS, errno.ENOMEM, errno.EPERM)  # a full queue or a firewall: QUIC sends it again


class PeerAddress(NamedTuple):
    """Where datagrams come from, and on a server also where they were sent to."""

    peer: SocketAddress
    local: bytes = b""
    """The packed address of ours that was reached, empty if the socket has just one."""
    interface: int = 0

    def __str__(self) -> str:
        return format_address(self.peer)


class Burst(NamedTuple):
    """Datagrams of `segment` bytes each, the last may be shorter, that leave together if they may."""

    data: bytes | memoryview
    segment: int
    address: PeerAddress
    path: int = 0
    """Of a connection with several, which it belongs to."""


_Read = tuple[memoryview, int, PeerAddress, float]


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

    def __init__(self, sock: socket.socket, peer: PeerAddress | None = None) -> None:
        """Take over a bound socket; `peer` is given if it is connected."""
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._fd = sock.fileno()
        self._peer = peer
        self._buffer = receive_buffer(self._loop)
        self._outbox: deque[Burst] = deque()
        self._most = SEGMENTS_PER_SEND
        self._read_at = time.monotonic()
        self._unread: _Read | None = None
        """What was read and not handed over yet."""
        self._empty = False
        """Whether there was nothing more to read, or `_failure` said why."""
        self._failure: OSError | None = None
        self._reading_on: asyncio.Handle | None = None
        self.connections = 1
        """How many share it; its user keeps this up."""
        self._waited = self._waited_at = 0.0
        self._local: SocketAddress = sock.getsockname()
        self._segments = sys.platform == "linux"
        wanted = [(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)]
        wanted += [(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER)]
        if sys.platform == "linux":
            wanted += [(_SOL_UDP, _UDP_GRO, 1), (socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)]
            if self._local[0] == "::":
                wanted += [(socket.IPPROTO_IPV6, _IPV6_RECVPKTINFO, 1)]
            elif self._local[0] == "0.0.0.0":
                wanted += [(socket.IPPROTO_IP, _IP_PKTINFO, 1)]
        for level, option, value in wanted:
            with suppress(OSError):
                sock.setsockopt(level, option, value)

    def start(self, user: DatagramUser) -> None:
        """Begin to read."""
        self._user: DatagramUser | None = user
        self._loop.add_reader(self._fd, self._on_readable)

    @property
    def address(self) -> tuple[str, int]:
        return self._local[0], self._local[1]

    @property
    def sock(self) -> TransportSocket:
        return TransportSocket(self._sock)

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
        host = self._local[0]
        if address.local:
            family = socket.AF_INET6 if len(address.local) == 16 else socket.AF_INET
            host = socket.inet_ntop(family, address.local)
        return format_address((host, self._local[1]))

    def send(self, bursts: Sequence[Burst], most: int = SEGMENTS_PER_SEND) -> None:
        """Send what the socket takes, keep the rest. Raises OSError if the peer cannot be reached.

        `most`: how many datagrams may leave back to back, with one system call.
        """
        self._most = most
        waiting = self.blocked
        self._outbox.extend(bursts)
        if not waiting and not self._send_all():
            self._loop.add_writer(self._fd, self._on_writable)

    def close(self) -> None:
        if not self.closed:
            self._loop.remove_reader(self._fd)
            self._loop.remove_writer(self._fd)
            self._outbox.clear()
            self._sock.close()
            self._user = None  # which may hold this port

    def _send_all(self) -> bool:
        """Send until nothing is left; False = until the socket was full."""
        while self._outbox:
            sent = self._send_run(self._next_run(), self._outbox[0])
            if sent is None:
                return False
            self._forget(sent)
        return True

    def _forget(self, sent: int) -> None:
        while sent:
            first = self._outbox[0]
            if len(first.data) > sent:
                self._outbox[0] = first._replace(data=memoryview(first.data)[sent:])
                return
            sent -= len(first.data)
            self._outbox.popleft()

    def _next_run(self) -> list[bytes | memoryview]:
        """What the kernel can cut from one buffer: datagrams to the same peer, of the same size but the last."""
        data, segment, address, _ = self._outbox[0]
        room = segment * (max(1, min(self._most, MAX_SEGMENTED // segment)) if self._segments else 1)
        if len(data) > room:
            return [memoryview(data)[:room]]
        run, size = [data], len(data)
        for burst in islice(self._outbox, 1, None):
            room -= size
            if size % segment or len(burst.data) > room or burst.address != address:
                break
            size = len(burst.data)
            if burst.segment != segment and not size == burst.segment < segment:
                break
            run.append(burst.data)
        return run

    def _send_run(self, run: list[bytes | memoryview], first: Burst) -> int | None:
        """Send datagrams of one size to one peer in one system call; how many bytes are done with, None: it is full."""
        address, size = first.address, sum(map(len, run))
        ancillary = _source(address) if address.local and self._peer is None else []
        try:
            if size > first.segment:
                # Generic segmentation: the kernel cuts the buffer up, the last datagram may be shorter.
                ancillary.append((_SOL_UDP, _UDP_SEGMENT, _SEGMENT_SIZE.pack(first.segment)))
                self._sock.sendmsg(run, ancillary, 0, None if self._peer else address.peer)
            elif self._peer is not None:
                self._sock.send(run[0])
            elif ancillary:
                self._sock.sendmsg(run, ancillary, 0, address.peer)
            else:
                self._sock.sendto(run[0], address.peer)
        except OSError as error:
            if error.errno in _BUSY:
                return None
            if size > first.segment and error.errno in _NOT_SEGMENTED:
                self._segments = False
                return 0
            # An unconnected socket serves many peers: one that cannot be reached is that peer's loss alone.
            if error.errno not in _LIKE_LOSS and self._peer is not None:
                self._outbox.clear()
                raise
        return size

    def _on_writable(self) -> None:
        try:
            if not self._send_all():
                return
        except OSError as error:
            self._loop.remove_writer(self._fd)
            if self._user is not None:
                self._user.port_failed(error)
            return
        self._loop.remove_writer(self._fd)
        if self._user is not None:
            self._user.port_writable()

    def _on_readable(self) -> None:
        user, peer = self._user, self._peer
        if user is None:
            return
        self._empty = False
        received = 0
        now = began = time.monotonic()
        share = READ_SHARE_OF_MANY if self.connections > MANY else READ_SHARE
        enough = began + share * (began - self._read_at)
        while now < began + MAX_READ and (received < DATAGRAMS_PER_EVENT or now < enough):
            run = self._read_run()
            if run is None:
                break
            data, segment, address, at = run
            received += max(1, -(-len(data) // segment))
            user.datagrams_received(data, segment, address, at)
            if self.closed:
                return
            now = time.monotonic()
        if self._unread is not None and self._reading_on is None:
            self._reading_on = self._loop.call_soon(self._read_on)
        if received:
            user.burst_finished()
        self._read_at = time.monotonic()
        failure, self._failure = self._failure, None
        if failure is not None and peer is not None and not self.closed:
            user.port_failed(failure)

    def _read_on(self) -> None:
        self._reading_on = None
        if not self.closed:
            self._on_readable()

    def _read_run(self) -> tuple[bytes, int, PeerAddress, float] | None:
        """Datagrams of one size from one peer, the last may be shorter, that came together; None: there are none.

        Where the kernel hands over each by itself, one call for all of them costs little more than for one.
        """
        first = self._unread or self._receive()
        if first is None:
            return None
        data, segment, address, at = first
        most = DATAGRAMS_AT_ONCE * segment
        run, size, since = [data[:most]], min(len(data), most), at
        self._unread = (data[most:], segment, address, at) if len(data) > most else None
        while 0 < size < most and size % segment == 0:
            following = self._receive()
            if following is None:
                break
            data, its_segment, source, came = following
            alike = its_segment == segment or len(data) == its_segment < segment
            if not alike or size + len(data) > most or source != address or came > since + TOGETHER:
                self._unread = following
                break
            run.append(data)
            size, at = size + len(data), came
        return b"".join(run), segment, address, at

    def _receive(self) -> _Read | None:
        """One read: the datagrams, size of each of them, who sent them and when they came; None: see `_empty`."""
        if self._empty:
            return None
        at = time.monotonic()
        try:
            if hasattr(self._sock, "recvmsg_into"):
                size, ancillary, _flags, source = self._sock.recvmsg_into([self._buffer], ANCILLARY_SIZE)
            else:  # Windows
                (size, source), ancillary = self._sock.recvfrom_into(self._buffer), []
        except OSError as error:
            self._empty = True
            if error.errno not in _BUSY:
                self._failure = error.with_traceback(None)  # which would hold this frame
            return None
        data = memoryview(bytes(self._buffer[:size]))
        segment = max(1, size)
        local, interface = b"", 0
        for level, kind, value in ancillary:
            if (level, kind) == (_SOL_UDP, _UDP_GRO):
                segment = _GRO_SIZE.unpack_from(value)[0]
            elif (level, kind) == (socket.SOL_SOCKET, _SO_TIMESTAMPNS):
                waited = _waited(value)
                self._waited_at = time.monotonic()  # behind the other clock: who is held up between takes it for later
                self._waited += (waited - self._waited) / 8
                at = self._waited_at - waited
            elif (level, kind) == (socket.IPPROTO_IPV6, _IPV6_PKTINFO):
                local, interface = _IN6_PKTINFO.unpack_from(value)
            elif (level, kind) == (socket.IPPROTO_IP, _IP_PKTINFO):
                interface, local, _ = _IN_PKTINFO.unpack_from(value)
        if self._peer is not None:
            return data, segment, self._peer, at
        if not local.startswith(b"\xfe\x80"):
            interface = 0  # only a link-local answer needs it; otherwise routing decides, as it does for TCP
        return data, segment, PeerAddress(source, local, interface), at


def largest_datagram(sock: socket.socket, wanted: int) -> int:
    """Bytes of UDP payload: `wanted`, or what fits the path of a connected socket as far as the system knows it."""
    if sys.platform != "linux":
        return wanted
    try:
        if sock.family == socket.AF_INET6:
            fits = sock.getsockopt(socket.IPPROTO_IPV6, _IPV6_MTU) - 48  # headers of IP and UDP
        else:
            fits = sock.getsockopt(socket.IPPROTO_IP, _IP_MTU) - 28
    except OSError:
        return wanted
    return max(MIN_DATAGRAM, min(wanted, fits))


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


def _waited(stamp: bytes) -> float:
    """Seconds since `stamp`, a time of day; 0 when the clock was set meanwhile."""
    seconds, nanoseconds = _TIMESPEC.unpack_from(stamp)
    waited = time.time() - (seconds + nanoseconds * 1e-9)
    return waited if 0 < waited < MAX_WAIT else 0.0


def _source(address: PeerAddress) -> list[tuple[int, int, bytes]]:
    """Makes the kernel answer from the address that was reached."""
    if len(address.local) == 16:
        packed = _IN6_PKTINFO.pack(address.local, address.interface)
        return [(socket.IPPROTO_IPV6, _IPV6_PKTINFO, packed)]
    packed = _IN_PKTINFO.pack(address.interface, address.local, b"\0\0\0\0")
    return [(socket.IPPROTO_IP, _IP_PKTINFO, packed)]
