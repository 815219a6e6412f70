"""The segment codec: the six fields of the paper's Table 3 in every segment, in a fixed big-endian layout.

     0        1        2                 4                          8
    +--------+--------+-----------------+--------------------------+
    |version | type   | header length   | segment length           |
    +--------+--------+-----------------+--------------------------+
    | Session ID, 16 bytes                                         |
    +--------------------------------------------------------------+
    | sequence number, 8 bytes                                     |
    +--------------------------------------------------------------+
    | extensions: (kind, length, value)* up to header length       |
    +--------------------------------------------------------------+
    | payload up to segment length                                 |

It decides what a well-formed segment is. What a segment means is left to `payloads`, `handshake` and `dispatch`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

from multi.errors import RemoteProtocolError
from multi.reasons import Cause
from multi.types import ROUTE_LENGTH, STREAM_ZERO, SessionId, StreamId

VERSION = 1  # never 0x16: that is how a server tells TLS from MULTI
SUPPORTED_VERSIONS = (VERSION,)

_HEADER = struct.Struct("!BBHI16sQ")
HEADER_LENGTH = _HEADER.size
_STREAM_HEADER = struct.Struct("!BBHI16sQBBI")  # with the extension that names a stream
STREAM_HEADER_LENGTH = _STREAM_HEADER.size
_STREAM_EXTENSION = struct.Struct("!BBI")  # alone
_EXTENSION_STREAM = 1
_EXTENSION_ROUTE = 2

TAG_LENGTH = 16  # bytes an AEAD adds to the payload of a sealed segment
MAX_HEADER_LENGTH = 256  # room for extensions of later versions, bounded against a lying peer
MAX_DATA_PAYLOAD = 256 * 1024  # one segment must not hold up a 200 Mbit/s connection for more than 10 ms
MAX_CONTROL_PAYLOAD = 4096  # the largest non-DATA payload, HELLO with a policy, stays well below


class SegmentType(IntEnum):
    """Types 1 to 4 are the paper's; the others are the handshake and the reliable control segments."""

    DATA = 1
    ACK = 2
    KEEPALIVE = 3
    CLOSE = 4
    HELLO = 16
    ACCEPT = 17
    CONFIRM = 18
    JOIN = 19
    CHALLENGE = 20
    PROVE = 21
    REFUSE = 22
    ADMIT = 23
    FIN = 32
    RESET = 33
    STOP_SENDING = 34
    OPEN = 35
    MAX_STREAMS = 36
    DRAIN = 37
    ROLE = 38
    POLICY = 39
    ADDRESS = 40
    TICKETS = 41
    RATE = 42
    STEER = 43
    DATAGRAM = 128
    AWAY = 192


HANDSHAKE_TYPES = frozenset(range(SegmentType.HELLO, SegmentType.ADMIT + 1))
OPTIONAL_CONTROL = 192  # from here on types are control: who does not know one acknowledges it, and skips it
CONTROL_TYPES = frozenset((*range(SegmentType.FIN, SegmentType.STEER + 1), *range(OPTIONAL_CONTROL, 256)))
EPHEMERAL = frozenset(
    {
        SegmentType.DRAIN,
        SegmentType.ADDRESS,
        SegmentType.TICKETS,
        SegmentType.RATE,
        SegmentType.STEER,
        SegmentType.AWAY,
    }
)
"""Control of no use once the session ends: closing does not wait for its acknowledgement."""
OPTIONAL_TYPES = range(128, 256)
"""Types a later version may add: who does not know one skips it. Others are sent only to who has announced them."""
_MAX_BODY = {
    type_: TAG_LENGTH
    + (MAX_DATA_PAYLOAD if type_ == SegmentType.DATA or 128 <= type_ < OPTIONAL_CONTROL else MAX_CONTROL_PAYLOAD)
    for type_ in (*map(int, SegmentType), *OPTIONAL_TYPES)
}
"""Bytes of payload, with its tag, that a segment of each known type may have."""


@dataclass(slots=True, eq=False)
class Segment:
    """One decoded segment. `payload` and `header` may borrow the receive buffer: copy before the next feed."""

    type: int
    session_id: bytes
    sequence: int
    stream: StreamId
    header: memoryview
    payload: bytes | memoryview
    owned: bool
    """True when `payload` is memory of its own that nobody will change: it may be kept without a copy."""


