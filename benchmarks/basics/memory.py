"""Peak memory of client and server processes: unequal connections, a reader that pauses, ten million tiny writes."""

from __future__ import annotations

import asyncio
import multiprocessing
import resource
import time
from multiprocessing.connection import Connection
from typing import Any

import multi

BLOCK = 64 * 1024
PROMISE = 200  # MB of peak memory a process may use

Reader = Any
Writer = Any


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


async def _serve(pipe: Connection, pause: float) -> None:
    finished = asyncio.Event()

    async def on_client(reader: Reader, writer: Writer) -> None:
        received = 0
        while data := await reader.read(1 << 20):
            if pause and not received:
                await asyncio.sleep(pause)
            received += len(data)
        writer.write(b"%d" % received)
        writer.close()
        await writer.wait_closed()
        finished.set()

    server = await multi.start_server(
        on_client, {"listen": {"host": "127.0.0.1", "port": 0, "transports": ["tcp"]}, "protect": "never"}
    )
    pipe.send(server.port)
    await finished.wait()
    server.close()
    pipe.send(_peak())


def _server(pipe: Connection, pause: float) -> None:
    asyncio.run(_serve(pipe, pause))


async def _send(port: int, size: int, write: int, slow_mbps: float) -> float:
    """Send `size` bytes in pieces of `write`; return the longest wait in `drain`."""
    entries: list[dict[str, object]] = [{"transport": "tcp", "ip": "ipv4", "interface": "127.0.0.1"}]
    if slow_mbps:
        entries.append({"transport": "tcp", "ip": "ipv4", "interface": "127.0.0.2", "max_rate_mbps": slow_mbps})
    reader, writer = await multi.open_connection(
        {
            "connection_priority": entries,
            "remote_host": "127.0.0.1",
            "remote_port": port,
            "protect": "never",
            "multi_config": {"wait": "all"},
        }
    )
    piece = bytes(write)
    longest = 0.0
    for _ in range(size // write):
        writer.write(piece)
        before = time.perf_counter()
        await writer.drain()
        longest = max(longest, time.perf_counter() - before)
    writer.write_eof()
    confirmed = int(await reader.read())
    if confirmed != size // write * write:
        raise SystemExit(f"{confirmed} bytes confirmed, not {size}")
    writer.close()
    await writer.wait_closed()
    return longest


def _client(pipe: Connection, port: int, size: int, write: int, slow_mbps: float) -> None:
    longest = asyncio.run(_send(port, size, write, slow_mbps))
    pipe.send((_peak(), longest))


def measure(size: int, *, write: int = BLOCK, pause: float = 0.0, slow_mbps: float = 0.0) -> tuple[float, float, float]:
    """(client's peak MB, server's peak MB, longest wait in drain)."""
    context = multiprocessing.get_context("spawn")
    server_pipe, theirs = context.Pipe()
    server = context.Process(target=_server, args=(theirs, pause))
    server.start()
    port = server_pipe.recv()
    client_pipe, theirs = context.Pipe()
    client = context.Process(target=_client, args=(theirs, port, size, write, slow_mbps))
    client.start()
    client_peak, longest = client_pipe.recv()
    server_peak = server_pipe.recv()
    client.join()
    server.join()
    return client_peak, server_peak, longest


def run(*, quick: bool) -> None:
    """Print peaks."""
    whole = (1 << 28) if quick else (2 << 30)
    tiny = 10_000_000 if quick else 100_000_000
    cases = {
        f"{whole >> 20} MiB, one connection": measure(whole),
        f"{whole >> 20} MiB, one of two connections at 8 Mbit/s": measure(whole, slow_mbps=8),
        f"{whole >> 20} MiB, one of two connections at 100 Mbit/s": measure(whole, slow_mbps=100),
        f"{whole >> 20} MiB, the reader pauses for 10 s": measure(whole, pause=10.0),
        f"{tiny // 10} writes of 10 bytes": measure(tiny, write=10),
    }
    for name, (client, server, longest) in cases.items():
        verdict = "held" if max(client, server) < PROMISE else f"short by {max(client, server) - PROMISE:.0f} MB"
        print(
            f"  {name:52} client {client:4.0f} MB, server {server:4.0f} MB ({verdict}); "
            f"longest wait in drain {longest:.2f} s"
        )


if __name__ == "__main__":
    run(quick=False)
