"""What comes in on a connection: held until its handshake is far enough, then cut into segments and handed on.

It decides what a segment means for the connection that brought it (heard, in time, to be acknowledged there) and
who takes its content. What is done about it is left to the streams, the sender, the receiver and the session.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from multi.errors import RemoteProtocolError
from multi.events import AddressesAnnounced, Effect, Event, RoleChanged
from multi.protocol.authenticator import Authenticator
from multi.protocol.connection import MAX_DATAGRAM, Connection, Connections
from multi.protocol.control import Outbox
from multi.protocol.datagrams import Datagrams
from multi.protocol.handshake import decode_tickets
from multi.protocol.liveness import HEARD, Liveness
from multi.protocol.payloads import (
    Close,
    DrainStep,
    Fields,
    Keepalive,
    Parameters,
    decode_ack,
    decode_addresses,
    decode_away,
    decode_close,
    decode_drain,
    decode_keepalive,
    decode_policy,
    decode_rate,
    decode_role,
    decode_scheduler,
    encode_keepalive,
)
from multi.protocol.receiver import Receiver
from multi.protocol.scheduling import Scheduling
from multi.protocol.segment import CONTROL_TYPES, HANDSHAKE_TYPES, Segment, SegmentDecoder, SegmentType
from multi.protocol.sender import Sender
from multi.protocol.settings import MAX_EARLY_DATA
from multi.protocol.state import Phase
from multi.protocol.streams import Streams
from multi.reasons import Cause, Reason
from multi.types import MESSAGES, Role, SessionId, Side

MAX_HELD = 3 * MAX_EARLY_DATA  # bytes held before the handshake; early data with its headers fits twice
HELD_OVERHEAD = 32  # counted per piece held: a third of what its objects take, as early data may be in small pieces
MAX_STREAMS_TO_ACK = 32  # streams that such an ACK names again; what does not fit is repaired by a repeat
UNHURRIED = frozenset({SegmentType.OPEN, SegmentType.TICKETS})
"""Control whose arrival nobody waits to hear of: what is said soon anyway says it too."""
OF_STREAMS = frozenset(range(SegmentType.FIN, SegmentType.MAX_STREAMS + 1))
"""Control that concerns streams."""
DATA, ACK = int(SegmentType.DATA), int(SegmentType.ACK)
SERVER_TYPES = frozenset({SegmentType.ACCEPT, SegmentType.CHALLENGE, SegmentType.ADMIT, SegmentType.REFUSE})


class ReceivingSession(Protocol):
    """What whoever takes the bytes knows of the session they are for, and what they make happen to it."""

    lingering_since: float | None
    needs_flush: bool
    unsettled: bool
    pending: list[Effect]
    steady: list[Connection]

    @property
    def settling(self) -> bool:
        """The session or a connection ends as soon as the peer has acknowledged enough."""

    def notify(self, event: Event) -> None:
        """Let subscribers hear of it."""

    def say_role(self, connection: Connection) -> None:
        """Tell the peer what role a connection has."""

    def peer_lost(self, connection: Connection) -> None:
        """On the peer's side it is over: nothing need be said about it any more."""

    def peer_goes_away(self, seconds: float) -> None:
        """AWAY has come: the server ends the session within `seconds`."""

    def peer_closed(self, close: Close) -> None:
        """CLOSE has come."""


