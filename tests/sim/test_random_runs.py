"""Random runs: seeds that must not fail, seeds that once did, and the promise that a seed replays byte for byte."""

from __future__ import annotations

import pytest

from multi.lab.sim.trace import digest
from multi.schedulers import scheduler_names
from tests.sim.golden import SEEDS, stored
from tests.sim.handover_run import HandoverRun
from tests.sim.random_run import SCHEDULERS, RandomRun, run_seed, trace_digest

pytestmark = pytest.mark.simulation

SHIPPED = set(scheduler_names())  # now: tests register schedulers of their own

CHUNK = 50
TESTED = SEEDS[:250]  # the others are for whoever changes what a session does: `python -m tests.sim.golden`
FAST_SEEDS = 100  # of these, those of `make test-fast`

FAILED_ONCE = {
    14: "the path manager gave a role to a connection that had just ended",
    154: "a stream forgotten on both sides took its pending acknowledgement with it",
    309: "CLOSE left on a suspect connection only, the server waited out its resume timeout",
    2554: "control given to a suspect connection stayed there although a usable one had come",
    3142: "a stream opened after close() kept the session open for ever",
    3049: "a drained connection was closed under the CLOSE it carried, and the refused redial taken for a loss",
    3365: "CLOSE left on a connection the client had just drained, and the server ended without lingering",
    8260: "CLOSE was swallowed by a connection that had died unnoticed",
    20886: "early data or control waited for a connection that was suspect",
}


CHUNKS = [pytest.param(start, marks=[pytest.mark.slow] if start >= FAST_SEEDS else []) for start in TESTED[::CHUNK]]


@pytest.mark.parametrize("start", CHUNKS)
def test_random_runs_lose_nothing_double_nothing_and_go_as_before(start: int) -> None:
    """See `tests.sim.golden` for what to do when a digest has changed."""
    expected, changed = stored(), []
    for seed in range(start, start + CHUNK):
        try:
            happened = trace_digest(seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        if happened != expected[seed]:
            changed.append(seed)
    assert changed == []


def test_a_digest_knows_what_happened_and_not_how_it_is_worded() -> None:
    assert digest("0.1 client send 0 0 7 # why\n0.2 x") == digest("0.1 client send 0 0 7 # because\n0.2 x")
    assert digest("0.1 client send 0 0 7\n0.2 x") != digest("0.1 client send 0 0 8\n0.2 x")


def test_handovers_fail_only_by_attempts_begun_for_them() -> None:
    runs = [HandoverRun(seed) for seed in range(60)]
    for run in runs:
        run.run()
    assert sum(run.handovers_failed for run in runs) > 10, "or it says nothing"


@pytest.mark.parametrize("seed", FAILED_ONCE)
def test_a_seed_that_once_failed_passes(seed: int) -> None:
    run_seed(seed)


@pytest.mark.parametrize("seed", [3, 17, 171])
def test_the_same_seed_gives_the_same_trace(seed: int) -> None:
    assert run_seed(seed).encode() == run_seed(seed).encode()


def test_the_runs_are_not_trivial() -> None:
    runs = [RandomRun(seed) for seed in range(20)]
    traces = [run.run() for run in runs]
    assert sum("suspect" in trace for trace in traces) > 5
    assert sum(" lost" in trace for trace in traces) > 5
    assert sum("drained" in trace for trace in traces) > 1
    assert sum(" resumed" in trace for trace in traces) > 0
    carried = sum(end.got() for run in runs for end in run.pair.ends)
    assert carried > 700_000


def test_one_end_waits_longer_for_the_other_in_many_runs() -> None:
    ends = [RandomRun(seed).patience for seed in range(100)]
    assert sum(client != server for client, server in ends) > 10


def test_random_runs_try_every_scheduler() -> None:
    assert set(SCHEDULERS) == SHIPPED
