"""The few rtnetlink requests a testbed makes: links, addresses, routes, rules and neighbours.

Written by hand because a socket stays in the namespace it was made in, which is all a testbed needs, while libraries
bring event loops and threads of their own and commands like `ip` may not be installed.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from ipaddress import ip_address, ip_network

__all__ = ["RT_TABLE_MAIN", "RouteNetlink"]

# include/uapi/linux/netlink.h, rtnetlink.h, if_link.h, if_addr.h, neighbour.h, fib_rules.h, veth.h
NLMSG_ERROR = 2
NLM_F_REQUEST, NLM_F_ACK = 0x1, 0x4
NLM_F_REPLACE, NLM_F_EXCL, NLM_F_CREATE = 0x100, 0x200, 0x400
RTM_NEWLINK, RTM_DELLINK = 16, 17
RTM_NEWADDR, RTM_DELADDR = 20, 21
RTM_NEWROUTE, RTM_DELROUTE = 24, 25
RTM_NEWNEIGH = 28
RTM_NEWRULE, RTM_DELRULE = 32, 33
IFLA_ADDRESS, IFLA_IFNAME, IFLA_MTU, IFLA_TXQLEN, IFLA_LINKINFO = 1, 3, 4, 13, 18
IFLA_NET_NS_FD, IFLA_GSO_MAX_SEGS = 28, 40
IFLA_INFO_KIND, IFLA_INFO_DATA, VETH_INFO_PEER = 1, 2, 1
IFF_UP = 1
IFA_ADDRESS, IFA_LOCAL, IFA_FLAGS = 1, 2, 8
IFA_F_NODAD, IFA_F_NOPREFIXROUTE = 0x02, 0x200
RTA_DST, RTA_OIF, RTA_GATEWAY, RTA_PRIORITY, RTA_PREFSRC, RTA_METRICS, RTA_TABLE = 1, 4, 5, 6, 7, 8, 15
RTAX_CC_ALGO = 16
RTPROT_STATIC, RTN_UNICAST, SCOPE_UNIVERSE, SCOPE_LINK = 4, 1, 0, 253
FRA_SRC, FRA_PRIORITY, FRA_TABLE = 2, 6, 15
FR_ACT_TO_TBL = 1
NDA_DST, NDA_LLADDR, NUD_PERMANENT = 1, 2, 0x80
NESTED = 0x8000

RT_TABLE_MAIN = 254
RECEIVE_SIZE = 1 << 16
ANSWER_TIMEOUT = 2.0  # the kernel answers at once; never hang if it does not

_HEADER = struct.Struct("=IHHII")
_LINK = struct.Struct("=BxHiII")
_ADDRESS = struct.Struct("=BBBBI")
_ROUTE = struct.Struct("=BBBBBBBBI")
_NEIGHBOUR = struct.Struct("=BxxxiHBB")


class RouteNetlink:
    """Requests to one network namespace: the one the thread is in when this is made. All raise OSError."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
        self._socket.settimeout(ANSWER_TIMEOUT)
        self._socket.bind((0, 0))
        self._sequence = 0

    def close(self) -> None:
        self._socket.close()

    def create_veth(self, name: str, peer: str, peer_namespace: int) -> None:
        """A pair of virtual Ethernet interfaces; the other end is put into another namespace."""
        other = _LINK.pack(0, 0, 0, 0, 0) + _text(IFLA_IFNAME, peer) + _u32(IFLA_NET_NS_FD, peer_namespace)
        data = _attribute(NESTED | IFLA_INFO_DATA, _attribute(NESTED | VETH_INFO_PEER, other))
        information = _attribute(NESTED | IFLA_LINKINFO, _text(IFLA_INFO_KIND, "veth") + data)
        body = _LINK.pack(0, 0, 0, 0, 0) + _text(IFLA_IFNAME, name) + information
        self._request(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, body)

    def delete_link(self, index: int) -> None:
        self._request(RTM_DELLINK, 0, _LINK.pack(0, 0, index, 0, 0))

    def set_up(self, index: int, up: bool) -> None:
        self._request(RTM_NEWLINK, 0, _LINK.pack(0, 0, index, IFF_UP if up else 0, IFF_UP))

    def configure_link(self, index: int, *, mac: bytes, mtu: int, queue: int) -> None:
        attributes = _attribute(IFLA_ADDRESS, mac) + _u32(IFLA_MTU, mtu) + _u32(IFLA_TXQLEN, queue)
        self._request(RTM_NEWLINK, 0, _LINK.pack(0, 0, index, 0, 0) + attributes)

    def limit_offload(self, index: int, segments: int) -> None:
        """At most so many packets of a connection leave this interface in one piece."""
        self._request(RTM_NEWLINK, 0, _LINK.pack(0, 0, index, 0, 0) + _u32(IFLA_GSO_MAX_SEGS, segments))

    def add_address(self, index: int, address: str, prefix: int, *, detect_duplicates: bool) -> None:
        """Without the route to its network, which a caller makes as it wants it."""
        flags = IFA_F_NOPREFIXROUTE | (0 if detect_duplicates else IFA_F_NODAD)
        body = self._address(index, address, prefix) + _u32(IFA_FLAGS, flags)
        self._request(RTM_NEWADDR, NLM_F_CREATE | NLM_F_REPLACE, body)

    def delete_address(self, index: int, address: str, prefix: int) -> None:
        self._request(RTM_DELADDR, 0, self._address(index, address, prefix))

    def add_route(
        self,
        index: int,
        network: str,
        *,
        gateway: str = "",
        source: str = "",
        table: int = RT_TABLE_MAIN,
        metric: int = 0,
        congestion: str = "",
    ) -> None:
        body = self._route(index, network, gateway=gateway, table=table, metric=metric)
        if source:
            body += _attribute(RTA_PREFSRC, ip_address(source).packed)
        if congestion:
            body += _attribute(NESTED | RTA_METRICS, _text(RTAX_CC_ALGO, congestion))
        self._request(RTM_NEWROUTE, NLM_F_CREATE | NLM_F_REPLACE, body)

    def delete_route(
        self, index: int, network: str, *, gateway: str = "", table: int = RT_TABLE_MAIN, metric: int = 0
    ) -> None:
        """A route that is not there is no error."""
        with _absent(errno.ESRCH):
            self._request(RTM_DELROUTE, 0, self._route(index, network, gateway=gateway, table=table, metric=metric))

    def add_rule(self, source: str, table: int) -> None:
        with _absent(errno.EEXIST):
            self._request(RTM_NEWRULE, NLM_F_CREATE | NLM_F_EXCL, self._rule(source, table))

    def delete_rule(self, source: str, table: int) -> None:
        """A rule that is not there is no error."""
        with _absent(errno.ENOENT):
            self._request(RTM_DELRULE, 0, self._rule(source, table))

    def add_neighbour(self, index: int, address: str, mac: bytes) -> None:
        """For good, so that nothing has to be asked and a silent link does not answer "no route to host"."""
        parsed = ip_address(address)
        body = _NEIGHBOUR.pack(_family(parsed.version), index, NUD_PERMANENT, 0, 0)
        body += _attribute(NDA_DST, parsed.packed) + _attribute(NDA_LLADDR, mac)
        self._request(RTM_NEWNEIGH, NLM_F_CREATE | NLM_F_REPLACE, body)

    def _address(self, index: int, address: str, prefix: int) -> bytes:
        parsed = ip_address(address)
        header = _ADDRESS.pack(_family(parsed.version), prefix, 0, 0, index)
        return header + _attribute(IFA_LOCAL, parsed.packed) + _attribute(IFA_ADDRESS, parsed.packed)

    def _route(self, index: int, network: str, *, gateway: str, table: int, metric: int) -> bytes:
        parsed = ip_network(network)
        # IPv6 has no scopes; for IPv4 a route without gateway is a link's.
        scope = SCOPE_UNIVERSE if gateway or parsed.version == 6 else SCOPE_LINK
        family = _family(parsed.version)
        body = _ROUTE.pack(family, parsed.prefixlen, 0, 0, 0, RTPROT_STATIC, scope, RTN_UNICAST, 0)
        body += _attribute(RTA_DST, parsed.network_address.packed) + _u32(RTA_OIF, index) + _u32(RTA_TABLE, table)
        if gateway:
            body += _attribute(RTA_GATEWAY, ip_address(gateway).packed)
        return body + (_u32(RTA_PRIORITY, metric) if metric else b"")

    def _rule(self, source: str, table: int) -> bytes:
        parsed = ip_address(source)
        body = _ROUTE.pack(_family(parsed.version), 0, parsed.max_prefixlen, 0, 0, 0, 0, FR_ACT_TO_TBL, 0)
        return body + _attribute(FRA_SRC, parsed.packed) + _u32(FRA_TABLE, table) + _u32(FRA_PRIORITY, table)

    def _request(self, kind: int, flags: int, body: bytes) -> None:
        self._sequence += 1
        flags |= NLM_F_REQUEST | NLM_F_ACK
        self._socket.send(_HEADER.pack(_HEADER.size + len(body), kind, flags, self._sequence, 0) + body)
        while True:
            answer = self._socket.recv(RECEIVE_SIZE)
            _length, answered, _flags, sequence, _port = _HEADER.unpack_from(answer)
            if answered == NLMSG_ERROR and sequence == self._sequence:
                (code,) = struct.unpack_from("=i", answer, _HEADER.size)
                if code:
                    raise OSError(-code, f"netlink request {kind}: {os.strerror(-code).lower()}")
                return


class _absent:
    """Pass over one error number."""

    def __init__(self, code: int) -> None:
        self._code = code

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> bool:
        return isinstance(error, OSError) and error.errno == self._code


def _family(version: int) -> int:
    return int(socket.AF_INET6 if version == 6 else socket.AF_INET)


def _attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", len(value) + 4, kind) + value + bytes(-len(value) % 4)


def _text(kind: int, value: str) -> bytes:
    return _attribute(kind, value.encode() + b"\0")


def _u32(kind: int, value: int) -> bytes:
    return _attribute(kind, struct.pack("=I", value))
