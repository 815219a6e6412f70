"""What schedulers and steering do for one session's streams, in virtual time: the same on any machine.

Both ends are the session of the product, and between them are modelled kernels and links (`multi.lab.sim.path_model`).
Every other party of a row runs over the same links with the same seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from math import inf
from statistics import median

from multi.lab.sim.pair import CLEAR, Pair
from multi.lab.sim.path_model import PathSpec
from multi.lab.sim.wire import Route
from multi.protocol.payloads import Policy
from multi.protocol.settings import Protect, SessionSettings
from multi.types import STREAM_ZERO, ConnectionId, StreamId

CLIENT = SessionSettings(protect=Protect.NEVER, initial_window=1024 * 1024)  # as `multi.asyncio.settings` makes them
MAX_EVENTS = 10**8
SETTLE = 1.0  # seconds from opening to measuring: windows have grown and round trips are known
BLOCK = 64 * 1024
AHEAD = 4 * 1024 * 1024  # bytes of bulk that wait to be sent


@dataclass(frozen=True, slots=True)
class Figure:
    """A measured value with its promise: at most or at least `bound`; without one it is for comparison only."""

    what: str
    value: float
    unit: str
    bound: float | None = None
    least: bool = False

    @property
    def held(self) -> bool:
        return self.bound is None or (self.value >= self.bound if self.least else self.value <= self.bound)

    def __str__(self) -> str:
        text = f"{self.what}: {self.value:.3g} {self.unit}".rstrip()
        if self.bound is None:
            return text
        verdict = "held" if self.held else f"short by {abs(self.value - self.bound):.3g}"
        return f"{text}, {'at least' if self.least else 'at most'} {self.bound:.4g}: {verdict}"


def path(mbps: float, rtt: float, *, up: float = 0.0, queue: float = 0.050, **more: float | str) -> Route:
    """A link with `mbps` down and `up` (else the same), seconds there and back, seconds a queue holds."""

    def direction(rate: float) -> PathSpec:
        size = rate * 1e6 / 8
        return PathSpec(size, rtt / 2, queue=max(3000.0, size * queue), **more)  # type: ignore[arg-type] # its fields

    return Route(direction(up or mbps), direction(mbps))


def opened(routes: Sequence[Route], seed: int = 1, policy: str = "adaptive") -> Pair:
    """A session with a connection over each route."""
    pair = Pair(routes, seed=seed, client=CLIENT, server=CLEAR, policy=Policy(policy), watched=False)
    count = len(routes)
    if not pair.until(lambda: pair.server is not None and len(pair.peer.active) == len(pair.client.active) == count, 9):
        raise AssertionError("the links did not open")
    return pair


def every(pair: Pair, seconds: float, action: Callable[[], None], until: float) -> None:
    """Do it now and every so often."""
    action()
    if pair.clock.now + seconds < until:
        pair.clock.at(pair.clock.now + seconds, partial(every, pair, seconds, action, until))


def bulk(pair: Pair, stream: StreamId, until: float) -> None:
    """The server writes as much as it can."""

    def refill() -> None:
        unsent = pair.peer.session.streams.unsent(stream)
        if unsent < AHEAD:
            pair.peer.write(bytes(AHEAD - unsent), stream)

    every(pair, 0.010, refill, until)


def run_to(pair: Pair, moment: float) -> None:
    pair.clock.run_until(lambda: False, moment - pair.clock.now, max_events=MAX_EVENTS)


# --- throughput of one stream ---


def _rate(routes: Sequence[Route], seconds: float) -> float:
    """Mbit/s that a download brings, once under way."""
    pair = opened(routes)
    start = pair.clock.now + SETTLE
    bulk(pair, STREAM_ZERO, start + seconds)
    run_to(pair, start)
    before = pair.client.got()
    run_to(pair, start + seconds)
    return (pair.client.got() - before) * 8 / 1e6 / seconds


def one_flow(seconds: float) -> Iterator[Figure]:
    """One stream over unequal and over equal links."""
    unequal = [path(300, 0.010), path(80, 0.030)]
    yield Figure("one stream over 300 Mbit/s 10 ms + 80 Mbit/s 30 ms", _rate(unequal, seconds), "Mbit/s", 350, True)
    equal = [path(100, 0.025), path(100, 0.025)]
    yield Figure("one stream over 2 x 100 Mbit/s 25 ms", _rate(equal, seconds), "Mbit/s", 190, True)


# --- a constant stream, one link cut ---


def _constant(rate: float, seconds: float, cut: tuple[float, float] | None) -> tuple[float, float, float]:
    """(share delivered in time, largest lag in seconds, longest gap in seconds) of a constant stream upwards."""
    link = path(6, 0.020, queue=0.200)
    pair = opened([link, link])
    client = pair.client
    run_to(pair, SETTLE)
    start, written, seen = pair.clock.now, [0], [(pair.clock.now, pair.peer.got())]
    end = start + seconds

    def frame() -> None:
        due = int((pair.clock.now - start) * rate / 8) - written[0]
        written[0] += due
        client.write(bytes(due))

    def look() -> None:
        if pair.peer.got() > seen[-1][1]:
            seen.append((pair.clock.now, pair.peer.got()))

    every(pair, 0.020, frame, end)
    every(pair, 0.001, look, end + 1.0)
    if cut is not None:
        pair.clock.at(start + cut[0], partial(pair.stall, 0))
        pair.clock.at(start + cut[1], partial(pair.restore, 0))
    run_to(pair, end + 1.0)
    gap = max(after - before for (before, _), (after, _) in pairwise(seen))
    lag = max(now - start - size * 8 / rate for now, size in seen)
    in_time = max((size for now, size in seen if now <= end + 0.5), default=0)
    return in_time * 8 / (seconds * rate), lag, gap


def constant(seconds: float) -> Iterator[Figure]:
    """8 Mbit/s over two links of 6 Mbit/s and 20 ms; 5 Mbit/s while one of them is silent for 30 s."""
    share, lag, _ = _constant(8e6, 4 * seconds, None)
    yield Figure("8 Mbit/s over 6 + 6 Mbit/s, delivered in time", 8 * share, "Mbit/s", 7.9, True)
    yield Figure("lag", lag, "s", 0.5)
    _, _, gap = _constant(8e6, 50.0, (10.0, 40.0))
    yield Figure("longest gap while one link is cut for 30 s", 1e3 * gap, "ms", 150)


# --- keys and their echoes ---

KEYS_APART = 0.050  # seconds, fast typing


def echoes(event: Callable[[Pair], None], moment: float, seconds: float) -> list[float]:
    """Seconds until each key of somebody who types over WiFi and 5G has come back; `event` happens at `moment`."""
    pair = opened([path(200, 0.0018), path(190, 0.046, up=35, queue=0.100)])
    client, peer = pair.client, pair.peer
    run_to(pair, pair.clock.now + SETTLE)
    start = pair.clock.now
    typed: list[float] = []
    took: list[float] = []

    def key() -> None:
        typed.append(pair.clock.now)
        client.write(b"x")

    def look() -> None:
        new = peer.got() - len(peer.sent.get(STREAM_ZERO, b""))
        if new:
            peer.write(bytes(new))
        while len(took) < client.got():
            took.append(pair.clock.now - typed[len(took)])

    every(pair, KEYS_APART, key, start + seconds)
    every(pair, 0.001, look, start + seconds + 1.0)
    pair.clock.at(start + moment, partial(event, pair))
    run_to(pair, start + seconds + 1.0)
    return took + [inf] * (len(typed) - len(took))


def wifi_dies(pair: Pair) -> None:
    pair.stall(0)


def hand_over(pair: Pair) -> None:
    """5G is there already: WiFi is drained."""
    pair.client.remove_connection(ConnectionId(0))


def keys(seconds: float) -> Iterator[Figure]:
    """A key every 50 ms over WiFi and 5G; what happens does at different moments between two of them."""
    moments = [1.0 + number / 200 for number in range(10)]
    found = [echoes(wifi_dies, moment, 2.0) for moment in moments]
    yield Figure("echo of a key, median while WiFi lives", 1e3 * median(found[0][:20]), "ms")
    yield Figure("the latest while WiFi dies", 1e3 * max(map(max, found)), "ms", 200)
    latest = 1e3 * max(max(echoes(hand_over, moment, 2.0)) for moment in moments)
    yield Figure("the latest in a planned handover, 46 ms of them the way over 5G and back", latest, "ms", 46 + 10)


# --- small messages ---


Found = dict[str, tuple[list[float], float]]
"""Seconds of each message and bytes sent for each byte, of each party."""


def sent_messages(routes: Sequence[Route], policy: str, seconds: float, seed: int) -> tuple[list[float], float]:
    """(seconds from writing to reading of each message, bytes sent for each byte of a message)."""
    pair = opened(routes, seed, policy)
    client, size = pair.client, 200
    run_to(pair, pair.clock.now + SETTLE)
    start = pair.clock.now
    before = sum(c.bytes_sent for c in client.session.connections.values())
    sent: list[float] = []
    took: list[float] = []

    def write() -> None:
        sent.append(pair.clock.now)
        client.write(bytes(size))

    def look() -> None:
        while len(took) < pair.peer.got() // size:
            took.append(pair.clock.now - sent[len(took)])

    every(pair, 0.020, write, start + seconds)
    every(pair, 0.0005, look, start + seconds + 2.0)
    run_to(pair, start + seconds + 2.0)
    took += [float("inf")] * (len(sent) - len(took))
    spent = sum(c.bytes_sent for c in client.session.connections.values()) - before
    return took, spent / (len(sent) * size)


def _many(routes: Sequence[Route], policy: str, seconds: float) -> tuple[list[float], float]:
    """(seconds of each message, bytes for each) over several seeds."""
    took, spent = list[float](), list[float]()
    for seed in range(1, 6):
        found, share = sent_messages(routes, policy, 4 * seconds, seed)
        took += found
        spent.append(share)
    return took, median(spent)


def late(took: Sequence[float]) -> float:
    """The 99th percentile."""
    return sorted(took)[int(0.99 * len(took))]


def steady_and_unsteady(found: Found, wifi_is: str = "") -> Iterator[Figure]:
    """Figures of "WiFi" and "5G" alone, of which one loses and varies, and of `latency` and `redundant` over both.

    Beside them stands what whichever of the two is earlier would bring; a session whose networks fill each other's gaps
    can be better than that.
    """
    (wifi, _), (cellular, _) = found["WiFi"], found["5G"]
    first = [min(both) for both in zip(wifi, cellular, strict=False)]
    for name, took in ((f"WiFi alone{wifi_is}", wifi), ("5G alone", cellular), ("whichever of them is earlier", first)):
        yield Figure(f"{name}: median {1e3 * median(took):.1f} ms, p99", 1e3 * late(took), "ms")
    for mode, share in (("latency", 0.5), ("redundant", 0.3)):
        took, spent = found[mode]
        for what, value, bound, least in (
            ("p99 against WiFi alone", late(took) / late(wifi), share, late(first) / late(wifi)),
            ("p99 against 5G alone", late(took) / late(cellular), 1.1, late(first) / late(cellular)),
            ("median against 5G alone", median(took) / median(cellular), 0.5, median(first) / median(cellular)),
        ):
            yield Figure(f"{mode} over both, {what} (whichever is earlier: {least:.2f})", value, "", bound)
        yield Figure(f"{mode}: bytes sent for each byte", spent, "")


def both_unsteady(found: Found) -> Iterator[Figure]:
    """The same where both lose and vary, of `redundant`."""
    (wifi, _), (cellular, _), (took, spent) = found["WiFi"], found["5G"], found["redundant"]
    first = [min(both) for both in zip(wifi, cellular, strict=False)]
    best = min(late(wifi), late(cellular))
    yield Figure("both lose 3 % and vary by 30 ms: the better one alone, p99", 1e3 * best, "ms")
    yield Figure(
        f"redundant, p99 against it (whichever is earlier: {late(first) / best:.2f})", late(took) / best, "", 0.5
    )
    yield Figure("redundant: bytes sent for each byte", spent, "")


def _steered(
    wifi: Route, cellular: Route, modes: Sequence[str], seconds: float
) -> dict[str, tuple[list[float], float]]:
    """What each network brings alone, and both with each mode of steering."""
    found = {name: _many([link], "adaptive", seconds) for name, link in (("WiFi", wifi), ("5G", cellular))}
    return found | {mode: _many([wifi, cellular], f"steering.{mode}", seconds) for mode in modes}


def messages(seconds: float) -> Iterator[Figure]:
    """200 bytes every 20 ms over WiFi and 5G, for both meanings of a jitter of 30 ms."""
    cellular = path(190, 0.046, up=35, queue=0.100)
    for said, wifi in (
        (" (0.9 to 30.9 ms, 5 % lost)", path(200, 0.0318, loss=0.05, jitter=0.015)),
        (" (0.9 ms and 30 ms more or less, 5 % lost)", path(200, 0.0018, loss=0.05, jitter=0.030)),
    ):
        yield from steady_and_unsteady(_steered(wifi, cellular, ("latency", "redundant"), seconds), said)
    lossy = path(200, 0.0318, loss=0.03, jitter=0.015)
    far = path(190, 0.046, up=35, queue=0.100, loss=0.03, jitter=0.015)
    yield from both_unsteady(_steered(lossy, far, ("redundant",), seconds))


# --- Morawski and Karbowanczyk, Figure 6 ---


def _four(bursts: bool, priority: int, congestion: str) -> tuple[float, float]:
    """(median milliseconds from writing a burst to its end, Mbit/s of all streams) with four streams, 2 s apart."""
    dsl = path(7.5, 0.037, queue=0.185, congestion=congestion)
    lte = path(10, 0.086, queue=0.200, congestion=congestion)
    pair = opened([dsl, lte])
    run_to(pair, SETTLE)
    start = pair.clock.now
    end, size = start + 16.0, 10_000
    streams = [pair.client.open_stream(priority if not n else 3) for n in range(4)]
    run_to(pair, start + 0.2)
    took: list[float] = []
    for number, stream in enumerate(streams):
        assert stream is not None
        if number or not bursts:
            pair.clock.at(start + 2.0 * number + 0.2, partial(bulk, pair, stream, end))
        else:
            _bursts(pair, stream, size, end, took)
    run_to(pair, start + 8.0)
    before = sum(pair.client.got(stream) for stream in streams if stream is not None)
    settled = len(took)
    run_to(pair, end)
    got = sum(pair.client.got(stream) for stream in streams if stream is not None) - before
    return (median(took[settled:]) * 1e3 if bursts else 0.0), got * 8 / 1e6 / 8.0


def _bursts(pair: Pair, stream: StreamId, size: int, end: float, took: list[float]) -> None:
    sent: list[float] = []

    def write() -> None:
        sent.append(pair.clock.now)
        pair.peer.write(bytes(size), stream)

    def look() -> None:
        while len(took) < pair.client.got(stream) // size:
            took.append(pair.clock.now - sent[len(took)])

    every(pair, 0.100, write, end)
    every(pair, 0.0005, look, end)


def four_streams(seconds: float) -> Iterator[Figure]:
    """Morawski and Karbowanczyk's Figure 6: DSL 7.5 Mbit/s 37 ms, LTE 10 Mbit/s 86 ms, four streams 2 s apart."""
    for congestion in ("cubic", "bbr"):
        _, rate = _four(bursts=False, priority=3, congestion=congestion)
        plain, _ = _four(bursts=True, priority=3, congestion=congestion)
        urgent, with_urgent = _four(bursts=True, priority=0, congestion=congestion)
        yield Figure(f"{congestion}: 10 kB bursts as urgent as bulk, median (multipath QUIC: 148 ms)", plain, "ms")
        yield Figure(f"{congestion}: bursts of priority 0 (144 ms; 77 ms with bounded queues)", urgent, "ms", 77)
        share = with_urgent / rate
        yield Figure(f"{congestion}: rate of all streams against four of bulk", share, "", 0.97, True)


