"""Which addresses the ends of a testbed's links have. Fixed by the number of a link, so that they can be written down.

Link n (from 1) is 10.77.n.0/24 and fd77:n::/64; the server has .1 and ::1 there, the client .2 and ::2. The server has
10.77.0.1 and fd77::1 besides, reachable over every link, as a real server has one address whatever the way to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from multi.lab.testbed.specs import LinkSpec

HostName = Literal["client", "server"]
HOSTS: tuple[HostName, HostName] = ("client", "server")

SERVER_IPV4 = "10.77.0.1"
SERVER_IPV6 = "fd77::1"
PREFIX = {4: 24, 6: 64}


@dataclass(frozen=True, slots=True)
class LinkAddresses:
    """The addresses of one family on one link."""

    version: int
    network: str
    client: str
    server: str

    @property
    def prefix(self) -> int:
        return PREFIX[self.version]

    def of(self, host: HostName) -> str:
        return self.client if host == "client" else self.server


def link_addresses(number: int, spec: LinkSpec) -> tuple[LinkAddresses, ...]:
    """The addresses of link `number`, IPv4 first; none of a family the link does not carry."""
    found = []
    if spec.ipv4:
        net = f"10.77.{number}"
        found.append(LinkAddresses(4, f"{net}.0/24", f"{net}.2", f"{net}.1"))
    if spec.ipv6:
        net = f"fd77:{number:x}:"
        found.append(LinkAddresses(6, f"{net}:/64", f"{net}:2", f"{net}:1"))
    return tuple(found)
