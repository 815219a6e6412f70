"""Progress of a copy: a live view on a terminal, plain lines elsewhere. It only looks at transfer and session."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from typing import Any, Self

from rich.console import Console, Group, RenderableType
from rich.filesize import decimal
from rich.live import Live
from rich.progress import BarColumn, ProgressColumn, Task, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.text import Text

from multi.asyncio.info import ConnectionInfo
from multi.asyncio.session import Session
from multi.errors import printable
from multi.events import (
    AttemptFailed,
    BudgetChanged,
    ConnectionChanged,
    Event,
    EventsDropped,
    SchedulerChanged,
    SessionConfirmed,
    SessionDetached,
    SessionEnded,
    Warned,
)
from multi.lab.files.client import Copied, Transfer, place_of
from multi.types import ConnectionState, Role

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
UNTOLD = (ConnectionState.CLOSED, ConnectionState.AUTHENTICATING)


class CopyConsole(Console):
    """Where a copy says how it goes. It goes on where nobody reads that any more, or the disk is full."""

    def print(self, *objects: Any, **options: Any) -> None:
        try:
            super().print(*objects, **options)
        except OSError:
            self.on_broken_pipe()

    def on_broken_pipe(self) -> None:
        """Say nothing more, not even what the file still holds; rich would end the program."""
        self.quiet = True
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), self.file.fileno())


class _Size(ProgressColumn):
    def render(self, task: Task) -> Text:
        of = "" if task.total is None else f" of {decimal(int(task.total))}"
        return Text(decimal(int(task.completed)) + of)


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(_mbps(task.speed or 0.0))


class LiveView:
    """The state of a transfer: a bar, a line per connection, the last events. Rates are averages of the last second."""

    def __init__(self, transfer: Transfer) -> None:
        self._transfer = transfer
        self._total = Bars(
            TextColumn("{task.description}", style="bold", markup=False),
            BarColumn(None),
            _Size(),
            _Rate(),
            TimeRemainingColumn(),
            speed_estimate_period=RATE_WINDOW,
            expand=True,
        )
        self._connections = Bars(
            TextColumn("{task.fields[what]}", markup=False),
            TextColumn("[{task.fields[style]}]{task.fields[state]}"),
            _Size(),
            TextColumn("{task.fields[share]}", justify="right"),
            _Rate(),
            TextColumn("{task.fields[rtt]}", justify="right"),
            speed_estimate_period=RATE_WINDOW,
        )
        self._file = self._total.add_task("", total=None)
        self._tasks: dict[int, TaskID] = {}
        self._events: deque[Text] = deque(maxlen=EVENTS_SHOWN)

    def add_event(self, text: str, style: str) -> None:
        """Show a line below the connections."""
        self._events.append(Text(text, style=style or "dim", overflow="ellipsis", no_wrap=True))

    def render(self) -> RenderableType:
        """The picture of this moment."""
        transfer = self._transfer
        if transfer.size and self._total.tasks[0].total is None:
            # What an earlier try had copied says nothing about the rate.
            self._total.reset(self._file, total=transfer.size, completed=transfer.resumed_from)
        note = " (the server is verifying)" if transfer.verifying else ""
        self._total.update(self._file, completed=transfer.done, description=printable(transfer.name) + note)
        connections = transfer.session.connections
        carried = sum(map(transfer.bytes_of, connections))
        for connection in connections:
            self._update(connection, carried)
        return Group(self._total, self._connections, *self._events)

    def _update(self, connection: ConnectionInfo, carried: int) -> None:
        count = self._transfer.bytes_of(connection)
        fields: dict[str, Any] = {
            "what": f"{connection.id} {connection.transport:5} {place_of(connection)}",
            "state": connection.state.value + (" (backup)" if connection.role is Role.BACKUP else ""),
            "style": STYLES.get(connection.state, "dim"),
            "share": f"{100 * count / carried:.0f} %" if carried else "",
            "rtt": f"{1000 * connection.rtt:.1f} ms" if connection.rtt else "",
        }
        if connection.id not in self._tasks:
            self._tasks[connection.id] = self._connections.add_task("", total=None, **fields)
        self._connections.update(self._tasks[connection.id], completed=count, **fields)


class Progress:
    """`async with Progress(console) as progress: await get_file(..., progress=progress.update)`."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self.transfer: Transfer | None = None
        """The last one that has moved."""
        self._live: Live | None = None
        self._view: LiveView | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._printed = (0.0, 0)
        """When the last plain line was printed, and the bytes copied then."""

    async def __aenter__(self) -> Self:
        if self._console.is_terminal:
            self._live = Live(Text("connecting ..."), console=self._console, auto_refresh=False)
            self._live.start(refresh=True)
        self._tasks.append(asyncio.create_task(self._tick(REFRESH if self._live else PLAIN_INTERVAL)))
        return self

    async def __aexit__(self, *_error: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._live is not None:
            self._refresh()
            self._live.stop()

    def update(self, transfer: Transfer) -> None:
        """Something has moved."""
        if self.transfer is not transfer:
            self.transfer = transfer
            self._printed = (transfer.started, 0)
            self._view = LiveView(transfer)
            self._tasks.append(asyncio.create_task(self._follow(transfer.session)))

    async def _tick(self, interval: float) -> None:
        while True:
            await asyncio.sleep(interval)
            self._refresh()

    def _refresh(self) -> None:
        transfer = self.transfer
        if self._live is not None and self._view is not None:
            self._live.update(self._view.render(), refresh=True)
        elif transfer is not None and transfer.size:
            now, copied = asyncio.get_running_loop().time(), transfer.done - transfer.resumed_from
            (then, before), self._printed = self._printed, (now, copied)
            done = f"{decimal(transfer.done)} of {decimal(transfer.size)} ({100 * transfer.done // transfer.size} %)"
            self._console.print(f"{done}, {_mbps((copied - before) / (now - then))}")

    async def _follow(self, session: Session) -> None:
        """Say in words what happens to the session, until it ends."""
        failures: set[str] = set()
        async for event in session.events():
            text = in_words(event)
            if isinstance(event, Warned | BudgetChanged):
                continue  # the log has said so
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


def in_words(event: Event | EventsDropped) -> str:
    """An event as it is shown to a person; empty when it is not worth it."""
    match event:
        case SessionConfirmed() | SessionEnded() | SchedulerChanged(reason=""):
            return ""
        case ConnectionChanged(state=state) if state in UNTOLD:
            return ""
    return printable(str(event))


def summary(copied: Copied) -> list[str]:
    """The end of a copy: a line with the result, and one per connection."""
    rate = f", {_mbps(copied.bytes / copied.seconds)}" if copied.bytes and copied.seconds else ""
    resumed = f" ({copied.size - copied.bytes} were there already)" if copied.bytes < copied.size else ""
    outcome = f"{copied.size} bytes{resumed} in {copied.seconds:.2f} s{rate}, SHA-256 {copied.sha256}"
    lines = [f"{printable(copied.name)}: {outcome}"]
    carried = sum(share.bytes for share in copied.connections)
    for share in copied.connections:
        percent = f" ({100 * share.bytes / carried:.0f} %)" if carried else ""
        lines.append(f"  connection {share.id}: {share.transport} over {share.over}, {share.bytes} bytes{percent}")
    return lines


def _mbps(rate: float) -> str:
    """Bytes per second as Mbit/s."""
    return f"{rate * 8e-6:.1f} Mbit/s"