def encode_header(type_: int, session_id: SessionId, sequence: int, stream: StreamId, payload_length: int) -> bytes:
    """Return the header of a segment whose payload (with its tag, when sealed) has `payload_length` bytes."""
    if not stream:
        return _HEADER.pack(VERSION, type_, HEADER_LENGTH, HEADER_LENGTH + payload_length, session_id, sequence)
    length = STREAM_HEADER_LENGTH + payload_length
    extension = _EXTENSION_STREAM, 4, stream
    return _STREAM_HEADER.pack(VERSION, type_, STREAM_HEADER_LENGTH, length, session_id, sequence, *extension)


def encode(
    type_: int, session_id: SessionId, payload: bytes = b"", *, sequence: int = 0, stream: StreamId = STREAM_ZERO
) -> bytes:
    """Return a whole segment in clear."""
    return encode_header(type_, session_id, sequence, stream, len(payload)) + payload


def encode_routed(type_: int, session_id: SessionId, payload: bytes, route: bytes) -> bytes:
    """Return a segment of no stream in clear, with the token of the server that is meant; empty = none."""
    extension = bytes([_EXTENSION_ROUTE, len(route)]) + route if route else b""
    header = HEADER_LENGTH + len(extension)
    length = header + len(payload)
    return _HEADER.pack(VERSION, type_, header, length, session_id, 0) + extension + payload


def route_of(first: bytes | bytearray | memoryview) -> bytes:
    """The token of the server that a segment is meant for; empty = it names none. `peek` has taken its header.

    Raises RemoteProtocolError where the header's extensions are malformed.
    """
    start, end = HEADER_LENGTH, int.from_bytes(first[2:4], "big")
    while start < end:
        if end - start < 2 or start + 2 + first[start + 1] > end:
            raise RemoteProtocolError("truncated header extension")
        kind, length = first[start], first[start + 1]
        if kind == _EXTENSION_ROUTE:
            if not 0 < length <= ROUTE_LENGTH:
                raise RemoteProtocolError(f"a route of {length} bytes")
            return bytes(first[start + 2 : start + 2 + length])
        start += 2 + length
    return b""


def peek(data: bytes | bytearray | memoryview) -> tuple[int, SessionId] | None:
    """Return (type, Session ID) of the first segment in `data`, or None when fewer than 32 bytes are there.

    Raises RemoteProtocolError as soon as the bytes cannot be the start of a segment.
    """
    if len(data) >= 1 and data[0] != VERSION:
        raise RemoteProtocolError(f"unknown version {data[0]}")
    if len(data) < HEADER_LENGTH:
        return None
    type_, _, _, session_id, _ = _header_at(data, 0)
    return type_, SessionId(session_id)


_Header = tuple[int, int, int, bytes, int]
"""(type, header length, segment length, Session ID, sequence number)."""


def _header_at(data: bytes | bytearray | memoryview, position: int) -> _Header:
    """The header at `position`, checked."""
    version, type_, header_length, segment_length, session_id, sequence = _HEADER.unpack_from(data, position)
    if version != VERSION:
        raise RemoteProtocolError(f"unknown version {version}")
    longest = _MAX_BODY.get(type_)
    if longest is None:
        raise RemoteProtocolError(f"unknown segment type {type_}")
    if not HEADER_LENGTH <= header_length <= MAX_HEADER_LENGTH:
        raise RemoteProtocolError(f"header length {header_length} is not in {HEADER_LENGTH}..{MAX_HEADER_LENGTH}")
    if not header_length <= segment_length <= header_length + longest:
        allowed = f"{header_length}..{header_length + longest}"
        raise RemoteProtocolError(f"segment length {segment_length} is not in {allowed}", Cause.SEGMENT_SIZE)
    return type_, header_length, segment_length, session_id, sequence


def _stream_of(data: memoryview, start: int, end: int) -> StreamId:
    """Read the extensions; unknown ones are skipped so that later versions may add some."""
    stream, named = STREAM_ZERO, False
    while start < end:
        if end - start < 2:
            raise RemoteProtocolError("truncated header extension")
        kind, length = data[start], data[start + 1]
        if start + 2 + length > end:
            raise RemoteProtocolError("header extension is longer than the header")
        if kind == _EXTENSION_STREAM:
            if length != 4:
                raise RemoteProtocolError(f"stream extension of {length} bytes, not 4")
            if named:
                raise RemoteProtocolError("two stream extensions in one header")
            named = True
            stream = StreamId(int.from_bytes(data[start + 2 : start + 6], "big"))
        start += 2 + length
    return stream


