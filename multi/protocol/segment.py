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

It decides what a well-formed segment is. What a segment means is left to `payloads`, `handshake` and `session`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum

from multi.errors import RemoteProtocolError
from multi.reasons import Cause
from multi.types import SESSION_ID_LENGTH, SessionId, StreamId

VERSION = 1  # never 0x16: that is how a server tells TLS from MULTI
SUPPORTED_VERSIONS = (VERSION,)

_HEADER = struct.Struct("!BBHI16sQ")
HEADER_LENGTH = _HEADER.size
_STREAM_EXTENSION = struct.Struct("!BBI")
STREAM_HEADER_LENGTH = HEADER_LENGTH + _STREAM_EXTENSION.size
_EXTENSION_STREAM = 1

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


HANDSHAKE_TYPES = frozenset(range(SegmentType.HELLO, SegmentType.ADMIT + 1))
CONTROL_TYPES = frozenset(range(SegmentType.FIN, SegmentType.TICKETS + 1))
_KNOWN_TYPES = frozenset(int(t) for t in SegmentType)


class Segment:
    """One decoded segment. `payload` and `header` may borrow the receive buffer: copy before the next feed."""

    __slots__ = ("header", "owned", "payload", "sequence", "session_id", "stream", "type")

    def __init__(
        self,
        type_: int,
        session_id: bytes,
        sequence: int,
        stream: StreamId,
        header: memoryview,
        payload: memoryview,
        owned: bool,
    ) -> None:
        self.type = type_
        self.session_id = session_id
        self.sequence = sequence
        self.stream = stream
        self.header = header
        self.payload = payload
        self.owned = owned
        """True when `payload` is memory of its own that nobody will change: it may be kept without a copy."""


def encode_header(type_: int, session_id: SessionId, sequence: int, stream: StreamId, payload_length: int) -> bytes:
    """Return the header of a segment whose payload (with its tag, when sealed) has `payload_length` bytes."""
    if stream:
        return _HEADER.pack(
            VERSION,
            type_,
            STREAM_HEADER_LENGTH,
            STREAM_HEADER_LENGTH + payload_length,
            session_id,
            sequence,
        ) + _STREAM_EXTENSION.pack(_EXTENSION_STREAM, 4, stream)
    return _HEADER.pack(VERSION, type_, HEADER_LENGTH, HEADER_LENGTH + payload_length, session_id, sequence)


def encode(
    type_: int,
    session_id: SessionId,
    payload: bytes = b"",
    *,
    sequence: int = 0,
    stream: StreamId = StreamId(0),
) -> bytes:
    """Return a whole segment in clear."""
    return encode_header(type_, session_id, sequence, stream, len(payload)) + payload


def peek(data: bytes | bytearray | memoryview) -> tuple[int, SessionId] | None:
    """Return (type, Session ID) of the first segment in `data`, or None when fewer than 32 bytes are there.

    Raises RemoteProtocolError as soon as the bytes cannot be the start of a segment.
    """
    if len(data) >= 1 and data[0] != VERSION:
        raise RemoteProtocolError(f"unknown version {data[0]}")
    if len(data) < HEADER_LENGTH:
        return None
    _, type_, header_length, segment_length, session_id, _ = _HEADER.unpack_from(data)
    _check(type_, header_length, segment_length)
    return type_, SessionId(session_id)


def _check(type_: int, header_length: int, segment_length: int) -> None:
    if type_ not in _KNOWN_TYPES:
        raise RemoteProtocolError(f"unknown segment type {type_}")
    if not HEADER_LENGTH <= header_length <= MAX_HEADER_LENGTH:
        raise RemoteProtocolError(f"header length {header_length} is not in {HEADER_LENGTH}..{MAX_HEADER_LENGTH}")
    limit = (MAX_DATA_PAYLOAD if type_ == SegmentType.DATA else MAX_CONTROL_PAYLOAD) + TAG_LENGTH
    if not header_length <= segment_length <= header_length + limit:
        allowed = f"{header_length}..{header_length + limit}"
        raise RemoteProtocolError(f"segment length {segment_length} is not in {allowed}", Cause.SEGMENT_SIZE)


