"""Whole sessions against strangers and against peers that have proved themselves and then break every rule.

An input is a list of things to do: segments of a small grammar, mostly valid and mostly absurd, on several connections
and lanes, time that passes, connections that break, and an application that goes on working meanwhile. Nothing may
raise but what the application asked for in vain, the ends come to rest after every step, and everything a peer can
make grow stays below its documented bound.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from multi.errors import LocalProtocolError, SessionLost
from multi.protocol import (
    authenticator,
    connection,
    datagrams,
    liveness,
    receive_stream,
    receiver,
    send_stream,
    sender,
    session,
    streams,
)
from multi.protocol import control as outbox
from multi.protocol import dispatch as incoming
from multi.protocol.connection import MAX_DATAGRAM
from multi.protocol.datagrams import MAX_RECEIVED, MAX_UNSENT, SEEN
from multi.protocol.dispatch import MAX_HELD
from multi.protocol.payloads import (
    Ack,
    Close,
    DrainStep,
    Keepalive,
    Policy,
    StreamAck,
    encode_addresses,
    encode_close,
    encode_drain,
    encode_keepalive,
    encode_policy,
    encode_role,
    encode_scheduler,
    encode_unsigned,
)
from multi.protocol.segment import MAX_DATA_PAYLOAD, SegmentType, encode
from multi.protocol.session import MAX_CONTROL_BACKLOG
from multi.protocol.settings import MAX_EARLY_DATA, Protect, SessionSettings
from multi.reasons import Cause, Reason
from multi.schedulers import scheduler_names
from multi.schedulers.steering import MODES, PREFIX
from multi.types import MESSAGES, ConnectionFacts, Role, SessionId, Side, StreamId
from tests.fuzz.fuzz_handshake import spoken
from tests.fuzz.mutation import Choices
from tests.fuzz.target import Target, check, may_raise
from tests.unit.protocol.wiring import CLEAR, PLAIN, QUIC, TLS, Ends, Line, Node, whole_ack

STEPS = 60  # things that are done for one input
SMALL = replace(CLEAR, max_streams=4, max_connections=4, max_stream_window=128 * 1024, max_session_window=256 * 1024)
SEALING = replace(SMALL, protect=Protect.AUTO)
ALWAYS = replace(SMALL, protect=Protect.ALWAYS)
FRAMES = replace(QUIC, message_size=1200)
PSK = {b"id": b"k" * 16}
KEYED = replace(SMALL, psk_id=b"id", psk=b"k" * 16)
MODULES = (
    *(authenticator, connection, datagrams, incoming, liveness, outbox, receive_stream),
    *(receiver, send_stream, sender, session, streams),
)


# --- the grammar  ---

RESET = Reason(Cause.TRANSPORT, "reset")


class Grammar:
    """Segments that a peer may say to `node`, with numbers near those that count for it."""

    def __init__(self, choices: Choices, node: Node) -> None:
        self._choices = choices
        self._node = node
        self._control = 0
        """Next number of a control segment."""

    def segment(self) -> bytes:
        choices = self._choices
        if choices.chance(20):
            return choices.some()
        kind, payload, sequence, stream = self.parts()
        session_id = self._node.session.session_id if not choices.chance(40) else SessionId(b"another session!")
        return choices.damaged(encode(kind, session_id, payload, sequence=sequence, stream=stream))

    def parts(self) -> tuple[SegmentType, bytes, int, StreamId]:
        """Type, payload, sequence number and stream of a segment."""
        choices = self._choices
        kind = choices.pick(_LIKELY) if not choices.chance(6) else choices.pick(tuple(SegmentType))
        payload = choices.damaged(self._payload(kind))
        return kind, payload, self._sequence(kind), StreamId(self._stream() if choices.chance(2) else 0)

    def _payload(self, kind: SegmentType) -> bytes:
        choices = self._choices
        match kind:
            case SegmentType.DATA:
                size = choices.pick((0, 1, 1, 10, 1000, 1400, 16 * 1024, 65_536, MAX_DATA_PAYLOAD))
                return bytes(size) if not choices.chance(4) else choices.some()
            case SegmentType.ACK:
                entries = tuple(
                    StreamAck(StreamId(self._stream()), self._offset(), self._offset(), self._ranges())
                    for _ in range(choices.below(3))
                )
                return whole_ack(Ack(self._offset(), choices.edge(self._control, 0), self._ranges(), entries))
            case SegmentType.KEEPALIVE:
                return encode_keepalive(Keepalive(choices.edge(), choices.chance(2), choices.chance(2)))
            case SegmentType.CLOSE:
                return encode_close(Close(choices.edge(0, 0, 1, bits=32), "over"))
            case SegmentType.POLICY:
                name = choices.pick((*scheduler_names(), "", "no such scheduler", "x" * 255))
                parameter = choices.pick(("n", "alpha", "beta", "weight", "x" * 64))
                value = choices.pick((0.0, -0.0, 1.0, -1.0, 0.5, 1e308, -1e308, 5e-324))
                parameters = ((parameter, value),) * choices.below(3)
                return encode_policy(
                    Policy(name, parameters, choices.chance(2), choices.pick(("off", "rescue", "full")))
                )
            case SegmentType.STEER:
                name = choices.pick((*(PREFIX + mode for mode in MODES), "", "no such scheduler"))
                return encode_scheduler(name, (("max_rtt", 0.1),) * choices.below(2))
            case SegmentType.ROLE:
                return encode_role(self._number(), choices.pick(tuple(Role)))
            case SegmentType.DRAIN:
                return encode_drain(self._number(), choices.pick(tuple(DrainStep)))
            case SegmentType.ADDRESS:
                return encode_addresses([("192.0.2.1", 1 + choices.byte())] * choices.below(3))
            case SegmentType.FIN | SegmentType.MAX_STREAMS:
                return encode_unsigned((choices.edge(*self._offsets()), 8))
            case SegmentType.RESET:
                return encode_unsigned((choices.edge(*self._offsets()), 8), (choices.edge(bits=32), 4))
            case SegmentType.STOP_SENDING:
                return encode_unsigned((choices.edge(bits=32), 4), (choices.edge(*self._offsets()), 8))
            case SegmentType.OPEN:
                return bytes([choices.below(10)])
            case SegmentType.DATAGRAM:
                return bytes(choices.pick((0, 1, 200, 1200, MAX_DATAGRAM, MAX_DATAGRAM + 1)))
            case _:
                return choices.pick(spoken().get(kind, (b"",)))

    def _sequence(self, kind: SegmentType) -> int:
        if kind is SegmentType.DATAGRAM:
            return self._choices.edge(0, 1, 2, SEEN, 2 * SEEN)
        if kind >= SegmentType.FIN:
            if self._choices.chance(8):
                return self._choices.edge(self._control, self._control + 512)
            self._control += 1
            return self._control - 1
        return self._choices.edge(*self._offsets()) if kind is SegmentType.DATA else self._choices.edge(0)

    def _stream(self) -> int:
        return self._choices.edge(0, 1, 2, 3, 4, 6, 8, 10, bits=32)

    def _number(self) -> int:
        return self._choices.edge(0, 1, 2, 3, bits=32)

    def _offset(self) -> int:
        return min(self._choices.edge(*self._offsets()), (1 << 62) - 1)

    def _offsets(self) -> tuple[int, ...]:
        """What the other side has sent, read and allowed on a stream, and what it has in all."""
        session = self._node.session
        found = [0, session.sender.used, session.sender.window, session.receiver.charged]
        for receiving in list(session.receiver.streams.values())[:2]:
            found += [receiving.next_offset, receiving.highest, receiving.window.advertised]
        return tuple(found)

    def _ranges(self) -> tuple[tuple[int, int], ...]:
        ranges, above = [], self._offset()
        for _ in range(self._choices.pick((0, 0, 0, 1, 2, 32))):
            start = above + 1 + self._choices.byte()
            above = start + 1 + self._choices.byte()
            ranges.append((start, above))
        return tuple(ranges)


_LIKELY = (
    *(SegmentType.DATA, SegmentType.DATA, SegmentType.DATA, SegmentType.ACK, SegmentType.ACK, SegmentType.KEEPALIVE),
    *(SegmentType.FIN, SegmentType.RESET, SegmentType.STOP_SENDING, SegmentType.OPEN, SegmentType.MAX_STREAMS),
    *(SegmentType.DRAIN, SegmentType.ROLE, SegmentType.POLICY, SegmentType.ADDRESS, SegmentType.DATAGRAM),
    SegmentType.STEER,
)


# --- the application  ---


def work(choices: Choices, ends: Ends, node: Node) -> None:
    """One thing an application does."""
    session, now = node.session, ends.now
    known = [*session.sender.streams, *session.receiver.streams]
    stream = choices.pick(known) if known else StreamId(0)
    with may_raise(LocalProtocolError, SessionLost):
        match choices.below(10):
            case 0 | 1:
                if session.sender.used < 1 << 20:
                    session.write(stream, bytes(choices.pick((1, 100, 5000, 80_000))), now=now)
            case 2:
                session.open_stream(choices.below(8), now=now)
            case 3:
                session.finish(stream, now=now)
            case 4:
                session.reset(stream, choices.byte(), now=now)
            case 5:
                session.stop_sending(stream, choices.byte(), now=now)
            case 6:
                node.reading = not node.reading
            case 7:
                session.read(stream, choices.pick((-1, 0, 1, 5000)), now=now)
            case 8:
                session.accept_stream(stream, now=now)
                session.send_datagram(bytes(choices.pick((0, 100, 1200, 40_000))), 0.5, choices.below(3), now=now)
            case _:
                if choices.chance(8):
                    session.close(now=now)


def check_bounds(node: Node) -> None:
    """What a peer can make grow stays below what the settings say."""
    session, settings = node.session, node.session.settings
    alive = [c for c in session.connections.values() if c.alive]
    if session.side is Side.SERVER:
        proved = sum(connection.authenticated for connection in alive)
        check(proved <= settings.max_connections, "more connections than allowed")
        check(len(alive) - proved <= settings.max_unproved, "more connections without a proof than allowed")
    for found in alive:
        check(found.held_size <= MAX_HELD, "more bytes held than allowed")
        check(found.control_backlog <= MAX_CONTROL_BACKLOG, "more unread answers than allowed")
    peers = [s for s in session.receiver.streams if (s % 2 == 0) == (session.side is Side.SERVER) and s]
    check(len(peers) <= settings.max_streams + 1, "more streams than allowed")
    for stream in session.receiver.streams.values():
        check(stream.highest <= stream.window.advertised, "bytes taken beyond the window")
    kept = sum(s.readable + sum(i.end - i.start for i in s.islands) for s in session.receiver.streams.values())
    check(kept <= session.receiver.window.held, "more bytes kept than the window")
    check(session.datagrams.memory <= MAX_UNSENT + MAX_RECEIVED, "more datagrams kept than allowed")
    most = settings.max_session_window + (2 * settings.max_streams + 2) * MAX_EARLY_DATA
    check(session.receiver.window.held <= most, "a window larger than allowed")


def _ends(choices: Choices, settings: SessionSettings, server: SessionSettings | None = None) -> Ends:
    keyed = settings.psk_id
    return Ends(settings, server or settings, psk=PSK.get if keyed else None, seed=choices.byte())


def _pass_time(ends: Ends, seconds: float) -> None:
    """In few steps: timers are due in each of them whatever is in between."""
    ends.advance(seconds, max(0.05, seconds / 8))


# --- a server and a stranger  ---


def _lane(choices: Choices, facts: ConnectionFacts) -> int:
    """Of all there are, the first more often than any other."""
    return max(0, choices.below(facts.lanes + 2) - 2)


def _stranger(choices: Choices, ends: Ends, facts: ConnectionFacts) -> Line:
    """Most begin as clients do, and go on to claim or to send what only those may who have proved themselves."""
    line = ends.stranger(facts)
    if choices.chance(4):
        return line
    kind, proof = choices.pick(((SegmentType.HELLO, SegmentType.CONFIRM), (SegmentType.JOIN, SegmentType.PROVE)))
    line.inject(ends.segment(kind, choices.damaged(choices.pick(spoken()[kind]))))
    if choices.chance(2):
        line.inject(ends.segment(proof, choices.take(32).ljust(32, b"\0")))
    else:
        piece = ends.segment(SegmentType.DATA, bytes(choices.pick((0, 1, 1000, 60_000))))
        line.inject(*[piece] * choices.pick((0, 1, 4, 100)), lane=choices.below(line.server_facts.lanes))
    return line


def run_server(data: bytes) -> None:
    """Strangers speak to a server, with an honest client before them, after them or not at all."""
    choices = Choices(data)
    settings = choices.pick((SMALL, SEALING, ALWAYS, KEYED))
    ends = _ends(choices, settings)
    facts = choices.pick((PLAIN, TLS, QUIC))
    honest: Line | None = None
    if choices.chance(2):
        honest = ends.connect(facts)
        ends.pump()
    grammar = Grammar(choices, ends.client)
    strangers: list[Line] = []
    for _ in range(STEPS):
        if not choices.left:
            break
        match choices.below(12):
            case 0 if len(strangers) < 8:
                strangers.append(_stranger(choices, ends, choices.pick((facts, PLAIN, QUIC))))
            case 1 if strangers:
                ends.lose(choices.pick(strangers))
            case 2:
                _pass_time(ends, choices.pick((0.1, 1.0, 6.0, 0.01)))
            case 3 if choices.chance(3) and len(ends.lines) < 16:
                ends.connect(facts)  # whoever knows the Session ID may have been first: nothing is promised then
            case 4 if strangers and (said := [s for line in ends.lines if line.client for s in line.sent_up]):
                replayed = choices.damaged(choices.pick(said))
                choices.pick(strangers).inject(replayed, lane=_lane(choices, QUIC))
            case _ if strangers:
                line = choices.pick(strangers)
                line.inject(grammar.segment(), lane=_lane(choices, line.server_facts))
            case _:
                strangers.append(_stranger(choices, ends, facts))
        ends.pump()
        for node in ends.servers:
            check_bounds(node)
    proved = {line.id for line in ends.lines if line.client is not None}
    for node in ends.servers:
        for found in node.session.connections.values():
            check(not found.authenticated or found.id in proved, "a stranger is authenticated")
    if honest is not None:
        check(ends.client.closed is None, "strangers ended the client's session")
        before = len(ends.servers[0].got())
        ends.write(ends.client, b"still here")
        ends.advance(0.2)
        check(ends.servers[0].got()[before:] == b"still here", "strangers cut the client off")


# --- peers that have proved themselves  ---


def _lost(_segment: bytes) -> None:
    """What becomes of segments nobody is to hear."""


def run_peer(data: bytes, side: Side) -> None:
    """A peer that has proved itself breaks the rules; `side` is the side it speaks to.

    Where segments are sealed, the honest end seals what the input says, and hears no answers.
    """
    choices = Choices(data)
    sealed = choices.chance(3)
    ends = _ends(choices, SEALING if sealed else SMALL)
    lines = [ends.connect(choices.pick((PLAIN, TLS, QUIC, FRAMES))) for _ in range(1 + choices.below(3))]
    ends.pump()
    ends.write(ends.client, b"hello")
    ends.write(ends.server, b"hello")
    node = ends.server if side is Side.SERVER else ends.client
    speaker = ends.client if side is Side.SERVER else ends.server
    grammar = Grammar(choices, node)

    def take_over(line: Line) -> None:
        """From here on the input speaks."""
        if sealed:
            line.change_up, line.change_down = (None, _lost) if side is Side.SERVER else (_lost, None)
        elif side is Side.SERVER:
            line.client = None
        else:
            line.captured = True

    def say(line: Line, lane: int) -> None:
        if not sealed:
            (line.inject if side is Side.SERVER else line.answer)(grammar.segment(), lane=lane)
            return
        kind, payload, sequence, stream = grammar.parts()
        own = speaker.session.connections.get(line.id)
        if own is not None and own.alive:
            own.send(kind, payload, own.sent_at, sequence=sequence, stream=stream, lane=lane)

    for line in lines:
        take_over(line)
    for _ in range(STEPS):
        if not choices.left:
            break
        line = choices.pick(lines)
        match choices.below(12):
            case 0:
                work(choices, ends, node)
            case 1:
                _pass_time(ends, choices.pick((0.01, 0.1, 1.0, 10.0)))
            case 2 if choices.chance(4):
                node.session.connection_lost(line.id, choices.pick((None, RESET)), now=ends.now)
            case 3 if side is Side.CLIENT and len(lines) < 6:
                lines.append(ends.connect(choices.pick((PLAIN, QUIC))))
                if sealed:
                    ends.pump()
                take_over(lines[-1])
            case _:
                lane = _lane(choices, line.server_facts)
                if line.server_facts.message_size and not sealed and choices.chance(3):
                    lane = MESSAGES
                times = choices.pick((1, 1, 1, 1, 2, 20))
                for _ in range(times):
                    say(line, lane)
        ends.pump()
        check_bounds(node)


# --- messages  ---


def run_messages(data: bytes) -> None:
    """What a peer sends as messages: delivered once, kept within bounds, or the end of that connection alone."""
    choices = Choices(data)
    ends = Ends(SMALL, SMALL)
    line = ends.connect(FRAMES)
    spare = ends.connect(PLAIN)
    ends.pump()
    numbers: list[int] = []
    honest = True
    while choices.left:
        number = choices.edge(*(numbers[-1:] or [0]), SEEN)
        numbers.append(number)
        segment = ends.segment(SegmentType.DATAGRAM, number.to_bytes(8, "big"), sequence=number)
        damaged = choices.damaged(segment)
        honest = honest and damaged == segment
        line.inject(damaged, lane=MESSAGES)
        ends.pump()
        check_bounds(ends.server)
    found = []
    while (message := ends.server.session.datagrams.read()) is not None:
        found.append(message)
    if honest:
        check(len(set(found)) == len(found), "a datagram came twice")
        check({int.from_bytes(message, "big") for message in found} <= set(numbers), "a datagram that nobody sent")
    ends.write(ends.client, b"goes on")
    check(ends.server.got() == b"goes on", "messages cut the stream off")
    check(ends.server.states()[spare.id] == "active", "messages ended another connection")


# --- a client and a server that only pretends  ---


def run_client(data: bytes) -> None:
    """A server whose answers are altered, left out, repeated on other connections, or made up."""
    choices = Choices(data)
    ends = _ends(choices, choices.pick((SMALL, SEALING, ALWAYS, KEYED)))
    grammar = Grammar(choices, ends.client)
    heard: list[bytes] = []

    def alter(segment: bytes) -> bytes | None:
        heard.append(segment)
        if choices.chance(3):
            return choices.damaged(choices.pick((segment, segment, choices.pick(heard[-20:]))))
        return None if choices.chance(16) else segment

    lines: list[Line] = []
    for _ in range(STEPS):
        if not choices.left:
            break
        match choices.below(10):
            case 0 | 1 if len(lines) < 8:
                line = ends.connect(choices.pick((PLAIN, TLS, QUIC)))
                line.change_down = alter
                line.captured = choices.chance(4)
                lines.append(line)
            case 2:
                _pass_time(ends, choices.pick((0.01, 0.3, 1.5, 6.0)))
            case 3 if lines and choices.chance(3):
                ends.lose(choices.pick(lines))
            case 4:
                work(choices, ends, ends.client)
            case _ if lines:
                line = choices.pick(lines)
                answer = grammar.segment() if choices.chance(2) or not heard else choices.damaged(choices.pick(heard))
                line.answer(answer, lane=_lane(choices, line.client_facts))
            case _:
                pass
        ends.pump()
        check_bounds(ends.client)


def _seeds() -> list[bytes]:
    return [bytes((7 * i * n + i) % 256 for i in range(150 + 50 * n)) for n in range(1, 9)]


def _target(name: str, run: Callable[[bytes], None], *, short: int) -> Target:
    return Target(
        name,
        run,
        _seeds,
        MODULES,
        weight=6,
        longest=700,
        memory_base=24 << 20,  # bytes under way, kept and written: windows, segments of 256 KiB and what holds them
        memory_factor=4096,
        short=short,
    )


TARGETS = (
    _target("messages", run_messages, short=40),
    _target("server-stranger", run_server, short=60),
    _target("client-false-server", run_client, short=60),
    _target("server-proved-client", lambda data: run_peer(data, Side.SERVER), short=80),
    _target("client-proved-server", lambda data: run_peer(data, Side.CLIENT), short=80),
)
