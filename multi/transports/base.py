"""The transport contract: how one transport-layer connection looks to the rest of `multi`.

A transport moves bytes in order on one or more *lanes* and knows nothing of sessions or segments. A new package
beside this module that calls `register_transport` is a new transport, and the same suite runs over every one:
`tests/integration/transports/test_contract.py`.

Rules every channel keeps
- It always reads its socket, unless its sink is behind; flow control is session credit, never socket back-pressure.
- It reads for `READ_TIME` at most before the event loop's other callbacks get their turn.
- `write` never blocks and never fails: what the network does not take is kept and sent later; a failure is
  reported once through `sink.connection_lost`, never from inside `write`, `flush`, `close` or `abort`.
- Callbacks are never made from inside `dial`, and never from inside `write` or `flush`.
- After `connection_lost` (or after `abort`) no callback is made any more.
"""

from __future__ import annotations

import asyncio
import re
import socket
from asyncio.trsock import TransportSocket
from collections.abc import Awaitable, Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

from multi.errors import ConfigError, DependencyError, TransportError
from multi.transports.settings import TransportSection
from multi.types import LISTEN_BACKLOG, Buffer, Candidate, ConnectionFacts, Source, TransportSample

S = TypeVar("S", bound=TransportSection)


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """`ssl_config`, with file names already resolved against the config file's directory.

    What a client names as `cert` without `key` is to be trusted, and is `ca` here.
    """

    cert: Path | None = None
    key: Path | None = None
    ca: Path | None = None
    verify: bool = True
    server_name: str = ""
    client_ca: Path | None = None
    pins: tuple[str, ...] = ()
    """`sha256/BASE64`; the peer's certificate must have one of these keys (`multi.transports.certificates`)."""


class AdmissionControl:
    """What listeners ask and tell about half-open connections: those whose peers have not proved anything yet.

    This one, for a listener on its own, counts nothing.
    """

    def __init__(self, handshake_timeout: float = 10.0) -> None:
        self.handshake_timeout = handshake_timeout
        """Seconds from accepting a connection until TLS or QUIC must be done."""

    def admit(
        self, connection: Hashable, host: str, drop: Callable[[str], None], *, has_descriptor: bool = True
    ) -> None:
        """Count one in; its `drop(reason)` is called, some time later, when it has to make room for others.

        `has_descriptor`: with it a file descriptor becomes free, as none does where many share a socket.
        """

    def settled(self, connection: Hashable) -> None:
        """Its peer has proved itself, or it is gone."""

    def in_turn(self, connection: Hashable, host: str, work: Callable[[], None]) -> None:
        """Do for a connection that was counted in what may cost a millisecond, when it is the turn of `host`.

        It is not done when the connection is settled before; more work in the place of what has not been done.
        """
        work()

    def free_descriptor(self, host: str) -> bool:
        """The last file descriptor has gone to a connection from `host`: whether another one is given up for it."""
        self.report("file_descriptors", host)
        return False

    def crowded(self, host: str) -> bool:
        """Whether whoever comes from there should show that the address is his own before he gets a connection."""
        return False

    def report(self, limit: str, host: str = "") -> None:
        """A limit was reached by `host`, or by this process itself."""


Arrival = tuple[Any, bytes, int]
"""Of a datagram: who has sent it, as sockets have it, the packed address it came to if that is known, its interface."""


