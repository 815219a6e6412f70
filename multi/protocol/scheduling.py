"""Which scheduler a session and its streams send with: this side's choice, the peer's wish, and what stands in.

A stream sends as the session does until it is steered by itself. A client's steering is carried to the server, which
sends the other direction of that stream; a server's concerns what it sends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from multi.errors import ConfigError, LocalProtocolError
from multi.events import Event, SchedulerChanged, Warned
from multi.protocol.connection import Connections
from multi.protocol.control import Outbox
from multi.protocol.payloads import Parameters, Policy, encode_policy, encode_scheduler
from multi.protocol.segment import SegmentType
from multi.protocol.send_stream import SendStream, StreamSteering
from multi.protocol.sender import Sender
from multi.protocol.settings import MAX_EARLY_DATA, SessionSettings
from multi.schedulers.base import DEFAULT_SCHEDULER, Scheduler
from multi.types import Side, StreamId

MAX_SHARED = 16  # groups of streams remembered, so that streams that are opened later join theirs

SchedulerMaker = Callable[[str, dict[str, float]], Scheduler]


class Scheduling:
    """The sender of one session, and what it schedules with.

    `make` makes those that this side asks for, `make_for_peer` those that the peer does; both raise ConfigError for
    what cannot be made.
    """

    def __init__(
        self,
        side: Side,
        settings: SessionSettings,
        connections: Connections,
        outbox: Outbox,
        notify: Callable[[Event], None],
        make: SchedulerMaker,
        make_for_peer: SchedulerMaker,
    ) -> None:
        self._side = side
        self._follows_peer = settings.follow_peer_policy
        self._takes_reinject = settings.follow_peer_reinject
        self._outbox = outbox
        self._notify = notify
        self._make = make
        self._make_for_peer = make_for_peer
        self.policy = settings.policy
        first = make(self.policy.scheduler, dict(self.policy.parameters))
        self.sender = Sender(connections, first, self.policy.reinject, MAX_EARLY_DATA, self.failed)
        self._peer_steers: bool | None = None
        """Whether the peer has announced that it takes STEER; None while it is not known."""
        self._warned = False
        """Somebody was told that streams are not steered as asked: once, or a peer could fill a log."""
        self._shared: dict[tuple[str, Parameters], StreamSteering] = {}

    def set(self, policy: Policy, scheduler: Scheduler | None) -> None:
        """Schedule differently from now on. A client also asks the server to, unless `scheduler` is an object."""
        if scheduler is None:
            scheduler = self._make(policy.scheduler, dict(policy.parameters))
            if self._side is Side.CLIENT:
                self._outbox.add(SegmentType.POLICY, encode_policy(policy))
        self._use(policy, scheduler, by_peer=False)

    def peer_wants(self, policy: Policy) -> None:
        """POLICY, or the policy in HELLO: a server follows unless its own configuration says otherwise.

        An unknown name falls back to `adaptive` and both sides hear of it.
        """
        reason = ""
        if self._side is Side.CLIENT:
            asked = self.policy.scheduler
            why = "not as asked" if policy.scheduler == asked else f"not with {asked}, which it lacks or cannot use"
            self._notify(Warned(f"the server schedules with {policy.scheduler}, {why}"))
            return
        reinject = policy.reinject if self._takes_reinject else self.policy.reinject
        if not self._follows_peer:
            self.policy = replace(self.policy, reinject=reinject)
            self.sender.reinject = reinject
            return
        policy = replace(policy, reinject=reinject)
        try:
            scheduler = self._make_for_peer(policy.scheduler, dict(policy.parameters))
        except ConfigError as error:
            scheduler, policy, reason = self._make(DEFAULT_SCHEDULER, {}), _standing_in(policy), str(error)
            self._tell_of(policy)
        self._use(policy, scheduler, by_peer=True, reason=reason)

    # --- streams  ---

    def steer(self, streams: Sequence[StreamId], name: str, parameters: Parameters) -> None:
        """Schedule `streams` as one group with the scheduler `name`; empty = as the session again.

        A client also asks the server to. Raises LocalProtocolError for a stream that has ended.
        """
        sending = self.sender.streams
        found = [sending[stream] for stream in streams if stream in sending]
        if len(found) < len(streams):
            raise LocalProtocolError("a stream that has ended cannot be steered")
        encode_scheduler(name, parameters)  # what no server could be told changes nothing
        steering = self._group(name, parameters, self._make) if name else None
        for stream in found:
            stream.steering = steering
        if self._side is Side.CLIENT:
            self._tell_how(found)

    def steering_of(self, stream: StreamId) -> StreamSteering | None:
        """How a stream is steered by itself; None = as the session, or it has ended."""
        found = self.sender.streams.get(stream)
        return found.steering if found is not None else None

    def peer_known(self, *, steers: bool) -> None:
        """The peer has said whether it takes STEER."""
        self._peer_steers = steers
        if self._side is Side.CLIENT:
            self._tell_how([stream for stream in self.sender.streams.values() if stream.steering])

    def _tell_how(self, streams: Sequence[SendStream]) -> None:
        if self._peer_steers:
            for stream in streams:
                name, parameters = (stream.steering.name, stream.steering.parameters) if stream.steering else ("", ())
                self._outbox.add(SegmentType.STEER, encode_scheduler(name, parameters), stream.id)
        elif self._peer_steers is False and streams and not self._warned:
            self._warned = True
            self._notify(Warned("the server's version of multi sends every stream as the session"))

    def peer_steers(self, stream: SendStream, name: str, parameters: Parameters) -> None:
        """STEER: a server follows unless its own configuration says otherwise."""
        if not self._follows_peer:
            return
        try:
            stream.steering = self._group(name, parameters, self._make_for_peer) if name else None
        except ConfigError as error:
            stream.steering = None
            if not self._warned:
                self._warned = True
                self._notify(Warned(f"stream {stream.id} is sent as the session: {error}"))

    def _group(self, name: str, parameters: Parameters, make: SchedulerMaker) -> StreamSteering:
        shared = self._shared
        found = shared.get((name, parameters))
        if found is None:
            found = StreamSteering(name, parameters, make(name, dict(parameters)))
            while len(shared) >= MAX_SHARED:
                del shared[next(iter(shared))]
            shared[name, parameters] = found
        return found

    # --- what stands in  ---

    def _tell_of(self, policy: Policy) -> None:
        if not self._outbox.holds(SegmentType.POLICY):  # a peer that acknowledges nothing could pile them up
            self._outbox.add(SegmentType.POLICY, encode_policy(policy))

    def _use(self, policy: Policy, scheduler: Scheduler, *, by_peer: bool, reason: str = "") -> None:
        self.policy = policy
        self.sender.scheduler = scheduler
        self.sender.reinject = policy.reinject
        self._notify(SchedulerChanged(policy.scheduler, by_peer, reason))

    def failed(self, error: Exception, stream: SendStream) -> None:
        """The application's scheduler is no reason to lose the session. The default one is: there is no other."""
        if stream.steering is not None:
            text = f"scheduler {stream.steering.name} failed: {error!r}{_place(error)}"
            stream.steering = None
            self._notify(Warned(f"{text}; stream {stream.id} is sent as the session"))
            return
        scheduler = self._make(DEFAULT_SCHEDULER, {})
        if type(self.sender.scheduler) is type(scheduler):
            raise error
        reason = f"{self.policy.scheduler} failed: {error!r}{_place(error)}"
        policy = _standing_in(self.policy)
        self._use(policy, scheduler, by_peer=False, reason=reason)
        self._notify(Warned(f"scheduler {reason}"))
        if self._side is Side.SERVER:
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
