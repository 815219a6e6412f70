"""What a server keeps for sessions that attack its memory, against what it counts for them in `limits.max_memory`.

Each attack meets a server of its own, in a process of its own, whose application never reads. It comes as many
sessions, each from another network, and does its worst within what the windows allow. Counted is what the sessions
count for when all has come; traced is what Python has allocated since before the first of them, resident what the
process has grown by, in another run. The promise holds for either.

    python -m benchmarks.basics.counted [--quick]
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import gc
import json
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import multi
from benchmarks import ROOT
from multi.protocol.segment import SegmentType, encode
from multi.protocol.settings import EARLY_DATA_LIMIT, Protect, SessionSettings
from multi.types import SessionId, StreamId

HOST = "127.0.0.1"
SESSIONS = 100
WARM_UP = 4  # sessions before the first look at the memory: what a process needs once is not theirs
PROMISE = 1.5  # times what is counted
WINDOW = EARLY_DATA_LIMIT
STREAMS = range(2, 2 * SessionSettings().max_streams, 2)

Attack = Callable[[SessionId], Iterator[bytes]]


def _data(session: SessionId, offset: int, size: int, stream: int = 0) -> bytes:
    return encode(SegmentType.DATA, session, bytes(size), sequence=offset, stream=StreamId(stream))


def bare(session: SessionId) -> Iterator[bytes]:
    """Nothing after the handshake."""
    yield b""


def unread(session: SessionId) -> Iterator[bytes]:
    """The whole window, in order."""
    for offset in range(0, WINDOW, 8192):
        yield _data(session, offset, 8192)


def tiny(session: SessionId) -> Iterator[bytes]:
    """The whole window, byte by byte in order."""
    for offset in range(WINDOW):
        yield _data(session, offset, 1)


def islands(session: SessionId) -> Iterator[bytes]:
    """Every other byte of the window."""
    for offset in range(1, WINDOW, 2):
        yield _data(session, offset, 1)


def spread_islands(session: SessionId) -> Iterator[bytes]:
    """The same over all streams."""
    for stream in STREAMS:
        for offset in range(1, WINDOW // len(STREAMS), 2):
            yield _data(session, offset, 1, stream)


def large_islands(session: SessionId) -> Iterator[bytes]:
    """Pieces with gaps of a byte."""
    for offset in range(1, WINDOW - 2100, 2100):
        yield _data(session, offset, 2099)


def overlapping(session: SessionId) -> Iterator[bytes]:
    """Segments of which little is new."""
    for offset in range(1, WINDOW // 2, 2100):
        yield _data(session, offset, WINDOW // 2)


def streams(session: SessionId) -> Iterator[bytes]:
    """All streams, opened by one segment."""
    yield _data(session, 0, 1, STREAMS[-1])


def streams_with_gaps(session: SessionId) -> Iterator[bytes]:
    """All streams, each with a byte above a gap."""
    for stream in STREAMS:
        yield _data(session, 1, 1, stream)


ATTACKS: dict[str, Attack] = {
    attack.__name__.replace("_", " "): attack
    for attack in (bare, unread, tiny, islands, spread_islands, large_islands, overlapping, streams, streams_with_gaps)
}


# --- the server ---


async def _serve(traced: bool) -> None:
    """Serve until standard input ends; every line read is answered with [counted, kept, payload received]."""

    async def never_reads(reader: Any, writer: Any) -> None:
        await asyncio.Event().wait()

    config = {"listen": {"host": HOST, "port": 0, "transports": ["tcp"]}, "protect": "never"}
    if traced:
        tracemalloc.start()
    server = await multi.start_server(never_reads, config)
    print(server.port, flush=True)
    loop = asyncio.get_running_loop()
    libc = ctypes.CDLL(None)
    while await loop.run_in_executor(None, sys.stdin.readline):
        gc.collect()
        libc.malloc_trim(0)
        kept = tracemalloc.get_traced_memory()[0] if traced else _resident()
        received = sum(c.payload_received for s in server.sessions for c in s.connections)
        print(json.dumps([server.admission.taken(), kept, received]), flush=True)
    os._exit(0)


def _resident() -> int:
    """Bytes of memory this process has now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def _server(*, traced: bool) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.basics.counted", "--serve", *(["--traced"] if traced else [])],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _line(process: subprocess.Popen[str], question: str = "") -> Any:
    assert process.stdin is not None
    assert process.stdout is not None
    if question:
        process.stdin.write(question + "\n")
        process.stdin.flush()
    return json.loads(process.stdout.readline())


# --- the attackers ---


async def _attack(attack: Attack, sessions: int, process: subprocess.Popen[str]) -> tuple[int, int]:
    """(counted, kept) bytes of all sessions together."""
    from tests.integration.hostile import HandMade  # from this checkout

    port = _line(process)
    clients: list[HandMade] = []

    async def open_one() -> HandMade:
        client = await HandMade.at(port, f"127.{1 + len(clients) % 250}.1.1", Protect.NEVER)
        clients.append(client)
        await client.confirm()
        return client

    for _ in range(WARM_UP):
        await open_one()
    await asyncio.sleep(0.2)
    before, expected = (await asyncio.to_thread(_line, process, "figures")), 0
    for _ in range(sessions):
        client = await open_one()
        for segment in attack(client.session_id):
            client.send(segment)
            expected += int.from_bytes(segment[4:8], "big") - segment[3] if segment else 0
        await client.writer.drain()
    after = before
    for _ in range(600):
        await asyncio.sleep(0.1)
        after = await asyncio.to_thread(_line, process, "figures")
        if after[2] >= expected:
            break
    else:
        raise SystemExit(f"only {after[2]} of {expected} bytes came")
    for client in clients:
        client.writer.transport.abort()
    return after[0] - before[0], after[1] - before[1]


def measure(attack: Attack, sessions: int, *, traced: bool) -> tuple[int, int]:
    """(counted, kept) bytes for each session."""
    with _server(traced=traced) as process:
        counted, kept = asyncio.run(_attack(attack, sessions, process))
    return counted // sessions, kept // sessions


def run(*, quick: bool) -> None:
    """Print the table."""
    sessions = SESSIONS // 10 if quick else SESSIONS
    print(f"{sessions} sessions each; KiB a session:")
    print(f"{'attack':20} {'counted':>8} {'traced':>8} {'resident':>9}   of what is counted (promised {PROMISE:g})")
    for name, attack in ATTACKS.items():
        counted, traced = measure(attack, sessions, traced=True)
        _, resident = measure(attack, sessions, traced=False)
        share = max(traced, resident) / counted
        verdict = "held" if share <= PROMISE else f"short by {share - PROMISE:.2f}"
        print(
            f"{name:20} {counted / 1024:8.0f} {traced / 1024:8.0f} {resident / 1024:9.0f}   {share:.2f} ({verdict})",
            flush=True,
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer sessions: a look, not a measurement")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--traced", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.serve:
        asyncio.run(_serve(chosen.traced))
    else:
        run(quick=chosen.quick)
    return 0


if __name__ == "__main__":
    sys.exit(main())
