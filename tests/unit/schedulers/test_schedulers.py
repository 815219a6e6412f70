"""Each scheduler's choices, one question at a time."""

from __future__ import annotations

import gc
import runpy
import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import multi
from multi.errors import ConfigError
from multi.schedulers import create_scheduler, register_scheduler, scheduler_names
from multi.schedulers.base import ConnectionView, Scheduler, SendRequest
from multi.schedulers.estimates import arrival
from multi.types import STREAM_ZERO, ConnectionId, Role
from tests.unit.schedulers.views import FakeView, view

SHIPPED = [n for n in scheduler_names() if type(create_scheduler(n, {})).__module__.startswith("multi.schedulers.")]
SEGMENT = 16_000
POLL = 0.005  # the session asks a waiting scheduler at least this often


def request(
    now: float = 1.0,
    size: int = SEGMENT,
    backlog: int = 1_000_000,
    window: int = 1_000_000,
    reinjection: bool = False,
    window_grows: bool = False,
    may_copy: bool = False,
) -> SendRequest:
    return SendRequest(STREAM_ZERO, 3, size, backlog, window, reinjection, now, window_grows, may_copy)


def chosen(scheduler: Scheduler, views: Sequence[ConnectionView], asked: SendRequest) -> list[int]:
    return [c.id for c in scheduler.select(asked, views)]


# Every scheduler


def test_every_scheduler_of_the_package_can_be_named_in_a_configuration() -> None:
    for name in SHIPPED:
        assert multi.Config(listen={}, multi_config={"scheduler": name}).multi_config.scheduler.name == name


@pytest.mark.parametrize("name", SHIPPED)
def test_a_single_connection_is_always_chosen(name: str) -> None:
    scheduler = create_scheduler(name, {})
    assert [chosen(scheduler, [view(7)], request(now=t / 10)) for t in range(5)] == [[7]] * 5


@pytest.mark.parametrize("name", SHIPPED)
@pytest.mark.parametrize("reinjection", [False, True])
def test_a_blocked_connection_that_carries_nothing_is_never_waited_for(name: str, reinjection: bool) -> None:
    fast_but_blocked = view(1, credit=0, rtt=0.005, rate=1e8, congestion_window=10**7)
    scheduler = create_scheduler(name, {"n": 1} if name.startswith("top") else {})
    asked = request(reinjection=reinjection)
    assert chosen(scheduler, [fast_but_blocked, view(2)], asked) == [2]


@pytest.mark.parametrize("name", SHIPPED)
def test_waiting_for_a_stalled_connection_ends_within_two_of_its_round_trips(name: str) -> None:
    stalled = view(1, credit=0, rtt=0.050, rate=1e8, congestion_window=10**7, in_flight=64_000, not_sent=16_000)
    slow = view(2, rtt=0.500, rate=20_000.0, congestion_window=10_000)
    scheduler = create_scheduler(name, {"n": 1} if name.startswith("top") else {})
    waits = 0
    while not chosen(scheduler, [stalled, slow], request(now=1 + waits * POLL)):
        waits += 1
    bound = 1.0 if name == "cost" else 0.100  # a costly connection joins when cheap ones stall for `seconds`
    assert waits * POLL <= bound + 2 * POLL
    # and it is not waited for again until it moves
    assert chosen(scheduler, [stalled, slow], request(now=1 + (waits + 1) * POLL)) == [2]


@pytest.mark.parametrize("name", SHIPPED)
def test_reinjected_bytes_go_to_a_remaining_connection_whatever_its_rank(name: str) -> None:
    scheduler = create_scheduler(name, {"n": 1} if name.startswith("top") else {})
    best, worse, worst = view(1, rtt=0.005, rate=1e7), view(2, rtt=0.1), view(3, rtt=0.3, rate=1e5)
    assert 1 in chosen(scheduler, [best, worse, worst], request(now=1.0))
    assert 2 in chosen(scheduler, [worse, worst], request(now=1.0, reinjection=True))
    if name == "top_latency":  # being left out of one answer has not cost the best its rank
        assert chosen(scheduler, [best, worse, worst], request(now=1.1)) == [1]


facts = st.builds(
    view,
    st.just(0),
    credit=st.sampled_from([0, 0, 1, 16_000, 1 << 30]),
    rtt=st.sampled_from([0.0, 1e-6, 0.01, 0.6, 3600.0]),
    min_rtt=st.sampled_from([0.0, 1e-6, 0.01, 0.6, 3600.0]),
    rate=st.sampled_from([0.0, 1e-9, 1.0, 1e6, 1e12]),
    in_flight=st.sampled_from([0, 1, 64_000, 1 << 40]),
    not_sent=st.sampled_from([0, 1, 64_000, 1 << 40]),
    congestion_window=st.sampled_from([0, 1, 14_600, 1 << 40]),
    rtt_variation=st.sampled_from([0.0, 0.01, 100.0]),
    weight=st.sampled_from([1e-9, 1.0, 1e9]),
    cost=st.sampled_from([0.0, 1.0, 5.0]),
)
situations = st.lists(facts, min_size=1, max_size=5).map(
    lambda views: [replace(v, id=ConnectionId(i)) for i, v in enumerate(views, start=1)]
)
requests = st.builds(
    request,
    size=st.sampled_from([1, 16_000, 65_536]),
    backlog=st.sampled_from([1, 16_000, 1 << 40]),
    window=st.sampled_from([1, 16_000, 1 << 40]),
    reinjection=st.booleans(),
    may_copy=st.booleans(),
)


