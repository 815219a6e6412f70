"""What happens in the experiments."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.mpquic.cells import Outcome, Route, Setup
from benchmarks.mpquic.counting import counts_of
from benchmarks.mpquic.stage import BULK, URGENT, Stage
from benchmarks.mpquic.streams import HearingEngine, packets_of
from multi.lab.engines.links import Line
from multi.multipath.facts import PathState

__all__ = ["Beside", "Counted", "Download", "Joining", "Sending", "Urgent"]

BURST, BURST_INTERVAL = 10_000, 0.1  # bytes, seconds
SAMPLE = 0.5  # seconds between two samples of a series
ENDLESS = 100_000_000  # bytes: more than any of these transfers lasts for
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
class Counted:
    """A download between ends that count.

    Values: `seconds` from the client's first packet to the last byte; `ranges` in an acknowledgement of the client,
    mean; `full`, the share of them with as many blocks as they may have; `ack kB` of them; `repeated`, the share of the
    file that the server has sent again.
    """

    size: int
    routes: tuple[Route, ...]

    def run(self, setup: Setup, seed: int) -> Outcome:
        stage = Stage(setup, self.routes, seed)
        stage.on_connected = lambda: stage.client.write(b"GET", stream=BULK)
        stage.on_request = lambda: stage.server.write(bytes(self.size), end=True, stream=BULK)
        stage.run(lambda: stage.client.ended)
        told, sent = counts_of(stage.client.engine), counts_of(stage.server.engine)
        return Outcome(
            {
                "seconds": stage.elapsed,
                "ranges": told.ranges / told.acks,
                "full": told.full / told.acks,
                "ack kB": told.ack_bytes / 1000,
                "repeated": sent.stream_bytes / self.size - 1,
            }
        )


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


@dataclass(frozen=True, slots=True)
class Joining:
    """During a download the client opens the second path.

    Value: `seconds` from then on until the server sends data over it.
    """

    routes: tuple[Route, Route]

    def run(self, setup: Setup, seed: int) -> Outcome:
        stage = Stage(setup, self.routes, seed)
        stage.may_open = False
        stage.on_connected = lambda: stage.client.write(b"GET", stream=BULK)
        stage.on_request = lambda: stage.server.write(bytes(ENDLESS), stream=BULK)
        stage.run(lambda: stage.client.received > 1_000_000)
        stage.may_open, begin = True, stage.elapsed

        def usable() -> bool:
            facts = stage.pair.facts().get(1)
            return facts is not None and facts.state is PathState.ACTIVE

        stage.run(usable)
        return Outcome({"seconds": stage.elapsed - begin})


@dataclass(frozen=True, slots=True)
class Sending:
    """The client sends without end; with `bursts`, 10 kB each tenth of a second on a stream of their own besides.

    Of the first path everything is lost for a second from `silence` on. With `heard` the server is aioquic's, whichever
    engine sends, and tells over which path each packet of a burst has come: value `one path`, the share of that which
    has brought most. Values: `mbps` from `settled` on; `least rtt`,
    `middle rtt` and `largest rtt` (smoothed, seconds, from `settled` on) of the first path; `median` and `worst` delay
    of a burst. Series, each half second: `mbps`, `rtt N` of path N; and `delays` of bursts.
    """

    routes: tuple[Route, ...]
    seconds: float
    bursts: bool = False
    bulk: bool = True
    silence: float | None = None
    heard: bool = False
    settled: float = 2.0

    def run(self, setup: Setup, seed: int) -> Outcome:
        stage = Stage(setup, self.routes, seed, listener=HearingEngine if self.heard else None)
        series: dict[str, list[float]] = {"mbps": [], **{f"rtt {index}": [] for index in range(len(self.routes))}}
        begun: list[float] = []
        delays: list[float] = []
        came = before = 0

        def burst() -> None:
            begun.append(stage.elapsed)
            stage.client.write(bytes(BURST), stream=URGENT)
            stage.at(BURST_INTERVAL, burst)

        def take(event: Any) -> None:
            nonlocal came
            if type(event).__name__ == "StreamDataReceived" and event.stream_id == URGENT:
                came += len(event.data)
                while came >= (len(delays) + 1) * BURST:
                    delays.append(stage.elapsed - begun[len(delays)])

        def begin() -> None:
            stage.client.write(bytes(ENDLESS) if self.bulk else b"?", stream=BULK)
            if self.bursts:
                stage.at(self.settled, burst)

        def sample() -> None:
            nonlocal before
            received = stage.pair.server.received if stage.pair.server is not None else 0
            series["mbps"].append((received - before) * 8e-6 / SAMPLE)
            before = received
            known = stage.pair.facts(stage.client)
            for index in range(len(self.routes)):
                series[f"rtt {index}"].append(known[index].rtt if index in known else 0.0)
            stage.at(SAMPLE, sample)

        def silent(silent: bool) -> None:
            for link in (stage.pair.ups[0], stage.pair.downs[0]):
                link.silent = silent

        stage.on_connected = begin
        stage.at(SAMPLE, sample)
        if self.silence is not None:
            stage.at(self.silence, lambda: silent(True))
            stage.at(self.silence + 1.0, lambda: silent(False))

        def listen() -> None:
            stage.server.on_event = take

        stage.on_request = listen
        stage.run(lambda: stage.elapsed >= self.seconds)
        first = int(self.settled / SAMPLE)
        rtts = series["rtt 0"][first:]
        values = {
            "mbps": statistics.fmean(series["mbps"][first:]),
            "least rtt": stage.pair.facts(stage.client)[0].min_rtt,
            "middle rtt": statistics.median(rtts),
            "largest rtt": max(rtts),
        }
        if delays:
            values |= {"median": statistics.median(delays), "worst": max(delays)}
            series["delays"] = delays
        if self.heard:
            packets = packets_of(stage.server.engine, URGENT).values()
            values["one path"] = max(packets) / sum(packets)
        return Outcome(values, series)


@dataclass(frozen=True, slots=True)
class Beside:
    """Two paths and one flow with Reno send through the same bottleneck; the seed shifts the begin of the second.

    Value: `share` of what came through after `SETTLING` that the two paths have had.
    """

    route: Route
    seconds: float
    SETTLING = 5.0

    def run(self, setup: Setup, seed: int) -> Outcome:
        bottleneck = Line()
        two = Stage(setup, (self.route, self.route), seed, bottleneck=bottleneck)
        begin = two.begin + 0.13 * seed
        two.on_connected = lambda: two.client.write(b"GET", stream=BULK)
        two.on_request = lambda: two.server.write(bytes(ENDLESS), stream=BULK)
        two.run(lambda: two.pair.clock.now >= begin)
        reno = replace(setup, congestion="reno")
        one = Stage(reno, (self.route,), seed, beside=two, bottleneck=bottleneck)
        one.on_connected = lambda: one.client.write(b"GET", stream=BULK)
        one.on_request = lambda: one.server.write(bytes(ENDLESS), stream=BULK)

        def until(moment: float) -> None:
            def there() -> bool:
                one.step()
                return two.elapsed >= moment

            two.run(there)

        until(self.SETTLING)
        before = two.client.received, one.client.received
        until(self.SETTLING + self.seconds)
        shares = two.client.received - before[0], one.client.received - before[1]
        return Outcome({"share": shares[0] / sum(shares)})
