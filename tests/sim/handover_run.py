"""Random runs with many handovers, to networks that refuse, swallow or answer late.

Beside everything that `random_run` does, routes refuse the client's dials for a while, and what was asked of a network
before a handover to it began is answered while that is under way.
"""

from __future__ import annotations

from tests.sim.random_run import RandomRun


class HandoverRun(RandomRun):
    """One seed."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._operations += [(12, self._hand_over), (10, self._refuse_dials), (10, self._take_dials), (6, self._cut)]
        self._count += 20

    def _refuse_dials(self) -> None:
        index = self._route()
        self._log("route refuses", index)
        self.pair.refused.add(index)

    def _take_dials(self) -> None:
        self._log("routes take", *sorted(self.pair.refused))
        self.pair.refused.clear()
