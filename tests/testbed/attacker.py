"""Attackers in the path of a link: what they see and what they do to it. They live in the relay's process.

`link.intercept(Wire)` and the other classes; `link.ask_interceptor((method, *arguments))` calls a method.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from random import Random

from aioquic._buffer import Buffer
from aioquic.quic.crypto import CryptoPair
from aioquic.quic.packet import QuicProtocolVersion, encode_quic_retry, encode_quic_version_negotiation

from multi.lab.testbed.specs import Way
from tests.testbed.packets import ACK, FIN, RST, SYN, TCP, UDP, Packet, packets

KEPT = 256 * 1024  # bytes of each direction of a flow that are recorded
MULTI_HEADER = 32
HELLO, ACCEPT, JOIN, CHALLENGE, REFUSE, ADMIT = 16, 17, 19, 20, 22, 23
ANSWERS = (ACCEPT, CHALLENGE, REFUSE, ADMIT)
Out = Iterable[tuple[Way, bytes]]
FlowKey = tuple[int, str, int, str, int]  # protocol, client's address and port, server's


@dataclass(slots=True)
class Flow:
    """A connection as it goes by: the beginning of what was said, in order."""

    up: bytearray = field(default_factory=bytearray)
    down: bytearray = field(default_factory=bytearray)
    next: dict[Way, int] = field(default_factory=dict)
    carried: int = 0
    """Bytes, both ways, however much of it is recorded."""

    def take(self, way: Way, packet: Packet) -> None:
        kept = self.up if way == "up" else self.down
        self.carried += len(packet.payload)
        if packet.protocol == UDP:
            kept += packet.payload[: max(0, KEPT - len(kept))]
        elif packet.flags & SYN:
            self.next[way] = (packet.sequence + 1) & 0xFFFFFFFF
        elif packet.payload and packet.sequence == self.next.get(way) and len(kept) < KEPT:
            kept += packet.payload
            self.next[way] = (packet.sequence + len(packet.payload)) & 0xFFFFFFFF


def flow_of(way: Way, packet: Packet) -> FlowKey:
    near, far = (packet.source, packet.source_port), (packet.destination, packet.destination_port)
    return (packet.protocol, *near, *far) if way == "up" else (packet.protocol, *far, *near)


class Wire:
    """Sees everything, changes nothing. Subclasses change what `change` returns."""

    def __init__(self, needle: bytes = b"") -> None:
        self.needle = needle
        self.flows: dict[FlowKey, Flow] = {}
        self.counts: Counter[str] = Counter()
        self.acting = True

    def frame(self, way: Way, frame: bytes) -> Out:
        found = packets(frame)
        if not found:
            return [(way, frame)]
        if self.needle and self.needle in frame:
            self.counts["needle"] += 1
        changed, out = False, []
        for packet in found:
            self.counts[way] += len(packet.payload)
            self.flows.setdefault(flow_of(way, packet), Flow()).take(way, packet)
            instead = self.change(way, packet) if self.acting else None
            changed = changed or instead is not None
            out += [(way, packet)] if instead is None else instead
        return [(to, one.frame()) for to, one in out] if changed else [(way, frame)]

    def change(self, way: Way, packet: Packet) -> list[tuple[Way, Packet]] | None:
        """What goes on instead; None = the packet as it is."""
        return None

    def asked(self, question: object) -> object:
        assert isinstance(question, tuple)
        return getattr(self, question[0])(*question[1:])

    def act(self, on: bool) -> None:
        self.acting = on

    def counted(self) -> dict[str, int]:
        return dict(self.counts)

    def recorded(self, protocol: int = TCP, least: int = 1) -> list[tuple[bytes, bytes]]:
        """(client to server, server to client) of every flow that has said something, the oldest first."""
        flows = [flow for key, flow in self.flows.items() if key[0] == protocol and len(flow.up) >= least]
        return [(bytes(flow.up[: 24 * 1024]), bytes(flow.down[: 24 * 1024])) for flow in flows][-2:]


class Vandal(Wire):
    """Flips bytes, or drops, reorders and truncates segments, in every `every`th packet that carries much."""

    def __init__(self, what: str, every: int, *, protocol: int = TCP, ways: tuple[Way, ...] = ("up", "down")) -> None:
        super().__init__()
        self._what, self._every, self._protocol, self._ways = what, every, protocol, ways
        self._random = Random(7)
        self._seen = 0
        self._held: deque[tuple[Way, Packet]] = deque()

    def change(self, way: Way, packet: Packet) -> list[tuple[Way, Packet]] | None:
        if packet.protocol != self._protocol or way not in self._ways or len(packet.payload) < 200:
            return None
        self._seen += 1
        if self._seen % self._every:
            held, self._held = list(self._held), deque()
            return [(way, packet), *held] if held else None
        self.counts[self._what] += 1
        payload = packet.payload
        match self._what:
            case "flip":
                at = self._random.randrange(len(payload))
                flipped = payload[:at] + bytes([payload[at] ^ 1 << self._random.randrange(8)]) + payload[at + 1 :]
                return [(way, replace(packet, payload=flipped))]
            case "drop":
                return []
            case "reorder":
                self._held.append((way, packet))
                return []
            case "truncate":
                return [(way, replace(packet, payload=payload[: len(payload) // 2]))]
            case "repeat":
                return [(way, packet), (way, packet), (way, packet)]
            case "cut":
                half = payload[: len(payload) // 2]
                return [
                    (way, replace(packet, payload=half)),
                    (way, replace(packet, payload=b"", sequence=packet.sequence + len(half), flags=ACK | FIN)),
                    ("down" if way == "up" else "up", packet.back(RST | ACK)),
                ]
            case _:
                raise AssertionError(self._what)


class Resetter(Wire):
    """Resets every TCP connection as soon as it carries something, with the right sequence numbers, both ways."""

    def __init__(self, after: int = 1) -> None:
        super().__init__()
        self._after = after
        self._reset: set[FlowKey] = set()

    def change(self, way: Way, packet: Packet) -> list[tuple[Way, Packet]] | None:
        key = flow_of(way, packet)
        if packet.protocol == TCP and packet.flags & SYN and way == "up" and key not in self._reset:
            self.counts["dialled"] += 1
        flow = self.flows[key]
        if packet.protocol != TCP or flow.carried < self._after:
            return None
        if not packet.payload or packet.flags & SYN:
            return None
        # Again as long as it goes on: a reset behind a packet that was lost is out of order, and nobody heeds it.
        if key not in self._reset:
            self._reset.add(key)
            self.counts["reset"] += 1
        other: Way = "down" if way == "up" else "up"
        forward = replace(packet, payload=b"", flags=RST | ACK, options=b"")
        return [(way, forward), (other, packet.back(RST | ACK))]


class Refuser(Wire):
    """Writes REFUSE over the first thing the server says on a connection, a refusal of its own too."""

    def __init__(self, code: int = 0x10, garbage: bool = False) -> None:
        """`garbage`: what is left of the answer follows."""
        super().__init__()
        self._code, self._garbage = code, garbage

    def change(self, way: Way, packet: Packet) -> list[tuple[Way, Packet]] | None:
        said = packet.payload
        if way != "down" or len(said) < MULTI_HEADER + 5 or said[0] != 1 or said[1] not in ANSWERS:
            return None
        self.counts["refused"] += 1
        refuse = bytes([1, REFUSE, 0, 32, 0, 0, 0, 37]) + said[8:24] + bytes(8) + bytes([self._code, 1, 1, 0, 0])
        rest = bytes(byte | 0x80 for byte in said[len(refuse) :]) if self._garbage else b""
        return [(way, replace(packet, payload=refuse + rest))]


class Rewriter(Wire):
    """Changes the client's HELLO or the server's ACCEPT on its way; the length stays."""

    def __init__(self, change: str) -> None:
        super().__init__()
        self._change: Callable[[bytearray], None] = REWRITES[change]
        self._type = ACCEPT if change.startswith("accept") else HELLO

    def change(self, way: Way, packet: Packet) -> list[tuple[Way, Packet]] | None:
        said = bytearray(packet.payload)
        if len(said) < MULTI_HEADER or said[0] != 1 or said[1] != self._type or packet.protocol != TCP:
            return None
        self.counts["rewritten"] += 1
        self._change(said)
        return [(way, replace(packet, payload=bytes(said)))]


def _terms(said: bytearray) -> int:
    """Where HELLO's connection terms begin."""
    return MULTI_HEADER + 2 + int.from_bytes(said[MULTI_HEADER : MULTI_HEADER + 2], "big")


