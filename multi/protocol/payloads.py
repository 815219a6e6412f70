"""Payloads of acknowledgement, keep-alive and control segments, to bytes and back.

Every decoder either returns a typed object or raises RemoteProtocolError; none allocates more than the segment
it reads. What the objects mean is left to `dispatch`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from ipaddress import IPv4Address, IPv6Address, ip_address
from math import isfinite

from multi.errors import LocalProtocolError, RemoteProtocolError
from multi.schedulers.base import DEFAULT_SCHEDULER, MAX_NAME, MAX_PARAMETER_NAME, MAX_PARAMETERS
from multi.types import Address, Role, StreamId

MAX_OFFSET = (1 << 62) - 1  # offsets stay far from 64 bit overflow, as in RFC 9000 section 16
MAX_ACK_PAYLOAD = 1024  # bytes
MAX_RANGES = 32  # ranges per stream in one ACK, enough for two badly reordered paths
MAX_REASON = 200  # bytes of text in a CLOSE
MAX_ADDRESSES = 4  # a server may tell
MAX_PORT = 65535
MAX_RATE = 1e15  # bytes per second

AckRange = tuple[int, int]
"""Half-open [start, end)."""


class Fields:
    """A cursor over a payload; every read is checked."""

    __slots__ = ("_data", "_position")

    def __init__(self, data: bytes | memoryview) -> None:
        self._data = bytes(data)
        self._position = 0

    @property
    def remaining(self) -> int:
        return len(self._data) - self._position

    def take(self, count: int) -> bytes:
        end = self._position + count
        if end > len(self._data):
            raise RemoteProtocolError("truncated payload")
        piece = self._data[self._position : end]
        self._position = end
        return piece

    def unsigned(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def real(self) -> float:
        value: float = struct.unpack("!d", self.take(8))[0]
        if not isfinite(value):
            raise RemoteProtocolError("a number that is not finite")
        return value

    def text(self, length: int) -> str:
        """Printable text: it ends in logs and on terminals, where a control character of the peer could do harm."""
        try:
            text = self.take(length).decode()
        except UnicodeDecodeError:
            raise RemoteProtocolError("text that is not UTF-8") from None
        if not text.isprintable():
            raise RemoteProtocolError("text with control characters")
        return text

    def end(self) -> None:
        if self.remaining:
            raise RemoteProtocolError(f"{self.remaining} surplus bytes in a payload")


# --- ACK  ---

_ACK = struct.Struct("!QQBB")
_STREAM_ACK = struct.Struct("!IQQB")
_RANGE = struct.Struct("!QQ")
_PLAIN_ACK = struct.Struct("!QQBBIQQB")  # both, for one stream and without ranges
_PLAIN_ACK_SIZE = _PLAIN_ACK.size


@dataclass(slots=True)  # made and looked at for every acknowledgement; as in `SendBytes`
class StreamAck:
    """What one stream has received: everything below `cumulative`, and `ranges` above it; `window` may be sent."""

    stream: StreamId
    cumulative: int
    window: int
    """Absolute offset up to which the peer may send."""
    ranges: tuple[AckRange, ...] = ()


@dataclass(slots=True)
class Ack:
    """The receiver's state. State, not an event: a later one replaces an earlier one."""

    session_window: int
    """Absolute: total bytes over all streams that the peer may send."""
    control_cumulative: int
    """All control segments numbered below this have arrived."""
    control_ranges: tuple[AckRange, ...] = ()
    streams: tuple[StreamAck, ...] = ()


def encode_ack(
    session_window: int, control: int, control_ranges: Sequence[AckRange], streams: Sequence[bytes]
) -> bytes:
    """See `Ack`; what it says of `streams` is encoded already."""
    head = _ACK.pack(session_window, control, len(control_ranges), len(streams))
    return b"".join((head, *[_RANGE.pack(*each) for each in control_ranges], *streams))


def encode_stream_ack(stream: StreamId, cumulative: int, window: int, ranges: Sequence[AckRange]) -> bytes:
    """What an ACK says of one stream; see `StreamAck`."""
    head = _STREAM_ACK.pack(stream, cumulative, window, len(ranges))
    return head if not ranges else b"".join((head, *[_RANGE.pack(*each) for each in ranges]))


