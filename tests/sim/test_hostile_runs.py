"""Random runs with somebody hostile: strangers, floods, late refusals, lies about sizes, too many connections."""

from __future__ import annotations

import pytest

from multi.protocol.session import SessionCore
from tests.sim.hostile_run import FLOOD, HostileRun

pytestmark = pytest.mark.simulation

SEEDS = range(40)
CHUNK = 20
CHUNKS = [pytest.param(start, marks=[pytest.mark.slow] if start else []) for start in SEEDS[::CHUNK]]


@pytest.mark.parametrize("start", CHUNKS)
def test_nothing_that_somebody_hostile_does_ends_a_session_gets_in_or_costs_a_byte(start: int) -> None:
    runs, traces = [HostileRun(seed) for seed in range(start, start + CHUNK)], []
    for seed, run in enumerate(runs, start):
        try:
            traces.append(run.run())
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
    # They are not trivial.
    assert sum(trace.count("stranger repeats") for trace in traces) > 8 * FLOOD
    assert sum("stranger joins" in trace for trace in traces) > 5
    assert sum("refused on" in trace for trace in traces) > 5
    assert sum(" lie " in trace for trace in traces) > 5
    assert sum(" resumed" in trace for trace in traces) > 2
    assert sum(end.got() for run in runs for end in run.pair.ends) > 600_000


def fails(seeds: range) -> bool:
    try:
        for seed in seeds:
            HostileRun(seed).run()
    except AssertionError:
        return True
    return False


def test_a_session_that_takes_more_connections_than_allowed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SessionCore, "_bound_connections", lambda self, newest: None)
    assert fails(SEEDS)


def test_a_client_that_believes_every_refusal_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = SessionCore.refused

    def believes(self: SessionCore, connection: object, refuse: object) -> None:
        refused(self, connection, refuse)  # type: ignore[arg-type]
        if self.confirmed and not self.connections.authenticated():
            self._end_alone(refuse.reason)  # type: ignore[attr-defined]

    monkeypatch.setattr(SessionCore, "refused", believes)
    assert fails(SEEDS)
