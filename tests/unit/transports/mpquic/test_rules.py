"""What connections with several paths keep to with either engine: rules without which transfers stood still, or peers
that are somebody else's would not understand it."""

from __future__ import annotations

import gc
from dataclasses import replace
from itertools import pairwise
from math import inf
from typing import Any, cast

import pytest
from aioquic.quic.packet import QuicFrameType
from aioquic.tls import Epoch

from multi.lab.engines.links import link_of
from multi.lab.engines.pair import EngineEnd, EnginePair
from multi.multipath.cap import QueueBound, RateMeter
from multi.multipath.facts import PathError, PathState
from multi.multipath.policy import PathPolicy
from multi.multipath.silence import ACK_DELAY
from multi.transports.mpquic.connection import KEEP_KNOWN
from tests.unit.transports.mpquic.ends import (
    BOTH,
    MEGABYTE,
    PAIRS,
    SAME,
    TEN,
    TEN_FAR,
    TEN_NEAR,
    asked,
    closed,
    connected_engines,
    engine,
    engines_by_name,
    opened,
    paths_of,
    probe_timeout,
    sizes_on,
)

pytestmark = pytest.mark.slow  # whole engines in virtual time


def times_of(made: EnginePair, end: EngineEnd, name: str) -> list[float]:
    """When an event of this name comes at this end, from now on."""
    times: list[float] = []
    end.on_event = lambda event: times.append(made.clock.now) if type(event).__name__ == name else None
    return times


# --- ids of paths  ---


@PAIRS
def test_ids_of_paths_come_with_the_handshake(client: str, server: str) -> None:
    """In 0.5-RTT: a path is opened as soon as the client is done, and answered a round trip later."""
    made = engines_by_name(client, server, TEN, TEN, TEN)
    assert made.run(lambda: made.client.complete_at is not None)
    began = made.clock.now
    made.open_all()
    assert made.run(lambda: sorted(opened(made.client)) == [1, 2])
    assert made.clock.now - began < 1.1 * 0.044


@PAIRS
def test_a_second_path_carries_data_a_round_trip_after_the_handshake(client: str, server: str) -> None:
    """And in the other direction half of one later, when the client's answer to the server's challenge has come."""
    made = engines_by_name(client, server, TEN, TEN)
    made.client.write(bytes(MEGABYTE))
    assert made.run(lambda: made.client.complete_at is not None)
    sent, answered = sizes_on(made.ups[1]), sizes_on(made.downs[1])
    began = made.clock.now
    made.open(1)
    assert made.run(lambda: sum(sent) > 5000, 1.1 * 0.044)
    assert made.run(lambda: made.server is not None and made.server.received > 0)
    assert made.server is not None
    made.server.write(bytes(MEGABYTE))
    assert made.run(lambda: sum(answered) > 5000, began + 1.6 * 0.044 - made.clock.now)


