"""The protocol of `multi serve`, `get`, `put` and `ls`, version 1. It runs over stream 0 of a session.

A *message* is one line of JSON, ASCII, at most 16 KiB, with the protocol version and a type:

    {"multi_files": 1, "type": "get", "name": "a/b.txt", "offset": 0, "prefix_sha256": "e3b0..."}

*Content* is sent in blocks: a length (4 bytes, big endian, 1 to 1 MiB) and so many bytes. The length 0 says that a
message follows: `end`, or `refusal` when the rest will not come.

    get    client  get {name, offset, prefix_sha256}     what it has already, and its hash
           server  sending {size, offset, mode}          offset as asked when the hash fits, otherwise 0
                   blocks from offset to size, end {sha256}
    put    client  put {name, size, mode, force}
           server  receiving {offset, prefix_sha256}     what it kept of this client's earlier try
           client  begin {offset}                        that offset when the hash fits, otherwise 0
                   blocks from offset to size, end {sha256}
           server  stored {size, sha256}                 on disk, under its name
    list   client  list {name}                           a directory, "" for all that is served
           server  entry {name, size, modified}          for each file: its whole name, bytes, seconds since 1970
           server  listed {complete}                     false when there are more

`sha256` is the hash of the whole file. Either side may send `refusal {problem, message}` instead of any message; it is
the last thing it says. Unknown keys are ignored, so that later versions may add some.

This module decides what a well-formed message is. What may be read or written is decided by others.
"""

from __future__ import annotations

import json
import string
import struct
from dataclasses import dataclass, fields
from enum import Enum
from typing import Protocol, TypeVar

from multi.errors import MultiError, RemoteProtocolError, printable

VERSION = 1
MAX_LINE = 16 * 1024  # bytes; a path has at most 4096, and JSON writes some of them as six characters
MAX_BLOCK = 1 << 20  # bytes; large enough that lengths cost nothing, small enough to hold two in memory
MAX_SIZE = (1 << 63) - 1  # bytes; what a file system can address
HASH_LENGTH = 64  # hexadecimal digits of SHA-256
MAX_ENTRIES = 10_000  # files in one listing: some MB on the way
LATEST = 253_402_214_400  # seconds since 1970: the last day of the year 9999, where calendars of programs end

_LENGTH = struct.Struct("!I")


class Problem(Enum):
    """Why something was refused, for programs; the message is for people."""

    BAD_REQUEST = "bad_request"
    NOT_FOUND = "not_found"
    FORBIDDEN = "forbidden"
    EXISTS = "exists"
    BUSY = "busy"
    NO_SPACE = "no_space"
    CHANGED = "changed"
    DAMAGED = "damaged"
    FAILED = "failed"


class FileRefused(MultiError):
    """A file cannot be copied; says why, in words. Raised here, or told by the peer."""

    def __init__(self, problem: Problem, message: str) -> None:
        super().__init__(message)
        self.problem = problem


@dataclass(frozen=True, slots=True)
class FileMessage:
    """A line of either side; its type is the name of its class."""

    @property
    def type(self) -> str:
        return type(self).__name__.lower()


@dataclass(frozen=True, slots=True)
class FileRequest(FileMessage):
    """What a client begins with."""

    name: str


@dataclass(frozen=True, slots=True)
class Get(FileRequest):
    """The client wants a file, and has `offset` bytes of it with this hash."""

    offset: int
    prefix_sha256: str


@dataclass(frozen=True, slots=True)
class Sending(FileMessage):
    """Blocks from `offset` to `size` follow."""

    size: int
    offset: int
    mode: int


@dataclass(frozen=True, slots=True)
class Put(FileRequest):
    """The client has a file for the server."""

    size: int
    mode: int
    force: bool


@dataclass(frozen=True, slots=True)
class Receiving(FileMessage):
    """The server takes the file, and has `offset` bytes of it with this hash."""

    offset: int
    prefix_sha256: str


@dataclass(frozen=True, slots=True)
class Begin(FileMessage):
    """Blocks from `offset` follow."""

    offset: int


@dataclass(frozen=True, slots=True)
class End(FileMessage):
    """All blocks were sent; `sha256` is of the whole file."""

    sha256: str


@dataclass(frozen=True, slots=True)
class Stored(FileMessage):
    """The file is on disk, complete and under its name."""

    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class List(FileRequest):
    """The client wants to know the files in a directory and all below it; "" is the one that is served."""


