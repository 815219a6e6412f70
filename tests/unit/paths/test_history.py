"""What is remembered of attempts: demotion, delays, and that a memory never loses a candidate."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, strategies

from multi.paths.history import MEMORIES, ConnectionHistory
from multi.types import Candidate, Family

HOME, HOTEL = "wifi 02:00:00:00:00:01", "wifi 02:00:00:00:00:02"
QUIC = Candidate("quic", Family.IPV6, "server", "2001:db8::1", 7788, interface="wlan0")
TCP = replace(QUIC, transport="tcp")
DEFAULT = 0.25
MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0


def order(outcomes: ConnectionHistory, now: float, network: str = HOME, chance: float = 0.5) -> list[Candidate]:
    return outcomes.order([QUIC, TCP], lambda _candidate: network, now, chance)


def demoted(outcomes: ConnectionHistory, now: float, network: str = HOME) -> bool:
    return order(outcomes, now, network) == [TCP, QUIC]


def test_nothing_known_changes_nothing() -> None:
    outcomes = ConnectionHistory()
    assert order(outcomes, 0.0) == [QUIC, TCP]
    assert outcomes.attempt_delay(HOME, QUIC, DEFAULT, 0.0) == DEFAULT


def test_a_failed_candidate_comes_last_for_a_minute() -> None:
    outcomes = ConnectionHistory()
    outcomes.failed(HOME, QUIC, 100.0)
    assert demoted(outcomes, 100.0)
    assert demoted(outcomes, 159.9)
    assert not demoted(outcomes, 160.0)


def test_each_further_failure_doubles_the_demotion_up_to_an_hour() -> None:
    outcomes = ConnectionHistory()
    now, lengths = 0.0, []
    for _ in range(9):
        outcomes.failed(HOME, QUIC, now)
        length = MINUTE
        while demoted(outcomes, now + length):
            length += MINUTE
        lengths.append(length / MINUTE)
        now += length
    assert lengths == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_failures_during_a_demotion_do_not_prolong_it() -> None:
    outcomes = ConnectionHistory()
    for second in range(60):
        outcomes.failed(HOME, QUIC, float(second))
    assert not demoted(outcomes, 60.0)


def test_a_success_ends_a_demotion_and_its_history() -> None:
    outcomes = ConnectionHistory()
    outcomes.failed(HOME, QUIC, 0.0)
    outcomes.failed(HOME, QUIC, 60.0)
    outcomes.succeeded(HOME, QUIC, 0.1, 61.0)
    assert not demoted(outcomes, 61.0)
    outcomes.failed(HOME, QUIC, 70.0)
    assert demoted(outcomes, 129.0)
    assert not demoted(outcomes, 130.0)


def test_a_failure_long_after_the_last_one_is_a_first_one() -> None:
    outcomes = ConnectionHistory()
    outcomes.failed(HOME, QUIC, 0.0)
    outcomes.failed(HOME, QUIC, 2 * DAY)
    assert not demoted(outcomes, 2 * DAY + MINUTE)


def test_what_failed_on_one_network_is_not_demoted_on_another() -> None:
    outcomes = ConnectionHistory()
    outcomes.failed(HOTEL, QUIC, 0.0)
    assert demoted(outcomes, 1.0, HOTEL)
    assert not demoted(outcomes, 1.0, HOME)


@pytest.mark.parametrize(
    "other",
    [
        replace(QUIC, transport="tcp"),
        replace(QUIC, family=Family.IPV4),
        replace(QUIC, remote_host="other"),
        replace(QUIC, remote_port=1),
    ],
)
def test_another_transport_family_or_server_is_another_memory(other: Candidate) -> None:
    outcomes = ConnectionHistory()
    outcomes.failed(HOME, QUIC, 0.0)
    assert outcomes.order([QUIC, other], lambda _candidate: HOME, 1.0, 0.5) == [other, QUIC]


def test_another_address_of_the_same_server_shares_the_memory() -> None:
    outcomes = ConnectionHistory()
    outcomes.failed(HOME, QUIC, 0.0)
    other = replace(QUIC, remote_address="2001:db8::2", interface="wlan1", weight=3.0)
    assert outcomes.order([other, TCP], lambda _candidate: HOME, 1.0, 0.5) == [TCP, other]


@pytest.mark.parametrize(("chance", "ignored"), [(0.0, True), (0.049, True), (0.05, False), (0.999, False)])
def test_one_race_in_twenty_ignores_what_is_remembered(chance: float, ignored: bool) -> None:
    outcomes = ConnectionHistory()
    outcomes.failed(HOME, QUIC, 0.0)
    assert (order(outcomes, 1.0, chance=chance) == [QUIC, TCP]) is ignored


@pytest.mark.parametrize(("setup", "delay"), [(0.001, 0.1), (0.1, 0.15), (1.0, 1.5), (1.4, 2.0), (30.0, 2.0)])
def test_the_next_attempt_waits_half_as_long_again_as_the_last_setup_took(setup: float, delay: float) -> None:
    outcomes = ConnectionHistory()
    outcomes.succeeded(HOME, QUIC, setup, 0.0)
    assert outcomes.attempt_delay(HOME, QUIC, DEFAULT, 1.0) == pytest.approx(delay)
    assert outcomes.attempt_delay(HOTEL, QUIC, DEFAULT, 1.0) == DEFAULT
    assert outcomes.attempt_delay(HOME, TCP, DEFAULT, 1.0) == DEFAULT


def test_a_setup_time_is_believed_for_a_day() -> None:
    outcomes = ConnectionHistory()
    outcomes.succeeded(HOME, QUIC, 1.0, 0.0)
    assert outcomes.attempt_delay(HOME, QUIC, DEFAULT, DAY - 1) == 1.5
    assert outcomes.attempt_delay(HOME, QUIC, DEFAULT, DAY) == DEFAULT


def test_the_longest_untouched_memory_goes_first() -> None:
    outcomes = ConnectionHistory()
    outcomes.failed(HOME, QUIC, 0.0)
    outcomes.failed(HOME, TCP, 0.0)
    outcomes.failed(HOME, QUIC, 0.0)  # touched again
    for number in range(MEMORIES - 1):
        outcomes.failed(f"network {number}", QUIC, 0.0)
    assert demoted(outcomes, 1.0)  # and TCP is not demoted any more
    outcomes.failed("one more", QUIC, 0.0)
    assert not demoted(outcomes, 1.0)


CANDIDATES = [
    Candidate(transport, family, host, "", 1, entry=entry)
    for transport in ("tcp", "quic")
    for family in Family
    for host in ("a", "b")
    for entry in (0, 1)
]
NETWORKS = (HOME, HOTEL)
STEPS = strategies.lists(
    strategies.tuples(
        strategies.sampled_from(NETWORKS),
        strategies.sampled_from(CANDIDATES),
        strategies.one_of(strategies.none(), strategies.floats(0.0, 100.0)),
        strategies.floats(0.0, 2 * HOUR),
    ),
    max_size=30,
)


@given(STEPS, strategies.permutations(CANDIDATES), strategies.floats(0.0, 0.999), strategies.floats(0.0, 2 * DAY))
def test_whatever_happened_the_order_is_a_stable_partition_of_the_candidates(
    steps: list[tuple[str, Candidate, float | None, float]], offered: list[Candidate], chance: float, later: float
) -> None:
    outcomes, now = ConnectionHistory(), 0.0
    last_failed: dict[tuple[str, str, Family, str], float | None] = {}
    for network, candidate, setup, wait in steps:
        now += wait
        key = (network, candidate.transport, candidate.family, candidate.remote_host)
        if setup is None:
            outcomes.failed(network, candidate, now)
            last_failed[key] = now
        else:
            outcomes.succeeded(network, candidate, setup, now)
            last_failed[key] = None
    now += later

    def network_of(candidate: Candidate) -> str:
        return NETWORKS[candidate.entry]

    ordered = outcomes.order(offered, network_of, now, chance)
    position = {candidate: place for place, candidate in enumerate(offered)}
    assert sorted(ordered, key=position.__getitem__) == offered
    places = [position[candidate] for candidate in ordered]
    steps_back = [index for index in range(1, len(places)) if places[index] < places[index - 1]]
    assert len(steps_back) <= 1
    for candidate in ordered[steps_back[0] :] if steps_back else []:
        key = (network_of(candidate), candidate.transport, candidate.family, candidate.remote_host)
        failed = last_failed.get(key)
        assert failed is not None
        assert now - failed < HOUR
    if chance < 0.05:
        assert ordered == offered
    for candidate in offered:
        delay = outcomes.attempt_delay(network_of(candidate), candidate, DEFAULT, now)
        assert 0.1 <= delay <= 2.0