def encode_plain_ack(session_window: int, control: int, stream: StreamId, cumulative: int, window: int) -> bytes:
    """As `encode_ack` of one stream without any ranges: what small messages are acknowledged with."""
    return _PLAIN_ACK.pack(session_window, control, 0, 1, stream, cumulative, window, 0)


def decode_ack(payload: bytes | memoryview) -> Ack:
    if len(payload) == _PLAIN_ACK_SIZE:  # the common case, written out
        session_window, control, control_count, streams, stream, cumulative, window, count = _PLAIN_ACK.unpack(payload)
        if (
            streams == 1
            and not control_count
            and not count
            and session_window | control | cumulative | window <= MAX_OFFSET  # which is all ones
        ):
            return Ack(session_window, control, (), (StreamAck(stream, cumulative, window),))
    data = bytes(payload)
    if len(data) > MAX_ACK_PAYLOAD:
        raise RemoteProtocolError(f"acknowledgement of {len(data)} bytes")
    try:
        session_window, control, control_count, stream_count = _ACK.unpack_from(data)
        position = _ACK.size
        control_ranges: tuple[AckRange, ...] = ()
        if control_count:
            control_ranges, position = _ranges(data, position, control_count, control)
        streams = []
        for _ in range(stream_count):
            stream, cumulative, window, count = _STREAM_ACK.unpack_from(data, position)
            position += _STREAM_ACK.size
            ranges: tuple[AckRange, ...] = ()
            if count:
                ranges, position = _ranges(data, position, count, cumulative)
            if window > MAX_OFFSET or cumulative > MAX_OFFSET:
                raise RemoteProtocolError("an offset beyond 2^62")
            streams.append(StreamAck(StreamId(stream), cumulative, window, ranges))
    except struct.error:
        raise RemoteProtocolError("truncated acknowledgement") from None
    if position != len(data):
        raise RemoteProtocolError(f"{len(data) - position} surplus bytes in an acknowledgement")
    if session_window > MAX_OFFSET or control > MAX_OFFSET:
        raise RemoteProtocolError("an offset beyond 2^62")
    return Ack(session_window, control, control_ranges, tuple(streams))


def _ranges(data: bytes, position: int, count: int, above: int) -> tuple[tuple[AckRange, ...], int]:
    if count > MAX_RANGES:
        raise RemoteProtocolError(f"{count} ranges in an acknowledgement")
    ranges = []
    for _ in range(count):
        start, end = _RANGE.unpack_from(data, position)
        if not above < start < end <= MAX_OFFSET:
            raise RemoteProtocolError("acknowledged ranges are not ascending")
        ranges.append((start, end))
        above = end
        position += _RANGE.size
    return tuple(ranges), position


# --- KEEPALIVE  ---

_KEEPALIVE = struct.Struct("!BQ")
_PONG, _WANTS_ACK = 1, 2


@dataclass(frozen=True, slots=True)
class Keepalive:
    """Ping or pong. `wants_ack`: the sender asks for the receiver's state on this connection."""

    token: int
    pong: bool = False
    wants_ack: bool = False


def encode_keepalive(keepalive: Keepalive) -> bytes:
    return _KEEPALIVE.pack(_PONG * keepalive.pong | _WANTS_ACK * keepalive.wants_ack, keepalive.token)


def decode_keepalive(payload: bytes | memoryview) -> Keepalive:
    if len(payload) != _KEEPALIVE.size:
        raise RemoteProtocolError(f"keep-alive of {len(payload)} bytes")
    flags, token = _KEEPALIVE.unpack(payload)
    if flags & ~3:
        raise RemoteProtocolError(f"unknown keep-alive flags {flags:#x}")
    return Keepalive(token, bool(flags & _PONG), bool(flags & _WANTS_ACK))


# --- CLOSE  ---

CLOSE_NORMAL = 0
CLOSE_ABORTED = 1
CLOSE_GOING_AWAY = 4


@dataclass(frozen=True, slots=True)
class Close:
    """The session ends. Code 0 = in order, everything this side sent has been acknowledged; 4 = the server leaves."""

    code: int
    reason: str = ""


def encode_close(close: Close) -> bytes:
    printable = "".join(c if c.isprintable() else " " for c in close.reason)
    reason = printable.encode(errors="replace")[:MAX_REASON]
    return close.code.to_bytes(4, "big") + reason.decode(errors="ignore").encode()


