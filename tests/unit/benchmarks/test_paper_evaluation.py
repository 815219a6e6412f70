"""What the paper's evaluation says of what it has measured, without measuring."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.paper.cells import CELLS, FULL, QUICK, Cell, Outcome, cell, rate
from benchmarks.paper.numbers import NOT_GIVEN, said
from benchmarks.paper.report import Results, promises, report


def outcome(key: str, number: int = 1, **values: list[float]) -> Outcome:
    names = {"open": "open, ms", "small": "small, ms", "mbps": "mbps"}
    return Outcome(key, number, "abc", {names[name]: found for name, found in values.items()})


def line(rows: list[str], *words: str) -> str:
    (found,) = (row for row in rows if all(word in row for word in words))
    return found


def test_every_cell_has_a_name_of_its_own_that_leads_back_to_it() -> None:
    assert len({c.key for c in CELLS}) == len(CELLS)
    assert all(cell(c.key) is c for c in CELLS)


def test_all_combinations_of_the_paper_are_there_in_both_directions() -> None:
    def combinations(figure: int) -> set[tuple[tuple[str, ...], bool, str, str]]:
        return {(c.kinds, c.receives, c.style, c.measure) for c in CELLS if c.figure == figure and len(c.links) > 1}

    assert len(combinations(6)) == 8 * 2 * 2 * 2
    assert len(combinations(11)) == 4 * 2 * 2 * 2


def test_only_the_large_transfer_over_the_uplink_of_5g_is_measured_less_often() -> None:
    seldom = [c for c in CELLS if c.most_rounds is not None]
    assert seldom
    assert all((c.measure, c.links, c.receives) == ("large", ("5g",), False) for c in seldom)


def test_the_papers_numbers_stand_beside_the_cells_they_belong_to() -> None:
    assert str(said(cell("05-small/base-tcp-ethernet-rx"), "open, ms")) == "2.09"
    assert said(cell("05-small/base-quic-5g-tx"), "open, ms").value == 50.2
    assert said(cell("05-large/base-tcp-ethernet-tx"), "mbps").value == 844
    assert said(cell("05-large/base-quic-ethernet-rx"), "mbps").value == 78
    assert said(cell("07-join/multi-tcp+tcp-5g+wifi-rx-RR"), "peak, mbps").value == 340
    assert str(said(cell("04-iperf/iperf-tcp-ethernet-rx"), "mbps")) == "940 (roughly)"


def test_what_the_text_does_not_give_is_said_to_be_missing() -> None:
    assert str(said(cell("05-small/base-tcp-5g-rx"), "open, ms")) == NOT_GIVEN
    assert str(said(cell("07-join/multi-tcp+tcp-5g+wifi-rx-adaptive"), "peak, mbps")) == "not in the paper"


def test_the_paper_has_something_to_say_of_every_value() -> None:
    for each in CELLS:
        assert all(str(said(each, name)) for name in ("open, ms", "small, ms", "mbps", "before, mbps", "handover, ms"))


def test_overhead_beyond_the_margin_is_told_with_where_it_is_worst() -> None:
    outcomes = [
        outcome("05-small/base-tcp-ethernet-rx", open=[1.0, 1.0, 9.0]),
        outcome("05-small/multi-tcp-ethernet-rx", open=[3.9]),
        outcome("05-small/base-tcp-wifi-tx", open=[2.0]),
        outcome("05-small/multi-tcp-wifi-tx", open=[5.5]),
    ]
    row = line(list(promises(Results(outcomes))), "time to open, TCP, against asyncio:")
    assert "5.50 ms, base 2.00 ms (WiFi, IPv6, Tx: the worst)" in row
    assert "short by 0.50 ms**, held in 1 of 2" in row


def test_five_percent_of_a_long_time_is_more_than_three_milliseconds() -> None:
    outcomes = [
        outcome("05-small/base-tls-5g-rx", small=[200.0]),
        outcome("05-small/multi-sealed-5g-rx", small=[210.0]),
    ]
    assert "| held |" in line(list(promises(Results(outcomes))), "25 kB, TCP, sealed")


def test_another_round_trip_breaks_a_promise() -> None:
    fine = [outcome("05-small/multi-tcp-5g-rx", open=[55.0])]
    slow = [outcome("05-small/multi-tcp-5g-rx", open=[95.0])]
    assert "held" in line(list(promises(Results(fine))), "5G, TCP: 1 round trip")
    assert "short by 1.07 round trips" in line(list(promises(Results(slow))), "5G, TCP: 1 round trip")


@pytest.mark.parametrize(("mbps", "carried", "verdict"), [(500, 700, "held"), (300, 300, "short by")])
def test_round_robin_is_compared_with_the_faster_single_connection(mbps: float, carried: int, verdict: str) -> None:
    three = outcome("06-large/multi-tcp+tcp+tcp-ethernet+wifi+5g-rx-RR", mbps=[mbps])
    three.facts["carried"] = {"ethernet": carried, "wifi": 350, "5g": 350}
    outcomes = [
        three,
        outcome("05-large/base-tcp-ethernet-rx", mbps=[900]),
        outcome("05-large/multi-tcp-ethernet-rx", mbps=[800]),
    ]
    rows = list(promises(Results(outcomes)))
    assert verdict in line(rows, "Rx: at least 0.5", "of 900 Mbit/s")
    assert verdict in line(rows, "Rx: work-conserving")


def test_a_promise_that_was_not_measured_is_not_left_out() -> None:
    rows = list(promises(Results([])))
    assert len(rows) == 4 + 8 + 4
    assert all("not measured" in row for row in rows)


def test_rates_are_taken_from_between_two_looks() -> None:
    seen = Outcome(
        "x", 1, series=[(0.1, 0, {}), (1.1, 1_000_000, {"wifi": 250_000}), (2.1, 3_000_000, {"wifi": 500_000})]
    )
    assert rate(seen, 0.1, 1.1) == pytest.approx(8.0)
    assert rate(seen, 0.6, 1.6) == pytest.approx(12.0)
    assert rate(seen, 0.1, 2.1, "wifi") == pytest.approx(2.0)
    assert rate(seen, 0.1, 2.1, "5g") == 0.0


def test_an_outcome_survives_being_stored() -> None:
    before = outcome("05-small/base-tcp-ethernet-rx", open=[1.5])
    before.faults.append("something")
    assert Outcome.decoded(before.encoded()) == before


def test_a_report_without_iperf3_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.paper.report.iperf3_is_installed", lambda: False)
    assert "| iperf3 is not installed |" in report([], QUICK, {}, quick=True)


def test_a_failed_run_is_listed_and_not_counted_as_measured() -> None:
    failed = outcome("05-large/multi-tcp-wifi-rx")
    failed.faults.append("bytes differ from offset 7 on")
    text = report([failed], FULL, {}, quick=False)
    assert "- 05-large/multi-tcp-wifi-rx run 1: bytes differ from offset 7 on" in text
    assert "| WiFi | TCP | Rx | not given in the text | less than 5 % under base | not measured | failed |" in text


def test_pictures_are_drawn_of_what_there_is(tmp_path: Path) -> None:
    pictures = pytest.importorskip("benchmarks.paper.pictures")
    curve = Outcome("07-join/multi-tcp+tcp-5g+wifi-rx-RR", 1, facts={"joined": 1.0})
    curve.series = [(n / 10, n * 1000, {"5g": n * 1000}) for n in range(1, 20)]
    known: list[Cell] = [c for c in CELLS if c.figure == 5]
    outcomes = [curve, *(outcome(c.key, n, mbps=[100.0 + n]) for c in known for n in (1, 2))]
    drawn = pictures.draw(Results(outcomes), QUICK, tmp_path)
    assert [path.name for path in drawn] == ["figure-5.png", "figures-7-8.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in drawn)
