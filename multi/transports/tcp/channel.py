"""A channel over one connected stream socket: TCP, MPTCP, and either of them under TLS.

Decides when to call `sendmsg` and `recv_into` and how much may wait in user space. Application bytes are
handed to the kernel where they lie: buffers are kept by reference and never joined.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from enum import Enum
from itertools import islice
from time import monotonic

from multi.errors import TransportError
from multi.transports.base import READ_TIME, ChannelInfo, ChannelSink, QueueingChannel
from multi.transports.sockets import (
    NOTSENT_LOWAT,
    RECEIVE_BUFFER,
    family_of,
    format_address,
    receive_buffer,
    transport_error,
    try_option,
)
from multi.transports.tcp.info import read_tcp_info
from multi.transports.tcp.tuning import fills_queues
from multi.transports.tls import TlsStream
from multi.types import Buffer, TransportSample

READS_PER_EVENT = 4  # then other connections get their turn; sooner when `READ_TIME` is over
BUFFERS_PER_SEND = 1024  # IOV_MAX on Linux and macOS; sendmsg fails with EMSGSIZE above it
QUANTUM_START = 64 * 1024  # bytes of credit before a rate is known
MIN_QUANTUM = 32 * 1024  # below this the cost per call dominates
MAX_QUANTUM = 2 * 1024 * 1024  # above this larger writes gain nothing
QUANTUM_TIME = 0.004  # seconds of sending one credit should last
MAX_LOWAT = 2 * 1024 * 1024  # bytes; under a millisecond where it is reached
LOWAT_TIME = 0.010  # seconds of sending the kernel may hold unsent: it must not run dry between two wake-ups
# The same where urgent bytes may come and would wait behind these.
LOWAT_TIME_URGENT, QUANTUM_TIME_URGENT, MIN_QUANTUM_URGENT = 0.004, 0.001, 8 * 1024
MAX_LOWAT_TIME = 0.050  # seconds, where the event loop is so busy that it comes by less often
SAMPLES_APART = 0.010  # seconds between two samples of a loop that is not busy
TURN_WEIGHT = 1 / 16  # of a sample: one late turn is no busy loop, and rescued bytes queue behind what the kernel holds
SO_MAX_PACING_RATE = 47  # include/uapi/asm-generic/socket.h; Linux only, and not in the socket module
UNPACED = 2**64 - 1
PACE_STEP = 0.05  # of a rate; less is no change worth a system call
LINGER_TIME = 1.0  # seconds a closing channel waits for the peer (contract of `Channel.close`)
MAX_LINGER = 5.0  # seconds in total, while queued bytes still make progress


def unsent_limit(rate: float, turn: float, time: float = LOWAT_TIME) -> int:
    """Bytes the kernel may hold unsent at `rate` when the event loop takes `turn` seconds to come by again.

    `time`: seconds of sending in which a loop that is not busy comes by.

    Beside a QUIC connection that fills a processor, turns take 20 ms and more; a fast link with 10 ms of bytes was idle
    half of the time.
    """
    time = min(max(time + 2 * (turn - SAMPLES_APART), time), MAX_LOWAT_TIME)
    return int(min(max(rate * time, NOTSENT_LOWAT), MAX_LOWAT))


def channel_info(sock: socket.socket, transport: str, interface: str = "") -> ChannelInfo:
    """What a connected stream socket says about itself. Raises OSError if the peer is already gone."""
    remote = sock.getpeername()
    return ChannelInfo(
        transport=transport,
        family=family_of(remote),
        local=format_address(sock.getsockname()),
        remote=format_address(remote),
        interface=interface,
        fills_queues=transport == "tcp" and fills_queues(sock),  # of subflows each has a queue of its own
    )


class _State(Enum):
    OPEN = "open"
    FLUSHING = "flushing"
    """`close` was called and bytes are still queued."""
    LINGERING = "lingering"
    """Our direction is shut down, we wait for the peer to end too."""
    CLOSED = "closed"


_OPEN, _FLUSHING, _LINGERING, _CLOSED = _State  # asked for with every write: Enum looks members up slowly before 3.12


class StreamChannel(QueueingChannel):
    """One connected stream socket as a channel (see `multi.transports.base.Channel`). Lanes: 1."""

    def __init__(self, sock: socket.socket, info: ChannelInfo, secured: TlsStream | None = None) -> None:
        """Take over a connected non-blocking socket; `secured` replaces plain reads and writes (TLS)."""
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._fd = sock.fileno()
        self._secured = secured
        self._recv_into = secured.recv_into if secured else sock.recv_into
        self._sendmsg = secured.sendmsg if secured else sock.sendmsg
        self._buffer = receive_buffer(self._loop)
        self._sink: ChannelSink | None = None
        self._state = _OPEN
        self._queue: deque[Buffer] = deque()
        self._queued = 0
        self._sent = 0
        self._blocked = False
        self._writer_added = False
        self._failing = False
        self._quantum = QUANTUM_START
        self._lowat = NOTSENT_LOWAT
        self._queues_less = False
        self._pace = 0.0
        self._sampled_at = 0.0
        """When the last sample was taken with bytes under way, so that the next is due soon; 0.0 = there were none."""
        self._turn = SAMPLES_APART
        self._reading_on: asyncio.Handle | None = None
        self._linger: asyncio.TimerHandle | None = None
        self._linger_until = 0.0
        kernel = read_tcp_info(sock)
        # The kernel counts the SYN as acknowledged on the side that connects.
        self._acked_base = kernel.bytes_acked if kernel else 0
        if kernel and kernel.rtt and not info.rtt:
            info = replace(info, rtt=kernel.rtt)
        self._info = info

    @property
    def info(self) -> ChannelInfo:
        return self._info

    def start(self, sink: ChannelSink) -> None:
        handed_over = self._sink is not None
        self._sink = sink
        if self._state is _OPEN and not self._failing and not handed_over:
            self._loop.add_reader(self._fd, self._on_readable)
            self._read_on()

    def _is_released(self) -> bool:
        return self._state is _CLOSED

    # Sending

    def write(self, buffers: Sequence[Buffer], lane: int) -> None:
        if self._state is not _OPEN:
            return
        for buffer in buffers:
            if size := len(buffer):
                self._queue.append(buffer)
                self._queued += size

    def credit(self) -> int:
        return 0 if self._queued or self._failing or self._state is not _OPEN else self._quantum

    def queue_less(self, less: bool) -> None:
        self._queues_less = less

    def pace(self, rate: float) -> None:
        if abs(rate - self._pace) > PACE_STEP * self._pace:
            self._pace = rate
            bound = struct.pack("=Q", int(rate) or UNPACED)
            try_option(self._sock, SO_MAX_PACING_RATE, bound, socket.SOL_SOCKET)

    def flush(self) -> None:
        """Give the kernel what it takes; what is left waits for the socket to become writable."""
        queue = self._queue
        if not queue or self._blocked:
            return
        if len(queue) == 1 and self._secured is None:  # the common case of small messages, written out
            try:
                sent = self._sock.send(queue[0])
            except (BlockingIOError, InterruptedError):
                sent = 0
            except OSError as error:
                self._fail(error)
                return
            self._sent += sent
            self._queued -= sent
            if not self._queued:
                queue.clear()
                self._blocked = False
                return
            queue[0] = memoryview(queue[0])[sent:]
            self._block()
            return
        try:
            while queue:
                buffers = queue if len(queue) <= BUFFERS_PER_SEND else list(islice(queue, BUFFERS_PER_SEND))
                sent = self._sendmsg(buffers)
                self._sent += sent
                self._queued -= sent
                if not self._queued:
                    queue.clear()
                    break
                while queue and sent >= (size := len(queue[0])):
                    sent -= size
                    queue.popleft()
                if sent:
                    queue[0] = memoryview(queue[0])[sent:]
                    if self._secured is None:
                        break  # the kernel took part of a buffer: it is full, asking again only costs a call
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            self._fail(error)
            return
        if queue:
            self._block()
        else:
            self._blocked = False

    def _block(self) -> None:
        self._blocked = True
        if not self._writer_added:
            self._writer_added = True
            self._loop.add_writer(self._fd, self._on_writable)

    def _on_writable(self) -> None:
        self._blocked = False
        self.flush()
        if self._blocked or self._failing:
            if self._state is _FLUSHING:
                self._arm_linger()
            return
        if self._state is _FLUSHING:
            self._shut_down()
        elif self._sink is not None and self.credit() > 0:
            # The writer stays registered across the callback: a busy sender fills the socket again at once,
            # and removing and adding it would cost two system calls per round.
            self._sink.writable()
        if not self._blocked:
            self._remove_writer()

    def _remove_writer(self) -> None:
        if self._writer_added:
            self._writer_added = False
            self._loop.remove_writer(self._fd)

    def _fail(self, error: OSError) -> None:
        # Reported later: `write` and `flush` make no callbacks, and what the peer sent can still be read.
        if not self._failing:
            self._failing = True
            self._remove_writer()
            self._loop.call_soon(self._read_and_lose, error)

    def _read_and_lose(self, error: OSError) -> None:
        if self._state is _OPEN and self._sink is not None:
            self._on_readable()
        self._lose(transport_error(error))

    # Receiving

    def _on_readable(self) -> None:
        buffer, recv_into = self._buffer, self._recv_into
        received = False
        end: TransportError | None = None
        ended = False
        until = 0.0
        try:
            for _ in range(READS_PER_EVENT):
                sink = self._sink
                if sink is None or self._state is not _OPEN:
                    return
                if sink.behind or (received and monotonic() >= until):
                    self._read_on()
                    break
                size = recv_into(buffer)
                if not size:
                    ended = True
                    break
                if not received:
                    received, until = True, monotonic() + READ_TIME
                sink.data_received(buffer[:size], 0)
                if size < RECEIVE_BUFFER and self._secured is None:
                    break  # the socket was emptied; readiness is level-triggered, so nothing is missed
            else:
                self._read_on()
        except (BlockingIOError, InterruptedError):
            self._read_on()
        except OSError as error:
            end, ended = transport_error(error), True
        if received and self._sink is not None and self._state is _OPEN:
            self._sink.batch_finished()
        if ended:
            self._lose(end)

    def _read_on(self) -> None:
        """Come back in the next turn; the socket does not call for bytes that TLS has already taken from it."""
        if self._secured and self._secured.pending():
            if self._reading_on is not None:
                self._reading_on.cancel()
            self._reading_on = self._loop.call_soon(self._on_readable)

    def _discard(self) -> None:
        """Read to the end and forget: closing with unread bytes resets and can destroy what we sent."""
        try:
            for _ in range(READS_PER_EVENT):
                if not self._recv_into(self._buffer):
                    self._lose(None)
                    return
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            self._lose(None)

    # Ending

    def close(self) -> None:
        if self._state is not _OPEN:
            return
        self.flush()
        if self._failing:
            return
        self._state = _FLUSHING
        self._linger_until = self._loop.time() + MAX_LINGER
        self._arm_linger()
        self._loop.remove_reader(self._fd)
        self._loop.add_reader(self._fd, self._discard)
        if not self._queue:
            self._shut_down()

    def _arm_linger(self) -> None:
        if self._linger is not None:
            self._linger.cancel()
        at = min(self._loop.time() + LINGER_TIME, self._linger_until)
        self._linger = self._loop.call_at(at, self._lose, None)

    def _shut_down(self) -> None:
        self._state = _LINGERING
        self._remove_writer()
        try:
            if self._secured:
                self._secured.finish()
            self._sock.shutdown(socket.SHUT_WR)
        except OSError:
            self._loop.call_soon(self._lose, None)  # the peer is gone already

    def abort(self) -> None:
        if self._state is _CLOSED:
            return
        # A reset tells the peer at once that this was no orderly end; a plain close would look like one.
        try_option(self._sock, socket.SO_LINGER, struct.pack("ii", 1, 0), socket.SOL_SOCKET)
        self._release()

    def _lose(self, error: TransportError | None) -> None:
        if self._state is _CLOSED:
            return
        sink = self._sink
        self._release()
        if sink is not None:
            sink.connection_lost(error)

    def _release(self) -> None:
        self._state = _CLOSED
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None
        if self._reading_on is not None:
            self._reading_on.cancel()
            self._reading_on = None
        self._loop.remove_reader(self._fd)
        self._remove_writer()
        self._sock.close()
        self._queue.clear()
        self._queued = 0
        self._sink = None

    # Measuring

    def sample(self) -> TransportSample:
        if self._state is _CLOSED:
            return TransportSample()
        kernel = read_tcp_info(self._sock)
        if kernel is None:
            return TransportSample(unacked=self._queued, not_sent=self._queued)
        acked = max(0, kernel.bytes_acked - self._acked_base)
        if self._secured:
            in_flight = kernel.unacked + kernel.not_sent  # records carry more bytes than were written
        else:
            in_flight = max(0, self._sent - acked)
        self._take_turn(in_flight)
        if kernel.rate:
            self._adapt(kernel.rate)
        kernel.bytes_acked = acked
        kernel.unacked = in_flight + self._waiting()
        kernel.not_sent += self._waiting()
        return kernel

    def _waiting(self) -> int:
        """Bytes that are queued and not in the socket."""
        return self._queued - (self._secured.taken() if self._secured else 0)

    def _take_turn(self, in_flight: int) -> None:
        """How long the event loop takes to come by shows in how far samples are apart while bytes are under way."""
        now = self._loop.time()
        if self._sampled_at:
            self._turn += TURN_WEIGHT * (min(now - self._sampled_at, MAX_LOWAT_TIME) - self._turn)
        self._sampled_at = now if in_flight else 0.0

    def _adapt(self, rate: float) -> None:
        if self._queues_less:
            lasts, least, waits = QUANTUM_TIME_URGENT, MIN_QUANTUM_URGENT, LOWAT_TIME_URGENT
        else:
            lasts, least, waits = QUANTUM_TIME, MIN_QUANTUM, LOWAT_TIME
        self._quantum = int(min(max(rate * lasts, least), MAX_QUANTUM))
        lowat = unsent_limit(rate, self._turn, waits)
        if lowat > 2 * self._lowat or 2 * lowat < self._lowat:
            self._lowat = lowat
            try_option(self._sock, "TCP_NOTSENT_LOWAT", lowat)
