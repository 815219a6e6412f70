"""When a session makes a scheduler, and when the one it has is the one that is asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from multi.errors import LocalProtocolError
from multi.events import Warned
from multi.protocol.payloads import Policy
from multi.protocol.scheduling import SchedulerMaker
from multi.protocol.session import SessionCore
from multi.protocol.settings import SessionSettings
from multi.schedulers import create_scheduler
from multi.schedulers.base import DEFAULT_SCHEDULER, ConnectionView, Scheduler, SendRequest
from multi.types import SessionId, Side

from .wiring import CLEAR, STREAM_0, Ends


def server() -> tuple[SessionCore, list[str]]:
    made: list[str] = []

    def make(name: str, parameters: Mapping[str, float]) -> Scheduler:
        made.append(name)
        return create_scheduler(name, parameters)

    session = SessionCore(
        Side.SERVER, SessionId(bytes(16)), SessionSettings(), entropy=bytes, make_scheduler=make, now=0.0
    )
    return session, made


def test_a_server_schedules_as_its_client_asks() -> None:
    session, made = server()
    for policy in (
        Policy("adaptive", (), switch=True, reinject="rescue"),
        Policy("top_throughput", (("n", 2.0),)),
        Policy("top_throughput", (("n", 1.0),)),
        Policy("adaptive"),
    ):
        session.scheduling.peer_wants(policy)
        assert session.scheduling.policy == policy
        assert session.sender.reinject == policy.reinject
    assert made == ["adaptive", "adaptive", "top_throughput", "top_throughput", "adaptive"]


def test_an_object_the_application_set_is_not_taken_for_what_a_client_asks_for() -> None:
    session, made = server()
    own = create_scheduler("RR", {})
    session.set_scheduler(Policy("adaptive"), own, now=0.0)
    session.scheduling.peer_wants(Policy("adaptive"))
    assert made == ["adaptive", "adaptive"]
    assert session.sender.scheduler is not own


def test_what_a_client_asks_for_is_made_by_another_maker_than_the_servers_own() -> None:
    asked: list[tuple[str, str]] = []

    def maker(whose: str) -> SchedulerMaker:
        def make(name: str, parameters: Mapping[str, float]) -> Scheduler:
            asked.append((whose, name))
            return create_scheduler(name, parameters)

        return make

    session = SessionCore(
        Side.SERVER,
        SessionId(bytes(16)),
        SessionSettings(),
        entropy=bytes,
        make_scheduler=maker("own"),
        make_peer_scheduler=maker("peer"),
        now=0.0,
    )
    session.scheduling.peer_wants(Policy("RR"))
    session.set_scheduler(Policy("BLEST"), now=0.0)
    assert asked == [("own", "adaptive"), ("peer", "RR"), ("own", "BLEST")]


def test_a_client_is_told_which_of_its_schedulers_the_server_does_not_use() -> None:
    ends = Ends(replace(CLEAR, policy=Policy("RR")), CLEAR)
    ends.client.session.scheduling.peer_wants(Policy(DEFAULT_SCHEDULER))
    ends.pump()
    (warning,) = [event.message for event in ends.client.events if isinstance(event, Warned)]
    assert warning == "the server schedules with adaptive, not with RR, which it lacks or cannot use"


def test_a_scheduler_counts_as_one_whatever_its_length() -> None:
    class Empty:
        def __len__(self) -> int:
            return 0

        def select(self, request: SendRequest, connections: Sequence[ConnectionView]) -> Sequence[ConnectionView]:
            return connections

    session, _ = server()
    own = Empty()
    session.set_scheduler(Policy("Empty"), own, now=0.0)
    assert session.sender.scheduler is own


def test_what_no_server_could_be_told_changes_nothing() -> None:
    def make(name: str, parameters: Mapping[str, float]) -> Scheduler:
        return create_scheduler("RR", {})

    client = SessionCore(
        Side.CLIENT, SessionId(bytes(16)), SessionSettings(), entropy=bytes, make_scheduler=make, now=0.0
    )
    many = Policy("many", tuple((f"p{n}", 1.0) for n in range(99)))
    with pytest.raises(LocalProtocolError, match="parameters"):
        client.set_scheduler(many, now=0.0)
    assert client.scheduling.policy.scheduler == "adaptive"


class Broken:
    """A scheduler of an application that fails."""

    def select(self, request: SendRequest, connections: Sequence[ConnectionView]) -> Sequence[ConnectionView]:
        raise KeyError("a bug of the application")


@pytest.mark.parametrize("side", ["client", "server"])
def test_a_scheduler_that_fails_gives_way_to_the_default_and_the_application_hears_where(side: str) -> None:
    ends = Ends(CLEAR, CLEAR)
    ends.connect()
    ends.connect()
    ends.pump()
    node, other = (ends.client, ends.server) if side == "client" else (ends.server, ends.client)
    node.session.set_scheduler(Policy("Broken"), Broken(), now=0.0)
    ends.write(node, b"arrives all the same")
    assert other.got() == b"arrives all the same"
    assert node.session.scheduling.policy.scheduler == DEFAULT_SCHEDULER
    (warning,) = [event.message for event in node.events if isinstance(event, Warned)]
    assert "Broken failed: KeyError" in warning
    assert __file__ in warning
    told = [event.message for event in other.events if isinstance(event, Warned)]
    assert told == ([f"the server schedules with {DEFAULT_SCHEDULER}, not as asked"] if side == "server" else [])


def test_a_default_scheduler_that_fails_is_a_bug_and_no_reason_to_try_it_again() -> None:
    def make(name: str, parameters: Mapping[str, float]) -> Scheduler:
        return Broken()

    session = SessionCore(
        Side.CLIENT, SessionId(bytes(16)), SessionSettings(), entropy=bytes, make_scheduler=make, now=0.0
    )
    with pytest.raises(KeyError, match="a bug of the application"):
        session.scheduling.failed(KeyError("a bug of the application"), session.sender.streams[STREAM_0])


@pytest.mark.parametrize("follows", [True, False])
@pytest.mark.parametrize("takes_reinject", [True, False])
def test_what_a_server_has_of_its_own_it_keeps_and_follows_in_the_rest(follows: bool, takes_reinject: bool) -> None:
    settings = SessionSettings(
        policy=Policy("RR", reinject="rescue"), follow_peer_policy=follows, follow_peer_reinject=takes_reinject
    )
    session = SessionCore(
        Side.SERVER, SessionId(bytes(16)), settings, entropy=bytes, make_scheduler=create_scheduler, now=0.0
    )
    session.scheduling.peer_wants(Policy("BLEST", reinject="off"))
    expected = Policy("BLEST" if follows else "RR", reinject="off" if takes_reinject else "rescue")
    assert session.scheduling.policy == expected
    assert session.sender.reinject == expected.reinject
