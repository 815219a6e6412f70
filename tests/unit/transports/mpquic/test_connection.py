"""What a connection with several paths does, one rule a test, with real engines in virtual time."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import ClassVar

import pytest
from aioquic.tls import Epoch

from multi.lab.engines.links import link_of
from multi.lab.engines.pair import EnginePair
from multi.multipath.facts import PathError, PathState
from multi.multipath.policy import AckPath, PathPolicy
from multi.schedulers import create_scheduler
from multi.transports.quic.connection_ids import ConnectionIds
from multi.transports.quic.engine import Ending
from multi.transports.quic.packets import stateless_reset
from multi.transports.quic.udp_port import PeerAddress
from tests.unit.transports.mpquic.ends import (
    BOTH,
    DEFAULT,
    FAR,
    FAST,
    MEGABYTE,
    TEN,
    asked,
    closed,
    connected,
    connected_engines,
    engine,
    engines_by_name,
    opened,
    paths_of,
)

pytestmark = pytest.mark.slow  # whole engines in virtual time

QUARTER = MEGABYTE // 4
SLOW = (link_of(3, 0.044),) * 2
"""Cheap: what costs time here is packets, not seconds."""


@BOTH
def test_two_paths_carry_a_download_together(name: str) -> None:
    one, two = connected_engines(name, name, TEN).download(MEGABYTE), connected_engines(name, name, TEN, TEN)
    assert two.download(MEGABYTE) < 0.68 * one
    assert all(link.carried > 0.35 * MEGABYTE for link in two.downs)


@BOTH
def test_bytes_arrive_whole_and_in_order_over_unequal_paths(name: str) -> None:
    made = connected_engines(name, name, FAST, FAR)
    made.client.keep_data = True
    payload = bytes(range(251)) * 3000
    server = asked(made)
    server.write(payload, end=True)
    assert made.run(lambda: made.client.ended)
    assert bytes(made.client.data) == payload


@BOTH
def test_an_upload_uses_both_paths(name: str) -> None:
    made = connected_engines(name, name, TEN, TEN)
    server = made.server
    assert server is not None
    made.client.write(bytes(MEGABYTE), end=True)
    assert made.run(lambda: server.ended, 1.0)
    assert all(link.carried > 0.3 * MEGABYTE for link in made.ups)


# --- opening  ---


@BOTH
def test_no_path_is_opened_before_the_peer_has_given_ids(name: str) -> None:
    made = engines_by_name(name, name, TEN, TEN)
    assert paths_of(made.client).open_path(made.place(1), made.clock.now) is None
    made.connect()
    assert made.server is not None
    assert paths_of(made.server).open_path(made.seen(1), made.clock.now) is None  # a server opens none


@BOTH
def test_no_more_paths_are_open_than_agreed(name: str) -> None:
    made = connected_engines(name, name, *([TEN] * 3), policy=PathPolicy(paths=3), servers=PathPolicy(paths=8))
    assert paths_of(made.client).open_path(made.place(0), made.clock.now) is None
    made = engines_by_name(name, name, *([TEN] * 3), policy=PathPolicy(paths=8), servers=PathPolicy(paths=2))
    made.connect()
    made.open(1)
    assert paths_of(made.client).open_path(made.place(2), made.clock.now) is None
    made.client.pump()
    made.run(lambda: False, 0.2)
    assert paths_of(made.client).closing is None  # it has told the server that it would like more


@BOTH
@pytest.mark.parametrize(("client", "server"), [(None, DEFAULT), (DEFAULT, None), (None, None)])
def test_with_a_peer_that_has_no_multipath_it_is_plain_quic(
    name: str, client: PathPolicy | None, server: PathPolicy | None
) -> None:
    made = engines_by_name(name, name, TEN, TEN, policy=client, servers=server)
    made.connect()
    assert not paths_of(made.client).multipath
    assert made.server is not None
    assert not paths_of(made.server).multipath
    assert paths_of(made.client).open_path(made.place(1), made.clock.now) is None
    made.download(100_000)


@BOTH
def test_a_path_whose_first_packet_overtakes_the_end_of_the_handshake_is_opened_with_that(name: str) -> None:
    far = (link_of(10, 0.600), link_of(10, 0.044))
    made = engines_by_name(name, name, far, TEN)
    assert made.run(lambda: made.client.complete_at is not None)
    made.open(1)
    assert made.server is not None
    assert made.server.complete_at is None
    assert made.run(lambda: opened(made.client) == [1], 0.4)  # half a round trip there, and half of the other back
    made.download(10_000)


# --- silence  ---


@BOTH
def test_who_sends_steadily_notices_that_a_path_is_silent_as_soon_as_who_waits(name: str) -> None:
    """Each packet would put the probe off: what keys and voices send fits into the window for seconds."""
    made = engines_by_name(name, name, TEN, TEN)
    made.connect()
    made.open(1, backup=True)
    server = asked(made)
    made.run(lambda: False, 0.5)
    assert made.facts()[1].backup
    made.ups[0].silent = made.downs[0].silent = True
    before = made.client.received
    for _ in range(20):
        server.write(b"a key")
        made.run(lambda: False, 0.020)
    assert made.facts()[0].state is PathState.SUSPECT
    assert made.run(lambda: made.client.received == before + 20 * len(b"a key"), 0.1)


@BOTH
@pytest.mark.parametrize("at", [0.40, 0.47])
def test_silence_of_the_near_path_is_hardly_noticed_by_who_reads(name: str, at: float) -> None:
    """Its acknowledgements would go on the path that is dead: the other one fell silent for the server, too."""
    near, far = (link_of(10, 0.004),) * 2, (link_of(10, 0.046),) * 2
    made = connected_engines(name, name, near, far)
    server = asked(made)
    server.write(bytes(2 * MEGABYTE), end=True)
    made.run(lambda: False, at)
    made.ups[0].silent = made.downs[0].silent = True
    made.client.longest_gap = 0.0
    made.run(lambda: False, 0.6)
    assert made.client.longest_gap < 0.15


@pytest.mark.parametrize("ack_path", AckPath)
def test_acknowledgements_leave_a_path_that_is_dead_in_their_direction(ack_path: AckPath) -> None:
    """A pure receiver has no probe timeout of its own but for the PINGs that go with acknowledgements."""
    policy = PathPolicy(ack_path=ack_path)
    made = connected([SLOW, SLOW], policy, policy)
    server = asked(made)
    server.write(bytes(4 * QUARTER), end=True)
    made.run(lambda: made.client.received > QUARTER // 2)
    made.ups[0].silent = True
    assert made.run(lambda: made.client.ended, 5.0)
    assert made.facts(made.client)[0].state is PathState.SUSPECT


def test_acknowledgements_that_leave_do_not_take_the_place_of_others_that_are_not_due_yet() -> None:
    """They were forgotten where both came within a millisecond: the peer took that path for silent."""
    made = connected([TEN, TEN])
    made.run(lambda: False, 1.0)
    paths, now = engine(made.client)._connection._paths, made.clock.now
    paths[1].space.ack_at, paths[0].space.ack_at = now, now + 0.0005
    made.client.pump()
    assert paths[1].space.ack_at is None
    assert paths[0].space.ack_at == now + 0.0005


@BOTH
def test_a_path_whose_first_acknowledgements_were_of_control_alone_is_filled(name: str) -> None:
    """Its rate is not known from a few small packets: it was left alone for the other path's sake."""
    made = connected_engines(name, name, TEN, TEN)
    for _ in range(5):
        paths_of(made.client).set_backup(1, not made.facts(made.client)[1].backup)
        made.client.pump()
        made.run(lambda: False, 0.2)
    paths_of(made.client).set_backup(1, False)
    made.client.pump()
    made.run(lambda: False, 0.2)
    assert made.download(MEGABYTE) < 0.62
    assert all(link.carried > 0.35 * MEGABYTE for link in made.downs)


