"""What can be written in a configuration: every key with its type, its range, its default and what it means.

One model serves both ends: with `connection_priority` it configures a client, with `listen` a server. A key is declared
here and nowhere else, except those of a transport, which stand in `multi/transports/<name>/settings.py`. The texts
below the keys are what the JSON Schema and `docs/configuration.md` say of them.

Each type (`multi.config.values`) refuses what can never be right. Whether an interface, host or file exists is found
out later, by those who use it: a configuration can be checked on another machine than the one it is for.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal, Self, get_args

from pydantic import (
    AfterValidator,
    Field,
    PrivateAttr,
    field_validator,
    model_validator,
)

from multi.config.errors import TRIPLE, not_one_of, shown
from multi.config.values import (
    AnnouncedHost,
    Bytes,
    Count,
    FileName,
    HostName,
    InterfaceChoices,
    InterfaceNames,
    KeyFileName,
    KeyName,
    Label,
    NetworkList,
    Pin,
    Port,
    RoleName,
    RouteName,
    SchedulerName,
    Seconds,
    Text,
    TransportName,
    VariableName,
    WorkerCount,
    literal_address,
)
from multi.schedulers.base import DEFAULT_SCHEDULER, MAX_PARAMETER_NAME, MAX_PARAMETERS
from multi.schedulers.steering import PREFIX
from multi.transports import TransportSection, TransportSettings, transport_names
from multi.transports.base import TlsSettings, transport_type
from multi.transports.settings import Range, Section
from multi.types import SESSION_ID_LENGTH, Address, Role, SessionId, Side

MIB = 1 << 20
MIN_RATE = 0.001  # Mbit/s; a cap below 1 kbit/s is a mistake in the unit, and would round to "no cap"
BYTES_PER_MEGABIT = 125_000
MAX_TOLD = 4  # addresses of a server; the wire format takes no more
AUTO_ROUTE_LENGTH = 7  # bytes; the last of ROUTE_LENGTH is for what one server is divided into
EndRole = Literal["backup", "never"]
END_ROLES = get_args(EndRole)
_HEX_SESSION_ID = re.compile(r"[0-9a-fA-F]{32}")

# --- sections ---
# Defaults are constructed, not validated: importing this would take a tenth longer with a validator for each section.
# `Side.CLIENT` and `Side.SERVER` beside a type: the key means nothing on the other side, which is warned of it.


class BudgetEnd(Section):
    """What becomes of an entry whose data budget is used up: a role by itself, or an object."""

    role: EndRole | None = None
    """Its role until the next period. Default null: as before."""
    max_rate_mbps: Annotated[float, Range(MIN_RATE, 1_000_000.0)] | None = None
    """Highest sending rate in each direction until the next period, in Mbit/s. Default null: as before."""

    @property
    def max_rate(self) -> float:
        """Bytes per second in each direction; 0 = as before."""
        return (self.max_rate_mbps or 0.0) * BYTES_PER_MEGABIT

    @model_validator(mode="before")
    @classmethod
    def _from_role(cls, value: object) -> object:
        if value in END_ROLES:
            return {"role": value}
        if not isinstance(value, dict | BudgetEnd) or not value:
            raise not_one_of(END_ROLES, further=", or an object with role or max_rate_mbps")
        return value

    def __str__(self) -> str:
        rate = f"at most {self.max_rate_mbps:g} Mbit/s" if self.max_rate_mbps else ""
        return ", ".join(filter(None, (self.role, rate)))


class Budget(Section):
    """How much data a network may carry in a while, kept on disk for all programs of this user."""

    mb: Annotated[float, Range(0.001, 1_000_000_000.0)]
    """Megabytes (10^6 bytes) in both directions together, repeats and headers of segments included, those of IP and
    transport not always. Required: it is what a budget is."""
    per: Literal["day", "week", "month"] = "month"
    """Calendar period, in local time, after which counting begins anew. Default `month`: as most contracts."""
    reset_day: Annotated[int, Range(1, 31)] = 1
    """First day of a period: of the month, its last day where it has fewer, or of the week, Monday = 1. Default 1."""
    then: BudgetEnd = BudgetEnd.model_construct(role="backup")
    """What becomes of it when all is used up, until the next period: it is a `backup`, `never` used, or slowed down to
    `{"max_rate_mbps": 1}`. Default `backup`: better than no network."""
    name: Label = ""
    """What it is counted under; budgets of one name share what they have used. Default empty: the entry's `group`, or
    its interfaces as they are written."""

    @property
    def bytes(self) -> int:
        """The same in bytes."""
        return round(self.mb * 1e6)


class Entry(Section):
    """A connection the session should have. Written as `[transport, ip, interface]` or as an object."""

    transport: TransportName
    """Transport protocol: `tcp`, `quic`, `mptcp`, `mpquic` or a registered name. Required: it is what an entry is
    about."""
    ip: Literal["ipv4", "ipv6", "any"]
    """IP version. `any` tries both, IPv6 first (RFC 8305). Required, as in the paper's triple."""
    interface: InterfaceChoices
    """Where the connection may go out: a kind (`eth`, `wifi`, `cellular`, `any`), an interface name, a local
    IP address, or a list of them; `ethernet`, `lte`, `4g` and `5g` are kinds by another name. tcp and quic open
    one connection per interface, mptcp and mpquic one over all of them. Required: choosing networks is the
    point."""
    role: RoleName = Role.ACTIVE
    """`active` or `primary` carries data, `secondary` what the active connections have not coped with for a second,
    `backup` is open and idle until none of these is usable, `never` is not opened. Default `active`: all networks are
    used."""
    weight: Annotated[float, Range(0.001, 1000.0)] = 1.0
    """Share of this connection relative to the others, for schedulers that use weights (WRR). No unit.
    Default 1: equal shares."""
    max_rate_mbps: Annotated[float, Range(0.0, 1_000_000.0)] = 0.0
    """Highest sending rate in each direction, in Mbit/s; 0 or at least 0.001. Default 0: no cap, congestion
    control decides."""
    cost: Annotated[float, Range(0.0, 1_000_000.0)] = 0.0
    """Price of a byte relative to the other entries, for schedulers that look at it (cost). No unit. Default
    0: free."""
    group: Label = ""
    """Entries with the same group are alternatives: the first that works is kept. Default empty: the entry
    stands alone and is always opened."""
    budget: Budget | None = None
    """How much data it may carry; entries of its `group` without a budget share it, that of one added later once it has
    had a connection. Default null: any amount."""
    remote_host: HostName | None = None
    """Host name or IP address for this entry only. Default null: the top-level `remote_host`."""
    remote_port: Port | None = None
    """Port for this entry only. Default null: the top-level `remote_port`."""

    @property
    def max_rate(self) -> float:
        """Bytes per second in each direction; 0 = no cap."""
        return self.max_rate_mbps * BYTES_PER_MEGABIT

    @model_validator(mode="before")
    @classmethod
    def _from_triple(cls, value: object) -> object:
        if isinstance(value, dict | Entry):
            return value
        if not isinstance(value, list | tuple) or len(value) != len(TRIPLE):
            raise ValueError(f"a list of 3, [{', '.join(TRIPLE)}], or an object")
        return dict(zip(TRIPLE, value, strict=True))

    @field_validator("max_rate_mbps")
    @classmethod
    def _rate_is_sensible(cls, rate: float) -> float:
        if 0 < rate < MIN_RATE:
            raise ValueError(f"0 (no cap) or at least {MIN_RATE}, in Mbit/s")
        return rate


