"""One end of a measured session: a program that runs on a host of the testbed and keeps what it saw.

`python -m benchmarks.roaming.end` takes orders as lines of JSON on its standard input and answers on its standard
output, out of reach of the networks it measures: an `Assignment` first, then `Order`s. At the end it pickles an
`EndRecord`. It uses `multi` as any application does: `connect` or `start_server`, a
reader that always reads, a writer that drains.

All times are `time.monotonic()`, a clock that all processes of a machine share.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pickle
import sys
import time
import traceback
from array import array
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

import multi
from benchmarks.pattern import BLOCK, Checker, piece

__all__ = ["Assignment", "ConnectionSample", "EndRecord", "Happening", "Order", "Sample", "Traffic", "open_once"]

Traffic = Literal["full", "limited", "idle", "none"]

READ = 1 << 20  # bytes asked for at a time
SAMPLE = 0.020  # seconds between two looks at the connections
LATE = 0.005  # seconds; a sampler woken later than this is worth keeping
LIMITED_PERIOD, LIMITED_SIZE = 0.010, 1250  # seconds, bytes: 1 Mbit/s
ENDED = ("closed", "lost")


@dataclass(frozen=True, slots=True)
class Assignment:
    """What an end is to do; one session, then it is over."""

    config: dict[str, Any]
    serves: bool
    sends: bool
    traffic: Traffic
    loop: Literal["asyncio", "uvloop"]
    record: str
    """File to write the record to."""

    def encoded(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def decoded(cls, line: str) -> Self:
        return cls(**json.loads(line))


@dataclass(frozen=True, slots=True)
class Order:
    """`open` (client), `handover` with where to (client), `stop` (sender), `abandon` (whatever it is doing)."""

    do: Literal["open", "handover", "stop", "abandon"]
    to: str = ""

    def encoded(self) -> str:
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True)
class ConnectionSample:
    """A connection at one moment, as `ConnectionInfo` has it."""

    id: int
    transport: str
    local: str
    remote: str
    state: str
    rtt: float
    payload_received: int
    bytes_sent: int


@dataclass(frozen=True, slots=True)
class Sample:
    """The session at one moment. Ended connections are left out."""

    at: float
    reinjected: int
    connections: tuple[ConnectionSample, ...]


@dataclass(frozen=True, slots=True)
class Happening:
    """An event of the session."""

    at: float
    kind: str
    connection: int | None
    state: str
    text: str
    local: str = ""
    remote: str = ""


@dataclass(slots=True)
class EndRecord:
    """Everything one end saw."""

    read_at: array[float] = field(default_factory=lambda: array("d"))
    read_sizes: array[int] = field(default_factory=lambda: array("q"))
    samples: list[Sample] = field(default_factory=list)
    happenings: list[Happening] = field(default_factory=list)
    late: list[tuple[float, float]] = field(default_factory=list)
    """When this process was late, and by how much: what the machine did, not the session."""
    sent: int = 0
    received: int = 0
    damaged_at: int | None = None
    opening: float = 0.0
    """When `connect` was called."""
    opened: float = 0.0
    confirmed: float = 0.0
    cpu: float = 0.0
    """Seconds of processor time, without starting up."""
    error: str = ""


class _Orders:
    """Lines from standard input; `abandon` cancels the task that listens."""

    def __init__(self, reader: asyncio.StreamReader, task: asyncio.Task[Any]) -> None:
        self._reader, self._task = reader, task

    @classmethod
    async def listening(cls) -> Self:
        reader, task = asyncio.StreamReader(), asyncio.current_task()
        assert task is not None
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        return cls(reader, task)

    async def next(self) -> Order | None:
        line = await self._reader.readline()
        if not line:
            return None
        order = Order(**json.loads(line))
        if order.do == "abandon":
            self._task.cancel()
            return None
        return order


def _answer(**content: object) -> None:
    print(json.dumps(content), flush=True)


class _Watch:
    """Samples and events of one session."""

    def __init__(self, session: Any, record: EndRecord) -> None:
        self._session, self._record = session, record

    async def sample(self) -> None:
        due = time.monotonic()
        while True:
            now = time.monotonic()
            if now - due > LATE:
                self._record.late.append((now, now - due))
            connections = tuple(
                ConnectionSample(
                    c.id, c.transport, c.local, c.remote, c.state.value, c.rtt, c.payload_received, c.bytes_sent
                )
                for c in self._session.connections
                if c.state.value not in ENDED
            )
            self._record.samples.append(Sample(now, self._session.bytes_reinjected, connections))
            due = max(due + SAMPLE, now)
            await asyncio.sleep(due - time.monotonic())

    async def follow(self) -> None:
        async for event in self._session.events():
            facts = getattr(event, "facts", None)
            state = getattr(event, "state", None)
            self._record.happenings.append(
                Happening(
                    time.monotonic(),
                    type(event).__name__,
                    getattr(event, "connection", None),
                    state.value if state is not None else "",
                    str(event) if facts is None else getattr(event, "reason", ""),
                    getattr(facts, "local", ""),
                    getattr(facts, "remote", ""),
                )
            )


async def _send(writer: Any, traffic: Traffic, stopped: asyncio.Event, record: EndRecord) -> None:
    """Write until told to stop; what is written counts as sent."""

    async def write(size: int) -> None:
        writer.write(piece(record.sent, size))
        record.sent += size
        await writer.drain()

    match traffic:
        case "full":
            while not stopped.is_set():
                await write(BLOCK)
        case "limited":
            due = time.monotonic()
            while not stopped.is_set():
                await write(LIMITED_SIZE)
                due = max(due + LIMITED_PERIOD, time.monotonic())
                await asyncio.sleep(due - time.monotonic())
        case "idle":
            await write(BLOCK)
            await stopped.wait()
            await write(BLOCK)
    writer.write_eof()


async def _receive(reader: Any, record: EndRecord) -> None:
    checker = Checker()
    try:
        while data := await reader.read(READ):
            record.read_at.append(time.monotonic())
            record.read_sizes.append(len(data))
            checker.feed(data)
    finally:
        record.received, record.damaged_at = checker.received, checker.damaged_at


@contextlib.asynccontextmanager
async def _beside(*tasks: Any) -> Any:
    running = [asyncio.ensure_future(task) for task in tasks]
    try:
        yield
    finally:
        for task in running:
            task.cancel()
        for result in await asyncio.gather(*running, return_exceptions=True):
            if isinstance(result, Exception):
                print(f"beside the measurement: {result!r}", file=sys.stderr)


async def _client(assignment: Assignment, orders: _Orders, record: EndRecord) -> None:
    stopped = asyncio.Event()

    async def obey(session: Any) -> None:
        while (order := await orders.next()) is not None:
            if order.do == "stop":
                stopped.set()
            elif order.do == "handover":
                before, error = time.monotonic(), ""
                try:
                    await session.handover(to=order.to)
                except multi.MultiError as failure:
                    error = f"{type(failure).__name__}: {failure}"
                _answer(handover=order.to, before=before, after=time.monotonic(), error=error)

    record.opening = time.monotonic()
    async with multi.connect(assignment.config) as session:
        record.opened = time.monotonic()
        await session.confirmed()
        record.confirmed = time.monotonic()
        _answer(opened=record.opened)
        watch = _Watch(session, record)
        async with _beside(obey(session), watch.sample(), watch.follow()):
            if assignment.sends:
                await _send(session.writer, assignment.traffic, stopped, record)
                await session.reader.read(1)  # the server ends when it has everything
            else:
                await _receive(session.reader, record)


async def _server(assignment: Assignment, orders: _Orders, record: EndRecord) -> None:
    stopped, finished = asyncio.Event(), asyncio.Event()

    async def on_client(reader: Any, writer: Any) -> None:
        session = writer.get_extra_info("session")
        watch = _Watch(session, record)
        try:
            async with _beside(watch.sample(), watch.follow()):
                if assignment.sends:
                    await _send(writer, assignment.traffic, stopped, record)
                    await reader.read(1)
                else:
                    await _receive(reader, record)
                writer.close()
                await writer.wait_closed()
        except multi.MultiError as error:
            record.error = f"{type(error).__name__}: {error}"
        finally:
            finished.set()

    async def obey() -> None:
        while (order := await orders.next()) is not None:
            if order.do == "stop":
                stopped.set()

    server = await multi.start_server(on_client, assignment.config)
    _answer(ready=True)
    async with _beside(obey()):
        await finished.wait()
    server.close()


async def _run(assignment: Assignment, record: EndRecord) -> None:
    orders = await _Orders.listening()
    _load(assignment.config)
    started = time.process_time()
    try:
        if assignment.serves:
            await _server(assignment, orders, record)
        else:
            _answer(ready=True)
            order = await orders.next()
            if order is not None and order.do == "open":
                await _client(assignment, orders, record)
    except Exception as error:  # a bug of what is measured is a result too: what was seen until then is kept
        if not isinstance(error, multi.MultiError | OSError):
            traceback.print_exception(error)
        record.error = f"{type(error).__name__}: {error}"
    except asyncio.CancelledError:
        record.error = record.error or "the session did not come to an end and was given up"
    finally:
        record.cpu = time.process_time() - started


def _load(config: Mapping[str, Any]) -> None:
    """Import what a session needs: that takes longer than opening one, and is none of its business."""
    _modules = multi.connect, multi.start_server, multi.load_config(config)


def _loop_factory(name: str) -> Callable[[], asyncio.AbstractEventLoop]:
    if name == "asyncio":
        return asyncio.new_event_loop
    import uvloop

    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def open_once(config: Mapping[str, Any], loop: str) -> float:
    """Seconds until a session of this configuration is open; the session is ended then. To be run on the client."""

    _load(config)

    async def run() -> float:
        started = time.monotonic()
        async with multi.connect(config) as session:
            opened = time.monotonic() - started
            await session.confirmed()
            session.writer.write_eof()
        return opened

    with asyncio.Runner(loop_factory=_loop_factory(loop)) as runner:
        return runner.run(run())


def main() -> int:
    """Do one assignment."""
    # Unbuffered: what a buffer here had taken would be missing from the pipe asyncio reads.
    line = bytearray()
    while not line.endswith(b"\n"):
        if not (byte := os.read(0, 1)):
            return 1
        line += byte
    assignment = Assignment.decoded(line.decode())
    record = EndRecord()
    with asyncio.Runner(loop_factory=_loop_factory(assignment.loop)) as runner:
        runner.run(_run(assignment, record))
    Path(assignment.record).write_bytes(pickle.dumps(record))
    _answer(done=True, error=record.error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