@pytest.mark.parametrize("name", SHIPPED)
@settings(max_examples=30)  # of each scheduler, of several questions each
@given(steps=st.lists(st.tuples(situations, requests, st.sampled_from([0.0, 0.001, 0.3, 50.0])), max_size=8))
def test_any_facts_give_an_answer_among_the_connections_with_credit(
    name: str, steps: list[tuple[list[FakeView], SendRequest, float]]
) -> None:
    scheduler = create_scheduler(name, {})
    now = 0.0
    for views, asked, step in steps:
        now += step
        answer = scheduler.select(asked._replace(now=now), views)
        assert all(any(c is v for v in views) for c in answer)
        assert len({c.id for c in answer}) == len(answer)
        if any(v.credit for v in views) and len(views) > 1:
            assert all(c.credit for c in answer)


@pytest.mark.parametrize("name", SHIPPED)
@settings(max_examples=50)  # of each scheduler
@given(
    views=situations.filter(lambda views: any(v.credit for v in views)),
    asked=requests,
    moves=st.booleans(),
    step=st.sampled_from([0.0005, POLL, 0.2]),
)
def test_a_connection_with_credit_is_used_within_bounded_time(
    name: str, views: list[FakeView], asked: SendRequest, moves: bool, step: float
) -> None:
    """Whatever the facts say, and even if the blocked ones seem to move all the time."""
    scheduler = create_scheduler(name, {})
    now = 0.0
    while not any(c.credit for c in scheduler.select(asked._replace(now=now), views)):
        now += step
        if moves:
            views = [replace(v, in_flight=v.in_flight + (v.credit == 0)) for v in views]
        assert now <= 2.0 + 2 * step


@pytest.mark.parametrize("name", SHIPPED)
def test_connections_that_are_gone_are_forgotten(name: str) -> None:
    """Ids are never used again: a session that changes networks for years must not keep what it knew of each."""
    scheduler = create_scheduler(name, {})

    def serve(connections: range) -> None:
        for number in connections:
            now = 10.0 * number
            blocked = view(number, credit=0, in_flight=50_000, not_sent=20_000, rtt=0.010, rate=1e7)
            others = [view(number + 1, rtt=0.5, rate=20_000.0), view(number + 2, rtt=0.4, rate=30_000.0)]
            for reinjection in (False, True):
                copied = not reinjection
                scheduler.select(request(now=now, reinjection=reinjection, may_copy=copied), [blocked, *others])
                scheduler.select(request(now=now + 1, reinjection=reinjection, may_copy=copied), others)

    serve(range(0, 600, 3))
    tracemalloc.start()
    serve(range(600, 3_600, 3))
    gc.collect()  # frees what the interpreter keeps to use again, too
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 10_000


def test_what_comes_back_another_way_is_as_far_as_it_is() -> None:
    near, far = view(1, rtt=0.020), view(2, rtt=0.060, asymmetry=0.020)
    assert arrival(far, 10_000) - arrival(near, 10_000) == pytest.approx(0.040)
    begun = far.but(rate=0.0)
    assert arrival(begun, 10_000) - arrival(begun.but(asymmetry=0.0), 10_000) == pytest.approx(0.020)


# RR and WRR


def test_round_robin_alternates_and_skips_the_blocked() -> None:
    scheduler = create_scheduler("RR", {})
    a, b, c = view(1), view(2), view(3)
    blocked = replace(b, credit=0, in_flight=50_000, rtt=0.001)
    assert [chosen(scheduler, [a, b, c], request()) for _ in range(4)] == [[1], [2], [3], [1]]
    assert [chosen(scheduler, [a, blocked, c], request()) for _ in range(3)] == [[3], [1], [3]]
    assert chosen(scheduler, [a, b, c], request()) == [1]


def test_round_robin_gives_reinjected_bytes_to_the_earliest_arrival() -> None:
    scheduler = create_scheduler("RR", {})
    views = [view(1, rtt=0.5), view(2, rtt=0.01), view(3, rtt=0.2)]
    assert [chosen(scheduler, views, request(reinjection=True)) for _ in range(3)] == [[2]] * 3


def test_weighted_round_robin_splits_bytes_by_weight_within_two_percent() -> None:
    scheduler = create_scheduler("WRR", {})
    views = [view(1, weight=1.0), view(2, weight=3.0), view(3, weight=0.5)]
    sent = {1: 0, 2: 0, 3: 0}
    for i in range(5_000):
        size = 1_000 + (i * 7_919) % 15_000  # segments of all sizes
        (number,) = chosen(scheduler, views, request(size=size))
        sent[number] += size
    total = sum(sent.values())
    assert [sent[i] / total for i in (1, 2, 3)] == pytest.approx([1 / 4.5, 3 / 4.5, 0.5 / 4.5], rel=0.02)


def test_weighted_round_robin_catches_up_no_more_than_its_bound_after_a_block() -> None:
    scheduler = create_scheduler("WRR", {})
    views = [view(1), view(2)]
    assert [chosen(scheduler, views, request()) for _ in range(2)] == [[1], [2]]
    for _ in range(1_000):
        assert chosen(scheduler, [views[0], replace(views[1], credit=0)], request()) == [1]
    run = 0
    while chosen(scheduler, views, request()) == [2]:
        run += 1
    assert run * SEGMENT <= 256 * 1024 + 2 * SEGMENT


# Latency and throughput ranks


def test_lowest_latency_spills_to_the_next_when_blocked_and_ranks_the_unknown_last() -> None:
    scheduler = create_scheduler("LL", {})
    near, far, unknown = view(1, rtt=0.010), view(2, rtt=0.080), view(3, rtt=0.0)
    assert chosen(scheduler, [near, far, unknown], request()) == [1]
    near = replace(near, credit=0, in_flight=10)
    assert chosen(scheduler, [near, far, unknown], request()) == [2]
    assert chosen(scheduler, [near, replace(far, credit=0), unknown], request()) == [3]


