"""Words of the session layer as types: ids, sides, roles, states. Nothing here decides anything."""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import NewType

SessionId = NewType("SessionId", bytes)  # 16 bytes, paper Table 3
ConnectionId = NewType("ConnectionId", int)  # local to one session on one side, never reused
StreamId = NewType("StreamId", int)  # client's even, server's odd; 0 is the paper's reader and writer

SESSION_ID_LENGTH = 16
STREAM_ZERO = StreamId(0)


class Side(Enum):
    """Which end of the session this is. Only the client dials."""

    CLIENT = "client"
    SERVER = "server"


class Role(IntEnum):
    """What a connection is for: `active` carries data, `backup` only when no active one is usable."""

    ACTIVE = 0
    BACKUP = 1


class ConnectionState(Enum):
    """Lifecycle of a connection; `multi.core.state` holds the legal transitions."""

    CONNECTING = "connecting"
    AUTHENTICATING = "authenticating"
    ACTIVE = "active"
    SUSPECT = "suspect"
    DRAINING = "draining"
    CLOSED = "closed"
    LOST = "lost"


class Family(Enum):
    """IP version of a connection."""

    IPV4 = "ipv4"
    IPV6 = "ipv6"
