"""Worlds the simulated tests start from, and what they measure in them."""

from __future__ import annotations

from typing import Any, TypeVar

from multi.events import ConnectionChanged, Event
from multi.lab.sim.end import SimEnd
from multi.lab.sim.pair import CLEAR, Pair
from multi.lab.sim.wire import Route, route
from multi.types import STREAM_ZERO, StreamId

E = TypeVar("E", bound=Event)

FAST, SLOW = route(1e6, 0.010), route(0.3e6, 0.050)


def clear_pair(*routes: Route, **options: Any) -> Pair:
    """A pair whose segments travel in clear, so that every oracle looks into them."""
    options.setdefault("client", CLEAR)
    return Pair(routes or (FAST, SLOW), **options)


def opened(*routes: Route, **options: Any) -> Pair:
    """A pair in clear on which every connection is up."""
    pair = clear_pair(*routes, **options)
    count = len(pair.routes)
    assert pair.until(lambda: pair.server is not None and len(pair.peer.active) == count, 5.0)
    pair.run(0.2)
    return pair


def data(pair: Pair, size: int) -> bytes:
    return pair.clock.random.randbytes(size)


def transfer(pair: Pair, sender: SimEnd, size: int, limit: float = 60.0, stream: StreamId = STREAM_ZERO) -> float:
    """Send `size` bytes; return the seconds until the other application has read them all."""
    receiver = sender.other
    assert receiver is not None
    before, start = receiver.got(stream), pair.clock.now
    sender.write(data(pair, size), stream)
    assert pair.until(lambda: receiver.got(stream) == before + size, limit), f"{receiver.got(stream) - before} arrived"
    return pair.clock.now - start


def close_both(pair: Pair, limit: float = 20.0) -> None:
    """Both sides close and end in order."""
    for end in pair.ends:
        end.close()
    assert pair.until(lambda: all(end.closed is not None for end in pair.ends), limit)
    assert [end.closed.reason.orderly for end in pair.ends if end.closed is not None] == [True, True]


def quiet(pair: Pair) -> bool:
    """Everything either side said has been acknowledged."""
    return all(not end.session.sender.unacked and end.session.outbox.empty for end in pair.ends)


def of_type(end: SimEnd, type_: type[E]) -> list[E]:
    return [event for event in end.events if isinstance(event, type_)]


def reasons(end: SimEnd) -> list[tuple[int, str, str]]:
    """(connection, state, reason) of every change, in order."""
    return [(e.connection, e.state.value, e.reason) for e in of_type(end, ConnectionChanged)]