def test_top_latency_uses_only_the_n_lowest_and_waits_for_them() -> None:
    scheduler = create_scheduler("top_latency", {"n": 2})
    views = [view(1, rtt=0.3), view(2, rtt=0.010), view(3, rtt=0.020)]
    assert chosen(scheduler, views, request()) == [2]
    views[1] = replace(views[1], credit=0, in_flight=64_000)
    assert chosen(scheduler, views, request()) == [3]
    views[2] = replace(views[2], credit=0, in_flight=64_000)
    assert chosen(scheduler, views, request()) == []


def test_top_latency_rank_changes_only_for_a_clear_advantage_and_after_a_second() -> None:
    scheduler = create_scheduler("top_latency", {"n": 1})

    def best(now: float, first: float, second: float) -> list[int]:
        return chosen(scheduler, [view(1, rtt=first), view(2, rtt=second)], request(now=now))

    assert best(0.0, 0.050, 0.060) == [1]
    assert best(5.0, 0.050, 0.046) == [1]  # better by 8 %: noise
    assert best(5.1, 0.050, 0.040) == [2]  # better by 20 %
    assert best(5.9, 0.050, 0.100) == [2]  # much worse, but 0.8 s after the last change
    assert best(6.2, 0.050, 0.100) == [1]


def test_top_latency_fills_the_place_of_a_lost_connection_at_once() -> None:
    scheduler = create_scheduler("top_latency", {"n": 1})
    near, far = view(1, rtt=0.010), view(2, rtt=0.080)
    assert chosen(scheduler, [near, far, view(3, rtt=0.2)], request(now=1.0)) == [1]
    assert chosen(scheduler, [far, view(3, rtt=0.2)], request(now=1.001)) == [2]


def test_top_throughput_learns_unknown_rates_with_a_bounded_probe_then_takes_the_best() -> None:
    scheduler = create_scheduler("top_throughput", {"n": 1})
    slow, unknown = view(1, rate=1e6), view(2, rate=0.0, congestion_window=0)
    first = [chosen(scheduler, [slow, unknown], request(now=0.1 * i, size=16_384)) for i in range(8)]
    assert first == [[2]] * 4 + [[1]] * 4  # 64 KiB, then no more
    known = replace(unknown, rate=5e6)
    assert chosen(scheduler, [slow, known], request(now=1.5)) == [2]


def test_top_throughput_measures_the_others_again_after_five_seconds_of_bulk() -> None:
    scheduler = create_scheduler("top_throughput", {"n": 1})
    views = [view(1, rate=2e6), view(2, rate=1e6)]
    small = [chosen(scheduler, views, request(now=t, backlog=SEGMENT)) for t in (0.0, 3.0, 6.0)]
    assert small == [[1]] * 3
    assert chosen(scheduler, views, request(now=6.1)) == [2]


def test_top_throughput_rank_needs_a_clear_advantage() -> None:
    scheduler = create_scheduler("top_throughput", {"n": 1})
    assert chosen(scheduler, [view(1, rate=1e6), view(2, rate=0.9e6)], request(now=0.0)) == [1]
    assert chosen(scheduler, [view(1, rate=1e6), view(2, rate=1.1e6)], request(now=2.0)) == [1]
    assert chosen(scheduler, [view(1, rate=1e6), view(2, rate=1.2e6)], request(now=3.0)) == [2]


# BLEST and ECF


def test_blest_waits_when_the_slow_segment_would_block_the_window() -> None:
    # F: 10 ms, cwnd 50,000. S: 100 ms. While S delivers, F has 100/10 + 1 = 11 round trips.
    # F could send (50,000 + 1448 * 10/2) * 11 * lambda = 749,000 bytes;
    # lambda is 1.19, as it falls by 0.01 at the first call.
    faster = view(1, credit=0, rtt=0.010, in_flight=50_000)
    slower = view(2, rtt=0.100)
    scheduler = create_scheduler("BLEST", {})
    # Window: 600,000 + 50,000 in flight - 16,000 for S = 634,000: too small for both.
    assert chosen(scheduler, [faster, slower], request(window=600_000)) == []
    # 750,000 + 50,000 - 16,000 = 784,000: room for both.
    assert chosen(scheduler, [faster, slower], request(now=1.001, window=750_000)) == [2]


def test_blest_becomes_more_careful_after_a_reinjection() -> None:
    # As above: 749,000 bytes at lambda 1.19, 774,000 at 1.23. Room: 730,000 + 50,000 - 16,000 = 764,000.
    faster = view(1, credit=0, rtt=0.010, in_flight=50_000)
    slower = view(2, rtt=0.100)
    scheduler = create_scheduler("BLEST", {})
    assert chosen(scheduler, [faster, slower], request(now=1.0, window=730_000)) == [2]
    assert chosen(scheduler, [faster, slower], request(now=1.1, reinjection=True)) == [2]
    assert chosen(scheduler, [faster, slower], request(now=1.2, window=730_000)) == []


