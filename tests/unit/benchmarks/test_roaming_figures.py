"""The roaming benchmark tells the truth: of known records it says what can be counted by hand."""

from __future__ import annotations

from array import array

import pytest

from benchmarks.pattern import BLOCK, Checker, piece
from benchmarks.roaming.end import ConnectionSample, EndRecord, Happening, Sample
from benchmarks.roaming.figures import Figure, carries_again, continues, faults, gap, goodput, suspicions
from benchmarks.roaming.report import report
from benchmarks.roaming.rows import BASE, ROWS, Outcome
from benchmarks.roaming.stage import SessionRun

SIZE = 3 * BLOCK + 1000
MEGABYTE = 1_000_000


def reads(*times: float) -> EndRecord:
    """A megabyte was read at each of these times."""
    return EndRecord(read_at=array("d", times), read_sizes=array("q", [MEGABYTE] * len(times)))


def checked(data: bytes, cut: int = 777) -> Checker:
    checker = Checker()
    for start in range(0, len(data), cut):
        checker.feed(data[start : start + cut])
    return checker


@pytest.mark.parametrize("cut", [1, 7, 777, BLOCK, BLOCK + 1, 10 * BLOCK])
def test_the_pattern_matches_however_it_is_cut(cut: int) -> None:
    written = b"".join(piece(offset, min(1250, SIZE - offset)) for offset in range(0, SIZE, 1250))
    assert written == piece(0, SIZE)
    checker = checked(written, cut)
    assert (checker.received, checker.damaged_at) == (SIZE, None)


def test_whole_blocks_that_are_missing_doubled_or_moved_do_not_match() -> None:
    data = piece(0, SIZE)
    missing = data[:BLOCK] + data[2 * BLOCK :]
    doubled = data[: 2 * BLOCK] + data[BLOCK:]
    moved = data[BLOCK : 2 * BLOCK] + data[:BLOCK] + data[2 * BLOCK :]
    assert [checked(d, BLOCK).damaged_at for d in (missing, doubled, moved)] == [BLOCK, 2 * BLOCK, 0]


@pytest.mark.parametrize("at", [0, 7, 8, BLOCK - 1, BLOCK, BLOCK + 3, SIZE - 1])
def test_one_changed_byte_does_not_match(at: int) -> None:
    data = bytearray(piece(0, SIZE))
    data[at] ^= 1
    assert checked(bytes(data), 100).damaged_at is not None


def test_a_gap_counts_whole_if_any_of_it_is_in_the_window() -> None:
    record = reads(1.0, 1.1, 2.0, 2.1, 5.0)
    assert gap(record, 1.5, 1.6) == pytest.approx(0.9)
    assert gap(record, 1.0, 2.05) == pytest.approx(0.9)
    assert gap(record, 2.05, 3.0) == pytest.approx(2.9)


def test_a_gap_that_never_ends_counts_to_the_end_of_the_window() -> None:
    assert gap(reads(1.0, 1.1), 1.05, 4.1) == pytest.approx(3.0)
    assert gap(reads(), 1.0, 4.0) == pytest.approx(3.0)


def test_what_never_continues_has_no_figure_and_breaks_the_promise() -> None:
    assert continues(reads(1.0, 3.0), 2.0) == pytest.approx(1.0)
    assert continues(reads(1.0), 2.0) is None
    assert not Figure("continues after", None, "s", 1.0).held


def test_goodput_counts_what_was_read_in_the_window() -> None:
    assert goodput(reads(1.0, 2.0, 3.0, 4.0), 1.5, 3.5) == pytest.approx(8.0)


def test_wifi_carries_again_when_its_connections_have_grown() -> None:
    def sample(at: float, *connections: tuple[int, str, int]) -> Sample:
        return Sample(
            at,
            0,
            tuple(
                ConnectionSample(number, "tcp", f"{local}:1", "10.77.0.1:7788", "active", 0.01, payload, 0)
                for number, local, payload in connections
            ),
        )

    old, new, other = (0, "10.77.1.2"), (2, "10.77.1.2"), (1, "10.77.2.2")
    record = EndRecord(
        samples=[
            sample(1.0, (*old, MEGABYTE), (*other, 0)),
            sample(2.0, (*other, MEGABYTE)),
            sample(3.0, (*other, 2 * MEGABYTE), (*new, 100)),
            sample(4.0, (*other, 3 * MEGABYTE), (*new, 70_000)),
        ]
    )
    assert carries_again(record, "wifi", 1.5) == pytest.approx(2.5)
    assert carries_again(record, "wifi", 4.0) is None


def test_a_run_fails_for_a_byte_that_is_missing_and_for_an_end_that_broke() -> None:
    sender, receiver = EndRecord(sent=10), EndRecord(received=10)
    assert not faults(SessionRun(receiver, sender, "server", 9.0))
    receiver.received = 9
    sender.error = "SessionLost: gone"
    assert faults(SessionRun(receiver, sender, "server", 9.0)) == [
        "server: SessionLost: gone",
        "9 bytes arrived of 10",
    ]


def test_suspicions_of_both_ends_count_until_the_end() -> None:
    def suspect(at: float) -> Happening:
        return Happening(at, "ConnectionChanged", 0, "suspect", "no progress")

    run = SessionRun(
        EndRecord(happenings=[suspect(1.0)]), EndRecord(happenings=[suspect(2.0), suspect(9.5)]), "server", 9
    )
    assert len(suspicions(run)) == 2
    assert len(suspicions(run, 1.5)) == 1


def test_the_report_has_a_line_for_every_promise() -> None:
    lines = report([], [BASE], quick=False).splitlines()
    for row in ROWS:
        assert any(row.event in line and row.promise in line and "not measured" in line for line in lines)


def test_a_fault_is_never_reported_as_held() -> None:
    fast = Outcome("silent-death", str(BASE), 1, figures=[Figure("gap", 1.0, "ms", 150.0)], faults=["9 of 10 bytes"])
    assert Outcome.decoded(fast.encoded()) == fast
    line = next(line for line in report([fast], [BASE], quick=False).splitlines() if "| gap |" in line)
    assert "**failed**, held in 0 of 1" in line
