"""The `mptcp` transport: one Multipath TCP connection (RFC 8684) per channel.

The kernel spreads the bytes over subflows by itself; which subflows it makes is the path manager's business.
Where the peer does not speak MPTCP the kernel falls back to TCP: the channel is kept and says so.
"""

from __future__ import annotations

import errno
import logging
import socket
from dataclasses import replace

from multi.core.facts import Candidate, TransportSample
from multi.errors import TransportError
from multi.transports.base import (
    AcceptCallback,
    Channel,
    ChannelInfo,
    Listener,
    TransportSettings,
    register_transport,
)
from multi.transports.mptcp_info import IPPROTO_MPTCP, MptcpInfo, read_mptcp_info
from multi.transports.sockets import listening_socket, tune_stream
from multi.transports.stream_channel import StreamChannel, StreamIo
from multi.transports.stream_listener import StreamListener
from multi.transports.stream_reception import MakeChannel, StreamReception
from multi.transports.tcp import dial_stream
from multi.transports.tcp_info import TcpInfo

logger = logging.getLogger("multi.transports")

FELL_BACK = "fell back to TCP: the peer or a middlebox does not speak MPTCP"
NO_MPTCP = "this kernel has no MPTCP (Linux 5.6 or later with net.mptcp.enabled=1 is needed)"

_NOT_SUPPORTED = (errno.EPROTONOSUPPORT, errno.ENOPROTOOPT, errno.EINVAL, errno.ESOCKTNOSUPPORT)


class MptcpChannel(StreamChannel):
    """A stream channel that knows about subflows. `info.detail` follows the last `sample`."""

    def __init__(self, sock: socket.socket, info: ChannelInfo, secured: StreamIo | None = None) -> None:
        super().__init__(sock, info, secured)
        self._cipher = info.detail  # what TLS said; empty without it
        self._token = 0
        self._subflows = 1
        self._bytes_acked = 0
        self._base = 0
        kernel = read_mptcp_info(sock)
        self._fell_back = kernel is None
        if kernel is not None:
            self._base = kernel.bytes_acked
            self._token = kernel.token
        self._describe(kernel)

    @property
    def fell_back(self) -> bool:
        """Plain TCP underneath, as of the last `sample`."""
        return self._fell_back

    @property
    def subflows(self) -> int:
        """Live subflows, as of the last `sample`."""
        return self._subflows

    @property
    def token(self) -> int:
        """The kernel's name for this connection on this host, for its path manager; 0 after a fallback."""
        return self._token

    def sample(self) -> TransportSample:
        kernel = None if self._fell_back else read_mptcp_info(self._sock)
        if kernel is None or not kernel.subflows:
            sample = super().sample()
        else:
            sample = self._sample_of(kernel)
        if self._is_released():
            return sample
        self._describe(kernel)
        if kernel is not None:
            sample = replace(
                sample,
                bytes_acked=kernel.bytes_acked - self._base,
                unacked=kernel.unacked + self._queued,
            )
        # A late fallback changes where the counter comes from; progress must not run backwards.
        self._bytes_acked = max(self._bytes_acked, sample.bytes_acked)
        return replace(sample, bytes_acked=self._bytes_acked)

    def _sample_of(self, kernel: MptcpInfo) -> TransportSample:
        flows = kernel.subflows
        busy = [flow for flow in flows if flow.unacked]
        # Bytes in flight arrive in order only when the slowest subflow that carries some has delivered.
        rtt_of = max(busy, key=_rtt) if busy else min(flows, key=_rtt)
        in_flight = sum(flow.unacked for flow in flows)
        rate = sum(flow.rate for flow in flows)
        if rate:
            self._adapt(rate)
        return TransportSample(
            rtt=rtt_of.rtt,
            rtt_variation=rtt_of.rtt_variation,
            min_rtt=min(flow.min_rtt for flow in flows),
            rate=rate,
            rate_is_lower_bound=any(flow.app_limited for flow in flows),
            congestion_window=sum(flow.congestion_window for flow in flows),
            not_sent=max(0, kernel.unacked - in_flight) + self._queued,
            retransmits=min(flow.retransmits for flow in flows),
        )

    def _describe(self, kernel: MptcpInfo | None) -> None:
        count = 1 if kernel is None else kernel.subflow_count
        detail = FELL_BACK if kernel is None else f"{count} subflow{'' if count == 1 else 's'}"
        if self._cipher:
            detail = f"{self._cipher}; {detail}"
        self._fell_back, self._subflows = kernel is None, count
        if detail != self._info.detail:
            self._info = replace(self._info, detail=detail)


def _rtt(flow: TcpInfo) -> float:
    return flow.rtt


@register_transport("mptcp")
class Mptcp:
    """Multipath TCP in the kernel. Its listener takes plain TCP too; `info.transport` says which it was."""

    name = "mptcp"

    async def dial(self, candidate: Candidate, settings: TransportSettings) -> Channel:
        try:
            return await dial_stream(candidate, settings.mptcp, settings.tls, IPPROTO_MPTCP, MptcpChannel)
        except TransportError as error:
            if error.errno in _NOT_SUPPORTED and not mptcp_available():
                raise TransportError(error.errno, NO_MPTCP) from error
            raise

    async def listen(self, host: str, port: int, settings: TransportSettings, accept: AcceptCallback) -> Listener:
        def prepare(sock: socket.socket) -> tuple[str, MakeChannel]:
            if read_mptcp_info(sock) is None:
                tune_stream(sock, settings.tcp)
                return "tcp", StreamChannel
            tune_stream(sock, settings.mptcp)
            return "mptcp", MptcpChannel

        reception = StreamReception(settings.tls, accept, prepare)
        return StreamListener(listening_socket(host, port, _open_listener), reception)


def mptcp_available() -> bool:
    """Whether the kernel gives out MPTCP sockets."""
    try:
        socket.socket(socket.AF_INET, socket.SOCK_STREAM, IPPROTO_MPTCP).close()
    except OSError as error:
        return error.errno not in _NOT_SUPPORTED
    return True


def _open_listener(family: int) -> socket.socket:
    try:
        return socket.socket(family, socket.SOCK_STREAM, IPPROTO_MPTCP)
    except OSError as error:
        if error.errno not in _NOT_SUPPORTED:
            raise
        logger.warning("%s; listening for plain TCP instead", NO_MPTCP)
        return socket.socket(family, socket.SOCK_STREAM)
