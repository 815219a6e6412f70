"""The collector for `prometheus_client`, with the real library: in the server's event loop, and from its own thread."""

from __future__ import annotations

import asyncio
from pathlib import Path
from urllib.request import urlopen

import pytest

import multi
from multi.asyncio.metrics import exposition
from tests.integration.support import Inbox, Way, run, until

prometheus = pytest.importorskip("prometheus_client", reason="prometheus_client is not installed: it was NOT tested")

SIZE = 100_000
PAYLOAD = "multi_received_payload_bytes_total", frozenset({("transport", "tcp")})


def samples(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Every sample as the library reads it, but but how long the server is up."""
    from prometheus_client.parser import text_string_to_metric_families

    found = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {(s.name, frozenset(s.labels.items())): s.value for s in found if s.name != "multi_uptime_seconds"}


def test_a_registry_tells_what_the_server_tells() -> None:
    from multi.integrations.prometheus import ServerCollector

    async def scenario() -> None:
        inbox = Inbox()
        way = Way(Path())
        async with await multi.start_server(inbox.on_client, way.server()) as server:
            registry = prometheus.CollectorRegistry()
            registry.register(ServerCollector(server))
            with pytest.raises(ValueError, match="Duplicated timeseries"):
                registry.register(ServerCollector(server))
            _, writer = await multi.open_connection(way.client(server.port))
            theirs, _ = await inbox.next()
            writer.write(bytes(SIZE))
            await theirs.readexactly(SIZE)
            await until(lambda: server.stats().sessions.get("open") == 1)

            here = samples(prometheus.generate_latest(registry).decode())
            assert here[PAYLOAD] == SIZE
            assert here == samples(exposition(server.stats()))
            httpd, thread = prometheus.start_http_server(0, "127.0.0.1", registry)
            try:
                url = f"http://127.0.0.1:{httpd.server_port}/metrics"
                there = await asyncio.to_thread(lambda: urlopen(url).read().decode())
            finally:
                httpd.shutdown()
                httpd.server_close()
                thread.join()
            assert samples(there).keys() == here.keys()
            assert samples(there)[PAYLOAD] == SIZE
            writer.close()
            server.abort()
        assert samples(prometheus.generate_latest(registry).decode())["multi_accepting", frozenset()] == 0

    run(scenario())
