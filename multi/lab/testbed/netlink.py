"""What the testbed changes in its network namespaces besides routes and rules: links, addresses and neighbours."""

from __future__ import annotations

from multi.linux.route_netlink import CREATE, REPLACE, Attributes, RouteNetlink, family_of, request

# include/uapi/linux/if.h, if_addr.h, neighbour.h, rtnetlink.h
IFF_UP = 1
IFA_F_NODAD, IFA_F_NOPREFIXROUTE = 0x02, 0x200
NUD_PERMANENT = 0x80
RTM_NEWLINK, RTM_DELLINK = 16, 17
RTM_NEWADDR, RTM_DELADDR = 20, 21
RTM_NEWNEIGH = 28


class HostNetlink(RouteNetlink):
    """Requests to the network namespace the thread is in when this is made. All raise OSError."""

    def create_veth(self, name: str, peer: str, peer_namespace: int) -> None:
        """A pair of virtual Ethernet interfaces; the other end is put into another namespace."""
        other = nested(IFLA_IFNAME=peer, IFLA_NET_NS_FD=peer_namespace)
        pair = nested(IFLA_INFO_KIND="veth", IFLA_INFO_DATA=nested(VETH_INFO_PEER=other))
        body = _link(0, IFLA_IFNAME=name, IFLA_LINKINFO=pair)
        self.exchange(RTM_NEWLINK, body, CREATE)

    def delete_link(self, index: int) -> None:
        self.exchange(RTM_DELLINK, _link(index))

    def set_up(self, index: int, up: bool) -> None:
        self.exchange(RTM_NEWLINK, _link(index, flags=IFF_UP if up else 0, change=IFF_UP))

    def configure_link(self, index: int, *, mac: str, mtu: int, queue: int) -> None:
        self.exchange(RTM_NEWLINK, _link(index, IFLA_ADDRESS=mac, IFLA_MTU=mtu, IFLA_TXQLEN=queue))

    def limit_offload(self, index: int, segments: int) -> None:
        """At most so many packets of a connection leave this interface in one piece."""
        self.exchange(RTM_NEWLINK, _link(index, IFLA_GSO_MAX_SEGS=segments))

    def add_address(self, index: int, address: str, prefix: int, *, detect_duplicates: bool) -> None:
        """Without the route to its network, which a caller makes as it wants it."""
        flags = IFA_F_NOPREFIXROUTE | (0 if detect_duplicates else IFA_F_NODAD)
        self.exchange(RTM_NEWADDR, _address(index, address, prefix, flags), REPLACE)

    def delete_address(self, index: int, address: str, prefix: int) -> None:
        self.exchange(RTM_DELADDR, _address(index, address, prefix, 0))

    def add_neighbour(self, index: int, address: str, mac: str) -> None:
        """For good, so that nothing has to be asked and a silent link does not answer "no route to host"."""
        header = {"family": family_of(address), "ifindex": index, "state": NUD_PERMANENT}
        self.exchange(RTM_NEWNEIGH, request("ndmsg", header, {"NDA_DST": address, "NDA_LLADDR": mac}), REPLACE)


def _link(index: int, *, flags: int = 0, change: int = 0, **attributes: object) -> bytes:
    return request("ifinfmsg", {"index": index, "flags": flags, "change": change}, attributes)


def _address(index: int, address: str, prefix: int, flags: int) -> bytes:
    header = {"family": family_of(address), "prefixlen": prefix, "index": index}
    return request("ifaddrmsg", header, {"IFA_LOCAL": address, "IFA_ADDRESS": address, "IFA_FLAGS": flags})


def nested(**attributes: object) -> Attributes:
    return {"attrs": list(attributes.items())}