def test_ecf_waits_when_all_that_is_left_would_be_complete_sooner_on_the_faster() -> None:
    # F: 10 ms, cwnd 50,000; S: 100 ms, cwnd 50,000; 200,000 bytes left; delta 0.
    # F: 0.010 * (200,000 + 50,000) = 2,500 < 50,000 * 0.100 = 5,000: F would be done before S.
    # S: 0.100 * 200,000 = 20,000 >= 50,000 * 2 * 0.010 = 1,000: and S would not make up for it. Wait.
    faster = view(1, credit=0, rtt=0.010, in_flight=50_000)
    slower = view(2, rtt=0.100)
    scheduler = create_scheduler("ECF", {})
    assert chosen(scheduler, [faster, slower], request(backlog=200_000)) == []
    # 500,000 left: 5,500. More than 5,000, but within the quarter of hysteresis (6,250) once waiting.
    assert chosen(scheduler, [faster, slower], request(now=1.001, backlog=500_000)) == []
    # 600,000 left: 6,500. Both are needed.
    assert chosen(scheduler, [faster, slower], request(now=1.002, backlog=600_000)) == [2]
    # Not waiting any more: 5,500 is now too much.
    assert chosen(scheduler, [faster, slower], request(now=1.003, backlog=500_000)) == [2]


def test_ecf_uses_the_slower_connection_when_it_is_hardly_slower() -> None:
    # F: 10 ms, S: 19 ms, delta 5 ms, 50,000 bytes left on windows of 50,000.
    # F: 0.010 * (50,000 + 50,000) = 1,000 < 50,000 * (0.019 + 0.005) = 1,200: F alone would be sooner,
    # S: 0.019 * 50,000 = 950 < 50,000 * (2 * 0.010 + 0.005) = 1,250: but S finishes before F's second round.
    faster = view(1, credit=0, rtt=0.010, in_flight=50_000)
    slower = view(2, rtt=0.019, rtt_variation=0.005)
    assert chosen(create_scheduler("ECF", {}), [faster, slower], request(backlog=50_000)) == [2]


# Redundant and cost


def test_redundant_sends_on_all_with_credit() -> None:
    scheduler = create_scheduler("redundant", {})
    views = [view(1, rtt=0.01), view(2, credit=0), view(3, rtt=0.02), view(4, rtt=0.005)]
    assert chosen(scheduler, views, request()) == [3, 1, 4], "who is expected to deliver comes last"


def test_redundant_awaits_who_would_deliver_first_as_long_as_that_moves() -> None:
    """What leaves on the slow one alone is not redundant, and the reader waits for it."""
    scheduler = create_scheduler("redundant", {})
    fast = view(1, credit=0, rtt=0.030, rate=2.5e6, in_flight=100_000)
    slow = view(2, rtt=0.020, rate=30_000.0)
    assert chosen(scheduler, [fast, slow], request(size=16_000)) == []
    assert chosen(scheduler, [fast, slow], request(size=16_000, now=1.5)) == [2], "it stands still"
    assert chosen(scheduler, [fast, slow], request(size=16_000, reinjection=True)) == [2]
    assert chosen(scheduler, [fast, view(2, rtt=0.020, rate=3e6)], request(size=16_000)) == [2]


def test_redundant_n_takes_the_n_nearest() -> None:
    scheduler = create_scheduler("redundant", {"n": 2})
    views = [view(1, rtt=0.2), view(2, rtt=0.01), view(3, rtt=0.1)]
    assert chosen(scheduler, views, request()) == [3, 2], "who is expected to deliver comes last"


def test_cost_leaves_the_costly_connection_alone_while_the_cheap_one_copes() -> None:
    scheduler = create_scheduler("cost", {})
    cheap, costly = view(1, rate=1e6), view(2, rate=1e8, rtt=0.005, cost=1.0)
    assert chosen(scheduler, [cheap, costly], request(backlog=900_000)) == [1]
    blocked = replace(cheap, credit=0, in_flight=64_000)
    assert chosen(scheduler, [blocked, costly], request(backlog=900_000)) == []


def test_cost_lets_the_costly_connection_join_when_the_backlog_takes_too_long() -> None:
    # 1.1 MB at 1 MB/s takes 1.1 s on the cheap one; the limit is 1 s, or 2 s if configured so.
    cheap, costly = view(1, rate=1e6, credit=0, in_flight=64_000), view(2, cost=1.0)
    assert chosen(create_scheduler("cost", {}), [cheap, costly], request(backlog=1_100_000)) == [2]
    assert chosen(create_scheduler("cost", {"seconds": 2}), [cheap, costly], request(backlog=1_100_000)) == []


def test_cost_uses_the_costly_connection_when_it_is_the_only_one_left() -> None:
    scheduler = create_scheduler("cost", {})
    assert chosen(scheduler, [view(2, cost=1.0), view(3, cost=2.0)], request(backlog=1)) == [2]


# Adaptive


def test_adaptive_takes_the_earliest_arrival_not_the_lowest_latency() -> None:
    scheduler = create_scheduler("adaptive", {})
    # 1: 5 ms of delay, but 100 kB to drain at 1 MB/s = 121 ms. 2: 25 ms and 16 ms for the segment = 41 ms.
    views = [view(1, rtt=0.010, in_flight=110_000), view(2, rtt=0.050)]
    assert chosen(scheduler, views, request()) == [2]


def test_adaptive_counts_unsent_bytes_once() -> None:
    scheduler = create_scheduler("adaptive", {})
    # 1: 50 kB in flight, 40 kB of it unsent, BDP 10 kB: 40 kB to drain: 5 + 56 = 61 ms, not 101.
    # 2: 75 + 16 = 91 ms.
    views = [view(1, rtt=0.010, in_flight=50_000, not_sent=40_000), view(2, rtt=0.150)]
    assert chosen(scheduler, views, request()) == [1]


