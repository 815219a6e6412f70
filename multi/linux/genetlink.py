"""Generic netlink over a plain socket: one question at a time, answered by the kernel at once.

No library in between: pyroute2's generic netlink runs an event loop of its own, which fails where one runs already
(see `multi.discovery.netlink`), and the messages needed here are a handful of flat attributes. A socket asks about the
network namespace it was made in, whatever its thread does later.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import sys
import time
from collections.abc import Callable
from typing import Self

from multi.discovery.rtnetlink import (
    HEADER,
    NETLINK_ADD_MEMBERSHIP,
    NLM_F_ACK,
    NLM_F_DUMP,
    NLM_F_REQUEST,
    NLMSG_DONE,
    NLMSG_ERROR,
    RECEIVE_SIZE,
    SOL_NETLINK,
    attribute,
    attributes,
    error_code,
    message,
    messages,
)

__all__ = ["ANSWER_TIMEOUT", "GenericNetlink", "OpenSocket", "open_generic_netlink"]

# include/uapi/linux/netlink.h, genetlink.h
NETLINK_GENERIC = 16  # not in every Python
GENL_ID_CTRL, CTRL_CMD_GETFAMILY, CONTROL_VERSION = 16, 3, 1
CTRL_ATTR_FAMILY_ID, CTRL_ATTR_FAMILY_NAME, CTRL_ATTR_MCAST_GROUPS = 1, 2, 7
CTRL_ATTR_MCAST_GRP_NAME, CTRL_ATTR_MCAST_GRP_ID = 1, 2
GENERIC_HEADER = struct.Struct("=BBH")  # command, version, reserved

ANSWER_TIMEOUT = 1.0  # seconds; the kernel answers at once, or a driver hangs

OpenSocket = Callable[[], socket.socket]
"""Gives a connected socket that keeps message boundaries. Raises OSError."""


def open_generic_netlink() -> socket.socket:
    """A socket to the generic netlink of the network namespace this thread is in. Raises OSError."""
    if sys.platform != "linux":
        raise OSError(errno.EAFNOSUPPORT, "only Linux has netlink")
    made = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_GENERIC)
    try:
        made.bind((0, 0))
    except OSError:
        made.close()
        raise
    return made


class GenericNetlink:
    """Requests to one family of the kernel, from one thread at a time.

    Everything raises OSError with the kernel's number; ENOENT: the kernel has no such family.
    """

    def __init__(self, family: str, version: int = 1, open_socket: OpenSocket = open_generic_netlink) -> None:
        self._version = version
        self._socket = open_socket()
        self._sequence = 0
        self.deadline: float | None = None
        """When requests give up with TimeoutError, by the monotonic clock; None = each after ANSWER_TIMEOUT."""
        try:
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
            raise FileNotFoundError(errno.ENOENT, f"no multicast group {group}")
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 0)
        self._socket.setsockopt(SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, self._groups[group])

    def request(self, command: int, body: bytes = b"", *, dump: bool = False) -> list[bytes]:
        """The attributes of each answer; none where there is nothing but the acknowledgement."""
        header = GENERIC_HEADER.pack(command, self._version, 0)
        return self._exchange(self._family, NLM_F_DUMP if dump else NLM_F_ACK, header + body)

    def _look_up(self, family: str) -> tuple[int, dict[str, int]]:
        """The message type of a family, given out when its module is loaded, and its multicast groups."""
        name = attribute(CTRL_ATTR_FAMILY_NAME, family.encode() + b"\0")
        header = GENERIC_HEADER.pack(CTRL_CMD_GETFAMILY, CONTROL_VERSION, 0)
        answers = map(attributes, self._exchange(GENL_ID_CTRL, NLM_F_ACK, header + name))
        found = next((answer for answer in answers if len(answer.get(CTRL_ATTR_FAMILY_ID, b"")) == 2), None)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, f"no {family}")
        groups: dict[str, int] = {}
        for group in attributes(found.get(CTRL_ATTR_MCAST_GROUPS, b"")).values():
            facts = attributes(group)
            label = facts.get(CTRL_ATTR_MCAST_GRP_NAME, b"").rstrip(b"\0").decode(errors="replace")
            groups[label] = int.from_bytes(facts.get(CTRL_ATTR_MCAST_GRP_ID, b"")[:4], sys.byteorder)
        return int.from_bytes(found[CTRL_ATTR_FAMILY_ID], sys.byteorder), groups

    def _exchange(self, kind: int, flags: int, body: bytes) -> list[bytes]:
        """One question and the attributes of all answers to it."""
        self._sequence += 1
        deadline = time.monotonic() + ANSWER_TIMEOUT if self.deadline is None else self.deadline
        self._wait(deadline)
        self._socket.send(message(kind, NLM_F_REQUEST | flags, self._sequence, body))
        answers: list[bytes] = []
        while True:
            self._wait(deadline)
            for answered, _flags, raw in messages(self._socket.recv(RECEIVE_SIZE), self._sequence):
                if answered in (NLMSG_ERROR, NLMSG_DONE):
                    # A dump that fails half-way tells so in its last message, which has the same layout.
                    if (answered == NLMSG_ERROR or len(raw) >= HEADER.size + 4) and (code := error_code(raw)):
                        raise OSError(code, os.strerror(code))
                    return answers
                answers.append(raw[HEADER.size + GENERIC_HEADER.size :])

    def _wait(self, deadline: float) -> None:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
        self._socket.settimeout(left)
