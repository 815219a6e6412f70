"""What becomes of connections that are silent, late or drained: questions, suspicion, rescue, the end. Pure.

It decides when a connection is SUSPECT, when it has recovered, when a drained one may be closed, and which of them is
asked for a sign of life or for a window. What a connection carries is left to the sender and the outbox.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from multi.events import Event
from multi.protocol.connection import SUSPECT_SLACK, UNKNOWN_RTT, Connection, Connections
from multi.protocol.control import Outbox
from multi.protocol.payloads import DrainStep, Keepalive, encode_drain, encode_keepalive
from multi.protocol.receiver import Receiver
from multi.protocol.segment import SegmentType
from multi.protocol.sender import Sender
from multi.protocol.settings import KEEPALIVE_INTERVAL, SessionSettings
from multi.protocol.state import Phase, Step
from multi.reasons import Cause, Reason
from multi.types import ConnectionState, Role, Side

DEAD_AFTER = 4.0  # seconds SUSPECT while another connection lives; TCP needs seconds to find its way back
DEAD_AFTER_LAST = 10.0  # seconds SUSPECT when none lives, or has lived for that long
MAX_REST_PATIENCE = 10.0  # seconds, however often the rest of a segment has come late
ASK_SUSPECT = 0.2  # seconds between questions to a suspect connection, at least
ASK_GROWTH, MAX_ASK_INTERVAL = 1.5, 1.0  # how that grows, and to what: an overloaded peer is not asked to death
LOOK_AGAIN, MAX_LOOK_AGAIN = 0.5, 2.0  # seconds between questions to one that may be nearer than what is used
NEARER = 0.001  # seconds, at least, for which they are asked: round trips vary by less, also inside a machine
MIN_PROBE, MAX_PROBE = 0.2, 5.0  # seconds between questions for a window that may have been lost

NO_PROGRESS = Reason(Cause.NO_PROGRESS, "no progress")
NO_PROGRESS_DRAINING = Reason(Cause.NO_PROGRESS, "no progress while draining")
STUCK = Reason(Cause.NO_PROGRESS, "no progress although the peer is heard: large packets may vanish on the way")
PEER_WAITS = Reason(Cause.NO_PROGRESS, "the peer hears nothing on it")
SILENT = Reason(Cause.NO_PROGRESS, "silent for too long")
DRAINED = Reason(Cause.DRAINED, "drained")
DRAINED_HERE = Reason(Cause.DRAINED, "drained by this side")
DRAINED_BY_PEER = Reason(Cause.DRAINED, "drained by the peer")
HEARD = Reason(Cause.RECOVERED, "the peer was heard")
PROGRESSED = Reason(Cause.RECOVERED, "the transport made progress")


Deadline = tuple[float, Callable[[Connection, float], None]]
"""(when, what is done then)."""


class WatchedSession(Protocol):
    """What liveness knows of the session whose connections it watches, and what it makes happen to it."""

    now: float
    confirmed: bool
    helpless: bool
    lingering_since: float | None
    needs_flush: bool

    def notify(self, event: Event) -> None:
        """Let subscribers hear of it."""

    def disconnect(
        self, connection: Connection, reason: Reason, *, abort: bool, state: ConnectionState = ConnectionState.LOST
    ) -> None:
        """Give up one connection; what it carried is rescued."""

    def stuck(self, connection: Connection) -> None:
        """Its transport gets on with nothing for so long that another should be tried."""

    def gets_on(self, connection: Connection) -> None:
        """The transport of one that was stuck gets on again."""


class Liveness:
    """Watches over all connections of one session.

    Two clocks run for what was sent. The transport's: nothing it carries was acknowledged for srtt + 4 rttvar + 50 ms.
    The session's: the peer has acknowledged nothing for clearly longer, although the transport claims progress, as a
    middlebox that ends TCP itself lets it do. A third runs for what has come: a part of a segment whose rest is late.

                    one clock runs out                   silent for seconds more
        ACTIVE ───────────────────────────> SUSPECT ───────────────────────────────> LOST
          ▲   what it carries goes elsewhere    │   asked every 0.2 to 1 s
          └─────────────────────────────────────┘
                   heard, or progress made

    Suspicion is cheap and reversible: it costs copies, not the connection. The peer is told, because it may see the
    silence later or not at all. A connection that only receives acknowledges at least every half of that time, so that
    a healthy one is not suspected because acknowledgements take another path.

    A transport that makes no progress although its peer is heard is *stuck*, as over a network that swallows large
    packets and says nothing: it stays ACTIVE, but what it carries goes elsewhere, and so does what is new, until it
    gets on. After half a second another is dialled beside it, with small packets; after 4 s it is given up.
    """

    def __init__(
        self,
        session: WatchedSession,
        side: Side,
        settings: SessionSettings,
        connections: Connections,
        outbox: Outbox,
        sender: Sender,
        receiver: Receiver,
    ) -> None:
        self._session = session
        self._side = side
        self._settings = settings
        self._connections = connections
        self._outbox = outbox
        self._sender = sender
        self._receiver = receiver
        self.probe_at: float | None = None
        """When the peer is asked for its window; None = nothing waits for it."""
        self._probe_wait = MIN_PROBE
        self._ping = 0
        self._lives_since = 0.0
        """When a connection became usable while no other was."""
        self._rest_patience = 0.0
        """Seconds that the rest of a segment may take at least: twice as long as before after each that was late, for
        a network may always be as slow, or the peer as busy."""

    def check(self, connection: Connection, now: float) -> None:
        """Do what is due for a living connection."""
        phase = connection.phase
        for at, act in self.due(connection):
            if now >= at and connection.phase is phase:
                act(connection, now)

    def due(self, connection: Connection) -> list[Deadline]:
        """What has to be done for a living connection, and when, unless something happens before."""
        settings = self._settings
        if not connection.authenticated:
            due: list[Deadline] = [(connection.created_at + settings.handshake_timeout, self._handshake_late)]
            if connection.in_flight and not connection.early_data_moved and self._connections.active():
                # Early data is sent again on a connection that has authenticated.
                due.append((connection.session_progress_at + connection.suspect_after, self._move_early_data))
            return due
        idle, *later = self.far(connection)
        due = [idle]
        if connection.ack_keepalive_due:
            due.append((connection.ack_keepalive_due, self._acknowledge_here))
        if connection.suspect:
            due.append((self._dead_at(connection), self._silent_for_long))
            due.append((self._ask_at(connection), self._ask))
        else:
            silent, stuck = self._deadlines(connection)
            if silent is not None:
                due.append((silent, self._silent))
            if stuck is not None:
                due.append((stuck, self._stuck))
        return due + later

    def near(self, connection: Connection) -> float | None:
        """When the first is due of what bytes that come and go bring nearer."""
        if not connection.authenticated or connection.suspect:
            return min(at for at, _ in self.due(connection))
        owed = connection.ack_keepalive_due
        at, stuck = self._deadlines(connection)
        if stuck is not None and (at is None or stuck < at):
            at = stuck
        return owed if owed and (at is None or owed < at) else at

    def _deadlines(self, connection: Connection) -> tuple[float | None, float | None]:
        """When it becomes suspect, and when it is stuck or what follows from that; None = not as things are."""
        if self._session.helpless and not connection.awaits_peer():
            return None, None
        return connection.suspect_at(self._rest_patience), connection.stuck_at()

    def far(self, connection: Connection) -> list[Deadline]:
        """The others, which bytes only put off."""
        if not connection.authenticated:
            return []
        idle_timeout = self._settings.idle_timeout_of(connection.transport)
        due: list[Deadline] = [(connection.heard_at + idle_timeout, self._idle)]
        if not connection.suspect:
            due.append((connection.sent_at + min(KEEPALIVE_INTERVAL, idle_timeout / 3), self._send_ping))
        return due

    def _handshake_late(self, connection: Connection, now: float) -> None:
        text = f"no answer to MULTI's handshake within {self._settings.handshake_timeout:g} s"
        if self._side is Side.CLIENT and not connection.bytes_received:
            text = f"the peer does not speak MULTI ({text})"
        self._session.disconnect(connection, Reason(Cause.HANDSHAKE_TIMEOUT, text), abort=True)

    def _move_early_data(self, connection: Connection, now: float) -> None:
        connection.early_data_moved = True
        self._sender.lose(connection)

    def _idle(self, connection: Connection, now: float) -> None:
        text = f"nothing received for {self._settings.idle_timeout_of(connection.transport):g} s"
        self._session.disconnect(connection, Reason(Cause.IDLE_TIMEOUT, text), abort=True)

    def _acknowledge_here(self, connection: Connection, now: float) -> None:
        connection.ack_wanted = True
        connection.ack_keepalive_due = 0.0

    def _silent(self, connection: Connection, now: float) -> None:
        if connection.draining:
            self._session.disconnect(connection, NO_PROGRESS_DRAINING, abort=True)
            return
        rest = connection.rest_at(self._rest_patience)
        if rest is not None and now >= rest:
            connection.rest_late = True
        self.suspect(connection, NO_PROGRESS, now, tell=DrainStep.SILENT)
        if now >= self._ask_at(connection):
            self._ask(connection, now)

    def _stuck(self, connection: Connection, now: float) -> None:
        if connection.delivers:
            connection.delivers = False
            if connection.stuck_since < connection.acked_at:  # else it has been suspect in between, and heard again
                connection.stuck_since = now
            self._carry_elsewhere(connection)
        elif not connection.stuck_long:
            connection.stuck_long = True
            self._session.stuck(connection)
        else:
            self._session.disconnect(connection, STUCK, abort=True)

    def _silent_for_long(self, connection: Connection, now: float) -> None:
        self._session.disconnect(connection, SILENT, abort=True)

    def _ask(self, connection: Connection, now: float) -> None:
        connection.ask_after = min(connection.ask_after * ASK_GROWTH, MAX_ASK_INTERVAL)
        self._send_ping(connection, now)

    def _ask_at(self, connection: Connection) -> float:
        return connection.sent_at + max(connection.suspect_after, connection.ask_after)

    def _dead_at(self, connection: Connection) -> float:
        """When it is given up.

        The first to come back after all were silent says that their networks may be back too: the others have as long
        from then on as they have beside one that lives. Given up at once, they were those that the peer relied on.
        """
        since, patience = connection.suspect_since, DEAD_AFTER_LAST
        if self._connections.active():
            since = max(since, min(self._lives_since, since + DEAD_AFTER_LAST - DEAD_AFTER))
            patience = DEAD_AFTER
        return since + max(3 * connection.suspect_after, patience)

    def suspect(self, connection: Connection, reason: Reason, now: float, *, tell: DrainStep | None = None) -> None:
        """It may be dead: what it carries is said again elsewhere; it comes back when it is heard.

        `tell`: what the peer is told, if anything is left to tell it on; it would find out later, by silence.
        """
        connection.step(Step.SILENT, reason)
        connection.suspect_since = now
        connection.ask_after = ASK_SUSPECT
        self._carry_elsewhere(connection)
        self._session.notify(connection.changed())
        if tell is not None and any(c.delivers for c in self._connections.for_control()):
            self.say(connection, tell)

    def _carry_elsewhere(self, connection: Connection) -> None:
        self._outbox.lose(connection)
        self._sender.lose(connection)
        self._receiver.everything_dirty()

    def peer_waits(self, connection: Connection, now: float) -> None:
        """The peer waits there for signs of life in vain.

        Where nothing has come for a while either, its word is enough: to wait as long once more would lose the answer
        to what it has sent elsewhere. Where bytes come, its own may be slow on their way, and the clocks go on.
        """
        connection.peer_suspect_at = now
        silent = now >= connection.heard_at + (connection.rtt or UNKNOWN_RTT) + SUSPECT_SLACK
        if connection.active and silent:
            self.suspect(connection, PEER_WAITS, now)

    def progressed(self, connection: Connection, now: float) -> None:
        """The transport got on with what it carries."""
        if not connection.delivers and not connection.suspect and connection.alive:
            connection.delivers = True
            self._sender.recover(connection)
        if connection.stuck_long:
            connection.stuck_long = False
            self._session.gets_on(connection)
        if connection.suspect and connection.in_time(now) and not connection.rest_late:
            # A transport that acknowledges for a peer that no longer answers proves nothing: only the peer does then.
            self.recovered(connection, PROGRESSED)

    def recovered(self, connection: Connection, reason: Reason) -> None:
        """A sign of life: a suspect connection is ACTIVE again."""
        if connection.suspect:
            connection.step(Step.HEARD, reason)
            if connection.rest_late:  # it has come after all: here it may take longer
                longer = 2 * max(self._rest_patience, connection.rest_patience)
                self._rest_patience, connection.rest_late = min(longer, MAX_REST_PATIENCE), False
            self._sender.recover(connection)
            self._session.notify(connection.changed())
            self.relieve_suspects()

    def relieve_suspects(self) -> None:
        """A connection became usable: what suspect ones were given for want of a better one goes there as well."""
        if len(self._connections.active()) == 1:
            self._lives_since = self._session.now
        for connection in self._connections.values():
            if connection.suspect:
                self._outbox.lose(connection)
                self._sender.lose(connection)

    def say(self, connection: Connection, step: DrainStep) -> None:
        """Tell the peer how far it is with a connection that both know by its number."""
        if self._outbox.full:
            return  # it will notice by itself, or hear of it once nothing is outstanding
        self._outbox.add(SegmentType.DRAIN, encode_drain(connection.number, step))

    def start_draining(self, connection: Connection, reason: Reason) -> None:
        """One side has asked for the drain: nothing new is sent on it from now on."""
        if connection.suspect:
            self._sender.lose(connection)
        connection.step(Step.DRAIN, reason)
        self._session.notify(connection.changed())

    def peer_drains(self, connection: Connection, step: DrainStep) -> None:
        """The peer wants it no more, or is done with it."""
        if not connection.draining:
            self.start_draining(connection, DRAINED_BY_PEER)
        if step is DrainStep.DRAINED and connection.phase in (Phase.DRAINING, Phase.DRAINED_HERE):
            connection.step(Step.DRAINED_THERE)

    def finish_drains(self) -> None:
        """Tell the peer once nothing of ours is outstanding; the client closes what both sides have drained."""
        if self._session.lingering_since is not None:
            return  # the peer's CLOSE may be on its way on any of them
        if not self._connections.active():
            return  # never break before make: with nothing else left it goes on carrying
        for connection in self._connections.values():
            if not connection.draining or connection.in_flight:
                continue
            if connection.phase in (Phase.DRAINING, Phase.DRAINED_THERE):
                if self._outbox.full:
                    continue
                connection.step(Step.DRAINED_HERE)
                self.say(connection, DrainStep.DRAINED)
            elif connection.phase is Phase.DRAINED and not connection.carried_control and self._side is Side.CLIENT:
                self._session.disconnect(connection, DRAINED, abort=False, state=ConnectionState.CLOSED)

    # --- questions  ---

    def probe_window(self, now: float) -> None:
        """Ask for the peer's window when only a lost acknowledgement can be what blocks us."""
        if self.probe_at is None or now < self.probe_at:
            return
        for connection in self._connections.for_control():
            self._send_ping(connection, now, wants_ack=True)
        self._probe_wait = min(MAX_PROBE, self._probe_wait * 2)
        self.probe_at = now + self._probe_wait

    def plan_probe(self, now: float) -> None:
        """Bytes wait for window and nothing is in flight whose acknowledgement could bring it: ask after a while."""
        waits = self._session.confirmed and not any(c.in_flight for c in self._connections.values())
        if not (waits and self._sender.blocked_by_window):
            self.probe_at, self._probe_wait = None, MIN_PROBE
        elif self.probe_at is None:
            self.probe_at = now + self._probe_wait

    def look_again(self, connection: Connection, now: float) -> None:
        """Ask whether it is near again, if it was nearer than what is used meanwhile: nothing else would tell."""
        alone = len(self._connections) == 1
        if alone or not connection.active or connection.role is not Role.ACTIVE:
            return
        if not any(
            connection.least_rtt + NEARER < other.rtt < connection.rtt and now < other.sent_at + LOOK_AGAIN
            for other in self._connections.values()
            if other.active
        ):
            connection.look_again_after = 0.0
        elif not connection.in_flight and now >= connection.sent_at + max(LOOK_AGAIN, connection.look_again_after):
            connection.look_again_after = min(MAX_LOOK_AGAIN, 2 * connection.look_again_after or LOOK_AGAIN)
            self.ping(connection, now)

    def ping(self, connection: Connection, now: float) -> None:
        """Ask for a sign of life, unless the last question is still open."""
        if not connection.ping_sent_at:
            self._send_ping(connection, now)

    def _send_ping(self, connection: Connection, now: float, *, wants_ack: bool = False) -> None:
        self._ping += 1
        connection.ping_token = self._ping
        connection.ping_sent_at = now
        payload = encode_keepalive(Keepalive(self._ping, wants_ack=wants_ack))
        connection.send(SegmentType.KEEPALIVE, payload, now)
        self._session.needs_flush = True
