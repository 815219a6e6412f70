"""What the native module gives; `native/src` is what it does. Times are seconds on the caller's clock, sizes bytes."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

VERSION: str

class Address(Protocol):
    """Where datagrams come from and go to. The same object comes back with what is to be sent there."""

    @property
    def peer(self) -> tuple[str, int] | tuple[str, int, int, int]:
        """As sockets have it."""
    @property
    def local(self) -> bytes:
        """The packed address of ours, empty if it does not matter: with the peer's it tells one path from another."""

Event: TypeAlias = tuple[Any, ...]
"""A word and what belongs to it: ("connected",), ("lost", code, type of frame or None where an application closed,
reason, "silent" after an idle timeout or "gone" after a stateless reset or ""), ("data", stream, bytes, whether it
ends), ("message", bytes), ("reset", stream, code), ("stopped", stream, code), ("issued", id), ("retired", id),
("path_opened", path, address), ("path_closed", path, code, whether by the peer), ("path_status", path, whether as a
backup)."""

Path: TypeAlias = tuple[
    tuple[int, bool, bool, bool, bool],
    tuple[float, float, float],
    tuple[int, int, int, int],
    tuple[int, int, int],
]
"""(id, validated, suspect, backup, in slow start), (smoothed round trip, its variation, smallest), (window, in flight,
sent, received), (lost bytes, lost packets, probe timeouts in a row). Round trips are 0 before the first is measured."""

class Config:
    """What connections have in common."""

    def __init__(
        self,
        *,
        alpn: bytes,
        new_id: Callable[[], bytes],
        streams: int = 0,
        first_window: int = ...,
        window: int = ...,
        congestion: str = "cubic",
        idle_timeout: float = 60.0,
        initial_rtt: float = 0.1,
        paths: int = 1,
        chain: Sequence[bytes] = (),
        key: bytes | None = None,
        ask: bool = False,
        judge: Callable[[list[bytes]], tuple[int, str] | None] | None = None,
        reset_token: Callable[[bytes], bytes] | None = None,
        seed: bytes | None = None,
    ) -> None:
        """`new_id` makes the ids of connections, all of one length.

        `streams` are those the peer may open, `first_window` what it may send ahead of what is missing, which grows
        with what has been taken to `window`. `congestion` is `cubic`, `reno`,
        `bbr`, `lia` or `olia`.
        More than one of `paths` offers multipath. `chain` and `key` are our certificates (DER) and the key of the
        first (PKCS #8, DER); a server with `ask` asks clients for theirs. `judge` gets those of a server, its own
        first, and returns a TLS alert and why, or None. `reset_token` makes the stateless reset token (16 bytes) of
        one of a server's ids. `seed` of 32 bytes makes runs repeatable.
        Raises ValueError.
        """

class Connection:
    """One QUIC connection, without sockets and without a clock."""

    @staticmethod
    def client(config: Config, datagram_size: int) -> Connection:
        """A client; `connect` begins."""
    @staticmethod
    def server(config: Config, datagram_size: int, original: bytes | None = None) -> Connection:
        """A server, made by the first packet that `receive` brings.

        `original`: of a client that came back with the token of a Retry, the destination id of its very first packet.
        """
    def connect(self, config: Config, address: Address, server_name: str, now: float) -> None: ...
    def receive(self, data: bytes | bytearray | memoryview, segment: int, address: Address, now: float) -> None: ...
    def handle_timer(self, now: float) -> None: ...
    def write(self, stream: int, data: bytes | bytearray | memoryview, end: bool = False) -> None: ...
    def send_message(self, data: bytes | bytearray | memoryview) -> None:
        """A DATAGRAM frame; where too many wait, the oldest are dropped."""
    def update_keys(self) -> None: ...
    def close(self, code: int, reason: str) -> None: ...
    @property
    def multipath(self) -> bool: ...
    @property
    def takes_paths(self) -> bool: ...
    def open_path(self, address: Address, backup: bool, now: float) -> int | None: ...
    def abandon_path(self, path: int, code: int, now: float) -> bool: ...
    def suspect_path(self, path: int, now: float) -> bool: ...
    def set_backup(self, path: int, backup: bool) -> bool: ...
    def set_path_order(self, order: Sequence[int]) -> None: ...
    def set_carriers(self, carriers: Sequence[int] | None) -> None:
        """Which paths carry data of streams; None: all."""
    def hide_streams(self, streams: Sequence[int]) -> None:
        """Nothing of these is sent until this is called again."""
    def set_enough_in_flight(self, path: int, size: int) -> None:
        """Bytes in flight on a path that are enough; 0: as many as congestion control allows."""
    def oldest_data(self, path: int) -> tuple[float, int] | None:
        """When the oldest packet on its way on a path that carries data of streams was sent, and its bytes."""
    def repeat_data(self, path: int, most: int) -> None:
        """Have what packets of up to so many bytes on their way there carry of streams wait to be sent again, the
        oldest first."""
    def set_ack_path(self, name: str) -> None: ...
    def events(self) -> list[Event]: ...
    def bursts(self, now: float, most: int = 0) -> list[tuple[bytes, int, Address, int]]:
        """(datagrams, bytes in each but the last, address, path)."""
    def next_timer(self) -> float | None: ...
    @property
    def connection_id(self) -> bytes: ...
    def secrets(self) -> list[tuple[str, bytes]]: ...
    def peer_certificates(self) -> list[bytes]: ...
    def has_stream(self, stream: int) -> bool: ...
    def message_size(self) -> int:
        """Bytes of the largest for `send_message`, 0 = one of both ends takes none."""
    def queued_messages(self) -> int:
        """Bytes of messages that wait to be sent."""
    def outstanding(self) -> tuple[int, int, int]:
        """Bytes of all streams: not acknowledged, of these not sent, of these those that the peer takes no more of."""
    def unsent_in_turn(self) -> list[tuple[int, int, int]]:
        """Streams with something to send, as they are served: id, bytes, and those that the peer takes no more of."""
    def in_order(self) -> list[tuple[int, int, int]]:
        """Streams of which not all has arrived: id, bytes acknowledged in order, and bytes sent."""
    def all_acknowledged(self) -> bool: ...
    def paths(self) -> list[Path]: ...
