"""A session: one end of the conversation, over all its connections. Pure.

Inputs are methods with `now=`; outputs leave through `effects()` (an ordered list) and `next_timer()`. It decides when
the session opens, is detached and ends, and puts its parts together: `incoming` hands on what arrives, `outgoing` and
`liveness` choose and watch the connections, `authenticator` says who may join, `streams`, `sender` and `receiver` know
the bytes. Which connections should exist is decided by `multi.paths`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from multi.errors import ConfigError, LocalProtocolError, RemoteProtocolError, SessionLost
from multi.events import (
    CloseConnection,
    ConnectionChanged,
    Effect,
    Event,
    Notify,
    RoleChanged,
    SchedulerChanged,
    SendBytes,
    SessionClosed,
    SessionConfirmed,
    SessionDetached,
    SessionEnded,
    SessionOpened,
    SessionResumed,
    StreamReadable,
    StreamWritable,
    Warned,
)
from multi.protocol.authenticator import Authenticator, ClientAuthenticator, ServerAuthenticator
from multi.protocol.connection import Connection
from multi.protocol.control import Outbox
from multi.protocol.dispatch import Incoming
from multi.protocol.handshake import REFUSED, Refuse
from multi.protocol.liveness import Liveness
from multi.protocol.outgoing import Outgoing
from multi.protocol.payloads import (
    CLOSE_ABORTED,
    CLOSE_NORMAL,
    DEFAULT_SCHEDULER,
    Address,
    Close,
    DrainStep,
    Policy,
    encode_addresses,
    encode_close,
    encode_policy,
    encode_role,
)
from multi.protocol.receiver import Receiver
from multi.protocol.segment import (
    SegmentType,
)
from multi.protocol.sender import Sender
from multi.protocol.settings import EARLY_DATA_LIMIT, SessionSettings
from multi.protocol.state import SessionState, check_session
from multi.protocol.streams import Streams
from multi.schedulers.base import Scheduler
from multi.types import (
    STREAM_ZERO,
    ConnectionFacts,
    ConnectionId,
    ConnectionState,
    Role,
    SessionId,
    Side,
    StreamId,
    TransportSample,
)

MAX_CONTROL_BACKLOG = 1024 * 1024  # bytes of answers and control a connection may hold back; minutes of honest ones
RTT_KEPT = 0.005  # seconds until the round-trip time that paces windows is looked up again
LINGER_ROUND_TRIPS = 3  # without a word from the peer; one is what its answer takes at least
MAX_LINGER = 10.0  # seconds; a round trip is the peer's to prolong
REFUSALS_WITHIN = 5.0  # seconds; REFUSALS of them within this time end a session that has no connection left
REFUSALS = 3  # whose server has not proved itself, for anybody in the path can make those

SchedulerMaker = Callable[[str, dict[str, float]], Scheduler]
Entropy = Callable[[int], bytes]


class SessionCore:
    """See the module. `entropy(n)` gives n random bytes.

    `make_scheduler` makes those that this side asks for, `make_peer_scheduler` those that the peer does (default: the
    same); they raise ConfigError for what cannot be made.
    """

    def __init__(
        self,
        side: Side,
        session_id: SessionId,
        settings: SessionSettings,
        *,
        entropy: Entropy,
        make_scheduler: SchedulerMaker,
        now: float,
        make_peer_scheduler: SchedulerMaker | None = None,
        scheduler: Scheduler | None = None,
        psk: Callable[[bytes], bytes | None] | None = None,
    ) -> None:
        self.side = side
        self.session_id = session_id
        self.settings = settings
        self.entropy = entropy
        self.connections: dict[ConnectionId, Connection] = {}
        self.state = SessionState.OPENING
        self.confirmed = False
        self.error = ""
        self._now = now
        self._make_scheduler = make_scheduler
        self._make_peer_scheduler = make_peer_scheduler or make_scheduler
        self.policy = settings.policy
        self._effects: list[Effect] = []
        self._fresh_for = (self.policy.scheduler, self.policy.parameters) if scheduler is None else None
        """The name and parameters the scheduler was made for, as long as it is the one made with the session."""
        self.needs_flush = True
        """Something has happened since the last effects that may call for more than acknowledgements."""
        if scheduler is None:
            scheduler = make_scheduler(self.policy.scheduler, dict(self.policy.parameters))
        self.sender = Sender(scheduler, self.policy.reinject, EARLY_DATA_LIMIT, self._scheduler_failed)
        self.receiver = Receiver(settings, now)
        self.outbox = Outbox()
        self.streams = Streams(self, settings)
        self._auth: Authenticator = ClientAuthenticator(self) if side is Side.CLIENT else ServerAuthenticator(self, psk)
        self._outgoing = Outgoing(self)
        self._liveness = Liveness(self, self._outgoing)
        self._incoming = Incoming(self, self._auth, self._liveness)
        self._opened = False
        self._closing = False
        self.close_sent_at: float | None = None
        """When CLOSE was said, or data or control came after it; None = not yet. The session lingers from then on."""
        self._peer_closing = False
        self._peer_lost: ConnectionId | None = None
        """The connection the peer has just said to be over."""
        self._rtt = 0.1
        self._rtt_until = now
        self._detached_at: float | None = None
        self._created_at = now
        self._refusals: list[float] = []
        self.streams.create(STREAM_ZERO, 3)
        if side is Side.SERVER:
            self.sender.early_limit = None

    def _act(self, now: float) -> None:
        self._now = now
        self.needs_flush = True

    # === inputs: connections  ===

    def connection_opened(self, connection: ConnectionId, facts: ConnectionFacts, *, now: float) -> None:
        """A transport connection is established (client) or was accepted (server)."""
        self._act(now)
        if self.state is SessionState.CLOSED:
            self._effects.append(CloseConnection(connection, True, "the session is closed"))
            return
        created = Connection(connection, self.session_id, facts, now)
        self.connections[connection] = created
        if self.side is Side.SERVER and len(self._alive()) > self.settings.max_connections:
            # Whoever knows the Session ID gets this far: strangers must not keep the client out.
            oldest = next(c for c in self._alive() if not c.authenticated)
            self.disconnect(oldest, "too many connections in this session", abort=True)
            if not created.alive:
                return
        self.notify_state(created)
        self._auth.opened(created, now)

    def receive(self, connection: ConnectionId, data: memoryview, lane: int = 0, *, now: float) -> None:
        """Bytes of one lane have come, in order."""
        self._now = now
        found = self.connections.get(connection)
        if found is None or not found.alive:
            return
        found.bytes_received += len(data)
        try:
            self._incoming.receive(found, data, lane, now)
        except RemoteProtocolError as error:
            self.needs_flush = True
            if found.alive:  # its own bytes may have ended it already: what follows them does not count
                self._protocol_error(found, error)

    def connection_lost(self, connection: ConnectionId, reason: str, *, now: float) -> None:
        """The transport connection ended; an empty reason means the peer closed it in order."""
        self._act(now)
        found = self.connections.get(connection)
        if found is None or not found.alive:
            return
        if found.state is ConnectionState.DRAINING and not found.in_flight:
            self._retire(found, ConnectionState.CLOSED, "drained")
        elif self.close_sent_at is not None:
            self._retire(found, ConnectionState.CLOSED, "the session is closing")
        elif self._peer_closing and not reason:
            # The peer lingers no more: what it has not acknowledged until now it never will.
            self._end_unacknowledged()
        elif not found.authenticated and not reason:
            self._retire(found, ConnectionState.LOST, "the peer closed the connection during the handshake")
        else:
            self._retire(found, ConnectionState.LOST, reason or "the peer closed the connection")

    def set_credit(self, connection: ConnectionId, credit: int, *, now: float) -> None:
        """Bytes the transport of `connection` will take now."""
        self._now = now
        if (found := self.connections.get(connection)) is not None:
            found.set_channel_credit(credit)

    def sample(self, connection: ConnectionId, sample: TransportSample, *, now: float) -> None:
        """The transport's own figures."""
        self._now = now
        found = self.connections.get(connection)
        if found is not None and found.alive and found.take_sample(sample, now) and found.in_time(now):
            # A transport that acknowledges for a peer that no longer answers proves nothing: only the peer does then.
            self._liveness.recovered(found, "the transport made progress")

    # === inputs: application  ===

    def advance(self, *, now: float) -> None:
        """Time has passed."""
        self._now = now

    def write(self, stream: StreamId, data: bytes | bytearray | memoryview, *, now: float) -> None:
        """Queue bytes; see `SendStream.write`. Raises LocalProtocolError after the end, SessionLost when over."""
        self._act(now)
        self.streams.check_writable(stream).write(data)

    def read(self, stream: StreamId, limit: int, *, now: float) -> bytes:
        """Return up to `limit` bytes in order (negative = all there is); empty when there is nothing now."""
        self._now = now
        return self.streams.read(stream, limit, now)

    def finish(self, stream: StreamId, *, now: float) -> None:
        """End the writing side after everything written."""
        self._act(now)
        self.streams.finish(stream)

    def reset(self, stream: StreamId, code: int, *, now: float) -> None:
        """Give up the writing side: what is not delivered yet may never be."""
        self._act(now)
        self.streams.reset(stream, code, now)

    def stop_sending(self, stream: StreamId, code: int, *, now: float) -> None:
        """Read no more; ask the peer to stop. What still comes gives its window back."""
        self._act(now)
        self.streams.stop_sending(stream, code, now)

    def accept_stream(self, stream: StreamId, *, now: float) -> None:
        """The application takes a stream that the peer opened (StreamOpened)."""
        self._act(now)
        self.streams.accept(stream)

    def open_stream(self, priority: int, *, now: float) -> StreamId | None:
        """Open a stream; None while the peer allows no more."""
        self._act(now)
        return self.streams.open(priority)

    def close(self, *, now: float) -> None:
        """End the session after everything written has been acknowledged. Unread bytes are discarded."""
        self._act(now)
        if self._closing or self.state is SessionState.CLOSED:
            return
        self._closing = True
        self.streams.finish_all(now)
        if not self._opened and not any(c.alive for c in self.connections.values()):
            self._end("")

    def abort(self, reason: str = "aborted", *, now: float) -> None:
        """End the session at once; the peer is told if a connection takes it."""
        self._act(now)
        if self.state is SessionState.CLOSED:
            return
        payload = encode_close(Close(CLOSE_ABORTED, reason))
        for connection in self._alive():
            if self._hears(connection):
                connection.send(SegmentType.CLOSE, (payload,), len(payload))
        self._end(reason)

    def fail(self, reason: str, *, refused: bool = False, now: float) -> None:
        """End the session for a reason outside of it: no candidate could be opened."""
        self._act(now)
        self._end(reason, refused=refused)

    # === inputs: policy  ===

    def drain(self, connection: ConnectionId, *, now: float) -> None:
        """Make-before-break: nothing new on it; close it when nothing is outstanding in either direction."""
        self._act(now)
        found = self._find(connection)
        if not found.authenticated:
            self.disconnect(found, "removed", abort=True)
        elif found.state is not ConnectionState.DRAINING:
            self._liveness.drain(found, "drained by this side")

    def give_up(self, connection: ConnectionId, reason: str, *, now: float) -> None:
        """It can never work again, or another has taken its place: rescue what it carries."""
        self._act(now)
        self.disconnect(self._find(connection), reason, abort=True)

    def ping(self, connection: ConnectionId, *, now: float) -> None:
        """Ask for a sign of life."""
        self._act(now)
        self._liveness.ping(self._find(connection), now)

    def announce(self, addresses: Sequence[Address], *, now: float) -> None:
        """Server: further addresses (literal, port) at which the client may reach it; replaces earlier ones."""
        self._act(now)
        self.outbox.add(SegmentType.ADDRESS, encode_addresses(addresses))

    def set_role(self, connection: ConnectionId, role: Role, reason: str = "", *, now: float) -> None:
        """Change a connection's role on both sides."""
        self._act(now)
        found = self._find(connection)
        if found.role is role:
            return
        found.role = role
        if found.authenticated:
            self._say_role(found)
        else:
            found.role_unsaid = True
        self.notify(RoleChanged(found.id, role, by_peer=False, reason=reason))

    def _say_role(self, connection: Connection) -> None:
        connection.role_unsaid = False
        self.outbox.add(SegmentType.ROLE, encode_role(connection.number, connection.role))

    def set_scheduler(self, policy: Policy, scheduler: Scheduler | None = None, *, now: float) -> None:
        """Schedule differently from now on. A client also asks the server to, unless `scheduler` is an object."""
        self._act(now)
        if self.state is SessionState.CLOSED:
            return
        if scheduler is not None:
            self._use_scheduler(policy, scheduler, by_peer=False)
            return
        scheduler = self._make_scheduler(policy.scheduler, dict(policy.parameters))
        if self.side is Side.CLIENT:
            self.outbox.add(SegmentType.POLICY, encode_policy(policy))
        self._use_scheduler(policy, scheduler, by_peer=False)

    def suspect(self, connection: ConnectionId, reason: str, *, now: float) -> None:
        """Something outside says that the connection may be dead (carrier lost, clock jump)."""
        self._act(now)
        found = self.connections.get(connection)
        if found is not None and found.state is ConnectionState.ACTIVE:
            self._liveness.suspect(found, reason, now, tell=DrainStep.SUSPECT)

    # === inputs: time  ===

    def handle_timer(self, *, now: float) -> None:
        """Do what is due at `now`."""
        self._act(now)
        if self.state is SessionState.CLOSED:
            return
        for connection in list(self.connections.values()):
            if connection.alive:
                self._liveness.check(connection, now)
        self._auth.handle_timer(now)
        if self._detached_at is not None and now >= self._detached_at + self.settings.resume_timeout:
            everything_said = self._closing and self.streams.all_sent_acknowledged and self.outbox.settled
            self._end("" if everything_said else f"no connection for {self.settings.resume_timeout:g} s")
        if self.close_sent_at is not None and now >= self.close_sent_at + self._linger:
            self._end("")
        if (
            self.side is Side.SERVER
            and not self.confirmed
            and now >= self._created_at + self.settings.handshake_timeout
            and not self._alive()
        ):
            self._end("the client never confirmed the session")
        self._liveness.probe_window(now)

    def next_timer(self) -> float | None:
        """When `handle_timer` must be called, or None. Call after `effects`."""
        if self.state is SessionState.CLOSED:
            return None
        due: list[float] = []
        for optional in (
            self.receiver.ack_due if self._outgoing.usable_for_control() else None,
            self.sender.hold_until,
            self._outgoing.reinject_at,
            self._liveness.probe_at,
            self._auth.next_timer(),
        ):
            if optional is not None:
                due.append(optional)
        if self._detached_at is not None:
            due.append(self._detached_at + self.settings.resume_timeout)
        if self.close_sent_at is not None:
            due.append(self.close_sent_at + self._linger)
        if self.side is Side.SERVER and not self.confirmed and not self._alive():
            due.append(self._created_at + self.settings.handshake_timeout)
        for connection in self.connections.values():
            if connection.alive:
                self._liveness.deadlines(connection, due)
        if self.sender.unacked:
            # Only what may be used gets its tokens counted: for the others the time would lie in the past for ever.
            due += [ready for c in self._outgoing.usable() if (ready := c.tokens_ready_at()) is not None]
        # A timer in the past would spin; what was due has been handled with the last input.
        return max(min(due), self._now + 1e-4) if due else None

    # === outputs  ===

    def effects(self) -> list[Effect]:
        """Return what is to be done, in order, after everything since the last call has been taken in."""
        if self._nothing_to_send():
            effects, self._effects = self._effects, []
            return effects
        self.needs_flush = False
        if self.state is not SessionState.CLOSED:
            self._flush(self._now)
        for connection in self.connections.values():
            if connection.control_backlog > MAX_CONTROL_BACKLOG and connection.alive:
                self.disconnect(connection, "the peer sends and does not read", abort=True)
            self._collect(connection)
        effects, self._effects = self._effects, []
        return effects

    def _nothing_to_send(self) -> bool:
        """At most bytes have come and were read since the last time, and their acknowledgement is not due yet."""
        if self.needs_flush or self.receiver.ack_now or self.outbox.waiting or not self.sender.idle:
            return False
        due = self.receiver.ack_due
        return due is None or self._now < due

    def _flush(self, now: float) -> None:
        self._outgoing.send_acks(now)
        self._outgoing.send_control(now)
        usable = self._outgoing.usable()
        for connection in usable:
            connection.refresh_credit(now)
        self.sender.fill(usable, now)
        self._outgoing.plan_reinjection(usable, now)
        self._liveness.plan_probe(now)
        self._liveness.finish_drains()
        self.streams.send_fins()
        self._outgoing.send_control(now)
        self._finish_close()

    def _collect(self, connection: Connection) -> None:
        for lane, buffers in enumerate(connection.output):
            if buffers:
                self._effects.append(SendBytes(connection.id, lane, buffers))
                connection.output[lane] = []
                connection.unsampled = True

    @property
    def smoothed_rtt(self) -> float:
        """The longest round trip of the usable connections: the pace at which windows can matter."""
        if self._now >= self._rtt_until:
            self._rtt_until = self._now + RTT_KEPT
            self._rtt = max(
                (c.rtt for c in self.connections.values() if c.state is ConnectionState.ACTIVE), default=0.1
            )
        return self._rtt

    @property
    def closing(self) -> bool:
        return self._closing

    @property
    def wants_samples(self) -> bool:
        """Transport figures are of use now: something is on its way."""
        return any(c.alive and (c.outstanding or c.unacked or c.unsampled) for c in self.connections.values())

    @property
    def carried(self) -> int:
        """Grows whenever bytes of streams are given to connections or the transports tell that bytes have arrived."""
        return self.sender.used + self.sender.reinjected_bytes + sum(c.sampled_acked for c in self.connections.values())

    @property
    def at_rest(self) -> bool:
        """Nothing is on its way or waits to be: what the transports tell now can change nothing."""
        return (
            not self._effects
            and not self.sender.waiting
            and not self.outbox.waiting
            and not self.receiver.ack_now
            and not any(c.outstanding or c.ack_wanted or c.state is ConnectionState.DRAINING for c in self._alive())
        )

    @property
    def peer_psk_id(self) -> str:
        """Name of the pre-shared key that was proved, or empty."""
        proved = self.confirmed or self._auth.psk_proved
        return self._auth.psk_id.decode(errors="replace") if proved else ""

    def usable(self) -> list[Connection]:
        """Connections for data now; see `Outgoing.usable`."""
        return self._outgoing.usable()

    # === for its parts  ===

    def notify(self, event: Event) -> None:
        self.needs_flush = True
        self._effects.append(Notify(event))

    def emit(self, effect: Effect) -> None:
        self._effects.append(effect)

    def emit_once(self, effect: Effect) -> None:
        """As `emit`, unless it would follow itself."""
        if not self._effects or self._effects[-1] is not effect:
            self._effects.append(effect)

    def may_send(self, connection: Connection) -> None:
        connection.may_send = True
        # What overtakes the proof, or comes on a repeated HELLO, is held by the peer, which holds only so much.
        connection.allowance = EARLY_DATA_LIMIT if connection.lanes > 1 or not connection.authenticated else None
        if not self._opened:
            self._opened = True
            self._effects.append(SessionOpened())

    def peer_known(self, window: int, max_streams: int, policy: Policy | None) -> None:
        self.sender.early_limit = None
        self.sender.window = max(self.sender.window, window)
        self.streams.peer_known(window, max_streams)
        if policy is not None and self.settings.follow_peer_policy:
            self._follow(policy)

    def authenticated(self, connection: Connection) -> None:
        """The peer has proved itself: the connection becomes ACTIVE."""
        connection.authenticated = connection.receiving = True
        connection.move(ConnectionState.ACTIVE, "authenticated")
        connection.heard(self._now)
        self.notify_state(connection)
        self.may_send(connection)
        if not self.confirmed:
            self.confirmed = True
            self.state = check_session(self.state, SessionState.OPEN)
            self.notify(SessionConfirmed())
        self._attached()
        if connection.role_unsaid:
            self._say_role(connection)
        self._liveness.relieve_suspects()
        if self.close_sent_at is not None:
            self._say_close([connection])  # the peer came back because it has not heard it
        if connection.drain_asked:
            self._liveness.start_draining(connection, "drained by the peer")
        self.receiver.everything_dirty()
        connection.ack_wanted = True
        if self.side is Side.SERVER:
            connection.allowance = None
        self._auth.hand_out_tickets()
        self._incoming.release_held(connection, self._now)

    def start_over(self, connection: Connection) -> None:
        """The peer cannot read what was sent on `connection` so far: all of it is said again."""
        connection.unprotect()
        self.outbox.lose(connection)
        self.sender.lose(connection, self.connections, certain=True)
        self.sender.detach(connection)

    def refused(self, connection: Connection, refuse: Refuse) -> None:
        """The server refused HELLO or JOIN on this connection."""
        joining = self.confirmed
        self._retire(connection, ConnectionState.LOST, str(refuse))
        self._effects.append(CloseConnection(connection.id, True, str(refuse)))
        if not joining or refuse.code != REFUSED or self._carrying():
            return
        if self.close_sent_at is not None:
            self._end("")  # it has heard our CLOSE and is gone; all we sent had been acknowledged before
            return
        # No connection is left and the server does not know us: it restarted or forgot.
        self._refusals = [t for t in self._refusals if self._now - t <= REFUSALS_WITHIN]
        self._refusals.append(self._now)
        if connection.facts.peer_verified or len(self._refusals) >= REFUSALS:
            self._end("session gone: the server no longer knows this session", refused=True)

    def disconnect(
        self, connection: Connection, reason: str, *, abort: bool, state: ConnectionState = ConnectionState.LOST
    ) -> None:
        """Give up one connection; what it carried is rescued."""
        self._collect(connection)
        self._effects.append(CloseConnection(connection.id, abort, reason))
        self._retire(connection, state, reason)

    # === policy of the peer  ===

    def peer_policy(self, policy: Policy) -> None:
        if self.side is Side.CLIENT:
            self.notify(Warned(f"the server schedules with {policy.scheduler}, not as asked"))
        elif self.settings.follow_peer_policy:
            self._follow(policy)

    def _follow(self, policy: Policy) -> None:
        """Schedule as the client asks; an unknown name falls back to `adaptive` and both sides hear of it."""
        if self._fresh_for == (policy.scheduler, policy.parameters):
            self._use_scheduler(policy, self.sender.scheduler, by_peer=True)  # most clients ask for the default
            return
        try:
            scheduler = self._make_peer_scheduler(policy.scheduler, dict(policy.parameters))
            reason = ""
        except ConfigError as error:
            scheduler = self._make_scheduler(DEFAULT_SCHEDULER, {})
            policy = Policy(DEFAULT_SCHEDULER, (), policy.switch, policy.reinject)
            reason = str(error)
            if not self.outbox.holds(SegmentType.POLICY):  # or a peer that acknowledges nothing could pile them up
                self.outbox.add(SegmentType.POLICY, encode_policy(policy))
        self._use_scheduler(policy, scheduler, by_peer=True, reason=reason)

    def _use_scheduler(self, policy: Policy, scheduler: Scheduler, *, by_peer: bool, reason: str = "") -> None:
        self.policy = policy
        if scheduler is not self.sender.scheduler:
            self._fresh_for = None
        self.sender.scheduler = scheduler
        self.sender.reinject = policy.reinject
        self.notify(SchedulerChanged(policy.scheduler, by_peer, reason))

    def _scheduler_failed(self, error: Exception) -> None:
        """The application's scheduler is no reason to lose the session. The default one is: there is no other."""
        scheduler = self._make_scheduler(DEFAULT_SCHEDULER, {})
        if type(self.sender.scheduler) is type(scheduler):
            raise error
        reason = f"{self.policy.scheduler} failed: {error!r}{_place(error)}"
        policy = Policy(DEFAULT_SCHEDULER, (), self.policy.switch, self.policy.reinject)
        self._use_scheduler(policy, scheduler, by_peer=False, reason=reason)
        self.notify(Warned(f"scheduler {reason}"))
        if self.side is Side.SERVER and not self.outbox.holds(SegmentType.POLICY):
            self.outbox.add(SegmentType.POLICY, encode_policy(policy))

    def _protocol_error(self, connection: Connection, error: RemoteProtocolError) -> None:
        reason = str(error)
        if not connection.authenticated and not connection.answered and self.side is Side.CLIENT:
            reason = f"the peer does not speak MULTI ({error})"
        self.disconnect(connection, reason, abort=True)

    # === life of a connection  ===

    def peer_lost(self, connection: Connection) -> None:
        """On the peer's side it is over: nothing need be said about it any more."""
        self._peer_lost = connection.id
        self.disconnect(connection, "the peer lost it", abort=True)

    def _retire(self, connection: Connection, state: ConnectionState, reason: str) -> None:
        """A connection is over: rescue what it carried, say everything again elsewhere."""
        if state is ConnectionState.LOST and connection.authenticated and connection.id != self._peer_lost:
            self._liveness.say(connection, DrainStep.LOST)
        connection.move(state, reason)
        connection.may_send = False
        self.outbox.lose(connection)
        self.sender.lose(connection, self.connections)
        self.sender.detach(connection)
        self.receiver.everything_dirty()
        self._auth.lost(connection, self._now)
        self.notify_state(connection)
        self._check_detached()

    def forget_connection(self, connection: ConnectionId) -> None:
        """Drop the record of a connection that has ended; its final facts were given with its last event."""
        found = self.connections.get(connection)
        if found is not None and not found.alive:
            self._collect(found)
            del self.connections[connection]

    def notify_state(self, connection: Connection) -> None:
        self.notify(ConnectionChanged(connection.id, connection.state, connection.reason, connection.facts))

    def _alive(self) -> list[Connection]:
        return [c for c in self.connections.values() if c.alive]

    def _carrying(self) -> list[Connection]:
        return [c for c in self._alive() if c.authenticated]

    def _find(self, connection: ConnectionId) -> Connection:
        found = self.connections.get(connection)
        if found is None or not found.alive:
            raise LocalProtocolError(f"there is no connection {connection}")
        return found

    # === life of the session  ===

    def _check_detached(self) -> None:
        if self.confirmed and self._detached_at is None and not self._carrying():
            if self.state is SessionState.CLOSED:
                return
            if self.close_sent_at is not None:
                return  # CLOSE may have been lost with it: linger, the peer may come back on another connection
            self._detached_at = self._now
            self.state = check_session(self.state, SessionState.DETACHED)
            self.notify(SessionDetached(self.settings.resume_timeout))

    def _attached(self) -> None:
        self._refusals.clear()
        if self._detached_at is not None:
            after, self._detached_at = self._now - self._detached_at, None
            self.state = check_session(self.state, SessionState.OPEN)
            self.notify(SessionResumed(after))

    def _finish_close(self) -> None:
        """After `close`: once everything is acknowledged, say CLOSE on every connection and wait for the answer."""
        if not self._closing or self.close_sent_at is not None or not self.confirmed:
            return
        if not self.streams.all_sent_acknowledged or not self.outbox.settled:
            return
        if not any(c.may_deliver for c in self._carrying()):
            return  # a CLOSE that only a suspect connection carries may never be heard: the peer would wait in vain
        self._say_close(self._carrying())
        if self._peer_closing:
            self._end("")
            return
        self.close_sent_at = self._now
        self.state = check_session(self.state, SessionState.CLOSING)

    @property
    def _linger(self) -> float:
        """Seconds the peer may be silent after our CLOSE; what our acknowledgements let it send takes a while."""
        return max(self.settings.linger, min(LINGER_ROUND_TRIPS * self.smoothed_rtt, MAX_LINGER))

    def _say_close(self, connections: Sequence[Connection]) -> None:
        payload, acks = encode_close(Close(CLOSE_NORMAL)), self.receiver.ack_payload()
        for connection in connections:
            connection.send(SegmentType.ACK, (acks,), len(acks))
            connection.send(SegmentType.CLOSE, (payload,), len(payload))

    def peer_closed(self, connection: Connection, close: Close) -> None:
        if close.code == CLOSE_NORMAL and self._closing and not self.streams.all_sent_acknowledged:
            self._peer_closing = True  # both closed at once: the peer lingers to acknowledge what is still on its way
            return
        if self.close_sent_at is None:
            self._say_close(self._carrying())
        if close.code != CLOSE_NORMAL:
            self._end(f"the peer ended the session: {close.reason or 'aborted'}")
        else:
            self._end_unacknowledged()

    def _end_unacknowledged(self) -> None:
        left = self.streams.unacknowledged
        self._end(f"the peer closed the session before {left} bytes were acknowledged" if left else "")

    def _hears(self, connection: Connection) -> bool:
        """The peer takes what is said here; a client that was sent ACCEPT does before it has proved anything."""
        return connection.may_send and (connection.authenticated or self.side is Side.SERVER)

    def _end(self, error: str, *, refused: bool = False) -> None:
        """The session is over. SessionClosed is its last effect."""
        if self.state is SessionState.CLOSED:
            return
        self.state = check_session(self.state, SessionState.CLOSED)
        self.error = error
        for connection in self._alive():
            self._collect(connection)
            # Where nobody is known to listen there is no goodbye to wait for.
            silent = not self._hears(connection) or connection.state is ConnectionState.SUSPECT
            self._effects.append(CloseConnection(connection.id, silent, error or "the session is closed"))
            connection.move(ConnectionState.CLOSED, error or "the session is closed")
            self.notify_state(connection)
        self.streams.session_ended(SessionLost(error) if error else None)
        for stream in list(self.receiver.streams):
            self._effects.append(StreamReadable(stream))
        for stream in list(self.sender.streams):
            self._effects.append(StreamWritable(stream))
        self.notify(SessionEnded(error))
        self._effects.append(SessionClosed(error, refused))


def _place(error: Exception) -> str:
    """Where it was raised."""
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    return f" in {at.tb_frame.f_code.co_filename}, line {at.tb_lineno}" if at is not None else ""
