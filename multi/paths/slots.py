"""Slots: the connections a session wants, each with the candidates that may fill it. Pure.

A slot decides when it may be dialled (again) and how long what comes back in it must prove itself. Which slots there
are, and what happens to the outcome of a dial, is decided by the manager.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf
from typing import Protocol

from multi.reasons import Reason
from multi.types import Address, Candidate, ConnectionId, Role

RETRY_FIRST = 0.2  # seconds before a lost connection is dialled again
MAX_RETRY = 30.0  # where somebody answers with a refusal again and again
MAX_RETRY_DETACHED = 0.5  # seconds, while no connection is left
RETRY_JITTER = 0.2  # share of the delay, so that many clients do not come back in step
BESIDE_FIRST = 0.5  # seconds after which a dial that nobody has answered gets another beside it
MAX_BESIDE = 15.0
MAX_BESIDE_NEVER_UP = 30.0
DIAL_APART = 0.1  # seconds between two dials of one slot, however often its network is said to be usable
SHORT_LIFE = 1.0  # seconds; a connection that ends sooner counts as refused: somebody accepts and thinks better of it
STABLE_AFTER = 20.0  # seconds a connection must live before its next loss counts as a first one
TRIAL_FIRST = 0.2  # seconds what comes back after a loss must answer before it carries the stream
MAX_TRIAL = 0.6
TRIAL_FIRST_SWITCH = 1.0  # moving a whole session back and forth costs more than adding a connection
MAX_TRIAL_SWITCH = 30.0


@dataclass(slots=True)
class Attempt:
    """A dial that has not ended."""

    candidate: Candidate
    started: float
    role: Role
    """What the connection is said to be for."""
    raced: bool = False
    """The race waits for its outcome."""
    early: bool = False
    """It was made before the session was there: its dial could not show which server is meant."""
    redirected: bool = False
    """It was made because a server has said that another one holds the session."""
    redirect: Address | None = None
    """Where that has been said to be."""


@dataclass(slots=True, eq=False)
class Slot:
    """One wanted connection: one candidate, or alternatives of which the first that works is kept."""

    key: str
    candidates: list[Candidate]
    absent: str = ""
    """Why none of its candidates can be dialled now; empty = one can."""
    attempts: dict[ConnectionId, Attempt] = field(default_factory=dict)
    connection: ConnectionId | None = None
    """The connection that fills it, once authenticated."""
    source: Candidate | None = None
    """The candidate that led to `connection`."""
    role_given: Role | None = None
    """The role that `connection` has."""
    suspect: bool = False
    """That connection may be dead."""
    stuck: bool = False
    """It gets on with nothing although the peer is heard on it."""
    role: Role | None = None
    """What the application wants, when it differs from the configuration."""
    attempted: bool = False
    """It has been up or has failed completely once."""
    retry_at: float | None = None
    failures: int = 0
    """Attempts in a row that led to nothing."""
    refusals: int = 0
    """Attempts in a row that somebody answered with a failure, or led to what did not last."""
    unanswered_since: float | None = None
    """When the oldest attempt of a row without any answer was made."""
    dialled_at: float = -inf
    held_until: float = -inf
    """No dial before: the server is about to tell where it is, or has told an address that was dialled just now."""
    small_until: float = -inf
    """Dials ask for small packets: what filled it was lost although nobody said that its network is gone."""
    next_candidate: int = 0
    up_since: float = 0.0
    been_up: bool = False
    flap_count: int = 0
    """Losses that followed each other closely."""
    trial_until: float | None = None
    """What fills it must prove itself until then; None = it has."""
    standby: bool = False
    """Not wanted now: handed over to another."""
    reactivated: bool = False
    """Wanted again only because that other one may be dead or fading."""

    @property
    def entry(self) -> int:
        return self.candidates[0].entry

    @property
    def wanted_role(self) -> Role:
        return self.role if self.role is not None else (self.source or self.candidates[0]).role

    @property
    def healthy(self) -> bool:
        return self.connection is not None and not self.suspect

    @property
    def doubtful(self) -> bool:
        """There is no connection, or the one there is may be dead or of no use."""
        return not self.healthy or self.stuck

    @property
    def wants_dial(self) -> bool:
        """A new connection would be of use."""
        return not self.standby and not self.absent and self.doubtful

    def tries_since(self, when: float) -> bool:
        """A dial is under way that began after `when`."""
        return any(attempt.started > when for attempt in self.attempts.values())

    def dial_again_at(self, *, detached: bool) -> float | None:
        """When to dial next; beside attempts that nobody has answered too."""
        if not self.wants_dial:
            return None
        if not self.attempts:
            return self.retry_at
        beside = self.dialled_at + self._beside(detached)
        return beside if self.retry_at is None else min(beside, self.retry_at)

    def _beside(self, detached: bool) -> float:
        """Where packets vanish, nothing tells when they get through again but another attempt.

        Often at first, then ever more rarely: a share of the time it has been like this.
        """
        if detached:
            return MAX_RETRY_DETACHED
        silent = self.dialled_at - (self.unanswered_since if self.unanswered_since is not None else self.dialled_at)
        if self.been_up:
            return min(max(BESIDE_FIRST, silent / 60), MAX_BESIDE)
        return min(max(2 * BESIDE_FIRST, silent / 6), MAX_BESIDE_NEVER_UP)

    def least_missed(self, now: float) -> ConnectionId:
        """Of several attempts, the one to give way to another at `now`: others are nearly as old.

        What is sent into the void never comes back, so some shall be young. But on a slow network, or one with long
        queues, a connection takes seconds, and none would come about if each gave way to the next ones: the oldest goes
        on until its time is over, and ages below that are spread.
        """
        order = list(self.attempts)
        started = [*(attempt.started for attempt in self.attempts.values()), now]

        def gap_without(place: int) -> float:
            """Between its neighbours, as a share of its age."""
            return (started[place + 1] - started[place - 1]) / max(now - started[place], DIAL_APART)

        return order[min(range(1, len(order)), key=gap_without)]

    def schedule_retry(self, now: float, jitter: float, *, detached: bool) -> None:
        """Dial again after a while that grows with every refusal; `jitter` in [0, 1)."""
        longest = MAX_RETRY_DETACHED if detached else MAX_RETRY
        delay = min(longest, RETRY_FIRST * 2 ** min(self.refusals, 8))
        self.retry_at = now + delay * (1 + RETRY_JITTER * (jitter - 1))

    def schedule_again(self, now: float, *, detached: bool) -> None:
        """Nobody has answered: dial again in the rhythm of those whose attempts are still under way."""
        self.retry_at = max(now + DIAL_APART, self.dialled_at + self._beside(detached))

    def dial_soon(self, now: float) -> None:
        """Something says that it may work now."""
        # A dial under way may have been sent into the void, and would be repeated only after seconds.
        if self.wants_dial and (not self.attempts or now >= self.dialled_at + DIAL_APART):
            self.failures = self.refusals = 0
            self.retry_at, self.unanswered_since = max(now, self.dialled_at + DIAL_APART), None

    def next_to_dial(self) -> Candidate:
        return self.candidates[self.next_candidate % len(self.candidates)]

    def rotate(self, tried: Candidate) -> None:
        """`tried` did not answer: the next alternative's turn."""
        if tried in self.candidates:
            self.next_candidate = self.candidates.index(tried) + 1

    def filled(self, connection: ConnectionId, attempt: Attempt, now: float) -> None:
        candidate = attempt.candidate
        self.connection, self.source, self.up_since = connection, candidate, now
        self.role_given = attempt.role
        self.suspect = self.stuck = False
        self.attempted = self.been_up = True
        self.retry_at = self.unanswered_since = None
        self.failures = 0
        if candidate in self.candidates:
            self.next_candidate = self.candidates.index(candidate)

    def emptied(self, now: float, *, refused: bool = False) -> None:
        """`refused`: the server took it for another, of which the client wants more than it may have."""
        self.refusals = self.refusals + 1 if refused or now - self.up_since < SHORT_LIFE else 0
        self.connection = self.source = self.role_given = self.trial_until = None
        self.suspect = self.stuck = False

    def trouble(self, now: float) -> None:
        """Its connection failed."""
        self.flap_count = 1 if now - self.up_since >= STABLE_AFTER else self.flap_count + 1

    def on_trial(self, now: float) -> bool:
        return self.trial_until is not None and now < self.trial_until

    def start_trial(self, now: float, *, switch: bool) -> None:
        """What came back after a loss answers for a while before it carries the stream."""
        if not self.flap_count:
            self.trial_until = None
            return
        first, longest = (TRIAL_FIRST_SWITCH, MAX_TRIAL_SWITCH) if switch else (TRIAL_FIRST, MAX_TRIAL)
        self.trial_until = now + min(longest, first * 2 ** min(self.flap_count - 1, 8))


