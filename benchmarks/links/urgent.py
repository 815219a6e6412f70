"""An urgent request beside bulk: request to answer against the best path's round trip, both links with TCP."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import multi
from benchmarks.links.stage import Stage
from benchmarks.verdicts import verdict, verdict_at_most
from multi.lab.testbed import load_profile

PORT = 7795
BLOCK = 64 * 1024
APART = 0.020  # seconds between an answer and the next request
SETTLED = 2.0  # seconds from which answers count
SLACK = 5.0  # ms an answer may take besides two round trips
SHARE = 0.97  # of what bulk carries alone

Asked = tuple[float, list[float], list[float]]
"""The rate received, milliseconds to each answer, and best round trips at the sender of bulk."""


async def _bulk(writer: multi.SessionWriter, seconds: float) -> None:
    until, block = time.monotonic() + seconds, bytes(BLOCK)
    while time.monotonic() < until:
        writer.write(block)
        await writer.drain()
    writer.write_eof()


async def _received(reader: multi.SessionReader) -> float:
    """Mbit/s, from the first byte to the last."""
    size, first = 0, 0.0
    while data := await reader.read(1 << 20):
        first = first or time.monotonic()
        size += len(data)
    return size * 8 / (time.monotonic() - first) / 1e6


def _best_round_trip(session: Any) -> float:
    return min((c.rtt for c in session.connections if c.rtt and c.state.value == "active"), default=0.0)


async def serve(config: dict[str, Any], seconds: float, down: bool) -> float:
    """Send or receive bulk on stream 0 and answer each byte of another stream; return the rate received."""
    done: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    async def answers(session: Any) -> None:
        async for reader, writer in session.streams():
            while await reader.read(1):
                writer.write(f"{_best_round_trip(session)}\n".encode())

    async def on_client(reader: multi.SessionReader, writer: multi.SessionWriter) -> None:
        session = writer.get_extra_info("session")
        answering = asyncio.create_task(answers(session))
        await reader.readexactly(1)
        if down:
            await _bulk(writer, seconds)
            await reader.read()
            rate = 0.0
        else:
            rate = await _received(reader)
        answering.cancel()
        writer.close()
        with contextlib.suppress(multi.MultiError, OSError):
            await writer.wait_closed()
        done.set_result(rate)

    server = await multi.start_server(on_client, config)
    rate = await done
    server.close()
    return rate


async def ask(config: dict[str, Any], seconds: float, down: bool, requests: bool) -> Asked:
    """Receive or send bulk on stream 0, and ask meanwhile."""
    took, trips = list[float](), list[float]()

    async def asking(session: Any) -> None:
        reader, writer = await session.open_stream(priority=0)
        start = time.monotonic()
        while True:
            before = time.monotonic()
            writer.write(b"?")
            theirs = float(await reader.readline())
            if before > start + SETTLED:
                took.append((time.monotonic() - before) * 1e3)
                trips.append((theirs if down else _best_round_trip(session)) * 1e3)
            await asyncio.sleep(APART)

    async with multi.connect(config) as session:
        session.writer.write(b"!")
        task = asyncio.create_task(asking(session)) if requests else None
        rate = 0.0
        if down:
            rate = await _received(session.reader)
        else:
            await _bulk(session.writer, seconds)
        if task is not None:
            task.cancel()
        if not down:
            await session.reader.read()
    return rate, took, trips


async def _once(stage: Stage, seconds: float, *, down: bool, requests: bool) -> Asked:
    listening = {"listen": {"host": "::", "port": PORT, "transports": ["tcp"]}}
    config = stage.config([("tcp", "wlan0"), ("tcp", "wwan0")], "sealed") | {"remote_port": PORT}
    host = stage.testbed.server
    serving: asyncio.Task[float] = asyncio.create_task(host.run_python(serve, listening, seconds, down))
    await asyncio.sleep(1.5)
    asked: Asked = await stage.testbed.client.run_python(ask, config, seconds, down, requests)
    theirs = await serving
    return (asked[0] if down else theirs, *asked[1:])


def run(rounds: int, seconds: float) -> None:
    asyncio.run(_run(rounds, seconds))


async def _run(rounds: int, seconds: float) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="multi-links-") as work,
        Stage.open(load_profile("wifi_and_5g"), "bbr", Path(work), protections=[]) as stage,
    ):
        for down in (True, False):
            alone, beside, took, trips = [], [], list[float](), list[float]()
            for _ in range(rounds):
                alone.append((await _once(stage, seconds, down=down, requests=False))[0])
                rate, answers, best = await _once(stage, seconds, down=down, requests=True)
                beside.append(rate)
                took += answers
                trips += best
            middle, trip = statistics.median(took), statistics.median(trips)
            share = statistics.median(b / a for a, b in zip(alone, beside, strict=True))
            print(
                f"  {'down' if down else 'up':4}  answer {middle:.1f} ms (nine of ten below "
                f"{statistics.quantiles(took, n=10)[-1]:.1f}), {len(took)} requests, round trip {trip:.1f} ms: "
                f"at most {2 * trip + SLACK:.1f}: {verdict_at_most(middle, 2 * trip + SLACK, 1)}"
            )
            print(
                f"        bulk {statistics.median(alone):.1f} Mbit/s, beside requests "
                f"{statistics.median(beside):.1f}: {verdict(share, SHARE, 3)}",
                flush=True,
            )
