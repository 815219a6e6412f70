"""The kernel's MPTCP path manager: its endpoints, its limit, and why there can be no further subflows.

*Endpoints* are addresses that every MPTCP connection of the host makes a subflow from, up to a limit. Here are the
requests (generic netlink family `mptcp_pm`, include/uapi/linux/mptcp_pm.h) and the reason where none of it is possible.
Keeping endpoints apart from those of others is done in `multi.linux.mptcp_endpoints`. A path manager in user space
(`net.mptcp.path_manager`, before Linux 6.15 `net.mptcp.pm_type`) belongs to a program of the host and is left to it.
"""

from __future__ import annotations

import errno
import socket
import struct
import sys
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from multi.discovery import interfaces
from multi.discovery.netlink import NESTED, attribute, attributes, u32
from multi.linux.genetlink import GenericNetlink
from multi.types import Candidate, Family, Source

NO_MPTCP = "this kernel has no MPTCP (Linux 5.6 or later with net.mptcp.enabled=1 is needed)"
IPPROTO_MPTCP = 262
MAX_SUBFLOWS = 8  # the kernel's own limit on subflows besides the first one
SYSCTL = Path("/proc/sys/net/mptcp")
KERNEL = "kernel"
FLAG_SUBFLOW = 2  # of an endpoint: subflows are made from there

_UNSUPPORTED = (errno.EPROTONOSUPPORT, errno.ENOPROTOOPT, errno.EINVAL, errno.ESOCKTNOSUPPORT)
_ADD_ADDR, _DEL_ADDR, _GET_ADDR, _SET_LIMITS, _GET_LIMITS = 1, 2, 3, 5, 6
_ADDR, _SUBFLOWS = 1, 3
_FAMILY, _ID, _ADDR4, _ADDR6, _FLAGS, _INDEX = 1, 2, 3, 4, 6, 7


@dataclass(frozen=True, slots=True)
class MptcpAddress:
    """Where a subflow would leave from now."""

    index: int
    address: str


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An address the kernel's path manager knows; `index` 0 = no interface is named."""

    address: str
    index: int
    id: int
    flags: int

    def fits(self, place: MptcpAddress) -> bool:
        """Whether the kernel makes subflows from this place because of this endpoint."""
        return bool(self.flags & FLAG_SUBFLOW) and self.address == place.address and self.index in (0, place.index)


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

    def add_endpoint(self, address: str, index: int) -> None:
        """EEXIST: it is there already."""
        self.request(_ADD_ADDR, _endpoint(address, u32(_FLAGS, FLAG_SUBFLOW) + u32(_INDEX, index)))

    def remove_endpoint(self, endpoint: Endpoint) -> None:
        """Closes the subflows from there, of all connections."""
        self.request(_DEL_ADDR, _endpoint(endpoint.address, attribute(_ID, bytes((endpoint.id,)))))

    def subflow_limit(self) -> int:
        """Subflows of every connection of the host, besides the first, made or accepted."""
        answers = self.request(_GET_LIMITS)
        return _unsigned(attributes(answers[0]).get(_SUBFLOWS)) if answers else 0

    def set_subflow_limit(self, subflows: int) -> None:
        self.request(_SET_LIMITS, u32(_SUBFLOWS, subflows))


def parse_endpoint(answer: bytes) -> Endpoint | None:
    """None for what is no complete endpoint."""
    facts = attributes(attributes(answer).get(_ADDR, b""))
    packed = facts.get(_ADDR4) or facts.get(_ADDR6) or b""
    if len(packed) not in (4, 16):
        return None
    index, id, flags = (_unsigned(facts.get(kind)) for kind in (_INDEX, _ID, _FLAGS))
    return Endpoint(str(ip_address(packed)), index, id, flags)


def _endpoint(address: str, further: bytes) -> bytes:
    parsed = ip_address(address.partition("%")[0])
    family, kind = (socket.AF_INET6, _ADDR6) if parsed.version == 6 else (socket.AF_INET, _ADDR4)
    body = attribute(_FAMILY, struct.pack("=H", family)) + attribute(kind, parsed.packed) + further
    return attribute(NESTED | _ADDR, body)


def _unsigned(value: bytes | None) -> int:
    return int.from_bytes(value, sys.byteorder) if value else 0


def mptcp_available() -> bool:
    """Whether the kernel gives out MPTCP sockets."""
    try:
        socket.socket(socket.AF_INET, socket.SOCK_STREAM, IPPROTO_MPTCP).close()
    except OSError as error:
        return error.errno not in _UNSUPPORTED
    return True


def path_manager_type() -> str:
    """`kernel`, `userspace` or another name."""
    for name in ("path_manager", "pm_type"):
        try:
            found = (SYSCTL / name).read_text().strip()
        except OSError:
            continue
        return {"0": KERNEL, "1": "userspace"}.get(found, found)
    return KERNEL


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


def why_no_subflows(candidate: Candidate) -> str:
    """Why an MPTCP connection cannot have subflows over its `more_interfaces` on this host now; empty = it can.

    Takes a fraction of a millisecond.
    """
    if not mptcp_available():
        return NO_MPTCP
    if (kind := path_manager_type()) != KERNEL:
        return f"the MPTCP path manager of this host is {kind!r}, which takes no requests from `multi`"
    try:
        with MptcpPathManager() as manager:
            return limited(manager, len(candidate.more_interfaces)) or _missing_endpoint(manager, candidate)
    except OSError as error:
        if error.errno in (errno.ENOENT, None):
            return "this kernel has no MPTCP path manager to ask (generic netlink family mptcp_pm)"
        return f"the MPTCP path manager cannot be asked: {(error.strerror or str(error)).lower()}"


def limited(manager: MptcpPathManager, needed: int) -> str:
    """What to do where a connection may not have `needed` subflows besides its first; empty = it may."""
    limit = manager.subflow_limit()
    if limit >= needed:
        return ""
    return f"this host allows MPTCP connections {limit} further subflows (ip mptcp limits set subflows {needed})"


def _missing_endpoint(manager: MptcpPathManager, candidate: Candidate) -> str:
    """A process without privilege may only rely on what the administrator has set up."""
    if manager.permitted():
        return ""
    endpoints = manager.endpoints()
    for source in candidate.more_sources:
        place = address_of(source, candidate.family)
        if isinstance(place, str):
            return place
        if not any(endpoint.fits(place) for endpoint in endpoints):
            return (
                f"the kernel's MPTCP path manager has no endpoint for {source.interface}, and adding one needs "
                f"CAP_NET_ADMIN (ip mptcp endpoint add {place.address} dev {source.interface} subflow)"
            )
    return ""
