"""TCP_INFO as a typed object. Linux only: elsewhere, and on a closed socket, the answer is None."""

from __future__ import annotations

import socket
import struct
import sys
from dataclasses import dataclass
from math import inf

from multi.types import TransportSample

_TCP_INFO = 11
# include/uapi/linux/tcp.h, native byte order, the part every kernel since 4.19 has: 8 x u8, 24 x u32, 4 x u64,
# 6 x u32, 4 x u64 from delivery_rate on, 2 x u32, u64 bytes_sent, u64 bytes_retrans.
_LAYOUT = struct.Struct("=8B24I4Q6I4Q2I2Q")
_APP_LIMITED = 1  # bit 0 of the eighth byte
_GARBAGE_BELOW = 64 * 1024  # bytes; BBR reports loopback-like rates (3 GB/s) on a socket that has sent little


@dataclass(slots=True)
class TcpInfo(TransportSample):
    """What the kernel knows of one connection or subflow, not what waits before it. Acknowledged includes the SYN.

    The rate is 0 until enough was acknowledged to trust it.
    """

    retransmits: int = 0
    """Of one segment in a row."""
    state: int = 1
    """As in include/net/tcp_states.h: 1 = established, 2 = SYN sent."""


def read_tcp_info(sock: socket.socket) -> TcpInfo | None:
    """One system call. On an MPTCP socket this is the first subflow."""
    if sys.platform != "linux":
        return None
    try:
        data = sock.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _LAYOUT.size)
    except OSError:
        return None
    if len(data) < _LAYOUT.size:
        return None
    return parse_tcp_info(data)


def parse_tcp_info(data: bytes) -> TcpInfo:
    values = _LAYOUT.unpack_from(data)
    bytes_acked = values[34]
    no_minimum = values[39] == 0xFFFFFFFF  # ~0 until the first measurement
    return TcpInfo(
        retransmits=values[2],
        # The count of packets would overstate it: on loopback and with offloading, packets are up to 64 KiB.
        unacked=max(0, values[48] - values[49] - bytes_acked),
        rtt=values[23] / 1e6,
        rtt_variation=values[24] / 1e6,
        min_rtt=0.0 if no_minimum else values[39] / 1e6,
        congestion_window=values[26] * values[10],  # snd_cwnd, snd_mss
        bytes_acked=bytes_acked,
        not_sent=values[38],
        arrived=values[13] * values[10],  # sacked, snd_mss
        rate=float(values[42]) if bytes_acked > _GARBAGE_BELOW else 0.0,
        app_limited=bool(values[7] & _APP_LIMITED),
        silent_for=values[20] / 1e3,
        state=values[0],
        bytes_sent=values[48],
        bytes_lost=values[49],
        received_ago=values[19] / 1e3 if values[35] else inf,
    )
