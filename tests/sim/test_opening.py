"""How a session opens: racing, HELLO and its repeats, JOIN, and what is refused. Times are virtual and exact."""

from __future__ import annotations

from dataclasses import replace

import pytest

from multi.events import AttemptFailed, SchedulerChanged, SessionConfirmed
from multi.lab.sim.oracles import EXPECTED_CAUSES, HOSTILE_CAUSES
from multi.lab.sim.pair import CLEAR, Pair
from multi.lab.sim.wire import Route, route
from multi.paths.racing import ConnectMode
from multi.protocol.payloads import Policy
from multi.protocol.segment import SegmentType
from multi.protocol.settings import Protect, SessionSettings
from multi.reasons import Cause
from multi.types import ConnectionId, ConnectionState
from tests.sim.worlds import FAST, SLOW, clear_pair, close_both, data, of_type, opened, quiet, reasons, transfer

pytestmark = pytest.mark.simulation

ROUND_TRIP = 0.020  # of FAST


def first_read_after_connect(pair: Pair) -> float:
    """Round trips from the transport's own connection to the server application's first byte."""
    pair.until(lambda: pair.client.opened_at is not None, 2.0)
    pair.client.write(b"first flight")
    assert pair.until(lambda: pair.server is not None and pair.peer.got() == 12, 2.0)
    assert pair.peer.first_read_at is not None
    return (pair.peer.first_read_at - ROUND_TRIP * pair.routes[0].connect_round_trips) / ROUND_TRIP


@pytest.mark.parametrize(
    ("over", "protect"),
    [
        (route(1e6, 0.010), Protect.NEVER),
        (route(1e6, 0.010, secure=True), Protect.AUTO),
        (route(1e6, 0.010, secure=True, lanes=3), Protect.AUTO),
    ],
    ids=["unprotected", "TLS", "QUIC"],
)
def test_data_follows_hello_without_a_round_trip(over: Route, protect: Protect) -> None:
    pair = Pair([over], client=SessionSettings(protect=protect))
    assert first_read_after_connect(pair) == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize("lanes", [1, 3], ids=["TLS", "QUIC"])
def test_early_data_holds_no_proof_up_on_a_slow_network(lanes: int) -> None:
    """60 kbit/s: in 5 s the server has to hear the proof, which follows what was sent before ACCEPT came."""
    pair = Pair([route(7_500, 0.025, secure=True, lanes=lanes)])
    pair.until(lambda: pair.client.opened_at is not None, 2.0)
    sent = data(pair, 120_000)
    pair.client.write(sent)
    assert pair.until(lambda: pair.server is not None and pair.peer.got() == len(sent), 30.0), reasons(pair.client)
    assert [c.id for c in pair.client.session.connections.values()] == [0]
    close_both(pair)


def test_sealed_plain_tcp_costs_exactly_one_round_trip() -> None:
    pair = Pair([FAST], client=SessionSettings(protect=Protect.AUTO))
    assert first_read_after_connect(pair) == pytest.approx(1.5, abs=0.1)


def test_a_joined_connection_is_usable_after_one_round_trip() -> None:
    pair = opened(FAST)
    pair.routes.append(route(1e6, 0.040))
    start = pair.clock.now
    pair.client.session.path_manager(now=start).add([pair.candidate(1)], start)
    pair.client.pump()
    connected = start + 0.080
    assert pair.until(lambda: len(pair.client.active) == 2, 2.0)
    assert pair.clock.now - connected == pytest.approx(0.080, abs=0.005)


def test_parallel_racing_starts_everything_at_once() -> None:
    pair = clear_pair(FAST, SLOW, route(), connect=ConnectMode.PARALLEL)
    pair.run(0.001)
    assert pair.dials == [(0.0, 0), (0.0, 1), (0.0, 2)]


