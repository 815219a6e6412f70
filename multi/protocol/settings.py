"""What a session is told at birth: windows, timers, protection, limits. Values only."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from multi.protocol.handshake import NOWHERE, Whereabouts
from multi.protocol.payloads import Policy
from multi.protocol.sealing import Cipher


class Protect(Enum):
    """Which connections the session seals itself: those the transport leaves open, all, or none."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"

    def seals(self, secure: bool) -> bool:
        return self is Protect.ALWAYS or (self is Protect.AUTO and not secure)


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """Bytes and seconds. The defaults are the documented ones, but for `max_connections`: a configuration says 8."""

    initial_window: int = 64 * 1024
    """Window of the session and of stream 0 before anything is known of the peer; other streams get it once known."""
    max_stream_window: int = 16 * 1024 * 1024
    """Hard cap: sum of rates times the longest loaded round trip, twice, for 400 Mbit/s and 160 ms."""
    max_session_window: int = 32 * 1024 * 1024
    """What the windows of streams grow to together, beside the MAX_EARLY_DATA each of them begins with."""
    max_streams: int = 128
    """Streams the peer may have open at a time."""
    protect: Protect = Protect.AUTO
    ciphers: tuple[Cipher, ...] = (Cipher.AES_128_GCM, Cipher.CHACHA20_POLY1305)
    policy: Policy = field(default_factory=Policy)
    """How this side sends."""
    peer_policy: Policy | None = None
    """How the peer shall send; None = as this side does. Clients only."""
    follow_peer_policy: bool = True
    """Servers: take the client's scheduler unless the server's own configuration says otherwise."""
    follow_peer_reinject: bool = True
    """The same for when bytes are sent again on another connection."""
    handshake_timeout: float = 5.0
    resume_timeout: float = 60.0
    abandon_timeout: float = 2.0
    """The same after the peer itself has closed all connections without a word; 0 = that changes nothing. Servers."""
    idle_timeout: float = 60.0
    """A connection on which nothing was received for so long is lost; per transport, see `idle_timeouts`."""
    idle_timeouts: tuple[tuple[str, float], ...] = ()
    datagrams: bool = True
    """Whether this side says that it takes datagrams."""
    linger: float = 1.0
    """How long a closing session waits for the peer's CLOSE; longer where a few round trips are longer."""
    max_connections: int = 16
    """On which the peer has proved itself."""
    max_unproved: int = 16
    """Connections on which it has not, yet."""
    whereabouts: Whereabouts = NOWHERE
    """Servers: where clients shall join."""
    reset_key: bytes = field(default=b"", repr=False)
    """Servers: from it come the tokens that say that a session is not held any more."""
    psk: bytes = field(default=b"", repr=False)
    psk_id: bytes = b""
    warnings: tuple[str, ...] = ()
    """Doubts about the settings themselves, for the application to hear when the session begins."""

    def idle_timeout_of(self, transport: str) -> float:
        return dict(self.idle_timeouts).get(transport, self.idle_timeout)


KEEPALIVE_INTERVAL = 15.0  # seconds; a third of the idle timeout where that is shorter
MAX_EARLY_DATA = 64 * 1024  # bytes a client may send before ACCEPT, and either side on a stream it opens
# How many of those our clients send: about what a new connection carries until ACCEPT comes (RFC 6928). The
# proof comes behind them, and behind more it took longer on slow networks than a server waits for it.
AHEAD_OF_PROOF = 16 * 1024
