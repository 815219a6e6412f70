"""Named scenarios: what a person would try, with the figures that must come out. Times are virtual and exact."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from multi.errors import LocalProtocolError, SessionLost, StreamReset
from multi.events import SessionDetached, SessionResumed
from multi.lab.sim.link import StreamLinkSpec
from multi.lab.sim.pair import CLEAR, Pair
from multi.lab.sim.wire import Route, route
from multi.paths.roles import Mode
from multi.protocol.payloads import Policy
from multi.protocol.segment import SegmentType
from multi.protocol.settings import SessionSettings
from multi.protocol.state import SessionState
from multi.reasons import Reason
from multi.schedulers import scheduler_names
from multi.types import ConnectionId, ConnectionState, Role, StreamId
from tests.sim.worlds import FAST, SLOW, clear_pair, close_both, data, of_type, opened, quiet, reasons, transfer

pytestmark = pytest.mark.simulation

SCHEDULERS = scheduler_names()


# --- carrying  ---


def test_both_directions_arrive_whole_and_both_sides_end() -> None:
    pair = opened()
    pair.client.write(data(pair, 500_000))
    pair.peer.write(data(pair, 700_000))
    assert pair.until(lambda: pair.peer.got() == 500_000 and pair.client.got() == 700_000, 10.0)
    assert pair.until(lambda: quiet(pair), 1.0)
    close_both(pair)
    assert not any(end.wires for end in pair.ends)


def test_both_paths_together_come_near_the_sum() -> None:
    pair = opened(FAST, SLOW)
    transfer(pair, pair.client, 2_000_000)
    rate = 10_000_000 / transfer(pair, pair.client, 10_000_000)
    assert rate > 0.95 * 1.3e6
    assert min(pair.client.oracles.data_bytes.values()) > 2_000_000


def test_windows_do_not_hold_up_the_start_of_a_transfer_over_two_fast_paths() -> None:
    fast = route(20e6, 0.022)
    pair = opened(fast, fast)
    assert transfer(pair, pair.client, 16_000_000) < 0.62  # 0.42 with a window that was never shut
    generous = opened(fast, fast, client=replace(CLEAR, initial_window=1 << 20))
    assert transfer(generous, generous.peer, 16_000_000) < 0.46


def test_what_is_about_to_arrive_is_not_copied_and_what_a_slow_path_holds_up_is() -> None:
    generous = replace(CLEAR, initial_window=1 << 20)
    pair = opened(route(1.25e6, 0.022), route(1.25e6, 0.022), client=generous)
    transfer(pair, pair.peer, 1_000_000)
    assert pair.peer.session.sender.reinjected_bytes < 100_000
    pair = opened(FAST, SLOW, route(2e6, 0.030), client=generous)
    transfer(pair, pair.peer, 100_000)
    assert pair.peer.session.sender.reinjected_bytes == 0
    pair = opened(route(5e6, 0.005), route(0.5e6, 0.100), client=generous)
    assert transfer(pair, pair.peer, 1_000_000) < 0.21  # 0.23 when the slow path delivers all that it was given


def test_both_paths_are_used_in_both_directions_at_once() -> None:
    pair = opened(FAST, SLOW)
    pair.client.write(data(pair, 6_000_000))
    pair.peer.write(data(pair, 6_000_000))
    start = pair.clock.now
    assert pair.until(lambda: pair.peer.got() == pair.client.got() == 6_000_000, 20.0)
    assert 6_000_000 / (pair.clock.now - start) > 0.9 * 1.3e6


UNEQUAL = [
    ((1e6, 0.010), (0.3e6, 0.050)),
    ((1e6, 0.010), (0.05e6, 0.150)),
    ((5e6, 0.002), (0.1e6, 0.200)),
    ((2e6, 0.040), (2e6, 0.005)),
    ((10e6, 0.005), (1e6, 0.100)),
]


@pytest.mark.parametrize("size", [200_000, pytest.param(3_000_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("links", UNEQUAL)
def test_adaptive_is_never_slower_than_the_best_single_path(
    links: tuple[tuple[float, float], tuple[float, float]], size: int
) -> None:
    routes = [route(*link_) for link_ in links]
    singles = []
    for single in routes:
        pair = opened(single)
        singles.append(transfer(pair, pair.client, size, 200.0))
    pair = opened(*routes)
    together = transfer(pair, pair.client, size, 200.0)
    assert min(singles) / together >= 0.97


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_every_scheduler_delivers_through_a_cut(scheduler: str) -> None:
    pair = opened(FAST, SLOW, route(0.5e6, 0.020), policy=Policy(scheduler))
    pair.client.write(data(pair, 1_500_000))
    pair.peer.write(data(pair, 1_500_000))
    pair.run(0.4)
    pair.cut(0, notice=None, down=True)
    assert pair.until(lambda: pair.peer.got() == pair.client.got() == 1_500_000, 30.0)
    assert pair.until(lambda: quiet(pair), 20.0)
    close_both(pair)


def test_redundant_sends_everything_twice_and_delivers_it_once() -> None:
    pair = opened(FAST, route(1e6, 0.012), policy=Policy("redundant"))
    transfer(pair, pair.client, 400_000)
    pair.run(1.0)
    sent = pair.client.oracles.data_bytes
    assert len(sent) == 2
    assert min(sent.values()) > 300_000
    assert pair.peer.got() == 400_000


def test_a_rate_cap_is_kept_within_three_percent() -> None:
    pair = opened(route(2e6, 0.010), max_rates=[0.25e6])
    seconds = transfer(pair, pair.client, 1_000_000)
    assert 1_000_000 / seconds == pytest.approx(0.25e6, rel=0.03)
    seconds = transfer(pair, pair.peer, 1_000_000)
    assert 1_000_000 / seconds == pytest.approx(0.25e6, rel=0.03), "the cap holds for the server as well"


def test_a_rate_cap_that_comes_later_holds_on_both_sides_until_it_is_taken_away() -> None:
    pair = opened(route(2e6, 0.010))
    connection = pair.client.session.connections[ConnectionId(0)]
    for cap in (0.25e6, 0.0):
        pair.client.session.cap(connection.id, cap)
        pair.client.pump()
        pair.run(0.2)
        for end in pair.ends:
            seconds = transfer(pair, end, 1_000_000)
            assert 1_000_000 / seconds == pytest.approx(cap or 1.75e6, rel=0.03 if cap else 0.2)


def test_a_rate_cap_on_a_connection_that_stands_by_keeps_no_timer_busy() -> None:
    pair = opened(route(0.1e6, 0.050), route(1e6, 0.010), max_rates=[0.0, 0.2e6])
    pair.client.write(data(pair, 200_000))
    connection = pair.client.session.connections[ConnectionId(1)]
    assert pair.until(lambda: connection.credit == 0, 1.0)
    pair.client.set_role(ConnectionId(1), Role.BACKUP)
    pair.run(0.1)
    for _ in range(20):
        due = pair.client.session.next_timer()
        assert due is None or due > pair.clock.now + 0.0002, "a timer that finds nothing to do"
        pair.run(0.005)


# --- losing  ---


def test_the_first_cut_costs_no_more_than_its_notice_and_a_round_trip() -> None:
    pair = opened(FAST, SLOW)
    pair.client.write(data(pair, 3_000_000))
    pair.run(0.5)
    pair.cut(0, notice=0.0, down=True)
    before = pair.peer.got()
    pair.run(0.3)
    assert pair.peer.got() > before, "a gap nobody fills"
    assert pair.until(lambda: pair.peer.got() == 3_000_000, 20.0)


def test_a_cut_that_nobody_notices_is_found_by_silence() -> None:
    pair = opened(FAST, SLOW)
    pair.client.write(data(pair, 3_000_000))
    pair.run(0.5)
    pair.cut(0, notice=None, down=True)
    assert pair.until(lambda: pair.client.state_of(0) is ConnectionState.SUSPECT, 0.3)
    before, cut_at = pair.peer.got(), pair.clock.now
    assert pair.until(lambda: pair.peer.got() > before + 100_000, 1.5)
    assert pair.clock.now - cut_at < 1.0
    assert pair.until(lambda: pair.peer.got() == 3_000_000, 20.0)


def test_a_road_that_carries_only_acknowledgements_is_found_dead_as_well() -> None:
    # Its acknowledgements are lost with it, and no data in flight there would ever have told.
    pair = opened(route(0.3e6, 0.050), route(1e6, 0.001), roles=[Role.ACTIVE, Role.BACKUP])
    pair.client.write(data(pair, 300_000))
    pair.run(0.2)
    pair.cut(1, notice=None, down=True)
    assert pair.until(lambda: pair.peer.got() == 300_000, 5.0)
    assert pair.until(lambda: quiet(pair), 1.0), "the sender still waits for acknowledgements that are lost"
    assert not pair.client.changes(ConnectionState.LOST) or pair.client.changes(ConnectionState.LOST)[0].connection == 1


def test_a_second_cut_right_after_the_first_is_survived() -> None:
    pair = opened(FAST, SLOW, route(0.5e6, 0.02))
    pair.client.write(data(pair, 2_000_000))
    pair.run(0.3)
    pair.cut(0, notice=0.05, down=True)
    pair.run(0.06)
    pair.cut(2, notice=None, down=True)
    assert pair.until(lambda: pair.peer.got() == 2_000_000, 30.0)


def test_a_path_that_returns_is_dialled_again_and_used() -> None:
    pair = opened(FAST, SLOW)
    pair.client.write(data(pair, 4_000_000))
    pair.run(0.5)
    pair.cut(0, notice=0.02, down=True)
    pair.run(1.0)
    pair.restore(0)
    pair.client.change_network("if0", True)
    assert pair.until(lambda: len(pair.client.active) == 2, 2.0)
    again = max(pair.client.active)
    assert pair.until(lambda: pair.peer.got() == 4_000_000, 20.0)
    assert pair.client.oracles.data_bytes[again] > 500_000


def test_total_loss_is_resumed_within_the_timeout_and_nothing_is_lost() -> None:
    pair = opened(FAST, SLOW, client=replace(CLEAR, resume_timeout=10.0), server=replace(CLEAR, resume_timeout=10.0))
    pair.client.write(data(pair, 1_000_000))
    pair.peer.write(data(pair, 1_000_000))
    pair.run(0.3)
    for index in (0, 1):
        pair.cut(index, notice=0.05, down=True)
    pair.run(4.0)
    assert of_type(pair.client, SessionDetached)
    for index in (0, 1):
        pair.restore(index)
        pair.client.change_network(f"if{index}", True)
    restored = pair.clock.now
    assert pair.until(lambda: bool(pair.client.active), 5.0)
    assert pair.clock.now - restored < 0.2, "a usable network is dialled at once"
    assert pair.until(lambda: pair.peer.got() == pair.client.got() == 1_000_000, 20.0)
    assert of_type(pair.client, SessionResumed)[0].after > 3.5
    close_both(pair)


def test_while_nothing_is_left_dials_that_nobody_answers_do_not_delay_the_next() -> None:
    # A lost SYN is repeated after 1, 3, 7 s: waiting for it would waste seconds of a network that is back.
    pair = opened(FAST)
    pair.cut(0, notice=0.01, down=True)
    pair.run(8.0)
    times = [time for time, _ in pair.dials[1:]]
    assert max(b - a for a, b in pairwise(times)) <= 0.55
    pair.restore(0)
    assert pair.until(lambda: bool(pair.client.active), 0.6), "found without being told"
    pair.run(2.0)
    assert len(pair.client.wires) == 1


def test_a_total_loss_is_redialled_at_least_every_half_second_once_dials_fail() -> None:
    pair = opened(FAST)
    pair.refused.add(0)
    pair.cut(0, notice=0.01)
    pair.run(10.0)
    times = [time for time, _ in pair.dials[2:]]
    assert len(times) >= 15
    assert max(b - a for a, b in pairwise(times)) <= 0.55
    pair.refused.clear()
    assert transfer(pair, pair.client, 100_000) < 2.0


def test_total_loss_beyond_the_timeout_ends_with_a_reason() -> None:
    settings = replace(CLEAR, resume_timeout=3.0)
    pair = opened(FAST, client=settings, server=settings)
    pair.client.write(data(pair, 500_000))
    pair.run(0.1)
    pair.cut(0, notice=0.05, down=True)
    assert pair.until(lambda: all(end.closed is not None for end in pair.ends), 5.0)
    for end in pair.ends:
        assert end.closed is not None
        assert end.closed.reason == "no connection for 3 s"
    error = pair.client.receive_error()
    assert isinstance(error, SessionLost)
    with pytest.raises(SessionLost, match="no connection for 3 s"):
        pair.client.write(b"more")


def test_a_stall_is_bridged_and_the_path_comes_back_by_itself() -> None:
    pair = opened(FAST, SLOW)
    pair.client.write(data(pair, 3_000_000))
    pair.run(0.5)
    pair.stall(0)
    pair.run(1.0)
    assert pair.client.state_of(0) is ConnectionState.SUSPECT
    pair.restore(0)
    assert pair.until(lambda: pair.client.state_of(0) is ConnectionState.ACTIVE, 0.5)
    assert pair.until(lambda: pair.peer.got() == 3_000_000, 10.0)
    assert not pair.client.changes(ConnectionState.LOST)


def test_a_stall_of_the_only_path_delays_and_loses_nothing() -> None:
    pair = opened(FAST)
    pair.client.write(data(pair, 500_000))
    pair.run(0.1)
    pair.stall(0)
    pair.run(5.0)
    pair.restore(0)
    assert pair.until(lambda: pair.peer.got() == 500_000, 3.0)
    assert not pair.client.changes(ConnectionState.LOST)


def test_healthy_paths_are_never_suspected_under_load() -> None:
    pair = opened(FAST, SLOW, route(0.1e6, 0.150))
    pair.client.write(data(pair, 3_000_000))
    pair.peer.write(data(pair, 3_000_000))
    assert pair.until(lambda: pair.peer.got() == pair.client.got() == 3_000_000, 20.0)
    pair.run(40.0)
    for end in pair.ends:
        assert not end.changes(ConnectionState.SUSPECT), reasons(end)


def test_a_transport_that_acknowledges_for_a_silent_peer_is_not_believed() -> None:
    # A middlebox ends TCP itself: every ping looked like progress, so the connection came back five times a second,
    # was never declared dead, and the idle timeout never passed.
    pair = opened(FAST, SLOW)
    for wire in pair.wires:
        if wire.id == 0:
            wire.down.sever()  # what is sent up arrives, and its transport says so; no answer comes back
            wire.up.sever_delivery()
    pair.client.write(data(pair, 500_000))
    assert pair.until(lambda: pair.peer.got() == 500_000, 5.0)
    assert pair.until(lambda: pair.client.state_of(0) is None, 8.0)
    assert len(pair.client.changes(ConnectionState.SUSPECT)) <= 2


def test_what_a_suspect_path_was_given_moves_when_another_returns() -> None:
    # For want of a better one the suspect connection gets new bytes; they must not wait until it is declared dead.
    pair = opened(FAST, SLOW)
    pair.cut(1, notice=0.01, down=True)
    pair.run(0.1)
    pair.cut(0, notice=None, down=True)
    pair.client.write(data(pair, 50_000))
    pair.run(1.0)
    assert pair.client.state_of(0) is ConnectionState.SUSPECT
    pair.restore(1)
    pair.client.change_network("if1", True)
    assert pair.until(lambda: pair.peer.got() == 50_000, 1.0)


# --- roles, drains, handover  ---


def test_a_backup_carries_only_while_no_active_one_can() -> None:
    pair = opened(FAST, route(1e6, 0.005), roles=[Role.ACTIVE, Role.BACKUP])
    transfer(pair, pair.client, 500_000)
    transfer(pair, pair.peer, 500_000)
    for end in pair.ends:
        assert 1 not in end.oracles.data_bytes
    pair.cut(0, notice=0.02, down=True)
    assert transfer(pair, pair.client, 500_000) < 2.0
    pair.restore(0)
    pair.client.change_network("if0", True)
    assert pair.until(lambda: len(pair.client.active) == 2, 3.0)
    carried = pair.client.oracles.data_bytes[ConnectionId(1)]
    transfer(pair, pair.client, 500_000)
    assert pair.client.oracles.data_bytes[ConnectionId(1)] == carried


def test_a_secondary_helps_once_the_active_ones_have_not_coped_for_a_while() -> None:
    pair = opened(FAST, route(1e6, 0.012), roles=[Role.ACTIVE, Role.SECONDARY])
    for end in pair.ends:
        transfer(pair, end, 400_000)  # a burst is no shortage
        assert 1 not in end.oracles.data_bytes
    for end in pair.ends:
        assert transfer(pair, end, 6_000_000) < 0.75 * 6.0
        assert end.oracles.data_bytes[ConnectionId(1)] > 1_500_000
    carried = pair.client.oracles.data_bytes[ConnectionId(1)]
    pair.run(1.0)
    transfer(pair, pair.client, 400_000)
    assert pair.client.oracles.data_bytes[ConnectionId(1)] == carried


def test_a_secondary_carries_before_a_backup_when_no_active_one_can() -> None:
    pair = opened(FAST, FAST, FAST, roles=[Role.ACTIVE, Role.BACKUP, Role.SECONDARY])
    pair.cut(0, notice=0.02, down=True)
    transfer(pair, pair.client, 500_000)
    assert ConnectionId(1) not in pair.client.oracles.data_bytes
    assert pair.client.oracles.data_bytes[ConnectionId(2)] >= 500_000


def test_a_role_set_by_one_side_holds_on_both() -> None:
    pair = opened(FAST, route(1e6, 0.012))
    pair.peer.set_role(ConnectionId(1), Role.BACKUP)
    pair.run(0.2)
    transfer(pair, pair.client, 300_000)
    assert 1 not in pair.client.oracles.data_bytes


@pytest.mark.parametrize("by", ["client", "server", "both"])
def test_a_drain_waits_for_the_last_acknowledgement_and_rescues_nothing(by: str) -> None:
    pair = opened(FAST, SLOW, policy=Policy("adaptive", reinject="rescue"))
    pair.client.write(data(pair, 2_000_000))
    pair.peer.write(data(pair, 2_000_000))
    pair.run(1.0)
    if by != "server":
        pair.client.drain(ConnectionId(0))
    if by != "client":
        pair.peer.drain(ConnectionId(0))
    copied = [end.session.sender.reinjected_bytes for end in pair.ends]
    assert pair.until(lambda: all(0 not in end.session.connections for end in pair.ends), 2.0)
    for end, before in zip(pair.ends, copied, strict=True):
        assert [reason for c, state, reason in reasons(end) if c == 0 and state in ("closed", "lost")] == ["drained"]
        assert end.session.sender.reinjected_bytes == before
    assert pair.until(lambda: pair.peer.got() == pair.client.got() == 2_000_000, 20.0)


def test_the_last_usable_connection_cannot_be_removed() -> None:
    pair = opened(FAST, SLOW)
    pair.client.remove_connection(ConnectionId(0))
    with pytest.raises(LocalProtocolError, match="last usable"):
        pair.client.remove_connection(ConnectionId(1))
    pair.run(10.0)
    assert pair.client.active == [1]
    assert len(pair.dials) == 2, "what was removed is not dialled again"


def test_a_handover_makes_before_it_breaks() -> None:
    pair = opened(FAST, route(1e6, 0.012), client=CLEAR)
    pair.client.write(data(pair, 3_000_000))
    pair.run(0.3)
    done: list[Reason | None] = []
    paths = pair.client.session.paths
    assert paths is not None
    copied = pair.client.session.sender.reinjected_bytes
    pair.client.session.path_manager(now=pair.clock.now).hand_over([paths.slots[1]], done.append, pair.clock.now)
    pair.client.pump()
    assert pair.until(lambda: pair.client.state_of(0) is None, 1.0)
    assert done == [None]
    assert pair.client.session.sender.reinjected_bytes == copied
    # ... and straight back, while the other is still draining.
    pair.client.session.path_manager(now=pair.clock.now).hand_over([paths.slots[0]], done.append, pair.clock.now)
    pair.client.pump()
    pair.client.session.path_manager(now=pair.clock.now).hand_over([paths.slots[1]], done.append, pair.clock.now)
    pair.client.pump()
    assert pair.until(lambda: pair.peer.got() == 3_000_000, 10.0)
    assert done[:2] == ["", "another handover is under way"] or done[1:] == ["", ""] or len(done) == 3


def test_a_handover_to_a_dead_network_leaves_the_old_connection() -> None:
    pair = opened(FAST, SLOW)
    pair.cut(1, notice=0.01, down=False)
    pair.refused.add(1)
    pair.run(0.05)
    done: list[Reason | None] = []
    paths = pair.client.session.paths
    assert paths is not None
    pair.client.session.path_manager(now=pair.clock.now).hand_over([paths.slots[1]], done.append, pair.clock.now)
    pair.client.pump()
    pair.run(2.0)
    assert done == ["connection refused"]
    assert transfer(pair, pair.client, 100_000) < 1.0


def test_in_switch_mode_the_best_carries_and_the_next_stands_by() -> None:
    pair = opened(FAST, SLOW, mode=Mode.SWITCH)
    transfer(pair, pair.client, 300_000)
    transfer(pair, pair.peer, 300_000)
    for end in pair.ends:
        assert 1 not in end.oracles.data_bytes
    pair.cut(0, notice=0.02, down=True)
    assert transfer(pair, pair.client, 300_000) < 3.0
    assert transfer(pair, pair.peer, 300_000) < 3.0


# --- windows  ---


def test_a_reader_that_stops_bounds_the_sender_and_loses_nothing() -> None:
    settings = replace(CLEAR, max_stream_window=256 * 1024, max_session_window=512 * 1024)
    pair = opened(FAST, SLOW, client=settings, server=settings)
    pair.peer.pause()
    pair.client.write(data(pair, 2_000_000))
    pair.run(10.0)
    assert pair.client.session.sender.used == 64 * 1024, "a window grows with reading only"
    pair.peer.resume()
    pair.run(0.5)
    pair.peer.pause()
    pair.run(5.0)
    held = pair.client.session.sender.used - pair.peer.got()
    assert 0 < held <= 256 * 1024
    assert pair.client.session.streams.unsent(StreamId(0)) > 0
    pair.peer.resume()
    assert pair.until(lambda: pair.peer.got() == 2_000_000, 10.0)


def test_an_unread_stream_does_not_starve_the_others() -> None:
    pair = opened(FAST)
    stream = pair.client.open_stream()
    assert stream is not None
    pair.peer.pause(stream)
    pair.client.write(data(pair, 300_000), stream)
    pair.run(0.2)
    pair.peer.stop_sending(stream)
    assert transfer(pair, pair.client, 1_000_000) < 3.0


@pytest.mark.parametrize("unread", [1, 127])
def test_unread_streams_do_not_slow_down_the_others(unread: int) -> None:
    def seconds(unread: int) -> float:
        pair = opened(FAST)
        for _ in range(unread):
            stream = pair.client.open_stream()
            assert stream is not None
            pair.peer.pause(stream)
            pair.client.write(data(pair, 300_000), stream)
        pair.run(0.1 * (unread + 2))  # until their windows are full
        return transfer(pair, pair.client, 4_000_000)

    assert seconds(unread) < 1.1 * seconds(0)


def test_streams_that_once_had_large_windows_do_not_starve_the_others() -> None:
    pair = opened(route(10e6, 0.050))
    streams = [pair.client.open_stream() for _ in range(16)]
    for stream in streams:
        assert stream is not None
        pair.client.write(data(pair, 1_000_000), stream)
    assert pair.until(lambda: quiet(pair), 10.0)
    for stream in streams:
        assert stream is not None
        pair.peer.pause(stream)
        pair.client.write(data(pair, 1_000_000), stream)
    pair.run(5.0)
    assert transfer(pair, pair.client, 1_000_000) < 3.0


def test_a_window_that_shrank_while_nobody_used_it_slows_nobody_down_for_long() -> None:
    def seconds(*, shrinks: bool) -> float:
        pair = opened(route(10e6, 0.050), server=replace(CLEAR, max_stream_window=2 << 20))
        transfer(pair, pair.client, 8_000_000)
        pair.run(2.0)
        receiver = pair.peer.session.receiver
        grown = receiver.window.held
        if shrinks:
            receiver.shrink(pair.clock.now)
        for _ in range(220):  # what was promised is used little by little
            transfer(pair, pair.client, 10_000)
            pair.run(0.2)
        assert grown == 2 << 20
        assert receiver.window.held == (64 * 1024 if shrinks else grown)
        return transfer(pair, pair.client, 20_000_000)

    assert seconds(shrinks=True) < 1.25 * seconds(shrinks=False)


def test_a_window_lost_with_its_connection_is_asked_for() -> None:
    # The update left on a connection that died without a word; nothing is in flight that could bring another.
    pair = opened(FAST, SLOW)
    pair.peer.pause()
    pair.client.write(data(pair, 200_000))
    pair.run(1.0)
    assert quiet(pair) is False
    for index in (0, 1):
        pair.stall(index)
    pair.peer.resume()
    pair.run(0.01)
    pair.cut(0, notice=None, down=True)
    pair.restore(1)
    assert pair.until(lambda: pair.peer.got() == 200_000, 3.0)


# --- streams  ---


def test_priorities_are_strict_between_and_fair_within() -> None:
    pair = opened(FAST)
    urgent, first, second = (pair.client.open_stream(priority) for priority in (0, 3, 3))
    assert urgent is not None
    assert first is not None
    assert second is not None
    pair.run(0.1)
    pair.client.oracles.data_log.clear()
    for stream in (first, second):
        pair.client.write(data(pair, 300_000), stream)
    pair.run(0.1)
    pair.client.write(data(pair, 200_000), urgent)
    asked = pair.clock.now
    assert pair.until(lambda: pair.peer.got(urgent) == 200_000, 5.0)
    assert pair.clock.now - asked < 0.45, "an urgent stream waits for no other"
    since = [(stream, size) for time, _, stream, size in pair.client.oracles.data_log if time > asked]
    last_urgent = max(index for index, (stream, _) in enumerate(since) if stream == urgent)
    assert sum(size for stream, size in since[:last_urgent] if stream != urgent) <= 64 * 1024
    assert pair.until(lambda: pair.peer.got(first) == pair.peer.got(second) == 300_000, 5.0)
    sizes = {first: 0, second: 0}
    for _, _, stream, size in pair.client.oracles.data_log:
        if stream in sizes:
            sizes[stream] += size
            assert abs(sizes[first] - sizes[second]) <= 96 * 1024


def test_max_streams_is_respected_and_raised_when_streams_end() -> None:
    pair = opened(FAST, client=replace(CLEAR, max_streams=4), server=replace(CLEAR, max_streams=4))
    streams = [pair.client.open_stream() for _ in range(5)]
    assert streams[4] is None
    for stream in streams[:2]:
        assert stream is not None
        pair.client.write(b"x" * 1000, stream)
        pair.client.finish(stream)
    pair.run(0.2)
    assert pair.client.open_stream() is None, "the peer has not ended its half"
    for stream in streams[:2]:
        assert stream is not None
        pair.peer.finish(stream)
    pair.run(0.2)
    assert pair.client.open_stream() is not None
    assert pair.client.open_stream() is not None
    assert pair.client.open_stream() is None


def test_the_last_acknowledgement_of_a_stream_is_said_although_it_has_ended() -> None:
    # A stream that ended on both sides was forgotten with its acknowledgement pending: everything was sent again.
    pair = opened(FAST, SLOW)
    stream = pair.client.open_stream()
    assert stream is not None
    pair.peer.pause(stream)
    pair.run(0.1)
    pair.peer.finish(stream)
    pair.run(0.1)
    pair.client.write(data(pair, 40_000), stream)
    pair.client.finish(stream)
    pair.peer.resume(stream)
    pair.run(3.0)
    assert quiet(pair)
    assert stream not in pair.client.session.sender.streams
    assert pair.client.session.sender.reinjected_bytes == 0


def test_a_half_closed_stream_still_carries_the_other_way() -> None:
    pair = opened(FAST, SLOW)
    pair.client.write(b"request")
    pair.client.finish()
    assert pair.until(lambda: pair.peer.at_end(), 1.0)
    assert transfer(pair, pair.peer, 500_000) < 2.0
    assert not pair.client.at_end()
    pair.peer.finish()
    assert pair.until(lambda: pair.client.at_end(), 1.0)
    close_both(pair)


def test_a_reset_stream_ends_the_reader_with_its_code() -> None:
    pair = opened(FAST)
    stream = pair.client.open_stream()
    assert stream is not None
    pair.client.write(data(pair, 500_000), stream)
    pair.run(0.05)
    pair.client.reset(stream, 42)
    pair.run(0.5)
    error = pair.peer.receive_error(stream)
    assert isinstance(error, StreamReset)
    assert error.code == 42
    assert transfer(pair, pair.client, 500_000) < 2.0, "the session window came back"


def test_a_reader_that_stops_a_stream_stops_its_writer() -> None:
    pair = opened(FAST)
    stream = pair.client.open_stream()
    assert stream is not None
    pair.client.write(data(pair, 500_000), stream)
    pair.run(0.05)
    pair.peer.stop_sending(stream, 9)
    pair.run(0.5)
    with pytest.raises(StreamReset) as caught:
        pair.client.write(b"more", stream)
    assert caught.value.code == 9
    assert pair.client.session.sender.unacked == 0
    assert transfer(pair, pair.client, 300_000) < 2.0


# --- ending  ---


def test_a_graceful_close_delivers_what_is_in_flight() -> None:
    pair = opened(FAST, SLOW)
    pair.client.write(data(pair, 1_000_000))
    pair.client.close()
    assert pair.until(lambda: pair.client.closed is not None, 5.0)
    assert pair.peer.got() == 1_000_000
    assert [end.closed.reason.orderly for end in pair.ends if end.closed is not None] == [True, True]


def test_both_may_close_at_once_with_data_in_flight_both_ways() -> None:
    # Either side discards what it no longer reads, but acknowledges it: neither ends with an error.
    pair = opened(FAST, SLOW)
    pair.client.write(data(pair, 300_000))
    pair.peer.write(data(pair, 900_000))
    pair.run(0.05)
    close_both(pair)


@pytest.mark.parametrize("delay", [0.3, 0.7, 0.9])
def test_closing_at_once_loses_nothing_on_a_long_road(delay: float) -> None:
    pair = opened(route(1e6, delay))
    pair.client.write(data(pair, 20_000))
    pair.peer.write(data(pair, 500_000))
    close_both(pair)
    assert not pair.peer.session.sender.unacked


def test_a_close_lost_with_its_connection_is_said_again_to_a_peer_that_comes_back() -> None:
    # The server ended as soon as its last connection went, and the client was told "session gone" instead of the end.
    pair = opened(FAST)
    pair.peer.close()
    assert pair.until(lambda: pair.peer.session.state is SessionState.CLOSING, 1.0)
    pair.cut(0, notice=0.02)
    assert pair.until(lambda: all(end.closed is not None for end in pair.ends), 3.0)
    assert [end.closed.reason.orderly for end in pair.ends if end.closed is not None] == [True, True]


def test_streams_opened_after_a_close_do_not_keep_the_session_open() -> None:
    pair = opened(FAST)
    assert pair.client.open_stream() is not None
    pair.peer.close()
    pair.client.close()
    with pytest.raises(LocalProtocolError, match="closed the session"):
        pair.client.open_stream()
    assert pair.until(lambda: all(end.closed is not None for end in pair.ends), 5.0)
    assert [end.closed.reason.orderly for end in pair.ends if end.closed is not None] == [True, True]


def test_an_abort_ends_both_sides_at_once() -> None:
    pair = opened(FAST, SLOW)
    pair.client.write(data(pair, 2_000_000))
    pair.run(0.2)
    pair.client.abort("enough")
    assert pair.until(lambda: pair.server is not None and pair.peer.closed is not None, 1.0)
    assert pair.peer.closed is not None
    assert pair.peer.closed.reason == "the peer ended the session: enough"


def test_a_close_during_a_total_loss_waits_for_the_network() -> None:
    pair = opened(FAST)
    pair.client.write(data(pair, 100_000))
    pair.run(0.03)
    pair.cut(0, notice=0.02, down=True)
    pair.client.close()
    pair.run(3.0)
    assert not any(end.closed for end in pair.ends)
    pair.restore(0)
    pair.client.change_network("if0", True)
    assert pair.until(lambda: pair.client.closed is not None, 5.0)
    assert pair.client.closed is not None
    assert pair.client.closed.reason.orderly
    assert pair.peer.got() == 100_000


def test_keepalives_measure_the_round_trip_and_hold_an_idle_session() -> None:
    pair = opened(FAST)
    pair.run(200.0)
    assert len(pair.client.active) == 1
    pings = pair.client.oracles.segments[SegmentType.KEEPALIVE]
    assert 20 <= pings <= 40
    assert pair.client.session.connections[ConnectionId(0)].min_rtt == pytest.approx(0.020, abs=0.002)


def test_an_idle_connection_whose_peer_is_gone_is_lost_after_the_idle_timeout() -> None:
    settings = replace(CLEAR, idle_timeout=6.0)
    pair = opened(FAST, SLOW, client=settings, server=settings)
    cut_at = pair.clock.now
    pair.cut(0, notice=None, down=True)
    assert pair.until(lambda: bool(pair.client.changes(ConnectionState.LOST)), 20.0)
    assert pair.clock.now - cut_at <= 6.1
    assert pair.client.changes(ConnectionState.LOST)[0].connection == 0


def test_control_on_an_idle_connection_is_not_taken_for_silence() -> None:
    # Silence was counted from the last use: after ten idle seconds the first FIN made its connection suspect.
    pair = opened(FAST, SLOW)
    pair.run(10.0)
    pair.client.finish()
    pair.run(0.5)
    for end in pair.ends:
        assert not end.changes(ConnectionState.SUSPECT)


def test_a_session_nobody_confirms_ends_without_spinning() -> None:
    # The server's deadline for the confirmation lay in the past while a later connection was still allowed to prove.
    pair = clear_pair(FAST, route(1e6, 0.4), open_timeout=30.0)
    pair.until(lambda: pair.server is not None, 1.0)
    pair.cut(0, notice=None, down=True)
    assert pair.until(lambda: pair.client.session.confirmed, 10.0)
    pair.cut(1, notice=None, down=True)
    events = pair.clock.events
    pair.run(30.0)
    assert pair.clock.events - events < 3000


def test_sealed_connections_and_those_with_several_lanes_carry_as_clear_ones_do() -> None:
    quic = Route(StreamLinkSpec(1e6, 0.010), StreamLinkSpec(1e6, 0.010), secure=True, lanes=3)
    pair = Pair([FAST, quic], client=SessionSettings())
    pair.run(0.3)
    pair.client.write(data(pair, 2_000_000))
    pair.peer.write(data(pair, 2_000_000))
    start = pair.clock.now
    assert pair.until(lambda: pair.peer.got() == pair.client.got() == 2_000_000, 10.0)
    assert 2_000_000 / (pair.clock.now - start) > 1.7e6
    close_both(pair)
