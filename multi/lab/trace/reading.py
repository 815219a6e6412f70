"""Reads the trace of a session.

What has been cut off, as by the end of its process, is read up to there; records that make no sense are counted and
passed over. A file that is no trace of `multi` is a TraceError.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from math import isfinite, nan
from pathlib import Path
from typing import Any, BinaryIO

from multi.asyncio.tracing import FACTS, RECORD_SEPARATOR, SCHEMA
from multi.errors import MultiError
from multi.types import host_of

NAMESPACE = "multi:"
PIECE = 1 << 20  # bytes read at a time
MAX_RECORD = 1 << 20  # bytes; ours have a few hundred
MAX_TIME = 10 * 366 * 86400.0  # seconds; a time beyond is no time of a session

Data = Mapping[str, Any]


class TraceError(MultiError):
    """A file that is no trace of this program's."""


@dataclass(frozen=True, slots=True)
class Note:
    """An event."""

    t: float
    """Seconds since the trace began."""
    name: str
    """Without the namespace."""
    connection: str
    """The id of the connection it is about; empty = of the session."""
    data: Data

    @property
    def text(self) -> str:
        """What it says, for people."""
        return str(self.data.get("text") or self.data.get("reason") or self.name.replace("_", " "))


@dataclass(slots=True)
class Figures:
    """What moved, look by look: only looks that saw something of the connection or session are here. Seconds, bytes."""

    begins: array[float] = field(default_factory=lambda: array("d"))
    """What a look saw has happened since then,"""
    ends: array[float] = field(default_factory=lambda: array("d"))
    """and until then."""
    sent: array[int] = field(default_factory=lambda: array("q"))
    received: array[int] = field(default_factory=lambda: array("q"))
    rtts: array[float] = field(default_factory=lambda: array("d"))
    """nan where it is not known."""
    blocked: float = 0.0
    """Seconds for which looks have found that only the peer's windows kept something from being sent."""
    last: dict[str, Any] = field(default_factory=dict)
    """Every figure as of the last look."""

    def add(self, begin: float, end: float, data: Data) -> None:
        """One look. Raises ValueError, before anything is changed, for figures that are none."""
        now = {**self.last, **data}
        sent, received = (_count(now, name) - _count(self.last, name) for name in ("bytes_sent", "payload_received"))
        _count(now, "reinjected")
        rtt = _number(now.get("rtt", 0.0))
        self.begins.append(begin)
        self.ends.append(end)
        self.sent.append(max(0, sent))
        self.received.append(max(0, received))
        self.rtts.append(rtt or nan)
        self.blocked += (end - begin) * (now.get("window_blocked") is True)
        self.last = now


@dataclass(slots=True)
class ConnectionTrace:
    """A connection."""

    id: str
    facts: dict[str, Any] = field(default_factory=dict)
    """As `ConnectionInfo` has them: transport, interface, local, remote and so on."""
    states: list[Note] = field(default_factory=list)
    """Each change of its state."""
    figures: Figures = field(default_factory=Figures)

    @property
    def over(self) -> str:
        """Where it goes out: its interface, or the local address."""
        return str(self.facts.get("interface") or host_of(str(self.facts.get("local", ""))))


@dataclass(slots=True)
class SessionTrace:
    """All of one."""

    session: str
    side: str
    """client or server."""
    started: str
    """RFC 3339."""
    seconds: float = 0.0
    """Time of the last record."""
    figures: Figures = field(default_factory=Figures)
    """Of the session."""
    connections: dict[str, ConnectionTrace] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)
    """All events, in order."""
    ended: Note | None = None
    """None = the process ended first, or still runs."""
    cut_off: bool = False
    """The last record is not whole."""
    full: bool = False
    """The file had become as large as it may be: something is missing."""
    unreadable: int = 0
    """Records that make no sense."""

    def connection(self, key: str) -> ConnectionTrace:
        return self.connections.setdefault(key, ConnectionTrace(key))


def read_trace(path: Path) -> SessionTrace:
    """Read a trace. Raises TraceError for what is none, OSError for what cannot be read."""
    with path.open("rb") as file:
        first = file.read(1)
        if not first:
            raise TraceError(f"{path} is empty")
        if first != RECORD_SEPARATOR:
            raise TraceError(f"{path} is no trace: it does not begin as a sequence of JSON texts (RFC 7464)")
        records = _records(file)
        trace = _begun(path, next(records, b""))
        looked_at = 0.0
        for text in records:
            whole = text.endswith(b"\n")
            try:
                looked_at = _add(trace, json.loads(text), looked_at)
            except (ValueError, TypeError, KeyError, RecursionError, OverflowError):
                trace.unreadable += whole
                trace.cut_off = not whole
    return trace


def _records(file: BinaryIO) -> Iterator[bytes]:
    """What stands between the separators; of a record that is too long only the beginning."""
    kept = b""
    for piece in chain(iter(lambda: file.read(PIECE), b""), [RECORD_SEPARATOR]):
        *whole, kept = (kept + piece).split(RECORD_SEPARATOR)
        yield from whole
        kept = kept[:MAX_RECORD]


def _begun(path: Path, header: bytes) -> SessionTrace:
    try:
        trace = json.loads(header)["trace"]
        schemas, common = map(str, trace["event_schemas"]), trace["common_fields"]
        ours = [schema for schema in schemas if schema.partition("#")[0] == SCHEMA.partition("#")[0]]
        started = str(common.get("reference_time", {}).get("wall_clock_time", ""))
        begun = SessionTrace(
            str(common.get("group_id", "")), str(trace.get("vantage_point", {}).get("type", "")), started
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        what = "is no trace of multi" if header.endswith(b"\n") else "is cut off in its first record"
        raise TraceError(f"{path} {what}") from None
    if not ours:
        raise TraceError(f"{path} is no trace of multi, but a qlog file of another program")
    if SCHEMA not in ours:
        raise TraceError(f"{path} was written by another version of multi, in a form that this one does not know")
    return begun


def _add(trace: SessionTrace, record: Any, looked_at: float) -> float:
    """Take up one record; returns when figures were looked at last. Raises ValueError and others for nonsense."""
    t, name, data, path = _number(record["time"]) / 1000, record["name"], record["data"], record.get("path", "")
    if not (0 <= t <= MAX_TIME and isinstance(name, str) and isinstance(data, dict) and isinstance(path, str)):
        raise ValueError
    name = name.removeprefix(NAMESPACE)
    if name == "session_sampled":
        begin = _number(data.pop("since", looked_at * 1000)) / 1000
        trace.figures.add(min(begin, t), t, data)
        looked_at = t
    elif name == "connection_sampled":
        begins = trace.figures.begins  # its session's look stands before it
        trace.connection(path).figures.add(begins[-1] if begins else 0.0, t, data)
    else:
        note = Note(t, name, path, data)
        if name == "connection_changed":
            connection = trace.connection(path)
            connection.states.append(note)
            connection.facts |= {fact: data[fact] for fact in FACTS if fact in data}
        trace.full = trace.full or name == "trace_full"
        trace.ended = note if name == "session_ended" else trace.ended
        trace.notes.append(note)
    trace.seconds = max(trace.seconds, t)
    return looked_at


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise ValueError
    return float(value)


def _count(data: Data, name: str) -> int:
    value = data.get(name, 0)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 62:
        raise ValueError
    return value
