"""`multi bench`: how fast a session is, measured by the applications at both ends, like iperf3.

The receiver always reads and records when bytes came; the sender writes 64 KiB at a time and waits in `drain`. Nothing
here knows how the session spreads the bytes. They are compared as they come, at the speed of memory, and not kept.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import time
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from multi.asyncio.api import connect
from multi.asyncio.interruption import run_interruptible
from multi.asyncio.session import Session
from multi.asyncio.streams import SessionReader, SessionWriter
from multi.config import Config, ConfigLike, load_config
from multi.lab.bench.protocol import (
    INTERVAL,
    MAX_LINE,
    MAX_SECONDS,
    MAX_SIZE,
    READ,
    WRITE,
    Answer,
    BenchError,
    BenchRequest,
    Carrier,
    Interval,
    Payload,
    Received,
    Report,
    encode,
    read,
)
from multi.lab.output import put_line
from multi.workers.run import Running, ServingProcess, place_of, run

logger = logging.getLogger("multi.cli")

DEFAULT_SECONDS = 10.0
REQUEST_TIMEOUT = 30.0  # seconds from opening the session to its request; a client asks at once
MAX_WAIT = MAX_SECONDS + 60.0  # seconds a client gets for a measurement, whatever it asked for


# --- receiving and sending ---


class _Recorder:
    """What a receiver sees: bytes per interval, in all and per connection, and the longest gap between reads."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._first = self._last = 0.0
        self._gap = 0.0
        self._begun: list[tuple[int, dict[int, int]]] = []
        """For each interval, the bytes read before it began, and those that connections had carried."""
        self.bytes = 0

    def _counts(self) -> dict[int, int]:
        return {c.id: c.payload_received for c in self._session.connections}

    def read(self, size: int, now: float) -> None:
        """`size` bytes were read at `now`."""
        if not self.bytes:
            self._first = self._last = now
        self._gap = max(self._gap, now - self._last)
        self._last = now
        missing = int((now - self._first) / INTERVAL) + 1 - len(self._begun)
        if missing > 0:
            self._begun += [(self.bytes, self._counts())] * missing
        self.bytes += size

    def report(self) -> Report:
        ended = [*self._begun[1:], (self.bytes, self._counts())]
        intervals = [
            Interval(
                round(index * INTERVAL, 1),
                _mbps(read - read_before),
                {str(c): _mbps(n - before.get(c, 0)) for c, n in carried.items() if n > before.get(c, 0)},
            )
            for index, ((read_before, before), (read, carried)) in enumerate(zip(self._begun, ended, strict=False))
        ]
        return Report(
            self.bytes,
            self._last - self._first,
            self._gap,
            intervals,
            _connections(self._session),
            retransmitted=self._session.bytes_reinjected,
        )


def _mbps(size: int) -> float:
    """The rate of so many bytes in an interval."""
    return round(size * 8 / INTERVAL / 1e6, 3)


def _connections(session: Session) -> list[Carrier]:
    return [
        Carrier(
            c.id,
            c.payload_received,
            c.number,
            c.transport,
            c.interface,
            c.local,
            c.remote,
            c.state.value,
            c.bytes_sent,
            c.reinjected,
            round(c.rtt * 1000, 3),
            c.detail,
        )
        for c in session.connections
    ]


async def _receive(reader: SessionReader, session: Session, request: BenchRequest, payload: Payload) -> Report:
    recorder = _Recorder(session)
    clock = asyncio.get_running_loop().time
    damaged = False
    while recorder.bytes <= (request.bytes or MAX_SIZE) and (data := await reader.read(READ)):
        recorder.read(len(data), clock())
        if request.bytes:
            damaged = damaged or not payload.matches(data, recorder.bytes - len(data))
    if request.bytes:
        damaged = damaged or recorder.bytes != request.bytes
    return replace(recorder.report(), damaged=damaged)


async def _send(writer: SessionWriter, request: BenchRequest, payload: Payload) -> None:
    clock = asyncio.get_running_loop().time
    end = clock() + request.seconds
    offset = 0
    while offset < request.bytes if request.bytes else clock() < end:
        size = min(WRITE, request.bytes - offset) if request.bytes else WRITE
        writer.write(payload.piece(offset, size))
        offset += size
        await writer.drain()
    writer.write_eof()


# --- server ---


def run_bench_server(config: ConfigLike) -> int:
    """Serve measurements until a signal comes. Returns 130 after Ctrl-C and 0 after SIGTERM."""
    loaded = load_config(config)
    stopped_by = run(loaded, _serve_in_process, partial(_announce, loaded))
    return 130 if stopped_by is signal.SIGINT else 0


def _announce(config: Config, server: Running) -> None:
    put_line(f"bench server on {place_of(config, server)}")


def _serve_in_process(process: ServingProcess) -> signal.Signals:
    return asyncio.run(_serve(process, Payload()))  # made before the loop runs: it takes some milliseconds


