"""Metrics of a server in a `prometheus_client` registry: `REGISTRY.register(ServerCollector(server))`.

They are those of `control.metrics_port` (docs/operations.md), for a program that has a registry of its own already.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from multi import Server, ServerStats
from multi.asyncio.metrics import metric_families

TIMEOUT = 5.0  # seconds that a scrape in another thread waits for the server's event loop


class ServerCollector(Collector):
    """Asks for one snapshot with every scrape, which may come in the server's event loop or in any other thread."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def describe(self) -> Iterator[Metric]:
        """The names, for the registry."""
        return _metrics(ServerStats())

    def collect(self) -> Iterator[Metric]:
        """All metrics now. Raises TimeoutError in another thread when the server's event loop does not come by."""
        return _metrics(self._stats())

    def _stats(self) -> ServerStats:
        loop = self._server.get_loop()
        if not loop.is_running() or _running_loop() is loop:
            return self._server.stats()
        return asyncio.run_coroutine_threadsafe(self._snapshot(), loop).result(TIMEOUT)

    async def _snapshot(self) -> ServerStats:
        return self._server.stats()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _metrics(stats: ServerStats) -> Iterator[Metric]:
    for family in metric_families(stats):
        metric = Metric(family.name.removesuffix("_total"), family.help, family.kind)
        for labels, value in family.samples:
            metric.add_sample(family.name, dict(labels), value)
        yield metric
