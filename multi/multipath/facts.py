"""What is known of the paths of one connection: what an engine tells, and what is decided upon."""

from __future__ import annotations

from enum import Enum, IntEnum
from math import inf
from typing import NamedTuple

VALIDATION_TIME = 6.0  # seconds for a peer to answer on a new path; one of two seconds' round trip does the third time


class PathState(Enum):
    """Of one path, as its connection sees it."""

    VALIDATING = "validating"
    """It was opened; the peer has not answered on it yet."""
    ACTIVE = "active"
    SUSPECT = "suspect"
    """What was sent there last was not acknowledged in time, or its network went away: it gets nothing but probes."""
    ABANDONED = "abandoned"
    """Nothing is sent there any more; late packets of the peer are still understood for a while."""


class PathError(IntEnum):
    """Why a path is abandoned: codes of PATH_ABANDON (draft-ietf-quic-multipath-21 section 4.2.1)."""

    NO_ERROR = 0x0
    APPLICATION_ABANDON_PATH = 0x3E
    PATH_RESOURCE_LIMIT_REACHED = 0x3E75
    PATH_UNSTABLE_OR_POOR = 0x3E76
    NO_CID_AVAILABLE_FOR_PATH = 0x3E77


class PathFacts(NamedTuple):
    """One path. Times are seconds, 0 = not measured; sizes are bytes."""

    id: int
    """RFC 10069's Path ID, from 0; never used again."""
    state: PathState = PathState.ACTIVE
    backup: bool = False
    """One of both ends asked not to use it while others work (PATH_STATUS_BACKUP)."""
    rtt: float = 0.0
    rtt_variation: float = 0.0
    min_rtt: float = 0.0
    congestion_window: int = 0
    bytes_in_flight: int = 0
    acked: int = 0
    """Of packets, since it was opened."""
    sent: int = 0
    """Of datagrams."""
    received: int = 0
    """Of datagrams."""
    lost: int = 0
    """Packets declared lost."""
    slow_start: bool = False
    """Its congestion window still grows with every byte that arrives: nothing was lost yet."""
    heard_at: float = inf
    """When it has shown last that it works: something came there, or what was sent there was acknowledged; inf = not
    noted."""
    pause: float = 0.0
    """Between two such signs, the longest of late."""
