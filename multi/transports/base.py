"""The transport contract: how one transport-layer connection looks to the rest of `multi`.

A transport moves bytes in order on one or more *lanes* and knows nothing of sessions or segments. A new file
in this package that calls `register_transport` is a new transport, and the same suite runs over every one:
`tests/integration/test_transport_contract.py`.

Rules every channel keeps
- It always reads its socket; flow control is session credit, never socket back-pressure.
- `write` never blocks and never fails: what the network does not take is kept and sent later; a failure is
  reported once through `sink.connection_lost`, never from inside `write`, `flush`, `close` or `abort`.
- Callbacks are never made from inside `dial`, and never from inside `write` or `flush`.
- After `connection_lost` (or after `abort`) no callback is made any more.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

from multi.errors import ConfigError, TransportError
from multi.types import Candidate, ConnectionFacts, TransportSample

Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """`ssl_config`, with file names already resolved against the config file's directory."""

    cert: Path | None = None
    key: Path | None = None
    ca: Path | None = None
    verify: bool = True
    server_name: str = ""
    client_ca: Path | None = None
    pins: tuple[str, ...] = ()
    """`sha256/BASE64`; the peer's certificate must have one of these keys (`multi.transports.certificates`)."""


@dataclass(frozen=True, slots=True)
class TcpSettings:
    """`tcp_config` and `mptcp_config`."""

    nagle: bool = False
    idle_timeout: float = 0.0
    """Kernel keep-alive and user timeout back the session's own timers; 0 = session timers only."""
    congestion: str = ""
    """`TCP_CONGESTION`, empty = system default."""
    user_timeout: float = 10.0
    """`TCP_USER_TIMEOUT`: a backstop, our own detection is faster."""
    fast_open: bool = False


@dataclass(frozen=True, slots=True)
class QuicSettings:
    """`quic_config`."""

    idle_timeout: float = 60.0
    congestion: str = "cubic"
    max_datagram_size: int = 1350
    retry: bool = False
    engine: str = "aioquic"


class AdmissionControl:
    """What listeners ask and tell about half-open connections: those whose peers have not proved anything yet.

    This one, for a listener on its own, counts nothing.
    """

    def __init__(self, handshake_timeout: float = 10.0) -> None:
        self.handshake_timeout = handshake_timeout
        """Seconds from accepting a connection until TLS or QUIC must be done."""

    def admit(self, connection: Hashable, host: str, drop: Callable[[str], None]) -> None:
        """Count one in; its `drop(reason)` is called, some time later, when it has to make room for others."""

    def settled(self, connection: Hashable) -> None:
        """Its peer has proved itself, or it is gone."""

    def crowded(self, host: str) -> bool:
        """Whether whoever comes from there should show that the address is his own before he gets a connection."""
        return False

    def report(self, limit: str, host: str = "") -> None:
        """A limit was reached by `host`, or by this process itself."""


@dataclass(frozen=True, slots=True)
class TransportSettings:
    """Everything a transport may be told by the configuration."""

    tcp: TcpSettings = field(default_factory=TcpSettings)
    mptcp: TcpSettings = field(default_factory=TcpSettings)
    quic: QuicSettings = field(default_factory=QuicSettings)
    tls: TlsSettings | None = None
    admission: AdmissionControl = field(default_factory=AdmissionControl, compare=False)
    """Listeners only; those of one server share it."""


class ChannelSink(Protocol):
    """What a channel calls. Implemented by the session driver and by the server's reception."""

    def data_received(self, data: memoryview, lane: int) -> None:
        """Bytes of one lane, in order. The memory is valid during the call only."""

    def batch_finished(self) -> None:
        """All bytes that were ready have been delivered; answer now, once."""

    def writable(self) -> None:
        """`credit()` has become positive after it was 0."""

    def connection_lost(self, error: TransportError | None) -> None:
        """The connection ended, once. None = the peer closed it in order."""


@dataclass(frozen=True, slots=True)
class ChannelInfo(ConnectionFacts):
    """Facts about an open channel, fixed when it opens except for `detail`, `subflows` and `fell_back`.

    The transport fills in what it knows; what the configuration wants of the connection is added by who dialled.
    """

    peer_certificate: bytes = field(default=b"", repr=False)
    """DER certificate of the peer, or empty."""
    subflows: int = 0
    """Established now; 0 = this transport has none, or MPTCP has lost all."""
    fell_back: bool = False
    """MPTCP was asked for and it is plain TCP: known when a dial returns, in rare cases only later."""


class Channel(Protocol):
    """One live connection."""

    @property
    def info(self) -> ChannelInfo: ...

    def start(self, sink: ChannelSink) -> None:
        """Begin to deliver. Bytes that came earlier are delivered from the event loop, not from this call.

        Called again, it hands the channel over to another sink.
        """

    def write(self, buffers: Sequence[Buffer], lane: int) -> None:
        """Queue bytes in order on a lane; buffers are kept by reference and must not change. See `flush`."""

    def flush(self) -> None:
        """Hand everything queued to the network now, as far as it takes it."""

    def credit(self) -> int:
        """Bytes worth queueing now without building up a backlog; 0 while earlier bytes wait.

        Control may exceed it.
        """

    def sample(self) -> TransportSample:
        """Read round-trip time, rate and progress from the transport. Costs a system call at most."""

    def close(self) -> None:
        """Flush, end our direction, keep reading until the peer ends too or 1 s passes, release the socket.

        What the peer still sends is discarded; `connection_lost` follows once, when the socket is released.
        """

    def abort(self) -> None:
        """Release the socket at once. No callback follows."""


class Listener(Protocol):
    """A bound server socket."""

    @property
    def address(self) -> tuple[str, int]:
        """The address and port really bound."""

    def close(self) -> None:
        """Stop accepting. Channels already accepted live on."""


AcceptCallback = Callable[[Channel], None]
"""Called for each incoming channel once its transport handshake is done; it calls `channel.start(sink)`."""


class Transport(Protocol):
    """A protocol family. Stateless: settings come with each call."""

    name: str

    def dial(self, candidate: Candidate, settings: TransportSettings) -> Awaitable[Channel]:
        """Connect, bound to `candidate.interface` and `candidate.local_address`.

        Raises TransportError with a readable reason. Cancelling it leaves no socket behind.
        """

    def listen(self, host: str, port: int, settings: TransportSettings, accept: AcceptCallback) -> Awaitable[Listener]:
        """Bind and accept. `host` `::` serves both families.

        Raises TransportError (port in use, no certificate).
        """


_registry: dict[str, Transport] = {}
T = TypeVar("T", bound=Callable[[], Transport])


def register_transport(name: str) -> Callable[[T], T]:
    """Class decorator: make a transport available under `name` in `connection_priority`."""

    def register(factory: T) -> T:
        _registry[name] = factory()
        return factory

    return register


def transport(name: str) -> Transport:
    """Return the transport registered under `name`."""
    try:
        return _registry[name]
    except KeyError:
        raise ConfigError(f"unknown transport {name!r}; known: {', '.join(sorted(_registry))}") from None


def transport_names() -> list[str]:
    return sorted(_registry)
