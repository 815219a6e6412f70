"""What the owner of a testbed and its relay process say to each other, over a socket pair nobody else has.

One request, one reply. A request is a method of `Relay` with its arguments, a reply is what it returns or the
TestbedError it raises. They are pickled, because both ends are the same program at the same version.
"""

from __future__ import annotations

import pickle
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from multi.lab.testbed.addressing import HostName
from multi.lab.testbed.pipe import PipeStatistics
from multi.lab.testbed.specs import LinkSpec

Backend = Literal["auto", "tap", "veth"]
MESSAGE_SIZE = 1 << 17
MAX_DESCRIPTORS = 4


@dataclass(frozen=True, slots=True)
class Build:
    """What to make."""

    links: tuple[LinkSpec, ...]
    backend: Backend
    congestion: Mapping[HostName, str]
    detect_duplicates: bool
    mptcp: bool
    seed: int
    owner: int


@dataclass(frozen=True, slots=True)
class Built:
    backend: Backend
    rootless: bool
    mptcp: bool


@dataclass(frozen=True, slots=True)
class WayStatistics:
    down: PipeStatistics
    up: PipeStatistics


def send(sock: socket.socket, message: object, descriptors: Sequence[int] = ()) -> None:
    socket.send_fds(sock, [pickle.dumps(message)], list(descriptors))


def receive(sock: socket.socket) -> tuple[Any, list[int]]:
    """The next message and what came with it. Raises EOFError when the other end has gone."""
    data, descriptors, _flags, _address = socket.recv_fds(sock, MESSAGE_SIZE, MAX_DESCRIPTORS)
    if not data:
        raise EOFError
    return pickle.loads(data), descriptors
