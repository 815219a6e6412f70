"""What `make bench-mpquic` keeps, runs and says, with little of it run."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.mpquic.__main__ import main, papers
from benchmarks.mpquic.cells import Cell, Outcome, Results, Setup, route
from benchmarks.mpquic.figures import NOT_RUN, Scale, Target, number
from benchmarks.mpquic.plays import Beside, Counted, Download, Joining, Sending, Urgent
from benchmarks.mpquic.report import page
from benchmarks.mpquic.store import PACKED, Entry, Store
from benchmarks.mpquic.testbed import Fetch, Rate, UrgentOnTestbed
from benchmarks.mpquic.viernickel_testbed import PageLoad, Parties
from multi.lab.engines.links import link_of

TEN = route(10, 0.044)


def entry(cell: str, seconds: float = 1.0) -> Entry:
    return Entry(cell, Outcome({"seconds": seconds}, {"delays": [0.5]}), "abc", "a machine", 0.1)


@pytest.fixture(scope="module", params=Scale)
def cells(request: pytest.FixtureRequest) -> list[Cell]:
    return [cell for paper in papers(request.param) for figure in paper.figures for cell in figure.cells()]


def test_the_name_of_a_cell_says_what_it_is(cells: list[Cell]) -> None:
    """Figures share cells; what is stored under one name has to be one thing."""
    known: dict[str, Cell] = {}
    for cell in cells:
        assert known.setdefault(cell.key, cell) == cell


def test_cells_are_on_the_testbed_or_in_virtual_time(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    listed = []
    for chosen in ([], ["--only", "testbed"], ["--only", "virtual"]):
        monkeypatch.setattr("sys.argv", ["bench-mpquic", "--cells", *chosen])
        assert main() == 0
        listed.append(capsys.readouterr().out.splitlines())
    every, testbed, virtual = map(set, listed)
    assert testbed | virtual == every
    assert not testbed & virtual
    cells = {cell.key: cell for paper in papers(Scale.FULL) for figure in paper.figures for cell in figure.cells()}
    assert testbed == {key for key, cell in cells.items() if isinstance(cell.play, (Fetch, Rate, UrgentOnTestbed))}


def test_cells_of_the_testbed_are_left_out_aloud_where_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("benchmarks.mpquic.__main__.RESULTS", tmp_path)
    monkeypatch.setattr("benchmarks.mpquic.__main__.why_not", lambda: "not today")
    monkeypatch.setattr("sys.argv", ["bench-mpquic", "--quick", "--only", "multiflow-4-testbed"])
    assert main() == 0
    assert "3 cells are left out: no testbed here: not today" in capsys.readouterr().err
    assert not (tmp_path / "mpquic-quick.jsonl").exists()


def test_parties_take_turns_on_the_testbed() -> None:
    cells = Parties(Scale.FULL).cells()
    seeds = [cell.seed for cell in cells]
    assert seeds == sorted(seeds)
    assert len(set(seeds)) > 2
    assert len({cell.setup.engine for cell in cells}) == 3


def test_several_runs_are_shown_by_their_median_and_the_outermost() -> None:
    figure = PageLoad(Scale.FULL)
    runs = [1.0, 0.5, 0.75]
    outcomes = {
        cell.key: Outcome({"page": runs[cell.seed - 1] * (2 if cell.setup.engine == "kernel" else 1)})
        for cell in figure.cells()
        if (cell.setup.engine == "kernel" or "mpquic 1+2" in cell.row) and cell.seed <= len(runs)
    }
    shown = {row[0]: row[1] for row in figure.table(Results(outcomes)).rows}
    assert shown["multipath QUIC: native, Cubic"] == "0.750 (0.500 to 1.00)"
    assert shown["MPTCP: kernel, Cubic"] == "1.50 (1.00 to 2.00)"
    assert shown["2 connections of QUIC: native, Cubic"] == NOT_RUN
    assert {target.verdict for target in figure.targets(Results(outcomes))} == {NOT_RUN}
    for cell in figure.cells():
        outcomes.setdefault(cell.key, Outcome({"page": 0.6}))
    assert [target.measured for target in figure.targets(Results(outcomes))] == [1.25, 1.25]


def test_results_are_kept_and_those_of_the_working_file_win_over_the_packed_ones(tmp_path: Path) -> None:
    store = Store(tmp_path / "working", tmp_path / "packed")
    store.put(entry("a", 1.0))
    store.put(entry("b", 2.0))
    store.put(entry("c", 4.0))
    assert store.pack({"a", "b"}) == 2
    (tmp_path / "working").unlink()
    assert store.entries() == {"a": entry("a", 1.0), "b": entry("b", 2.0)}
    store.put(entry("a", 3.0))
    assert store.entries()["a"].outcome.values == {"seconds": 3.0}


def test_the_same_results_make_the_same_packed_file(tmp_path: Path) -> None:
    packed = []
    for order in ("ab", "ba"):
        store = Store(tmp_path / order, tmp_path / f"packed-{order}")
        for cell in order:
            store.put(entry(cell))
        store.pack("ab")
        packed.append((tmp_path / f"packed-{order}").read_bytes())
    assert packed[0] == packed[1]


def test_a_run_that_was_killed_while_it_wrote_loses_that_cell_and_no_other(tmp_path: Path) -> None:
    store = Store(tmp_path / "working")
    store.put(entry("a"))
    with (tmp_path / "working").open("a") as file:
        file.write(entry("b").encoded()[: random.Random(1).randrange(5, 60)])
    store.put(entry("c"))
    assert set(store.entries()) == {"a", "c"}


def test_a_download_takes_both_paths_and_the_same_time_again() -> None:
    one, two = (Download(100_000, (TEN,) * paths).run(Setup(), 1) for paths in (1, 2))
    assert 0.17 < one.values["seconds"] < 0.3
    assert two.values["bytes 1"] > 20_000
    again = Download(100_000, (TEN, TEN)).run(Setup(), 1)
    assert again.values["seconds"] == pytest.approx(two.values["seconds"], rel=0.01)


def test_what_is_urgent_is_asked_for_during_a_download() -> None:
    play = Urgent(700_000, (route(4, 0.044),))
    own, ordered = (replace(play, in_order=in_order).run(Setup(), 1) for in_order in (False, True))
    assert len(own.series["delays"]) >= 2
    assert 0.044 < own.values["median"] < ordered.values["median"]


def test_ends_that_count_tell_ranges_and_repetitions_and_leave_blocks_out() -> None:
    paths = route(20, 0.010, queue=8), route(5, 0.060, queue=8)
    one = Setup(settings=(("private_modes", ("one_number_space",)), ("scheduler", "RR")), ack_blocks=0)
    whole, cut = (Counted(400_000, paths).run(setup, 1).values for setup in (one, replace(one, ack_blocks=1)))
    assert whole["full"] == 0
    assert whole["ranges"] > 1.2
    assert cut["full"] > 0
    assert 1 < cut["ranges"] <= 2
    many = Counted(400_000, paths).run(replace(one, settings=(("scheduler", "RR"),)), 1).values
    assert many["ranges"] == pytest.approx(1.0, abs=0.05)


def test_where_time_alone_tells_losses_what_is_overtaken_is_not_sent_again() -> None:
    link = link_of(20, 0.100, jitter=0.004)
    setup = Setup(ack_blocks=0)
    counted, timed = (
        Counted(200_000, ((link, link),)).run(each, 1).values for each in (setup, replace(setup, lost_by_time=True))
    )
    assert counted["repeated"] > 0
    assert timed["repeated"] == 0
    lossy = replace(link_of(10, 0.060), loss=0.02)
    assert Counted(200_000, ((lossy, lossy),)).run(replace(setup, lost_by_time=True), 1).values["repeated"] > 0


def test_a_server_uses_a_further_path_after_a_round_trip_and_a_half() -> None:
    assert Joining((TEN, TEN)).run(Setup(), 1).values["seconds"] / 0.044 == pytest.approx(1.5, abs=0.3)


def test_bursts_are_timed_beside_bulk() -> None:
    outcome = Sending((route(4, 0.044),), 2.5, bursts=True, settled=1.0).run(Setup(), 1)
    assert outcome.values["mbps"] == pytest.approx(4, rel=0.15)
    assert len(outcome.series["mbps"]) in (4, 5)  # the last sample is due at the end
    assert 10 <= len(outcome.series["delays"]) <= 15
    assert 0.022 < outcome.values["median"] <= outcome.values["worst"]


def test_a_stream_that_is_served_first_waits_less_than_in_turn() -> None:
    play = Sending((route(4, 0.044),), 2.5, bursts=True, settled=1.0)
    turn, first = (play.run(Setup(urgent_first=first), 1).values for first in (False, True))
    assert first["median"] < turn["median"] - 0.003
    assert first["mbps"] == pytest.approx(turn["mbps"], rel=0.05)


def test_a_server_that_hears_tells_over_which_path_bursts_have_come() -> None:
    near, far = route(4, 0.020), route(4, 0.300)
    play = Sending((far, near), 3.0, bursts=True, settled=1.5, heard=True)
    assert 0.9 <= play.run(Setup(), 1).values["one path"] <= 1.0
    alternating = play.run(Setup(settings=(("scheduler", "RR"),)), 1).values
    assert 0.4 < alternating["one path"] < 0.9


def test_two_flows_share_one_bottleneck() -> None:
    slow = route(4, 0.044)
    assert (
        0.1 < Beside(slow, 3.0).run(Setup(congestion="olia", settings=(("queue_most_ms", 0),)), 1).values["share"] < 0.9
    )


def test_a_target_is_held_short_or_not_run() -> None:
    most, least = Target("time", 0.6, 0.62, unit=" s"), Target("ratio", 1.9, 1.94, at_least=True)
    assert (most.verdict, most.promise) == ("held", "at most 0.62 s")
    assert (least.verdict, least.promise) == ("**short by 0.040**", "at least 1.94")
    assert replace(least, measured=None).verdict == NOT_RUN
    assert replace(most, part="1 of 9 points").verdict == "held, 1 of 9 points so far"


@pytest.mark.parametrize(
    ("value", "text"), [(None, NOT_RUN), (0.0, "0"), (0.12345, "0.123"), (12.34, "12.3"), (1234.5, "1234")]
)
def test_numbers_have_three_digits_that_count(value: float | None, text: str) -> None:
    assert number(value) == text


def test_nothing_is_said_of_what_was_not_run() -> None:
    shown = papers(Scale.FULL)
    targets = [target for paper in shown for figure in paper.figures for target in figure.targets(Results({}))]
    assert targets
    assert {target.verdict for target in targets} == {NOT_RUN}
    assert NOT_RUN in page(shown, {}, {}, quick=False)


def test_the_page_in_the_documents_is_made_of_the_results_that_come_with_the_project() -> None:
    entries = Store(Path("/nowhere"), PACKED).entries()
    shown = papers(Scale.FULL)
    documents = PACKED.parents[2] / "docs"
    pictures = {
        figure.key: name
        for paper in shown
        for figure in paper.figures
        if (documents / (name := f"evaluation-mpquic-{figure.key}.png")).exists()
    }
    assert page(shown, entries, pictures, quick=False) == (documents / "evaluation-mpquic.md").read_text()
