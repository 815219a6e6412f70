"""What the kernel knows about an MPTCP connection and its subflows, as typed objects. Linux only."""

from __future__ import annotations

import ctypes
import socket
import struct
import sys
from dataclasses import dataclass
from functools import lru_cache

from multi.linux.mptcp_pm import SubflowName
from multi.transports.tcp.info import TcpInfo, parse_tcp_info

IPPROTO_MPTCP = 262
SOL_MPTCP = 284
_MPTCP_INFO = 1
_MPTCP_FULL_INFO = 4  # Linux >= 6.6
_INFO_SIZE = 96
ESTABLISHED = 1  # state of a subflow, include/net/tcp_states.h
SYN_SENT = 2
CARRYING = frozenset({1, 4, 5, 8, 9, 11})  # established or closing, not opening and not closed
_FALLBACK = 1  # bit of the flags: the connection is plain TCP
_MAX_SUBFLOWS = 8  # the kernel's own limit
_TCP_INFO_SIZE = 232
_SUBFLOW_INFO_SIZE = 264  # u32 id, padding, two sockaddr_storage

_MAPPED = bytes(10) + b"\xff\xff"

# include/uapi/linux/mptcp.h, struct mptcp_info: 6 x u8, u32 flags @8, token @12, u64 write_seq @16,
# snd_una @24, rcv_nxt @32; u64 bytes_received @64, bytes_acked @72, u8 subflows_total @80 in kernels since 6.5 and 6.8.
_FLAGS = struct.Struct("=I")
_SEQUENCES = struct.Struct("=QQ")
_RECEIVED_AND_ACKED = struct.Struct("=QQ")
_BYTES_ACKED = struct.Struct("=Q")
# struct mptcp_full_info: six u32 sizes and counts, two u64 pointers, then struct mptcp_info.
_FULL = struct.Struct("=6I2Q")


@dataclass(frozen=True, slots=True)
class MptcpInfo:
    """One MPTCP connection: bytes, counted on the connection and not on its subflows."""

    token: int
    bytes_acked: int
    unacked: int
    """Written and not yet acknowledged by the peer's MPTCP."""
    subflow_count: int
    subflows: tuple[TcpInfo, ...]
    """Empty where the kernel tells only about the first one (before Linux 6.6), and when none is left."""
    names: bytes = b""
    """Of `subflows`, for `subflow_names`."""
    acknowledged: bool = False
    """Data has gone through, one way at least: from about then on there may be more subflows (RFC 8684 section 3.1)."""


def read_mptcp_info(sock: socket.socket, first_una: int = 0) -> MptcpInfo | None:
    """None = plain TCP: the peer or a middlebox did not speak MPTCP, or this is no MPTCP socket.

    `first_una` is where acknowledgements started, for kernels that do not count them. One system call, two
    before Linux 6.6.
    """
    if sys.platform != "linux":
        return None
    subflows: tuple[TcpInfo, ...] = ()
    names = b""
    full = _read_full(sock)
    if full is not None:
        data, subflows, names = full
    else:
        try:
            data = sock.getsockopt(SOL_MPTCP, _MPTCP_INFO, _INFO_SIZE)
        except OSError:
            return None
    if len(data) < 32 or _FLAGS.unpack_from(data, 8)[0] & _FALLBACK:
        return None
    write_sequence, una = _SEQUENCES.unpack_from(data, 16)
    counted = len(data) >= 80
    total = data[80] if len(data) > 80 else 0
    return MptcpInfo(
        token=_FLAGS.unpack_from(data, 12)[0],
        bytes_acked=_BYTES_ACKED.unpack_from(data, 72)[0] if counted else max(0, una - first_una),
        unacked=max(0, write_sequence - una),
        subflow_count=(total or data[0] + 1) if full is None else sum(flow.state == ESTABLISHED for flow in subflows),
        subflows=subflows,
        names=names,
        acknowledged=not counted or any(_RECEIVED_AND_ACKED.unpack_from(data, 64)),
    )


@lru_cache(maxsize=64)
def subflow_names(names: bytes) -> tuple[SubflowName, ...]:
    """What `MptcpInfo.names` says, in the order of the subflows."""
    return tuple(
        SubflowName(*_socket_address(names, at + 8), *_socket_address(names, at + 136))
        for at in range(0, len(names), _SUBFLOW_INFO_SIZE)
    )


def _socket_address(data: bytes, at: int) -> tuple[str, int]:
    """(address, port) of a sockaddr_storage; IPv4 addresses mapped into IPv6 are given as IPv4."""
    family, port = int.from_bytes(data[at : at + 2], sys.byteorder), int.from_bytes(data[at + 2 : at + 4], "big")
    if family == socket.AF_INET:
        return socket.inet_ntop(socket.AF_INET, data[at + 4 : at + 8]), port
    if family == socket.AF_INET6:
        address = data[at + 8 : at + 24]
        if address.startswith(_MAPPED):
            return socket.inet_ntop(socket.AF_INET, address[len(_MAPPED) :]), port
        return socket.inet_ntop(socket.AF_INET6, address), port
    return "", port


class _FullInfoBuffers:
    """Memory the kernel fills; one set is enough because the call neither blocks nor yields."""

    def __init__(self) -> None:
        self.getsockopt = ctypes.CDLL(None, use_errno=True).getsockopt
        self.subflow_info = ctypes.create_string_buffer(_MAX_SUBFLOWS * _SUBFLOW_INFO_SIZE)
        self.tcp_info = ctypes.create_string_buffer(_MAX_SUBFLOWS * _TCP_INFO_SIZE)
        self.request = _FULL.pack(
            0,
            _TCP_INFO_SIZE,
            0,
            _SUBFLOW_INFO_SIZE,
            0,
            _MAX_SUBFLOWS,
            ctypes.addressof(self.subflow_info),
            ctypes.addressof(self.tcp_info),
        ) + bytes(_INFO_SIZE)
        self.full = ctypes.create_string_buffer(len(self.request))
        self.length = ctypes.c_uint32()


_buffers: _FullInfoBuffers | None = None


def _read_full(sock: socket.socket) -> tuple[bytes, tuple[TcpInfo, ...], bytes] | None:
    # By ctypes because the option reads its buffer before it fills it, which socket.getsockopt cannot do.
    global _buffers
    if _buffers is None:
        _buffers = _FullInfoBuffers()
    memory = _buffers
    size = len(memory.request)
    ctypes.memmove(memory.full, memory.request, size)
    memory.length.value = size
    if memory.getsockopt(sock.fileno(), SOL_MPTCP, _MPTCP_FULL_INFO, memory.full, ctypes.byref(memory.length)):
        return None
    raw = memory.full.raw[: memory.length.value]
    count = min(_FULL.unpack_from(raw)[4], _MAX_SUBFLOWS)
    infos = memory.tcp_info.raw
    subflows = tuple(
        parse_tcp_info(infos[at : at + _TCP_INFO_SIZE]) for at in range(0, count * _TCP_INFO_SIZE, _TCP_INFO_SIZE)
    )
    return raw[_FULL.size :], subflows, ctypes.string_at(memory.subflow_info, count * _SUBFLOW_INFO_SIZE)
