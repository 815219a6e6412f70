"""When a session makes a scheduler, and when the one it has is the one that is asked for."""

from __future__ import annotations

from collections.abc import Mapping

from multi.core.ids import SessionId, Side
from multi.core.payloads import Policy
from multi.core.scheduler import Scheduler
from multi.core.session import Session
from multi.core.settings import SessionSettings
from multi.schedulers import create_scheduler


def server() -> tuple[Session, list[str]]:
    made: list[str] = []

    def make(name: str, parameters: Mapping[str, float]) -> Scheduler:
        made.append(name)
        return create_scheduler(name, parameters)

    session = Session(Side.SERVER, SessionId(bytes(16)), SessionSettings(), entropy=bytes, make_scheduler=make, now=0.0)
    return session, made


def test_the_scheduler_made_with_the_session_serves_a_client_that_asks_for_the_same() -> None:
    session, made = server()
    session.peer_policy(Policy("adaptive", (), switch=True, reinject="rescue"))
    assert made == ["adaptive"]
    assert session.policy.switch
    assert session.sender.reinject == "rescue"


def test_other_parameters_and_a_return_make_a_new_one() -> None:
    session, made = server()
    for policy in (
        Policy("top_throughput", (("n", 2.0),)),
        Policy("top_throughput", (("n", 1.0),)),
        Policy("adaptive"),
    ):
        session.peer_policy(policy)
    assert made == ["adaptive", "top_throughput", "top_throughput", "adaptive"]


def test_an_object_the_application_set_is_not_taken_for_what_a_client_asks_for() -> None:
    session, made = server()
    own = create_scheduler("RR", {})
    session.set_scheduler(Policy("adaptive"), own, now=0.0)
    session.peer_policy(Policy("adaptive"))
    assert made == ["adaptive", "adaptive"]
    assert session.sender.scheduler is not own
