"""What an application sees of a connection."""

from __future__ import annotations

from dataclasses import dataclass

from multi.protocol.connection import Connection
from multi.transports.base import ChannelInfo
from multi.types import ConnectionId, ConnectionState, Family, Role

OF_CONNECTION = (
    *("id", "number", "transport", "interface", "role", "state", "reason", "rtt", "min_rtt", "rate", "in_flight"),
    "loss",
    *("bytes_sent", "bytes_received", "payload_received", "reinjected"),
)
OF_FACTS = ("family", "kind", "local", "remote", "secure")


@dataclass(frozen=True, slots=True)
class ConnectionInfo:
    """A connection at the moment of asking. Seconds, bytes, bytes per second."""

    id: ConnectionId
    transport: str
    family: Family
    interface: str
    kind: str
    """eth, wifi, cellular, loopback, virtual, or empty when unknown."""
    local: str
    remote: str
    role: Role
    state: ConnectionState
    reason: str
    """Why it is in this state."""
    rtt: float
    min_rtt: float
    rate: float
    """Estimated delivery rate of what this side sends."""
    in_flight: int
    """Bytes sent on it that the session has not acknowledged."""
    bytes_sent: int
    """Payload sent on it, repeats included."""
    bytes_received: int
    """Bytes received on it, headers included."""
    payload_received: int
    """Payload received on it, duplicates included."""
    reinjected: int
    """Bytes this side sent again on it."""
    secure: bool
    """The transport itself encrypts."""
    sealed: bool
    """The session seals the segments on it."""
    detail: str
    """One line for people: MPTCP fallback, subflows, cipher."""
    subflows: int = 0
    """Of an MPTCP connection, established now; 0 for other transports."""
    fell_back: bool = False
    """MPTCP was asked for and it is plain TCP."""
    loss: float = 0.0
    """Share of what the transport has sent lately that it had to send again; 0 also where it does not tell."""
    number: int = -1
    """What both ends know it by, where `id` is each end's own; -1 until it is agreed."""


def connection_info(connection: Connection, channel: ChannelInfo | None) -> ConnectionInfo:
    """What the core and, while it is open, the channel know of a connection."""
    facts = connection.facts
    return ConnectionInfo(
        **{name: getattr(connection, name) for name in OF_CONNECTION},
        **{name: getattr(facts, name) for name in OF_FACTS},
        sealed=connection.openers is not None,
        detail=channel.detail if channel is not None and channel.detail else facts.detail,
        subflows=channel.subflows if channel is not None else 0,
        fell_back=channel is not None and channel.fell_back,
    )
