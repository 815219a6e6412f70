"""aioquic and the native engine with each other, both ways round, in virtual time."""

from __future__ import annotations

from dataclasses import replace
from statistics import mean
from typing import Any, cast

import pytest

from multi.lab.engines.links import DatagramLinkSpec, link_of
from multi.multipath.facts import PathState
from multi.multipath.policy import PathPolicy
from tests.unit.transports.mpquic.ends import MEGABYTE, TEN, asked, connected_engines, engines_by_name, opened

pytestmark = pytest.mark.slow  # whole engines in virtual time

BOTH_WAYS = [("aioquic", "noq"), ("noq", "aioquic")]


@pytest.mark.parametrize(("client", "server"), BOTH_WAYS)
def test_two_paths_carry_together_what_both_can(client: str, server: str) -> None:
    two = connected_engines(client, server, TEN, TEN)
    assert two.download(MEGABYTE) < 0.68 * connected_engines(client, server, TEN).download(MEGABYTE)
    assert all(link.carried > 0.35 * MEGABYTE for link in two.downs)


@pytest.mark.parametrize(("client", "server"), BOTH_WAYS)
def test_an_upload_uses_both_paths(client: str, server: str) -> None:
    made = connected_engines(client, server, TEN, TEN)
    made.client.write(bytes(MEGABYTE), end=True)
    assert made.run(lambda: made.server is not None and made.server.ended, 1.0)
    assert all(link.carried > 0.3 * MEGABYTE for link in made.ups)


