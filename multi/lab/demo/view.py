"""What a person sees while the roaming demo runs: a live picture on a terminal, a line every two seconds elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Sequence
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from multi.asyncio.info import ConnectionInfo
from multi.asyncio.session import Session
from multi.lab.demo.recording import Recorder
from multi.lab.files.progress import PLAIN_INTERVAL, STYLES
from multi.types import ConnectionState

REFRESH = 0.15  # seconds between frames: smooth enough, and drawing costs a few per cent of a processor
EVENTS_SHOWN = 8  # lines
FULL = 220.0  # Mbit/s of a full bar: a little more than the fastest link
SPARKS = " ▁▂▃▄▅▆▇█"
SPARK_SAMPLES = 5  # samples one character stands for: half a second
SPARK_WIDTH = 48  # characters at most
COLOURS = {"WiFi": "dodger_blue1", "5G": "orange1"}
GONE = (ConnectionState.LOST, ConnectionState.CLOSED)


class View:
    """`async with View(...) as view`: shows session and recorder as they are; `say` adds a line."""

    def __init__(self, console: Console, session: Session, recorder: Recorder, story: Sequence[str]) -> None:
        """`story` has the titles of its steps."""
        self._console = console
        self._session = session
        self._recorder = recorder
        self._story = story
        self._lines: deque[Text] = deque(maxlen=EVENTS_SHOWN)
        self._live: Live | None = None
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        if self._console.is_terminal:
            self._live = Live(self._render(), console=self._console, auto_refresh=False)
            self._live.start(refresh=True)
        self._task = asyncio.create_task(self._tick())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        if self._live is not None:
            self._live.update(self._render(), refresh=True)
            self._live.stop()

    def say(self, text: str, style: str = "") -> None:
        """Something has happened, now."""
        line = f"{self._recorder.now():5.1f} s  {text}"
        if self._live is not None:
            self._lines.append(Text(line, style=style or "dim", overflow="ellipsis", no_wrap=True))
        else:
            self._console.print(Text(line), soft_wrap=True)

    async def _tick(self) -> None:
        while True:
            if self._live is not None:
                await asyncio.sleep(REFRESH)
                self._live.update(self._render(), refresh=True)
            else:
                await asyncio.sleep(PLAIN_INTERVAL)
                self._console.print(Text(self._plain()), soft_wrap=True)

    def _plain(self) -> str:
        recorder = self._recorder
        rates = ", ".join(f"{n} {recorder.rate(n, 10) * 8e-6:.0f}" for n in recorder.networks)
        total = sum(recorder.rate(n, 10) for n in recorder.networks) * 8e-6
        return f"{recorder.now():5.1f} s    {recorder.delivered / 1e6:6.0f} MB, {total:.0f} Mbit/s ({rates})"

    # --- on a terminal ---

    def _render(self) -> RenderableType:
        return Group(self._head(), self._progress(), self._pause(), Text(), self._networks(), Text(), *self._lines)

    def _head(self) -> RenderableType:
        recorder = self._recorder
        grid = Table.grid(padding=(0, 2), expand=True)
        grid.add_column(no_wrap=True)
        grid.add_column(ratio=1)
        grid.add_column(no_wrap=True, justify="right")
        total = sum(recorder.rate(n) for n in recorder.networks) * 8e-6
        grid.add_row(
            Text(f"{recorder.now():5.1f} s", style="bold"),
            ProgressBar(total=max(1, recorder.size), completed=recorder.delivered),
            Text(f"{recorder.delivered / 1e6:.0f} of {recorder.size / 1e6:.0f} MB  {total:4.0f} Mbit/s"),
        )
        return grid

    def _progress(self) -> Text:
        """The steps of the story; the present one stands out."""
        played = len(self._recorder.marks)
        line = Text()
        width = 0
        for number, title in enumerate(self._story, 1):
            arrow = " → " if number > 1 else ""
            if width + len(arrow) + len(title) > self._console.width:
                arrow, width = "\n→ ", 0
            width += len(arrow) + len(title)
            line.append(arrow, style="dim")
            line.append(title, style="dim" if number > played else "bold reverse" if number == played else "green")
        return line

    def _pause(self) -> Text:
        recorder = self._recorder
        if not recorder.marks:
            return Text()
        return Text(f"longest time without data since then: {recorder.gap_so_far() * 1000:.0f} ms", style="bold")

    def _networks(self) -> RenderableType:
        width = max(10, min(SPARK_WIDTH, self._console.width - 68))
        grid = Table.grid(padding=(0, 2))
        for right in (False, False, True, True, False, False):
            grid.add_column(no_wrap=True, justify="right" if right else "left")
        for network in reversed(self._recorder.networks):
            colour = COLOURS.get(network, "white")
            rate = self._recorder.rate(network) * 8e-6
            connection = self._newest(network)
            rtt = f"RTT {connection.rtt * 1000:5.1f} ms" if connection and connection.rtt else ""
            state, style = "out of range", "dim"
            if connection:
                state, style = connection.state.value, STYLES.get(connection.state, "dim")
            grid.add_row(
                Text(network, style=f"bold {colour}"),
                ProgressBar(total=FULL, completed=rate, width=16, complete_style=colour),
                f"{rate:4.0f} Mbit/s",
                rtt.rjust(14),
                Text(state.ljust(12), style=style),
                Text(self._sparkline(network, width), style=colour),
            )
        return grid

    def _newest(self, network: str) -> ConnectionInfo | None:
        found = [c for c in self._session.connections if self._recorder.network_of(c.interface) == network]
        living = [c for c in found if c.state not in GONE] or found
        return living[-1] if living else None

    def _sparkline(self, network: str, width: int) -> str:
        samples = self._recorder.samples
        # Whole groups only, counted from the beginning: the line moves on and does not flicker.
        groups = (len(samples) - 1) // SPARK_SAMPLES
        line = ""
        for group in range(max(0, groups - width), groups):
            first, last = samples[group * SPARK_SAMPLES], samples[(group + 1) * SPARK_SAMPLES]
            moved = self._recorder.carried(network, last) - self._recorder.carried(network, first)
            rate = moved * 8e-6 / max(1e-6, last["t"] - first["t"])
            line += SPARKS[min(8, round(rate / FULL * 8) or (1 if rate > 1 else 0))]
        return line
