"""The snapshot of a server in Prometheus' text format, version 0.0.4, without its library.

Labels have few values whatever peers do: there is no session, address or key in them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from multi.asyncio.stats import ServerStats
from multi.protocol.state import SessionState

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
COUNTED = {
    "sent_payload_bytes": ("bytes_sent", "Payload sent, repeats included."),
    "received_bytes": ("bytes_received", "Bytes received, headers included."),
    "received_payload_bytes": ("payload_received", "Payload received, duplicates included."),
    "reinjected_bytes": ("reinjected", "Payload this side sent again."),
}
"""Counters of each transport: the field of `TransportStats`, and what it is."""


@dataclass(frozen=True, slots=True)
class MetricFamily:
    """A metric and its samples."""

    name: str
    kind: Literal["counter", "gauge"]
    help: str
    samples: tuple[tuple[Mapping[str, str], float], ...]
    """(labels, value)"""


def metric_families(stats: ServerStats) -> Iterator[MetricFamily]:
    """All metrics of a server; names of counters end with `_total`."""
    living = {state.value: 0 for state in SessionState if state is not SessionState.CLOSED} | dict(stats.sessions)
    yield _gauge("uptime_seconds", "Seconds since the server was made.", stats.uptime)
    yield _gauge("accepting", "1 while new sessions are taken.", stats.accepting)
    yield _family("sessions", "gauge", "Living sessions by state.", _by("state", living))
    yield _family(
        "sessions_opened_total", "counter", "Sessions the application was given.", _one(stats.sessions_opened)
    )
    ended = "Sessions of those that have ended, by cause."
    yield _family("sessions_ended_total", "counter", ended, _by("cause", stats.sessions_ended))
    yield _gauge("arrivals", "Connections that have not said which session they want.", stats.arrivals)
    yield _gauge("streams", "Streams that peers may still send on.", stats.streams)
    yield _gauge("memory_bytes", "What limits.max_memory bounds.", stats.memory)
    yield _family("limit_hits_total", "counter", "How often a limit was hit.", _by("limit", stats.limits_hit))

    transports = stats.transports.items()
    states = [({"transport": name} | labels, n) for name, t in transports for labels, n in _by("state", t.connections)]
    yield _family("connections", "gauge", "Living connections by transport and state.", states)
    causes = [({"transport": name} | labels, n) for name, t in transports for labels, n in _by("cause", t.ended)]
    yield _family("connections_ended_total", "counter", "Connections that have ended, by cause.", causes)
    in_flight = [({"transport": name}, t.in_flight) for name, t in transports]
    yield _family("in_flight_bytes", "gauge", "Payload sent and not acknowledged by the session.", in_flight)
    for name, (attribute, text) in COUNTED.items():
        samples = [({"transport": transport}, getattr(t, attribute)) for transport, t in transports]
        yield _family(f"{name}_total", "counter", text, samples)


def exposition(stats: ServerStats) -> str:
    """What a scrape gets."""
    lines = []
    for family in metric_families(stats):
        lines += [f"# HELP {family.name} {family.help}", f"# TYPE {family.name} {family.kind}"]
        for labels, value in family.samples:
            shown = ",".join(f'{name}="{_escaped(text)}"' for name, text in labels.items())
            lines.append(f"{family.name}{{{shown}}} {value}" if shown else f"{family.name} {value}")
    return "\n".join(lines) + "\n"


def _family(
    name: str, kind: Literal["counter", "gauge"], text: str, samples: Iterable[tuple[Mapping[str, str], float]]
) -> MetricFamily:
    return MetricFamily(f"multi_{name}", kind, text, tuple((labels, value) for labels, value in samples))


def _gauge(name: str, text: str, value: float) -> MetricFamily:
    return _family(name, "gauge", text, _one(value + 0))


def _one(value: float) -> list[tuple[dict[str, str], float]]:
    return [({}, value)]


def _by(label: str, counts: Mapping[str, int]) -> list[tuple[dict[str, str], int]]:
    return [({label: name}, count) for name, count in counts.items()]


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
