"""A path that answers nothing while more is sent there, beside another that would."""

from __future__ import annotations

import pytest

from multi.multipath.facts import PathFacts, PathState
from multi.multipath.silence import ACK_DELAY, PATIENCE, ProbeWatch, SilenceWatch

NEAR = PathFacts(0, rtt=0.010, rtt_variation=0.002)
OTHER = PathFacts(1, rtt=0.050)
MAX_SILENCE = PATIENCE * (0.010 + 4 * 0.002 + ACK_DELAY)


def test_it_is_silent_two_probe_timeouts_after_the_last_acknowledgement_however_much_is_sent() -> None:
    watch = SilenceWatch()
    assert watch.update([NEAR, OTHER], 1.0) == []
    assert watch.due_at is None  # nothing is in flight
    assert watch.update([NEAR._replace(bytes_in_flight=100, acked=500), OTHER], 2.0) == []
    assert watch.update([NEAR._replace(bytes_in_flight=100, acked=600), OTHER], 2.01) == []
    assert watch.due_at == pytest.approx(2.01 + MAX_SILENCE)
    assert watch.update([NEAR._replace(bytes_in_flight=9000, acked=600), OTHER], 2.0 + MAX_SILENCE) == []
    assert watch.update([NEAR._replace(bytes_in_flight=9000, acked=600), OTHER], 2.01 + MAX_SILENCE) == [0]


def test_it_is_told_once_in_that_time() -> None:
    watch, unanswered = SilenceWatch(), NEAR._replace(bytes_in_flight=100)
    watch.update([unanswered, OTHER], 1.0)
    assert watch.update([unanswered, OTHER], 2.0) == [0]
    assert watch.update([unanswered, OTHER], 2.0) == []
    assert watch.due_at == pytest.approx(2.0 + MAX_SILENCE)


@pytest.mark.parametrize(
    "paths",
    [
        [NEAR._replace(bytes_in_flight=100)],
        [NEAR._replace(bytes_in_flight=100), OTHER._replace(state=PathState.SUSPECT)],
        [NEAR._replace(bytes_in_flight=100, state=PathState.SUSPECT), OTHER],
        [NEAR._replace(bytes_in_flight=100, rtt=0.0), OTHER],
    ],
)
def test_nobody_is_watched_where_no_other_answers_or_nothing_is_known(paths: list[PathFacts]) -> None:
    watch = SilenceWatch()
    watch.update(paths, 1.0)
    assert watch.update(paths, 9.0) == []
    assert watch.due_at is None


DEAD = NEAR._replace(state=PathState.SUSPECT, sent=1000)


def test_a_suspect_path_on_which_nothing_is_sent_is_to_be_probed_each_second() -> None:
    watch = ProbeWatch()
    assert watch.update([NEAR, OTHER], 1.0) == []
    assert watch.due_at is None
    assert watch.update([DEAD, OTHER], 2.0) == []
    assert watch.due_at == pytest.approx(3.0)
    assert watch.update([DEAD, OTHER], 2.9) == []
    assert watch.update([DEAD, OTHER], 3.0) == [0]
    assert watch.update([DEAD._replace(sent=1030), OTHER], 3.1) == []  # the probe
    assert watch.due_at == pytest.approx(4.1)
    assert watch.update([DEAD._replace(sent=1060), OTHER], 4.0) == []  # one of the engine's own
    assert watch.due_at == pytest.approx(5.0)
    assert watch.update([NEAR, OTHER], 5.0) == []
    assert watch.due_at is None


def test_a_path_that_takes_longer_to_answer_is_probed_no_sooner_than_it_can_have_answered() -> None:
    watch, far = ProbeWatch(), DEAD._replace(rtt=2.0, rtt_variation=0.1)
    watch.update([far, OTHER], 1.0)
    assert watch.due_at == pytest.approx(1.0 + 2.0 + 0.4 + ACK_DELAY)
