"""What `make bench-mpquic` plays between real kernels, with little data."""

from __future__ import annotations

import pytest

from benchmarks.mpquic.cells import ENGINES, Setup, route
from benchmarks.mpquic.stage import Unfinished
from benchmarks.mpquic.testbed import Fetch, Party, Rate, UrgentOnTestbed, why_not

PATH = route(6, 0.020)
UNIFLOWS = Setup(settings=(("private_modes", ("uniflows",)),))


@pytest.fixture(scope="module", autouse=True)
def _testbed() -> None:
    if reason := why_not():
        pytest.skip(f"NO TESTBED HERE: {reason}")


@pytest.mark.parametrize(
    "party",
    [
        Party("tcp", paths=(0,)),
        Party("mptcp"),
        Party("quic", ENGINES[0]),
        Party("mpquic", ENGINES[0]),
        Party("mpquic", UNIFLOWS),
    ],
    ids=str,
)
def test_every_party_fetches_files_over_its_paths(party: Party) -> None:
    jobs = (("one", (500_000,)), ("two", (200_000, 300_000)))
    cell = party.cell("x", "y", Fetch(routes=(PATH, PATH), jobs=jobs))
    values = cell.play.run(cell.setup, 1).values
    assert min(values["one"], values["two"]) > 0.15
    assert 1.0 < values["MB 0"] + values["MB 1"] < 1.6
    assert (values["MB 1"] > 0.01) == (len(party.paths) > 1)


@pytest.mark.parametrize("down", [True, False])
def test_rates_of_groups_are_those_of_their_paths(down: bool) -> None:
    slow = route(1, 0.020)
    play = Rate(routes=(slow, slow, slow), seconds=4.0, down=down, groups=((0,), (1, 2)))
    values = play.run(ENGINES[0], 1).values
    assert 0.1 < values["mbps 0"] < 1.05
    assert 0.1 < values["mbps 1"] < 2.1


def test_who_sends_alone_is_told_of_the_queue_of_its_link() -> None:
    play = Rate(routes=(route(2, 0.040, queue=8),), seconds=3.0, paths=(0,))
    outcome = play.run(Setup(settings=(("queue_most_ms", 0),)), 1)
    assert len(outcome.series["queue"]) == len(outcome.series["mbps 0"]) == 6
    assert 0.0 < outcome.values["queue"] <= outcome.values["longest queue"] < 0.5


@pytest.mark.parametrize(("party", "in_order"), [(Party("mptcp"), True), (Party("mpquic", ENGINES[0]), False)], ids=str)
def test_an_urgent_kilobyte_is_timed_during_a_download(party: Party, in_order: bool) -> None:
    play = UrgentOnTestbed(routes=(route(4, 0.020),) * 2, size=2_000_000, in_order=in_order, transport=party.transport)
    outcome = play.run(party.setup, 1)
    assert len(outcome.series["delays"]) >= 2
    assert 0.020 < outcome.values["median"] <= outcome.values["worst"]


def test_what_does_not_come_to_its_end_is_unfinished() -> None:
    play = Fetch(routes=(PATH,), jobs=(("one", (1,)),), paths=(0,))
    with pytest.raises(Unfinished):
        play.run(Setup(congestion="nonsense"), 1)
