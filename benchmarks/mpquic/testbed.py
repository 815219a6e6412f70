"""What is played between real kernels, over the links of a testbed, and by which party.

A run has a testbed and two processes of its own (`benchmarks.mpquic.ends`), and leaves nothing behind however it ends.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.links.stage import serving
from benchmarks.mpquic import ends
from benchmarks.mpquic.cells import Cell, Outcome, Route, Setup
from benchmarks.mpquic.stage import Unfinished, certificates
from multi.errors import MultiError
from multi.lab.engines.links import MBIT, DatagramLinkSpec
from multi.lab.testbed import Direction, LinkSpec, Testbed, TestbedError, TestbedNotAllowed

__all__ = ["KERNEL", "Fetch", "Party", "Rate", "UrgentOnTestbed", "why_not"]

PORT = 7780
LIMIT = 60.0  # seconds
KERNEL = Setup("kernel")
SETTLED = 2.0  # seconds of which a rate knows nothing
TITLES = {"tcp": "TCP", "mptcp": "MPTCP", "quic": "QUIC", "mpquic": "multipath QUIC"}


def why_not() -> str:
    """What stands in the way of a testbed here; empty if nothing does."""
    try:
        with Testbed([_link(0, (DatagramLinkSpec(MBIT, 0.001, 10_000),) * 2)]):
            return ""
    except TestbedNotAllowed as error:
        return str(error)


def _link(index: int, route: Route) -> LinkSpec:
    up, down = map(_direction, route)
    return LinkSpec(f"path{index}", f"path{index}", down, up)


def _direction(link: DatagramLinkSpec) -> Direction:
    jitter = link.jitter * 1e3 / 2
    return Direction(link.rate / MBIT, link.delay * 1e3 + jitter, jitter, link.loss, queue_bytes=link.queue)


@dataclass(frozen=True, slots=True)
class Party:
    """Who plays: a session of `multi` over `quic` or `mpquic`, or the kernel's `tcp` or `mptcp` with TLS."""

    transport: str
    setup: Setup = KERNEL
    paths: tuple[int, ...] = (0, 1)

    def __str__(self) -> str:
        title = TITLES[self.transport]
        if self.transport == "quic" and len(self.paths) > 1:
            title = f"{len(self.paths)} connections of QUIC"
        where = "" if len(self.paths) > 1 else f", path {self.paths[0] + 1}"
        return f"{title}{where}: {self.setup.name}"

    def cell(self, figure: str, what: str, play: TestbedPlay) -> Cell:
        row = f"{self.transport} {'+'.join(str(path + 1) for path in self.paths)}, {what}"
        return Cell(figure, row, replace(play, transport=self.transport, paths=self.paths), self.setup)


