"""The MPTCP connections of a network namespace, whoever holds them, as the kernel lists them (`ss -M`)."""

from __future__ import annotations

import struct
from functools import partial
from ipaddress import ip_address
from socket import AF_INET, AF_INET6

from multi.discovery.netlink import NetlinkSocket, open_netlink, u32
from multi.linux.mptcp_pm import IPPROTO_MPTCP

_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY = 4, 20  # include/uapi/linux/netlink.h, sock_diag.h
_REQ_PROTOCOL = 3  # INET_DIAG_REQ_PROTOCOL: the number does not fit the field for it
_ALL_BUT = (1 << 32) - 1 - sum(1 << state for state in (6, 7, 10))  # TIME_WAIT, CLOSE, LISTEN: tcp_states.h
# include/uapi/linux/inet_diag.h
_REQUEST = struct.Struct("=BBBxI48x")  # inet_diag_req_v2: family, protocol, extensions, states, any addresses
_FOUND = struct.Struct("=B7x16s44xI")  # inet_diag_msg: family, local address @8, inode @68


class MptcpSockets(NetlinkSocket):
    """Asks the network namespace it was made in; needs no privilege."""

    def __init__(self) -> None:
        super().__init__(partial(open_netlink, _NETLINK_SOCK_DIAG))

    def begun_at(self, address: str) -> bool:
        """Whether a program holds a connection that began there. False where the kernel does not tell."""
        wanted = ip_address(address.partition("%")[0])
        for family in (AF_INET, AF_INET6):
            request = _REQUEST.pack(family, 0, 0, _ALL_BUT) + u32(_REQ_PROTOCOL, IPPROTO_MPTCP)
            try:
                answers = self.dump(_SOCK_DIAG_BY_FAMILY, request)
            except OSError:
                return False
            if any(_local_address(answer) == wanted for answer in answers):
                return True
        return False


def _local_address(answer: bytes) -> object:
    """None for what no program holds any more, and what cannot be read."""
    if len(answer) < _FOUND.size:
        return None
    family, packed, inode = _FOUND.unpack_from(answer)
    if not inode:
        return None
    found = ip_address(packed[:4] if family == AF_INET else packed)
    return getattr(found, "ipv4_mapped", None) or found
