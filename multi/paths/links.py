"""Interfaces as the path manager sees them: a snapshot, made by `multi.net`, read by `multi.paths`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from multi.core.ids import Family


class Kind(Enum):
    """Kind of an interface, as configured or recognised."""

    ETH = "eth"
    WIFI = "wifi"
    CELLULAR = "cellular"
    LOOPBACK = "loopback"
    VIRTUAL = "virtual"


@dataclass(frozen=True, slots=True)
class InterfaceAddress:
    """One address of an interface. Tentative, deprecated and duplicate addresses are not usable."""

    address: str
    family: Family
    prefix_length: int
    usable: bool = True
    reason: str = ""
    """Why it is not usable: `tentative`, `duplicate`, `deprecated`, `link-local`."""


@dataclass(frozen=True, slots=True)
class Interface:
    """A network interface with everything that decides whether a connection may use it."""

    name: str
    index: int
    kind: Kind
    up: bool = True
    carrier: bool = True
    addresses: tuple[InterfaceAddress, ...] = ()
    gateways: tuple[tuple[Family, str], ...] = ()
    """(family, gateway address) of its default routes; the gateway is empty for a route without one."""
    metered: bool | None = None

    def unusable_reason(self, family: Family | None = None) -> str:
        """Why no connection of `family` (None = either) can use it; empty = usable."""
        if not self.up:
            return "the interface is down"
        if not self.carrier:
            return "no carrier"
        of_family = [a for a in self.addresses if family is None or a.family is family]
        label = f"{family.value} " if family else ""
        if not of_family:
            return f"no {label}address"
        if not any(a.usable for a in of_family):
            return f"no usable {label}address ({', '.join(sorted({a.reason for a in of_family}))})"
        return ""
