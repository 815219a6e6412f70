"""Two ends in virtual time: a client, a server table, routes between them, and what happens to the routes.

What the simulator proves holds for the product: the driver takes bytes in, and pumps the same session, in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

from multi.events import SessionClosed
from multi.lab.sim.clock import Clock
from multi.lab.sim.end import SimEnd
from multi.lab.sim.link import StreamLink, StreamLinkSpec
from multi.lab.sim.oracles import EXPECTED_CAUSES
from multi.lab.sim.path_model import PathDirection, PathSpec
from multi.lab.sim.wire import Route, Terminal, Wire
from multi.paths.manager import PathManager
from multi.paths.racing import ConnectMode
from multi.paths.roles import Mode
from multi.protocol.acceptor import Refused, SessionTable, first_payload, refusal
from multi.protocol.handshake import Join, Refuse, RefuseCode
from multi.protocol.payloads import Policy
from multi.protocol.segment import SegmentType
from multi.protocol.session import SessionCore
from multi.protocol.settings import Protect, SessionSettings
from multi.reasons import Cause
from multi.schedulers import create_scheduler
from multi.types import Candidate, ConnectionFacts, ConnectionId, Family, Role, SessionId, Side, StreamId

FIRST_STRANGER = 1_000_000  # connections of strangers have numbers from here on


class Stranger:
    """Somebody who is not the client at his end of a wire: he hears everything and answers nothing."""

    name = "stranger"

    def __init__(self, pair: Pair) -> None:
        self.world = pair
        self.session = pair.client.session
        self.sent: dict[StreamId, bytearray] = {}
        self.closed: SessionClosed | None = None
        self.other: Terminal | None = None

    @property
    def now(self) -> float:
        return self.world.clock.now

    def got(self, stream: StreamId) -> int:
        return 0

    def attempt_failed(self, connection: ConnectionId, reason: str) -> None:
        """He does not come again."""

    def connected(self, wire: Wire, facts: ConnectionFacts) -> None:
        """He has said his words."""

    def take(self, wire: Wire, data: bytes, lane: int) -> None:
        """He listens."""

    def lose(self, wire: Wire, reason: str) -> None:
        wire.release(self, abort=False)


CLEAR = SessionSettings(protect=Protect.NEVER)  # segments can be looked into


class Pair:
    """A client and a server that hold one session; `roles`, `groups` and `max_rates` are those of each route."""

    def __init__(
        self,
        routes: Sequence[Route],
        *,
        seed: int = 1,
        policy: Policy | None = None,
        client: SessionSettings | None = None,
        server: SessionSettings | None = None,
        connect: ConnectMode = ConnectMode.PARALLEL,
        mode: Mode = Mode.AGGREGATE,
        roles: Sequence[Role] = (),
        groups: Sequence[str] = (),
        max_rates: Sequence[float] = (),
        open_timeout: float = 10.0,
        watched: bool = True,
        expected: frozenset[Cause] = EXPECTED_CAUSES,
    ) -> None:
        self._expected = expected
        self._seed = seed
        self.clock = Clock(seed)
        self.watched = watched
        """The oracles look on; without them long transfers are several times as fast."""
        self.routes = list(routes)
        self.down: set[int] = set()
        """Routes on which dials are never answered now."""
        self.stalled: set[int] = set()
        self.refused: set[int] = set()
        """Routes on which dials fail at once now."""
        self.refusing: dict[int, tuple[float, Refuse]] = {}
        """Routes that lead to somebody who refuses now, so many seconds after he was asked."""
        self.heard: list[bytes] = []
        """What the client has said first on its connections: anybody in the air may say it again."""
        self._strangers_came = 0
        self.cancelled: set[ConnectionId] = set()
        self.dials: list[tuple[float, int]] = []
        """(time, route) of every dial."""
        self.attempts: dict[ConnectionId, tuple[float, Candidate]] = {}
        """When the client dialled each of its connections, and where."""
        self.wires: list[Wire] = []
        settings = client or SessionSettings()
        self._server_settings = server or replace(SessionSettings(), protect=settings.protect)
        self.transparent = settings.protect is Protect.NEVER
        """Segments travel in clear."""
        self.session_id = SessionId(self.clock.entropy(16))
        self.table: SessionTable[SimEnd] = SessionTable(self._accept)
        self._strangers: SessionTable[SimEnd] = SessionTable(self._accept, lambda _: ("max_sessions", "a stranger"))
        self.server: SimEnd | None = None
        self.client = self._end(Side.CLIENT, self.session_id, replace(settings, policy=policy or settings.policy))
        self.candidates = [
            self.candidate(
                index,
                role=roles[index] if index < len(roles) else Role.ACTIVE,
                group=groups[index] if index < len(groups) else "",
                max_rate=max_rates[index] if index < len(max_rates) else 0.0,
            )
            for index in range(len(self.routes))
        ]
        session, jitter = self.client.session, self.clock.random.random
        paths = PathManager(self.candidates, connect=connect, mode=mode, session=session, jitter=jitter, now=0.0)
        session.open(paths, open_timeout, now=0.0)
        self.client.pump()

    def candidate(self, index: int, *, role: Role = Role.ACTIVE, group: str = "", max_rate: float = 0.0) -> Candidate:
        """A candidate that leads to route `index`."""
        route = self.routes[index]
        return Candidate(
            "quic" if route.lanes > 1 else "tcp",
            Family.IPV4,
            "server",
            f"10.0.{index}.1",
            7788,
            interface=f"if{index}",
            entry=index,
            role=role,
            group=group,
            max_rate=max_rate,
        )

    @property
    def peer(self) -> SimEnd:
        """The server's end; it must be there."""
        assert self.server is not None, "no HELLO has reached the server"
        return self.server

    @property
    def ends(self) -> list[SimEnd]:
        return [self.client] if self.server is None else [self.client, self.server]

    # --- time  ---

    def run(self, seconds: float) -> None:
        self.clock.run_until(lambda: False, seconds)

    def until(self, condition: Callable[[], bool], limit: float) -> bool:
        """Run until `condition` holds; False when `limit` seconds pass first."""
        return self.clock.run_until(condition, limit)

    # --- connections  ---

    def dial(self, end: Terminal, connection: ConnectionId, candidate: Candidate) -> None:
        index = candidate.entry
        route = self.routes[index]
        self.dials.append((self.clock.now, index))
        if end is self.client:
            self.attempts[connection] = self.clock.now, candidate
        if route.black_hole or index in self.down or index in self.stalled:
            return
        delay = route.round_trip * route.connect_round_trips
        self.clock.at(self.clock.now + delay, lambda: self._dialled(end, connection, candidate))

    def _dialled(self, end: Terminal, connection: ConnectionId, candidate: Candidate) -> None:
        index = candidate.entry
        route = self.routes[index]
        if connection in self.cancelled or self.client.closed is not None or index in self.down | self.stalled:
            return
        if route.error or index in self.refused:
            end.attempt_failed(connection, route.error or "connection refused")
            return
        wire = self._wire(connection, candidate, end)
        end.connected(wire, self._facts(wire, self.clock.now))
        self.client.pump()

    def _wire(self, connection: ConnectionId, candidate: Candidate, end: Terminal) -> Wire:
        route = self.routes[candidate.entry]
        wire = Wire(connection, candidate, route, end)

        def direction(up: bool) -> StreamLink | PathDirection:
            def deliver(data: bytes, lane: int) -> None:
                (self._to_server if up else self._to_client)(wire, data, lane)

            spec = route.up if up else route.down
            clock = self.clock
            if isinstance(spec, StreamLinkSpec):
                return StreamLink(spec, lambda: clock.now, clock.at, deliver, clock.random)
            place = candidate.entry if route.chance is None else route.chance
            dice = Random(f"{self._seed} {place} {up}")
            return PathDirection(spec, lambda: clock.now, clock.at, deliver, dice)

        wire.up, wire.down = direction(True), direction(False)
        self.wires.append(wire)
        return wire

    def _facts(self, wire: Wire, now: float) -> ConnectionFacts:
        candidate, route = wire.candidate, wire.route
        return ConnectionFacts(
            candidate.transport,
            lanes=route.lanes,
            message_size=route.message_size,
            secure=route.secure,
            peer_verified=route.peer_verified,
            channel_binding=b"certificate" if route.secure else b"",
            interface=candidate.interface,
            local=f"10.0.{candidate.entry}.2:40000",
            remote=f"{candidate.remote_address}:{candidate.remote_port}",
            role=candidate.role,
            weight=candidate.weight,
            max_rate=candidate.max_rate,
            rtt=route.round_trip,
            fills_queues=isinstance(route.up, PathSpec) and route.up.congestion == "cubic",
        )

    def hang_up(self, wire: Wire, by: Terminal, reason: str = "") -> None:
        """`by` has closed its side of `wire`: the other end hears of it."""
        other = wire.server if by is wire.client else wire.client
        if other is not None:
            other.lose(wire, reason)

    def _to_server(self, wire: Wire, data: bytes, lane: int) -> None:
        if wire.route.mute or wire.refused:
            return
        if not data:
            self.hang_up(wire, wire.client)
            return
        if wire.server is not None:
            wire.server.take(wire, data, lane)
            return
        if lane:
            wire.early.append((data, lane))
            return
        wire.waiting += data
        if wire.candidate.entry in self.refusing and wire.client is self.client:
            wire.refused = True
            delay, refuse = self.refusing[wire.candidate.entry]
            reply = refusal(self.session_id, refuse, "somebody refuses").reply
            self.clock.at(self.clock.now + delay, lambda: self._refuse(wire, reply))
            return
        table = self._strangers if wire.route.stranger else self.table
        routed = table.route(wire.waiting, wire.candidate.interface)
        if routed is None:
            return
        if isinstance(routed, SimEnd) and not self._may_try(routed, wire):
            routed = refusal(self.session_id, Refuse(RefuseCode.REFUSED), "JOIN without the session's keys")
        if isinstance(routed, Refused):
            wire.refused = True
            self._refuse(wire, routed.reply)
            return
        if wire.client is self.client:
            self.heard.append(bytes(wire.waiting))
        wire.server = routed
        facts = replace(self._facts(wire, self.clock.now), role=Role.ACTIVE, weight=1.0, max_rate=0.0)
        routed.connected(wire, facts)
        first, wire.waiting = bytes(wire.waiting), bytearray()
        routed.take(wire, first, 0)
        for piece, of_lane in wire.early:
            routed.take(wire, piece, of_lane)
        wire.early.clear()

    def _may_try(self, end: SimEnd, wire: Wire) -> bool:
        """As the server's reception asks: a JOIN needs a proof before anything is kept for it."""
        if wire.waiting[1] != SegmentType.JOIN:
            return True
        payload = first_payload(wire.waiting)
        assert payload is not None
        binding = self._facts(wire, self.clock.now).channel_binding
        return end.session.may_join(Join.decode(payload), binding)

    def _refuse(self, wire: Wire, reply: bytes) -> None:
        wire.down.write(reply, 0)
        wire.down.end()

    def stranger(self, index: int, words: bytes) -> None:
        """Somebody else connects over route `index`, says this, and listens."""
        self._strangers_came += 1
        connection = ConnectionId(FIRST_STRANGER + self._strangers_came)
        wire = self._wire(connection, self.candidate(index), Stranger(self))
        wire.up.write(words, 0)

    def _to_client(self, wire: Wire, data: bytes, lane: int) -> None:
        if data:
            wire.client.take(wire, data, lane)
        elif wire.server is not None:
            self.hang_up(wire, wire.server)
        else:
            wire.client.lose(wire, "")

    def _end(self, side: Side, session_id: SessionId, settings: SessionSettings) -> SimEnd:
        clock = self.clock
        session = SessionCore(
            side, session_id, settings, entropy=clock.entropy, make_scheduler=create_scheduler, now=clock.now
        )
        end = SimEnd(self, session, side.name.lower(), watched=self.watched)
        end.oracles.expected_causes = self._expected
        return end

    def _accept(self, session_id: SessionId, source: str) -> SimEnd:
        end = self._end(Side.SERVER, session_id, self._server_settings)
        if self.server is None or not self.server.session.confirmed:
            self.server, end.other, self.client.other = end, self.client, end
        return end  # else somebody says again how a session began that is over

    def ended(self, end: Terminal) -> None:
        if end is self.server:
            self.table.remove(end)

    # --- what happens to the network  ---

    def cut(self, index: int, notice: float | None = 0.05, *, down: bool = False) -> None:
        """Everything in flight on the route's wires is lost; each side hears after `notice`, or never (None).

        With `down`, dials are not answered until `restore`.
        """
        self.clock.log("network", "cut", index, "-" if notice is None else notice, int(down))
        if down:
            self.down.add(index)
        for wire in self._wires(index):
            wire.up.sever()
            wire.down.sever()
            if notice is not None:
                self._announce_loss(wire, notice)

    def _announce_loss(self, wire: Wire, notice: float) -> None:
        self.clock.at(self.clock.now + notice, lambda: wire.client.lose(wire, "reset"))
        if (server := wire.server) is not None:
            self.clock.at(self.clock.now + notice * 1.5, lambda: server.lose(wire, "reset"))

    def stall(self, index: int) -> None:
        """Nothing moves on the route, nobody is told."""
        self.clock.log("network", "stall", index)
        self.stalled.add(index)
        for wire in self._wires(index):
            wire.up.stalled = wire.down.stalled = True

    def restore(self, index: int) -> None:
        """The stall or the outage is over."""
        self.clock.log("network", "restore", index)
        self.stalled.discard(index)
        self.down.discard(index)
        for wire in self._wires(index):
            wire.up.resume()
            wire.down.resume()

    def forget_session(self) -> None:
        """The server restarts: its side of the session is gone, without a word."""
        if self.server is not None:
            self.table.remove(self.server)
        for wire in self.wires:
            wire.up.sever()
            wire.down.sever()
            self.clock.at(self.clock.now + wire.route.down.delay, lambda wire=wire: wire.client.lose(wire, "reset"))  # type: ignore[misc]
        self.server = self.client.other = None

    def _wires(self, index: int) -> list[Wire]:
        return [w for w in self.wires if w.candidate.entry == index]
