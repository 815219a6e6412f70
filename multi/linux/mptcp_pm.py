"""The host's MPTCP path manager: which subflows the kernel makes, and whether this process may have a say.

Two kinds exist (`net.mptcp.path_manager`, before Linux 6.15 `net.mptcp.pm_type`). The *kernel's* follows endpoints,
addresses that every MPTCP connection of the host makes a subflow from, up to a limit. Under a *userspace* one the
kernel makes nothing; who has CAP_NET_ADMIN asks for single subflows of single connections. Here are the requests
(generic netlink family `mptcp_pm`, include/uapi/linux/mptcp_pm.h) and the reason where none of it is possible.
Keeping endpoints apart from those of others is done in `multi.linux.mptcp_endpoints`.
"""

from __future__ import annotations

import errno
import socket
import struct
import sys
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

from multi.discovery import interfaces
from multi.discovery.netlink import NESTED, attribute, attributes, u32
from multi.linux.genetlink import GenericNetlink
from multi.types import Candidate, Family, Source

MAX_SUBFLOWS = 8  # the kernel's own limit on subflows besides the first one
SYSCTL = Path("/proc/sys/net/mptcp")
KERNEL, USERSPACE = "kernel", "userspace"
EVENTS = "mptcp_pm_events"
FLAG_SIGNAL, FLAG_SUBFLOW, FLAG_BACKUP = 1, 2, 4

_IPPROTO_MPTCP = 262
_ADD_ADDR, _DEL_ADDR, _GET_ADDR, _SET_LIMITS, _GET_LIMITS = 1, 2, 3, 5, 6
_REMOVE, _SUBFLOW_CREATE, _SUBFLOW_DESTROY = 9, 10, 11
_ADDR, _RCV_ADD_ADDRS, _SUBFLOWS, _TOKEN, _LOC_ID, _ADDR_REMOTE = 1, 2, 3, 4, 5, 6
_FAMILY, _ID, _ADDR4, _ADDR6, _PORT, _FLAGS, _INDEX = 1, 2, 3, 4, 5, 6, 7


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An address the kernel's path manager knows; `index` 0 = no interface is named."""

    address: str
    index: int
    id: int
    flags: int

    @property
    def makes_subflows(self) -> bool:
        return bool(self.flags & FLAG_SUBFLOW)


@dataclass(frozen=True, slots=True)
class MptcpLimits:
    """Of every connection of the host."""

    subflows: int
    """Besides the first, made or accepted."""
    add_addr_accepted: int


class SubflowName(NamedTuple):
    """The addresses and ports of a subflow, as this host sees them."""

    local: str
    local_port: int
    remote: str
    remote_port: int


@dataclass(frozen=True, slots=True)
class MptcpAddress:
    """Where a subflow would leave from now."""

    index: int
    address: str


