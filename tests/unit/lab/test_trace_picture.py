"""A trace as a picture: networks in lanes, rates that are right, words that do not meet."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("matplotlib", reason="pictures need matplotlib: pip install 'multi-session[plot]'")

from multi.lab.timeline import ROWS, Mark, Timeline, figure_of
from multi.lab.trace.picture import LANES, OTHERS, draw_trace, lanes_of, timeline_of
from multi.lab.trace.reading import read_trace
from tests.unit.lab.traces import Writer, two_networks


def test_rates_come_to_the_bytes_that_moved(tmp_path: Path) -> None:
    timeline = timeline_of(read_trace(two_networks(tmp_path / "a.sqlog")))
    received, round_trips = timeline.panels
    assert received.label == "received, Mbit/s"
    assert list(received.lanes) == ["tcp wlan0", "tcp wwan0"]
    width = timeline.seconds / len(received.times)
    carried = {lane: sum(rates) * width * 1e6 / 8 for lane, rates in received.lanes.items()}
    assert carried == pytest.approx({"tcp wlan0": 5_000_000, "tcp wwan0": 4_000_000})
    assert received.lanes["tcp wlan0"][10] == pytest.approx(8.0)
    assert received.lanes["tcp wlan0"][60] == 0.0
    assert round_trips.lanes["tcp wwan0"][60] == pytest.approx(10.0)
    assert timeline.spans["tcp wlan0"] == [(0.0, 5.0, "active"), (5.0, 7.0, "suspect")]
    assert [mark.text for mark in timeline.marks] == ["handover to cellular: started", "wlan0 lost"]


def test_connections_after_each_other_share_a_lane_and_those_beside_each_other_do_not(tmp_path: Path) -> None:
    trace = Writer()
    trace.open(0.0, 0, "wlan0")
    trace.open(0.0, 1, "wlan0")
    trace.state(2.0, 0, "lost")
    trace.open(3.0, 2, "wlan0")
    trace.state(9.0, 2, "closed")
    lanes = lanes_of(read_trace(trace.write(tmp_path / "a.sqlog")))
    assert {name: [c.id for c in lane] for name, lane in lanes.items()} == {
        "tcp wlan0": ["0", "2"],
        "tcp wlan0 (2)": ["1"],
    }


def test_there_are_never_more_lanes_than_can_be_told_apart(tmp_path: Path) -> None:
    trace = Writer()
    for n in range(40):
        trace.open(0.0, n, f"eth{n}")
    trace.note(1.0, "warned", message="x")
    lanes = lanes_of(read_trace(trace.write(tmp_path / "a.sqlog")))
    assert len(lanes) == LANES
    assert len(lanes[OTHERS]) == 40 - LANES + 1


def test_a_picture_of_every_trace_can_be_drawn(tmp_path: Path) -> None:
    empty = Writer()
    early = Writer()  # what a server is sent with the first message may be there before the clock has moved
    early.open(0.0, 0, r"$\no formula$")
    early.look(0.0, {0: 1000})
    busy = Writer()
    for n in range(8):
        busy.open(0.0, n, f"eth{n}")
    for n in range(30):
        busy.note(n / 10, "warned", message="x", text=f"$ warning {n} which is long enough to need its own row")
    for name, path in {
        "empty": empty.write(tmp_path / "empty.sqlog"),
        "early": early.write(tmp_path / "early.sqlog"),
        "busy": busy.write(tmp_path / "busy.sqlog"),
        "two": two_networks(tmp_path / "two.sqlog"),
    }.items():
        picture = tmp_path / f"{name}.png"
        draw_trace(read_trace(path), picture)
        assert picture.read_bytes().startswith(b"\x89PNG")


def test_words_keep_their_distance_and_what_finds_no_place_is_a_line() -> None:
    marks = [Mark(t, f"something happened at {t}") for t in range(0, 100, 4)]
    figure = figure_of(Timeline("many", 100.0, [], {"a": [(0, 100, "active")]}, marks, {}))
    figure.draw_without_rendering()
    story, bars = figure.axes
    boxes = [text.get_window_extent() for text in story.texts]
    assert 2 * ROWS <= len(boxes) < len(marks)
    assert not [(a, b) for n, a in enumerate(boxes) for b in boxes[n + 1 :] if a.overlaps(b)]
    assert all(box.x1 <= figure.bbox.x1 for box in boxes)
    assert (len(story.lines), len(bars.lines)) == (len(boxes), len(marks))
