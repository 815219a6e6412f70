"""Progress of a copy: a live view on a terminal, plain lines elsewhere.

It only looks: the transfer and its session are shown as they are, ten times a second on a terminal. `LiveView` knows
nothing of files and can show any session (the demo does).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from multi.asyncio.info import ConnectionInfo
from multi.asyncio.session import Session
from multi.events import (
    AddressesAnnounced,
    AttemptFailed,
    ConnectionChanged,
    Event,
    EventsDropped,
    HandoverChanged,
    HandoverState,
    NetworkChanged,
    RoleChanged,
    SchedulerChanged,
    SessionConfirmed,
    SessionDetached,
    SessionEnded,
    SessionResumed,
    SignalChanged,
    Warned,
)
from multi.lab.files.client import Copied, Transfer, place_of
from multi.lab.files.protocol import printable
from multi.types import ConnectionId, ConnectionState, Role

__all__ = ["LiveView", "Meter", "Progress", "Total", "in_words", "size_in_words", "summary"]

REFRESH = 0.1  # seconds between frames on a terminal
PLAIN_INTERVAL = 2.0  # seconds between lines elsewhere: enough to see it live, and a log stays readable
RATE_WINDOW = 1.0  # seconds a shown rate is the average of
EVENTS_SHOWN = 6  # lines
STYLES = {
    ConnectionState.ACTIVE: "green",
    ConnectionState.SUSPECT: "yellow",
    ConnectionState.DRAINING: "cyan",
    ConnectionState.LOST: "red",
}


class Meter:
    """The rate of a growing counter over the last second."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()

    def update(self, count: int, now: float) -> None:
        self._samples.append((now, count))
        while len(self._samples) > 2 and self._samples[1][0] <= now - RATE_WINDOW:
            self._samples.popleft()

    @property
    def rate(self) -> float:
        """Per second."""
        if len(self._samples) < 2:
            return 0.0
        (start, before), (end, after) = self._samples[0], self._samples[-1]
        return (after - before) / (end - start) if end > start else 0.0


@dataclass(frozen=True, slots=True)
class Total:
    """What the bar shows. Bytes."""

    title: str
    done: int
    size: int
    note: str = ""
    """Instead of the remaining time."""
    before: int = 0
    """Of `done`, what an earlier try had copied: it says nothing about the rate."""


class LiveView:
    """The state of a session on a terminal: a bar, a line per connection, the last events.

    `total` says what the bar shows, `bytes_of` which counter of a connection counts.
    """

    def __init__(self, bytes_of: Callable[[ConnectionInfo], int]) -> None:
        self._bytes_of = bytes_of
        self._events: deque[Text] = deque(maxlen=EVENTS_SHOWN)
        self._total_meter = Meter()
        self._meters: dict[int, Meter] = {}

    def add_event(self, text: str, style: str = "") -> None:
        """Show a line below the connections."""
        self._events.append(Text(text, style=style or "dim", overflow="ellipsis", no_wrap=True))

    def render(self, total: Total, connections: Sequence[ConnectionInfo], now: float) -> RenderableType:
        """The picture of this moment; `now` in seconds of any clock."""
        return Group(self._bar(total, now), self._table(connections, now), *self._events)

    def _bar(self, total: Total, now: float) -> RenderableType:
        self._total_meter.update(total.done - total.before, now)
        rate = self._total_meter.rate
        remaining = total.note
        if not remaining and total.done < total.size:
            remaining = f"{_clock((total.size - total.done) / rate)} left" if rate > 0 else "waiting"
        grid = Table.grid(padding=(0, 2), expand=True)
        grid.add_column(no_wrap=True, overflow="ellipsis", max_width=32)
        grid.add_column(ratio=1)
        for _ in range(3):
            grid.add_column(no_wrap=True, justify="right")
        grid.add_row(
            Text(total.title, style="bold"),
            ProgressBar(total=max(1, total.size), completed=total.done if total.size else float(not total.note)),
            f"{size_in_words(total.done)} of {size_in_words(total.size)}",
            _mbps(rate),
            remaining,
        )
        return grid

    def _table(self, connections: Sequence[ConnectionInfo], now: float) -> RenderableType:
        table = Table(box=None, pad_edge=False, padding=(0, 2), header_style="dim")
        for heading in ("id", "transport", "over", "state", "bytes", "share", "rate", "rtt"):
            right = heading in ("bytes", "share", "rate", "rtt")
            table.add_column(heading, justify="right" if right else "left", no_wrap=True)
        carried = sum(map(self._bytes_of, connections))
        for connection in connections:
            count = self._bytes_of(connection)
            meter = self._meters.setdefault(connection.id, Meter())
            meter.update(count, now)
            state = connection.state.value + (" (backup)" if connection.role is Role.BACKUP else "")
            table.add_row(
                str(connection.id),
                connection.transport,
                place_of(connection),
                Text(state, style=STYLES.get(connection.state, "dim")),
                size_in_words(count),
                f"{100 * count / carried:.0f} %" if carried else "",
                _mbps(meter.rate),
                f"{1000 * connection.rtt:.1f} ms" if connection.rtt else "",
            )
        return table


