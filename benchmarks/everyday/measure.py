"""One figure of one party, in a process of its own: `python -m benchmarks.everyday.measure FIGURE PARTY COUNT`.

Prints one JSON object. Only the parties that use `multi` import it: its libraries change how memory is kept.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

from benchmarks import ROOT

CLIENTS = 50
LINE = b"x" * 99 + b"\n"
BROADCAST_LINE = b"y" * 119 + b"\n"
BROADCAST_PAUSE = 0.04  # seconds between two lines, for all clients one after the other
SPEAKING_PAUSE = 0.02  # seconds until the next client of the chat says something
LIMITS = {"max_unauthenticated_per_source": 1000, "max_sessions_per_source": 1000}

Reader = Any
Writer = Any
OnClient = Callable[[Reader, Writer], Coroutine[Any, Any, None]]
Figure = dict[str, float]


def protection(party: str) -> dict[str, Any]:
    """`sealed` is what one gets who says nothing."""
    return {"protect": "never"} if party.startswith("unprotected") else {}


def connections(party: str) -> int:
    return 2 if party.endswith("two") else 1


async def start(party: str, on_client: OnClient) -> tuple[Any, int]:
    """A server on loopback and its port."""
    if party == "asyncio":
        server: Any = await asyncio.start_server(on_client, "127.0.0.1", 0)
        return server, server.sockets[0].getsockname()[1]
    import multi

    listen = {"host": "127.0.0.1", "port": 0, "transports": ["tcp"]}
    server = await multi.start_server(on_client, {"listen": listen, "limits": LIMITS, **protection(party)})
    return server, server.port


def client_config(party: str, port: int) -> dict[str, Any]:
    return {
        "connection_priority": [["tcp", "ipv4", f"127.0.0.{1 + index}"] for index in range(connections(party))],
        "remote_host": "127.0.0.1",
        "remote_port": port,
        "multi_config": {"wait": "all"},
        **protection(party),
    }


async def connect(party: str, port: int) -> tuple[Reader, Writer]:
    if party == "asyncio":
        return await asyncio.open_connection("127.0.0.1", port)
    import multi

    return await multi.open_connection(client_config(party, port))


@asynccontextmanager
async def conversation(party: str, on_client: OnClient) -> AsyncIterator[tuple[Reader, Writer]]:
    """A client's reader and writer; the server is in the same process."""
    server, port = await start(party, on_client)
    reader, writer = await connect(party, port)
    yield reader, writer
    await closed(server, [writer])


async def closed(server: Any, writers: list[Writer]) -> None:
    """Close everything in order, also what the server's handlers still do."""
    for writer in writers:
        writer.close()
    for writer in writers:
        with suppress(ConnectionError):
            await writer.wait_closed()
    server.close()
    await asyncio.sleep(0.05)


async def echo(reader: Reader, writer: Writer) -> None:
    async for line in reader:
        writer.write(line)
    writer.close()


async def ping_pong(party: str, count: int) -> Figure:
    """Microseconds of processor time of both ends a round trip."""
    async with conversation(party, echo) as (reader, writer):
        for number in range(count + count // 10):
            if number == count // 10:
                started = time.process_time()
            writer.write(LINE)
            if await reader.readline() != LINE:
                raise SystemExit("another line came back")
        return {"us": (time.process_time() - started) / count * 1e6}


async def one_way(party: str, count: int) -> Figure:
    """Microseconds of processor time of both ends a message, each written and drained in a turn of its own."""

    async def sink(reader: Reader, writer: Writer) -> None:
        lines = 0
        async for _ in reader:
            lines += 1
        writer.write(b"%d\n" % lines)
        writer.close()

    async with conversation(party, sink) as (reader, writer):
        started = time.process_time()
        for _ in range(count):
            writer.write(LINE)
            await writer.drain()
            await asyncio.sleep(0)
        writer.write_eof()
        if int(await reader.readline()) != count:
            raise SystemExit("lines are missing")
        return {"us": (time.process_time() - started) / count * 1e6}


async def broadcast(party: str, count: int) -> Figure:
    """Microseconds of the server's processor time for each line that a client gets; clients in another process."""
    writers: list[Writer] = []

    async def on_client(reader: Reader, writer: Writer) -> None:
        writers.append(writer)
        await reader.read()

    server, port = await start(party, on_client)
    command = [sys.executable, "-m", "benchmarks.everyday.measure", "listeners", party, str(port)]
    listeners = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=subprocess.PIPE)
    assert listeners.stdout is not None
    try:
        await listeners.stdout.readline()
        await asyncio.sleep(1.0)
        started = time.process_time()
        for _ in range(count):
            for writer in writers:
                writer.write(BROADCAST_LINE)
            await asyncio.sleep(BROADCAST_PAUSE)
        await asyncio.sleep(0.2)
        used = time.process_time() - started
        for writer in writers:
            writer.close()
        report = await listeners.stdout.read()
    finally:
        await listeners.wait()
    await closed(server, writers)
    if json.loads(report)["lines"] != count * CLIENTS:
        raise SystemExit(f"{report!r}, expected {count * CLIENTS}")
    return {"us": used / (count * CLIENTS) * 1e6}