def _set(said: bytearray, at: int, value: bytes) -> None:
    said[at : at + len(value)] = value


def _choice(said: bytearray) -> int:
    """Where ACCEPT says `sealed` and `cipher`: behind the extensions and the number of the connection."""
    extensions = MULTI_HEADER + 1 + 32 + 32 + 4 + 4 + 4 + 32
    return extensions + 2 + int.from_bytes(said[extensions : extensions + 2], "big") + 4


REWRITES: dict[str, Callable[[bytearray], None]] = {
    "hello-version": lambda said: _set(said, MULTI_HEADER + 3, b"\x09"),
    "hello-segment-version": lambda said: _set(said, 0, b"\x09"),
    "hello-unsealed": lambda said: _set(said, _terms(said), b"\x00"),
    "hello-weaker-cipher": lambda said: _set(
        said, _terms(said) + 2, bytes(said[_terms(said) + 2 : _terms(said) + 4][::-1])
    ),
    "hello-no-cipher": lambda said: _set(said, _terms(said) + 2, b"\x63\x63"),
    "hello-window": lambda said: _set(said, MULTI_HEADER + 2 + 2 + 32 + 32, b"\x3f\xff\xff\xff"),
    "hello-key": lambda said: _set(said, MULTI_HEADER + 2 + 2 + 32, b"\x09" + bytes(31)),
    "accept-unsealed": lambda said: _set(said, _choice(said), b"\x00"),
    "accept-cipher": lambda said: _set(said, _choice(said) + 1, bytes([3 - said[_choice(said) + 1]])),
    "accept-version": lambda said: _set(said, MULTI_HEADER, b"\x09"),
    "accept-key": lambda said: _set(said, MULTI_HEADER + 33, b"\x09" + bytes(31)),
}


