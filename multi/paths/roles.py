"""Roles: which of the connections that are up carry the data. Pure.

In `aggregate` mode all do, each as configured or as the application wants; in `switch` mode one at a time. What comes
back after a loss proves itself first: it answers for a while as a backup before it carries anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from multi.paths.slots import ManagedSession, Slot
from multi.types import PRECEDENCE, Candidate, Role

TRIAL_PING = 0.1  # seconds between questions to a connection that must prove itself


class Mode(Enum):
    """`multi_config.mode`."""

    AGGREGATE = "aggregate"
    SWITCH = "switch"


class Roles:
    """Gives the connections in `slots` their roles. `slots` stays the path manager's own list."""

    def __init__(self, slots: Sequence[Slot], session: ManagedSession, mode: Mode) -> None:
        self._slots = slots
        self._session = session
        self._switch = mode is Mode.SWITCH
        self._carrier: Slot | None = None
        """In `switch` mode: what carries the session."""
        self._fading: set[str] = set()
        """Interfaces whose radio is about to lose its network."""
        self._ping_at: float | None = None

    def set_fading(self, interface: str, fading: bool) -> None:
        if fading:
            self._fading.add(interface)
        else:
            self._fading.discard(interface)

    def fades(self, slot: Slot) -> bool:
        """Of several networks one is enough; a connection that has them goes on over that by itself."""
        return slot.source is not None and all(s.interface in self._fading for s in slot.source.sources)

    def to_dial(self, slot: Slot, candidate: Candidate) -> Role:
        """With what role a dial of `candidate` begins."""
        role = slot.role or candidate.role
        if role is not Role.BACKUP and self._others_carry(slot) and (slot.flap_count or self._switch):
            role = Role.BACKUP  # until it has proved itself, or is the one to switch to
        return role

    def suspected(self, slot: Slot, now: float) -> None:
        """A session that has to move counts this as a failure; one that goes on beside it does not."""
        if self._switch and slot is self._carrier:
            slot.trouble(now)

    def recovered(self, slot: Slot, now: float) -> None:
        if slot.trial_until is not None or self._switch:
            self.begin_trial(slot, now)

    def begin_trial(self, slot: Slot, now: float) -> None:
        """What came back after a loss must prove itself."""
        slot.start_trial(now, switch=self._switch)
        if slot.trial_until is not None:
            self._ping_at = now

    def give(self, slot: Slot, role: Role, reason: str) -> None:
        if slot.connection is not None and slot.role_given is not role:
            slot.role_given = role
            self._session.give_role(slot.connection, role, reason)

    def assign(self, now: float) -> None:
        """Say on which connections data shall be sent: not on what must prove itself, in `switch` mode on one only."""
        up = [slot for slot in self._slots if slot.connection is not None and not slot.standby]
        if self._switch:
            self._carrier = self._best(up, now)
        for slot in up:
            if self._switch and slot.role is None and slot is self._carrier:
                role, reason = Role.ACTIVE, "it carries the session"
            elif self._switch and slot.role is None:
                role, reason = Role.BACKUP, "another carries the session"
            elif slot.wanted_role is not Role.BACKUP and slot.on_trial(now) and self._others_carry(slot):
                role, reason = Role.BACKUP, "it must prove itself first"
            else:
                role, reason = slot.wanted_role, "as configured" if slot.role is None else "as the application wants"
            self.give(slot, role, reason)

    def handle_timer(self, now: float) -> None:
        """Ask those on trial for signs of life; who has answered to the end carries the stream."""
        tried = [slot for slot in self._slots if slot.trial_until is not None and slot.healthy]
        for slot in tried:
            assert slot.connection is not None
            if not slot.on_trial(now):
                slot.trial_until = None
            elif self._ping_at is not None and now >= self._ping_at:
                self._session.ping(slot.connection)
        if not any(slot.trial_until is not None for slot in tried):
            self._ping_at = None
        elif self._ping_at is None or now >= self._ping_at:
            self._ping_at = now + TRIAL_PING
        if tried:
            self.assign(now)

    def timers(self) -> list[float | None]:
        """When `handle_timer` has something to do."""
        return [self._ping_at, *(slot.trial_until for slot in self._slots if slot.healthy)]

    def _others_carry(self, slot: Slot) -> bool:
        return any(s is not slot and s.healthy and s.wanted_role is not Role.BACKUP for s in self._slots)

    def _best(self, up: Sequence[Slot], now: float) -> Slot | None:
        """The slot to carry a `switch` session: by role, and then the first in order that can be relied on."""
        sound = sorted((s for s in up if s.healthy), key=lambda slot: PRECEDENCE.index(slot.wanted_role))
        proven = [slot for slot in sound if not slot.on_trial(now)]
        lasting = [slot for slot in proven if not self.fades(slot)]
        return next(iter(lasting or proven or sound or up), None)
