"""The path manager: which connections should exist. Pure; only the client has one.

It races the slots when the session opens, dials again what is lost or may be dead, and follows the candidates as
networks appear and vanish. Which connections carry the data is decided in `multi.paths.roles`, which are wanted after a
handover in `multi.paths.handover`; how a connection is opened and whether it lives, elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Any

from multi.events import AllAttempted, AttemptFailed, CancelDial, Dial, Effect, Event, Notify
from multi.paths.handover import ANYWHERE, Destination, Handovers
from multi.paths.history import ConnectionHistory
from multi.paths.racing import ConnectMode, Race
from multi.paths.roles import Mode, Roles
from multi.paths.slots import (
    BESIDE_FIRST,
    MAX_RETRY_DETACHED,
    SHORT_LIFE,
    Attempt,
    ManagedSession,
    Slot,
    slot_key,
    slots_of,
)
from multi.paths.told import ToldAddresses
from multi.reasons import Cause, Reason
from multi.types import Address, Candidate, ConnectionId, ConnectionState, Family, Role, Source, preferences_of

ATTEMPT_TIMEOUT = 10.0  # seconds one attempt may take before it is given up
MAX_PENDING = 5  # attempts a slot may have under way, so that three slots fit into the `max_pending_joins` of a server
SUSPECT_GRACE = 0.2  # seconds a suspect connection has to recover before another is dialled beside it
WORTH_WAITING = frozenset((Cause.REFUSED_BUSY, Cause.HANDSHAKE_TIMEOUT, Cause.ATTEMPT_TIMEOUT))
"""What a server under load says, or does not say; and nothing at all, while there is time left to open the session."""
ASTRAY = frozenset((Cause.REFUSED_ELSEWHERE, Cause.REFUSED_UNKNOWN))  # said by a server that does not hold the session
NOBODY_THERE = frozenset((Cause.TRANSPORT, Cause.PEER_CLOSED))  # said by a machine on which no server listens
MAYBE_SIZE = frozenset((Cause.NO_PROGRESS, Cause.PEER_LOST, Cause.PEER_CLOSED))
"""What is heard where an end has given up a connection on which large packets vanish: a reset, if nothing else."""
SMALL_FOR = 60.0  # seconds for which that is allowed for
LATE = 0.1  # seconds; a process that comes so late to its timers comes as late to what it is told
MAX_LATENESS = 5.0  # seconds since a dial for which that is an excuse
TOLD_WITHIN = 5.0  # seconds a server has to tell its addresses, and to answer there: only then it is sought elsewhere
MAX_HUNG_UP = 3  # times in a row a peer may hang up without a word while the session opens: a crowded server sheds some

NETWORK_GONE = "the network went away"
SESSION_ENDED = Reason(Cause.CLOSED, "the session has ended")


class PathManager:
    """Keeps the slots of one session filled.

    A slot is a place for one connection, with one candidate or several that are alternatives (`multi.paths.slots`).

        candidates ──> slots ──> race (seq, par, stag) ──> dialled ──> filled ──> on trial ──> carries the session
                         ▲                                    │           │
                         │        failed: the next candidate, │           │ suspect: another is dialled beside it
                         └──────── then after a delay ────────┴───────────┘ lost: dialled again
                         │
                 standby: left by a handover; reactivated when its target falls silent, dismissed when it lives again
                 absent:  its network is not there; dialled at once when it is

    Connections report through `connection_changed`, networks through `update` and `network_changed`; what is to be done
    leaves as `Dial` and `CancelDial` effects, and as calls to `session` for connections that exist.

    `jitter()` gives a number in [0, 1); `expecting`: names may still give more candidates; `may_go(address)`: whether
    to go there because a server says that another one there holds the session.
    """

    def __init__(
        self,
        candidates: Iterable[Candidate],
        *,
        connect: ConnectMode,
        mode: Mode,
        session: ManagedSession,
        jitter: Callable[[], float],
        now: float,
        history: ConnectionHistory | None = None,
        expecting: bool = False,
        may_go: Callable[[str], bool] = lambda address: False,
    ) -> None:
        self._session = session
        self._jitter = jitter
        self._history = history or ConnectionHistory()
        self.pending: list[Effect] = []
        """What `effects` will return."""
        self._next_id = 0
        self.slots = slots_of(candidates)
        wanted = [candidate for slot in self.slots for candidate in slot.candidates]
        self._race = Race(self._history.order(wanted, now), connect, now, self.pending)
        self._roles = Roles(self.slots, session, mode)
        self._handovers = Handovers(self.slots, self._roles, self._race, session, self.pending)
        self._leaving: dict[ConnectionId, tuple[Candidate, Reason]] = {}
        """Connections over networks that are closed, which have a slot or drain."""
        self._unwanted: set[str] = set()
        """Keys of slots that were removed: no update brings them back."""
        self._announced_all = False
        self._detached = False
        self._detached_at = inf
        """When it was so last."""
        self._established = False
        self.begun = False
        """Data may have been sent, so the session keeps its ID; before, one with another ID is the better answer to a
        server that is being stopped, for a balancer may know the ID."""
        self._stopped = False
        self._given_up = False
        self._may_go = may_go
        self._elsewhere = False
        """The server takes connections at the addresses that it tells, and where HELLO went there are others."""
        self.away = False
        """With no connection left, somebody has said that there is no server at an address that it has told."""
        self._told = ToldAddresses()
        self._preferences: dict[int, Mapping[str, Any]] = {}
        """What entries ask of their connections, by index, as of the last `update`."""
        self._expecting = expecting
        self.failures: list[tuple[str, Reason]] = []
        """(candidate, reason) of every attempt that failed until all had ended or were given up, each once."""

    # --- inputs: attempts and connections  ---

    def attempt_failed(self, connection: ConnectionId, reason: Reason, now: float, *, answered: bool = True) -> None:
        """The dial did not lead to a connection. `answered`: somebody said so, not the silence."""
        slot = self._dialling(connection)
        if slot is not None:
            self._attempt_over(slot, connection, reason, now, answered=answered)

    def connection_changed(self, connection: ConnectionId, state: ConnectionState, reason: Reason, now: float) -> None:
        """The session moved a connection to `state`."""
        slot = self._dialling(connection)
        if slot is not None:
            if state is ConnectionState.ACTIVE:
                self._won(slot, connection, now)
            elif state.over:
                # Who takes connections and then says nothing, as captive portals do, has not answered.
                answered = reason.cause is not Cause.HANDSHAKE_TIMEOUT
                self._attempt_over(slot, connection, reason, now, answered=answered)
            return
        if state.over:
            self._leaving.pop(connection, None)
        filled = next((s for s in self.slots if s.connection == connection), None)
        if filled is None:
            return
        match state:
            case ConnectionState.ACTIVE:
                if filled.suspect:
                    self._recovered(filled, now)
            case ConnectionState.SUSPECT:
                self._suspected(filled, now)
            case ConnectionState.LOST | ConnectionState.CLOSED | ConnectionState.DRAINING:
                # A connection that drains carries nothing new: the slot is free, also for a handover back to it.
                refused = reason.cause is Cause.REFUSED_BUSY
                if state is ConnectionState.LOST and reason.cause in MAYBE_SIZE:
                    filled.small_until = now + SMALL_FOR
                self._emptied(filled, now, failed=state is ConnectionState.LOST, refused=refused)
        self._leave()
        self._roles.assign(now)

    def _suspected(self, slot: Slot, now: float) -> None:
        slot.suspect = True
        slot.retry_at = now + SUSPECT_GRACE
        self._roles.suspected(slot, now)
        self._handovers.recall(now)

    def _recovered(self, slot: Slot, now: float) -> None:
        slot.suspect = False
        if not slot.stuck:
            self._call_off(slot, now)
        self._roles.recovered(slot, now)
        self._handovers.plan_dismissal(now)
        self._handovers.advance(now)

    def stuck(self, connection: ConnectionId, now: float) -> None:
        """It gets on with nothing although its peer is heard: large packets may vanish. Others ask for small ones."""
        for slot in self.slots:
            if slot.connection == connection:
                slot.stuck, slot.small_until, slot.retry_at = True, now + SMALL_FOR, now

    def gets_on(self, connection: ConnectionId, now: float) -> None:
        """It was stuck, and is not any more."""
        for slot in self.slots:
            if slot.connection == connection:
                slot.stuck = False
                if not slot.suspect:
                    self._call_off(slot, now)

    def _call_off(self, slot: Slot, now: float) -> None:
        """What fills it is as good as another would be."""
        slot.retry_at = slot.unanswered_since = None
        self._race.cancel(slot, slot.attempts, now)

    def _emptied(self, slot: Slot, now: float, *, failed: bool, refused: bool) -> None:
        if failed:
            slot.trouble(now)
        slot.emptied(now, refused=refused)
        if not slot.standby and not slot.attempts:
            slot.schedule_retry(now, self._jitter(), detached=self._detached)
        if not any(s.connection is not None for s in self.slots):
            self._handovers.want_all(now)
        else:
            self._handovers.recall(now)

    def established(self) -> None:
        """The session is confirmed: from now on lost connections are dialled again."""
        self._established = True

    def detached(self, now: float) -> None:
        """No connection is left: dial at once, unless what was dialled so has just come to nothing.

        Where connections come about and break, as with somebody in their path, a session would dial 25 times a second.
        """
        broke = 0.0 <= now - self._detached_at < SHORT_LIFE
        self._detached, self.away = True, False
        self._detached_at = now
        self._handovers.want_all(now)
        for slot in self.slots:
            if slot.connection is None and not slot.attempts:
                delay = MAX_RETRY_DETACHED * (1 + self._jitter()) / 2 if broke else self._jitter() * 0.1
                slot.retry_at = min(slot.retry_at or now + 1.0, now + delay)

    def resumed(self) -> None:
        self._detached = False

    def elsewhere(self, accepted: ConnectionId, now: float) -> None:
        """The server that `accepted` the session takes further connections at addresses that it is about to tell.

        What else is under way leads to who knows which server.
        """
        self._elsewhere = True
        for slot in self.slots:
            for candidate in slot.candidates:
                self._race.skip(candidate)
            self._race.cancel(slot, [connection for connection in slot.attempts if connection != accepted], now)
            slot.retry_at, slot.dialled_at, slot.held_until = now, -inf, now + TOLD_WITHIN
            slot.unanswered_since = None

    def redirected(self, connection: ConnectionId, address: Address) -> None:
        """The server there is about to refuse: another one, at `address`, holds the session. That is worth one dial."""
        slot = self._dialling(connection)
        if slot is None:
            return
        attempt, (literal, _) = slot.attempts[connection], address
        same_family = Family.of(literal) is attempt.candidate.family
        if same_family and not attempt.redirected and self._may_go(literal):
            attempt.redirect = address

    # --- inputs: networks  ---

    def network_changed(self, interface: str, usable: bool, now: float, reason: str = NETWORK_GONE) -> None:
        """An interface (empty = any) became usable: dial its slots at once; or unusable: give up its attempts.

        Not those that may go over another interface as well: they are about to, or `update` brings what does.
        """
        for slot in self.slots:
            if interface and not any(interface == s.interface for c in slot.candidates for s in c.sources):
                continue
            if usable:
                slot.dial_soon(now)
                continue
            for connection, attempt in list(slot.attempts.items()):
                candidate = attempt.candidate
                if not interface or (interface == candidate.interface and not candidate.more_sources):
                    self._abandon(slot, connection, Reason(Cause.NETWORK_GONE, reason), now)

    def update(
        self,
        candidates: Sequence[Candidate],
        now: float,
        *,
        reason: Callable[[int], str] = lambda entry: "its network is not there",
        expecting: bool = False,
        closed: Callable[[Candidate], bool] = lambda candidate: False,
        preferences: Mapping[int, Mapping[str, Any]] | None = None,
    ) -> None:
        """What can be dialled has changed: these are all candidates there are now, in order of preference.

        `reason(entry)` says why an entry has none. New slots are dialled, those without a candidate wait until they
        have one again. What is up stays up, with the `preferences` that its entry has now, unless that is `closed`;
        entries that are not in them have those of their candidates.
        """
        if self._stopped:
            return
        self._expecting = expecting
        self._preferences = {candidate.entry: preferences_of(candidate) for candidate in candidates}
        self._preferences |= preferences or {}
        fresh = {slot.key: slot for slot in slots_of(candidates)}
        for slot in self.slots:
            self._prefer(slot)
            found = fresh.pop(slot.key, None)
            if found is None:
                self._absent(slot, reason(slot.entry), now)
            else:
                self._present(slot, found.candidates, now)
        for slot in fresh.values():
            if slot.key not in self._unwanted:
                self._enter(slot, now)
        order = {slot_key(candidate): place for place, candidate in reversed(list(enumerate(candidates)))}
        self.slots.sort(key=lambda slot: (slot.entry, order.get(slot.key, -1)))
        self._leaving = {one: known for one, known in self._leaving.items() if closed(known[0])}
        for slot in self.slots:
            if slot.connection is not None and slot.source is not None and closed(slot.source):
                self._leaving[slot.connection] = slot.source, Reason(Cause.REMOVED, reason(slot.entry))
        self._leave()
        self._announce_all()
        self._roles.assign(now)

    def _absent(self, slot: Slot, reason: str, now: float) -> None:
        slot.absent = reason
        gone = Reason(Cause.NETWORK_GONE, reason)
        slot.attempted = True
        slot.retry_at = slot.unanswered_since = None
        for candidate in slot.candidates:
            self._race.skip(candidate)
        for connection in list(slot.attempts):
            self._abandon(slot, connection, gone, now)
        self._handovers.unreachable(slot, gone)

    def starts_from(self, connection: ConnectionId, sources: Sequence[Source]) -> None:
        """A connection over several networks uses these from now on."""
        for slot in self.slots:
            if slot.connection == connection and slot.source is not None:
                slot.source = slot.source.over(*sources)

    def _leave(self) -> None:
        """Carry no more over networks that are closed.

        With nothing else draining would go on as long as there is something to send.
        """
        if not self._leaving:
            return
        others = any(slot.healthy for slot in self.slots if slot.connection not in self._leaving)
        for connection, (_, reason) in list(self._leaving.items()):
            if others:
                self._session.drain(connection)
            else:
                self._session.close_for_now(connection, reason)

    def _present(self, slot: Slot, candidates: list[Candidate], now: float) -> None:
        appeared, changed = bool(slot.absent), candidates != slot.candidates
        known, slot.candidates, slot.absent = slot.candidates, candidates, ""
        if any(candidate.told for candidate in candidates):
            slot.held_until = -inf  # what it waited to hear
        if not appeared and not changed:
            return
        if not self._established:
            for candidate in known:
                if candidate not in candidates:
                    self._race.skip(candidate)
            self._race.add([c for c in candidates if appeared or c not in known], now)
            return
        self._race.cancel(slot, [c for c, attempt in slot.attempts.items() if attempt.candidate not in candidates], now)
        if appeared or not slot.attempts:
            slot.next_candidate = 0
            slot.dial_soon(now)

    def _prefer(self, slot: Slot) -> None:
        """Its connection has the preferences that its entry has now, whatever has become of its addresses; roles
        follow."""
        source = slot.source
        if source is None or slot.connection is None:
            return
        slot.source = replace(source, **self._preferences.get(source.entry, {}))
        if slot.source.max_rate != source.max_rate:
            self._session.cap(slot.connection, slot.source.max_rate)

    def _enter(self, slot: Slot, now: float) -> None:
        # After a handover new networks are as little wanted as those that were left.
        slot.standby = any(other.standby or other.reactivated for other in self.slots)
        self.slots.append(slot)
        if self._established:
            slot.retry_at = now
        else:
            self._race.add(slot.candidates, now)

    def signal_changed(self, interface: str, fading: bool, now: float) -> None:
        """The radio of an interface is about to lose its network, or is good again."""
        self._roles.set_fading(interface, fading)
        if fading:
            self._handovers.recall(now)
        else:
            self._handovers.plan_dismissal(now)
        self._roles.assign(now)

    # --- inputs: what the application wants  ---

    def add(self, candidates: Sequence[Candidate], now: float) -> list[Slot]:
        """Want more connections, from now on; those of a known group are further alternatives for its slot."""
        known = {slot.key: slot for slot in self.slots}
        added: list[Slot] = []
        for fresh in slots_of(candidates):
            slot = known.get(fresh.key)
            if slot is None:
                slot = fresh
                self.slots.append(slot)
                slot.retry_at = now
            else:
                self._extend(slot, fresh.candidates, now)
            added.append(slot)
        return added

    def _extend(self, slot: Slot, candidates: list[Candidate], now: float) -> None:
        """Alternatives are asked for: they are tried first, unless it is filled."""
        others = [] if slot.absent else slot.candidates
        slot.candidates, slot.absent = [*others, *(c for c in candidates if c not in others)], ""
        slot.standby = slot.reactivated = False
        if self._in_race(slot):
            return
        if slot.connection is None:
            slot.attempted, slot.failures = False, 0
            slot.next_candidate = slot.candidates.index(candidates[0])
        slot.dial_soon(now)

    def withdraw(self, entry: int, now: float) -> list[Slot]:
        """Want nothing of this entry any more; what it has led to is given up. Return the slots that are gone."""
        gone: list[Slot] = []
        for slot in list(self.slots):
            left = [candidate for candidate in slot.candidates if candidate.entry != entry]
            if left == slot.candidates:
                continue
            if not left:
                self._drop(slot, now)
                gone.append(slot)
            else:
                self._race.cancel(slot, [c for c, a in slot.attempts.items() if a.candidate not in left], now)
                slot.candidates = left
                if not slot.attempts and slot.retry_at is None:
                    slot.dial_soon(now)
            if slot.connection is not None and slot.source is not None and slot.source.entry == entry:
                self._session.drain(slot.connection)
        return gone

    def forget(self, slots: Sequence[Slot]) -> None:
        """What was withdrawn or removed has no candidates any more, and needs not be kept out."""
        self._unwanted.difference_update(slot.key for slot in slots)

    def remove(self, connection: ConnectionId, now: float) -> None:
        """Do not want this connection any more (the session drains it)."""
        for slot in list(self.slots):
            if slot.connection == connection or connection in slot.attempts:
                self._drop(slot, now)

    def _drop(self, slot: Slot, now: float) -> None:
        self._race.cancel(slot, slot.attempts, now)
        self.slots.remove(slot)
        self._unwanted.add(slot.key)
        self._handovers.unreachable(slot, Reason(Cause.REMOVED, "it was removed"))

    def set_role(self, connection: ConnectionId, role: Role, now: float) -> None:
        """The application's choice; it outlives the connection."""
        for slot in self.slots:
            if slot.connection == connection:
                slot.role = slot.role_given = role
        self._roles.assign(now)

    def hand_over(
        self,
        slots: list[Slot],
        done: Callable[[Reason | None], None],
        now: float,
        to: Destination = ANYWHERE,
    ) -> None:
        """Make one of `slots` carry the session and drain all others; `done(None)` or `done(reason)` follows."""
        if self._stopped:
            done(SESSION_ENDED)
        else:
            self._handovers.begin(slots, done, now, to)

    def cancel_handover(self) -> None:
        """Forget a handover under way; the old connections stay."""
        self._handovers.fail(Reason(Cause.ABORTED, "it was cancelled"))

    def stop(self) -> None:
        """The session is over: no more attempts."""
        self._stopped = True
        for slot in self.slots:
            for attempt in slot.attempts:
                self.pending.append(CancelDial(attempt))
            slot.attempts.clear()
            slot.retry_at = None
        self._handovers.fail(SESSION_ENDED)

    def give_up(self, after: float) -> None:
        """The time to open is over, `after` seconds: add to `failures` what is under way or was never tried.

        A session that is established goes on with its attempts.
        """
        within = f"within {round(after, 1):g} s"
        self._given_up = True
        failed = {candidate for candidate, _ in self.failures}
        for slot in self.slots:
            for candidate in slot.candidates if slot.connection is None or not self._established else ():
                if str(candidate) not in failed:
                    tried = any(attempt.candidate == candidate for attempt in slot.attempts.values())
                    reason = f"no answer {within}" if tried else f"not tried {within}"
                    self.failures.append((str(candidate), Reason(Cause.ATTEMPT_TIMEOUT, reason)))

    # --- time  ---

    def handle_timer(self, now: float) -> None:
        if self._stopped:
            return
        for candidate in self._race.due(now):
            slot = next((s for s in self.slots if candidate in s.candidates), None)
            if slot is None or not slot.wants_dial:
                self._race.ended(now)  # removed, or not wanted any more, before its turn came
            else:
                self._dial(slot, candidate, now, raced=True)
        for slot in list(self.slots):
            for connection, attempt in list(slot.attempts.items()):
                if now >= attempt.started + ATTEMPT_TIMEOUT:
                    reason = Reason(Cause.ATTEMPT_TIMEOUT, f"no answer within {ATTEMPT_TIMEOUT:g} s")
                    self._abandon(slot, connection, reason, now)
            again_at = self._dial_again_at(slot)
            if again_at is not None and now >= again_at:
                late = now - again_at
                if slot.attempts and late > LATE and self._detached_at <= slot.dialled_at > now - MAX_LATENESS:
                    # We have not looked for so long: what seems to be unanswered may have been answered meanwhile.
                    slot.held_until = now + min(late, BESIDE_FIRST)
                    continue
                candidate = self._next_of(slot, now)
                slot.held_until = self._told.free_at(candidate)
                if slot.held_until > now:
                    continue
                slot.retry_at = None
                while len(slot.attempts) >= MAX_PENDING:
                    self._race.cancel(slot, [slot.least_missed(now)], now)
                self._dial(slot, candidate, now)
                slot.rotate(candidate)
        self._roles.handle_timer(now)
        self._handovers.handle_timer(now)

    def next_timer(self) -> float | None:
        if self._stopped:
            return None
        due = [self._race.next_timer(), *self._roles.timers(), *self._handovers.timers()]
        for slot in self.slots:
            due.append(self._dial_again_at(slot))
            due += [attempt.started + ATTEMPT_TIMEOUT for attempt in slot.attempts.values()]
        return min((at for at in due if at is not None), default=None)

    def _dial_again_at(self, slot: Slot) -> float | None:
        if not self._established:
            at = None if slot.attempts else slot.retry_at  # the race decides
        else:
            at = slot.dial_again_at(detached=self._detached)
        return max(at, slot.held_until) if at is not None else None

    def effects(self) -> list[Effect]:
        effects = self.pending.copy()
        self.pending.clear()
        return effects

    def networks(self) -> set[str]:
        """Interfaces over which the server can be asked now."""
        return {c.interface for slot in self.slots if not slot.absent for c in slot.candidates}

    @property
    def hopeless(self) -> bool:
        """Every candidate has failed, nothing is under way: the session cannot open."""
        return (
            not self._established
            and not self._expecting
            and self._race.finished
            and not any(s.attempts or s.connection is not None or s.retry_at is not None for s in self.slots)
        )

    # --- attempts  ---

    def _dialling(self, connection: ConnectionId) -> Slot | None:
        return next((slot for slot in self.slots if connection in slot.attempts), None)

    def _next_of(self, slot: Slot, now: float) -> Candidate:
        """Whose turn it is. Another server does not know the session, so the right one has time to answer first."""
        candidate = slot.next_to_dial()
        if not self._elsewhere or self._detached or candidate.told:
            return candidate
        told = [other for other in slot.candidates if other.told]
        waited = now - slot.unanswered_since if slot.unanswered_since is not None else 0.0
        return told[slot.failures] if slot.failures < len(told) and waited < TOLD_WITHIN else candidate

    def _dial(
        self, slot: Slot, candidate: Candidate, now: float, *, raced: bool = False, redirected: bool = False
    ) -> None:
        connection = ConnectionId(self._next_id)
        self._next_id += 1
        slot.dialled_at = now
        if slot.unanswered_since is None:
            slot.unanswered_since = now
        role = self._roles.to_dial(slot, candidate)
        slot.attempts[connection] = Attempt(candidate, now, role, raced, not self._established, redirected)
        self._told.dialled(candidate, now)
        proved = candidate.told and not self._told.doubtful(candidate)
        self.pending.append(
            Dial(connection, replace(candidate, role=role, proved=proved, small=slot.suspect or now < slot.small_until))
        )

    def _won(self, slot: Slot, connection: ConnectionId, now: float) -> None:
        attempt = self._race.end(slot, connection, now, won=True)
        self._history.succeeded(attempt.candidate)
        self._server_is_at(attempt.candidate)
        if not slot.doubtful:
            # An alternative of the group was faster, or what seemed dead came back first.
            self._session.drain(connection)
            return
        if slot.connection is not None:
            replaced = slot.connection
            text = f"{'stuck' if slot.stuck else 'silent'}, and replaced by connection {connection}"
            slot.trouble(now)
            slot.emptied(now)
            self._session.give_up(replaced, Reason(Cause.REPLACED, text))
        slot.filled(connection, attempt, now)
        self._prefer(slot)  # they may have changed since the dial
        self._roles.begin_trial(slot, now)
        self._race.cancel(slot, slot.attempts, now)
        for alternative in slot.candidates:
            self._race.skip(alternative)
        self._announce_all()
        self._handovers.plan_dismissal(now)
        self._handovers.advance(now)
        self._roles.assign(now)

    def _server_is_at(self, candidate: Candidate) -> None:
        """It has proved so: where that was to be seen, others that lead there need not wait."""
        self._told.proved(candidate)
        if candidate.told:
            for slot in self.slots:
                slot.held_until = -inf

    def _abandon(self, slot: Slot, connection: ConnectionId, reason: Reason, now: float) -> None:
        """Nobody has answered."""
        self.pending.append(CancelDial(connection))
        self._attempt_over(slot, connection, reason, now, answered=False)

    def _attempt_over(
        self, slot: Slot, connection: ConnectionId, reason: Reason, now: float, *, answered: bool
    ) -> None:
        attempt = self._race.end(slot, connection, now)
        candidate = attempt.candidate
        self._notify(AttemptFailed(candidate, reason))
        instead = self._instead_of(attempt, reason) if slot.wants_dial and not slot.attempts else None
        if instead is not None and self._told.free_at(instead) <= now:
            self._dial(slot, instead, now, redirected=attempt.redirect is not None)
            return
        if reason.cause is not Cause.NETWORK_GONE:
            self._history.failed(candidate, now)
        slot.failures += 1
        if answered:
            self.away = self.away or (self._is_gone_from(attempt, reason))
            slot.refusals += 1
            slot.unanswered_since = None
        slot.rotate(candidate)
        opening = not self._announced_all and not self._given_up
        if opening and (str(candidate), reason) not in self.failures:
            self.failures.append((str(candidate), reason))
        if slot.failures >= len(slot.candidates) and not slot.attempts:
            slot.attempted = True
        self._announce_all()
        if slot.wants_dial and not slot.attempts and slot.retry_at is None:
            shed = reason.cause is Cause.PEER_CLOSED and slot.refusals <= MAX_HUNG_UP
            replaced = self.begun and reason.cause is Cause.GOING_AWAY
            waits = shed or replaced or reason.cause in WORTH_WAITING
            self._plan_next(slot, now, answered=answered, raced=attempt.raced, waits=waits)
        self._handovers.attempt_failed(slot, attempt, reason, now)

    def _instead_of(self, attempt: Attempt, reason: Reason) -> Candidate | None:
        """What is dialled at once after an attempt that has led to a wrong server; None = there is nothing better."""
        if attempt.redirect is not None:
            address, port = attempt.redirect
            return replace(attempt.candidate, remote_address=address, remote_port=port, told=True)
        # Balancers read from the first bytes which server is meant, and by now it is known.
        return attempt.candidate if attempt.early and self._established and reason.cause in ASTRAY else None

    def _is_gone_from(self, attempt: Attempt, reason: Reason) -> bool:
        """A machine has said that no server listens where ours has told that it is."""
        told = attempt.candidate.told and not attempt.redirected
        return self._detached and told and reason.cause in NOBODY_THERE

    def _plan_next(self, slot: Slot, now: float, *, answered: bool, raced: bool, waits: bool) -> None:
        if waits and not self._established:
            slot.schedule_retry(now, self._jitter(), detached=True)  # soon there may be room
        elif slot.failures % len(slot.candidates):
            if not raced or not self._in_race(slot):
                slot.retry_at = now  # the next alternative at once; the race starts those of its own itself
        elif not self._established:
            pass  # while the session opens every candidate is tried once, and the caller hears of failure at once
        elif answered:
            slot.schedule_retry(now, self._jitter(), detached=self._detached)
        else:
            slot.schedule_again(now, detached=self._detached)

    def retry_unfilled(self, now: float) -> None:
        """Once the session is established, what failed while it opened is tried again in the background."""
        for slot in self.slots:
            if slot.wants_dial and not slot.attempts and slot.retry_at is None and not self._in_race(slot):
                slot.schedule_retry(now, self._jitter(), detached=self._detached)

    def _in_race(self, slot: Slot) -> bool:
        """The race will still start one of its candidates."""
        return any(self._race.holds(candidate) for candidate in slot.candidates)

    def _announce_all(self) -> None:
        if not self._announced_all and not self._expecting and all(s.attempted for s in self.slots):
            self._announced_all = True
            self.pending.append(AllAttempted())

    def _notify(self, event: Event) -> None:
        self.pending.append(Notify(event))