class MptcpPathManager(GenericNetlink):
    """Requests to the path manager of the network namespace it is made in. All raise OSError.

    Reading needs no privilege; the rest needs CAP_NET_ADMIN and fails with EPERM. Takes well under a
    millisecond each, except for adding and removing endpoints, which wait a few for the kernel's readers.
    """

    def __init__(self) -> None:
        super().__init__("mptcp_pm")

    def permitted(self) -> bool:
        """Whether this process may change anything. The kernel says so before it looks at a request."""
        try:
            self.request(_ADD_ADDR)
        except OSError as error:
            return error.errno not in (errno.EPERM, errno.EACCES)
        return True

    def endpoints(self) -> tuple[Endpoint, ...]:
        return tuple(e for answer in self.request(_GET_ADDR, dump=True) if (e := parse_endpoint(answer)))

    def add_endpoint(self, address: str, index: int, flags: int = FLAG_SUBFLOW) -> None:
        """EEXIST: it is there already."""
        self.request(_ADD_ADDR, _address(_ADDR, address, index=index, flags=flags))

    def remove_endpoint(self, endpoint: Endpoint) -> None:
        """Closes the subflows from there, of all connections."""
        self.request(_DEL_ADDR, _address(_ADDR, endpoint.address, id=endpoint.id))

    def limits(self) -> MptcpLimits:
        answers = self.request(_GET_LIMITS)
        found = attributes(answers[0]) if answers else {}
        return MptcpLimits(_unsigned(found.get(_SUBFLOWS)), _unsigned(found.get(_RCV_ADD_ADDRS)))

    def set_limits(self, limits: MptcpLimits) -> None:
        body = u32(_RCV_ADD_ADDRS, limits.add_addr_accepted) + u32(_SUBFLOWS, limits.subflows)
        self.request(_SET_LIMITS, body)

    def raise_limits(self, subflows: int) -> MptcpLimits | None:
        """Allow at least so many; the limits before, None if nothing had to change."""
        before, wanted = self.limits(), min(subflows, MAX_SUBFLOWS)
        if before.subflows >= wanted:
            return None
        self.set_limits(MptcpLimits(wanted, before.add_addr_accepted))
        return before

    def create_subflow(self, token: int, local: MptcpAddress, id: int, remote: str, port: int) -> None:
        """One more for a connection under a userspace path manager; `id` names the local address to the peer.

        ENOTCONN: the peer has not acknowledged data yet; ESRCH: no such connection. Does not wait for the peer.
        """
        body = u32(_TOKEN, token) + _address(_ADDR, local.address, id=id, index=local.index)
        self.request(_SUBFLOW_CREATE, body + _address(_ADDR_REMOTE, remote, port=port))

    def destroy_subflow(self, token: int, name: SubflowName) -> None:
        body = u32(_TOKEN, token) + _address(_ADDR, name.local, port=name.local_port)
        self.request(_SUBFLOW_DESTROY, body + _address(_ADDR_REMOTE, name.remote, port=name.remote_port))

    def withdraw_address(self, token: int, id: int) -> None:
        """Have the peer close its ends of the subflows from a local address (RM_ADDR, RFC 8684 section 3.4.2).

        Without that, ends that no longer reach us count against the peer's limit until it gives up on them.
        """
        self.request(_REMOVE, u32(_TOKEN, token) + attribute(_LOC_ID, bytes((id,))))

    def accept_subflows(self) -> None:
        """Under a userspace path manager the kernel takes a peer's subflows only while somebody hears its events."""
        self.join_group(EVENTS)


def parse_endpoint(answer: bytes) -> Endpoint | None:
    """None for what is no complete endpoint."""
    facts = attributes(attributes(answer).get(_ADDR, b""))
    packed = facts.get(_ADDR4) or facts.get(_ADDR6) or b""
    if len(packed) not in (4, 16):
        return None
    return Endpoint(
        str(ip_address(packed)), _unsigned(facts.get(_INDEX)), _unsigned(facts.get(_ID)), _unsigned(facts.get(_FLAGS))
    )


def _address(kind: int, address: str, *, id: int = 0, port: int = 0, flags: int = 0, index: int = 0) -> bytes:
    parsed = ip_address(address.partition("%")[0])
    six = parsed.version == 6
    body = _u16(_FAMILY, socket.AF_INET6 if six else socket.AF_INET)
    body += attribute(_ADDR6 if six else _ADDR4, parsed.packed)
    if id:
        body += attribute(_ID, bytes((id,)))
    if port:
        body += _u16(_PORT, port)
    if flags:
        body += u32(_FLAGS, flags)
    if index:
        body += u32(_INDEX, index)
    return attribute(NESTED | kind, body)


def _u16(kind: int, value: int) -> bytes:
    return attribute(kind, struct.pack("=H", value))


def _unsigned(value: bytes | None) -> int:
    return int.from_bytes(value, sys.byteorder) if value else 0


def path_manager_type() -> str:
    """`kernel`, `userspace` or another name; empty where there is no MPTCP."""
    name = _setting("path_manager")
    if name:
        return name
    return {"0": KERNEL, "1": USERSPACE}.get(_setting("pm_type"), KERNEL if SYSCTL.is_dir() else "")


def _setting(name: str) -> str:
    try:
        return (SYSCTL / name).read_text().strip()
    except OSError:
        return ""


