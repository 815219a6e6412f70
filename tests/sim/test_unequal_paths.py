"""Unequal paths with packets, queues and losses: what a session gets out of them, and how far the model is right."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, pairwise
from statistics import median

import pytest

from multi.lab.sim.congestion import SEGMENT, Acknowledged, Cubic
from multi.lab.sim.pair import Pair
from multi.lab.sim.path_model import TICK, PathDirection, PathSpec
from multi.lab.sim.wire import Route, route
from multi.protocol.payloads import Policy
from multi.protocol.settings import Protect, SessionSettings
from tests.sim.worlds import data, opened, reasons, transfer

pytestmark = [pytest.mark.simulation, pytest.mark.slow]

CLIENT = SessionSettings(protect=Protect.NEVER, initial_window=1024 * 1024)  # as `multi.asyncio.settings` makes them


def path(mbps: float, rtt: float, *, loss: float = 0.0, products: float = 2.0, congestion: str = "bbr") -> Route:
    """A path with the same figures both ways: Mbit/s, seconds there and back, a queue in bandwidth-delay products."""
    rate = mbps * 1e6 / 8
    spec = PathSpec(rate, rtt / 2, loss, max(3000.0, products * rate * rtt), congestion)
    return Route(spec, spec)


def download(*routes: Route, size: int, watched: bool = False, scheduler: str = "adaptive", window: int = 0) -> float:
    """Seconds from the moment the server writes until the client has read everything, `window` bytes ahead at most."""
    settings = CLIENT
    if window:
        settings = replace(CLIENT, initial_window=window, max_stream_window=window, max_session_window=window)
    pair = Pair(routes, client=settings, policy=Policy(scheduler), watched=watched)
    client = pair.client
    assert pair.until(lambda: pair.server is not None and len(pair.peer.active) == len(client.active) == len(routes), 9)
    pair.run(1.5)
    start = pair.clock.now
    pair.peer.write(data(pair, size))
    assert pair.clock.run_until(lambda: client.got() == size, 120.0, max_events=10**7)
    return pair.clock.now - start


def arrivals(pair: Pair, seconds: float) -> list[tuple[float, int]]:
    """When more had come to the client, and how much by then; the first is now."""
    came = [(pair.clock.now, pair.client.got())]
    while pair.clock.now < came[0][0] + seconds:
        pair.run(0.005)
        if pair.client.got() > came[-1][1]:
            came.append((pair.clock.now, pair.client.got()))
    return came


# --- the model  ---


@pytest.mark.parametrize("congestion", ["bbr", "cubic"])
def test_a_path_alone_carries_what_fits_besides_headers(congestion: str) -> None:
    seconds = download(path(20, 0.020, congestion=congestion), size=8_000_000, watched=True)
    assert 0.93 * 20e6 / 8 < 8_000_000 / seconds < 1448 / 1500 * 20e6 / 8


def test_random_losses_slow_cubic_down_and_not_bbr() -> None:
    bbr = download(path(50, 0.040, loss=0.01), size=5_000_000)
    cubic = download(path(50, 0.040, loss=0.01, congestion="cubic"), size=5_000_000)
    assert cubic > 3 * bbr


@pytest.mark.parametrize("kbps", [64, 200])
def test_who_only_reads_over_a_slow_path_suspects_nothing(kbps: int) -> None:
    """Its packets are tenths of a second apart, and what the queue has dropped in slow start takes many of them."""
    rate = kbps * 125.0
    spec = PathSpec(rate, 0.020, queue=max(3000.0, 0.3 * rate), congestion="cubic", buffer=256 * 1024)
    pair = Pair([Route(spec, spec)], watched=False)
    assert pair.until(lambda: pair.server is not None and pair.client.session.confirmed, 20.0)
    pair.run(1.0)
    transfer(pair, pair.peer, int(15 * rate))
    assert "suspect" not in [state for _, state, _ in reasons(pair.client)]


def test_cubic_sends_no_more_than_arrives_while_losses_show() -> None:
    # Its smaller window let a packet out for each that was lost, too: into the queue that had just lost some, or not,
    # as chance would have it, so that the same transfer took a third longer now and then.
    control, full = Cubic(), 400 * SEGMENT

    def acknowledged(in_flight: int, sent: int, *, lost: int = 0) -> None:
        rtt = rate = 0.0
        control.acknowledged(
            Acknowledged(1.0, SEGMENT, lost, rtt, rate, False, in_flight, in_flight, sent, 0, sent, lost > 0)
        )

    while control.window < full:
        acknowledged(control.window, full)
    in_flight = sent = full
    control.recovery_begins(in_flight)
    for arrived in range(SEGMENT, 150 * SEGMENT, SEGMENT):  # every second packet of a full window is lost
        in_flight -= 2 * SEGMENT
        acknowledged(in_flight, sent, lost=SEGMENT)
        while in_flight + SEGMENT <= control.window:
            in_flight, sent = in_flight + SEGMENT, sent + SEGMENT
        assert sent - full <= arrived + SEGMENT
    control.recovery_ends()
    assert control.window == 280 * SEGMENT


def test_a_path_is_as_lucky_alone_as_beside_others() -> None:
    def losses(*routes: Route) -> int:
        pair = Pair(routes, client=CLIENT)
        assert pair.until(lambda: pair.server is not None and len(pair.peer.active) == len(routes), 9)
        pair.run(1.0)
        pair.peer.write(data(pair, 1_000_000))
        assert pair.clock.run_until(lambda: pair.client.got() == 1_000_000, 30.0, max_events=10**7)
        lossy = next(wire.down for wire in pair.wires if wire.route.chance == 1)
        assert isinstance(lossy, PathDirection)
        return lossy.lost_packets

    lossy, far = replace(path(50, 0.010, loss=0.01), chance=1), replace(path(1, 0.500), chance=2)
    assert losses(lossy) == losses(far, lossy) > 0


def test_packets_that_come_at_irregular_times_come_in_order_and_make_round_trips_vary() -> None:
    spec = PathSpec(1e6, 0.020, jitter=0.015)
    pair = Pair((Route(spec, spec),), client=CLIENT)
    assert pair.until(lambda: pair.server is not None, 9)
    for _ in range(50):
        pair.client.write(bytes(100))
        pair.run(0.050)
    (connection,) = pair.client.session.connections.values()
    assert pair.peer.got() == 5000
    assert connection.rtt_variation > 0.003


def test_a_long_path_takes_its_round_trips_to_start() -> None:
    # Ten packets, then twice as many every round trip: 1 MB takes seven of them, and half a one to arrive.
    assert 6.5 * 0.2 < download(path(100, 0.2), size=1_000_000) < 8.5 * 0.2


@pytest.mark.parametrize("congestion", ["bbr", "cubic"])
def test_what_is_lost_on_a_modelled_path_is_repeated_in_order(congestion: str) -> None:
    lossy = path(20, 0.020, loss=0.02, products=0.5, congestion=congestion)
    pair = opened(lossy, path(5, 0.060, loss=0.01, congestion=congestion))
    pair.client.write(data(pair, 600_000))
    pair.peer.write(data(pair, 600_000))
    assert pair.until(lambda: pair.client.got() == pair.peer.got() == 600_000, 30.0)
    assert sum(wire.up.lost_packets for wire in pair.wires if hasattr(wire.up, "lost_packets")) > 5


def test_a_modelled_path_that_was_silent_goes_on() -> None:
    pair = opened(path(20, 0.020))
    pair.peer.write(data(pair, 2_000_000))
    pair.run(0.3)
    pair.stall(0)
    pair.run(0.5)
    pair.restore(0)
    assert pair.until(lambda: pair.client.got() == 2_000_000, 20.0)


def test_a_modelled_path_that_is_well_again_carries_its_queue_as_fast_as_before() -> None:
    pair = opened(path(20, 0.020, products=10, congestion="cubic"))
    pair.peer.write(data(pair, 4_000_000))
    (wire,) = pair.wires
    assert isinstance(wire.down, PathDirection)
    came = []
    for share in (1.0, 0.05, 20.0):
        wire.down.fade(share)
        before = pair.client.got()
        pair.run(0.5)
        came.append((pair.client.got() - before) / (0.5 * 20e6 / 8))
    assert came[0] > 0.8
    assert came[1] < 0.1
    assert came[2] > 0.8


# --- the session over them  ---


UNEQUAL = [
    (path(72.6, 0.010, products=0.9), path(27.4, 0.384, products=0.6)),
    (path(90.9, 0.010, loss=0.0096, products=1.5), path(9.1, 0.461, loss=0.0163)),
    (path(5.1, 0.010, products=9), path(94.9, 0.1, products=7)),
    (path(63.0, 0.010, loss=0.001), path(37.0, 0.094, loss=0.001, products=8.6)),
    (path(50, 0.010, congestion="cubic", products=8), path(50, 0.1, congestion="cubic", products=0.5)),
]


@pytest.mark.parametrize("paths", [*UNEQUAL[:2], *(pytest.param(each, marks=pytest.mark.slow) for each in UNEQUAL[2:])])
def test_adaptive_is_never_slower_than_the_best_of_unequal_paths(paths: tuple[Route, Route]) -> None:
    alone = min(download(each, size=10_000_000) for each in paths)
    assert alone / download(*paths, size=10_000_000) >= 0.97


def test_a_near_path_that_is_slow_does_not_get_as_much_again_once_that_was_sent_elsewhere() -> None:
    """Copies are acknowledged on the far path, and what the slow one's transport holds told nothing of its rate."""
    far = path(4, 0.400, products=0.25, congestion="cubic")
    slow = path(0.2, 0.004, products=600, congestion="cubic")
    assert download(far, size=2_000_000) / download(far, slow, size=2_000_000) >= 0.97