class SchedulerSpec(Section, extra="allow"):
    """A scheduler with its parameters. All other keys are parameters, numbers without unit."""

    __pydantic_extra__: dict[str, float] = Field(init=False)

    name: SchedulerName
    """Name of the scheduler: one that `multi` ships, a registered one, or `package.module:Class`. Required: an object
    without it would only be parameters."""

    @property
    def parameters(self) -> dict[str, float]:
        """The parameters, to be passed as keyword arguments."""
        return dict(self.__pydantic_extra__)

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: object) -> object:
        if not isinstance(value, str | dict | SchedulerSpec):
            raise ValueError("a name, or an object with name and parameters")
        return {"name": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _parameters_are_names(self) -> SchedulerSpec:
        if len(self.__pydantic_extra__) > MAX_PARAMETERS:
            raise ValueError(f"at most {MAX_PARAMETERS} parameters")
        for name in self.__pydantic_extra__:
            if not (name.isascii() and name.isidentifier() and len(name) <= MAX_PARAMETER_NAME):
                raise ValueError(f"parameters with Python names in ASCII, unlike {shown(name)}")
        return self


class MultiConfig(Section):
    """How the session opens its connections and divides the data among them (paper Figure 2, `multi_config`)."""

    connect: Annotated[Literal["seq", "par", "stag"], Side.CLIENT] = "stag"
    """Order of connection attempts: `seq` one after another, `par` all at once, `stag` one every 250 ms, or
    at once when one fails. Default `stag`: nearly as fast as `par`, without its load (RFC 8305)."""
    wait: Annotated[Literal["first", "all"], Side.CLIENT] = "first"
    """When the session counts as open: after the `first` connection, or after `all` attempts have ended.
    Default `first`: data flows as early as possible, further connections join later."""
    open_timeout: Annotated[Seconds, Side.CLIENT] = 10.0
    """Seconds until opening the session fails. Default 10: long enough for three retries of a lost
    SYN (1 + 2 + 4 s)."""
    scheduler: SchedulerSpec = SchedulerSpec.model_construct(name=DEFAULT_SCHEDULER)
    """Which connection carries the next segment: a name, or an object with `name` and parameters. Default
    `adaptive` (earliest arrival): close to the sum of all paths and never slower than the best one."""
    mode: Annotated[Literal["aggregate", "switch"], Side.CLIENT] = "aggregate"
    """`aggregate` uses all connections, `switch` the best one while the next stands by. Default `aggregate`:
    faster, and a dying network costs less."""
    resume_timeout: Annotated[float, Range(0.0, 604_800.0)] = 60.0
    """Seconds a session without any connection waits for a new one; 0 = it is lost at once. Connections that end before
    anything arrives that was to be sent gain no time. Both sides tell theirs, and the smaller one holds. Default 60: a
    lift, a tunnel or a reboot of the access point, and the time Linux MPTCP allows."""
    abandon_timeout: Annotated[float, Range(0.0, 604_800.0), Side.SERVER] = 2.0
    """The same where the client itself has closed or reset all connections without a word, as when its process
    was killed; 0 = `resume_timeout` holds. Default 2: a client that lives dials at once, and is back by then from any
    network that works."""
    reinject: Literal["off", "rescue", "full"] = "full"
    """Sending unacknowledged bytes again on another connection: `off` only when their connection is dead,
    `rescue` also when it is suspect, `full` also when that delivers earlier. Default `full`: no stall when a
    path slows down, at the price of some duplicates."""


class SteeringSpec(Section):
    """What is wanted of several connections: a mode, and thresholds that take a connection out and let it back."""

    mode: Literal["latency", "balance", "priority", "standby", "redundant", "adaptive"]
    """What decides: `latency` the lowest round trip, and lone messages of up to 4 KiB also over the next lowest while
    the best loses packets or varies much, `balance` shares by `weight`, `priority` the largest `weight` first and what
    it cannot take over the next, `standby` the largest `weight` alone, `redundant` everything on all, `adaptive`
    earliest arrival. Of equal weights the cheapest and then the first opened is best. Required: it is what steering
    is."""
    max_rtt_ms: Annotated[float, Range(0.0, 3_600_000.0)] = 0.0
    """Round trip in milliseconds above which a connection gets nothing new, until it was below four fifths of that for
    a second or has rested for 10 s, longer each time; 0 = none. Default 0: no network is too slow for everybody."""
    max_loss: Annotated[float, Range(0.0, 1.0)] = 0.0
    """The same for the share of bytes its transport sends again, as far as that is known; 0 = none. Default 0: as for
    `max_rtt_ms`."""

    @property
    def scheduler(self) -> tuple[str, dict[str, float]]:
        """The scheduler that does it, as the peer is told, and its parameters."""
        asked = {"max_rtt": self.max_rtt_ms / 1000, "max_loss": self.max_loss}
        return PREFIX + self.mode, {name: value for name, value in asked.items() if value}

    @model_validator(mode="before")
    @classmethod
    def _from_mode(cls, value: object) -> object:
        return {"mode": value} if isinstance(value, str) else value


class SslConfig(Section):
    """TLS 1.3 for TCP and MPTCP, and the certificates for QUIC (paper Figure 2, `ssl_config`)."""

    cert: FileName | None = None
    """PEM file. Server: its certificate chain. Client: with `key` its own certificate, without `key` a
    certificate to trust, as in the paper. Default null: none."""
    key: FileName | None = None
    """PEM file with the private key of `cert`. Default null: none."""
    ca: Annotated[FileName | None, Side.CLIENT] = None
    """PEM file with the certificates a client trusts. Default null: `cert` if it has no `key`, otherwise the
    system's authorities."""
    tls: Literal["TLS_v3", "TLSv1.3"] = "TLSv1.3"
    """TLS version; `TLS_v3` is the paper's spelling of 1.3. Default and only version 1.3: older ones have
    known weaknesses, and QUIC cannot use them."""
    verify: Annotated[bool, Side.CLIENT] = True
    """Whether a client checks the server's certificate. Default true: without it anybody on the way can read
    and change everything."""
    server_name: Annotated[HostName | None, Side.CLIENT] = None
    """Name the server's certificate must carry, and the TLS server name (SNI). Default null: the remote host."""
    client_ca: Annotated[FileName | None, Side.SERVER] = None
    """Server: PEM file with the certificates that client certificates must chain to; clients without one are
    refused. Default null: clients need no certificate."""
    pin: Annotated[tuple[Pin, ...], Field(strict=False, max_length=16)] = ()
    """Pins of the other side's certificate, at least one of which must fit: `sha256/` and the Base64 of the SHA-256 of
    its SubjectPublicKeyInfo (RFC 7469), as `multi cert` and `multi check` show it. They are checked besides `verify`,
    and instead of it when that is false. On a server they are for clients, whose certificates `client_ca` verifies.
    Default empty: verification is enough."""


class WifiConfig(Section):
    """The WiFi link itself (paper Figure 2, `wifi_config`)."""

    power_savings: bool | None = None
    """Whether WiFi interfaces in use may save power while the session lives; what was found is put back
    afterwards. False: no packet waits for a sleeping card (100 ms and more), and the battery empties sooner.
    Linux; needs CAP_NET_ADMIN, otherwise there is a warning. Default null: not touched."""


class InterfaceKinds(Section):
    """Which interfaces are of which kind. Names listed here win over what is recognised automatically."""

    eth: InterfaceNames = ()
    """Names of wired interfaces. Default empty: recognised automatically."""
    wifi: InterfaceNames = ()
    """Names of WiFi interfaces. Default empty: recognised automatically."""
    cellular: InterfaceNames = ()
    """Names of mobile network interfaces (4G, 5G). Default empty: recognised automatically."""
    loopback: InterfaceNames = ()
    """Names of loopback interfaces. Default empty: recognised automatically."""
    virtual: InterfaceNames = ()
    """Names of bridges, tunnels and the like, which lead to no network of their own. Default empty:
    recognised automatically."""


class Auth(Section):
    """Who may open a session: a pre-shared key, mixed into the session keys and proved on opening."""

    psk_file: KeyFileName | None = None
    """File with the pre-shared keys, one `id:hex` a line; both ends need the same. A file and not the key itself: a
    configuration may be readable by others. Default null: they are in the environment (`psk_env`)."""
    psk_env: VariableName | None = None
    """Name of the environment variable with the pre-shared keys, `id:hex` separated by commas or newlines. Default
    null: they are in a file (`psk_file`)."""
    psk_id: KeyName | None = None
    """Name of the key, at most 64 bytes, sent in clear so that the server knows which key is meant.
    Default null: the first key."""
    strict: bool = False
    """Whether keys of less than 32 bytes are refused. Default false: there is a warning."""


class ServerAddress(Section):
    """Where clients reach a server: an IP address, `ADDRESS:PORT`, or an object."""

    host: AnnouncedHost
    """IP address. Required: a port alone leads nowhere."""
    port: Port | None = None
    """Port. Default null: that of `listen.port`, and in `announce` that of `listen.own` where it has one."""

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: object) -> object:
        if isinstance(value, dict | ServerAddress):
            return value
        if not isinstance(value, str):
            raise ValueError("an IP address, ADDRESS:PORT, or an object with host and port")
        host, colon, port = value.rpartition(":")
        if literal_address(value) is not None or not (colon and port.isascii() and port.isdigit()):
            return {"host": value}
        return {"host": host.removeprefix("[").removesuffix("]"), "port": int(port)}


