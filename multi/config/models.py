"""`Config`: everything an application may say about its session, as one typed object.

One model serves both ends: with `connection_priority` it configures a client, with `listen` a server. It
decides nothing about the network; whether this machine can do what is asked is found out by those who use
it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, PrivateAttr, ValidationError

from multi.config import checks
from multi.config.entry import Entry
from multi.config.explain import as_written, explain
from multi.config.fields import Host, Port, Section, Text
from multi.config.findings import error_of
from multi.config.sections import (
    Auth,
    InterfaceKinds,
    Limits,
    Listen,
    MptcpConfig,
    MultiConfig,
    QuicConfig,
    SslConfig,
    TcpConfig,
    WifiConfig,
)
from multi.types import SESSION_ID_LENGTH, SessionId

if TYPE_CHECKING:
    from multi.transports.base import TcpSettings, TlsSettings, TransportSettings

__all__ = ["Config"]

_HEX_SESSION_ID = re.compile(r"[0-9a-fA-F]{32}")


def _current_directory() -> Path:
    try:
        return Path.cwd()
    except OSError:  # the directory was removed; absolute names in the configuration still work
        return Path()


class Config(Section):
    """Configuration of a MULTI session (client: `connection_priority`) or server (`listen`)."""

    connection_priority: Annotated[tuple[Entry, ...], Field(strict=False, min_length=1, max_length=64)] = ()
    """Client: the connections wanted, best first (paper III-B4). Each is a triple `[transport, ip,
    interface]` or an object. No default: which networks to use is what a client configuration is about."""
    listen: Listen | None = None
    """Server: where sessions are taken. Default null: this is a client configuration."""
    remote_host: Host | None = None
    """Client: host name or IP address of the server. Default null: every entry names its own."""
    remote_port: Port = 7788
    """Client: port of the server, for all transports. Default 7788: the default of `listen.port`."""
    session_id: Text = "random"
    """Client: `random`, 32 hexadecimal digits, or any text, of whose SHA-256 the first 16 bytes are used.
    Default `random`: sessions of several clients never collide."""
    multi_config: MultiConfig = MultiConfig()
    """How connections are opened and data is divided among them. On a server: what it sets is used instead of
    what clients ask for. Default: see its fields."""
    tcp_config: TcpConfig = TcpConfig()
    """TCP connections. Default: see its fields."""
    mptcp_config: MptcpConfig = MptcpConfig()
    """MPTCP connections. Default: see its fields."""
    quic_config: QuicConfig = QuicConfig()
    """QUIC connections. Default: see its fields."""
    ssl_config: SslConfig | None = None
    """TLS on TCP and MPTCP, certificates for QUIC. Default null: TCP and MPTCP are sealed by the session
    itself, a server offers no QUIC."""
    wifi_config: WifiConfig = WifiConfig()
    """Client: the WiFi link. Default: see its fields."""
    interfaces: InterfaceKinds = InterfaceKinds()
    """Client: which interfaces are `eth`, `wifi` and `cellular`. Default: recognised automatically."""
    protect: Literal["auto", "always", "never"] = "auto"
    """Sealing of segments by the session: `auto` where the transport does not encrypt, `always` also inside
    TLS and QUIC, `never` not at all. Default `auto`: everything is encrypted once."""
    auth: Auth | None = None
    """Pre-shared key that both ends must have. Default null: none; a certificate may still be required."""
    manage_routes: bool = False
    """Client: whether rules and routes by source address may be installed for interfaces whose packets would
    leave through another one; they go with the last session. Linux; needs CAP_NET_ADMIN, otherwise there is a
    warning. Default false: the network of the machine is not changed."""
    limits: Limits = Limits()
    """Bounds on what peers can make grow. Default: see its fields."""

    _base_directory: Path = PrivateAttr(default_factory=_current_directory)

    def __init__(self, /, **data: object) -> None:
        """Validate. Raises ConfigError naming every mistake, one line each."""
        try:
            super().__init__(**_without_impossible_quic(data))
        except ValidationError as error:
            from multi.config.schema import json_schema  # made from this class

            raise explain(error, data, json_schema()) from None
        findings = checks.contradictions(self)
        if findings:
            raise error_of(as_written(findings, data))

    # What it is

    @property
    def is_server(self) -> bool:
        return self.listen is not None

    @property
    def is_client(self) -> bool:
        return self.listen is None

    def check_entry(self, entry: Entry) -> None:
        """Raise ConfigError if `entry`, wanted besides those of this configuration, can never work."""
        findings = checks.entry_contradictions(self, entry)
        if findings:
            raise error_of(findings)

    def warnings(self) -> tuple[str, ...]:
        """What is accepted but has no effect or will probably not work, one line each."""
        return tuple(str(finding) for finding in checks.warnings_of(self))

    # Files

    @property
    def base_directory(self) -> Path:
        """Where file names in this configuration start: the directory of its file, or the current one."""
        return self._base_directory

    def located_in(self, directory: Path) -> Self:
        """The same configuration with file names relative to `directory`."""
        moved = self.model_copy()
        moved._base_directory = directory
        return moved

    def resolve(self, name: str) -> Path:
        """Path of a file named in this configuration. Opens nothing."""
        return self._base_directory / name

    @property
    def psk_path(self) -> Path | None:
        """File with the pre-shared keys, or None when none is configured or they are in the environment."""
        return self.resolve(self.auth.psk_file) if self.auth and self.auth.psk_file else None

    # Conversions for the parts that use it

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

    def kind_by_interface(self) -> dict[str, str]:
        """Configured kind of each interface named in `interfaces`."""
        kinds = InterfaceKinds.model_fields
        return {name: kind for kind in kinds for name in getattr(self.interfaces, kind)}

    def idle_timeout(self, transport: str) -> float:
        """Seconds without receiving after which a connection is given up; 0 = never for that alone."""
        if transport == "quic":
            return self.quic_config.idle_timeout
        return (self.mptcp_config if transport == "mptcp" else self.tcp_config).idle_timeout

    def transport_settings(self) -> TransportSettings:
        """What the transports need to know, with file names resolved. Opens no file."""
        from multi.transports.base import (
            QuicSettings,
            TransportSettings,
        )  # the I/O layer is not needed to load

        quic = self.quic_config
        return TransportSettings(
            tcp=_tcp_settings(self.tcp_config),
            mptcp=_tcp_settings(self.mptcp_config),
            quic=QuicSettings(
                idle_timeout=quic.idle_timeout,
                congestion=quic.congestion,
                max_datagram_size=quic.max_datagram_size,
                engine=quic.engine,
            ),
            tls=self._tls_settings(),
        )

    def _tls_settings(self) -> TlsSettings | None:
        from multi.transports.base import TlsSettings

        if self.ssl_config is None:
            return None
        ssl = self.ssl_config
        cert, key, ca, client_ca = (
            self.resolve(name) if name is not None else None for name in (ssl.cert, ssl.key, ssl.ca, ssl.client_ca)
        )
        if self.is_client and key is None:  # a certificate to trust, as in the paper's Figure 2
            cert, ca = None, ca or cert
        return TlsSettings(
            cert=cert,
            key=key,
            ca=ca,
            verify=ssl.verify,
            server_name=ssl.server_name or "",
            client_ca=client_ca,
            pins=ssl.pin,
        )


def _tcp_settings(section: TcpConfig) -> TcpSettings:
    from multi.transports.base import TcpSettings

    return TcpSettings(nagle=section.nagle, idle_timeout=section.idle_timeout, congestion=section.congestion)


def _without_impossible_quic(data: dict[str, object]) -> dict[str, object]:
    """Make the default of `listen.transports` what the server can do: QUIC always needs a certificate."""
    listen, ssl = data.get("listen"), data.get("ssl_config")
    has_certificate = isinstance(ssl, SslConfig) or (isinstance(ssl, dict) and "cert" in ssl)
    if not isinstance(listen, dict) or "transports" in listen or has_certificate:
        return data
    return {**data, "listen": {**listen, "transports": ["tcp", "mptcp"]}}
