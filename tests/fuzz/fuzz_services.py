"""What clients and servers of the commands say to each other: files of one directory only, and measurements."""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import shutil
import tempfile
from collections.abc import Coroutine, Iterable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from multi.errors import RemoteProtocolError
from multi.lab.bench import protocol as bench_protocol
from multi.lab.bench.protocol import Answer, BenchError, BenchRequest, Report, read
from multi.lab.bench.protocol import encode as encode_bench
from multi.lab.files import blocks as file_blocks
from multi.lab.files import protocol as file_protocol
from multi.lab.files import service as file_service
from multi.lab.files import tree as file_tree
from multi.lab.files.protocol import (
    MAX_LINE,
    Begin,
    End,
    FileMessage,
    FileRefused,
    Get,
    Item,
    List,
    Listed,
    Put,
    Receiving,
    Refusal,
    Sending,
    Stored,
    decode,
    encode,
    pack_length,
)
from multi.lab.files.service import FileService
from multi.lab.files.tree import FileTree
from tests.fuzz.mutation import Choices
from tests.fuzz.target import Target, check

T = TypeVar("T")

EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
SECRET = b"nobody may see this"
NAMES = (
    *("a", "inner/b", "new", "inner/new", "way-out/secret", "file-out", "pipe", "inner", "..", "../outside/secret"),
    *(
        "inner/../../outside/secret",
        "/etc/passwd",
        "",
        ".",
        "./a",
        "a/",
        "a//b",
        "inner/.",
        "\0",
        "a\0b",
        "\ud800",
        "\udcff",
    ),
    *(
        "x" * 255,
        "x" * 256,
        "x/" * 2100,
        ".multi-partial-x",
        "a\nb",
        "\x1b[2J",
        "\u202e",
        "inner/way-up/outside/secret",
        "~",
    ),
)


