"""Frames and the transport parameter of RFC 10069, as bytes: what is in them, not what they mean.

Code points are those of the RFC's last draft (draft-ietf-quic-multipath-21), which implementations of other makes use;
of the RFC itself only the abstract could be compared.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple, Protocol

from aioquic._buffer import Buffer as QuicBuffer
from aioquic.buffer import encode_uint_var, size_uint_var

INITIAL_MAX_PATH_ID = 0x3E
"""The transport parameter: the largest Path ID the peer may use."""
MAX_PATH_ID = 2**32 - 1


class PathFrame(IntEnum):
    """Types of frames; all of them travel in 1-RTT packets only."""

    PATH_ACK = 0x3E
    PATH_ACK_ECN = 0x3F
    PATH_ABANDON = 0x3E75
    PATH_STATUS_BACKUP = 0x3E76
    PATH_STATUS_AVAILABLE = 0x3E77
    PATH_NEW_CONNECTION_ID = 0x3E78
    PATH_RETIRE_CONNECTION_ID = 0x3E79
    MAX_PATH_ID = 0x3E7A
    PATHS_BLOCKED = 0x3E7B
    PATH_CIDS_BLOCKED = 0x3E7C


class Waiting(Protocol):
    """A frame that is to be sent, again until it arrives."""

    @property
    def kind(self) -> int: ...

    def body(self) -> bytes:
        """What follows the type."""


class Frame(NamedTuple):
    """One that consists of numbers: PATH_ABANDON has a Path ID and an error code, the status frames a Path ID and a
    sequence number, MAX_PATH_ID and PATHS_BLOCKED a maximum, PATH_RETIRE_CONNECTION_ID and PATH_CIDS_BLOCKED a Path ID
    and a sequence number of connection ids."""

    kind: PathFrame
    numbers: tuple[int, ...]

    def body(self) -> bytes:
        """What follows the type."""
        return b"".join(map(encode_uint_var, self.numbers))


_NUMBERS = {
    PathFrame.PATH_ABANDON: 2,
    PathFrame.PATH_STATUS_BACKUP: 2,
    PathFrame.PATH_STATUS_AVAILABLE: 2,
    PathFrame.PATH_RETIRE_CONNECTION_ID: 2,
    PathFrame.MAX_PATH_ID: 1,
    PathFrame.PATHS_BLOCKED: 1,
    PathFrame.PATH_CIDS_BLOCKED: 2,
}


def pull_frame(kind: PathFrame, buffer: QuicBuffer) -> Frame:
    """Read what follows the type. Raises aioquic's BufferReadError, which is a ValueError, when it is cut off."""
    return Frame(kind, tuple(buffer.pull_uint_var() for _ in range(_NUMBERS[kind])))


def new_connection_id_body(path: int, sequence: int, connection_id: bytes, token: bytes) -> bytes:
    """Of PATH_NEW_CONNECTION_ID; it retires no others."""
    numbers = b"".join(map(encode_uint_var, (path, sequence, 0)))
    return numbers + bytes([len(connection_id)]) + connection_id + token


def parameter(maximum: int) -> bytes:
    """The transport parameter."""
    return encode_uint_var(INITIAL_MAX_PATH_ID) + encode_uint_var(size_uint_var(maximum)) + encode_uint_var(maximum)


def pull_parameter(parameters: bytes, wanted: int = INITIAL_MAX_PATH_ID) -> int | None:
    """The value of one among all parameters of the peer, or None.

    Raises ValueError if they cannot be read, or it is there twice or is no number up to `MAX_PATH_ID`.
    """
    buffer, found = QuicBuffer(data=parameters), None
    while not buffer.eof():
        identifier, length = buffer.pull_uint_var(), buffer.pull_uint_var()
        value = buffer.pull_bytes(length)
        if identifier == wanted:
            of_it = QuicBuffer(data=value)
            number = of_it.pull_uint_var()
            if found is not None or not of_it.eof() or number > MAX_PATH_ID:
                raise ValueError("initial_max_path_id" if wanted == INITIAL_MAX_PATH_ID else "a private parameter")
            found = number
    return found
