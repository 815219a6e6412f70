"""The values every layer speaks of: ids, roles, states, interfaces, candidates, facts. Nothing here decides
anything."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from enum import Enum, IntEnum
from math import inf
from typing import Any, Literal, NewType, TypeAlias

SessionId = NewType("SessionId", bytes)  # 16 bytes, paper Table 3
ConnectionId = NewType("ConnectionId", int)  # local to one session on one side, never reused
StreamId = NewType("StreamId", int)  # client's even, server's odd; 0 is the paper's reader and writer

SESSION_ID_LENGTH = 16
DEFAULT_LIMIT = 64 * 1024  # bytes, as asyncio's: the longest line a reader returns
LISTEN_BACKLOG = 4096  # connections; the kernel cuts it down to net.core.somaxconn, often this
STREAM_ZERO = StreamId(0)
ROUTE_LENGTH = 8  # bytes at most of the token that tells a server from others behind the same address

Address = tuple[str, int]
"""(literal IP address, port)."""
Buffer = bytes | bytearray | memoryview


class Side(Enum):
    """Which end of the session this is. Only the client dials."""

    CLIENT = "client"
    SERVER = "server"


class Role(IntEnum):
    """What a connection is for.

    `active` carries data, `secondary` what the active ones cannot cope with, `backup` only when none of these is
    usable. `never` is the role of what is not to be opened: no connection has it.
    """

    ACTIVE = 0
    BACKUP = 1
    SECONDARY = 2
    NEVER = 255


PRECEDENCE = (Role.ACTIVE, Role.SECONDARY, Role.BACKUP, Role.NEVER)
"""Who carries data before whom."""


class ConnectionState(Enum):
    """Lifecycle of a connection; `multi.protocol.state` has its phases and steps."""

    AUTHENTICATING = "authenticating"
    ACTIVE = "active"
    SUSPECT = "suspect"
    DRAINING = "draining"
    CLOSED = "closed"
    LOST = "lost"

    @property
    def over(self) -> bool:
        """Nothing goes or comes on it any more."""
        return self in (ConnectionState.CLOSED, ConnectionState.LOST)


class Family(Enum):
    """IP version of a connection."""

    IPV4 = "ipv4"
    IPV6 = "ipv6"

    @classmethod
    def of(cls, literal: str) -> Family:
        """That of a literal address."""
        return cls.IPV6 if ":" in literal else cls.IPV4


def host_and_port(host: str, port: int) -> str:
    """`192.0.2.1:443`, `[2001:db8::1]:443`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


# --- interfaces  ---


class Kind(Enum):
    """Kind of an interface, as configured or recognised."""

    ETH = "eth"
    WIFI = "wifi"
    CELLULAR = "cellular"
    LOOPBACK = "loopback"
    VIRTUAL = "virtual"


AddressReason: TypeAlias = Literal["", "tentative", "duplicate", "deprecated", "link-local"]


@dataclass(frozen=True, slots=True)
class InterfaceAddress:
    """One address of an interface. Tentative, deprecated and duplicate addresses are not usable."""

    address: str
    family: Family
    prefix_length: int
    usable: bool = True
    reason: AddressReason = ""
    """Why it is not usable."""


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


# --- connections  ---


@dataclass(frozen=True, slots=True)
class Source:
    """Where a connection or a subflow starts from; empty = not known or left to the system."""

    interface: str
    address: str = ""
    kind: str = ""

    def is_meant_by(self, name: str | int) -> bool:
        """`name`: a kind, an interface or a local address."""
        return bool(name) and name in (self.kind, self.interface, self.address)


@dataclass(frozen=True, slots=True, kw_only=True)
class Preferences:
    """What an entry of the configuration asks of its connections."""

    role: Role = Role.ACTIVE
    weight: float = 1.0
    """Share relative to other connections, for schedulers that use weights."""
    cost: float = 0.0
    """Price of a byte relative to other connections, for schedulers that look at it."""
    max_rate: float = 0.0
    """Bytes per second in each direction; 0 = no cap."""


def preferences_of(asked: object) -> dict[str, Any]:
    """The preferences of an entry, or of what came of it, for the next thing that comes of it."""
    return {each.name: getattr(asked, each.name) for each in fields(Preferences)}


