"""LIA and OLIA: their formulas, worked out by hand, and what they come to at a shared bottleneck."""

from __future__ import annotations

import pytest

from multi.multipath.coupling import CoupledPaths, CoupledWindow, Coupling

MSS = 1000


def windows(coupling: Coupling, *known: tuple[int, float]) -> list[CoupledWindow]:
    """In congestion avoidance, of so many datagrams and seconds."""
    paths = CoupledPaths(coupling, MSS)
    made = [paths.add() for _ in known]
    for window, (size, rtt) in zip(made, known, strict=True):
        window.size, window.threshold, window.rtt = size * MSS, 0.0, rtt
    return made


def test_one_path_alone_grows_as_reno() -> None:
    for coupling in Coupling:
        (window,) = windows(coupling, (20, 0.1))
        for _ in range(20):
            window.acked(MSS)
        assert window.size == pytest.approx(21 * MSS, rel=0.01)


def test_lia_grows_as_rfc_6356_says() -> None:
    first, second = windows(Coupling.LIA, (10, 0.1), (20, 0.2))
    # alpha = 30 * max(10 / 0.01, 20 / 0.04) / (10 / 0.1 + 20 / 0.2)^2 = 0.75, of an acknowledged datagram 0.75 / 30
    first.acked(MSS)
    assert first.size - 10 * MSS == pytest.approx(MSS * 0.75 / 30)
    second.size = 20 * MSS
    second.acked(MSS)
    assert second.size - 20 * MSS == pytest.approx(MSS * 0.75 / 30, rel=0.01)


def test_lia_never_grows_faster_than_alone() -> None:
    first, _ = windows(Coupling.LIA, (100, 0.5), (2, 0.001))
    first.acked(MSS)
    assert first.size - 100 * MSS <= MSS / 100 + 1e-9


def test_olia_moves_windows_to_paths_that_would_bear_more() -> None:
    large, promising = windows(Coupling.OLIA, (20, 0.1), (10, 0.1))
    promising.acked(90 * MSS)  # nothing was lost there for long
    promising.size = 10 * MSS
    grown = MSS * (10 / 0.01) / (20 / 0.1 + 10 / 0.1) ** 2 + MSS / (2 * 1) / 10
    promising.acked(MSS)
    assert promising.size - 10 * MSS == pytest.approx(grown, rel=0.01)
    promising.size = 10 * MSS
    shrunk = MSS * (20 / 0.01) / 300**2 - MSS / (2 * 1) / 20
    assert shrunk < 0
    large.acked(MSS)
    assert large.size - 20 * MSS == pytest.approx(shrunk, rel=0.02)


def test_a_loss_halves_and_nothing_goes_below_two_datagrams() -> None:
    for coupling in Coupling:
        first, _ = windows(coupling, (20, 0.1), (20, 0.1))
        first.lost()
        assert first.size == first.threshold == 10 * MSS
        for _ in range(9):
            first.lost()
        first.collapse()
        assert first.size == 2 * MSS


def test_slow_start_is_each_paths_own() -> None:
    paths = CoupledPaths(Coupling.OLIA, MSS)
    window = paths.add()
    paths.add()
    window.rtt = 0.1
    window.acked(10 * MSS)
    assert window.size == 20 * MSS


def share(coupling: Coupling | None) -> float:
    """Of a bottleneck of 100 datagrams, what two paths get beside one flow with the same round trip."""
    alone = windows(Coupling.LIA, (5, 0.1))
    pair = windows(coupling, (5, 0.1), (5, 0.1)) if coupling else [windows(Coupling.LIA, (5, 0.1))[0] for _ in "12"]
    flows = alone + pair
    got = taken = 0.0
    turn = 0
    for _ in range(600):  # round trips
        for flow in flows:
            for _ in range(max(1, int(flow.size // MSS))):
                flow.acked(MSS)
        if sum(flow.size for flow in flows) > 100 * MSS:  # each datagram is as likely to be the lost one
            at = (turn * 37 % 100) / 100 * sum(flow.size for flow in flows)
            turn += 1
            for flow in flows:
                at -= flow.size
                if at < 0:
                    flow.lost()
                    break
        got += sum(flow.size for flow in pair)
        taken += sum(flow.size for flow in flows)
    return got / taken


def test_two_coupled_paths_take_no_more_than_one_flow_beside_them() -> None:
    uncoupled = share(None)
    assert 0.62 < uncoupled < 0.72
    assert share(Coupling.LIA) < 0.58
    assert share(Coupling.OLIA) < 0.58
