"""The server's sessions: which session a new connection belongs to. Pure.

It looks at the first segment of a connection, without believing it, and says where the bytes go: to a living session,
to a new one, or nowhere. What the segment proves is decided by that session's authenticator.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from multi.errors import RemoteProtocolError
from multi.protocol.handshake import GREETING_LENGTH, ORIGIN_LENGTH, Refuse, RefuseCode, greeting_of, reset_token
from multi.protocol.segment import HEADER_LENGTH, SUPPORTED_VERSIONS, SegmentType, encode, peek, route_of
from multi.types import ROUTE_LENGTH, Address, SessionId

T = TypeVar("T", bound=Hashable)
NO_PEERS: Mapping[bytes, Address] = {}


@dataclass(frozen=True, slots=True)
class Refused:
    """Answer with `reply` (may be empty) and close; `reason` is for the log."""

    reply: bytes
    reason: str
    limit: str = ""
    """Name of the limit that was reached (`limits` of a configuration), or empty."""


class SessionTable(Generic[T]):
    """Maps sessions to whatever the server keeps per session.

    A session is named by its Session ID and the HELLO it began with: until one of them is confirmed, several may want
    the same ID. Whoever confirms first owns it; what was never confirmed is in nobody's way.
    """

    def __init__(
        self,
        create: Callable[[SessionId, str], T],
        full: Callable[[str], tuple[str, str] | None] = lambda source: None,
        reset_key: bytes = b"",
        peers: Mapping[bytes, Address] = NO_PEERS,
        elsewhere: Callable[[bytes], bool] = lambda route: False,
    ) -> None:
        """`full(source)` says which limit leaves no room for a new session, and why; None = there is room.

        `peers` are other servers behind the same address, by their routes. `elsewhere(route)` is true where a living
        process with the same reset key has the sessions of a route: nothing may be said of them here.
        """
        self._create = create
        self._full = full
        self._reset_key = reset_key
        self._peers = peers
        self._elsewhere = elsewhere
        self._sessions: dict[SessionId, dict[bytes, T]] = {}
        """By Session ID and greeting."""
        self._names: dict[T, tuple[SessionId, bytes]] = {}
        """(Session ID, greeting)."""
        self._owned: dict[SessionId, T] = {}
        """By the ID of every confirmed session."""
        self._closed_to_new = False

    def __len__(self) -> int:
        return len(self._names)

    def values(self) -> list[T]:
        return list(self._names)

    def refuse_new(self) -> None:
        """Take no new sessions any more; JOINs are still taken."""
        self._closed_to_new = True

    def route(self, first: bytes | bytearray | memoryview, source: str) -> T | Refused | None:
        """Return the session for a connection whose first bytes are `first`; None = more bytes are needed.

        Raises RemoteProtocolError when the bytes are no MULTI segment.
        """
        if len(first) >= 1 and 0 < first[0] < 16 and first[0] not in SUPPORTED_VERSIONS:
            if len(first) < HEADER_LENGTH:
                return None
            session_id = SessionId(bytes(first[8:24]))
            return refusal(session_id, Refuse(RefuseCode.VERSION), f"version {first[0]}")
        peeked = peek(first)
        if peeked is None:
            return None
        type_, session_id = peeked
        if type_ not in (SegmentType.HELLO, SegmentType.JOIN):
            name = SegmentType(type_).name if type_ in SegmentType.__members__.values() else f"type {type_}"
            raise RemoteProtocolError(f"a connection that starts with {name}")
        if (payload := first_payload(first)) is None:
            return None  # half a HELLO costs a stranger nothing, so it shall not cost us a session
        if type_ == SegmentType.JOIN:
            origin = bytes(payload[:ORIGIN_LENGTH])
            found = self._sessions.get(session_id, {}).get(origin[:GREETING_LENGTH])
            if found is not None:
                return found
            route = route_of(first)
            if (peer := self._peer_of(route)) is not None:
                return refusal(session_id, Refuse(RefuseCode.ELSEWHERE, address=peer), "JOIN for another server")
            if self._elsewhere(route):
                return refusal(session_id, Refuse(RefuseCode.ELSEWHERE), "JOIN for another process of this server")
            token = reset_token(self._reset_key, session_id, origin, route) if self._reset_key else b""
            return refusal(session_id, Refuse(RefuseCode.UNKNOWN, token=token), "JOIN for an unknown session")
        part = bytes(payload[2 : 2 + int.from_bytes(payload[:2], "big")])
        return self._greeted(session_id, greeting_of(part), source)

    def _peer_of(self, route: bytes) -> Address | None:
        """Where the server of `route` is; each of its workers puts a byte of its own behind that filled with zeros."""
        if route in self._peers or len(route) < ROUTE_LENGTH:
            return self._peers.get(route)
        filled = ((known.ljust(ROUTE_LENGTH - 1, b"\0"), where) for known, where in self._peers.items())
        return next((where for known, where in filled if known == route[:-1]), None)

    def _greeted(self, session_id: SessionId, greeting: bytes, source: str) -> T | Refused:
        known = self._sessions.get(session_id, {}).get(greeting)
        if known is not None:
            return known
        if session_id in self._owned:
            return refusal(session_id, Refuse(RefuseCode.REFUSED), "HELLO for the Session ID of another")
        if self._closed_to_new:
            return refusal(session_id, Refuse(RefuseCode.GOING_AWAY), "the server is being stopped")
        if full := self._full(source):
            limit, reason = full
            return refusal(session_id, Refuse(RefuseCode.BUSY, limit=limit), reason)
        session = self._create(session_id, source)
        self._sessions.setdefault(session_id, {})[greeting] = session
        self._names[session] = session_id, greeting
        return session

    def confirmed(self, session: T) -> list[T]:
        """The client of `session` has proved itself: the ID is its own. Return those that wanted it, too."""
        session_id = self._names[session][0]
        self._owned[session_id] = session
        return [other for other in self._sessions[session_id].values() if other is not session]

    def remove(self, session: T) -> None:
        """It has ended."""
        name = self._names.pop(session, None)
        if name is None:
            return
        session_id, greeting = name
        del self._sessions[session_id][greeting]
        if not self._sessions[session_id]:
            del self._sessions[session_id]
        if self._owned.get(session_id) is session:
            del self._owned[session_id]


def first_payload(first: bytes | bytearray | memoryview) -> memoryview | None:
    """The payload of the segment that `first` begins with; None = it is not all there. `peek` has taken its header."""
    header, length = int.from_bytes(first[2:4], "big"), int.from_bytes(first[4:8], "big")
    return memoryview(first)[header:length] if len(first) >= length else None


def refusal(session_id: SessionId, refuse: Refuse, reason: str) -> Refused:
    """Say no in clear; `reason` is for the log."""
    return Refused(encode(SegmentType.REFUSE, session_id, refuse.encode()), reason, refuse.limit)
