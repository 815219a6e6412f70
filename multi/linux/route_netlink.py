"""Changes to the routes and rules of a network namespace, over rtnetlink.

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

# include/uapi/linux/rtnetlink.h, fib_rules.h
RT_TABLE_MAIN = 254
RTPROT_STATIC, RTN_UNICAST, SCOPE_UNIVERSE, SCOPE_LINK = 4, 1, 0, 253
RTNH_F_ONLINK = 4
FR_ACT_TO_TBL = 1
CREATE = netlink.NLM_F_CREATE | netlink.NLM_F_EXCL
REPLACE = netlink.NLM_F_CREATE | netlink.NLM_F_REPLACE

Attributes = Mapping[str, object]
"""Name of an attribute -> value, as pyroute2 wants it. Those that are empty are left out."""


class RouteNetlink(NetlinkSocket):
    """Requests to the network namespace the thread is in when this is made. All raise OSError."""

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


def _route(
    index: int,
    network: str,
    *,
    gateway: str = "",
    table: int = RT_TABLE_MAIN,
    protocol: int = RTPROT_STATIC,
    on_link: bool = False,
    **further: object,
) -> bytes:
    """`on_link`: the gateway is a neighbour in no subnet; `further`: attributes by pyroute2's names."""
    parsed = ip_network(network)
    header = {
        "family": family_of(network),
        "dst_len": parsed.prefixlen,
        "proto": protocol,
        # IPv6 has no scopes; for IPv4 a route without gateway is a link's.
        "scope": SCOPE_UNIVERSE if gateway or parsed.version == 6 else SCOPE_LINK,
        "type": RTN_UNICAST,
        "flags": RTNH_F_ONLINK if on_link else 0,
    }
    destination = str(parsed.network_address) if parsed.prefixlen else ""
    attributes = {"RTA_DST": destination, "RTA_OIF": index, "RTA_TABLE": table, "RTA_GATEWAY": gateway}
    return request("rtmsg", header, {**attributes, **further})


def _rule(source: str, table: int, priority: int, protocol: int) -> bytes:
    header = {"family": family_of(source), "src_len": ip_address(source).max_prefixlen, "action": FR_ACT_TO_TBL}
    attributes = {"FRA_SRC": source, "FRA_TABLE": table, "FRA_PRIORITY": priority or table, "FRA_PROTOCOL": protocol}
    return request("fibmsg", header, attributes)


def request(kind: str, header: Mapping[str, int], attributes: Attributes) -> bytes:
    """A message of pyroute2's without the netlink header."""
    try:
        message = getattr(import_module(f"pyroute2.netlink.rtnl.{kind}"), kind)()
    except ImportError as error:
        raise OSError(errno.ENOPKG, "pyroute2 is not installed") from error
    message.update(header)
    message["attrs"] = [(name, value) for name, value in attributes.items() if value]
    message.encode()
    return bytes(message.data[16:])


def family_of(literal: str) -> int:
    return int(socket.AF_INET6 if ":" in literal else socket.AF_INET)