class SocketSteering:
    """What a listener asks where several processes take the connections of one port: whose is this one?

    Streams come to any of them, so listeners look and pass them on. Datagrams come to their own process by themselves,
    and to another one only where that is not there.

    `client` is `address:port` of whom a proxy speaks for; what it has said has been read. Empty where none speaks.
    """

    def passed_on(self, sock: socket.socket, first: bytes, client: str) -> bool | None:
        """Whether another process has it now, because of the bytes it begins with, which are still to be read.

        None: more of them are needed. Where it is True, `sock` is to be closed here.
        """
        raise NotImplementedError

    def start(self, take: Callable[[socket.socket, str | None], None]) -> None:
        """From now on `take(sock, client)` gets what others pass on; with None for `client` nobody has looked at it."""
        raise NotImplementedError

    def stop(self) -> None:
        """Nothing is taken any more."""

    def take_datagrams(self, port: int, take: Callable[[bytes, Arrival], None]) -> None:
        """From now on `take(data, arrival)` gets those that have come to `port` for a process that is not there."""
        raise NotImplementedError

    def answers_for(self, route: bytes) -> bool:
        """Whether this process may say that connections with this route are gone: whoever had them is not there."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class TransportSettings:
    """Everything a transport may be told by the configuration."""

    sections: Mapping[str, TransportSection] = field(default_factory=dict)
    """By name of the transport; see `section`."""
    tls: TlsSettings | None = None
    admission: AdmissionControl = field(default_factory=AdmissionControl, compare=False)
    """Listeners only; those of one server share it."""
    backlog: int = LISTEN_BACKLOG
    """Listeners only: connections that may wait to be accepted."""
    proxies: tuple[str, ...] = ()
    """Listeners only: networks whose connections begin with a header of the PROXY protocol."""
    route: bytes = b""
    """What tells a server from others behind the same address: dials show it to who stands between, where the transport
    has a place for it, and listeners put it into the ids that they issue. Empty = nothing does."""
    bound: socket.socket | None = field(default=None, compare=False)
    """Listeners only: the socket to listen on, in place of one for host and port."""
    steering: SocketSteering | None = field(default=None, compare=False)
    """Listeners only: the port is shared with other processes."""
    reset_key: bytes = field(default=b"", repr=False)
    """Listeners only: whoever has it too can tell peers that connections of this listener are gone. Empty = nobody."""

    def section(self, name: str, kind: type[S]) -> S:
        """What the transport `name` is told, in the class it was registered with; the defaults when nothing is said."""
        given = self.sections.get(name) or kind()
        if not isinstance(given, kind):
            raise TypeError(f"found {type(given).__name__} for the transport {name!r}; allowed: {kind.__name__}")
        return given


READ_TIME = 0.005  # seconds of one callback for reading and for what a sink does about it: others wait meanwhile


class ChannelSink(Protocol):
    """What a channel calls. Implemented by the session driver and by the server's reception."""

    @property
    def behind(self) -> bool:
        """It has no time for all that was delivered. A channel waits with more, and asks in each turn of the loop."""

    @property
    def proved(self) -> bool:
        """The peer has proved that it belongs to a session: it waits behind no strangers."""

    @property
    def waiting(self) -> int:
        """Bytes that would be written now if `credit()` were larger. A channel over several networks asks: whether a
        far one is of use depends on how much there is to send."""

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
    """MPTCP was asked for and it is plain TCP, or multipath QUIC and it is plain QUIC: known when a dial returns, in
    rare cases only later."""


class Channel(Protocol):
    """One live connection."""

    @property
    def info(self) -> ChannelInfo: ...

    def start(self, sink: ChannelSink) -> None:
        """Begin to deliver. Bytes that came earlier are delivered from the event loop, not from this call.

        Called again, it hands the channel over to another sink.
        """

    def write(self, buffers: Sequence[Buffer], lane: int) -> None:
        """Queue bytes in order on a lane; buffers are kept by reference and must not change. See `flush`.

        `MESSAGES` in place of a lane only where `info.message_size` is not 0: each buffer is a message, which may be
        lost, and is delivered whole in that place. Several that have come may be delivered as one.
        """

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


class QueueingChannel:
    """A channel that can keep queues below the session shorter: its own, at more wake-ups, and the network's."""

    def queue_less(self, less: bool) -> None:
        """More urgent bytes than those that wait may come at any time, or none will."""
        raise NotImplementedError

    def pace(self, rate: float) -> None:
        """Send at most so many bytes per second; 0.0 = as the congestion control wants."""
        raise NotImplementedError


class SpanningChannel:
    """A channel over several networks that has to be told which there are."""

    def use(self, sources: Sequence[Source], blocked: Collection[str] = ()) -> None:
        """These networks are there and wanted, and no others; interfaces that are `blocked` are left at once.

        One that is no `SteeredChannel` cannot leave any, and is closed instead.
        """
        raise NotImplementedError


class SteeredChannel(SpanningChannel):
    """One that decides by itself which of its networks carry what."""

    def network_lost(self, interface: str, address: str) -> None:
        """The system is certain: an interface has no carrier, or with `address` has lost that one."""
        raise NotImplementedError

    def signal_changed(self, interface: str, fading: bool) -> None:
        """A network grows weak while it still works, or is well again."""
        raise NotImplementedError

    def slept(self) -> None:
        """The machine was suspended: nothing is known of any network."""
        raise NotImplementedError

    def works_over(self, interfaces: Collection[str]) -> bool:
        """The peer answers over one of these."""
        raise NotImplementedError

    def prefer(self, interfaces: Collection[str]) -> None:
        """Let these alone carry everything while one of them works."""
        raise NotImplementedError


class Listener(Protocol):
    """A bound server socket."""

    @property
    def address(self) -> tuple[str, int]:
        """The address and port really bound."""

    @property
    def sock(self) -> TransportSocket:
        """As in asyncio's `Server.sockets`."""

    def close(self) -> None:
        """Stop accepting. Channels already accepted live on."""


@runtime_checkable
class CertifiedListener(Listener, Protocol):
    """One that shows a certificate."""

    def renew(self) -> Callable[[], None]:
        """Read the files of `ssl_config` again; return what makes them hold for connections to come.

        Raises TransportError, and changes nothing, when they cannot be used.
        """


AcceptCallback = Callable[[Channel], None]
"""Called for each incoming channel once its transport handshake is done; it calls `channel.start(sink)`."""