async def listeners(party: str, port: int) -> Figure:
    """The other process of `broadcast`."""
    streams = [await connect(party, port) for _ in range(CLIENTS)]
    print("ready", flush=True)

    async def listen(reader: Reader, writer: Writer) -> int:
        lines = 0
        async for _ in reader:
            lines += 1
        writer.close()
        return lines

    return {"lines": sum(await asyncio.gather(*[listen(*pair) for pair in streams]))}


async def chat(party: str, count: int) -> Figure:
    """Milliseconds, median, from what one client says until another has read it; all in one process."""
    members: list[Writer] = []
    complete = asyncio.Event()

    async def on_client(reader: Reader, writer: Writer) -> None:
        members.append(writer)
        if len(members) == CLIENTS:
            complete.set()
        async for line in reader:
            for member in members:
                if member is not writer:
                    member.write(line)
        writer.close()

    server, port = await start(party, on_client)
    streams = [await connect(party, port) for _ in range(CLIENTS)]
    latencies: list[float] = []

    async def listen(reader: Reader) -> None:
        async for line in reader:
            latencies.append(time.perf_counter() - float(line))

    listening = [asyncio.create_task(listen(reader)) for reader, _ in streams]
    await complete.wait()
    await asyncio.sleep(0.5)
    for number in range(count):
        streams[number % CLIENTS][1].write(b"%.9f\n" % time.perf_counter())
        await asyncio.sleep(SPEAKING_PAUSE)
    await asyncio.sleep(0.2)
    if len(latencies) != count * (CLIENTS - 1):
        raise SystemExit(f"{len(latencies)} lines came, expected {count * (CLIENTS - 1)}")
    for task in listening:
        task.cancel()
    await closed(server, [writer for _, writer in streams])
    return {"ms": statistics.median(latencies) * 1e3}


async def streams(party: str, count: int) -> Figure:
    """Milliseconds of processor time of both ends for a stream opened, 100 bytes each way, closed."""
    import multi

    async def answer(reader: Reader, writer: Writer) -> None:
        writer.write(await reader.readexactly(len(LINE)))
        writer.close()

    async def on_client(reader: Reader, writer: Writer) -> None:
        async for stream in writer.get_extra_info("session").streams():
            tasks.add(task := asyncio.create_task(answer(*stream)))
            task.add_done_callback(tasks.discard)

    tasks: set[asyncio.Task[None]] = set()
    server, port = await start(party, on_client)
    async with multi.connect(client_config(party, port)) as session:
        for number in range(count + count // 10):
            if number == count // 10:
                started = time.process_time()
            reader, writer = await session.open_stream()
            writer.write(LINE)
            if await reader.read() != LINE:
                raise SystemExit("another answer came")
            writer.close()
        used = time.process_time() - started
    server.close()
    return {"ms": used / count * 1e3}


async def first_quic(party: str, count: int) -> Figure:
    """Milliseconds, the longest that a running session waited for its event loop while QUIC was loaded."""
    longest, ends = 0.0, False

    async def talk(reader: Reader, writer: Writer) -> None:
        nonlocal longest
        while not ends:
            writer.write(LINE)
            await reader.readline()
            before = time.perf_counter()
            await asyncio.sleep(0.001)
            longest = max(longest, time.perf_counter() - before - 0.001)

    async with conversation(party, echo) as (reader, writer):
        talking = asyncio.create_task(talk(reader, writer))
        await asyncio.sleep(0.3)
        longest = 0.0
        from multi.transports.base import loaded_transport

        await loaded_transport("quic")
        from multi.transports.quic.engine import loaded_implementation
        from multi.transports.quic.settings import QuicSettings

        await loaded_implementation(QuicSettings().engine)
        ends = True
        await talking
    return {"ms": longest * 1e3}


def resident() -> float:
    """MB of memory this process has now."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) / 1024


def imported(statement: str) -> Figure:
    """Seconds of processor time and MB after an import in an interpreter that has done nothing before."""
    code = (
        "import time; started = time.process_time()\n"
        f"{statement}\n"
        "used = time.process_time() - started\n"
        "from benchmarks.everyday.measure import resident\n"
        "print(used, resident())"
    )
    # What this module imports is counted as resident too: asyncio and json, little besides.
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, check=True)
    seconds, megabytes = map(float, done.stdout.split())
    return {"s": seconds, "MB": megabytes}


async def first_session() -> None:
    """A line over a sealed session and back, both ends in this process."""
    async with conversation("sealed", echo) as (reader, writer):
        writer.write(LINE)
        await reader.readline()


FIGURES: dict[str, Callable[[str, int], Coroutine[Any, Any, Figure]]] = {
    "ping_pong": ping_pong,
    "one_way": one_way,
    "broadcast": broadcast,
    "listeners": listeners,
    "chat": chat,
    "streams": streams,
    "first_quic": first_quic,
}

if __name__ == "__main__":
    figure, party, count = sys.argv[1:]
    print(json.dumps(asyncio.run(FIGURES[figure](party, int(count)))))
