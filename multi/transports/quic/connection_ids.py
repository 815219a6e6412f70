"""The ids under which peers reach connections: every one that an engine issues is made here."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property

from multi.types import ROUTE_LENGTH

RANDOM_LENGTH = 8  # bytes that nobody can guess; RFC 9000 section 7.2 asks for as many of a client's first


@dataclass(frozen=True)
class ConnectionIds:
    """The ids of a listener's connections, or of a client's; with a route, balancers read from them who is meant.

    That is the layout of draft-ietf-quic-load-balancers-21 without encryption (section 5.2): an octet with the
    configuration, 0, in 3 bits and the length of the rest in 5, a server id of ROUTE_LENGTH bytes, and a nonce.
    """

    route: bytes = b""
    """At most ROUTE_LENGTH bytes, zeros follow; empty = ids tell nobody anything."""

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


PLAIN_IDS = ConnectionIds()