def address_of(source: Source, family: Family) -> MptcpAddress | str:
    """Where a subflow of this source would leave from now, or why it cannot: `wlan0: no carrier`.

    The address wanted if it is there, else the first one. Takes some microseconds while no network has changed: it is
    asked several times a second for every subflow. Raises OSError in a shortage of descriptors or memory.
    """
    name = source.interface
    found = next((one for one in interfaces(anew=False) if one.name == name), None)
    if found is None:
        return f"{name}: no such interface"
    if not found.up:
        return f"{name}: down"
    if not found.carrier:
        return f"{name}: no carrier"
    mine = [a for a in found.addresses if a.family is family]
    if any(a.address == source.address and a.reason in ("", "deprecated") for a in mine):
        return MptcpAddress(found.index, source.address)
    usable = next((a.address for a in mine if a.usable), "")
    return MptcpAddress(found.index, usable) if usable else f"{name}: no {family.value} address"


def why_no_subflows(candidate: Candidate | None = None) -> str:
    """Why an MPTCP connection cannot have further subflows on this host now; empty = it can.

    With a candidate: over its `more_interfaces`; an administrator's endpoints for all of them will do. Takes a
    fraction of a millisecond.
    """
    reason = _why_no_mptcp()
    if reason:
        return reason
    kind = path_manager_type()
    try:
        with MptcpPathManager() as manager:
            if kind not in (KERNEL, USERSPACE):
                return f"the MPTCP path manager of this host is {kind!r}, which takes no requests from `multi`"
            if manager.permitted():
                return ""
            if kind == USERSPACE:
                return (
                    "the MPTCP path manager of this host is in user space (net.mptcp.path_manager), "
                    "and asking for subflows there needs CAP_NET_ADMIN"
                )
            return _what_is_missing(manager, candidate)
    except OSError as error:
        if error.errno in (errno.ENOENT, None):
            return "this kernel has no MPTCP path manager to ask (generic netlink family mptcp_pm)"
        return f"the MPTCP path manager cannot be asked: {(error.strerror or str(error)).lower()}"


def _why_no_mptcp() -> str:
    if sys.platform != "linux":
        return "MPTCP over several interfaces needs Linux"
    try:
        socket.socket(socket.AF_INET, socket.SOCK_STREAM, _IPPROTO_MPTCP).close()
    except OSError as error:
        if _setting("enabled") == "0":
            return "MPTCP is switched off on this host (net.mptcp.enabled is 0)"
        if error.errno in (errno.EPROTONOSUPPORT, errno.EINVAL, errno.ESOCKTNOSUPPORT):
            return "this kernel has no MPTCP (Linux 5.6 or later with CONFIG_MPTCP is needed)"
        return f"MPTCP sockets cannot be made: {error.strerror}"
    return ""


def _what_is_missing(manager: MptcpPathManager, candidate: Candidate | None) -> str:
    """For a process that may only rely on what the administrator has set up for the kernel's path manager."""
    endpoints = manager.endpoints()
    if candidate is None and not any(endpoint.makes_subflows for endpoint in endpoints):
        return "the kernel's MPTCP path manager has no endpoints, and adding some needs CAP_NET_ADMIN"
    sources = candidate.more_sources if candidate is not None else ()
    for source in sources:
        assert candidate is not None
        address = address_of(source, candidate.family)
        if isinstance(address, str):
            return address
        if not any(fits(endpoint, address) for endpoint in endpoints):
            return (
                f"the kernel's MPTCP path manager has no endpoint for {source.interface}, and adding one needs "
                f"CAP_NET_ADMIN (ip mptcp endpoint add {address.address} dev {source.interface} subflow)"
            )
    limit, needed = manager.limits().subflows, max(1, len(sources))
    if limit < needed:
        return (
            f"this host allows MPTCP connections {limit} further subflows, and raising the limit needs "
            f"CAP_NET_ADMIN (ip mptcp limits set subflows {needed})"
        )
    return ""


def fits(endpoint: Endpoint, place: MptcpAddress) -> bool:
    """Whether the kernel makes a subflow from this place because of this endpoint."""
    return endpoint.makes_subflows and endpoint.address == place.address and endpoint.index in (0, place.index)