class Listen(Section):
    """Where a server takes sessions. Its presence makes the configuration one for a server."""

    host: HostName = "::"
    """Address to listen on. Default `::`: all addresses, IPv6 and IPv4."""
    port: Annotated[int, Range(0, 65_535)] = 7788
    """Port, the same for all transports: TCP and MPTCP take the TCP port, QUIC the UDP port; 0 = a free one,
    chosen by the system. Default 7788: the default of the client's `remote_port`."""
    reset_key_file: KeyFileName | None = None
    """File with a secret of at least 32 bytes in hex, with which the server proves to clients that it no longer holds
    their sessions: after a restart with the same key they are told at once. Only servers that know each other's
    sessions may share it. Default null: the server makes one for its host and port and keeps it in
    `$XDG_STATE_HOME/multi/reset-keys`; where it cannot, and with port 0, there is a new one for each start."""
    transports: Annotated[
        tuple[TransportName, ...],
        Field(strict=False, min_length=1, max_length=16),
        AfterValidator(lambda names: tuple(dict.fromkeys(names))),
    ] = tuple(
        name for name in transport_names() if transport_type(name).shipped and not transport_type(name).by_name_only
    )
    """Transports to accept. Default all but mpquic, so that clients can choose; without `ssl_config` only tcp and
    mptcp, because QUIC cannot work without a certificate. `mpquic` takes plain QUIC too, with its own engine."""
    own: ServerAddress | None = None
    """Where clients reach this server and no other one, past the balancer it is behind: an IP address, `ADDRESS:PORT`,
    or an object with `host` and `port`. They are told, and try it first; another port than `port` is listened on as
    well. Default null: it is behind none."""
    announce: Annotated[tuple[ServerAddress, ...], Field(strict=False, max_length=MAX_TOLD)] = ()
    """Further IP addresses of this server, with a port or without, told to clients that have proved themselves: they
    try them before those its name has. With `own` at most 4. Default none: the name's addresses are all."""
    join: Literal["anywhere", "own"] = "anywhere"
    """Where further connections of a session shall go: with `own` only to the addresses told, not to the one that the
    first connection went to, because that leads to other servers too. Default `anywhere`: that one leads here."""
    route: RouteName | None = None
    """Token that tells this server from others behind the same balancer, which finds it in JOIN, in ALPN and in QUIC's
    connection ids: 1 to 8 bytes in hex, or `auto` for a random one at each start. It is visible on the network.
    Default null: none."""
    peers: dict[RouteName, ServerAddress] = Field({}, max_length=1024)
    """Other servers behind the same balancer, address by route: a connection that came here instead is told where to
    go. Default none: it is told that its session is unknown here."""
    proxies: NetworkList = ()
    """IP addresses or networks of proxies and load balancers that clients come through. When one restarts, all its
    connections end as if the clients had died, so `multi_config.abandon_timeout` does not apply to them. Default
    none."""
    proxy_protocol: NetworkList = ()
    """Proxies that begin each TCP and MPTCP connection with a header of the PROXY protocol, version 2, before TLS; they
    need not be named in `proxies` too. The address in the header is taken for the client's, so limits per source hold
    for each client. Connections of theirs without the header are refused, and nobody else's header is believed. Default
    none."""

    @property
    def ports(self) -> tuple[int, ...]:
        """Those to listen on; 0 = a free one."""
        own = (self.own.port,) if self.own is not None and self.own.port is not None else ()
        return tuple(dict.fromkeys((self.port, *own)))

    def told(self, port: int) -> tuple[Address, ...]:
        """What clients are told of where the server is that listens on `port`."""
        own = (self.own,) if self.own is not None else ()
        default = (self.own.port if self.own is not None else None) or port
        return tuple((place.host, place.port or default) for place in (*own, *self.announce))

    def route_bytes(self, entropy: Callable[[int], bytes]) -> bytes:
        """The token of this server, empty without one; `entropy(n)` gives n random bytes."""
        if self.route == "auto":
            return entropy(AUTO_ROUTE_LENGTH)
        return bytes.fromhex(self.route or "")

    def peer_addresses(self) -> dict[bytes, Address]:
        """Where other servers are, by their tokens."""
        return {bytes.fromhex(route): (place.host, place.port or self.port) for route, place in self.peers.items()}