def test_staggered_racing_waits_250_ms_until_the_first_success() -> None:
    pair = clear_pair(route(black_hole=True), route(black_hole=True), FAST, SLOW, connect=ConnectMode.STAGGERED)
    pair.run(2.0)
    won = 0.500 + 2 * ROUND_TRIP  # connect, then HELLO and ACCEPT
    times = [time for time, index in pair.dials if index != 0 or time < 1]
    assert [i for _, i in pair.dials[:4]] == [0, 1, 2, 3]
    assert times[:3] == [0.0, 0.250, 0.500]
    assert times[3] == pytest.approx(won, abs=0.003)


def test_staggered_racing_starts_the_next_at_once_after_a_failure() -> None:
    pair = clear_pair(route(1e6, 0.010, error="connection refused"), FAST, connect=ConnectMode.STAGGERED)
    pair.run(0.1)
    assert [index for _, index in pair.dials[:2]] == [0, 1]
    assert pair.dials[1][0] == pytest.approx(ROUND_TRIP, abs=0.001)


def test_sequential_racing_opens_one_after_the_other() -> None:
    pair = clear_pair(FAST, SLOW, connect=ConnectMode.SEQUENTIAL)
    pair.run(1.0)
    assert pair.dials[0] == (0.0, 0)
    assert pair.dials[1][0] == pytest.approx(2 * ROUND_TRIP, abs=0.003)


def test_a_dead_first_entry_does_not_block_a_sequential_start() -> None:
    pair = clear_pair(route(black_hole=True), FAST, connect=ConnectMode.SEQUENTIAL)
    pair.run(4.0)
    assert pair.dials[:2] == [(0.0, 0), (3.0, 1)]
    assert pair.client.session.confirmed


def test_all_attempted_is_said_exactly_once() -> None:
    pair = clear_pair(FAST, route(1e6, 0.01, error="no route"), SLOW)
    pair.run(5.0)
    pair.cut(0)
    pair.run(5.0)
    assert pair.client.all_attempted == 1


def test_of_a_group_only_the_first_that_works_is_kept() -> None:
    pair = clear_pair(SLOW, FAST, route(1e6, 0.03), groups=["g", "g", ""], connect=ConnectMode.PARALLEL)
    pair.run(3.0)
    assert sorted(c.interface for c in pair.client.session.connections.values()) == ["if1", "if2"]
    assert transfer(pair, pair.client, 100_000) < 5
    close_both(pair)


def test_when_all_fail_the_session_closes_with_every_attempt_listed() -> None:
    pair = clear_pair(route(error="connection refused"), route(error="no route to host"))
    pair.run(1.0)
    assert pair.client.closed is not None
    assert pair.client.closed.reason == "no connection could be opened"
    assert pair.client.session.paths is not None
    assert [reason for _, reason in pair.client.session.paths.failures] == ["connection refused", "no route to host"]
    assert len(of_type(pair.client, AttemptFailed)) == 2


def test_the_open_timeout_ends_a_session_that_nobody_answers() -> None:
    pair = clear_pair(route(black_hole=True), open_timeout=3.0)
    pair.run(10.0)
    assert pair.client.closed is not None
    assert pair.client.closed_at == pytest.approx(3.0, abs=0.01)


def test_hello_is_repeated_elsewhere_when_its_connection_dies_before_accept() -> None:
    pair = clear_pair(FAST, route(1e6, 0.012), connect=ConnectMode.PARALLEL)
    pair.until(lambda: pair.client.opened_at is not None, 1.0)
    sent = data(pair, 30_000)
    pair.client.write(sent)
    pair.run(0.015)
    pair.cut(0, notice=0.001, down=True)
    assert pair.until(lambda: pair.server is not None and pair.peer.got() == len(sent), 5.0)
    pair.run(1.0)
    assert bytes(pair.peer.received[0]) == sent  # type: ignore[index]
    assert pair.client.oracles.segments[SegmentType.HELLO] >= 2
    close_both(pair)


