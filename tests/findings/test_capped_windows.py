"""With windows that may not grow, a second path makes a transfer no slower than the best one alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from multi.lab.sim.pair import CLEAR, Pair
from multi.lab.sim.path_model import PathSpec
from multi.lab.sim.wire import Route

KIB = 1024
SIZE = 8_000_000
FAST = PathSpec(5e6, 0.005)
SLOW = PathSpec(2e6, 0.060, queue=200e3)
NEAR = PathSpec(25e6, 0.001)
FAR = PathSpec(10e6, 0.020, queue=400e3)


def seconds(*paths: PathSpec, cap: int) -> float:
    """Simulated seconds of a download over these paths with windows of at most `cap` bytes."""
    client = replace(CLEAR, max_stream_window=cap, max_session_window=cap, initial_window=cap)
    server = replace(client, initial_window=64 * KIB)
    pair = Pair([Route(path, path) for path in paths], client=client, server=server, watched=False)
    assert pair.until(lambda: len(pair.client.active) == len(paths) and pair.peer.session.confirmed, 10.0)
    pair.run(0.3)
    start = pair.clock.now
    pair.peer.write(bytes(SIZE))
    assert pair.until(lambda: pair.client.got() == SIZE, 60.0)
    return pair.clock.now - start


@pytest.mark.simulation
@pytest.mark.parametrize("cap", [128 * KIB, 192 * KIB, 384 * KIB, 512 * KIB, 768 * KIB, 1024 * KIB])
@pytest.mark.parametrize("paths", [(FAST, SLOW), (NEAR, FAR)])
def test_a_second_path_costs_nothing_where_windows_are_capped(paths: tuple[PathSpec, PathSpec], cap: int) -> None:
    assert seconds(paths[0], cap=cap) / seconds(*paths, cap=cap) >= 0.97


@pytest.mark.simulation
@pytest.mark.parametrize(
    ("fast", "slow", "cap"),
    [  # At the start the slow path was given what stopped the window, and the fast one lost what it sent then at once.
        (PathSpec(10e6, 0.010), PathSpec(1e6, 0.050), 256 * KIB),
        (PathSpec(10e6, 0.010), PathSpec(2e6, 0.100), 256 * KIB),
        (PathSpec(10e6, 0.010), PathSpec(10e6, 0.050), 256 * KIB),
    ],
)
def test_a_fast_path_that_begins_is_not_given_up_for_a_slow_one(fast: PathSpec, slow: PathSpec, cap: int) -> None:
    assert seconds(fast, cap=cap) / seconds(fast, slow, cap=cap) >= 0.97