@PAIRS
def test_with_each_path_that_has_ended_one_more_may_be_opened_and_no_id_is_used_twice(client: str, server: str) -> None:
    two = PathPolicy(paths=2)
    made = connected_engines(client, server, TEN, TEN, policy=two, servers=two)
    for latest in range(1, 7):
        assert opened(made.client) == list(range(1, latest + 1))
        assert paths_of(made.client).open_path(made.place(1), made.clock.now) is None  # both are in use
        paths_of(made.client).abandon_path(latest, PathError.APPLICATION_ABANDON_PATH, made.clock.now)
        made.client.pump()
        assert made.open(1) == latest + 1
        assert made.run(lambda latest=latest: opened(made.client)[-1] == latest + 1, 1.0)  # type: ignore[misc]
        assert set(made.facts(made.client)) == {0, latest + 1}
    made.download(MEGABYTE // 10)


@PAIRS
def test_of_paths_that_are_gone_nothing_is_kept(client: str, server: str) -> None:
    """A session that moves between networks for weeks has thousands, and so has a peer that wants a server to grow."""

    def meters() -> int:
        gc.collect()
        return sum(isinstance(each, RateMeter | QueueBound) for each in gc.get_objects())

    two = PathPolicy(paths=2)
    others = meters()
    made = connected_engines(client, server, TEN, TEN, policy=two, servers=two)
    for latest in range(1, 9):
        made.run(lambda: False, 0.2)
        paths_of(made.client).abandon_path(latest, PathError.APPLICATION_ABANDON_PATH, made.clock.now)
        made.client.pump()
        assert made.open(1) == latest + 1
    made.run(lambda: False, 5.0)
    assert meters() - others <= 2 * 2 * 3  # two for each path of each end, and for a path that lingers


@PAIRS
def test_a_path_that_nobody_answered_on_makes_room_for_another_too(client: str, server: str) -> None:
    """And it is not asked without end: at first after half a second, when the engine does not know better."""
    two = PathPolicy(paths=2)
    made = engines_by_name(client, server, TEN, TEN, policy=two, servers=two)
    made.connect()
    made.ups[1].silent = True
    made.open(1)
    challenges = sizes_on(made.ups[1])
    assert made.run(lambda: bool(closed(made.client)), 10.0)
    assert closed(made.client) == [(1, PathError.PATH_UNSTABLE_OR_POOR, False)]
    assert len(challenges) <= 6.0 / 0.3
    made.ups[1].silent = False
    assert made.open(1) == 2
    assert made.run(lambda: opened(made.client) == [2])


@PAIRS
def test_a_client_that_leaves_its_last_path_for_one_that_is_not_answered_yet_goes_on(client: str, server: str) -> None:
    """A server with a full window sent packets with nothing in them on the path that was left, without end."""
    made = engines_by_name(client, server, TEN, TEN)
    made.connect()
    asked(made).write(bytes(2 * MEGABYTE), end=True)
    made.run(lambda: made.client.received > MEGABYTE // 2)
    sizes = sizes_on(made.downs[0])
    assert made.open(1) == 1
    paths_of(made.client).abandon_path(0, PathError.PATH_UNSTABLE_OR_POOR, made.clock.now)
    made.client.pump()
    made.run(lambda: False, 0.1)
    assert sum(size < 100 for size in sizes) < 20
    assert made.run(lambda: made.client.ended, 10.0)


@PAIRS
def test_ids_of_an_abandoned_path_are_known_for_three_probe_timeouts(client: str, server: str) -> None:
    """What is late would else be answered with a stateless reset. The other end counts from its answer."""
    made = connected_engines(client, server, TEN_NEAR, TEN_FAR)
    made.download(MEGABYTE // 3)
    assert made.server is not None
    ends = {"client": made.client, "server": made.server}
    waits = {}
    for name, end in ends.items():
        facts = made.facts(end)[1]
        later = facts._replace(rtt_variation=facts.rtt_variation * 3 / 4)  # one more acknowledgement may come before
        waits[name] = 3 * probe_timeout(later), 3 * probe_timeout(facts)
    retired = {name: times_of(made, end, "ConnectionIdRetired") for name, end in ends.items()}
    paths_of(made.client).abandon_path(1, PathError.APPLICATION_ABANDON_PATH, made.clock.now)
    made.client.pump()
    assert made.run(lambda: bool(closed(ends["server"])), 0.2)
    heard = {"server": made.clock.now, "client": made.clock.now + 0.010}
    assert made.run(lambda: bool(retired["client"] and retired["server"]), 10.0)
    for name, (least, most) in waits.items():
        assert 0.95 * least < retired[name][0] - heard[name] < most + 0.1


@PAIRS
def test_a_connection_is_kept_for_three_probe_timeouts_of_its_farthest_path_after_its_end(
    client: str, server: str
) -> None:
    """The peer's packets of that path are still on their way."""
    made = connected_engines(client, server, TEN_NEAR, TEN_FAR)
    made.download(MEGABYTE // 3)
    farthest = max(probe_timeout(path) for path in made.facts(made.client).values())
    began = made.clock.now
    made.client.engine.close(7, "enough")
    made.client.pump()
    assert made.run(lambda: made.client.engine.next_timer() is None, 10.0)
    assert 3 * farthest * 0.95 < made.clock.now - began < 3 * farthest * 1.3 + 0.1


@PAIRS
@pytest.mark.parametrize("silent", [0, 1])
def test_the_end_of_a_connection_is_told_on_a_path_that_answers(client: str, server: str, silent: int) -> None:
    made = connected_engines(client, server, TEN, TEN)
    sending = asked(made)
    sending.write(bytes(2 * MEGABYTE))
    assert made.run(lambda: made.client.received > MEGABYTE // 4)
    made.ups[silent].silent = made.downs[silent].silent = True
    assert made.run(lambda: made.facts()[silent].state is PathState.SUSPECT, 2.0)
    sending.engine.close(7, "enough")
    sending.pump()
    assert made.run(lambda: made.client.engine.closing is not None, 0.1)


@pytest.mark.parametrize(("client", "server"), [("aioquic", "aioquic"), ("aioquic", "noq"), ("noq", "aioquic")])
def test_updates_of_keys_are_three_probe_timeouts_of_the_farthest_path_apart(
    client: str, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often one is wanted: of what is on its way there the peer could tell by no number which keys it has."""
    if server == "aioquic":
        monkeypatch.setattr("multi.transports.quic.aioquic_engine.MAX_UNDER_KEYS", 20)
    near, far = ((link_of(2, round_trip),) * 2 for round_trip in (0.020, 0.180))
    made = connected_engines(client, server, near, far, policy=SAME, servers=SAME)
    sending = asked(made)
    sending.write(bytes(4 * MEGABYTE))
    keys = engine(made.client if client == "aioquic" else sending)._connection._cryptos
    phase, updated_at = 0, [-inf]
    while len(updated_at) < 4:
        made.run(lambda: False, 0.005)
        if server == "noq":
            cast(Any, sending.engine)._connection.update_keys()
        if keys[Epoch.ONE_RTT].key_phase != phase:
            phase = 1 - phase
            updated_at.append(made.clock.now)
        assert made.clock.now < 20.0
    assert min(after - before for before, after in pairwise(updated_at)) > 3 * (0.180 + ACK_DELAY)
    came = made.client.received
    made.run(lambda: False, 1.0)
    assert made.client.received > came + MEGABYTE // 8


# --- what the peer may send  ---


@BOTH
def test_what_the_peer_may_send_is_said_on_all_paths_that_are_alike(name: str) -> None:
    made = connected_engines(name, "aioquic", TEN, TEN)
    sending = asked(made)
    connection = engine(sending)._connection
    heard: set[tuple[int, int]] = set()
    for kind in (QuicFrameType.MAX_DATA, QuicFrameType.MAX_STREAM_DATA):
        take, epochs = connection._path_frames[kind]

        def noted(context: Any, frame_type: int, buf: Any, take: Any = take) -> None:
            heard.add((frame_type, connection._current.id))
            take(context, frame_type, buf)

        connection._path_frames[kind] = noted, epochs
    sending.write(bytes(MEGABYTE), end=True)
    assert made.run(lambda: made.client.ended)
    assert {path for _, path in heard} == {0, 1}
    assert {kind for kind, _ in heard} == {QuicFrameType.MAX_DATA, QuicFrameType.MAX_STREAM_DATA}


@PAIRS
def test_what_the_peer_may_send_is_heard_where_one_path_leads_nothing_to_it(client: str, server: str) -> None:
    """The other direction of that path goes on, and a window takes less than the paths hold."""
    far = (link_of(20, 0.100),) * 2
    made = connected_engines(client, server, far, far)
    asked(made).write(bytes(2 * MEGABYTE), end=True)
    made.run(lambda: made.client.received > 0.3 * MEGABYTE)
    made.ups[0].silent, made.client.longest_gap = True, 0.0
    timeout = probe_timeout(made.facts()[0])
    assert made.run(lambda: made.client.ended, 3.0)
    assert made.client.longest_gap < 2 * timeout + 0.15


# --- round trips  ---


@PAIRS
def test_a_path_with_a_round_trip_of_two_seconds_is_opened_and_carries_all_when_it_is_the_only_one(
    client: str, server: str
) -> None:
    made = connected_engines(client, server, TEN, (link_of(10, 2.0),) * 2)
    assert opened(made.client) == [1]
    sending = asked(made)
    made.ups[0].silent = made.downs[0].silent = True
    sending.write(bytes(MEGABYTE // 10), end=True)
    assert made.run(lambda: made.client.ended, 9.0)  # four round trips, in which a window doubles from ten datagrams
    facts = made.facts()
    assert facts[1].state is PathState.ACTIVE
    assert facts[1].min_rtt > 1.9
    assert closed(made.client) == closed(sending) == []


@PAIRS
def test_the_smallest_round_trip_of_a_path_is_that_of_the_way_its_acknowledgements_take_now(
    client: str, server: str
) -> None:
    """Those of the far path come back over the near one while nothing gets through on the far way back, and then on
    their own again: with the smallest of before a queue would be seen where none is."""
    made = connected_engines(client, server, TEN_NEAR, TEN_FAR, policy=SAME, servers=SAME)
    asked(made).write(bytes(8 * MEGABYTE))
    assert made.run(lambda: made.facts()[1].min_rtt > 0, 2.0)
    own = made.facts()[1].min_rtt
    assert 0.180 <= own < 0.210
    made.ups[1].silent = True
    assert made.run(lambda: made.facts()[1].min_rtt < 0.9 * own, 3.0)
    assert 0.100 <= made.facts()[1].min_rtt < 0.130
    made.ups[1].silent = False
    assert made.run(lambda: made.facts()[1].min_rtt > 0.9 * own, 3.0)
    assert made.facts()[0].min_rtt < 0.025  # of the near path nothing was forgotten


@BOTH
@pytest.mark.parametrize("path", [0, 1])
def test_a_path_whose_peer_has_another_address_begins_anew_and_the_others_do_not(name: str, path: int) -> None:
    made = connected_engines(name, name, TEN, TEN, policy=SAME, servers=SAME)
    server = asked(made)
    server.write(bytes(8 * MEGABYTE))
    made.run(lambda: False, 1.0)
    before = made.facts()
    assert min(before[each].congestion_window for each in (0, 1)) > 60_000
    way = made.ups[path], made.downs[path]
    for link in way:  # what is on its way at that moment arrives nowhere
        link.silent, link.spec = True, link_of(10, 0.400)
    made.run(lambda: False, 0.100)
    for link in way:
        link.silent = False
    made.move(path, address=True)
    assert made.run(lambda: made.facts()[path].congestion_window < 20_000, 1.0)
    assert made.facts()[1 - path].congestion_window > 0.6 * before[1 - path].congestion_window
    made.run(lambda: False, 1.0)
    after = made.facts()
    assert after[path].min_rtt > 0.200  # one way there, and back that of the other path at least
    assert after[1 - path].min_rtt < 0.050
    carried = made.downs[path].carried
    assert made.run(lambda: made.downs[path].carried > carried + MEGABYTE // 4, 3.0)
    assert closed(server) == closed(made.client) == []


@PAIRS
@pytest.mark.parametrize("path", [0, 1])
def test_a_nat_that_forgets_a_path_changes_nothing_of_it_but_its_port(client: str, server: str, path: int) -> None:
    made = connected_engines(client, server, TEN, TEN, policy=SAME, servers=SAME)
    sending = asked(made)
    sending.write(bytes(2 * MEGABYTE), end=True)
    made.run(lambda: False, 0.7)
    before = made.facts()
    made.move(path)
    windows: list[int] = []
    while not made.client.ended:
        made.run(lambda: made.client.ended, 0.010)
        windows.append(made.facts()[path].congestion_window)
        assert len(windows) < 500
    assert min(windows) > 0.4 * before[path].congestion_window
    assert set(made.facts()) == {0, 1}
    assert closed(sending) == closed(made.client) == []


def test_a_path_that_carries_nothing_is_asked_now_and_then_so_that_its_nat_knows_it() -> None:
    """A backup, while the client takes a little each second on the other."""
    made = connected_engines("aioquic", "aioquic", TEN, TEN)
    made.client.engine.set_backup(1, True)  # type: ignore[attr-defined]  # of a PathEngine
    assert made.server is not None
    made.client.write(b"?")
    made.run(lambda: False, 1.0)
    asked_at: list[float] = []
    send = made.ups[1].send

    def noted(data: bytes) -> None:
        asked_at.append(made.clock.now)
        send(data)

    made.ups[1].send = noted  # type: ignore[method-assign]
    for _ in range(60):
        made.server.write(bytes(1000))
        made.run(lambda: False, 1.0)
    pauses = [after - before for before, after in pairwise(asked_at)]
    assert 3 <= len(asked_at) <= 8, "and what comes of it is acknowledged"
    assert max(pauses) <= KEEP_KNOWN + 1.5
    before = len(asked_at)
    made.run(lambda: False, 40.0)
    assert len(asked_at) == before, "not where nothing comes at all"


@PAIRS
def test_what_came_on_a_path_that_is_given_up_is_acknowledged(client: str, server: str) -> None:
    """The last one still waited for another to be acknowledged with, and was sent again a probe timeout later."""
    made = connected_engines(client, server, *((link_of(50, 0.020),) * 2,) * 2)
    serving = asked(made)
    serving.write(bytes(12_000))
    assert made.run(lambda: made.client.received == 12_000)
    paths_of(made.client).abandon_path(1, PathError.NO_ERROR, made.clock.now)
    made.client.pump()
    begin = made.clock.now
    assert made.run(lambda: serving.engine.unacknowledged() == 0)
    assert made.clock.now - begin < 0.060


# --- disorder  ---


@pytest.mark.parametrize(
    ("client", "server", "jitter"),
    [
        ("aioquic", "aioquic", 0.020),
        ("noq", "noq", 0.005),
        ("aioquic", "noq", 0.020),
        ("noq", "aioquic", 0.005),
        ("noq", "noq", 0.020),
    ],
)
def test_packets_that_overtake_each_other_are_not_taken_for_lost_for_long(
    client: str, server: str, jitter: float
) -> None:
    """A path carried a tenth and less: each that was overtaken by three made the window smaller."""
    path = link_of(20, 0.040)
    made = connected_engines(client, server, (path, replace(path, jitter=jitter)))
    asked(made).write(bytes(15 * MEGABYTE))
    made.run(lambda: False, 2.0)
    came = made.client.received
    made.run(lambda: False, 2.0)
    assert made.client.received - came > 0.8 * 2.0 * path.rate
