"""With windows that may not grow, a second path makes a transfer no slower than the best one alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import median

import pytest

from multi.lab.sim.pair import CLEAR, Pair
from multi.lab.sim.path_model import PathSpec
from multi.lab.sim.wire import Route

KIB = 1024
SIZE = 8_000_000
FAST = PathSpec(5e6, 0.005)
SLOW = PathSpec(2e6, 0.060, queue=200e3)
# Windows of more than 150 KB overrun the queue, and what is lost then is as chance will have it: medians of three.
NEAR = PathSpec(25e6, 0.001, jitter=20e-6)
FAR = PathSpec(10e6, 0.020, queue=400e3, jitter=20e-6)


def seconds(*paths: PathSpec, cap: int) -> float:
    """Simulated seconds of a download over these paths with windows of at most `cap` bytes."""
    return median(_seconds(paths, cap, seed) for seed in ((1, 2, 3) if paths[0].jitter else (1,)))


def _seconds(paths: Sequence[PathSpec], cap: int, seed: int) -> float:
    client = replace(CLEAR, max_stream_window=cap, max_session_window=cap, initial_window=min(cap, 1024 * KIB))
    server = replace(client, initial_window=64 * KIB)
    pair = Pair([Route(path, path) for path in paths], client=client, server=server, watched=False, seed=seed)
    assert pair.until(lambda: len(pair.client.active) == len(paths) and pair.peer.session.confirmed, 10.0)
    pair.run(0.3)
    start = pair.clock.now
    pair.peer.write(bytes(SIZE))
    assert pair.until(lambda: pair.client.got() == SIZE, 60.0)
    return pair.clock.now - start


@pytest.mark.simulation
@pytest.mark.parametrize("cap", [128 * KIB, 192 * KIB, 512 * KIB, 1024 * KIB, 2048 * KIB])
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


HALF = PathSpec(10e6, 0.010)  # its queue holds half a bandwidth-delay product


@pytest.mark.simulation
@pytest.mark.parametrize(
    ("fast", "slow", "cap"),
    [
        # BBR stayed in its startup and sent a whole window whenever a hole was closed: the queue lost some again.
        (HALF, PathSpec(10e6, 0.020), 256 * KIB),
        (HALF, PathSpec(1e6, 0.020), 256 * KIB),
        # A path that had just begun was given up for a slow one by the mean rate of its first round trips.
        (PathSpec(10e6, 0.020, jitter=20e-6), PathSpec(10e6, 0.040, jitter=20e-6), 256 * KIB),
        # The slow path got what arrived there a moment sooner, and kept the room for twice as long.
        (
            PathSpec(25e6, 0.005, queue=250e3, jitter=20e-6),
            PathSpec(2.5e6, 0.010, queue=50e3, jitter=20e-6),
            256 * KIB,
        ),
        (PathSpec(25e6, 0.005, queue=250e3), PathSpec(25e6, 0.010, queue=500e3), 128 * KIB),
        # Each of two that are alike was sent no more than it had carried, which was its part of the window.
        (PathSpec(25e6, 0.005, queue=250e3), PathSpec(25e6, 0.005, queue=250e3), 256 * KIB),
        # A window of 2 MiB was taken for a larger one: what was acknowledged just then seemed to hold a part of it.
        (PathSpec(10e6, 0.010, queue=400e3), PathSpec(10e6, 0.100, queue=4e6), 2048 * KIB),
        # Copies of what stopped the window left a round trip too late while the fast path doubled what it sent.
        (
            PathSpec(10e6, 0.020, queue=400e3, congestion="cubic"),
            PathSpec(2e6, 0.100, queue=400e3, congestion="cubic"),
            2048 * KIB,
        ),
        # What is lost on one of two paths that are alike held up the window of both.
        (PathSpec(10e6, 0.010, queue=200e3), PathSpec(10e6, 0.010, loss=0.005, queue=200e3), 128 * KIB),
        # A path of unknown rate was thought to send its window at once, and stopped that of the session.
        (
            PathSpec(10e6, 0.020, queue=400e3, congestion="cubic"),
            PathSpec(10e6, 0.040, queue=800e3, congestion="cubic"),
            512 * KIB,
        ),
    ],
)
def test_room_of_a_small_window_goes_to_whoever_gives_it_back_soonest(fast: PathSpec, slow: PathSpec, cap: int) -> None:
    assert seconds(fast, cap=cap) / seconds(fast, slow, cap=cap) >= 0.97


@pytest.mark.simulation
def test_a_window_that_opens_all_at_once_does_not_leave_all_at_once() -> None:
    def after(pause: float) -> float:
        settings = replace(CLEAR, max_stream_window=256 * KIB, max_session_window=256 * KIB, initial_window=256 * KIB)
        pair = Pair([Route(HALF, HALF)], client=settings, watched=False)
        assert pair.until(lambda: pair.server is not None and pair.peer.session.confirmed, 10.0)
        pair.peer.write(bytes(2 * SIZE))
        pair.run(0.5)
        pair.client.pause()
        pair.run(pause)
        pair.client.resume()
        start, had = pair.clock.now, pair.client.got()
        assert pair.until(lambda: pair.client.got() >= had + SIZE, 60.0)
        return pair.clock.now - start

    assert after(0.050) < 1.05 * after(0.0)


@pytest.mark.simulation
def test_the_round_trips_of_a_window_that_is_used_up_are_not_made_longer_by_late_news() -> None:
    cap, trip = 128 * KIB, 0.040
    assert SIZE / seconds(PathSpec(10e6, trip / 2, queue=1e6), cap=cap) > 0.9 * cap / trip