# --- Viernickel et al., Figure 12 ---


def _kilobyte(urgent: bool, routes: Sequence[Route], times: int) -> float:
    """Median milliseconds from asking for 1 kB to having it, beside a download of 10 MB."""
    pair = opened(routes)
    run_to(pair, SETTLE)
    start = pair.clock.now
    stream = pair.client.open_stream(0) if urgent else STREAM_ZERO
    assert stream is not None
    pair.client.write(b"go")
    run_to(pair, start + 0.1)
    pair.peer.write(bytes(10_000_000))
    took = []
    for count in range(1, times + 1):
        run_to(pair, start + 0.5 + 0.2 * count)
        asked, heard = pair.clock.now, pair.peer.got(stream)
        pair.client.write(b"?", stream)
        pair.clock.run_until(lambda heard=heard: pair.peer.got(stream) > heard, 9, MAX_EVENTS)  # type: ignore[misc]
        pair.peer.write(bytes(1000), stream)
        end = len(pair.peer.sent[stream])
        pair.clock.run_until(lambda end=end: pair.client.got(stream) >= end, 60, MAX_EVENTS)  # type: ignore[misc]
        took.append(pair.clock.now - asked)
    return median(took) * 1e3


def kilobyte(seconds: float) -> Iterator[Figure]:
    """Viernickel et al., Figure 12: 1 kB of high priority beside 10 MB, over 22 ms and 62 ms, 10 Mbit/s each."""
    routes = [path(10, 0.022), path(10, 0.062)]
    control, urgent = _kilobyte(False, routes, 1), _kilobyte(True, routes, round(2.5 * seconds))
    yield Figure("1 kB behind what was written before, on the same stream", control, "ms")
    yield Figure("1 kB of priority 0", urgent, "ms")
    yield Figure("against the same stream (the paper: clearly less than MPTCP)", urgent / control, "", 0.5)


PARTS: dict[str, tuple[str, Callable[[float], Iterator[Figure]]]] = {
    "flow": ("One stream, BBR", one_flow),
    "constant": ("A constant stream over two thin links, BBR", constant),
    "keys": ("Keys and their echoes while WiFi dies silently", keys),
    "messages": ("200 bytes every 20 ms, BBR", messages),
    "morawski": ("Four streams of Morawski and Karbowanczyk's Figure 6", four_streams),
    "viernickel": ("The urgent kilobyte of Viernickel et al.'s Figure 12, BBR", kilobyte),
}