def test_adaptive_waits_when_the_slow_connection_would_only_delay() -> None:
    scheduler = create_scheduler("adaptive", {})
    # F: 10 ms, 5 MB/s, 100 kB on it (50 kB queue). 100 kB waiting: (50 + 100) / 5000 + 5 ms = 35 ms.
    # S: 100 ms, 1 MB/s: one segment of 16 kB takes 66 ms.
    faster = view(1, credit=0, rtt=0.010, rate=5e6, in_flight=100_000)
    slower = view(2, rtt=0.100)
    assert chosen(scheduler, [faster, slower], request(backlog=100_000)) == []
    # 1 MB waiting: F needs 215 ms, so S helps; but not if the window ends after 100 kB, unless it grows.
    assert chosen(scheduler, [faster, slower], request(backlog=1_000_000)) == [2]
    assert chosen(scheduler, [faster, slower], request(backlog=1_000_000, window=100_000)) == []
    assert chosen(scheduler, [faster, slower], request(backlog=1_000_000, window=100_000, window_grows=True)) == [2]
    # 270 kB take 69 ms. Where the window with what is in flight is 320 kB, of which the reader may not have told a
    # sixteenth yet, F has sent the others after 70 ms: 1 ms too soon to hear that the segment has come after 66.
    assert chosen(scheduler, [faster, slower], request(backlog=270_000, window=270_000)) == [2]
    assert chosen(scheduler, [faster, slower], request(backlog=1_000_000, window=220_000)) == []
    assert chosen(scheduler, [faster, slower], request(backlog=1_000_000, window=240_000)) == [2]


def test_adaptive_lets_nothing_wait_in_a_queue_that_is_long_enough() -> None:
    """However much waits behind it: what comes meanwhile on the other connection would have to wait for this."""
    faster = view(1, credit=0, rtt=0.010, rate=5e6, in_flight=100_000)
    slower = view(2, rtt=0.100, in_flight=200_000)
    full = slower.but(is_full=True)
    for much in (request(backlog=10**7, window=10**7), request(backlog=10**7, window=10**6)):
        assert chosen(create_scheduler("adaptive", {}), [faster, slower], much) == [2]
        assert chosen(create_scheduler("adaptive", {}), [faster, full], much) == []
        far_behind = faster.but(in_flight=3_000_000)
        assert chosen(create_scheduler("adaptive", {}), [far_behind, full], much) == [2], "it comes sooner here"
    scheduler = create_scheduler("adaptive", {})
    asked = [chosen(scheduler, [faster, full], request(1.0 + POLL * step, backlog=10**7)) for step in range(40)]
    assert asked[0] == []
    assert asked[-1] == [2], "the other one does not move"


def test_adaptive_shares_a_shut_window_however_little_room_is_left() -> None:
    """What is in flight makes room before the nearer connection has sent all that the window holds."""
    near, far = view(1, credit=0, rtt=0.020, rate=10e6, in_flight=250_000), view(2, rtt=0.022, rate=10e6)
    far = far.but(in_flight=200_000)
    scheduler = create_scheduler("adaptive", {})
    assert chosen(scheduler, [near, far], request(window=20_000)) == [2]
    assert chosen(scheduler, [near.but(credit=65_536), far], request(window=20_000)) == [2]
    near, far = near.but(in_flight=50_000), far.but(in_flight=0, rtt=0.040)
    assert chosen(scheduler, [near, far], request(window=20_000)) == [], "the window is as small as that"


def test_adaptive_leaves_the_end_of_a_transfer_to_a_connection_that_loses_nothing() -> None:
    """What it would bring sooner waits behind a loss for a round trip."""
    clean, lossy = view(1, credit=0, rtt=0.020, rate=10e6, in_flight=300_000), view(2, rtt=0.030, rate=10e6)
    lossy = lossy.but(in_flight=100_000)
    end = request(backlog=100_000)
    assert chosen(create_scheduler("adaptive", {}), [clean, lossy], end) == [2]
    assert chosen(create_scheduler("adaptive", {}), [clean, lossy.but(loss=0.02)], end) == []
    assert chosen(create_scheduler("adaptive", {}), [clean.but(loss=0.02), lossy.but(loss=0.02)], end) == [2]
    growing = request(backlog=100_000, window_grows=True)
    assert chosen(create_scheduler("adaptive", {}), [clean, lossy.but(loss=0.02)], growing) == [2], "more may follow"


def test_adaptive_gives_the_room_of_a_shut_window_to_the_nearer_connection() -> None:
    near, far = view(1, rtt=0.010, rate=10e6, in_flight=60_000, not_sent=60_000), view(2, rtt=0.018, rate=10e6)
    scheduler = create_scheduler("adaptive", {})
    assert chosen(scheduler, [near, far], request(window=2_000_000)) == [2], "it arrives there sooner"
    assert chosen(scheduler, [near, far], request(window=20_000)) == [1]
    assert chosen(scheduler, [near, far], request(window=20_000, window_grows=True)) == [2]
    assert chosen(scheduler, [near, far], request(window=500_000)) == [2], "there is room for both"


def test_adaptive_gives_the_room_of_a_shut_window_to_the_one_of_alike_connections_that_loses_less() -> None:
    lossy, clean = view(1, rtt=0.020, rate=10e6, loss=0.005, in_flight=64_000), view(2, rtt=0.020, rate=10e6)
    clean = clean.but(in_flight=100_000, not_sent=20_000)
    scheduler = create_scheduler("adaptive", {})
    assert chosen(scheduler, [lossy, clean], request(window=20_000, window_grows=True)) == [1], "it arrives sooner"
    assert chosen(scheduler, [lossy, clean], request(window=20_000)) == [2]
    assert chosen(scheduler, [lossy, clean.but(credit=0)], request(window=20_000)) == []
    farther = clean.but(rtt=0.030)
    assert chosen(scheduler, [lossy, farther], request(window=20_000)) == [1], "a repetition takes no longer than that"


