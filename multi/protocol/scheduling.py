"""Which scheduler a session sends with: this side's choice, the peer's wish, and what stands in for one that fails."""

from __future__ import annotations

from collections.abc import Callable

from multi.errors import ConfigError
from multi.events import SchedulerChanged, Warned
from multi.protocol.control import Outbox
from multi.protocol.output import Output
from multi.protocol.payloads import DEFAULT_SCHEDULER, Policy, encode_policy
from multi.protocol.segment import SegmentType
from multi.protocol.sender import Sender
from multi.schedulers.base import Scheduler
from multi.types import Side

SchedulerMaker = Callable[[str, dict[str, float]], Scheduler]


class Scheduling:
    """The scheduler of one session's sender.

    `make` makes those that this side asks for, `make_for_peer` those that the peer does; both raise ConfigError for
    what cannot be made.
    """

    def __init__(
        self, side: Side, policy: Policy, make: SchedulerMaker, make_for_peer: SchedulerMaker, *, follows: bool
    ) -> None:
        self._side = side
        self._make = make
        self._make_for_peer = make_for_peer
        self._follows = follows
        self.policy = policy
        self._fresh_for: tuple[str, tuple[tuple[str, float], ...]] | None = None
        """The name and parameters the scheduler was made for, as long as it is the one made with the session."""

    def first(self, given: Scheduler | None) -> Scheduler:
        """The scheduler the session begins with: the object given, or the one its policy names."""
        if given is not None:
            return given
        self._fresh_for = (self.policy.scheduler, self.policy.parameters)
        return self._make(self.policy.scheduler, dict(self.policy.parameters))

    def attach(self, sender: Sender, outbox: Outbox, output: Output) -> None:
        self._sender = sender
        self._outbox = outbox
        self._output = output

    def set(self, policy: Policy, scheduler: Scheduler | None) -> None:
        """Schedule differently from now on. A client also asks the server to, unless `scheduler` is an object."""
        if scheduler is None:
            scheduler = self._make(policy.scheduler, dict(policy.parameters))
            if self._side is Side.CLIENT:
                self._outbox.add(SegmentType.POLICY, encode_policy(policy))
        self._use(policy, scheduler, by_peer=False)

    def peer_wants(self, policy: Policy) -> None:
        """POLICY, or the policy in HELLO: a server follows unless its own configuration says otherwise."""
        if self._side is Side.CLIENT:
            self._output.notify(Warned(f"the server schedules with {policy.scheduler}, not as asked"))
        elif self._follows:
            self._follow(policy)

    def _follow(self, policy: Policy) -> None:
        """Schedule as the client asks; an unknown name falls back to `adaptive` and both sides hear of it."""
        if self._fresh_for == (policy.scheduler, policy.parameters):
            self._use(policy, self._sender.scheduler, by_peer=True)  # most clients ask for the default
            return
        try:
            scheduler = self._make_for_peer(policy.scheduler, dict(policy.parameters))
            reason = ""
        except ConfigError as error:
            scheduler = self._make(DEFAULT_SCHEDULER, {})
            policy = Policy(DEFAULT_SCHEDULER, (), policy.switch, policy.reinject)
            reason = str(error)
            if not self._outbox.holds(SegmentType.POLICY):  # or a peer that acknowledges nothing could pile them up
                self._outbox.add(SegmentType.POLICY, encode_policy(policy))
        self._use(policy, scheduler, by_peer=True, reason=reason)

    def _use(self, policy: Policy, scheduler: Scheduler, *, by_peer: bool, reason: str = "") -> None:
        self.policy = policy
        if scheduler is not self._sender.scheduler:
            self._fresh_for = None
        self._sender.scheduler = scheduler
        self._sender.reinject = policy.reinject
        self._output.notify(SchedulerChanged(policy.scheduler, by_peer, reason))

    def failed(self, error: Exception) -> None:
        """The application's scheduler is no reason to lose the session. The default one is: there is no other."""
        scheduler = self._make(DEFAULT_SCHEDULER, {})
        if type(self._sender.scheduler) is type(scheduler):
            raise error
        reason = f"{self.policy.scheduler} failed: {error!r}{_place(error)}"
        policy = Policy(DEFAULT_SCHEDULER, (), self.policy.switch, self.policy.reinject)
        self._use(policy, scheduler, by_peer=False, reason=reason)
        self._output.notify(Warned(f"scheduler {reason}"))
        if self._side is Side.SERVER and not self._outbox.holds(SegmentType.POLICY):
            self._outbox.add(SegmentType.POLICY, encode_policy(policy))


def _place(error: Exception) -> str:
    """Where it was raised."""
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    return f" in {at.tb_frame.f_code.co_filename}, line {at.tb_lineno}" if at is not None else ""
