"""What is remembered of failed attempts: they come last, for a while, on that network and towards that server."""

from __future__ import annotations

from dataclasses import replace

import pytest

from multi.paths.history import DEMOTION, MEMORIES, ConnectionHistory
from multi.types import Candidate, Family

HOME, HOTEL = "wifi 02:00:00:00:00:01", "wifi 02:00:00:00:00:02"
QUIC = Candidate("quic", Family.IPV6, "server", "2001:db8::1", 7788, interface="wlan0", network=HOME)
TCP = replace(QUIC, transport="tcp")


def demoted(history: ConnectionHistory, now: float, network: str = HOME) -> bool:
    there = [replace(QUIC, network=network), replace(TCP, network=network)]
    ordered = history.order(there, now)
    assert sorted(ordered, key=there.index) == there, "nothing disappears"
    return ordered != there


def test_nothing_known_changes_nothing() -> None:
    assert ConnectionHistory().order([QUIC, TCP], 0.0) == [QUIC, TCP]


def test_a_failed_candidate_comes_last_for_ten_minutes_after_its_last_failure() -> None:
    history = ConnectionHistory()
    for failed_at in (100.0, 400.0):
        history.failed(QUIC, failed_at)
        assert history.order([QUIC, TCP], failed_at) == [TCP, QUIC]
    assert demoted(history, 400.0 + DEMOTION - 0.1)
    assert not demoted(history, 400.0 + DEMOTION)


def test_what_fails_alike_keeps_its_order() -> None:
    history = ConnectionHistory()
    history.failed(TCP, 0.0)
    history.failed(QUIC, 1.0)
    assert history.order([QUIC, TCP], 2.0) == [QUIC, TCP]


def test_a_success_ends_a_demotion() -> None:
    history = ConnectionHistory()
    history.failed(QUIC, 0.0)
    history.succeeded(QUIC)
    assert not demoted(history, 1.0)


def test_what_failed_on_one_network_is_not_demoted_on_another() -> None:
    history = ConnectionHistory()
    history.failed(replace(QUIC, network=HOTEL), 0.0)
    assert demoted(history, 1.0, HOTEL)
    assert not demoted(history, 1.0, HOME)


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
    history = ConnectionHistory()
    history.failed(QUIC, 0.0)
    assert history.order([QUIC, other], 1.0) == [other, QUIC]


def test_another_address_of_the_same_server_shares_the_memory() -> None:
    history = ConnectionHistory()
    history.failed(QUIC, 0.0)
    other = replace(QUIC, remote_address="2001:db8::2", interface="wlan1", weight=3.0)
    assert history.order([other, TCP], 1.0) == [TCP, other]


def test_the_longest_untouched_memory_goes_first() -> None:
    history = ConnectionHistory()
    for candidate in (QUIC, TCP, QUIC):
        history.failed(candidate, 0.0)
    for number in range(MEMORIES - 1):
        history.failed(replace(QUIC, network=f"network {number}"), 0.0)
    assert demoted(history, 1.0)  # and TCP is not demoted any more
    history.failed(replace(QUIC, network="one more"), 0.0)
    assert not demoted(history, 1.0)
