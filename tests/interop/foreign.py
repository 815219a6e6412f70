"""What engines that are not ours have in common, as the laboratory's `EnginePair` drives them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from typing import Any, cast

from aioquic.quic.events import HandshakeCompleted, StreamDataReceived

from multi.lab.engines.pair import SERVER, EnginePair
from multi.transports.quic.engine import PathEngine, QuicEngine
from multi.transports.quic.udp_port import Burst, PeerAddress


class ForeignEngine(ABC):
    """One connection of a foreign library; of a `PathEngine` only what the laboratory calls."""

    def __init__(self, *, is_client: bool) -> None:
        self.is_client = is_client
        self.events: deque[Any] = deque()
        self.readable: set[int] = set()

    @abstractmethod
    def connect(self, address: PeerAddress, now: float) -> None: ...

    @abstractmethod
    def receive(self, data: bytes, segment: int, address: PeerAddress, now: float) -> None: ...

    @abstractmethod
    def handle_timer(self, now: float) -> None: ...

    @abstractmethod
    def next_timer(self) -> float | None: ...

    @abstractmethod
    def write(self, stream: int, data: bytes, end: bool = False) -> None: ...

    @abstractmethod
    def unsent(self) -> int: ...

    @abstractmethod
    def bursts(self, now: float) -> list[Burst]: ...

    @abstractmethod
    def open_path(self, address: PeerAddress, now: float, backup: bool = False) -> int | None: ...

    @abstractmethod
    def abandon_path(self, path: int, code: int, now: float) -> None: ...

    @abstractmethod
    def set_backup(self, path: int, backup: bool) -> None: ...

    @abstractmethod
    def update_keys(self) -> None: ...

    @abstractmethod
    def close(self) -> None:
        """Give back what it holds outside of this process."""

    def next_event(self) -> Any:
        return self.events.popleft() if self.events else None

    def has_stream(self, stream: int) -> bool:
        return self.is_client or stream in self.readable

    def as_engine(self) -> QuicEngine:
        return cast(PathEngine, self)

    def connected(self) -> None:
        self.events.append(HandshakeCompleted("multi/1", False, False))

    def data(self, stream: int, data: bytes, end: bool) -> None:
        self.readable.add(stream)
        self.events.append(StreamDataReceived(data, end, stream))

    def burst(self, data: bytes, path: int, port: int) -> Burst:
        """A datagram to be sent on a path, which this end knows by the number in its client's address."""
        address = EnginePair.place(path) if self.is_client else PeerAddress((f"10.{path}.0.1", port))
        return Burst(data, len(data), address, path)

    def number_and_port(self, address: PeerAddress) -> tuple[int, int]:
        """Of a path, by its addresses as this end has them."""
        if address.peer == SERVER:
            return address.local[1], 0
        return int(str(address.peer[0]).split(".")[1]), int(address.peer[1])
