"""A session: one end of the conversation, over all its connections. Pure.

Inputs are methods with `now=`; outputs leave through `effects()` (an ordered list) and `next_timer()`. It decides when
the session opens, is detached and ends, and puts its parts together: `dispatch` hands on what arrives, `liveness`
watches the connections, `authenticator` says who may join, `streams`, `sender` and `receiver` know
the bytes. Which connections should exist is decided by `multi.paths`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

from multi.errors import LocalProtocolError, RemoteProtocolError, SessionLost
from multi.events import (
    CancelDial,
    CloseConnection,
    ConnectionChanged,
    DatagramsReadable,
    Effect,
    Event,
    GoingAway,
    NetworkChanged,
    Notify,
    RoleChanged,
    SendBytes,
    SessionClosed,
    SessionConfirmed,
    SessionDetached,
    SessionEnded,
    SessionOpened,
    SessionResumed,
    SignalChanged,
    StreamOpened,
    StreamReadable,
    StreamWritable,
)
from multi.paths.manager import NETWORK_GONE, PathManager
from multi.protocol.authenticator import Authenticator, ClientAuthenticator, ServerAuthenticator
from multi.protocol.connection import SAMPLE_INTERVAL, Connection, Connections
from multi.protocol.control import Outbox
from multi.protocol.datagrams import Datagrams
from multi.protocol.dispatch import Incoming
from multi.protocol.handshake import DATAGRAMS, GOING_AWAY, STEERING, Extensions, Join, Refuse, RefuseCode
from multi.protocol.liveness import DRAINED, DRAINED_HERE, HEARD, Liveness
from multi.protocol.payloads import (
    CLOSE_ABORTED,
    CLOSE_GOING_AWAY,
    CLOSE_NORMAL,
    Close,
    DrainStep,
    Parameters,
    Policy,
    encode_addresses,
    encode_away,
    encode_close,
    encode_rate,
    encode_role,
)
from multi.protocol.receiver import Receiver
from multi.protocol.scheduling import SchedulerMaker, Scheduling
from multi.protocol.segment import SegmentType
from multi.protocol.settings import AHEAD_OF_PROOF, MAX_EARLY_DATA, SessionSettings
from multi.protocol.state import SESSION_TRANSITIONS, SessionState, Step
from multi.protocol.streams import DEFAULT_PRIORITY, Streams
from multi.reasons import IN_ORDER, Cause, Reason
from multi.schedulers.base import Scheduler
from multi.schedulers.estimates import soonest
from multi.types import (
    MESSAGES,
    STREAM_ZERO,
    Address,
    ConnectionFacts,
    ConnectionId,
    ConnectionState,
    Role,
    SessionId,
    Side,
    Source,
    StreamId,
    TransportSample,
)

NEWS = frozenset((StreamReadable, StreamWritable, StreamOpened, DatagramsReadable))
MAX_ROUNDS = 100  # effects may cause effects; more rounds than this would be a loop in our own logic
MAX_CONTROL_BACKLOG = 2 * 1024 * 1024  # bytes that answers and control held back may take; minutes of honest ones
LINGER_ROUND_TRIPS = 3  # without a word from the peer; one is what its answer takes at least
MAX_LINGER = 10.0  # seconds; a round trip is the peer's to prolong
TROUBLE = 10.0  # seconds after a silent loss in which a peer that closes the rest may have lost its networks
SHORT = 1.0  # seconds without room for what waits, after which secondary connections help: a burst is no shortage
UNKNOWN_SAID = 3  # times on every network that is there: then a session without a connection believes it is forgotten

ABORTED = Reason(Cause.ABORTED, "aborted")
AUTHENTICATED = Reason(Cause.AUTHENTICATED, "authenticated")
CLOSING = Reason(Cause.CLOSED, "the session is closing")
LEAVING = Reason(Cause.GOING_AWAY, "the server is being stopped")
NEVER_CONFIRMED = Reason(Cause.NEVER_CONFIRMED, "the client never confirmed the session")
PEER_CLOSED = Reason(Cause.PEER_CLOSED, "the peer closed the connection")
PEER_CLOSED_EARLY = Reason(Cause.PEER_CLOSED, "the peer closed the connection during the handshake")
PEER_LOST = Reason(Cause.PEER_LOST, "the peer lost it")
READS_NOTHING = Reason(Cause.FLOW_CONTROL, "the peer sends and does not read")
LEFT = "the peer closed all connections and did not come back: "
NO_CONNECTION = Reason(Cause.NO_CONNECTION, "no connection could be opened")
REMOVED = Reason(Cause.REMOVED, "removed")
SESSION_GONE = Reason(Cause.SESSION_GONE, "session gone: the server no longer knows this session")
TOO_MANY_CONNECTIONS = Reason(Cause.CONNECTION_LIMIT, "too many connections in this session")
CONNECTION_LIMIT = "max_connections_per_session"  # as the configuration calls it


class SessionCore:
    """See the module. `entropy(n)` gives n random bytes.

    `make_scheduler` makes those that this side asks for, `make_peer_scheduler` those that the peer does (default: the
    same); they raise ConfigError for what cannot be made.
    """

    # With so many attributes an object's dictionary shares its keys with no other: it took 1,200 bytes more.
    __slots__ = (
        *("__weakref__", "_auth", "_close_said_at", "_created_at", "_detached_at", "_ends_at", "_incoming"),
        *("_liveness", "_open_deadline", "_open_timeout", "_opened", "_patience", "_peer_closing"),
        *("_peer_hears_away", "_peer_lost", "_said_unknown", "_short_since", "_trouble_at", "_waits_since"),
        *("closing", "confirmed", "connections", "datagrams", "entropy", "helpless", "left", "left_at"),
        *("leaving", "lingering_since", "needs_flush", "now", "outbox", "over", "paths", "pending", "reason"),
        *("receiver", "resume_timeout", "scheduling", "sender", "session_id", "settings", "side", "state", "steady"),
        *("streams", "unsettled"),
    )

    def __init__(
        self,
        side: Side,
        session_id: SessionId,
        settings: SessionSettings,
        *,
        entropy: Callable[[int], bytes],
        make_scheduler: SchedulerMaker,
        now: float,
        make_peer_scheduler: SchedulerMaker | None = None,
        psk: Callable[[bytes], bytes | None] | None = None,
    ) -> None:
        self.side = side
        self.session_id = session_id
        self.settings = settings
        self.entropy = entropy
        self.now = now
        """The time of the last input."""
        self.state = SessionState.OPENING
        self.over = False
        """The state is CLOSED."""
        self.confirmed = False
        """The peer has proved itself."""
        self.lingering_since: float | None = None
        """When CLOSE was said, or data or control came after it; None = not yet. The session lingers from then on."""
        self.closing = False
        """This side has ended the session."""
        self.leaving = False
        """The server goes away: nothing more is written, and the session ends once what was written is acknowledged."""
        self.connections = Connections()
        self.outbox = Outbox(self.connections)
        self.receiver = Receiver(settings, now)
        self.pending: list[Effect] = []
        """The effects since they were taken last."""
        self.needs_flush = True
        """Something has happened since the last effects that may call for more than acknowledgements."""
        self.steady: list[Connection] = []
        """Those that carry data, as of the last flush, while nothing is about to end or runs short; else empty."""
        self.helpless = False
        """A server with a single connection: should that be dead, it can say nothing elsewhere, and it dials nothing.

        The client has to find out, and does: it waits for what does not come. So nobody watches over acknowledgements
        that leave on this connection.
        """
        self.unsettled = True
        """Not only bytes have come and gone since `far_timer` was asked: what it said may lie too late."""
        self.paths: PathManager | None = None
        """Client, once `open` was called: which connections should exist."""
        self.reason: Reason | None = None
        """Why it ended; None while it lives."""
        make_for_peer = make_peer_scheduler or make_scheduler
        self.scheduling = Scheduling(
            side, settings, self.connections, self.outbox, self.notify, make_scheduler, make_for_peer
        )
        self.sender = self.scheduling.sender
        self.streams = Streams(side, settings.max_streams, self.sender, self.receiver, self.outbox, self.emit)
        self._auth: Authenticator = ClientAuthenticator(self) if side is Side.CLIENT else ServerAuthenticator(self, psk)
        parts = self.connections, self.outbox, self.sender, self.receiver
        self._liveness = Liveness(self, side, settings, *parts)
        self.datagrams = Datagrams(self.connections, self._liveness, self.notify, self._datagrams_readable)
        others = self.streams, self.datagrams, self._auth, self._liveness, self.scheduling
        self._incoming = Incoming(*(self, side, session_id, *parts), *others)
        self.left = False
        """As of the last flush bytes wait for a connection, new ones or such that are to be rescued."""
        self._short_since: float | None = None
        """From when on more has waited than the active connections take."""
        self._open_timeout = 0.0
        self._open_deadline: float | None = None
        self._opened = False
        self._peer_closing = False
        self._peer_lost: ConnectionId | None = None
        """The connection the peer has just said to be over."""
        self._detached_at: float | None = None
        self._waits_since = -inf
        """When it lost its last connection first since bytes have moved."""
        self._created_at = now
        self.resume_timeout = settings.resume_timeout
        """Seconds without a connection that gets on after which it ends: the smaller of what the two sides want."""
        self._patience = settings.resume_timeout
        """Seconds it waits since it was detached."""
        self._trouble_at = -inf
        """When a connection was lost last in another way than closed by the peer."""
        self.left_at: float | None = None
        """When the peer closed the last connection, as the death of its process does; None = it is here, or lost."""
        self._ends_at: float | None = None
        """When the server ends the session, as it has said last."""
        self._peer_hears_away = False
        self._close_said_at = now
        """When the session began to linger."""
        self._said_unknown: dict[str, int] = {}
        """How often a server that has proved nothing said so since the last connection, by interface."""
        self.streams.create(STREAM_ZERO, DEFAULT_PRIORITY)

    def _act(self, now: float) -> None:
        self.now = now
        self.needs_flush = self.unsettled = True

    def _living(self, connection: ConnectionId) -> Connection | None:
        found = self.connections.get(connection)
        return found if found is not None and found.alive else None

    # === inputs: connections  ===

    def connection_opened(self, connection: ConnectionId, facts: ConnectionFacts, *, now: float) -> None:
        """A transport connection is established (client) or was accepted (server)."""
        self._act(now)
        if self.over:
            self.emit(CloseConnection(connection, True, IN_ORDER))
            return
        created = Connection(connection, self.session_id, facts, now)
        self.connections[connection] = created
        self._count_connections()
        if self.side is Side.SERVER:
            # They have a limit of their own: strangers must not keep the client out, nor its dead connections itself.
            unproved = [c for c in self.connections.alive() if not c.authenticated]
            if len(unproved) > self.settings.max_unproved:
                self.disconnect(unproved[0], TOO_MANY_CONNECTIONS, abort=True)
                if not created.alive:
                    return
        self.notify(created.changed())
        self._auth.opened(created, now)

    def receive(
        self,
        connection: ConnectionId,
        data: memoryview,
        lane: int = 0,
        *,
        now: float,
        enough: Callable[[], bool] | None = None,
    ) -> bool:
        """Bytes of one lane have come, in order; return whether some of them wait for the next call.

        Asked after each segment, `enough` says whether the others have to wait; None = they never do. The session goes
        on with them with each call, also with one that brings nothing.
        """
        self.now = now
        found = self.connections.get(connection)
        if found is None or not found.alive:
            return False
        found.bytes_received += len(data)
        try:
            self._incoming.receive(found, data, lane, now, enough)
        except RemoteProtocolError as error:
            self.needs_flush = self.unsettled = True
            if found.alive:  # its own bytes may have ended it already: what follows them does not count
                reason = Reason(error.cause, str(error))
                if not found.authenticated and not found.answered and self.side is Side.CLIENT:
                    reason = Reason(Cause.NOT_MULTI, f"the peer does not speak MULTI ({error})")
                self.disconnect(found, reason, abort=True)
        return bool(found.held) and found.receives and found.alive

    def attempt_failed(self, connection: ConnectionId, reason: Reason, *, now: float, answered: bool = True) -> None:
        """A dial failed; `answered`: somebody said so, not the silence."""
        self.now = now
        self.unsettled = True
        if self.paths is not None:
            self.paths.attempt_failed(connection, reason, now, answered=answered)

    def connection_lost(self, connection: ConnectionId, failure: Reason | None, *, now: float) -> None:
        """The transport connection ended; no failure means that the peer closed it in order."""
        self._act(now)
        if (found := self._living(connection)) is None:
            return
        if found.draining and not found.in_flight:
            self._retire(found, ConnectionState.CLOSED, DRAINED)
        elif self.lingering_since is not None:
            self._retire(found, ConnectionState.CLOSED, CLOSING)
        elif self._peer_closing and failure is None:
            # The peer lingers no more: what it has not acknowledged until now it never will.
            self._end_unacknowledged()
        elif not found.authenticated and failure is None:
            self._retire(found, ConnectionState.LOST, PEER_CLOSED_EARLY)
        else:
            self._retire(found, ConnectionState.LOST, failure or PEER_CLOSED)

    def set_credit(self, connection: ConnectionId, credit: int, *, now: float) -> None:
        """Bytes the transport of `connection` will take now."""
        self.now = now
        if (found := self.connections.get(connection)) is not None:
            found.channel_credit = credit
            if credit > 0:
                found.control_backlog = 0

    def sample(self, connection: ConnectionId, sample: TransportSample, *, now: float) -> None:
        """The transport's own figures."""
        self.now = now
        if self.sender.active and len(self.connections) > 1:
            self.needs_flush = True  # what one carries may be copied to another
        found = self._living(connection)
        if found is None:
            return
        if found.take_sample(sample, now):
            self._liveness.progressed(found, now)
        if found.rest_late and found.heard_at > found.suspect_since:
            self._liveness.recovered(found, HEARD)  # more of a record of TLS, which is not whole yet
        self._liveness.look_again(found, now)

    def pace(self, connection: ConnectionId) -> float:
        """Bytes per second the transport of `connection` should not exceed; 0.0 = any."""
        found = self.connections.get(connection)
        return self.sender.pace(found) if found is not None else 0.0

    # === inputs: application  ===

    def write(self, stream: StreamId, data: bytes | bytearray | memoryview, *, now: float) -> None:
        """Queue bytes; see `SendStream.write`. Raises LocalProtocolError after the end, SessionLost when over."""
        self.now = now
        self.streams.check_writable(stream).write(data)

    def read(self, stream: StreamId, limit: int, *, now: float) -> bytes:
        """Return up to `limit` bytes in order (negative = all there is); empty when there is nothing now."""
        self.now = now
        if (found := self.receiver.streams.get(stream)) is None:
            return b""
        data = self.receiver.read(found, limit, now, self.connections.smoothed_rtt(self.now))
        if found.final is not None and found.at_end:
            self.streams.maybe_over(stream)
        return data

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
        self.streams.stop_sending(stream, code)

    def send_datagram(self, data: bytes, ttl: float, copies: int, *, now: float) -> None:
        """Queue a datagram; see `Datagrams.send`. Raises LocalProtocolError, SessionLost when over."""
        self._act(now)
        self.streams.check_open()
        self.datagrams.send(data, ttl, copies, now)

    def make_stream(self, stream: StreamId, *, now: float) -> None:
        """The application is about to take a stream that the peer opened: from now on it can be read and written."""
        self._act(now)
        self.streams.of_peer(stream)

    def accept_stream(self, stream: StreamId, *, now: float) -> None:
        """The application takes a stream that the peer opened (StreamOpened)."""
        self._act(now)
        self.streams.accept(stream)

    def open_stream(self, priority: int, deadline: float = 0.0, *, now: float) -> StreamId | None:
        """Open a stream whose bytes should arrive within `deadline` seconds (0 = no such wish), in both directions.

        None while the peer allows no more.
        """
        self._act(now)
        return self.streams.open(priority, deadline)

    def close(self, *, now: float) -> None:
        """End the session after everything written has been acknowledged. Unread bytes are discarded."""
        self._act(now)
        if self.closing or self.over:
            return
        self.closing = True
        if self.leaving:
            return  # what the streams were cut off from cannot be told any more
        self.streams.finish_all()
        if not self._opened and not self.connections.alive():
            self._end(IN_ORDER)

    def abort(self, reason: Reason = ABORTED, *, now: float) -> None:
        """End the session at once; the peer is told if a connection takes it."""
        self._act(now)
        if self.over:
            return
        code = CLOSE_GOING_AWAY if reason.cause is Cause.GOING_AWAY else CLOSE_ABORTED
        payload = encode_close(Close(code, reason))
        for connection in self.connections.alive():
            if self._hears(connection):
                connection.send(SegmentType.CLOSE, payload, self.now)
        self._end(reason)

    def go_away(self, seconds: float, *, now: float) -> None:
        """Server: tell both sides that the session ends within `seconds`; `leave` and, at once, `abort` end it."""
        self._act(now)
        if not self.over:
            self.peer_goes_away(seconds)
            self._say_away()

    def _say_away(self) -> None:
        if self._ends_at is not None and self._peer_hears_away:
            self.outbox.add(SegmentType.AWAY, encode_away(self._ends_at - self.now))

    def leave(self, *, now: float) -> None:
        """Server: end the session as announced. Nothing more is written; what was is delivered before the client hears.

        Whoever has closed it already ends it in order.
        """
        self._act(now)
        if not (self.closing or self.leaving or self.over):
            self.leaving = True
            self.streams.cut_off(SessionLost(LEAVING))

    @property
    def ends_in(self) -> float | None:
        """Seconds within which the server ends the session; None = it has not said so."""
        return None if self._ends_at is None else max(0.0, self._ends_at - self.now)

    @property
    def hurries(self) -> bool:
        """Detached, it ends before `resume_timeout`: its peer has closed everything, as a process does that dies."""
        return self._patience < self.resume_timeout

    @property
    def _given_up_at(self) -> float:
        """When it ends, detached."""
        since = self._detached_at if self.hurries and self._detached_at is not None else self._waits_since
        return since + self._patience

    def wait_for_peer(self, *, now: float) -> None:
        """Its process may live although it has closed all connections: give it the whole `resume_timeout`."""
        self._act(now)
        self.peer_lives()

    def fail(self, reason: Reason, *, now: float) -> None:
        """End the session for a reason outside of it: no candidate could be opened."""
        self._act(now)
        self._end(reason)

    # === inputs: which connections exist (client)  ===

    def open(self, paths: PathManager, open_timeout: float, *, now: float, since: float | None = None) -> None:
        """Client: have `paths` open the session within `open_timeout` seconds, from now or counted `since` a moment."""
        self.now = now
        self.unsettled = True
        self.paths = paths
        self._open_timeout = open_timeout
        self._open_deadline = (now if since is None else since) + open_timeout
        paths.handle_timer(now)

    def path_manager(self, *, now: float) -> PathManager:
        """Client: for an input to it at `now`. Raises LocalProtocolError on a server."""
        self.now = now
        self.unsettled = True
        if self.paths is None:
            raise LocalProtocolError("only the client decides which connections exist")
        return self.paths

    def remove_connection(self, connection: ConnectionId, *, now: float) -> None:
        """Drain a connection and do not dial it again. The last usable one cannot be removed."""
        if all(c.id == connection for c in self.connections.active()):
            raise LocalProtocolError("the last usable connection cannot be removed")
        self._find(connection)
        self.drain(connection, now=now)
        if self.paths is not None:
            self.paths.remove(connection, now)

    def starts_from(self, connection: ConnectionId, sources: Sequence[Source]) -> None:
        """Client: a connection over several networks uses these from now on."""
        if (known := self.connections.get(connection)) is not None:
            known.starts_from(sources)
        if self.paths is not None:
            self.paths.starts_from(connection, sources)

    def network_changed(
        self, interface: str, usable: bool, *, now: float, address: str = "", reason: str = NETWORK_GONE
    ) -> None:
        """The application or the system says that an interface became usable or stopped being so.

        With `address` only that address of the interface is meant; what was bound to it can never work again.
        """
        self.now = now
        if self.over:
            return
        if not usable:
            for connection in self.connections.alive():
                if interface and (interface != connection.interface or connection.facts.more_interfaces):
                    continue  # an MPTCP connection goes on over the others, also without its first subflow
                if not address:
                    self.suspect(connection.id, Reason(Cause.NETWORK_GONE, reason), now=now)
                elif connection.facts.local_address == address:
                    self.give_up(connection.id, Reason(Cause.ADDRESS_GONE, reason), now=now)
        if self.paths is not None and not address:
            self.paths.network_changed(interface, usable, now, reason)
        self.notify(NetworkChanged(interface, usable, reason if not usable else "usable again"))

    def signal_changed(self, interface: str, fading: bool, dbm: float, *, now: float) -> None:
        """Client: the radio of an interface is about to lose its network, or is good again."""
        self.now = now
        if self.over:
            return
        self.notify(SignalChanged(interface, fading, dbm))
        if self.paths is not None:
            self.paths.signal_changed(interface, fading, now)

    def slept(self, seconds: float, *, now: float) -> None:
        """The machine was suspended: nothing is known of any connection."""
        self._act(now)
        if self.over:
            return
        reason = Reason(Cause.SUSPENDED, f"the machine slept for {seconds:.0f} s")
        for connection in list(self.connections.values()):
            self.suspect(connection.id, reason, now=now)
        if self.paths is not None:
            self.paths.network_changed("", True, now)

    # === inputs: policy. The path manager is heard during another input, and speaks of connections that have ended  ===

    def drain(self, connection: ConnectionId, *, now: float | None = None) -> None:
        """Make-before-break: nothing new on it; close it when nothing is outstanding in either direction."""
        self._act(self.now if now is None else now)
        found = self._living(connection)
        if found is not None and not found.authenticated:
            self.disconnect(found, REMOVED, abort=True)
        elif found is not None and not found.draining:
            self._liveness.say(found, DrainStep.ASKED)
            self._liveness.start_draining(found, DRAINED_HERE)

    def give_up(self, connection: ConnectionId, reason: Reason, *, now: float | None = None) -> None:
        """It can never work again, or another has taken its place: rescue what it carries."""
        self._act(self.now if now is None else now)
        if (found := self._living(connection)) is not None:
            self.disconnect(found, reason, abort=True)

    def close_for_now(self, connection: ConnectionId, reason: Reason) -> None:
        """Close it although there is no other. The peer hears that it is drained, or it would take us for dead."""
        if (found := self._living(connection)) is None:
            return
        in_order = found.authenticated and not found.suspect
        if in_order and not found.draining:
            self._liveness.say(found, DrainStep.ASKED)
            self._send_control([found], self.now)
        self.disconnect(found, reason, abort=not in_order)

    def ping(self, connection: ConnectionId, *, now: float | None = None) -> None:
        """Ask for a sign of life."""
        self._act(self.now if now is None else now)
        if (found := self._living(connection)) is not None:
            self._liveness.ping(found, self.now)

    def announce(self, addresses: Sequence[Address], *, now: float) -> None:
        """Server: further addresses (literal, port) at which the client may reach it; replaces earlier ones."""
        self._act(now)
        if self.over:
            return
        self.outbox.add(SegmentType.ADDRESS, encode_addresses(addresses))

    def set_role(self, connection: ConnectionId, role: Role, *, now: float) -> None:
        """The application changes a connection's role on both sides."""
        self._act(now)
        self._find(connection)
        self.give_role(connection, role, "")
        if self.paths is not None:
            self.paths.set_role(connection, role, now)

    def give_role(self, connection: ConnectionId, role: Role, reason: str) -> None:
        """Change a connection's role on both sides."""
        found = self._living(connection)
        if found is None or found.role is role:
            return
        found.role = role
        if found.authenticated:
            self.say_role(found)
        else:
            found.role_pending = True
        self.notify(RoleChanged(found.id, role, by_peer=False, reason=reason))

    def say_role(self, connection: Connection) -> None:
        """Where the peer acknowledges nothing it waits, and the role that the connection has by then is said."""
        connection.role_pending = self.outbox.full
        if not connection.role_pending:
            connection.role_said = self.outbox.add(SegmentType.ROLE, encode_role(connection.number, connection.role))

    def cap(self, connection: ConnectionId, max_rate: float) -> None:
        """Change a connection's rate cap on both sides; bytes per second, 0 = none."""
        found = self._living(connection)
        if found is None or not found.authenticated or found.max_rate == max_rate:
            return
        found.set_max_rate(max_rate)
        self.needs_flush = True
        self.outbox.add(SegmentType.RATE, encode_rate(found.number, max_rate))

    def set_scheduler(self, policy: Policy, scheduler: Scheduler | None = None, *, now: float) -> None:
        """Schedule differently from now on. A client also asks the server to, unless `scheduler` is an object."""
        self._act(now)
        if self.over:
            return
        self.scheduling.set(policy, scheduler)

    def steer(self, streams: Sequence[StreamId], scheduler: str, parameters: Parameters = (), *, now: float) -> None:
        """Schedule `streams` with the scheduler of this name, as one group; empty = as the session again.

        A client also asks the server to. Raises ConfigError, LocalProtocolError for a stream that has ended.
        """
        self._act(now)
        if not self.over:
            self.scheduling.steer(streams, scheduler, parameters)

    def suspect(self, connection: ConnectionId, reason: Reason, *, now: float) -> None:
        """Something outside says that the connection may be dead (carrier lost, clock jump)."""
        self._act(now)
        found = self.connections.get(connection)
        if found is not None and found.active:
            self._liveness.suspect(found, reason, now, tell=DrainStep.SUSPECT)

    # === inputs: time  ===

    def handle_timer(self, *, now: float) -> None:
        """Do what is due at `now`."""
        self._act(now)
        if self.over:
            return
        for connection in self.connections.alive():
            self._liveness.check(connection, now)
        self._auth.handle_timer(now)
        if self._detached_at is not None and now >= self._given_up_at:
            cause, text, waited = Cause.RESUME_TIMEOUT, "no connection", self.resume_timeout
            if self.hurries:
                cause, text, waited = Cause.PEER_CLOSED, f"{LEFT}{text}", self._patience
            elif self._waits_since < self._detached_at:
                text += " on which anything arrived"
            self._end_alone(Reason(cause, f"{text} for {waited:g} s"))
        if self.lingering_since is not None and now >= self._linger_ends:
            self._end(self._parting)
        if (
            self.side is Side.SERVER
            and not self.confirmed
            and now >= self._created_at + self.settings.handshake_timeout
            and not self.connections.alive()
        ):
            self._end(NEVER_CONFIRMED)
        self._liveness.probe_window(now)
        if self.paths is not None:
            self.paths.handle_timer(now)
            if self._open_deadline is not None and now >= self._open_deadline:
                self._open_deadline = None
                if not self.confirmed:
                    self.paths.give_up(self._open_timeout)
                    text = f"the session did not open within {round(self._open_timeout, 1):g} s"
                    self._end(Reason(Cause.NO_CONNECTION, text))

    def next_timer(self) -> float | None:
        """When `handle_timer` must be called, or None. Call after `effects`."""
        near, far = self.near_timer(), self.far_timer()
        return near if far is None or (near is not None and near < far) else far

    def near_timer(self) -> float | None:
        """Of `next_timer`, what bytes that come and go bring nearer: acknowledgements owed either way, and copies."""
        return self._ahead(min(self.silence_timer(), self.flush_timer()))

    def silence_timer(self) -> float:
        """Of `near_timer`, when something has to have been heard or said; `handle_timer` sees to it. inf = never."""
        if self.over:
            return inf
        soonest = inf
        for connection in self.connections.values():
            if connection.alive and (at := self._liveness.near(connection)) is not None and at < soonest:
                soonest = at
        probe_at = self._liveness.probe_at
        if probe_at is not None and probe_at < soonest:
            soonest = probe_at
        if not self.confirmed and (at := self._auth.next_timer()) is not None and at < soonest:
            soonest = at
        return soonest

    def flush_timer(self) -> float:
        """Of `near_timer`, when there is something to send; `effects` does it. inf = never."""
        if self.over:
            return inf
        sender, datagrams = self.sender, self.datagrams
        owed = self.receiver.ack_due
        soonest = owed if owed is not None and self.connections.for_control() else inf
        if sender.hold_until is not None and sender.hold_until < soonest:
            soonest = sender.hold_until
        if sender.active and sender.reinject_at is not None and sender.reinject_at < soonest:
            soonest = sender.reinject_at
        if datagrams.waiting and (at := datagrams.next_timer(self.now)) is not None and at < soonest:
            soonest = at
        if sender.active or datagrams.waiting:
            for connection in self.connections.capped():
                if (at := connection.tokens_ready_at()) is not None and at < soonest:
                    soonest = at
        return soonest

    def far_timer(self) -> float | None:
        """The others of `next_timer`. Until the session is `unsettled` again they only move away."""
        self.unsettled = False
        if self.over:
            return None
        due = [inf]
        if self._open_deadline is not None:
            due.append(self._open_deadline)
        if self.paths is not None and (at := self.paths.next_timer()) is not None:
            due.append(at)
        if self._detached_at is not None:
            due.append(self._given_up_at)
        if self.lingering_since is not None:
            due.append(self._linger_ends)
        alive = self.connections.alive()
        if self.side is Side.SERVER and not self.confirmed and not alive:
            due.append(self._created_at + self.settings.handshake_timeout)
        for connection in alive:
            due += [at for at, _ in self._liveness.far(connection)]
        return self._ahead(min(due))

    def _ahead(self, soonest: float) -> float | None:
        # A timer in the past would spin; what was due has been handled with the last input.
        return None if soonest == inf else max(soonest, self.now + 1e-4)

    # === outputs  ===

    def effects(self, *, now: float | None = None) -> list[Effect]:
        """Return what is to be done, in order, after everything since the last call has been taken in.

        What the session says about its connections makes the path manager act, and what that does can give the session
        more to say: they take turns until both are quiet. Bytes that come and go cost one turn.
        """
        if now is not None:
            self.now = now
        paths = self.paths
        collected: list[Effect] = []
        for _ in range(MAX_ROUNDS):
            if not self.quiet() and not self._flush_written(self.now):
                self._flush(self.now)
            fresh, self.pending = self.pending, []
            collected += fresh
            if paths is None:
                return collected
            noticed = False
            for effect in fresh:
                if type(effect) is Notify:
                    self._tell_paths(paths, effect.event)
                    noticed = True
            if not noticed and not paths.pending and self.confirmed:
                break
            was_over = self.over
            reaction = self._path_effects(paths)
            if not noticed and not reaction and was_over == self.over:
                break
            collected += reaction
        if self.over:
            collected.sort(key=lambda effect: isinstance(effect, SessionClosed))
        return collected

    def news(self) -> list[Effect] | None:
        """Take the effects where they only tell the application of what has come on streams; None = there are others.

        What there is to be said about it is left for the next `effects` (`quiet`).
        """
        if not self.confirmed or (self.paths is not None and self.paths.pending):
            return None
        news = self.pending
        for effect in news:
            if type(effect) not in NEWS:
                return None
        self.pending = []
        return news

    def quiet(self) -> bool:
        """There is nothing to say: bytes have come and been read since the last effects, or acknowledgements."""
        receiver, sender = self.receiver, self.sender
        if self.needs_flush or self.outbox.queue or self.datagrams.waiting or receiver.ack_now:
            return False
        if receiver.ack_due is not None and self.now >= receiver.ack_due:
            return False
        if not sender.active:
            return True
        for stream in sender.active.values():
            if stream.next_offset != stream.end_offset or stream.lost:
                return False
        return sender.reinject_at is None or self.now < sender.reinject_at

    def _flush_written(self, now: float) -> bool:
        """As `_flush`, where bytes have been written or read and nothing else has happened; False: it does not do.

        It is so while the same connections carry everything and nothing ends: small messages come this way.
        """
        usable, receiver, sender = self.steady, self.receiver, self.sender
        if not usable or self.needs_flush or self.outbox.queue or self.datagrams.waiting:
            return False
        due = receiver.ack_due
        if receiver.ack_now or (due is not None and (now >= due or (receiver.rides(now) and sender.waits()))):
            receiver.ack_now = True
            if len(self.connections) == 1:
                receiver.acknowledge_on(usable, now)
            else:
                receiver.send_acks(self.connections, self.connections.for_control(), now)
            for connection in self.connections.values():
                if connection.control_backlog > MAX_CONTROL_BACKLOG:
                    return False
        self.left = False
        if sender.active:
            for connection in usable:
                connection.refresh_credit(now)
            self.left = not sender.fill(usable, now) and sender.waits()
        for connection in self.connections.values():  # acknowledgements may leave on a backup
            if connection.written:
                self._collect(connection)
        return not self.left

    def _flush(self, now: float) -> None:
        """See to all that may be due."""
        self.needs_flush = False
        if not self.over:
            self._write_due(now)
        for connection in self.connections.values():
            if connection.control_backlog > MAX_CONTROL_BACKLOG and connection.alive:
                self.disconnect(connection, READS_NOTHING, abort=True)
            self._collect(connection)

    def _write_due(self, now: float) -> None:
        """Write what is due: acknowledgements, control, rescues, new bytes, copies. Parts with nothing to do rest."""
        ack_wanted = draining = False
        for connection in self.connections.values():
            ack_wanted = ack_wanted or connection.ack_wanted
            draining = draining or connection.draining
        receiver, ready = self.receiver, self.connections.for_control()
        if self.outbox.queue:
            self._send_control(ready, now)  # the peer has to know a stream before its window
        if not receiver.ack_now and receiver.rides(now) and self.sender.waits():
            receiver.ack_now = True
        if ack_wanted or receiver.is_due(now):
            receiver.send_acks(self.connections, ready, now)
        usable = self.connections.for_data()
        for connection in usable:
            connection.refresh_credit(now)
        if self.datagrams.waiting:
            self.datagrams.fill(usable, now, share=self.sender.waits())
        self.sender.fill(usable, now)
        left = self.sender.has_unsent
        if (left or self._short_since is not None) and self._is_short(usable, left, now):
            helped = self.connections.with_secondary(usable)
            if len(helped) > len(usable):
                for connection in helped:
                    connection.refresh_credit(now)
                self.sender.fill(helped, now)
                left = self.sender.has_unsent
        if left or self._liveness.probe_at is not None:
            self._liveness.plan_probe(now)
        if draining:
            self._liveness.finish_drains()
        if self.streams.ending:
            self.streams.send_fins()
        if self.outbox.queue:
            self._send_control(self.connections.for_control() if draining else ready, now)
        ending = self.closing or self.leaving
        if ending:
            self._finish_close()
        self.left = self.sender.waits()
        ends = draining or ending or self.streams.ending
        settled = not (ends or left) and self._short_since is None and self._liveness.probe_at is None
        self.steady = usable if settled and usable and usable[0].active else []

    def _is_short(self, usable: Sequence[Connection], left: bool, now: float) -> bool:
        """Whether `usable` has been taking less than there is to send for a while."""
        if not left:
            if not self.sender.held_back:  # a writer that waits has more, and is about to write it
                self._short_since = None
            return False
        if any(c.credit > 0 for c in usable):
            return False
        if self._short_since is None:
            self._short_since = now
        return now >= self._short_since + SHORT

    def _send_control(self, ready: list[Connection], now: float) -> None:
        """Put waiting control on the connection of `ready` that delivers it first."""
        if ready:
            self.outbox.send(soonest(ready), now)

    def _path_effects(self, paths: PathManager) -> list[Effect]:
        if self.state is SessionState.OPENING and paths.hopeless:
            self.fail(NO_CONNECTION, now=self.now)
        effects: list[Effect] = []
        self.unsettled = True
        for effect in paths.effects():
            if isinstance(effect, CancelDial) and effect.connection in self.connections:
                self.drain(effect.connection)
            else:
                effects.append(effect)
        return effects

    def stuck(self, connection: Connection) -> None:
        if self.paths is not None:
            self.paths.stuck(connection.id, self.now)

    def gets_on(self, connection: Connection) -> None:
        if self.paths is not None:
            self.paths.gets_on(connection.id, self.now)

    def _tell_paths(self, paths: PathManager, event: Event) -> None:
        if isinstance(event, ConnectionChanged):
            if event.state is ConnectionState.ACTIVE and self.confirmed:
                paths.established()
                self._open_deadline = None
            paths.connection_changed(event.connection, event.state, event.reason, self.now)
            if self.confirmed:
                paths.retry_unfilled(self.now)
        elif isinstance(event, SessionDetached):
            paths.detached(self.now)
        elif isinstance(event, SessionResumed):
            paths.resumed()

    def _collect(self, connection: Connection) -> None:
        if not connection.written:
            return
        connection.written = False
        for lane, buffers in enumerate(connection.output):
            if buffers:
                self.pending.append(SendBytes(connection.id, lane, buffers))
                connection.output[lane] = []
        if connection.messages:
            self.pending.append(SendBytes(connection.id, MESSAGES, connection.messages))
            connection.messages = []
        if connection.unsampled_at is None:
            connection.unsampled_at = self.now

    def under_way(self) -> bool:
        """Something is on its way, or waits to be acknowledged: `sample_due` may become true, and deadlines move."""
        owed = self.receiver.ack_due is not None
        for connection in self.connections.values():
            if connection.awaits_peer() if self.helpless else connection.under_way():
                return True
            if owed and connection.authenticated:
                return True
        return False

    def at_rest(self) -> bool:
        """There is nothing to do, everything sent is acknowledged and nothing is owed.

        Bytes have left no deadline behind (`near_timer`).
        """
        sender, receiver = self.sender, self.receiver
        if sender.active or receiver.ack_due is not None or self.unsettled or self.needs_flush or self.pending:
            return False
        if receiver.ack_now or self.outbox.queue or self.datagrams.waiting or sender.hold_until is not None:
            return False
        if self._liveness.probe_at is not None or not self.confirmed:
            return False
        for connection in self.connections.values():
            if not connection.active or connection.ack_keepalive_due:
                return False
            if connection.awaits_peer() if self.helpless else connection.under_way():
                return False
        return True

    @property
    def waits_for_time(self) -> bool:
        """What is to be sent waits for a moment that no input brings: a scheduler's, a datagram's or a rate cap's."""
        if self.sender.hold_until is not None or self.datagrams.waiting:
            return True
        return self.left and bool(self.connections.capped())

    def sample_due(self, now: float, interval: float = SAMPLE_INTERVAL) -> bool:
        """The figures of the transports are of use now; `interval` seconds lie between two of them at least."""
        for connection in self.connections.values():  # noqa: SIM110
            if connection.sample_due(now, interval):
                return True
        return False

    @property
    def moved_at(self) -> float:
        """When bytes of the application last made progress, in or out; in the beginning, when the session was made."""
        return max(self.receiver.moved_at, self.sender.moved_at)

    @property
    def route(self) -> bytes:
        """Client: the token by which balancers find the server, at most ROUTE_LENGTH bytes; empty = there is none."""
        return self._auth.whereabouts.route

    @property
    def peer_psk_id(self) -> str:
        """Name of the pre-shared key that was proved, or empty."""
        proved = self.confirmed or self._auth.psk_proved
        return self._auth.psk_id.decode(errors="replace") if proved else ""

    # === for its parts  ===

    def move(self, state: SessionState) -> None:
        if state not in SESSION_TRANSITIONS[self.state]:
            raise LocalProtocolError(f"a session cannot go from {self.state.value} to {state.value}")
        self.state = state
        self.over = state is SessionState.CLOSED

    def emit(self, effect: Effect) -> None:
        self.pending.append(effect)

    def notify(self, event: Event) -> None:
        """Let subscribers hear of it."""
        self.needs_flush = self.unsettled = True
        self.pending.append(Notify(event))

    @property
    def settling(self) -> bool:
        """The session or a connection ends as soon as the peer has acknowledged enough."""
        if self.closing or self.leaving:
            return True
        for connection in self.connections.values():  # noqa: SIM110 - asked for every acknowledgement
            if connection.draining:
                return True
        return False

    def _datagrams_readable(self) -> None:
        if not self.pending or not isinstance(self.pending[-1], DatagramsReadable):
            self.emit(DatagramsReadable())

    def may_send(self, connection: Connection, *, receives: bool = False) -> None:
        connection.step(Step.MAY_EXCHANGE if receives else Step.MAY_SEND)
        self._may_send(connection)

    def _may_send(self, connection: Connection) -> None:
        # What overtakes the proof, or comes on a repeated HELLO, is held by the peer, which holds only so much.
        if self.side is Side.CLIENT and not connection.authenticated:
            connection.allowance = AHEAD_OF_PROOF
        elif connection.lanes > 1 or not connection.authenticated:
            connection.allowance = MAX_EARLY_DATA
        else:
            connection.allowance = None
        if not self._opened:
            self._opened = True
            if self.paths is not None:
                self.paths.begun = True
            self.emit(SessionOpened())

    def peer_known(
        self, window: int, max_streams: int, resume_timeout: float, policy: Policy | None, extensions: Extensions
    ) -> None:
        self.resume_timeout = min(self.resume_timeout, resume_timeout)
        self.sender.peer_grants(window)
        self.streams.peer_known(window, max_streams)
        kinds = {kind for kind, _ in extensions}
        self.datagrams.peer_takes = DATAGRAMS in kinds
        self._peer_hears_away = GOING_AWAY in kinds
        self.scheduling.peer_known(steers=STEERING in kinds)
        if policy is not None:
            self.scheduling.peer_wants(policy)

    def peer_lives(self) -> None:
        self._patience = self.resume_timeout

    def admitted(self, connection: Connection) -> None:
        connection.step(Step.MAY_RECEIVE)

    def may_join(self, join: Join, binding: bytes) -> bool:
        """Server: `join` comes from the client, or from somebody who has heard it."""
        return self._auth.may_join(join, binding)

    def _bound_connections(self, newest: Connection) -> None:
        """The peer has proved itself on one more: beyond the limit the one heard least recently goes.

        It may be dead, or the client wants more than it may have: there it hears why, and waits before it tries again.
        """
        proved = [c for c in self.connections.authenticated() if c is not newest]
        if self.side is Side.SERVER and len(proved) >= self.settings.max_connections:
            goes = min(proved, key=lambda c: c.heard_at)
            hears = goes.active
            if hears:
                goes.send(SegmentType.REFUSE, Refuse(RefuseCode.BUSY, limit=CONNECTION_LIMIT).encode(), self.now)
                self._peer_lost = goes.id  # so it need not be told elsewhere, which might come first
            self.disconnect(goes, TOO_MANY_CONNECTIONS, abort=not hears)

    def authenticated(self, connection: Connection) -> None:
        connection.step(Step.PROVED, AUTHENTICATED)
        connection.heard(self.now)
        self.notify(connection.changed())
        self._may_send(connection)
        if not self.confirmed:
            self.confirmed = True
            self.move(SessionState.OPEN)
            self.notify(SessionConfirmed())
        self._said_unknown.clear()
        if self._detached_at is not None:
            after, self._detached_at = self.now - self._detached_at, None
            self.move(SessionState.OPEN)
            self.left_at = None
            self.notify(SessionResumed(after))
            if self.side is Side.SERVER and not self.outbox.full:
                self._say_away()  # what was said before may be late by as long as there was no connection
        self._bound_connections(connection)
        if connection.role_pending:
            self.say_role(connection)
        self._liveness.relieve_suspects()
        if self.lingering_since is not None:
            self._say_close([connection])  # the peer came back because it has not heard it
        if connection.drain_pending is not None:
            self._liveness.peer_drains(connection, connection.drain_pending)
        self.receiver.everything_dirty()
        connection.ack_wanted = True
        if self.side is Side.SERVER:
            connection.allowance = None
        self._auth.hand_out_tickets(connection)

    def start_over(self, connection: Connection) -> None:
        connection.unprotect()
        self.outbox.lose(connection)
        self.sender.lose(connection, certain=True)
        self.sender.detach(connection)

    def join_elsewhere(self, connection: Connection) -> None:
        if self.paths is not None:
            self.paths.elsewhere(connection.id, self.now)

    def refused(self, connection: Connection, refuse: Refuse) -> None:
        joining = self.confirmed
        if joining and self.paths is not None and refuse.address is not None:
            self.paths.redirected(connection.id, refuse.address)
        self._retire(connection, ConnectionState.LOST, refuse.reason)
        self.emit(CloseConnection(connection.id, True, refuse.reason))
        if not joining or refuse.meaning is not RefuseCode.UNKNOWN or self.connections.authenticated():
            return
        if self._auth.knows_reset(refuse.token):
            self._end_alone(SESSION_GONE)
            return
        if self._may_be_another(connection):
            return
        said = self._said_unknown
        # Where its certificate tells who says so, no matter which of its networks brings the answer.
        further = connection.facts.more_interfaces if connection.facts.peer_verified else ()
        for name in (connection.interface, *further):
            said[name] = said.get(name, 0) + 1
        networks = self.paths.networks() if self.paths is not None else {""}
        everywhere = bool(networks) and all(
            said.get(name or connection.interface, 0) >= UNKNOWN_SAID for name in networks
        )
        if everywhere:
            self._end_alone(SESSION_GONE)

    def _may_be_another(self, connection: Connection) -> bool:
        """Other servers say truly that they do not know the session, and ours has said where it is itself."""
        said = self._auth.whereabouts.elsewhere and not connection.facts.told
        return said and not (self.paths is not None and self.paths.away)

    def disconnect(
        self, connection: Connection, reason: Reason, *, abort: bool, state: ConnectionState = ConnectionState.LOST
    ) -> None:
        self._collect(connection)
        self.emit(CloseConnection(connection.id, abort, reason))
        self._retire(connection, state, reason)

    # === life of a connection  ===

    def peer_lost(self, connection: Connection) -> None:
        self._peer_lost = connection.id
        self.disconnect(connection, PEER_LOST, abort=True)

    def _retire(self, connection: Connection, state: ConnectionState, reason: Reason) -> None:
        """A connection is over: rescue what it carried, say everything again elsewhere."""
        # One that was silent before may have lost its network in one direction only. A peer that drains one lives.
        closed_by_peer = reason.cause is Cause.PEER_CLOSED and not connection.suspect and not connection.draining
        if state is ConnectionState.LOST and connection.authenticated:
            self._trouble_at = self._trouble_at if closed_by_peer else self.now
            if connection.id != self._peer_lost:
                self._liveness.say(connection, DrainStep.LOST)
        connection.step(Step.CLOSE if state is ConnectionState.CLOSED else Step.LOSE, reason)
        self.outbox.lose(connection)
        self.sender.lose(connection)
        self.sender.detach(connection)
        self.receiver.everything_dirty()
        self._auth.lost(connection, self.now)
        self.notify(connection.changed())
        # Where the session lingers CLOSE may have been lost: the peer may come back on another connection.
        lives = self.confirmed and not self.over and self.lingering_since is None
        if lives and self._detached_at is None and not self.connections.authenticated():
            # Connections that come, carry nothing and go again, as somebody in their path may want it, gain no time.
            if self.moved_at > self._waits_since or not self.sender.expects_progress:
                self._waits_since = self.now
            self._detached_at = self.now
            self._patience = self.resume_timeout
            abandon = self.settings.abandon_timeout if self.side is Side.SERVER else 0.0
            if abandon and closed_by_peer and self.now >= self._trouble_at + TROUBLE:
                self.left_at = self.now
                self._patience = min(self._patience, abandon)
            self.move(SessionState.DETACHED)
            self.notify(SessionDetached(max(0.0, self._given_up_at - self.now)))

    def forget_connection(self, connection: ConnectionId) -> None:
        """Drop the record of a connection that has ended; its final facts were given with its last event."""
        found = self.connections.get(connection)
        if found is not None and not found.alive:
            self._collect(found)
            del self.connections[connection]
            self._count_connections()

    def _count_connections(self) -> None:
        self.helpless = self.side is Side.SERVER and len(self.connections) == 1

    def _find(self, connection: ConnectionId) -> Connection:
        if (found := self._living(connection)) is None:
            raise LocalProtocolError(f"there is no connection {connection}")
        return found

    # === life of the session  ===

    def _finish_close(self) -> None:
        """Once everything is acknowledged, say CLOSE on every connection and wait for the answer."""
        if self.lingering_since is not None or not self.confirmed:
            return
        streams = self.streams
        acknowledged = streams.all_written_acknowledged if self.leaving else streams.all_sent_acknowledged
        if not acknowledged or not self.outbox.settled:
            return
        if not any(c.delivers for c in self.connections.authenticated()):
            return  # a CLOSE that only a suspect connection carries may never be heard: the peer would wait in vain
        self._say_close(self.connections.authenticated())
        if self._peer_closing:
            self._end(IN_ORDER)
            return
        self.lingering_since = self._close_said_at = self.now
        self.unsettled = True
        self.move(SessionState.CLOSING)

    @property
    def _linger_ends(self) -> float:
        """Until then the peer may be silent after our CLOSE; what our acknowledgements let it send takes a while.

        It has `resume_timeout` in all, however much it goes on to send.
        """
        assert self.lingering_since is not None
        silent = min(LINGER_ROUND_TRIPS * self.connections.smoothed_rtt(self.now), MAX_LINGER)
        longest = max(self.resume_timeout, self.settings.linger)
        return min(self.lingering_since + max(self.settings.linger, silent), self._close_said_at + longest)

    def _say_close(self, connections: Sequence[Connection]) -> None:
        close = Close(CLOSE_GOING_AWAY, LEAVING) if self.leaving else Close(CLOSE_NORMAL)
        self.receiver.everything_dirty()  # there is no later word that could say what was lost on its way
        self.receiver.acknowledge_on(connections, self.now)
        payload = encode_close(close)
        for connection in connections:
            connection.send(SegmentType.CLOSE, payload, self.now)

    def peer_goes_away(self, seconds: float) -> None:
        self._ends_at = self.now + seconds
        self.notify(GoingAway(seconds))

    @property
    def _parting(self) -> Reason:
        """Why the session ends that has said CLOSE."""
        return LEAVING if self.leaving else IN_ORDER

    def peer_closed(self, close: Close) -> None:
        if close.code == CLOSE_NORMAL and self.closing and not (self.leaving or self.streams.all_sent_acknowledged):
            self._peer_closing = True  # both closed at once: the peer lingers to acknowledge what is still on its way
            return
        if self.lingering_since is None:
            self._say_close(self.connections.authenticated())
        elif self.leaving:
            self._end(LEAVING)
            return
        if close.code == CLOSE_GOING_AWAY and self.side is Side.CLIENT:
            self._end_alone(LEAVING)
        elif close.code != CLOSE_NORMAL:
            text = f"the peer ended the session: {close.reason or 'aborted'}"
            self._end(Reason(Cause.PEER_ABORTED, text))
        else:
            self._end_unacknowledged()

    def _end_unacknowledged(self) -> None:
        left = self.sender.unacked
        text = f"the peer closed the session before {left} bytes were acknowledged"
        self._end(Reason(Cause.PEER_CLOSED, text) if left else IN_ORDER)

    def _end_alone(self, reason: Reason) -> None:
        """The peer will not come back. After our `close` that is in order where it has all, and one end is known."""
        has_all = not self.sender.unacked and self.streams.all_received
        told = self.streams.all_sent_acknowledged
        self._end(IN_ORDER if self.closing and (told or has_all) else reason)

    def dismantle(self) -> None:
        """Nobody uses it any more. It holds its parts and they hold it: only the garbage collector would find them."""
        self.sender.active.clear()  # where streams stand that hold it
        del self.scheduling.sender  # which holds its `failed`
        for name in SessionCore.__slots__:
            if name != "__weakref__":
                delattr(self, name)

    def _hears(self, connection: Connection) -> bool:
        """The peer takes what is said here; a client that was sent ACCEPT does before it has proved anything."""
        return connection.sends and (connection.authenticated or self.side is Side.SERVER)

    def _end(self, reason: Reason) -> None:
        """The session is over. SessionClosed is its last effect."""
        if self.over:
            return
        self.move(SessionState.CLOSED)
        self.reason = reason
        if self.paths is not None:
            self.paths.stop()  # first: attempts that end with the session have not failed
        for connection in self.connections.alive():
            self._collect(connection)
            # Where nobody is known to listen there is no goodbye to wait for.
            silent = not self._hears(connection) or connection.suspect
            self.emit(CloseConnection(connection.id, silent, reason))
            connection.step(Step.CLOSE, reason)
            self.notify(connection.changed())
        self.streams.session_ended(None if reason.orderly else SessionLost(reason))
        self.datagrams.session_ended()
        for stream in list(self.receiver.streams):
            self.emit(StreamReadable(stream))
        for stream in list(self.sender.streams):
            self.emit(StreamWritable(stream))
        self.notify(SessionEnded(reason))
        self.emit(SessionClosed(reason))
