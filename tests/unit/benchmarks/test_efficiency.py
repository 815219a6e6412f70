"""phi by the formulas of Morawski and Karbowanczyk."""

from __future__ import annotations

import pytest

from benchmarks.mpquic.efficiency import efficiency, running


@pytest.mark.parametrize(("together", "phi"), [(30, 1.0), (25, 0.5), (20, 0.0), (10, -0.5), (0, -1.0), (33, 1.3)])
def test_phi(together: float, phi: float) -> None:
    assert efficiency(together, [20, 10]) == pytest.approx(phi)


def test_phi_needs_two_paths_that_carry_something() -> None:
    for alone in ([10.0], [10.0, 0.0]):
        with pytest.raises(ValueError, match="at least two"):
            efficiency(5, alone)


def test_running_phi_leaves_out_moments_without_a_measure() -> None:
    assert running([30, 30, 20], [[20, 0, 20], [10, 10, 10]]) == [1.0, 0.0]
