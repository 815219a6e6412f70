"""The rows of `everyuse` in a short form: that they measure what they say, and that a promise which fails is said."""

from __future__ import annotations

from statistics import median

import pytest

from benchmarks.everyuse.virtual import (
    Figure,
    echoes,
    hand_over,
    kilobyte,
    late,
    one_flow,
    path,
    sent_messages,
    wifi_dies,
)


def test_a_figure_says_whether_its_promise_is_held() -> None:
    assert str(Figure("rate", 351.0, "Mbit/s", 350, True)) == "rate: 351 Mbit/s, at least 350: held"
    assert str(Figure("lag", 0.7, "s", 0.5)) == "lag: 0.7 s, at most 0.5: short by 0.2"
    assert str(Figure("share", 0.5, "")) == "share: 0.5"


def test_an_urgent_kilobyte_does_not_wait_for_ten_megabytes() -> None:
    behind, urgent, share = kilobyte(2.0)
    assert behind.value > 1000
    assert 22 < urgent.value < 44, "a round trip of the near path, and less than one more of waiting"
    assert share.held


def test_a_stream_uses_two_links() -> None:
    assert all(figure.held for figure in one_flow(0.3))


@pytest.mark.parametrize("moment", [0.0, 0.005, 0.030])
def test_no_echo_waits_until_both_ends_have_found_out_by_themselves_that_a_network_has_died(moment: float) -> None:
    took = echoes(wifi_dies, 0.5 + moment, 1.0)
    assert len(took) == 20
    assert took[0] < 0.003
    assert 0.046 < max(took) < 0.150, "a round trip of the other network, and the time one end needs to find out"


def test_no_echo_waits_for_anything_but_the_longer_way_in_a_planned_handover() -> None:
    took = echoes(hand_over, 0.51, 1.0)
    assert 0.046 < max(took) < 0.050
    assert max(took) == pytest.approx(took[-1]), "all that come after it are as late"


@pytest.mark.parametrize("mode", ["latency", "redundant"])
def test_small_messages_over_two_networks_come_as_early_as_over_whichever_is_earlier(mode: str) -> None:
    unsteady, steady = path(200, 0.0018, loss=0.05, jitter=0.030), path(190, 0.046)
    took, _ = sent_messages([unsteady, steady], f"steering.{mode}", 7.0, 1)
    took = took[150:]  # until then `latency` has to learn what WiFi is like
    assert len(took) >= 200
    assert late(took) < 0.0245, "what 5G takes, though WiFi loses one in twenty"
    assert median(took) < 0.010, "what WiFi takes"