def test_adaptive_doubts_what_a_connection_of_unknown_rate_does_with_the_room_of_a_shut_window() -> None:
    near = view(1, credit=0, rtt=0.010, rate=25e6, in_flight=600_000)
    far = view(2, rtt=0.050, rate=0.0, congestion_window=48_000)
    scheduler = create_scheduler("adaptive", {})
    # What F gets has to arrive within 26 ms, or N has sent all that there is room for. It takes 25, or 42 if the window
    # of F leaves bit by bit.
    assert chosen(scheduler, [near, far], request(window=450_000)) == []
    assert chosen(scheduler, [near, far.but(congestion_window=48_000_000)], request(window=450_000)) == [2]
    assert chosen(scheduler, [near, far.but(congestion_window=48_000_000)], request(window=250_000)) == []
    assert chosen(scheduler, [near, far.but(rate=1e9)], request(window=250_000)) == [2], "what is known counts on more"


def test_adaptive_takes_a_connection_for_as_far_as_its_own_long_queue_makes_it() -> None:
    """What is in that queue occupies the window for longer than the farther path would."""
    queue = view(1, credit=0, rtt=0.027, min_rtt=0.010, rate=5e6, in_flight=110_000)
    farther = view(2, rtt=0.026, rate=10e6)
    assert chosen(create_scheduler("adaptive", {}), [queue, farther], request(window=20_000)) == [2]
    short = queue.but(rtt=0.013, in_flight=60_000)
    assert chosen(create_scheduler("adaptive", {}), [short, farther], request(window=20_000)) == []


def test_adaptive_takes_no_connection_for_nearer_by_as_little_as_round_trips_vary() -> None:
    """Where two begin together, one stood idle while the other's kernel held 100 kB that had not left."""
    scheduler = create_scheduler("adaptive", {})
    busy = view(1, rtt=0.0100, rate=0.0, credit=0, in_flight=136_000, not_sent=104_000, congestion_window=58_000)
    idle = view(2, rtt=0.0101, rate=0.0, congestion_window=31_000)
    shut = request(backlog=7_700_000, window=120_000)
    assert chosen(scheduler, [busy, idle], shut) == [2]
    assert chosen(scheduler, [busy, idle.but(rtt=0.0120)], shut) == [], "that is more"


def test_adaptive_never_awaits_a_farther_connection_for_the_room_of_a_shut_window() -> None:
    near, far = view(1, rtt=0.010, in_flight=30_000), view(2, rtt=0.200, rate=10e6, credit=0, in_flight=1)
    assert chosen(create_scheduler("adaptive", {}), [near, far], request(window=20_000)) == [1]


def test_adaptive_waits_for_a_moving_connection_but_not_for_more_than_four_round_trips() -> None:
    scheduler = create_scheduler("adaptive", {})
    slower = view(2, rtt=0.600, rate=1e5)
    now, in_flight = 1.0, 100_000
    while not chosen(
        scheduler,
        [view(1, credit=0, rtt=0.030, rate=5e6, in_flight=in_flight), slower],
        request(now=now, backlog=SEGMENT),
    ):
        now += POLL
        in_flight -= 100
    assert 0.12 < now - 1.0 < 0.14


def test_adaptive_waits_with_reinjected_bytes_for_whoever_closes_the_gap_first() -> None:
    # F: (50 + 16) / 5000 + 5 ms = 18 ms whatever waits behind. S at 1 MB/s: 21 ms, at 2 MB/s: 13 ms.
    faster = view(1, credit=0, rtt=0.010, rate=5e6, in_flight=100_000)
    gap = request(backlog=10_000_000, reinjection=True)
    assert chosen(create_scheduler("adaptive", {}), [faster, view(2, rtt=0.010)], gap) == []
    assert chosen(create_scheduler("adaptive", {}), [faster, view(2, rtt=0.010, rate=2e6)], gap) == [2]


def test_adaptive_gives_a_far_connection_that_begins_copies_of_what_a_near_one_sends() -> None:
    """A reader would have to wait for each window that such a connection sends, and then for the next."""
    scheduler = create_scheduler("adaptive", {})
    near, far = view(1, rtt=0.020, rate=5e6), view(2, rtt=0.200, rate=0.0, congestion_window=15_000)
    asleep = near.but(credit=0, in_flight=100_000)
    much = request(backlog=10**7, window=10**7, may_copy=True)
    assert chosen(scheduler, [far, near], much) == [2, 1], "who is expected to deliver comes last"
    assert chosen(scheduler, [near, far.but(in_flight=10_000, overtaken=10_000)], much) == [2, 1]
    assert chosen(scheduler, [near, far.but(in_flight=10_000, overtaken=20_000)], much) == [1], "it has two windows"
    assert chosen(scheduler, [near, far], much._replace(backlog=100_000)) == [1]
    assert chosen(scheduler, [near, far], much._replace(may_copy=False)) == [1]
    assert chosen(scheduler, [near, far.but(rtt=0.070)], much) == [1], "nobody would notice"
    assert chosen(scheduler, [asleep, far], much) == []
    assert chosen(scheduler, [asleep, far], much._replace(may_copy=False)) == [2]
    assert chosen(scheduler, [asleep, far.but(rate=1e6)], much) == [2], "it is fast enough"
    assert chosen(scheduler, [asleep, far.but(congestion_window=130_000)], much) == [2], "so it will be"
    assert chosen(scheduler, [near, far.but(congestion_window=0)], much) == [1], "nobody knows how much it can send"
    assert chosen(scheduler, [asleep, far.but(role=Role.SECONDARY)], much) == [2], "it is used when there is no other"
    late = [chosen(scheduler, [near, far], much._replace(now=1.0 + trips * 0.200)) for trips in (7.9, 8.1)]
    assert late == [[2, 1], [1]]