class SegmentDecoder:
    """Cuts one lane's bytes into segments. Holds at most one unfinished segment.

    While `streaming` is set, an unfinished DATA segment is not held: the part that has come is yielded as a segment of
    its own at its own sequence number, and the rest follows. Only unsealed segments can be cut so.
    """

    __slots__ = ("_need", "_rest", "_stash", "partial", "streaming", "taken", "unfinished")

    def __init__(self) -> None:
        self.streaming = False
        self.taken = 0
        """Bytes of the last feed up to the end of the segment yielded last; who stops there feeds the others later."""
        self.unfinished = 0
        """Number of the unfinished segment: each that comes in pieces has another."""
        self.partial = False
        """Of a segment a part has come, and the rest is still to come."""
        self._stash = bytearray()
        self._need = HEADER_LENGTH
        self._rest: tuple[Segment, int] | None = None
        """(the part yielded last, payload bytes still to come)."""

    @property
    def buffered(self) -> int:
        """Bytes of an unfinished segment."""
        return len(self._stash)

    def feed(self, data: memoryview) -> Iterator[Segment]:
        """Yield the segments completed by `data`; must be exhausted before the next call, or given up (see `taken`).

        Raises RemoteProtocolError after yielding everything before the fault.
        """
        position, total = 0, len(data)
        if self._stash:
            position = self._complete(data)
            if len(self._stash) < self._need:
                return
            stash = memoryview(self._stash)
            self._stash, self._need = bytearray(), HEADER_LENGTH
            segment = self._cut(stash, 0, _header_at(stash, 0), owned=True)
            if self._rest is None:
                self.taken = position
                yield segment
        if self._rest is not None and position < total:
            last, missing = self._rest
            payload = data[position : position + missing]
            start = last.sequence + len(last.payload)
            part = Segment(last.type, last.session_id, start, last.stream, last.header, payload, False)
            self._rest = (part, missing - len(payload)) if len(payload) < missing else None
            position += len(payload)
            self.taken = position
            yield part
        while total - position >= HEADER_LENGTH:
            # The common case, written out: all of it is there, with no extension but one that names a stream.
            version, type_, header_length, length, session_id, sequence = _HEADER.unpack_from(data, position)
            stream, body, end = STREAM_ZERO, position + header_length, position + length
            common = version == VERSION and end <= total and body <= end <= body + _MAX_BODY.get(type_, -1)
            if header_length != HEADER_LENGTH and common:
                common = header_length == STREAM_HEADER_LENGTH
                if common:
                    kind, size, stream = _STREAM_EXTENSION.unpack_from(data, position + HEADER_LENGTH)
                    common = kind == _EXTENSION_STREAM and size == 4
            if common:
                segment = Segment(type_, session_id, sequence, stream, data[position:body], data[body:end], False)
                position = self.taken = end
                yield segment
                continue
            header = _header_at(data, position)
            need = self._enough(header)
            if total - position < need:
                self._need = need
                break
            segment = self._cut(data, position, header, owned=False)
            position = self.taken = min(end, total)
            if segment.payload or end <= total:
                yield segment
        self.partial = position < total or self._rest is not None
        if position < total:
            if data[position] != VERSION:
                raise RemoteProtocolError(f"unknown version {data[position]}")
            self._stash = bytearray(data[position:])
            self.unfinished += 1

    def _enough(self, header: _Header) -> int:
        """Bytes of the segment that have to be there: of a DATA segment that is streamed, header and extensions."""
        return header[1] if self.streaming and header[0] == SegmentType.DATA else header[2]

    def _complete(self, data: memoryview) -> int:
        """Move what the unfinished segment lacks from `data` to it; return how much that was."""
        stash, position = self._stash, 0
        while True:
            missing = self._need - len(stash)
            stash += data[position : position + missing]
            position = min(position + missing, len(data))
            if len(stash) < self._need or self._need != HEADER_LENGTH:
                return position
            self._need = self._enough(_header_at(stash, 0))
            if self._need == HEADER_LENGTH:
                return position

    def _cut(self, data: memoryview, position: int, header: _Header, *, owned: bool) -> Segment:
        """The segment at `position`, or as much of it as there is."""
        type_, header_length, length, session_id, sequence = header
        body, end = position + header_length, position + length
        stream = STREAM_ZERO if header_length == HEADER_LENGTH else _stream_of(data, position + HEADER_LENGTH, body)
        segment = Segment(type_, session_id, sequence, stream, data[position:body], data[body:end], owned)
        self._rest = (segment, end - len(data)) if end > len(data) else None
        return segment