@dataclass(frozen=True, slots=True, kw_only=True)
class TestbedPlay(ABC):
    """Links, and who uses which of them."""

    routes: tuple[Route, ...]
    transport: str = "mpquic"
    paths: tuple[int, ...] = (0, 1)

    def run(self, setup: Setup, seed: int) -> Outcome:
        """Raises Unfinished."""
        try:
            return asyncio.run(self._run(setup, seed))
        except (TestbedError, MultiError, OSError, TimeoutError, EOFError) as error:
            raise Unfinished(f"{type(error).__name__}: {error}") from error

    async def _run(self, setup: Setup, seed: int) -> Outcome:
        links = [_link(index, route) for index, route in enumerate(self.routes)]
        kernel = self.transport if setup == KERNEL else ""
        congestion = setup.congestion if kernel else ""
        with ExitStack() as stack:
            testbed = stack.enter_context(
                Testbed(links, congestion=congestion, mptcp=self.transport == "mptcp", seed=seed)
            )
            listening = json.dumps(self._listening(setup))
            stack.enter_context(serving(testbed.server, ["-m", ends.__name__, kernel, listening]))
            return await self.played(testbed, setup)

    @abstractmethod
    async def played(self, testbed: Testbed, setup: Setup) -> Outcome:
        """What came of it, between the client and a server that answers."""

    def way(self, testbed: Testbed, setup: Setup, paths: Sequence[int] = ()) -> ends.Way:
        """How the client gets there over `paths`, all of its own if there are none."""
        names = [f"path{index}" for index in paths or self.paths]
        over = [[self.transport, "ipv4", names if len(names) > 1 else names[0]]]
        if self.transport == "quic":
            over = [["quic", "ipv4", name] for name in names]
        config = self._common(setup) | {
            "connection_priority": over,
            "multi_config": {"connect": "par"},
            "remote_host": testbed.server.address(),
            "remote_port": PORT,
            "interfaces": testbed.interface_kinds,
            "ssl_config": {"ca": str(certificates() / "ca.pem"), "server_name": "localhost"},
        }
        return ends.Way(config, self.transport if setup == KERNEL else "", names[0])

    def _listening(self, setup: Setup) -> dict[str, Any]:
        made = certificates()
        return self._common(setup) | {
            "listen": {"host": "::", "port": PORT, "transports": [self.transport]},
            "ssl_config": {"cert": str(made / "server-cert.pem"), "key": str(made / "server-key.pem")},
        }

    def _common(self, setup: Setup) -> dict[str, Any]:
        if setup == KERNEL:
            return {}
        engine = {"engine": setup.engine, "congestion": setup.congestion}
        return {f"{self.transport}_config": engine | dict(setup.settings)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetch(TestbedPlay):
    """Files are downloaded, job by job over a connection of its own.

    Values: seconds of each job by its name, from the opening to the last byte; `MB N` over path N in all.
    """

    jobs: tuple[tuple[str, tuple[int, ...]], ...]
    """Names, and the bytes of the files of each; they are asked for together, as streams where there are such."""

    async def played(self, testbed: Testbed, setup: Setup) -> Outcome:
        sizes = [files for _, files in self.jobs]
        # What is sent before is not to wait in the queue of a slow second path.
        ways = self.way(testbed, setup), self.way(testbed, setup, self.paths[:1])
        seconds: list[float] = await testbed.client.run_python(ends.downloads, *ways, sizes, LIMIT)
        values = {name: each for (name, _), each in zip(self.jobs, seconds, strict=True)}
        for index, link in enumerate(testbed.links.values()):
            values[f"MB {index}"] = link.statistics().down.bytes / 1e6
        return Outcome(values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate(TestbedPlay):
    """Bulk for so many seconds, over all paths in one connection, or in groups that each have one, all at once.

    Values of group N: `mbps N` from `SETTLED` on. With one group that sends, `queue` and `longest queue`, seconds of
    its first path from then on. Series, each half second: `mbps N`, and `queue`.
    """

    seconds: float
    down: bool = False
    groups: tuple[tuple[int, ...], ...] = ()

    async def played(self, testbed: Testbed, setup: Setup) -> Outcome:
        queue: list[tuple[float, float]] = []
        ways = [self.way(testbed, setup, group) for group in self.groups or (self.paths,)]
        watching = asyncio.create_task(self._watch(testbed, queue))
        try:
            found: list[tuple[float, list[int]]] = await testbed.client.run_python(
                ends.rates, ways, self.seconds, self.down
            )
        finally:
            watching.cancel()
        first = round(SETTLED / ends.SAMPLE)
        series = {
            f"mbps {index}": [size * 8e-6 / ends.SAMPLE for size in bins] for index, (_, bins) in enumerate(found)
        }
        values = {name: statistics.fmean(rates[first:]) for name, rates in series.items()}
        if not self.down and not self.groups:
            began, bins = found[0]
            # The watch begins before there is a connection, and ends when the process that had it does.
            until = [began + ends.SAMPLE * (index + 1) for index in range(len(bins))]
            there = [[size for at, size in queue if at <= end][-1] for end in until]
            values |= {"queue": statistics.median(there[first:]), "longest queue": max(there[first:])}
            series["queue"] = there
        return Outcome(values, series)

    async def _watch(self, testbed: Testbed, queue: list[tuple[float, float]]) -> None:
        """Note when there was how much in the queue of the first path, in seconds."""
        link = testbed.links[f"path{self.paths[0]}"]
        while True:
            await asyncio.sleep(ends.SAMPLE)
            queue.append((time.monotonic(), link.statistics().up.queue_ms / 1e3))


@dataclass(frozen=True, slots=True, kw_only=True)
class UrgentOnTestbed(TestbedPlay):
    """During a download a kilobyte is asked for, again and again: on a stream of its own, or in order with the rest.

    Values: `median` and `worst` delay, seconds from the request to the last byte of the kilobyte. Series: `delays`.
    """

    size: int
    in_order: bool = False

    async def played(self, testbed: Testbed, setup: Setup) -> Outcome:
        delays: list[float] = await testbed.client.run_python(
            ends.urgent, self.way(testbed, setup), self.size, self.in_order, LIMIT
        )
        return Outcome({"median": statistics.median(delays), "worst": max(delays)}, {"delays": delays})
