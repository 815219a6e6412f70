"""What is kept of a roaming demo: reads, samples and events while it runs; the trace and the summary afterwards.

The trace is JSON and everything the picture needs: the fields of `Outcome`, `version`, `seconds`, `average_mbps`,
`peak_mbps`, `arrived_twice` (bytes), the names of the `networks`, and lists of

    connections  id, transport, interface, network, bytes, states (each a time, a state and a reason)
    story        t, key, title, what, longest_gap (seconds without data in the 2 s after it or until the next one)
    events       t, text
    samples      t, delivered, bytes by connection id (payload received so far, repeats included), rtt_ms by id

Times are seconds since the recorder was made.
"""

from __future__ import annotations

import json
from array import array
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from rich.filesize import decimal

from multi.asyncio.info import ConnectionInfo

GAP_WINDOW = 2.0  # seconds after an event in which the longest gap is looked for
SAMPLE = 0.1  # seconds between samples
PEAK_SAMPLES = 10  # the peak rate is the average of so many
FORMAT = 1  # version of the trace
GAP_NOTES = {"start": "  (until the first byte)", "total_loss": "  (until the first byte after it)"}


Recorded = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How it ended. Bytes."""

    file: str
    file_size: int
    size: int
    """What has come: less than the file when the time was over."""
    sha256: str
    """Of so much of the file that is served."""
    received_sha256: str
    verified: bool
    sent_again: int
    """By the server's session."""
    speed: float


class Recorder:
    """Takes what happens; `networks` gives interfaces names, in the order in which they are shown."""

    def __init__(self, clock: Callable[[], float], networks: Mapping[str, str]) -> None:
        self._clock = clock
        self._started = clock()
        self._names = dict(networks)
        self.networks = list(self._names.values())
        self._reads = array("d")
        self._states: dict[int, list[tuple[float, str, str]]] = {}
        self._infos: dict[int, ConnectionInfo] = {}
        self.delivered = 0
        """Bytes the application has read."""
        self.finished_at: float | None = None
        self.marks: list[Recorded] = []
        self.events: list[tuple[float, str]] = []
        self.samples: list[Recorded] = []

    def now(self) -> float:
        return self._clock() - self._started

    def read(self, size: int) -> None:
        """The application has got `size` bytes of the file."""
        self._reads.append(self.now())
        self.delivered += size

    def finish(self) -> None:
        """The application has got everything."""
        self.finished_at = self.now()

    def mark(self, t: float, key: str, title: str, what: str) -> None:
        """A step of the story happened at `t`."""
        self.marks.append({"t": round(t, 3), "key": key, "title": title, "what": what, "longest_gap": 0.0})

    def event(self, text: str) -> None:
        self.events.append((self.now(), text))

    def state_changed(self, connection: int, state: str, reason: str) -> None:
        self._states.setdefault(connection, []).append((self.now(), state, reason))

    def sample(
        self,
        connections: Sequence[ConnectionInfo],
        bytes_of: Callable[[ConnectionInfo], int] = lambda connection: connection.payload_received,
    ) -> None:
        self._infos |= {info.id: info for info in connections}
        self.samples.append(
            {
                "t": round(self.now(), 4),
                "delivered": self.delivered,
                "bytes": {str(c.id): bytes_of(c) for c in connections},
                "rtt_ms": {str(c.id): round(c.rtt * 1000, 2) for c in connections if c.rtt},
            }
        )

    def longest_gap(self, start: float, end: float) -> float:
        """Longest time without a read that began before `end`, counted from `start` at the earliest."""
        index = bisect_right(self._reads, start)
        longest, last = 0.0, start
        for t in self._reads[index:]:
            longest = max(longest, t - last)
            last = t
            if t >= end:
                break
        return longest

    def longest_pause(self) -> float:
        """Longest time between two reads."""
        return self.longest_gap(self._reads[0], self._reads[-1]) if self._reads else 0.0

    def connections(self) -> list[Recorded]:
        return [
            {
                "id": info.id,
                "transport": info.transport,
                "interface": info.interface,
                "network": self._names.get(info.interface, info.interface),
                "bytes": info.payload_received,
                "states": self._states.get(info.id, []),
            }
            for info in sorted(self._infos.values(), key=lambda info: info.id)
        ]


def write_trace(path: Path, outcome: Outcome, recorder: Recorder) -> Recorded:
    """Put everything together, write it to `path` and return it."""
    seconds = recorder.finished_at or recorder.now()
    connections = recorder.connections()
    ends = [mark["t"] for mark in recorder.marks[1:]] + [seconds]
    for mark, end in zip(recorder.marks, ends, strict=True):
        mark["longest_gap"] = round(recorder.longest_gap(mark["t"], min(mark["t"] + GAP_WINDOW, end)), 4)
    arrived_twice = max(0, sum(c["bytes"] for c in connections) - outcome.size)
    trace = asdict(outcome) | {
        "version": FORMAT,
        "seconds": round(seconds, 3),
        "average_mbps": round(outcome.size * 8e-6 / seconds, 1),
        "peak_mbps": round(_peak(recorder.samples) * 8e-6, 1),
        # The server says it when it has written the last byte, and may send some again after that.
        "sent_again": max(outcome.sent_again, arrived_twice),
        "arrived_twice": arrived_twice,
        "networks": recorder.networks,
        "connections": connections,
        "story": recorder.marks,
        "events": [{"t": round(t, 3), "text": text} for t, text in recorder.events],
        "samples": recorder.samples,
    }
    path.write_text(json.dumps(trace, indent=1) + "\n")
    return trace


def _peak(samples: Sequence[Recorded]) -> float:
    """Best rate over a second, of what the application read. Bytes per second."""
    seconds = zip(samples, islice(samples, PEAK_SAMPLES, None), strict=False)
    return max(((b["delivered"] - a["delivered"]) / (b["t"] - a["t"]) for a, b in seconds), default=0.0)


def summary_lines(trace: Recorded) -> list[str]:
    """The end of the demo, for people."""
    size, carried = trace["size"], sum(c["bytes"] for c in trace["connections"])
    lines = ["Summary"]
    if trace["verified"]:
        of = "" if size == trace["file_size"] else f" of {trace['file_size'] / 1e6:.0f}"
        lines.append(f"  {size / 1e6:.0f}{of} MB delivered and verified: SHA-256 {trace['sha256']}")
    else:
        lines.append(f"  NOT verified: SHA-256 {trace['received_sha256']} arrived instead of {trace['sha256']}")
    lines.append(
        f"  in {trace['seconds']:.1f} s: {trace['average_mbps']:.0f} Mbit/s on average, "
        f"{trace['peak_mbps']:.0f} Mbit/s in the best second"
    )
    for network in trace["networks"]:
        part = sum(c["bytes"] for c in trace["connections"] if c["network"] == network)
        ids = [c["id"] for c in trace["connections"] if c["network"] == network and c["bytes"]]
        lines.append(
            f"  {network} carried {decimal(part)} ({100 * part / carried if carried else 0:.0f} %), "
            + ("on one connection" if len(ids) == 1 else f"on {len(ids)} connections, one after the other")
        )
    lines.append(
        f"  sent again: {decimal(trace['sent_again'])}; "
        f"of this {decimal(trace['arrived_twice'])} arrived twice and was dropped"
    )
    lines.append("  longest time without data for the application, in the 2 s after:")
    for mark in trace["story"]:
        gap = f"{mark['longest_gap'] * 1000:6.0f} ms{GAP_NOTES.get(mark['key'], '')}"
        lines.append(f"    {mark['t']:5.1f} s  {mark['title']:18} {gap}")
    return lines
