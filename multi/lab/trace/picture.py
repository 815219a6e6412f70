"""A trace as a picture: what each network carried, its round trips, its connections' states, and what happened when."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from math import isnan, nan
from pathlib import Path

from rich.filesize import decimal

from multi.lab.timeline import Mark, Panel, Timeline, draw
from multi.lab.trace.reading import ConnectionTrace, Figures, Note, SessionTrace
from multi.lab.trace.summary import spans
from multi.types import host_of

POINTS = 400  # of a line, at most
MIN_INTERVAL = 0.1  # seconds between two of them: nobody has looked more often
LANES = 12  # with rows and colours of their own
OTHERS = "others"
WORTH_A_PANEL = 0.01  # share of all bytes
MAX_TEXT = 44  # characters beside a line
MARKS = 200
ORDERLY = ("closed", "drained")


def draw_trace(trace: SessionTrace, path: Path) -> None:
    """Write the picture: PNG, or what the suffix says. Raises ValueError for a suffix that is no picture's."""
    draw(timeline_of(trace), path)


def timeline_of(trace: SessionTrace) -> Timeline:
    lanes = lanes_of(trace)
    bins = _Bins(trace.seconds)
    sent, received = (
        {name: bins.rates([(c.figures, getattr(c.figures, way)) for c in lane]) for name, lane in lanes.items()}
        for way in ("sent", "received")
    )
    everything = sum(sum(map(sum, way.values())) for way in (sent, received))
    panels = [
        _rates(word, bins, way)
        for word, way in (("received", received), ("sent", sent))
        if sum(map(sum, way.values())) > everything * WORTH_A_PANEL
    ]
    rtts = {name: bins.round_trips(lane, trace.seconds) for name, lane in lanes.items()}
    known = {name: values for name, values in rtts.items() if not all(map(isnan, values))}
    if known:
        panels.append(Panel("round trip, ms", bins.centres, known, stacked=False, height=1.5))
    up = {name: [span for c in lane for span in spans(c, trace.seconds)] for name, lane in lanes.items()}
    marks = islice((Mark(note.t, text) for note in trace.notes if (text := _text(trace, note))), MARKS)
    return Timeline(_title(trace), trace.seconds, panels, up, list(marks), {})


def lanes_of(trace: SessionTrace) -> dict[str, list[ConnectionTrace]]:
    """The connections by network, each of which had one at a time; what is more than can be told apart is `others`."""
    lanes: dict[str, list[ConnectionTrace]] = {}
    for connection in trace.connections.values():
        up = spans(connection, trace.seconds)
        if not up:
            continue
        number = 1
        while True:
            name = lane_name(trace, connection) + (f" ({number})" if number > 1 else "")
            if name not in lanes and len(lanes) >= LANES - 1:
                name = OTHERS
            ends = (spans(other, trace.seconds)[-1][1] for other in lanes.get(name, []))
            if name == OTHERS or all(end <= up[0][0] for end in ends):
                break
            number += 1
        lanes.setdefault(name, []).append(connection)
    return lanes


def lane_name(trace: SessionTrace, connection: ConnectionTrace) -> str:
    """A client tells its networks apart by where it sends from, a server by where it sends to."""
    remote = host_of(str(connection.facts.get("remote", "")))
    return f"{connection.facts.get('transport', '')} {remote if trace.side == 'server' else connection.over}"


def _rates(word: str, bins: _Bins, lanes: dict[str, list[float]]) -> Panel:
    highest = max(map(sum, zip(*lanes.values(), strict=True)))
    unit, name = (1e6, "Mbit/s") if highest >= 1e6 else (1e3, "kbit/s")
    return Panel(f"{word}, {name}", bins.centres, {lane: [rate / unit for rate in way] for lane, way in lanes.items()})


def _title(trace: SessionTrace) -> str:
    last = trace.figures.last
    received, sent = (decimal(last.get(name, 0)) for name in ("payload_received", "bytes_sent"))
    return f"Session {trace.session[:8]}, {trace.side}: {received} received, {sent} sent"


def _text(trace: SessionTrace, note: Note) -> str:
    """For the story above the picture; empty = it is no part of it."""
    data, connection = note.data, trace.connections.get(note.connection)
    lane = (connection.over if connection is not None else "") or f"connection {note.connection}"
    match note.name:
        case "connection_changed" if data.get("state") == "lost":
            text = f"{lane} lost"
        case "connection_changed" if data.get("state") == "draining":
            text = f"{lane} drained"
        case "session_detached":
            text = "no connection"
        case "going_away":
            text = "the server goes away"
        case "session_resumed":
            text = "connected again"
        case "handover_changed":
            text = f"handover to {data.get('to')}: {data.get('state')}"
        case "network_changed":
            text = f"{data.get('interface') or 'all networks'} {'usable' if data.get('usable') else 'gone'}"
        case "signal_changed":
            text = f"{data.get('interface')} {'fading' if data.get('fading') else 'good again'}"
        case "role_changed":
            text = f"{lane}: {data.get('role')}"
        case "scheduler_changed":
            text = str(data.get("scheduler"))
        case "budget_changed" | "warned":
            text = note.text
        case "session_ended" if data.get("cause") not in ORDERLY:
            text = note.text
        case "trace_full":
            text = "the trace is full"
        case _:
            return ""
    text = "".join(c if c.isprintable() else "?" for c in text)
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 3] + "..."


class _Bins:
    """Equal parts of the time of a trace."""

    def __init__(self, seconds: float) -> None:
        self.count = max(2, min(POINTS, round(seconds / MIN_INTERVAL)))
        self.width = max(seconds, 1e-3) / self.count
        self.centres = [(n + 0.5) * self.width for n in range(self.count)]

    def _of(self, t: float) -> int:
        return min(int(t / self.width), self.count - 1)

    def rates(self, moved: Sequence[tuple[Figures, Sequence[int]]]) -> list[float]:
        """Bit/s in each bin: what a look saw has moved evenly since the look before."""
        bits = [0.0] * self.count
        for figures, sizes in moved:
            for begin, end, size in zip(figures.begins, figures.ends, sizes, strict=True):
                if size:
                    end = max(end, MIN_INTERVAL / 10)  # the first look may come as early as the session
                    begin = min(begin, end - MIN_INTERVAL / 10)
                    for n in range(self._of(begin), self._of(end) + 1):
                        inside = min(end, (n + 1) * self.width) - max(begin, n * self.width)
                        bits[n] += 8 * size * max(0.0, inside) / (end - begin)
        return [amount / self.width for amount in bits]

    def round_trips(self, lane: Sequence[ConnectionTrace], seconds: float) -> list[float]:
        """Milliseconds in each bin, the longest seen there, or as before while it is up; nan = not known."""
        found = [nan] * self.count
        for connection in lane:
            seen = [nan] * self.count
            for end, rtt in zip(connection.figures.ends, connection.figures.rtts, strict=True):
                n = self._of(end)
                if not isnan(rtt) and not seen[n] > rtt * 1000:
                    seen[n] = rtt * 1000
            for begin, end, _ in spans(connection, seconds):
                last = nan
                for n in range(self._of(begin), self._of(end) + 1):
                    last = last if isnan(seen[n]) else seen[n]
                    found[n] = found[n] if isnan(last) else last
        return found
