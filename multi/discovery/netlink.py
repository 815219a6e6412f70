"""Netlink: messages and attributes as bytes, and a socket for one request at a time.

Every reader of the host shares this codec: the snapshot of the interfaces, the monitor, generic
netlink. Written by hand because a session asks when it opens: the few attributes that count are taken from the bytes in
a tenth of the time pyroute2's classes need, and pyroute2's sockets fail in a thread that runs an event loop, and in any
thread once uvloop is the policy.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Self, TypeVar

Bytes = TypeVar("Bytes", bytes, memoryview)

# include/uapi/linux/netlink.h
SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, NETLINK_NO_ENOBUFS = 270, 1, 5
NETLINK_ROUTE, NETLINK_GENERIC = 0, 16  # the latter is not in every Python
NLMSG_ERROR, NLMSG_DONE = 2, 3
NLM_F_REQUEST, NLM_F_ACK, NLM_F_DUMP = 0x01, 0x04, 0x300
NLM_F_REPLACE, NLM_F_EXCL, NLM_F_CREATE = 0x100, 0x200, 0x400
NLM_F_DUMP_INTR = 0x10
NESTED = 0x8000
TYPE_MASK = 0x3FFF  # without the flags "nested" and "network byte order"
HEADER = struct.Struct("=IHHII")
ATTRIBUTE = struct.Struct("=HH")
NUMBER = struct.Struct("=I")

# include/uapi/linux/rtnetlink.h
RTNLGRP_LINK = 1
RTNLGRP_IPV4_IFADDR, RTNLGRP_IPV4_ROUTE, RTNLGRP_IPV4_RULE = 5, 7, 8
RTNLGRP_IPV6_IFADDR, RTNLGRP_IPV6_ROUTE, RTNLGRP_IPV6_RULE = 9, 11, 19
RTM_GETLINK, RTM_GETADDR = 18, 22
RTM_NEWROUTE, RTM_DELROUTE, RTM_GETROUTE = 24, 25, 26
RTM_NEWRULE, RTM_DELRULE, RTM_GETRULE = 32, 33, 34
LINK = struct.Struct("=BxHiII")  # ifinfomsg: family, hardware type, index, flags, change
ADDRESS = struct.Struct("=BBBBI")  # ifaddrmsg: family, prefix length, flags, scope, index
ROUTE = struct.Struct("=BBBBBBBBI")  # rtmsg: family, dst_len, src_len, tos, table, protocol, scope, type, flags

MAX_ERRNO = 4095  # include/linux/err.h
RECEIVE_SIZE = 1 << 18  # bytes; the kernel fills 32 KiB at once, but a link with many virtual functions is longer
ANNOUNCEMENTS_BUFFER = 16 * 1024  # bytes; more announcements than fit are one: something has changed
TAKEN_AT_ONCE = 64  # announcements; what is left will be found the next time
ANSWER_TIMEOUT = 1.0  # seconds; the kernel answers at once, or a driver hangs
DUMP_ATTEMPTS = 4  # a dump during which something changed may have holes and is taken again

OpenSocket = Callable[[], socket.socket]
"""Gives a connected socket that keeps message boundaries. Raises OSError."""


def message(kind: int, flags: int, sequence: int, body: bytes) -> bytes:
    """A whole message; the kernel knows whom to answer from the socket."""
    return HEADER.pack(HEADER.size + len(body), kind, flags, sequence, 0) + body


def messages(data: Bytes) -> Iterator[tuple[int, int, int, Bytes]]:
    """(type, flags, sequence, body) of each message of a datagram, up to the first that cannot be one."""
    offset = 0
    while offset + HEADER.size <= len(data):
        length, kind, flags, sequence, _port = HEADER.unpack_from(data, offset)
        if length < HEADER.size or offset + length > len(data):
            return
        yield kind, flags, sequence, data[offset + HEADER.size : offset + length]
        offset += (length + 3) & ~3


def attribute(kind: int, value: bytes) -> bytes:
    """One attribute, padded to a multiple of four bytes."""
    return ATTRIBUTE.pack(ATTRIBUTE.size + len(value), kind) + value + bytes(-len(value) % 4)


def u32(kind: int, value: int) -> bytes:
    return attribute(kind, NUMBER.pack(value))


def attributes(data: Bytes, offset: int = 0) -> dict[int, Bytes]:
    """Type -> value; of attributes with the same type the last one. What is cut off is left out."""
    found: dict[int, Bytes] = {}
    while offset + ATTRIBUTE.size <= len(data):
        length, kind = ATTRIBUTE.unpack_from(data, offset)
        if length < ATTRIBUTE.size or offset + length > len(data):
            break
        found[kind & TYPE_MASK] = data[offset + ATTRIBUTE.size : offset + length]
        offset += (length + 3) & ~3
    return found


def text(value: bytes | memoryview) -> str:
    return bytes(value).partition(b"\0")[0].decode(errors="replace")


def open_netlink(protocol: int) -> socket.socket:
    """A socket to the kernel of the network namespace this thread is in. Raises OSError."""
    if not hasattr(socket, "AF_NETLINK"):
        raise OSError(errno.EAFNOSUPPORT, "this system has no netlink")
    made = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol)
    try:
        made.bind((0, 0))
    except OSError:
        made.close()
        raise
    return made


class NetlinkSocket:
    """Requests from one thread at a time to the network namespace it was made in, whatever its thread does later.

    Everything raises OSError with the kernel's number.
    """

    def __init__(self, open_socket: OpenSocket = partial(open_netlink, NETLINK_ROUTE)) -> None:
        self.torn = False
        """Something changed while the kernel answered the last `dump`, again and again: it may have holes."""
        self._socket = open_socket()
        self._sequence = 0

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def exchange(self, kind: int, body: bytes, flags: int = 0) -> list[bytes]:
        """Have something done, or ask; the bodies of the answers, none where there is only an acknowledgement."""
        return self._exchange(kind, NLM_F_ACK | flags, body)[0]

    def dump(self, kind: int, body: bytes) -> list[bytes]:
        """All objects of a kind."""
        for _attempt in range(DUMP_ATTEMPTS):
            found, self.torn = self._exchange(kind, NLM_F_DUMP, body)
            if not self.torn:
                break
        return found

    def _exchange(self, kind: int, flags: int, body: bytes) -> tuple[list[bytes], bool]:
        self._sequence += 1
        self._socket.settimeout(ANSWER_TIMEOUT)
        # The kernel does it before this returns, after seconds where others change much: its answer is there then.
        self._socket.send(message(kind, NLM_F_REQUEST | flags, self._sequence, body))
        deadline = time.monotonic() + ANSWER_TIMEOUT
        answers: list[bytes] = []
        interrupted = False
        while True:
            if (left := deadline - time.monotonic()) <= 0:
                raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
            self._socket.settimeout(left)
            for answered, told, sequence, content in messages(self._socket.recv(RECEIVE_SIZE)):
                if sequence != self._sequence:
                    continue
                if answered in (NLMSG_ERROR, NLMSG_DONE):
                    # A dump that fails half-way says so in its last message, which has the same layout.
                    if (answered == NLMSG_ERROR or len(content) >= NUMBER.size) and (code := _error_code(content)):
                        raise OSError(code, os.strerror(code))
                    return answers, interrupted or bool(told & NLM_F_DUMP_INTR)
                interrupted = interrupted or bool(told & NLM_F_DUMP_INTR)
                answers.append(content)


class Announcements:
    """Hears that something has changed in the network namespace it was made in; what, has to be read.

    `groups`: RTNLGRP_*. Announcements that do not fit in the small buffer are lost, which does not matter: those that
    fit say the same. Raises OSError.
    """

    def __init__(self, *groups: int) -> None:
        self._socket = open_netlink(NETLINK_ROUTE)
        try:
            self._socket.setblocking(False)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, ANNOUNCEMENTS_BUFFER)
            # An error on the socket would make libuv, and uvloop with it, stop listening for good.
            self._socket.setsockopt(SOL_NETLINK, NETLINK_NO_ENOBUFS, 1)
            for group in groups:
                self._socket.setsockopt(SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, group)
        except OSError:
            self._socket.close()
            raise

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def drain(self) -> bool:
        """Whether anything was announced since the last time."""
        for taken in range(TAKEN_AT_ONCE):
            try:
                self._socket.recv(1)
            except BlockingIOError:
                return taken > 0
        return True


def _error_code(content: bytes) -> int:
    """The error number; 0 = an acknowledgement. EBADMSG where there is none, because callers expect OSError only."""
    code = int.from_bytes(content[:4], sys.byteorder, signed=True) if len(content) >= 4 else 1
    return -code if -MAX_ERRNO <= code <= 0 else errno.EBADMSG
