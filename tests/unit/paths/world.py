"""A path manager with a clock of its own, and candidates for it."""

from __future__ import annotations

from collections.abc import Callable

from multi.events import AllAttempted, CancelDial, Dial, Notify
from multi.paths.history import ConnectionHistory
from multi.paths.manager import PathManager
from multi.paths.racing import ConnectMode
from multi.paths.roles import Mode
from multi.reasons import Cause, Reason
from multi.types import Candidate, ConnectionId, ConnectionState, Family, Role

REASON = Reason(Cause.CONNECTED, "whatever")
ACTIVE, LOST, SUSPECT = ConnectionState.ACTIVE, ConnectionState.LOST, ConnectionState.SUSPECT
SETUP = 0.02  # seconds


class Connections:
    """Notes what the path manager does to connections."""

    def __init__(self) -> None:
        self.drained: list[int] = []
        self.pinged: list[int] = []
        self.roles: dict[int, Role] = {}
        self.caps: dict[int, float] = {}
        self.given_up: dict[int, str] = {}
        self.closed_for_now: dict[int, str] = {}

    def drain(self, connection: ConnectionId) -> None:
        self.drained.append(connection)

    def give_up(self, connection: ConnectionId, reason: str) -> None:
        self.given_up[connection] = reason

    def close_for_now(self, connection: ConnectionId, reason: str) -> None:
        self.closed_for_now[connection] = reason

    def cap(self, connection: ConnectionId, max_rate: float) -> None:
        self.caps[connection] = max_rate

    def give_role(self, connection: ConnectionId, role: Role, reason: str) -> None:
        self.roles[connection] = role

    def ping(self, connection: ConnectionId) -> None:
        self.pinged.append(connection)


class World:
    """A path manager, its clock, and what it has dialled."""

    def __init__(
        self,
        *candidates: Candidate,
        connect: ConnectMode = ConnectMode.STAGGERED,
        mode: Mode = Mode.AGGREGATE,
        history: ConnectionHistory | None = None,
        may_go: Callable[[str], bool] = lambda address: False,
    ) -> None:
        self.now = 0.0
        self.connections = Connections()
        self.paths = PathManager(
            candidates,
            connect=connect,
            mode=mode,
            session=self.connections,
            jitter=lambda: 0.5,
            now=0.0,
            history=history,
            may_go=may_go,
        )
        self.dials: list[tuple[ConnectionId, Candidate]] = []
        self.cancelled: list[ConnectionId] = []
        self.events: list[object] = []
        self.all_attempted = False
        self.turn()

    def turn(self) -> None:
        self.paths.handle_timer(self.now)
        self.collect()

    def collect(self) -> None:
        for effect in self.paths.effects():
            match effect:
                case Dial(connection, candidate):
                    self.dials.append((connection, candidate))
                case CancelDial(connection):
                    self.cancelled.append(connection)
                case Notify(event):
                    self.events.append(event)
                case AllAttempted():
                    self.all_attempted = True

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while (due := self.paths.next_timer()) is not None and due <= end:
            self.now = max(self.now + 1e-4, due)
            self.turn()
        self.now = max(self.now, end)
        self.turn()

    def state(self, connection: int, state: ConnectionState) -> None:
        if state is ACTIVE:
            self.paths.established()
        self.paths.connection_changed(ConnectionId(connection), state, REASON, self.now)
        self.paths.retry_unfilled(self.now)
        self.collect()


def candidate(entry: int, address: str = "192.0.2.1", group: str = "") -> Candidate:
    return Candidate(
        transport="tcp",
        family=Family.IPV4,
        remote_host="server.example",
        remote_address=address,
        remote_port=7788,
        interface=f"if{entry}",
        entry=entry,
        group=group,
    )


def two_up(first: Candidate | None = None, mode: Mode = Mode.AGGREGATE) -> World:
    world = World(first or candidate(0), candidate(1), connect=ConnectMode.PARALLEL, mode=mode)
    for connection in (0, 1):
        world.state(connection, ACTIVE)
    world.paths.established()
    world.turn()
    return world
