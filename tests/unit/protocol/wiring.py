"""Two sessions in one process, joined by lines on which a test can listen, alter, hold and inject segments.

Time stands still unless a test moves it, and everything is delivered at once: only the protocol is under test here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from multi.errors import RemoteProtocolError
from multi.events import CloseConnection, Event, Notify, SendBytes, SessionClosed, SessionOpened, StreamReadable
from multi.protocol.acceptor import Refused, SessionTable
from multi.protocol.payloads import Ack, encode_ack, encode_stream_ack
from multi.protocol.segment import SegmentType, encode
from multi.protocol.session import SessionCore
from multi.protocol.settings import Protect, SessionSettings
from multi.reasons import Cause, Reason
from multi.schedulers import create_scheduler
from multi.types import ConnectionFacts, ConnectionId, SessionId, Side, StreamId

STREAM_0 = StreamId(0)
PLAIN = ConnectionFacts("tcp")
TLS = ConnectionFacts("tcp", secure=True, peer_verified=True, channel_binding=b"\x11" * 32)
QUIC = ConnectionFacts("quic", lanes=3, secure=True, peer_verified=True, channel_binding=b"\x11" * 32)
CLEAR = SessionSettings(protect=Protect.NEVER)

Change = Callable[[bytes], bytes | None]
"""Gets a whole segment and returns what arrives instead; None = nothing."""


def whole_ack(ack: Ack) -> bytes:
    """The payload of an ACK, which a receiver puts together from what it has encoded already."""
    streams = [encode_stream_ack(each.stream, each.cumulative, each.window, each.ranges) for each in ack.streams]
    return encode_ack(ack.session_window, ack.control_cumulative, ack.control_ranges, streams)


def cut(data: bytes) -> list[bytes]:
    """Cut bytes into whole segments, sealed or not."""
    found = []
    while data:
        length = int.from_bytes(data[4:8], "big")
        found.append(data[:length])
        data = data[length:]
    return found


def kinds(raw: list[bytes]) -> list[SegmentType]:
    return [SegmentType(segment[1]) for segment in raw]


class Node:
    """One session and what its driver would have seen of it."""

    def __init__(self, session: SessionCore) -> None:
        self.session = session
        self.received: dict[StreamId, bytearray] = {}
        self.opened = False
        self.closed: SessionClosed | None = None
        self.events: list[Event] = []
        self.ended: dict[ConnectionId, str] = {}
        self.reading = True

    def got(self, stream: StreamId = STREAM_0) -> bytes:
        return bytes(self.received.get(stream, b""))

    def states(self) -> dict[ConnectionId, str]:
        return {c.id: c.state.value for c in self.session.connections.values()}


@dataclass(eq=False, slots=True)
class Line:
    """One connection. Without `client` the test plays the client, with `captured` it plays the server."""

    id: ConnectionId
    client: Node | None
    client_facts: ConnectionFacts
    server_facts: ConnectionFacts
    table: SessionTable[Node]
    captured: bool = False
    server: Node | None = None
    up: deque[tuple[int, bytes]] = field(default_factory=deque)
    down: deque[tuple[int, bytes]] = field(default_factory=deque)
    hold_up: bool = False
    hold_down: bool = False
    change_up: Change | None = None
    change_down: Change | None = None
    sent_up: list[bytes] = field(default_factory=list)
    """Every segment the client's side has put on the line, before any change."""
    sent_down: list[bytes] = field(default_factory=list)
    error: str = ""
    waiting: bytes = b""
    credit: int = 1 << 20
    """What the transport of each side takes at a time."""

    def inject(self, *segments: bytes, lane: int = 0) -> None:
        """Send to the server as the test wishes."""
        self.up.extend((lane, segment) for segment in segments)

    def answer(self, *segments: bytes, lane: int = 0) -> None:
        """Send to the client as the test wishes."""
        self.down.extend((lane, segment) for segment in segments)