def decode_close(payload: bytes | memoryview) -> Close:
    fields = Fields(payload)
    code = fields.unsigned(4)
    if fields.remaining > MAX_REASON:
        raise RemoteProtocolError("close reason too long")
    return Close(code, fields.text(fields.remaining))


# --- streams  ---

encode_fin = struct.Struct("!Q").pack
"""Where the stream ends."""
encode_reset = struct.Struct("!QI").pack
"""Where it is given up, and the code."""
encode_stop_sending = struct.Struct("!IQ").pack
"""The code, and how far the stream has come."""
encode_max_streams = struct.Struct("!Q").pack
"""How many the peer may open in all."""

# --- control  ---

Parameters = tuple[tuple[str, float], ...]
"""Names and values of a scheduler's parameters."""


@dataclass(frozen=True, slots=True)
class Policy:
    """How the sender of this wants the peer to schedule towards it; it travels in HELLO and POLICY."""

    scheduler: str = DEFAULT_SCHEDULER
    parameters: Parameters = ()
    switch: bool = False
    """mode `switch`: one connection carries the data, the next stands by."""
    reinject: str = "full"


_REINJECT = ("off", "rescue", "full")


def encode_policy(policy: Policy) -> bytes:
    """Raises LocalProtocolError for what no peer would take."""
    if policy.reinject not in _REINJECT:
        raise LocalProtocolError(f"reinject {policy.reinject!r} is none of {', '.join(_REINJECT)}")
    mode = bytes([int(policy.switch), _REINJECT.index(policy.reinject)])
    return encode_scheduler(policy.scheduler, policy.parameters) + mode


def encode_scheduler(scheduler: str, parameters: Parameters) -> bytes:
    """A scheduler by its name. Raises LocalProtocolError for what no peer would take."""
    if len(parameters) > MAX_PARAMETERS:
        raise LocalProtocolError(f"more than {MAX_PARAMETERS} scheduler parameters")
    parts = [_name(scheduler, MAX_NAME), bytes([len(parameters)])]
    for key, value in parameters:
        if not isfinite(value):
            raise LocalProtocolError(f"scheduler parameter {key} is not finite")
        parts += [_name(key, MAX_PARAMETER_NAME), struct.pack("!d", value)]
    return b"".join(parts)


def _name(text: str, limit: int) -> bytes:
    name = text.encode(errors="replace")
    if len(name) > limit or not text.isprintable():
        raise LocalProtocolError(f"a name that is not printable or longer than {limit} bytes: {text[:limit]!r}")
    return bytes([len(name)]) + name


def decode_policy(fields: Fields) -> Policy:
    scheduler, parameters = _decode_scheduler(fields)
    switch, reinject = fields.unsigned(1), fields.unsigned(1)
    if switch > 1 or reinject >= len(_REINJECT):
        raise RemoteProtocolError("malformed policy")
    return Policy(scheduler, parameters, bool(switch), _REINJECT[reinject])


def decode_scheduler(payload: bytes | memoryview) -> tuple[str, Parameters]:
    fields = Fields(payload)
    found = _decode_scheduler(fields)
    fields.end()
    return found


def _decode_scheduler(fields: Fields) -> tuple[str, Parameters]:
    scheduler = fields.text(fields.unsigned(1))
    count = fields.unsigned(1)
    if count > MAX_PARAMETERS:
        raise RemoteProtocolError(f"more than {MAX_PARAMETERS} scheduler parameters")
    return scheduler, tuple((_parameter_name(fields), fields.real()) for _ in range(count))


def _parameter_name(fields: Fields) -> str:
    length = fields.unsigned(1)
    if length > MAX_PARAMETER_NAME:
        raise RemoteProtocolError(f"a parameter name of {length} bytes")
    return fields.text(length)


def encode_role(connection_number: int, role: Role) -> bytes:
    return encode_unsigned((connection_number, 4), (role, 1))


def decode_role(payload: bytes | memoryview) -> tuple[int, Role]:
    number, role = decode_unsigned(payload, 4, 1)
    return number, decode_role_value(role)


def decode_role_value(value: int) -> Role:
    if value not in (Role.ACTIVE, Role.BACKUP, Role.SECONDARY):
        raise RemoteProtocolError(f"unknown role {value}")
    return Role(value)


