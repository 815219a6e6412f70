"""Facts that cross the border between the I/O layers and the pure core, as typed objects."""

from __future__ import annotations

from dataclasses import dataclass, field

from multi.core.ids import Family, Role


@dataclass(frozen=True, slots=True)
class Source:
    """Where a connection or a subflow starts from; empty = not known or left to the system."""

    interface: str
    address: str = ""
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Candidate:
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
    more_interfaces: tuple[str, ...] = ()
    """mptcp: further interfaces on which subflows are wanted."""
    more_sources: tuple[Source, ...] = ()
    """The same interfaces with the address to use and their kind."""
    kind: str = ""
    """Kind of `interface`: eth, wifi, cellular, loopback, virtual or empty."""
    entry: int = 0
    """Index of the `connection_priority` entry it came from."""
    role: Role = Role.ACTIVE
    weight: float = 1.0
    cost: float = 0.0
    max_rate: float = 0.0
    """Bytes per second in each direction; 0 = no cap."""
    group: str = ""
    """Candidates of one group are alternatives: they may fill the same place, and the first that works is kept."""
    network: str = field(default="", compare=False)
    """What identifies the network the interface is on, as long as it is known. It may become known only by dialling
    (the router's hardware address does), so it makes no other candidate."""

    def __str__(self) -> str:
        source = self.interface or self.local_address or "any interface"
        host = f"[{self.remote_address}]" if ":" in self.remote_address else self.remote_address
        return f"{self.transport} over {source} to {host}:{self.remote_port}"


@dataclass(frozen=True, slots=True)
class TransportSample:
    """What a transport knows about its connection right now; 0 = unknown. Seconds, bytes, bytes per second."""

    rtt: float = 0.0
    rtt_variation: float = 0.0
    min_rtt: float = 0.0
    rate: float = 0.0
    """Delivery rate."""
    rate_is_lower_bound: bool = False
    """True when the application, not the network, limited the last rate sample."""
    congestion_window: int = 0
    bytes_acked: int = 0
    """Total acknowledged by the peer's transport; growth is progress. Monotonic."""
    unacked: int = 0
    """Sent or queued in the transport and not acknowledged by the peer's transport."""
    not_sent: int = 0
    """Of `unacked`, the part not yet put on the wire."""
    retransmits: int = 0
    """Consecutive retransmission timeouts without an answer (TCP `retransmits`, QUIC PTO count)."""


@dataclass(frozen=True, slots=True)
class ConnectionFacts:
    """What the core needs to know about a connection when it opens."""

    transport: str
    lanes: int = 1
    """Independent ordered byte channels: 1 for TCP, 2 for QUIC (0 carries control, 1 carries data)."""
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
    """mptcp: further interfaces it has subflows on."""
    local: str = ""
    remote: str = ""
    role: Role = Role.ACTIVE
    weight: float = 1.0
    cost: float = 0.0
    max_rate: float = 0.0
    rtt: float = 0.0
    """Round-trip time seen while connecting, 0 = unknown."""
    detail: str = ""
    """One line for people: MPTCP fallback, subflows, cipher."""

    @property
    def local_address(self) -> str:
        """The literal address of `local`, without its port."""
        return host_of(self.local).partition("%")[0]


def host_of(address: str) -> str:
    """The host of `127.0.0.1:7788` or `[::1]:7788`."""
    return address.rpartition(":")[0].strip("[]")