def test_an_accept_that_is_lost_is_asked_for_again_on_the_next_connection() -> None:
    pair = clear_pair(FAST, SLOW, connect=ConnectMode.PARALLEL)
    pair.until(lambda: pair.server is not None, 1.0)
    pair.cut(0, notice=None, down=True)  # after HELLO has reached the server, before ACCEPT reaches the client
    sent = data(pair, 50_000)
    pair.client.write(sent)
    assert not pair.client.session.confirmed
    assert pair.until(lambda: pair.peer.got() == len(sent), 3.0), "early data waited for its dead connection"
    assert of_type(pair.client, SessionConfirmed)
    close_both(pair)


def test_a_slow_accept_joins_the_one_of_the_repeated_hello() -> None:
    slow = route(1e6, 1.2)  # HELLO is repeated after 1 s, both are answered
    pair = clear_pair(slow, route(1e6, 1.3), connect=ConnectMode.PARALLEL, open_timeout=30.0)
    pair.until(lambda: pair.client.opened_at is not None, 5.0)
    sent = data(pair, 60_000)
    pair.client.write(sent)
    assert pair.until(lambda: pair.server is not None and pair.peer.got() == len(sent), 20.0)
    pair.run(5.0)
    assert len(pair.client.active) == 2
    close_both(pair, 40.0)


def test_a_join_refused_by_another_server_leaves_the_session_alone() -> None:
    pair = clear_pair(FAST, route(1e6, 0.010, stranger=True))
    pair.run(1.0)
    assert transfer(pair, pair.client, 300_000) < 1.0
    assert [c for c, state, _ in reasons(pair.client) if state == "active"] == [0]
    assert len(pair.dials) > 2, "it is tried again with back-off"
    pair.run(20.0)
    assert len(pair.dials) < 20
    close_both(pair)


def test_a_verified_server_that_forgot_the_session_ends_it_at_once() -> None:
    pair = opened(replace(FAST, peer_verified=True))
    pair.forget_session()
    assert pair.until(lambda: pair.client.closed is not None, 2.0)
    assert pair.client.closed is not None
    assert pair.client.closed.reason.startswith("session gone")
    assert pair.client.closed.reason.cause is Cause.SESSION_GONE


def test_an_unverified_refusal_counts_only_after_three() -> None:
    pair = opened(FAST)
    pair.forget_session()
    assert pair.until(lambda: pair.client.closed is not None, 10.0)
    assert pair.client.closed is not None
    assert pair.client.closed.reason.startswith("session gone")
    assert len(pair.dials) == 4


@pytest.mark.parametrize("connect", list(ConnectMode))
def test_a_server_that_accepts_and_never_answers_does_not_block_the_start(connect: ConnectMode) -> None:
    pair = clear_pair(route(1e6, 0.010, mute=True), FAST, connect=connect)
    assert pair.until(lambda: pair.client.session.confirmed, 4.0)
    assert [c.interface for c in pair.client.session.connections.values() if c.authenticated] == ["if1"]
    assert transfer(pair, pair.client, 200_000) < 2.0


def test_early_data_on_a_mute_connection_moves_to_one_that_answers() -> None:
    pair = clear_pair(route(1e6, 0.010, mute=True), FAST)
    pair.until(lambda: pair.client.opened_at is not None, 1.0)
    assert transfer_when_served(pair, 40_000) < 2.0


def test_data_given_to_a_mute_connection_while_the_other_was_suspect_is_not_stuck_there() -> None:
    pair = clear_pair(route(1e6, 0.010, mute=True), FAST)
    pair.client.write(b"early")
    assert pair.until(lambda: pair.client.session.confirmed and pair.peer.got() == 5, 3.0)
    pair.run(0.5)
    pair.stall(1)
    pair.client.write(data(pair, 10_000))
    assert pair.until(lambda: pair.client.state_of(1) is ConnectionState.SUSPECT, 2.0)
    pair.client.write(data(pair, 10_000))
    pair.run(0.2)
    pair.restore(1)
    assert pair.until(lambda: pair.peer.got() == 20_005, 1.0), pair.peer.got()


