"""Datagrams in virtual time: losses, copies, times to live, paths that die, and streams beside them."""

from __future__ import annotations

import pytest

from multi.lab.sim.end import SimEnd
from multi.lab.sim.link import StreamLinkSpec
from multi.lab.sim.pair import Pair
from multi.lab.sim.wire import Route
from tests.sim.worlds import clear_pair, close_both, data, quiet, transfer

pytestmark = pytest.mark.simulation


def frames(rate: float = 1e6, delay: float = 0.010, *, loss: float = 0.0, jitter: float = 0.0) -> Route:
    """A path that carries messages, some of which are lost or late, as QUIC does."""
    spec = StreamLinkSpec(rate, delay, loss=loss, jitter=jitter)
    return Route(spec, spec, secure=True, peer_verified=True, lanes=3, message_size=1250)


def stream(rate: float = 1e6, delay: float = 0.010, buffer: int = 16 * 1024) -> Route:
    spec = StreamLinkSpec(rate, delay, buffer)
    return Route(spec, spec)


def ready(*routes: Route) -> Pair:
    pair = clear_pair(*routes)
    assert pair.until(lambda: pair.server is not None and len(pair.peer.active) == len(routes), 5.0)
    pair.run(0.2)
    return pair


def talk(pair: Pair, sender: SimEnd, count: int, *, apart: float, size: int = 200, **options: float) -> list[float]:
    """Send `count` datagrams, one every `apart` seconds; return how long each that came took. None comes twice."""
    other = sender.other
    assert other is not None
    began, sent = len(other.datagrams), []
    for number in range(count):
        sent.append(pair.clock.now)
        sender.send_datagram(number.to_bytes(4, "big") + bytes(size - 4), **options)  # type: ignore[arg-type]
        pair.run(apart)
    pair.run(2.0)
    came = other.datagrams[began:]
    numbers = [int.from_bytes(message[:4], "big") for _, message in came]
    assert len(set(numbers)) == len(numbers)
    return [at - sent[number] for (at, _), number in zip(came, numbers, strict=True)]


def test_what_is_lost_is_not_repeated_and_nothing_comes_twice() -> None:
    pair = ready(frames(loss=0.2, jitter=0.030))
    took = talk(pair, pair.client, 500, apart=0.01)
    assert 0.75 < len(took) / 500 < 0.85
    assert max(took) < 0.010 + 0.030 + 0.005
    assert pair.peer.session.datagrams.counts.duplicates == 0


def test_two_copies_get_through_where_one_is_lost_and_come_once() -> None:
    pair = ready(frames(loss=0.2), frames(delay=0.030, loss=0.2))
    took = talk(pair, pair.client, 500, apart=0.01, copies=2)
    assert len(took) / 500 > 0.93
    counts = pair.peer.session.datagrams.counts
    assert 0.55 < counts.duplicates / 500 < 0.73
    assert pair.client.session.datagrams.counts.copied == 500


def test_beyond_what_a_path_carries_datagrams_are_given_up_in_time_and_not_delivered_late() -> None:
    pair = ready(stream(rate=100e3, buffer=8 * 1024))
    took = talk(pair, pair.client, 600, apart=0.005, size=1000, ttl=0.1)  # twice as much as fits
    assert 0.4 < len(took) / 600 < 0.6
    assert max(took) < 0.1 + 0.15
    counts = pair.client.session.datagrams.counts
    assert counts.expired + counts.sent == 600


@pytest.mark.parametrize("route", [frames(), stream()])
def test_copies_bridge_a_path_that_dies_silently(route: Route) -> None:
    def lost(copies: int) -> int:
        pair = ready(route, stream(delay=0.030))
        pair.clock.at(pair.clock.now + 1.0, lambda: pair.stall(0))
        return 300 - len([t for t in talk(pair, pair.client, 300, apart=0.01, copies=copies) if t < 0.5])

    once, auto, twice = lost(1), lost(0), lost(2)
    assert twice == 0
    assert auto <= 0.8 * once
    assert once <= 25, "it is noticed within a fraction of a second"


def test_auto_copies_nothing_while_all_is_well() -> None:
    pair = ready(stream(), stream(delay=0.030))
    took = talk(pair, pair.client, 200, apart=0.01, copies=0)
    assert len(took) == 200
    assert max(took) < 0.05
    assert pair.client.session.datagrams.counts.copied == 0


def test_auto_copies_what_may_not_come_in_time() -> None:
    pair = ready(stream(delay=0.060), stream(delay=0.080))
    talk(pair, pair.client, 100, apart=0.01, copies=0, ttl=0.050)
    assert pair.client.session.datagrams.counts.copied >= 95


def test_a_flood_of_datagrams_leaves_half_to_streams() -> None:
    def seconds(*, flood: bool) -> float:
        pair = ready(stream())

        def more() -> None:
            for _ in range(20):
                pair.client.send_datagram(bytes(1000), ttl=0.05)
            pair.clock.at(pair.clock.now + 0.01, more)

        if flood:
            more()
        return transfer(pair, pair.client, 1_000_000)

    assert seconds(flood=True) < 2.3 * seconds(flood=False)


def test_datagrams_are_small_beside_bulk_and_wait_for_little() -> None:
    pair = ready(stream())
    pair.client.write(data(pair, 20_000_000))
    took = sorted(talk(pair, pair.client, 200, apart=0.02))
    assert len(took) >= 195
    assert took[len(took) // 2] < 0.010 + 3 * 16 * 1024 / 1e6
    pair.run(20.0)
    assert pair.until(lambda: quiet(pair), 20.0)
    close_both(pair)


def test_they_go_on_over_what_is_left_and_what_comes_back() -> None:
    pair = ready(frames(), stream(delay=0.030))
    pair.clock.at(pair.clock.now + 0.5, lambda: pair.cut(0))
    took = talk(pair, pair.peer, 300, apart=0.01)
    assert len(took) >= 290
    assert pair.until(lambda: len(pair.client.active) == 2, 20.0)
    pair.run(2.0)
    assert min(talk(pair, pair.peer, 20, apart=0.01)) < 0.012