class Transport(Protocol):
    """A protocol family. Stateless: settings come with each call. Only `dial` and `listen` have to be there."""

    name: str

    def dial(self, candidate: Candidate, settings: TransportSettings) -> Awaitable[Channel]:
        """Connect, bound to `candidate.interface` and `candidate.local_address`.

        Raises TransportError with a readable reason. Cancelling it leaves no socket behind.
        """

    def listen(self, host: str, port: int, settings: TransportSettings, accept: AcceptCallback) -> Awaitable[Listener]:
        """Bind and accept. `host` `::` serves both families.

        Raises TransportError (port in use, no certificate).
        """

    def obstacle(self, settings: TransportSettings, *, listening: bool) -> str:
        """Why no connection can be opened or accepted here, whatever the network; empty when nothing is in the way."""
        return ""

    def host(self, settings: TransportSettings) -> list[str]:
        """What this host has of what the transport and its settings ask for, a line each."""
        return []

    def choice(self, settings: TransportSettings) -> str:
        """What the settings leave to this machine, and what it is here; empty where they leave nothing."""
        return ""

    def warnings(self, settings: TransportSettings) -> list[str]:
        """What this host does not do as the settings want it."""
        return []


@runtime_checkable
class BoundTransport(Transport, Protocol):
    """One that listens on a socket that somebody else has bound: `TransportSettings.bound`."""

    def open_socket(self, family: int) -> socket.socket:
        """A socket to bind for it. Raises OSError."""


Factory = TypeVar("Factory", bound=Callable[[], Transport])


def _together(_candidate: Candidate) -> str:
    return ""


@dataclass(frozen=True, slots=True)
class TransportType:
    """What is known of a transport by its name alone, before any connection needs its code."""

    name: str
    make: Callable[[], Transport]
    settings: type[TransportSection] = TransportSection
    """Its section of the configuration, `<name>_config`."""
    over_udp: bool = False
    """It listens on the UDP port; otherwise on the TCP port."""
    connection_memory: int = 12 * 1024
    """Bytes that a connection takes besides what waits in it, and without TLS on a TCP port."""
    spans_interfaces: bool = False
    """One connection uses all interfaces of an entry."""
    needs_certificate: bool = False
    """It always encrypts, so a server needs a certificate for it."""
    also_accepts: tuple[str, ...] = ()
    """Other transports whose connections its listener takes as well."""
    by_name_only: bool = False
    """A server accepts it only where `listen.transports` names it."""
    separately: str = ""
    """The transport of the connection over each further interface where one connection cannot use them all; empty =
    this one."""
    why_separately: Callable[[Candidate], str] = field(default=_together, compare=False)
    """Why one connection cannot use all interfaces of a candidate on this host now; an empty answer: it can."""
    shipped: bool = False
    """It comes with `multi`."""


_types: dict[str, TransportType] = {}
_loaded: set[str] = set()
"""Those whose code has been imported."""
_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")


def register_transport(
    name: str,
    *,
    settings: type[TransportSection] = TransportSection,
    over_udp: bool = False,
    connection_memory: int = 12 * 1024,
    spans_interfaces: bool = False,
    needs_certificate: bool = False,
    also_accepts: tuple[str, ...] = (),
    by_name_only: bool = False,
    separately: str = "",
    why_separately: Callable[[Candidate], str] = _together,
) -> Callable[[Factory], Factory]:
    """Decorator: make a transport available as `name` in entries and in `listen.transports`.

    The class or factory is called without arguments when the transport is first used. `settings` becomes the section
    `<name>_config`; the rest is described at `TransportType`. Registering a name again replaces the earlier transport,
    except that the names of this package are taken. Raises ConfigError.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(f"found {name!r} as a transport's name; allowed: at most 32 letters a-z, digits and _")

    def register(factory: Factory) -> Factory:
        shipped = factory.__module__.startswith("multi.transports.")
        if name in _types and _types[name].shipped and not shipped:
            raise ConfigError(f"transport name {name!r} is taken by multi; choose another")
        _loaded.discard(name)
        _types[name] = TransportType(
            name,
            cache(factory),
            settings,
            over_udp,
            connection_memory,
            spans_interfaces,
            needs_certificate,
            also_accepts,
            by_name_only,
            separately,
            why_separately,
            shipped,
        )
        return factory

    return register


def transport_type(name: str) -> TransportType:
    """What is known of the transport `name`. Raises ConfigError."""
    try:
        return _types[name]
    except KeyError:
        raise ConfigError(f"unknown transport {name!r}; known: {', '.join(transport_names())}") from None


def transport(name: str) -> Transport:
    """Return the transport registered under `name`. Raises ConfigError, and TransportError without what it needs."""
    kind = transport_type(name)
    try:
        made = kind.make()
    except ImportError as error:
        raise TransportError(str(DependencyError.of(f"transport {name}", error))) from error
    _loaded.add(name)
    return made


async def loaded_transport(name: str) -> Transport:
    """The same; its code is imported in a thread, for the sessions of the event loop have other work meanwhile."""
    if name not in _loaded and transport_type(name).shipped:
        return await asyncio.to_thread(transport, name)
    return transport(name)


def transport_names() -> list[str]:
    """All registered names, those first that ask least of the system and of the configuration."""
    known = _types.values()
    return [t.name for t in sorted(known, key=lambda t: (t.needs_certificate, t.spans_interfaces, t.name))]
