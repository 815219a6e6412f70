"""What is read from a trace and what it comes to: cut off, foreign and damaged files too."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from multi.lab.trace.reading import TraceError, read_trace
from multi.lab.trace.summary import SHOWN, longest_pause, shown, spans, summary_of
from tests.unit.lab.traces import HEADER, Writer, record, two_networks


def text_of(path: Path) -> str:
    console = Console(width=200, markup=False, highlight=False)
    with console.capture() as captured:
        console.print(shown(read_trace(path)))
    return captured.get()


def test_the_summary_adds_up(tmp_path: Path) -> None:
    found = summary_of(read_trace(two_networks(tmp_path / "a.sqlog")))
    assert (found["side"], found["seconds"], found["complete"]) == ("client", 10.0, True)
    assert found["ended"] == {"t": 10.0, "cause": "closed", "reason": "the session is closed"}
    assert found["longest_pause"] is None
    wifi, cellular = found["connections"]
    assert (wifi["interface"], wifi["payload_received"], wifi["up_seconds"], wifi["suspect"]) == (
        "wlan0",
        5_000_000,
        7,
        1,
    )
    assert wifi["ended"] == {"t": 7.0, "cause": "closed", "reason": "silent for too long"}
    assert (cellular["payload_received"], cellular["opened"], cellular["up_seconds"]) == (4_000_000, 2.0, 8.0)
    assert cellular["rtt"] == {"min": 0.01, "median": 0.01, "max": 0.01}
    assert [event["event"] for event in found["events"]].count("connection_changed") == 5


def test_the_words_say_who_when_how_much_and_why(tmp_path: Path) -> None:
    lines = text_of(two_networks(tmp_path / "a.sqlog")).splitlines()
    assert lines[0] == (
        "client of session 5f1c5f1c, began 2026-11-23 03:05:28 UTC, 10.0 s, ended: the session is closed"
    )
    (wifi,) = (line for line in lines if line.startswith("0 "))
    assert wifi.split()[1:8] == ["tcp", "wlan0", "192.0.2.1:7788", "7.0", "s", "from", "0.0"]
    assert "5.0 MB" in wifi
    assert wifi.rstrip().endswith("closed: silent for too long")
    assert "     5.000 s  handover to cellular begins" in lines


def test_many_events_are_cut_in_the_middle_and_it_is_said(tmp_path: Path) -> None:
    trace = Writer()
    for n in range(100):
        trace.note(n, "warned", message="x", text=f"warning: {n}")
    lines = text_of(trace.write(tmp_path / "a.sqlog"))
    assert lines.count("warning: ") == 2 * SHOWN
    assert f"({100 - 2 * SHOWN} more are in --json)" in lines


def test_what_a_connection_moves_after_a_rest_is_not_spread_over_the_rest(tmp_path: Path) -> None:
    trace = Writer()
    trace.look(0.1, {0: 1000, 1: 0})
    trace.look(0.2, {0: 2000})
    trace.look(9.1, {0: 3000, 1: 500}, since=9.0)
    one, other = read_trace(trace.write(tmp_path / "a.sqlog")).connections.values()
    assert list(zip(one.figures.begins, one.figures.ends, one.figures.received, strict=True))[-1] == (9.0, 9.1, 1000)
    assert list(zip(other.figures.begins, other.figures.ends, other.figures.received, strict=True))[-1] == (
        9.0,
        9.1,
        500,
    )
    assert longest_pause(one.figures) == (0.2, 8.8)


def test_time_in_which_the_peer_took_no_more_is_added_up(tmp_path: Path) -> None:
    trace = Writer()
    for t, blocked in ((0.1, False), (0.2, True), (0.3, None), (0.4, False)):
        known = {} if blocked is None else {"window_blocked": blocked}
        trace.note(t, "session_sampled", **known)
    path = trace.write(tmp_path / "a.sqlog")
    assert summary_of(read_trace(path))["window_blocked_seconds"] == 0.2
    assert "for 0.2 s only the peer's windows kept bytes from being sent" in text_of(path)


def test_states_follow_each_other_until_the_end_of_the_trace(tmp_path: Path) -> None:
    trace = Writer()
    trace.state(0.5, 3, "authenticating", transport="tcp")
    for t, state in ((1.0, "active"), (2.0, "suspect"), (3.0, "active"), (4.0, "draining")):
        trace.state(t, 3, state)
    trace.note(6.0, "warned", message="x")
    found = read_trace(trace.write(tmp_path / "a.sqlog"))
    assert spans(found.connections["3"], found.seconds) == [
        (1.0, 2.0, "active"),
        (2.0, 3.0, "suspect"),
        (3.0, 4.0, "active"),
        (4.0, 6.0, "draining"),
    ]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "is empty"),
        (b"\x89PNG", "is no trace: it does not begin as a sequence of JSON texts"),
        (b'{"qlog_version": "0.3"}', "is no trace: it does not begin as a sequence of JSON texts"),
        (b"\x1e", "is cut off in its first record"),
        (record(HEADER)[:80], "is cut off in its first record"),
        (b"\x1enonsense\n", "is no trace of multi"),
        (record([]), "is no trace of multi"),
        (record({"trace": {"event_schemas": 3, "common_fields": {}}}), "is no trace of multi"),
        (
            record({"trace": {"event_schemas": ["urn:ietf:params:qlog:events:quic"], "common_fields": {}}}),
            "is no trace of multi, but a qlog file of another program",
        ),
        (
            record(HEADER).replace(b"#1", b"#2"),
            "was written by another version of multi, in a form that this one does not know",
        ),
    ],
)
def test_what_is_no_trace_is_told(tmp_path: Path, content: bytes, text: str) -> None:
    path = tmp_path / "a.sqlog"
    path.write_bytes(content)
    with pytest.raises(TraceError) as caught:
        read_trace(path)
    assert str(caught.value).startswith(f"{path} {text}")


def test_a_trace_cut_off_anywhere_is_read_up_to_there(tmp_path: Path) -> None:
    whole = two_networks(tmp_path / "a.sqlog").read_bytes()
    cut = tmp_path / "b.sqlog"
    begun = len(record(HEADER))
    for size in range(begun, len(whole), 397):
        cut.write_bytes(whole[:size])
        found = read_trace(cut)
        assert found.unreadable == 0
        assert found.ended is None
        if whole[size - 1 : size] != b"}":  # which may be the end of a record or not
            assert found.cut_off == (whole[size - 1 : size] != b"\n")
        assert found.figures.last.get("payload_received", 0) <= 9_000_000
    cut.write_bytes(whole[:-3])
    assert "its end is not in the trace" in text_of(cut)
    assert "the last record is cut off" in text_of(cut)
    cut.write_bytes(whole[:-1])
    assert read_trace(cut).ended is not None, "the line feed alone is missing"


def test_records_that_make_no_sense_are_counted_and_passed_over(tmp_path: Path) -> None:
    trace = Writer()
    trace.look(0.1, {0: 1000})
    for nonsense in (
        3,
        {},
        {"time": "x", "name": "multi:warned", "data": {}},
        {"time": -1, "name": "multi:warned", "data": {}},
        {"time": 1e300, "name": "multi:warned", "data": {}},
        {"time": 200, "name": 7, "data": {}},
        {"time": 200, "name": "multi:warned", "data": []},
        {"time": 200, "name": "multi:connection_sampled", "path": "0", "data": {"payload_received": "many"}},
        {"time": 200, "name": "multi:connection_sampled", "path": "0", "data": {"rtt": True}},
        {"time": 200, "name": "multi:session_sampled", "data": {"since": None}},
    ):
        trace.content += record(nonsense)
    trace.content += b"\x1e" + b"[" * 100_000 + b"\n" + b"\x1e{}\x00\n"
    trace.look(0.3, {0: 5000})
    found = read_trace(trace.write(tmp_path / "a.sqlog"))
    assert found.unreadable == 12
    assert found.connections["0"].figures.last["payload_received"] == 5000
    assert list(found.connections["0"].figures.received) == [1000, 4000]
    assert "12 records make no sense and were passed over" in text_of(tmp_path / "a.sqlog")


def test_what_a_peer_said_steers_no_terminal(tmp_path: Path) -> None:
    trace = Writer()
    trace.state(0.1, 0, "lost", "\x1b[2Jboo", text="\x1b[2Jboo", transport="tcp", remote="\x1b[2J")
    assert "\x1b" not in text_of(trace.write(tmp_path / "a.sqlog"))