class Ends:
    """A client, a server table and the lines between them."""

    def __init__(
        self,
        client: SessionSettings | None = None,
        server: SessionSettings | None = None,
        *,
        psk: Callable[[bytes], bytes | None] | None = None,
        seed: int = 1,
    ) -> None:
        self.now = 0.0
        self.random = Random(seed)
        self.server_settings = server or SessionSettings()
        self.psk = psk
        self.session_id = SessionId(self.random.randbytes(16))
        self.client = Node(self._session(Side.CLIENT, self.session_id, client or SessionSettings()))
        self.servers: list[Node] = []
        self.table = self.new_table()
        self.lines: list[Line] = []

    @property
    def server(self) -> Node:
        (only,) = self.servers
        return only

    def _session(self, side: Side, session_id: SessionId, settings: SessionSettings) -> SessionCore:
        return SessionCore(
            side,
            session_id,
            settings,
            entropy=self.random.randbytes,
            make_scheduler=create_scheduler,
            now=self.now,
            psk=self.psk if side is Side.SERVER else None,
        )

    def new_table(self, reset_key: bytes = b"") -> SessionTable[Node]:
        """A server of its own, as a load balancer may have several."""

        def accept(session_id: SessionId, source: str) -> Node:
            node = Node(self._session(Side.SERVER, session_id, self.server_settings))
            self.servers.append(node)
            return node

        return SessionTable(accept, reset_key=reset_key)

    # --- lines  ---

    def connect(self, facts: ConnectionFacts = PLAIN, server_facts: ConnectionFacts | None = None) -> Line:
        """The client opens a connection; nothing moves before `pump`."""
        line = self._line(self.client, facts, server_facts or facts)
        self.client.session.connection_opened(line.id, facts, now=self.now)
        return line

    def stranger(self, facts: ConnectionFacts = PLAIN) -> Line:
        """A connection to the server on which the test speaks."""
        return self._line(None, facts, facts)

    def _line(self, client: Node | None, client_facts: ConnectionFacts, server_facts: ConnectionFacts) -> Line:
        line = Line(ConnectionId(len(self.lines)), client, client_facts, server_facts, self.table)
        self.lines.append(line)
        return line

    def lose(self, line: Line) -> None:
        """The connection breaks; what was under way is lost."""
        line.up.clear()
        line.down.clear()
        for node in (line.client, line.server):
            if node is not None:
                node.session.connection_lost(line.id, Reason(Cause.TRANSPORT, "reset"), now=self.now)
        self.pump()

    # --- time and movement  ---

    def pump(self) -> None:
        for _ in range(200):
            if not (self._collect() | self._deliver()):
                return
        raise AssertionError("the ends never come to rest")

    def advance(self, seconds: float, step: float = 0.05) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + step)
            for node in (self.client, *self.servers):
                due = node.session.next_timer()
                if due is not None and due <= self.now:
                    node.session.handle_timer(now=self.now)
            self.pump()

    def _collect(self) -> bool:
        moved = False
        for node in (self.client, *self.servers):
            for line in self.lines:
                if node in (line.client, line.server):
                    node.session.set_credit(line.id, line.credit, now=self.now)
            for effect in node.session.effects():
                moved = True
                match effect:
                    case SendBytes(connection, lane, buffers):
                        self._put(node, self.lines[connection], lane, b"".join(buffers))
                    case CloseConnection(connection, _, reason):
                        node.ended[connection] = reason
                    case StreamReadable(stream) if node.reading:
                        data = node.session.read(stream, -1, now=self.now)
                        node.received.setdefault(stream, bytearray()).extend(data)
                    case SessionOpened():
                        node.opened = True
                    case SessionClosed():
                        node.closed = effect
                    case Notify(event):
                        node.events.append(event)
                    case _:
                        pass
        return moved

    def _put(self, node: Node, line: Line, lane: int, data: bytes) -> None:
        upwards = node is line.client
        for segment in cut(data):
            (line.sent_up if upwards else line.sent_down).append(segment)
            change = line.change_up if upwards else line.change_down
            arriving = segment if change is None else change(segment)
            if arriving is not None:
                (line.up if upwards else line.down).append((lane, arriving))

    def _deliver(self) -> bool:
        moved = False
        for line in self.lines:
            while line.up and not line.hold_up and not line.captured:
                moved = True
                self._to_server(line, *line.up.popleft())
            while line.down and not line.hold_down and line.client is not None:
                moved = True
                lane, data = line.down.popleft()
                line.client.session.receive(line.id, memoryview(data), lane, now=self.now)
        return moved

    def _to_server(self, line: Line, lane: int, data: bytes) -> None:
        if line.server is None:
            line.waiting += data
            try:
                routed = line.table.route(line.waiting, "source")
            except RemoteProtocolError as error:
                line.error = str(error)
                return
            if routed is None:
                return
            data, line.waiting = line.waiting, b""
            if isinstance(routed, Refused):
                line.error = routed.reason
                line.sent_down.append(routed.reply)
                line.down.append((0, routed.reply))
                return
            line.server = routed
            routed.session.connection_opened(line.id, line.server_facts, now=self.now)
        line.server.session.receive(line.id, memoryview(data), lane, now=self.now)

    # --- shortcuts  ---

    def write(self, node: Node, data: bytes, stream: StreamId = STREAM_0) -> None:
        node.session.write(stream, data, now=self.now)
        self.pump()

    def segment(self, type_: int, payload: bytes = b"", *, sequence: int = 0, stream: int = 0) -> bytes:
        return encode(type_, self.session_id, payload, sequence=sequence, stream=StreamId(stream))


def connected(settings: SessionSettings = CLEAR) -> tuple[Ends, Line]:
    """Two ends and their first connection, after the handshake."""
    ends = Ends(settings, settings)
    line = ends.connect()
    ends.pump()
    return ends, line