SMALL_WINDOWS = [
    # The room that was left was taken for all that the nearer of two paths had to send: it stood beside the other.
    (path(80, 0.020), path(80, 0.020), 512, 1.7),
    # What a path had lost of the end of a transfer was waited for.
    (path(80, 0.040, products=0.25, congestion="cubic"), path(8, 0.080, products=0.25, congestion="cubic"), 1024, 0.97),
    # What a path carried while its window was small or something was lost was taken for its rate.
    (path(80, 0.020, products=0.5), path(160, 0.040, products=0.5), 1024, 1.5),
]


@pytest.mark.parametrize(("near", "far", "kib", "times"), SMALL_WINDOWS)
def test_small_windows_are_shared_by_who_does_not_hold_them_up(near: Route, far: Route, kib: int, times: float) -> None:
    alone = download(near, size=8_000_000, window=kib * 1024)
    assert alone / download(near, far, size=8_000_000, window=kib * 1024) >= times


THROTTLED = 64_000 / 8  # bytes per second: what operators leave of a contract that is used up


@pytest.mark.parametrize(("congestion", "after"), [("cubic", 0.0), ("bbr", 0.7)])
def test_a_path_that_becomes_slow_makes_nothing_slower_than_without_it(congestion: str, after: float) -> None:
    good, sim = path(50, 0.020, congestion=congestion), path(50, 0.050, congestion=congestion)

    def seconds(*routes: Route) -> float:
        pair = Pair(routes, client=CLIENT, watched=False)
        client = pair.client
        assert pair.until(lambda: pair.server is not None and len(pair.peer.active) == len(routes), 9)
        pair.run(1.0)
        start = pair.clock.now
        if after:
            pair.peer.write(data(pair, 10_000_000))
            pair.run(after)
        for wire in pair.wires[1:]:
            for direction in (wire.up, wire.down):
                assert isinstance(direction, PathDirection)
                direction.spec = replace(direction.spec, rate=THROTTLED)
        if not after:
            pair.peer.write(data(pair, 10_000_000))
        assert pair.clock.run_until(lambda: client.got() == 10_000_000, 120.0, max_events=10**7)
        return pair.clock.now - start

    assert seconds(good) / seconds(good, sim) >= 0.97


