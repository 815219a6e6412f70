"""Operation lists that Hypothesis invents and shrinks: the same promises as the random runs, with smaller examples."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from multi.errors import LocalProtocolError, SessionLost
from multi.lab.sim.end import SimEnd
from multi.lab.sim.pair import CLEAR, Pair
from multi.lab.sim.wire import route
from multi.protocol.payloads import Policy
from multi.types import STREAM_ZERO, Role, StreamId
from tests.sim.worlds import close_both, quiet

pytestmark = pytest.mark.simulation

ROUTES = (route(1e6, 0.010), route(0.3e6, 0.050), route(0.2e6, 0.020, lanes=3))
SCHEDULERS = st.sampled_from(["adaptive", "RR", "BLEST", "ECF", "redundant", "lowest_latency"])
ROUTE = st.integers(0, len(ROUTES) - 1)
SIDE = st.booleans()


class Conversation(RuleBasedStateMachine):
    """Two ends, three routes, anything may happen to two of them at any time; the third stays alive."""

    def __init__(self) -> None:
        super().__init__()
        self.pair = Pair(ROUTES, client=CLEAR)
        assert self.pair.until(lambda: len(self.pair.client.active) == 3, 2.0)
        self.finished: set[tuple[str, StreamId]] = set()

    def end(self, client: bool) -> SimEnd:
        return self.pair.client if client else self.pair.peer

    @rule(client=SIDE, size=st.integers(1, 120_000), pick=st.integers(0, 7))
    def write(self, client: bool, size: int, pick: int) -> None:
        end = self.end(client)
        streams = [s for s in end.session.sender.streams if (end.name, s) not in self.finished]
        if streams and len(end.sent.get(streams[pick % len(streams)], b"")) < 400_000:
            end.write(self.pair.clock.random.randbytes(size), streams[pick % len(streams)])

    @rule(client=SIDE, priority=st.integers(0, 7))
    def open_stream(self, client: bool, priority: int) -> None:
        self.end(client).open_stream(priority)

    @rule(client=SIDE, pick=st.integers(0, 7))
    def finish(self, client: bool, pick: int) -> None:
        end = self.end(client)
        stream = list(end.session.sender.streams)[pick % len(end.session.sender.streams)]
        if stream != STREAM_ZERO:
            end.finish(stream)
            self.finished.add((end.name, stream))

    @rule(seconds=st.floats(0.0005, 0.6))
    def wait(self, seconds: float) -> None:
        self.pair.run(seconds)

    @rule(index=st.integers(1, 2), notice=st.sampled_from([0.0, 0.05, None]), down=st.booleans())
    def cut(self, index: int, notice: float | None, down: bool) -> None:
        self.pair.cut(index, notice, down=down)

    @rule(index=st.integers(1, 2))
    def stall(self, index: int) -> None:
        self.pair.stall(index)

    @rule(index=st.integers(1, 2))
    def restore(self, index: int) -> None:
        self.pair.restore(index)

    @rule(client=SIDE)
    def pause(self, client: bool) -> None:
        self.end(client).pause()

    @rule(client=SIDE)
    def resume(self, client: bool) -> None:
        self.end(client).resume()

    @rule(client=SIDE, name=SCHEDULERS, reinject=st.sampled_from(["full", "rescue", "off"]))
    def schedule(self, client: bool, name: str, reinject: str) -> None:
        self.end(client).set_scheduler(Policy(name, (), False, reinject))

    @precondition(lambda self: len(self.pair.client.active) > 1)
    @rule(client=SIDE, pick=st.integers(0, 3))
    def drain(self, client: bool, pick: int) -> None:
        end = self.end(client)
        if len(end.active) > 1:
            end.drain(end.active[pick % len(end.active)])

    @rule(client=SIDE, pick=st.integers(0, 3), role=st.sampled_from([Role.ACTIVE, Role.SECONDARY, Role.BACKUP]))
    def change_role(self, client: bool, pick: int, role: Role) -> None:
        end = self.end(client)
        if end.active:
            end.set_role(end.active[pick % len(end.active)], role)

    @rule(index=ROUTE)
    def hand_over(self, index: int) -> None:
        paths = self.pair.client.session.paths
        assert paths is not None
        slots = [slot for slot in paths.slots if slot.candidates[0].entry == index]
        now = self.pair.clock.now
        self.pair.client.session.path_manager(now=now).hand_over(slots, lambda reason: None, now)
        self.pair.client.pump()

    @invariant()
    def nobody_has_given_up(self) -> None:
        assert all(end.closed is None for end in self.pair.ends)

    def teardown(self) -> None:
        pair = self.pair
        for index in range(len(ROUTES)):
            pair.restore(index)
            pair.client.change_network(f"if{index}", True)
        for end in pair.ends:
            end.paused.clear()
            end.read_all()
        assert pair.until(self.everything_has_arrived, 90.0)
        pair.run(70.0)  # connections that died unnoticed are found by then
        close_both(pair)

    def everything_has_arrived(self) -> bool:
        for sender, receiver in ((self.pair.client, self.pair.peer), (self.pair.peer, self.pair.client)):
            if any(receiver.got(stream) != len(sent) for stream, sent in sender.sent.items()):
                return False
            if any(name == sender.name and not receiver.at_end(stream) for name, stream in self.finished):
                return False
        return quiet(self.pair)


Conversation.TestCase.settings = settings(
    max_examples=40, stateful_step_count=30, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
TestConversation = Conversation.TestCase


@given(
    rates=st.lists(st.floats(50e3, 5e6), min_size=1, max_size=3),
    delays=st.lists(st.floats(0.001, 0.150), min_size=3, max_size=3),
    size=st.integers(1, 600_000),
    scheduler=SCHEDULERS,
)
@settings(max_examples=40, deadline=None, derandomize=True)
def test_any_size_over_any_links_arrives_whole(
    rates: list[float], delays: list[float], size: int, scheduler: str
) -> None:
    routes = [route(rate, delay) for rate, delay in zip(rates, delays, strict=False)]
    pair = Pair(routes, client=CLEAR, policy=Policy(scheduler))
    assert pair.until(lambda: pair.client.opened_at is not None, 2.0)
    try:
        pair.client.write(pair.clock.random.randbytes(size))
        pair.client.finish()
    except (LocalProtocolError, SessionLost) as error:
        raise AssertionError("a fresh session takes bytes") from error
    assert pair.until(lambda: pair.server is not None and pair.peer.at_end(), 60.0)
    assert pair.peer.got() == size
    assert pair.until(lambda: quiet(pair), 5.0)
    close_both(pair)
