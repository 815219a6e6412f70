"""The path manager: which connections should exist. Pure; only the client has one.

A *slot* is one wanted connection: a candidate, or a group of alternatives of which the first that works is kept. The
manager races the slots when the session opens, redials what is lost, keeps roles in `switch` mode, and performs
handovers make-before-break. How a connection is opened and whether it lives is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from multi.core.events import AllAttempted, AttemptFailed, CancelDial, Dial, Effect, Event, Notify
from multi.core.facts import Candidate
from multi.core.ids import ConnectionId, ConnectionState, Role
from multi.paths.racing import Connect, Race

ATTEMPT_TIMEOUT = 10.0  # seconds one attempt may take before it is given up
RETRY_FIRST = 0.2  # seconds before a lost connection is dialled again
RETRY_LONGEST = 5.0
RETRY_LONGEST_DETACHED = 0.5  # design 7: at least every 0.5 s while nothing is left
PENDING_DETACHED = 4  # attempts a slot may have under way while nothing is left; the oldest gives way
DIAL_APART = 0.1  # seconds between two dials of one slot, however often its network is said to be usable
RETRY_JITTER = 0.2  # share of the delay, so that many clients do not come back in step
STABLE_AFTER = 5.0  # seconds a connection must live before its next loss counts as a first one


class Mode(Enum):
    """`multi_config.mode`."""

    AGGREGATE = "aggregate"
    SWITCH = "switch"


@dataclass(slots=True, eq=False)
class Slot:
    """One wanted connection."""

    candidates: list[Candidate]
    attempts: dict[ConnectionId, Candidate] = field(default_factory=dict)
    connection: ConnectionId | None = None
    """The connection that fills it, once authenticated."""
    suspect: bool = False
    """That connection may be dead."""
    attempted: bool = False
    """It has been up or has failed completely once."""
    failures: int = 0
    retry_at: float | None = None
    up_since: float = 0.0
    parked: bool = False
    """Not wanted now: handed over to another."""
    recalled: bool = False
    """Wanted again only because that other one may be dead."""
    next_candidate: int = 0
    dialled_at: float = 0.0


@dataclass(slots=True)
class _Handover:
    """A handover under way: drain the others once one of `slots` is up."""

    slots: list[Slot]
    done: Callable[[str], None]


class PathManager:
    """See the module. `drain` and `set_role` reach into the session; `jitter()` gives a number in [0, 1)."""

    def __init__(
        self,
        candidates: Iterable[Candidate],
        *,
        connect: Connect,
        mode: Mode,
        drain: Callable[[ConnectionId], None],
        set_role: Callable[[ConnectionId, Role], None],
        jitter: Callable[[], float],
        now: float,
    ) -> None:
        self._mode = mode
        self._drain = drain
        self._set_role = set_role
        self._jitter = jitter
        self._effects: list[Effect] = []
        self._next_id = 0
        self.slots = _slots(candidates)
        ordered = [candidate for slot in self.slots for candidate in slot.candidates]
        self._race = Race(ordered, connect, now)
        self._racing: set[ConnectionId] = set()
        self._deadlines: dict[ConnectionId, float] = {}
        self._roles: dict[ConnectionId, Role] = {}
        self._announced_all = False
        self._detached = False
        self._established = False
        self._stopped = False
        self._given_up = False
        self._handover: _Handover | None = None
        self.failures: list[tuple[str, str]] = []
        """(candidate, reason) of every attempt that failed while the session opened."""

    # --- inputs  ---

    def attempt_failed(self, connection: ConnectionId, reason: str, now: float) -> None:
        """The dial did not lead to a connection."""
        slot, candidate = self._attempt(connection)
        if slot is None or candidate is None:
            return
        self._attempt_over(slot, connection, candidate, reason, now)

    def connection_changed(self, connection: ConnectionId, state: ConnectionState, reason: str, now: float) -> None:
        """The session moved a connection to `state`."""
        slot, candidate = self._attempt(connection)
        if slot is not None and candidate is not None:
            if state is ConnectionState.ACTIVE:
                self._won(slot, connection, candidate, now)
            elif state in (ConnectionState.LOST, ConnectionState.CLOSED):
                self._attempt_over(slot, connection, candidate, reason, now)
            return
        filled = next((s for s in self.slots if s.connection == connection), None)
        if filled is not None:
            filled.suspect = state is ConnectionState.SUSPECT
            if state is ConnectionState.ACTIVE:
                self._dismiss(now)
                self._continue_handover(now)
            elif filled.suspect:
                self._recall(now)
        gone = state in (ConnectionState.LOST, ConnectionState.CLOSED, ConnectionState.DRAINING)
        if filled is not None and gone:
            # A connection that drains carries nothing new: the slot is free, also for a handover back to it.
            filled.connection = None
            self._roles.pop(connection, None)
            if not filled.parked:
                if now - filled.up_since >= STABLE_AFTER:
                    filled.failures = 0
                self._schedule_retry(filled, now)
            if not any(s.connection is not None for s in self.slots):
                self._unpark(now)
        self._assign_roles()

    def established(self) -> None:
        """The session is confirmed: from now on lost connections are dialled again."""
        self._established = True

    def detached(self, now: float) -> None:
        self._detached = True
        self._unpark(now)
        for slot in self.slots:
            if slot.connection is None and slot.retry_at is not None:
                slot.retry_at = min(slot.retry_at, now + RETRY_LONGEST_DETACHED)

    def resumed(self) -> None:
        self._detached = False

    def network_changed(self, interface: str, usable: bool, now: float) -> None:
        """An interface became usable: dial its slots at once; or unusable: give up its attempts."""
        for slot in self.slots:
            if not any(interface in ("", c.interface) for c in slot.candidates):
                continue
            if usable and slot.connection is None and not slot.parked:
                # A dial under way may have been sent into the void, and would be repeated only after seconds.
                if not slot.attempts or now >= slot.dialled_at + DIAL_APART:
                    slot.failures, slot.retry_at = 0, now
            elif not usable:
                for connection, candidate in list(slot.attempts.items()):
                    if candidate.interface == interface:
                        self._effects.append(CancelDial(connection))
                        self._attempt_over(slot, connection, candidate, "the network went away", now)

    def add(self, candidates: Sequence[Candidate], now: float) -> list[Slot]:
        """Want more connections, from now on."""
        added = _slots(candidates)
        self.slots += added
        for slot in added:
            slot.retry_at = now
        return added

    def withdraw(self, slots: Sequence[Slot], now: float) -> None:
        """Want `slots` no more; what they have led to is given up."""
        for slot in slots:
            if slot in self.slots:
                for attempt in list(slot.attempts):
                    self._cancel(slot, attempt, now)
                if slot.connection is not None:
                    self._drain(slot.connection)
                self.slots.remove(slot)
        self._check_handover()

    def remove(self, connection: ConnectionId) -> None:
        """Do not want this connection any more (the session drains it)."""
        for slot in list(self.slots):
            if slot.connection == connection or connection in slot.attempts:
                for attempt in slot.attempts:
                    self._effects.append(CancelDial(attempt))
                self.slots.remove(slot)
        self._check_handover()

    def hand_over(self, slots: list[Slot], done: Callable[[str], None], now: float) -> None:
        """Make one of `slots` carry the session and drain all others; `done("")` or `done(reason)` follows."""
        if self._handover is not None:
            done("another handover is under way")
            return
        self._handover = _Handover(slots, done)
        for slot in slots:
            slot.parked = slot.recalled = False
            if slot.connection is None and not slot.attempts:
                slot.retry_at = now
        self._continue_handover(now)

    def cancel_handover(self) -> None:
        """Forget a handover under way; the old connections stay."""
        self._handover = None

    def stop(self) -> None:
        """The session is over: no more attempts."""
        self._stopped = True
        for slot in self.slots:
            for attempt in slot.attempts:
                self._effects.append(CancelDial(attempt))
            slot.attempts.clear()
            slot.retry_at = None
        self._fail_handover("the session has ended")

    def give_up(self, after: float) -> None:
        """The time to open is over, `after` seconds: add to `failures` what is under way or was never tried."""
        within = f"within {round(after, 1):g} s"
        self._given_up = True
        failed = {candidate for candidate, _ in self.failures}
        for slot in self.slots:
            for candidate in slot.candidates:
                if str(candidate) not in failed:
                    tried = candidate in slot.attempts.values()
                    reason = f"no answer {within}" if tried else f"not tried {within}"
                    self.failures.append((str(candidate), reason))

    def handle_timer(self, now: float) -> None:
        if self._stopped:
            return
        for candidate in self._race.due(now):
            slot = next((s for s in self.slots if candidate in s.candidates), None)
            if slot is None:
                self._race.failed(now)  # removed before its turn came
            else:
                self._racing.add(self._dial(slot, candidate, now))
        for slot in list(self.slots):
            for connection, candidate in list(slot.attempts.items()):
                if now >= self._deadlines.get(connection, now + 1):
                    self._effects.append(CancelDial(connection))
                    self._attempt_over(slot, connection, candidate, f"no answer within {ATTEMPT_TIMEOUT:g} s", now)
            again_at = self._dial_again_at(slot)
            if again_at is not None and now >= again_at:
                slot.retry_at = None
                if slot.connection is None:
                    candidate = slot.candidates[slot.next_candidate % len(slot.candidates)]
                    self._dial(slot, candidate, now)
                if len(slot.attempts) > PENDING_DETACHED:
                    self._cancel(slot, min(slot.attempts), now)

    def next_timer(self) -> float | None:
        if self._stopped:
            return None
        due = [t for s in self.slots if (t := self._dial_again_at(s)) is not None]
        due += [self._deadlines[c] for s in self.slots for c in s.attempts if c in self._deadlines]
        if (race := self._race.next_timer()) is not None:
            due.append(race)
        return min(due, default=None)

    def _dial_again_at(self, slot: Slot) -> float | None:
        """When a slot is dialled again; while nothing is left, also beside attempts that have not been answered."""
        if slot.parked:
            return None
        if self._detached and slot.attempts and slot.connection is None:
            beside = slot.dialled_at + RETRY_LONGEST_DETACHED
            return beside if slot.retry_at is None else min(beside, slot.retry_at)
        return slot.retry_at

    def effects(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects

    @property
    def hopeless(self) -> bool:
        """Every candidate has failed, nothing is under way: the session cannot open."""
        return (
            not self._established
            and self._race.finished
            and not any(s.attempts or s.connection is not None for s in self.slots)
        )

    # --- attempts  ---

    def _attempt(self, connection: ConnectionId) -> tuple[Slot | None, Candidate | None]:
        for slot in self.slots:
            if connection in slot.attempts:
                return slot, slot.attempts[connection]
        return None, None

    def _dial(self, slot: Slot, candidate: Candidate, now: float) -> ConnectionId:
        connection = ConnectionId(self._next_id)
        self._next_id += 1
        slot.attempts[connection] = candidate
        slot.dialled_at = now
        self._deadlines[connection] = now + ATTEMPT_TIMEOUT
        self._effects.append(Dial(connection, candidate))
        return connection

    def _leave_race(self, connection: ConnectionId, now: float, *, won: bool) -> None:
        if connection in self._racing:
            self._racing.remove(connection)
            if won:
                self._race.succeeded(now)
            else:
                self._race.failed(now)

    def _won(self, slot: Slot, connection: ConnectionId, candidate: Candidate, now: float) -> None:
        del slot.attempts[connection]
        self._deadlines.pop(connection, None)
        self._leave_race(connection, now, won=True)
        if slot.connection is not None:
            # An alternative of the group was faster.
            self._drain(connection)
            return
        slot.connection, slot.up_since, slot.retry_at = connection, now, None
        slot.suspect = slot.recalled = False
        slot.next_candidate = slot.candidates.index(candidate)
        slot.attempted = True
        self._roles[connection] = candidate.role
        for other in list(slot.attempts):
            self._cancel(slot, other, now)
        for alternative in slot.candidates:
            self._race.skip(alternative)
        self._announce_all()
        self._continue_handover(now)
        self._assign_roles()

    def _cancel(self, slot: Slot, connection: ConnectionId, now: float) -> None:
        del slot.attempts[connection]
        self._deadlines.pop(connection, None)
        self._leave_race(connection, now, won=False)
        self._effects.append(CancelDial(connection))

    def _attempt_over(
        self, slot: Slot, connection: ConnectionId, candidate: Candidate, reason: str, now: float
    ) -> None:
        del slot.attempts[connection]
        self._deadlines.pop(connection, None)
        self._notify(AttemptFailed(candidate, reason))
        raced = connection in self._racing
        self._leave_race(connection, now, won=False)
        slot.failures += 1
        slot.next_candidate = slot.candidates.index(candidate) + 1
        if not self._established and not self._given_up:
            self.failures.append((str(candidate), reason))
        if slot.failures >= len(slot.candidates) and not slot.attempts:
            slot.attempted = True
        self._announce_all()
        if slot.connection is None and not slot.attempts and not slot.parked:
            if slot.failures >= len(slot.candidates):
                self._schedule_retry(slot, now)
            elif not raced:
                slot.retry_at = now  # the race starts its alternatives itself; here nobody else would
                return
        wanted = self._handover.slots if self._handover is not None else []
        if slot in wanted and slot.attempted and not any(s.attempts or s.connection is not None for s in wanted):
            self._fail_handover(reason)

    def _schedule_retry(self, slot: Slot, now: float) -> None:
        if not self._established:
            return  # while the session opens every candidate is tried once, and the caller hears of failure at once
        longest = RETRY_LONGEST_DETACHED if self._detached else RETRY_LONGEST
        delay = min(longest, RETRY_FIRST * 2 ** min(slot.failures, 8))
        slot.failures += 1
        slot.retry_at = now + delay * (1 + RETRY_JITTER * (self._jitter() - 1))

    def retry_unfilled(self, now: float) -> None:
        """Once the session is established, what failed while it opened is tried again in the background."""
        for slot in self.slots:
            if slot.connection is None and not slot.attempts and slot.retry_at is None and slot.attempted:
                self._schedule_retry(slot, now)

    def _announce_all(self) -> None:
        if not self._announced_all and all(s.attempted for s in self.slots):
            self._announced_all = True
            self._effects.append(AllAttempted())

    def _notify(self, event: Event) -> None:
        self._effects.append(Notify(event))

    # --- roles and handover  ---

    def _assign_roles(self) -> None:
        """In `switch` mode the best slot that is up carries the data, the others stand by."""
        if self._mode is not Mode.SWITCH:
            return
        up = [s.connection for s in self.slots if s.connection is not None and not s.parked]
        for connection in up:
            role = Role.ACTIVE if connection == up[0] else Role.BACKUP
            if self._roles.get(connection) is not role:
                self._roles[connection] = role
                self._set_role(connection, role)

    def _continue_handover(self, now: float) -> None:
        handover = self._handover
        if handover is None:
            return
        # One that may be dead must prove itself first: breaking for it would leave nothing.
        target = next((s for s in handover.slots if s.connection is not None and not s.suspect), None)
        if target is None or target.connection is None:
            return
        self._handover = None
        if self._roles.get(target.connection) is not Role.ACTIVE:
            self._roles[target.connection] = Role.ACTIVE
            self._set_role(target.connection, Role.ACTIVE)
        for slot in self.slots:
            if slot in handover.slots:
                continue
            slot.parked, slot.recalled, slot.retry_at = True, False, None
            for attempt in list(slot.attempts):
                self._cancel(slot, attempt, now)
            if slot.connection is not None:
                self._drain(slot.connection)
        handover.done("")

    def _check_handover(self) -> None:
        if self._handover is not None and not any(slot in self.slots for slot in self._handover.slots):
            self._fail_handover("it was removed")

    def _fail_handover(self, reason: str) -> None:
        handover, self._handover = self._handover, None
        if handover is not None:
            handover.done(reason)

    def _recall(self, now: float) -> None:
        """What was handed over to may be dead: dial what was left for it before that is certain."""
        if any(s.connection is not None and not s.suspect for s in self.slots):
            return
        for slot in self.slots:
            if slot.parked and slot.connection is None:
                slot.parked, slot.recalled, slot.retry_at = False, True, now

    def _dismiss(self, now: float) -> None:
        """It lives: what has not come up meanwhile is not wanted after all."""
        for slot in self.slots:
            if slot.recalled:
                slot.parked, slot.recalled, slot.retry_at = True, False, None
                for attempt in list(slot.attempts):
                    self._cancel(slot, attempt, now)

    def _unpark(self, now: float) -> None:
        """Nothing is left: everything is wanted again."""
        for slot in self.slots:
            slot.recalled = False
            if slot.parked:
                slot.parked = False
                if slot.connection is None:
                    slot.retry_at = now


def _slots(candidates: Iterable[Candidate]) -> list[Slot]:
    """Candidates of one group are alternatives for one slot; the slot stands where its first candidate stands."""
    slots: list[Slot] = []
    groups: dict[str, Slot] = {}
    for candidate in candidates:
        if candidate.group and candidate.group in groups:
            groups[candidate.group].candidates.append(candidate)
            continue
        slot = Slot([candidate])
        slots.append(slot)
        if candidate.group:
            groups[candidate.group] = slot
    return slots
