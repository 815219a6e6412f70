"""Netlink messages and their attributes, as bytes: what every protocol over netlink shares.

Knows no sockets and no kernel objects. Written by hand where a few attributes are all that is needed: importing
pyroute2's classes for one protocol may take a quarter of a second, and some of its attributes are only guessed.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterator
from typing import TypeVar

__all__ = [
    "HEADER",
    "NESTED",
    "NETLINK_ADD_MEMBERSHIP",
    "NLMSG_DONE",
    "NLMSG_ERROR",
    "NLM_F_ACK",
    "NLM_F_DUMP",
    "NLM_F_REQUEST",
    "RECEIVE_SIZE",
    "SOL_NETLINK",
    "attribute",
    "attributes",
    "error_code",
    "message",
    "messages",
    "s32",
    "u8",
    "u16",
    "u32",
]

Bytes = TypeVar("Bytes", bytes, memoryview)

# include/uapi/linux/netlink.h
SOL_NETLINK, NETLINK_ADD_MEMBERSHIP = 270, 1
NLMSG_ERROR = 2
NLMSG_DONE = 3
NLM_F_REQUEST = 0x01
NLM_F_ACK = 0x04
NLM_F_DUMP = 0x300
NESTED = 0x8000
TYPE_MASK = 0x3FFF  # without the flags "nested" and "network byte order"
HEADER = struct.Struct("=IHHII")
ATTRIBUTE = struct.Struct("=HH")

MAX_ERRNO = 4095  # include/linux/err.h

RECEIVE_SIZE = 1 << 18  # bytes; the kernel fills 32 KiB at once, but a link with many virtual functions is longer


def message(kind: int, flags: int, sequence: int, body: bytes) -> bytes:
    """A whole message; the kernel knows whom to answer from the socket."""
    return HEADER.pack(HEADER.size + len(body), kind, flags, sequence, 0) + body


def messages(data: bytes, sequence: int) -> Iterator[tuple[int, int, bytes]]:
    """The messages of one datagram that answer the question with this number: (type, flags, whole message)."""
    offset = 0
    while offset + HEADER.size <= len(data):
        length, kind, flags, answered, _port = HEADER.unpack_from(data, offset)
        if length < HEADER.size:
            return
        if answered == sequence:
            yield kind, flags, data[offset : offset + length]
        offset += (length + 3) & ~3


def error_code(answer: bytes) -> int:
    """The error number in a message of type NLMSG_ERROR; 0 = it is an acknowledgement.

    EBADMSG where there is none: what reads it makes an OSError of it, and nothing else may come of an answer.
    """
    if len(answer) < HEADER.size + 4:
        return errno.EBADMSG
    (code,) = struct.unpack_from("=i", answer, HEADER.size)
    return -int(code) if -MAX_ERRNO <= code <= 0 else errno.EBADMSG


def attribute(kind: int, value: bytes) -> bytes:
    """One attribute, padded to a multiple of four bytes."""
    return ATTRIBUTE.pack(ATTRIBUTE.size + len(value), kind) + value + bytes(-len(value) % 4)


def u8(kind: int, value: int) -> bytes:
    return attribute(kind, struct.pack("=B", value))


def u16(kind: int, value: int) -> bytes:
    return attribute(kind, struct.pack("=H", value))


def u32(kind: int, value: int) -> bytes:
    return attribute(kind, struct.pack("=I", value))


def s32(kind: int, value: int) -> bytes:
    return attribute(kind, struct.pack("=i", value))


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