class Control(Section):
    """How the people who run a server or a client see into it and steer it (docs/operations.md)."""

    socket: FileName | None = None
    """Unix socket for `multi top` and for metrics, which only the process's own user may open; `auto` = in
    `$XDG_RUNTIME_DIR/multi`, where `multi top` finds it. Default null: none."""
    metrics_port: Annotated[int, Range(0, 65_535)] | None = None
    """Port of 127.0.0.1 that answers `GET /metrics` in Prometheus' text format, to every user of this machine; 0 = a
    free one. Default null: none."""


class Trace(Section):
    """A trace of each session as a file (docs/tracing.md)."""

    dir: FileName
    """Directory for them, which is made where it is missing; each has a name of its own. Required: where they go."""
    max_mb: Annotated[float, Range(0.25, 100_000.0)] = 32.0
    """Size of one at most, in megabytes (10^6 bytes): as it fills, figures are noted more and more rarely. Default 32:
    two busy connections for an hour at ten notes a second, and for half a day with ever fewer."""

    @property
    def max_size(self) -> int:
        """The same in bytes."""
        return round(self.max_mb * 1e6)


class Limits(Section):
    """Bounds on what peers can make grow."""

    max_sessions: Annotated[Count, Side.SERVER] = 10_000
    """Sessions of a server at the same time. Default 10000: more than one process serves well."""
    max_sessions_per_source: Annotated[Count, Side.SERVER] = 2500
    """Sessions from one source (IPv4 /24, IPv6 /56); beyond that its own longest idle one goes. One source may take
    the same share of `max_memory`, at least half. Default 2500: many behind one address, and never all."""
    max_unauthenticated: Annotated[Count, Side.SERVER] = 4096
    """Connections of a server that have not said which session they want, and as many sessions that nobody has
    confirmed. Default 4096: they are short-lived, and the busiest source goes first."""
    max_unauthenticated_per_source: Annotated[Count, Side.SERVER] = 1024
    """The same from one source. Default 1024: after a restart all come at once, also from behind one address."""
    handshake_timeout: Annotated[float, Range(0.1, 300.0)] = 5.0
    """Seconds each step of a connection's handshake may take: TLS or QUIC, the first segment, the proof. Default 5:
    three retransmissions on a slow mobile network."""
    segment_timeout: Annotated[float, Range(0.1, 3600.0), Side.SERVER] = 30.0
    """Seconds within which a connection that has begun a segment must finish it, or bring at least 1 KiB more of it in
    each such time. Default 30: a network that stalls for longer is not worth having."""
    max_connections_per_session: Annotated[int, Range(1, 256), Side.SERVER] = 8
    """Connections of one session. Default 8: three networks, two transports, and room for a handover."""
    max_pending_joins: Annotated[int, Range(2, 256), Side.SERVER] = 16
    """Connections of one session that have not proved themselves yet; when there are more, the oldest JOIN goes for a
    fresh one, and a repeated HELLO is refused. Default 16: all connections of a session may come at once, twice."""
    max_detached_sessions: Annotated[Count, Side.SERVER] = 1000
    """Sessions of a server that wait for their client to come back; when there are more, the longest waiting of the
    source with most of them ends. Default 1000: a tenth of the sessions."""
    max_streams: Annotated[int, Range(1, 65_536)] = 128
    """Streams of one session that the peer may have open. Default 128: what HTTP/2 servers usually allow."""
    max_stream_window: Bytes = 16 * MIB
    """Most bytes buffered for one stream until the application reads them. Default 16 MiB: 1.3 Gbit/s at 100 ms."""
    max_session_window: Bytes = 32 * MIB
    """Most bytes to which the windows of a session's streams grow together. Each stream has 64 KiB beside that, so none
    is stopped by others that nobody reads. Default 32 MiB: one stream leaves as much to the others."""
    max_send_buffer: Bytes = 16 * MIB
    """Most bytes a session keeps until the peer acknowledges them; above it `drain()` waits on streams that have more
    than an equal share. Default 16 MiB: as much as the peer buffers for a stream."""
    max_memory: Annotated[int, Range(MIB, 1 << 40), Side.SERVER] = 1024 * MIB
    """Most bytes kept for all sessions of a server, what their windows allow clients to send included, with 20 KiB
    for each session, 12 KiB for each connection (60 under TLS, 96 over QUIC) and 3 KiB for each stream; windows stop
    growing at three quarters of it, beyond an equal share already at half of that, new sessions are refused when all is
    taken. Default 1 GiB: 48 streams at full window, or 10000 sessions that are new."""


