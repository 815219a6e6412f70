"""The server's sessions: which session a new connection belongs to. Pure.

It looks at the first segment of a connection, without believing it, and says where the bytes go: to a living session,
to a new one, or nowhere. What the segment proves is decided by that session's authenticator.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from multi.errors import RemoteProtocolError
from multi.protocol.handshake import REFUSED, REFUSED_BUSY, REFUSED_VERSION, Refuse
from multi.protocol.segment import HEADER_LENGTH, SUPPORTED_VERSIONS, SegmentType, encode, peek
from multi.types import SessionId

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TableLimits:
    """Most sessions at a time, in all and from one source address."""

    sessions: int = 10_000
    sessions_per_source: int = 64


@dataclass(frozen=True, slots=True)
class Refused:
    """Answer with `reply` (may be empty) and close; `reason` is for the log."""

    reply: bytes
    reason: str
    limit: str = ""
    """Name of the limit that was reached (`limits` of a configuration), or empty."""


class SessionTable(Generic[T]):
    """Maps Session IDs to whatever the server keeps per session."""

    def __init__(
        self, limits: TableLimits, create: Callable[[SessionId, str], T], full: Callable[[], str] = lambda: ""
    ) -> None:
        """`full()` says why there is no room for a new session, or returns an empty text."""
        self._limits = limits
        self._create = create
        self._full = full
        self._sessions: dict[SessionId, T] = {}
        self._sources: dict[SessionId, str] = {}
        self._per_source: Counter[str] = Counter()
        self._closed_to_new = False

    def __len__(self) -> int:
        return len(self._sessions)

    def values(self) -> list[T]:
        return list(self._sessions.values())

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
            return self._refusal(SessionId(bytes(first[8:24])), REFUSED_VERSION, f"version {first[0]}")
        peeked = peek(first)
        if peeked is None:
            return None
        type_, session_id = peeked
        if type_ not in (SegmentType.HELLO, SegmentType.JOIN):
            raise RemoteProtocolError(f"a connection that starts with {SegmentType(type_).name}")
        if (known := self._sessions.get(session_id)) is not None:
            return known
        if type_ == SegmentType.JOIN:
            return self._refusal(session_id, REFUSED, "JOIN for an unknown session")
        if self._closed_to_new:
            return self._refusal(session_id, REFUSED_BUSY, "the server is closing")
        if len(self._sessions) >= self._limits.sessions:
            return self._refusal(session_id, REFUSED_BUSY, f"{self._limits.sessions} sessions", "max_sessions")
        if self._per_source[source] >= self._limits.sessions_per_source:
            reason = f"{self._limits.sessions_per_source} sessions from {source}"
            return self._refusal(session_id, REFUSED_BUSY, reason, "max_sessions_per_source")
        if reason := self._full():
            return self._refusal(session_id, REFUSED_BUSY, reason, "max_memory")
        if len(first) < int.from_bytes(first[4:8], "big"):
            return None  # half a HELLO costs a stranger nothing, so it shall not cost us a session
        session = self._create(session_id, source)
        self._sessions[session_id] = session
        self._sources[session_id] = source
        self._per_source[source] += 1
        return session

    def remove(self, session_id: SessionId) -> None:
        """The session has ended."""
        if self._sessions.pop(session_id, None) is None:
            return
        source = self._sources.pop(session_id)
        self._per_source[source] -= 1
        if not self._per_source[source]:
            del self._per_source[source]

    @staticmethod
    def _refusal(session_id: SessionId, code: int, reason: str, limit: str = "") -> Refused:
        return Refused(encode(SegmentType.REFUSE, session_id, Refuse(code).encode()), reason, limit)
