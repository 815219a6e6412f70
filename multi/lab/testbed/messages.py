"""What the owner of a testbed and its relay process say to each other, over a socket pair nobody else has.

One request, one reply. They are pickled, because both ends are the same program at the same version.
"""

from __future__ import annotations

import pickle
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from multi.lab.testbed.addressing import HostName
from multi.lab.testbed.pipe import PipeStatistics
from multi.lab.testbed.specs import Direction, LinkSpec, Way

__all__ = [
    "AskInterceptor",
    "Backend",
    "Blackhole",
    "Build",
    "Built",
    "Carrier",
    "Done",
    "Failed",
    "Inject",
    "Intercept",
    "OpenSocket",
    "Presence",
    "Reply",
    "Request",
    "SetAddress",
    "Shape",
    "Statistics",
    "Sweep",
    "WayStatistics",
    "receive",
    "send",
]

Backend = Literal["auto", "tap", "veth"]
MESSAGE_SIZE = 1 << 17
MAX_DESCRIPTORS = 4


@dataclass(frozen=True, slots=True)
class Build:
    """Make everything. Answered by `Built` and descriptors of the namespaces: client, server, user (if any)."""

    links: tuple[LinkSpec, ...]
    backend: Backend
    congestion: Mapping[HostName, str]
    detect_duplicates: bool
    mptcp: bool
    seed: int
    owner: int


@dataclass(frozen=True, slots=True)
class Shape:
    link: str
    way: Way
    figures: Direction


@dataclass(frozen=True, slots=True)
class Blackhole:
    link: str
    ways: tuple[Way, ...]
    on: bool


@dataclass(frozen=True, slots=True)
class Carrier:
    link: str
    on: bool


@dataclass(frozen=True, slots=True)
class SetAddress:
    """Give the client's interface its addresses (and routes) of these IP versions, or take them away."""

    link: str
    versions: tuple[int, ...]
    on: bool


@dataclass(frozen=True, slots=True)
class Presence:
    """Whether the client's interface exists."""

    link: str
    on: bool


@dataclass(frozen=True, slots=True)
class Statistics:
    """Answered by {link: WayStatistics}."""


@dataclass(frozen=True, slots=True)
class Intercept:
    """Show the frames of a link to an interceptor, packed; none = to nobody any more."""

    link: str
    interceptor: bytes | None


@dataclass(frozen=True, slots=True)
class AskInterceptor:
    """Answered by bytes: question and answer are pickled."""

    link: str
    question: bytes


@dataclass(frozen=True, slots=True)
class Inject:
    """Frames that enter a link as if a host had sent them; no interceptor sees them."""

    link: str
    way: Way
    frames: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class OpenSocket:
    """Answered by a descriptor."""

    host: HostName
    family: int
    kind: int
    protocol: int


@dataclass(frozen=True, slots=True)
class Sweep:
    """Kill every process that is still in the namespaces of the hosts."""


@dataclass(frozen=True, slots=True)
class Built:
    backend: Backend
    rootless: bool
    mptcp: bool


@dataclass(frozen=True, slots=True)
class WayStatistics:
    down: PipeStatistics
    up: PipeStatistics


@dataclass(frozen=True, slots=True)
class Done:
    value: Built | Mapping[str, WayStatistics] | bytes | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    message: str
    not_allowed: bool = False


Request = (
    Build
    | Shape
    | Blackhole
    | Carrier
    | SetAddress
    | Presence
    | Statistics
    | Intercept
    | AskInterceptor
    | Inject
    | OpenSocket
    | Sweep
)
Reply = Done | Failed


def send(sock: socket.socket, message: Request | Reply, descriptors: Sequence[int] = ()) -> None:
    socket.send_fds(sock, [pickle.dumps(message)], list(descriptors))


def receive(sock: socket.socket) -> tuple[object, list[int]]:
    """The next message and what came with it. Raises EOFError when the other end has gone."""
    data, descriptors, _flags, _address = socket.recv_fds(sock, MESSAGE_SIZE, MAX_DESCRIPTORS)
    if not data:
        raise EOFError
    return pickle.loads(data), descriptors
