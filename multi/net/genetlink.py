"""Generic netlink over a plain socket: one question at a time, answered by the kernel at once.

No library in between: pyroute2's generic netlink runs an event loop of its own, which fails where one runs already
(see `multi.net.netlink`), and the messages needed here are a handful of flat attributes. A socket asks about the
network namespace it was made in, whatever its thread does later.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import sys
from collections.abc import Iterator
from typing import Self

__all__ = ["NESTED", "GenericNetlink", "attribute", "attributes", "s32", "u8", "u16", "u32"]

# include/uapi/linux/netlink.h, genetlink.h
NETLINK_GENERIC = 16
SOL_NETLINK = 270
NETLINK_ADD_MEMBERSHIP = 1
NLMSG_ERROR, NLMSG_DONE = 2, 3
NLM_F_REQUEST, NLM_F_ACK, NLM_F_DUMP = 0x1, 0x4, 0x300
NESTED = 0x8000
TYPE_MASK = 0x3FFF
GENL_ID_CTRL, CTRL_CMD_GETFAMILY = 16, 3
CTRL_ATTR_FAMILY_ID, CTRL_ATTR_FAMILY_NAME, CTRL_ATTR_MCAST_GROUPS = 1, 2, 7
CTRL_ATTR_MCAST_GRP_NAME, CTRL_ATTR_MCAST_GRP_ID = 1, 2

MAX_ERRNO = 4095  # include/linux/err.h
RECEIVE_SIZE = 1 << 16
ANSWER_TIMEOUT = 1.0  # the kernel answers at once; never hang if something in between does not

_HEADER = struct.Struct("=IHHII")
_GENERIC = struct.Struct("=BBH")
_ATTRIBUTE = struct.Struct("=HH")


class GenericNetlink:
    """Requests to one family of the kernel. Everything raises OSError; ENOENT: the kernel has no such family."""

    def __init__(self, family: str) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, NETLINK_GENERIC)
        self._sequence = 0
        try:
            self._socket.settimeout(ANSWER_TIMEOUT)
            self._socket.bind((0, 0))
            self._family, self._groups = self._look_up(family)
        except OSError:
            self._socket.close()
            raise

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def join(self, group: str) -> None:
        """Hear a multicast group. What arrives is never read: the kernel drops it once the buffer is full."""
        if group not in self._groups:
            raise FileNotFoundError(f"no multicast group {group}")
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 0)
        self._socket.setsockopt(SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, self._groups[group])

    def request(self, command: int, body: bytes = b"", *, dump: bool = False) -> list[bytes]:
        """The attributes of each answer; none where there is nothing but the acknowledgement."""
        return self._exchange(self._family, command, body, NLM_F_DUMP if dump else NLM_F_ACK)

    def _exchange(self, kind: int, command: int, body: bytes, flags: int) -> list[bytes]:
        self._sequence += 1
        message = _GENERIC.pack(command, 1, 0) + body
        header = _HEADER.pack(_HEADER.size + len(message), kind, flags | NLM_F_REQUEST, self._sequence, 0)
        self._socket.send(header + message)
        answers: list[bytes] = []
        while True:
            for answered, content in self._messages(self._socket.recv(RECEIVE_SIZE)):
                if answered == NLMSG_DONE:
                    return answers
                if answered == NLMSG_ERROR:
                    if code := _error_code(content):
                        raise OSError(code, os.strerror(code).lower())
                    return answers
                answers.append(content[_GENERIC.size :])

    def _messages(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """(type, content) of the messages of a datagram that answer the last question."""
        offset = 0
        while offset + _HEADER.size <= len(data):
            length, kind, _flags, sequence, _port = _HEADER.unpack_from(data, offset)
            if length < _HEADER.size:
                return
            if sequence == self._sequence:
                yield kind, data[offset + _HEADER.size : offset + length]
            offset += (length + 3) & ~3

    def _look_up(self, family: str) -> tuple[int, dict[str, int]]:
        name = attribute(CTRL_ATTR_FAMILY_NAME, family.encode() + b"\0")
        answers = self._exchange(GENL_ID_CTRL, CTRL_CMD_GETFAMILY, name, NLM_F_ACK)
        found = attributes(answers[0]) if answers else {}
        if CTRL_ATTR_FAMILY_ID not in found:
            raise FileNotFoundError(f"no generic netlink family {family}")
        groups: dict[str, int] = {}
        for group in attributes(found.get(CTRL_ATTR_MCAST_GROUPS, b"")).values():
            facts = attributes(group)
            label = facts.get(CTRL_ATTR_MCAST_GRP_NAME, b"").rstrip(b"\0").decode(errors="replace")
            groups[label] = int.from_bytes(facts.get(CTRL_ATTR_MCAST_GRP_ID, b"")[:4], sys.byteorder)
        return int.from_bytes(found[CTRL_ATTR_FAMILY_ID][:2], sys.byteorder), groups


def _error_code(content: bytes) -> int:
    """0 = no error. EBADMSG for what is no error number: nothing but an OSError may come of an answer."""
    (code,) = struct.unpack_from("=i", content) if len(content) >= 4 else (1,)
    return -int(code) if -MAX_ERRNO <= code <= 0 else errno.EBADMSG


def attributes(data: bytes) -> dict[int, bytes]:
    """Type -> value of attributes one after the other, the last of a type; what is cut short is left out."""
    found: dict[int, bytes] = {}
    offset = 0
    while offset + _ATTRIBUTE.size <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, offset)
        if length < _ATTRIBUTE.size or offset + length > len(data):
            break
        found[kind & TYPE_MASK] = data[offset + _ATTRIBUTE.size : offset + length]
        offset += (length + 3) & ~3
    return found


def attribute(kind: int, value: bytes) -> bytes:
    return _ATTRIBUTE.pack(len(value) + _ATTRIBUTE.size, kind) + value + bytes(-len(value) % 4)


def u8(kind: int, value: int) -> bytes:
    return attribute(kind, struct.pack("=B", value))


def u16(kind: int, value: int) -> bytes:
    return attribute(kind, struct.pack("=H", value))


def u32(kind: int, value: int) -> bytes:
    return attribute(kind, struct.pack("=I", value))


def s32(kind: int, value: int) -> bytes:
    return attribute(kind, struct.pack("=i", value))
