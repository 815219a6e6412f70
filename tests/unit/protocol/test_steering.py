"""Streams that are steered by themselves: groups, what the server is told, and what waits for whom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from multi.errors import ConfigError, LocalProtocolError
from multi.events import Warned
from multi.protocol import authenticator
from multi.protocol.payloads import encode_scheduler
from multi.protocol.scheduling import MAX_SHARED
from multi.protocol.segment import SegmentType as T
from multi.schedulers import create_scheduler
from multi.schedulers.base import WAIT, ConnectionView, Scheduler, SendRequest
from multi.types import StreamId

from .wiring import CLEAR, STREAM_0, Ends, Node, kinds


def ends_with(connections: int = 2, *, follow: bool = True) -> Ends:
    ends = Ends(CLEAR, replace(CLEAR, follow_peer_policy=follow))
    for _ in range(connections):
        ends.connect()
    ends.pump()
    return ends


def opened(ends: Ends, mode: str = "", priority: int = 3) -> StreamId:
    session = ends.client.session
    stream = session.open_stream(priority, now=ends.now)
    assert stream is not None
    if mode:
        session.steer([stream], mode, now=ends.now)
    ends.pump()
    return stream


def steered(node: Node, stream: StreamId) -> str:
    steering = node.session.scheduling.steering_of(stream)
    return steering.name if steering is not None else ""


def warnings(node: Node) -> list[str]:
    return [str(event).removeprefix("warning: ") for event in node.events if isinstance(event, Warned)]


def test_the_server_steers_a_stream_as_its_client_does_until_it_is_the_sessions_again() -> None:
    ends = ends_with()
    stream, other = opened(ends, "steering.latency"), opened(ends)
    assert [steered(node, stream) for node in (ends.client, ends.server)] == ["steering.latency"] * 2
    assert [steered(node, other) for node in (ends.client, ends.server)] == ["", ""]
    ends.client.session.steer([stream], "steering.standby", (("max_rtt", 0.1),), now=ends.now)
    ends.pump()
    steering = ends.server.session.scheduling.steering_of(stream)
    assert steering is not None
    assert (steering.name, steering.parameters) == ("steering.standby", (("max_rtt", 0.1),))
    ends.client.session.steer([stream], "", now=ends.now)
    ends.pump()
    assert [steered(node, stream) for node in (ends.client, ends.server)] == ["", ""]


def test_streams_that_are_steered_alike_are_one_group_to_their_scheduler() -> None:
    ends = ends_with()
    streams = [opened(ends, "steering.balance") for _ in range(3)]
    alone = opened(ends, "steering.latency")
    for node in (ends.client, ends.server):
        groups = [node.session.scheduling.steering_of(stream) for stream in (*streams, alone)]
        assert len({id(group) for group in groups}) == 2


def test_groups_are_remembered_up_to_a_bound_and_the_oldest_is_forgotten() -> None:
    ends = ends_with()
    keeps, changes, late = opened(ends), opened(ends), opened(ends)

    def steer(stream: StreamId, number: int) -> None:
        ends.client.session.steer([stream], "steering.latency", (("max_rtt", 1.0 + number),), now=ends.now)
        ends.pump()

    steer(keeps, 0)
    for number in range(MAX_SHARED):
        steer(changes, number)
    group_of = ends.server.session.scheduling.steering_of
    steer(late, 0)
    assert group_of(late) is group_of(keeps)
    steer(changes, MAX_SHARED)
    steer(late, 0)
    assert group_of(late) is not group_of(keeps)


def test_stream_0_is_steered_before_the_server_has_answered_and_it_hears_of_it_then() -> None:
    ends = Ends(CLEAR, CLEAR)
    ends.connect()
    ends.client.session.steer([STREAM_0], "steering.redundant", now=ends.now)
    ends.pump()
    assert steered(ends.server, STREAM_0) == "steering.redundant"


def test_a_server_that_has_not_announced_it_is_told_nothing_and_the_application_hears_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(authenticator, "STEERING", 0x7FFF)
    ends = ends_with()
    stream = opened(ends, "steering.latency")
    opened(ends, "steering.standby")
    assert steered(ends.client, stream) == "steering.latency"
    assert steered(ends.server, stream) == ""
    assert T.STEER not in {kind for line in ends.lines for kind in kinds(line.sent_up)}
    assert warnings(ends.client) == ["the server's version of multi sends every stream as the session"]


def test_a_server_with_a_scheduler_of_its_own_does_not_follow() -> None:
    ends = ends_with(follow=False)
    assert steered(ends.server, opened(ends, "steering.latency")) == ""


def test_a_server_steers_what_it_sends_and_its_client_is_not_told() -> None:
    ends = ends_with()
    stream = opened(ends)
    ends.server.session.steer([stream], "steering.latency", now=ends.now)
    ends.pump()
    assert (steered(ends.server, stream), steered(ends.client, stream)) == ("steering.latency", "")


def test_a_client_takes_no_steering() -> None:
    ends = ends_with()
    line = ends.lines[0]
    line.answer(ends.segment(T.STEER, encode_scheduler("steering.redundant", ()), sequence=9))
    ends.pump()
    assert ends.client.ended[line.id] == "only a client steers streams"


def test_a_mode_the_server_does_not_know_leaves_the_stream_to_the_session() -> None:
    ends = ends_with()
    stream = opened(ends, "steering.latency")
    ends.lines[0].inject(ends.segment(T.STEER, encode_scheduler("steering.clever", ()), sequence=100, stream=stream))
    ends.pump()
    assert steered(ends.server, stream) == ""
    (warning,) = warnings(ends.server)
    assert warning.startswith(f"stream {stream} is sent as the session: unknown scheduler 'steering.clever'")


def test_a_client_that_wants_what_cannot_be_had_fills_no_log() -> None:
    ends = ends_with()
    stream = opened(ends)
    for number in range(10):
        wish = encode_scheduler(f"steering.{number}", ())
        ends.lines[0].inject(ends.segment(T.STEER, wish, sequence=100 + number, stream=stream))
    ends.pump()
    (warning,) = warnings(ends.server)
    assert "unknown scheduler 'steering.0'" in warning


def test_steering_that_was_overtaken_by_newer_one_changes_nothing() -> None:
    ends = ends_with()
    stream = opened(ends, "steering.latency")
    for sequence, mode in ((101, "steering.standby"), (100, "steering.redundant")):
        ends.lines[0].inject(ends.segment(T.STEER, encode_scheduler(mode, ()), sequence=sequence, stream=stream))
    ends.pump()
    assert steered(ends.server, stream) == "steering.standby"


def test_what_has_ended_or_does_not_exist_cannot_be_steered() -> None:
    ends = ends_with()
    with pytest.raises(LocalProtocolError, match="ended"):
        ends.client.session.steer([StreamId(2)], "steering.latency", now=ends.now)
    with pytest.raises(ConfigError, match="unknown scheduler"):
        ends.client.session.steer([STREAM_0], "steering.clever", now=ends.now)
    with pytest.raises(LocalProtocolError, match="parameters"):
        ends.client.session.steer([STREAM_0], "steering.latency", (("max_rtt", 1.0),) * 17, now=ends.now)
    assert steered(ends.client, STREAM_0) == ""


class Waits:
    """Keeps everything for a better connection."""

    def select(self, request: SendRequest, connections: Sequence[ConnectionView]) -> Sequence[ConnectionView]:
        return WAIT


class Fails:
    def select(self, request: SendRequest, connections: Sequence[ConnectionView]) -> Sequence[ConnectionView]:
        raise KeyError("a bug")


class ChoosesOtherThanConnections:
    def __init__(self, chosen: object) -> None:
        self.chosen = chosen

    def select(self, request: SendRequest, connections: Sequence[ConnectionView]) -> Any:
        return self.chosen


def with_scheduler(monkeypatch: pytest.MonkeyPatch, scheduler: Scheduler) -> Ends:
    """Ends whose client makes `scheduler` for the name `mine`."""

    def make(name: str, parameters: Mapping[str, float]) -> Scheduler:
        return scheduler if name == "mine" else create_scheduler(name, parameters)

    ends = ends_with()
    monkeypatch.setattr(ends.client.session.scheduling, "_make", make)
    return ends


def test_a_group_that_waits_for_a_better_connection_does_not_hold_up_less_urgent_streams(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ends = with_scheduler(monkeypatch, Waits())
    patient, usual = opened(ends, "mine", priority=0), opened(ends, priority=7)
    ends.client.session.write(patient, b"p" * 1000, now=ends.now)
    ends.write(ends.client, b"u" * 1000, usual)
    assert ends.server.got(usual) == b"u" * 1000
    assert ends.server.got(patient) == b""
    assert ends.client.session.waits_for_time  # and is asked again
    ends.client.session.steer([patient], "", now=ends.now)
    ends.pump()
    assert ends.server.got(patient) == b"p" * 1000


def test_a_scheduler_of_a_stream_that_fails_leaves_it_to_the_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = with_scheduler(monkeypatch, Fails())
    stream = opened(ends, "mine")
    ends.write(ends.client, b"x", stream)
    assert ends.server.got(stream) == b"x"
    assert steered(ends.client, stream) == ""
    (warning,) = warnings(ends.client)
    assert "scheduler mine failed: KeyError('a bug')" in warning


@pytest.mark.parametrize("chosen", [1, None])
def test_a_scheduler_that_chooses_other_than_connections_is_told_so(
    monkeypatch: pytest.MonkeyPatch, chosen: object
) -> None:
    """The warning named a line of multi's own."""
    ends = with_scheduler(monkeypatch, ChoosesOtherThanConnections(chosen))
    stream = opened(ends, "mine")
    ends.write(ends.client, b"x", stream)
    assert ends.server.got(stream) == b"x"
    (warning,) = warnings(ends.client)
    assert f"mine failed: TypeError('it chose {chosen}, no sequence of connections'); stream" in warning


def test_each_stream_goes_where_its_own_steering_says() -> None:
    ends = ends_with()
    copied, alone = opened(ends, "steering.redundant"), opened(ends, "steering.standby")
    before = [len(line.sent_up) for line in ends.lines]
    ends.write(ends.client, b"twice", copied)
    sent = [kinds(line.sent_up[start:]) for line, start in zip(ends.lines, before, strict=True)]
    assert all(T.DATA in kind for kind in sent)
    before = [len(line.sent_up) for line in ends.lines]
    ends.write(ends.client, b"once", alone)
    sent = [kinds(line.sent_up[start:]) for line, start in zip(ends.lines, before, strict=True)]
    assert sum(T.DATA in kind for kind in sent) == 1
