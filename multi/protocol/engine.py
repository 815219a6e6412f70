"""The engine: a session and, on the client, its path manager, behind one set of inputs, one timer, one effect list.

The driver and the simulator pump the same engine, so what the simulator proves holds for the product.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from multi.errors import LocalProtocolError
from multi.events import (
    CancelDial,
    ConnectionChanged,
    Effect,
    NetworkChanged,
    Notify,
    SessionClosed,
    SessionDetached,
    SessionResumed,
    SignalChanged,
)
from multi.paths.manager import NETWORK_GONE, Memory, Mode, PathManager
from multi.paths.racing import Connect
from multi.paths.slots import Slot
from multi.protocol.payloads import Policy
from multi.protocol.session import ABORTED, SessionCore
from multi.protocol.state import SessionState
from multi.reasons import Cause, Reason
from multi.schedulers.base import Scheduler
from multi.types import Candidate, ConnectionFacts, ConnectionId, ConnectionState, Role, StreamId, TransportSample

NO_CONNECTION = Reason(Cause.NO_CONNECTION, "no connection could be opened")
MAX_ROUNDS = 100  # effects may cause effects; more rounds than this would be a loop in our own logic


class Engine:
    """Inputs take `now` and return None; see `SessionCore` for what they mean."""

    def __init__(self, session: SessionCore, *, now: float) -> None:
        self.session = session
        self.paths: PathManager | None = None
        self._now = now
        self._open_timeout = 0.0
        self._open_deadline: float | None = None
        self._over = False

    def open(
        self,
        candidates: Iterable[Candidate],
        *,
        connect: Connect,
        mode: Mode,
        open_timeout: float,
        jitter: Callable[[], float],
        now: float,
        memory: Memory | None = None,
        race_order: Sequence[Candidate] | None = None,
        expecting: bool = False,
    ) -> None:
        """Client: start to open the candidates; see `PathManager`."""
        self._now = now
        self.paths = PathManager(
            candidates,
            connect=connect,
            mode=mode,
            session=_Reach(self),
            jitter=jitter,
            now=now,
            memory=memory,
            race_order=race_order,
            expecting=expecting,
        )
        self._open_timeout = open_timeout
        self._open_deadline = now + open_timeout
        self.paths.handle_timer(now)

    # === inputs  ===

    def attempt_failed(self, connection: ConnectionId, reason: Reason, *, now: float, answered: bool = True) -> None:
        """A dial failed; `answered`: somebody said so, not the silence."""
        self._now = now
        if self.paths is not None:
            self.paths.attempt_failed(connection, reason, now, answered=answered)

    def connection_opened(self, connection: ConnectionId, facts: ConnectionFacts, *, now: float) -> None:
        self._now = now
        self.session.connection_opened(connection, facts, now=now)

    def receive(self, connection: ConnectionId, data: memoryview, lane: int = 0, *, now: float) -> None:
        self._now = now
        self.session.receive(connection, data, lane, now=now)

    def connection_lost(self, connection: ConnectionId, failure: Reason | None, *, now: float) -> None:
        self._now = now
        self.session.connection_lost(connection, failure, now=now)

    def set_credit(self, connection: ConnectionId, credit: int, *, now: float) -> None:
        self._now = now
        self.session.set_credit(connection, credit, now=now)

    def sample(self, connection: ConnectionId, sample: TransportSample, *, now: float) -> None:
        self._now = now
        self.session.sample(connection, sample, now=now)

    def advance(self, *, now: float) -> None:
        """Time has passed; what is sent next is sent at `now`."""
        self._now = now
        self.session.advance(now=now)

    def write(self, stream: StreamId, data: bytes | bytearray | memoryview, *, now: float) -> None:
        self._now = now
        self.session.write(stream, data, now=now)

    def read(self, stream: StreamId, limit: int, *, now: float) -> bytes:
        self._now = now
        return self.session.read(stream, limit, now=now)

    def finish(self, stream: StreamId, *, now: float) -> None:
        self._now = now
        self.session.finish(stream, now=now)

    def reset(self, stream: StreamId, code: int, *, now: float) -> None:
        self._now = now
        self.session.reset(stream, code, now=now)

    def stop_sending(self, stream: StreamId, code: int, *, now: float) -> None:
        self._now = now
        self.session.stop_sending(stream, code, now=now)

    def accept_stream(self, stream: StreamId, *, now: float) -> None:
        self._now = now
        self.session.accept_stream(stream, now=now)

    def open_stream(self, priority: int, *, now: float) -> StreamId | None:
        self._now = now
        return self.session.open_stream(priority, now=now)

    def close(self, *, now: float) -> None:
        self._now = now
        self.session.close(now=now)

    def abort(self, reason: Reason = ABORTED, *, now: float) -> None:
        self._now = now
        self.session.abort(reason, now=now)

    def set_role(self, connection: ConnectionId, role: Role, *, now: float) -> None:
        self._now = now
        self.session.set_role(connection, role, now=now)
        if self.paths is not None:
            self.paths.set_role(connection, role, now)

    def set_scheduler(self, policy: Policy, scheduler: Scheduler | None = None, *, now: float) -> None:
        self._now = now
        self.session.set_scheduler(policy, scheduler, now=now)

    def add_candidates(self, candidates: Sequence[Candidate], *, now: float) -> list[Slot]:
        """Client: want more connections."""
        self._now = now
        return self._paths().add(candidates, now)

    def withdraw_candidates(self, slots: Sequence[Slot], *, now: float) -> None:
        """Client: want what `add_candidates` returned no more."""
        self._now = now
        self._paths().withdraw(slots, now)

    def remove_connection(self, connection: ConnectionId, *, now: float) -> None:
        """Drain a connection and do not dial it again. The last usable one cannot be removed."""
        self._now = now
        others = [
            c for c in self.session.connections.values() if c.id != connection and c.state is ConnectionState.ACTIVE
        ]
        if not others:
            raise LocalProtocolError("the last usable connection cannot be removed")
        self.session.drain(connection, now=now)
        if self.paths is not None:
            self.paths.remove(connection, now)

    def cancel_handover(self) -> None:
        """Client: forget a handover under way."""
        self._paths().cancel_handover()

    def hand_over(self, slots: list[Slot], done: Callable[[Reason | None], None], *, now: float) -> None:
        """Make-before-break to one of `slots`; see `PathManager.hand_over`."""
        self._now = now
        self._paths().hand_over(slots, done, now)

    def update_candidates(
        self,
        candidates: Sequence[Candidate],
        *,
        reason: Callable[[int], str],
        expecting: bool,
        now: float,
    ) -> None:
        """Client: these are all candidates there are now; see `PathManager.update`."""
        self._now = now
        if self._over:
            return
        self._paths().update(candidates, now, reason=reason, expecting=expecting)

    def network_changed(
        self, interface: str, usable: bool, *, now: float, address: str = "", reason: str = NETWORK_GONE
    ) -> None:
        """The application or the system says that an interface became usable or stopped being so.

        With `address` only that address of the interface is meant; what was bound to it can never work again.
        """
        self._now = now
        if self._over:
            return
        if not usable:
            for connection in list(self.session.connections.values()):
                if not connection.alive or interface not in ("", connection.interface):
                    continue
                if interface and connection.facts.more_interfaces:
                    continue  # an MPTCP connection goes on over the others, also without its first subflow
                if not address:
                    self.session.suspect(connection.id, Reason(Cause.NETWORK_GONE, reason), now=now)
                elif connection.facts.local_address == address:
                    self.session.give_up(connection.id, Reason(Cause.ADDRESS_GONE, reason), now=now)
        if self.paths is not None and not address:
            self.paths.network_changed(interface, usable, now, reason)
        self.session.notify(NetworkChanged(interface, usable, reason if not usable else "usable again"))

    def signal_changed(self, interface: str, fading: bool, dbm: float, *, now: float) -> None:
        """Client: the radio of an interface is about to lose its network, or is good again."""
        self._now = now
        if self._over:
            return
        self.session.notify(SignalChanged(interface, fading, dbm))
        if self.paths is not None:
            self.paths.signal_changed(interface, fading, now)

    def slept(self, seconds: float, *, now: float) -> None:
        """The machine was suspended: nothing is known of any connection."""
        self._now = now
        if self._over:
            return
        reason = Reason(Cause.SUSPENDED, f"the machine slept for {seconds:.0f} s")
        for connection in list(self.session.connections.values()):
            self.session.suspect(connection.id, reason, now=now)
        if self.paths is not None:
            self.paths.network_changed("", True, now)

    def announce(self, addresses: Sequence[tuple[str, int]], *, now: float) -> None:
        """Server: tell the client at which further addresses it can be reached."""
        self._now = now
        if self._over:
            return
        self.session.announce(addresses, now=now)

    def handle_timer(self, *, now: float) -> None:
        self._now = now
        if self._over:
            return
        self.session.handle_timer(now=now)
        if self.paths is not None:
            self.paths.handle_timer(now)
            if self._open_deadline is not None and now >= self._open_deadline:
                self._open_deadline = None
                if not self.session.confirmed:
                    self.paths.give_up(self._open_timeout)
                    text = f"the session did not open within {round(self._open_timeout, 1):g} s"
                    self.session.fail(Reason(Cause.NO_CONNECTION, text), now=now)

    @property
    def now(self) -> float:
        """The time of the last input."""
        return self._now

    @property
    def wants_credit(self) -> bool:
        """Something would be sent if a connection had credit for it."""
        return self.session.sender.waiting

    # === outputs  ===

    def next_timer(self) -> float | None:
        if self._over:
            return None
        timers = [self.session.next_timer()]
        if self.paths is not None:
            timers += [self.paths.next_timer(), self._open_deadline]
        due = [t for t in timers if t is not None]
        return max(min(due), self._now + 1e-4) if due else None

    def effects(self) -> list[Effect]:
        """Session and path manager react to each other until both are quiet."""
        collected = self.session.effects()
        fresh = collected
        for _ in range(MAX_ROUNDS):
            # Only what the session says about connections and itself makes the path manager act, and only then
            # can the session have more to say: bytes that come and go cost one round.
            noticed = False
            for effect in fresh:
                if type(effect) is Notify or type(effect) is SessionClosed:
                    self._observe(effect)
                    noticed = True
            if self.paths is None:
                break
            reaction = self._path_effects()
            gave_up = self.session.state is SessionState.CLOSED and not self._over
            if not noticed and not reaction and not gave_up:
                break
            collected += reaction
            fresh = self.session.effects()
            collected += fresh
        if self._over and self.paths is not None:
            collected.sort(key=lambda effect: isinstance(effect, SessionClosed))
        return collected

    def _path_effects(self) -> list[Effect]:
        assert self.paths is not None
        if self.session.state is SessionState.OPENING and self.paths.hopeless and not self._over:
            self.session.fail(NO_CONNECTION, now=self._now)
        effects: list[Effect] = []
        for effect in self.paths.effects():
            if isinstance(effect, CancelDial):
                opened = self.session.connections.get(effect.connection)
                if opened is not None:
                    if opened.alive:
                        self.session.drain(opened.id, now=self._now)
                    continue
            effects.append(effect)
        return effects

    def _observe(self, effect: Effect) -> None:
        if isinstance(effect, SessionClosed):
            self._over = True
            if self.paths is not None:
                self.paths.stop()
            return
        if self.paths is None or not isinstance(effect, Notify):
            return
        event = effect.event
        if isinstance(event, ConnectionChanged):
            if event.state is ConnectionState.ACTIVE and self.session.confirmed:
                self.paths.established()
                self._open_deadline = None
            self.paths.connection_changed(event.connection, event.state, event.reason, self._now)
            if self.session.confirmed:
                self.paths.retry_unfilled(self._now)
        elif isinstance(event, SessionDetached):
            self.paths.detached(self._now)
        elif isinstance(event, SessionResumed):
            self.paths.resumed()

    def _paths(self) -> PathManager:
        if self.paths is None:
            raise LocalProtocolError("only the client decides which connections exist")
        return self.paths


class _Reach:
    """What the path manager may do to connections.

    It knows of a connection's end only once it has seen the event; meanwhile it may still speak of it.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def drain(self, connection: ConnectionId) -> None:
        if self._alive(connection):
            self._engine.session.drain(connection, now=self._engine.now)

    def give_up(self, connection: ConnectionId, reason: Reason) -> None:
        if self._alive(connection):
            self._engine.session.give_up(connection, reason, now=self._engine.now)

    def set_role(self, connection: ConnectionId, role: Role, reason: str) -> None:
        if self._alive(connection):
            self._engine.session.set_role(connection, role, reason, now=self._engine.now)

    def ping(self, connection: ConnectionId) -> None:
        if self._alive(connection):
            self._engine.session.ping(connection, now=self._engine.now)

    def _alive(self, connection: ConnectionId) -> bool:
        found = self._engine.session.connections.get(connection)
        return found is not None and found.alive
