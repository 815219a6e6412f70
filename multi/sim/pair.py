"""Two ends in virtual time: a client engine, a server table, and links between them.

`Pair` plays the driver: it performs effects, feeds bytes, credit, samples and timers, and checks on the way what must
hold for every run (the oracles): delivered is a prefix of sent, nothing without credit, buffers bounded, nothing
reinjected on the connection that lost it while another was usable, no timer in the past.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from multi.core.events import (
    AllAttempted,
    CancelDial,
    CloseConnection,
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
from multi.core.facts import Candidate, ConnectionFacts
from multi.core.ids import ConnectionId, Family, Role, SessionId, Side, StreamId
from multi.core.payloads import Policy
from multi.core.segment import HEADER_LENGTH, SegmentDecoder, SegmentType
from multi.core.session import Session
from multi.core.session_table import Refused, SessionTable, TableLimits
from multi.core.settings import SessionSettings
from multi.engine import Engine
from multi.paths.manager import Mode
from multi.paths.racing import Connect
from multi.schedulers import create_scheduler
from multi.sim.link import Direction, LinkSpec
from multi.sim.network import Clock

SAMPLE_INTERVAL = 0.010  # as the driver does while bytes are in flight


@dataclass(frozen=True, slots=True)
class Route:
    """What a candidate leads to: the link up and down, how long connecting takes, or why it fails."""

    up: LinkSpec = field(default_factory=LinkSpec)
    down: LinkSpec = field(default_factory=LinkSpec)
    secure: bool = False
    lanes: int = 1
    connect_round_trips: int = 1
    error: str = ""
    black_hole: bool = False
    """The dial never returns."""


class End:
    """One end: an engine, its received bytes per stream, its checks."""

    def __init__(self, pair: Pair, engine: Engine, name: str) -> None:
        self.pair = pair
        self.engine = engine
        self.name = name
        self.sent: dict[StreamId, bytearray] = {}
        self.received: dict[StreamId, bytearray] = {}
        self.reading = True
        self.opened_at: float | None = None
        self.closed: SessionClosed | None = None
        self.all_attempted = False
        self.peer_streams: list[StreamId] = []
        self.events: list[Event] = []
        self.wires: dict[ConnectionId, Wire] = {}
        self._timer: float | None = None
        self._pumping = False
        self._again = False
        self._sampling = False

    # --- the application  ---

    def write(self, data: bytes, stream: StreamId = StreamId(0)) -> None:
        self.engine.write(stream, data, now=self.pair.clock.now)
        self.sent.setdefault(stream, bytearray()).extend(data)
        self.pump()

    def finish(self, stream: StreamId = StreamId(0)) -> None:
        self.engine.finish(stream, now=self.pair.clock.now)
        self.pump()

    def close(self) -> None:
        self.engine.close(now=self.pair.clock.now)
        self.pump()

    def read_all(self) -> None:
        for stream in list(self.engine.session.receiver.streams):
            self._read(stream)
        self.pump()

    def _read(self, stream: StreamId) -> None:
        data = self.engine.read(stream, -1, now=self.pair.clock.now)
        if data:
            self.received.setdefault(stream, bytearray()).extend(data)
            self.pair.check_prefix(self, stream)

    # --- the pump  ---

    def pump(self) -> None:
        if self._pumping:
            self._again = True
            return
        self._pumping = True
        for _ in range(1000):
            self._again = False
            effects = self.engine.effects()
            for effect in effects:
                self._perform(effect)
            for wire in self.wires.values():
                self.engine.set_credit(wire.id, wire.outgoing(self).credit(), now=self.pair.clock.now)
            if not effects and not self._again:
                break
        else:
            raise AssertionError(f"{self.name}: effects without end")
        self._pumping = False
        self._arm()
        self._sample_soon()

    def _arm(self) -> None:
        deadline = self.engine.next_timer()
        if deadline is None or deadline == self._timer:
            self._timer = deadline
            return
        assert deadline > self.pair.clock.now, f"{self.name}: a timer in the past"
        self._timer = deadline
        self.pair.clock.at(deadline, lambda: self._fire(deadline))

    def _fire(self, deadline: float) -> None:
        if self._timer == deadline:
            self._timer = None
            self.engine.handle_timer(now=self.pair.clock.now)
            self.pump()

    def _sample_soon(self) -> None:
        if not self._sampling and self.engine.session.wants_samples:
            self._sampling = True
            self.pair.clock.at(self.pair.clock.now + SAMPLE_INTERVAL, self._sample)

    def _sample(self) -> None:
        self._sampling = False
        for wire in self.wires.values():
            self.engine.sample(wire.id, wire.outgoing(self).sample(), now=self.pair.clock.now)
        self.pump()

    def _perform(self, effect: Effect) -> None:
        match effect:
            case SendBytes():
                self._send(effect)
            case StreamReadable(stream):
                if self.reading:
                    self._read(stream)
                    self._again = True
            case CloseConnection(connection, abort, _):
                wire = self.wires.pop(connection, None)
                if wire is not None:
                    wire.closed_by(self, abort)
            case Dial(connection, candidate):
                self.pair.dial(self, connection, candidate)
            case CancelDial(connection):
                self.pair.cancelled.add(connection)
            case Notify(event):
                self.events.append(event)
                self.pair.clock.log(f"{self.name} {event!r}"[:300])
            case SessionOpened():
                self.opened_at = self.pair.clock.now
            case SessionClosed():
                self.closed = effect
                self.pair.clock.log(f"{self.name} closed {effect.error!r}")
                self.pair.ended(self)
            case StreamOpened(stream):
                self.peer_streams.append(stream)
            case AllAttempted():
                self.all_attempted = True
            case StreamWritable():
                pass

    def _send(self, effect: SendBytes) -> None:
        wire = self.wires.get(effect.connection)
        if wire is None:
            return
        data = b"".join(effect.buffers)
        self.pair.check_send(self, wire, data)
        self.pair.clock.log(f"{self.name} -> {effect.connection}/{effect.lane} {len(data)}")
        wire.outgoing(self).write(data, effect.lane)


@dataclass(slots=True, eq=False)
class Wire:
    """One transport connection between the two ends."""

    id: ConnectionId
    candidate: Candidate
    client: End
    server: End | None = None
    up: Direction = field(init=False)
    down: Direction = field(init=False)
    waiting: bytearray = field(default_factory=bytearray)
    over: bool = False

    def outgoing(self, end: End) -> Direction:
        return self.up if end is self.client else self.down

    def closed_by(self, end: End, abort: bool) -> None:
        """One side released it; the other hears after what is in flight has arrived."""
        pair = end.pair
        other = self.server if end is self.client else self.client
        if other is None:
            return
        delay = self.up.spec.delay + self.down.spec.delay + 0.5 * (not abort)

        def tell() -> None:
            if not self.over:
                self.over = True
                other.wires.pop(self.id, None)
                other.engine.connection_lost(self.id, "", now=pair.clock.now)
                other.pump()

        pair.clock.at(pair.clock.now + delay, tell)


class Pair:
    """A client and a server that hold one session; see the module."""

    def __init__(
        self,
        routes: Sequence[Route],
        *,
        seed: int = 1,
        policy: Policy | None = None,
        client: SessionSettings | None = None,
        server: SessionSettings | None = None,
        connect: Connect = Connect.PARALLEL,
        mode: Mode = Mode.AGGREGATE,
        roles: Sequence[Role] = (),
        open_timeout: float = 10.0,
    ) -> None:
        self.clock = Clock(seed)
        self.routes = list(routes)
        self.cancelled: set[ConnectionId] = set()
        self.wires: list[Wire] = []
        self.policy = policy or Policy()
        settings = client or SessionSettings()
        self._client_settings = replace(settings, policy=self.policy)
        self._server_settings = server or SessionSettings()
        self.session_id = SessionId(self.clock.entropy(16))
        self.table: SessionTable[End] = SessionTable(TableLimits(), self._accept)
        self.server: End | None = None
        session = Session(
            Side.CLIENT,
            self.session_id,
            self._client_settings,
            entropy=self.clock.entropy,
            make_scheduler=create_scheduler,
            now=0.0,
        )
        self.client = End(self, Engine(session, now=0.0), "client")
        self.copied_back: list[str] = []
        self.candidates = [
            Candidate(
                "quic" if route.lanes > 1 else "tcp",
                Family.IPV4,
                "server",
                f"10.0.{index}.1",
                7788,
                interface=f"if{index}",
                role=roles[index] if index < len(roles) else Role.ACTIVE,
            )
            for index, route in enumerate(self.routes)
        ]
        self.client.engine.open(
            self.candidates,
            connect=connect,
            mode=mode,
            open_timeout=open_timeout,
            jitter=self.clock.random.random,
            now=0.0,
        )
        self.client.pump()

    # --- network  ---

    def dial(self, end: End, connection: ConnectionId, candidate: Candidate) -> None:
        route = self.routes[self.candidates.index(candidate)]
        if route.black_hole:
            return
        round_trip = route.up.delay + route.down.delay
        self.clock.at(
            self.clock.now + round_trip * route.connect_round_trips,
            lambda: self._dialled(end, connection, candidate),
        )

    def _dialled(self, end: End, connection: ConnectionId, candidate: Candidate) -> None:
        route = self.routes[self.candidates.index(candidate)]
        if connection in self.cancelled or end.closed is not None:
            return
        if route.error or route.black_hole:
            if route.error:
                end.engine.attempt_failed(connection, route.error, now=self.clock.now)
                end.pump()
            return
        wire = Wire(connection, candidate, end)
        wire.up = Direction(
            route.up,
            lambda: self.clock.now,
            self.clock.at,
            lambda d, n: self._to_server(wire, d, n),
            self.clock.random,
        )
        wire.down = Direction(
            route.down,
            lambda: self.clock.now,
            self.clock.at,
            lambda d, n: self._to_client(wire, d, n),
            self.clock.random,
        )
        self.wires.append(wire)
        end.wires[connection] = wire
        end.engine.connection_opened(connection, self._facts(candidate, route), now=self.clock.now)
        self._watch_credit(wire, end)
        end.pump()

    def _facts(self, candidate: Candidate, route: Route) -> ConnectionFacts:
        round_trip = route.up.delay + route.down.delay
        return ConnectionFacts(
            candidate.transport,
            lanes=route.lanes,
            secure=route.secure,
            channel_binding=b"certificate" if route.secure else b"",
            interface=candidate.interface,
            role=candidate.role,
            rtt=round_trip,
        )

    def _watch_credit(self, wire: Wire, end: End) -> None:
        """Tell the engine when the link has taken bytes, as a transport's `writable` does."""

        def check() -> None:
            if wire.over or wire.id not in end.wires:
                return
            direction = wire.outgoing(end)
            next_check = direction.backlog_ends()
            if direction.credit() > 0 and end.engine.session.sender.unacked:
                end.engine.set_credit(wire.id, direction.credit(), now=self.clock.now)
                end.pump()
                next_check = direction.backlog_ends()
            self.clock.at(max(next_check or 0.0, self.clock.now + 0.002), check)

        self.clock.at(self.clock.now, check)

    def _to_server(self, wire: Wire, data: bytes, lane: int) -> None:
        if wire.over:
            return
        if wire.server is not None:
            wire.server.engine.receive(wire.id, memoryview(data), lane, now=self.clock.now)
            wire.server.pump()
            return
        if lane:
            # Bytes of a data lane that overtook the first segment wait, as the server's reception does.
            self.clock.at(self.clock.now + 0.001, lambda: self._to_server(wire, data, lane))
            return
        wire.waiting += data
        routed = self.table.route(wire.waiting, wire.candidate.interface)
        if routed is None:
            return
        if isinstance(routed, Refused):
            wire.down.write(routed.reply, 0)
            return
        route = self.routes[self.candidates.index(wire.candidate)]
        wire.server = routed
        routed.wires[wire.id] = wire
        routed.engine.connection_opened(
            wire.id, replace(self._facts(wire.candidate, route), role=Role.ACTIVE), now=self.clock.now
        )
        self._watch_credit(wire, routed)
        first, wire.waiting = bytes(wire.waiting), bytearray()
        routed.engine.receive(wire.id, memoryview(first), 0, now=self.clock.now)
        routed.pump()

    def _to_client(self, wire: Wire, data: bytes, lane: int) -> None:
        if not wire.over and wire.id in wire.client.wires:
            wire.client.engine.receive(wire.id, memoryview(data), lane, now=self.clock.now)
            wire.client.pump()

    def _accept(self, session_id: SessionId, source: str) -> End:
        session = Session(
            Side.SERVER,
            session_id,
            self._server_settings,
            entropy=self.clock.entropy,
            make_scheduler=create_scheduler,
            now=self.clock.now,
        )
        self.server = End(self, Engine(session, now=self.clock.now), "server")
        return self.server

    def ended(self, end: End) -> None:
        if end is self.server:
            self.table.remove(self.session_id)

    # --- what happens to the network  ---

    def cut(self, index: int, notice: float | None = 0.05) -> None:
        """Everything in flight on the route's wires is lost; each side hears after `notice`, or never (None)."""
        for wire in self._wires(index):
            wire.up.sever()
            wire.down.sever()
            if notice is not None:
                self._announce_loss(wire, notice)

    def _announce_loss(self, wire: Wire, notice: float) -> None:
        def tell(end: End | None) -> Callable[[], None]:
            def run() -> None:
                if end is not None and end.wires.pop(wire.id, None) is not None:
                    end.engine.connection_lost(wire.id, "reset", now=self.clock.now)
                    end.pump()

            return run

        wire.over = True
        self.clock.at(self.clock.now + notice, tell(wire.client))
        self.clock.at(self.clock.now + notice * 1.5, tell(wire.server))

    def stall(self, index: int) -> None:
        """Nothing moves on the route's wires, nobody is told."""
        for wire in self._wires(index):
            wire.up.stalled = wire.down.stalled = True

    def restore(self, index: int) -> None:
        """The stall is over."""
        for wire in self._wires(index):
            wire.up.resume()
            wire.down.resume()

    def _wires(self, index: int) -> list[Wire]:
        return [w for w in self.wires if not w.over and w.candidate is self.candidates[index]]

    # --- oracles  ---

    def other(self, end: End) -> End | None:
        return self.server if end is self.client else self.client

    def check_prefix(self, end: End, stream: StreamId) -> None:
        other = self.other(end)
        sent = other.sent.get(stream, bytearray()) if other is not None else bytearray()
        got = end.received[stream]
        assert sent.startswith(got), f"{end.name}: stream {stream} delivered what was never sent, at {len(got)}"

    def check_send(self, end: End, wire: Wire, data: bytes) -> None:
        """No DATA without credit. Sealed bytes cannot be looked into: they are checked by size."""
        direction = wire.outgoing(end)
        if len(data) > 20_000 and not wire.over:
            assert direction.credit() > 0 or direction.cut, f"{end.name}: {len(data)} bytes without credit"
        session = end.engine.session
        limits = session.settings
        assert session.sender.used <= session.sender.window, "more sent than the session window allows"
        receiver = session.receiver
        held = receiver.charged - receiver.consumed
        assert held <= limits.max_session_window, f"{end.name}: holds {held} bytes"

    def run(self, seconds: float) -> None:
        self.clock.run(self.clock.now + seconds)


def segment_types(data: bytes) -> list[SegmentType]:
    """The types of the segments in unsealed `data`, for tests that count them."""
    assert len(data) >= HEADER_LENGTH
    return [SegmentType(s.type) for s in SegmentDecoder().feed(memoryview(data))]