def _stream_of(data: memoryview, start: int, end: int) -> StreamId:
    """Read the extensions; unknown ones are skipped so that later versions may add some."""
    stream, named = StreamId(0), False
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

    __slots__ = ("_need", "_rest", "_stash", "streaming", "taken", "unfinished")

    def __init__(self) -> None:
        self.streaming = False
        self.taken = 0
        """Bytes of the last feed up to the end of the segment yielded last; who stops there feeds the others later."""
        self.unfinished = 0
        """Number of the unfinished segment: each that comes in pieces has another."""
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
            if len(stash) < self._length_at(stash, 0):
                self._begin_rest(stash, 0)
            else:
                self.taken = position
                yield self._segment(stash, 0, len(stash), owned=True)
        if self._rest is not None:
            start, position = position, min(total, position + self._rest[1])
            self.taken = position
            yield self._continue(data[start:position])
        while total - position >= HEADER_LENGTH:
            length = self._length_at(data, position)
            if total - position < length:
                if self.streaming and self._has_data_header(data, position):
                    position += self._begin_rest(data, position)
                    self.taken = total
                    yield self._continue(data[position:])
                    return
                # Of a DATA segment the header is enough, also when its extensions are still to come.
                streamed = self.streaming and data[position + 1] == SegmentType.DATA
                self._need = int.from_bytes(data[position + 2 : position + 4], "big") if streamed else length
                break
            start, position = position, position + length
            self.taken = position
            yield self._segment(data, start, length, owned=False)
        if position < total:
            if data[position] != VERSION:
                raise RemoteProtocolError(f"unknown version {data[position]}")
            self._stash = bytearray(data[position:])
            self.unfinished += 1

    def _complete(self, data: memoryview) -> int:
        """Move what the unfinished segment lacks from `data` to it; return how much that was."""
        stash, position = self._stash, 0
        while True:
            missing = self._need - len(stash)
            stash += data[position : position + missing]
            position = min(position + missing, len(data))
            if len(stash) < self._need or self._need != HEADER_LENGTH:
                return position
            length = self._length_at(stash, 0)
            header_length = int.from_bytes(stash[2:4], "big")
            self._need = header_length if self.streaming and stash[1] == SegmentType.DATA else length
            if self._need == HEADER_LENGTH:
                return position

    @staticmethod
    def _has_data_header(data: memoryview, position: int) -> bool:
        header_length = int.from_bytes(data[position + 2 : position + 4], "big")
        return data[position + 1] == SegmentType.DATA and len(data) - position >= header_length

    def _begin_rest(self, data: memoryview, position: int) -> int:
        """Remember the DATA segment whose header is at `position`; return the length of that header."""
        _, _, header_length, length, _, _ = _HEADER.unpack_from(data, position)
        self._rest = (self._segment(data, position, header_length, owned=False), length - header_length)
        return int(header_length)

    def _continue(self, payload: memoryview) -> Segment:
        """The next part of the DATA segment under way."""
        assert self._rest is not None
        last, missing = self._rest
        part = Segment(
            last.type,
            last.session_id,
            last.sequence + len(last.payload),
            last.stream,
            memoryview(b""),
            payload,
            False,
        )
        missing -= len(payload)
        self._rest = (part, missing) if missing else None
        return part

    @staticmethod
    def _length_at(data: memoryview | bytearray, position: int) -> int:
        version, type_, header_length, segment_length, _, _ = _HEADER.unpack_from(data, position)
        if version != VERSION:
            raise RemoteProtocolError(f"unknown version {version}")
        _check(type_, header_length, segment_length)
        length: int = segment_length
        return length

    @staticmethod
    def _segment(data: memoryview, position: int, length: int, *, owned: bool) -> Segment:
        _, type_, header_length, _, session_id, sequence = _HEADER.unpack_from(data, position)
        body = position + header_length
        stream = StreamId(0) if header_length == HEADER_LENGTH else _stream_of(data, position + HEADER_LENGTH, body)
        return Segment(type_, session_id, sequence, stream, data[position:body], data[body : position + length], owned)


assert SESSION_ID_LENGTH == 16