SHORT = [
    # The window filled before anything was copied, and the copies waited behind all that was on its way.
    (path(91.6, 0.010), path(8.4, 0.373, products=5.4), 2_000_000),
    # What a slow path's kernel held unsent was expected within a round trip, as if it had been on its way.
    (path(94, 0.010, products=1), path(6, 0.106, products=0.6), 2_000_000),
    (path(77.4, 0.010, products=0.6), path(22.6, 0.111, products=3.6), 2_000_000),
]


@pytest.mark.parametrize(("fast", "slow", "size"), SHORT)
def test_short_transfers_do_not_wait_for_the_slow_path(fast: Route, slow: Route, size: int) -> None:
    assert download(fast, size=size) / download(fast, slow, size=size) >= 0.97


@pytest.mark.parametrize(
    ("first", "second", "size"),
    [
        # Each was given a part of 30 kB before anything was known of rates, and the slow one kept its own for long.
        (path(21, 0.004), path(4.9, 0.006), 30_000),
        (path(36.2, 0.011, congestion="cubic"), path(2.6, 0.021, congestion="cubic"), 30_000),
        # The nearer one got 64 KiB at once, and looked fast until it had delivered as much.
        (path(4.2, 0.005, congestion="cubic"), path(20.7, 0.015, products=8, congestion="cubic"), 100_000),
        # What the acknowledgements of a growing window were about to let through was expected a round trip later.
        (path(44.8, 0.087, congestion="cubic"), path(2.3, 0.216, congestion="cubic"), 100_000),
    ],
)
def test_paths_of_unknown_rates_are_no_slower_together(first: Route, second: Route, size: int) -> None:
    alone = min(download(first, size=size), download(second, size=size))
    assert download(first, second, size=size) <= max(alone / 0.97, alone + TICK)