class QuicForger(Wire):
    """Answers QUIC in the server's name: to the first packets of a connection, or later, when `late`."""

    def __init__(self, what: str, late: bool) -> None:
        super().__init__()
        self._what, self._late = what, late
        self._times: Counter[FlowKey] = Counter()
        self._initials: dict[FlowKey, tuple[bytes, bytes]] = {}

    def change(self, way: Way, packet: Packet) -> list[tuple[Way, Packet]] | None:
        if packet.protocol != UDP or way != "up":
            return None
        key, said = flow_of(way, packet), packet.payload
        if said[0] & 0xB0 == 0x80 and len(said) > 40 and key not in self._initials:
            length = said[5]
            self._initials[key] = said[6 : 6 + length], said[7 + length : 7 + length + said[6 + length]]
        if key not in self._initials or bool(said[0] & 0x80) == self._late or self._times[key] >= 50:
            return None
        self._times[key] += 1
        self.counts[self._what] += 1
        forged = self._forged(*self._initials[key])
        return [("down", packet.back(payload=forged)), (way, packet)]

    def _forged(self, server: bytes, client: bytes) -> bytes:
        version = QuicProtocolVersion.VERSION_1
        match self._what:
            case "version-negotiation":
                return encode_quic_version_negotiation(
                    source_cid=server, destination_cid=client, supported_versions=[0x0A0A0A0A]
                )
            case "retry":
                return encode_quic_retry(
                    version=version,
                    source_cid=b"attacker",
                    destination_cid=client,
                    original_destination_cid=server,
                    retry_token=b"a token of nobody",
                )
            case "stateless-reset":
                return b"\x40" + Random(len(self.counts)).randbytes(59)
            case "close-in-initial":
                return _initial_close(server, client)
            case _:
                raise AssertionError(self._what)


def _initial_close(original: bytes, client: bytes) -> bytes:
    """CONNECTION_CLOSE in an Initial of the server: its keys follow from what everybody sees (RFC 9001 section 5.2)."""
    crypto = CryptoPair()
    crypto.setup_initial(original, is_client=False, version=QuicProtocolVersion.VERSION_1)
    plain = Buffer(capacity=64)
    plain.push_uint_var(0x1C)
    plain.push_uint_var(0x0A)
    plain.push_uint_var(0)
    plain.push_uint_var(0)
    payload = plain.data + bytes(16)
    header = bytes([0xC1]) + (1).to_bytes(4, "big") + bytes([len(client)]) + client + bytes([8]) + b"attacker" + b"\0"
    header += (0x4000 | len(payload) + 2 + 16).to_bytes(2, "big") + (5).to_bytes(2, "big")
    return crypto.encrypt_packet(header, payload, 5)


class Meter(Wire):
    """Counts UDP bytes both ways by the client's port, and lets no answer through: nobody is there to give one."""

    def change(self, way: Way, packet: Packet) -> list[tuple[Way, Packet]] | None:
        if packet.protocol != UDP:
            return None
        self.counts[f"{way}:{flow_of(way, packet)[2]}"] += len(packet.payload)
        return [] if way == "down" else None


def spoofed(ethernet: bytes, source: tuple[str, int], destination: tuple[str, int], payload: bytes) -> bytes:
    """A UDP datagram somebody sends in another's name."""
    return Packet(ethernet, source[0], destination[0], UDP, source[1], destination[1], payload).frame()
