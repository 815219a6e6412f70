"""The lifecycle tables: every row is legal, says what it means, and is reached by real sessions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from multi.errors import LocalProtocolError
from multi.protocol import connection as connection_module
from multi.protocol.state import (
    CONNECTION_STEPS,
    SESSION_TRANSITIONS,
    TRAITS,
    Phase,
    SessionState,
    Step,
    next_phase,
)
from multi.types import ConnectionState
from tests.sim.random_run import RandomRun

from .wiring import Ends

SEEDS = (26, 111, 134, 148, 152, 243, 500, 687, 979, 1230, 1416)  # random runs that take every step together
ROWS = [(phase, step) for phase, steps in CONNECTION_STEPS.items() for step in steps]


def rows_taken(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Phase, Step]]:
    taken: set[tuple[Phase, Step]] = set()

    def noted(phase: Phase, step: Step) -> Phase:
        taken.add((phase, step))
        return next_phase(phase, step)

    monkeypatch.setattr(connection_module, "next_phase", noted)
    for seed in SEEDS:
        RandomRun(seed).run()
    yield from taken


def test_every_step_of_a_connection_is_taken_by_random_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(ROWS) - set(rows_taken(monkeypatch)) == set()


def test_every_phase_says_what_it_means_and_where_it_leads() -> None:
    assert set(TRAITS) == set(CONNECTION_STEPS) == set(Phase)
    assert {traits.state for traits in TRAITS.values()} == set(ConnectionState)


def test_nothing_follows_the_end_and_everything_can_end() -> None:
    for phase, steps in CONNECTION_STEPS.items():
        if TRAITS[phase].alive:
            assert steps[Step.CLOSE] is Phase.CLOSED
            assert steps[Step.LOSE] is Phase.LOST
        else:
            assert not steps


@pytest.mark.parametrize("phase", Phase)
def test_an_illegal_step_is_a_bug_of_this_side(phase: Phase) -> None:
    for step in Step:
        if step in CONNECTION_STEPS[phase]:
            assert next_phase(phase, step) in Phase
        else:
            with pytest.raises(LocalProtocolError):
                next_phase(phase, step)


@pytest.mark.parametrize("state", SessionState)
def test_a_session_goes_only_where_its_table_leads(state: SessionState) -> None:
    for target in SessionState:
        session = Ends().client.session
        session.state = state
        if target in SESSION_TRANSITIONS[state]:
            session.move(target)
            assert session.state is target
        else:
            with pytest.raises(LocalProtocolError):
                session.move(target)