class ManagedSession(Protocol):
    """What may be done to the connections that fill slots; each call is ignored for one that has ended."""

    def drain(self, connection: ConnectionId) -> None:
        """Nothing new on it; close it when nothing is outstanding."""

    def give_up(self, connection: ConnectionId, reason: Reason) -> None:
        """It is over at once; what it carried is rescued."""

    def close_for_now(self, connection: ConnectionId, reason: Reason) -> None:
        """It is over although there is no other yet; the peer waits for one."""

    def give_role(self, connection: ConnectionId, role: Role, reason: str) -> None: ...
    def cap(self, connection: ConnectionId, max_rate: float) -> None:
        """Bytes per second in each direction, 0 = no cap."""

    def ping(self, connection: ConnectionId) -> None:
        """Ask for a sign of life."""


def slots_of(candidates: Iterable[Candidate]) -> list[Slot]:
    """Candidates of one group are alternatives for one slot; the slot stands where its first candidate stands."""
    slots: dict[str, Slot] = {}
    for candidate in candidates:
        key = slot_key(candidate)
        if key in slots:
            slots[key].candidates.append(candidate)
        else:
            slots[key] = Slot(key, [candidate])
    return list(slots.values())


def slot_key(candidate: Candidate) -> str:
    """What stays the same of a wanted connection while addresses change."""
    source = candidate.interface or candidate.local_address
    return candidate.group or f"entry {candidate.entry}, {candidate.transport} {source} {candidate.remote_address}"
