"""The ids under which peers reach connections: every one that an engine issues is made here, and its reset token."""

from __future__ import annotations

import hmac
import os
from dataclasses import dataclass, field
from functools import cached_property

from multi.types import ROUTE_LENGTH

RANDOM_LENGTH = 8  # bytes that nobody can guess; RFC 9000 section 7.2 asks for as many of a client's first
TOKEN_LENGTH = 16  # bytes of a stateless reset token
RESET_LABEL = b"multi1 quic reset "  # the key is that of sessions' reset tokens too


@dataclass(frozen=True)
class ConnectionIds:
    """The ids of a listener's connections, or of a client's; with a route, balancers read from them who is meant.

    That is the layout of draft-ietf-quic-load-balancers-21 without encryption (section 5.2): an octet with the
    configuration, 0, in 3 bits and the length of the rest in 5, a server id of ROUTE_LENGTH bytes, and a nonce.
    """

    route: bytes = b""
    """At most ROUTE_LENGTH bytes, zeros follow; empty = ids tell nobody anything."""
    reset_key: bytes = field(default=b"", repr=False)
    """Of a server: who has it can say in its place that a connection is gone. Empty = nobody can."""
    port: int = 0
    """That it listens on: at another one of its ports nobody knows which connections there are."""

    @cached_property
    def _start(self) -> bytes:
        rest = ROUTE_LENGTH + RANDOM_LENGTH
        return bytes([rest]) + self.route.ljust(ROUTE_LENGTH, b"\0") if self.route else b""

    @property
    def length(self) -> int:
        """Bytes of each: a server finds a connection by as many of any packet."""
        return len(self._start) + RANDOM_LENGTH

    def new(self) -> bytes:
        """One that nobody can guess."""
        return self._start + os.urandom(RANDOM_LENGTH)

    def are_of(self, connection_id: bytes) -> bool:
        """Whether it looks like one of these, which all do where there is no route."""
        return connection_id.startswith(self._start)

    def route_in(self, connection_id: bytes) -> bytes:
        """The route of an id in this layout, with the zeros; empty if it has none."""
        if not self.route or len(connection_id) != self.length or connection_id[0] != self._start[0]:
            return b""
        return connection_id[1 : 1 + ROUTE_LENGTH]

    def reset_token(self, connection_id: bytes) -> bytes:
        """What tells the peer that nobody has the connection of this id any more (RFC 9000 section 10.3.2)."""
        if not self.reset_key:
            return os.urandom(TOKEN_LENGTH)
        what = RESET_LABEL + self.port.to_bytes(2, "big") + connection_id
        return hmac.digest(self.reset_key, what, "sha256")[:TOKEN_LENGTH]


PLAIN_IDS = ConnectionIds()