class Progress:
    """`async with Progress(console) as progress: await get_file(..., progress=progress.update)`."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._transfer: Transfer | None = None
        self._session: Session | None = None
        self._live: Live | None = None
        self._view: LiveView | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._meter = Meter()
        self._loop = asyncio.get_running_loop()

    async def __aenter__(self) -> Self:
        if self._console.is_terminal:
            self._live = Live(Text("connecting ..."), console=self._console, auto_refresh=False)
            self._live.start(refresh=True)
        self._tasks.append(asyncio.create_task(self._tick(REFRESH if self._live else PLAIN_INTERVAL)))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._live is not None:
            self._refresh()
            self._live.stop()

    def update(self, transfer: Transfer) -> None:
        """Something has moved."""
        self._transfer = transfer
        if self._session is not transfer.session:
            self._session = transfer.session
            self._view = LiveView(transfer.bytes_of)
            self._tasks.append(asyncio.create_task(self._follow(transfer.session)))

    async def _tick(self, interval: float) -> None:
        while True:
            await asyncio.sleep(interval)
            self._refresh()

    def _refresh(self) -> None:
        transfer, now = self._transfer, self._loop.time()
        if transfer is None:
            return
        if self._live is not None and self._view is not None:
            note = "the server is verifying" if transfer.verifying else ""
            total = Total(printable(transfer.name), transfer.done, transfer.size, note, transfer.resumed_from)
            self._live.update(self._view.render(total, transfer.session.connections, now), refresh=True)
        elif transfer.size:
            self._meter.update(transfer.done - transfer.resumed_from, now)
            percent = 100 * transfer.done // transfer.size
            rate = _mbps(self._meter.rate) or _mbps((transfer.done - transfer.resumed_from) / (now - transfer.started))
            self._console.print(
                f"{size_in_words(transfer.done)} of {size_in_words(transfer.size)} ({percent} %), {rate}"
            )

    async def _follow(self, session: Session) -> None:
        """Say in words what happens to the session, until it ends."""
        seen: dict[ConnectionId, ConnectionState] = {}
        failures: set[str] = set()
        async for event in session.events():
            text = in_words(event, seen)
            if isinstance(event, AttemptFailed):
                if text in failures:
                    continue  # what is dialled again and again fails in the same way again and again
                failures.add(text)
            elif isinstance(event, ConnectionChanged) and event.state is ConnectionState.ACTIVE:
                failures.clear()
            if text:
                self.say(text, "yellow" if isinstance(event, Warned | AttemptFailed | SessionDetached) else "")

    def say(self, text: str, style: str = "") -> None:
        """Show a line: below the connections on a terminal, by itself elsewhere."""
        if self._live is not None and self._view is not None:
            self._view.add_event(text, style)
        else:
            self._console.print(text)


def in_words(event: Event | EventsDropped, seen: dict[ConnectionId, ConnectionState]) -> str:
    """An event as a person says it; empty when there is nothing to say. `seen` keeps the states told so far."""
    match event:
        case ConnectionChanged(connection, state, reason, facts):
            before = seen.get(connection)
            seen[connection] = state
            name = f"connection {connection} ({facts.transport} over {facts.interface or facts.local or 'any'})"
            return _change_in_words(name, before, state, printable(reason))
        case AttemptFailed(candidate, reason):
            return f"{candidate} failed: {printable(reason)}"
        case RoleChanged(connection, role):
            return f"connection {connection} is {'a backup' if role is Role.BACKUP else 'active'} now"
        case SessionDetached(resume_timeout):
            return f"no connection is left; waiting up to {resume_timeout:g} s for a network"
        case SessionResumed(after):
            return f"back after {after:.1f} s without a connection"
        case Warned(message):
            return f"warning: {printable(message)}"
        case SchedulerChanged(scheduler, _, reason):
            return f"the scheduler is {scheduler}: {printable(reason)}" if reason else ""
        case EventsDropped(count):
            return f"({count} events were not shown)"
        case HandoverChanged(state, to, reason):
            because = f": {printable(reason)}" if reason else ""
            return f"handover to {to} {_HANDOVER[state]}{because}"
        case NetworkChanged(interface, usable, reason):
            name = interface or "every network"
            return f"{name} is usable" if usable else f"{name}: {printable(reason)}"
        case SignalChanged(interface, fading, dbm):
            return f"the signal of {interface} is {'fading' if fading else 'good again'} ({dbm:.0f} dBm)"
        case AddressesAnnounced(addresses):
            return (
                f"the server can also be reached at {', '.join(address for address, _ in addresses) or 'nowhere else'}"
            )
        case SessionConfirmed() | SessionEnded():
            return ""


_HANDOVER = {HandoverState.STARTED: "begins", HandoverState.DONE: "is done", HandoverState.FAILED: "failed"}


def _change_in_words(name: str, before: ConnectionState | None, state: ConnectionState, reason: str) -> str:
    because = f": {reason}" if reason else ""
    match state:
        case ConnectionState.ACTIVE if before is ConnectionState.SUSPECT:
            return f"{name} is back"
        case ConnectionState.ACTIVE:
            return f"{name} is open"
        case ConnectionState.SUSPECT:
            return f"{name} is suspect{because}"
        case ConnectionState.DRAINING:
            return f"{name} is handed over{because}"
        case ConnectionState.LOST:
            return f"{name} was lost{because}"
        case ConnectionState.CLOSED | ConnectionState.AUTHENTICATING:
            return ""


def summary(copied: Copied) -> list[str]:
    """The end of a copy: a line with the result, and one per connection."""
    rate = f", {copied.bytes * 8e-6 / copied.seconds:.1f} Mbit/s" if copied.bytes and copied.seconds else ""
    resumed = f" ({copied.size - copied.bytes} were there already)" if copied.bytes < copied.size else ""
    outcome = f"{copied.size} bytes{resumed} in {copied.seconds:.2f} s{rate}, SHA-256 {copied.sha256}"
    lines = [f"{printable(copied.name)}: {outcome}"]
    carried = sum(share.bytes for share in copied.connections)
    for share in copied.connections:
        percent = f" ({100 * share.bytes / carried:.0f} %)" if carried else ""
        lines.append(f"  connection {share.id}: {share.transport} over {share.over}, {share.bytes} bytes{percent}")
    return lines


def size_in_words(count: float) -> str:
    """`12.3 MB`; powers of ten, as rates of networks are."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.2f} TB"


def _mbps(rate: float) -> str:
    """Bytes per second as Mbit/s; empty when nothing moves."""
    return f"{rate * 8e-6:.1f} Mbit/s" if rate > 0 else ""


def _clock(seconds: float) -> str:
    if seconds >= 100 * 3600:
        return "days"
    minutes, rest = divmod(int(seconds + 0.5), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
