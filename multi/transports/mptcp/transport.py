"""The `mptcp` transport: one Multipath TCP connection (RFC 8684) per channel.

The kernel spreads the bytes over subflows by itself; which subflows there are is decided in
`multi.transports.mptcp.subflows`, as far as the host's path manager lets us.
Where the peer does not speak MPTCP the kernel falls back to TCP: the channel is kept and says so.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import sys
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from math import inf
from operator import attrgetter
from pathlib import Path

from multi.errors import TransportError, counted
from multi.linux.mptcp_pm import IPPROTO_MPTCP, NO_MPTCP, mptcp_available
from multi.transports.base import (
    AcceptCallback,
    Channel,
    ChannelInfo,
    Listener,
    SpanningChannel,
    Transport,
    TransportSettings,
)
from multi.transports.dials import HEAD_START, first_to_answer
from multi.transports.mptcp.info import CARRYING, MptcpInfo, read_mptcp_info
from multi.transports.mptcp.settings import MptcpSettings
from multi.transports.sockets import listening_socket
from multi.transports.tcp.channel import MAX_LOWAT, StreamChannel
from multi.transports.tcp.info import TcpInfo, read_tcp_info
from multi.transports.tcp.listener import StreamListener
from multi.transports.tcp.settings import TcpSettings
from multi.transports.tcp.transport import dial_stream, stream_obstacle
from multi.transports.tcp.tuning import check_congestion, congestion_state, tune_stream
from multi.transports.tls import TlsStream
from multi.types import Candidate, Source, TransportSample

if sys.platform == "linux":
    from multi.linux.mptcp_endpoints import EndpointLease
    from multi.transports.mptcp.subflows import SubflowManager, lease_subflows, release_subflows, why_few_accepted

logger = logging.getLogger("multi.transports")

FELL_BACK = "fell back to TCP: the peer or a middlebox does not speak MPTCP"
SCHEDULER = Path("/proc/sys/net/mptcp/scheduler")

LOOK_TIME, MAX_LOOK_TIME = 0.002, 0.020  # seconds between looks at a subflow that holds too much
_DEAD_RETRANSMITS = 2  # unanswered retransmissions in a row; what was measured before counts no more


def _carrying(kernel: MptcpInfo) -> tuple[TcpInfo, ...]:
    return tuple(flow for flow in kernel.subflows if flow.state in CARRYING)


def _alive(flows: tuple[TcpInfo, ...]) -> tuple[TcpInfo, ...]:
    """All, if none is."""
    return tuple(flow for flow in flows if flow.retransmits < _DEAD_RETRANSMITS) or flows


class MptcpChannel(StreamChannel, SpanningChannel):
    """A stream channel that knows about subflows. `info` follows the last `sample`, and further subflows' comings."""

    def __init__(self, sock: socket.socket, info: ChannelInfo, secured: TlsStream | None = None) -> None:
        super().__init__(sock, info, secured)
        self._cipher = info.detail  # what TLS said; empty without it
        self._bytes_acked = self._subflows_acked = 0
        self._unsent: int | None = None
        """What the only subflow that works held unsent at the last look; None: unknown, or there are more."""
        self._given, self._looked_at = 0, -inf
        """All that it had been given by then, and when that was."""
        self._leaves = 0.0
        """Bytes per second that left it."""
        self._look: asyncio.TimerHandle | None = None
        """While it holds too much: when that is looked at again."""
        self._keeper: SubflowManager | None = None
        kernel = self._read()
        self._base = kernel.bytes_acked if kernel else 0

    def keep_subflows(self, candidate: Candidate, lease: EndpointLease | None, reason: str) -> None:
        """Make subflows over the candidate's further interfaces and keep them; takes over the lease."""
        self._keeper = SubflowManager(candidate, lease, reason, self._read)
        self._read()

    def use(self, sources: Sequence[Source], blocked: Collection[str] = ()) -> None:
        """Make subflows over those that have come. The kernel says by itself which are gone."""
        if self._keeper is not None and not self._is_released():
            self._keeper.use(sources)

    def _read(self) -> MptcpInfo | None:
        """How the connection is; None: it is no MPTCP connection, or closed."""
        if self._is_released() or self._info.fell_back:
            return None
        kernel = read_mptcp_info(self._sock)
        self._describe(kernel)
        return kernel

    def credit(self) -> int:
        """The kernel does not bound what a subflow holds unsent, whatever TCP_NOTSENT_LOWAT says: up to 1.3 MB.

        What is given to it cannot be taken back: rescued bytes and urgent ones waited for 0.4 s at 25 Mbit/s.
        """
        credit = super().credit()
        if not credit:
            return 0
        if not self._holds_less(self._lowat) and self._loop.time() >= self._looked_at + LOOK_TIME:
            self._look_at_unsent(self._read())
        if self._holds_less(self._lowat):
            self._stop_looking()  # whoever asks knows it now
            return credit
        if self._look is None:
            self._look_later()
        return 0

    def _holds_less(self, limit: int) -> bool:
        return self._unsent is None or limit >= MAX_LOWAT or self._held < limit

    @property
    def _held(self) -> int:
        """At most; what has left since the last look is not known."""
        return (self._unsent or 0) + self._sent - self._given

    def _look_later(self) -> None:
        takes = (self._held - self._lowat // 2) / self._leaves if self._leaves else 0.0
        self._look = self._loop.call_later(min(max(takes, LOOK_TIME), MAX_LOOK_TIME), self._look_again)

    def _stop_looking(self) -> None:
        if self._look is not None:
            self._look.cancel()
            self._look = None

    def _look_again(self) -> None:
        self._look = None
        if self._sink is None or not super().credit():
            return  # it waits for the socket, or is closed
        self._look_at_unsent(self._read())
        if self._holds_less(self._lowat // 2):  # as the kernel says of TCP that more can be written
            self._sink.writable()
        else:
            self._look_later()

    def _look_at_unsent(self, kernel: MptcpInfo | None) -> None:
        """Where several subflows work, the kernel gives slow ones something only when the quick ones hold much."""
        flow: TcpInfo | None = None
        if self._info.fell_back:
            flow = read_tcp_info(self._sock)
        elif kernel is not None and len(working := _alive(_carrying(kernel))) == 1:
            (flow,) = working
        self._unsent, self._leaves = (flow.not_sent, flow.rate) if flow is not None else (None, 0.0)
        self._given, self._looked_at = self._sent, self._loop.time()

    def _release(self) -> None:
        super()._release()
        self._stop_looking()
        if self._keeper is not None:
            self._keeper.stop()

    def sample(self) -> TransportSample:
        kernel = self._read()
        flows = _carrying(kernel) if kernel else ()
        if kernel and flows:
            self._take_turn(kernel.unacked)
            sample = self._sample_of(kernel, flows)
        else:
            sample = super().sample()
        if not self._is_released():
            self._look_at_unsent(kernel)
        acked, unacked = sample.bytes_acked, sample.unacked
        if kernel is not None:
            acked, unacked = self._acknowledged(kernel, flows), kernel.unacked + self._waiting()
        # A late fallback changes where the counter comes from; progress must not run backwards.
        self._bytes_acked = max(self._bytes_acked, acked)
        sample.bytes_acked, sample.unacked = self._bytes_acked, unacked
        sample.silent_for = 0.0  # how long one subflow has been silent says nothing of the others
        return sample

    def _acknowledged(self, kernel: MptcpInfo, flows: tuple[TcpInfo, ...]) -> int:
        """What grows while anything gets through.

        MPTCP acknowledges in order: while one subflow is slow nothing seems to move, although the others deliver.
        """
        if not flows:
            return kernel.bytes_acked - self._base
        before, self._subflows_acked = self._subflows_acked, sum(flow.bytes_acked for flow in flows)
        # Less: a subflow is gone, and its count with it.
        return self._bytes_acked + max(0, self._subflows_acked - before)

    def _sample_of(self, kernel: MptcpInfo, flows: tuple[TcpInfo, ...]) -> TransportSample:
        # What a subflow measured before its network died says nothing about the others, which go on.
        alive = _alive(flows)
        busy = [flow for flow in alive if flow.unacked]
        # Bytes in flight arrive in order only when the slowest subflow that carries some has delivered.
        rtt_of = max(busy, key=attrgetter("rtt")) if busy else min(alive, key=attrgetter("rtt"))
        in_flight = sum(flow.unacked for flow in flows)
        rate = sum(flow.rate for flow in alive)
        if rate:
            self._adapt(rate)
        return replace(
            rtt_of,
            min_rtt=min(flow.min_rtt for flow in alive),
            rate=rate,
            app_limited=any(flow.app_limited for flow in alive),
            congestion_window=sum(flow.congestion_window for flow in alive),
            not_sent=max(0, kernel.unacked - in_flight) + self._waiting(),
            received_ago=min(flow.received_ago for flow in flows),
        )

    def _describe(self, kernel: MptcpInfo | None) -> None:
        count, detail = 0, FELL_BACK
        if kernel is not None:
            count = kernel.subflow_count
            detail = counted(count, "subflow")
            if self._keeper is not None and (which := self._keeper.describe(kernel)):
                detail += f" ({which})"
        if self._cipher:
            detail = f"{self._cipher}; {detail}"
        if (detail, count) != (self._info.detail, self._info.subflows):
            self._info = replace(self._info, detail=detail, subflows=count, fell_back=kernel is None)


class Mptcp(Transport):
    """Multipath TCP in the kernel. Its listener takes plain TCP too; `info.transport` says which it was."""

    name = "mptcp"

    async def dial(self, candidate: Candidate, settings: TransportSettings) -> Channel:
        """The first of its networks on which the server answers gives the first subflow; each has a head start.

        Subflows over the others follow once data has gone through. Where they cannot be made the connection has one,
        and `info.detail` says why.
        """
        if not mptcp_available():
            raise TransportError(errno.EPROTONOSUPPORT, NO_MPTCP)
        dials = [partial(self._dial, candidate.begun_from(source), settings) for source in candidate.sources]
        return await first_to_answer(dials, HEAD_START, after_failure=True)

    async def _dial(self, candidate: Candidate, settings: TransportSettings) -> Channel:
        mptcp, lease, reason = settings.section("mptcp", MptcpSettings), None, ""
        if candidate.more_interfaces and sys.platform == "linux":
            lease, reason = await lease_subflows(candidate)
            if reason:
                logger.warning("%s has no further subflows: %s", candidate, reason)
        try:
            channel = await dial_stream(candidate, mptcp, settings, IPPROTO_MPTCP, MptcpChannel)
            if sys.platform == "linux" and not channel.info.fell_back:
                channel.keep_subflows(candidate, lease, reason)
                lease = None
        finally:
            if lease is not None:
                release_subflows(lease)
        return channel

    async def listen(self, host: str, port: int, settings: TransportSettings, accept: AcceptCallback) -> Listener:
        tcp, mptcp = settings.section("tcp", TcpSettings), settings.section("mptcp", MptcpSettings)

        def prepare(sock: socket.socket) -> tuple[str, type[StreamChannel]]:
            remote = sock.getpeername()[0]
            if read_mptcp_info(sock) is None:
                tune_stream(sock, tcp, remote)
                return "tcp", StreamChannel
            tune_stream(sock, mptcp, remote)
            return "mptcp", MptcpChannel

        check_congestion(tcp, "tcp_config.congestion: ")
        check_congestion(mptcp, "mptcp_config.congestion: ")
        available = mptcp_available()
        if not available:
            logger.warning("%s; listening for plain TCP instead", NO_MPTCP)
        sock = settings.bound or listening_socket(host, port, self.open_socket)
        if available and sys.platform == "linux" and (reason := why_few_accepted()):
            logger.warning("this host will not take all subflows of MPTCP clients: %s", reason)
        return StreamListener(sock, settings, accept, prepare)

    def open_socket(self, family: int) -> socket.socket:
        return socket.socket(family, socket.SOCK_STREAM, IPPROTO_MPTCP if mptcp_available() else 0)

    def obstacle(self, settings: TransportSettings, *, listening: bool) -> str:
        if not mptcp_available():
            return NO_MPTCP
        return stream_obstacle(settings.section("mptcp", MptcpSettings), settings.tls, listening=listening)

    def host(self, settings: TransportSettings) -> list[str]:
        """Its scheduler is one per host."""
        state = "enabled" if mptcp_available() else NO_MPTCP
        scheduler = host_scheduler()
        in_force = f"; its scheduler on this host is {scheduler!r}" if scheduler else ""
        return [
            f"MPTCP: {state}{in_force}",
            *congestion_state("mptcp_config", settings.section("mptcp", MptcpSettings)),
        ]

    def warnings(self, settings: TransportSettings) -> list[str]:
        """Its scheduler is the host's."""
        wanted = settings.section("mptcp", MptcpSettings).scheduler
        if not wanted or wanted == host_scheduler():
            return []
        return [
            f"mptcp_config.scheduler {wanted!r} is not in force: Linux has one for the whole host "
            "(net.mptcp.scheduler), not one per connection"
        ]


def host_scheduler() -> str:
    """The kernel's MPTCP scheduler, which is one for the whole host (network namespace); empty where it tells none."""
    try:
        return SCHEDULER.read_text(errors="replace").strip()
    except OSError:
        return ""
