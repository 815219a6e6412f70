"""Strict reverse-path filtering (RFC 3704 section 2.2): whether Linux drops what comes back over an interface.

A socket that is bound to the second network sends over it, whatever the routes say. Where `rp_filter` is 1 the kernel
takes an answer only if it would itself send to where that comes from over the same interface. Without routes by source
address it would not, and drops the answer without a word: the network looks dead.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable
from pathlib import Path

from multi.discovery.netlink import NetlinkSocket
from multi.discovery.snapshot import lookup
from multi.types import Family, Interface, Kind

SETTINGS = Path("/proc/sys/net/ipv4/conf")  # of the network namespace that asks; IPv6 has no such filter
STRICT = 1


def filtered(found: Iterable[Interface], remotes: Collection[str]) -> dict[str, str]:
    """Interface -> the one over which the kernel would send instead, empty if over none.

    These are the interfaces on which answers of one of `remotes` are dropped. Takes a few system calls.
    """
    if sys.platform != "linux":
        return {}
    found, dropping = tuple(found), {}
    names = {interface.index: interface.name for interface in found}
    strict = [i for i in found if i.kind is not Kind.LOOPBACK and _is_strict(i.name)]
    if not strict:
        return {}
    with NetlinkSocket() as kernel:
        for interface in strict:
            sources = [a.address for a in interface.addresses if a.usable and a.family is Family.IPV4]
            for source in sources:
                for remote in (remote for remote in remotes if ":" not in remote):
                    ways = [route.index for route in lookup(kernel, remote, source)]
                    if interface.index not in ways:
                        dropping[interface.name] = names.get(ways[0], "") if ways else ""
    return dropping


def _is_strict(name: str) -> bool:
    """The larger of the interface's setting and that for all counts."""
    try:
        return max(int((SETTINGS / each / "rp_filter").read_text()) for each in ("all", name)) == STRICT
    except (OSError, ValueError):
        return False