@dataclass(frozen=True, slots=True)
class Candidate(Preferences):
    """A connection that could be opened: transport, IP version, where from, where to (TAPS, RFC 9621)."""

    transport: str
    family: Family
    remote_host: str
    """The configured name, for TLS and for messages."""
    remote_address: str
    """A literal IP address."""
    remote_port: int
    interface: str = ""
    """Device to bind to; empty = let routing decide."""
    local_address: str = ""
    """Source address to bind to; empty = let the system choose."""
    more_sources: tuple[Source, ...] = ()
    """Where further subflows are wanted from."""
    kind: str = ""
    """Kind of `interface`: eth, wifi, cellular, loopback, virtual or empty."""
    entry: int = 0
    """Index of the `connection_priority` entry it came from."""
    group: str = ""
    """Candidates of one group are alternatives: they may fill the same place, and the first that works is kept."""
    told: bool = field(default=False, compare=False)
    """The server has told this address."""
    proved: bool = field(default=False, compare=False)
    """It has proved itself there; known when it is dialled."""
    small: bool = field(default=False, compare=False)
    """Large packets may vanish on the way there: with small ones; known when it is dialled."""
    network: str = field(default="", compare=False)
    """What identifies the network the interface is on; a further address there makes no other candidate."""

    @property
    def sources(self) -> tuple[Source, ...]:
        """Where it and its subflows start from."""
        return (Source(self.interface, self.local_address, self.kind), *self.more_sources)

    def interfaces_over(self, name: str | int) -> set[str]:
        """Those of its sources, and its subflows', that `name` means: a kind, an interface or a local address."""
        return {source.interface for source in self.sources if source.is_meant_by(name)}

    def leads_over(self, name: str | int) -> bool:
        """It or one of its subflows starts from what `name` means."""
        return bool(self.interfaces_over(name))

    def over(self, first: Source, *others: Source) -> Candidate:
        """The same from these sources."""
        return replace(
            self, interface=first.interface, local_address=first.address, kind=first.kind, more_sources=others
        )

    def begun_from(self, first: Source) -> Candidate:
        """The same with this one of its sources before the others."""
        return self.over(first, *(source for source in self.sources if source != first))

    @property
    def more_interfaces(self) -> tuple[str, ...]:
        """Further interfaces on which subflows are wanted."""
        return tuple(source.interface for source in self.more_sources)

    def __str__(self) -> str:
        source = self.interface or self.local_address or "any interface"
        return f"{self.transport} over {source} to {host_and_port(self.remote_address, self.remote_port)}"


@dataclass(slots=True)
class TransportSample:
    """What a transport knows about its connection right now; 0 = unknown. Seconds, bytes, bytes per second."""

    rtt: float = 0.0
    rtt_variation: float = 0.0
    min_rtt: float = 0.0
    rate: float = 0.0
    """Delivery rate."""
    app_limited: bool = False
    """True when the application, not the network, limited the last rate sample."""
    congestion_window: int = 0
    bytes_acked: int = 0
    """Total acknowledged by the peer's transport; growth is progress. Monotonic."""
    unacked: int = 0
    """Sent or queued in the transport and not acknowledged by the peer's transport."""
    not_sent: int = 0
    """Of `unacked`, the part not yet put on the wire."""
    arrived: int = 0
    """Of `unacked`, the part that the peer's transport has and keeps until something before it has come."""
    bytes_sent: int = 0
    """Total put on the wire, repeats included; 0 where the transport does not tell. Monotonic."""
    bytes_lost: int = 0
    """Total the transport has put on the wire again. Monotonic."""
    silent_for: float = 0.0
    """Seconds since the peer's transport acknowledged anything; 0 also when the transport does not know."""
    received_ago: float = inf
    """Seconds since data last came, parts of TLS records included; infinite when the transport does not know."""


MESSAGES = -1
"""In place of a lane: each buffer written is a message of its own, which may be lost or overtaken (RFC 9221)."""


@dataclass(frozen=True, slots=True)
class ConnectionFacts(Preferences):
    """What the core needs to know about a connection when it opens."""

    transport: str
    lanes: int = 1
    """Independent ordered byte channels. The first carries control, the last data, and where there are three, as with
    QUIC, the second data of streams more urgent than others."""
    message_size: int = 0
    """Bytes of the largest message it carries on MESSAGES: whole, out of order, or not at all; 0 = it carries none."""
    secure: bool = False
    """The transport encrypts and authenticates (TLS, QUIC)."""
    peer_verified: bool = False
    """The peer's certificate was verified against a trusted issuer."""
    channel_binding: bytes = b""
    """SHA-256 of the server's certificate (tls-server-end-point, RFC 5929), on QUIC with an exported secret; or empty.

    It is the same on both sides."""
    family: Family = Family.IPV4
    interface: str = ""
    kind: str = ""
    more_interfaces: tuple[str, ...] = ()
    """Further interfaces it has subflows on."""
    told: bool = False
    """It leads where a server has told that it is."""
    proved: bool = False
    """Where it has proved itself before."""
    local: str = ""
    """`address:port`, brackets around IPv6."""
    remote: str = ""
    proxy: str = ""
    """Server: the address of the proxy that has said who `remote` is; empty = it came from there."""
    rtt: float = 0.0
    """Round-trip time seen while connecting, 0 = unknown."""
    fills_queues: bool = False
    """Its congestion control sends more and more until something is lost, as most do."""
    detail: str = ""
    """One line for people: MPTCP fallback, subflows, cipher."""

    @property
    def local_address(self) -> str:
        """The literal address of `local`, without its port."""
        return host_of(self.local).partition("%")[0]


def host_of(address: str) -> str:
    """The host of `127.0.0.1:7788` or `[::1]:7788`."""
    return address.rpartition(":")[0].strip("[]")