def test_adaptive_ends_the_copies_for_far_connections_however_many_there_are() -> None:
    scheduler = create_scheduler("adaptive", {})
    near = view(1, rtt=0.020, rate=5e6)
    far = [view(2 + number, rtt=0.200, rate=0.0, congestion_window=15_000) for number in range(200)]
    much = request(backlog=10**7, window=10**7, may_copy=True)
    assert len(chosen(scheduler, [near, *far], much)) == 201
    chosen(scheduler, [near, *far], much._replace(now=2.0))
    assert chosen(scheduler, [near, *far], much._replace(now=2.7)) == [1]


def test_adaptive_never_waits_when_nothing_is_known() -> None:
    unknown = {"rtt": 0.0, "rate": 0.0, "congestion_window": 0, "in_flight": 64_000}
    scheduler = create_scheduler("adaptive", {})
    assert chosen(scheduler, [view(1, credit=0, **unknown), view(2, rtt=0.5, rate=1e3)], request()) == [2]
    assert chosen(scheduler, [view(1, credit=0, in_flight=64_000), view(2, **unknown)], request()) == [2]


def test_adaptive_probes_a_new_connection_with_two_segments() -> None:
    scheduler = create_scheduler("adaptive", {})
    known, new = view(1, rtt=0.020), view(2, rtt=0.030, rate=0.0, congestion_window=0)
    assert chosen(scheduler, [known, new], request()) == [2]
    assert chosen(scheduler, [known, replace(new, in_flight=16_000)], request()) == [2]
    assert chosen(scheduler, [known, replace(new, in_flight=33_000)], request()) == [1]


@pytest.mark.parametrize(("rtt", "probes"), [(0.020, [5.0]), (0.600, [])])
def test_adaptive_tests_a_bad_estimate_again_after_five_seconds(rtt: float, probes: list[float]) -> None:
    """A rate is renewed by traffic alone: judged slow once, a connection would stay unused for ever.

    Unless its delay alone makes it useless, whatever its rate.
    """
    scheduler = create_scheduler("adaptive", {})
    left_out = view(2, rtt=rtt, rate=1e4)
    used = []
    for step in range(1_200):  # 6 s in which 1 is blocked and free in turn
        asked = request(now=step * POLL, backlog=500_000)
        if step % 2:
            assert chosen(scheduler, [view(1, rtt=0.020, rate=5e6), left_out], asked) == [1]
        elif chosen(scheduler, [view(1, rtt=0.020, rate=5e6, credit=0, in_flight=200_000), left_out], asked):
            used.append(asked.now)
    assert used == probes


@pytest.mark.parametrize(
    ("slow", "used"),
    [
        (view(2, rtt=0.020, congestion_window=6_000, rate=3e5), True),  # a sixteenth of the other's rate
        (view(2, rtt=0.020, congestion_window=6_000, rate=2e5), False),  # a loss there is noticed by a timeout
        (view(2, rtt=0.020, congestion_window=6_000, rate=2e5, accelerates=True), True),
        (view(2, rtt=0.020, congestion_window=6_000, rate=2e5, accelerates=True, in_flight=40_000), False),
        (view(2, rtt=0.020, congestion_window=30_000, rate=2e5), True),
        (view(2, rtt=0.020, congestion_window=30_000, rate=2e5, in_flight=40_000), False),  # 0.2 s of a queue
        (view(2, rtt=0.020, congestion_window=6_000, rate=0.0), True),
    ],
)
def test_adaptive_gives_nothing_of_much_to_a_path_that_adds_next_to_nothing_and_holds_up_the_reader(
    slow: FakeView, used: bool
) -> None:
    scheduler = create_scheduler("adaptive", {})
    fast = view(1, rtt=0.030, rate=5e6, credit=0, in_flight=300_000)
    assert bool(chosen(scheduler, [fast, slow], request(backlog=5_000_000))) is used


@pytest.mark.parametrize("queue", [0, 40_000])
def test_adaptive_waits_for_no_path_that_stands_still_because_another_is_slow(queue: int) -> None:
    """While its window is small nothing else would be, and with a queue it waited for good."""
    scheduler = create_scheduler("adaptive", {})
    still = view(1, rtt=0.030, rate=5e6, credit=0, in_flight=300_000)
    slow = view(2, rtt=0.020, congestion_window=6_000, rate=2e5, in_flight=queue)
    answers = [chosen(scheduler, [still, slow], request(now=at * POLL, backlog=5_000_000)) for at in range(60)]
    assert answers[0] == []
    assert [2] in answers


def test_adaptive_gives_what_it_needs_to_become_fast_again_to_a_path_that_has_been() -> None:
    scheduler = create_scheduler("adaptive", {})
    fast = view(1, rtt=0.030, rate=5e6, credit=0, in_flight=300_000)
    for rate in (3e5, 2e5):
        slow = view(2, rtt=0.020, congestion_window=6_000, rate=rate)
        assert chosen(scheduler, [fast, slow], request(backlog=5_000_000)) == [2]


# Names and parameters


