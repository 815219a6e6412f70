"""What the two ends of `multi bench` say to each other on stream 0, and the payload they measure with.

    client  {"multi_bench": 1, "reverse": false, "seconds": 10.0, "bytes": 0}
    server  {"multi_bench": 1, "ready": true}                          or {"multi_bench": 1, "error": "..."}
    sender  payload, then the end of its direction (upload: the client; -R: the server)
    server  its report: what it received (upload), or what it sent again (-R)
    client  -R only: {"received": N}, after which the server reports

The payload repeats a block of a prime number of random-looking bytes, so that a piece that is missing, doubled
or out of order does not match.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from multi.errors import MultiError
from multi.lab.files.protocol import LineReader, printable

PROTOCOL = 1
LINE_LIMIT = 4 * 1024 * 1024  # bytes; a report of an hour in intervals of 0.1 s
INTERVAL = 0.1  # seconds
WRITE = 64 * 1024  # bytes given to `write` at a time
MAX_SECONDS = 86_400  # seconds to be measured
MAX_SIZE = (1 << 63) - 1  # bytes
MAX_REASON = 1000  # characters of a refusal that are shown
MAX_VERSION = 20
BLOCK = 1_048_583  # bytes, a prime: no segment or write size divides it

Count = Annotated[int, Field(ge=0, le=MAX_SIZE)]
Figure = Annotated[float, Field(ge=0, le=MAX_SIZE, allow_inf_nan=False)]
Seconds = Annotated[float, Field(ge=0, le=2 * MAX_SECONDS, allow_inf_nan=False)]
T = TypeVar("T")


class BenchError(MultiError):
    """The measurement could not be made; the message says why."""


@dataclass(frozen=True, slots=True)
class Request:
    """What is to be measured: for `seconds`, or exactly `size` bytes when that is not 0."""

    reverse: bool
    seconds: Annotated[float, Field(ge=0, le=MAX_SECONDS, allow_inf_nan=False)]
    size: Annotated[int, Field(ge=0, le=MAX_SIZE, validation_alias="bytes")]

    def encode(self) -> bytes:
        return _line({"multi_bench": PROTOCOL, "reverse": self.reverse, "seconds": self.seconds, "bytes": self.size})


@dataclass(frozen=True, slots=True)
class Interval:
    """Rates of a tenth of a second, which begins at `t`."""

    t: Figure
    mbps: Figure
    per_connection: dict[str, Figure]


@dataclass(frozen=True, slots=True)
class Carrier:
    """A connection and what it has carried. Payload bytes, repeats included."""

    id: Count
    bytes: Count
    """Received."""
    number: int = -1
    """What both ends know it by, where `id` is each end's own; -1 until it is agreed."""
    transport: str = ""
    interface: str = ""
    local: str = ""
    remote: str = ""
    state: str = ""
    sent: Count = 0
    reinjected: Count = 0
    rtt_ms: Figure = 0.0
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """What one side saw: the receiver all of it, the sender its connections and what it sent again."""

    bytes: Count = 0
    seconds: Seconds = 0.0
    longest_gap: Seconds = 0.0
    intervals: list[Interval] = field(default_factory=list)
    connections: list[Carrier] = field(default_factory=list)
    damaged: bool = False
    """The payload was checked and did not match."""
    retransmitted: Count = 0


_REQUEST, _REPORT = TypeAdapter(Request), TypeAdapter(Report)


def _line(content: Mapping[str, object]) -> bytes:
    return json.dumps(content).encode() + b"\n"


def ready() -> bytes:
    return _line({"multi_bench": PROTOCOL, "ready": True})


def refusal(reason: str) -> bytes:
    return _line({"multi_bench": PROTOCOL, "error": reason})


def encode_report(report: Report) -> bytes:
    return _line(asdict(report))


def encode_received(count: int) -> bytes:
    return _line({"received": count})


async def _read_line(reader: LineReader) -> bytes:
    try:
        return await reader.readline()
    except ValueError:  # it is too long
        return b""


def _object(line: bytes) -> dict[str, Any]:
    """A JSON object; raises BenchError when the other end is no `multi bench`."""
    try:
        content = json.loads(line) if line else None
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise BenchError("the other end is not `multi bench`" if content is None else "malformed message")
    return content


def _valid(adapter: TypeAdapter[T], line: bytes, what: str) -> T:
    try:
        return adapter.validate_json(line, strict=True)
    except ValidationError:
        raise BenchError(f"malformed {what}") from None


async def read_answer(reader: LineReader) -> None:
    """Wait until the server is ready; raises BenchError with its reason otherwise."""
    answer = _object(await _read_line(reader))
    if answer.get("multi_bench") != PROTOCOL:
        raise BenchError(
            f"the server speaks version {_version(answer)} of the bench protocol, this client version {PROTOCOL}"
        )
    if "error" in answer:
        raise BenchError(f"the server refuses: {printable(str(answer['error'])[:MAX_REASON])}")


async def read_request(reader: LineReader) -> Request:
    """Read and check the client's request; raises BenchError."""
    line = await _read_line(reader)
    content = _object(line)
    if content.get("multi_bench") != PROTOCOL:
        raise BenchError(f"version {_version(content)} of the bench protocol, not {PROTOCOL}")
    return _valid(_REQUEST, line, "request")


async def read_received(reader: LineReader) -> str:
    """How many bytes the client says it has received."""
    return printable(str(_object(await _read_line(reader)).get("received")))


async def read_report(reader: LineReader) -> Report:
    """Read the server's report; raises BenchError."""
    line = await _read_line(reader)
    _object(line)
    return _valid(_REPORT, line, "report")


def _version(content: Mapping[str, object]) -> str:
    return printable(str(content.get("multi_bench", "unknown"))[:MAX_VERSION])


class Payload:
    """The bytes that travel: slices of one block, never copied."""

    def __init__(self) -> None:
        stretch = hashlib.shake_128(b"multi bench").digest(BLOCK)
        self._block = stretch + stretch[:WRITE]

    def piece(self, offset: int, size: int) -> memoryview:
        """The payload at [offset, offset + size); at most WRITE bytes."""
        start = offset % BLOCK
        return memoryview(self._block)[start : start + size]

    def matches(self, pieces: Iterable[bytes], offset: int = 0) -> bool:
        """Whether `pieces`, one after the other, are the payload from `offset` on."""
        for piece in pieces:
            view = memoryview(piece)
            while view:
                size = min(len(view), WRITE)
                if view[:size] != self.piece(offset, size):
                    return False
                view, offset = view[size:], offset + size
        return True
