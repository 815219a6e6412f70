"""Builds the two hosts and the ends of the links: namespaces, interfaces, addresses, routes. Runs in the relay."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from multi.lab.testbed.devices import Device, Namespace, TapDevice, VethDevice, tap_allowed
from multi.lab.testbed.errors import TestbedNotAllowed
from multi.lab.testbed.namespaces import enter_user_namespace, inside, new_network_namespace
from multi.lab.testbed.netlink import HostNetlink, nested
from multi.lab.testbed.specs import HOSTS, SERVER_ADDRESSES, HostName, LinkAddresses, LinkSpec, Way, link_addresses
from multi.linux.mptcp_pm import MAX_SUBFLOWS, MptcpPathManager

logger = logging.getLogger("multi.lab.testbed")

Backend = Literal["auto", "tap", "veth"]

SYSCTL = Path("/proc/sys/net")
FIRST_TABLE = 1000  # of the policy routes: link n has table and rule priority 1000 + n
FIRST_METRIC = 100  # of the default routes: an earlier link is preferred
QUEUE_PACKETS = 5000  # between kernel and relay; long, because the queue a link is said to have is in the relay
PIECE = 0.25e-3  # seconds that one piece of a connection may take to leave: serialization, queue and loss stay real
MAX_PIECE_PACKETS = 8  # the price is paid by the relay's processor time; above this it does not get much better
LOOPBACK = 1  # interface index

SETTINGS = {
    "ipv4/tcp_no_metrics_save": "1",  # a run must not know what an earlier one has learnt
    "ipv4/conf/all/rp_filter": "0",
    "ipv4/conf/default/rp_filter": "0",
    # An address answers on its own interface only: a host without a route must not get through by asking around.
    "ipv4/conf/all/arp_ignore": "1",
    "ipv4/ping_group_range": "0 0",
    "ipv6/conf/all/accept_ra": "0",
    "ipv6/conf/default/accept_ra": "0",
    "ipv6/conf/default/router_solicitations": "0",
    "mptcp/enabled": "1",
}
NO_DUPLICATE_DETECTION = {"ipv6/conf/all/accept_dad": "0", "ipv6/conf/default/accept_dad": "0"}


@dataclass(frozen=True, slots=True)
class Build:
    """What to make; the fields are arguments of `Testbed`, and `owner` is the process that asks for it."""

    links: tuple[LinkSpec, ...]
    backend: Backend
    congestion: Mapping[HostName, str]
    detect_duplicates: bool
    mptcp: bool
    seed: int
    owner: int


class Hosts:
    """The client, the server and the relay's own namespace, where the far ends of veth pairs are."""

    def __init__(self, build: Build) -> None:
        """Raises TestbedError; what has been made by then ends with the process."""
        self.detect_duplicates = build.detect_duplicates
        self.user_namespace, self.rootless = -1, False
        relay = self._first_namespace()
        if self.rootless:
            self.user_namespace = os.open("/proc/self/ns/user", os.O_RDONLY | os.O_CLOEXEC)
        _write("ipv6/conf/default/disable_ipv6", "1")  # the far ends must be silent
        self._relay = Namespace(relay, HostNetlink())
        self.backend = self._choose(build.backend)
        self.of: dict[HostName, Namespace] = {host: self._make_host(build.congestion.get(host, "")) for host in HOSTS}
        self.mptcp = (SYSCTL / "mptcp").exists()
        self.subflows = self._manage_subflows() if build.mptcp else None
        """Of the client's kernel, if it is to make MPTCP subflows over all links."""
        for version, address in SERVER_ADDRESSES.items():
            if version == 4 or _has_ipv6():
                prefix = 32 if version == 4 else 128
                self.of["server"].netlink.add_address(LOOPBACK, address, prefix, detect_duplicates=False)

    def device(self, host: HostName, name: str, far_name: str) -> Device:
        if self.backend == "tap":
            return TapDevice(self.of[host], name)
        return VethDevice(self.of[host], self._relay, name, far_name)

    def _first_namespace(self) -> int:
        try:
            return new_network_namespace()
        except OSError as error:
            if error.errno != errno.EPERM:
                raise TestbedNotAllowed(f"this system makes no network namespaces: {error.strerror}") from None
        enter_user_namespace()
        self.rootless = True
        try:
            return new_network_namespace()
        except OSError as error:
            raise TestbedNotAllowed(f"no network namespaces inside a user namespace: {error.strerror}") from None

    def _choose(self, wanted: Backend) -> Backend:
        reason = "" if wanted == "veth" else tap_allowed()
        if wanted == "tap" and reason:
            raise TestbedNotAllowed(f"TAP devices cannot be opened: {reason}")
        return "veth" if wanted == "veth" or reason else "tap"

    def _make_host(self, congestion: str) -> Namespace:
        with inside(self._relay.descriptor):  # leave the new namespace afterwards
            descriptor = new_network_namespace()
            settings = SETTINGS | ({} if self.detect_duplicates else NO_DUPLICATE_DETECTION)
            for name, value in settings.items():
                if not _write(name, value):
                    logger.debug("cannot set %s", name)
            # Outside the first namespace only "non-restricted" ones may be made the default; routes may name any.
            on_routes = congestion if congestion and not _set_congestion(congestion) else ""
            netlink = HostNetlink()
        netlink.set_up(LOOPBACK, True)
        return Namespace(descriptor, netlink, on_routes)

    def _manage_subflows(self) -> MptcpPathManager:
        if not self.mptcp:
            raise TestbedNotAllowed("this kernel has no MPTCP (CONFIG_MPTCP, Linux 5.6 or later)")
        for host in ("server", "client"):
            with inside(self.of[host].descriptor):
                manager = MptcpPathManager()
            manager.set_subflow_limit(MAX_SUBFLOWS)
        return manager


