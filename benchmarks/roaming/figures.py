"""What the records of a roaming measurement say: gaps, goodput, round-trip times, who carried what. Pure."""

from __future__ import annotations

import statistics
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from itertools import pairwise

from benchmarks.roaming.end import EndRecord, Sample
from benchmarks.roaming.stage import SessionRun

__all__ = [
    "Figure",
    "carried",
    "carries_again",
    "continues",
    "faults",
    "gap",
    "goodput",
    "goodput_line",
    "late",
    "reinjected",
    "round_trip",
    "suspicions",
    "undisturbed_gap",
]

NETWORKS = {"wifi": ("10.77.1.", "fd77:1:"), "5g": ("10.77.2.", "fd77:2:")}
"""How the client's addresses on a link begin; the server knows connections by these."""

CARRIES = 64 * 1024  # bytes of payload; a keep-alive or a handshake alone is not "carries data"
BIN = 0.1  # seconds of the goodput line


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value and what was promised. Without a bound it is reported only."""

    name: str
    value: float | None
    """None where the run did not come to it: that breaks the promise."""
    unit: str
    bound: float | None = None
    at_most: bool = True

    @property
    def held(self) -> bool:
        return self.bound is None or (self.value is not None and self._excess <= 0)

    @property
    def short_by(self) -> float | None:
        """How far the promise was missed, in its unit; 0 when it was held, None when nothing was measured."""
        if self.bound is None:
            return 0.0
        return None if self.value is None else max(0.0, self._excess)

    @property
    def _excess(self) -> float:
        assert self.value is not None
        assert self.bound is not None
        return self.value - self.bound if self.at_most else self.bound - self.value


def gap(record: EndRecord, start: float, end: float) -> float:
    """Longest time between two reads any part of which lies in [start, end].

    A gap that is open at `end` counts up to there.
    """
    times = record.read_at
    first, last = max(0, bisect_left(times, start) - 1), bisect_right(times, end)
    edges = [*times[first:last], times[last] if last < len(times) else end]
    return max((after - before for before, after in pairwise(edges)), default=end - start)


def undisturbed_gap(record: EndRecord, start: float, end: float) -> float:
    """Longest time between two reads that both lie in [start, end]."""
    times = record.read_at
    inside = times[bisect_left(times, start) : bisect_right(times, end)]
    return max((after - before for before, after in pairwise(inside)), default=end - start)


def goodput(record: EndRecord, start: float, end: float) -> float:
    """Mbit/s read in [start, end]."""
    first, last = bisect_left(record.read_at, start), bisect_right(record.read_at, end)
    return sum(record.read_sizes[first:last]) * 8 / 1e6 / (end - start) if end > start else 0.0


def goodput_line(record: EndRecord, start: float, end: float) -> list[float]:
    """Mbit/s of every 0.1 s from `start` on."""
    bins = [0] * max(0, int((end - start) / BIN))
    for at, size in zip(record.read_at, record.read_sizes, strict=True):
        index = int((at - start) / BIN)
        if at >= start and index < len(bins):
            bins[index] += size
    return [round(size * 8 / 1e6 / BIN, 1) for size in bins]


def continues(record: EndRecord, since: float) -> float | None:
    """Seconds from `since` until something was read; None if nothing ever was."""
    index = bisect_left(record.read_at, since)
    return record.read_at[index] - since if index < len(record.read_at) else None


def carries_again(record: EndRecord, link: str, since: float) -> float | None:
    """Seconds from `since` until connections over a link have carried data to this end."""
    counted: dict[int, int] = {}
    base: dict[int, int] = {}
    for sample in record.samples:
        for connection_id, payload in _payloads(sample, link).items():
            if sample.at <= since:
                base[connection_id] = payload
            counted[connection_id] = payload
        grown = sum(payload - base.get(c, 0) for c, payload in counted.items())
        if sample.at > since and grown >= CARRIES:
            return sample.at - since
    return None


def carried(record: EndRecord, link: str, start: float, end: float) -> float:
    """Mbit/s that connections over a link have carried to this end in [start, end], repeats included."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for sample in record.samples:
        if sample.at > end:
            break
        last |= _payloads(sample, link)
        if sample.at <= start:
            first = dict(last)
    return sum(payload - first.get(c, 0) for c, payload in last.items()) * 8 / 1e6 / (end - start)


def _payloads(sample: Sample, link: str) -> dict[int, int]:
    return {c.id: c.payload_received for c in sample.connections if _over(link, c.local, c.remote)}


def _over(link: str, local: str, remote: str) -> bool:
    return any(network in address for network in NETWORKS[link] for address in (local, remote))


def round_trip(record: EndRecord, link: str, start: float, end: float) -> float | None:
    """Median of what `ConnectionInfo.rtt` was over a link in [start, end]."""
    rtts = [
        c.rtt
        for sample in record.samples
        if start <= sample.at <= end
        for c in sample.connections
        if c.state == "active" and c.rtt > 0 and _over(link, c.local, c.remote)
    ]
    return statistics.median(rtts) if rtts else None


def reinjected(record: EndRecord, start: float, end: float) -> int:
    """Bytes this end sent again in [start, end]."""
    values = [sample.reinjected for sample in record.samples if start - 0.05 <= sample.at <= end]
    return values[-1] - values[0] if values else 0


def suspicions(run: SessionRun, start: float = 0.0) -> list[str]:
    """Every time an end thought a connection had fallen silent before the sender was stopped, in words."""
    found = []
    for name, record in (("client", run.client), ("server", run.server)):
        for happening in record.happenings:
            if happening.state == "suspect" and start <= happening.at <= run.stopped:
                since = happening.at - run.client.opened
                which = f"connection {happening.connection} ({happening.local} - {happening.remote})"
                found.append(f"{name} at {since:.2f} s: {which}: {happening.text}")
    return found


def late(run: SessionRun, start: float, end: float) -> float:
    """The longest time the sampler of either end was kept from running in [start, end]."""
    records = (run.client, run.server)
    return max((by for r in records for at, by in r.late if start <= at <= end), default=0.0)


def faults(run: SessionRun) -> list[str]:
    """Whatever makes a run fail, however fast it was."""
    found = [f"{name}: {r.error}" for name, r in (("client", run.client), ("server", run.server)) if r.error]
    sent, receiving = run.sending.sent, run.receiving
    if receiving.damaged_at is not None:
        found.append(f"bytes differ from offset {receiving.damaged_at} on")
    if receiving.received != sent or not sent:
        found.append(f"{receiving.received} bytes arrived of {sent}")
    return found
