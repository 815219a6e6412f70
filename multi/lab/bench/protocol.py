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
from typing import Any, Protocol, TypeGuard

from multi.errors import MultiError
from multi.lab.files.protocol import printable

PROTOCOL = 1
LINE_LIMIT = 4 * 1024 * 1024  # bytes; a report of an hour in intervals of 0.1 s
INTERVAL = 0.1  # seconds
WRITE = 64 * 1024  # bytes given to `write` at a time
MAX_SECONDS = 86_400  # seconds to be measured
MAX_SIZE = (1 << 63) - 1  # bytes
MAX_REASON = 1000  # characters of a refusal that are shown
MAX_VERSION = 20
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
            f"the server speaks version {_version(answer)} of the bench protocol, this client version {PROTOCOL}"
        )
    if "error" in answer:
        raise BenchError(f"the server refuses: {printable(str(answer['error'])[:MAX_REASON])}")


async def read_request(reader: LineReader) -> Request:
    """Read and check the client's request; raises BenchError."""
    content = await read_line(reader)
    if content.get("multi_bench") != PROTOCOL:
        raise BenchError(f"version {_version(content)} of the bench protocol, not {PROTOCOL}")
    reverse, seconds, size = content.get("reverse"), content.get("seconds"), content.get("bytes")
    if not isinstance(reverse, bool) or not _is_count(size) or not _is_time(seconds, MAX_SECONDS):
        raise BenchError("malformed request")
    return Request(reverse, float(seconds), size)


async def read_report(reader: LineReader) -> tuple[Report, int]:
    """Read the server's report and the bytes it sent again; raises BenchError."""
    content = await read_line(reader)
    retransmitted = content.pop("retransmitted", 0)
    try:
        report = Report(**content)
    except TypeError:
        raise BenchError("malformed report") from None
    well_formed = (
        all(_is_count(count) for count in (report.bytes, retransmitted))
        and all(_is_time(time, 2 * MAX_SECONDS) for time in (report.seconds, report.longest_gap))
        and all(_is_table(table) for table in (report.intervals, report.connections))
        and all(_is_count(c.get("bytes")) and _is_count(c.get("id")) for c in report.connections)
        and all(isinstance(c.get("number", -1), int) for c in report.connections)
        and all(_is_interval(interval) for interval in report.intervals)
        and isinstance(report.damaged, bool)
    )
    if not well_formed:
        raise BenchError("malformed report")
    return report, retransmitted


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_SIZE


def _is_time(value: object, longest: float) -> TypeGuard[float]:
    # Compared before it becomes a float: an integer of JSON may be too large for one.
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= longest


def _is_table(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(row, dict) for row in value)


def _is_interval(interval: dict[str, object]) -> bool:
    times, rates = (interval.get("t"), interval.get("mbps")), interval.get("per_connection")
    return (
        all(_is_time(figure, MAX_SIZE) for figure in times)
        and isinstance(rates, dict)
        and all(_is_time(rate, MAX_SIZE) for rate in rates.values())
    )


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