def transfer_when_served(pair: Pair, size: int) -> float:
    pair.client.write(data(pair, size))
    assert pair.until(lambda: pair.server is not None and pair.peer.got() == size, 20.0)
    return pair.clock.now


def test_an_unknown_scheduler_falls_back_and_both_sides_hear_of_it() -> None:
    client = replace(CLEAR, peer_policy=Policy("lowest_latency"))
    pair = opened(FAST, client=client)
    assert of_type(pair.peer, SchedulerChanged)[0].scheduler == "lowest_latency"
    client = replace(CLEAR, peer_policy=Policy("my_own"))
    pair = opened(FAST, client=client)
    changed = of_type(pair.peer, SchedulerChanged)[0]
    assert (changed.scheduler, changed.by_peer) == ("adaptive", True)
    assert "my_own" in changed.reason
    assert "adaptive" in str(pair.client.events[-1])


def test_a_smaller_server_is_never_overrun_by_a_larger_client() -> None:
    client = replace(CLEAR, initial_window=1 << 20, max_streams=128)
    server = replace(CLEAR, initial_window=64 * 1024, max_streams=2)
    pair = clear_pair(FAST, client=client, server=server)
    pair.until(lambda: pair.client.opened_at is not None, 1.0)
    assert pair.client.open_stream() is None, "nobody has said yet how many streams the server allows"
    pair.client.write(data(pair, 500_000))
    pair.run(0.2)
    streams = [pair.client.open_stream() for _ in range(3)]
    assert streams == [2, 4, None]
    assert pair.until(lambda: quiet(pair), 5.0)
    assert not pair.client.changes(ConnectionState.LOST)
    assert pair.client.state_of(ConnectionId(0)) is ConnectionState.ACTIVE


# --- more connections than the server allows  ---

LIMITED = EXPECTED_CAUSES | HOSTILE_CAUSES


@pytest.mark.parametrize("settings", [CLEAR, SessionSettings()], ids=["clear", "sealed"])
def test_a_client_that_wants_more_connections_than_it_may_have_exchanges_them_ever_more_rarely(
    settings: SessionSettings,
) -> None:
    pair = Pair([FAST, SLOW, FAST], client=settings, server=replace(settings, max_connections=2), expected=LIMITED)
    pair.run(60.0)
    before = len(pair.dials)
    assert before < 20
    pair.run(60.0)
    assert len(pair.dials) - before < 6
    lost = pair.client.changes(ConnectionState.LOST)[-1].reason
    assert lost.cause is Cause.REFUSED_BUSY
    assert "max_connections_per_session" in lost
    assert pair.peer.changes(ConnectionState.LOST)[-1].reason.cause is Cause.CONNECTION_LIMIT
    assert len(pair.client.active) == len(pair.peer.active) == 2
    transfer(pair, pair.client, 100_000, 2.0)


def test_a_client_from_new_networks_takes_the_place_of_its_connections_that_died_unnoticed() -> None:
    count = 8
    routes = [(FAST, SLOW)[index % 2] for index in range(count)]
    pair = Pair(routes, client=CLEAR, server=replace(CLEAR, max_connections=count), expected=LIMITED)
    assert pair.until(lambda: pair.server is not None and len(pair.peer.active) == count, 2.0)
    pair.run(5.0)
    for index in range(count):
        pair.cut(index, None, down=True)
        pair.routes.append(pair.routes[index])
    moved, client = pair.clock.now, pair.client
    for index in range(count):
        client.session.network_changed(
            f"if{index}", False, address=f"10.0.{index}.2", reason="the address was removed", now=moved
        )
    client.session.path_manager(now=moved).update([pair.candidate(count + index) for index in range(count)], moved)
    client.pump()
    assert pair.until(lambda: len(client.active) == len(pair.peer.active) == count, 0.5)
    transfer(pair, client, 100_000, 2.0)