@pytest.mark.parametrize(("client", "server"), BOTH_WAYS)
def test_silence_of_one_path_stops_no_download(client: str, server: str) -> None:
    slow = (link_of(3, 0.044),) * 2
    made = connected_engines(client, server, slow, slow)
    assert made.server is not None
    made.client.write(b"?")
    made.run(lambda: made.server is not None and made.server.received > 0)
    made.server.write(bytes(MEGABYTE // 2), end=True)
    made.run(lambda: made.client.received > MEGABYTE // 8)
    made.ups[0].silent = made.downs[0].silent = True
    made.client.longest_gap = 0.0
    assert made.run(lambda: made.client.ended, 4.0)
    assert made.client.longest_gap < 0.6


@pytest.mark.parametrize(("client", "server"), [*BOTH_WAYS, ("noq", "noq")])
def test_who_sends_steadily_notices_silence_before_the_window_is_full(client: str, server: str) -> None:
    """Each message would put the probe off, and a window takes fifty of them."""
    near, far = ((link_of(20, round_trip),) * 2 for round_trip in (0.010, 0.050))
    made = connected_engines(client, server, near, far)
    assert made.server is not None
    for _ in range(20):
        made.client.write(bytes(200))
        made.run(lambda: False, 0.030)
    made.ups[0].silent = made.downs[0].silent = True
    made.server.longest_gap = 0.0
    for _ in range(20):
        made.client.write(bytes(200))
        made.run(lambda: False, 0.030)
    assert made.facts(made.client)[0].state is PathState.SUSPECT
    assert made.run(lambda: made.server is not None and made.server.received == 40 * 200, 0.1)
    assert made.server.longest_gap < 0.25


@pytest.mark.parametrize(("client", "server"), [*BOTH_WAYS, ("noq", "noq")])
def test_a_path_that_is_quicker_than_the_end_of_the_handshake_is_opened_with_that(client: str, server: str) -> None:
    slow, quick = (link_of(5, 0.020),) * 2, (link_of(50, 0.020),) * 2
    made = engines_by_name(client, server, slow, quick)
    assert made.run(lambda: made.client.complete_at is not None)
    made.open(1)
    assert made.server is not None
    assert made.server.complete_at is None
    assert made.run(lambda: opened(made.client) == [1], 0.1)  # a second challenge would leave after 0.3 s


@pytest.mark.parametrize(("client", "server"), [("aioquic", "aioquic"), ("noq", "noq"), *BOTH_WAYS])
def test_a_network_that_begins_to_swallow_large_packets_loses_one_message_of_who_asks_seldom(
    client: str, server: str
) -> None:
    """What is small and follows a loss is acknowledged, so that no timeout tells of it."""
    made = connected_engines(client, server, (link_of(20, 0.030),) * 2)
    assert made.server is not None
    arrived: list[str] = []
    made.server.on_event = lambda event: arrived.append(type(event).__name__)
    hole = replace(made.ups[0].spec, largest=1252)
    question = bytes(1250)
    for turn in range(5):
        if turn == 1:
            made.ups[0].spec = hole
        arrived.clear()
        if not made.client.engine.send_message(question):
            made.client.write(question, stream=4)
        made.client.pump()
        made.run(lambda: False, 0.02)
        made.client.write(b"a sign of life")
        made.run(lambda: False, 1.48)
        assert ("DatagramFrameReceived" in arrived) == (turn == 0)
        assert (arrived.count("StreamDataReceived") > 1) == (turn > 1)


@pytest.mark.parametrize("engine", ["aioquic", "noq"])
def test_a_network_that_swallows_large_packets_no_more_carries_them_again(engine: str) -> None:
    made = connected_engines(engine, engine, (link_of(20, 0.030),) * 2)
    question, usual = bytes(1250), made.ups[0].spec
    made.ups[0].spec = replace(usual, largest=1252)
    assert made.client.engine.send_message(question)
    for _ in range(70):
        made.client.pump()
        made.client.write(b"a sign of life")
        made.run(lambda: False, 1.0)
    assert not made.client.engine.send_message(question)
    made.ups[0].spec = usual
    for _ in range(70):
        made.client.write(b"a sign of life")
        made.run(lambda: False, 1.0)
    assert made.client.engine.send_message(question)


@pytest.mark.parametrize("engine", ["aioquic", "noq"])
def test_the_first_of_three_paths_stays_where_it_is(engine: str) -> None:
    """Ends were named anew with each datagram, and what the native engine sent on its first path left on the second."""
    made = engines_by_name(engine, engine, TEN, TEN, TEN)
    assert made.run(lambda: made.client.complete_at is not None)
    made.open_all()
    assert made.run(lambda: sorted(opened(made.client)) == [1, 2])
    assert made.facts()[0].state is PathState.ACTIVE
    assert made.download(MEGABYTE) < 0.5
    assert all(link.carried > 0.2 * MEGABYTE for link in made.downs)


def test_what_an_update_of_keys_overtakes_on_a_nearer_path_is_read_all_the_same() -> None:
    """It was taken for a further update, by numbers that are another path's, and dropped."""
    near, far = ((link_of(20, round_trip, queue=20.0),) * 2 for round_trip in (0.010, 0.080))
    made = connected_engines("noq", "noq", far, near)
    server = asked(made)
    server.write(bytes(MEGABYTE), end=True)
    assert made.run(lambda: made.client.received > MEGABYTE // 2)
    cast(Any, server.engine)._connection.update_keys()
    assert made.run(lambda: made.client.ended)
    assert [link.dropped for link in made.downs] == [path.lost for path in made.facts().values()] == [0, 0]


@pytest.mark.parametrize("client", ["aioquic", "noq"])
def test_keys_are_not_updated_in_the_midst_of_a_short_transfer(client: str) -> None:
    """What the first packet with new ones overtakes on another path is lost with peers that keep no old ones."""
    made = engines_by_name(client, "noq", (link_of(10, 0.020),) * 2, (link_of(50, 0.020),) * 2)
    assert made.run(lambda: made.client.complete_at is not None)
    made.open(1)
    made.download(MEGABYTE // 10)
    assert [link.dropped for link in made.downs] == [path.lost for path in made.facts().values()] == [0, 0]


def test_what_the_initial_window_of_a_path_allows_leaves_at_once() -> None:
    """At 200 ms datagrams were 16 ms apart, and a request waited that long behind the end of the handshake."""
    made = connected_engines("noq", "noq", (link_of(50, 0.200),) * 2)
    assert made.download(10_000) < 0.210


def test_a_first_path_slower_than_the_patience_of_a_handshake_is_not_taken_for_silent() -> None:
    """The handshake's probe timeouts counted on when it was done, and another path had answered."""
    far, near = (link_of(50, 0.400),) * 2, (link_of(50, 0.020),) * 2
    made = engines_by_name("noq", "noq", far, near)
    assert made.run(lambda: made.client.complete_at is not None)
    made.open(1)
    assert made.run(lambda: opened(made.client) == [1], 0.3)
    assert made.facts(made.client)[0].state is PathState.ACTIVE


def test_each_of_two_that_send_to_each_other_with_bbr_gets_its_share_of_its_direction() -> None:
    """Acknowledgements waited for the pacer of who had data to send as well, and one of both got next to nothing."""
    shares = []
    for round_trip in (0.080, 0.100, 0.120):
        alone, _ = _received_with_bbr(round_trip, up=False)
        shares += [received / alone for received in _received_with_bbr(round_trip, up=True)]
    assert min(shares) > 0.4
    assert mean(shares) > 0.65


def _received_with_bbr(round_trip: float, *, up: bool) -> tuple[int, int]:
    """Bytes that arrive in three seconds at a client that is sent as much as it takes, and at its server."""
    policy = PathPolicy(congestion="bbr")
    made = connected_engines("noq", "noq", (link_of(12, round_trip, queue=1.0),) * 2, policy=policy, servers=policy)
    server = asked(made)
    server.write(bytes(5 * MEGABYTE))
    made.client.write(bytes(5 * MEGABYTE if up else 0))
    made.run(lambda: False, 3.0)
    return made.client.received, server.received


def test_who_only_receives_is_not_paced_by_the_little_it_sends() -> None:
    """With BBR it was, on several paths: acknowledgements left late, and windows it opened up to a second late."""
    slow, quick = (link_of(2, 0.030, queue=5.0),) * 2, (link_of(40, 0.009, queue=8.0, loss=0.005),) * 2
    assert _seconds_with_bbr(slow, quick) < _seconds_with_bbr(quick) / 0.8


def _seconds_with_bbr(*paths: tuple[DatagramLinkSpec, DatagramLinkSpec]) -> float:
    """Of a download of 10 MB, where both ends read what has come every two milliseconds, as processes do.

    In longer ones BBR loses much of its rate to random losses, here or there.
    """
    policy = PathPolicy(congestion="bbr")
    made = connected_engines("noq", "noq", *paths, policy=policy, servers=policy)
    server = asked(made)
    made.client.reads_after = server.reads_after = 0.002
    taken = made.download(10 * MEGABYTE)
    assert made.client.longest_gap < 0.1
    return taken


def test_bbr_sends_no_less_than_it_measured_until_it_probes_again() -> None:
    """It forgot its best sample with every round trip, and the rate shrank by a hundredth with each two."""
    policy = PathPolicy(congestion="bbr")
    made = connected_engines("noq", "noq", (link_of(40, 0.020),) * 2, policy=policy, servers=policy)
    asked(made).write(bytes(10 * MEGABYTE))
    made.run(lambda: False, 0.5)
    before = made.client.received
    made.run(lambda: False, 1.0)
    assert made.client.received - before > 0.93 * 40e6 / 8


def test_bbr_takes_what_a_path_was_not_used_for_for_no_rate_of_it() -> None:
    """One that had carried windows and acknowledgements alone began with four datagrams when the other path died."""
    policy = PathPolicy(congestion="bbr")
    near, far = (link_of(50, 0.002),) * 2, (link_of(50, 0.046),) * 2
    made = connected_engines("noq", "noq", near, far, policy=policy, servers=policy)
    server = asked(made)
    for _ in range(160):  # never as much as would leave sooner with the far one
        server.write(bytes(max(0, 150_000 - server.engine.unsent())))
        made.run(lambda: False, 0.005)
    assert made.downs[1].carried < 0.01 * made.downs[0].carried
    for link in (made.ups[0], made.downs[0]):
        link.silent = True
    server.write(bytes(10 * MEGABYTE))
    before = made.client.received
    made.run(lambda: False, 0.8)
    assert made.client.received - before > 0.4 * 0.8 * 50e6 / 8


def test_bbr_drains_its_queue_when_a_path_becomes_slower() -> None:
    """Where it kept to what it had measured, 0.1 s of queue stood for five seconds."""
    policy = PathPolicy(congestion="bbr")
    made = connected_engines("noq", "noq", (link_of(20, 0.040),) * 2, policy=policy, servers=policy)
    asked(made).write(bytes(15 * MEGABYTE))
    made.run(lambda: False, 3.0)
    link = made.downs[0]
    link.spec = replace(link.spec, rate=link.spec.rate / 2)
    made.run(lambda: False, 1.5)
    assert link._line.free_at - made.clock.now < 0.05
