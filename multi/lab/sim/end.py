"""One end of a simulated session: it plays the driver and the application.

It performs effects, feeds samples, credit and timers to the session, reads what can be read, and remembers what was
written and what arrived. What must hold on the way is checked by `oracles`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from multi.errors import SessionLost
from multi.events import (
    AllAttempted,
    CancelDial,
    CloseConnection,
    ConnectionChanged,
    DatagramsReadable,
    Dial,
    Effect,
    Event,
    Notify,
    SendBytes,
    SessionClosed,
    SessionOpened,
    StreamOpened,
    StreamReadable,
    StreamWritable,
)
from multi.lab.sim.link import StreamLink
from multi.lab.sim.oracles import Oracles, Unwatched
from multi.lab.sim.trace import described
from multi.lab.sim.wire import Wire, World
from multi.protocol.connection import SAMPLE_INTERVAL
from multi.protocol.payloads import Policy
from multi.protocol.session import SessionCore
from multi.reasons import Cause, Reason
from multi.schedulers.steering import PREFIX
from multi.types import MESSAGES, STREAM_ZERO, ConnectionFacts, ConnectionId, ConnectionState, Role, StreamId

MAX_ROUNDS = 200  # effects that cause effects; more would be two parts answering each other for ever


class SimEnd:
    """A session with everything a driver and an application would keep."""

    def __init__(self, world: World, session: SessionCore, name: str, *, watched: bool = True) -> None:
        self.world = world
        self.other: SimEnd | None = None
        """The other end, once it is there."""
        self.session = session
        self.name = name
        self.sent: dict[StreamId, bytearray] = {}
        self.received: dict[StreamId, bytearray] = {}
        self.datagrams: list[tuple[float, bytes]] = []
        """(time, datagram) of all that have come."""
        self.paused: set[StreamId] = set()
        """Streams the application does not read now."""
        self.reading = True
        self.opened_at: float | None = None
        self.first_read_at: float | None = None
        self.closed: SessionClosed | None = None
        self.closed_at = 0.0
        self.all_attempted = 0
        self.peer_streams: list[StreamId] = []
        self.own_streams: list[StreamId] = []
        self.events: list[Event] = []
        self.wires: dict[ConnectionId, Wire] = {}
        self.oracles = Oracles(self) if watched else Unwatched(self)
        self._timer: float | None = None
        self._pumping = False
        self._again = False
        self._sampling = False
        self._credit_at: dict[ConnectionId, float] = {}

    @property
    def now(self) -> float:
        return self.world.clock.now

    # --- the application  ---

    def write(self, data: bytes, stream: StreamId = STREAM_ZERO) -> None:
        self.session.write(stream, data, now=self.now)
        self.sent.setdefault(stream, bytearray()).extend(data)
        self.pump()

    def send_datagram(self, data: bytes, ttl: float = 0.2, copies: int = 1) -> None:
        self.session.send_datagram(data, ttl, copies, now=self.now)
        self.pump()

    def finish(self, stream: StreamId = STREAM_ZERO) -> None:
        self.session.finish(stream, now=self.now)
        self.pump()

    def reset(self, stream: StreamId, code: int = 7) -> None:
        self.session.reset(stream, code, now=self.now)
        self.pump()

    def stop_sending(self, stream: StreamId, code: int = 7) -> None:
        self.session.stop_sending(stream, code, now=self.now)
        self.pump()

    def open_stream(self, priority: int = 3) -> StreamId | None:
        stream = self.session.open_stream(priority, now=self.now)
        if stream is not None:
            self.own_streams.append(stream)
            self.pump()
        return stream

    def steer(self, streams: Sequence[StreamId], mode: str) -> None:
        """Those of the streams that have not ended."""
        living = [stream for stream in streams if stream in self.session.sender.streams]
        self.session.steer(living, PREFIX + mode, now=self.now)
        self.pump()

    def set_role(self, connection: ConnectionId, role: Role) -> None:
        self.session.set_role(connection, role, now=self.now)
        self.pump()

    def set_scheduler(self, policy: Policy) -> None:
        self.session.set_scheduler(policy, now=self.now)
        self.pump()

    def remove_connection(self, connection: ConnectionId) -> None:
        self.session.remove_connection(connection, now=self.now)
        self.pump()

    def drain(self, connection: ConnectionId) -> None:
        self.session.drain(connection, now=self.now)
        self.pump()

    def close(self) -> None:
        self.session.close(now=self.now)
        self.pump()

    def abort(self, reason: str = "aborted") -> None:
        self.session.abort(Reason(Cause.ABORTED, reason), now=self.now)
        self.pump()

    def read_all(self) -> None:
        """Read every stream that is not paused."""
        for stream in list(self.session.receiver.streams):
            self._read(stream)
        self.pump()

    def pause(self, stream: StreamId = STREAM_ZERO) -> None:
        self.paused.add(stream)

    def resume(self, stream: StreamId = STREAM_ZERO) -> None:
        self.paused.discard(stream)
        self._read(stream)
        self.pump()

    def got(self, stream: StreamId = STREAM_ZERO) -> int:
        """Bytes the application has read."""
        return len(self.received.get(stream, b""))

    def at_end(self, stream: StreamId = STREAM_ZERO) -> bool:
        return self.session.streams.at_end(stream)

    def receive_error(self, stream: StreamId = STREAM_ZERO) -> SessionLost | None:
        return self.session.streams.receive_error(stream)

    def _read(self, stream: StreamId) -> None:
        if not self.reading or stream in self.paused:
            return
        data = self.session.read(stream, -1, now=self.now)
        if data:
            if self.first_read_at is None:
                self.first_read_at = self.now
            self.world.clock.log(self.name, "read", stream, len(data))
            self.oracles.delivered(stream, data)
            self.received.setdefault(stream, bytearray()).extend(data)

    # --- connections  ---

    def attached(self, wire: Wire) -> None:
        self.wires[wire.id] = wire
        wire.outgoing(self).on_writable = self.pump

    def attempt_failed(self, connection: ConnectionId, reason: str) -> None:
        self.session.attempt_failed(connection, Reason(Cause.TRANSPORT, reason), now=self.now)
        self.pump()

    def connected(self, wire: Wire, facts: ConnectionFacts) -> None:
        """A connection is established, or was accepted."""
        self.attached(wire)
        self.session.connection_opened(wire.id, facts, now=self.now)

    def take(self, wire: Wire, data: bytes, lane: int) -> None:
        """Bytes have come on a wire."""
        if wire.id not in self.wires:
            return
        self.session.receive(wire.id, memoryview(data), lane, now=self.now)
        self._take_in()

    def lose(self, wire: Wire, reason: str) -> None:
        """The transport says that a connection has ended; an empty reason means in order."""
        if self.wires.pop(wire.id, None) is not None:
            failure = Reason(Cause.TRANSPORT, reason) if reason else None
            self.session.connection_lost(wire.id, failure, now=self.now)
            wire.release(self, abort=False)
            self.pump()

    def change_network(self, interface: str, usable: bool) -> None:
        self.session.network_changed(interface, usable, now=self.now)
        self.pump()

    # --- the pump  ---

    def _take_in(self) -> None:
        """As the driver's `take_in`: nothing is pumped where nothing is to be said, and an answer gets a turn."""
        session = self.session
        if not session.pending and session.quiet():
            self._look_after()
            return
        if self._pumping or (news := session.news()) is None:
            self.pump()
            return
        self._pumping = True
        for effect in news:
            self._perform(effect)
        self._pumping = False
        if session.quiet() and not session.pending:
            self._look_after()
        elif news:
            self.world.clock.at(self.now, self.pump)
        else:
            self.pump()

    def pump(self) -> None:
        if self._pumping:
            self._again = True
            return
        self._pumping = True
        for _ in range(MAX_ROUNDS):
            self._again = False
            for wire in self.wires.values():
                direction = wire.outgoing(self)
                direction.queues_less = self.session.sender.ranked
                credit = direction.credit()
                self.oracles.granted(wire, credit)
                self.session.set_credit(wire.id, credit, now=self.now)
            effects = self.session.effects()
            for effect in effects:
                self._perform(effect)
            if not effects and not self._again:
                break
        else:
            raise AssertionError(f"{self.name}: effects without end")
        self._pumping = False
        self._look_after()

    def _look_after(self) -> None:
        """Check what has been done, and come back when something is due."""
        self.oracles.check()
        self._arm()
        if not self._sampling and self.session.under_way():
            self._sampling = True
            self.world.clock.at(self.now + SAMPLE_INTERVAL, self._sample)
        if self.session.sender.unacked:
            self._watch_credit()

    def _arm(self) -> None:
        unsettled, at_rest = self.session.unsettled, self.session.at_rest()
        near, far = self.session.near_timer(), self.session.far_timer()
        self.oracles.timer_set(near, far, unsettled=unsettled, at_rest=at_rest)
        deadline = min([at for at in (near, far) if at is not None], default=None)
        if deadline is not None and deadline != self._timer:
            assert deadline > self.now, f"{self.name}: a timer in the past"
            self.world.clock.at(deadline, lambda: self._fire(deadline))
        self._timer = deadline

    def _fire(self, deadline: float) -> None:
        if self._timer == deadline:
            self._timer = None
            self.oracles.timer_fired()
            # What the transports know comes first, as in the driver.
            self._take_samples()
            self.session.handle_timer(now=self.now)
            self.pump()

    def _sample(self) -> None:
        self._sampling = False
        if self.session.sample_due(self.now, SAMPLE_INTERVAL / 2):
            self._take_samples()
        self.pump()

    def _take_samples(self) -> None:
        for wire in self.wires.values():
            direction = wire.outgoing(self)
            self.session.sample(wire.id, direction.sample(), now=self.now)
            direction.pace = self.session.pace(wire.id)

    def _watch_credit(self) -> None:
        """Wake up when a full send buffer is half empty, as a transport's `writable` does."""
        for wire in self.wires.values():
            if wire.id not in self._credit_at and (time := wire.outgoing(self).writable_at()) is not None:
                self._credit_at[wire.id] = time
                self.world.clock.at(time, lambda wire=wire: self._writable(wire))  # type: ignore[misc]

    def _writable(self, wire: Wire) -> None:
        del self._credit_at[wire.id]
        if wire.id in self.wires:
            self.pump()

    def _perform(self, effect: Effect) -> None:
        self.oracles.effect(effect)
        match effect:
            case SendBytes(connection, lane, buffers):
                wire = self.wires.get(connection)
                if wire is not None and lane == MESSAGES:
                    direction = wire.outgoing(self)
                    assert isinstance(direction, StreamLink)
                    for message in buffers:
                        self.world.clock.log(self.name, "message", connection, len(message))
                        direction.write_message(bytes(message))
                elif wire is not None:
                    data = b"".join(buffers)
                    self.oracles.sending(wire, data, lane)
                    self.world.clock.log(self.name, "send", connection, lane, len(data))
                    wire.outgoing(self).write(data, lane)
            case StreamReadable(stream):
                self._read(stream)
            case DatagramsReadable():
                while (datagram := self.session.datagrams.read()) is not None:
                    self.datagrams.append((self.now, datagram))
            case CloseConnection(connection, abort, _):
                wire = self.wires.pop(connection, None)
                if wire is not None:
                    self.world.clock.log(self.name, "release", connection, int(abort))
                    wire.release(self, abort)
            case Dial(connection, candidate):
                self.world.clock.log(self.name, "dial", connection, candidate.entry)
                self.world.dial(self, connection, candidate)
            case CancelDial(connection):
                self.world.cancelled.add(connection)
            case Notify(event):
                self._event(event)
            case SessionOpened():
                self.opened_at = self.now
            case SessionClosed():
                self.closed, self.closed_at = effect, self.now
                self.world.clock.log(self.name, "over", int(not effect.reason.orderly), comment=effect.reason)
                self.world.ended(self)
            case StreamOpened(stream):
                self.peer_streams.append(stream)
                self.session.accept_stream(stream, now=self.now)
            case AllAttempted():
                self.all_attempted += 1
            case StreamWritable():
                pass
            case _:
                assert_never(effect)

    def _event(self, event: Event) -> None:
        self.events.append(event)
        words, comment = described(event)
        self.world.clock.log(self.name, *words, comment=comment)
        if isinstance(event, ConnectionChanged):
            self.oracles.connection_changed(event)
            if event.state.over:
                self.session.forget_connection(event.connection)

    # --- for tests  ---

    def changes(self, state: ConnectionState) -> list[ConnectionChanged]:
        """Every time a connection entered `state`."""
        return [e for e in self.events if isinstance(e, ConnectionChanged) and e.state is state]

    def state_of(self, connection: int) -> ConnectionState | None:
        found = self.session.connections.get(ConnectionId(connection))
        return found.state if found is not None else None

    @property
    def active(self) -> list[ConnectionId]:
        return [c.id for c in self.session.connections.values() if c.state is ConnectionState.ACTIVE]