def encode_rate(connection_number: int, max_rate: float) -> bytes:
    """`max_rate` in bytes per second, 0 = no cap."""
    return encode_unsigned((connection_number, 4)) + struct.pack("!d", max_rate)


def decode_rate(payload: bytes | memoryview) -> tuple[int, float]:
    fields = Fields(payload)
    number, max_rate = fields.unsigned(4), fields.real()
    fields.end()
    check_rate(max_rate)
    return number, max_rate


def check_rate(max_rate: float) -> None:
    """Raise RemoteProtocolError for a cap that no honest peer has."""
    if not 0 <= max_rate <= MAX_RATE:
        raise RemoteProtocolError(f"a rate cap of {max_rate} bytes per second")


class DrainStep(IntEnum):
    """How far a connection is on its way out, as DRAIN says it."""

    ASKED = 0
    """Nothing new is sent on it."""
    DRAINED = 1
    """Nothing of the sender's is outstanding any more."""
    SUSPECT = 2
    """The network under it went away: it may come back, but nothing it carries should wait for that."""
    LOST = 3
    """It is over on the sender's side."""
    SILENT = 4
    """The sender waits for signs of life in vain."""


def encode_drain(connection_number: int, step: DrainStep) -> bytes:
    return encode_unsigned((connection_number, 4), (step, 1))


def decode_drain(payload: bytes | memoryview) -> tuple[int, DrainStep]:
    number, step = decode_unsigned(payload, 4, 1)
    try:
        return number, DrainStep(step)
    except ValueError:
        raise RemoteProtocolError(f"unknown step {step} of a drain") from None


def encode_addresses(addresses: Sequence[Address]) -> bytes:
    """The addresses a server announces; at most MAX_ADDRESSES. Raises LocalProtocolError for what is no address."""
    if len(addresses) > MAX_ADDRESSES:
        raise LocalProtocolError(f"{len(addresses)} addresses; at most {MAX_ADDRESSES} can be announced")
    return b"".join([bytes([len(addresses)]), *map(encode_address, addresses)])


def encode_address(told: Address) -> bytes:
    """Version, port, address. Raises LocalProtocolError for what is no address."""
    literal, port = told
    try:
        address = ip_address(literal)
    except ValueError:
        raise LocalProtocolError(f"{literal!r} is no IP address") from None
    if not 0 < port <= MAX_PORT:
        raise LocalProtocolError(f"port {port} of {literal}")  # the peer would take it for a violation
    return bytes([address.version]) + port.to_bytes(2, "big") + address.packed


def decode_addresses(payload: bytes | memoryview) -> tuple[Address, ...]:
    fields = Fields(payload)
    count = fields.unsigned(1)
    if count > MAX_ADDRESSES:
        raise RemoteProtocolError(f"{count} addresses announced")
    found = tuple(decode_address(fields) for _ in range(count))
    fields.end()
    return found


def decode_address(fields: Fields) -> Address:
    version, port = fields.unsigned(1), fields.unsigned(2)
    if version not in (4, 6) or not port:
        raise RemoteProtocolError(f"an address of version {version}, port {port}")
    address = IPv4Address(fields.take(4)) if version == 4 else IPv6Address(fields.take(16))
    return str(address), port


def encode_away(seconds: float) -> bytes:
    """`seconds` until the server ends the session."""
    return encode_unsigned((min(max(0, round(seconds * 1000)), (1 << 32) - 1), 4))


def decode_away(payload: bytes | memoryview) -> float:
    (milliseconds,) = decode_unsigned(payload, 4)
    return milliseconds / 1000


def encode_unsigned(*values: tuple[int, int]) -> bytes:
    """Encode (value, size in bytes) pairs one after the other."""
    return b"".join([value.to_bytes(size, "big") for value, size in values])


def decode_unsigned(payload: bytes | memoryview, *sizes: int) -> tuple[int, ...]:
    """Decode numbers of 1, 2, 4 or 8 bytes, of which the payload consists."""
    form = _form(sizes)
    surplus = len(payload) - form.size
    if surplus:
        raise RemoteProtocolError(f"{surplus} surplus bytes in a payload" if surplus > 0 else "truncated payload")
    return form.unpack(payload)


@cache
def _form(sizes: tuple[int, ...]) -> struct.Struct:
    return struct.Struct("!" + "".join([_CODES[size] for size in sizes]))


_CODES = {1: "B", 2: "H", 4: "I", 8: "Q"}
