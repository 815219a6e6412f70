"""What the kernel knows about an MPTCP connection and its subflows, as typed objects. Linux only."""

from __future__ import annotations

import ctypes
import socket
import struct
import sys
from dataclasses import dataclass
from functools import cache

from multi.transports.sockets import unmapped
from multi.transports.tcp.info import TcpInfo, parse_tcp_info

SOL_MPTCP = 284
_MPTCP_INFO = 1
_MPTCP_FULL_INFO = 4  # Linux >= 6.6
ESTABLISHED = 1  # state of a subflow, include/net/tcp_states.h
CARRYING = frozenset({1, 4, 5, 8, 9, 11})  # established or closing, not opening and not closed
_FALLBACK = 1  # bit of the flags: the connection is plain TCP
_MAX_SUBFLOWS = 8  # the kernel's own limit
_TCP_INFO_SIZE = 232
_NAME_SIZE = 264  # u32 id, padding, the sockaddr_storage of either end

# include/uapi/linux/mptcp.h, struct mptcp_info: u8 subflows, u32 flags @8, u64 write_seq @16, snd_una @24;
# u64 bytes_acked @72, u8 subflows_total @80 in kernels since 6.5 and 6.8.
_INFO = struct.Struct("=B7xI4x2Q40xQB15x")
_ACKED_END = 80
# struct mptcp_full_info: six u32 sizes and counts, two u64 pointers, then struct mptcp_info.
_FULL = struct.Struct("=6I2Q")


@dataclass(frozen=True, slots=True)
class MptcpInfo:
    """One MPTCP connection: bytes, counted on the connection and not on its subflows."""

    bytes_acked: int
    """0 until data has gone through; in older kernels counted from any beginning."""
    unacked: int
    """Written and not yet acknowledged by the peer's MPTCP."""
    subflow_count: int
    subflows: tuple[TcpInfo, ...]
    """Empty where the kernel tells only about the first one (before Linux 6.6), and when none is left."""
    addresses: tuple[str, ...] = ()
    """Where each of `subflows` leaves from; IPv4 addresses mapped into IPv6 are given as IPv4."""


def read_mptcp_info(sock: socket.socket) -> MptcpInfo | None:
    """None = plain TCP: the peer or a middlebox did not speak MPTCP, or this is no MPTCP socket.

    One system call, two before Linux 6.6.
    """
    if sys.platform != "linux":
        return None
    subflows: tuple[TcpInfo, ...] = ()
    addresses: tuple[str, ...] = ()
    full = _read_full(sock)
    if full is not None:
        data, subflows, addresses = full
    else:
        try:
            data = sock.getsockopt(SOL_MPTCP, _MPTCP_INFO, _INFO.size)
        except OSError:
            return None
    further, flags, written, una, acked, total = _INFO.unpack(data[: _INFO.size].ljust(_INFO.size, b"\0"))
    if len(data) < 32 or flags & _FALLBACK:
        return None
    return MptcpInfo(
        bytes_acked=acked if len(data) >= _ACKED_END else una,
        unacked=max(0, written - una),
        subflow_count=(total or further + 1) if full is None else sum(flow.state == ESTABLISHED for flow in subflows),
        subflows=subflows,
        addresses=addresses,
    )


def parse_address(data: bytes) -> str:
    """Of a sockaddr_storage."""
    family = int.from_bytes(data[:2], sys.byteorder)
    if family == socket.AF_INET:
        return socket.inet_ntop(socket.AF_INET, data[4:8])
    return unmapped(socket.inet_ntop(socket.AF_INET6, data[8:24])) if family == socket.AF_INET6 else ""


class _FullInfoBuffers:
    """Memory the kernel fills; one set is enough because the call neither blocks nor yields."""

    def __init__(self) -> None:
        self.getsockopt = ctypes.CDLL(None, use_errno=True).getsockopt
        self.names = ctypes.create_string_buffer(_MAX_SUBFLOWS * _NAME_SIZE)
        self.tcp_info = ctypes.create_string_buffer(_MAX_SUBFLOWS * _TCP_INFO_SIZE)
        places = ctypes.addressof(self.names), ctypes.addressof(self.tcp_info)
        sizes = 0, _TCP_INFO_SIZE, 0, _NAME_SIZE, 0, _MAX_SUBFLOWS
        self.request = _FULL.pack(*sizes, *places) + bytes(_INFO.size)
        self.full = ctypes.create_string_buffer(len(self.request))
        self.length = ctypes.c_uint32()


_buffers = cache(_FullInfoBuffers)


def _read_full(sock: socket.socket) -> tuple[bytes, tuple[TcpInfo, ...], tuple[str, ...]] | None:
    # By ctypes because the option reads its buffer before it fills it, which socket.getsockopt cannot do.
    memory = _buffers()
    size = len(memory.request)
    ctypes.memmove(memory.full, memory.request, size)
    memory.length.value = size
    if memory.getsockopt(sock.fileno(), SOL_MPTCP, _MPTCP_FULL_INFO, memory.full, ctypes.byref(memory.length)):
        return None
    raw = memory.full.raw[: memory.length.value]
    count = min(_FULL.unpack_from(raw)[4], _MAX_SUBFLOWS)
    infos, names = memory.tcp_info.raw, memory.names.raw
    subflows = tuple(parse_tcp_info(infos[n * _TCP_INFO_SIZE : (n + 1) * _TCP_INFO_SIZE]) for n in range(count))
    addresses = tuple(parse_address(names[n * _NAME_SIZE + 8 : n * _NAME_SIZE + 32]) for n in range(count))
    return raw[_FULL.size :], subflows, addresses