@BOTH
def test_what_was_sent_before_a_network_was_lost_does_not_say_that_it_is_back(name: str) -> None:
    made = connected_engines(name, name, SLOW, SLOW)
    made.client.write(bytes(2 * QUARTER), end=True)
    made.run(lambda: made.server is not None and made.server.received > QUARTER // 2)
    made.ups[0].silent = True  # acknowledgements are still on their way
    paths_of(made.client).suspect_path(0, made.clock.now)
    made.client.pump()
    states = set()
    for _ in range(20):
        made.run(lambda: False, 0.01)
        states.add(made.facts(made.client)[0].state)
    assert states == {PathState.SUSPECT}


@BOTH
def test_a_network_that_is_known_to_be_lost_is_acted_upon_at_once(name: str) -> None:
    made = connected_engines(name, name, SLOW, SLOW)
    made.client.write(bytes(2 * QUARTER), end=True)
    made.run(lambda: made.server is not None and made.server.received > QUARTER // 2)
    made.ups[0].silent = made.downs[0].silent = True
    paths_of(made.client).suspect_path(0, made.clock.now)
    made.client.pump()
    assert made.server is not None
    made.server.longest_gap = 0.0
    assert made.run(lambda: made.server is not None and made.server.ended)
    assert made.server.longest_gap < 0.2


@BOTH
def test_the_only_path_is_repeated_on_as_ever(name: str) -> None:
    made = connected_engines(name, name, SLOW)
    server = asked(made)
    server.write(bytes(QUARTER), end=True)
    made.run(lambda: made.client.received > QUARTER // 2)
    made.downs[0].silent = True
    made.run(lambda: False, 0.5)
    made.downs[0].silent = False
    assert made.run(lambda: made.client.ended, 4.0)


# --- status, abandoning  ---


@BOTH
def test_a_backup_carries_data_only_while_no_other_path_works(name: str) -> None:
    made = connected_engines(name, name, SLOW, SLOW)
    paths_of(made.client).set_backup(1, True)
    made.client.pump()
    made.run(lambda: False, 0.1)
    assert made.facts()[1].backup
    before = made.downs[1].carried
    made.download(QUARTER // 2)
    assert made.downs[1].carried - before < 20_000
    made.downs[0].silent = made.ups[0].silent = True
    assert made.server is not None
    made.server.write(bytes(QUARTER // 4), stream=4) if paths_of(made.server).has_stream(4) else None
    paths_of(made.client).set_backup(1, False)
    made.client.pump()
    made.run(lambda: False, 1.0)
    assert not made.facts()[1].backup


@BOTH
def test_a_later_status_wins_over_an_earlier_one_that_comes_late(name: str) -> None:
    made = connected_engines(name, name, SLOW, SLOW)
    for backup in (True, False, True, False):
        paths_of(made.client).set_backup(1, backup)
    made.client.pump()
    made.run(lambda: False, 0.2)
    assert not made.facts()[1].backup


@BOTH
@pytest.mark.parametrize("path", [0, 1])
def test_an_abandoned_path_is_answered_and_makes_room_for_another(name: str, path: int) -> None:
    made = connected_engines(name, name, SLOW, SLOW, policy=PathPolicy(paths=2), servers=PathPolicy(paths=2))
    server = asked(made)
    server.write(bytes(2 * QUARTER), end=True)
    made.run(lambda: made.client.received > QUARTER // 2)
    paths_of(made.client).abandon_path(path, PathError.APPLICATION_ABANDON_PATH, made.clock.now)
    made.client.pump()
    assert made.run(lambda: bool(closed(server)), 0.3)
    assert closed(server) == [(path, PathError.APPLICATION_ABANDON_PATH, True)]
    assert closed(made.client) == [(path, PathError.APPLICATION_ABANDON_PATH, False)]
    assert made.run(lambda: made.client.ended)
    made.open(path)
    assert made.run(lambda: opened(made.client)[-1] == 2)
    assert set(made.facts()) == {1 - path, 2}


@BOTH
def test_the_last_path_is_not_abandoned(name: str) -> None:
    made = connected_engines(name, name, SLOW)
    paths_of(made.client).abandon_path(0, 0, made.clock.now)
    made.download(10_000)


# --- addresses and keys  ---


class RememberedIds(ConnectionIds):
    """Remembers the tokens that it has made."""

    tokens: ClassVar[list[bytes]] = []

    def reset_token(self, connection_id: bytes) -> bytes:
        self.tokens.append(super().reset_token(connection_id))
        return self.tokens[-1]


@pytest.mark.parametrize("first", [True, False])
def test_a_stateless_reset_for_an_id_of_any_path_ends_the_connection(first: bool) -> None:
    RememberedIds.tokens.clear()
    made = connected([TEN, TEN], ids=RememberedIds(reset_key=b"key"))
    client, tokens = engine(made.client), RememberedIds.tokens
    assert len(tokens) > 2
    for token in tokens[:1] if first else tokens[1:]:  # of the id it began with, or of those that came later
        data = stateless_reset(1200, token)
        client.receive(data, len(data), PeerAddress(("192.0.2.1", 1)), made.clock.now)
    assert client.closing is not None
    assert client.ending is Ending.GONE


def test_keys_protect_no_more_packets_than_they_may_on_all_paths_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("multi.transports.quic.aioquic_engine.MAX_UNDER_KEYS", 300)
    made = connected([SLOW, (link_of(10, 0.1),) * 2])
    server = asked(made)
    server.write(bytes(4 * QUARTER), end=True)
    phases = []

    def ended() -> bool:
        phases.append(engine(server)._connection._cryptos[Epoch.ONE_RTT].key_phase)
        return made.client.ended

    assert made.run(ended, 12.0)
    assert engine(made.client).closing is None
    assert made.client.received == 4 * QUARTER
    assert sum(first != second for first, second in itertools.pairwise(phases)) >= 2


# --- networks that swallow large packets  ---


def holed(made: EnginePair, *paths: int, largest: int = 1252) -> None:
    """From now on nothing larger comes through there, and nobody says so."""
    for link in [made.ups[path] for path in paths] + [made.downs[path] for path in paths]:
        link.spec = replace(link.spec, largest=largest)


@BOTH
@pytest.mark.parametrize("largest", [1252, 1200])
@pytest.mark.parametrize("paths", [(0,), (0, 1)])
def test_a_hole_for_large_packets_costs_a_probe_timeout_and_a_round_trip(
    name: str, paths: tuple[int, ...], largest: int
) -> None:
    made = connected_engines(name, name, TEN, TEN)
    server = asked(made)
    made.client.keep_data = True
    payload = bytes(range(251)) * 5000
    server.write(payload, end=True)
    assert made.run(lambda: made.client.received > QUARTER)
    holed(made, *paths, largest=largest)
    at, left, made.client.longest_gap = made.clock.now, len(payload) - made.client.received, 0.0
    assert made.run(lambda: made.client.ended, 5.0)
    assert bytes(made.client.data) == payload
    assert made.client.longest_gap < 0.45
    assert made.clock.now - at < 8 * left / 18e6 + 0.7  # both carry on


@BOTH
def test_an_upload_over_one_path_with_a_hole_goes_on_in_small_packets(name: str) -> None:
    made = connected_engines(name, name, TEN)
    server = made.server
    assert server is not None
    made.client.write(bytes(2 * QUARTER), end=True)
    assert made.run(lambda: server.received > QUARTER)
    holed(made, 0)
    assert made.run(lambda: server.ended, 1.0)
    assert server.longest_gap < 0.3


def test_a_hole_that_goes_is_found_to_be_gone_by_probes() -> None:
    made = connected([SLOW])
    server = asked(made)
    holed(made, 0)
    server.write(bytes(MEGABYTE), end=True)
    assert made.run(lambda: made.client.received > QUARTER, 2.0)
    path = engine(server)._connection._paths[0]
    assert path.loss.size.now == 1200
    holed(made, 0, largest=65_535)
    assert made.run(lambda: path.loss.size.now == path.loss.size.most, 2.0)


def test_silence_is_no_hole_for_long() -> None:
    """A timeout alone makes packets small; the first that are answered bring the large ones back."""
    made = connected([TEN])
    server = asked(made)
    server.write(bytes(MEGABYTE), end=True)
    assert made.run(lambda: made.client.received > QUARTER)
    made.downs[0].silent = True
    path = engine(server)._connection._paths[0]
    assert made.run(lambda: path.loss.size.now < path.loss.size.most)
    made.downs[0].silent = False
    assert made.run(lambda: path.loss.size.now == path.loss.size.most, 2.0)
    assert made.run(lambda: made.client.ended, 5.0)


@pytest.mark.parametrize(("name", "share"), [("aioquic", 0.3), ("noq", 0.1)])
def test_a_path_is_opened_over_a_network_that_carries_small_packets_only_and_used(name: str, share: float) -> None:
    made = engines_by_name(name, name, TEN, TEN)
    made.connect()
    holed(made, 1, largest=1200)
    made.open(1)
    assert made.run(lambda: opened(made.client) == [1], 1.2)  # with the second challenge
    made.download(MEGABYTE)
    assert made.downs[1].carried > share * MEGABYTE


@BOTH
def test_a_handshake_goes_on_in_small_packets(name: str) -> None:
    made = engines_by_name(name, name, TEN)
    holed(made, 0)
    assert made.run(lambda: made.client.complete_at is not None, 1.0)
    made.download(QUARTER)


def test_messages_take_the_path_that_has_room_for_them_and_are_refused_where_none_has() -> None:
    made = connected([TEN, TEN])
    server, large, small = asked(made), bytes(1250), bytes(1000)
    came: list[int] = []
    made.client.on_event = lambda event: came.append(len(event.data)) if hasattr(event, "data") else None
    holed(made, 0)
    server.write(bytes(QUARTER), stream=0)
    made.run(lambda: False, 1.0)
    came.clear()
    for _ in range(10):
        assert engine(server).send_message(large)
        assert engine(server).send_message(small)
    server.pump()
    made.run(lambda: False, 0.5)
    assert sorted(came) == [len(small)] * 10 + [len(large)] * 10
    holed(made, 1)
    server.write(bytes(QUARTER), stream=0)
    made.run(lambda: False, 1.0)
    assert not engine(server).send_message(large)
    assert engine(server).send_message(small)
    assert engine(server).message_size >= len(large)  # what was promised stays


# --- where to  ---


def ratio_of_unequal(mbps: float, far_rtt: float) -> float:
    """The time over both paths by the time over the near one."""
    near, far = link_of(mbps, 0.044), link_of(mbps, far_rtt)
    return connected([(near, near), (far, far)]).download(MEGABYTE) / connected([(near, near)]).download(MEGABYTE)


@BOTH
def test_a_far_path_never_slows_the_near_one_down(name: str) -> None:
    assert ratio_of_unequal(10, 0.044 * 8) < 1.02


@BOTH
@pytest.mark.parametrize("congestion", ["reno", "cubic", "lia", "olia"])
def test_every_congestion_control_uses_both_paths(name: str, congestion: str) -> None:
    policy = PathPolicy(congestion=congestion)
    assert connected_engines(name, name, TEN, TEN, policy=policy, servers=policy).download(MEGABYTE) < 0.75


@BOTH
@pytest.mark.parametrize("scheduler", ["lowest_latency", "RR", "ECF", "BLEST"])
def test_other_schedulers_choose_paths_too(name: str, scheduler: str) -> None:
    policy = replace(DEFAULT, scheduler=lambda: create_scheduler(scheduler, {}))
    assert connected_engines(name, name, TEN, TEN, policy=policy, servers=policy).download(MEGABYTE) < 0.75


def queue_of(policy: PathPolicy) -> float:
    """Seconds of queueing on a path with a deep buffer, the median of what its sender sees."""
    made = connected([(link_of(7.5, 0.037, queue=8),) * 2, TEN], policy, policy)
    server = asked(made)
    server.write(bytes(3 * MEGABYTE // 2), end=True)
    seen = []
    while not made.client.ended:
        made.run(lambda: made.client.ended, 0.05)
        seen.append(made.facts()[0].rtt - 0.037)
    return sorted(seen)[len(seen) // 2]


def test_what_has_left_before_a_route_vanished_is_not_sent_again() -> None:
    """The kernel says that nothing leaves there any more; what is on its way arrives, and a slow path has better to
    do: readers waited for two seconds behind what they had."""
    made = connected([(link_of(10, 0.400),) * 2, (link_of(1, 0.040),) * 2])
    server = asked(made)
    server.keep_data = True
    payload = b"".join(number.to_bytes(4, "big") for number in range(MEGABYTE))
    made.client.write(payload, stream=0)
    made.run(lambda: False, 2.0)
    server.longest_gap = 0.0
    made.ups[0].spec = replace(made.ups[0].spec, loss=1.0)
    engine(made.client).suspect_path(0, made.clock.now)
    made.client.pump()
    before = made.ups[1].sent
    expected = server.received + 500_000
    assert made.run(lambda: server.received >= expected)
    assert server.longest_gap < 0.200
    assert made.ups[1].sent - before < 240
    assert bytes(server.data) == payload[: len(server.data)]


def test_an_acknowledgement_takes_along_what_is_due_soon_on_the_same_path() -> None:
    """On a slow way back a datagram for each would fill it twice as soon."""
    made = connected([FAST, (link_of(50, 0.060),) * 2])
    made.download(QUARTER)
    paths = engine(made.client)._connection._paths
    near, far = paths[0], paths[1]
    now = made.clock.now
    near.space.ack_at, far.space.ack_at = now, now + 0.001
    engine(made.client)._connection._plan_acks(now)
    assert set(near.acks_due) == {0, 1}
    assert near.space.ack_at is far.space.ack_at is None


def test_a_queue_that_stands_is_drained_where_a_bound_is_given() -> None:
    # Cubic ends its slow start where a queue stays; LIA knows no other end of it than a loss.
    assert queue_of(PathPolicy(max_queue=0.015)) < 0.016
    assert queue_of(PathPolicy(max_queue=0.015, congestion="lia")) < 0.025
    assert queue_of(PathPolicy(max_queue=0.0, congestion="lia")) > 0.050


@BOTH
def test_time_goes_on_without_events(name: str) -> None:
    """No timer that is always due: an idle connection sleeps."""
    made: EnginePair = connected_engines(name, name, TEN, TEN)
    made.download(100_000)
    made.run(lambda: False, 2.0)
    before = made.clock.events
    made.run(lambda: False, 10.0)
    assert made.clock.events - before < 50
