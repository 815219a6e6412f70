"""Makes traces for tests: a header and records, as `multi.asyncio.tracing` writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from multi.asyncio.tracing import SCHEMA

HEADER: dict[str, Any] = {
    "file_schema": "urn:ietf:params:qlog:file:sequential",
    "trace": {
        "vantage_point": {"type": "client"},
        "event_schemas": [SCHEMA],
        "common_fields": {"group_id": "5f1c" * 8, "reference_time": {"wall_clock_time": "2026-11-23T03:05:28.677Z"}},
    },
}


def record(content: object) -> bytes:
    return b"\x1e" + json.dumps(content).encode() + b"\n"


class Writer:
    """Times are seconds."""

    def __init__(self) -> None:
        self.content = record(HEADER)

    def note(self, t: float, name: str, connection: int | None = None, **data: object) -> None:
        path = {} if connection is None else {"path": str(connection)}
        self.content += record({"time": t * 1000, "name": f"multi:{name}", **path, "data": data})

    def state(self, t: float, connection: int, state: str, reason: str = "", **facts: object) -> None:
        self.note(t, "connection_changed", connection, state=state, reason=reason, cause="closed", **facts)

    def open(self, t: float, connection: int, interface: str) -> None:
        facts = {"transport": "tcp", "interface": interface, "local": "10.0.0.1:1", "remote": "192.0.2.1:7788"}
        self.state(t, connection, "active", **facts)

    def look(self, t: float, received: dict[int, int], since: float | None = None, rtt: float = 0.01) -> None:
        """What the connections have received so far."""
        more: dict[str, Any] = {} if since is None else {"since": since * 1000}
        total = sum(received.values())
        self.note(t, "session_sampled", bytes_sent=0, payload_received=total, scheduler="adaptive", **more)
        for connection, count in received.items():
            self.note(t, "connection_sampled", connection, bytes_sent=0, payload_received=count, rtt=rtt)

    def end(self, t: float) -> None:
        self.note(t, "session_ended", reason="the session is closed", cause="closed")

    def write(self, path: Path) -> Path:
        path.write_bytes(self.content)
        return path


def two_networks(path: Path) -> Path:
    """Ten seconds: WiFi carries 1 MB a second and dies at 5 s, 5G begins at 2 s and carries half of that."""
    trace = Writer()
    trace.open(0.0, 0, "wlan0")
    trace.open(2.0, 1, "wwan0")
    for n in range(1, 101):
        if n == 51:
            trace.state(5.0, 0, "suspect", "no progress")
            trace.note(5.0, "handover_changed", state="started", to="cellular", text="handover to cellular begins")
        if n == 71:
            trace.state(7.0, 0, "lost", "silent for too long")
        moved = {0: 100_000 * min(n, 50)} if n <= 50 else {}
        trace.look(n / 10, moved | ({1: 50_000 * (n - 20)} if n > 20 else {}))
    trace.state(10.0, 1, "closed", "the session is closed")
    trace.end(10.0)
    return trace.write(path)