async def _serve(process: ServingProcess, payload: Payload) -> signal.Signals:
    async def on_client(reader: SessionReader, writer: SessionWriter) -> None:
        session: Session = writer.get_extra_info("session")
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT):
                request = await read(reader, BenchRequest)
            async with asyncio.timeout(MAX_WAIT):
                await measure(session, request)
        except BenchError as error:
            writer.write(encode(Answer(str(error))))
        except TimeoutError:
            session.abort("the measurement took too long")
        writer.close()
        await writer.wait_closed()

    async def measure(session: Session, request: BenchRequest) -> None:
        reader, writer = session.reader, session.writer
        writer.write(encode(Answer()))
        amount = f"{request.bytes} bytes" if request.bytes else f"{request.seconds:g} s"
        put_line(f"measuring {amount} {'to' if request.reverse else 'from'} {writer.get_extra_info('peername')[0]}")
        if request.reverse:
            await _send_to(reader, writer, session, request, payload)
        else:
            report = await _receive(reader, session, request, payload)
            put_line(f"received {report.bytes} bytes in {report.seconds:.2f} s")
            writer.write(encode(report))

    server = await process.start_server(on_client, limit=MAX_LINE)
    return await process.stop_signals(server, put_line).stopped()


async def _send_to(
    reader: SessionReader, writer: SessionWriter, session: Session, request: BenchRequest, payload: Payload
) -> None:
    """-R: the payload has a stream of its own, so that the report can follow on stream 0."""
    _, data_writer = await session.open_stream()
    await _send(data_writer, request, payload)
    put_line(f"sent {(await read(reader, Received)).received} bytes")
    writer.write(encode(Report(connections=_connections(session), retransmitted=session.bytes_reinjected)))


# --- client ---


def run_bench(config: ConfigLike, *, seconds: float | None, size: int | None, reverse: bool, as_json: bool) -> int:
    """Measure once and print the result. Raises what keeps it from being measured."""
    request = BenchRequest(reverse, 0.0 if size else seconds or DEFAULT_SECONDS, size or 0)
    result = run_interruptible(_measure(config, request))
    if as_json:
        print(json.dumps(result, indent=1))
    else:
        _print_result(result, request)
    if result["damaged"]:
        logger.error("the payload arrived damaged")
        return 1
    return 0


async def _measure(config: ConfigLike, request: BenchRequest) -> dict[str, Any]:
    loaded = load_config(config)
    payload = Payload()
    started = time.perf_counter()

    def elapsed_ms() -> float:
        return (time.perf_counter() - started) * 1000

    async def confirmed() -> float:
        await session.confirmed()
        return elapsed_ms()

    async with connect(loaded, limit=MAX_LINE) as session:
        open_ms = elapsed_ms()
        confirming = asyncio.ensure_future(confirmed())
        session.writer.write(encode(request))
        await read(session.reader, Answer)
        confirmed_ms = await confirming
        if request.reverse:
            async for reader, _ in session.streams():
                report = await _receive(reader, session, request, payload)
                break
            else:
                raise BenchError("the server ended the session before it sent anything")
            total_ms = elapsed_ms()
            session.writer.write(encode(Received(report.bytes)))
            report = replace(report, retransmitted=(await read(session.reader, Report)).retransmitted)
        else:
            await _send(session.writer, request, payload)
            report = await read(session.reader, Report)
            total_ms = elapsed_ms()
            report = replace(report, retransmitted=session.bytes_reinjected)
        ours = _connections(session)
    return {
        "reverse": request.reverse,
        "bytes": report.bytes,
        "open_ms": round(open_ms, 3),
        "confirmed_ms": round(confirmed_ms, 3),
        "seconds": round(report.seconds, 6),
        "mbps": round(report.bytes * 8 / report.seconds / 1e6, 3) if report.seconds > 0 else 0.0,
        "total_seconds": round(total_ms / 1000, 6),
        "longest_gap_ms": round(report.longest_gap * 1000, 3),
        "retransmitted_bytes": report.retransmitted,
        "damaged": report.damaged,
        **_per_connection(request, report, ours),
    }


def _per_connection(request: BenchRequest, report: Report, ours: list[Carrier]) -> dict[str, Any]:
    """Intervals and connections; upload: bytes per connection are the receiver's, ids, names and RTTs ours."""
    intervals = report.intervals
    if not request.reverse:
        theirs = {c.number: c for c in report.connections if c.number >= 0}
        our_ids = {str(theirs[c.number].id): str(c.id) for c in ours if c.number in theirs}
        ours = [replace(c, bytes=theirs[c.number].bytes if c.number in theirs else 0) for c in ours]
        intervals = [
            replace(one, per_connection={our_ids[c]: r for c, r in one.per_connection.items() if c in our_ids})
            for one in intervals
        ]
    return {"intervals": [asdict(one) for one in intervals], "connections": [asdict(one) for one in ours]}


def _print_result(result: dict[str, Any], request: BenchRequest) -> None:
    arrow = "server to client" if request.reverse else "client to server"
    print(f"{arrow}; open after {result['open_ms']:.1f} ms, confirmed after {result['confirmed_ms']:.1f} ms")
    per_second = round(1 / INTERVAL)
    intervals = result["intervals"]
    for start in range(0, len(intervals), per_second):
        piece = intervals[start : start + per_second]
        rate = sum(i["mbps"] for i in piece) / len(piece)
        print(f"  {start * INTERVAL:5.1f} s  {rate:10.1f} Mbit/s")
    for c in result["connections"]:
        over = c["interface"] or c["local"]
        print(f"  {c['transport']:5} over {over}: {c['bytes'] / 1e6:.1f} MB, RTT {c['rtt_ms']:.2f} ms, {c['state']}")
    print(
        f"{result['bytes']} bytes in {result['seconds']:.2f} s: {result['mbps']:.1f} Mbit/s; "
        f"longest gap {result['longest_gap_ms']:.0f} ms; {result['retransmitted_bytes']} bytes sent again"
    )
