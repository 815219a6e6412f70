"""Which scheduler a session sends with: this side's choice, the peer's wish, and what stands in for one that fails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from multi.errors import ConfigError
from multi.events import SchedulerChanged, Warned
from multi.protocol.base import SessionBase
from multi.protocol.payloads import DEFAULT_SCHEDULER, Policy, encode_policy
from multi.protocol.segment import SegmentType
from multi.schedulers.base import Scheduler
from multi.types import Side

SchedulerMaker = Callable[[str, dict[str, float]], Scheduler]


class Scheduling:
    """The scheduler of one session's sender.

    `make` makes those that this side asks for, `make_for_peer` those that the peer does; both raise ConfigError for
    what cannot be made.
    """

    def __init__(self, session: SessionBase, make: SchedulerMaker, make_for_peer: SchedulerMaker) -> None:
        self._session = session
        self._make = make
        self._make_for_peer = make_for_peer
        self.policy = session.settings.policy

    def first(self) -> Scheduler:
        """The scheduler the session begins with."""
        return self._make(self.policy.scheduler, dict(self.policy.parameters))

    def set(self, policy: Policy, scheduler: Scheduler | None) -> None:
        """Schedule differently from now on. A client also asks the server to, unless `scheduler` is an object."""
        if scheduler is None:
            scheduler = self._make(policy.scheduler, dict(policy.parameters))
            if self._session.side is Side.CLIENT:
                self._session.outbox.add(SegmentType.POLICY, encode_policy(policy))
        self._use(policy, scheduler, by_peer=False)

    def peer_wants(self, policy: Policy) -> None:
        """POLICY, or the policy in HELLO: a server follows unless its own configuration says otherwise.

        An unknown name falls back to `adaptive` and both sides hear of it.
        """
        session, reason = self._session, ""
        if session.side is Side.CLIENT:
            session.notify(Warned(f"the server schedules with {policy.scheduler}, not as asked"))
            return
        if not session.settings.follow_peer_policy:
            return
        try:
            scheduler = self._make_for_peer(policy.scheduler, dict(policy.parameters))
        except ConfigError as error:
            scheduler, policy, reason = self._make(DEFAULT_SCHEDULER, {}), _standing_in(policy), str(error)
            self._tell_of(policy)
        self._use(policy, scheduler, by_peer=True, reason=reason)

    def _tell_of(self, policy: Policy) -> None:
        if not self._session.outbox.holds(SegmentType.POLICY):  # a peer that acknowledges nothing could pile them up
            self._session.outbox.add(SegmentType.POLICY, encode_policy(policy))

    def _use(self, policy: Policy, scheduler: Scheduler, *, by_peer: bool, reason: str = "") -> None:
        self.policy = policy
        self._session.sender.scheduler = scheduler
        self._session.sender.reinject = policy.reinject
        self._session.notify(SchedulerChanged(policy.scheduler, by_peer, reason))

    def failed(self, error: Exception) -> None:
        """The application's scheduler is no reason to lose the session. The default one is: there is no other."""
        scheduler = self._make(DEFAULT_SCHEDULER, {})
        if type(self._session.sender.scheduler) is type(scheduler):
            raise error
        reason = f"{self.policy.scheduler} failed: {error!r}{_place(error)}"
        policy = _standing_in(self.policy)
        self._use(policy, scheduler, by_peer=False, reason=reason)
        self._session.notify(Warned(f"scheduler {reason}"))
        if self._session.side is Side.SERVER:
            self._tell_of(policy)


def _standing_in(policy: Policy) -> Policy:
    """`policy` with the scheduler that stands in for one that cannot be had."""
    return replace(policy, scheduler=DEFAULT_SCHEDULER, parameters=())


def _place(error: Exception) -> str:
    """Where it was raised."""
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    return f" in {at.tb_frame.f_code.co_filename}, line {at.tb_lineno}" if at is not None else ""