@dataclass(frozen=True, slots=True)
class Item(FileMessage):
    """A file that can be asked for by this name."""

    name: str
    size: int
    modified: int
    """Seconds since 1970, UTC."""


@dataclass(frozen=True, slots=True)
class Listed(FileMessage):
    """That was the listing; if not `complete`, there is more than it could hold."""

    complete: bool


@dataclass(frozen=True, slots=True)
class Refusal(FileMessage):
    """This side gives up."""

    problem: str
    message: str

    def error(self) -> FileRefused:
        """The refusal as the exception it stands for, safe to print."""
        known = {problem.value: problem for problem in Problem}
        return FileRefused(known.get(self.problem, Problem.FAILED), printable(self.message))


M = TypeVar("M", bound=FileMessage)

_KINDS: dict[str, type[FileMessage]] = {
    kind.__name__.lower(): kind
    for kind in (Get, Sending, Put, Receiving, Begin, End, Stored, List, Item, Listed, Refusal)
}


def refusal_of(error: FileRefused) -> Refusal:
    return Refusal(error.problem.value, str(error)[:1024])


def encode(message: FileMessage) -> bytes:
    """The line of a message. Raises FileRefused for a name that is too long to be sent."""
    content = {field.name: getattr(message, field.name) for field in fields(message)}
    line = json.dumps({"multi_files": VERSION, "type": message.type, **content}).encode("ascii") + b"\n"
    if len(line) > MAX_LINE:
        raise FileRefused(Problem.BAD_REQUEST, "the name is too long")
    return line


def decode(line: bytes) -> FileMessage:
    """Parse a line. Raises RemoteProtocolError saying what is wrong with it."""
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):
        raise RemoteProtocolError("the peer's message is not JSON: is it a file service?") from None
    if not isinstance(content, dict) or "multi_files" not in content:
        raise RemoteProtocolError("the peer does not speak the file protocol")
    if content["multi_files"] != VERSION:
        found = printable(str(content["multi_files"])[:20])
        raise RemoteProtocolError(f"the peer speaks version {found} of the file protocol, this is version {VERSION}")
    kind = _KINDS.get(str(content.get("type")))
    if kind is None:
        raise RemoteProtocolError(f"unknown message {printable(str(content.get('type'))[:40])!r}")
    return kind(**{field.name: _checked(field.name, content) for field in fields(kind)})


def _checked(name: str, content: dict[str, object]) -> int | str | bool:
    value = content.get(name)
    match name:
        case "force" | "complete":
            valid = isinstance(value, bool)
        case "offset" | "size" | "mode":
            valid = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_SIZE
        case "modified":
            valid = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LATEST
        case "sha256" | "prefix_sha256":
            valid = isinstance(value, str) and len(value) == HASH_LENGTH and set(value) <= set(string.hexdigits)
        case _:
            valid = isinstance(value, str)
    if not valid:
        raise RemoteProtocolError(f"message {content['type']!r} has no valid {name!r}")
    assert isinstance(value, int | str)
    return value


class LineReader(Protocol):
    """What is needed of a reader; its limit must be MAX_LINE."""

    async def readline(self) -> bytes: ...

    async def readexactly(self, n: int) -> bytes: ...


async def read_message(reader: LineReader, expected: type[M]) -> M:
    """Wait for the expected message.

    Raises FileRefused when the peer refuses, RemoteProtocolError for anything else, EOFError when the peer has ended
    before.
    """
    try:
        line = await reader.readline()
    except ValueError:
        raise RemoteProtocolError("the peer's message is too long: is it a file service?") from None
    return parse_message(line, expected)


def parse_message(line: bytes, expected: type[M]) -> M:
    """The expected message from its line. Raises as `read_message`."""
    if not line.endswith(b"\n"):
        raise EOFError("the peer has ended the session")
    message = decode(line)
    if isinstance(message, Refusal):
        raise message.error()
    if not isinstance(message, expected):
        raise RemoteProtocolError(f"unexpected message {message.type!r}")
    return message


def pack_length(length: int) -> bytes:
    """What goes before a block; 0 before the message after the last one."""
    return _LENGTH.pack(length)


async def read_length(reader: LineReader) -> int:
    """Length of the next block; 0 when a message follows. Raises RemoteProtocolError, asyncio.IncompleteReadError."""
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    if length > MAX_BLOCK:
        raise RemoteProtocolError(f"a block of {length} bytes; allowed: at most {MAX_BLOCK}")
    return int(length)
