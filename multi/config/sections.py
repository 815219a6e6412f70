"""The sections of a configuration: `multi_config`, one per transport, `ssl_config`, `listen`, `limits`
and others.

Every field says what it is, its unit and why its default; the JSON Schema and `multi schema` print these
texts.
"""

from __future__ import annotations

from ipaddress import ip_address
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from multi.config.fields import (
    Bytes,
    Count,
    EnvironmentName,
    FileName,
    Host,
    InterfaceName,
    KeyFileName,
    KeyName,
    Pin,
    SchedulerName,
    Seconds,
    Section,
    TransportName,
)
from multi.config.findings import refusal, shown

__all__ = [
    "Auth",
    "InterfaceKinds",
    "Limits",
    "Listen",
    "MptcpConfig",
    "MultiConfig",
    "QuicConfig",
    "SchedulerSpec",
    "SslConfig",
    "TcpConfig",
    "WifiConfig",
]

MIB = 1 << 20
MAX_PARAMETERS = 16  # of a scheduler; the handshake carries no more
MAX_PARAMETER_NAME = 64  # characters; they travel in the handshake


class SchedulerSpec(Section, extra="allow"):
    """A scheduler with its parameters. All other keys are parameters, numbers without unit."""

    __pydantic_extra__: dict[str, float] = Field(init=False)

    name: SchedulerName
    """Name of the scheduler: `adaptive`, `RR`, `WRR`, `lowest_latency` (alias `LL`), `top_latency`,
    `top_throughput`, `BLEST`, `ECF`, `redundant`, `cost`, a registered name, or `package.module:Class`."""

    @property
    def parameters(self) -> dict[str, float]:
        """The parameters, to be passed as keyword arguments."""
        return dict(self.__pydantic_extra__)

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: object) -> object:
        return {"name": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _parameters_are_names(self) -> SchedulerSpec:
        if len(self.__pydantic_extra__) > MAX_PARAMETERS:
            raise refusal(f"found {len(self.__pydantic_extra__)} parameters; allowed: at most {MAX_PARAMETERS}")
        for name in self.__pydantic_extra__:
            if not (name.isascii() and name.isidentifier() and len(name) <= MAX_PARAMETER_NAME):
                raise refusal(f"found a parameter named {shown(name)}; allowed: a Python name in ASCII")
        return self


class MultiConfig(Section):
    """How the session opens its connections and divides the data among them (paper Figure 2,
    `multi_config`)."""

    connect: Literal["seq", "par", "stag"] = "stag"
    """Order of connection attempts: `seq` one after another, `par` all at once, `stag` one every 250 ms, or
    at once when one fails. Default `stag`: nearly as fast as `par`, without its load (RFC 8305)."""
    wait: Literal["first", "all"] = "first"
    """When the session counts as open: after the `first` connection, or after `all` attempts have ended.
    Default `first`: data flows as early as possible, further connections join later."""
    open_timeout: Seconds = 10.0
    """Seconds until opening the session fails. Default 10: long enough for three retries of a lost
    SYN (1 + 2 + 4 s)."""
    scheduler: SchedulerSpec = SchedulerSpec(name="adaptive")
    """Which connection carries the next segment: a name, or an object with `name` and parameters. Default
    `adaptive` (earliest arrival): close to the sum of all paths and never slower than the best one."""
    mode: Literal["aggregate", "switch"] = "aggregate"
    """`aggregate` uses all connections, `switch` the best one while the next stands by. Default `aggregate`:
    faster, and a dying network costs less."""
    resume_timeout: float = Field(default=60.0, ge=0.0, le=604_800.0)
    """Seconds a session without any connection waits for a new one; 0 = it is lost at once. Default 60: a
    lift, a tunnel or a reboot of the access point, and the time Linux MPTCP allows."""
    reinject: Literal["off", "rescue", "full"] = "full"
    """Sending unacknowledged bytes again on another connection: `off` only when their connection is dead,
    `rescue` also when it is suspect, `full` also when that delivers earlier. Default `full`: no stall when a
    path slows down, at the price of some duplicates."""


class TcpConfig(Section):
    """TCP connections (paper Figure 2, `tcp_config`)."""

    nagle: bool = False
    """Whether the kernel may hold back small segments (Nagle's algorithm, RFC 896). Default false: the
    session coalesces small writes itself, waiting again would only add latency."""
    idle_timeout: float = Field(default=60.0, ge=0.0, le=86_400.0)
    """Seconds without receiving anything after which a connection is given up; 0 = never for that reason
    alone. Keep-alives go every min(15 s, a third of it). Default 60: four keep-alives in a row were lost."""
    congestion: str = Field(default="", max_length=15, pattern=r"^[A-Za-z0-9_-]*$")
    """Congestion control of the kernel, for example `cubic` or `bbr` (Linux `TCP_CONGESTION`). Default empty:
    the system's own default, which its owner has chosen; inside this machine `reno`, which does not pace."""


class MptcpConfig(TcpConfig):
    """MPTCP connections (paper Figure 2, `mptcp_config`)."""

    scheduler: str = Field(default="", max_length=15, pattern=r"^[A-Za-z0-9_-]*$")
    """The kernel's MPTCP scheduler. Linux has one per host and not per connection: a name that is not the one
    in force is reported as a warning and changes nothing. Default empty: whatever the host uses."""


class QuicConfig(Section):
    """QUIC connections (paper Figure 2, `quic_config`)."""

    idle_timeout: Seconds = 60.0
    """Seconds without receiving anything after which a connection is given up (RFC 9000 section 10.1; the
    smaller value of both ends counts). Keep-alives go every min(15 s, a third of it). Default 60: as for
    TCP."""
    congestion: Literal["cubic", "reno"] = "cubic"
    """Congestion control. Default `cubic`: recovers faster than Reno on fast or long paths (RFC 9438)."""
    max_datagram_size: int = Field(default=1350, ge=1200, le=65_527)
    """Largest UDP payload sent, in bytes; 1200 is the minimum of RFC 9000 section 14. Where the system knows that
    the path carries less, less is sent; it does not probe for more. Default 1350: fits through usual tunnels and mobile
    networks."""
    engine: Literal["aioquic", "qh3"] = "aioquic"
    """QUIC implementation; both ends may use different ones. `qh3` is several times as fast and has to be installed
    (`pip install 'multi-session[qh3]'`); its congestion control is always `cubic`, and on a server it cannot ask for
    client certificates (`client_ca`). Default `aioquic`: it is always there, and can all of this."""


class SslConfig(Section):
    """TLS 1.3 for TCP and MPTCP, and the certificates for QUIC (paper Figure 2, `ssl_config`)."""

    cert: FileName | None = None
    """PEM file. Server: its certificate chain. Client: with `key` its own certificate, without `key` a
    certificate to trust, as in the paper. Default null: none."""
    key: FileName | None = None
    """PEM file with the private key of `cert`. Default null: none."""
    ca: FileName | None = None
    """PEM file with the certificates a client trusts. Default null: `cert` if it has no `key`, otherwise the
    system's authorities."""
    tls: Literal["TLS_v3", "TLSv1.3"] = "TLSv1.3"
    """TLS version; `TLS_v3` is the paper's spelling of 1.3. Default and only version 1.3: older ones have
    known weaknesses, and QUIC cannot use them."""
    verify: bool = True
    """Whether a client checks the server's certificate. Default true: without it anybody on the way can read
    and change everything."""
    server_name: Host | None = None
    """Name the server's certificate must carry, and the TLS server name (SNI). Default null: the remote
    host."""
    client_ca: FileName | None = None
    """Server: PEM file with the certificates that client certificates must chain to; clients without one are
    refused. Default null: clients need no certificate."""
    pin: Annotated[tuple[Pin, ...], Field(strict=False, max_length=16)] = ()
    """Pins of the other side's certificate, at least one of which must fit: `sha256/` and the Base64 of the SHA-256 of
    its SubjectPublicKeyInfo (RFC 7469), as `multi cert` and `multi check` show it. They are checked besides `verify`,
    and instead of it when that is false. On a server they are for clients, whose certificates `client_ca` verifies.
    Default empty: verification is enough."""

    @field_validator("tls", mode="before")
    @classmethod
    def _no_older_tls(cls, value: object) -> object:
        if isinstance(value, str) and value not in ("TLS_v3", "TLSv1.3"):
            raise refusal(f'found {shown(value)}; allowed: "TLS_v3", "TLSv1.3" (versions before TLS 1.3 are refused)')
        return value


class WifiConfig(Section):
    """The WiFi link itself (paper Figure 2, `wifi_config`)."""

    power_savings: bool | None = None
    """Whether WiFi interfaces in use may save power while the session lives; what was found is put back
    afterwards. False: no packet waits for a sleeping card (100 ms and more), and the battery empties sooner.
    Linux; needs CAP_NET_ADMIN, otherwise there is a warning. Default null: not touched."""


InterfaceNames = Annotated[tuple[InterfaceName, ...], Field(strict=False, max_length=64)]


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
    psk_env: EnvironmentName | None = None
    """Name of the environment variable with the pre-shared keys, `id:hex` separated by commas or newlines. Default
    null: they are in a file (`psk_file`)."""
    psk_id: KeyName | None = None
    """Name of the key, at most 64 bytes, sent in clear so that the server knows which key is meant.
    Default null: the first key."""


MAX_ANNOUNCED = 8  # addresses; the wire format takes no more


class Listen(Section):
    """Where a server takes sessions. Its presence makes the configuration one for a server."""

    host: Host = "::"
    """Address to listen on. Default `::`: all addresses, IPv6 and IPv4."""
    port: int = Field(default=7788, ge=0, le=65_535)
    """Port, the same for all transports: TCP and MPTCP take the TCP port, QUIC the UDP port; 0 = a free one,
    chosen by the system. Default 7788: the default of the client's `remote_port`."""
    transports: Annotated[tuple[TransportName, ...], Field(strict=False, min_length=1, max_length=16)] = (
        "tcp",
        "mptcp",
        "quic",
    )
    """Transports to accept. Default all three, so that clients can choose; without `ssl_config` only tcp and
    mptcp, because QUIC cannot work without a certificate."""
    announce: Annotated[tuple[str, ...], Field(strict=False, max_length=MAX_ANNOUNCED)] = ()
    """Further IP addresses of this server, told to clients that have proved themselves: they use them as
    alternatives to those its name has, with the same port. Default none: the name's addresses are all."""

    @field_validator("announce")
    @classmethod
    def _announced_are_addresses(cls, announced: tuple[str, ...]) -> tuple[str, ...]:
        for literal in announced:
            try:
                address = ip_address(literal)
            except ValueError:
                raise refusal(f"found {shown(literal)}; allowed: IP addresses") from None
            if address.is_unspecified or address.is_multicast or address.is_link_local:
                raise refusal(f"found {shown(literal)}; allowed: addresses that clients elsewhere can reach")
        return announced

    @field_validator("transports")
    @classmethod
    def _transports_are_distinct(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for position, name in enumerate(names):
            if name in names[:position]:
                raise refusal(f"found {shown(name)} twice; allowed: each transport once")
        return names


class Limits(Section):
    """Bounds on what peers can make grow."""

    max_sessions: Count = 10_000
    """Sessions of a server at the same time. Default 10000: more than one process serves well."""
    max_sessions_per_source: Count = 64
    """Sessions from one source (IPv4 /24, IPv6 /56). Default 64: an office behind one address, and no
    flood."""
    max_unauthenticated: Count = 1024
    """Connections of a server that have not proved anything yet. Default 1024: they are short-lived; when
    full, the oldest of the busiest address of the busiest source goes first."""
    max_unauthenticated_per_source: Count = 32
    """The same from one source. Default 32: several clients may start together, one cannot fill the table."""
    handshake_timeout: Annotated[float, Field(ge=0.1, le=300.0)] = 5.0
    """Seconds each step of a connection's handshake may take: TLS or QUIC, the first segment, the proof. Default 5:
    three retransmissions on a slow mobile network."""
    segment_timeout: Annotated[float, Field(ge=0.1, le=3600.0)] = 30.0
    """Seconds in which a connection that has begun a segment must end it or bring 1 KiB more of it for each.
    Default 30: longer than a network that is worth having stalls."""
    max_connections_per_session: Annotated[int, Field(ge=1, le=256)] = 8
    """Connections of one session. Default 8: three networks, two transports, and room for a handover."""
    max_joins_per_second: Annotated[float, Field(ge=0.1, le=10_000.0)] = 10.0
    """JOINs one session may make per second in the long run; more are refused. Default 10: all networks at once and
    again a second later."""
    max_join_burst: Annotated[int, Field(ge=1, le=10_000)] = 20
    """JOINs one session may make at once. Default 20: every connection of a session comes back twice."""
    max_pending_joins: Annotated[int, Field(ge=1, le=256)] = 8
    """Connections of one session that have not proved themselves yet; when there are more, the oldest goes.
    Default 8: all connections of a session may come at once."""
    max_detached_sessions: Count = 1000
    """Sessions of a server that wait for their client to come back; when there are more, the longest waiting ends.
    Default 1000: a tenth of the sessions."""
    max_streams: Annotated[int, Field(ge=1, le=65_536)] = 128
    """Streams of one session that the peer may have open. Default 128: what HTTP/2 servers usually allow."""
    max_stream_window: Bytes = 16 * MIB
    """Most bytes buffered for one stream until the application reads them. Default 16 MiB: 1.3 Gbit/s at 100
    ms."""
    max_session_window: Bytes = 16 * MIB
    """Most bytes buffered for all streams of a session; the smaller of this and the stream's window counts.
    Default 16 MiB: one stream may use all of it."""
    max_send_buffer: Bytes = 16 * MIB
    """Most bytes a session keeps until the peer acknowledges them; `drain()` waits above it. Default 16 MiB:
    as much as the peer buffers."""
    max_memory: Annotated[int, Field(ge=MIB, le=1 << 40)] = 1024 * MIB
    """Most bytes kept for all sessions of a server, what their windows allow clients to send included; windows stop
    growing at three quarters of it, beyond an equal share already at half of that, new sessions are refused when all
    is taken. Default 1 GiB: 48 sessions at full window, or 10000 at 100 KiB."""