@dataclass(slots=True, eq=False)
class Incoming:
    """Takes the bytes of all connections of one session."""

    _session: ReceivingSession
    _side: Side
    _session_id: SessionId
    _connections: Connections
    _outbox: Outbox
    _sender: Sender
    _receiver: Receiver
    _streams: Streams
    _datagrams: Datagrams
    _auth: Authenticator
    _liveness: Liveness
    _scheduling: Scheduling
    _policy_number: int = -1
    _address_number: int = -1
    _away_number: int = -1
    _enough: Callable[[], bool] | None = None

    def receive(
        self, connection: Connection, data: memoryview, lane: int, now: float, enough: Callable[[], bool] | None
    ) -> None:
        """Take bytes of one lane, in order. Raises RemoteProtocolError when they end the connection.

        Asked after each segment, `enough` says whether the others have to wait (`Connection.behind`); None = never.
        """
        self._enough = enough
        if lane == MESSAGES:
            self._messages(connection, data, now)
            return
        if connection.held and connection.receives:
            if data:
                connection.held.append((lane, bytes(data)))
            self._release_held(connection, now)
            return
        if lane and not connection.receives:
            self._hold(connection, lane, bytes(data))
            return
        decoder, session_id = connection.decoders[lane], self._session_id
        total = len(data)
        decoder.streaming = connection.receives and connection.openers is None
        heard = False
        for segment in decoder.feed(data):
            if not connection.alive:
                return
            taken = decoder.taken
            if segment.session_id != session_id:
                raise RemoteProtocolError("a segment of another session")
            receives, type_ = connection.receives, segment.type
            if connection.openers is not None and (receives or type_ not in HANDSHAKE_TYPES):
                segment.payload = connection.openers[lane].open(segment.header, segment.payload)
                segment.owned = True
            if receives and not heard and type_ not in HANDSHAKE_TYPES:
                self._heard(connection, now)
                heard = connection.authenticated  # once for all that has come together
            if receives and type_ == DATA:
                self._data(connection, segment, now)
            elif receives and type_ == ACK:
                self._ack(segment, now)
            else:
                self._session.needs_flush = self._session.unsettled = True
                if receives and type_ in CONTROL_TYPES:
                    self._numbered(connection, segment, now)
                else:
                    self._segment(connection, segment, lane, now)
            # Before the handshake is far enough little comes, and what may wait is held elsewhere.
            if taken < total and connection.receives and (connection.held or (enough is not None and enough())):
                connection.held.append((lane, bytes(data[taken:])))
                return
        if connection.heard_at < now and connection.authenticated:
            self._heard(connection, now)  # a part of a segment: on a slow network the rest may take seconds

    def _messages(self, connection: Connection, data: memoryview, now: float) -> None:
        """Whole DATAGRAM segments. Those that come before the handshake is far enough are lost, as others are."""
        if not connection.receives:
            return
        if connection.openers is not None:
            raise RemoteProtocolError("a message that is not sealed")
        decoder = SegmentDecoder()
        for segment in decoder.feed(data):
            if segment.session_id != self._session_id:
                raise RemoteProtocolError("a segment of another session")
            if segment.type != SegmentType.DATAGRAM:
                raise RemoteProtocolError("a message that is no DATAGRAM")
            self._datagram(connection, segment)
        if decoder.buffered:
            raise RemoteProtocolError("a message that is no whole segment")
        self._heard(connection, now)

    def _datagram(self, connection: Connection, segment: Segment) -> None:
        if len(segment.payload) > MAX_DATAGRAM:
            raise RemoteProtocolError(f"a datagram of {len(segment.payload)} bytes")
        connection.payload_received += len(segment.payload)
        self._datagrams.take(segment.sequence, bytes(segment.payload))

    def _hold(self, connection: Connection, lane: int, data: bytes) -> None:
        if connection.phase is not Phase.DISCARDING:
            connection.held.append((lane, data))
        connection.held_size += len(data) + HELD_OVERHEAD
        if connection.held_size > MAX_HELD:
            raise RemoteProtocolError("too many bytes before the handshake", Cause.FLOW_CONTROL)

    def _release_held(self, connection: Connection, now: float) -> None:
        """The handshake is far enough, or there is time again: take what had to wait for it."""
        held, connection.held = connection.held, deque()
        while held and connection.alive:
            lane, data = held.popleft()
            self.receive(connection, memoryview(data), lane, now, self._enough)
            if connection.held or (self._enough is not None and self._enough()):
                connection.held += held
                return

    def _data(self, connection: Connection, segment: Segment, now: float) -> None:
        """The common case, once the handshake is far enough."""
        size = len(segment.payload)
        if not size:
            raise RemoteProtocolError("a DATA segment without data")
        session, receiver = self._session, self._receiver
        if session.lingering_since is not None:
            session.lingering_since = now  # the peer is still sending: it needs our acknowledgements to end in order
        if not connection.ack_keepalive_due:
            connection.owe_sign(now)
        connection.payload_received += size
        to_ack = connection.streams_to_ack
        if segment.stream not in to_ack and len(to_ack) < MAX_STREAMS_TO_ACK:
            to_ack.add(segment.stream)
        stream = receiver.streams.get(segment.stream) or self._streams.of_peer(segment.stream)
        known = stream.highest if stream is not None else 0
        if stream is None:
            receiver.repeat(segment.stream, segment.sequence + size)
        elif receiver.data(stream, segment.sequence, segment.payload, segment.owned, now):
            effects = session.pending
            if not effects or effects[-1] is not stream.news:  # a reader need not be told twice
                effects.append(stream.news)
            if stream.final is not None and stream.complete:
                self._streams.maybe_over(stream.id)
            return
        if (stream is None or stream.highest == known) and not receiver.ack_due:
            connection.ack_wanted = session.needs_flush = True

    def _heard(self, connection: Connection, now: float) -> None:
        connection.heard_at = connection.progress_at = connection.session_progress_at = now
        if connection.authenticated:
            connection.allowance = None
            if connection.suspect:
                self._liveness.recovered(connection, HEARD)

    def _segment(self, connection: Connection, segment: Segment, lane: int, now: float) -> None:
        if segment.type in SERVER_TYPES:
            connection.answered = True
        if segment.type in HANDSHAKE_TYPES:
            if lane:
                raise RemoteProtocolError("a handshake segment outside lane 0")
            self._auth.handle(connection, segment, now)
            if connection.behind:
                self._release_held(connection, now)
            return
        if not connection.receives:
            if self._side is Side.CLIENT:
                raise RemoteProtocolError("a segment before the handshake was done")
            self._hold(connection, 0, bytes(segment.header) + bytes(segment.payload))
            return
        if segment.type == SegmentType.DATAGRAM:
            self._datagram(connection, segment)
        elif segment.type == SegmentType.KEEPALIVE:
            self._keepalive(connection, decode_keepalive(segment.payload), now)
        elif segment.type == SegmentType.CLOSE:
            if not connection.authenticated:
                raise RemoteProtocolError("CLOSE before the handshake was done")
            self._session.peer_closed(decode_close(segment.payload))

    def _numbered(self, connection: Connection, segment: Segment, now: float) -> None:
        """Control, which is acknowledged and sent again until it is."""
        receiver = self._receiver
        if self._session.lingering_since is not None:
            self._session.lingering_since = now
        if not connection.ack_keepalive_due:
            connection.owe_sign(now)
        receiver.control_arrived(now, urgent=segment.type not in UNHURRIED)
        if not receiver.control.take(segment.sequence):
            connection.ack_wanted = True  # a repeat: the acknowledgement was lost on another path
        elif segment.type in OF_STREAMS:
            self._streams.control(segment, now)
        else:
            self._control(connection, segment, now)

    def _ack(self, segment: Segment, now: float) -> None:
        """What it frees may end a connection or the session; what may be sent now, the session sees by itself."""
        session, sender, outbox = self._session, self._sender, self._outbox
        ack = decode_ack(segment.payload)
        if not session.steady and session.settling:
            session.needs_flush = True
        if ack.control_cumulative != outbox.acked or ack.control_ranges:
            for type_, stream in outbox.acknowledge(ack.control_cumulative, ack.control_ranges):
                self._streams.control_acknowledged(type_, stream)
            for connection in self._connections.authenticated():
                if connection.role_pending:
                    session.say_role(connection)
        for entry in ack.streams:
            if sender.acknowledge(entry, now):
                self._streams.maybe_over(entry.stream)
        if ack.session_window > sender.window:
            sender.widen(ack.session_window)  # after what is acknowledged, which no longer takes a part of it
        if sender.active and len(self._connections) > 1:
            session.needs_flush = True  # what one connection carries may be copied to another

    def _keepalive(self, connection: Connection, keepalive: Keepalive, now: float) -> None:
        if keepalive.pong:
            if connection.ping_sent_at and keepalive.token == connection.ping_token:
                connection.take_rtt(now - connection.ping_sent_at, now)
                connection.ping_sent_at = 0.0
        else:
            pong = encode_keepalive(Keepalive(keepalive.token, pong=True))
            connection.send(SegmentType.KEEPALIVE, pong, now)
        if keepalive.wants_ack:
            self._receiver.everything_dirty()
            connection.ack_wanted = True

    def _control(self, carrier: Connection, segment: Segment, now: float) -> None:
        payload = segment.payload
        match segment.type:
            case SegmentType.DRAIN:
                number, step = decode_drain(payload)
                if (connection := self._known(number)) is not None:
                    self._drain(connection, step, carrier, now)
            case SegmentType.ROLE:
                number, role = decode_role(payload)
                connection = self._known(number)
                if connection is not None and segment.sequence > connection.role_sequence:
                    connection.role_sequence = segment.sequence
                    self._peer_gives_role(connection, role)
            case SegmentType.RATE:
                number, max_rate = decode_rate(payload)
                connection = self._known(number)
                if connection is not None and segment.sequence > connection.rate_sequence:
                    connection.rate_sequence = segment.sequence
                    connection.set_max_rate(max_rate)
                    self._session.needs_flush = True
            case SegmentType.POLICY:
                policy = decode_policy(Fields(payload))
                if segment.sequence > self._policy_number:
                    self._policy_number = segment.sequence
                    self._scheduling.peer_wants(policy)
            case SegmentType.STEER:
                name, parameters = decode_scheduler(payload)
                if self._side is Side.CLIENT:
                    raise RemoteProtocolError("only a client steers streams")
                self._steer(segment, name, parameters)
            case SegmentType.TICKETS:
                self._auth.take_tickets(decode_tickets(payload))
            case SegmentType.ADDRESS:
                addresses = decode_addresses(payload)
                if self._side is Side.SERVER:
                    raise RemoteProtocolError("only a server announces addresses")
                if segment.sequence > self._address_number:
                    self._address_number = segment.sequence
                    self._session.notify(AddressesAnnounced(addresses))
            case SegmentType.AWAY:
                seconds = decode_away(payload)
                if self._side is Side.SERVER:
                    raise RemoteProtocolError("only a server goes away")
                if segment.sequence > self._away_number:
                    self._away_number = segment.sequence
                    self._session.peer_goes_away(seconds)

    def _peer_gives_role(self, connection: Connection, role: Role) -> None:
        """Where both sides change it at once the client's word counts; what could leave them at odds is said again."""
        session = self._session
        unheard = connection.role_pending or self._outbox.waits_for(connection.role_said)
        crossing = connection.role is not role and unheard
        if not crossing or self._side is Side.SERVER:
            connection.role = role
            session.notify(RoleChanged(connection.id, role, by_peer=True))
        if crossing:
            session.say_role(connection)

    def _steer(self, segment: Segment, name: str, parameters: Parameters) -> None:
        self._streams.of_peer(segment.stream)
        stream = self._sender.streams.get(segment.stream)
        if stream is not None and segment.sequence > stream.steer_sequence:
            stream.steer_sequence = segment.sequence
            self._scheduling.peer_steers(stream, name, parameters)
            self._session.needs_flush = True

    def _drain(self, connection: Connection, step: DrainStep, carrier: Connection, now: float) -> None:
        """The peer says how far a connection is on its way out."""
        if step is DrainStep.LOST:
            if connection is not carrier:
                self._session.peer_lost(connection)
        elif step is DrainStep.SUSPECT:
            # Said on the connection itself it is a late word: it came through. Said again and again it would make us
            # copy everything in flight each time.
            settled = now >= connection.suspect_since + 2 * connection.suspect_after
            if connection is not carrier and connection.active and settled:
                self._liveness.suspect(connection, Reason(Cause.NETWORK_GONE, "the peer's network went away"), now)
        elif step is DrainStep.SILENT:
            if connection is not carrier:  # else it has come through: that is progress
                self._liveness.peer_waits(connection, now)
        else:
            if not connection.authenticated:  # it overtook the proof on another connection
                connection.drain_pending = max(step, connection.drain_pending or step)
            else:
                self._liveness.peer_drains(connection, step)

    def _known(self, number: int) -> Connection | None:
        return next((c for c in self._connections.values() if c.alive and c.number == number), None)
