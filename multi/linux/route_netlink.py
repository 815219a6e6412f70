"""Changes to links, addresses, routes, rules and neighbours of a network namespace, over rtnetlink.

pyroute2 builds the messages; they go over the socket of our own that all readers use. pyroute2's sockets bring an event
loop each: the synchronous ones fail in a thread that runs a loop already, both kinds fail in every thread once uvloop
is the policy (it opens no sockets of this family), and their errors are no OSError. Importing pyroute2 takes 0.15 s, so
only a process that changes something does, and then in the thread that does.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Mapping
from importlib import import_module
from ipaddress import ip_address, ip_network
from typing import Any

from multi.discovery import netlink
from multi.discovery.netlink import NetlinkSocket

# include/uapi/linux/rtnetlink.h, if.h, if_addr.h, neighbour.h, fib_rules.h
RT_TABLE_MAIN = 254
RTPROT_STATIC, RTN_UNICAST, SCOPE_UNIVERSE, SCOPE_LINK = 4, 1, 0, 253
RTNH_F_ONLINK = 4
IFF_UP = 1
IFA_F_NODAD, IFA_F_NOPREFIXROUTE = 0x02, 0x200
NUD_PERMANENT = 0x80
FR_ACT_TO_TBL = 1
CREATE = netlink.NLM_F_CREATE | netlink.NLM_F_EXCL
REPLACE = netlink.NLM_F_CREATE | netlink.NLM_F_REPLACE

Attributes = Mapping[str, object]
"""Name of an attribute -> value, as pyroute2 wants it. Those that are empty are left out."""


class RouteNetlink(NetlinkSocket):
    """Requests to the network namespace the thread is in when this is made. All raise OSError."""

    def create_veth(self, name: str, peer: str, peer_namespace: int) -> None:
        """A pair of virtual Ethernet interfaces; the other end is put into another namespace."""
        other = _nested(IFLA_IFNAME=peer, IFLA_NET_NS_FD=peer_namespace)
        pair = _nested(IFLA_INFO_KIND="veth", IFLA_INFO_DATA=_nested(VETH_INFO_PEER=other))
        body = _link(0, IFLA_IFNAME=name, IFLA_LINKINFO=pair)
        self.exchange(netlink.RTM_NEWLINK, body, CREATE)

    def delete_link(self, index: int) -> None:
        self.exchange(netlink.RTM_DELLINK, _link(index))

    def set_up(self, index: int, up: bool) -> None:
        self.exchange(netlink.RTM_NEWLINK, _link(index, flags=IFF_UP if up else 0, change=IFF_UP))

    def configure_link(self, index: int, *, mac: str, mtu: int, queue: int) -> None:
        self.exchange(netlink.RTM_NEWLINK, _link(index, IFLA_ADDRESS=mac, IFLA_MTU=mtu, IFLA_TXQLEN=queue))

    def limit_offload(self, index: int, segments: int) -> None:
        """At most so many packets of a connection leave this interface in one piece."""
        self.exchange(netlink.RTM_NEWLINK, _link(index, IFLA_GSO_MAX_SEGS=segments))

    def add_address(self, index: int, address: str, prefix: int, *, detect_duplicates: bool) -> None:
        """Without the route to its network, which a caller makes as it wants it."""
        flags = IFA_F_NOPREFIXROUTE | (0 if detect_duplicates else IFA_F_NODAD)
        self.exchange(netlink.RTM_NEWADDR, _address(index, address, prefix, flags), REPLACE)

    def delete_address(self, index: int, address: str, prefix: int) -> None:
        self.exchange(netlink.RTM_DELADDR, _address(index, address, prefix, 0))

    def add_route(self, index: int, network: str, **options: Any) -> None:
        """A route to the same network in the same table is replaced. The options are those of `_route`."""
        self.exchange(netlink.RTM_NEWROUTE, _route(index, network, **options), REPLACE)

    def delete_route(self, index: int, network: str, **options: Any) -> None:
        """A route that is not there is no error."""
        self._unless((errno.ESRCH, errno.ENODEV), netlink.RTM_DELROUTE, _route(index, network, **options))

    def add_rule(self, source: str, table: int, priority: int = 0, protocol: int = 0) -> None:
        """Packets from this address are routed by this table; its number is the priority if there is none."""
        self._unless((errno.EEXIST,), netlink.RTM_NEWRULE, _rule(source, table, priority, protocol), CREATE)

    def delete_rule(self, source: str, table: int, priority: int = 0, protocol: int = 0) -> None:
        """A rule that is not there is no error."""
        self._unless((errno.ENOENT, errno.ESRCH), netlink.RTM_DELRULE, _rule(source, table, priority, protocol))

    def _unless(self, done: tuple[int, ...], kind: int, body: bytes, flags: int = 0) -> None:
        """Have it done, unless an error of these says that it is so already."""
        try:
            self.exchange(kind, body, flags)
        except OSError as error:
            if error.errno not in done:
                raise

    def add_neighbour(self, index: int, address: str, mac: str) -> None:
        """For good, so that nothing has to be asked and a silent link does not answer "no route to host"."""
        header = {"family": _family(address), "ifindex": index, "state": NUD_PERMANENT}
        self.exchange(netlink.RTM_NEWNEIGH, _body("ndmsg", header, {"NDA_DST": address, "NDA_LLADDR": mac}), REPLACE)


def _link(index: int, *, flags: int = 0, change: int = 0, **attributes: object) -> bytes:
    return _body("ifinfmsg", {"index": index, "flags": flags, "change": change}, attributes)


def _address(index: int, address: str, prefix: int, flags: int) -> bytes:
    header = {"family": _family(address), "prefixlen": prefix, "index": index}
    return _body("ifaddrmsg", header, {"IFA_LOCAL": address, "IFA_ADDRESS": address, "IFA_FLAGS": flags})


def _route(
    index: int,
    network: str,
    *,
    gateway: str = "",
    source: str = "",
    table: int = RT_TABLE_MAIN,
    metric: int = 0,
    congestion: str = "",
    protocol: int = RTPROT_STATIC,
    on_link: bool = False,
) -> bytes:
    """`source`: the address packets get that have none yet; `on_link`: the gateway is a neighbour in no subnet."""
    parsed = ip_network(network)
    header = {
        "family": _family(network),
        "dst_len": parsed.prefixlen,
        "proto": protocol,
        # IPv6 has no scopes; for IPv4 a route without gateway is a link's.
        "scope": SCOPE_UNIVERSE if gateway or parsed.version == 6 else SCOPE_LINK,
        "type": RTN_UNICAST,
        "flags": RTNH_F_ONLINK if on_link else 0,
    }
    attributes: Attributes = {
        "RTA_DST": str(parsed.network_address) if parsed.prefixlen else "",
        "RTA_OIF": index,
        "RTA_TABLE": table,
        "RTA_GATEWAY": gateway,
        "RTA_PRIORITY": metric,
        "RTA_PREFSRC": source,
        "RTA_METRICS": _nested(RTAX_CC_ALGO=congestion) if congestion else "",
    }
    return _body("rtmsg", header, attributes)


def _rule(source: str, table: int, priority: int, protocol: int) -> bytes:
    header = {"family": _family(source), "src_len": ip_address(source).max_prefixlen, "action": FR_ACT_TO_TBL}
    attributes: Attributes = {
        "FRA_SRC": source,
        "FRA_TABLE": table,
        "FRA_PRIORITY": priority or table,
        "FRA_PROTOCOL": protocol,
    }
    return _body("fibmsg", header, attributes)


def _body(kind: str, header: Mapping[str, int], attributes: Attributes) -> bytes:
    """A message of pyroute2's without the netlink header."""
    try:
        message = getattr(import_module(f"pyroute2.netlink.rtnl.{kind}"), kind)()
    except ImportError as error:
        raise OSError(errno.ENOPKG, "pyroute2 is not installed") from error
    message.update(header)
    message["attrs"] = [(name, value) for name, value in attributes.items() if value]
    message.encode()
    return bytes(message.data[16:])


def _nested(**attributes: object) -> Attributes:
    return {"attrs": list(attributes.items())}


def _family(literal: str) -> int:
    return int(socket.AF_INET6 if ":" in literal else socket.AF_INET)
