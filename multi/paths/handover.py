"""Handovers: make before break. Pure.

    begin ──> the target is dialled ──> it is up: all others are left, DONE
                                   └──> it failed, vanished, or took too long: nothing has changed, FAILED

What was left stands by. When the target falls silent or fades it is reactivated, before that is certain; when the
target lives again for a while, it is left once more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import inf

from multi.events import Effect, HandoverChanged, HandoverState, Notify
from multi.paths.racing import Race
from multi.paths.roles import Roles
from multi.paths.slots import DIAL_APART, Attempt, ManagedSession, Slot
from multi.reasons import Cause, Reason
from multi.types import ConnectionId, Role

HANDOVER_TIMEOUT = 5.0  # seconds a handover may take to bring up its target
DISMISS_AFTER = 5.0  # seconds the target of a handover must live again before what was reactivated for it goes


@dataclass(frozen=True, slots=True)
class Destination:
    """Where a handover goes."""

    name: str = ""
    """A kind, an interface or a local address; empty: wherever its slots lead."""
    able: frozenset[ConnectionId] = frozenset()
    """Connections that are up and can go there, also if they go over several networks."""

    def takes(self, slot: Slot) -> bool:
        """What fills it goes there: of alternatives, another may have been faster."""
        if slot.connection in self.able or not self.name:
            return True
        return slot.source is not None and slot.source.leads_over(self.name) and not slot.source.more_sources

    def among(self, slots: Iterable[Slot]) -> str:
        """Interfaces or addresses that are meant, of those over which `slots` lead."""
        candidates = [candidate for slot in slots for candidate in slot.candidates]
        sources = (s for c in candidates for s in (c.sources if self.name else c.sources[:1]))
        meant = (s for s in sources if not self.name or s.is_meant_by(self.name))
        return ", ".join(dict.fromkeys(s.interface or s.address or "any" for s in meant))


ANYWHERE = Destination()
UNDER_WAY = Reason(Cause.ABORTED, "another handover is under way")


@dataclass(slots=True)
class _Handover:
    """One that is under way: the others are left once one of `slots` is up."""

    slots: list[Slot]
    to: Destination
    done: Callable[[Reason | None], None]
    deadline: float
    left: list[Slot]
    """Those of `slots` that an earlier handover had left."""
    since: float
    """Attempts that began later are made for it: what becomes of earlier ones tells nothing of the network now."""


class Handovers:
    """Which of `slots` are wanted, by handovers that were asked for.

    `slots` and `pending`, the effects that wait to be collected, stay the path manager's own lists.
    """

    def __init__(
        self,
        slots: Sequence[Slot],
        roles: Roles,
        race: Race,
        session: ManagedSession,
        pending: list[Effect],
    ) -> None:
        self._slots = slots
        self._roles = roles
        self._race = race
        self._session = session
        self._pending = pending
        self._current: _Handover | None = None
        self._dismiss_at: float | None = None

    def begin(
        self,
        slots: list[Slot],
        done: Callable[[Reason | None], None],
        now: float,
        to: Destination,
    ) -> None:
        """Make one of `slots` carry the session and leave all others; `done(None)` or `done(reason)` follows."""
        if self._current is not None:
            done(UNDER_WAY)
            return
        handover = _Handover(
            slots,
            to,
            done,
            now + HANDOVER_TIMEOUT,
            [slot for slot in slots if slot.standby or slot.reactivated],
            now - DIAL_APART,
        )
        if not self._reachable(handover):
            done(_why_not(slots))
            return
        self._current = handover
        for slot in slots:
            slot.standby = slot.reactivated = False
            if slot.connection is None:
                slot.dial_soon(now)
        self._notify(HandoverState.STARTED, to.among(slots))
        self.advance(now)

    def advance(self, now: float) -> None:
        """A slot was filled, or what seemed dead lives."""
        handover = self._current
        if handover is None:
            return
        # One that may be dead must prove itself first: breaking for it would leave nothing.
        target = next((slot for slot in handover.slots if slot.healthy and handover.to.takes(slot)), None)
        if target is None:
            if not self._reachable(handover):
                self.fail(_why_not(handover.slots))
            return
        self._current = None
        target.trial_until = None
        self._roles.give(target, Role.ACTIVE, "handed over to")
        for slot in self._slots:
            if slot not in handover.slots or (slot.healthy and not handover.to.takes(slot)):
                self._park(slot, now)
        self._notify(HandoverState.DONE, handover.to.among([target]))
        handover.done(None)

    def attempt_failed(self, slot: Slot, attempt: Attempt, reason: Reason, now: float) -> None:
        """With it fails a handover that it was made for, if nothing is left to try."""
        handover = self._current
        if handover is None or slot not in handover.slots or attempt.started <= handover.since:
            return
        tried = slot.failures >= len(slot.candidates)
        if tried and not any(s.healthy or s.retry_at == now or s.tries_since(handover.since) for s in handover.slots):
            self.fail(reason)

    def unreachable(self, slot: Slot, reason: Reason) -> None:
        """`slot` cannot be filled now, or not any more."""
        handover = self._current
        if handover is not None and slot in handover.slots and not self._reachable(handover):
            self.fail(reason)

    def fail(self, reason: Reason) -> None:
        """A handover that is under way comes to nothing; what is up stays."""
        handover, self._current = self._current, None
        if handover is None:
            return
        for slot in handover.left:  # what an earlier handover had left is as little wanted as before
            slot.reactivated = True
            self._dismiss_at = -inf
        self._notify(HandoverState.FAILED, handover.to.among(handover.slots), reason)
        handover.done(reason)

    def recall(self, now: float) -> None:
        """What was handed over to may be dead or about to be: dial what was left for it before that is certain."""
        if any(slot.healthy and not self._roles.fades(slot) for slot in self._slots):
            return
        self._dismiss_at = None
        for slot in self._slots:
            if slot.standby and slot.connection is None:
                slot.standby, slot.reactivated = False, True
                slot.dial_soon(now)

    def want_all(self, now: float) -> None:
        """Nothing is left: everything is wanted again."""
        self._dismiss_at = None
        for slot in self._slots:
            slot.reactivated = False
            if slot.standby:
                slot.standby = False
                slot.dial_soon(now)

    def plan_dismissal(self, now: float) -> None:
        """It lives: what has not come up meanwhile is not wanted after all, the rest not after a while."""
        if not self._target_lives():
            return
        for slot in self._slots:
            if slot.reactivated and slot.connection is None:
                self._park(slot, now)
        self._dismiss_at = now + DISMISS_AFTER if any(slot.reactivated for slot in self._slots) else None

    def handle_timer(self, now: float) -> None:
        if self._dismiss_at is not None and now >= self._dismiss_at:
            self._dismiss(now)
        if self._current is not None and now >= self._current.deadline:
            text = f"it did not come up within {HANDOVER_TIMEOUT:g} s"
            self.fail(Reason(Cause.ATTEMPT_TIMEOUT, text))

    def timers(self) -> list[float | None]:
        """When `handle_timer` has something to do."""
        return [self._dismiss_at, self._current.deadline if self._current is not None else None]

    def _reachable(self, handover: _Handover) -> bool:
        return any(
            handover.to.takes(slot) if slot.healthy else not slot.absent
            for slot in handover.slots
            if slot in self._slots
        )

    def _park(self, slot: Slot, now: float) -> None:
        """Not wanted for now."""
        slot.standby, slot.reactivated, slot.retry_at = True, False, None
        self._race.cancel(slot, slot.attempts, now)
        if slot.connection is not None:
            self._session.drain(slot.connection)

    def _target_lives(self) -> bool:
        """Something can be relied on that was not reactivated."""
        return any(slot.healthy and not slot.reactivated and not self._roles.fades(slot) for slot in self._slots)

    def _dismiss(self, now: float) -> None:
        self._dismiss_at = None
        if not self._target_lives():
            return  # in trouble again since; its next recovery plans anew
        for slot in self._slots:
            if slot.reactivated:
                self._park(slot, now)

    def _notify(self, state: HandoverState, over: str, reason: Reason | None = None) -> None:
        self._pending.append(Notify(HandoverChanged(state, over, reason)))


def _why_not(slots: Sequence[Slot]) -> Reason:
    """Why a handover to these cannot be."""
    if absent := next((slot.absent for slot in slots if slot.absent), ""):
        return Reason(Cause.NETWORK_GONE, absent)
    if taken := next((slot.source for slot in slots if slot.source is not None and slot.healthy), None):
        return Reason(Cause.REPLACED, f"an alternative is used instead, {taken}")
    return Reason(Cause.REMOVED, "it is not wanted any more")