@pytest.mark.parametrize(
    ("fast", "slow", "longest"),
    [
        # The queue of the slow path was filled until it lost some, and what the other had brought waited for 0.4-0.7 s.
        (path(36, 0.030, congestion="cubic"), path(1.7, 0.080, products=4, congestion="cubic"), 0.1),
        (path(10, 0.040, congestion="cubic"), path(1, 0.100, products=5, congestion="cubic"), 0.1),
        # Half a second was what one segment took there.
        (path(48, 0.020, congestion="cubic"), path(0.29, 0.040, products=20, congestion="cubic"), 0.3),
    ],
)
def test_bulk_over_very_unequal_paths_comes_without_a_gap(fast: Route, slow: Route, longest: float) -> None:
    def rate_and_gap(*routes: Route) -> tuple[float, float]:
        """Bytes per second, and the longest time without any, after two seconds in which rates become known."""
        pair = Pair(routes, client=CLIENT, watched=False)
        assert pair.until(lambda: pair.server is not None and len(pair.peer.active) == len(routes), 9)
        pair.peer.write(bytes(50_000_000))
        pair.run(2.0)
        came = arrivals(pair, 4.0)
        (began, before), (ended, after) = came[0], came[-1]
        return (after - before) / (ended - began), max(b - a for (a, _), (b, _) in pairwise(came))

    alone, _ = rate_and_gap(fast)
    both, gap = rate_and_gap(fast, slow)
    assert gap < longest
    assert both > 0.97 * alone


@pytest.mark.parametrize("congestion", ["cubic", "bbr"])
def test_redundant_is_as_fast_as_the_best_path_and_as_steady(congestion: str) -> None:
    """What the fast path had no credit for left on the slow one alone: nine gaps of up to 0.65 s in ten seconds."""
    fast, slow = path(20, 0.060, congestion=congestion), path(0.5, 0.150, congestion=congestion)
    client = replace(CLIENT, policy=Policy("redundant"), peer_policy=Policy("redundant"))
    pair = Pair([fast, slow], client=client, watched=False)
    assert pair.until(lambda: pair.server is not None and len(pair.peer.active) == 2, 9)
    pair.peer.write(bytes(40_000_000))
    pair.run(2.0)
    came = arrivals(pair, 6.0)
    (began, before), (ended, after) = came[0], came[-1]
    assert (after - before) / (ended - began) > 0.97 * fast.down.rate * 0.95
    assert max(b - a for (a, _), (b, _) in pairwise(came)) < 0.2


@pytest.mark.parametrize(
    ("good", "fades"),
    [
        (path(20, 0.060, products=1.7), path(30, 0.010, products=10)),
        (path(20, 0.060, products=1.7, congestion="cubic"), path(30, 0.010, products=10, congestion="cubic")),
        (path(50, 0.020, products=2.5), path(50, 0.021, products=2.5)),
        (path(50, 0.020, products=2.5, congestion="cubic"), path(50, 0.021, products=2.5, congestion="cubic")),
        (path(5, 0.020, products=0.7), path(20, 0.080, products=2.5)),
    ],
)
def test_a_path_that_fades_stops_the_reader_for_a_moment_only(good: Route, fades: Route) -> None:
    """It went on to deliver a little, so nobody looked for why so little came; what was behind it came in lumps."""
    pair = Pair([good, fades], client=CLIENT, watched=False)
    assert pair.until(lambda: pair.server is not None and len(pair.peer.active) == 2, 9)
    pair.peer.write(bytes(80_000_000))
    pair.run(3.0)
    for wire in pair.wires:
        if wire.route == fades:
            for direction in (wire.up, wire.down):
                assert isinstance(direction, PathDirection)
                direction.fade(0.05)
    came = arrivals(pair, 4.0)
    assert max(b - a for (a, _), (b, _) in pairwise(came)) < 0.2
    assert came[-1][1] - came[0][1] > 0.9 * 4.0 * good.down.rate


