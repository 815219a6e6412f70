"""One element of `connection_priority`: which transport over which IP version and interfaces (paper
Figure 2)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import (
    BeforeValidator,
    Field,
    PlainSerializer,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from multi.config.fields import Host, InterfaceChoice, Port, Section, TransportName, address_family
from multi.config.findings import one_of, refusal, shown
from multi.types import Role

__all__ = ["TRIPLE", "Entry"]

TRIPLE = ("transport", "ip", "interface")
"""Meaning of the three places of an entry written as a list."""

LOWEST_RATE = 0.001  # Mbit/s; a cap below 1 kbit/s is a mistake in the unit, and would round to "no cap"
BYTES_PER_MEGABIT = 125_000

_ROLES = {role.name.lower(): role for role in Role}


def _role(value: object) -> Role:
    if isinstance(value, Role):
        return value
    if isinstance(value, str) and value in _ROLES:
        return _ROLES[value]
    if isinstance(value, str):
        raise refusal(one_of(value, _ROLES))
    raise refusal(f'found {shown(value)}; allowed: "active", "backup"')


def _as_tuple(value: object) -> object:
    return (value,) if isinstance(value, str) else value


RoleName = Annotated[
    Role,
    BeforeValidator(_role),
    PlainSerializer(lambda role: role.name.lower(), return_type=str),
    WithJsonSchema({"type": "string", "enum": list(_ROLES)}),
]


class Entry(Section):
    """A connection the session should have. Written as `[transport, ip, interface]` or as an object."""

    transport: TransportName
    """Transport protocol: `tcp`, `quic`, `mptcp` or a registered name. Required: it is what an entry is
    about."""
    ip: Literal["ipv4", "ipv6", "any"]
    """IP version. `any` tries both, IPv6 first (RFC 8305). Required, as in the paper's triple."""
    interface: Annotated[
        tuple[InterfaceChoice, ...],
        Field(strict=False, min_length=1, max_length=16),
        BeforeValidator(_as_tuple),
    ]
    """Where the connection may go out: a kind (`eth`, `wifi`, `cellular`, `any`), an interface name, a local
    IP address, or a list of them. tcp and quic open one connection per interface, mptcp one connection with
    subflows on all of them. Required: choosing networks is the point."""
    role: RoleName = Role.ACTIVE
    """`active` carries data, `backup` is open and idle until no active connection is usable. Default
    `active`: all networks are used."""
    weight: float = Field(default=1.0, ge=0.001, le=1000.0)
    """Share of this connection relative to the others, for schedulers that use weights (WRR). No unit.
    Default 1: equal shares."""
    max_rate_mbps: float = Field(default=0.0, ge=0.0, le=1_000_000.0)
    """Highest sending rate in each direction, in Mbit/s; 0 or at least 0.001. Default 0: no cap, congestion
    control decides."""
    cost: float = Field(default=0.0, ge=0.0, le=1_000_000.0)
    """Price of a byte relative to the other entries, for schedulers that look at it (cost). No unit. Default
    0: free."""
    group: str = Field(default="", max_length=64)
    """Entries with the same group are alternatives: the first that works is kept. Default empty: the entry
    stands alone and is always opened."""
    remote_host: Host | None = None
    """Host name or IP address for this entry only. Default null: the top-level `remote_host`."""
    remote_port: Port | None = None
    """Port for this entry only. Default null: the top-level `remote_port`."""

    @property
    def interfaces(self) -> tuple[str, ...]:
        """Kinds, interface names and local addresses, in order of preference; never empty."""
        return self.interface

    @property
    def max_rate(self) -> float:
        """Bytes per second in each direction; 0 = no cap."""
        return self.max_rate_mbps * BYTES_PER_MEGABIT

    @model_validator(mode="before")
    @classmethod
    def _from_triple(cls, value: object) -> object:
        if not isinstance(value, list | tuple):
            return value
        if len(value) != len(TRIPLE):
            raise refusal(f"found {shown(value)}; allowed: a list of 3, [transport, ip, interface], or an object")
        return dict(zip(TRIPLE, value, strict=True))

    @field_validator("interface")
    @classmethod
    def _interfaces_fit(cls, interfaces: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        for position, name in enumerate(interfaces):
            if name in interfaces[:position]:
                raise refusal(f"found {shown(name)} twice; allowed: each interface once")
            family, ip = address_family(name), info.data.get("ip", "any")
            if family and ip not in ("any", family.value):
                raise refusal(f"found the local address {shown(name)} with ip {shown(ip)}; allowed: one of its family")
        return interfaces

    @field_validator("max_rate_mbps")
    @classmethod
    def _rate_is_sensible(cls, rate: float) -> float:
        if 0 < rate < LOWEST_RATE:
            raise refusal(f"found {shown(rate)}; allowed: 0 (no cap) or at least {LOWEST_RATE}, in Mbit/s")
        return rate

    @field_validator("group")
    @classmethod
    def _group_is_readable(cls, group: str) -> str:
        if not group.isprintable():
            raise refusal(f"found {shown(group)}; allowed: text without control characters")
        return group
