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
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from multi.errors import MultiError

PROTOCOL = 1
LINE_LIMIT = 4 * 1024 * 1024  # bytes; a report of an hour in intervals of 0.1 s
INTERVAL = 0.1  # seconds
WRITE = 64 * 1024  # bytes given to `write` at a time
BLOCK = 1_048_583  # bytes, a prime: no segment or write size divides it


class BenchError(MultiError):
    """The measurement could not be made; the message says why."""


class LineReader(Protocol):
    async def readline(self) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Request:
    """What is to be measured: for `seconds`, or exactly `size` bytes when that is not 0."""

    reverse: bool
    seconds: float
    size: int

    def encode(self) -> bytes:
        return _line({"multi_bench": PROTOCOL, "reverse": self.reverse, "seconds": self.seconds, "bytes": self.size})


@dataclass(slots=True)
class Report:
    """What the receiving side saw. Seconds, bytes; intervals as in the printed JSON."""

    bytes: int = 0
    seconds: float = 0.0
    longest_gap: float = 0.0
    intervals: list[dict[str, Any]] = field(default_factory=list)
    connections: list[dict[str, Any]] = field(default_factory=list)
    damaged: bool = False
    """The payload was checked and did not match."""


def _line(content: Mapping[str, object]) -> bytes:
    return json.dumps(content).encode() + b"\n"


def ready() -> bytes:
    return _line({"multi_bench": PROTOCOL, "ready": True})


def refusal(reason: str) -> bytes:
    return _line({"multi_bench": PROTOCOL, "error": reason})


def encode_report(report: Report, retransmitted: int) -> bytes:
    return _line({**asdict(report), "retransmitted": retransmitted})


def encode_received(count: int) -> bytes:
    return _line({"received": count})


async def read_line(reader: LineReader) -> dict[str, Any]:
    """Read one JSON object; raises BenchError when the other end is no `multi bench`."""
    try:
        line = await reader.readline()
        content = json.loads(line) if line else None
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise BenchError("the other end is not `multi bench`" if content is None else "malformed message")
    return content


async def read_answer(reader: LineReader) -> None:
    """Wait until the server is ready; raises BenchError with its reason otherwise."""
    answer = await read_line(reader)
    if answer.get("multi_bench") != PROTOCOL:
        raise BenchError(
            f"the server speaks version {answer.get('multi_bench', 'unknown')} of the bench protocol, "
            f"this client version {PROTOCOL}"
        )
    if "error" in answer:
        raise BenchError(f"the server refuses: {answer['error']}")


async def read_request(reader: LineReader) -> Request:
    """Read and check the client's request; raises BenchError."""
    content = await read_line(reader)
    if content.get("multi_bench") != PROTOCOL:
        raise BenchError(f"version {content.get('multi_bench', 'unknown')} of the bench protocol, not {PROTOCOL}")
    reverse, seconds, size = content.get("reverse"), content.get("seconds"), content.get("bytes")
    if not isinstance(reverse, bool) or not isinstance(size, int) or isinstance(size, bool):
        raise BenchError("malformed request")
    if not isinstance(seconds, int | float) or not math.isfinite(seconds) or not 0 <= seconds <= 86_400 or size < 0:
        raise BenchError("malformed request")
    return Request(reverse, float(seconds), size)


async def read_report(reader: LineReader) -> tuple[Report, int]:
    """Read the server's report and the bytes it sent again."""
    content = await read_line(reader)
    retransmitted = content.pop("retransmitted", 0)
    try:
        return Report(**content), int(retransmitted)
    except TypeError:
        raise BenchError("malformed report") from None


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
