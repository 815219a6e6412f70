"""What connections with several paths do with either engine where a path is silent, loses a packet or becomes slow."""

from __future__ import annotations

from dataclasses import replace

import pytest

from multi.lab.engines.links import link_of
from multi.multipath.facts import PathState
from multi.multipath.policy import AckPath, PathPolicy
from multi.multipath.silence import MAX_PROBE_INTERVAL
from tests.unit.transports.mpquic.ends import (
    BOTH,
    MEGABYTE,
    PAIRS,
    SAME,
    TEN,
    TEN_FAR,
    TEN_NEAR,
    asked,
    connected_engines,
    engines_by_name,
    opened,
    paths_of,
    probe_timeout,
    sizes_on,
)

pytestmark = pytest.mark.slow  # whole engines in virtual time


# --- silence  ---


@BOTH
def test_what_is_in_flight_on_a_silent_path_is_sent_on_the_other_at_its_probe_timeout(name: str) -> None:
    made = connected_engines(name, name, TEN, TEN)
    server = asked(made)
    server.write(bytes(MEGABYTE), end=True)
    made.run(lambda: made.client.received > MEGABYTE // 4)
    timeout = probe_timeout(made.facts()[0])
    made.ups[0].silent = made.downs[0].silent = True
    died, made.client.longest_gap = made.clock.now, 0.0
    assert made.run(lambda: made.facts()[0].state is PathState.SUSPECT, 2.0)
    assert made.clock.now - died < 2 * timeout + 0.05
    assert made.facts()[0].bytes_in_flight < 200_000
    left = MEGABYTE - made.client.received
    began = made.clock.now
    assert made.run(lambda: made.client.ended)
    assert made.clock.now - began < 8 * left / 10e6 * 1.15 + 0.2
    assert made.client.longest_gap < 2 * timeout + 0.15


@PAIRS
def test_what_arrives_on_a_path_taken_for_silent_counts_though_it_was_sent_again_on_another(
    client: str, server: str
) -> None:
    """Only the copy did: sent from one path to the other and back, what had long arrived was never acknowledged."""
    made = connected_engines(client, server, TEN, TEN)
    sending = asked(made)
    made.run(lambda: False, 1.0)
    made.client.reads_after = late = 0.3
    before = sending.engine.acknowledged()
    sending.write(b"little")
    written, carrier = made.clock.now, max(made.facts().values(), key=lambda path: path.bytes_in_flight).id
    made.downs[1 - carrier].silent = True
    copies = sizes_on(made.downs[1 - carrier])
    assert made.run(lambda: sending.engine.acknowledged() == before + len(b"little"), 1.0)
    assert copies
    assert made.clock.now < written + late + 0.060


@PAIRS
def test_a_path_that_dies_before_the_handshake_is_confirmed_is_asked_now_and_then(client: str, server: str) -> None:
    """What the handshake has in flight there was not sent again, and the probe timeout was always due."""
    made = engines_by_name(client, server, TEN, TEN, TEN)
    assert made.run(lambda: made.client.complete_at is not None)
    made.downs[0].silent = True
    made.open_all()
    assert made.run(lambda: opened(made.client) == [1, 2])
    made.ups[0].silent = True
    made.run(lambda: False, 1.0)
    sizes = sizes_on(made.ups[0])
    made.client.write(bytes(MEGABYTE), end=True)
    server_end = made.server
    assert server_end is not None
    assert made.run(lambda: server_end.received == MEGABYTE, 5.0)
    assert len(sizes) < 30
    made.ups[0].silent = made.downs[0].silent = False
    made.client.write(b"?", stream=4)
    assert made.run(lambda: made.facts(made.client)[0].state is PathState.ACTIVE, MAX_PROBE_INTERVAL + 1.0)


@PAIRS
def test_a_silent_path_gets_probes_alone_at_least_one_a_second_and_carries_data_when_it_answers(
    client: str, server: str
) -> None:
    """With longer and longer waits between them, a network was left alone for as long again as it had been dead."""
    made = connected_engines(client, server, TEN, TEN)
    asked(made).write(bytes(20 * MEGABYTE))
    made.run(lambda: False, 1.0)
    made.ups[0].silent = made.downs[0].silent = True
    assert made.run(lambda: made.facts()[0].state is PathState.SUSPECT, 2.0)
    probes = sizes_on(made.downs[0])
    for _ in range(6):
        made.run(lambda: False, MAX_PROBE_INTERVAL + 0.05)
        assert probes
        assert len(probes) <= 6
        # Large ones look whether large ones get through.
        assert all(size < 100 for size in probes if size < 1200)
        assert sum(size >= 1200 for size in probes) <= 1
        probes.clear()
    made.ups[0].silent = made.downs[0].silent = False
    assert made.run(lambda: made.facts()[0].state is PathState.ACTIVE, MAX_PROBE_INTERVAL + 0.1)
    carried = made.downs[0].carried
    assert made.run(lambda: made.downs[0].carried > carried + MEGABYTE // 4, 2.0)


@PAIRS
def test_a_silent_path_is_asked_whether_it_answers_while_control_frames_wait_for_the_others(
    client: str, server: str
) -> None:
    """They are no probe of it, as what is to be sent is in an engine with one path: they are not sent there."""
    made = connected_engines(client, server, TEN, (link_of(10, 2.0),) * 2)
    sending = asked(made)
    sending.write(bytes(20 * MEGABYTE))
    made.run(lambda: False, 1.0)
    made.ups[0].silent = made.downs[0].silent = True
    assert made.run(lambda: made.facts()[0].state is PathState.SUSPECT, 3.0)
    made.run(lambda: False, 0.050)  # what was in flight there has filled the window of the other
    paths_of(sending).set_backup(0, True)
    sending.pump()
    made.ups[0].silent = made.downs[0].silent = False
    assert made.run(lambda: made.facts()[0].state is PathState.ACTIVE, MAX_PROBE_INTERVAL + 2.0)


@BOTH
@pytest.mark.parametrize("ack_path", [AckPath.SAME, AckPath.BEST])
def test_what_comes_on_a_suspect_path_is_acknowledged_on_a_healthy_one(name: str, ack_path: AckPath) -> None:
    """Only the way back is dead: the server goes on hearing of what it sends there, over the other path."""
    policy = PathPolicy(ack_path=ack_path)
    made = connected_engines(name, name, TEN, TEN, policy=policy, servers=policy)
    server = asked(made)
    server.write(bytes(4 * MEGABYTE), end=True)
    made.run(lambda: False, 0.5)
    made.ups[0].silent = True
    assert made.run(lambda: made.facts(made.client)[0].state is PathState.SUSPECT, 3.0)
    assert made.run(lambda: made.facts()[0].state is PathState.ACTIVE, 2.0)
    carried = made.downs[0].carried
    assert made.run(lambda: made.client.ended, 4.0)
    assert made.downs[0].carried - carried > MEGABYTE // 4
    assert made.facts(made.client)[0].state is PathState.SUSPECT


@BOTH
@pytest.mark.parametrize(("first", "second"), [(TEN, TEN), (TEN_NEAR, TEN_FAR)])
def test_who_only_receives_asks_once_a_round_trip_at_most_whether_it_is_heard(
    name: str, first: tuple[object, object], second: tuple[object, object]
) -> None:
    made = connected_engines(name, name, first, second, policy=SAME, servers=SAME)  # type: ignore[arg-type]
    asked(made).write(bytes(8 * MEGABYTE))
    made.run(lambda: False, 1.0)
    waits = dict.fromkeys((0, 1), False)
    questions = dict.fromkeys((0, 1), 0)
    since, longest = dict.fromkeys((0, 1), made.clock.now), dict.fromkeys((0, 1), 0.0)
    seconds, end = 2.0, made.clock.now + 2.0
    while made.clock.now < end:
        made.run(lambda: False, 0.001)
        for path, facts in made.facts(made.client).items():
            questions[path] += bool(facts.bytes_in_flight) and not waits[path]
            waits[path] = bool(facts.bytes_in_flight)
            if waits[path]:
                since[path] = made.clock.now
            longest[path] = max(longest[path], made.clock.now - since[path])
    for path, facts in made.facts(made.client).items():
        assert 1 <= questions[path] <= seconds / facts.min_rtt + 1
        assert longest[path] < 10 * facts.rtt


# --- gaps  ---


@pytest.mark.parametrize(("name", "paths"), [("aioquic", 1), ("noq", 1), ("noq", 2)])
def test_as_much_as_the_window_has_may_come_behind_what_is_missing(name: str, paths: int) -> None:
    """Thousands of datagrams behind the one that is lost; a bound of a thousand ended honest connections."""
    made = connected_engines(name, name, *[(link_of(400 / paths, 0.200),) * 2] * paths)
    server = asked(made)
    server.write(bytes(10 * MEGABYTE), end=True)
    assert made.run(lambda: sum(path.bytes_in_flight for path in made.facts().values()) > 3 * MEGABYTE, 10.0)
    before = made.client.received
    made.downs[0].spec = replace(made.downs[0].spec, largest=100)
    sent = made.downs[0].sent
    assert made.run(lambda: made.downs[0].sent > sent, 1.0)
    made.downs[0].spec = replace(made.downs[0].spec, largest=65_535)
    assert made.run(lambda: made.client.ended, 10.0)
    assert made.client.received == 10 * MEGABYTE > before
    assert made.client.longest_gap > 0.150  # the reader has waited for it
    assert made.client.engine.closing is server.engine.closing is None


# --- paths that grow slow  ---


@BOTH
@pytest.mark.parametrize(
    ("slow", "fast"), [((2, 0.300), (10, 0.030)), ((10, 0.100), (20, 0.030)), ((5, 0.060), (20, 0.020))], ids=str
)
def test_a_reader_does_not_wait_for_a_path_that_has_become_slow(
    name: str, slow: tuple[float, float], fast: tuple[float, float]
) -> None:
    """A twentieth of its rate is left, and what queues there takes seconds: for as long the reader got next to nothing,
    while all that came on the other path lay behind."""
    made = connected_engines(name, name, (link_of(*slow),) * 2, (link_of(*fast),) * 2)
    asked(made).write(bytes(40 * MEGABYTE))
    made.run(lambda: False, 2.0)
    made.downs[0].spec = replace(made.downs[0].spec, rate=made.downs[0].spec.rate / 20)
    little, longest = 0, 0
    for _ in range(30):
        before = made.client.received
        made.run(lambda: False, 0.1)
        little = little + 1 if made.client.received - before < 0.25 * 0.1 * made.downs[1].spec.rate else 0
        longest = max(longest, little)
    assert longest <= 8  # tenths of a second; 10 to 33 when nothing was done about it
