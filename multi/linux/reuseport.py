"""One port for several processes, and which of them a datagram goes to: its QUIC connection id says so.

SO_REUSEPORT alone spreads datagrams by a hash of both addresses, so that a client whose port changes would reach
another process. A classic BPF program that looks at the connection id needs no privilege (socket(7),
SO_ATTACH_REUSEPORT_CBPF). It belongs to the group of sockets, and picks by the order in which they were bound. Whoever
binds keeps them all open: when one closes, others change places.
"""

from __future__ import annotations

import ctypes
import socket
import struct
from typing import NamedTuple

_SO_ATTACH_REUSEPORT_CBPF = 51  # include/uapi/asm-generic/socket.h
_NOBODY = 0xFFFFFFFF  # no place in any group: the kernel goes by its hash

# include/uapi/linux/bpf_common.h: what an instruction does, with what.
_LOAD_BYTE, _LOAD_LENGTH = 0x30, 0x80
_JUMP, _JUMP_IF_EQUAL, _JUMP_IF_AT_LEAST, _JUMP_IF_SET = 0x05, 0x15, 0x35, 0x45
_RETURN, _RETURN_LOADED = 0x06, 0x16

_LONG_HEADER = 0x80  # RFC 9000 section 17.2: there four bytes of version and the length of the id come before it
_SHORT_ID, _LONG_ID = 1, 6  # where the id begins

Instruction = tuple[int, int, int, int]
"""(code, instructions to skip if it holds, if it does not, operand)."""


class PlaceInId(NamedTuple):
    """How connection ids tell which process made them."""

    first: int
    """Their first byte."""
    length: int
    """Their bytes; never fewer than nine."""
    position: int
    """Of the byte that is the place of the process in the group."""


def share_port(sock: socket.socket) -> socket.socket:
    """Before it is bound: others of this user may bind the same port. Raises OSError."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    return sock


def steer_by_connection_id(sock: socket.socket, ids: PlaceInId, places: int) -> None:
    """Datagrams for the group of `sock`, of at least `places` sockets, go where their connection ids say.

    Those without such an id go by the kernel's hash. Raises OSError.
    """
    code = b"".join(struct.pack("=HBBI", *instruction) for instruction in steering_program(ids, places))
    buffer = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("@HP", len(code) // 8, ctypes.addressof(buffer))  # struct sock_fprog
    sock.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_REUSEPORT_CBPF, program)


def steering_program(ids: PlaceInId, places: int) -> list[Instruction]:
    """It is given a UDP payload and returns a place in the group, or `_NOBODY`."""
    return [
        (_LOAD_LENGTH, 0, 0, 0),
        (_JUMP_IF_AT_LEAST, 0, 13, _SHORT_ID + ids.length),
        (_LOAD_BYTE, 0, 0, 0),
        (_JUMP_IF_SET, 4, 0, _LONG_HEADER),
        # a short header: nobody but a server of this layout has issued its id
        (_LOAD_BYTE, 0, 0, _SHORT_ID),
        (_JUMP_IF_EQUAL, 0, 9, ids.first),
        (_LOAD_BYTE, 0, 0, _SHORT_ID + ids.position),
        (_JUMP, 0, 0, 5),
        # a long one: a client's first packet has an id that it made up, or one with the route it was told
        (_LOAD_BYTE, 0, 0, _LONG_ID - 1),
        (_JUMP_IF_EQUAL, 0, 5, ids.length),
        (_LOAD_BYTE, 0, 0, _LONG_ID),
        (_JUMP_IF_EQUAL, 0, 3, ids.first),
        (_LOAD_BYTE, 0, 0, _LONG_ID + ids.position),
        (_JUMP_IF_AT_LEAST, 1, 0, places),
        (_RETURN_LOADED, 0, 0, 0),
        (_RETURN, 0, 0, _NOBODY),
    ]
