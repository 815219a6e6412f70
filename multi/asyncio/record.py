"""What is told of a session: its events as they come, its connections, those that have ended too, and its figures."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping
from typing import Protocol
from weakref import WeakSet

from multi.asyncio.info import ConnectionInfo, connection_info
from multi.asyncio.stats import SessionStats, Tallies, Tally
from multi.asyncio.subscription import EventListener
from multi.events import (
    AddressesAnnounced,
    AttemptFailed,
    BudgetChanged,
    ConnectionChanged,
    Event,
    GoingAway,
    SessionDetached,
    Warned,
)
from multi.protocol.connection import Connection
from multi.protocol.session import SessionCore
from multi.transports.base import Channel
from multi.types import ConnectionId

logger = logging.getLogger("multi.session")

KEPT = 64  # ended connections, and warnings, that are told of later
ENDED_MEMORY = 1024  # bytes that an ended one is counted for (measured: 500 to 2,000, by what its peer said last)


class OpenConnection(Protocol):
    """A connection whose socket is open."""

    @property
    def channel(self) -> Channel: ...


class SessionRecord:
    """Of one session; owned by its driver, which gives it each event."""

    __slots__ = ("_announced", "_core", "_ended", "_links", "_listeners", "_past", "_warnings", "unreached")

    def __init__(self, core: SessionCore, links: Mapping[ConnectionId, OpenConnection]) -> None:
        self._core = core
        self._links = links
        self._ended: dict[ConnectionId, ConnectionInfo] = {}
        self._past = Tallies()
        """The connections that have ended and that the core has forgotten."""
        self._warnings: deque[Warned | BudgetChanged] = deque(maxlen=KEPT)
        self._announced: AddressesAnnounced | None = None
        self._listeners: WeakSet[EventListener] = WeakSet()
        self.unreached = ""
        """With no connection left, why the last attempt has failed."""

    # --- events ---

    def put(self, event: Event) -> None:
        """Log it, remember what has to be, and tell who listens."""
        session_id = self._core.session_id.hex()
        about: dict[str, object] = {"session": session_id}
        if isinstance(event, ConnectionChanged):
            facts = event.facts
            where = f"{facts.transport} {facts.interface or facts.local}"
            state, reason = event.state, event.reason
            text = "session %s connection %d (%s) %s: %s"
            about["connection"] = event.connection
            logger.info(text, session_id[:8], event.connection, where, state.value, reason, extra=about)
            if state.over:
                self._remember(event.connection)
        elif isinstance(event, Warned | BudgetChanged):
            logger.warning("%s", event.message if isinstance(event, Warned) else event, extra=about)
            self._warnings.append(event)
        else:
            logger.debug("session %s %s", session_id[:8], event, extra=about)
            if isinstance(event, AddressesAnnounced):
                self._announced = event
            elif isinstance(event, AttemptFailed):
                self.unreached = str(event.reason)
            elif isinstance(event, SessionDetached):
                self.unreached = ""
        if len(self._listeners):  # walking an empty set of weak references takes longer than all the rest
            for listener in list(self._listeners):
                listener.put(event)

    def known(self) -> list[Event]:
        """Where a listener begins: one ConnectionChanged per current connection.

        Earlier warnings follow, and what the server has said last of its addresses and its end: all of it may come
        before anybody can listen.
        """
        core = self._core
        first: list[Event] = [ConnectionChanged(c.id, c.state, c.reason, c.facts) for c in core.connections.values()]
        first += self._warnings
        if self._announced is not None:
            first.append(self._announced)
        if core.ends_in is not None:
            first.append(GoingAway(core.ends_in))
        return first

    def listen(self, listener: EventListener) -> None:
        """Tell it what happens from now on, as long as somebody else holds it."""
        self._listeners.add(listener)

    def end(self) -> None:
        """The session is over."""
        for listener in list(self._listeners):
            listener.end()

    # --- connections ---

    def connections(self) -> tuple[ConnectionInfo, ...]:
        """Living and ended connections, in order of id."""
        infos = {c.id: self._info(c) for c in self._core.connections.values()} | self._ended
        return tuple(infos[key] for key in sorted(infos))

    def _info(self, connection: Connection) -> ConnectionInfo:
        link = self._links.get(connection.id)
        return connection_info(connection, link.channel.info if link is not None else None)

    def _remember(self, connection: ConnectionId) -> None:
        ended = self._core.connections.get(connection)
        if ended is None:
            return
        self._ended[connection] = self._info(ended)
        self._past.count([ended])
        while len(self._ended) > KEPT:
            del self._ended[next(iter(self._ended))]
        self._core.forget_connection(connection)

    # --- figures ---

    @property
    def memory(self) -> int:
        """Bytes kept of connections that have ended."""
        return ENDED_MEMORY * len(self._ended)

    def tally(self, tallies: Tallies) -> None:
        """Count every connection there ever was."""
        tallies.merge(self._past)
        tallies.count(self._core.connections.values())

    def stats(self, now: float, memory: int) -> SessionStats:
        """What the session has done and does now; `memory`: bytes that it keeps."""
        core, tallies, total = self._core, Tallies(), Tally()
        self.tally(tallies)
        for tally in tallies.values():
            total.merge(tally)
        return SessionStats(
            id=core.session_id.hex(),
            side=core.side,
            state=core.state,
            scheduler=core.scheduling.policy.scheduler,
            peer=core.peer_psk_id or "",
            idle=max(0.0, now - core.moved_at),
            streams=len(core.receiver.streams),
            memory=memory,
            bytes_sent=total.bytes_sent,
            bytes_received=total.bytes_received,
            payload_received=total.payload_received,
            reinjected=total.reinjected,
            in_flight=total.in_flight,
            unsent=sum([stream.unsent for stream in core.sender.active.values()]),
            window_blocked=core.sender.blocked_by_window,
            connections=self.connections(),
        )
