"""Two engines and the paths between them, in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

from multi.lab.engines.links import DatagramLink, DatagramLinkSpec, Line
from multi.lab.sim.clock import Clock
from multi.multipath.facts import PathFacts
from multi.transports.quic.engine import PathClosed, PathEngine, PathOpened, PathStatusChanged, QuicEngine
from multi.transports.quic.packets import header_of
from multi.transports.quic.udp_port import PeerAddress

SERVER = ("192.0.2.1", 443)
AHEAD = 1024 * 1024  # bytes that an application writes before the engine has sent them
TICK = 1e-6  # seconds that a timer comes late: what was due at a sum of times may else be due for ever
BEGIN = 1.0  # seconds; engines take 0 for "never"
MAX_EVENTS = 1_000_000  # twenty times what a download of 10 MB takes


class Peer(Protocol):
    """What is at the end of the paths."""

    def receive(self, data: bytes, segment: int, address: PeerAddress, now: float) -> None: ...


class EngineEnd:
    """An engine, its timer, and an application that writes as fast as it may and reads at once."""

    def __init__(self, clock: Clock, engine: QuicEngine, links: dict[PeerAddress, DatagramLink]) -> None:
        self.engine, self.links = engine, links
        self.events: list[Any] = []
        self.paths: list[PathOpened | PathClosed | PathStatusChanged] = []
        self.received = 0
        self.data = bytearray()
        self.keep_data = False
        self.ended = False
        self.complete_at: float | None = None
        self.last_read = 0.0
        self.longest_gap = 0.0
        """Seconds between two readings, from the first on."""
        self.on_event: Callable[[Any], None] = lambda event: None
        self.reads_after = 0.0
        """Seconds that a datagram waits to be read, with those that come meanwhile, as for a process."""
        self._clock = clock
        self._unread: list[tuple[bytes, PeerAddress]] = []
        self._to_write: dict[int, tuple[memoryview, bool]] = {}
        self._timer_at: float | None = None

    def write(self, data: bytes, end: bool = False, stream: int = 0) -> None:
        """Queue bytes; they go to the engine when it has sent those before."""
        before = self._to_write.get(stream, (b"", False))[0]
        self._to_write[stream] = (memoryview(bytes(before) + data), end)
        self.pump()

    def take(self, data: bytes, address: PeerAddress) -> None:
        """A datagram."""
        self._unread.append((data, address))
        if len(self._unread) > 1:
            return
        if self.reads_after:
            self._clock.at(self._clock.now + self.reads_after, self._read)
        else:
            self._read()

    def _read(self) -> None:
        unread, self._unread = self._unread, []
        for data, address in unread:
            self.engine.receive(data, len(data), address, self._clock.now)
        self.pump()

    def pump(self) -> None:
        """Events out, data in, datagrams out, the timer anew."""
        clock = self._clock
        while (event := self.engine.next_event()) is not None:
            self._take_event(event)
        for stream, (data, end) in list(self._to_write.items()):
            # What is little does not wait for much on another stream.
            room = AHEAD - self.engine.unsent() if len(data) > AHEAD else len(data)
            if room > 0 and self.engine.has_stream(stream) | (self.complete_at is not None):
                last = len(data) <= room
                self.engine.write(stream, data[:room], end and last)
                if last:
                    del self._to_write[stream]
                else:
                    self._to_write[stream] = (data[room:], end)
        for burst in self.engine.bursts(clock.now):
            link = self.links[burst.address]
            for start in range(0, len(burst.data), burst.segment):
                link.send(bytes(burst.data[start : start + burst.segment]))
        at = self.engine.next_timer()
        if at is not None and (self._timer_at is None or at < self._timer_at or self._timer_at < clock.now):
            self._timer_at = at
            clock.at(at + TICK, self._fire)

    def _fire(self) -> None:
        at = self.engine.next_timer()
        if at is None or self._timer_at is None or self._timer_at > self._clock.now:
            return
        self._timer_at = None
        if at <= self._clock.now:
            self.engine.handle_timer(self._clock.now)
        self.pump()

    def _take_event(self, event: Any) -> None:
        now = self._clock.now
        match type(event).__name__:
            case "StreamDataReceived":
                if self.received and event.data:
                    self.longest_gap = max(self.longest_gap, now - self.last_read)
                self.last_read = now
                self.received += len(event.data)
                if self.keep_data:
                    self.data += event.data
                self.ended = self.ended or event.end_stream
            case "HandshakeCompleted":
                self.complete_at = now
            case "PathOpened" | "PathClosed" | "PathStatusChanged":
                self.paths.append(event)
        self.events.append(type(event).__name__)
        self.on_event(event)


class EnginePair:
    """A client and a server with some paths between them."""

    def __init__(
        self,
        client: QuicEngine,
        server: Callable[[bytes], QuicEngine],
        specs: Sequence[tuple[DatagramLinkSpec, DatagramLinkSpec]],
        seed: int = 1,
        beside: EnginePair | None = None,
        bottleneck: Line | None = None,
    ) -> None:
        """`server` makes the engine for the id that the client's first packet has; `specs`: (up, down) of each path;
        `seed` decides which datagrams are lost; `beside` has the same clock; the server sends over `bottleneck`, where
        there is one, on all paths."""
        if beside is None:
            self.clock = Clock(seed)
            self.clock.now = BEGIN
        else:
            self.clock = beside.clock
        self.ups: list[DatagramLink] = []
        self.downs: list[DatagramLink] = []
        self._make_server = server
        self.server: EngineEnd | None = None
        self.moved: dict[int, int] = {}
        """Ports of the client on a path, as the server sees them, where a NAT has changed them."""
        self.readdressed: dict[int, int] = {}
        """The same of its addresses."""
        client_links: dict[PeerAddress, DatagramLink] = {}
        self._server_links: dict[PeerAddress, DatagramLink] = {}
        for index, (up, down) in enumerate(specs):
            self.ups.append(DatagramLink(up, self.clock, self._to_server(index)))
            self.downs.append(DatagramLink(down, self.clock, self._to_client(index), bottleneck))
            client_links[self.place(index)] = self.ups[-1]
            self._server_links[self.seen(index)] = self.downs[-1]
        self.client = EngineEnd(self.clock, client, client_links)
        client.connect(self.place(0), self.clock.now)
        self.client.pump()

    @staticmethod
    def place(index: int) -> PeerAddress:
        """The ends of a path as the client names them."""
        return PeerAddress(SERVER, bytes([10, index, 0, 1]))

    def seen(self, index: int) -> PeerAddress:
        """The client on a path as the server sees it."""
        return PeerAddress((f"10.{index}.{self.readdressed.get(index, 0)}.1", 1000 + self.moved.get(index, 0)))

    def move(self, index: int, *, address: bool = False) -> None:
        """A NAT on the path forgets the client: it has another port from now on, or another address."""
        changed = self.readdressed if address else self.moved
        changed[index] = changed.get(index, 0) + 1
        self._server_links[self.seen(index)] = self.downs[index]

    def _to_server(self, index: int) -> Callable[[bytes], None]:
        def deliver(data: bytes) -> None:
            if self.server is None:
                header = header_of(data)
                assert header is not None
                self.server = EngineEnd(self.clock, self._make_server(header.destination_cid), self._server_links)
            self.server.take(data, self.seen(index))

        return deliver

    def _to_client(self, index: int) -> Callable[[bytes], None]:
        return lambda data: self.client.take(data, self.place(index))

    def run(self, condition: Callable[[], bool], limit: float = 60.0) -> bool:
        """Until it holds; False when so many seconds pass before."""
        return self.clock.run_until(condition, limit, MAX_EVENTS)

    def connect(self) -> None:
        """Until both ends have done their handshake."""
        assert self.run(lambda: None not in (self.client.complete_at, self.server and self.server.complete_at))

    def open(self, index: int, *, backup: bool = False) -> int:
        """Open a path, as soon as the server has given ids for it."""
        engine = cast(PathEngine, self.client.engine)
        made: list[int] = []

        def opened() -> bool:
            if not made and (path := engine.open_path(self.place(index), self.clock.now, backup)) is not None:
                made.append(path)
                self.client.pump()
            return bool(made)

        assert self.run(opened)
        return made[0]

    def open_all(self) -> None:
        """Over every link besides the first, each as soon as it can be."""
        for index in range(1, len(self.ups)):
            self.open(index)

    def facts(self, end: EngineEnd | None = None) -> dict[int, PathFacts]:
        """Of the paths of one end, the server's if none is given."""
        end = end or self.server
        assert end is not None
        return {path.id: path for path in cast(PathEngine, end.engine).paths()}

    def download(self, size: int, limit: float = 60.0) -> float:
        """Let the server send so many bytes; the seconds until the last has come, from now."""
        server = self.server
        assert server is not None
        begin, self.client.ended = self.clock.now, False
        expected = self.client.received + size
        self.client.write(b"?", stream=0)
        assert self.run(lambda: server.received > 0)
        server.write(bytes(size), end=True)
        assert self.run(lambda: self.client.received >= expected, limit), "the download does not come to its end"
        return self.clock.now - begin
