"""Questions to the kernel's WiFi layer (nl80211 over generic netlink), on a plain socket.

The few messages are written by hand: see `multi.net.messages`. A machine without WiFi has no nl80211 at all, which
is an error like any other here (`FileNotFoundError`).
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import sys
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

from multi.net.messages import (
    HEADER,
    NLM_F_ACK,
    NLM_F_DUMP,
    NLM_F_REQUEST,
    NLMSG_DONE,
    NLMSG_ERROR,
    RECEIVE_SIZE,
    attribute,
    attributes,
    error_code,
    message,
    messages,
    u32,
)

__all__ = ["ANSWER_TIMEOUT", "Nl80211", "OpenSocket", "open_generic_netlink"]

# include/uapi/linux/netlink.h and genetlink.h
NETLINK_GENERIC = 16  # not in every Python
GENL_ID_CTRL = 16
CTRL_CMD_GETFAMILY = 3
CTRL_ATTR_FAMILY_ID = 1
CTRL_ATTR_FAMILY_NAME = 2
GENERIC_HEADER = struct.Struct("=BBH")  # command, version, reserved
CONTROL_VERSION = 1

# include/uapi/linux/nl80211.h
NL80211_CMD_GET_STATION = 17
NL80211_CMD_SET_POWER_SAVE = 61
NL80211_CMD_GET_POWER_SAVE = 62
NL80211_ATTR_IFINDEX = 3
NL80211_ATTR_STA_INFO = 21
NL80211_ATTR_PS_STATE = 93
NL80211_VERSION = 0

ANSWER_TIMEOUT = 1.0  # seconds for all questions of one call; the kernel answers at once, or a driver hangs

OpenSocket = Callable[[], socket.socket]
"""Gives a connected socket that keeps message boundaries. Raises OSError."""


def open_generic_netlink() -> socket.socket:
    """A socket to the generic netlink of the network namespace this thread is in. Raises OSError."""
    if sys.platform != "linux":
        raise OSError(errno.EAFNOSUPPORT, "only Linux has nl80211")
    made = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_GENERIC)
    try:
        made.bind((0, 0))
    except OSError:
        made.close()
        raise
    return made


class Nl80211:
    """Questions one at a time, from one thread at a time; every method raises OSError with the kernel's number.

    The socket stays in the network namespace it was made in.
    """

    def __init__(self, open_socket: OpenSocket = open_generic_netlink) -> None:
        self._socket = open_socket()
        self._sequence = 0
        self._family = 0
        self.deadline = time.monotonic() + ANSWER_TIMEOUT
        """When questions give up with TimeoutError; who keeps the socket sets it again."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def power_saving(self, index: int) -> bool:
        """Whether the interface with this index may save power."""
        try:
            answers = self._ask(NL80211_CMD_GET_POWER_SAVE, NLM_F_ACK, u32(NL80211_ATTR_IFINDEX, index))
        except OSError as error:
            if error.errno == errno.EINVAL:  # what some kernels say of interfaces that are not wireless
                raise OSError(errno.ENODEV, os.strerror(errno.ENODEV)) from None
            raise
        for answer in answers:
            if len(state := answer.get(NL80211_ATTR_PS_STATE, b"")) == 4:
                return state != bytes(4)
        raise OSError(errno.ENODATA, "the driver does not tell")

    def set_power_saving(self, index: int, on: bool) -> None:
        """Needs CAP_NET_ADMIN."""
        body = u32(NL80211_ATTR_IFINDEX, index) + u32(NL80211_ATTR_PS_STATE, on)
        self._ask(NL80211_CMD_SET_POWER_SAVE, NLM_F_ACK, body)

    def stations(self, index: int) -> list[Mapping[int, bytes]]:
        """What is known of each station at the other end: attribute of `nl80211_sta_info` -> value."""
        answers = self._ask(NL80211_CMD_GET_STATION, NLM_F_DUMP, u32(NL80211_ATTR_IFINDEX, index))
        return [attributes(one[NL80211_ATTR_STA_INFO]) for one in answers if NL80211_ATTR_STA_INFO in one]

    def _ask(self, command: int, flags: int, body: bytes) -> list[dict[int, bytes]]:
        if not self._family:
            self._family = self._resolve()
        return self._exchange(self._family, flags, GENERIC_HEADER.pack(command, NL80211_VERSION, 0) + body)

    def _resolve(self) -> int:
        """The message type of nl80211 is given out when its module is loaded."""
        name = attribute(CTRL_ATTR_FAMILY_NAME, b"nl80211\0")
        header = GENERIC_HEADER.pack(CTRL_CMD_GETFAMILY, CONTROL_VERSION, 0)
        for answer in self._exchange(GENL_ID_CTRL, NLM_F_ACK, header + name):
            if len(number := answer.get(CTRL_ATTR_FAMILY_ID, b"")) == 2:
                return int(struct.unpack("=H", number)[0])
        raise FileNotFoundError(errno.ENOENT, "no nl80211")

    def _exchange(self, kind: int, flags: int, body: bytes) -> list[dict[int, bytes]]:
        """One question and all answers to it, as attributes."""
        self._sequence += 1
        self._wait()
        self._socket.send(message(kind, NLM_F_REQUEST | flags, self._sequence, body))
        answers: list[dict[int, bytes]] = []
        while True:
            self._wait()
            for answered, _flags, raw in messages(self._socket.recv(RECEIVE_SIZE), self._sequence):
                if answered in (NLMSG_ERROR, NLMSG_DONE):
                    # A dump that fails half-way tells so in its last message, which has the same layout.
                    if len(raw) >= HEADER.size + 4 and (code := error_code(raw)):
                        raise OSError(code, os.strerror(code))
                    return answers
                answers.append(attributes(raw, HEADER.size + GENERIC_HEADER.size))

    def _wait(self) -> None:
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
        self._socket.settimeout(left)