@pytest.mark.parametrize("products", [1.2, 8.0])  # of the slow path's queue
def test_a_path_of_a_hundredth_holds_up_nobody(products: float) -> None:
    """Readers waited 0.32 s again and again: losses there are noticed late, and a long queue is as bad."""
    fast = path(20, 0.060, products=1.7, congestion="cubic")
    pair = Pair([fast, path(0.2, 0.100, products=products, congestion="cubic")], client=CLIENT, watched=False)
    assert pair.until(lambda: pair.server is not None and len(pair.peer.active) == 2, 9)
    pair.peer.write(bytes(80_000_000))
    pair.run(2.0)
    came = arrivals(pair, 4.0)
    assert max(b - a for (a, _), (b, _) in pairwise(came)) < 0.2
    assert came[-1][1] - came[0][1] > 0.93 * 4.0 * fast.down.rate


@pytest.mark.parametrize(
    ("near", "far", "longest"),
    [
        # It was 1.3, 0.26 and 0.72 s: the far path sent a window, then stood still, and the reader waited for the rest.
        (path(20, 0.020), path(8, 0.600), 0.1),
        (path(20, 0.020, congestion="cubic"), path(8, 0.200, congestion="cubic"), 0.2),
        (path(20, 0.040, congestion="cubic"), path(5, 0.300, congestion="cubic"), 0.3),
    ],
)
def test_a_far_path_that_joins_hardly_stops_the_reader(near: Route, far: Route, longest: float) -> None:
    pair = Pair([near, far], client=CLIENT, watched=False)
    pair.refused.add(1)
    assert pair.until(lambda: pair.server is not None and len(pair.peer.active) == 1, 9)
    pair.peer.write(bytes(30_000_000))
    pair.run(1.0)
    pair.refused.clear()
    assert pair.until(lambda: len(pair.peer.active) == 2, 9)
    came = []
    for _ in range(150):
        pair.run(0.02)
        came.append((pair.clock.now, pair.client.got()))
    little = near.down.rate / 10
    waits = [b - a for (a, before), (b, after) in combinations(came, 2) if after - before < little * (b - a)]
    assert max(waits, default=0.0) < longest
    assert came[-1][1] - came[0][1] > 0.9 * near.down.rate * (came[-1][0] - came[0][0])


def test_a_long_path_starts_although_the_window_is_small_yet() -> None:
    # Waiting for the fast path until the window had grown cost the other one a round trip of its slow start.
    together = download(path(35, 0.010, products=6), path(65, 0.330), size=20_000_000)
    assert together < 3.3


def copied(round_trip: float, congestion: str) -> int:
    """Bytes sent twice in a download over two equal paths with a small window."""
    small = SessionSettings(protect=Protect.NEVER, max_stream_window=1 << 19, max_session_window=1 << 19)
    each = path(10, round_trip, products=5, congestion=congestion)
    pair = Pair([each, each], client=small, server=small, watched=False)
    assert pair.until(lambda: pair.server is not None and len(pair.peer.active) == len(pair.client.active) == 2, 9)
    pair.run(1.0)
    transfer(pair, pair.peer, 5_000_000)
    return sum(c.reinjected for c in pair.peer.session.connections.values())


@pytest.mark.parametrize("congestion", ["bbr", "cubic"])
def test_bytes_about_to_arrive_are_not_copied_although_much_waits_behind_them(congestion: str) -> None:
    # All that a path held was taken for what was ahead of its oldest bytes: healthy paths copied each other's. Where
    # losses of both fall together, as in a run now and then, more is copied.
    assert median(copied(round_trip, congestion) for round_trip in (0.042, 0.044, 0.046)) < 200_000


def test_segments_given_at_once_do_not_all_leave_at_once() -> None:
    # All looked as early as the first, so the slow path got three and the last came when all else had been read.
    fast, slow = route(1e6, 0.010), route(0.3e6, 0.050)
    pair = opened(fast)
    alone = transfer(pair, pair.client, 200_000)
    pair = opened(fast, slow)
    assert transfer(pair, pair.client, 200_000) < 0.95 * alone