def now(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that has nothing to wait for."""
    try:
        coroutine.send(None)
    except StopIteration as result:
        return result.value  # type: ignore[no-any-return]
    raise AssertionError("it waits")


class Lines:
    """A reader that has everything already."""

    def __init__(self, data: bytes, limit: int) -> None:
        self._data = data
        self._limit = limit

    async def readline(self) -> bytes:
        line, end, rest = self._data.partition(b"\n")
        if len(line) > self._limit:
            raise ValueError("the line is too long")
        self._data = rest
        return line + end

    async def readexactly(self, n: int) -> bytes:
        piece, self._data = self._data[:n], self._data[n:]
        if len(piece) < n:
            raise asyncio.IncompleteReadError(piece, n)
        return piece

    async def read(self, n: int = -1) -> bytes:
        n = len(self._data) if n < 0 else n
        piece, self._data = self._data[:n], self._data[n:]
        return piece


# --- messages  ---


def run_file_message(data: bytes) -> None:
    try:
        message = decode(data)
    except RemoteProtocolError as error:
        check(str(error).isprintable(), "a complaint with control characters")
        str(error).encode()
        return
    if isinstance(message, Refusal):
        check(str(message.error()).isprintable(), "a refusal with control characters")
    try:
        line = encode(message)
    except FileRefused:
        return  # longer in ASCII than it was
    check(decode(line) == message, "another message when it is said again")


def _messages() -> list[bytes]:
    messages: list[FileMessage] = [
        Get("a/b.txt", 0, EMPTY),
        Sending(5, 0, 0o644),
        Put("\ud800", (1 << 63) - 1, 0o7777, True),
        Receiving(0, EMPTY),
        Begin(1),
        End(EMPTY),
        Stored(5, EMPTY.upper()),
        List("a/b"),
        Item("\x1b", 1 << 40, 1_700_000_000),
        Listed(False),
        Refusal("not_found", "\x1b no"),
    ]
    return [*map(encode, messages), b'{"multi_files": ' + b"[" * 900 + b"]" * 900 + b"}", b'{"multi_files": 2}']


def run_bench_request(data: bytes) -> None:
    try:
        request = now(read(Lines(data, MAX_LINE), BenchRequest))
    except BenchError as error:
        check(str(error).isprintable(), "a complaint with control characters")
        return
    check(0 <= request.seconds <= 86_400 and request.bytes >= 0, "a request out of range")
    encode_bench(request)


def run_bench_answer(data: bytes) -> None:
    kinds: tuple[type[Answer | Report], ...] = (Answer, Report)
    for kind in kinds:
        try:
            report = now(read(Lines(data, bench_protocol.MAX_LINE), kind))
        except BenchError as error:
            check(str(error).isprintable(), "a complaint with control characters")
            continue
        if isinstance(report, Report):
            check(min(report.seconds, report.bytes, report.longest_gap, report.retransmitted) >= 0, "out of range")
            f"{report.bytes * 8 / max(report.seconds, 1e-9):.1f} {report.longest_gap:.3f}"
            json.dumps(encode_bench(report).decode())


# --- the directory  ---


@cache
def world() -> Path:
    """A directory to serve, a secret beside it, and ways from one to the other that must not work."""
    base = Path(tempfile.mkdtemp(prefix="multi-fuzz-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    atexit.register(shutil.rmtree, base, ignore_errors=True)
    (base / "outside").mkdir()
    (base / "outside" / "secret").write_bytes(SECRET)
    (base / "served").mkdir()
    _furnish(base / "served")
    return base


def _furnish(served: Path) -> None:
    (served / "inner").mkdir()
    (served / "a").write_bytes(b"content")
    (served / "inner" / "b").write_bytes(b"c" * 3000)
    (served / "way-out").symlink_to("../outside")
    (served / "file-out").symlink_to("../outside/secret")
    (served / "inner" / "way-up").symlink_to("../..")
    os.mkfifo(served / "pipe")


class _Writer:
    """What the service writes."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.closed = False
        self.bytes_reinjected = 0

    def write(self, data: bytes) -> None:
        self.written += data

    def writelines(self, pieces: Iterable[bytes]) -> None:
        self.written += b"".join(pieces)

    def write_eof(self) -> None:
        pass

    async def drain(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self if name == "session" else default


@cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    atexit.register(loop.close)
    return loop


def run_file_service(data: bytes) -> None:
    choices = Choices(data)
    sent = b"".join(_conversation(choices))
    base, writer = world(), _Writer()
    lines: list[str] = []
    with FileTree(base / "served") as tree:
        service = FileService(tree, allow_put=choices.chance(8) is False, log=lines.append)
        reader: Any = Lines(sent, MAX_LINE)
        _loop().run_until_complete(service.serve(reader, writer))  # type: ignore[arg-type]
    try:
        check(writer.closed and service.running == 0, "the service did not finish")
        check(all(line.isprintable() for line in lines), "a log line with control characters")
        check(SECRET not in writer.written, "something outside of the directory was read")
        check(sorted(os.listdir(base)) == ["outside", "served"], "something was made outside of the directory")
        check(os.listdir(base / "outside") == ["secret"], "something was made outside of the directory")
        check((base / "outside" / "secret").read_bytes() == SECRET, "something outside was written to")
    finally:
        if any(b'"put"' in piece for piece in (sent,)):
            shutil.rmtree(base / "served")
            (base / "served").mkdir()
            _furnish(base / "served")


def _conversation(choices: Choices) -> list[bytes]:
    """A request and what may follow it."""
    name = choices.pick(NAMES) if choices.chance(2) else choices.pick(NAMES) + "/" + choices.pick(NAMES)
    if choices.chance(8):
        name = choices.some().decode(errors="surrogateescape")
    size = choices.pick((0, 5, 3000, choices.edge(bits=63)))
    request: FileMessage
    if choices.chance(3):
        request = Get(name, choices.pick((0, 7, 3000, choices.edge(bits=63))), EMPTY)
    else:
        request = Put(name, size, choices.edge(bits=63), choices.chance(2))
    content = {
        "multi_files": 1,
        "type": request.type,
        **{field: getattr(request, field) for field in request.__dataclass_fields__},
    }
    parts = [choices.damaged(json.dumps(content).encode() + b"\n")]
    while choices.left and len(parts) < 12:
        match choices.below(5):
            case 0:
                parts.append(encode(Begin(choices.pick((0, 0, 5, choices.edge(bits=63))))))
            case 1:
                block = choices.some()
                parts.append(pack_length(len(block)) + block)
            case 2:
                parts.append(pack_length(choices.edge(0, 5, bits=32)))
            case 3:
                parts.append(pack_length(0) + encode(End(EMPTY)))
            case _:
                parts.append(choices.some())
    return [choices.damaged(part) for part in parts]


def _bench_seeds() -> list[bytes]:
    answers = [
        encode_bench(Answer()),
        encode_bench(Answer("no")),
        encode_bench(Report(5, 1.0, 0.1, retransmitted=7)),
    ]
    return [*answers, b'{"multi_bench": 1, "error": "\\u001b[2J"}\n', b'{"retransmitted": "x"}\n']


_WORDS = (
    b'"multi_files":1',
    b'"type":',
    b"1e400",
    b"1" * 400,
    b"NaN",
    b"null",
    b"[[[[",
    b'"\\ud800"',
    b'"\\u001b"',
    b"-1",
)

TARGETS = (
    Target("file-message", run_file_message, _messages, (file_protocol,), short=500, longest=4000, words=_WORDS),
    Target(
        "file-service",
        run_file_service,
        lambda: [bytes((n * i * i) % 256 for i in range(40)) for n in range(1, 20)],
        (file_service, file_tree, file_blocks, file_protocol),
        short=100,
        weight=3,
        longest=300,
        memory_base=6 << 20,  # a block of up to 1 MiB is announced and two are held
    ),
    Target(
        "bench-request",
        run_bench_request,
        lambda: [encode_bench(BenchRequest(True, 10.0, 0)), encode_bench(BenchRequest(False, 0, 1 << 40))],
        (bench_protocol,),
        short=400,
        longest=1000,
        words=(*_WORDS, b'"seconds":', b'"bytes":', b'"reverse":true'),
    ),
    Target(
        "bench-answer",
        run_bench_answer,
        _bench_seeds,
        (bench_protocol,),
        short=400,
        longest=1000,
        words=(*_WORDS, b'"retransmitted":', b'"bytes":', b'"seconds":', b'"intervals":'),
    ),
)