def _current_directory() -> Path:
    try:
        return Path.cwd()
    except OSError:  # the directory was removed; absolute names in the configuration still work
        return Path()


class ConfigModel(Section):
    """The keys of a configuration and what they mean for the parts that use it. `Config` checks them together."""

    connection_priority: Annotated[tuple[Entry, ...], Field(strict=False, min_length=1, max_length=64)] = ()
    """Client: the connections wanted, best first (paper III-B4). Each is a triple `[transport, ip,
    interface]` or an object. No default: which networks to use is what a client configuration is about."""
    listen: Listen | None = None
    """Server: where sessions are taken. Default null: this is a client configuration."""
    remote_host: Annotated[HostName | None, Side.CLIENT] = None
    """Client: host name or IP address of the server. Default null: every entry names its own."""
    remote_port: Annotated[Port, Side.CLIENT] = 7788
    """Client: port of the server, for all transports. Default 7788: the default of `listen.port`."""
    session_id: Annotated[Text, Side.CLIENT] = "random"
    """Client: `random`, 32 hexadecimal digits, or any text, of whose SHA-256 the first 16 bytes are used.
    Default `random`: sessions of several clients never collide."""
    multi_config: MultiConfig = MultiConfig.model_construct()
    """How connections are opened and data is divided among them. On a server: what it sets is used instead of
    what clients ask for. Default: see its fields."""
    steering: SteeringSpec | None = None
    """How data is divided among the connections, in the words of 3GPP's ATSSS: a mode, or an object with `mode` and
    thresholds. It replaces `multi_config.scheduler`; only one of the two may be given. Default null: the scheduler
    decides."""
    ssl_config: SslConfig | None = None
    """TLS on TCP and MPTCP, certificates for QUIC. Default null: TCP and MPTCP are sealed by the session
    itself, a server offers no QUIC."""
    wifi_config: Annotated[WifiConfig, Side.CLIENT] = WifiConfig.model_construct()
    """Client: the WiFi link. Default: see its fields."""
    interfaces: Annotated[InterfaceKinds, Side.CLIENT] = InterfaceKinds.model_construct()
    """Client: which interfaces are `eth`, `wifi` and `cellular`. Default: recognised automatically."""
    protect: Literal["auto", "always", "never"] = "auto"
    """Sealing of segments by the session: `auto` where the transport does not encrypt, `always` also inside
    TLS and QUIC, `never` not at all. Default `auto`: everything is encrypted once."""
    auth: Auth | None = None
    """Pre-shared key that both ends must have. Default null: none; a certificate may still be required."""
    manage_routes: Annotated[bool, Side.CLIENT] = False
    """Client: whether rules and routes by source address may be installed for interfaces whose packets would
    leave through another one; they go with the last session. Linux; needs CAP_NET_ADMIN, otherwise there is a
    warning. Default false: the network of the machine is not changed."""
    control: Control | None = None
    """Local sockets for looking into a server, or into the session of a client, and for giving it orders. Default null:
    none."""
    trace: Trace | None = None
    """What sessions do, written to files while they do it: for `multi trace`, and for tools that read qlog. Default
    null: nothing is written."""
    workers: Annotated[WorkerCount | None, Side.SERVER] = None
    """Server: processes that share its port and its limits, each with a core of its own where there are enough, for
    `multi serve`, `multi bench serve` and `multi.run_server`; `auto` = one for each core this process may use. A parent
    supervises them. Linux. Default null: this process serves, and needs no other."""
    worker_timeout: Annotated[float | None, Range(1.0, 86_400.0), Side.SERVER] = 30.0
    """Server: seconds for which a worker may hang, its event loop held up by a handler that computes or waits without
    `await`; then it is killed and started again, and its sessions are lost. Null: it may hang for ever. Default 30."""
    drain_timeout: Annotated[float, Range(0.0, 604_800.0), Side.SERVER] = 25.0
    """Server: seconds that sessions get to end when the server is stopped by SIGTERM or `drain`; meanwhile clients can
    move to another server. Default 25: Kubernetes kills after 30."""
    limits: Limits = Limits.model_construct()
    """Bounds on what peers can make grow. Default: see its fields."""
    comment: str | None = None
    """For people who read the file: JSON has no comments. It has no effect. Default null: nothing to say."""

    _base_directory: Path = PrivateAttr(default_factory=_current_directory)

    @property
    def is_server(self) -> bool:
        return self.listen is not None

    def located_in(self, directory: Path) -> Self:
        """The same configuration with file names relative to `directory`."""
        moved = self.model_copy()
        moved._base_directory = directory
        return moved

    def resolve(self, name: str) -> Path:
        """Path of a file named in this configuration, whose own directory (or the current one) it starts at."""
        return self._base_directory / name

    def with_workers(self, workers: int | Literal["auto"]) -> Self:
        """The same configuration with so many workers."""
        return self.model_copy(update={"workers": workers})

    @property
    def worker_count(self) -> int | None:
        """Processes that serve besides this one, which supervises; None = this one serves."""
        if self.workers != "auto":
            return self.workers
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

    @property
    def control_path(self) -> Path | None:
        """The control socket; without a directory the name `auto` stands for one that is chosen."""
        name = self.control.socket if self.control is not None else None
        if name is None:
            return None
        return Path(name) if name == "auto" else self.resolve(name)

    def with_traces(self, directory: Path) -> Self:
        """The same configuration with traces in `directory`."""
        trace = self.trace or Trace.model_construct()
        return self.model_copy(update={"trace": trace.model_copy(update={"dir": str(directory)})})

    @property
    def trace_path(self) -> Path | None:
        """The directory for traces, or None when none are wanted."""
        return self.resolve(self.trace.dir) if self.trace is not None else None

    @property
    def psk_path(self) -> Path | None:
        """File with the pre-shared keys, or None when none is configured or they are in the environment."""
        return self.resolve(self.auth.psk_file) if self.auth and self.auth.psk_file else None

    @property
    def scheduler(self) -> tuple[str, dict[str, float]]:
        """The scheduler that `steering` or `multi_config.scheduler` asks for, and its parameters."""
        if self.steering is not None:
            return self.steering.scheduler
        return self.multi_config.scheduler.name, self.multi_config.scheduler.parameters

    @property
    def division(self) -> str:
        """How data is divided among connections, for people: `scheduler RR`, `steering latency`."""
        return (
            f"scheduler {self.multi_config.scheduler.name}"
            if self.steering is None
            else f"steering {self.steering.mode}"
        )

    def session_id_bytes(self, entropy: Callable[[int], bytes]) -> SessionId:
        """The 16 bytes of the Session ID (paper Table 3); `entropy(n)` gives n random bytes."""
        if self.session_id == "random":
            return SessionId(entropy(SESSION_ID_LENGTH))
        if _HEX_SESSION_ID.fullmatch(self.session_id):
            return SessionId(bytes.fromhex(self.session_id))
        return SessionId(hashlib.sha256(self.session_id.encode()).digest()[:SESSION_ID_LENGTH])

    def remote_of(self, entry: Entry) -> tuple[str, int]:
        """Host and port an entry connects to."""
        return entry.remote_host or self.remote_host or "", entry.remote_port or self.remote_port

    def section_of(self, transport: str) -> TransportSection:
        """The section `<transport>_config`."""
        section = getattr(self, f"{transport}_config", None)
        # A transport registered since this configuration was loaded has its defaults.
        return section if isinstance(section, TransportSection) else transport_type(transport).settings()

    def transport_settings(self) -> TransportSettings:
        """What the transports need to know, with file names resolved. Opens no file."""
        return TransportSettings({name: self.section_of(name) for name in transport_names()}, self._tls_settings())

    def _tls_settings(self) -> TlsSettings | None:
        ssl = self.ssl_config
        if ssl is None:
            return None
        cert, key, ca, client_ca = (
            self.resolve(name) if name is not None else None for name in (ssl.cert, ssl.key, ssl.ca, ssl.client_ca)
        )
        if not self.is_server and key is None:  # a certificate to trust, as in the paper's Figure 2
            cert, ca = None, ca or cert
        return TlsSettings(cert, key, ca, ssl.verify, ssl.server_name or "", client_ca, ssl.pin)
