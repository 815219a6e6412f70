"""A transfer over a grid point in virtual time: two engines, and modelled kernels between them."""

from __future__ import annotations

import signal
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing import Pool

from benchmarks.grid.points import Path, Point
from multi.lab.sim.pair import CLEAR, Pair
from multi.lab.sim.path_model import PathSpec
from multi.lab.sim.wire import Route
from multi.protocol.payloads import Policy
from multi.protocol.settings import Protect, SessionSettings

__all__ = ["Run", "Task", "ideal_mbps", "transfer", "transfers"]

SIZE = 20_000_000  # bytes
LIMIT = 30.0  # virtual seconds; the throughput of a path that needs longer is known by then
MAX_EVENTS = 100_000_000
STEPS = 200  # of what arrived when: as many as there are half percents
CLIENT = SessionSettings(protect=Protect.NEVER, initial_window=1024 * 1024)  # as `multi.asyncio.settings` makes them


@dataclass(frozen=True, slots=True)
class Task:
    """What to transfer: `part` is a scheduler over all paths, or the number of one path alone, from 1."""

    point: Point
    part: str
    congestion: str
    seed: int = 1
    size: int = SIZE
    window: int = 0
    """Bytes that the receiver allows at most, of a stream and in all; 0 = as usual."""


@dataclass(frozen=True, slots=True)
class Run:
    """What came of it."""

    mbps: float
    seconds: float
    """From the request to the last byte."""
    reinjected: int
    """Bytes the session sent again."""
    arrivals: list[tuple[float, int]] = field(default_factory=list)
    """Seconds after the request, and the bytes there were by then, in steps; of a path alone."""


def routes(paths: Iterable[Path], congestion: str) -> list[Route]:
    """What the simulator needs to know of the paths."""
    specs = [PathSpec(p.rate, p.rtt / 2, p.loss, p.queue, congestion, jitter=p.jitter) for p in paths]
    return [Route(spec, spec, chance=place) for place, spec in enumerate(specs)]


def _limited(settings: SessionSettings, window: int) -> SessionSettings:
    """`settings` of an end whose windows are configured to be at most `window` bytes."""
    if not window:
        return settings
    begins = min(settings.initial_window, window)
    return replace(settings, initial_window=begins, max_stream_window=window, max_session_window=window)


def transfer(task: Task) -> Run:
    """The server sends, over connections that are all up before the clock starts."""
    alone = task.part.isdigit()
    there = routes(task.point.paths, task.congestion)
    used = [there[int(task.part) - 1]] if alone else there
    policy = Policy("adaptive" if alone else task.part)
    client, server = _limited(CLIENT, task.window), _limited(CLEAR, task.window)
    pair = Pair(used, seed=task.seed, client=client, server=server, policy=policy, watched=False)
    receiver, count = pair.client, len(used)
    opened = pair.until(
        lambda: pair.server is not None and len(pair.peer.active) == len(receiver.active) == count, 30.0
    )
    if not opened:
        raise AssertionError(f"{task}: the paths did not open")
    pair.run(0.3 + 2 * max(route.round_trip for route in used))
    start = pair.clock.now
    receiver.write(b"%d\n" % task.size)
    pair.until(lambda: pair.peer.got() > 0, LIMIT)
    pair.peer.write(bytes(task.size))
    arrivals = [(0.0, 0)]

    def all_there() -> bool:
        got = receiver.got()
        if got - arrivals[-1][1] >= task.size / STEPS or got >= task.size:
            arrivals.append((pair.clock.now - start, got))
        return got >= task.size

    pair.clock.run_until(all_there, LIMIT, max_events=MAX_EVENTS)
    seconds = pair.clock.now - start
    reinjected = sum(c.reinjected for c in pair.peer.session.connections.values())
    return Run(receiver.got() * 8 / 1e6 / seconds, seconds, reinjected, arrivals if alone else [])


def ideal_mbps(alone: Sequence[Sequence[tuple[float, int]]], size: int) -> float:
    """The throughput of a transfer that is over as soon as the paths, each as it was alone, have brought `size` bytes.

    A path that begins slowly brings less of a short transfer than its mean rate says; no scheduler can send what
    its congestion control does not let through yet.
    """
    moments = sorted({moment for arrivals in alone for moment, _ in arrivals})
    before, had = 0.0, 0.0
    for moment in moments:
        have = sum(_got(arrivals, moment) for arrivals in alone)
        if have >= size:
            end = before + (moment - before) * (size - had) / (have - had)
            return size * 8 / 1e6 / end
        before, had = moment, have
    return had * 8 / 1e6 / before


def _got(arrivals: Sequence[tuple[float, int]], moment: float) -> float:
    """Bytes by then, between two steps in proportion."""
    after = bisect_right(arrivals, moment, key=lambda a: a[0])
    if after == len(arrivals):
        return arrivals[-1][1]
    (began, had), (ended, have) = arrivals[after - 1], arrivals[after]
    return had + (have - had) * (moment - began) / (ended - began)


def transfers(tasks: Sequence[Task], processes: int) -> Iterator[tuple[Task, Run]]:
    """All of them, in the order in which they end."""
    if processes < 2:
        yield from ((task, transfer(task)) for task in tasks)
        return
    with Pool(processes, signal.signal, (signal.SIGTERM, signal.SIG_DFL)) as pool:  # the pool ends them with it
        yield from pool.imap_unordered(_done, tasks)


def _done(task: Task) -> tuple[Task, Run]:
    return task, transfer(task)
