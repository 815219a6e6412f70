"""What happens in the experiments."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

from benchmarks.mpquic.cells import Outcome, Route, Setup
from benchmarks.mpquic.stage import BULK, URGENT, Stage

__all__ = ["Download", "Urgent"]

SETTLED = 1.0  # seconds of a download after which something urgent is asked for
INTERVAL = 0.2  # seconds between two requests
KILOBYTE = 1000


@dataclass(frozen=True, slots=True)
class Download:
    """The client asks for a file as soon as it may, and opens all paths meanwhile.

    Values: `seconds` from its first packet to the last byte, `bytes N` and `dropped N` of the datagrams that the server
    sent over path N.
    """

    size: int
    routes: tuple[Route, ...]

    def run(self, setup: Setup, seed: int) -> Outcome:
        stage = Stage(setup, self.routes, seed)
        stage.on_connected = lambda: stage.client.write(b"GET", stream=BULK)
        stage.on_request = lambda: stage.server.write(bytes(self.size), end=True, stream=BULK)
        stage.run(lambda: stage.client.ended)
        values = {"seconds": stage.elapsed}
        for index, link in enumerate(stage.pair.downs):
            values[f"bytes {index}"] = link.carried
            values[f"dropped {index}"] = link.dropped
        return Outcome(values)


@dataclass(frozen=True, slots=True)
class Urgent:
    """During a download a kilobyte is asked for, again and again: on a stream of its own, or in order with the rest.

    In order, the server has at most twice the congestion window unacknowledged in its stream, as Linux lets TCP have.
    Values: `median` and `worst` delay, seconds from the request to the last byte of the kilobyte. Series: `delays`.
    """

    size: int
    routes: tuple[Route, ...]
    in_order: bool = False

    def run(self, setup: Setup, seed: int) -> Outcome:
        stage = Stage(setup, self.routes, seed)
        asked: list[float] = []
        delays: list[float] = []
        wanted: list[int] = []
        """Bytes of the stream in which the answers end."""
        written = answered = 0
        reply = BULK if self.in_order else URGENT

        def ask() -> None:
            if stage.client.received < self.size:
                asked.append(stage.elapsed)
                stage.client.write(b"?", stream=URGENT)
                stage.at(INTERVAL, ask)

        def answer(event: Any) -> None:
            nonlocal written
            if type(event).__name__ == "StreamDataReceived" and event.stream_id == URGENT:
                if self.in_order:
                    written += KILOBYTE
                    wanted.append(written)
                stage.server.write(bytes(KILOBYTE), stream=reply)

        def take(event: Any) -> None:
            nonlocal answered
            if type(event).__name__ == "StreamDataReceived" and event.stream_id == reply:
                answered += len(event.data)
                while len(delays) < len(asked) and answered >= self._end(wanted, len(delays)):
                    delays.append(stage.elapsed - asked[len(delays)])

        def begin() -> None:
            stage.server.on_event = answer
            stage.at(SETTLED, ask)

        def feed() -> None:
            """More of the file, as much as the sender's buffer takes."""
            nonlocal written
            engine = stage.server.engine
            room = 2 * engine.congestion_window - engine.unacknowledged()
            if written < self.size and (room > 0 or not self.in_order):
                more = min(room, self.size - written) if self.in_order else self.size
                written += more
                stage.server.write(bytes(more), stream=BULK)

        def done() -> bool:
            if stage.asked:
                feed()
            return stage.client.received >= self.size and len(delays) == len(asked)

        stage.client.on_event = take
        stage.on_connected = lambda: stage.client.write(b"GET", stream=BULK)
        stage.on_request = begin
        stage.run(done)
        return Outcome({"median": statistics.median(delays), "worst": max(delays)}, {"delays": delays})

    def _end(self, wanted: list[int], index: int) -> float:
        if not self.in_order:
            return (index + 1) * KILOBYTE
        return wanted[index] if index < len(wanted) else float("inf")