@pytest.mark.parametrize("congestion", ["bbr", "cubic"])
@pytest.mark.parametrize(
    ("size", "share"), [pytest.param(5_000_000, 0.55, marks=pytest.mark.slow), (1_000_000, 0.65), (100_000, 0.95)]
)
def test_two_equal_paths_halve_the_time(congestion: str, size: int, share: float) -> None:
    each = path(10, 0.044, products=5, congestion=congestion)
    assert download(each, each, size=size) <= share * download(each, size=size)


# --- urgent beside bulk  ---


@pytest.mark.parametrize("congestion", ["bbr", "cubic"])
def test_an_urgent_byte_waits_for_little_of_the_bulk_given_away_before_it(congestion: str) -> None:
    routes = path(40, 0.003, congestion=congestion), path(30, 0.040, congestion=congestion)

    def upload(*, urgent: bool) -> tuple[int, float, float]:
        """Bytes of bulk read within a time, the median of what urgent bytes took, the shortest round trip."""
        pair = Pair(routes, client=CLIENT, watched=False)
        client = pair.client
        assert pair.until(lambda: pair.server is not None and len(pair.peer.active) == len(client.active) == 2, 9)
        pair.run(0.2)
        stream = client.open_stream(0) if urgent else None
        end, took = pair.clock.now + 1.3, list[float]()
        client.write(data(pair, 20_000_000))
        pair.run(0.6)
        while stream is not None and len(took) < 15:
            asked = pair.clock.now
            client.write(b"?", stream)
            assert pair.until(lambda: pair.peer.got(stream) > len(took), 1.0)
            took.append(pair.clock.now - asked)
            pair.run(0.020)
        assert pair.clock.now < end
        pair.run(end - pair.clock.now)
        trip = min(connection.rtt for connection in client.session.connections.values())
        return pair.peer.got(), median(took or [0.0]), trip

    carried, took, trip = upload(urgent=True)
    assert took <= 1.5 * trip + 0.005, "the answer would take half a round trip more"
    assert carried >= 0.97 * upload(urgent=False)[0], "bulk pays nothing for it"


@pytest.mark.parametrize("routes", [(path(40, 0.050, loss=0.03),), (path(40, 0.006, loss=0.05, products=10),)])
def test_bulk_over_a_path_that_loses_packets_pays_nothing_for_an_urgent_stream(routes: tuple[Route, ...]) -> None:
    """What has come and waits at the peer for a lost packet was taken for a queue, and bulk fell to half."""

    def upload(*, urgent: bool) -> float:
        pair = Pair(routes, client=CLIENT, watched=False)
        assert pair.until(lambda: pair.server is not None and len(pair.client.active) == len(routes), 9)
        pair.run(0.2)
        if urgent:
            assert pair.client.open_stream(0) is not None
        start, size = pair.clock.now, 8_000_000
        pair.client.write(data(pair, size))
        assert pair.clock.run_until(lambda: pair.peer.got() == size, 60.0, max_events=10**7)
        return pair.clock.now - start

    assert upload(urgent=True) <= upload(urgent=False) / 0.97


def test_bulk_beside_an_urgent_stream_fills_a_path_whose_way_has_become_longer() -> None:
    """Its round trips were taken for queues for good: it carried a third."""
    rate = 50e6 / 8
    pair = Pair([path(50, 0.020, products=9.0, congestion="cubic")], client=CLIENT, watched=False)
    assert pair.until(lambda: pair.server is not None and pair.server.session.confirmed, 9.0)
    urgent, bulk = pair.peer.open_stream(0), pair.peer.open_stream(3)
    assert urgent is not None
    assert bulk is not None
    pair.peer.write(b"now", urgent)
    pair.peer.write(bytes(int(20 * rate)), bulk)
    pair.run(2.0)
    for wire in pair._wires(0):
        for direction in (wire.up, wire.down):
            assert isinstance(direction, PathDirection)
            direction.spec = replace(direction.spec, delay=0.030)
    pair.run(5.0)
    came = pair.client.got(bulk)
    pair.run(5.0)
    assert pair.client.got(bulk) - came > 0.9 * 5.0 * rate
