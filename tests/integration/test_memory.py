"""Memory stays bounded however much is written and however slowly it is read."""

from __future__ import annotations

import asyncio
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.support import Way, multi_pair, run
from tests.processes import MORTAL

MIB = 1024 * 1024
TOTAL = 512 * MIB
MAX_RESIDENT = (
    200 * MIB
)  # bytes of resident memory of a whole process, 60 to 80 of them the interpreter and its libraries

PEAK = """
def peak():  # of this program alone: ru_maxrss would include what its parent had when it forked
    for line in open("/proc/self/status"):
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
"""
SERVER = """
import asyncio, multi
async def main():
    done = asyncio.Event()
    async def on_client(reader, writer):
        received = 0
        while data := await reader.read(1 << 20):
            before, received = received, received + len(data)
            if before // (64 << 20) != received // (64 << 20):
                await asyncio.sleep(0.3)  # the reader pauses
        print(received, peak(), flush=True)
        writer.close()
        await writer.wait_closed()
        done.set()
    server = await multi.start_server(on_client, CONFIG)
    print(server.port, flush=True)
    await done.wait()
    server.close()
    await server.wait_closed()
asyncio.run(main())
"""
CLIENT = """
import asyncio, time, multi
async def main():
    started = time.monotonic()
    reader, writer = await multi.open_connection(CONFIG)
    piece = bytes(range(256)) * 1024
    for _ in range(TOTAL // len(piece)):
        writer.write(bytearray(piece))
        await writer.drain()
    writer.write_eof()
    await reader.read()
    print(peak(), time.monotonic() - started, flush=True)
    writer.close()
    await writer.wait_closed()
asyncio.run(main())
"""


def program(text: str, config: dict[str, object]) -> list[str]:
    return [*MORTAL, sys.executable, "-c", f"CONFIG, TOTAL = {config!r}, {TOTAL}\n{PEAK}\n{text}"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tcp-sealed", "tcp-plain"])
def test_large_transfer_to_a_reader_that_pauses(name: str, development_certificates: Path) -> None:
    way = Way(development_certificates, name)
    with subprocess.Popen(program(SERVER, way.server()), stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        client = subprocess.run(
            program(CLIENT, way.client(port)), stdout=subprocess.PIPE, text=True, timeout=100, check=True
        )
        received, server_memory = map(int, server.stdout.readline().split())
    client_memory, seconds = client.stdout.split()
    print(
        f"\n{name}: {TOTAL // MIB} MiB in {float(seconds):.1f} s; resident at most:",
        f"sender {int(client_memory) / MIB:.0f} MiB, receiver {server_memory / MIB:.0f} MiB",
    )
    assert received == TOTAL
    assert int(client_memory) < MAX_RESIDENT
    assert server_memory < MAX_RESIDENT


@pytest.mark.slow
def test_a_million_small_writes(development_certificates: Path) -> None:
    async def scenario() -> None:
        async with multi_pair(Way(development_certificates)) as pair:
            loop = asyncio.get_running_loop()
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
            started = loop.time()
            most = 0

            async def send() -> None:
                nonlocal most
                for number in range(1_000_000):
                    pair.writer.write(b"%010d" % number)
                    await pair.writer.drain()
                    if not number % 1000:
                        most = max(most, pair.session.memory)
                pair.writer.write_eof()

            sending = asyncio.ensure_future(send())
            for start in range(0, 1_000_000, 10_000):
                expected = b"".join(b"%010d" % number for number in range(start, start + 10_000))
                assert await pair.server_reader.readexactly(100_000) == expected
            assert await pair.server_reader.read() == b""
            await sending
            grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
            print(
                f"\na million writes of 10 bytes: {loop.time() - started:.2f} s,",
                f"at most {most / MIB:.1f} MiB kept, the process grew by {grown / MIB:.1f} MiB",
            )
            # Both ends share a loop: each turn writes a megabyte, and an acknowledgement takes up to four of them.
            assert most < 6 * MIB
            assert grown < 64 * MIB

    run(scenario(), timeout=100)
