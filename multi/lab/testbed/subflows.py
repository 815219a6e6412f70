"""Tells the kernel's MPTCP path manager which addresses may have subflows: what an administrator does with `ip mptcp`.

Generic netlink, family `mptcp_pm` (include/uapi/linux/mptcp_pm.h). A socket speaks for the namespace it was made in.
"""

from __future__ import annotations

import os
import socket
import struct
from ipaddress import ip_address

__all__ = ["SubflowManager"]

NETLINK_GENERIC = 16
NLMSG_ERROR = 2
NLM_F_REQUEST, NLM_F_ACK = 0x1, 0x4
GENL_ID_CTRL, CTRL_CMD_GETFAMILY, CTRL_ATTR_FAMILY_ID, CTRL_ATTR_FAMILY_NAME = 16, 3, 1, 2
ADD_ADDR, SET_LIMITS = 1, 5
PM_ATTR_ADDR, PM_ATTR_RCV_ADD_ADDRS, PM_ATTR_SUBFLOWS = 1, 2, 3
ADDR_FAMILY, ADDR_ADDR4, ADDR_ADDR6, ADDR_FLAGS, ADDR_IF_INDEX = 1, 3, 4, 6, 7
FLAG_SUBFLOW = 2
NESTED = 0x8000
MAX_SUBFLOWS = 8  # the kernel's own limit
ANSWER_TIMEOUT = 2.0

_HEADER = struct.Struct("=IHHII")
_GENERIC = struct.Struct("=BBH")


class SubflowManager:
    """Requests to the path manager of one host. All raise OSError; the kernel may have none (ENOENT)."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_GENERIC)
        self._socket.settimeout(ANSWER_TIMEOUT)
        self._socket.bind((0, 0))
        self._sequence = 0
        self._family = GENL_ID_CTRL
        found = self._request(CTRL_CMD_GETFAMILY, 1, _attribute(CTRL_ATTR_FAMILY_NAME, b"mptcp_pm\0"))
        self._family = _find_u16(found, CTRL_ATTR_FAMILY_ID)

    def close(self) -> None:
        self._socket.close()

    def allow_all(self) -> None:
        """As many subflows as the kernel can have."""
        limit = struct.pack("=I", MAX_SUBFLOWS)
        self._request(SET_LIMITS, 1, _attribute(PM_ATTR_RCV_ADD_ADDRS, limit) + _attribute(PM_ATTR_SUBFLOWS, limit))

    def add(self, address: str, index: int) -> None:
        """Make a subflow from this address, through this interface, for every connection."""
        parsed = ip_address(address)
        family = socket.AF_INET6 if parsed.version == 6 else socket.AF_INET
        body = _attribute(ADDR_FAMILY, struct.pack("=H", family))
        body += _attribute(ADDR_ADDR6 if parsed.version == 6 else ADDR_ADDR4, parsed.packed)
        body += _attribute(ADDR_FLAGS, struct.pack("=I", FLAG_SUBFLOW))
        body += _attribute(ADDR_IF_INDEX, struct.pack("=i", index))
        self._request(ADD_ADDR, 1, _attribute(NESTED | PM_ATTR_ADDR, body))

    def _request(self, command: int, version: int, body: bytes) -> bytes:
        """The attributes of the answer, empty if there is none but the acknowledgement."""
        self._sequence += 1
        body = _GENERIC.pack(command, version, 0) + body
        flags = NLM_F_REQUEST | NLM_F_ACK
        self._socket.send(_HEADER.pack(_HEADER.size + len(body), self._family, flags, self._sequence, 0) + body)
        answer = b""
        while True:
            message = self._socket.recv(1 << 16)
            _length, kind, _flags, _sequence, _port = _HEADER.unpack_from(message)
            if kind != NLMSG_ERROR:
                answer = message[_HEADER.size + _GENERIC.size :]
                continue
            (code,) = struct.unpack_from("=i", message, _HEADER.size)
            if code:
                raise OSError(-code, f"MPTCP path manager: {os.strerror(-code).lower()}")
            return answer


def _attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", len(value) + 4, kind) + value + bytes(-len(value) % 4)


def _find_u16(attributes: bytes, wanted: int) -> int:
    offset = 0
    while offset + 4 <= len(attributes):
        length, kind = struct.unpack_from("=HH", attributes, offset)
        if kind == wanted:
            (value,) = struct.unpack_from("=H", attributes, offset + 4)
            return int(value)
        offset += max(4, (length + 3) & ~3)
    raise OSError("no such attribute")