@pytest.mark.parametrize(
    ("name", "parameters", "key_path", "words"),
    [
        ("rr", {}, "", "did you mean 'RR'"),
        ("lowest_latncy", {}, "", "did you mean 'lowest_latency'"),
        ("", {}, "", "allowed: adaptive"),
        ("json:loads", {}, "", "unknown scheduler"),
        ("RR", {"n": 1.0}, "n", "no such parameter; allowed: none"),
        ("top_latency", {"m": 1.0}, "m", "allowed: n"),
        ("top_latency", {"n": 0.0}, "n", "a whole number from 1 to 64"),
        ("top_throughput", {"n": 1.5}, "n", "a whole number from 1 to 64"),
        ("redundant", {"n": -1.0}, "n", "a whole number from 0 to 64"),
        ("redundant", {"n": float("nan")}, "n", "a finite number"),
        ("cost", {"seconds": -1.0}, "seconds", "0 to 3600"),
        ("cost", {"second": 1.0}, "second", "did you mean 'seconds'"),
        ("cost", {"seconds": 10**400}, "seconds", "a finite number"),
        ("cost", {1: 2.0}, "1", "no such parameter"),
    ],
)
def test_a_wrong_name_or_parameter_is_explained(
    name: str, parameters: dict[str, float], key_path: str, words: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        create_scheduler(name, parameters)
    assert caught.value.key_path == key_path
    assert words in str(caught.value)


class Last:
    """Takes the last connection; also the class the import test names."""

    def __init__(self, step: float = 1.0) -> None:
        self.step = step

    def select(self, request: SendRequest, connections: Sequence[ConnectionView]) -> Sequence[ConnectionView]:
        return connections[-1:]


def test_a_registered_class_or_function_is_found_by_name_and_alias_and_gets_its_parameters() -> None:
    register_scheduler("test_last", aliases=("test_final",))(Last)
    for name in ("test_last", "test_final"):
        scheduler = create_scheduler(name, {"step": 3})
        assert isinstance(scheduler, Last)
        assert (scheduler.step, type(scheduler.step)) == (3.0, float)

    @register_scheduler("test_factory")
    def make(**parameters: float) -> Scheduler:
        return Last(sum(parameters.values()))

    made = create_scheduler("test_factory", {"a": 1, "b": 2})
    assert isinstance(made, Last)
    assert made.step == 3.0
    assert "test_last" in scheduler_names()
    assert "test_final" not in scheduler_names()


def test_a_factory_that_fails_is_a_configuration_error() -> None:
    @register_scheduler("test_picky")
    def make(n: float = 0.0) -> Scheduler:
        return Last({1.0: 1.0}[n])

    with pytest.raises(ConfigError, match=r"'test_picky' cannot be made with {'n': 3}: KeyError\(3.0\)"):
        create_scheduler("test_picky", {"n": 3})


@pytest.mark.parametrize("name", ["RR", "LL", "adaptive"])
def test_the_shipped_names_cannot_be_taken(name: str) -> None:
    with pytest.raises(ConfigError, match="taken"):
        register_scheduler(name)(Last)
    with pytest.raises(ConfigError, match="taken"):
        register_scheduler("test_other", aliases=(name,))(Last)


def test_a_class_path_is_imported_only_when_allowed() -> None:
    path = f"{__name__}:Last"
    with pytest.raises(ConfigError, match="unknown scheduler"):
        create_scheduler(path, {})
    made = create_scheduler(path, {"step": 2}, allow_import=True)
    assert type(made).__name__ == "Last"


@pytest.mark.parametrize(
    "path",
    ["no_such_package:X", "json:no_such_name", "json:", ":X", "json:__name__", "builtins:dict", "antigravity_none:X"],
)
def test_a_class_path_that_leads_nowhere_is_a_configuration_error(path: str) -> None:
    with pytest.raises(ConfigError):
        create_scheduler(path, {}, allow_import=True)


def test_the_example_of_a_custom_scheduler_runs_and_can_be_chosen_by_name(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not hasattr(multi, "register_scheduler"):
        monkeypatch.setattr(multi, "register_scheduler", register_scheduler, raising=False)
    example = Path(__file__).parents[3] / "examples" / "custom_scheduler.py"
    runpy.run_path(str(example), run_name="__main__")
    assert [line.split()[-1] for line in capsys.readouterr().out.splitlines()] == ["wlan0", "wwan0"]
    views = [view(1, interface="wwan0", rtt=0.001), view(2, interface="wlan0")]
    assert chosen(create_scheduler("prefer_wifi", {}), views, request()) == [2]


def test_nobody_waits_for_a_path_not_yet_measured_whose_round_trip_has_grown() -> None:
    near = view(1, rate=0.0, rtt=0.004, congestion_window=14_600, credit=0, in_flight=14_000)
    far = view(2, rate=0.0, rtt=0.020, congestion_window=14_600)
    segment = request(size=1_000, backlog=1_000)
    assert chosen(create_scheduler("adaptive", {}), [near, far], segment) == []
    assert chosen(create_scheduler("adaptive", {}), [near.but(rtt=0.040, min_rtt=0.004), far], segment) == [2]


@pytest.mark.parametrize("name", ["adaptive", "ECF"])
def test_nobody_waits_for_a_connection_of_which_the_session_expects_nothing(name: str) -> None:
    """What its transport still held had come over another: its rate was a memory, and seconds were spent waiting."""
    scheduler = create_scheduler(name, {})
    fast = view(0, rate=15_000_000.0, rtt=0.010, credit=0, in_flight=0, not_sent=50_000)
    slow = view(1, rate=2_500_000.0, rtt=0.200)
    waited = [chosen(scheduler, [fast.but(not_sent=left), slow], request(backlog=300_000)) for left in (50_000, 40_000)]
    assert waited == [[1], [1]]
    moving = fast.but(in_flight=50_000)
    assert chosen(create_scheduler(name, {}), [moving, slow], request(backlog=300_000)) == []
