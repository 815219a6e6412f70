"""Generic netlink: requests to one family of the kernel, found by its name.

Not pyroute2's: its sockets fail in a thread that runs an event loop, and in any thread once uvloop is the policy. It
also lacks most of the commands needed here, which are a handful of flat attributes.
"""

from __future__ import annotations

import errno
import struct
import sys
from functools import partial

from multi.discovery import netlink
from multi.discovery.netlink import NetlinkSocket, OpenSocket, attribute, attributes, open_netlink

# include/uapi/linux/genetlink.h
GENL_ID_CTRL, CTRL_CMD_GETFAMILY, CONTROL_VERSION = 16, 3, 1
CTRL_ATTR_FAMILY_ID, CTRL_ATTR_FAMILY_NAME = 1, 2
GENERIC_HEADER = struct.Struct("=BBH")  # command, version, reserved

open_generic_netlink: OpenSocket = partial(open_netlink, netlink.NETLINK_GENERIC)


class GenericNetlink(NetlinkSocket):
    """Requests to a family. All raise OSError; ENOENT: the kernel has no such family."""

    def __init__(self, family: str, version: int = 1, open_socket: OpenSocket = open_generic_netlink) -> None:
        super().__init__(open_socket)
        self._version = version
        try:
            self._family = self._look_up(family)
        except OSError:
            self.close()
            raise

    def request(self, command: int, body: bytes = b"", *, dump: bool = False) -> list[bytes]:
        """The attributes of each answer; none where there is nothing but the acknowledgement."""
        header = GENERIC_HEADER.pack(command, self._version, 0)
        answers, _ = self._exchange(self._family, netlink.NLM_F_DUMP if dump else netlink.NLM_F_ACK, header + body)
        return [answer[GENERIC_HEADER.size :] for answer in answers]

    def _look_up(self, family: str) -> int:
        """The message type of a family, given out when its module is loaded."""
        header = GENERIC_HEADER.pack(CTRL_CMD_GETFAMILY, CONTROL_VERSION, 0)
        answers = self.exchange(GENL_ID_CTRL, header + attribute(CTRL_ATTR_FAMILY_NAME, family.encode() + b"\0"))
        for answer in answers:
            number = attributes(answer, GENERIC_HEADER.size).get(CTRL_ATTR_FAMILY_ID, b"")
            if len(number) == 2:
                return int.from_bytes(number, sys.byteorder)
        raise FileNotFoundError(errno.ENOENT, f"no {family}")