class LinkEnds:
    """The client's and the server's interface of one link."""

    def __init__(self, hosts: Hosts, number: int, spec: LinkSpec) -> None:
        if spec.ipv6 and not _has_ipv6():
            raise TestbedNotAllowed(f"{spec.name}: this kernel has no IPv6")
        self._hosts, self._number, self.spec = hosts, number, spec
        self._networks = link_addresses(number, spec)
        self._present = {addresses.version: True for addresses in self._networks}
        self.server: Device = hosts.device("server", f"s-{spec.name}", f"s{number}")
        self._configure("server", self.server)
        for addresses in self._networks:
            self._add_address("server", self.server, addresses)
        self.client: Device | None = None
        self.appear()

    def appear(self) -> None:
        """Make the client's interface, with the addresses it is to have."""
        self.client = self._hosts.device("client", self.spec.interface, f"c{self._number}")
        self._configure("client", self.client)
        for addresses in self._networks:
            if self._present[addresses.version]:
                self._add_address("client", self.client, addresses)

    def vanish(self) -> None:
        """Take the client's interface away, as when a modem is pulled out."""
        if self.client is not None:
            for addresses in self._networks:
                self._delete_rule(addresses)
            self.client.close()
            self.client = None

    def set_addresses(self, versions: tuple[int, ...], on: bool) -> None:
        """Give or take the client's addresses with the routes that need them."""
        for addresses in self._networks:
            if addresses.version in versions and self._present[addresses.version] != on:
                self._present[addresses.version] = on
                if self.client is not None and on:
                    self._add_address("client", self.client, addresses)
                elif self.client is not None:
                    self._delete_address(self.client, addresses)

    def limit_pieces(self, way: Way) -> None:
        """Let the kernel hand over connections in pieces that suit the figures: single packets where some get lost."""
        figures = self.spec.direction(way)
        packets = int(figures.bytes_per_second * PIECE / self.spec.mtu)
        packets = 1 if figures.loss else max(1, min(packets, MAX_PIECE_PACKETS))
        host: HostName = "client" if way == "up" else "server"
        device = self.client if way == "up" else self.server
        if device is not None:
            self._hosts.of[host].netlink.limit_offload(device.index, packets)

    def _configure(self, host: HostName, device: Device) -> None:
        netlink = self._hosts.of[host].netlink
        netlink.configure_link(device.index, mac=self._mac(host), mtu=self.spec.mtu, queue=QUEUE_PACKETS)
        self.limit_pieces("up" if host == "client" else "down")
        netlink.set_up(device.index, True)
        for addresses in self._networks:
            other: HostName = "server" if host == "client" else "client"
            netlink.add_neighbour(device.index, addresses.of(other), self._mac(other))

    def _mac(self, host: HostName) -> str:
        return f"02:77:00:00:{self._number:02x}:{1 if host == 'server' else 2:02x}"

    def _add_address(self, host: HostName, device: Device, addresses: LinkAddresses) -> None:
        netlink, congestion = self._hosts.of[host].netlink, self._hosts.of[host].congestion
        metrics = nested(RTAX_CC_ALGO=congestion) if congestion else {}
        own = addresses.of(host)
        netlink.add_address(device.index, own, addresses.prefix, detect_duplicates=self._hosts.detect_duplicates)
        if host == "server":
            source = SERVER_ADDRESSES[addresses.version]  # what it calls itself, whatever the link
        else:
            # IPv6 takes no source that is still being checked for duplicates.
            source = "" if addresses.version == 6 and self._hosts.detect_duplicates else own
        for network, options in self._routes(host, addresses):
            netlink.add_route(device.index, network, RTA_PREFSRC=source, RTA_METRICS=metrics, **options)
        if host == "client":
            netlink.add_rule(own, FIRST_TABLE + self._number)
            if self._hosts.subflows is not None:
                # It keeps what it knows of an address that has gone for a while.
                with contextlib.suppress(FileExistsError):
                    self._hosts.subflows.add_endpoint(own, device.index)

    def _delete_address(self, device: Device, addresses: LinkAddresses) -> None:
        netlink = self._hosts.of["client"].netlink
        self._delete_rule(addresses)
        for network, options in reversed(self._routes("client", addresses)):
            netlink.delete_route(device.index, network, **options)
        netlink.delete_address(device.index, addresses.client, addresses.prefix)

    def _routes(self, host: HostName, addresses: LinkAddresses) -> list[tuple[str, dict[str, Any]]]:
        """Networks, and the options of the routes to them, in the order in which they are made."""
        direct: tuple[str, dict[str, Any]] = addresses.network, {}
        if host == "server":
            return [direct]
        table = FIRST_TABLE + self._number
        anywhere = "0.0.0.0/0" if addresses.version == 4 else "::/0"
        # In the table for sockets bound to the address; in the main one for those bound to the device, and others.
        return [
            direct,
            (anywhere, {"gateway": addresses.server, "table": table}),
            (anywhere, {"gateway": addresses.server, "RTA_PRIORITY": FIRST_METRIC + self._number}),
            (addresses.network, {"table": table}),
        ]

    def _delete_rule(self, addresses: LinkAddresses) -> None:
        self._hosts.of["client"].netlink.delete_rule(addresses.client, FIRST_TABLE + self._number)


def _has_ipv6() -> bool:
    return (SYSCTL / "ipv6").exists()


def _write(name: str, value: str) -> bool:
    """Set a sysctl of the network namespace this thread is in."""
    with contextlib.suppress(OSError):
        (SYSCTL / name).write_text(value)
        return True
    return False


def _set_congestion(name: str) -> bool:
    """Make it the default of the namespace this thread is in; False where that is not allowed."""
    available = (SYSCTL / "ipv4/tcp_available_congestion_control").read_text().split()
    if name not in available:
        raise TestbedNotAllowed(f"no congestion control {name!r} here; available: {', '.join(available)}")
    return _write("ipv4/tcp_congestion_control", name)
