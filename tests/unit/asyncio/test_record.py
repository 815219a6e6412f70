"""What is told of a session afterwards, and to whom."""

from __future__ import annotations

import os

from multi.asyncio.record import KEPT, SessionRecord
from multi.asyncio.settings import local_scheduler
from multi.asyncio.stats import Tallies
from multi.asyncio.subscription import Subscription
from multi.events import AddressesAnnounced, AttemptFailed, ConnectionChanged, Notify, SessionDetached, Warned
from multi.protocol.session import SessionCore
from multi.protocol.settings import SessionSettings
from multi.reasons import Cause, Reason
from multi.types import Candidate, ConnectionFacts, ConnectionId, ConnectionState, Family, SessionId, Side

GONE = Reason(Cause.NETWORK_GONE, "gone")


def new_record() -> tuple[SessionCore, SessionRecord]:
    settings, entropy = SessionSettings(), os.urandom
    core = SessionCore(
        Side.SERVER, SessionId(bytes(16)), settings, entropy=entropy, make_scheduler=local_scheduler, now=0.0
    )
    return core, SessionRecord(core, {})


def tell(core: SessionCore, record: SessionRecord) -> None:
    """Give it the events that the session has for it, as a driver does."""
    for effect in core.effects(now=1.0):
        if isinstance(effect, Notify):
            record.put(effect.event)


def test_who_begins_to_listen_hears_of_the_connections_first_and_then_of_what_was_said() -> None:
    core, record = new_record()
    core.connection_opened(ConnectionId(7), ConnectionFacts("tcp"), now=0.0)
    warned, announced = Warned("a warning"), AddressesAnnounced((("192.0.2.1", 7788),))
    for event in (announced, warned):
        core.notify(event)
    tell(core, record)
    changed, *said = record.known()
    assert isinstance(changed, ConnectionChanged)
    assert (changed.connection, changed.state) == (7, ConnectionState.AUTHENTICATING)
    assert said == [warned, announced]


def test_ended_connections_are_told_of_as_long_as_they_are_few_and_counted_for_ever() -> None:
    core, record = new_record()
    for number in range(KEPT + 3):
        core.connection_opened(ConnectionId(number), ConnectionFacts("tcp"), now=0.0)
        core.give_up(ConnectionId(number), GONE, now=0.0)
        tell(core, record)
    assert not core.connections
    infos, tallies = record.connections(), Tallies()
    assert [info.id for info in infos] == list(range(3, KEPT + 3))
    assert {info.state for info in infos} == {ConnectionState.LOST}
    record.tally(tallies)
    assert tallies.stats()["tcp"].ended == {Cause.NETWORK_GONE.value: KEPT + 3}


def test_why_the_server_is_out_of_reach_is_known_from_the_attempts_since_the_last_connection() -> None:
    _, record = new_record()
    record.put(AttemptFailed(Candidate("tcp", Family.IPV4, "server", "192.0.2.1", 7788), GONE))
    assert record.unreached == "gone"
    record.put(SessionDetached(60.0))
    assert record.unreached == ""


async def test_who_listens_hears_what_comes_as_long_as_somebody_holds_him() -> None:
    _, record = new_record()
    held, warned = Subscription([]), Warned("a warning")
    record.listen(held)
    record.listen(Subscription([]))
    record.put(warned)
    record.end()
    assert [event async for event in held] == [warned]
