"""What a trace comes to: figures for each connection and the session, as JSON and as text."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from math import isnan
from statistics import median
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from multi.errors import printable
from multi.lab.trace.reading import ConnectionTrace, Figures, Note, SessionTrace
from multi.types import host_of

SHOWN = 20  # events at the beginning and as many at the end; JSON has all
PAUSE = 0.15  # seconds; what is shorter lies between two looks
ENDS = ("closed", "lost")
STATES = ("active", "suspect", "draining")  # in which a connection is up
HEADINGS = ("id", "over", "remote", "up", "sent", "received", "again", "rtt ms", "pause", "suspect", "ended")
RIGHT = {"sent", "received", "again", "pause", "suspect"}


def summary_of(trace: SessionTrace) -> dict[str, Any]:
    """For JSON. Seconds since the beginning of the trace, bytes; `rtt` in seconds."""
    figures = trace.figures.last
    return {
        "session": trace.session,
        "side": trace.side,
        "started": trace.started,
        "seconds": trace.seconds,
        "ended": _ended(trace.ended),
        "complete": trace.ended is not None and not (trace.cut_off or trace.full or trace.unreadable),
        "cut_off": trace.cut_off,
        "full": trace.full,
        "unreadable_records": trace.unreadable,
        "scheduler": figures.get("scheduler", ""),
        "window_blocked_seconds": round(trace.figures.blocked, 3),
        **_moved(trace.figures),
        "connections": [_connection(connection, trace.seconds) for connection in _ordered(trace)],
        "events": [
            {"t": note.t, "event": note.name, "connection": note.connection or None, "text": note.text}
            for note in trace.notes
        ],
    }


def _ordered(trace: SessionTrace) -> list[ConnectionTrace]:
    return sorted(trace.connections.values(), key=lambda connection: (len(connection.id), connection.id))


def _ended(note: Note | None) -> dict[str, Any] | None:
    return {"t": note.t, "cause": note.data.get("cause"), "reason": note.data.get("reason")} if note else None


def _moved(figures: Figures) -> dict[str, Any]:
    pause = longest_pause(figures)
    return {
        "bytes_sent": figures.last.get("bytes_sent", 0),
        "payload_received": figures.last.get("payload_received", 0),
        "reinjected": figures.last.get("reinjected", 0),
        "longest_pause": {"t": pause[0], "seconds": pause[1]} if pause else None,
    }


def _connection(connection: ConnectionTrace, seconds: float) -> dict[str, Any]:
    rtts = [rtt for rtt in connection.figures.rtts if not isnan(rtt)]
    ended = next((note for note in connection.states if note.data.get("state") in ENDS), None)
    up = spans(connection, seconds)
    return {
        "id": connection.id,
        **connection.facts,
        "role": connection.figures.last.get("role"),
        "opened": up[0][0] if up else None,
        "up_seconds": round(sum(end - begin for begin, end, _ in up), 3),
        "ended": _ended(ended),
        **_moved(connection.figures),
        "rtt": {"min": min(rtts), "median": median(rtts), "max": max(rtts)} if rtts else None,
        "suspect": sum(state == "suspect" for _, _, state in up),
    }


def spans(connection: ConnectionTrace, seconds: float) -> list[tuple[float, float, str]]:
    """(from, to, state) while it was up."""
    times = [*(note.t for note in connection.states[1:]), seconds]
    states = zip(connection.states, times, strict=False)
    return [(note.t, end, note.data["state"]) for note, end in states if note.data.get("state") in STATES]


def longest_pause(figures: Figures) -> tuple[float, float] | None:
    """(when, how long) no payload moved between two looks that saw some; None = there was no pause to be seen."""
    longest, last = (0.0, 0.0), None
    for begin, end, sent, received in zip(figures.begins, figures.ends, figures.sent, figures.received, strict=True):
        if sent or received:
            if last is not None and begin - last > longest[1]:
                longest = last, round(begin - last, 3)
            last = end
    return longest if longest[1] >= PAUSE else None


# --- in words ---


def shown(trace: SessionTrace) -> RenderableType:
    """For a terminal."""
    found = summary_of(trace)
    parts: list[RenderableType] = [Text(line) for line in _head(trace, found)]
    if found["connections"]:
        parts += [Text(), _table(found["connections"])]
    if trace.notes:
        parts += [Text("events")]
        parts += [Text(line) for line in _events(trace.notes)]
    return Group(*parts)


def _head(trace: SessionTrace, found: dict[str, Any]) -> list[str]:
    who = f"{trace.side or 'an end'} of session {printable(trace.session[:8])}"
    ended = f"ended: {printable(trace.ended.text)}" if trace.ended else "its end is not in the trace"
    again = found["reinjected"] / found["bytes_sent"] if found["bytes_sent"] else 0.0
    scheduler = f"; scheduler {printable(str(found['scheduler']))}" if found["scheduler"] else ""
    lines = [
        f"{who}, began {_when(trace.started)}, {_seconds(trace.seconds)}, {ended}",
        f"sent {decimal(found['bytes_sent'])}, received {decimal(found['payload_received'])}, "
        f"sent again {again:.1%}{scheduler}; {_pause(found['longest_pause']) or 'no pause'}",
    ]
    if found["window_blocked_seconds"]:
        lines.append(
            f"for {_seconds(found['window_blocked_seconds'])} only the peer's windows kept bytes from being sent"
        )
    if trace.cut_off:
        lines.append("the last record is cut off")
    if trace.full:
        lines.append("the file had become as large as it may be: figures and perhaps events are missing")
    if trace.unreadable:
        lines.append(f"{trace.unreadable} records make no sense and were passed over")
    return lines


def _table(connections: Sequence[dict[str, Any]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for heading in HEADINGS:
        table.add_column(heading, justify="right" if heading in RIGHT else "left", overflow="fold")
    for each in connections:
        rtt, ended = each["rtt"], each["ended"]
        again = each["reinjected"] / each["bytes_sent"] if each["bytes_sent"] else 0.0
        table.add_row(
            each["id"],
            printable(f"{each.get('transport', '')} {each.get('interface') or host_of(str(each.get('local', '')))}"),
            printable(str(each.get("remote", ""))),
            f"{_seconds(each['up_seconds'])} from {_seconds(each['opened'])}"
            if each["opened"] is not None
            else "never",
            decimal(each["bytes_sent"]),
            decimal(each["payload_received"]),
            f"{again:.1%}",
            " / ".join(f"{rtt[name] * 1000:.3g}" for name in ("min", "median", "max")) if rtt else "",
            _seconds(each["longest_pause"]["seconds"]) if each["longest_pause"] else "",
            str(each["suspect"] or ""),
            printable(f"{ended['cause']}: {ended['reason']}") if ended else "",
        )
    return table


def _events(notes: Sequence[Note]) -> list[str]:
    told = [note for note in notes if note.name != "session_started" and note.data.get("state") != "authenticating"]
    lines = [f"{note.t:10.3f} s  {printable(note.text)}" for note in told]
    if len(lines) > 2 * SHOWN:
        lines[SHOWN:-SHOWN] = [f"{'':13}({len(lines) - 2 * SHOWN} more are in --json)"]
    return lines


def _pause(pause: dict[str, float] | None) -> str:
    return f"longest pause {_seconds(pause['seconds'])}, from {_seconds(pause['t'])}" if pause else ""


def _seconds(seconds: float) -> str:
    return (
        f"{seconds:.1f} s"
        if seconds < 600
        else f"{int(seconds) // 3600}:{int(seconds) // 60 % 60:02}:{int(seconds) % 60:02}"
    )


def _when(started: str) -> str:
    try:
        return f"{datetime.fromisoformat(started):%Y-%m-%d %H:%M:%S} UTC"
    except ValueError:
        return "nobody knows when"
