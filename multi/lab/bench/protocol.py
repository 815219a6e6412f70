"""What the two ends of `multi bench` say to each other on stream 0, and the payload they measure with.

    client  {"multi_bench": 1, "reverse": false, "seconds": 10.0, "bytes": 0}
    server  {"multi_bench": 1}                                         or {"multi_bench": 1, "error": "..."}
    sender  payload, then the end of its direction (upload: the client; -R: the server)
    server  its report: what it received (upload), or what it sent again (-R)
    client  -R only: {"received": N}, after which the server reports

The payload repeats a block of a prime number of random-looking bytes, so that a piece that is missing, doubled
or out of order does not match.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, TypeVar

from pydantic import Field, TypeAdapter

from multi.errors import MultiError, printable
from multi.lab.files.protocol import LineReader

PROTOCOL = 1
MAX_LINE = 4 * 1024 * 1024  # bytes; a report of MAX_SECONDS in intervals of 0.1 s
INTERVAL = 0.1  # seconds
WRITE = 64 * 1024  # bytes given to `write` at a time
READ = 1024 * 1024  # bytes asked for at a time
MAX_SECONDS = 3600  # seconds to be measured
MAX_SIZE = (1 << 63) - 1  # bytes
BLOCK = 1_048_583  # bytes, a prime: no segment or write size divides it

ByteCount = Annotated[int, Field(ge=0, le=MAX_SIZE)]
Figure = Annotated[float, Field(ge=0, le=MAX_SIZE, allow_inf_nan=False)]
Duration = Annotated[float, Field(ge=0, le=2 * MAX_SECONDS, allow_inf_nan=False)]


class BenchError(MultiError):
    """The measurement could not be made; the message says why."""


@dataclass(frozen=True, slots=True)
class BenchRequest:
    """What is to be measured: for `seconds`, or exactly `bytes` when that is not 0."""

    multi_bench: int = field(default=PROTOCOL, kw_only=True)
    reverse: bool
    seconds: Annotated[float, Field(ge=0, le=MAX_SECONDS, allow_inf_nan=False)]
    bytes: ByteCount


@dataclass(frozen=True, slots=True)
class Answer:
    """The server is ready, unless it says why not."""

    multi_bench: int = field(default=PROTOCOL, kw_only=True)
    error: Annotated[str, Field(max_length=1000)] | None = None


@dataclass(frozen=True, slots=True)
class Interval:
    """Rates of a tenth of a second, which begins at `t`."""

    t: Figure
    mbps: Figure
    per_connection: dict[str, Figure]


@dataclass(frozen=True, slots=True)
class Carrier:
    """A connection and what it has carried. Payload bytes, repeats included."""

    id: ByteCount
    bytes: ByteCount
    """Received."""
    number: int = -1
    """What both ends know it by, where `id` is each end's own; -1 until it is agreed."""
    transport: str = ""
    interface: str = ""
    local: str = ""
    remote: str = ""
    state: str = ""
    sent: ByteCount = 0
    reinjected: ByteCount = 0
    rtt_ms: Figure = 0.0
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """What one side saw: the receiver all of it, the sender its connections and what it sent again."""

    bytes: ByteCount = 0
    seconds: Duration = 0.0
    longest_gap: Duration = 0.0
    intervals: list[Interval] = field(default_factory=list)
    connections: list[Carrier] = field(default_factory=list)
    damaged: bool = False
    """The payload was checked and did not match."""
    retransmitted: ByteCount = 0


@dataclass(frozen=True, slots=True)
class Received:
    """How many bytes the client has received (-R)."""

    received: ByteCount


BenchMessage = BenchRequest | Answer | Report | Received
M = TypeVar("M", bound=BenchMessage)
_ADAPTERS: dict[type[Any], TypeAdapter[Any]] = {
    kind: TypeAdapter(kind) for kind in (BenchRequest, Answer, Report, Received)
}


def encode(message: BenchMessage) -> bytes:
    return json.dumps({key: value for key, value in asdict(message).items() if value is not None}).encode() + b"\n"


async def read(reader: LineReader, expected: type[M]) -> M:
    """Read the expected message. Raises BenchError when something else comes, or the reason the server refuses for."""
    try:
        message: M = _ADAPTERS[expected].validate_json(await reader.readline(), strict=True)
    except ValueError as error:  # of pydantic, or because the line is too long
        raise BenchError(f"malformed {expected.__name__.lower()}: is the other end `multi bench`?") from error
    if isinstance(message, BenchRequest | Answer) and message.multi_bench != PROTOCOL:
        theirs = f"version {message.multi_bench} of the bench protocol"
        raise BenchError(f"the other end speaks {theirs}, this is version {PROTOCOL}")
    if isinstance(message, Answer) and message.error is not None:
        raise BenchError(f"the server refuses: {printable(message.error)}")
    return message


class Payload:
    """The bytes that travel: slices of one block, never copied."""

    def __init__(self) -> None:
        stretch = hashlib.shake_128(b"multi bench").digest(BLOCK)
        self._block = (stretch * (2 + READ // BLOCK))[: BLOCK + READ]

    def piece(self, offset: int, size: int) -> memoryview:
        """The payload at [offset, offset + size); at most READ bytes."""
        start = offset % BLOCK
        return memoryview(self._block)[start : start + size]

    def matches(self, data: bytes, offset: int) -> bool:
        """Whether `data`, at most READ bytes, is the payload from `offset` on.

        One comparison of memory, at several times the speed of a session: `==` would take views byte by byte.
        """
        return data.startswith(self.piece(offset, len(data)))
