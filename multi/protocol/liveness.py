"""What becomes of connections that are silent, late or drained: questions, suspicion, rescue, the end. Pure.

It decides when a connection is SUSPECT, when it has recovered, when a drained one may be closed, and which of them is
asked for a sign of life or for a window. What a connection carries is left to the sender and the outbox.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from multi.protocol.connection import Connection
from multi.protocol.control import Outbox
from multi.protocol.outgoing import Outgoing
from multi.protocol.output import Output
from multi.protocol.payloads import DrainStep, Keepalive, encode_drain, encode_keepalive
from multi.protocol.receiver import Receiver
from multi.protocol.segment import SegmentType
from multi.protocol.sender import Sender
from multi.protocol.settings import KEEPALIVE_INTERVAL, SessionSettings
from multi.protocol.state import Lifecycle, Phase, Step
from multi.reasons import Cause, Reason
from multi.types import ConnectionId, ConnectionState, Side

DEAD_AFTER = 4.0  # seconds SUSPECT while another connection lives; TCP needs seconds to find its way back
DEAD_AFTER_LAST = 10.0  # seconds SUSPECT when it is the last one
ASK_SUSPECT = 0.2  # seconds between questions to a suspect connection, at least
ASK_GROWTH, MAX_ASK_INTERVAL = 1.5, 1.0  # how that grows, and to what: an overloaded peer is not asked to death
MIN_PROBE, MAX_PROBE = 0.2, 5.0  # seconds between questions for a window that may have been lost

NO_PROGRESS = Reason(Cause.NO_PROGRESS, "no progress")
NO_PROGRESS_DRAINING = Reason(Cause.NO_PROGRESS, "no progress while draining")
SILENT = Reason(Cause.NO_PROGRESS, "silent for too long")
DRAINED = Reason(Cause.DRAINED, "drained")
DRAINED_HERE = Reason(Cause.DRAINED, "drained by this side")
DRAINED_BY_PEER = Reason(Cause.DRAINED, "drained by the peer")
HEARD = Reason(Cause.RECOVERED, "the peer was heard")
PROGRESSED = Reason(Cause.RECOVERED, "the transport made progress")


class EndsConnections(Protocol):
    """The session, as far as its connections can end."""

    def disconnect(
        self, connection: Connection, reason: Reason, *, abort: bool, state: ConnectionState = ConnectionState.LOST
    ) -> None:
        """Give up one connection; what it carried is rescued."""


class Liveness:
    """Watches over all connections of one session.

    Two clocks run for what was sent. The transport's: nothing it carries was acknowledged for srtt + 4 rttvar + 50 ms.
    The session's: the peer has acknowledged nothing for clearly longer, although the transport claims progress, as a
    middlebox that ends TCP itself lets it do.

                    either clock runs out                silent for seconds more
        ACTIVE ───────────────────────────> SUSPECT ───────────────────────────────> LOST
          ▲   what it carries goes elsewhere    │   asked every 0.2 to 1 s
          └─────────────────────────────────────┘
                   heard, or progress made

    Suspicion is cheap and reversible: it costs copies, not the connection. The peer is told, because it may see the
    silence later or not at all. A connection that only receives acknowledges at least every half of that time, so that
    a healthy one is not suspected because acknowledgements take another path.
    """

    def __init__(
        self,
        side: Side,
        settings: SessionSettings,
        lifecycle: Lifecycle,
        connections: Mapping[ConnectionId, Connection],
        sender: Sender,
        receiver: Receiver,
        outbox: Outbox,
        outgoing: Outgoing,
        output: Output,
        session: EndsConnections,
    ) -> None:
        self._side = side
        self._settings = settings
        self._lifecycle = lifecycle
        self._connections = connections
        self._sender = sender
        self._receiver = receiver
        self._outbox = outbox
        self._outgoing = outgoing
        self._output = output
        self._session = session
        self.probe_at: float | None = None
        """When the peer is asked for its window; None = nothing waits for it."""
        self._probe_wait = MIN_PROBE
        self._ping = 0

    def check(self, connection: Connection, now: float) -> None:
        """Do what is due for a living connection."""
        settings = self._settings
        if connection.state is ConnectionState.AUTHENTICATING:
            if now >= connection.created_at + settings.handshake_timeout:
                text = f"no answer to MULTI's handshake within {settings.handshake_timeout:g} s"
                if self._side is Side.CLIENT and not connection.bytes_received:
                    text = f"the peer does not speak MULTI ({text})"
                self._session.disconnect(connection, Reason(Cause.HANDSHAKE_TIMEOUT, text), abort=True)
            elif (late := self._early_data_late_at(connection)) is not None and now >= late:
                connection.early_data_moved = True
                self._sender.lose(connection)
            return
        if now >= connection.heard_at + settings.idle_timeout_of(connection.transport):
            text = f"nothing received for {settings.idle_timeout_of(connection.transport):g} s"
            self._session.disconnect(connection, Reason(Cause.IDLE_TIMEOUT, text), abort=True)
            return
        deadline = connection.suspect_at()
        if deadline is not None and now >= deadline:
            if connection.state is ConnectionState.ACTIVE:
                self.suspect(connection, NO_PROGRESS, now, tell=DrainStep.SILENT)
            elif connection.state is ConnectionState.DRAINING:
                self._session.disconnect(connection, NO_PROGRESS_DRAINING, abort=True)
                return
        if connection.state is ConnectionState.SUSPECT:
            if now >= connection.suspect_since + self._dead_after(connection):
                self._session.disconnect(connection, SILENT, abort=True)
                return
            if now >= self._ask_at(connection):
                connection.ask_after = min(connection.ask_after * ASK_GROWTH, MAX_ASK_INTERVAL)
                self._send_ping(connection, now)
        elif now >= connection.sent_at + self._keepalive_interval(connection):
            self._send_ping(connection, now)
        if connection.ack_keepalive_due and now >= connection.ack_keepalive_due:
            connection.ack_wanted = True
            connection.ack_keepalive_due = 0.0

    def deadlines(self, connection: Connection, due: list[float]) -> None:
        """Add to `due` when `check` must run."""
        settings = self._settings
        if connection.state is ConnectionState.AUTHENTICATING:
            due.append(connection.created_at + settings.handshake_timeout)
            if (late := self._early_data_late_at(connection)) is not None:
                due.append(late)
            return
        due.append(connection.heard_at + settings.idle_timeout_of(connection.transport))
        if connection.state is ConnectionState.SUSPECT:
            due.append(connection.suspect_since + self._dead_after(connection))
            due.append(self._ask_at(connection))
        else:
            due.append(connection.sent_at + self._keepalive_interval(connection))
            if (deadline := connection.suspect_at()) is not None:
                due.append(deadline)
        if connection.ack_keepalive_due:
            due.append(connection.ack_keepalive_due)

    def _ask_at(self, connection: Connection) -> float:
        return connection.sent_at + max(connection.suspect_after, connection.ask_after)

    def _early_data_late_at(self, connection: Connection) -> float | None:
        """When early data on a connection that has not authenticated is sent again on one that has."""
        if connection.early_data_moved or not connection.in_flight or not self._has_active():
            return None
        return connection.session_progress_at + connection.suspect_after

    def _has_active(self) -> bool:
        return any(c.state is ConnectionState.ACTIVE for c in self._connections.values())

    def _keepalive_interval(self, connection: Connection) -> float:
        return min(KEEPALIVE_INTERVAL, self._settings.idle_timeout_of(connection.transport) / 3)

    def _dead_after(self, connection: Connection) -> float:
        return max(3 * connection.suspect_after, DEAD_AFTER if self._has_active() else DEAD_AFTER_LAST)

    def suspect(self, connection: Connection, reason: Reason, now: float, *, tell: DrainStep | None = None) -> None:
        """It may be dead: what it carries is said again elsewhere; it comes back when it is heard.

        `tell`: what the peer is told, if anything is left to tell it on; it would find out later, by silence.
        """
        connection.step(Step.SILENT, reason)
        connection.suspect_since = now
        connection.ask_after = ASK_SUSPECT
        self._outbox.lose(connection)
        self._sender.lose(connection)
        self._receiver.everything_dirty()
        self._output.notify(connection.changed())
        if tell is not None and any(c.delivers for c in self._outgoing.usable_for_control()):
            self.say(connection, tell)

    def recovered(self, connection: Connection, reason: Reason) -> None:
        """A sign of life: a suspect connection is ACTIVE again."""
        if connection.state is ConnectionState.SUSPECT:
            connection.step(Step.HEARD, reason)
            self._sender.recover(connection)
            self._output.notify(connection.changed())
            self.relieve_suspects()

    def relieve_suspects(self) -> None:
        """A connection became usable: what suspect ones were given for want of a better one goes there as well."""
        for connection in self._connections.values():
            if connection.state is ConnectionState.SUSPECT:
                self._outbox.lose(connection)
                self._sender.lose(connection)

    def drain(self, connection: Connection, reason: Reason) -> None:
        """Send nothing new on it from now on, and ask the peer to do the same."""
        self.say(connection, DrainStep.ASKED)
        self.start_draining(connection, reason)

    def say(self, connection: Connection, step: DrainStep) -> None:
        """Tell the peer how far it is with a connection that both know by its number."""
        if step > DrainStep.DRAINED and self._outbox.full:
            return  # it will notice by itself
        self._outbox.add(SegmentType.DRAIN, encode_drain(connection.number, step))

    def start_draining(self, connection: Connection, reason: Reason) -> None:
        """One side has asked for the drain."""
        if connection.state is ConnectionState.SUSPECT:
            self._sender.lose(connection)
        connection.step(Step.DRAIN, reason)
        self._output.notify(connection.changed())

    def peer_drains(self, connection: Connection, step: DrainStep) -> None:
        """The peer wants it no more, or is done with it."""
        if connection.state is not ConnectionState.DRAINING:
            self.start_draining(connection, DRAINED_BY_PEER)
        if step is DrainStep.DRAINED and connection.phase in (Phase.DRAINING, Phase.DRAINED_HERE):
            connection.advance(Step.DRAINED_THERE)

    def finish_drains(self) -> None:
        """Tell the peer once nothing of ours is outstanding; the client closes what both sides have drained."""
        if self._lifecycle.lingering_since is not None:
            return  # the peer's CLOSE may be on its way on any of them
        replaced = self._has_active()
        for connection in self._connections.values():
            if connection.state is not ConnectionState.DRAINING or connection.in_flight or not replaced:
                continue  # never break before make: with nothing else left it goes on carrying
            if connection.phase in (Phase.DRAINING, Phase.DRAINED_THERE):
                connection.advance(Step.DRAINED_HERE)
                self.say(connection, DrainStep.DRAINED)
            elif connection.phase is Phase.DRAINED and not connection.carried_control and self._side is Side.CLIENT:
                self._session.disconnect(connection, DRAINED, abort=False, state=ConnectionState.CLOSED)

    # --- questions  ---

    def probe_window(self, now: float) -> None:
        """Ask for the peer's window when only a lost acknowledgement can be what blocks us."""
        if self.probe_at is None or now < self.probe_at:
            return
        for connection in self._outgoing.usable_for_control():
            self._send_ping(connection, now, wants_ack=True)
        self._probe_wait = min(MAX_PROBE, self._probe_wait * 2)
        self.probe_at = now + self._probe_wait

    def plan_probe(self, now: float) -> None:
        """Bytes wait for window and nothing is in flight whose acknowledgement could bring it: ask after a while."""
        blocked = self._lifecycle.confirmed
        for connection in self._connections.values():
            blocked = blocked and not connection.in_flight
        if not blocked or not self._sender.blocked_by_window:
            self.probe_at, self._probe_wait = None, MIN_PROBE
        elif self.probe_at is None:
            self.probe_at = now + self._probe_wait

    def ping(self, connection: Connection, now: float) -> None:
        """Ask for a sign of life, unless the last question is still open."""
        if not connection.ping_sent_at:
            self._send_ping(connection, now)

    def _send_ping(self, connection: Connection, now: float, *, wants_ack: bool = False) -> None:
        self._ping += 1
        connection.ping_token = self._ping
        connection.ping_sent_at = now
        payload = encode_keepalive(Keepalive(self._ping, wants_ack=wants_ack))
        connection.send(SegmentType.KEEPALIVE, (payload,), len(payload))
        connection.sent_at = now
